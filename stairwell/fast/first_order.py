"""Base of the engines' autograd functions: first derivatives in backward mode, and clear errors for all others."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from stairwell.devices import without_autocast

Backward = Callable[..., Any]


class FirstOrderFunction(torch.autograd.Function):
    """A function with a hand-written backward, decorated with `first_order_only`, and no forward-mode derivative."""

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise RuntimeError("the fast engines have no forward-mode derivatives; use engine='reference'")


def first_order(subject: str, instead: str) -> Callable[[Backward], Backward]:
    """Return a decorator for a backward that raises an error if called with create_graph=True.

    PyTorch's `once_differentiable` raises its error only where the second derivative passes through it; `autograd.grad`
    may bypass that, and second derivatives then silently lack terms."""

    def decorate(backward: Backward) -> Backward:
        @wraps(backward)
        def checked(ctx: Any, *grads: Any) -> Any:
            if torch.is_grad_enabled():
                raise RuntimeError(f"{subject} no second derivatives (create_graph); {instead}")
            # Within autocast, backward would run in other dtypes than forward.
            with without_autocast(next(grad for grad in grads if grad is not None)):
                return backward(ctx, *grads)

        return checked

    return decorate


first_order_only = first_order("the fast engines have", "use engine='reference'")
