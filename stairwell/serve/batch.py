"""All texts in one running batch: each joins when it comes and leaves when it is done, and a step serves them all.

    batch = Batch(model, vocabulary, rows=16, waiting=64)
    batch.submit(Job(Prompt(ids), tokens=20, choice=Choice(), tell=print))      raises Busy when too many wait already

One thread owns the decoding session. In turns it reads prompts, those of all who wait for a free row together, at most
`AT_ONCE` tokens of each, so that a long one does not hold up those who are written already; then it chooses a token for
every row, tells whom it concerns, and lets all rows read theirs in one step. Letters: B rows, T tokens, V symbols.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice

import torch
from torch import Tensor

from stairwell import text
from stairwell.decode import Session
from stairwell.errors import UserError
from stairwell.generate import Choice, Speller, Stops
from stairwell.models import LanguageModel
from stairwell.state import State
from stairwell.stream import AT_ONCE, RECENT, check_usable

log = logging.getLogger("stairwell.serve")


class Busy(Exception):
    """Too many wait already."""


@dataclass(frozen=True, slots=True)
class Token:
    """One token as it was read or written, with what a client may want to know of it."""

    id: int
    text: str  # what it lets out of the text; a stop string that may have begun holds text back
    length: int  # characters that it adds to the text, held back or not
    logprob: float | None = None  # none for the first of all
    top: tuple[tuple[int, float], ...] = ()  # the likeliest tokens and this one


@dataclass(frozen=True, slots=True)
class Done:
    # stop: a stop string came; length: enough was written, or time is up; cancelled: nobody waits for it, or the server
    # leaves; refused: the client's mistake; error: ours
    reason: str
    text: str = ""  # what had been held back; of a mistake, what was wrong


class Prompt:
    """What is read before a text is written, from a state on if there is one. Texts that begin alike share it: it is
    read once."""

    def __init__(
        self,
        ids: Sequence[int],
        begin: tuple[State, Tensor | None, Sequence[int]] | None = None,  # a state, its logits, its last tokens
        echo: bool = False,
        logprobs: int | None = None,
    ) -> None:
        self.ids, self.echo, self.logprobs = ids, echo, logprobs
        self.read = 0  # how many of its tokens
        self.state: State | None = None
        self.logits: Tensor | None = None
        self.recent: list[int] = []
        if begin is not None:
            self.state, self.logits, self.recent = begin[0], begin[1], list(begin[2])
        self.speller: Speller | None = None
        self.told: list[Token] = []  # with echo: the prompt itself
        self.failed: Done | None = None

    @property
    def left(self) -> int:
        return len(self.ids) - self.read

    def begin(self, model: LanguageModel, vocabulary: text.Vocabulary) -> None:
        if self.speller is None:
            self.speller = Speller(vocabulary)
            self._hear(self.recent)
        if self.state is None:
            self.state = model.init_state(1)

    def take(self, part: Sequence[int], state: State, after: Tensor) -> None:
        """Its next tokens were read: the state after them, and the logits after each (T, V), or after the last."""
        check_numbers(after)
        assert self.speller is not None
        if self.echo:
            for token, before in zip(part, [self.logits, *after[:-1]]):
                shown = self.speller(token)
                self.told.append(known(token, shown, len(shown), before, self.logprobs))
        else:
            self._hear(part)
        self.read += len(part)
        self.state, self.logits = state, after[-1]
        self.recent = [*self.recent, *part][-RECENT:]

    def _hear(self, tokens: Sequence[int]) -> None:
        """The speller knows what came before, half a character included, which has four bytes at most."""
        assert self.speller is not None
        for token in tokens[-4:]:
            self.speller(token)


def read_part(prompts: Sequence[Prompt], model: LanguageModel) -> int:
    """Read as many tokens of each prompt as the shortest has left, `AT_ONCE` at most, in one call; how many in all."""
    T = min(AT_ONCE, *(prompt.left for prompt in prompts))
    parts = [list(prompt.ids[prompt.read : prompt.read + T]) for prompt in prompts]
    states = [prompt.state for prompt in prompts if prompt.state is not None]
    tokens = torch.tensor(parts, device=next(model.parameters()).device)
    x, state = model.hidden(tokens, states[0] if len(states) == 1 else type(states[0]).join(states))
    for i, (prompt, part) in enumerate(zip(prompts, parts)):
        after = model.head(x[i] if prompt.echo else x[i, -1:])  # (T or 1, V)
        try:
            prompt.take(part, state if len(prompts) == 1 else state.select([i]), after)
        except UserError as mistake:
            prompt.failed = Done("refused", str(mistake))
    return len(prompts) * T


@dataclass(eq=False)
class Job:
    """One text to be written."""

    prompt: Prompt
    tokens: int
    choice: Choice
    tell: Callable[[Token | Done], None]  # called from the batch's thread
    stop: Sequence[str] = ()
    seed: int | None = None
    deadline: float = float("inf")  # of time.monotonic()
    cancelled: bool = field(default=False, init=False)
    written: int = field(default=0, init=False)


class Row:
    """A job that is being written: its place in the batch moves, everything of its own is here."""

    def __init__(self, job: Job, vocabulary: text.Vocabulary, device: torch.device, most: int | None) -> None:
        prompt = job.prompt
        assert prompt.state is not None and prompt.speller is not None
        self.job, self.tokens = job, job.tokens
        if most is not None:  # a core that reads so many tokens at most; the last one written is not read
            self.tokens = min(job.tokens, most - int(prompt.state.count) + 1)
        self.speller = Speller(vocabulary)
        self.speller.seek(prompt.speller.position())
        self.stops = Stops(job.stop)
        self.generator = torch.Generator(device)
        self.generator.seed() if job.seed is None else self.generator.manual_seed(job.seed)
        self.recent = prompt.recent

    def choose(self, logits: Tensor) -> int:
        """logits (V,) -> a token, of which the client is told."""
        token = self.job.choice(logits, self.recent, self.generator)
        self.recent = [*self.recent, token][-RECENT:]
        self.job.written += 1
        spelled = self.speller(token)
        self.job.tell(known(token, self.stops(spelled), len(spelled), logits, self.job.prompt.logprobs))
        return token

    def ended(self) -> Done | None:
        job = self.job
        if job.cancelled:
            return Done("cancelled")
        if self.stops.stopped:
            return Done("stop")
        if job.written >= self.tokens or time.monotonic() > job.deadline:
            return Done("length", self.stops.held + self.speller.end())
        return None


def known(token: int, shown: str, length: int, logits: Tensor | None, asked: int | None) -> Token:
    """What is known of a token: the logits (V,) that it was chosen from, if a client has asked for so many of them."""
    if asked is None or logits is None:
        return Token(token, shown, length)
    chances = logits.float().log_softmax(-1)
    values, symbols = chances.topk(min(asked, len(chances)))
    top = dict(zip(symbols.tolist(), values.tolist()))
    logprob = top.setdefault(token, float(chances[token]))
    return Token(token, shown, length, logprob, tuple(top.items()))


def check_numbers(logits: Tensor) -> None:
    """A trained model says numbers; from a state that somebody has made up it may say anything."""
    if not logits.isfinite().all():
        raise UserError("after this the model has no finite probabilities; the state that it goes on from is damaged")


class Batch:
    """`rows` are written at a time; `waiting` more may wait."""

    def __init__(self, model: LanguageModel, vocabulary: text.Vocabulary, rows: int = 16, waiting: int = 64) -> None:
        check_usable(model)
        self.model, self.vocabulary = model, vocabulary
        self.rows, self.waiting = rows, waiting
        self.device = next(model.parameters()).device
        self.most: int | None = getattr(model.core.config, "max_tokens", None)
        self.queue: deque[Job] = deque()
        self.active: list[Row] = []
        self.counts = {"requests": 0, "rejected": 0, "failed": 0, "prompt_tokens": 0, "written_tokens": 0, "steps": 0}
        self.changed = threading.Condition()
        self.closing = False
        self.clear()
        self.thread = threading.Thread(target=self._run, name="stairwell-batch", daemon=True)
        self.thread.start()

    def clear(self) -> None:
        self.active = []
        self.session = Session(self.model, self.model.init_state(1), capacity=self.rows)
        self.session.select([])
        self.logits: Tensor | None = None  # (B, V)

    def submit(self, *jobs: Job) -> None:
        """All of them, or none and Busy."""
        with self.changed:
            if self.closing:
                raise Busy("the server is shutting down")
            if len(self.queue) + len(self.active) + len(jobs) > self.rows + self.waiting:
                self.counts["rejected"] += 1
                raise Busy(f"{len(self.queue)} texts wait already; try again later")
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
                self._read()
                if self.active:
                    self._step()

    def _read(self) -> None:
        """Read a part of the prompts of those who come next, as many as there are free rows; who is ready is seated."""
        with self.changed:
            jobs = list(islice(self.queue, self.rows - len(self.active)))
        waiting = []
        for job in jobs:
            if job.cancelled or time.monotonic() > job.deadline:
                self._leave_queue(job, Done("cancelled" if job.cancelled else "length"))
            else:
                waiting.append(job)
        prompts = list(dict.fromkeys(job.prompt for job in waiting))
        for prompt in prompts:
            prompt.begin(self.model, self.vocabulary)
        self._read_parts([prompt for prompt in prompts if prompt.left and prompt.failed is None])
        for job in waiting:
            if job.prompt.failed is not None:
                self._leave_queue(job, job.prompt.failed)
            elif not job.prompt.left:
                self._begin_to_write(job)

    def _read_parts(self, prompts: list[Prompt]) -> None:
        """Together; if that goes wrong one by one, so that only whose fault it is hears of it."""
        try:
            if prompts:
                self.counts["prompt_tokens"] += read_part(prompts, self.model)
        except Exception as problem:
            if len(prompts) > 1:
                for prompt in prompts:
                    self._read_parts([prompt] if prompt.left else [])
            elif isinstance(problem, UserError):
                prompts[0].failed = Done("refused", str(problem))
            else:
                log.exception("reading a prompt failed")
                self.counts["failed"] += 1
                prompts[0].failed = Done("error")

    def _begin_to_write(self, job: Job) -> None:
        for token in job.prompt.told:
            job.tell(token)
        row = Row(job, self.vocabulary, self.device, self.most)
        done = row.ended()
        self._leave_queue(job, done)
        if done is None:
            self._seat(row)

    def _leave_queue(self, job: Job, done: Done | None) -> None:
        with self.changed:
            if job in self.queue:  # unless the server is closing and has refused it
                self.queue.remove(job)
        if done is not None:
            job.tell(done)

    def _seat(self, row: Row) -> None:
        """A row whose prompt is read joins the others."""
        prompt = row.job.prompt
        assert prompt.state is not None and prompt.logits is not None
        self.active.append(row)
        try:
            self.session.join(prompt.state)
            logits = prompt.logits[None]
            self.logits = logits if self.logits is None else torch.cat([self.logits, logits])
        except Exception:
            self._fail()

    def _fail(self) -> None:
        """A bug ends the texts that it met, never the thread."""
        log.exception("a step of the batch failed")
        self.counts["failed"] += 1
        for row in self.active:
            row.job.tell(Done("error"))
        self.clear()

    def _step(self) -> None:
        """A token for every row; those that are done leave, the others read theirs."""
        assert self.logits is not None
        tokens, staying = [], []
        for i, row in enumerate(self.active):
            done = row.ended()
            if done is None:
                token, done = self._choose(row, self.logits[i])
                if done is None:
                    tokens.append(token)
                    staying.append(i)
            if done is not None:
                row.job.tell(done)
        leave = len(staying) < len(self.active)
        self.active = [self.active[i] for i in staying]
        try:
            if leave:
                self.session.select(staying)
            self.logits = self.session.step(torch.tensor(tokens, device=self.device)) if self.active else None
            self.counts["steps"] += len(self.active) > 0
        except Exception:
            self._fail()

    def _choose(self, row: Row, logits: Tensor) -> tuple[int, Done | None]:
        """A row's next token, or why there is none; what goes wrong with one row is no matter of the others."""
        try:
            check_numbers(logits)
            token = row.choose(logits)
            self.counts["written_tokens"] += 1
            return token, row.ended()
        except UserError as mistake:
            return 0, Done("refused", str(mistake))
        except Exception:
            log.exception("choosing a token failed")
            self.counts["failed"] += 1
            return 0, Done("error")
