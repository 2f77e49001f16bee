"""`POST /v1/completions`: a request becomes sequences of the scheduler, and their outputs become one response or a
stream of server-sent events."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Generic, TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from stairwell.serve.limits import RequestError
from stairwell.serve.openapi import CompletionChoice, Logprobs, Usage
from stairwell.serve.request_log import note
from stairwell.serve.requests import GenerationRequest, encode_prompts
from stairwell.serve.scheduler import Finished, Output, Prompt, SequenceRequest, TokenOutput
from stairwell.serve.service import (
    FAILURES,
    Service,
    error_body,
    error_response,
    failure_message,
    read_request,
    service_of,
    wait_for_disconnect,
)
from stairwell.serve.snapshot import Snapshot
from stairwell.state import with_max_crop

END = "data: [DONE]\n\n"
SMALL = 64  # requests with at most this fraction of the total output size are always accepted


async def complete(request: Request) -> Response:
    service = service_of(request)
    body = await read_request(request, service.models.complete)
    prompts = await service.parse(lambda: encode_prompts(body, service.vocabulary, service.limits))
    start = await find_start(request, body, prompts)
    return await respond(request, Completion(service, body, prompts, start))


async def respond(request: Request, completion: Completion[Any]) -> Response:
    """Return the response to a completion, or the stream of its events."""
    completion.note = partial(note, request.scope)
    return EventResponse(completion) if completion.body.stream else await completion.response(request)


async def find_start(request: Request, body: GenerationRequest, prompts: Sequence[Sequence[int]]) -> Snapshot | None:
    """Return the snapshot to continue from, if the request names a state."""
    service, id = service_of(request), body.state
    if id is None:
        return None
    load = service.run_in_worker(lambda: load_start(service, id, prompts))
    return await service.run_while_connected(request, load)


def load_start(service: Service, id: str, prompts: Sequence[Sequence[int]]) -> Snapshot:
    """Return the snapshot to continue from. Decoding does not crop, so it has no memory to crop."""
    snapshot = service.states.get(id)
    if snapshot.logits is None and not all(prompts):
        raise RequestError(409, "the state has read no token and a prompt is empty; give a prompt")
    return replace(snapshot, state=with_max_crop(service.model.core, snapshot.state, 0))


class OutputQueue:
    """Outputs from the scheduler's thread for the event loop. `every_token` wakes the event loop for every token, not
    only when a sequence is finished."""

    def __init__(self, every_token: bool) -> None:
        self.every_token, self.loop = every_token, asyncio.get_running_loop()
        self.outputs: deque[tuple[int, Output]] = deque()
        self.event, self.notified = asyncio.Event(), False

    def put(self, index: int, output: Output) -> None:
        self.outputs.append((index, output))
        if not self.notified and (self.every_token or isinstance(output, Finished)):
            self.notified = True
            try:
                self.loop.call_soon_threadsafe(self.event.set)
            except RuntimeError:  # the event loop is closed
                self.outputs.clear()

    async def get_all(self) -> list[tuple[int, Output]]:
        """Wait for outputs and return all that are there, with the index of their sequence."""
        await self.event.wait()
        self.event.clear()
        self.notified = False  # before reading: a later output notifies again
        return [self.outputs.popleft() for _ in range(len(self.outputs))]


RequestT = TypeVar("RequestT", bound=GenerationRequest)


class Completion(Generic[RequestT]):
    """A completion request in progress. Call `close` when no one waits for its outputs any more."""

    id_prefix, object, object_of_part = "cmpl", "text_completion", "text_completion"

    def __init__(self, service: Service, body: RequestT, prompts: list[list[int]], start: Snapshot | None) -> None:
        self.service, self.body, self.prompts = service, body, prompts
        self.id, self.created = f"{self.id_prefix}-{uuid.uuid4().hex}", int(time.time())
        self.note: Callable[..., None] = lambda **details: None  # for the request log
        self.reasons: dict[int, str] = {}  # why each sequence finished
        self.queue = OutputQueue(bool(body.stream))
        self.requests = self._sequence_requests(start)
        self.size, limit = body.output_size(prompts, service.limits), service.limits.total_output
        # Small requests are always accepted, so that a few large ones do not block all others.
        if self.size > limit // SMALL and service.output + self.size > limit:
            raise RequestError(
                429, f"the requests in progress have an output size of {service.output} already; try again later"
            )
        service.scheduler.submit(*self.requests)
        service.scheduler.counts["requests"] += 1
        service.output += self.size
        self.offsets = [0] * len(self.requests)
        self.open = True

    def _sequence_requests(self, start: Snapshot | None) -> list[SequenceRequest]:
        body, limits = self.body, self.service.limits
        deadline = time.monotonic() + limits.seconds
        max_tokens, sampling, processor = body.token_limit(limits), body.sampling(), body.logits_processor()
        # Ranking the sequences of best_of needs the log-probabilities of their tokens.
        logprobs = 0 if body.alternatives is None and body.generated > body.returned else body.alternatives
        requests: list[SequenceRequest] = []
        for ids in self.prompts:
            prompt = Prompt(ids, start, body.echoes, logprobs)
            for _ in range(body.generated):
                index = len(requests)
                seed = None if body.seed is None else body.seed + index  # sequences must differ
                requests.append(
                    SequenceRequest(
                        prompt,
                        max_tokens,
                        sampling,
                        partial(self.queue.put, index),
                        body.stop_strings,
                        seed,
                        deadline,
                        self,
                        processor,
                    )
                )
        return requests

    def close(self) -> None:
        if self.open:
            self.open = False
            self.service.output -= self.size
            for request in self.requests:
                request.cancelled = True
            usage = self._usage()
            reasons = [self.reasons.get(index, "cancelled") for index in range(len(self.requests))]
            self.note(
                prompt_tokens=usage["prompt_tokens"], completion_tokens=usage["completion_tokens"],
                finish=",".join(dict.fromkeys(reasons)),
            )  # fmt: skip

    async def response(self, request: Request) -> Response:
        """Return one response when all sequences are finished."""
        outputs: list[list[Output]] = [[] for _ in self.requests]
        unfinished = len(self.requests)
        disconnected = asyncio.ensure_future(wait_for_disconnect(request))
        try:
            while unfinished:
                arrived = asyncio.ensure_future(self.queue.get_all())
                await asyncio.wait([arrived, disconnected], return_when=asyncio.FIRST_COMPLETED)
                if not arrived.done():
                    arrived.cancel()
                    return error_response(400, "the client disconnected")
                for index, output in arrived.result():
                    outputs[index].append(output)
                    unfinished -= self._is_finished(index, output)
            for sequence in outputs:
                if failed := failure(sequence[-1]):
                    return error_response(*failed)
            content = await run_in_threadpool(lambda: self._content(outputs))
            return Response(content, media_type="application/json")
        finally:
            disconnected.cancel()
            self.close()

    def _content(self, outputs: list[list[Output]]) -> bytes:
        choices: list[dict[str, Any]] = []
        for first in range(0, len(outputs), self.body.generated):
            candidates = list(range(first, first + self.body.generated))
            if self.body.generated > self.body.returned:
                candidates.sort(key=lambda i: self._mean_logprob(i, outputs[i]), reverse=True)
            for i in candidates[: self.body.returned]:
                choices.append({**self._choice(i, outputs[i]), "index": len(choices)})
        return bytes(JSONResponse({**self._envelope(choices), "usage": self._usage()}).body)

    def _mean_logprob(self, index: int, outputs: Sequence[Output]) -> float:
        """Return the mean log-probability of the generated tokens of a sequence."""
        scores = [output.logprob or 0.0 for output in outputs if isinstance(output, TokenOutput)]
        generated = self.requests[index].generated
        return sum(scores[len(scores) - generated :]) / max(generated, 1)

    async def events(self) -> AsyncIterator[str]:
        """Yield server-sent events as tokens are generated."""
        unfinished = len(self.requests)
        while unfinished:
            parts: list[str] = []
            for index, outputs in by_sequence(await self.queue.get_all()):
                unfinished -= self._is_finished(index, outputs[-1])
                if failed := failure(outputs[-1]):
                    yield "".join(parts) + event(error_body(*failed)) + END
                    return
                parts.append(event(self._envelope([self._part(index, outputs)], self.object_of_part)))
            yield "".join(parts)
        if self.body.stream_options is not None and self.body.stream_options.include_usage:
            yield event({**self._envelope([], self.object_of_part), "usage": self._usage()})
        yield END

    def _is_finished(self, index: int, output: Output) -> bool:
        if isinstance(output, Finished):
            self.reasons[index] = output.reason
        return isinstance(output, Finished)

    def _choice(self, index: int, outputs: list[Output]) -> Mapping[str, Any]:
        """Return outputs of one sequence as a choice of the OpenAI API."""
        choice: CompletionChoice = {
            "index": index,
            "text": "".join(output.text for output in outputs),
            "logprobs": None if self.body.alternatives is None else self._logprobs(index, tokens_of(outputs)),
            "finish_reason": finish_reason(outputs),
        }
        return choice

    def _part(self, index: int, outputs: list[Output]) -> Mapping[str, Any]:
        """Return outputs of one sequence as a choice of an event."""
        return self._choice(index, outputs)

    def _logprobs(self, index: int, tokens: list[TokenOutput]) -> Logprobs:
        token_text, offsets = self.service.token_text, []
        for token in tokens:
            offsets.append(self.offsets[index])
            self.offsets[index] += token.length
        return {
            "tokens": [token_text(token.id) for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [
                {token_text(id): value for id, value in token.top_logprobs} if token.logprob is not None else None
                for token in tokens
            ],
            "text_offset": offsets,
        }

    def _envelope(self, choices: Sequence[Mapping[str, Any]], object: str | None = None) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": object or self.object,
            "created": self.created,
            "model": self.service.name,
            "choices": choices,
        }

    def _usage(self) -> Usage:
        read, generated = sum(map(len, self.prompts)), sum(request.generated for request in self.requests)
        return {"prompt_tokens": read, "completion_tokens": generated, "total_tokens": read + generated}


class EventResponse(StreamingResponse):
    """A stream of server-sent events. However it ends, also before its start, its sequences leave the batch."""

    def __init__(self, completion: Completion[Any]) -> None:
        super().__init__(completion.events(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})
        self.completion = completion

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.completion.close()


def failure(output: Output) -> tuple[int, str] | None:
    """Return the status and the message of an output that ends a sequence without a result."""
    if isinstance(output, Finished) and output.reason in FAILURES:
        return FAILURES[output.reason], failure_message(output)
    return None


def tokens_of(outputs: Iterable[Output]) -> list[TokenOutput]:
    return [output for output in outputs if isinstance(output, TokenOutput)]


def finish_reason(outputs: Sequence[Output]) -> Any:
    last = outputs[-1]
    return last.reason if isinstance(last, Finished) else None


def by_sequence(outputs: Iterable[tuple[int, Output]]) -> Iterable[tuple[int, list[Output]]]:
    """Group outputs by sequence: a client that reads slowly gets several tokens per event."""
    groups: dict[int, list[Output]] = {}
    for index, output in outputs:
        groups.setdefault(index, []).append(output)
    return groups.items()


def event(content: Mapping[str, Any]) -> str:
    # In ASCII: some clients treat U+2028 as the end of a line.
    return f"data: {json.dumps(content)}\n\n"
