"""What all stairwell models in transformers share: a core and its options, and where generation gets its cache."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel

from stairwell import configs
from stairwell.cores import config_type, name_of
from stairwell.cores.feedback import Mix
from stairwell.errors import UserError
from stairwell.hf.cache import StateCache
from stairwell.outputs import check_place


class CoreConfig(PreTrainedConfig):
    """`core` names the core and `core_options` are its options, as on the command line."""

    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012

    core: str = "feedback"
    core_options: dict | None = None
    start_embedding: bool = True
    embedding_dropout: float = 0.0
    output_dropout: float = 0.0
    run: dict | None = None  # what a run folder holds besides the parameters, to become one again
    use_cache: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None
    tie_word_embeddings: bool = False  # the model ties its own

    def __post_init__(self, **kwargs: Any) -> None:
        if isinstance(self.core, dict):
            raise UserError(
                "this config.json is of a run folder of stairwell; load it with stairwell.hf.from_run(folder)"
            )
        self.core_options = dict(self.core_options or {})
        core = self.core_config()
        # What tools of the ecosystem look for.
        self.hidden_size, self.num_hidden_layers = core.width, core.layers
        self.num_attention_heads = getattr(core, "heads", 1)
        for name in ("hidden_size", "num_hidden_layers", "num_attention_heads"):
            kwargs.pop(name, None)
        super().__post_init__(**kwargs)

    def core_config(self) -> Any:
        """The core's own config."""
        return configs.from_json(config_type(self.core), dict(self.core_options or {}), "core_options")


def core_fields(core: Any) -> dict[str, Any]:
    """A core's config as `core` and `core_options`."""
    name = name_of(core)
    if name is None:
        raise UserError(f"{type(core).__name__} is the config of no core in stairwell.cores.CORES")
    return {"core": name, "core_options": configs.to_json(core)}


class StairwellModel(PreTrainedModel, GenerationMixin):
    config: CoreConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    _is_stateful = False  # the memory can be cropped, so assisted decoding may roll it back

    def _init_weights(self, module: nn.Module) -> None:
        """Modules have drawn their own parameters; only what no file holds must be made once more."""
        if isinstance(module, Mix):
            allowed: Any = module.allowed
            allowed.copy_(Mix(self.config.core_config()).allowed)

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """Save as every model of transformers, but never over the files of a stairwell run, which have the same
        names."""
        check_place(save_directory)
        super().save_pretrained(save_directory, *args, **kwargs)

    def get_input_embeddings(self) -> nn.Module:
        embedding: nn.Module = self.model.embedding
        return embedding

    def span_loss(self, counted: Tensor, num_items_in_batch: Tensor | int | None) -> Tensor:
        """Return the loss of the learned spans. Trainer sums the losses of the parts of an accumulated batch, so each
        adds its share; `counted` is the number of labels of this part."""
        loss: Tensor = self.model.core.span_loss()
        return loss if num_items_in_batch is None else loss * (counted / num_items_in_batch)

    def get_output_embeddings(self) -> None:
        """None that anyone could tie or resize: the model ties its own."""

    def _prepare_cache_for_generation(  # type: ignore[override]
        self, generation_config: Any, model_kwargs: dict, *args: Any, **kwargs: Any
    ) -> None:
        """Hand out a StateCache where generation would make a cache of keys and values."""
        if model_kwargs.get("past_key_values") is None and generation_config.use_cache is not False:
            if generation_config.cache_implementation not in (None, "dynamic"):
                raise ValueError("a stairwell model has one kind of cache: leave cache_implementation out")
            model_kwargs["past_key_values"] = StateCache()
            if generation_config.is_assistant:
                model_kwargs["past_key_values"].activate_past_recording()
        else:
            super()._prepare_cache_for_generation(generation_config, model_kwargs, *args, **kwargs)  # type: ignore[misc]
