"""A causal language model with any core. Letters: B sequences, T tokens, V vocabulary size."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers.modeling_outputs import CausalLMOutputWithPast

from stairwell.errors import UserError
from stairwell.hf.base import PretrainedCoreConfig, StairwellModel, core_fields
from stairwell.hf.cache import StateCache, check_cache
from stairwell.models import IGNORE_INDEX, LanguageModel, LanguageModelConfig

OPTIONS = ("tied", "start_embedding", "embedding_dropout", "output_dropout", "adaptive", "adaptive_factor")


class StairwellConfig(PretrainedCoreConfig):
    """`core` is the name of the core and `core_options` its options; the other fields are options of the model."""

    model_type = "stairwell"

    vocab_size: int = 256
    tied: bool = False
    adaptive: list | tuple | None = None
    adaptive_factor: int = 4

    def model_config(self) -> LanguageModelConfig:
        options = {name: getattr(self, name) for name in OPTIONS}
        options["adaptive"] = tuple(options["adaptive"] or ())
        return LanguageModelConfig(core=self.core_config(), inputs=self.vocab_size, **options)

    @classmethod
    def of(cls, config: LanguageModelConfig, **options: Any) -> StairwellConfig:
        """Return the config of transformers for a model's config."""
        if config.inputs != config.V:
            raise UserError(f"a causal language model predicts its {config.inputs} input tokens, not {config.V} labels")
        own = {name: getattr(config, name) for name in OPTIONS}
        own["adaptive"] = list(config.adaptive) or None
        return cls(**core_fields(config.core), vocab_size=config.inputs, **own, **options)


class StairwellForCausalLM(StairwellModel):
    config_class = StairwellConfig
    config: StairwellConfig
    _no_split_modules = ["LanguageModel"]  # noqa: RUF012

    def __init__(self, config: StairwellConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self.model = LanguageModel(config.model_config())
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: StateCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        return_dict: bool | None = None,
        position_ids: Tensor | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        """Return logits (B, T, V). input_ids (B, T), attention_mask (B, T or all tokens so far). Positions are
        relative, so `position_ids` only mark the start of packed sequences, by a 0."""
        if input_ids is None:
            raise ValueError("input_ids is missing; stairwell models do not accept inputs_embeds")
        if position_ids is None and (packed := {"seq_idx", "cu_seq_lens_q"} & kwargs.keys()):
            raise ValueError(f"{min(packed)}: packed sequences need position_ids (return_position_ids=True)")
        use_cache = self.config.use_cache and not self.training if use_cache is None else use_cache
        if self.training:
            self.model.core.clamp_spans()
        cache, keep = check_cache(past_key_values), logits_to_keep if labels is None else 0
        logits = cache.read(
            self.model,
            input_ids,
            lambda: self.model.init_state(len(input_ids)),
            attention_mask,
            keep,
            use_cache,
            position_ids,
        )
        loss = None
        if labels is not None:
            loss = self.loss_function(logits, labels, vocab_size=self.config.vocab_size, **kwargs)
            if self.training:
                shifted = kwargs.get("shift_labels")
                counted = (labels[..., 1:] if shifted is None else shifted) != IGNORE_INDEX
                loss = loss + self.span_loss(counted.sum(), kwargs.get("num_items_in_batch"))
        # Without a cache, generation passes all tokens again, so none may be returned.
        output = CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=cache if use_cache else None)  # type: ignore[arg-type]
        return output.to_tuple() if return_dict is False else output
