"""Floating-point operations of a training step, by formula.

A multiplication and its addition count as two. Counted are all matrix products: projections, feed-forward, attention
(scores, positions, weighted sums), head and memory mix. Not counted are softmax, norms, ReLU, dropout, loss, embedding
and Adam. `tests/bench/test_bench.py` compares the formula with torch's counter. Letters as in the cores.
"""

from __future__ import annotations

from typing import Any

from stairwell import FeedbackConfig, TransformerXLConfig


def forward_flops(core: Any, B: int, T: int, V: int, scored: int | None = None) -> dict[str, int]:
    """Return the operations of forward by part, for a segment of T tokens after a full memory.

    A token attends to all memory slots. `scored` is the number of slots that an implementation computes scores for, if
    that is more (a full matrix that is masked).
    """
    D, F, HK, L, S = core.width, core.F, core.heads * core.K, core.layers, core.memory
    J = scored or S
    feedback = isinstance(core, FeedbackConfig)
    if not feedback and not isinstance(core, TransformerXLConfig):
        raise TypeError(f"no formula for {type(core).__name__}")
    kv_groups = 1 if feedback and core.share_kv else L
    tokens = B * T
    return {
        "queries and outputs": 2 * tokens * L * 2 * D * HK,
        "keys and values": 2 * tokens * kv_groups * 2 * D * HK,
        "keys and values of the state": 2 * B * S * kv_groups * 2 * D * HK,
        "feed-forward": 2 * tokens * L * 2 * D * F,
        "scores and sums": 2 * tokens * L * 2 * HK * J,
        "positions": 2 * tokens * L * HK * S,
        "mix": 2 * tokens * core.memories * (L + 1) * D if feedback else 0,
        "head": 2 * tokens * D * V,
    }


def training_flops(core: Any, B: int, T: int, V: int) -> int:
    """Return the operations of forward and backward: each product has two gradients of the same size.

    The memory of the state has no gradient. Feedback's engine folds the norm into its projection, which then needs two
    products; Transformer-XL needs the third for the gradient of the norm's parameters.
    """
    parts = forward_flops(core, B, T, V)
    saved = parts["keys and values of the state"] if isinstance(core, FeedbackConfig) else 0
    return 3 * sum(parts.values()) - saved


Product = tuple[int, int, int, int]  # rows, columns, depth, count


def products(core: Any, B: int, T: int, V: int) -> list[Product]:
    """Return the products of a step except attention and mix, in the largest shapes that each model allows.

    Feedback multiplies B rows at a time, because a token depends on the one before; Transformer-XL all B * T. Both
    compute parameter gradients and the head over all tokens.
    """
    D, F, HK, L, S = core.width, core.F, core.heads * core.K, core.layers, core.memory
    feedback = isinstance(core, FeedbackConfig)
    kv_groups = 1 if feedback and core.share_kv else L
    rows, times = (B, T) if feedback else (B * T, 1)
    shapes: list[Product] = []
    for out, into, count in ((HK, D, L), (D, HK, L), (2 * HK, D, kv_groups), (F, D, L), (D, F, L)):
        # The product and the gradients of its input and its weight.
        shapes += [(rows, out, into, count * times), (rows, into, out, count * times), (out, into, B * T, count)]
    shapes += [(B * S, 2 * HK, D, kv_groups), (2 * HK, D, B * S, kv_groups)]
    if not feedback:
        shapes.append((B * S, D, 2 * HK, kv_groups))
    return [*shapes, (B * T, V, D, 1), (B * T, D, V, 1), (V, D, B * T, 1)]
