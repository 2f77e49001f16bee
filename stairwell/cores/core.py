"""The contract that every core keeps: a stream in, the same stream out, and a state that is a value.

y, state = core(x, state)        x, y (B, T, D), any T >= 1; any way of cutting a stream gives the same y
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from stairwell.configs import check_at_least
from stairwell.cores.time import Window, ages
from stairwell.devices import autocast_type, without_autocast
from stairwell.field_types import COUNT, NESTED, SIZE, STATIC, FieldType
from stairwell.layers import (
    KEEP_ALL,
    AdaptiveSpan,
    Layer,
    LayerConfig,
    Masks,
    RelativePosition,
    Slots,
    can_read_values,
    draw_vectors,
    is_finite,
    transformed,
)
from stairwell.state import State, assemble


@dataclass(frozen=True, eq=False)
class CoreState(State):
    """The base of every core's state. `max_crop` is how many slots it has beyond those that the core looks at."""

    count: Tensor = field(metadata=COUNT)  # (B,) int64: tokens since the row's own start
    croppable: Tensor = field(metadata=COUNT)  # (B,) int64: how many of the last tokens `crop` can still take back
    max_crop: int = field(default=0, kw_only=True, metadata=SIZE)


class Engine(Protocol):
    """A walk over time with the results of a core's own walk; `stairwell.fast` holds those that are built for speed."""

    def name(self, core: Any, like: Tensor) -> str:
        """What runs for inputs on the device and of the type of `like`, such as `fast (C++, AVX2)`."""

    def why_not(self, core: Any, like: Tensor) -> str:
        """Why it cannot run there and now; nothing if it can."""

    def follows_autocast(self, core: Any, like: Tensor) -> bool:
        """Whether it may be called under autocast; otherwise it is called without, in the parameters' type."""

    def __call__(
        self, core: Any, x: Tensor, state: Any, start: Tensor | None, source: Source | None, masks: Masks | None
    ) -> tuple[Tensor, State]: ...


REFERENCE = "reference"  # the name of a core's own walk, as an engine


@cache
def tell_once(text: str) -> None:
    """A word to the user, once a process."""
    logging.getLogger("stairwell").warning(text)


class Source:
    """What cross-attention looks at: vectors (B, R, D) and which of them are there (B, R), true for yes."""

    def __init__(self, vectors: Tensor, mask: Tensor | None = None) -> None:
        self.mask = torch.ones(vectors.shape[:2], dtype=torch.bool, device=vectors.device) if mask is None else mask
        # What is not there must not matter, even if it is not a number: 0 times NaN is NaN.
        self.vectors = vectors if mask is None else vectors.masked_fill(~mask[..., None], 0)


@dataclass(frozen=True, eq=False, kw_only=True)
class SourceState(State):
    """A core's state and the source that it attends to, which every row has for as long as it lives."""

    decoder: CoreState = field(metadata=NESTED)
    # The mask comes first: torch.export writes checks of the inputs, and takes `source` for the name of both otherwise.
    source_mask: Tensor = field(metadata=STATIC)  # (B, R) bool, true where the source is there
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
    """What `inspect` gathers. Calls within one `with` follow each other along T."""

    def __init__(self) -> None:
        self.pieces: dict[int, list[Tensor]] = {}
        self.source_pieces: dict[int, list[Tensor]] = {}
        self.layer_weights: Tensor | None = None  # (memories, L + 1): how much of each layer is in the memory

    def add(self, depth: int, weights: Tensor, distance: Tensor, first: int) -> None:
        """weights (B, H, T, J) at distance (T, J), kept by distance."""
        index = (distance - first).clamp(min=0)
        by_distance = weights.new_zeros(*weights.shape[:3], int(index.max()) + 1)
        by_distance.scatter_add_(-1, index.expand_as(weights), weights.detach())
        self.pieces.setdefault(depth, []).append(by_distance)

    def add_source(self, depth: int, weights: Tensor) -> None:
        """weights (B, H, T, R) given to a source of R tokens."""
        self.source_pieces.setdefault(depth, []).append(weights.detach())

    @property
    def source_attention(self) -> list[Tensor]:
        """One tensor a layer (a layer and pass) that attends to a source: (B, H, T, source tokens)."""
        return [torch.cat(self.source_pieces[depth], 2) for depth in sorted(self.source_pieces)]

    @property
    def attention(self) -> list[Tensor]:
        """One tensor a layer (a layer and pass, where there are passes): (B, H, T, slots), the nearest slot first."""
        gathered = []
        for depth in sorted(self.pieces):
            slots = max(piece.shape[-1] for piece in self.pieces[depth])
            padded = [nn.functional.pad(piece, (0, slots - piece.shape[-1])) for piece in self.pieces[depth]]
            gathered.append(torch.cat(padded, 2))
        return gathered


@dataclass(frozen=True, kw_only=True)
class WindowConfig(LayerConfig):
    """What Feedback, Transformer-XL and Universal share: a window of so many tokens."""

    memory: int = 100
    "how many past tokens each layer sees (S)"
    attend_to_current: bool = False
    "whether a token attends to itself, at distance 0"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "memory")

    @property
    def first(self) -> int:
        return 0 if self.attend_to_current else 1

    @property
    def window(self) -> Window:
        return Window(self.first, self.memory)


class Core(nn.Module):
    """Base of every core: checks what comes in, draws what is random, and hands over to an engine."""

    state_type: type[CoreState]
    final_norm: bool = False  # whether a model should normalize the core's output
    engine: Engine | None = None  # none: the reference, `self.walk`
    seen: AttentionRecorder | None = None  # set by `inspect`
    _own_modules: Sequence[tuple[dict[str, Any], str, nn.Module, str]] = ()  # set by `remember_modules`

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def remember_modules(self) -> None:
        """Note which modules this core is made of, as those that its engine may stand for."""
        self._own_modules = [
            (holder._modules, name, module, f"{path}.{name}" if path else name)
            for path, holder in self.named_modules()
            for name, module in holder._modules.items()
            if module is not None
        ]

    def changed_module(self) -> str:
        """Return the name of a module that has been replaced since then (by an adapter, or a quantized one) or that has
        hooks; nothing if there is none."""
        for holder, name, module, path in self._own_modules:
            if holder[name] is not module or module._forward_hooks or module._forward_pre_hooks:
                return path
        return ""

    @property
    def engine_name(self) -> str:
        """What runs where the core is now, autocast considered: `fast (C++, AVX2)`, `fast (PyTorch)`, `reference`."""
        like = next(self.parameters())
        if self.engine is None or self.engine.why_not(self, like):
            return REFERENCE
        return self.engine.name(self, like)

    def init_state(self, batch: int, max_crop: int = 0) -> CoreState:
        """A fresh state for `batch` rows, from which `crop` can take back up to `max_crop` tokens."""
        try:
            batch, max_crop = operator.index(batch), operator.index(max_crop)
        except TypeError:
            raise TypeError(f"batch and max_crop are whole numbers, not {batch!r} and {max_crop!r}") from None
        if batch < 1 or max_crop < 0:
            raise ValueError(f"a state needs batch >= 1 and max_crop >= 0, got {batch} and {max_crop}")
        like = next(self.parameters())
        tensors: dict[str, Tensor] = {
            name: torch.zeros(batch, *shape, dtype=like.dtype, device=like.device)
            for name, shape in self.memory_shapes(max_crop).items()
        }
        zero = torch.zeros(batch, dtype=torch.int64, device=like.device)
        form = {"kind": self.state_type.__name__, "max_crop": max_crop}
        return assemble(form, {"count": zero, "croppable": zero.clone(), **tensors})

    def unpack(self, vector: Tensor, max_crop: int = 0) -> CoreState:
        """The state that `pack` made `vector` (B, N) of; `max_crop` is what that state was made with."""
        return self.init_state(1, max_crop).unpack(vector)

    def memory_shapes(self, max_crop: int) -> dict[str, tuple[int, ...]]:
        """The shape of each tensor of the state's memory, without the rows."""
        raise NotImplementedError

    def walk(
        self, x: Tensor, state: Any, start: Tensor | None, source: Source | None, masks: Masks | None
    ) -> tuple[Tensor, State]:
        """The reference: the obvious walk over time."""
        raise NotImplementedError

    def draw(self, x: Tensor, state: Any, source: Source | None, start: Tensor | None = None) -> Masks | None:
        """Everything random in this call; nothing where no rate is set."""
        return None

    @property
    def skips_layers(self) -> bool:
        """Some calls in training leave out a layer, and so leave its parameters without a gradient."""
        return False

    def layer_weights(self) -> Tensor | None:
        """Of which layers the memory is a learned mix: (memories, layers + 1); nothing where none is learned."""
        return None

    def spans(self) -> list[AdaptiveSpan]:
        """The spans that heads have learned, a layer each; none without adaptive span."""
        return []

    def span_loss(self) -> Tensor:
        """The price of the learned spans, to be added to the loss; 0 without adaptive span."""
        return next(self.parameters()).new_zeros(())

    def clamp_spans(self) -> None:
        """Bring the learned spans back into [0, S]; to be called after each update."""
        for span in self.spans():
            span.clamp()

    def forward(
        self,
        x: Tensor,
        state: State,
        start: Tensor | None = None,
        source: Tensor | None = None,
        source_mask: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """x (B, T, D), the state before, start (B, T) bool -> y (B, T, D), the state after. Never changes `state`."""
        self.check(x, state, start, source, source_mask)
        given = Source(source, source_mask) if source is not None else None
        narrow, own = autocast_type(x), next(self.parameters()).dtype
        if narrow is not None:
            x = x.to(own)  # states keep the type of the parameters
        masks = self.draw(x, state, given, start) if self.training else None
        # Transforms need operations that they can see into; an engine's autograd function is none.
        if self.engine is None or self.seen is not None or transformed():
            return self.walk(x, state, start, given, masks)
        if why := self.engine.why_not(self, x):
            tell_once(f"the reference engine runs instead of the fast one: {why}")
            return self.walk(x, state, start, given, masks)
        if narrow is None or self.engine.follows_autocast(self, x):
            return self.run_engine(self.engine, x, state, start, given, masks)
        tell_once(
            f"autocast to {narrow} does not apply to the fast engine of {type(self).__name__}: it computes in {own}; "
            "engine='reference' follows autocast"
        )
        with without_autocast(x):
            wide = Source(given.vectors.to(own), given.mask) if given is not None else None
            return self.run_engine(self.engine, x, state, start, wide, masks)

    def run_engine(
        self, engine: Engine, x: Tensor, state: State, start: Tensor | None, source: Source | None, masks: Masks | None
    ) -> tuple[Tensor, State]:
        y, after = engine(self, x, state, start, source, masks)
        # Engines multiply what nobody sees by 0, and 0 times NaN is NaN: who is NaN is for the reference to say.
        if can_read_values(y) and not is_finite(y):
            return self.walk(x, state, start, source, masks)
        return y, after

    def check(
        self, x: Tensor, state: State, start: Tensor | None, source: Tensor | None, source_mask: Tensor | None
    ) -> None:
        """Raise a plain error for anything that does not fit this core."""
        check_tensor(x, "the input")
        if x.dim() != 3 or x.shape[1] < 1 or x.shape[2] != self.width:
            raise ValueError(f"the input must be (rows, tokens >= 1, width {self.width}), not {tuple(x.shape)}")
        self.check_state(state, x.shape[0])
        check_start(start, x.shape[:2])
        self.check_source(x.shape[0], source, source_mask)

    def check_state(self, state: State, batch: int) -> None:
        """Refuse a state that has not exactly this core's tensors for `batch` rows, or counts that no stream has."""
        name = type(self).__name__
        if type(state) is not self.state_type:
            kind = type(state).__name__
            raise TypeError(f"{name} needs a {self.state_type.__name__}, not a {kind}; make one with init_state(batch)")
        for path, counts in (("count", state.count), ("croppable", state.croppable)):
            check_rows(path, counts, batch)
            if counts.dim() != 1 or counts.dtype != torch.int64:
                found = f"{counts.dtype} of {tuple(counts.shape)}"
                raise ValueError(f"the state's '{path}' is {found}, not torch.int64 of ({batch},)")
        if can_read_values(state.count):
            state.check_counts()
        like = next(self.parameters())
        expected = self.memory_shapes(state.max_crop)
        leaves = {leaf.path: leaf for leaf in state.leaves() if leaf.role is not FieldType.COUNT}
        for path in dict.fromkeys([*expected, *leaves]):
            wanted, leaf = expected.get(path), leaves.get(path)
            if leaf is not None:
                check_rows(path, leaf.tensor, batch)
            if wanted is not None and leaf is not None and leaf.role is FieldType.GROWING:
                wanted = (int(state.count.max()), *wanted[1:])
            shape = tuple(leaf.tensor.shape[1:]) if leaf is not None else None
            if leaf is None or shape != wanted:
                raise ValueError(
                    f"the state belongs to another model: its '{path}' is {shape} a row, this {name} has {wanted} "
                    f"with max_crop {state.max_crop}; make one with init_state(batch)"
                )
            if leaf.tensor.dtype != like.dtype or leaf.tensor.device != like.device:
                raise ValueError(
                    f"the state's '{path}' is {leaf.tensor.dtype} on {leaf.tensor.device}, the model's weights are "
                    f"{like.dtype} on {like.device}; use state.to(device, dtype)"
                )

    def check_source(self, batch: int, source: Tensor | None, source_mask: Tensor | None) -> None:
        if source is not None or source_mask is not None:
            raise ValueError(f"{type(self).__name__} was built without cross=True and takes no source")


class TransformerCore(Core):
    """What the transformer cores share besides: layers, positions, masks, cross-attention."""

    config: Any  # the core's own kind of LayerConfig
    layers: Sequence[Layer]
    position: RelativePosition

    @property
    def final_norm(self) -> bool:  # type: ignore[override]
        """With pre-norm nothing has normalized the last layer's output."""
        return self.config.norm == "pre"

    def depth(self) -> int:
        """How many layers a token goes through, all passes counted."""
        return len(self.layers)

    def distances(self, state: Any, T: int) -> int:
        """How many distances there are, for the attention masks of a call."""
        return self.position.distances

    def draw(self, x: Tensor, state: Any, source: Source | None, start: Tensor | None = None) -> Masks | None:
        config, T = self.config, x.shape[1]
        rates = (config.attention_dropout, config.relu_dropout, config.residual_dropout, config.layer_drop)
        if not any(rates) and config.positions != "random":
            return None
        distances = self.distances(state, T)
        masks = Masks.draw(config, x, self.depth(), distances, source.vectors if source is not None else None)
        if config.positions != "random":
            return masks
        # Only distances that some token of the call has need a vector: fewer can lie farther apart.
        oldest = int(ages(state.count, start, T).max())
        in_use = min(max(1, oldest + 1 - config.first), distances)
        return replace(masks, vectors=draw_vectors(in_use, self.position.vectors.shape[0], x.device))

    def source_slots(self, source: Source | None) -> list[Slots | None]:
        """The source as each layer sees it, projected once a call."""
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
        """A layer as the walks apply it to the tokens first..last-1 of a call. x (B, t, D) -> (B, t, D)

        The depth counts layers through all passes."""
        kept = masks.at(depth, first, last) if masks is not None else KEEP_ALL

        def attend(normed: Tensor) -> Tensor:
            drawn = masks.vectors if masks is not None else None
            z, weights = layer.attention(normed, slots, self.position, layer.span, kept.attention, drawn)
            if self.seen is not None:
                self.seen.add(depth, weights, slots.distance, self.config.first)
            return z

        def feed_forward(normed: Tensor) -> Tensor:
            return layer.feed_forward(normed, kept.relu)

        tell = partial(self.seen.add_source, depth) if self.seen is not None else None
        return layer(x, attend, layer.attend_source(source, kept.cross, tell), feed_forward, kept)

    @property
    def skips_layers(self) -> bool:
        return self.config.layer_drop > 0

    def reach(self, layer: Layer, most: int) -> int:
        """How many slots a layer attends to at most: all, or fewer if it learned so."""
        return most if layer.span is None else min(most, layer.span.reach())

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
            raise ValueError("this core was built with cross=True: give it a source (rows, length, width)")
        check_tensor(source, "the source")
        if source_mask is not None:
            check_tensor(source_mask, "source_mask")
        if source.dim() != 3 or source.shape[0] != batch or source.shape[2] != self.width:
            raise ValueError(
                f"the source must be ({batch} rows, length, width {self.width}), not {tuple(source.shape)}"
            )
        if source_mask is not None and (source_mask.shape != source.shape[:2] or source_mask.dtype != torch.bool):
            raise ValueError(
                f"source_mask must be bool of shape {tuple(source.shape[:2])}, true where the source is there, "
                f"not {source_mask.dtype} of {tuple(source_mask.shape)}"
            )
        return None


def check_tensor(value: Any, name: str) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, not a {type(value).__name__}")


def check_rows(path: str, tensor: Tensor, batch: int) -> None:
    rows = tensor.shape[0] if tensor.dim() else 0
    if rows != batch:
        raise ValueError(
            f"the state has {rows} rows, the input {batch} (in '{path}'); use state.select or init_state({batch})"
        )


def check_start(start: Tensor | None, shape: Sequence[int]) -> None:
    """start (B, T) marks the tokens before which a row begins anew."""
    if start is None:
        return
    check_tensor(start, "start")
    if start.shape != tuple(shape) or start.dtype != torch.bool:
        raise ValueError(f"start must be bool of shape {tuple(shape)}, not {start.dtype} of {tuple(start.shape)}")


def module_list(layers: Iterable[Layer]) -> Sequence[Layer]:
    """A ModuleList whose items are known to be layers."""
    return cast(Sequence[Layer], nn.ModuleList(layers))
