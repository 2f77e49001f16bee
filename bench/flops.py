"""How many multiplications and additions a training step takes, by formula.

Counted, a multiplication and its addition as two: every product of the model's maths. That is the projections, the
feed-forward, the attention (scores, positions, weighted sums), the head, the mix of the memory. Not counted: softmax,
norms, ReLU, dropout, the loss, the embedding, Adam. Those are no products; they take time and count as none of it.
`tests/bench/test_bench.py` holds the formula against torch's own counter. Letters as in the cores.
"""

from __future__ import annotations

from typing import Any

from stairwell import FeedbackConfig, TransformerXLConfig


def forward_flops(core: Any, B: int, T: int, V: int, looked_at: int | None = None) -> dict[str, int]:
    """Of one segment of T tokens after a full memory, part by part.

    A token looks at as many slots as the memory has; an implementation that scores more of them than it needs (a full
    matrix that is masked afterwards) is counted by giving `looked_at`.
    """
    D, F, HK, L, S = core.width, core.F, core.heads * core.K, core.layers, core.memory
    J = looked_at or S
    feedback = isinstance(core, FeedbackConfig)
    if not feedback and not isinstance(core, TransformerXLConfig):
        raise TypeError(f"no formula for {type(core).__name__}")
    sets = 1 if feedback and core.share_kv else L  # of keys and values
    tokens = B * T
    return {
        "queries and outputs": 2 * tokens * L * 2 * D * HK,
        "keys and values": 2 * tokens * sets * 2 * D * HK,
        "keys and values of the memory handed in": 2 * B * S * sets * 2 * D * HK,
        "feed-forward": 2 * tokens * L * 2 * D * F,
        "scores and sums": 2 * tokens * L * 2 * HK * J,
        "positions": 2 * tokens * L * HK * S,
        "mix": 2 * tokens * core.memories * (L + 1) * D if feedback else 0,
        "head": 2 * tokens * D * V,
    }


def training_flops(core: Any, B: int, T: int, V: int) -> int:
    """Forward and backward: each product has two gradients, each as large as the product itself.

    The memory that is handed in has no gradient of its own. Feedback's engine folds the norm into the projection, so
    that it needs two products there; Transformer-XL's norm has weights, whose gradient takes the third.
    """
    parts = forward_flops(core, B, T, V)
    spared = parts["keys and values of the memory handed in"] if isinstance(core, FeedbackConfig) else 0
    return 3 * sum(parts.values()) - spared


Product = tuple[int, int, int, int]  # rows, columns, depth, how many times


def products(core: Any, B: int, T: int, V: int) -> list[Product]:
    """The step's products without attention and mix, as large as each model can make them.

    Feedback has B rows at a time, because a token needs the one before; Transformer-XL has all B * T at once. Both
    have their weight gradients and the head over all tokens.
    """
    D, F, HK, L, S = core.width, core.F, core.heads * core.K, core.layers, core.memory
    feedback = isinstance(core, FeedbackConfig)
    sets = 1 if feedback and core.share_kv else L
    rows, times = (B, T) if feedback else (B * T, 1)
    found: list[Product] = []
    for out, into, count in ((HK, D, L), (D, HK, L), (2 * HK, D, sets), (F, D, L), (D, F, L)):
        # The product, the gradient of its input, the gradient of its weight.
        found += [(rows, out, into, count * times), (rows, into, out, count * times), (out, into, B * T, count)]
    found += [(B * S, 2 * HK, D, sets), (2 * HK, D, B * S, sets)]
    if not feedback:
        found.append((B * S, D, 2 * HK, sets))
    return [*found, (B * T, V, D, 1), (B * T, D, V, 1), (V, D, B * T, 1)]
