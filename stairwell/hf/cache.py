"""The cache of all stairwell models in transformers: their state, not keys and values.

It is of fixed size, exact however the sequence is cut, and tokens can be taken back, so that assisted decoding works
for recurrent models too. Tokens whose attention mask is 0 are never read, wherever they are (`padding`).
Letters: B sequences, T tokens, V symbols, D width.
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
from stairwell.hf.padding import packed_starts, real_tokens, skip_padding
from stairwell.state import State
from stairwell.stream import with_max_crop

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
        self._hidden: Tensor | None = None  # (B, D): what the head read last; none after `crop`
        self._real: Tensor | None = None  # (B, tokens) bool: which of the last tokens are no padding; none: all

    @property
    def state(self) -> State | None:
        return self._session.state() if self._session is not None else self._state

    def read(
        self,
        model: Any,
        tokens: Tensor,
        fresh: Fresh,
        mask: Tensor | None,
        keep: int | Tensor,
        use_cache: bool,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        """tokens (B, T) after what was read before, mask (B, T or all tokens so far), position_ids (1 or B, T), 0 where
        a packed sequence starts -> logits (B, T, V), or those of the last `keep` tokens. At padding the logits are
        those of the last real token. The cache itself advances only if it is used."""
        T = tokens.shape[1]
        real = real_tokens(mask, tokens.shape, self.seen)
        start = packed_starts(position_ids, real, tokens.shape)
        self._make_room(model.core, T, fresh)
        few = T == 1 or (T <= FEW and self.keeps_past and self.is_initialized)  # where a draft is checked
        last = slice(-keep, None) if isinstance(keep, int) else keep
        if few and use_cache and real is None and start is None and steps_alone(model):
            return self._follow(model, tokens, fresh)[:, last]
        state = self.state or fresh()
        if real is None:
            hidden, state = model.hidden(tokens, state, start)
        else:
            hidden, state = skip_padding(model, tokens, real, state, start, self._hidden, use_cache)
        if use_cache:
            self._state, self._session = state, None
            self._count(hidden[:, -1], T, real)
        logits: Tensor = model.head(hidden[:, last])
        return logits

    def _follow(self, model: Any, tokens: Tensor, fresh: Fresh) -> Tensor:
        """Read a few tokens per sequence, (B, T), in a decoding session, which keeps what is projected. -> (B, T, V)"""
        if self._session is None or self._session.model is not model:
            self._session = Session(model, self.state or fresh())
            self._state = None
        T = tokens.shape[1]
        if T == 1:
            hidden = self._session.step_hidden(tokens[:, 0])
            logits = self._session.scores(hidden)[:, None]
        else:
            several = self._session.follow_hidden(tokens)
            hidden, logits = several[:, -1], model.head(several)
        self._count(hidden, T, None)
        return logits

    def _make_room(self, core: Core, tokens: int, fresh: Fresh) -> None:
        """Where tokens may be taken back, keep the past of all since the last time it was asked for, and of these."""
        if not self.keeps_past:
            return
        state = self.state or fresh()
        wanted = self.since + tokens
        if wanted > state.max_crop:
            self._state, self._session = roomier(core, state, max(wanted, 2 * state.max_crop)), None

    def _count(self, hidden: Tensor, tokens: int, real: Tensor | None) -> None:
        """hidden (B, D): what the head read after the last of `tokens` tokens"""
        self._hidden = hidden.detach().clone()  # not a view of all tokens, nor a session's buffer
        if self.keeps_past and (real is not None or self._real is not None):
            every = torch.ones(1, 1, dtype=torch.bool, device=hidden.device)
            before = every.expand(len(hidden), self.seen) if self._real is None else self._real
            self._real = torch.cat([before, every.expand(len(hidden), tokens) if real is None else real], 1)
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
            if self._real is not None:
                # Padding was never read, so there is less to take back.
                self._crop_state(self._real[:, tokens_to_remove:].sum(1))
                self._real = self._real[:, :tokens_to_remove]
            elif self._session is not None:
                self._session.crop(-tokens_to_remove)
            else:
                self._crop_state(-tokens_to_remove)
            self._hidden = None
            self.seen += tokens_to_remove
        self.since = 0

    def _crop_state(self, tokens: int | Tensor) -> None:
        state = self.state
        assert state is not None
        self._state, self._session = state.crop(tokens), None

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        if self._session is not None:
            self._session.select(indices)
        elif self._state is not None:
            self._state = self._state.select(indices)
        self._hidden, self._real = (
            None if of_batch is None else of_batch.index_select(0, indices) for of_batch in (self._hidden, self._real)
        )

    def batch_repeat_interleave(self, repeats: int) -> None:
        if (state := self.state) is not None:
            self.batch_select_indices(torch.arange(state.batch, device=state.count.device).repeat_interleave(repeats))

    def reset(self) -> None:
        self.seen = self.since = 0
        self._state = self._session = self._hidden = self._real = None

    def __deepcopy__(self, memo: dict[int, Any]) -> StateCache:
        """Return an independent cache: a state is a value, so nothing but a session has to be left out."""
        other = StateCache()
        other.__dict__.update(self.__dict__, _state=self.state, _session=None)
        return other

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


def roomier(core: Core, state: State, max_crop: int) -> State:
    """The same state with room to take more tokens back from now on."""
    if isinstance(state, SourceState):
        decoder: Any = with_max_crop(core, state.decoder, max_crop)
        return replace(state, decoder=decoder)
    return with_max_crop(core, state, max_crop)


def check_cache(cache: Any) -> StateCache:
    """The cache that was handed in, or a new one."""
    if cache is None:
        return StateCache()
    if not isinstance(cache, StateCache):
        raise ValueError(f"past_key_values must be a StateCache, not a {type(cache).__name__}")
    return cache
