"""The cache of all stairwell models in transformers: their state, not keys and values.

It is of fixed size, exact however the sequence is cut, and tokens can be taken back, so that assisted decoding works
for recurrent models too. A row that is padded on the left begins anew at its first real token, as a document does in a
packed stream. Letters: B rows, T tokens, V symbols.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import Cache

from stairwell.cores import Core
from stairwell.cores.core import SourceState
from stairwell.decode import Session
from stairwell.state import State
from stairwell.stream import with_slack

FEW = 64  # tokens of a call that a decoding session reads
Fresh = Callable[[], State]  # makes the state before the first token


class StateCache(Cache):
    """The state of all rows as a cache of transformers. `seen` counts tokens as generation does, padding included."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.seen = 0
        self.keeps_past = False  # whether tokens may have to be taken back
        self.since = 0  # tokens read since `crop` was last called
        self._state: State | None = None
        self._session: Session | None = None

    @property
    def state(self) -> State | None:
        return self._session.state() if self._session is not None else self._state

    def read(
        self, model: Any, tokens: Tensor, fresh: Fresh, mask: Tensor | None, keep: int | Tensor, use_cache: bool
    ) -> Tensor:
        """tokens (B, T) after what was read before, mask (B, all tokens so far) -> logits (B, T, V), or those of the
        last `keep` tokens. The cache itself goes on only if it is used."""
        T = tokens.shape[1]
        start = starts(mask, T)
        self._make_room(model.core, T, fresh)
        few = T == 1 or (T <= FEW and self.keeps_past and self.is_initialized)  # where a draft is checked
        last = slice(-keep, None) if isinstance(keep, int) else keep
        if few and use_cache and start is None and steps_alone(model):
            return self._follow(model, tokens, fresh)[:, last]
        if mask is not None:
            # What pads may be any number.
            tokens = tokens.masked_fill(~mask[:, -T:].bool(), 0)
        hidden, state = model.hidden(tokens, self.state or fresh(), start)
        if use_cache:
            self._state, self._session = state, None
            self._count(T)
        logits: Tensor = model.head(hidden[:, last])
        return logits

    def _follow(self, model: Any, tokens: Tensor, fresh: Fresh) -> Tensor:
        """A few tokens a row, (B, T), by a decoding session, which keeps what is projected. -> logits (B, T, V)"""
        if self._session is None or self._session.model is not model:
            self._session = Session(model, self.state or fresh())
            self._state = None
        T = tokens.shape[1]
        logits = self._session.step(tokens[:, 0])[:, None] if T == 1 else self._session.follow(tokens)
        self._count(T)
        return logits

    def _make_room(self, core: Core, tokens: int, fresh: Fresh) -> None:
        """Where tokens may be taken back, keep the past of all since the last time it was asked for, and of these."""
        if not self.keeps_past:
            return
        state = self.state or fresh()
        wanted = self.since + tokens
        if wanted > state.slack:
            self._state, self._session = roomier(core, state, max(wanted, 2 * state.slack)), None

    def _count(self, tokens: int) -> None:
        self.seen += tokens
        self.since += tokens

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.seen

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1

    def activate_past_recording(self) -> None:
        self.keeps_past = True

    def crop(self, tokens_to_remove: int) -> None:
        """Take tokens back, exactly as if they had never been read: crop(-3) takes back three."""
        if tokens_to_remove > 0:
            raise ValueError(f"crop takes minus the number of tokens to remove, not {tokens_to_remove}")
        if tokens_to_remove < 0 and self.is_initialized:
            if self._session is not None:
                self._session.crop(-tokens_to_remove)
            elif self._state is not None:
                self._state = self._state.crop(-tokens_to_remove)
            self.seen += tokens_to_remove
        self.since = 0

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        if self._session is not None:
            self._session.select(indices)
        elif self._state is not None:
            self._state = self._state.select(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        if (state := self.state) is not None:
            self.batch_select_indices(torch.arange(state.batch, device=state.count.device).repeat_interleave(repeats))

    def reset(self) -> None:
        self.seen = self.since = 0
        self._state = self._session = None

    @property
    def batch_size(self) -> int:
        state = self._session or self._state
        return state.batch if state is not None else -1

    @property
    def is_compileable(self) -> bool:
        return False

    @property
    def is_initialized(self) -> bool:
        return self.batch_size >= 0

    def __len__(self) -> int:
        return 1 if self.is_initialized else 0

    def __repr__(self) -> str:
        return f"StateCache(tokens={self.seen}, rows={self.batch_size})"


def steps_alone(model: Any) -> bool:
    """Whether a decoding session may read for the model: nothing is being learned, and it holds all of the model. The
    attention to a source that follows a core without one is in no session."""
    return not torch.is_grad_enabled() and not model.training and getattr(model, "reader", None) is None


def roomier(core: Core, state: State, slack: int) -> State:
    """The same state with room to take more tokens back from now on."""
    if isinstance(state, SourceState):
        decoder: Any = with_slack(core, state.decoder, slack)
        return replace(state, decoder=decoder)
    return with_slack(core, state, slack)


def starts(mask: Tensor | None, T: int) -> Tensor | None:
    """Where rows begin after padding: (B, T), true where the mask goes from 0 to 1; none if nowhere."""
    if mask is None:
        return None
    if mask.dim() != 2 or mask.shape[1] < T:
        raise ValueError(f"attention_mask must be (rows, tokens so far), not {tuple(mask.shape)} for {T} new tokens")
    here = mask[:, -T:].bool()
    if mask.shape[1] > T:
        before = mask[:, -T - 1 : -1].bool()
    else:
        # Nothing is known of what came before: a fresh row needs no start, and another has begun already.
        before = torch.cat([torch.ones_like(here[:, :1]), here[:, :-1]], 1)
    begins = here & ~before
    return begins if bool(begins.any()) else None


def check_cache(cache: Any) -> StateCache:
    """The cache that was handed in, or a new one."""
    if cache is None:
        return StateCache()
    if not isinstance(cache, StateCache):
        raise ValueError(f"past_key_values must be a StateCache, not a {type(cache).__name__}")
    return cache
