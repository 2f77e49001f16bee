"""A decoding session: streams that are read token by token, with everything about their past projected once.

    session = Session(model, model.init_state(batch))        or any state that the model has returned
    logits = session.read(prompt)                            (B, T) -> (B, V), in one call of the model
    logits = session.step(tokens)                            (B,) -> (B, V)
    logits = session.follow(tokens)                          (B, T) -> (B, T, V), after each of a few tokens
    session.crop(3)                                          the last three tokens were never read
    y = session.step_vectors(x)                              (B, D) -> (B, D), of a model that reads no symbols
    state = session.state()                                  what model.forward would have returned by now

A state is a value and never changes; a session is the opposite: it lives in buffers that are made once and written in
place, and a token costs the same however many came before. Rows may be taken several times or leave (`select`), come
(`join`) and begin anew (`reset`). It belongs to the weights that it was made from and refuses to go on with others.

All transformer cores keep keys and values in ring buffers, but for Global Cached Staircase, whose memory grows with the
stream: its session, like that of an LSTM, which has nothing to project, calls the model with one token at a time.
Rows of a state with a source (`SourceState`) attend to theirs, whose keys and values are projected once.
Letters: B rows, T tokens, V output symbols.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, wraps
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from stairwell.cores import CORES, decoding_of
from stairwell.cores.core import Core, CoreState, SourceState, check_tensor
from stairwell.decode.products import symbol_scores
from stairwell.decode.source import Sources
from stairwell.decode.staircase import StaircaseSteps
from stairwell.decode.steps import CarriedSteps, FeedbackSteps, Steps, TransformerXLSteps
from stairwell.devices import on_accelerator, without_autocast
from stairwell.layers import Sublayer
from stairwell.state import RowNumbers, State, row_numbers

Method = TypeVar("Method", bound=Callable[..., Any])
SAMPLED = 4  # elements of each parameter that are compared before a step


def outside_autograd(method: Method) -> Method:
    """No graph; no tensors of inference mode either: buffers outlive the call, and only that mode could change them. No
    autocast: buffers have the parameters' type."""

    @wraps(method)
    def run(self: Any, *given: Any, **options: Any) -> Any:
        model = vars(self).get("model") or (given[0] if given else options["model"])  # when it is being made
        with torch.inference_mode(False), torch.no_grad(), without_autocast(next(model.parameters())):
            return method(self, *given, **options)

    return cast(Method, run)


CORES["feedback"].decoding = FeedbackSteps
CORES["transformer-xl"].decoding = CORES["universal"].decoding = TransformerXLSteps
for _name in ("staircase", "cached-staircase", "multi-vector-rnn", "memory-network"):
    CORES[_name].decoding = StaircaseSteps


def steps_for(core: Core, capacity: int, max_crop: int) -> Steps:
    decoding = decoding_of(core)
    if decoding is None or core.changed_module():
        return CarriedSteps(core)
    return decoding(core, capacity, max_crop)


class WeightVersions:
    """Remembers which weights a module has, so that a change is found at the price of a few comparisons.

    PyTorch counts a parameter's changes, but not those behind its back (`p.data.mul_(2)`). On the CPU these are found
    by a few elements of each parameter, which nearly every change of a whole parameter changes."""

    def __init__(self, module: nn.Module) -> None:
        self.places = [
            (holder._parameters, name, parameter)
            for holder in module.modules()
            for name, parameter in holder._parameters.items()
            if parameter is not None
        ]
        self.weights = [parameter for _, _, parameter in self.places]
        on_cpu = (weight.detach() for weight in self.weights if not on_accelerator(weight) and weight.is_contiguous())
        self.samples = [some_elements(weight) for weight in on_cpu]
        self.first, self.first_elements = self.versions(), self.elements()

    def versions(self) -> list[tuple[int, int]]:
        # A tensor made in inference mode counts no versions.
        return [(weight.data_ptr(), 0 if weight.is_inference() else weight._version) for weight in self.weights]

    def elements(self) -> list[bytes]:
        return [sample.tobytes() for sample in self.samples]

    def changed(self) -> bool:
        if any(holder[name] is not weight for holder, name, weight in self.places):
            return True
        return self.versions() != self.first or self.elements() != self.first_elements


def some_elements(weight: Tensor) -> np.ndarray:
    """A view of a few elements of a contiguous tensor, from its first to its last."""
    flat = weight.view(-1)
    if flat.dtype == torch.bfloat16:  # numpy has no such type
        flat = flat.view(torch.int16)
    return flat[:: max(1, (len(flat) - 1) // (SAMPLED - 1))].numpy()


class Session:
    """`capacity` rows are made room for from the beginning; more may come, at the price of one larger copy."""

    newest: int  # the least count

    @outside_autograd
    def __init__(self, model: Any, state: State, capacity: int | None = None) -> None:
        """`model`: whatever has a `core` and a `norm` after it. A LanguageModel reads tokens, any other vectors."""
        if capacity is not None and capacity < state.batch:
            raise ValueError(f"a capacity of {capacity} rows is too small for a state of {state.batch}")
        self.model = model
        decoder = self._decoder(state)
        self.max_crop = decoder.max_crop
        self.weights = WeightVersions(model)
        self.steps: Steps = steps_for(model.core, capacity or state.batch, self.max_crop)
        self.count = decoder.count  # (B,) int64: tokens that each row has read since its start
        self.croppable = decoder.croppable  # (B,) int64: as in the state
        self._load(0, decoder)
        self.sources: Sources | None = None
        if isinstance(state, SourceState):
            self.kind = state.select([])  # what `state` fills
            self.sources = Sources(model.core.layers, state)
            self.steps.set_sources(self.sources)

    @property
    def batch(self) -> int:
        return self.count.shape[0]

    @cached_property
    def scores(self) -> Sublayer:
        """What a model of symbols says of the next one. (B, D) -> (B, V)"""
        return symbol_scores(self.model.head)

    @outside_autograd
    def step(self, tokens: Tensor) -> Tensor:
        """Read one token a row; the logits for what follows. (B,) int64 -> (B, V)"""
        return self.scores(self._step(tokens))

    @outside_autograd
    def step_hidden(self, tokens: Tensor) -> Tensor:
        """The same before the model's head: what `scores` takes. (B,) int64 -> (B, D)"""
        return self._step(tokens)

    def _step(self, tokens: Tensor) -> Tensor:
        model = self.model
        check_tensor(tokens, "tokens")
        if tokens.shape != (self.batch,):
            raise ValueError(f"a step takes one token for each of {self.batch} rows, not {tuple(tokens.shape)}")
        self._check()
        model.check_symbols(tokens[:, None], "token", model.config.inputs)
        return self._advance(model.embed(tokens, self.count))

    @outside_autograd
    def step_vectors(self, x: Tensor) -> Tensor:
        """The same for a model that reads no symbols: the core's input, one vector a row, to what the model's heads
        read. (B, D) -> (B, D)"""
        check_tensor(x, "the vectors")
        D = self.model.core.width
        if x.shape != (self.batch, D):
            raise ValueError(f"a step takes a vector of width {D} for each of {self.batch} rows, not {tuple(x.shape)}")
        self._check()
        return self._advance(x)

    @outside_autograd
    def read(self, tokens: Tensor) -> Tensor:
        """Read many tokens a row in one call of the model; the logits for what follows. (B, T) -> (B, V)"""
        self._check()
        if tokens.shape == (self.batch, 1):
            return self.step(tokens[:, 0])  # a call would project the whole memory anew
        x, state = self.model.hidden(tokens, self.state())
        self._load(0, self._decoder(state))
        return self.scores(x[:, -1])

    @outside_autograd
    def follow(self, tokens: Tensor) -> Tensor:
        """Read a few tokens a row, from what is projected already; the logits after each. (B, T) -> (B, T, V)"""
        logits: Tensor = self.model.head(self._follow(tokens))
        return logits

    @outside_autograd
    def follow_hidden(self, tokens: Tensor) -> Tensor:
        """The same before the model's head. (B, T) -> (B, T, D)"""
        return self._follow(tokens)

    def _follow(self, tokens: Tensor) -> Tensor:
        model = self.model
        check_tensor(tokens, "tokens")
        if tokens.dim() != 2 or tokens.shape[0] != self.batch:
            raise ValueError(f"tokens must be ({self.batch} rows, tokens), not {tuple(tokens.shape)}")
        self._check()
        model.check_symbols(tokens, "token", model.config.inputs)
        T = tokens.shape[1]
        x = model.embed(tokens, self.count[:, None] + torch.arange(T, device=tokens.device))
        y = self.steps.run(x, self.count, self.newest)
        self._count(T)
        return model.norm(y)

    @outside_autograd
    def crop(self, tokens: int) -> None:
        """Take the last tokens of every row back, exactly as if they had never been read, as far as the state that the
        session was made from had max_crop."""
        if not 0 <= tokens <= (int(self.croppable.min()) if self.batch else 0):
            self.state().crop(tokens)  # says what is wrong
        if not tokens:
            return
        if self.steps.back(tokens):
            self.count -= tokens
            self.croppable -= tokens
            self._find_youngest()
        else:
            self._load(0, self._decoder(self.state().crop(tokens)))

    def _advance(self, x: Tensor) -> Tensor:
        """One token a row through the core and the model's last norm. (B, D) -> (B, D)"""
        y = self.steps.step(x, self.count, self.newest)
        self._count(1)
        return self.model.norm(y)

    def _count(self, tokens: int) -> None:
        self.count += tokens
        self.croppable.add_(tokens).clamp_(max=self.max_crop)
        self.newest += tokens

    @outside_autograd
    def state(self) -> State:
        """The state after everything read so far: a value, which later steps do not touch."""
        decoder: Any = self.steps.state(self.count.clone(), self.croppable.clone())
        if self.sources is None:
            return decoder
        source, mask = self.sources.by_row()
        return replace(self.kind, decoder=decoder, source=source, source_mask=mask)

    @outside_autograd
    def select(self, rows: RowNumbers) -> None:
        """Go on with the given rows in the given order. A row may be taken several times (a beam's parents) or left."""
        index = self._places(rows)
        self.steps.select(index)
        if self.sources is not None and self.sources.select(index):
            self.steps.set_sources(self.sources)
        self.count, self.croppable = self.count[index], self.croppable[index]
        self._find_youngest()

    @outside_autograd
    def join(self, other: State | Session) -> None:
        """The rows of another stream (or of several) come in after the rows that are here."""
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
            self.steps.set_sources(self.sources)

    @outside_autograd
    def reset(self, rows: RowNumbers) -> None:
        """The given rows begin anew, as if they had never read a token."""
        index = self._places(rows)
        self.steps.clear(index)
        self.count[index] = 0
        self.croppable[index] = 0
        self._find_youngest()

    def _places(self, rows: RowNumbers) -> Tensor:
        """Rows as numbers, read (and refused) as a state would."""
        return row_numbers(rows, self.batch, self.count.device)

    def _decoder(self, state: State) -> CoreState:
        """The core's own state, checked, and whether it comes with the source that the core attends to, if it does."""
        core = self.model.core
        source = (state.source, state.source_mask) if isinstance(state, SourceState) else (None, None)
        core.check_source(state.batch, *source)
        decoder = state.decoder if isinstance(state, SourceState) else state
        core.check_state(decoder, state.batch)
        return decoder  # type: ignore[return-value]

    def _load(self, first: int, state: CoreState) -> None:
        """The rows of a state become the rows from `first` on."""
        self.steps.load(first, state)
        self.count = torch.cat([self.count[:first], state.count])
        self.croppable = torch.cat([self.croppable[:first], state.croppable])
        self._find_youngest()

    def _find_youngest(self) -> None:
        """Known here, so that no step has to ask the device whether every row has filled its memory."""
        self.newest = int(self.count.min()) if self.batch else 0

    def _check(self) -> None:
        if not self.batch:
            raise ValueError("every row has left the session; join some first")
        self._check_model()

    def _check_model(self) -> None:
        if self.model.training:
            raise RuntimeError("decoding with dropout is not meant: call model.eval() first")
        if self.weights.changed():
            raise RuntimeError(
                "the model's weights have changed since this session projected the past with them; "
                "make a new one: Session(model, session.state())"
            )
