"""The cache of all stairwell models in transformers: their state instead of keys and values.

Its size is constant, it is exact however a sequence is split into calls, and it can be cropped, so assisted decoding
works for recurrent models too. Tokens whose attention mask is 0 are never read, wherever they are (`padding`).
Letters: B sequences, T tokens, V vocabulary size, D width.
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
from stairwell.decode.stepper import session_supports
from stairwell.hf.padding import packed_starts, real_tokens, skip_padding
from stairwell.state import State, with_max_crop

MAX_SESSION_TOKENS = 64  # per call; longer calls run the model itself
InitState = Callable[[], State]  # returns the state before the first token


class StateCache(Cache):
    """The state of all sequences as a cache of transformers. `seen_tokens` counts tokens as generation does, including
    padding."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.seen_tokens = 0
        self.records_past = False  # whether `crop` may be called
        self.since_crop = 0  # tokens read since `crop` was last called
        self._state: State | None = None
        self._session: Session | None = None
        self._hidden: Tensor | None = None  # (B, D): the last input of the head; None after `crop`
        self._real: Tensor | None = None  # (B, seen_tokens) bool: False at padding; None if there is none

    @property
    def state(self) -> State | None:
        return self._session.state() if self._session is not None else self._state

    def read(
        self,
        model: Any,
        tokens: Tensor,
        init_state: InitState,
        mask: Tensor | None,
        keep: int | Tensor,
        use_cache: bool,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        """Read tokens (B, T); return logits (B, T, V), or those of the last `keep` tokens.

        mask (B, T or all tokens so far); position_ids (1 or B, T) are 0 where a packed sequence starts. The logits at
        padding are those of the last real token. The cache advances only with `use_cache`."""
        T = tokens.shape[1]
        real = real_tokens(mask, tokens.shape, self.seen_tokens)
        start = packed_starts(position_ids, real, tokens.shape)
        self._extend_max_crop(model.core, T, init_state)
        # A call of a few tokens on a cache that can be cropped verifies a draft.
        short = T == 1 or (T <= MAX_SESSION_TOKENS and self.records_past and self.is_initialized)
        needs_grad = torch.is_grad_enabled() or model.training
        last = slice(-keep, None) if isinstance(keep, int) else keep
        if short and use_cache and real is None and start is None and not needs_grad and session_supports(model):
            return self._read_in_session(model, tokens, init_state)[:, last]
        state = self.state or init_state()
        if real is None:
            hidden, state = model.hidden(tokens, state, start)
        else:
            hidden, state = skip_padding(model, tokens, real, state, start, self._hidden, use_cache)
        if use_cache:
            self._state, self._session = state, None
            self._advance(hidden[:, -1], T, real)
        logits: Tensor = model.head(hidden[:, last])
        return logits

    def _read_in_session(self, model: Any, tokens: Tensor, init_state: InitState) -> Tensor:
        """Read a few tokens in a decoding session, which does not project its memory again. (B, T) -> (B, T, V)"""
        if self._session is None or self._session.model is not model:
            self._session = Session(model, self.state or init_state())
            self._state = None
        T = tokens.shape[1]
        if T == 1:
            last_hidden = self._session.step_hidden(tokens[:, 0])
            logits = self._session.head(last_hidden)[:, None]
        else:
            hidden = self._session.hidden_each(tokens)
            last_hidden, logits = hidden[:, -1], model.head(hidden)
        self._advance(last_hidden, T, None)
        return logits

    def _extend_max_crop(self, core: Core, tokens: int, init_state: InitState) -> None:
        """Make sure that all tokens since the last crop, including the next ones, can be cropped."""
        if not self.records_past:
            return
        state = self.state or init_state()
        needed = self.since_crop + tokens
        if needed <= state.max_crop:
            return
        max_crop = max(needed, 2 * state.max_crop)
        if isinstance(state, SourceState):
            decoder: Any = with_max_crop(core, state.decoder, max_crop)
            self._state = replace(state, decoder=decoder)
        else:
            self._state = with_max_crop(core, state, max_crop)
        self._session = None

    def _advance(self, last_hidden: Tensor, tokens: int, real: Tensor | None) -> None:
        """Count tokens; last_hidden (B, D) is the input of the head after the last one."""
        self._hidden = last_hidden.detach().clone()  # neither a view of all tokens nor a session's buffer
        if self.records_past and (real is not None or self._real is not None):
            true = torch.ones(1, 1, dtype=torch.bool, device=last_hidden.device)
            before = true.expand(len(last_hidden), self.seen_tokens) if self._real is None else self._real
            self._real = torch.cat([before, true.expand(len(last_hidden), tokens) if real is None else real], 1)
        self.seen_tokens += tokens
        self.since_crop += tokens

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.seen_tokens

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1

    def activate_past_recording(self) -> None:
        self.records_past = True

    def crop(self, tokens_to_remove: int) -> None:
        """Remove tokens, exactly as if they had never been read: crop(-3) removes the last three."""
        if tokens_to_remove > 0:
            raise ValueError(f"crop takes minus the number of tokens to remove, not {tokens_to_remove}")
        if tokens_to_remove < 0 and self.is_initialized:
            if self._real is not None:
                # Padding was never read.
                self._crop_state(self._real[:, tokens_to_remove:].sum(1))
                self._real = self._real[:, :tokens_to_remove]
            elif self._session is not None:
                self._session.crop(-tokens_to_remove)
            else:
                self._crop_state(-tokens_to_remove)
            self._hidden = None
            self.seen_tokens += tokens_to_remove
        self.since_crop = 0

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
            None if tensor is None else tensor.index_select(0, indices) for tensor in (self._hidden, self._real)
        )

    def batch_repeat_interleave(self, repeats: int) -> None:
        if (state := self.state) is not None:
            self.batch_select_indices(torch.arange(state.batch, device=state.count.device).repeat_interleave(repeats))

    def reset(self) -> None:
        self.seen_tokens = self.since_crop = 0
        self._state = self._session = self._hidden = self._real = None

    def __deepcopy__(self, memo: dict[int, Any]) -> StateCache:
        """Return an independent cache. A state is a value, so only the session must not be shared."""
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
        return f"StateCache(tokens={self.seen_tokens}, batch_size={self.batch_size})"


def check_cache(cache: Any) -> StateCache:
    """Return the given cache, or a new one."""
    if cache is None:
        return StateCache()
    if not isinstance(cache, StateCache):
        raise ValueError(f"past_key_values must be a StateCache, not a {type(cache).__name__}")
    return cache
