"""A decoding session: streams that are read token by token, with keys and values of the past projected once.

    session = Session(model, model.init_state(batch))        or any state that the model has returned
    logits = session.read(prompt)                            (B, T) -> (B, V), in one call of the model
    logits = session.step(tokens)                            (B,) -> (B, V)
    logits = session.logits_each(tokens)                     (B, T) -> (B, T, V), after each of a few tokens
    session.crop(3)                                          remove the last three tokens
    y = session.step_vectors(x)                              (B, D) -> (B, D), for a model that does not read tokens
    state = session.state()                                  the state that model.forward would have returned
    other.restore_projections(session.projections())         `other`, a session for this state, continues bit for bit

A state is a value that never changes. A session is mutable: its buffers are allocated once and written in place, and a
token costs the same however many came before. Streams can be selected and repeated (`select`), added (`join`) and reset
(`reset`). A session is bound to the parameters it was created with and raises an error once they change.

Transformer cores keep keys and values in ring buffers. Global Cached Staircase, whose memory grows with the stream, and
recurrent cores, which have nothing to project, are called with one token at a time.
Streams of a state with a source (`SourceState`) attend to it; its keys and values are projected once.
Letters: B streams, T tokens, D width, V output vocabulary size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from functools import wraps
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from stairwell.cores.core import CoreState, SourceState, check_tensor
from stairwell.decode.interpreters import make_interpreter
from stairwell.decode.program import cached_program
from stairwell.decode.source import Sources
from stairwell.devices import without_autocast
from stairwell.layers import Sublayer
from stairwell.state import BatchIndices, State, batch_indices

Method = TypeVar("Method", bound=Callable[..., Any])


def outside_autograd(method: Method) -> Method:
    """Run a method without autograd, inference mode and autocast. Tensors created in inference mode could not be
    changed outside of it, but buffers outlive the call; and buffers have the dtype of the parameters."""

    @wraps(method)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        like = vars(self).get("count")  # on the device of the model
        if like is None:
            # In __init__ the model is still an argument.
            model = vars(self).get("model") or (args[0] if args else kwargs["model"])
            like = next(model.parameters())
        with plain_mode(), without_autocast(like):
            return method(self, *args, **kwargs)

    return cast(Method, run)


def plain_mode() -> AbstractContextManager[Any]:
    """Return a context without autograd and inference mode; an empty one where it would change nothing, because a step
    takes little longer than entering a context."""
    if torch.is_inference_mode_enabled():
        stack = ExitStack()
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        return stack
    return torch.no_grad() if torch.is_grad_enabled() else nullcontext()


class Session:
    """`capacity` is the number of streams to allocate buffers for; more may join, at the cost of larger copies."""

    min_count: int  # the smallest count of any stream

    @outside_autograd
    def __init__(self, model: Any, state: State, capacity: int | None = None) -> None:
        """`model`: any module with a `core` and a final `norm`. Only a LanguageModel or a Seq2Seq reads tokens."""
        if capacity is not None and capacity < state.batch:
            raise ValueError(f"capacity {capacity} is too small for a state of {state.batch} streams")
        self.model = model
        decoder = self._decoder(state)
        self.max_crop = decoder.max_crop
        self.program = cached_program(model)
        self.interpreter = make_interpreter(model.core, self.program, capacity or state.batch, self.max_crop)
        self.count = decoder.count  # (B,) int64: tokens that each stream has read since its start
        self.croppable = decoder.croppable  # (B,) int64: as in the state
        self._load(0, decoder)
        self.sources: Sources | None = None
        if isinstance(state, SourceState):
            self.empty_state = state.select([])  # `state` fills in its fields
            self.sources = Sources(model.core.layers, state)
            self.interpreter.set_sources(self.sources)

    @property
    def batch(self) -> int:
        return self.count.shape[0]

    @property
    def is_outdated(self) -> bool:
        """Whether the model's parameters have changed since the session was created."""
        return self.program.versions.changed()

    @property
    def head(self) -> Sublayer:
        """The model's head. (B, D) -> (B, V)"""
        return self.program.head

    @outside_autograd
    def step(self, tokens: Tensor) -> Tensor:
        """Read one token per stream; return the logits after it. (B,) int64 -> (B, V)"""
        return self._advance(self._embed(tokens), self.interpreter.logits)

    @outside_autograd
    def step_hidden(self, tokens: Tensor) -> Tensor:
        """Read one token per stream; return the input of the model's head. (B,) int64 -> (B, D)"""
        return self._advance(self._embed(tokens), self.interpreter.step)

    def _embed(self, tokens: Tensor) -> Tensor:
        model = self.model
        check_tensor(tokens, "tokens")
        if tokens.shape != (self.batch,):
            raise ValueError(f"step takes one token for each of {self.batch} streams, not {tuple(tokens.shape)}")
        self._check()
        model.check_token_ids(tokens[:, None], "token", model.config.inputs)
        x: Tensor = model.embed(tokens, self.count if self.min_count == 0 else None)
        return x

    @outside_autograd
    def step_vectors(self, x: Tensor) -> Tensor:
        """Read one input vector of the core per stream; return the input of the model's heads. (B, D) -> (B, D)"""
        check_tensor(x, "the vectors")
        D = self.model.core.width
        if x.shape != (self.batch, D):
            raise ValueError(
                f"step_vectors takes a vector of width {D} for each of {self.batch} streams, not {tuple(x.shape)}"
            )
        self._check()
        return self._advance(x, self.interpreter.step)

    @outside_autograd
    def read(self, tokens: Tensor) -> Tensor:
        """Read many tokens per stream in one call of the model; return the logits after the last. (B, T) -> (B, V)"""
        self._check()
        if tokens.shape == (self.batch, 1):
            return self.step(tokens[:, 0])  # a call of the model would project the whole memory again
        x, state = self.model.hidden(tokens, self.state())
        self._load(0, self._decoder(state))
        return self.head(x[:, -1])

    @outside_autograd
    def logits_each(self, tokens: Tensor) -> Tensor:
        """Read a few tokens per stream; return the logits after each. (B, T) -> (B, T, V)"""
        logits: Tensor = self.model.head(self._hidden_each(tokens))
        return logits

    @outside_autograd
    def hidden_each(self, tokens: Tensor) -> Tensor:
        """Read a few tokens per stream; return the input of the model's head after each. (B, T) -> (B, T, D)"""
        return self._hidden_each(tokens)

    def _hidden_each(self, tokens: Tensor) -> Tensor:
        model = self.model
        check_tensor(tokens, "tokens")
        if tokens.dim() != 2 or tokens.shape[0] != self.batch:
            raise ValueError(f"tokens must be ({self.batch} streams, tokens), not {tuple(tokens.shape)}")
        self._check()
        model.check_token_ids(tokens, "token", model.config.inputs)
        T = tokens.shape[1]
        x = model.embed(tokens, self.count[:, None] + torch.arange(T, device=tokens.device))
        hidden = self.interpreter.step_segment(x, self.count, self.min_count)
        self._add_to_counts(T)
        return hidden

    @outside_autograd
    def crop(self, tokens: int) -> None:
        """Remove the last tokens of every stream, exactly as if they had never been read. The limit is the `max_crop`
        of the state that the session was created from."""
        if not 0 <= tokens <= (int(self.croppable.min()) if self.batch else 0):
            self.state().crop(tokens)  # raises the error
        if not tokens:
            return
        self.interpreter.crop(tokens)
        self.count -= tokens
        self.croppable -= tokens
        self._update_min_count()

    def _advance(self, x: Tensor, step: Callable[[Tensor, Tensor, int], Tensor]) -> Tensor:
        """Run one token per stream. x (B, D) -> what the step returns"""
        result = step(x, self.count, self.min_count)
        self._add_to_counts(1)
        return result

    def _add_to_counts(self, tokens: int) -> None:
        self.count += tokens
        if self.max_crop:
            self.croppable.add_(tokens).clamp_(max=self.max_crop)
        self.min_count += tokens

    @outside_autograd
    def state(self) -> State:
        """Return the state after all tokens read so far: a value that later steps do not change."""
        decoder: Any = self.interpreter.state(self.count.clone(), self.croppable.clone())
        if self.sources is None:
            return cast(State, decoder)
        source, mask = self.sources.per_stream()
        return replace(self.empty_state, decoder=decoder, source=source, source_mask=mask)

    @outside_autograd
    def projections(self) -> dict[str, Tensor]:
        """Return copies of the keys and values of past tokens, which a session for the same state can restore: from
        then on it computes the same, bit for bit."""
        return self.interpreter.projections()

    @outside_autograd
    def restore_projections(self, tensors: Mapping[str, Tensor]) -> None:
        """Replace keys and values by those of another session of the same model and state."""
        self.interpreter.restore_projections(tensors)

    @outside_autograd
    def select(self, streams: BatchIndices) -> None:
        """Continue with the given streams, in the given order. A stream may be repeated (as in beam search) or left
        out."""
        index = self._index(streams)
        self.interpreter.select(index)
        if self.sources is not None and self.sources.select(index):
            self.interpreter.set_sources(self.sources)
        self.count, self.croppable = self.count[index], self.croppable[index]
        self._update_min_count()

    @outside_autograd
    def join(self, other: State | Session) -> None:
        """Append the streams of a state or of another session."""
        state = other.state() if isinstance(other, Session) else other
        self._check_model()
        decoder = self._decoder(state)
        if decoder.max_crop != self.max_crop:
            raise ValueError(
                f"a state with max_crop {decoder.max_crop} cannot join a session with max_crop {self.max_crop}"
            )
        self._load(self.batch, decoder)
        if self.sources is not None and isinstance(state, SourceState):
            self.sources.join(state)
            self.interpreter.set_sources(self.sources)

    @outside_autograd
    def reset(self, streams: BatchIndices) -> None:
        """Reset the given streams to the initial state."""
        index = self._index(streams)
        self.interpreter.reset(index)
        self.count[index] = 0
        self.croppable[index] = 0
        self._update_min_count()

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("a session cannot be copied or pickled with its model; use Session(model, session.state())")

    def _index(self, streams: BatchIndices) -> Tensor:
        return batch_indices(streams, self.batch, self.count.device)

    def _decoder(self, state: State) -> CoreState:
        """Return the core's own state after checking it and its source."""
        core = self.model.core
        source = (state.source, state.source_mask) if isinstance(state, SourceState) else (None, None)
        core.check_source(state.batch, *source)
        decoder = state.decoder if isinstance(state, SourceState) else state
        core.check_state(decoder, state.batch)
        return decoder  # type: ignore[return-value]

    def _load(self, first: int, state: CoreState) -> None:
        """Replace the streams from `first` on by those of a state."""
        self.interpreter.load(first, state)
        self.count = torch.cat([self.count[:first], state.count])
        self.croppable = torch.cat([self.croppable[:first], state.croppable])
        self._update_min_count()

    def _update_min_count(self) -> None:
        """Keep the smallest count on the host: no step has to wait for the device to know whether windows are full."""
        self.min_count = int(self.count.min()) if self.batch else 0

    def _check(self) -> None:
        if not self.batch:
            raise ValueError("the session has no streams; join some first")
        self._check_model()

    def _check_model(self) -> None:
        if self.model.training:
            raise RuntimeError("the model is in training mode; call model.eval() first")
        if self.is_outdated:
            raise RuntimeError(
                "the model's parameters have changed since the session was created; create a new one: "
                "Session(model, session.state())"
            )
