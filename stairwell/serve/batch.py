"""All texts in one running batch: each joins when it comes and leaves when it is done, and a step serves them all.

    batch = Batch(model, vocabulary, rows=16, waiting=64)
    batch.submit(Job(Prompt(ids), tokens=20, choice=Choice(), tell=print))      raises Busy when too many wait already

One thread owns the decoding session. In turns it reads parts of the prompts that wait, round-robin and at most
`PREFILL` tokens in total, so that long prompts delay neither the texts being written nor the short prompts beside them;
then it chooses a token for every row, tells whom it concerns, and lets all rows read theirs in one step. Where there
are more texts than rows, requests share the rows evenly: a text gives way, and waits itself. A job of no tokens only
reads: it needs no row. Letters: B rows, T tokens, V symbols.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

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

# Tokens of prompts read between two steps of the texts being written: in total, and of one prompt. A recurrent core
# reads a long part of one prompt as slowly as short parts of several. While nothing is written it is `AT_ONCE` tokens.
PREFILL, PREFILL_EACH = 512, 128
TURN = 64  # tokens that a row writes before it gives way to another request that has only one row fewer
SHORTEST_PART = 64  # tokens; each call projects the memory again, so shorter parts would cost more than they read


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
        self.turn = 0  # when it was last read; who waits longest comes next
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
            shown = [(piece := self.speller(token), len(piece)) for token in part]
            first = 1 if self.logits is None else 0  # nothing is known of the first token of all
            before = after[:-1] if self.logits is None else torch.cat([self.logits[None], after[:-1]])
            self.told += known(part[:first], shown[:first], None, None)
            self.told += known(part[first:], shown[first:], before, self.logprobs)
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


def read_part(prompts: Sequence[Prompt], T: int, model: LanguageModel) -> int:
    """Read the next T tokens of each prompt in one call; return how many in total."""
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


def next_parts(prompts: Sequence[Prompt], total: int, each: int) -> dict[Prompt, int]:
    """Which prompts are read next and up to which token: those that have waited longest, `total` tokens of all and
    `each` of one at most."""
    if not prompts:
        return {}
    each = min(each, max(SHORTEST_PART, total // len(prompts)))
    ends = {}
    for prompt in sorted(prompts, key=lambda prompt: prompt.turn):
        part = min(prompt.left, each)
        if part > total:
            break
        total -= part
        ends[prompt] = prompt.read + part
    return ends


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
    owner: object = None  # the request that it is of
    cancelled: bool = field(default=False, init=False)
    written: int = field(default=0, init=False)
    row: Row | None = field(default=None, init=False)  # once its prompt is read


class Row:
    """A text that is being written: its place in the batch moves, and it may wait for one; everything of its own is
    here."""

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
        self.state: State | None = prompt.state  # while it waits for a place
        self.logits = prompt.logits
        self.turn = 0  # tokens that it had written when its turn began

    def choose(self, logits: Tensor) -> int:
        """logits (V,) -> a token, of which the client is told."""
        token = self.job.choice(logits, self.recent, self.generator)
        self.recent = [*self.recent, token][-RECENT:]
        self.job.written += 1
        spelled = self.speller(token)
        self.job.tell(*known([token], [(self.stops(spelled), len(spelled))], logits[None], self.job.prompt.logprobs))
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


def next_rows(active: Sequence[Row], ready: Sequence[Job], rows: int) -> tuple[list[int], list[Job]]:
    """Which of the active rows give way, by number, and which jobs come: requests that have fewest rows first, in place
    of a row of one that has at least two more, or one more and whose turn is over."""
    held = Counter(row.job.owner for row in active)
    free, left = rows - len(active), list(range(len(active)))
    leaving: list[int] = []
    coming: list[Job] = []
    waiting = list(ready)
    while waiting:
        job = min(waiting, key=lambda job: held[job.owner])
        if free:
            free -= 1
        else:
            more = {i: held[active[i].job.owner] - held[job.owner] for i in left}
            give = [i for i in left if more[i] > 1 or (more[i] == 1 and active[i].job.written - active[i].turn >= TURN)]
            if not give:
                break
            i = max(give, key=lambda i: more[i])  # of equal ones the one that was seated first
            held[active[i].job.owner] -= 1
            left.remove(i)
            leaving.append(i)
        held[job.owner] += 1
        waiting.remove(job)
        coming.append(job)
    return leaving, coming


def known(
    tokens: Sequence[int], shown: Sequence[tuple[str, int]], logits: Tensor | None, asked: int | None
) -> list[Token]:
    """What is known of tokens: what each shows and how long its text is, and the logits (T, V) that it was chosen from,
    if a client has asked for so many of them."""
    if asked is None or logits is None or not tokens:
        return [Token(token, *piece) for token, piece in zip(tokens, shown)]
    chances = logits.float().log_softmax(-1)
    values, symbols = chances.topk(min(asked, chances.shape[1]))
    own = chances.gather(1, torch.tensor(tokens, device=chances.device)[:, None])[:, 0]
    made = []
    for token, piece, found, likely, logprob in zip(tokens, shown, symbols.tolist(), values.tolist(), own.tolist()):
        top = dict(zip(found, likely))
        made.append(Token(token, *piece, top.setdefault(token, logprob), tuple(top.items())))
    return made


def slack_of(prompt: Prompt) -> int:
    """States of other max_crop cannot be joined."""
    assert prompt.state is not None
    return prompt.state.max_crop


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
        self.turns = count(1)
        self.closing = self.aborted = False
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
            for job in jobs:
                job.prompt.turn = next(self.turns)
            self.queue.extend(jobs)
            self.changed.notify()

    def close(self) -> None:
        """Write to the end what was begun, refuse the rest."""
        with self.changed:
            self.closing = True
            begun = [job for job in self.queue if job.row is not None]
            for job in self.queue:
                if job.row is None:
                    job.tell(Done("cancelled"))
            self.queue = deque(begun)
            self.changed.notify()
        self.thread.join()

    def abort(self) -> None:
        """Cancel everything after the step that is running; return at once."""
        with self.changed:
            self.closing = self.aborted = True
            self.changed.notify()

    def _run(self) -> None:
        with torch.no_grad():
            while True:
                with self.changed:
                    while not self.queue and not self.active and not self.closing:
                        self.changed.wait()
                    if self.aborted:
                        for job in [*self.queue, *(row.job for row in self.active)]:
                            job.tell(Done("cancelled"))
                        self.queue.clear()
                        self.active = []
                    if self.closing and not self.active and not self.queue:
                        return
                self._read()
                if self.active:
                    self._step()

    def _read(self) -> None:
        """Read parts of the prompts that wait for nothing else; who is ready is seated."""
        with self.changed:
            jobs = list(self.queue)
        waiting = []
        for job in jobs:
            if job.cancelled or time.monotonic() > job.deadline:
                late = Done("cancelled" if job.cancelled else "length")
                self._leave_queue(job, late if job.row is None else job.row.ended())
            else:
                waiting.append(job)
        prompts = list(dict.fromkeys(job.prompt for job in waiting))
        for prompt in prompts:
            prompt.begin(self.model, self.vocabulary)
        unread = [prompt for prompt in prompts if prompt.left]
        # While nothing is written a longer part holds nobody up.
        self._read_parts(next_parts(unread, *((PREFILL, PREFILL_EACH) if self.active else (AT_ONCE, AT_ONCE))))
        for job in waiting:
            if job.prompt.failed is not None:
                self._leave_queue(job, job.prompt.failed)
        ready = [job for job in waiting if job.prompt.failed is None and not job.prompt.left]
        leaving, coming = next_rows(self.active, [job for job in ready if job.tokens], self.rows)
        self._give_way(leaving)
        for job in [*(job for job in ready if not job.tokens), *coming]:
            self._write(job)

    def _read_parts(self, ends: dict[Prompt, int]) -> None:
        """Read each prompt up to its end; in one call all that can be joined, as far as the shortest goes."""
        for prompt in ends:
            prompt.turn = next(self.turns)
        while going := [prompt for prompt in ends if prompt.failed is None and prompt.read < ends[prompt]]:
            alike = [prompt for prompt in going if slack_of(prompt) == slack_of(going[0])]
            self._read_together(alike, min(ends[prompt] - prompt.read for prompt in alike))

    def _read_together(self, prompts: list[Prompt], T: int) -> None:
        """If that goes wrong one by one, so that only whose fault it is hears of it."""
        read = [prompt.read for prompt in prompts]
        try:
            self.counts["prompt_tokens"] += read_part(prompts, T, self.model)
        except Exception as problem:
            if len(prompts) > 1:
                for prompt, before in zip(prompts, read):
                    if prompt.read == before and prompt.failed is None:
                        self._read_together([prompt], T)
            elif isinstance(problem, UserError):
                prompts[0].failed = Done("refused", str(problem))
            else:
                log.exception("reading a prompt failed")
                self.counts["failed"] += 1
                prompts[0].failed = Done("error")

    def _write(self, job: Job) -> None:
        """A text whose prompt is read, or that has given way before, gets a row."""
        if job.row is None:
            for token in job.prompt.told:
                job.tell(token)
            job.row = Row(job, self.vocabulary, self.device, self.most)
        done = job.row.ended()
        self._leave_queue(job, done)
        if done is None:
            self._seat(job.row)

    def _give_way(self, leaving: Sequence[int]) -> None:
        """Rows leave the batch and wait for another place in it."""
        if not leaving:
            return
        assert self.logits is not None
        staying = [i for i in range(len(self.active)) if i not in leaving]
        try:
            states = self.session.state()
            for i in leaving:
                self.active[i].state, self.active[i].logits = states.select([i]), self.logits[i].clone()
            self.session.select(staying)
            self.logits = self.logits[staying]
        except Exception:
            self._fail()
            return
        with self.changed:
            self.queue.extend(self.active[i].job for i in leaving)
        self.active = [self.active[i] for i in staying]

    def _leave_queue(self, job: Job, done: Done | None) -> None:
        with self.changed:
            if job in self.queue:  # unless the server is closing and has refused it
                self.queue.remove(job)
        if done is not None:
            job.tell(done)

    def _seat(self, row: Row) -> None:
        """A row joins the others."""
        assert row.state is not None and row.logits is not None
        self.active.append(row)
        row.turn = row.job.written
        try:
            self.session.join(row.state)
            logits = row.logits[None]
            self.logits = logits if self.logits is None else torch.cat([self.logits, logits])
            row.state = row.logits = None
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
