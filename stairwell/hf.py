"""Hugging Face transformers: every core as a causal language model with its own cache.

    import stairwell.hf                                                      registers everything with the Auto classes
    model = AutoModelForCausalLM.from_pretrained("my-model")
    model = from_run("runs/lm-feedback"); to_run(model, "runs/again")        both ways, bit for bit

The cache is stairwell's state, not keys and values: of fixed size, exact however the sequence is cut, and tokens can be
taken back, so that assisted decoding works for recurrent models too. A row that is padded on the left begins anew at
its first real token, as a document does in a packed stream. Letters: B rows, T tokens, V symbols.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stairwell import configs, text
from stairwell.cores import Core, config_type, name_of
from stairwell.cores.feedback import Mix
from stairwell.decode import Session
from stairwell.errors import UserError
from stairwell.files import write_text
from stairwell.generate import BYTE_OF
from stairwell.models import LanguageModel, LanguageModelConfig
from stairwell.runs.trainings import load
from stairwell.state import State
from stairwell.stream import with_slack
from stairwell.tasks import spec
from stairwell.train import Run

try:
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        Cache,
        GenerationMixin,
        PreTrainedConfig,
        PreTrainedModel,
        PreTrainedTokenizerFast,
    )
    from transformers.modeling_outputs import CausalLMOutputWithPast
except ImportError:
    raise UserError("transformers is not installed: pip install 'stairwell[hf]'") from None

FILES = (spec.FILE, "config.json")  # of a run folder, besides the parameters
MODEL = ("tied", "first_token", "embedding_dropout", "output_dropout", "adaptive", "adaptive_factor")


class StairwellConfig(PreTrainedConfig):
    """`core` names the core and `core_options` are its options, as on the command line; the rest are the model's."""

    model_type = "stairwell"
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012

    core: str = "feedback"
    core_options: dict | None = None
    vocab_size: int = 256
    tied: bool = False
    first_token: bool = True
    embedding_dropout: float = 0.0
    output_dropout: float = 0.0
    adaptive: list | tuple | None = None
    adaptive_factor: int = 4
    run: dict | None = None  # what a run folder holds besides the parameters, to become one again
    use_cache: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None
    tie_word_embeddings: bool = False  # the model ties its own

    def __post_init__(self, **kwargs: Any) -> None:
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

    def model_config(self) -> LanguageModelConfig:
        options = {name: getattr(self, name) for name in MODEL}
        options["adaptive"] = tuple(options["adaptive"] or ())
        return LanguageModelConfig(core=self.core_config(), inputs=self.vocab_size, **options)

    @classmethod
    def of(cls, config: LanguageModelConfig, **options: Any) -> StairwellConfig:
        """The same for a model's config."""
        if config.inputs != config.V:
            raise UserError(f"a causal language model predicts its own {config.inputs} symbols, not {config.V} labels")
        core = name_of(config.core)
        if core is None:
            raise UserError(f"{type(config.core).__name__} is the config of no core in stairwell.cores.CORES")
        own = {name: getattr(config, name) for name in MODEL}
        own["adaptive"] = list(config.adaptive) or None
        return cls(core=core, core_options=configs.to_json(config.core), vocab_size=config.inputs, **own, **options)


class StateCache(Cache):
    """The state of all rows as a cache of transformers. `seen` counts tokens as generation does, padding included."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.seen = 0
        self.keeps_past = False  # whether tokens may have to be taken back
        self.since = 0  # tokens read since `crop` was last called
        self._state: State | None = None
        self._session: Session | None = None

    @property
    def state(self) -> State | None:
        return self._session.state() if self._session is not None else self._state

    def begin(self, model: LanguageModel, batch: int) -> State:
        """The state to go on from; fresh for the first tokens."""
        return self.state or model.init_state(batch)

    def put(self, state: State, tokens: int) -> None:
        self._state, self._session = state, None
        self._count(tokens)

    def step(self, model: LanguageModel, tokens: Tensor) -> Tensor:
        """One token a row, (B,), by a decoding session, which keeps what is projected. -> logits (B, V)"""
        if self._session is None or self._session.model is not model:
            self._session = Session(model, self.begin(model, len(tokens)))
            self._state = None
        logits = self._session.step(tokens)
        self._count(1)
        return logits

    def make_room(self, core: Core, tokens: int, batch: int) -> None:
        """Where tokens may be taken back, keep the past of all since the last time it was asked for, and of these."""
        if not self.keeps_past:
            return
        state = self.state or core.init_state(batch)
        wanted = self.since + tokens
        if wanted > state.slack:
            self._state, self._session = with_slack(core, state, max(wanted, 2 * state.slack)), None

    def _count(self, tokens: int) -> None:
        self.seen += tokens
        self.since += tokens

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.seen

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1

    def activate_past_recording(self) -> None:
        self.keeps_past = True

    def crop(self, tokens_to_remove: int) -> None:
        """Take tokens back, exactly as if they had never been read: crop(-3) takes back three."""
        if tokens_to_remove > 0:
            raise ValueError(f"crop takes minus the number of tokens to remove, not {tokens_to_remove}")
        if tokens_to_remove < 0 and (state := self.state) is not None:
            self._state, self._session = state.crop(-tokens_to_remove), None
            self.seen += tokens_to_remove
        self.since = 0

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        if self._session is not None:
            self._session.select(indices)
        elif self._state is not None:
            self._state = self._state.select(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        if (state := self.state) is not None:
            self.batch_select_indices(torch.arange(state.batch, device=state.count.device).repeat_interleave(repeats))

    def reset(self) -> None:
        self.seen = self.since = 0
        self._state = self._session = None

    @property
    def batch_size(self) -> int:
        state = self._session or self._state
        return state.batch if state is not None else -1

    @property
    def is_compileable(self) -> bool:
        return False

    @property
    def is_initialized(self) -> bool:
        return self.batch_size >= 0

    def __len__(self) -> int:
        return 1 if self.is_initialized else 0

    def __repr__(self) -> str:
        return f"StateCache(tokens={self.seen}, rows={self.batch_size})"


class StairwellForCausalLM(PreTrainedModel, GenerationMixin):
    config_class = StairwellConfig
    config: StairwellConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    _is_stateful = False  # the memory can be cropped, so assisted decoding may roll it back
    _no_split_modules = ["LanguageModel"]  # noqa: RUF012

    def __init__(self, config: StairwellConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self.model = LanguageModel(config.model_config())
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Modules have drawn their own parameters; only what no file holds must be made once more."""
        if isinstance(module, Mix):
            allowed: Any = module.allowed
            allowed.copy_(Mix(self.config.core_config()).allowed)

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embedding

    def get_output_embeddings(self) -> None:
        """None that anyone could tie or resize: the model ties its own."""

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
        """input_ids (B, T), attention_mask (B, all tokens so far) -> logits (B, T, V). Positions are distances here, so
        `position_ids` are not needed."""
        if input_ids is None:
            raise ValueError("stairwell models read input_ids; embeddings cannot be given instead")
        if past_key_values is not None and not isinstance(past_key_values, StateCache):
            raise ValueError(f"past_key_values must be a StateCache, not a {type(past_key_values).__name__}")
        use_cache = self.config.use_cache and not self.training if use_cache is None else use_cache
        B, T = input_ids.shape
        cache = past_key_values if past_key_values is not None else StateCache()
        start = starts(attention_mask, T, cache.seen)
        cache.make_room(self.model.core, T, B)
        if T == 1 and use_cache and start is None and not torch.is_grad_enabled() and not self.training:
            logits = cache.step(self.model, input_ids[:, 0])[:, None]
        else:
            if self.training:
                self.model.core.clamp_spans()
            hidden, state = self.model.hidden(in_vocabulary(input_ids, start), cache.begin(self.model, B), start)
            keep = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
            logits = self.model.head(hidden[:, keep] if labels is None else hidden)
            if use_cache:
                cache.put(state, T)
        loss = None
        if labels is not None:
            loss = self.loss_function(logits, labels, vocab_size=self.config.vocab_size, **kwargs)
            if self.training:
                loss = loss + self.model.core.span_loss()
        # Without a cache generation must feed everything again, so none may be handed back.
        output = CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=cache if use_cache else None)  # type: ignore[arg-type]
        return output.to_tuple() if return_dict is False else output

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


def starts(mask: Tensor | None, T: int, seen: int) -> Tensor | None:
    """Where rows begin after padding: (B, T), true where the mask goes from 0 to 1; none if nowhere."""
    if mask is None:
        return None
    if mask.dim() != 2 or mask.shape[1] < T:
        raise ValueError(f"attention_mask must be (rows, tokens so far), not {tuple(mask.shape)} for {T} new tokens")
    here = mask[:, -T:].bool()
    if mask.shape[1] > T:
        before = mask[:, -T - 1 : -1].bool()
    else:
        # Nothing is known of what came before: a fresh row needs no start, and another has begun already.
        before = torch.cat([torch.ones_like(here[:, :1]), here[:, :-1]], 1)
    begins = here & ~before
    return begins if bool(begins.any()) else None


def in_vocabulary(tokens: Tensor, start: Tensor | None) -> Tensor:
    """Padding comes before a start, is forgotten there, and may be any number."""
    if start is None:
        return tokens
    padding = start.flip(1).cumsum(1).flip(1) - start.long() > 0
    return tokens.masked_fill(padding, 0)


def from_run(path: str | os.PathLike[str]) -> StairwellForCausalLM:
    """The trained model of a run folder; its config keeps what `to_run` needs."""
    run = Run(path)
    model, _ = load(path, "cpu")
    _, note = run.load_model()
    # As text: transformers sorts what it writes, and a run folder should come back byte for byte.
    files = {"note": json.dumps(note)}
    for name in FILES:
        if (run.path / name).exists():
            files[name] = (run.path / name).read_text(encoding="utf-8")
    made = StairwellForCausalLM(StairwellConfig.of(model.config, run=files))
    made.model.load_state_dict(model.state_dict())
    return made.eval()


def export_hf(path: str | os.PathLike[str], folder: str | os.PathLike[str]) -> None:
    """A run folder as a folder for `from_pretrained`, with a tokenizer where there is one for its vocabulary."""
    model = from_run(path)
    model.save_pretrained(folder)
    vocabulary = vocabulary_of(model)
    if isinstance(vocabulary, text.Bytes | text.BPE | text.Characters):
        tokenizer(vocabulary).save_pretrained(folder)


def to_run(model: StairwellForCausalLM, path: str | os.PathLike[str]) -> Path:
    """A model that came from a run folder as a run folder again, its parameters as they are now."""
    files = model.config.run
    if not files:
        raise UserError("this model came from no run folder, so nothing is known of its training; see stairwell.load")
    run = Run(path)
    if run.exists:
        raise UserError(f"{run.path} holds a training already; choose another folder")
    run.path.mkdir(parents=True, exist_ok=True)
    run.save_model(model.model.state_dict(), json.loads(files["note"]))
    # The config last: with it the folder is a run, and a run has what it needs.
    for name in FILES:
        if name in files:
            write_text(run.path / name, files[name])
    return run.path


def tokenizer(vocabulary: text.Vocabulary) -> PreTrainedTokenizerFast:
    """The vocabulary as a tokenizer of transformers, for bytes, characters and byte pairs."""
    return PreTrainedTokenizerFast(tokenizer_object=_tokenizer(vocabulary), clean_up_tokenization_spaces=False)


def _tokenizer(vocabulary: text.Vocabulary) -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    if isinstance(vocabulary, text.BPE):
        return vocabulary.tokenizer
    if isinstance(vocabulary, text.Bytes):
        made = Tokenizer(models.BPE(vocab=dict(BYTE_OF), merges=[]))
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        made.decoder = decoders.ByteLevel()
        return made
    if isinstance(vocabulary, text.Characters):
        made = Tokenizer(models.WordLevel({symbol: i for i, symbol in enumerate(vocabulary.symbols)}))
        made.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        made.decoder = decoders.Fuse()
        return made
    raise UserError(f"transformers has no tokenizer for {vocabulary.kind}; bytes, characters and bpe have one")


def vocabulary_of(model: StairwellForCausalLM) -> text.Vocabulary | None:
    """The vocabulary of a model that came from a run of the task `lm`."""
    task = json.loads((model.config.run or {}).get(spec.FILE, "{}"))
    kept = task.get("vocabularies", {}).get("text")
    return text.from_json(kept, "the model's config") if kept else None


AutoConfig.register("stairwell", StairwellConfig, exist_ok=True)
AutoModelForCausalLM.register(StairwellConfig, StairwellForCausalLM, exist_ok=True)
