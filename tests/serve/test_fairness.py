"""Nobody waits for what others ask for: long prompts, work on states, clients that left."""

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
from stairwell.generate import Choice
from stairwell.serve import batch as batching
from stairwell.serve.app import make_app
from stairwell.serve.batch import PREFILL, SHORTEST_PART, TURN, Batch, Done, Job, Prompt, Token, next_parts, next_rows
from stairwell.serve.requests import Limits
from stairwell.stream import AT_ONCE
from stairwell.text import Bytes
from tests.serve.conftest import Inside, inside
from tests.serve.test_bad_clients import connect, head, is_well

torch.manual_seed(0)
CORE = FeedbackConfig(width=16, heads=2, layers=2, memory=12)
MODEL = LanguageModel(LanguageModelConfig(core=CORE, inputs=256)).eval()
LONG = b"x" * 4000


class Watched(Batch):
    """A batch that records what each turn reads, and before which turn it is asked to hold."""

    def __init__(self, rows: int = 16) -> None:
        self.turns_read: list[int] = []  # tokens read before each step
        self.hold = threading.Event()
        self.hold.set()
        super().__init__(MODEL, Bytes(), rows)

    def _read(self) -> None:
        assert self.hold.wait(60)
        before = self.counts["prompt_tokens"]
        super()._read()
        self.turns_read.append(self.counts["prompt_tokens"] - before)


def submitted(batch: Batch, prompt: bytes, tokens: int) -> tuple[Job, threading.Event]:
    over = threading.Event()

    def tell(what: Token | Done) -> None:
        if isinstance(what, Done):
            over.set()

    job = Job(Prompt(list(prompt)), tokens, Choice(), tell)
    batch.submit(job)
    return job, over


def test_a_short_request_is_answered_beside_many_long_prompts() -> None:
    batch = Watched()
    try:
        batch.hold.clear()
        long = [submitted(batch, LONG, 1)[0] for _ in range(40)]
        _, over = submitted(batch, b"abc", 16)
        batch.hold.set()
        assert over.wait(60)
        assert all(job.prompt.left for job in long), "no long prompt was read to its end first"
        # It waits one round for its turn, then for one turn for each of its tokens.
        assert len(batch.turns_read) <= -(-40 * SHORTEST_PART // AT_ONCE) + 16 + 3
        assert all(job.prompt.read > 0 for job in long), "long prompts take their turns too"
        for job in long:
            job.cancelled = True
    finally:
        batch.close()


def test_a_turn_reads_no_more_than_its_budget() -> None:
    batch = Watched()
    try:
        writer, _ = submitted(batch, b"a", 4000)
        while not batch.active:
            time.sleep(0.001)
        batch.hold.clear()
        time.sleep(0.05)  # the turn that is under way
        batch.turns_read.clear()
        jobs = [submitted(batch, LONG, 1) for _ in range(9)]
        batch.hold.set()
        assert all(over.wait(60) for _, over in jobs)
        assert PREFILL / 2 < max(batch.turns_read) <= PREFILL
        writer.cancelled = True
    finally:
        batch.close()


def test_those_who_waited_longest_are_read_first() -> None:
    prompts = [Prompt([0] * length) for length in (1000, 3, 1000, 1000, 50)]
    for turn, prompt in zip((5, 4, 3, 2, 1), prompts):
        prompt.turn = turn
    each = max(SHORTEST_PART, 512 // 5)
    assert [*next_parts(prompts, 512, 128).values()] == [50, each, each, 3, each]
    assert [*next_parts(prompts, 200, 128)] == [prompts[4], prompts[3], prompts[2], prompts[1]]
    assert [*next_parts(prompts[:1], 512, 128).values()] == [128]
    assert not next_parts([], 512, 128)


def test_reading_needs_no_row() -> None:
    """A state is made, and a text is scored, although every row is taken."""
    with inside(make_app(MODEL, Bytes(), rows=1)) as server, connect(server) as writer:
        body = b'{"prompt": "abc", "max_tokens": 4000, "stream": true}'
        writer.sendall(head(len(body)) + body)
        while not server.service.batch.active:
            time.sleep(0.001)
        made = server.post("/v1/states", {"prompt": "abc"})
        scored = server.post("/v1/completions", {"prompt": "abc", "max_tokens": 0, "echo": True, "logprobs": 0})
        assert made.status_code == 201 and scored.status_code == 200
        assert server.service.batch.active, "the text is still being written"


def test_a_request_with_many_texts_leaves_rows_to_others() -> None:
    with inside(make_app(MODEL, Bytes(), rows=2)) as server, connect(server) as hog:
        body = b'{"prompt": "abc", "n": 16, "max_tokens": 4000, "stream": true}'
        hog.sendall(head(len(body)) + body)
        batch = server.service.batch
        until(lambda: len(batch.active) == 2)
        is_well(server)
        assert len(batch.active) + len(batch.queue) >= 16, "none of the many is done yet"


def test_requests_share_rows_evenly() -> None:
    def rows(text: str, written: int) -> list[Any]:
        return [SimpleNamespace(job=SimpleNamespace(owner=owner, written=written), turn=0) for owner in text]

    def chosen(active: str, ready: str, rows_: int, written: int = 0) -> tuple[list[int], str]:
        leaving, coming = next_rows(
            rows(active, written), [Job(Prompt([]), 1, Choice(), print, owner=owner) for owner in ready], rows_
        )
        return leaving, "".join(str(job.owner) for job in coming)

    assert chosen("", "aab", 2) == ([], "ab"), "free rows go to those who have fewest"
    assert chosen("aaaa", "ab", 4) == ([0], "b"), "a new request comes at once, and one of many texts gives way"
    assert chosen("aaaa", "bbb", 4) == ([0, 1], "bb"), "until they have as many"
    assert chosen("aaaa", "aa", 4, TURN) == ([], ""), "nothing is gained by one text of a request for another"
    assert chosen("ab", "c", 2, TURN - 1) == ([], "") and chosen("ab", "c", 2, TURN) == ([0], "c")


def test_a_text_that_gives_way_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the end, with what it remembers to repeat, the half of a character and what a stop string holds back."""
    monkeypatch.setattr(batching, "TURN", 3)
    options = {"max_tokens": 40, "repetition_penalty": 1.3, "logprobs": 1, "stop": ["never so"]}
    bodies = [{"prompt": "abc" * (i + 1), "seed": i, "n": n, **options} for i, n in enumerate((1, 3, 1, 2, 1, 3))]

    async def use(port: int) -> None:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            alone = [(await client.post("/v1/completions", json=body)).json()["choices"] for body in bodies]
            together = await asyncio.gather(*(client.post("/v1/completions", json=body) for body in bodies))
            for one, answer in zip(alone, together):
                for wanted, found in zip(one, answer.json()["choices"], strict=True):
                    assert found["text"] == wanted["text"] and found["finish_reason"] == wanted["finish_reason"]
                    for field in ("tokens", "text_offset"):
                        assert found["logprobs"][field] == wanted["logprobs"][field]

    gave_way: list[int] = []
    with inside(make_app(MODEL, Bytes(), rows=3)) as server:
        batch = server.service.batch
        give_way = batch._give_way
        monkeypatch.setattr(batch, "_give_way", lambda leaving: (gave_way.extend(leaving), give_way(leaving)))
        asyncio.run(use(server.port))
        assert len(gave_way) > 10 and {0, 1} <= set(gave_way) and batch.counts["failed"] == 0


def test_a_text_that_waits_for_another_row_when_its_time_is_up_tells_what_was_held_back() -> None:
    told: list[Any] = []
    batch = Batch(MODEL, Bytes(), rows=1)
    batch.close()  # so that only this thread uses it
    job = Job(Prompt([]), 10, Choice(), told.append)
    job.prompt.begin(MODEL, Bytes())
    job.row = batching.Row(job, Bytes(), torch.device("cpu"), None)
    job.row.stops.held, job.deadline = "held", 0.0
    batch.queue.append(job)
    batch._read()
    assert told == [Done("length", "held")] and not batch.queue


def test_a_text_that_waits_for_another_row_ends_in_time_and_on_shutdown() -> None:
    tells: list[Any] = []
    batch = Batch(MODEL, Bytes(), rows=1)
    first = Job(Prompt(list(b"abc")), 10**6, Choice(), tells.append, owner=1)
    batch.submit(first)
    until(lambda: first.written > TURN)
    second = Job(Prompt(list(b"abc")), 10**6, Choice(), tells.append, owner=2)
    batch.submit(second)
    until(lambda: second.written > TURN and first.written > 2 * TURN)
    first.deadline = 0.0
    until(lambda: [what.reason for what in tells if isinstance(what, Done)] == ["length"])
    batch.submit(Job(Prompt(list(b"abc")), 10**6, Choice(), tells.append, owner=3))
    until(lambda: batch.queue)
    batch.abort()
    batch.thread.join(30)
    assert [what.reason for what in tells if isinstance(what, Done)] == ["length", "cancelled", "cancelled"]


def held(server: Inside) -> Callable[[], None]:
    """Let the batch read nothing until the returned function is called."""
    batch, go = server.service.batch, threading.Event()
    whole = batch._read

    def read() -> None:
        assert go.wait(60)
        whole()

    batch._read = read  # type: ignore[method-assign]
    return go.set


def until(true: Callable[[], Any]) -> None:
    give_up = time.monotonic() + 30
    while not true():
        assert time.monotonic() < give_up
        time.sleep(0.01)


def test_work_on_states_is_cancelled_when_its_client_leaves() -> None:
    """Nothing more is read for it, and no state stays that nobody can ask for."""
    limits = Limits(states=1)
    with inside(make_app(MODEL, Bytes(), limits=limits)) as server:
        batch, go = server.service.batch, held(server)
        client = connect(server)
        body = b'{"prompt": "%s"}' % (b"x" * 16_000)
        client.sendall(head(len(body), "/v1/states") + body)
        until(lambda: batch.queue)
        client.close()
        until(lambda: batch.queue[0].cancelled)
        go()
        server.settle()
        assert batch.counts["prompt_tokens"] <= AT_ONCE
        assert len(server.service.states) == 0
        assert server.post("/v1/states", {"prompt": "abc"}).status_code == 201


def test_a_state_is_not_kept_for_a_client_that_left_while_it_was_restored(monkeypatch: Any) -> None:
    with inside(make_app(MODEL, Bytes())) as server:
        states = server.service.states
        began, go, whole = threading.Event(), threading.Event(), states.restore

        def restore(content: bytes) -> Any:
            began.set()
            assert go.wait(60)
            return whole(content)

        name = server.post("/v1/states", {"prompt": "abc"}).json()["id"]
        content = httpx.get(f"http://127.0.0.1:{server.port}/v1/states/{name}/save").content
        monkeypatch.setattr(states, "restore", restore)
        client = connect(server)
        kind = b"application/octet-stream"
        client.sendall(head(len(content), "/v1/states/restore").replace(b"application/json", kind) + content)
        assert began.wait(30)
        client.close()
        until(lambda: not server.busy["requests"])
        go.set()
        server.settle()
        assert len(states) == 1, "the one whose id was told"


def test_work_on_states_has_a_deadline() -> None:
    with inside(make_app(MODEL, Bytes(), limits=Limits(seconds=0.3))) as server:
        name = server.post("/v1/states", {"prompt": "abc"}).json()["id"]
        go = held(server)
        late = server.post("/v1/states", {"prompt": "x" * 9000})
        fed = server.post(f"/v1/states/{name}/feed", {"prompt": "x" * 9000})
        for answer in (late, fed):
            assert answer.status_code == 503 and "within 0.3 seconds" in answer.json()["error"]["message"]
        go()
        assert httpx.get(f"http://127.0.0.1:{server.port}/v1/states/{name}").json()["tokens"] == 3
        assert server.post(f"/v1/states/{name}/feed", {"prompt": "de"}).json()["tokens"] == 5
        is_well(server)
        assert server.busy["waiting"] == 0 and len(server.service.states) == 1


def test_two_who_feed_one_state_are_both_read() -> None:
    with inside(make_app(MODEL, Bytes())) as server:
        name = server.post("/v1/states", {"prompt": "abc"}).json()["id"]

        async def use() -> list[int]:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=60) as client:
                feed = f"/v1/states/{name}/feed"
                answers = await asyncio.gather(*(client.post(feed, json={"prompt": "d" * 700}) for _ in range(5)))
                return sorted(answer.json()["tokens"] for answer in answers)

        assert asyncio.run(use()) == [3 + 700 * i for i in range(1, 6)]


def test_a_state_that_is_deleted_while_it_is_fed_stays_deleted() -> None:
    with inside(make_app(MODEL, Bytes())) as server:
        name = server.post("/v1/states", {"prompt": "abc"}).json()["id"]
        go, answers = held(server), []
        feed = threading.Thread(
            target=lambda: answers.append(server.post(f"/v1/states/{name}/feed", {"prompt": "d"}).status_code)
        )
        feed.start()
        until(lambda: server.service.batch.queue)
        assert httpx.delete(f"http://127.0.0.1:{server.port}/v1/states/{name}").status_code == 204
        go()
        feed.join(60)
        assert answers == [404] and len(server.service.states) == 0


def test_a_client_that_left_leaves_the_queue_at_once() -> None:
    """Also from the end of it, and although every row is taken: its place is for others."""
    with inside(make_app(MODEL, Bytes(), rows=1, waiting=1)) as server, connect(server) as writer:
        body = b'{"prompt": "abc", "max_tokens": 4000, "stream": true}'
        writer.sendall(head(len(body)) + body)
        until(lambda: server.service.batch.active)
        with connect(server) as second:
            second.sendall(head(len(body)) + body)
            until(lambda: server.service.batch.queue)
            assert server.post("/v1/completions", {"prompt": "a", "max_tokens": 0}).status_code == 429
            second.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        until(lambda: not server.service.batch.queue)
        assert server.service.batch.active
        assert server.post("/v1/completions", {"prompt": "a", "max_tokens": 0}).status_code == 200
