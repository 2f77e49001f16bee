"""Every model as a short NumPy function, one token at a time, to compare with the equations.

Nothing of stairwell is imported. A listing takes the parameters of a core by name and a stream of embeddings x (T, D).
It returns the output of the core for one stream from the initial state:

    core = stairwell.build(stairwell.FeedbackConfig(width=8, heads=2, layers=2, memory=5))
    w = {name: tensor.double().numpy() for name, tensor in core.state_dict().items()}
    y = listings.feedback(w, x, S=5)

There are no states, batches or dropout: a token attends to lists of earlier vectors. A test compares every core with
its listing. Letters: T tokens, S memory positions, D width, L layers, K head width, C chunk, N passes, M computed
passes, R span ramp. Upper indices count finished layers, so x^0 is the embedding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]
Weights = dict[str, Array]
Slots = Sequence[tuple[Array, int]]  # what a token attends to: vectors and their distances in tokens


def softmax(scores: Array) -> Array:
    powers = np.exp(scores - scores.max())
    return powers / powers.sum()


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def silu(x: Array) -> Array:
    return x * sigmoid(x)


def layer_norm(w: Weights, name: str, x: Array) -> Array:
    return (x - x.mean()) / np.sqrt(x.var() + 1e-5) * w[f"{name}.weight"] + w[f"{name}.bias"]


def depth(w: Weights) -> int:
    return sum(name.endswith("attention.query.weight") for name in w)


def attend(w: Weights, l: int, x: Array, slots: Slots, pre: bool, first: int, R: int) -> Array:
    """score = q . (k + p_distance) / sqrt(K);  Attn = W_o sum softmax(score) v;  zero without slots."""
    owner = l if f"layers.{l}.attention.key.weight" in w else 0  # the layer whose projections are shared
    p = w["position.vectors"]  # one per distance; larger distances share the last
    K = p.shape[1]
    memory = [layer_norm(w, f"layers.{owner}.attention_norm", m) if pre else m for m, _ in slots]
    q = w[f"layers.{l}.attention.query.weight"] @ (layer_norm(w, f"layers.{l}.attention_norm", x) if pre else x)
    k = [w[f"layers.{owner}.attention.key.weight"] @ m for m in memory]
    v = [w[f"layers.{owner}.attention.value.weight"] @ m for m in memory]
    distance = np.array([d - first for _, d in slots])
    read = np.zeros_like(q)
    for h in range(len(q) // K if slots else 0):
        head = slice(h * K, (h + 1) * K)
        scores = [q[head] @ (key[head] + p[min(d, len(p) - 1)]) / np.sqrt(K) for key, d in zip(k, distance)]
        weights = softmax(np.array(scores))
        if f"layers.{l}.span.ratio" in w:  # adaptive span: weights beyond distance z fade over R tokens
            z = w[f"layers.{l}.span.ratio"][h] * len(w["position.vectors"])
            weights = weights * np.clip((R + z - distance) / R, 0, 1)
            weights = weights / weights.sum()
        read[head] = sum(weight * value[head] for weight, value in zip(weights, v))
    return w[f"layers.{l}.attention.out.weight"] @ read


def feed_forward(w: Weights, l: int, x: Array) -> Array:
    """W_2 ReLU(W_1 x + b_1) + b_2"""
    name = f"layers.{l}.feed_forward"
    inner = np.maximum(w[f"{name}.inner.weight"] @ x + w[f"{name}.inner.bias"], 0)
    return w[f"{name}.out.weight"] @ inner + w[f"{name}.out.bias"]


def layer(w: Weights, l: int, x: Array, slots: Slots, norm: str = "pre", first: int = 0, R: int = 32) -> Array:
    """x^l -> x^{l+1} of one token that attends to `slots`; `first` is the smallest possible distance."""
    z = attend(w, l, x, slots, norm == "pre", first, R)
    if norm == "pre":
        return x + z + feed_forward(w, l, layer_norm(w, f"layers.{l}.feed_forward_norm", x + z))
    z = layer_norm(w, f"layers.{l}.attention_norm", x + z)
    return layer_norm(w, f"layers.{l}.feed_forward_norm", z + feed_forward(w, l, z))


def feedback(
    w: Weights, x: Array, S: int, memory_composition: str | int = "all", attend_to_current: bool = False, **options: Any
) -> Array:
    """Fan et al., 2020:  z_t^l = Attn(x_t^{l-1}, {m_{t-S} .. m_{t-1}}),  m_t = sum_l softmax(w)_l x_t^l (equation 1)"""
    L, first = depth(w), 0 if attend_to_current else 1
    memory: list[list[Array]] = []  # per token and layer
    y = []
    for t in range(len(x)):
        levels = [x[t]]  # x_t^0, then x_t^1 .. x_t^L
        for l in range(L):
            slots = [(memory[t - d][l], d) for d in range(1, min(S, t) + 1)]
            if attend_to_current:
                slots.append((levels[l], 0))
            levels.append(layer(w, l, levels[l], slots, first=first, **options))
        memory.append([mixed(w, levels, memory_composition, l) for l in range(L)])
        y.append(levels[L])
    return np.stack(y)


def mixed(w: Weights, levels: list[Array], memory_composition: str | int, l: int) -> Array:
    """The memory of a token for the layer above x^l: the same for all layers, except `recurrent` (figure 5)."""
    if isinstance(memory_composition, int):
        return levels[memory_composition]
    if memory_composition == "average":
        return sum(levels[1:], levels[0]) / len(levels)
    if memory_composition == "recurrent":  # layers 0 .. l+1, the layer's own output included
        share = softmax(w["mix.weights"][l][: l + 2])
    else:
        share = softmax(w["mix.weights"][0])
    return sum((s * level for s, level in zip(share, levels)), np.zeros_like(levels[0]))


def transformer_xl(w: Weights, x: Array, S: int, attend_to_current: bool = False, **options: Any) -> Array:
    """Dai et al., 2019:  z_t^l = Attn(x_t^{l-1}, {x_{t-S}^{l-1} .. x_{t-1}^{l-1}})"""
    first = 0 if attend_to_current else 1
    for l in range(depth(w)):
        past = [[(x[t - d], d) for d in range(first, min(S, t) + 1)] for t in range(len(x))]
        x = np.stack([layer(w, l, x[t], slots, first=first, **options) for t, slots in enumerate(past)])
    return x


def universal(w: Weights, x: Array, S: int, N: int, attend_to_current: bool = True, **options: Any) -> Array:
    """Dehghani et al., 2018, without halting:  h^n = Layers(h^{n-1}), n = 1..N, with the same parameters"""
    for _ in range(N):
        x = transformer_xl(w, x, S, attend_to_current, **options)
    return x


def staircase(w: Weights, x: Array, C: int, N: int, **options: Any) -> Array:
    """Ju et al., 2021, equation 3 as printed: in each step the N chunks of a diagonal go through TC together.

    H_{i+1}^N, H_{i+2}^{N-1}, ..., H_{i+N}^1 = TC(H_{i+1}^{N-1}, H_{i+2}^{N-2}, ..., H_{i+N}^0)"""
    chunks = -(-len(x) // C)
    H = {(i, 0): x[i * C : (i + 1) * C] for i in range(chunks)}  # H[chunk, passes done]
    for step in range(chunks + N - 1):
        on = [i for i in range(step - N + 1, step + 1) if 0 <= i < chunks]  # chunk i has step - i passes done
        tokens = [(i * C + j, h) for i in on for j, h in enumerate(H[i, step - i])]
        for l in range(depth(w)):
            tokens = [(t, layer(w, l, h, [(m, t - s) for s, m in tokens if s <= t], **options)) for t, h in tokens]
        for i in on:
            H[i, step - i + 1] = np.stack([h for t, h in tokens if t // C == i])
    return np.concatenate([H[i, N] for i in range(chunks)])


def cached_staircase(w: Weights, x: Array, C: int, N: int | None, M: int, **options: Any) -> Array:
    """Section 3.2.1: H_i^n = H_i^M for n > M. In pass n, chunk i attends to chunk i-d in pass n+d if that is computed,
    else to its final states H_{i-d}^M, in every layer. M = 0: to its embeddings. N = None: to all chunks (B.1)."""
    inputs: dict[tuple[int, int, int], list[Array]] = {}  # [chunk, pass, layer]: the layer's input per token
    final: list[list[Array]] = []  # H_i^M
    y: list[Array] = []
    for i, first in enumerate(range(0, len(x), C)):
        h = list(x[first : first + C])
        final.append(h)
        for n in range(1, max(M, 1) + 1):
            chunks = i if N is None else min(i, N - n)  # visible past chunks
            for l in range(depth(w)):
                inputs[i, n, l] = h
                past = [
                    (m, first - (i - d) * C - j)  # distance to the chunk's first token
                    for d in range(chunks, 0, -1)
                    for j, m in enumerate(inputs[i - d, n + d, l] if n + d <= M else final[i - d])
                ]
                own = [[(h[s], j - s) for s in range(j + 1)] for j in range(len(h))]
                h = [
                    layer(w, l, h[j], [*((m, distance + j) for m, distance in past), *own[j]], **options)
                    for j in range(len(h))
                ]
            if n == M:
                final[i] = h
        y += h
    return np.stack(y)


def lstm(w: Weights, x: Array) -> Array:
    """Hochreiter & Schmidhuber, 1997:  c = f c + i g,  h = o tanh(c)"""
    for l in range(sum(name.startswith("lstm.weight_ih") for name in w)):
        h = c = np.zeros(x.shape[1])
        y = []
        for x_t in x:
            gates = w[f"lstm.weight_ih_l{l}"] @ x_t + w[f"lstm.bias_ih_l{l}"]
            gates = gates + w[f"lstm.weight_hh_l{l}"] @ h + w[f"lstm.bias_hh_l{l}"]
            i, f, g, o = np.split(gates, 4)
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
            y.append(h)
        x = np.stack(y)
    return x


def deltanet(w: Weights, x: Array, H: int, n: int = 1, largest: float = 2.0, gated: bool = False) -> Array:
    """DeltaNet (n = 1) and DeltaProduct:  S <- S (I - b k k^T) + b v k^T, n times per token and head"""
    for l in range(1 + max(int(name.split(".")[1]) for name in w if name.startswith("layers."))):
        own = {name.removeprefix(f"layers.{l}."): weight for name, weight in w.items() if f"layers.{l}." in name}
        K = own["query.weight"].shape[0] // H
        S = np.zeros((H, K, K))
        y = []
        for x_t in x:
            u = layer_norm(own, "mix_norm", x_t)
            q, k, v = (silu(own[f"{name}.weight"] @ u).reshape(-1, H, K) for name in ("query", "key", "value"))
            b = largest * sigmoid(own["strength.weight"] @ u).reshape(n, H)
            if gated:
                S = S * sigmoid(own["keep.weight"] @ u + own["keep.bias"])[:, None, None]
            read = []
            for h in range(H):
                for j in range(n):
                    key = k[j, h] / np.linalg.norm(k[j, h])
                    S[h] = S[h] @ (np.eye(K) - b[j, h] * np.outer(key, key)) + b[j, h] * np.outer(v[j, h], key)
                o = S[h] @ q[0, h] / np.linalg.norm(q[0, h])
                read.append(o / np.sqrt((o**2).mean() + 1e-5) * own["head_norm.weight"])
            z = x_t + own["out.weight"] @ np.concatenate(read)
            inner = own["feed_forward.0.weight"] @ layer_norm(own, "feed_forward_norm", z) + own["feed_forward.0.bias"]
            y.append(z + own["feed_forward.2.weight"] @ np.maximum(inner, 0) + own["feed_forward.2.bias"])
        x = np.stack(y)
    return x
