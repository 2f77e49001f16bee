"""Attention masks and packed batches of transformers: what a model reads of a padded or packed batch.

A token whose mask is 0 is padding and is never read: a sequence gives the same results with padding on the left, on the
right or in between as without. Letters: B sequences, T tokens, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from stairwell.state import State


def real_tokens(mask: Tensor | None, shape: Sequence[int], seen: int) -> Tensor | None:
    """Return which of the tokens of a call are no padding, (B, T) bool; none if all are.

    mask (B, T), or (B, seen + T) with that of the tokens before."""
    if mask is None:
        return None
    batch, T = shape
    if mask.shape not in ((batch, T), (batch, seen + T)):
        raise ValueError(
            f"attention_mask must be {batch} sequences by {T} tokens"
            + (f", or by {seen + T} with those in the cache" if seen else "")
            + f", not {tuple(mask.shape)}"
        )
    real = mask_as_bool(mask)[:, -T:]
    return None if bool(real.all()) else real


def mask_as_bool(mask: Tensor) -> Tensor:
    """Return a mask of 0 and 1 as bool."""
    if mask.is_floating_point() and not bool(((mask == 0) | (mask == 1)).all()):
        raise ValueError("attention_mask must be 1 for tokens and 0 for padding, not numbers that are added to scores")
    return mask.bool()


def packed_starts(position_ids: Tensor | None, real: Tensor | None, shape: Sequence[int]) -> Tensor | None:
    """Return where the second and later sequences of a packed batch start, (B, T) bool; none if nothing is packed.

    Packed sequences count their positions from 0 (`DataCollatorWithFlattening`). A call's first token continues what is
    in the cache, whatever its position."""
    batch, T = shape
    if position_ids is None or T == 1:
        return None
    if position_ids.shape not in ((1, T), (batch, T)):
        raise ValueError(f"position_ids must be {batch} sequences by {T} tokens, not {tuple(position_ids.shape)}")
    start = (position_ids == 0).expand(batch, T)
    later = torch.arange(T, device=start.device) > 0 if real is None else real & (real.cumsum(1) > 1)
    start = start & later
    return start if bool(start.any()) else None


def skip_padding(
    model: Any,
    tokens: Tensor,
    real: Tensor,
    state: State,
    start: Tensor | None,
    before: Tensor | None,
    keep_state: bool,
) -> tuple[Tensor, State]:
    """Read the real tokens only. tokens, real, start (B, T) -> what the head reads (B, T, D) and the state after.

    At padding the head reads what it read at the last real token; `before` (B, D) is that before this call. Before the
    first token of a sequence it reads zeros, and NaN where the last real token is unknown. Without `keep_state` the
    returned state is that before the call."""
    lengths = real.sum(1)
    # Real tokens first, in their order; padding may be any number.
    order = real.long().argsort(dim=1, descending=True, stable=True)
    tokens = tokens.masked_fill(~real, 0).gather(1, order)
    start = start.gather(1, order) if start is not None else None
    before = first_hidden(model, real, state, before)
    if not keep_state:
        # Nothing that is real comes after what pads.
        longest = max(int(lengths.max()), 1)
        hidden, _ = model.hidden(tokens[:, :longest], state, start[:, :longest] if start is not None else None)
    else:
        hidden, state = read_groups(model, tokens, lengths, state, start, before)
    after = torch.cat([before[:, None].to(hidden.dtype), hidden], 1)
    return after.gather(1, real.cumsum(1)[..., None].expand(-1, -1, hidden.shape[-1])), state


def first_hidden(model: Any, real: Tensor, state: State, before: Tensor | None) -> Tensor:
    """What the head reads at padding before the first real token of this call. (B, D)"""
    if before is not None:
        return before
    # After tokens were taken back the last prediction is unknown: NaN where nobody should look, an error where they do.
    unknown = state.count > 0
    if bool((unknown & ~real.any(1)).any()):
        raise ValueError(
            "attention_mask is 0 for all tokens of a sequence right after a crop, so there is nothing to predict from; "
            "hand in a real token first"
        )
    zeros = next(model.parameters()).new_zeros(len(real), model.core.width)
    return zeros.masked_fill(unknown[:, None], torch.nan)


def read_groups(
    model: Any, tokens: Tensor, lengths: Tensor, state: State, start: Tensor | None, before: Tensor
) -> tuple[Tensor, State]:
    """Read the first lengths (B,) tokens (B, T) of each sequence. -> (B, T, D), zero beyond, and the state after

    Sequences that have read nothing yet are read together: padded on the left, and reset at their first token. Others
    are read together if they have equally many tokens."""
    B, T = tokens.shape
    kind = torch.where(lengths == 0, -1, torch.where(state.count == 0, 0, lengths))
    hidden = before.new_zeros(B, T, before.shape[-1])
    states, places = [], []
    for group in kind.unique().tolist():
        rows = (kind == group).nonzero().flatten()
        part, n = state.select(rows), lengths[rows]
        if group >= 0:
            longest = int(n.max())
            time = torch.arange(longest, device=tokens.device) - (longest - n)[:, None]  # negative: padding
            place = time.clamp(min=0)
            first = None
            if group == 0 and bool((n < longest).any()):
                first = time == 0
            if start is not None:
                packed = start[rows].gather(1, place) & (time >= 0)
                first = packed if first is None else first | packed
            read, part = model.hidden(tokens[rows].gather(1, place), part, first)
            # Back to real tokens first; what lies beyond them is never looked at.
            back = (torch.arange(T, device=tokens.device) + (longest - n)[:, None]).clamp(max=longest - 1)
            hidden[rows] = read.gather(1, back[..., None].expand(-1, -1, read.shape[-1])).to(hidden.dtype)
        states.append(part)
        places.append(rows)
    return hidden, type(state).join(states).select(torch.cat(places).argsort())
