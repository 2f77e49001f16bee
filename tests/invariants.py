"""The invariants of every core and every engine, in float64.

Each invariant takes a `Case`: a core whose parameters are far from their initial values, and a stream. It raises
AssertionError if the invariant is violated. `tests/cores/test_invariants.py` samples cases and checks all invariants.
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
from stairwell.cores.core import Source, SourceState, TransformerCore
from stairwell.layers import LayerConfig
from stairwell.state import FieldType, Leaf, State

CLOSE = {"rtol": 1e-9, "atol": 1e-10}


@dataclass(repr=False)
class Case:
    """A core and a stream: x (B, T, D), start (B, T), and a state after some tokens."""

    core: Core
    x: Tensor
    start: Tensor
    state: State
    source: dict[str, Tensor]

    def __repr__(self) -> str:
        return f"Case({getattr(self.core, 'config', None)}, x {tuple(self.x.shape)}, start {self.start.int().tolist()})"

    def run(
        self, x: Tensor, state: State, start: Tensor | None, indices: Sequence[int] | None = None
    ) -> tuple[Tensor, State]:
        """Call the core; `indices` are the batch elements of this case that x consists of."""
        source = {
            name: tensor[list(indices)] if indices is not None else tensor for name, tensor in self.source.items()
        }
        return self.core(x, state, start, **source)

    def initial(self, b: int) -> State:
        """Return the initial state of batch element b."""
        return self.core.init_state(1, self.state.max_crop)

    def source_input(self) -> tuple[Source | None, ...]:
        """Return the source as an argument of `reference` and engines, if the core takes one."""
        if not isinstance(self.core, TransformerCore):
            return ()
        return (Source(self.source["source"], self.source["source_mask"]) if self.source else None,)


@dataclass(repr=False)
class SourceCase(Case):
    """A case whose state contains the source."""

    state: SourceState

    def run(self, x: Tensor, state: Any, start: Tensor | None, indices: Any = None) -> tuple[Tensor, State]:
        y, decoder = self.core(x, state.decoder, start, state.source, state.source_mask)
        return y, dataclasses.replace(state, decoder=decoder)

    def initial(self, b: int) -> State:
        return dataclasses.replace(self.state.select([b]), decoder=self.core.init_state(1, self.state.max_crop))


def scramble(module: nn.Module) -> nn.Module:
    """Set parameters far from initial values (uneven mixes, spans and norms), so that every term has an effect."""
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
    """Return a case for a config. `warm` tokens, some with start flags, are read before the stream."""
    torch.manual_seed(seed)
    if core is None:
        core = scramble(build(config)).double().eval()  # type: ignore[assignment]
    assert core is not None
    D = config.width
    source: dict[str, Tensor] = {}
    if getattr(config, "cross", False):
        mask = torch.rand(B, 4) < 0.6
        mask[0] = False  # a source that is all padding
        source = {"source": torch.randn(B, 4, D, dtype=torch.float64), "source_mask": mask}
    case = Case(
        core, torch.randn(B, T, D, dtype=torch.float64), torch.rand(B, T) < starts, core.init_state(B, max_crop), source
    )
    if warm:
        with torch.no_grad():
            x = torch.randn(B, warm, D, dtype=torch.float64)
            case.state = case.run(x, case.state, torch.rand(B, warm) < 0.3)[1]
    return case


def with_source_in_state(case: Case) -> SourceCase:
    """Return the same case with a nested state, for a core built with cross=True."""
    state = SourceState(decoder=case.state, **case.source)  # type: ignore[arg-type]
    return SourceCase(case.core, case.x, case.start, state, {})


def random_projection(y: Tensor, state: State, seed: int = 1) -> Tensor:
    """Return a scalar: the output and the final state, each number times its own random weight."""
    generator = torch.Generator().manual_seed(seed)

    def weight(tensor: Tensor) -> Tensor:
        return torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)

    total = (y * weight(y)).sum()
    for _, tensor in state.tensors():
        if tensor.is_floating_point():
            total = total + (tensor * weight(tensor)).sum()
    return total


def gradients(case: Case, total: Tensor, *inputs: Tensor) -> list[Tensor]:
    """Return the gradient of every parameter and of the given inputs; zeros where there is none."""
    variables = [*case.core.parameters(), *inputs]
    grads = torch.autograd.grad(total, variables, allow_unused=True)
    return [torch.zeros_like(v) if g is None else g for v, g in zip(variables, grads, strict=True)]


def with_leaves(state: State) -> tuple[State, list[Tensor]]:
    """Return the state with its memory as leaves of the autograd graph, and those leaves."""
    state = state.map(lambda tensor: tensor.detach().clone().requires_grad_(tensor.is_floating_point()))
    return state, [tensor for _, tensor in state.tensors() if tensor.is_floating_point()]


def assert_close(actual: Sequence[Tensor], expected: Sequence[Tensor], what: str) -> None:
    for i, (a, b) in enumerate(zip(actual, expected, strict=True)):
        torch.testing.assert_close(a, b, **CLOSE, msg=lambda text, i=i: f"{what} [{i}]: {text}")


def assert_same_state(actual: State, expected: State, exact: bool = False) -> None:
    assert actual.spec() == expected.spec()
    assert [name for name, _ in actual.tensors()] == [name for name, _ in expected.tensors()]
    for (name, a), (_, b) in zip(actual.tensors(), expected.tensors(), strict=True):
        tolerance = {"rtol": 0.0, "atol": 0.0} if exact or not a.is_floating_point() else CLOSE
        torch.testing.assert_close(a, b, **tolerance, msg=lambda text, name=name: f"state '{name}': {text}")


def split(case: Case, cuts: Sequence[int]) -> None:
    """1. Any split of T gives the same outputs, final state and gradients."""
    x = case.x.clone().requires_grad_()
    state, memory = with_leaves(case.state)
    y, after = case.run(x, state, case.start)
    expected = gradients(case, random_projection(y, after), x, *memory)
    edges = [0, *sorted(set(cuts)), x.shape[1]]
    segments, current = [], state
    for first, last in pairwise(edges):
        if first < last:
            segment, current = case.run(x[:, first:last], current, case.start[:, first:last])
            segments.append(segment)
    joined = torch.cat(segments, 1)
    torch.testing.assert_close(joined, y, **CLOSE)
    assert_same_state(current, after)
    assert_close(gradients(case, random_projection(joined, current), x, *memory), expected, "gradient")


def causal(case: Case, t: int) -> None:
    """2. A later token changes nothing earlier."""
    y, _ = case.run(case.x, case.state, case.start)
    changed = case.x.clone()
    changed[:, t:] += torch.randn_like(changed[:, t:])
    after, _ = case.run(changed, case.state, case.start)
    assert torch.equal(y[:, :t], after[:, :t])
    assert not torch.equal(y[:, t], after[:, t])
    # The same with NaN, which multiplication by 0 would let through; and NaN is never hidden.
    changed[:, t] = torch.nan
    after, _ = case.run(changed, case.state, case.start)
    torch.testing.assert_close(after[:, :t], y[:, :t], **CLOSE)
    assert after[:, t].isnan().all()


def independent(case: Case, order: Sequence[int]) -> None:
    """3. Selecting batch elements commutes with forward; other elements change nothing, bit for bit."""
    y, after = case.run(case.x, case.state, case.start)
    index = list(order)
    selected, state = case.run(case.x[index], case.state.select(index), case.start[index], indices=index)
    torch.testing.assert_close(selected, y[index], **CLOSE)
    assert_same_state(state, after.select(index))
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
    """4. A start within a call equals separate calls from initial states, final states included."""
    B, T, _ = case.x.shape
    y, after = case.run(case.x, case.state, case.start)
    for b in range(B):
        state = case.state.select([b])
        edges = [0, *case.start[b].nonzero().flatten().tolist(), T]
        segments = []
        for i, (first, last) in enumerate(pairwise(edges)):
            if i > 0:
                state = case.initial(b)
            if first < last:
                segment, state = case.run(case.x[b : b + 1, first:last], state, None, indices=[b])
                segments.append(segment)
        torch.testing.assert_close(torch.cat(segments, 1)[0], y[b], **CLOSE)
        assert_same_state(after.select([b]), state)
    start_removes_nan(case, y, after)


def start_removes_nan(case: Case, y: Tensor, after: State) -> None:
    """4. NaN before a stream's last start, in the call or in the state, has no effect after it."""
    x, state = case.x.clone(), case.state.map(Tensor.clone)
    last_starts = [max(starts.nonzero().flatten().tolist(), default=-1) for starts in case.start]
    for b, last_start in enumerate(last_starts):
        if last_start >= 0:
            x[b, :last_start] = torch.nan
            for leaf in state.leaves():
                if leaf.tensor.is_floating_point() and leaf.field_type is not FieldType.STATIC:
                    leaf.tensor[b][leaf.tensor[b] != 0] = torch.nan
    again, end = case.run(x, state, case.start)
    for b, last_start in enumerate(last_starts):
        torch.testing.assert_close(again[b, max(last_start, 0) :], y[b, max(last_start, 0) :], **CLOSE)
        assert_same_state(end.select([b]), after.select([b]))


def pure(case: Case) -> None:
    """5. Inputs are not modified, bit for bit."""
    before = [tensor.clone() for _, tensor in case.state.tensors()]
    inputs = [case.x.clone(), case.start.clone(), *(tensor.clone() for tensor in case.source.values())]
    y, after = case.run(case.x, case.state, case.start)
    random_projection(y, after).backward()
    case.core.zero_grad()
    assert all(torch.equal(a, b) for a, (_, b) in zip(before, case.state.tensors(), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(inputs, [case.x, case.start, *case.source.values()], strict=True))


def detach(case: Case) -> None:
    """6. The gradient stops at a detached state and nowhere else."""
    x = case.x.clone().requires_grad_()
    _, between = case.run(x, case.state, None)
    y, after = case.run(case.x, between, None)
    if has_effect(case, between):
        assert gradients(case, random_projection(y, after), x)[-1].abs().sum() > 0
    y, after = case.run(case.x, between.detach(), None)
    detached = gradients(case, random_projection(y, after), x)
    assert detached[-1].abs().sum() == 0
    constant = between.map(lambda tensor: tensor.detach().clone())
    y, after = case.run(case.x, constant, None)
    assert_close(gradients(case, random_projection(y, after), x), detached, "gradient after detach")


def has_effect(case: Case, state: State) -> bool:
    """Return whether the memory has an effect; with a single chunk of one token, for instance, there is none."""
    memory = (FieldType.SLOTS, FieldType.GROWING, FieldType.CARRY)
    tensors = {leaf.path: leaf.tensor + 0.1 if leaf.field_type in memory else leaf.tensor for leaf in state.leaves()}
    other = State.from_tensors(tensors, state.spec())
    with torch.no_grad():
        return bool(
            random_projection(*case.run(case.x, other, None)) != random_projection(*case.run(case.x, state, None))
        )


def same_as_reference(case: Case, engine: Any, masks: Any = None) -> None:
    """7. An engine gives the values and all gradients of the reference, the gradient of the initial state included."""
    results = []
    source = case.source_input()
    inputs = (*source, masks) if source else ()
    for forward in (type(case.core).reference, engine):
        x = case.x.clone().requires_grad_()
        state, memory = with_leaves(case.state)
        y, after = forward(case.core, x, state, case.start, *inputs)
        results.append((y, after, gradients(case, random_projection(y, after), x, *memory)))
    (y, after, grads), (fast_y, fast_after, fast_grads) = results
    torch.testing.assert_close(fast_y, y, **CLOSE)
    assert_same_state(fast_after, after)
    assert_close(fast_grads, grads, "gradient")


def decode(case: Case) -> None:
    """8. Decoding token by token equals teacher forcing."""
    with torch.no_grad():
        y, after = case.run(case.x, case.state, case.start)
        state, steps = case.state, []
        for t in range(case.x.shape[1]):
            step, state = case.run(case.x[:, t : t + 1], state, case.start[:, t : t + 1])
            steps.append(step)
        torch.testing.assert_close(torch.cat(steps, 1), y, **CLOSE)
        assert_same_state(state, after)


def window(case: Case) -> None:
    """9. Slots beyond the window, stored for `max_crop`, have no effect on outputs and gradients."""
    max_crop = case.state.max_crop
    assert max_crop > 0
    state, memory = with_leaves(case.state)
    y, _ = case.run(case.x, state, case.start)
    grads = torch.autograd.grad((y * torch.randn_like(y)).sum(), memory, allow_unused=True)
    for leaf, grad in zip(floating_point_leaves(state), grads, strict=True):
        if grad is not None and leaf.field_type is FieldType.SLOTS:
            assert grad[:, :max_crop].abs().sum() == 0, leaf.path
    changed = case.state.map(Tensor.clone)
    for leaf in changed.leaves():
        if leaf.field_type is FieldType.SLOTS:
            leaf.tensor[:, :max_crop] = torch.randn_like(leaf.tensor[:, :max_crop])
    again, _ = case.run(case.x, changed, case.start)
    assert torch.equal(again, y)


def receptive_field(case: Case, depth: int, S: int) -> None:
    """9. In Transformer-XL, a token more than L*S tokens back has no effect."""
    assert case.x.shape[1] > depth * S
    x = case.x.clone().requires_grad_()
    y, _ = case.run(x, case.core.init_state(case.x.shape[0]), None)
    (grad,) = torch.autograd.grad((y[:, -1] * torch.randn_like(y[:, -1])).sum(), x)
    oldest = case.x.shape[1] - 1 - depth * S
    assert grad[:, :oldest].abs().sum() == 0
    assert grad[:, oldest].abs().sum() > 0


def crop(case: Case, tokens: Sequence[int]) -> None:
    """10. Cropping equals never having read the tokens; `tokens` is one number per stream, at most max_crop."""
    B, _, D = case.x.shape
    with torch.no_grad():
        _, before = case.run(case.x, case.state, case.start)
        extra = torch.randn(B, max(*tokens, 1), D, dtype=torch.float64)
        longer = []
        for b in range(B):
            state = before.select([b])
            if tokens[b]:
                _, state = case.run(extra[b : b + 1, : tokens[b]], state, None, indices=[b])
            longer.append(state)
        cropped = type(before).join(longer).crop(torch.tensor(tokens))
        assert torch.equal(cropped.count, before.count)
        y, end = case.run(case.x, before, None)
        again, again_end = case.run(case.x, cropped, None)
        torch.testing.assert_close(again, y, **CLOSE)
        max_crop = before.max_crop
        for a, b in zip(floating_point_leaves(again_end), floating_point_leaves(end), strict=True):
            first = max_crop if a.field_type is FieldType.SLOTS else 0
            torch.testing.assert_close(a.tensor[:, first:], b.tensor[:, first:], **CLOSE)


def floating_point_leaves(state: State) -> list[Leaf]:
    return [leaf for leaf in state.leaves() if leaf.tensor.is_floating_point()]


def packed(case: Case) -> None:
    """13. A packed state unpacks bit for bit, zeros unpack to an initial state, and gradients flow through."""
    core, (B, *_), max_crop = case.core, case.x.shape, case.state.max_crop
    state, memory = with_leaves(case.state)
    vector = state.pack()
    again = core.unpack(vector, max_crop)
    assert_same_state(again, case.state, exact=True)
    narrow = case.state.to(dtype=torch.float32)
    assert narrow.pack().dtype == torch.float32
    assert_same_state(core.unpack(narrow.pack(), max_crop).to(dtype=torch.float32), narrow, exact=True)
    # Zeroing a stream's vector resets the stream.
    keep = (torch.arange(B) % 2 == 0)[:, None].double()
    assert_same_state(core.unpack(vector * keep, max_crop), case.state.reset(keep[:, 0] == 0), exact=True)
    assert_same_state(core.unpack(torch.zeros_like(vector), max_crop), core.init_state(B, max_crop), exact=True)
    assert not core.init_state(B, max_crop).pack().any()
    y, after = case.run(case.x, state, case.start)
    packed_y, packed_after = case.run(case.x, again, case.start)
    assert torch.equal(packed_y, y)
    assert_same_state(packed_after, after, exact=True)
    grads = gradients(case, random_projection(y, after), *memory)
    packed_grads = gradients(case, random_projection(packed_y, packed_after), *memory)
    assert_close(packed_grads, grads, "gradient through the vector")


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
    """15. States with sources of different lengths can be joined, and the padding has no effect."""
    alone = []
    for b, length in enumerate(lengths):
        state = case.state.select([b])
        short = {"source": state.source[:, :length], "source_mask": state.source_mask[:, :length]}
        alone.append(dataclasses.replace(state, **short))
    joined = SourceState.join(alone)
    assert joined.source.shape[1] == max(lengths)
    y, after = case.run(case.x, joined, case.start)
    for b, length in enumerate(lengths):
        assert not joined.source_mask[b, length:].any()
        assert torch.equal(joined.source[b, :length], alone[b].source[0])
        expected, expected_after = case.run(case.x[b : b + 1], alone[b], case.start[b : b + 1])
        torch.testing.assert_close(y[b : b + 1], expected, **CLOSE)
        assert_same_state(after.select([b]).decoder, expected_after.decoder)  # type: ignore[attr-defined]
    # A reset does not change the source.
    reset = joined.reset(range(len(lengths)))
    assert torch.equal(reset.source, joined.source)
    assert torch.equal(reset.source_mask, joined.source_mask)
    assert_same_state(reset.decoder, case.core.init_state(len(lengths), case.state.max_crop), exact=True)


def sample_masks(case: Case, attention: float, relu: float, layer_drop: float, residual: float = 0.0) -> Any:
    """Set the dropout rates of a case's core and sample masks as a training call does."""
    core = case.core
    assert isinstance(core, TransformerCore)
    config = dataclasses.replace(
        core.config, attention_dropout=attention, relu_dropout=relu, residual_dropout=residual, layer_drop=layer_drop
    )
    for module in core.modules():
        if isinstance(getattr(module, "config", None), LayerConfig):
            module.config = config
    (source,) = case.source_input()
    return core.sample_masks(case.x, case.state, source, case.start)
