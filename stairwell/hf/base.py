"""What all stairwell models in transformers share: the core's options, saving, and the cache for generation."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel

from stairwell import configs
from stairwell.cores import config_type, name_of
from stairwell.cores.feedback import Mix
from stairwell.errors import UserError
from stairwell.hf.cache import StateCache
from stairwell.outputs import check_location


class PretrainedCoreConfig(PreTrainedConfig):
    """`core` is the name of the core and `core_options` its options, as on the command line."""

    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012

    core: str = "feedback"
    core_options: dict | None = None
    start_embedding: bool = True
    embedding_dropout: float = 0.0
    output_dropout: float = 0.0
    run: dict | None = None  # the other files of a run folder, for `to_run`
    use_cache: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None
    tie_word_embeddings: bool = False  # the model ties its embeddings itself

    def __post_init__(self, **kwargs: Any) -> None:
        if isinstance(self.core, dict):
            raise UserError(
                "this config.json belongs to a run folder of stairwell; load it with stairwell.hf.from_run(folder)"
            )
        self.core_options = dict(self.core_options or {})
        core = self.core_config()
        # Attributes that other libraries read.
        self.hidden_size, self.num_hidden_layers = core.width, core.layers
        self.num_attention_heads = getattr(core, "heads", 1)
        for name in ("hidden_size", "num_hidden_layers", "num_attention_heads"):
            kwargs.pop(name, None)
        super().__post_init__(**kwargs)

    def core_config(self) -> Any:
        """Return the core's config."""
        return configs.from_json(config_type(self.core), dict(self.core_options or {}), "core_options")


def core_fields(core: Any) -> dict[str, Any]:
    """Return a core's config as `core` and `core_options`."""
    name = name_of(core)
    if name is None:
        raise UserError(f"{type(core).__name__} is not the config of a core in stairwell.cores.CORES")
    return {"core": name, "core_options": configs.to_json(core)}


class StairwellModel(PreTrainedModel, GenerationMixin):
    config: PretrainedCoreConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    _is_stateful = False  # the memory can be cropped, so assisted decoding may roll it back

    def _init_weights(self, module: nn.Module) -> None:
        """Restore the buffers that are not saved. Modules initialize their own parameters."""
        if isinstance(module, Mix):
            allowed: Any = module.allowed
            allowed.copy_(Mix(self.config.core_config()).allowed)

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """Save the model, but never over a run folder of stairwell, whose files have the same names."""
        check_location(save_directory)
        super().save_pretrained(save_directory, *args, **kwargs)

    def get_input_embeddings(self) -> nn.Module:
        embedding: nn.Module = self.model.embedding
        return embedding

    def span_loss(self, counted: Tensor, num_items_in_batch: Tensor | int | None) -> Tensor:
        """Return the loss of the adaptive spans. Trainer sums the losses of an accumulated batch, so each part adds its
        share; `counted` is the number of labels in this part."""
        loss: Tensor = self.model.core.span_loss()
        return loss if num_items_in_batch is None else loss * (counted / num_items_in_batch)

    def get_output_embeddings(self) -> None:
        """Return None: the model ties its embeddings itself, and they cannot be resized."""

    def _prepare_cache_for_generation(  # type: ignore[override]
        self, generation_config: Any, model_kwargs: dict, *args: Any, **kwargs: Any
    ) -> None:
        """Create a StateCache where generation would create a cache of keys and values."""
        if model_kwargs.get("past_key_values") is None and generation_config.use_cache is not False:
            if generation_config.cache_implementation not in (None, "dynamic"):
                raise ValueError("stairwell models support a StateCache only; leave out cache_implementation")
            model_kwargs["past_key_values"] = StateCache()
            if generation_config.is_assistant:
                model_kwargs["past_key_values"].activate_past_recording()
        else:
            super()._prepare_cache_for_generation(generation_config, model_kwargs, *args, **kwargs)  # type: ignore[misc]
