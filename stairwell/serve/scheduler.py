"""Continuous batching: a sequence joins the batch when its prompt is prefilled and leaves it when it is finished, and
one decode step serves all sequences.

    scheduler = Scheduler(model, vocabulary, batch_size=16, max_waiting=64)
    scheduler.submit(SequenceRequest(Prompt(ids), max_tokens=20, sampling=Sampling(), on_output=print))

One thread owns the decoding session. Each of its iterations prefills chunks of the waiting prompts, round-robin and at
most `PREFILL_BUDGET` tokens in total, so that long prompts delay neither decoding nor short prompts. Then it samples a
token for every running sequence and feeds all of them to the model in one decode step. With more sequences than slots
in the batch, clients share the slots evenly: a sequence is preempted, and waits until it is admitted again. A request
for 0 tokens is only prefilled and needs no slot. Letters: B sequences, T tokens, V vocabulary size.
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
from stairwell.decode import Sampling, Session
from stairwell.decode.sampling import REPETITION_WINDOW, make_generator
from stairwell.errors import UserError
from stairwell.generate import Detokenizer, StopStrings
from stairwell.models import LanguageModel
from stairwell.serve.limits import RequestError
from stairwell.serve.logits import LogitsProcessor
from stairwell.serve.metrics import LatencyMetrics
from stairwell.serve.snapshot import Snapshot
from stairwell.stream import MAX_TOKENS_PER_CALL, check_usable

log = logging.getLogger("stairwell.serve")

# Tokens prefilled between two decode steps: in total, and per prompt. A recurrent core takes as long for a chunk of one
# prompt as for chunks of several. While no sequence is running, both are `MAX_TOKENS_PER_CALL`.
PREFILL_BUDGET, PREFILL_CHUNK = 512, 128
MIN_PREFILL_CHUNK = 64  # tokens; every call projects the memory again, which dominates in shorter chunks
TIME_SLICE = 64  # tokens a sequence may generate before it is preempted for a client with one slot fewer


@dataclass(frozen=True, slots=True)
class TokenOutput:
    """A token that was echoed or generated."""

    id: int
    text: str  # released by this token; text that may be the start of a stop string is held back
    length: int  # characters of the token, released or held back
    logprob: float | None = None  # None for the first token of a stream
    top_logprobs: tuple[tuple[int, float], ...] = ()  # log-probabilities of the most probable tokens and of this one


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a sequence. Reasons: "stop" (a stop string), "length" (the token limit or the deadline), "cancelled"
    (the client disconnected or the server shuts down), "invalid" (the request is wrong), "error" (a server error)."""

    reason: str
    text: str = ""  # text held back until now; for "invalid", the error message


Output = TokenOutput | Finished


class Prompt:
    """The tokens to prefill before decoding. Several sequences may share it; it is prefilled once."""

    def __init__(
        self, ids: Sequence[int], initial: Snapshot | None = None, echo: bool = False, num_logprobs: int | None = None
    ) -> None:
        self.ids, self.echo, self.num_logprobs = ids, echo, num_logprobs
        self.position = 0  # number of prefilled tokens
        self.last_scheduled = 0  # value of a counter at its last chunk; the prompt with the lowest is prefilled next
        self.snapshot = initial  # after the prefilled tokens
        self.detokenizer: Detokenizer | None = None
        self.echoed: list[TokenOutput] = []  # with echo: the prefilled tokens
        self.failure: Finished | None = None

    @property
    def remaining(self) -> int:
        """The number of tokens still to prefill."""
        return len(self.ids) - self.position

    def ensure_started(self, model: LanguageModel, vocabulary: text.Vocabulary) -> Snapshot:
        """Create the initial state and the detokenizer if they are missing. Return the current snapshot."""
        if self.snapshot is None:
            self.snapshot = Snapshot(model.init_state(1))
        if self.detokenizer is None:
            self.detokenizer = Detokenizer(vocabulary)
            self.detokenizer.skip(self.snapshot.recent)
        return self.snapshot

    def advance(self, chunk: Sequence[int], snapshot: Snapshot, logits: Tensor) -> None:
        """Record a prefilled chunk and the logits after each of its tokens (T, V); without echo, after the last."""
        assert self.detokenizer is not None and self.snapshot is not None
        before = self.snapshot.logits
        if self.echo:
            texts = [(part := self.detokenizer(token), len(part)) for token in chunk]
            unscored = 1 if before is None else 0  # there are no logits before the first token of a stream
            scores = logits[:-1] if before is None else torch.cat([before[None], logits[:-1]])
            self.echoed += token_outputs(chunk[:unscored], texts[:unscored], None, None)
            self.echoed += token_outputs(chunk[unscored:], texts[unscored:], scores, self.num_logprobs)
        else:
            self.detokenizer.skip(chunk)
        self.position += len(chunk)
        self.snapshot = snapshot


def prefill(prompts: Sequence[Prompt], T: int, model: LanguageModel) -> int:
    """Prefill the next T tokens of each prompt in one call; return the total number of tokens."""
    chunks = [list(prompt.ids[prompt.position : prompt.position + T]) for prompt in prompts]
    snapshots = [prompt.snapshot for prompt in prompts if prompt.snapshot is not None]
    states = [snapshot.state for snapshot in snapshots]
    tokens = torch.tensor(chunks, device=next(model.parameters()).device)
    x, state = model.hidden(tokens, states[0] if len(states) == 1 else type(states[0]).join(states))
    for i, (prompt, before, chunk) in enumerate(zip(prompts, snapshots, chunks)):
        logits = model.head(x[i] if prompt.echo else x[i, -1:])  # (T or 1, V)
        try:
            check_finite(logits)
        except UserError as error:
            prompt.failure = Finished("invalid", str(error))
            continue
        recent = (*before.recent, *chunk)[-REPETITION_WINDOW:]
        after = Snapshot(state if len(prompts) == 1 else state.select([i]), logits[-1], recent)
        prompt.advance(chunk, after, logits)
    return len(prompts) * T


def plan_prefill(prompts: Sequence[Prompt], budget: int, chunk: int) -> dict[Prompt, int]:
    """Return the prompts to prefill next, those that waited longest first, with the position to prefill each one to: at
    most `budget` tokens in total and `chunk` tokens per prompt."""
    if not prompts:
        return {}
    chunk = min(chunk, max(MIN_PREFILL_CHUNK, budget // len(prompts)))
    ends = {}
    for prompt in sorted(prompts, key=lambda prompt: prompt.last_scheduled):
        tokens = min(prompt.remaining, chunk)
        if tokens > budget:
            break
        budget -= tokens
        ends[prompt] = prompt.position + tokens
    return ends


@dataclass(eq=False)
class SequenceRequest:
    """One sequence to generate. A request of a client has one or several."""

    prompt: Prompt
    max_tokens: int
    sampling: Sampling
    on_output: Callable[[Output], None]  # called from the scheduler's thread
    stop: Sequence[str] = ()
    seed: int | None = None
    deadline: float = float("inf")  # of time.monotonic()
    owner: object = None  # the client's request
    logits_processor: LogitsProcessor | None = None
    cancelled: bool = field(default=False, init=False)
    submitted: float = field(default_factory=time.monotonic, init=False)
    first_token_time: float = field(default=0.0, init=False)  # of time.monotonic()
    generated: int = field(default=0, init=False)  # number of generated tokens
    sequence: DecodingSequence | None = field(default=None, init=False)  # once its prompt is prefilled


class DecodingSequence:
    """A sequence that is running or preempted, with all of its own decoding state."""

    def __init__(
        self, request: SequenceRequest, vocabulary: text.Vocabulary, device: torch.device, longest_stream: int | None
    ) -> None:
        prompt = request.prompt
        assert prompt.snapshot is not None and prompt.detokenizer is not None
        self.request, self.max_tokens = request, request.max_tokens
        if longest_stream is not None:  # the last generated token is not fed to the model
            self.max_tokens = min(request.max_tokens, longest_stream - prompt.snapshot.tokens + 1)
        self.detokenizer = Detokenizer(vocabulary)
        self.detokenizer.load_state(prompt.detokenizer.state())
        self.stops = StopStrings(request.stop)
        self.generator = make_generator(device, request.seed)
        self.recent = prompt.snapshot.recent
        self.counts: Counter[int] = Counter()  # how often each token was generated, for the logits processor
        self.snapshot: Snapshot | None = prompt.snapshot  # while it is not running
        self.slice_start = 0  # number of generated tokens when it was last admitted

    def sample(self, logits: Tensor) -> int:
        """Sample the next token from logits (V,) and output it."""
        request, scores = self.request, logits
        if request.logits_processor is not None:
            scores = request.logits_processor(logits, self.counts)
        token = request.sampling(scores, self.recent, self.generator)
        self.counts[token] += 1
        self.recent = (*self.recent, token)[-REPETITION_WINDOW:]
        request.generated += 1
        part = self.detokenizer(token)
        request.on_output(
            *token_outputs([token], [(self.stops(part), len(part))], logits[None], request.prompt.num_logprobs)
        )
        return token

    def finished(self) -> Finished | None:
        """Return the end of the sequence, or None while it runs."""
        request = self.request
        if request.cancelled:
            return Finished("cancelled")
        if self.stops.stopped:
            return Finished("stop")
        if request.generated >= self.max_tokens or time.monotonic() > request.deadline:
            return Finished("length", self.stops.held + self.detokenizer.flush())
        return None


def assign_slots(
    running: Sequence[DecodingSequence], ready: Sequence[SequenceRequest], slots: int
) -> tuple[list[int], list[SequenceRequest]]:
    """Return the indices of the running sequences to preempt, and the requests to admit. The owner with the fewest
    slots is served first. It preempts a sequence of an owner with at least two slots more, or with one slot more if the
    sequence has used its time slice."""
    owned = Counter(sequence.request.owner for sequence in running)
    free, candidates = slots - len(running), list(range(len(running)))
    preempted: list[int] = []
    admitted: list[SequenceRequest] = []
    waiting = list(ready)
    while waiting:
        request = min(waiting, key=lambda request: owned[request.owner])
        if free:
            free -= 1
        else:
            surplus = {i: owned[running[i].request.owner] - owned[request.owner] for i in candidates}
            used = {i: running[i].request.generated - running[i].slice_start for i in candidates}
            allowed = [i for i in candidates if surplus[i] > 1 or (surplus[i] == 1 and used[i] >= TIME_SLICE)]
            if not allowed:
                break
            i = max(allowed, key=lambda i: surplus[i])  # on ties, the one that was admitted first
            owned[running[i].request.owner] -= 1
            candidates.remove(i)
            preempted.append(i)
        owned[request.owner] += 1
        waiting.remove(request)
        admitted.append(request)
    return preempted, admitted


def token_outputs(
    tokens: Sequence[int], texts: Sequence[tuple[str, int]], logits: Tensor | None, num_logprobs: int | None
) -> list[TokenOutput]:
    """Return the outputs of tokens, each with its released text and its length. `logits` (T, V) are those before each
    token; `num_logprobs` alternatives are returned per token, None for no log-probabilities."""
    if num_logprobs is None or logits is None or not tokens:
        return [TokenOutput(token, *part) for token, part in zip(tokens, texts)]
    log_probs = logits.float().log_softmax(-1)
    values, ids = log_probs.topk(min(num_logprobs, log_probs.shape[1]))
    own = log_probs.gather(1, torch.tensor(tokens, device=log_probs.device)[:, None])[:, 0]
    outputs = []
    for token, part, top_ids, top_values, logprob in zip(tokens, texts, ids.tolist(), values.tolist(), own.tolist()):
        top = dict(zip(top_ids, top_values))
        outputs.append(TokenOutput(token, *part, top.setdefault(token, logprob), tuple(top.items())))
    return outputs


def check_finite(logits: Tensor) -> None:
    """Reject logits that are not finite: a state that a client restored can have any values."""
    if not logits.isfinite().all():
        raise UserError("the logits are not finite: the state to continue from is damaged; restore another one")


class Scheduler:
    """Decodes up to `batch_size` sequences at once; up to `max_waiting` more wait."""

    def __init__(
        self, model: LanguageModel, vocabulary: text.Vocabulary, batch_size: int = 16, max_waiting: int = 64
    ) -> None:
        check_usable(model)
        self.model, self.vocabulary = model, vocabulary
        self.batch_size, self.max_waiting = batch_size, max_waiting
        self.device = next(model.parameters()).device
        self.longest_stream: int | None = getattr(model.core.config, "max_tokens", None)
        self.queue: deque[SequenceRequest] = deque()
        self.counts = {"requests": 0, "rejected": 0, "failed": 0, "prompt_tokens": 0, "generated_tokens": 0, "steps": 0}
        self.changed = threading.Condition()
        self.latency = LatencyMetrics()
        self.schedule_counter = count(1)
        self.closing = self.aborted = False
        self.reset_batch()
        self.thread = threading.Thread(target=self._run, name="stairwell-scheduler", daemon=True)
        self.thread.start()

    def reset_batch(self) -> None:
        """Start with an empty batch."""
        self.running: list[DecodingSequence] = []  # in the order of the session's batch
        self.session = Session(self.model, self.model.init_state(1), capacity=self.batch_size)
        self.session.select([])
        self.logits: Tensor | None = None  # (B, V)

    def submit(self, *requests: SequenceRequest) -> None:
        """Queue all requests, or raise a `RequestError` and queue none."""
        with self.changed:
            if self.closing:
                raise RequestError(503, "the server is shutting down")
            if len(self.queue) + len(self.running) + len(requests) > self.batch_size + self.max_waiting:
                self.counts["rejected"] += 1
                raise RequestError(429, f"{len(self.queue)} sequences are waiting already; try again later")
            for request in requests:
                request.prompt.last_scheduled = next(self.schedule_counter)
            self.queue.extend(requests)
            self.changed.notify()

    def close(self) -> None:
        """Finish the sequences that have started to decode, and cancel the others."""
        with self.changed:
            self.closing = True
            started = [request for request in self.queue if request.sequence is not None]
            for request in self.queue:
                if request.sequence is None:
                    request.on_output(Finished("cancelled"))
            self.queue = deque(started)
            self.changed.notify()
        self.thread.join()

    def abort(self) -> None:
        """Cancel all sequences after the current decode step; return immediately."""
        with self.changed:
            self.closing = self.aborted = True
            self.changed.notify()

    def _run(self) -> None:
        """Schedule and decode until the scheduler is closed."""
        with torch.no_grad():
            while True:
                with self.changed:
                    while not self.queue and not self.running and not self.closing:
                        self.changed.wait()
                    if self.aborted:
                        for request in [*self.queue, *(sequence.request for sequence in self.running)]:
                            request.on_output(Finished("cancelled"))
                        self.queue.clear()
                        self.running = []
                    if self.closing and not self.running and not self.queue:
                        return
                self._schedule()
                if self.running:
                    self._decode_step()

    def _schedule(self) -> None:
        """Prefill chunks of the waiting prompts, then preempt and admit sequences."""
        with self.changed:
            requests = list(self.queue)
        waiting = []
        for request in requests:
            if request.cancelled or time.monotonic() > request.deadline:
                finished = Finished("cancelled" if request.cancelled else "length")
                self._dequeue(request, finished if request.sequence is None else request.sequence.finished())
            else:
                waiting.append(request)
        prompts = list(dict.fromkeys(request.prompt for request in waiting))
        for prompt in prompts:
            prompt.ensure_started(self.model, self.vocabulary)
        pending = [prompt for prompt in prompts if prompt.remaining]
        # Longer chunks delay no one while no sequence is running.
        self._prefill(
            plan_prefill(
                pending,
                *((PREFILL_BUDGET, PREFILL_CHUNK) if self.running else (MAX_TOKENS_PER_CALL, MAX_TOKENS_PER_CALL)),
            )
        )
        for request in waiting:
            if request.prompt.failure is not None:
                self._dequeue(request, request.prompt.failure)
        ready = [request for request in waiting if request.prompt.failure is None and not request.prompt.remaining]
        preempted, admitted = assign_slots(
            self.running, [request for request in ready if request.max_tokens], self.batch_size
        )
        self._preempt(preempted)
        for request in [*(request for request in ready if not request.max_tokens), *admitted]:
            self._admit(request)

    def _prefill(self, ends: dict[Prompt, int]) -> None:
        """Prefill each prompt up to its planned end. Each call takes all prompts whose states can be joined, and stops
        at the nearest end."""
        for prompt in ends:
            prompt.last_scheduled = next(self.schedule_counter)
        while pending := [prompt for prompt in ends if prompt.failure is None and prompt.position < ends[prompt]]:
            joinable = [prompt for prompt in pending if max_crop(prompt) == max_crop(pending[0])]
            self._prefill_together(joinable, min(ends[prompt] - prompt.position for prompt in joinable))

    def _prefill_together(self, prompts: list[Prompt], T: int) -> None:
        """Prefill T tokens of each prompt. After an error, retry them one by one, so that only the faulty one fails."""
        positions = [prompt.position for prompt in prompts]
        try:
            self.counts["prompt_tokens"] += prefill(prompts, T, self.model)
        except Exception as error:
            if len(prompts) > 1:
                for prompt, position in zip(prompts, positions):
                    if prompt.position == position and prompt.failure is None:
                        self._prefill_together([prompt], T)
            elif isinstance(error, UserError):
                prompts[0].failure = Finished("invalid", str(error))
            else:
                log.exception("prefilling a prompt failed")
                self.counts["failed"] += 1
                prompts[0].failure = Finished("error")

    def _dequeue(self, request: SequenceRequest, finished: Finished | None) -> None:
        with self.changed:
            if request in self.queue:  # not if the scheduler is closing and has cancelled it
                self.queue.remove(request)
        if finished is not None:
            request.on_output(finished)

    def _admit(self, request: SequenceRequest) -> None:
        """Let a sequence whose prompt is prefilled, or that was preempted, join the batch."""
        if request.sequence is None:
            for output in request.prompt.echoed:
                request.on_output(output)
            request.sequence = DecodingSequence(request, self.vocabulary, self.device, self.longest_stream)
        sequence = request.sequence
        finished = sequence.finished()
        self._dequeue(request, finished)
        if finished is not None:
            return
        assert sequence.snapshot is not None and sequence.snapshot.logits is not None
        self.running.append(sequence)
        sequence.slice_start = request.generated
        try:
            self.session.join(sequence.snapshot.state)
            logits = sequence.snapshot.logits[None]
            self.logits = logits if self.logits is None else torch.cat([self.logits, logits])
            sequence.snapshot = None
        except Exception:
            self._fail()

    def _preempt(self, preempted: Sequence[int]) -> None:
        """Move running sequences back to the queue."""
        if not preempted:
            return
        assert self.logits is not None
        staying = [i for i in range(len(self.running)) if i not in preempted]
        try:
            states = self.session.state()
            for i in preempted:
                sequence = self.running[i]
                sequence.snapshot = Snapshot(states.select([i]), self.logits[i].clone(), sequence.recent)
            self.session.select(staying)
            self.logits = self.logits[staying]
        except Exception:
            self._fail()
            return
        with self.changed:
            self.queue.extend(self.running[i].request for i in preempted)
        self.running = [self.running[i] for i in staying]

    def _fail(self) -> None:
        """End all running sequences after an error, and continue with an empty batch."""
        log.exception("a decode step failed")
        self.counts["failed"] += 1
        for sequence in self.running:
            sequence.request.on_output(Finished("error"))
        self.reset_batch()

    def _decode_step(self) -> None:
        """Sample a token for every sequence; remove the finished ones and feed the tokens of the others."""
        assert self.logits is not None
        tokens, staying = [], []
        for i, sequence in enumerate(self.running):
            finished = sequence.finished()
            if finished is None:
                token, finished = self._sample(sequence, self.logits[i])
                if finished is None:
                    tokens.append(token)
                    staying.append(i)
            if finished is not None:
                sequence.request.on_output(finished)
        shrinks = len(staying) < len(self.running)
        self.running = [self.running[i] for i in staying]
        try:
            if shrinks:
                self.session.select(staying)
            self.logits = self.session.step(torch.tensor(tokens, device=self.device)) if self.running else None
            self.counts["steps"] += len(self.running) > 0
        except Exception:
            self._fail()

    def _sample(self, sequence: DecodingSequence, logits: Tensor) -> tuple[int, Finished | None]:
        """Sample the next token of a sequence; an error ends this sequence alone."""
        try:
            check_finite(logits)
            token = sequence.sample(logits)
            self.counts["generated_tokens"] += 1
            finished = sequence.finished()
            self._measure(sequence.request, finished)
            return token, finished
        except UserError as error:
            return 0, Finished("invalid", str(error))
        except Exception:
            log.exception("sampling a token failed")
            self.counts["failed"] += 1
            return 0, Finished("error")

    def _measure(self, request: SequenceRequest, finished: Finished | None) -> None:
        """Measure the latency of the token that was just sampled."""
        now = time.monotonic()
        if request.generated == 1:
            request.first_token_time = now
            self.latency.first_token.observe(now - request.submitted)
        if finished is not None and request.generated > 1:
            self.latency.output_token.observe((now - request.first_token_time) / (request.generated - 1))


def max_crop(prompt: Prompt) -> int:
    """Return how many of the most recent tokens can be removed from a prompt's state (`State.max_crop`); only states
    with an equal number can be joined."""
    assert prompt.snapshot is not None
    return prompt.snapshot.state.max_crop
