"""All requests in one running batch: each joins when it comes and leaves when it is done, and a step serves them all.

    batch = Batch(model, vocabulary, rows=16, waiting=64)
    job = batch.submit(Job(...))                 raises Busy when too many wait already
    for piece in job: ...                        `job.pieces` is filled by the batch's own thread

One thread owns the decoding session. It reads the prompts of those who wait, chooses a token for every row, tells whom
it concerns, and lets all rows read theirs in one step. Letters: B rows, V symbols.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from stairwell import text
from stairwell.decode import Session
from stairwell.generate import Choice, Speller, Stops
from stairwell.models import LanguageModel
from stairwell.state import State
from stairwell.stream import AT_ONCE, RECENT, check_usable


class Busy(Exception):
    """Too many requests wait already."""


@dataclass(frozen=True)
class Token:
    """One token as it was read or written, with what a client may want to know of it."""

    id: int
    text: str  # what it adds to the text, now that it can be read
    logprob: float | None = None  # none for the first of all
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Done:
    reason: str  # stop: a stop string came; length: enough was written, or time is up; cancelled; error
    text: str = ""  # what had been held back


@dataclass
class Job:
    """One text to be written."""

    prompt: Sequence[int]
    tokens: int
    choice: Choice
    tell: Callable[[Token | Done], None]  # called from the batch's thread
    stop: Sequence[str] = ()
    seed: int | None = None
    echo: bool = False
    logprobs: int | None = None  # that many likeliest tokens beside each
    begin: tuple[State, Tensor | None, list[int]] | None = None  # a state to go on from, its logits, its last tokens
    deadline: float = float("inf")  # of time.monotonic()
    cancelled: bool = field(default=False, init=False)
    written: int = field(default=0, init=False)


class Row:
    """A job that is being written: its place in the batch moves, everything of its own is here."""

    def __init__(self, job: Job, vocabulary: text.Vocabulary, device: torch.device) -> None:
        self.job = job
        self.speller = Speller(vocabulary)
        self.stops = Stops(job.stop)
        self.generator = torch.Generator(device)
        self.generator.seed() if job.seed is None else self.generator.manual_seed(job.seed)
        self.recent: list[int] = list(job.begin[2]) if job.begin is not None else []

    def choose(self, logits: Tensor) -> int:
        """logits (V,) -> a token, of which the client is told."""
        token = self.job.choice(logits, self.recent, self.generator)
        self.recent = [*self.recent, token][-RECENT:]
        self.job.written += 1
        self.tell(token, logits, self.stops(self.speller(token)))
        return token

    def tell(self, token: int, logits: Tensor | None, shown: str) -> None:
        asked = self.job.logprobs
        if asked is None or logits is None:
            self.job.tell(Token(token, shown))
            return
        chances = logits.float().log_softmax(-1)
        values, symbols = chances.topk(min(asked, len(chances)))
        top = tuple(zip(symbols.tolist(), values.tolist()))
        self.job.tell(Token(token, shown, float(chances[token]), top))

    def ended(self) -> Done | None:
        job = self.job
        if job.cancelled:
            return Done("cancelled")
        if self.stops.stopped:
            return Done("stop")
        if job.written >= job.tokens or time.monotonic() > job.deadline:
            return Done("length", self.stops.held + self.speller.end())
        return None


class Batch:
    """`rows` are written at a time; `waiting` more may wait."""

    def __init__(self, model: LanguageModel, vocabulary: text.Vocabulary, rows: int = 16, waiting: int = 64) -> None:
        check_usable(model)
        self.model, self.vocabulary = model, vocabulary
        self.rows, self.waiting = rows, waiting
        self.device = next(model.parameters()).device
        self.queue: deque[Job] = deque()
        self.active: list[Row] = []
        self.counts = {"requests": 0, "rejected": 0, "failed": 0, "prompt_tokens": 0, "written_tokens": 0, "steps": 0}
        self.changed = threading.Condition()
        self.closing = False
        self.session = Session(model, model.init_state(1), capacity=rows)
        self.session.select([])
        self.logits: Tensor | None = None  # (B, V)
        self.thread = threading.Thread(target=self._run, name="stairwell-batch", daemon=True)
        self.thread.start()

    def submit(self, *jobs: Job) -> None:
        """All of them, or none and Busy."""
        with self.changed:
            if self.closing:
                raise Busy("the server is shutting down")
            if len(self.queue) + len(jobs) > self.waiting:
                self.counts["rejected"] += 1
                raise Busy(f"{len(self.queue)} requests wait already; try again later")
            self.queue.extend(jobs)
            self.counts["requests"] += 1
            self.changed.notify()

    def close(self) -> None:
        """Write to the end what was begun, refuse the rest."""
        with self.changed:
            self.closing = True
            for job in self.queue:
                job.tell(Done("cancelled"))
            self.queue.clear()
            self.changed.notify()
        self.thread.join()

    def _run(self) -> None:
        with torch.no_grad():
            while True:
                with self.changed:
                    while not self.queue and not self.active and not self.closing:
                        self.changed.wait()
                    if self.closing and not self.active:
                        return
                    coming = [self.queue.popleft() for _ in range(min(len(self.queue), self.rows - len(self.active)))]
                for job in coming:
                    self._guarded(self._admit, job)
                if self.active:
                    self._guarded(self._step)

    def _guarded(self, do: Callable[..., None], *arguments: Any) -> None:
        """A bug ends the requests that it met, never the thread."""
        try:
            do(*arguments)
        except Exception:
            self.counts["failed"] += 1
            for job in arguments or [row.job for row in self.active]:
                job.tell(Done("error"))
            if not arguments:
                self.active, self.logits = [], None
                self.session = Session(self.model, self.model.init_state(1), capacity=self.rows)
                self.session.select([])

    def _admit(self, job: Job) -> None:
        """Read a prompt, alone, and let its row join."""
        row = Row(job, self.vocabulary, self.device)
        state, logits = self._read(row)
        self.counts["prompt_tokens"] += len(job.prompt)
        if job.tokens == 0 or job.cancelled:
            job.tell(Done("length"))
            return
        self.session.join(state)
        self.active.append(row)
        self.logits = logits[None] if self.logits is None else torch.cat([self.logits, logits[None]])

    def _read(self, row: Row) -> tuple[State, Tensor]:
        """The state and the logits after a prompt; with echo the client is told of each of its tokens."""
        job = row.job
        state, logits, _ = job.begin or (self.model.init_state(1), None, [])
        for part in torch.tensor(job.prompt, dtype=torch.int64, device=self.device).split(AT_ONCE):
            if not len(part):
                continue
            x, state = self.model.hidden(part[None], state)
            after = self.model.head(x[0] if job.echo else x[0, -1:])  # (t or 1, V)
            if job.echo:
                for token, before in zip(part.tolist(), [logits, *after[:-1]]):
                    row.tell(token, before, row.speller(token))
            logits = after[-1]
        row.recent = [*row.recent, *job.prompt][-RECENT:]
        if not job.echo:
            row.speller.before = row.recent[-1] if row.recent else None
        assert logits is not None
        return state, logits

    def _step(self) -> None:
        """A token for every row; those that are done leave, the others read theirs."""
        assert self.logits is not None
        tokens, staying = [], []
        for i, row in enumerate(self.active):
            done = row.ended()
            if done is None:
                tokens.append(row.choose(self.logits[i]))
                self.counts["written_tokens"] += 1
                done = row.ended()
            if done is None:
                staying.append(i)
            else:
                tokens = tokens[: len(staying)]
                row.job.tell(done)
        if len(staying) < len(self.active):
            self.session.select(staying)
            self.active = [self.active[i] for i in staying]
        if not self.active:
            self.logits = None
            return
        self.logits = self.session.step(torch.tensor(tokens, device=self.device))
        self.counts["steps"] += 1
