"""What the engines' autograd functions share: first derivatives, backwards, and a plain word about all others."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch


class Once(torch.autograd.Function):
    """A function with a backward written by hand, to be marked with `once`, and no forward-mode derivative."""

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise RuntimeError("the fast engines have no forward-mode derivatives; use engine='reference'")


def once(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Refuse second derivatives where the first are taken with create_graph=True. PyTorch's `once_differentiable` puts
    its error where `autograd.grad` can go past it, and then second derivatives lack terms without a word."""

    @wraps(backward)
    def checked(ctx: Any, *grads: Any) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError("the fast engines have no second derivatives (create_graph); use engine='reference'")
        return backward(ctx, *grads)

    return checked
