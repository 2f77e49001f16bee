"""`POST /v1/completions`: a request becomes jobs of the batch, and what the batch tells becomes an answer, whole or
as a stream of server-sent events."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator, Iterable
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from stairwell.serve.batch import Busy, Done, Job, Prompt, Token
from stairwell.serve.requests import Completion, Refused, completion
from stairwell.serve.service import (
    UNFINISHED,
    Service,
    error,
    read_json,
    service_of,
    unfinished,
    until_gone,
)
from stairwell.serve.states import beginning

END = "data: [DONE]\n\n"
SMALL = 64  # an answer is small if so many make the size that all may have


async def completions(request: Request) -> Response:
    service = service_of(request)
    body = await read_json(request)
    asked = await service.parse(lambda: completion(body, service.vocabulary, service.name, service.limits))
    begin = None
    if asked.state is not None:
        begin = await service.attend(request, service.work(lambda: going_on(service, asked)))
    answer = Answer(service, asked, begin)
    if not asked.stream:
        return await answer.whole(request)
    return Events(answer)


def going_on(service: Service, asked: Completion) -> Any:
    """The state that a request goes on from; the request does not change it."""
    past = service.states.read(str(asked.state))
    if past.logits is None and not all(asked.prompts):
        raise Refused(409, "the state has read nothing yet and a prompt is empty: nothing is known of what follows")
    return beginning(service.model, past)


class Inbox:
    """What the batch's thread tells a request; the event loop takes it, all that there is at a time. `eager`: it is
    woken for every token, not only when a text is done."""

    def __init__(self, eager: bool) -> None:
        self.eager, self.loop = eager, asyncio.get_running_loop()
        self.told: deque[tuple[int, Token | Done]] = deque()
        self.arrived, self.woken = asyncio.Event(), False

    def put(self, index: int, what: Token | Done) -> None:
        self.told.append((index, what))
        if not self.woken and (self.eager or isinstance(what, Done)):
            self.woken = True
            try:
                self.loop.call_soon_threadsafe(self.arrived.set)
            except RuntimeError:  # the server is gone, and with it everyone who could take it
                self.told.clear()

    async def take(self) -> list[tuple[int, Token | Done]]:
        await self.arrived.wait()
        self.arrived.clear()
        self.woken = False  # before looking: what comes later wakes again
        return [self.told.popleft() for _ in range(len(self.told))]


class Answer:
    """The texts of one request, while they are written. `close` must be called when nobody waits for them any more."""

    def __init__(self, service: Service, asked: Completion, begin: Any) -> None:
        self.service, self.asked = service, asked
        self.name, self.created = f"cmpl-{uuid.uuid4().hex}", int(time.time())
        self.inbox = Inbox(asked.stream)
        deadline = time.monotonic() + service.limits.seconds
        self.jobs: list[Job] = []
        for ids in asked.prompts:
            prompt = Prompt(ids, begin, asked.echo, asked.logprobs)
            for _ in range(asked.n):
                self.jobs.append(self._job(prompt, len(self.jobs), deadline))
        # Small ones always come in, so that a few large answers do not keep everybody out.
        if asked.told > service.limits.told // SMALL and service.told + asked.told > service.limits.told:
            raise Busy(f"answers of a size of {service.told} are in the making already; try again later")
        service.batch.submit(*self.jobs)
        service.batch.counts["requests"] += 1
        service.told += asked.told
        self.offsets = [0] * len(self.jobs)
        self.open = True

    def _job(self, prompt: Prompt, index: int, deadline: float) -> Job:
        asked = self.asked
        seed = None if asked.seed is None else (asked.seed + index) % 2**63  # several texts differ, and all are fixed
        return Job(
            prompt,
            asked.tokens,
            asked.choice,
            lambda what: self.inbox.put(index, what),
            asked.stop,
            seed,
            deadline,
            self,
        )

    def close(self) -> None:
        if self.open:
            self.open = False
            self.service.told -= self.asked.told
            for job in self.jobs:
                job.cancelled = True

    async def whole(self, request: Request) -> Response:
        told: list[list[Token | Done]] = [[] for _ in self.jobs]
        left = len(self.jobs)
        leaving = asyncio.ensure_future(until_gone(request))
        try:
            while left:
                taking = asyncio.ensure_future(self.inbox.take())
                await asyncio.wait([taking, leaving], return_when=asyncio.FIRST_COMPLETED)
                if not taking.done():
                    taking.cancel()
                    return error(400, "the client left")
                for index, what in taking.result():
                    told[index].append(what)
                    left -= isinstance(what, Done)
            for each in told:
                done = each[-1]
                if isinstance(done, Done) and done.reason in UNFINISHED:
                    return error(UNFINISHED[done.reason], unfinished(done))
            content = await run_in_threadpool(lambda: self.body([self.part(i, told[i]) for i in range(len(told))]))
            return Response(content, media_type="application/json")
        finally:
            leaving.cancel()
            self.close()

    def body(self, choices: list[dict[str, Any]]) -> bytes:
        return bytes(JSONResponse({**self.envelope(choices), "usage": self.usage()}).body)

    async def events(self) -> AsyncIterator[str]:
        left = len(self.jobs)
        while left:
            parts: list[str] = []
            for index, told in by_text(await self.inbox.take()):
                done = told[-1]
                if isinstance(done, Done) and done.reason in UNFINISHED:
                    status = UNFINISHED[done.reason]
                    kind = "invalid_request_error" if status < 500 else "server_error"
                    wrong = event({"error": {"message": unfinished(done), "type": kind, "code": status}})
                    yield "".join(parts) + wrong + END
                    return
                left -= isinstance(done, Done)
                parts.append(event(self.envelope([self.part(index, told)])))
            yield "".join(parts)
        if self.asked.usage:
            yield event({**self.envelope([]), "usage": self.usage()})
        yield END

    def part(self, index: int, told: list[Token | Done]) -> dict[str, Any]:
        """What has come of one text, as a choice of OpenAI's."""
        tokens = [what for what in told if isinstance(what, Token)]
        done = told[-1] if isinstance(told[-1], Done) else None
        shown = "".join(what.text for what in told)
        choice: dict[str, Any] = {"index": index, "text": shown, "logprobs": None}
        choice["finish_reason"] = done.reason if done is not None else None
        if self.asked.logprobs is not None:
            choice["logprobs"] = self.logprobs(index, tokens)
        return choice

    def logprobs(self, index: int, tokens: list[Token]) -> dict[str, Any]:
        spelled, offsets = self.service.spelled, []
        for token in tokens:
            offsets.append(self.offsets[index])
            self.offsets[index] += token.length
        return {
            "tokens": [spelled(token.id) for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [
                {spelled(i): value for i, value in token.top} if token.logprob is not None else None for token in tokens
            ],
            "text_offset": offsets,
        }

    def envelope(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.name,
            "object": "text_completion",
            "created": self.created,
            "model": self.service.name,
            "choices": choices,
        }

    def usage(self) -> dict[str, int]:
        read, written = sum(map(len, self.asked.prompts)), sum(job.written for job in self.jobs)
        return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


class Events(StreamingResponse):
    """An answer as it is written. However it ends, also before it has begun, its rows become free."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.events(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})
        self.answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.answer.close()


def by_text(told: Iterable[tuple[int, Token | Done]]) -> Iterable[tuple[int, list[Token | Done]]]:
    """What was told of each text, together: a client that reads slowly gets more at a time."""
    found: dict[int, list[Token | Done]] = {}
    for index, what in told:
        found.setdefault(index, []).append(what)
    return found.items()


def event(content: dict[str, Any]) -> str:
    # In ASCII: there are clients that take U+2028 for the end of a line.
    return f"data: {json.dumps(content)}\n\n"
