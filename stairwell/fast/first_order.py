"""What the engines' autograd functions share: first derivatives, backwards, and a plain word about all others."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from stairwell.devices import without_autocast

Backward = Callable[..., Any]


class FirstOrderFunction(torch.autograd.Function):
    """A function with a backward written by hand, to be marked with `once`, and no forward-mode derivative."""

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise RuntimeError("the fast engines have no forward-mode derivatives; use engine='reference'")


def first_order(what: str, instead: str) -> Callable[[Backward], Backward]:
    """Mark a backward that refuses second derivatives where the first are taken with create_graph=True; the error says
    `what` has none and what to do `instead`. PyTorch's `once_differentiable` puts its error where `autograd.grad` goes
    past it, and then second derivatives lack terms without a word."""

    def mark(backward: Backward) -> Backward:
        @wraps(backward)
        def checked(ctx: Any, *grads: Any) -> Any:
            if torch.is_grad_enabled():
                raise RuntimeError(f"{what} no second derivatives (create_graph); {instead}")
            # A backward within autocast would run these operations in other types than the forward.
            with without_autocast(next(grad for grad in grads if grad is not None)):
                return backward(ctx, *grads)

        return checked

    return mark


once = first_order("the fast engines have", "use engine='reference'")
