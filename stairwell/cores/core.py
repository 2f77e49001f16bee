"""The contract of every core: a stream of vectors in, a stream of vectors out, and a state that is a value.

    y, state = core(x, state)        x, y (B, T, D), any T >= 1; any split of a stream gives the same y

Letters: B batch size, T tokens, D width, R source tokens.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, Generic, Protocol, Self, TypeVar, cast

import torch
from torch import Tensor, nn

from stairwell.configs import check_at_least
from stairwell.cores.sliding_window import Window, next_counts, slide, tokens_since_start
from stairwell.cores.step import StepDescription
from stairwell.devices import autocast_type, without_autocast
from stairwell.layers import (
    NO_MASKS,
    AdaptiveSpan,
    CoreConfig,
    Layer,
    LayerConfig,
    Masks,
    RelativePosition,
    Slots,
    can_check_output,
    can_read_values,
    in_transform,
    is_finite,
    sample_position_index,
)
from stairwell.state import COUNT, NESTED, SIZE, SLOTS, STATIC, FieldType, State, assemble


@dataclass(frozen=True, eq=False)
class CoreState(State):
    """Base class of every core's state. `max_crop` slots are stored beyond those that the core attends to."""

    count: Tensor = field(metadata=COUNT)  # (B,) int64: tokens since each stream's start
    croppable: Tensor = field(metadata=COUNT)  # (B,) int64: how many of the last tokens `crop` can remove now
    max_crop: int = field(default=0, kw_only=True, metadata=SIZE)


@dataclass(frozen=True, eq=False)
class MemoryState(CoreState):
    """A state with one memory."""

    memory: Tensor = field(metadata=SLOTS)  # (B, S + max_crop, ...)

    def advance(self, new: Tensor, since_start: Tensor, start: Tensor | None) -> Self:
        """Return the state after a call that adds `new` (B, T, ...) to the memory. since_start (B, T)"""
        count, croppable = next_counts(self.count, self.croppable, start, since_start, self.max_crop)
        return replace(self, count=count, croppable=croppable, memory=slide(self.memory, new, count, start))


def call_engine(engine: Engine, *inputs: Any) -> tuple[Tensor, Any]:
    return engine(*inputs)


ConfigT = TypeVar("ConfigT", bound=CoreConfig)
LayerConfigT = TypeVar("LayerConfigT", bound=LayerConfig)
StateT = TypeVar("StateT", bound=CoreState)


class Engine(Protocol):
    """An optimized implementation of a core's reference forward, with the same results; see `stairwell.fast`."""

    def name(self, core: Any, like: Tensor) -> str:
        """Return what runs for inputs with the device and dtype of `like`, such as `fast (C++, AVX2)`."""

    def why_not(self, core: Any, like: Tensor) -> str:
        """Return why the engine cannot run there; empty if it can."""

    def follows_autocast(self, core: Any, like: Tensor) -> bool:
        """Return whether the engine may run under autocast; otherwise it runs in the dtype of the parameters."""

    def __call__(self, *inputs: Any, **options: Any) -> tuple[Tensor, Any]:
        """Take a core and the arguments of its `reference`; return what `reference` returns."""


REFERENCE = "reference"  # the name of a core's reference forward as an engine


@cache
def warn_once(text: str) -> None:
    """Log a warning once per process."""
    logging.getLogger("stairwell").warning(text)


class Source:
    """The input of cross-attention: vectors (B, R, D) and a mask (B, R), true where there is a source token."""

    def __init__(self, vectors: Tensor, mask: Tensor | None = None) -> None:
        self.mask = torch.ones(vectors.shape[:2], dtype=torch.bool, device=vectors.device) if mask is None else mask
        # Padding must have no effect even if it is NaN: 0 times NaN is NaN.
        self.vectors = vectors if mask is None else vectors.masked_fill(~mask[..., None], 0)


@dataclass(frozen=True, eq=False, kw_only=True)
class SourceState(State):
    """A core's state together with the source that it attends to."""

    decoder: CoreState = field(metadata=NESTED)
    # The mask comes first: torch.export generates checks of the inputs and would use the name `source` for both.
    source_mask: Tensor = field(metadata=STATIC)  # (B, R) bool, true where there is a source token
    source: Tensor = field(metadata=STATIC)  # (B, R, D)

    @property
    def count(self) -> Tensor:
        return self.decoder.count

    @property
    def croppable(self) -> Tensor:
        return self.decoder.croppable

    @property
    def max_crop(self) -> int:
        return self.decoder.max_crop


class AttentionRecorder:
    """What `inspect` records. Consecutive calls are concatenated along T."""

    def __init__(self) -> None:
        self.weights: dict[int, list[Tensor]] = {}  # by depth: (B, H, T, distances) per call
        self.source_weights: dict[int, list[Tensor]] = {}  # by depth: (B, H, T, R) per call
        self.layer_weights: Tensor | None = None  # (memories, L + 1): share of each layer in the memory

    def add(self, depth: int, weights: Tensor, distance: Tensor, first: int) -> None:
        """Record attention weights (B, H, T, J) of slots at distance (T, J), by distance."""
        index = (distance - first).clamp(min=0)
        by_distance = weights.new_zeros(*weights.shape[:3], int(index.max()) + 1)
        by_distance.scatter_add_(-1, index.expand_as(weights), weights.detach())
        self.weights.setdefault(depth, []).append(by_distance)

    def add_source(self, depth: int, weights: Tensor) -> None:
        """Record cross-attention weights (B, H, T, R)."""
        self.source_weights.setdefault(depth, []).append(weights.detach())

    @property
    def source_attention(self) -> list[Tensor]:
        """One tensor per layer (and pass) with cross-attention: (B, H, T, source tokens)."""
        return [torch.cat(self.source_weights[depth], 2) for depth in sorted(self.source_weights)]

    @property
    def attention(self) -> list[Tensor]:
        """One tensor per layer (and pass): (B, H, T, distances), nearest first."""
        attention = []
        for depth in sorted(self.weights):
            distances = max(weights.shape[-1] for weights in self.weights[depth])
            padded = [nn.functional.pad(weights, (0, distances - weights.shape[-1])) for weights in self.weights[depth]]
            attention.append(torch.cat(padded, 2))
        return attention


@dataclass(frozen=True, kw_only=True)
class WindowConfig(LayerConfig):
    """Options of Feedback, Transformer-XL and Universal: an attention window."""

    memory: int = 100
    "Number of past tokens that each layer attends to (S)."
    attend_to_current: bool = False
    "Whether a token attends to itself, at distance 0."

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "memory")

    @property
    def first(self) -> int:
        return 0 if self.attend_to_current else 1

    @property
    def window(self) -> Window:
        return Window(self.first, self.memory)


class Core(nn.Module, Generic[ConfigT, StateT]):
    """Base class of every core: checks inputs and calls the engine or the reference forward."""

    config: ConfigT
    state_type: type[StateT]
    final_norm: bool = False  # whether a model should normalize the core's output
    engine: Engine | None = None  # None: the reference forward
    recorder: AttentionRecorder | None = None  # set by `inspect`
    _own_modules: Sequence[tuple[dict[str, Any], str, nn.Module, str]] = ()  # set by `remember_modules`

    def __init__(self, config: ConfigT) -> None:
        super().__init__()
        self.config = config
        self.width = config.width

    def remember_modules(self) -> None:
        """Store the current submodules, for which the engine is valid."""
        self._own_modules = [
            (parent._modules, name, module, f"{path}.{name}" if path else name)
            for path, parent in self.named_modules()
            for name, module in parent._modules.items()
            if module is not None
        ]

    def changed_module(self) -> str:
        """Return the name of a submodule that has been replaced since then (by an adapter or quantization) or has
        hooks; empty if there is none."""
        for siblings, name, module, path in self._own_modules:
            if siblings[name] is not module or module._forward_hooks or module._forward_pre_hooks:
                return path
        return ""

    @property
    def engine_name(self) -> str:
        """What runs on the current device under the current autocast: `fast (C++, AVX2)`, `fast (PyTorch)`,
        `reference`."""
        like = next(self.parameters())
        if self.engine is None or self.engine.why_not(self, like):
            return REFERENCE
        return self.engine.name(self, like)

    def init_state(self, batch: int, max_crop: int = 0) -> StateT:
        """Return the initial state of `batch` streams; `crop` can remove up to `max_crop` tokens."""
        try:
            batch, max_crop = operator.index(batch), operator.index(max_crop)
        except TypeError:
            raise TypeError(f"batch and max_crop must be integers, not {batch!r} and {max_crop!r}") from None
        if batch < 1 or max_crop < 0:
            raise ValueError(f"batch must be at least 1 and max_crop at least 0, not {batch} and {max_crop}")
        like = next(self.parameters())
        tensors: dict[str, Tensor] = {
            name: torch.zeros(batch, *shape, dtype=like.dtype, device=like.device)
            for name, shape in self.memory_shapes(max_crop).items()
        }
        zero = torch.zeros(batch, dtype=torch.int64, device=like.device)
        spec = {"type": self.state_type.__name__, "max_crop": max_crop}
        return cast(StateT, assemble(spec, {"count": zero, "croppable": zero.clone(), **tensors}))

    def unpack(self, vector: Tensor, max_crop: int = 0) -> StateT:
        """Return the state that `pack` made `vector` (B, N) from; `max_crop` is that of the packed state."""
        return self.init_state(1, max_crop).unpack(vector)

    def memory_shapes(self, max_crop: int) -> dict[str, tuple[int, ...]]:
        """Return the shape of each floating-point tensor of the state, without the batch dimension."""
        raise NotImplementedError

    def reference(self, x: Tensor, state: StateT, start: Tensor | None = None) -> tuple[Tensor, StateT]:
        """Compute the reference forward: the equations of the paper as a plain loop over time."""
        raise NotImplementedError

    def describe_step(self) -> StepDescription | None:
        """Return one token's step as data; None if the core has no such description, as a recurrent core. Decoding and
        exports then call the reference forward."""
        return None

    @property
    def skips_layers(self) -> bool:
        """Whether training calls may skip a layer, so that its parameters get no gradient."""
        return False

    def layer_weights(self) -> Tensor | None:
        """Return the learned share of each layer in the memory, (memories, layers + 1); None if nothing is learned."""
        return None

    def spans(self) -> list[AdaptiveSpan]:
        """Return the learned spans, one per layer; empty without adaptive span."""
        return []

    def span_loss(self) -> Tensor:
        """Return the loss of the learned spans, to be added to the training loss; 0 without adaptive span."""
        return next(self.parameters()).new_zeros(())

    def clamp_spans(self) -> None:
        """Clamp the learned spans to [0, S]; call this after each optimizer step."""
        for span in self.spans():
            span.clamp()

    def forward(self, x: Tensor, state: State, start: Tensor | None = None) -> tuple[Tensor, StateT]:
        """Return the output (B, T, D) and the state after, without modifying `state`. x (B, T, D), start (B, T) bool"""
        checked = self.check(x, state, start)
        return self._run(self.to_own_dtype(x), checked, start)

    def _run(self, x: Tensor, state: StateT, start: Tensor | None, *inputs: Any) -> tuple[Tensor, StateT]:
        """Call the engine if it can run, else the reference forward; `inputs` are further arguments of both."""
        # torch.func cannot transform an engine's autograd function.
        if self.engine is None or self.recorder is not None or in_transform():
            return self.reference(x, state, start, *inputs)
        if why := self.engine.why_not(self, x):
            warn_once(f"the reference engine runs instead of the fast one: {why}")
            return self.reference(x, state, start, *inputs)
        autocast = autocast_type(x)
        follows_autocast = autocast is None or self.engine.follows_autocast(self, x)
        if not follows_autocast:
            warn_once(
                f"autocast to {autocast} does not apply to the fast engine of {type(self).__name__}: it computes in "
                f"{x.dtype}; engine='reference' follows autocast"
            )
        with nullcontext() if follows_autocast else without_autocast(x):
            # Dynamo cannot trace the engines, which keep buffers for reuse: torch.compile calls them as they are. It
            # is imported only by a program that compiles, since that takes a second.
            call = torch.compiler.disable(call_engine) if torch.compiler.is_compiling() else call_engine  # type: ignore[no-untyped-call]
            y, after = call(self.engine, self, x, state, start, *inputs)
            # Engines multiply invisible slots by 0, which spreads NaN; the reference shows where it really occurs.
            if can_check_output(y) and not is_finite(y):
                return self.reference(x, state, start, *inputs)
        return y, after

    def to_own_dtype(self, x: Tensor) -> Tensor:
        """Return `x` in the dtype of the parameters under autocast, since states have that dtype."""
        return x if autocast_type(x) is None else x.to(next(self.parameters()).dtype)

    def check(self, x: Tensor, state: State, start: Tensor | None) -> StateT:
        """Raise an error for inputs that do not fit this core; return the state."""
        check_tensor(x, "the input")
        if x.dim() != 3 or x.shape[1] < 1 or x.shape[2] != self.width:
            raise ValueError(f"the input must be (batch, tokens >= 1, width {self.width}), not {tuple(x.shape)}")
        self.check_state(state, x.shape[0])
        check_start(start, x.shape[:2])
        return cast(StateT, state)

    def check_state(self, state: State, batch: int) -> None:
        """Raise an error for a state of another model, another batch size or with impossible counts."""
        name = type(self).__name__
        if type(state) is not self.state_type:
            expected_type, actual_type = self.state_type.__name__, type(state).__name__
            raise TypeError(f"{name} needs a {expected_type}, not a {actual_type}; make one with init_state(batch)")
        for path, counts in (("count", state.count), ("croppable", state.croppable)):
            check_batch(path, counts, batch)
            if counts.dim() != 1 or counts.dtype != torch.int64:
                actual = f"{counts.dtype} of {tuple(counts.shape)}"
                raise ValueError(f"the state's '{path}' is {actual}, not torch.int64 of ({batch},)")
        if can_read_values(state.count):
            state.check_counts()
        like = next(self.parameters())
        expected = self.memory_shapes(state.max_crop)
        leaves = {leaf.path: leaf for leaf in state.leaves() if leaf.field_type is not FieldType.COUNT}
        for path in dict.fromkeys([*expected, *leaves]):
            expected_shape, leaf = expected.get(path), leaves.get(path)
            if leaf is not None:
                check_batch(path, leaf.tensor, batch)
            if expected_shape is not None and leaf is not None and leaf.field_type is FieldType.GROWING:
                expected_shape = (int(state.count.max()), *expected_shape[1:])
            shape = tuple(leaf.tensor.shape[1:]) if leaf is not None else None
            if leaf is None or shape != expected_shape:
                raise ValueError(
                    f"the state belongs to another model: its '{path}' is {shape} per stream, this {name} has "
                    f"{expected_shape} with max_crop {state.max_crop}; make one with init_state(batch)"
                )
            if leaf.tensor.dtype != like.dtype or leaf.tensor.device != like.device:
                raise ValueError(
                    f"the state's '{path}' is {leaf.tensor.dtype} on {leaf.tensor.device}, the model's parameters are "
                    f"{like.dtype} on {like.device}; use state.to(device, dtype)"
                )

    def check_source(self, batch: int, source: Tensor | None, source_mask: Tensor | None) -> None:
        if source is not None or source_mask is not None:
            raise ValueError(f"{type(self).__name__} was built without cross=True and takes no source")


class TransformerCore(Core[LayerConfigT, StateT]):
    """What the transformer cores share: layers, positions, dropout masks, cross-attention."""

    layers: Sequence[Layer]
    position: RelativePosition

    @property
    def final_norm(self) -> bool:  # type: ignore[override]
        """Whether the head normalizes the output: with pre-norm, the last layer does not."""
        return self.config.norm == "pre"

    def forward(
        self,
        x: Tensor,
        state: State,
        start: Tensor | None = None,
        source: Tensor | None = None,
        source_mask: Tensor | None = None,
    ) -> tuple[Tensor, StateT]:
        """Return the output (B, T, D) and the state after, without modifying `state`.

        x (B, T, D), start (B, T) bool, source (B, R, D), source_mask (B, R) bool, true where there is a source token"""
        checked = self.check(x, state, start)
        self.check_source(x.shape[0], source, source_mask)
        attended = Source(self.to_own_dtype(source), source_mask) if source is not None else None
        x = self.to_own_dtype(x)
        masks = self.sample_masks(x, checked, attended, start) if self.training else None
        return self._run(x, checked, start, attended, masks)

    def reference(
        self,
        x: Tensor,
        state: StateT,
        start: Tensor | None = None,
        source: Source | None = None,
        masks: Masks | None = None,
    ) -> tuple[Tensor, StateT]:
        raise NotImplementedError

    def depth(self) -> int:
        """Return how many layers a token passes through, counting all passes."""
        return len(self.layers)

    def distances(self, state: StateT, T: int) -> int:
        """Return the number of distances in the attention masks of a call."""
        return self.position.distances

    def sample_masks(
        self, x: Tensor, state: StateT, source: Source | None, start: Tensor | None = None
    ) -> Masks | None:
        """Sample everything random in a training call; None if nothing is random."""
        config, T = self.config, x.shape[1]
        rates = (config.attention_dropout, config.relu_dropout, config.residual_dropout, config.layer_drop)
        if not any(rates) and config.positions != "random":
            return None
        distances = self.distances(state, T)
        masks = Masks.sample(config, x, self.depth(), distances, source.vectors if source is not None else None)
        if config.positions != "random":
            return masks
        # Only distances that occur in the call need an embedding: fewer distances can be spread farther apart.
        farthest = int(tokens_since_start(state.count, start, T).max())
        in_use = min(max(1, farthest + 1 - config.first), distances)
        return replace(masks, position_index=sample_position_index(in_use, self.position.vectors.shape[0], x.device))

    def source_slots(self, source: Source | None) -> list[Slots | None]:
        """Return the source as projected by each layer, once per call."""
        if source is None:
            return [None] * len(self.layers)
        return [layer.source_slots(source.vectors, source.mask) for layer in self.layers]

    def apply_layer(
        self,
        layer: Layer,
        depth: int,
        x: Tensor,
        slots: Slots,
        source: Slots | None,
        masks: Masks | None,
        first: int,
        last: int,
    ) -> Tensor:
        """Apply a layer to the tokens first..last-1 of a call. x (B, t, D) -> (B, t, D)

        The depth counts layers through all passes."""
        layer_masks = masks.for_layer(depth, first, last) if masks is not None else NO_MASKS
        recorder = self.recorder

        def attend(normed: Tensor) -> Tensor:
            position_index = masks.position_index if masks is not None else None
            z: Tensor
            z, weights = layer.attention(
                normed, slots, self.position, layer.span, layer_masks.attention, position_index
            )
            if recorder is not None:
                recorder.add(depth, weights, slots.distance, self.config.first)
            return z

        def feed_forward(normed: Tensor) -> Tensor:
            z: Tensor = layer.feed_forward(normed, layer_masks.relu)
            return z

        record = partial(recorder.add_source, depth) if recorder is not None else None
        attend_source = layer.attend_source(source, layer_masks.cross, record)
        y: Tensor = layer(x, attend, attend_source, feed_forward, layer_masks)
        return y

    @property
    def skips_layers(self) -> bool:
        return self.config.layer_drop > 0

    def attention_span(self, layer: Layer, limit: int) -> int:
        """Return how many past slots a layer attends to: `limit`, or fewer with a learned span."""
        return limit if layer.span is None else min(limit, layer.span.max_span())

    def span_loss(self) -> Tensor:
        if not self.config.adaptive_span:
            return super().span_loss()
        return self.config.span_loss * torch.stack([span.z.mean() for span in self.spans()]).sum()

    def spans(self) -> list[AdaptiveSpan]:
        return [layer.span for layer in self.layers if layer.span is not None]

    def check_source(self, batch: int, source: Tensor | None, source_mask: Tensor | None) -> None:
        if not self.config.cross:
            return super().check_source(batch, source, source_mask)
        if source is None:
            raise ValueError("this core was built with cross=True and needs a source (batch, length, width)")
        check_tensor(source, "the source")
        if source_mask is not None:
            check_tensor(source_mask, "source_mask")
        if source.dim() != 3 or source.shape[0] != batch or source.shape[2] != self.width:
            raise ValueError(
                f"the source must be (batch {batch}, length, width {self.width}), not {tuple(source.shape)}"
            )
        if source_mask is not None and (source_mask.shape != source.shape[:2] or source_mask.dtype != torch.bool):
            raise ValueError(
                f"source_mask must be bool of shape {tuple(source.shape[:2])}, true where there is a source token, "
                f"not {source_mask.dtype} of {tuple(source_mask.shape)}"
            )
        return None


def check_tensor(value: Any, name: str) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, not a {type(value).__name__}")


def check_batch(path: str, tensor: Tensor, batch: int) -> None:
    size = tensor.shape[0] if tensor.dim() else 0
    if size != batch:
        raise ValueError(
            f"the state has batch size {size}, the input {batch} (in '{path}'); use state.select or init_state({batch})"
        )


def check_start(start: Tensor | None, shape: Sequence[int]) -> None:
    """Check that start is (B, T) bool; it marks the tokens before which a stream is reset."""
    if start is None:
        return
    check_tensor(start, "start")
    if start.shape != tuple(shape) or start.dtype != torch.bool:
        raise ValueError(f"start must be bool of shape {tuple(shape)}, not {start.dtype} of {tuple(start.shape)}")


def module_list(layers: Iterable[Layer]) -> Sequence[Layer]:
    """Return a ModuleList typed as a sequence of layers."""
    return cast(Sequence[Layer], nn.ModuleList(layers))
