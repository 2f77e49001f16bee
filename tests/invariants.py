"""The laws that every core and every engine must keep, in float64.

Each law takes a `Case`: a core with weights that make everything matter, and a stream for it. A law raises
AssertionError when it is broken. `tests/cores/test_invariants.py` draws cases and runs all laws on them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from stairwell.cores import Core, build
from stairwell.cores.core import SourceState, TransformerCore
from stairwell.field_types import FieldType, Leaf
from stairwell.state import State

CLOSE = {"rtol": 1e-9, "atol": 1e-10}


@dataclass(repr=False)
class Case:
    """A core and a stream: x (B, T, D), start (B, T), and a state that has already seen something."""

    core: Core
    x: Tensor
    start: Tensor
    state: State
    source: dict[str, Tensor]

    def __repr__(self) -> str:
        return f"Case({getattr(self.core, 'config', None)}, x {tuple(self.x.shape)}, start {self.start.int().tolist()})"

    def run(
        self, x: Tensor, state: State, start: Tensor | None, rows: Sequence[int] | None = None
    ) -> tuple[Tensor, State]:
        source = {name: tensor[list(rows)] if rows is not None else tensor for name, tensor in self.source.items()}
        return self.core(x, state, start, **source)

    def fresh(self, row: int) -> State:
        """A fresh state of one row, to stand for a row of this case."""
        return self.core.init_state(1, self.state.max_crop)


@dataclass(repr=False)
class SourceCase(Case):
    """A case whose state holds the source that its core attends to."""

    state: SourceState

    def run(self, x: Tensor, state: Any, start: Tensor | None, rows: Any = None) -> tuple[Tensor, State]:
        y, decoder = self.core(x, state.decoder, start, state.source, state.source_mask)
        return y, dataclasses.replace(state, decoder=decoder)

    def fresh(self, row: int) -> State:
        return dataclasses.replace(self.state.select([row]), decoder=self.core.init_state(1, self.state.max_crop))


def scramble(module: nn.Module) -> nn.Module:
    """Weights far from their initial values: uneven mixes, spans and norms, so that no term can hide."""
    for name, parameter in module.named_parameters():
        with torch.no_grad():
            if name.endswith("span.ratio"):
                parameter.uniform_(0, 5).div_(module.get_submodule(name.removesuffix(".ratio")).longest)
            elif parameter.dim() > 1 and not name.endswith("mix.weights"):
                parameter.normal_(std=parameter.shape[-1] ** -0.5)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.5)
    return module


def make_case(
    config: Any,
    B: int,
    T: int,
    seed: int = 0,
    starts: float = 0.2,
    warm: int = 3,
    max_crop: int = 0,
    core: Core | None = None,
) -> Case:
    """A case for a config. `warm` tokens (with starts of their own) are read before the stream begins."""
    torch.manual_seed(seed)
    if core is None:
        core = scramble(build(config)).double().eval()  # type: ignore[assignment]
    assert core is not None
    D = config.width
    source: dict[str, Tensor] = {}
    if getattr(config, "cross", False):
        there = torch.rand(B, 4) < 0.6
        there[0] = False  # a row with nothing to look at
        source = {"source": torch.randn(B, 4, D, dtype=torch.float64), "source_mask": there}
    case = Case(
        core, torch.randn(B, T, D, dtype=torch.float64), torch.rand(B, T) < starts, core.init_state(B, max_crop), source
    )
    if warm:
        with torch.no_grad():
            x = torch.randn(B, warm, D, dtype=torch.float64)
            case.state = case.run(x, case.state, torch.rand(B, warm) < 0.3)[1]
    return case


def with_source_in_state(case: Case) -> SourceCase:
    """The same case with a nested state, of a core that was built with cross=True."""
    state = SourceState(decoder=case.state, **case.source)  # type: ignore[arg-type]
    return SourceCase(case.core, case.x, case.start, state, {})


def weighed(y: Tensor, state: State, seed: int = 1) -> Tensor:
    """A scalar in which every number of the output and of the final state has a weight of its own."""
    generator = torch.Generator().manual_seed(seed)

    def weight(tensor: Tensor) -> Tensor:
        return torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)

    total = (y * weight(y)).sum()
    for _, tensor in state.tensors():
        if tensor.is_floating_point():
            total = total + (tensor * weight(tensor)).sum()
    return total


def gradients(case: Case, total: Tensor, *inputs: Tensor) -> list[Tensor]:
    """The gradient of every parameter and of the given inputs; zeros where there is none."""
    wanted = [*case.core.parameters(), *inputs]
    found = torch.autograd.grad(total, wanted, allow_unused=True)
    return [torch.zeros_like(w) if g is None else g for w, g in zip(wanted, found, strict=True)]


def leaf(state: State) -> tuple[State, list[Tensor]]:
    """The state with its memory as leaves of the graph, and those leaves."""
    state = state.map(lambda tensor: tensor.detach().clone().requires_grad_(tensor.is_floating_point()))
    return state, [tensor for _, tensor in state.tensors() if tensor.is_floating_point()]


def assert_close(ours: Sequence[Tensor], theirs: Sequence[Tensor], what: str) -> None:
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        torch.testing.assert_close(a, b, **CLOSE, msg=lambda text, i=i: f"{what} [{i}]: {text}")


def assert_same_state(ours: State, theirs: State, exact: bool = False) -> None:
    assert ours.form() == theirs.form()
    assert [name for name, _ in ours.tensors()] == [name for name, _ in theirs.tensors()]
    for (name, a), (_, b) in zip(ours.tensors(), theirs.tensors(), strict=True):
        tolerance = {"rtol": 0.0, "atol": 0.0} if exact or not a.is_floating_point() else CLOSE
        torch.testing.assert_close(a, b, **tolerance, msg=lambda text, name=name: f"state '{name}': {text}")


def split(case: Case, cuts: Sequence[int]) -> None:
    """1. Any partition of T gives the same outputs, final state and gradients."""
    x = case.x.clone().requires_grad_()
    state, memory = leaf(case.state)
    y, after = case.run(x, state, case.start)
    whole = gradients(case, weighed(y, after), x, *memory)
    edges = [0, *sorted(set(cuts)), x.shape[1]]
    pieces, current = [], state
    for first, last in pairwise(edges):
        if first < last:
            piece, current = case.run(x[:, first:last], current, case.start[:, first:last])
            pieces.append(piece)
    cut = torch.cat(pieces, 1)
    torch.testing.assert_close(cut, y, **CLOSE)
    assert_same_state(current, after)
    assert_close(gradients(case, weighed(cut, current), x, *memory), whole, "gradient")


def causal(case: Case, place: int) -> None:
    """2. A later token changes nothing earlier."""
    y, _ = case.run(case.x, case.state, case.start)
    changed = case.x.clone()
    changed[:, place:] += torch.randn_like(changed[:, place:])
    after, _ = case.run(changed, case.state, case.start)
    assert torch.equal(y[:, :place], after[:, :place])
    assert not torch.equal(y[:, place], after[:, place])
    # Not even one that is not a number, which 0 times anything would let through; and it is never hidden.
    changed[:, place] = torch.nan
    after, _ = case.run(changed, case.state, case.start)
    torch.testing.assert_close(after[:, :place], y[:, :place], **CLOSE)
    assert after[:, place].isnan().all()


def rows(case: Case, order: Sequence[int]) -> None:
    """3. Choosing rows commutes with forward; other rows' contents change nothing, bit for bit."""
    y, after = case.run(case.x, case.state, case.start)
    index = list(order)
    chosen, state = case.run(case.x[index], case.state.select(index), case.start[index], rows=index)
    torch.testing.assert_close(chosen, y[index], **CLOSE)
    assert_same_state(state, after.select(index))
    # Rows that come from elsewhere and join.
    joined = type(case.state).join([case.state.select([i]) for i in range(case.state.batch)])
    again, state = case.run(case.x, joined, case.start)
    assert torch.equal(again, y)
    assert_same_state(state, after, exact=True)
    if case.x.shape[0] > 1:
        other = case.x.clone()
        other[1:] = torch.randn_like(other[1:])
        changed, state = case.run(other, case.state, case.start)
        assert torch.equal(changed[0], y[0])
        assert_same_state(state.select([0]), after.select([0]), exact=True)


def start(case: Case) -> None:
    """4. A start inside a segment equals separate runs from fresh states, whole states compared."""
    B, T, _ = case.x.shape
    y, after = case.run(case.x, case.state, case.start)
    for b in range(B):
        state = case.state.select([b])
        edges = [0, *case.start[b].nonzero().flatten().tolist(), T]
        pieces = []
        for i, (first, last) in enumerate(pairwise(edges)):
            if i > 0:
                state = case.fresh(b)
            if first < last:
                piece, state = case.run(case.x[b : b + 1, first:last], state, None, rows=[b])
                pieces.append(piece)
        torch.testing.assert_close(torch.cat(pieces, 1)[0], y[b], **CLOSE)
        assert_same_state(after.select([b]), state)
    forget_nan(case, y, after)


def forget_nan(case: Case, y: Tensor, after: State) -> None:
    """4. What was not a number before a row's last start, in the call or in the state, is gone after it."""
    x, state = case.x.clone(), case.state.map(Tensor.clone)
    last = [max(row.nonzero().flatten().tolist(), default=-1) for row in case.start]
    for b, begins in enumerate(last):
        if begins >= 0:
            x[b, :begins] = torch.nan
            for leaf in state.leaves():
                if leaf.tensor.is_floating_point() and leaf.role is not FieldType.STATIC:
                    leaf.tensor[b][leaf.tensor[b] != 0] = torch.nan
    again, end = case.run(x, state, case.start)
    for b, begins in enumerate(last):
        torch.testing.assert_close(again[b, max(begins, 0) :], y[b, max(begins, 0) :], **CLOSE)
        assert_same_state(end.select([b]), after.select([b]))


def pure(case: Case) -> None:
    """5. What is handed in is bit-identical afterwards."""
    before = [tensor.clone() for _, tensor in case.state.tensors()]
    given = [case.x.clone(), case.start.clone(), *(tensor.clone() for tensor in case.source.values())]
    y, after = case.run(case.x, case.state, case.start)
    weighed(y, after).backward()
    case.core.zero_grad()
    assert all(torch.equal(a, b) for a, (_, b) in zip(before, case.state.tensors(), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(given, [case.x, case.start, *case.source.values()], strict=True))


def detach(case: Case) -> None:
    """6. The gradient stops at a detached state and nowhere else."""
    x = case.x.clone().requires_grad_()
    _, between = case.run(x, case.state, None)
    y, after = case.run(case.x, between, None)
    if matters(case, between):
        assert gradients(case, weighed(y, after), x)[-1].abs().sum() > 0
    y, after = case.run(case.x, between.detach(), None)
    cut = gradients(case, weighed(y, after), x)
    assert cut[-1].abs().sum() == 0
    constant = between.map(lambda tensor: tensor.detach().clone())
    y, after = case.run(case.x, constant, None)
    assert_close(gradients(case, weighed(y, after), x), cut, "gradient after detach")


def matters(case: Case, state: State) -> bool:
    """Whether what the state remembers changes anything: one chunk of one token, for instance, remembers nothing."""
    remembered = (FieldType.SLOTS, FieldType.GROWING, FieldType.CARRY)
    tensors = {part.path: part.tensor + 0.1 if part.role in remembered else part.tensor for part in state.leaves()}
    other = State.from_tensors(tensors, state.form())
    with torch.no_grad():
        return bool(weighed(*case.run(case.x, other, None)) != weighed(*case.run(case.x, state, None)))


def same_as_reference(case: Case, engine: Any, masks: Any = None) -> None:
    """7. An engine gives the reference's values and every gradient, the incoming state's included."""
    results = []
    for walk in (type(case.core).walk, engine):
        x = case.x.clone().requires_grad_()
        state, memory = leaf(case.state)
        given = None
        if case.source:
            from stairwell.cores.core import Source

            given = Source(case.source["source"], case.source["source_mask"])
        y, after = walk(case.core, x, state, case.start, given, masks)
        results.append((y, after, gradients(case, weighed(y, after), x, *memory)))
    (y, after, grads), (fast_y, fast_after, fast_grads) = results
    torch.testing.assert_close(fast_y, y, **CLOSE)
    assert_same_state(fast_after, after)
    assert_close(fast_grads, grads, "gradient")


def decode(case: Case) -> None:
    """8. Step by step equals teacher-forced."""
    with torch.no_grad():
        y, after = case.run(case.x, case.state, case.start)
        state, steps = case.state, []
        for t in range(case.x.shape[1]):
            step, state = case.run(case.x[:, t : t + 1], state, case.start[:, t : t + 1])
            steps.append(step)
        torch.testing.assert_close(torch.cat(steps, 1), y, **CLOSE)
        assert_same_state(state, after)


def window(case: Case) -> None:
    """9. Slots kept only as max_crop have no effect on output or gradient."""
    max_crop = case.state.max_crop
    assert max_crop > 0
    state, memory = leaf(case.state)
    y, _ = case.run(case.x, state, case.start)
    grads = torch.autograd.grad((y * torch.randn_like(y)).sum(), memory, allow_unused=True)
    for part, grad in zip(floating(state), grads, strict=True):
        if grad is not None and part.role is FieldType.SLOTS:
            assert grad[:, :max_crop].abs().sum() == 0, part.path
    poisoned = case.state.map(Tensor.clone)
    for part in poisoned.leaves():
        if part.role is FieldType.SLOTS:
            part.tensor[:, :max_crop] = torch.randn_like(part.tensor[:, :max_crop])
    again, _ = case.run(case.x, poisoned, case.start)
    assert torch.equal(again, y)


def forgets(case: Case, depth: int, S: int) -> None:
    """9. For Transformer-XL a token older than L*S has no effect."""
    assert case.x.shape[1] > depth * S
    x = case.x.clone().requires_grad_()
    y, _ = case.run(x, case.core.init_state(case.x.shape[0]), None)
    (grad,) = torch.autograd.grad((y[:, -1] * torch.randn_like(y[:, -1])).sum(), x)
    oldest = case.x.shape[1] - 1 - depth * S
    assert grad[:, :oldest].abs().sum() == 0
    assert grad[:, oldest].abs().sum() > 0


def crop(case: Case, back: Sequence[int]) -> None:
    """10. Cropping equals never having seen; `back` is one number a row, within the max_crop."""
    B, _, D = case.x.shape
    with torch.no_grad():
        _, kept = case.run(case.x, case.state, case.start)
        most = max(back)
        extra = torch.randn(B, max(most, 1), D, dtype=torch.float64)
        cropped = []
        for b in range(B):
            state = kept.select([b])
            if back[b]:
                _, state = case.run(extra[b : b + 1, : back[b]], state, None, rows=[b])
            cropped.append(state)
        # Each row has read its own number of extra tokens; they are taken back together.
        after = type(kept).join(cropped).crop(torch.tensor(back))
        assert torch.equal(after.count, kept.count)
        y, end = case.run(case.x, kept, None)
        again, again_end = case.run(case.x, after, None)
        torch.testing.assert_close(again, y, **CLOSE)
        max_crop = kept.max_crop
        for a, b in zip(floating(again_end), floating(end), strict=True):
            first = max_crop if a.role is FieldType.SLOTS else 0
            torch.testing.assert_close(a.tensor[:, first:], b.tensor[:, first:], **CLOSE)


def floating(state: State) -> list[Leaf]:
    return [part for part in state.leaves() if part.tensor.is_floating_point()]


def packed(case: Case) -> None:
    """13. A state as one vector a row comes back bit for bit, zeros are a fresh state, and gradients flow through."""
    core, (B, *_), max_crop = case.core, case.x.shape, case.state.max_crop
    state, memory = leaf(case.state)
    vector = state.pack()
    again = core.unpack(vector, max_crop)
    assert_same_state(again, case.state, exact=True)
    narrow = case.state.to(dtype=torch.float32)
    assert narrow.pack().dtype == torch.float32
    assert_same_state(core.unpack(narrow.pack(), max_crop).to(dtype=torch.float32), narrow, exact=True)
    # Rows of a vector are rows of the state, and zeros are rows that begin anew.
    kept = (torch.arange(B) % 2 == 0)[:, None].double()
    assert_same_state(core.unpack(vector * kept, max_crop), case.state.reset(kept[:, 0] == 0), exact=True)
    assert_same_state(core.unpack(torch.zeros_like(vector), max_crop), core.init_state(B, max_crop), exact=True)
    assert not core.init_state(B, max_crop).pack().any()
    # A call on it is the same call.
    y, after = case.run(case.x, state, case.start)
    packed_y, packed_after = case.run(case.x, again, case.start)
    assert torch.equal(packed_y, y)
    assert_same_state(packed_after, after, exact=True)
    grads = gradients(case, weighed(y, after), *memory)
    assert_close(gradients(case, weighed(packed_y, packed_after), *memory), grads, "gradient through the vector")


def tree(case: Case) -> None:
    """14. A state is a pytree whose leaves are its tensors, named by their paths."""
    leaves, spec = pytree.tree_flatten_with_path(case.state)
    names = [pytree.keystr(path).replace("[", ".").replace("]", "").removeprefix(".") for path, _ in leaves]
    assert names == [name for name, _ in case.state.tensors()]
    assert all(a is b for (_, a), (_, b) in zip(leaves, case.state.tensors(), strict=True))
    assert_same_state(pytree.tree_unflatten([tensor for _, tensor in leaves], spec), case.state, exact=True)
    assert pytree.treespec_loads(pytree.treespec_dumps(spec)) == spec
    doubled = pytree.tree_map(lambda tensor: tensor + tensor, case.state)
    assert_same_state(doubled, case.state.map(lambda tensor: tensor + tensor), exact=True)


def sources(case: SourceCase, lengths: Sequence[int]) -> None:
    """15. Rows whose sources differ in length join, and what a shorter one is padded with changes nothing."""
    alone = []
    for b, length in enumerate(lengths):
        row = case.state.select([b])
        short = {"source": row.source[:, :length], "source_mask": row.source_mask[:, :length]}
        alone.append(dataclasses.replace(row, **short))
    joined = SourceState.join(alone)
    assert joined.source.shape[1] == max(lengths)
    y, after = case.run(case.x, joined, case.start)
    for b, length in enumerate(lengths):
        assert not joined.source_mask[b, length:].any()
        assert torch.equal(joined.source[b, :length], alone[b].source[0])
        expected, expected_after = case.run(case.x[b : b + 1], alone[b], case.start[b : b + 1])
        torch.testing.assert_close(y[b : b + 1], expected, **CLOSE)
        assert_same_state(after.select([b]).decoder, expected_after.decoder)  # type: ignore[attr-defined]
    # A row that begins anew keeps its source.
    fresh = joined.reset(range(len(lengths)))
    assert torch.equal(fresh.source, joined.source)
    assert torch.equal(fresh.source_mask, joined.source_mask)
    assert_same_state(fresh.decoder, case.core.init_state(len(lengths), case.state.max_crop), exact=True)


def draw_masks(case: Case, attention: float, relu: float, layer_drop: float, residual: float = 0.0) -> Any:
    """One set of masks for a case, as a call in training would draw them."""
    from stairwell.cores.core import Source

    core = case.core
    assert isinstance(core, TransformerCore)
    config = core.config
    core.config = dataclasses.replace(
        config, attention_dropout=attention, relu_dropout=relu, residual_dropout=residual, layer_drop=layer_drop
    )
    for layer in core.layers:
        layer.attention.rate, layer.feed_forward.rate, layer.residual_rate = attention, relu, residual
        if config.cross:
            layer.cross.rate = attention
    given = Source(case.source["source"], case.source["source_mask"]) if case.source else None
    return core.draw(case.x, case.state, given, case.start)
