"""Clients that are slow, vanish or send nonsense: the server stays well, they leave nothing behind, and nobody else
notices them, to the last bit."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import torch

from stairwell import FeedbackConfig, LanguageModel, LanguageModelConfig
from stairwell.generate import Choice
from stairwell.serve import service
from stairwell.serve.app import make_app
from stairwell.serve.batch import Batch, Done, Job, Prompt, Token
from stairwell.serve.connection import Impatient
from stairwell.serve.requests import KNOWN, Limits
from stairwell.state import State
from stairwell.stream import read_file
from stairwell.text import Bytes
from tests.serve.conftest import Inside, inside
from tests.test_stream import rewrite

torch.manual_seed(0)
CORE = FeedbackConfig(width=16, heads=2, layers=2, memory=12)
MODEL = LanguageModel(LanguageModelConfig(core=CORE, inputs=256)).eval()
BODY = b'{"prompt": "abc", "max_tokens": 4000, "stream": true, "echo": true, "logprobs": 5}'


def app(**options: Any) -> Any:
    return make_app(MODEL, Bytes(), **options)


def head(length: int, path: str = "/v1/completions") -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", f"Content-Length: {length}"]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def connect(server: Inside) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", server.port))
    client.settimeout(20)
    return client


def is_well(server: Inside) -> None:
    answer = server.post("/v1/completions", {"prompt": "abc", "max_tokens": 2})
    assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 2


def read_to_the_end(client: socket.socket) -> bytes:
    found = b""
    try:
        while part := client.recv(65536):
            found += part
    except ConnectionError:
        pass
    return found


def test_a_malformed_body_after_its_answer_is_not_answered_again(caplog: pytest.LogCaptureFixture) -> None:
    """The head alone is refused (415), then a chunk has no size: the connection ends, without an error in the log."""
    lines = ["POST /v1/completions HTTP/1.1", "Host: localhost", "Transfer-Encoding: chunked", "", ""]
    with inside(app()) as server:
        with connect(server) as client:
            client.sendall("\r\n".join(lines).encode())
            answer = client.recv(65536)
            client.sendall(b"ZZ\r\n")
            answer += read_to_the_end(client)
            assert answer.startswith(b"HTTP/1.1 4") and answer.count(b"HTTP/1.1 ") == 1
        is_well(server)
    assert "LocalProtocolError" not in caplog.text


def test_a_client_that_sends_a_byte_now_and_then_is_cut_off() -> None:
    with inside(app(), patience=0.5) as server, connect(server) as slow, connect(server) as silent:
        ended = time.monotonic() + 20
        with pytest.raises(ConnectionError):
            for byte in head(len(BODY)) * 100:
                slow.sendall(bytes([byte]))
                time.sleep(0.05)
                assert time.monotonic() < ended
        assert read_to_the_end(silent) == b""
        is_well(server)
        server.settle()


def test_a_body_that_never_ends_is_cut_off() -> None:
    with inside(app(), answers_within=0.5) as server, connect(server) as slow:
        slow.sendall(head(1000) + b" ")
        assert read_to_the_end(slow) == b""
        is_well(server)
        server.settle()


def test_a_client_that_does_not_read_is_cut_off() -> None:
    with inside(app(), answers_within=2.0) as server:
        clients = [connect(server) for _ in range(3)]
        for client in clients:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.sendall(head(len(BODY)) + BODY)
        is_well(server)
        server.settle()
        for client in clients:
            client.close()


def test_idle_connections_do_not_keep_others_out() -> None:
    """Whoever has been idle longest, also within a request, is closed; who is being answered is not."""
    with inside(app(token="a-token-for-tests"), connections=20) as server, connect(server) as busy:
        token = {"authorization": "Bearer a-token-for-tests"}
        body = b'{"prompt": "abc", "max_tokens": 500, "stream": true}'
        known = b"Connection: close\r\nAuthorization: Bearer a-token-for-tests\r\nHost"
        busy.sendall(head(len(body)).replace(b"Host", known) + body)
        assert busy.recv(1)
        idle = [connect(server) for _ in range(60)]
        for _ in range(30):  # each is begun before the next comes
            idle.append(connect(server))
            idle[-1].sendall(head(1000).replace(b"Host", known))
            time.sleep(0.01)
        for _ in range(3):
            answer = httpx.get(f"http://127.0.0.1:{server.port}/health", headers=token)
            assert answer.status_code == 200, answer.text
        assert read_to_the_end(idle[0]) == b"", "it was closed"
        assert read_to_the_end(busy).endswith(b"0\r\n\r\n"), "it was answered to the end"
        for client in idle:
            client.close()


def test_a_body_must_come_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "BODY_SECONDS", 0.3)
    with inside(app()) as server, connect(server) as slow, connect(server) as silent:
        slow.sendall(head(1000) + b" ")
        silent.sendall(head(1000))
        assert slow.recv(65536).startswith(b"HTTP/1.1 408") and silent.recv(65536).startswith(b"HTTP/1.1 408")
        is_well(server)


def test_bodies_in_the_making_have_a_limit_together() -> None:
    """Of states to be restored, which may be large."""
    with inside(app(limits=Limits(state_bytes=100_000))) as server:
        begin = head(90_000, "/v1/states/restore").replace(b"application/json", b"application/octet-stream")
        clients = [connect(server) for _ in range(5)]
        for client in clients:
            client.sendall(begin + b" " * 89_000)
        answers = []
        for client in clients:
            client.settimeout(0.3)
            try:
                answers.append(client.recv(12))
            except TimeoutError:
                answers.append(b"")
        assert sorted(answers) == [b""] * 4 + [b"HTTP/1.1 429"]
        for client in clients:
            client.close()
        server.settle()


def test_a_client_that_takes_nothing_of_its_answer_is_cut_off_and_a_slow_one_is_not() -> None:
    sizes = [100, 90, 40, 40]  # bytes that are still to be taken: when writing pauses, and at each look

    async def use() -> None:
        ended = asyncio.Event()
        connection: Any = Impatient.__new__(Impatient)
        connection.loop, connection.linger = asyncio.get_running_loop(), 0.01
        connection.transport = SimpleNamespace(get_write_buffer_size=lambda: sizes.pop(0), abort=ended.set)
        connection.flow = SimpleNamespace(pause_writing=lambda: None)
        connection.pause_writing()
        await asyncio.wait_for(ended.wait(), 30)

    asyncio.run(use())
    assert not sizes


def test_a_shutdown_tells_those_whose_time_is_up() -> None:
    """A stream ends with an event that says so, an answer that is not begun with a status."""
    served = app(rows=1, limits=Limits(tokens=10**6))
    with inside(served, grace=0.5) as server, connect(server) as stream, connect(server) as whole:
        body = BODY.replace(b"4000", b"30000").replace(b', "echo": true, "logprobs": 5', b"")
        stream.sendall(head(len(body)) + body)
        quiet = body.replace(b"true", b"false")
        whole.sendall(head(len(quiet)) + quiet)
        while not server.service.batch.active or not server.service.batch.queue:
            time.sleep(0.01)
        server.uvicorn.should_exit = True
        told = read_to_the_end(stream)
        last = told.split(b"data: ")[-2:]
        assert b"the server is shutting down" in last[0] and last[1].startswith(b"[DONE]")
        assert told.endswith(b"0\r\n\r\n"), "the end of the answer, not of the connection"
        answer = read_to_the_end(whole)
        assert answer.startswith(b"HTTP/1.1 503") and b"the server is shutting down" in answer


def test_a_body_in_very_many_small_chunks_is_cut_off() -> None:
    """Each chunk costs far more time than a byte is worth."""
    begin = head(0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    body = b'{"prompt": "abc", "max_tokens": 2}'
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    with inside(app()) as server, connect(server) as client, connect(server) as hostile:
        client.sendall(begin + chunks + b"0\r\n\r\n")
        assert client.recv(12) == b"HTTP/1.1 200", "a few may be small"
        hostile.sendall(begin)
        with pytest.raises(ConnectionError):
            for _ in range(1000):
                hostile.sendall(b"1\r\n \r\n" * 1000)
        is_well(server)
        server.settle()


def test_saved_states_that_nobody_takes_have_a_limit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    with inside(app(limits=Limits(state_bytes=1000)), linger=1.0) as server:
        name = server.post("/v1/states", {"prompt": "abc"}).json()["id"]
        path = f"http://127.0.0.1:{server.port}/v1/states/{name}/save"
        monkeypatch.setattr(server.service.states, "save", lambda name: b"x" * 4000)
        assert len(httpx.get(path).content) == 4000
        server.settle()
        server.service.sending = 1
        assert httpx.get(path).status_code == 429
        server.service.sending = 0


def test_clients_that_vanish_leave_nothing_behind() -> None:
    whole = head(len(BODY)) + BODY
    quiet = BODY.replace(b'"stream": true', b'"stream": false')
    cuts = [b"", b"PO", whole[:40], head(len(BODY)), whole[:-5], whole, head(len(quiet)) + quiet]
    with inside(app(rows=2, waiting=200)) as server:
        for turn in range(12):
            for cut in cuts:
                client = connect(server)
                client.sendall(cut)
                if turn % 3 == 1:
                    time.sleep(0.01)
                if turn % 3 == 2 and cut == whole:
                    client.recv(1)
                if turn % 2:  # with a reset instead of an end
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                client.close()
        server.settle()
        is_well(server)
        assert server.service.batch.counts["failed"] == 0


@pytest.mark.parametrize(
    "nonsense",
    [
        b"\x00\xff\x16\x03\x01 not HTTP at all\r\n\r\n",
        b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: [::1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: \xff\xfe\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: a\x00b\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
        b"GET /v1/states/..%2f..%2fetc%2fpasswd HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /v1/states/%00%ff/save HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET http://evil.example/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"BREW / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        head(10**15) + b"{" + b" " * 2_000_000,
        b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 50 + b"GET",
    ],
    ids=lambda nonsense: repr(nonsense[:40]),
)
def test_nonsense_is_refused(nonsense: bytes) -> None:
    with inside(app(), patience=1.0) as server:
        with connect(server) as client:
            try:
                client.sendall(nonsense)
                client.shutdown(socket.SHUT_WR)
            except OSError:
                pass
            answer = read_to_the_end(client)
        assert b"HTTP/1.1 500" not in answer
        is_well(server)
        server.settle()


WRONG: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    1.5,
    1e300,
    2**70,
    "",
    "\ud800",
    "x",
    [],
    {},
    [[]],
    [None],
    {"a": []},
    [1],
]


def test_no_value_of_any_field_is_a_bug() -> None:
    with inside(app(limits=Limits(tokens=2))) as server, httpx.Client(timeout=60) as client:
        address = f"http://127.0.0.1:{server.port}"
        for field in sorted(KNOWN):
            for value in WRONG:
                answer = ask_in_ascii(
                    client, f"{address}/v1/completions", {"prompt": "abc", "max_tokens": 2, field: value}
                )
                assert answer.status_code in (200, 400, 404), (field, value, answer.text)
        for path in ("/tokenize", "/detokenize", "/v1/states"):
            for field in ("prompt", "tokens", "model", "add_special_tokens"):
                for value in WRONG:
                    answer = ask_in_ascii(client, address + path, {field: value})
                    assert answer.status_code in (200, 201, 400, 404), (path, field, value, answer.text)
        is_well(server)
        assert server.service.batch.counts["failed"] == 0


def ask_in_ascii(client: httpx.Client, address: str, body: Any) -> httpx.Response:
    """So that anything can be said."""
    return client.post(address, content=json.dumps(body), headers={"content-type": "application/json"})


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 100_000,
        b'{"prompt": ' + b"[" * 900 + b"]" * 900 + b"}",
        b'{"stop": ' + b'{"a":' * 900 + b"1" + b"}" * 900 + b', "prompt": "a"}',
        b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}",
        b'{"prompt": "a", "temperature": 1e999}',
        b'{"prompt": "a", "prompt": "b"}',
        b'\xef\xbb\xbf{"prompt": "a"}',
        '{"prompt": "a"}'.encode("utf-16"),
        b'{"prompt": "\xff"}',
        b"",
        b"null",
    ],
    ids=lambda content: repr(content[:30]),
)
def test_hostile_json_is_refused(content: bytes) -> None:
    with inside(app()) as server:
        answer = httpx.post(
            f"http://127.0.0.1:{server.port}/v1/completions",
            content=content,
            headers={"content-type": "application/json"},
        )
        assert answer.status_code == 400, answer.text
        is_well(server)


@pytest.mark.parametrize(
    "options", [{"temperature": 1e-300}, {"temperature": 1e-5, "top_p": 1e-300}, {"top_p": 1e-300}]
)
def test_options_next_to_nothing_take_the_likeliest(options: dict[str, float]) -> None:
    with inside(app()) as server:
        body = {"prompt": "abc", "max_tokens": 10}
        greedy = server.post("/v1/completions", {**body, "temperature": 0}).json()["choices"]
        assert server.post("/v1/completions", {**body, **options}).json()["choices"] == greedy


def test_too_many_clients_are_told_to_come_back() -> None:
    limits = Limits(clients=2, tokens=10**5)
    with inside(app(limits=limits, rows=1)) as server, connect(server) as one, connect(server) as two:
        with connect(server) as slow, connect(server) as silent:
            slow.sendall(head(10))  # who is still to send a request keeps nobody out
            silent.sendall(head(10))
            while server.busy["requests"] < 2:
                time.sleep(0.01)
            is_well(server)
        body = b'{"prompt": "abc", "max_tokens": 100000, "stream": true}'
        for client in (one, two):
            client.sendall(head(len(body)) + body)
        while server.busy["rows"] + server.busy["waiting"] < 2:
            time.sleep(0.01)
        answer = httpx.get(f"http://127.0.0.1:{server.port}/health")
        assert answer.status_code == 429 and answer.headers["retry-after"]
        one.close()
        while server.busy["requests"] > 1:
            time.sleep(0.01)
        is_well(server)


def test_answers_in_the_making_have_a_limit_together() -> None:
    limits = Limits(told=1000, tokens=900)
    with inside(app(limits=limits, rows=1)) as server:
        too_much = server.post("/v1/completions", {"prompt": ["a", "b"], "max_tokens": 900})
        assert too_much.status_code == 400 and "too long" in too_much.text
        body = {"prompt": "a", "max_tokens": 900}
        answers: list[int] = []
        ask = [
            threading.Thread(target=lambda: answers.append(server.post("/v1/completions", body).status_code))
            for _ in range(4)
        ]
        for thread in ask:
            thread.start()
        for thread in ask:
            thread.join()
        assert 200 in answers and set(answers) <= {200, 429}
        server.service.told += 1000
        assert server.post("/v1/completions", {"prompt": "a", "max_tokens": 16}).status_code == 429
        assert server.post("/v1/completions", {"prompt": "a", "max_tokens": 15}).status_code == 200, "it is small"
        server.service.told -= 1000
        server.settle()
        is_well(server)


def test_a_restored_file_with_any_byte_changed_harms_nobody(tmp_path: Path) -> None:
    rng = random.Random(0)
    kind = {"content-type": "application/octet-stream"}
    saved, forged = tmp_path / "saved", tmp_path / "forged"

    def changed(content: bytes) -> bytes:
        damaged = bytearray(content)
        for _ in range(rng.choice((1, 1, 8, 64))):
            damaged[rng.randrange(len(content))] = rng.randrange(256)
        return bytes(damaged)

    def change(tensor: torch.Tensor) -> torch.Tensor:
        content = torch.frombuffer(bytearray(changed(tensor.numpy().tobytes())), dtype=tensor.dtype)
        return content.view(tensor.shape)

    with inside(app()) as server, httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=60) as client:
        name = client.post("/v1/states", json={"prompt": "some text to read"}).json()["id"]
        saved.write_bytes(content := client.get(f"/v1/states/{name}/save").content)
        for _ in range(60):
            damaged = changed(content)
            answer = client.post("/v1/states/restore", content=damaged, headers=kind)
            assert answer.status_code == (201 if damaged == content else 400), answer.text
        names, taken = [each for each in read_file(saved)[0] if each != "since"], 0
        for _ in range(90):
            rewrite(saved, forged, **{rng.choice(names): change})  # the hash is right
            answer = client.post("/v1/states/restore", content=forged.read_bytes(), headers=kind)
            assert answer.status_code in (201, 400), answer.text
            if answer.status_code == 201:
                taken += 1
                restored = answer.json()["id"]
                body = {"state": restored, "max_tokens": 3, "logprobs": 5, "echo": True}
                assert client.post("/v1/completions", json=body).status_code in (200, 400)
                cropped = client.post(f"/v1/states/{restored}/crop", json={"tokens": 3})
                assert cropped.status_code in (200, 400, 409), cropped.text
                assert client.delete(f"/v1/states/{restored}").status_code == 204
        assert taken, "numbers may be changed, so some must have been taken"
        is_well(server)
        assert server.service.batch.counts["failed"] == 0


def test_a_file_with_a_huge_header_is_refused_before_it_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of thousands of empty tensors would take many seconds."""
    empty = ",".join(f'"t{i}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}' for i in range(20_000))
    described = ("{" + empty + "}").encode()
    kind = {"content-type": "application/octet-stream"}
    opened: list[Any] = []
    monkeypatch.setattr("stairwell.tensor_files.safe_open", lambda *given, **named: opened.append(given))
    with inside(app()) as server, httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=60) as client:
        for content in (struct.pack("<Q", len(described)) + described, b"\xff" * 100):
            answer = client.post("/v1/states/restore", content=content, headers=kind)
            assert answer.status_code == 400 and "header" in answer.text
        assert not opened
        is_well(server)


def test_a_restored_state_of_another_type_is_refused_and_harms_nobody(tmp_path: Path) -> None:
    kind = {"content-type": "application/octet-stream"}
    with inside(app()) as server, httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=60) as client:
        name = client.post("/v1/states", json={"prompt": "some text to read"}).json()["id"]
        (tmp_path / "a").write_bytes(client.get(f"/v1/states/{name}/save").content)
        for tensor in read_file(tmp_path / "a")[0]:
            for dtype in (torch.float16, torch.float64, torch.complex64, torch.int32, torch.bool):
                rewrite(tmp_path / "a", tmp_path / "b", **{tensor: lambda old, dtype=dtype: old.to(dtype)})
                answer = client.post("/v1/states/restore", content=(tmp_path / "b").read_bytes(), headers=kind)
                assert answer.status_code == 400 and "damaged" in answer.text, (tensor, dtype, answer.text)
        rewrite(tmp_path / "a", tmp_path / "b", **{"state.count": lambda old: old - 1000})
        answer = client.post("/v1/states/restore", content=(tmp_path / "b").read_bytes(), headers=kind)
        assert answer.status_code == 400 and "stream 0 has count -983" in answer.text
        is_well(server)
        assert server.service.batch.counts["failed"] == 0


def test_thousands_of_states_stop_at_their_quotas() -> None:
    limits = Limits(states=3000, states_bytes=10**9)
    with inside(app(limits=limits)) as server, httpx.Client(base_url=f"http://127.0.0.1:{server.port}") as client:
        first = client.post("/v1/states", json={"prompt": "abc"}).json()
        for _ in range(2999):
            server.service.states.fork(first["id"])
        refused = client.post(f"/v1/states/{first['id']}/fork")
        assert refused.status_code == 429 and "3000 states are kept already" in refused.text
        assert client.post(f"/v1/states/{first['id']}/feed", json={"prompt": "d"}).status_code == 200
        assert client.delete(f"/v1/states/{first['id']}").status_code == 204
        assert client.post("/v1/states", json={}).status_code == 201
        is_well(server)
    few = Limits(states_bytes=first["bytes"] * 2)
    with inside(app(limits=few)) as server:
        for status in (201, 201, 429):
            assert server.post("/v1/states", {"prompt": "abc"}).status_code == status


Neighbor = Callable[[Callable[[Token | Done], None]], Job]


def told_beside(neighbors: Sequence[Neighbor]) -> list[Token | Done]:
    """All that is told of one text, to the last bit, written beside others that come at the same time."""
    batch = Batch(MODEL, Bytes(), rows=len(neighbors) + 1)
    try:
        told: list[Token | Done] = []
        over = [threading.Event() for _ in range(len(neighbors) + 1)]

        def teller(i: int, keep: list[Token | Done]) -> Callable[[Token | Done], None]:
            def tell(what: Token | Done) -> None:
                keep.append(what)
                if isinstance(what, Done):
                    over[i].set()

            return tell

        jobs = [neighbor(teller(i + 1, [])) for i, neighbor in enumerate(neighbors)]
        mine = Job(Prompt(list(b"a text of mine"), logprobs=5), 40, Choice(), teller(0, told), seed=1)
        batch.submit(*jobs[:1], mine, *jobs[1:])
        assert all(event.wait(60) for event in over)
        return told
    finally:
        batch.close()


def plain(prompt: bytes, tokens: int) -> Neighbor:
    return lambda tell: Job(Prompt(list(prompt)), tokens, Choice(), tell, seed=2)


def vanishing(prompt: bytes, after: int) -> Neighbor:
    def make(tell: Callable[[Token | Done], None]) -> Job:
        def count(what: Token | Done) -> None:
            job.cancelled = job.written >= after
            tell(what)

        job = Job(Prompt(list(prompt)), 1000, Choice(), count, seed=3)
        return job

    return make


def going_on(prompt: bytes, tokens: int, poisoned: bool = False) -> Neighbor:
    """From a state; or from one that somebody made up, whose numbers are none."""

    def make(tell: Callable[[Token | Done], None]) -> Job:
        with torch.no_grad():
            logits, state = MODEL(torch.tensor([list(prompt)]), MODEL.init_state(1))

        def spoil(tensor: torch.Tensor) -> torch.Tensor:
            return tensor * torch.nan if poisoned and tensor.is_floating_point() else tensor

        begin: tuple[State, Any, list[int]] = (state.map(spoil), logits[0, -1], [])
        return Job(Prompt([], begin), tokens, Choice(), tell)

    return make


def failing(prompt: bytes, after: int) -> Neighbor:
    """A bug that one row meets when it chooses."""

    def make(tell: Callable[[Token | Done], None]) -> Job:
        def choose(logits: Any, recent: Any, generator: Any) -> int:
            if job.written >= after:
                raise RuntimeError("a bug of this row alone")
            return 65

        choice: Any = choose
        job = Job(Prompt(list(prompt)), 1000, choice, tell)
        return job

    return make


@pytest.mark.filterwarnings("ignore")
def test_neighbors_change_no_bit_of_a_text() -> None:
    """They leave at the same steps, so that the batch has the same shapes; how they leave and what they say differ."""
    quiet = told_beside([plain(b"neighbor one", 6), going_on(b"neighbor two", 2), plain(b"three", 9), plain(b"4", 30)])
    assert isinstance(quiet[-1], Done) and len(quiet) == 41
    loud = told_beside(
        [
            vanishing(b"ANOTHER ONE !", 6),
            going_on(b"and a bad one", 1000, poisoned=True),
            failing(b"five!", 8),
            plain(b"z", 30),
        ]
    )
    assert loud == quiet


def test_a_bug_of_one_row_ends_that_row_alone(caplog: pytest.LogCaptureFixture) -> None:
    told = told_beside([failing(b"x", 3)])
    assert told[-1] == Done("length", told[-1].text) and len(told) == 41
    assert "a bug of this row alone" in caplog.text
