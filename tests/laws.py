"""The laws that every core and every engine must keep, in float64.

Each law takes a `Case`: a core with weights that make everything matter, and a stream for it. A law raises
AssertionError when it is broken. `tests/cores/test_laws.py` draws cases and runs all laws on them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from stairwell.cores import Core, build
from stairwell.cores.core import TransformerCore
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


def scramble(module: nn.Module) -> nn.Module:
    """Weights far from their initial values: uneven mixes, spans and norms, so that no term can hide."""
    for name, parameter in module.named_parameters():
        with torch.no_grad():
            if name.endswith("span.z"):
                parameter.uniform_(0, 5)
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
    slack: int = 0,
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
        core, torch.randn(B, T, D, dtype=torch.float64), torch.rand(B, T) < starts, core.init_state(B, slack), source
    )
    if warm:
        with torch.no_grad():
            x = torch.randn(B, warm, D, dtype=torch.float64)
            case.state = case.run(x, case.state, torch.rand(B, warm) < 0.3)[1]
    return case


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
    slack = case.state.slack
    for b in range(B):
        state = case.state.select([b])
        edges = [0, *case.start[b].nonzero().flatten().tolist(), T]
        pieces = []
        for i, (first, last) in enumerate(pairwise(edges)):
            if i > 0:
                state = case.core.init_state(1, slack)
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
            for _, tensor in state.tensors():
                if tensor.is_floating_point():
                    tensor[b][tensor[b] != 0] = torch.nan
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
    other = state.map(lambda tensor: tensor + 0.1 if tensor.is_floating_point() else tensor)
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
    """9. Slots kept only as slack have no effect on output or gradient."""
    slack = case.state.slack
    assert slack > 0
    state, memory = leaf(case.state)
    y, _ = case.run(case.x, state, case.start)
    grads = torch.autograd.grad((y * torch.randn_like(y)).sum(), memory, allow_unused=True)
    for name, grad in zip(floating(state), grads, strict=True):
        if grad is not None and reads_by_window(case.core, name):
            assert grad[:, :slack].abs().sum() == 0, name
    poisoned = case.state.map(Tensor.clone)
    for name, tensor in poisoned.tensors():
        if tensor.is_floating_point() and reads_by_window(case.core, name):
            tensor[:, :slack] = torch.randn_like(tensor[:, :slack])
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
    """10. Cropping equals never having seen; `back` is one number a row, within the slack."""
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
        slack = kept.slack
        for (name, a), (_, b) in zip(again_end.tensors(), end.tensors(), strict=True):
            if a.is_floating_point() and a.shape[1]:
                first = slack if reads_by_window(case.core, name) else 0
                torch.testing.assert_close(a[:, first:], b[:, first:], **CLOSE)


def floating(state: State) -> list[str]:
    return [name for name, tensor in state.tensors() if tensor.is_floating_point()]


def reads_by_window(core: Core, name: str) -> bool:
    """Whether a tensor of the state holds slack: all do, but the cache that grows with the stream or is not kept."""
    return name != "cache" or core.memory_shapes(1)["cache"][0] > core.memory_shapes(0)["cache"][0]


def draw_masks(case: Case, attention: float, relu: float, layer_drop: float) -> Any:
    """One set of masks for a case, as a call in training would draw them."""
    from stairwell.cores.core import Source

    core = case.core
    assert isinstance(core, TransformerCore)
    config = core.config
    core.config = dataclasses.replace(config, attention_dropout=attention, relu_dropout=relu, layer_drop=layer_drop)
    for layer in core.layers:
        layer.attention.rate, layer.feed_forward.rate = attention, relu
        if config.cross:
            layer.cross.rate = attention
    given = Source(case.source["source"], case.source["source_mask"]) if case.source else None
    return core.draw(case.x, case.state, given)
