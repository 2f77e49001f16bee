"""Invalid arguments for every native operator, derived from the arguments of real calls. Run it in its own process,
because an operator that accepts them may crash:

    python -m tests.fast.native_cases         prints one line per case: operator, change, outcome
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from stairwell.cores import build
from stairwell.cores.delta import DeltaNetConfig
from stairwell.cores.feedback import FeedbackConfig
from stairwell.cores.staircase import CachedStaircaseConfig, StaircaseConfig
from stairwell.fast import choose_engine, native
from tests.invariants import scramble

OPERATORS = (
    "feedback_forward", "feedback_backward", "staircase_forward", "staircase_backward", "delta_forward",
    "delta_backward", "logsumexp", "topk",
)  # fmt: skip
SMALL = {"width": 8, "layers": 2, "heads": 2, "inner": 6}
RATES = {"attention_dropout": 0.3, "relu_dropout": 0.3}
CONFIGS = (
    FeedbackConfig(**SMALL, memory=3),
    FeedbackConfig(
        **SMALL,
        **RATES,
        memory=3,
        norm="post",
        attend_to_current=True,
        cross=True,
        residual_dropout=0.3,
        adaptive_span=True,
    ),
    StaircaseConfig(**SMALL, chunk=2, passes=3),
    CachedStaircaseConfig(**SMALL, **RATES, chunk=2, passes=4, compute=2, norm="post", adaptive_span=True),
    DeltaNetConfig(**SMALL, products=2, gated=True),
)


def real_calls() -> list[tuple[str, tuple[Any, ...]]]:
    """Record the arguments of each operator from a training step of every config and from two reductions."""
    calls: list[tuple[str, tuple[Any, ...]]] = []
    real = {name: getattr(torch.ops.stairwell, name) for name in OPERATORS}

    def recorder(name: str) -> Any:
        def record(*arguments: Any) -> Any:
            calls.append((name, arguments))
            return real[name](*arguments)

        return record

    for name in OPERATORS:
        setattr(torch.ops.stairwell, name, recorder(name))
    for config in CONFIGS:
        core: Any = scramble(build(config)).train()
        choose_engine(core, "fast")
        source = {"source": torch.randn(2, 3, 8)} if getattr(config, "cross", False) else {}
        start = torch.zeros(2, 7, dtype=torch.bool)
        _, state = core(torch.randn(2, 4, 8), core.init_state(2), **source)
        y, state = core(torch.randn(2, 7, 8), state, start, **source)
        y.sum().backward()
    native.logsumexp(torch.randn(3, 11))
    native.topk(torch.randn(3, 11), 4)
    for name in OPERATORS:
        setattr(torch.ops.stairwell, name, real[name])
    return calls


def wrong_tensors(tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield tensors with another number of elements, of another dtype, and not contiguous. An empty tensor, which
    stands for None, is only replaced by a tensor with one element."""
    if not tensor.numel():
        yield "one element", torch.zeros(1, dtype=tensor.dtype)
        return
    flat = tensor.detach().flatten()
    yield "one element fewer", flat[:-1].clone()
    yield "one element more", torch.cat([flat, flat[:1]])
    yield "empty", tensor.new_empty(0)
    other = {torch.int64: torch.float64, torch.bool: torch.uint8, torch.float32: torch.complex64}[tensor.dtype]
    yield "another dtype", tensor.detach().to(other)
    yield "not contiguous", torch.zeros(*tensor.shape, 2, dtype=tensor.dtype)[..., 0]


def wrong_integers(number: int) -> Iterator[tuple[str, int]]:
    yield from ((f"{wrong} for {number}", wrong) for wrong in (-1, 0, number + 1, 1 << 40, 1 << 62) if wrong != number)


def wrong_lists(values: Sequence[Any]) -> Iterator[tuple[str, list[Any]]]:
    yield "last item missing", list(values[:-1])
    yield "one item more", [*values, values[-1]]
    yield "empty list", []
    for i, value in enumerate(values):
        yield from ((f"{i}: {change}", [*values[:i], wrong, *values[i + 1 :]]) for change, wrong in wrong_values(value))


def wrong_values(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Tensor):
        yield from wrong_tensors(value)
    elif isinstance(value, list | tuple):
        yield from wrong_lists(value)
    elif type(value) is int:
        yield from wrong_integers(value)


def cases() -> Iterator[tuple[str, str, tuple[Any, ...]]]:
    for name, arguments in real_calls():
        for i, value in enumerate(arguments):
            for change, wrong in wrong_values(value):
                yield name, f"{i}: {change}", (*arguments[:i], wrong, *arguments[i + 1 :])


def main() -> None:
    for name, change, arguments in cases():
        print(name, change, sep="\t", end="\t", flush=True)
        try:
            getattr(torch.ops.stairwell, name)(*arguments)
            print("ran")
        except RuntimeError:
            print("rejected")


if __name__ == "__main__":
    main()
