"""Attention masks and packed batches of transformers.

A token whose mask is 0 is padding and is never read: padding on the left, on the right or in between does not change
the results of a sequence. Letters: B sequences, T tokens, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from stairwell.state import State


def real_tokens(mask: Tensor | None, shape: Sequence[int], seen_tokens: int) -> Tensor | None:
    """Return which tokens of a call are not padding, (B, T) bool, or None if there is no padding.

    mask (B, T), or (B, seen_tokens + T) with the tokens before"""
    if mask is None:
        return None
    batch, T = shape
    if mask.shape not in ((batch, T), (batch, seen_tokens + T)):
        raise ValueError(
            f"attention_mask must be {batch} sequences by {T} tokens"
            + (f", or by {seen_tokens + T} with those in the cache" if seen_tokens else "")
            + f", not {tuple(mask.shape)}"
        )
    real = mask_as_bool(mask)[:, -T:]
    return None if bool(real.all()) else real


def mask_as_bool(mask: Tensor) -> Tensor:
    """Return a mask of 0 and 1 as bool."""
    if mask.is_floating_point() and not bool(((mask == 0) | (mask == 1)).all()):
        raise ValueError("attention_mask must be 1 for tokens and 0 for padding, not an additive mask")
    return mask.bool()


def packed_starts(position_ids: Tensor | None, real: Tensor | None, shape: Sequence[int]) -> Tensor | None:
    """Return where the second and later sequences of a packed batch start, (B, T) bool, or None if nothing is packed.

    The positions of a packed sequence start at 0 (`DataCollatorWithFlattening`). The first token of a call continues
    the cache, whatever its position."""
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
    previous: Tensor | None,
    needs_state: bool,
) -> tuple[Tensor, State]:
    """Read the real tokens only. tokens, real, start (B, T) -> inputs of the head (B, T, D), the state after them.

    The output at padding is that of the last real token; `previous` (B, D) is the last output before this call. Before
    the first token of a sequence the output is zero, and NaN if the last output is unknown. Without `needs_state`, the
    given state is returned."""
    lengths = real.sum(1)
    # Move the real tokens to the front. The id of padding may be invalid.
    order = real.long().argsort(dim=1, descending=True, stable=True)
    tokens = tokens.masked_fill(~real, 0).gather(1, order)
    start = start.gather(1, order) if start is not None else None
    previous = output_before(model, real, state, previous)
    if not needs_state:
        # All padding is at the end now, where it changes nothing.
        longest = max(int(lengths.max()), 1)
        hidden, _ = model.hidden(tokens[:, :longest], state, start[:, :longest] if start is not None else None)
    else:
        hidden, state = read_groups(model, tokens, lengths, state, start, previous)
    outputs = torch.cat([previous[:, None].to(hidden.dtype), hidden], 1)
    return outputs.gather(1, real.cumsum(1)[..., None].expand(-1, -1, hidden.shape[-1])), state


def output_before(model: Any, real: Tensor, state: State, previous: Tensor | None) -> Tensor:
    """Return the output at padding before the first real token of a call. (B, D)"""
    if previous is not None:
        return previous
    # The last output is unknown after a crop: NaN where it should not be used, an error where it would be.
    unknown = state.count > 0
    if bool((unknown & ~real.any(1)).any()):
        raise ValueError(
            "attention_mask is 0 for all tokens of a sequence right after a crop, so there is nothing to predict from; "
            "pass a real token first"
        )
    zeros = next(model.parameters()).new_zeros(len(real), model.core.width)
    return zeros.masked_fill(unknown[:, None], torch.nan)


def read_groups(
    model: Any, tokens: Tensor, lengths: Tensor, state: State, start: Tensor | None, previous: Tensor
) -> tuple[Tensor, State]:
    """Read the first lengths (B,) tokens (B, T) of each sequence. -> (B, T, D), zero beyond, and the state after them

    Sequences in the initial state are read in one group, padded on the left and reset at their first token. Other
    sequences are grouped by their number of tokens."""
    B, T = tokens.shape
    group_of = torch.where(lengths == 0, -1, torch.where(state.count == 0, 0, lengths))
    hidden = previous.new_zeros(B, T, previous.shape[-1])
    states, indices = [], []
    for group in group_of.unique().tolist():
        index = (group_of == group).nonzero().flatten()
        group_state, n = state.select(index), lengths[index]
        if group >= 0:
            longest = int(n.max())
            time = torch.arange(longest, device=tokens.device) - (longest - n)[:, None]  # negative at padding
            position = time.clamp(min=0)
            group_start = None
            if group == 0 and bool((n < longest).any()):
                group_start = time == 0
            if start is not None:
                packed = start[index].gather(1, position) & (time >= 0)
                group_start = packed if group_start is None else group_start | packed
            output, group_state = model.hidden(tokens[index].gather(1, position), group_state, group_start)
            # Move the real tokens back to the front; what follows them is not used.
            back = (torch.arange(T, device=tokens.device) + (longest - n)[:, None]).clamp(max=longest - 1)
            hidden[index] = output.gather(1, back[..., None].expand(-1, -1, output.shape[-1])).to(hidden.dtype)
        states.append(group_state)
        indices.append(index)
    return hidden, type(state).join(states).select(torch.cat(indices).argsort())
