"""Scheduling: long prompts, work on states and disconnected clients do not delay other clients."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import torch

from stairwell import FeedbackConfig, LanguageModel, LanguageModelConfig
from stairwell.decode import Sampling
from stairwell.serve import scheduler as scheduler_module
from stairwell.serve.app import make_app
from stairwell.serve.limits import Limits, RequestError
from stairwell.serve.scheduler import (
    MIN_PREFILL_CHUNK,
    PREFILL_BUDGET,
    TIME_SLICE,
    DecodingSequence,
    Finished,
    Output,
    Prompt,
    Scheduler,
    SequenceRequest,
    assign_slots,
    plan_prefill,
)
from stairwell.stream import MAX_TOKENS_PER_CALL
from stairwell.text import Bytes
from tests.serve.conftest import LocalServer, run_server
from tests.serve.test_bad_clients import check_healthy, connect, head

torch.manual_seed(0)
CORE = FeedbackConfig(width=16, heads=2, layers=2, memory=12)
MODEL = LanguageModel(LanguageModelConfig(core=CORE, inputs=256)).eval()
LONG = b"x" * 4000


class RecordingScheduler(Scheduler):
    """Records how many tokens each iteration prefills. Iterations wait while `may_run` is cleared."""

    def __init__(self) -> None:
        self.prefilled: list[int] = []  # tokens, per iteration
        self.may_run = threading.Event()
        self.may_run.set()
        super().__init__(MODEL, Bytes())

    def _schedule(self) -> None:
        assert self.may_run.wait(60)
        before = self.counts["prompt_tokens"]
        super()._schedule()
        self.prefilled.append(self.counts["prompt_tokens"] - before)


def submit(scheduler: Scheduler, prompt: bytes, tokens: int) -> tuple[SequenceRequest, threading.Event]:
    """Submit a request; return it with an event that is set when it is finished."""
    finished = threading.Event()

    def on_output(output: Output) -> None:
        if isinstance(output, Finished):
            finished.set()

    request = SequenceRequest(Prompt(list(prompt)), tokens, Sampling(), on_output)
    scheduler.submit(request)
    return request, finished


def wait_until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_short_request_is_served_while_many_long_prompts_are_read() -> None:
    scheduler = RecordingScheduler()
    try:
        scheduler.may_run.clear()
        long = [submit(scheduler, LONG, 1)[0] for _ in range(40)]
        _, finished = submit(scheduler, b"abc", 16)
        scheduler.may_run.set()
        assert finished.wait(60)
        assert all(request.prompt.remaining for request in long), "no long prompt was prefilled completely before"
        # It waits one round for its prefill, then one iteration per token.
        assert len(scheduler.prefilled) <= -(-40 * MIN_PREFILL_CHUNK // MAX_TOKENS_PER_CALL) + 16 + 3
        assert all(request.prompt.position > 0 for request in long), "long prompts are prefilled too"
        for request in long:
            request.cancelled = True
    finally:
        scheduler.close()


def test_an_iteration_prefills_no_more_than_its_budget() -> None:
    scheduler = RecordingScheduler()
    try:
        running, _ = submit(scheduler, b"a", 4000)
        wait_until(lambda: scheduler.running)
        scheduler.may_run.clear()
        time.sleep(0.05)  # until the current iteration is over
        scheduler.prefilled.clear()
        submitted = [submit(scheduler, LONG, 1) for _ in range(9)]
        scheduler.may_run.set()
        assert all(finished.wait(60) for _, finished in submitted)
        assert PREFILL_BUDGET / 2 < max(scheduler.prefilled) <= PREFILL_BUDGET
        running.cancelled = True
    finally:
        scheduler.close()


def test_prompts_that_waited_longest_are_prefilled_first() -> None:
    prompts = [Prompt([0] * length) for length in (1000, 3, 1000, 1000, 50)]
    for turn, prompt in zip((5, 4, 3, 2, 1), prompts):
        prompt.last_scheduled = turn
    chunk = max(MIN_PREFILL_CHUNK, 512 // 5)
    assert [*plan_prefill(prompts, 512, 128).values()] == [50, chunk, chunk, 3, chunk]
    assert [*plan_prefill(prompts, 200, 128)] == [prompts[4], prompts[3], prompts[2], prompts[1]]
    assert [*plan_prefill(prompts[:1], 512, 128).values()] == [128]
    assert not plan_prefill([], 512, 128)


def test_prefilling_needs_no_slot() -> None:
    """A state is created, and a text is scored, while the batch is full."""
    with run_server(make_app(MODEL, Bytes(), batch_size=1)) as server, connect(server) as client:
        body = b'{"prompt": "abc", "max_tokens": 4000, "stream": true}'
        client.sendall(head(len(body)) + body)
        wait_until(lambda: server.service.scheduler.running)
        created = server.post("/v1/states", {"prompt": "abc"})
        scored = server.post("/v1/completions", {"prompt": "abc", "max_tokens": 0, "echo": True, "logprobs": 0})
        assert created.status_code == 201 and scored.status_code == 200
        assert server.service.scheduler.running, "the sequence is still running"


def test_a_request_with_many_sequences_leaves_slots_to_others() -> None:
    with run_server(make_app(MODEL, Bytes(), batch_size=2)) as server, connect(server) as client:
        body = b'{"prompt": "abc", "n": 16, "max_tokens": 4000, "stream": true}'
        client.sendall(head(len(body)) + body)
        scheduler = server.service.scheduler
        wait_until(lambda: len(scheduler.running) == 2)
        check_healthy(server)
        assert len(scheduler.running) + len(scheduler.queue) >= 16, "none of the 16 sequences is finished"


def test_owners_share_slots_evenly() -> None:
    def running_sequences(owners: str, generated: int) -> list[Any]:
        requests = [SimpleNamespace(owner=owner, generated=generated) for owner in owners]
        return [SimpleNamespace(request=request, slice_start=0) for request in requests]

    def assigned(running: str, ready: str, slots: int, generated: int = 0) -> tuple[list[int], str]:
        requests = [SequenceRequest(Prompt([]), 1, Sampling(), print, owner=owner) for owner in ready]
        preempted, admitted = assign_slots(running_sequences(running, generated), requests, slots)
        return preempted, "".join(str(request.owner) for request in admitted)

    assert assigned("", "aab", 2) == ([], "ab"), "free slots go to the owner with the fewest"
    assert assigned("aaaa", "ab", 4) == ([0], "b"), "a new owner preempts an owner of many slots immediately"
    assert assigned("aaaa", "bbb", 4) == ([0, 1], "bb"), "until both have the same number"
    assert assigned("aaaa", "aa", 4, TIME_SLICE) == ([], ""), "an owner does not preempt its own sequences"
    assert assigned("ab", "c", 2, TIME_SLICE - 1) == ([], "") and assigned("ab", "c", 2, TIME_SLICE) == ([0], "c")


def test_a_preempted_sequence_continues_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its repetition penalty, frequency penalty, partial characters and held-back text."""
    monkeypatch.setattr(scheduler_module, "TIME_SLICE", 3)
    options = {"max_tokens": 40, "repetition_penalty": 1.3, "logprobs": 1, "stop": ["never so"], "frequency_penalty": 1}
    bodies = [{"prompt": "abc" * (i + 1), "seed": i, "n": n, **options} for i, n in enumerate((1, 3, 1, 2, 1, 3))]

    async def use(port: int) -> None:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            alone = [(await client.post("/v1/completions", json=body)).json()["choices"] for body in bodies]
            together = await asyncio.gather(*(client.post("/v1/completions", json=body) for body in bodies))
            for choices, answer in zip(alone, together):
                for expected, choice in zip(choices, answer.json()["choices"], strict=True):
                    assert choice["text"] == expected["text"] and choice["finish_reason"] == expected["finish_reason"]
                    for field in ("tokens", "text_offset"):
                        assert choice["logprobs"][field] == expected["logprobs"][field]

    preempted: list[int] = []
    with run_server(make_app(MODEL, Bytes(), batch_size=3)) as server:
        scheduler = server.service.scheduler
        preempt = scheduler._preempt
        monkeypatch.setattr(scheduler, "_preempt", lambda indices: (preempted.extend(indices), preempt(indices)))
        asyncio.run(use(server.port))
        assert len(preempted) > 10 and {0, 1} <= set(preempted) and scheduler.counts["failed"] == 0


def test_a_preempted_sequence_outputs_held_back_text_at_its_deadline() -> None:
    outputs: list[Any] = []
    scheduler = Scheduler(MODEL, Bytes(), batch_size=1)
    scheduler.close()  # so that only this thread uses it
    request = SequenceRequest(Prompt([]), 10, Sampling(), outputs.append)
    request.prompt.ensure_started(MODEL, Bytes())
    request.sequence = DecodingSequence(request, Bytes(), torch.device("cpu"), None)
    request.sequence.stops.held, request.deadline = "held", 0.0
    scheduler.queue.append(request)
    scheduler._schedule()
    assert outputs == [Finished("length", "held")] and not scheduler.queue


def test_a_preempted_sequence_ends_at_its_deadline_and_on_abort() -> None:
    outputs: list[Any] = []

    def reasons() -> list[str]:
        return [output.reason for output in outputs if isinstance(output, Finished)]

    def request(owner: int) -> SequenceRequest:
        return SequenceRequest(Prompt(list(b"abc")), 10**6, Sampling(), outputs.append, owner=owner)

    scheduler = Scheduler(MODEL, Bytes(), batch_size=1)
    first, second = request(1), request(2)
    scheduler.submit(first)
    wait_until(lambda: first.generated > TIME_SLICE)
    scheduler.submit(second)
    wait_until(lambda: second.generated > TIME_SLICE and first.generated > 2 * TIME_SLICE)
    first.deadline = 0.0
    wait_until(lambda: reasons() == ["length"])
    scheduler.submit(request(3))
    wait_until(lambda: scheduler.queue)
    scheduler.abort()
    scheduler.thread.join(30)
    assert reasons() == ["length", "cancelled", "cancelled"]


def pause(server: LocalServer) -> Callable[[], None]:
    """Pause the scheduler until the returned function is called."""
    scheduler, resumed = server.service.scheduler, threading.Event()
    schedule = scheduler._schedule

    def wait_and_schedule() -> None:
        assert resumed.wait(60)
        schedule()

    scheduler._schedule = wait_and_schedule  # type: ignore[method-assign]
    return resumed.set


def test_work_on_a_state_is_cancelled_when_its_client_disconnects() -> None:
    """Its prompt is not read to the end, and no state is stored whose id no one knows."""
    limits = Limits(states=1)
    with run_server(make_app(MODEL, Bytes(), limits=limits)) as server:
        scheduler, resume = server.service.scheduler, pause(server)
        client = connect(server)
        body = b'{"prompt": "%s"}' % (b"x" * 16_000)
        client.sendall(head(len(body), "/v1/states") + body)
        wait_until(lambda: scheduler.queue)
        client.close()
        wait_until(lambda: scheduler.queue[0].cancelled)
        resume()
        server.wait_until_idle()
        assert scheduler.counts["prompt_tokens"] <= MAX_TOKENS_PER_CALL
        assert len(server.service.states) == 0
        assert server.post("/v1/states", {"prompt": "abc"}).status_code == 201


def test_a_restored_state_is_not_stored_if_its_client_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    with run_server(make_app(MODEL, Bytes())) as server:
        states = server.service.states
        started, resumed, restore = threading.Event(), threading.Event(), states.restore

        def wait_and_restore(content: bytes) -> Any:
            started.set()
            assert resumed.wait(60)
            return restore(content)

        id = server.post("/v1/states", {"prompt": "abc"}).json()["id"]
        content = httpx.get(f"http://127.0.0.1:{server.port}/v1/states/{id}/save").content
        monkeypatch.setattr(states, "restore", wait_and_restore)
        client = connect(server)
        binary = b"application/octet-stream"
        client.sendall(head(len(content), "/v1/states/restore").replace(b"application/json", binary) + content)
        assert started.wait(30)
        client.close()
        wait_until(lambda: not server.in_use["requests"])
        resumed.set()
        server.wait_until_idle()
        assert len(states) == 1, "only the first state is stored"


def test_work_on_states_has_a_deadline() -> None:
    with run_server(make_app(MODEL, Bytes(), limits=Limits(seconds=0.3))) as server:
        id = server.post("/v1/states", {"prompt": "abc"}).json()["id"]
        resume = pause(server)
        created = server.post("/v1/states", {"prompt": "x" * 9000})
        fed = server.post(f"/v1/states/{id}/feed", {"prompt": "x" * 9000})
        for answer in (created, fed):
            assert answer.status_code == 503 and "longer than 0.3 seconds" in answer.json()["error"]["message"]
        resume()
        assert httpx.get(f"http://127.0.0.1:{server.port}/v1/states/{id}").json()["tokens"] == 3
        assert server.post(f"/v1/states/{id}/feed", {"prompt": "de"}).json()["tokens"] == 5
        check_healthy(server)
        assert server.in_use["waiting"] == 0 and len(server.service.states) == 1


def test_concurrent_feeds_of_one_state_are_all_read() -> None:
    with run_server(make_app(MODEL, Bytes())) as server:
        id = server.post("/v1/states", {"prompt": "abc"}).json()["id"]

        async def use() -> list[int]:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=60) as client:
                feed = f"/v1/states/{id}/feed"
                answers = await asyncio.gather(*(client.post(feed, json={"prompt": "d" * 700}) for _ in range(5)))
                return sorted(answer.json()["tokens"] for answer in answers)

        assert asyncio.run(use()) == [3 + 700 * i for i in range(1, 6)]


def test_a_state_deleted_while_it_is_fed_stays_deleted() -> None:
    with run_server(make_app(MODEL, Bytes())) as server:
        id = server.post("/v1/states", {"prompt": "abc"}).json()["id"]
        resume, statuses = pause(server), []
        feed = threading.Thread(
            target=lambda: statuses.append(server.post(f"/v1/states/{id}/feed", {"prompt": "d"}).status_code)
        )
        feed.start()
        wait_until(lambda: server.service.scheduler.queue)
        assert httpx.delete(f"http://127.0.0.1:{server.port}/v1/states/{id}").status_code == 204
        resume()
        feed.join(60)
        assert statuses == [404] and len(server.service.states) == 0


def test_a_client_that_disconnects_leaves_the_queue_immediately() -> None:
    """Also from its end, and while the batch is full: others can take its place."""
    with run_server(make_app(MODEL, Bytes(), batch_size=1, max_waiting=1)) as server, connect(server) as first:
        body = b'{"prompt": "abc", "max_tokens": 4000, "stream": true}'
        first.sendall(head(len(body)) + body)
        wait_until(lambda: server.service.scheduler.running)
        with connect(server) as second:
            second.sendall(head(len(body)) + body)
            wait_until(lambda: server.service.scheduler.queue)
            assert server.post("/v1/completions", {"prompt": "a", "max_tokens": 0}).status_code == 429
            second.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        wait_until(lambda: not server.service.scheduler.queue)
        assert server.service.scheduler.running
        assert server.post("/v1/completions", {"prompt": "a", "max_tokens": 0}).status_code == 200


def test_a_closed_scheduler_rejects_requests_as_unavailable() -> None:
    scheduler = Scheduler(MODEL, Bytes())
    scheduler.close()
    with pytest.raises(RequestError, match="the server is shutting down") as caught:
        scheduler.submit(SequenceRequest(Prompt([0]), 10, Sampling(), print))
    assert caught.value.status == 503
