"""Clients that are slow, disconnect or send malformed data: the server stays healthy, releases all resources, and the
results of other clients stay bit-identical."""

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
from stairwell.decode import Sampling
from stairwell.serve import connection, service
from stairwell.serve.app import make_app
from stairwell.serve.connection import TimeoutProtocol
from stairwell.serve.limits import Limits
from stairwell.serve.requests import CompletionRequest
from stairwell.serve.scheduler import Finished, Output, Prompt, Scheduler, SequenceRequest
from stairwell.serve.snapshot import Snapshot
from stairwell.stream import read_file
from stairwell.text import Bytes
from tests.serve.conftest import LocalServer, run_server
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


def connect(server: LocalServer) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", server.port))
    client.settimeout(20)
    return client


def check_healthy(server: LocalServer) -> None:
    answer = server.post("/v1/completions", {"prompt": "abc", "max_tokens": 2})
    assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 2


def read_to_the_end(client: socket.socket) -> bytes:
    content = b""
    try:
        while part := client.recv(65536):
            content += part
    except ConnectionError:
        pass
    return content


def test_a_malformed_body_after_the_response_gets_no_second_response(caplog: pytest.LogCaptureFixture) -> None:
    """The head is rejected (415), then a chunk has no size: the connection closes, without an error in the log."""
    lines = ["POST /v1/completions HTTP/1.1", "Host: localhost", "Transfer-Encoding: chunked", "", ""]
    with run_server(app()) as server:
        with connect(server) as client:
            client.sendall("\r\n".join(lines).encode())
            answer = client.recv(65536)
            client.sendall(b"ZZ\r\n")
            answer += read_to_the_end(client)
            assert answer.startswith(b"HTTP/1.1 4") and answer.count(b"HTTP/1.1 ") == 1
        check_healthy(server)
    assert "LocalProtocolError" not in caplog.text


def test_a_client_that_sends_single_bytes_slowly_is_disconnected() -> None:
    with run_server(app(), head_timeout=0.5) as server, connect(server) as slow, connect(server) as silent:
        ended = time.monotonic() + 20
        with pytest.raises(ConnectionError):
            for byte in head(len(BODY)) * 100:
                slow.sendall(bytes([byte]))
                time.sleep(0.05)
                assert time.monotonic() < ended
        assert read_to_the_end(silent) == b""
        check_healthy(server)
        server.wait_until_idle()


def test_a_body_that_never_ends_is_disconnected() -> None:
    with run_server(app(), request_timeout=0.5) as server, connect(server) as slow:
        slow.sendall(head(1000) + b" ")
        assert read_to_the_end(slow) == b""
        check_healthy(server)
        server.wait_until_idle()


def test_a_client_that_does_not_read_is_disconnected() -> None:
    with run_server(app(), request_timeout=2.0) as server:
        clients = [connect(server) for _ in range(3)]
        for client in clients:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.sendall(head(len(BODY)) + BODY)
        check_healthy(server)
        server.wait_until_idle()
        for client in clients:
            client.close()


def test_idle_connections_do_not_keep_others_out() -> None:
    """The longest idle connection is closed, also within a request, but not while it gets a response."""
    with run_server(app(token="a-token-for-tests"), connections=20) as server, connect(server) as active:
        token = {"authorization": "Bearer a-token-for-tests"}
        body = b'{"prompt": "abc", "max_tokens": 500, "stream": true}'
        known = b"Connection: close\r\nAuthorization: Bearer a-token-for-tests\r\nHost"
        active.sendall(head(len(body)).replace(b"Host", known) + body)
        assert active.recv(1)
        idle = [connect(server) for _ in range(60)]
        for _ in range(30):  # each is started before the next one
            idle.append(connect(server))
            idle[-1].sendall(head(1000).replace(b"Host", known))
            time.sleep(0.01)
        for _ in range(3):
            answer = httpx.get(f"http://127.0.0.1:{server.port}/health", headers=token)
            assert answer.status_code == 200, answer.text
        assert read_to_the_end(idle[0]) == b"", "the longest idle connection was closed"
        assert read_to_the_end(active).endswith(b"0\r\n\r\n"), "the active one got its whole response"
        for client in idle:
            client.close()


def test_a_body_must_arrive_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "BODY_SECONDS", 0.3)
    with run_server(app()) as server, connect(server) as slow, connect(server) as silent:
        slow.sendall(head(1000) + b" ")
        silent.sendall(head(1000))
        assert slow.recv(65536).startswith(b"HTTP/1.1 408") and silent.recv(65536).startswith(b"HTTP/1.1 408")
        check_healthy(server)


def test_incomplete_bodies_have_a_total_limit() -> None:
    """State files to restore may be large."""
    with run_server(app(limits=Limits(state_file_bytes=100_000))) as server:
        request_head = head(90_000, "/v1/states/restore").replace(b"application/json", b"application/octet-stream")
        clients = [connect(server) for _ in range(5)]
        for client in clients:
            client.sendall(request_head + b" " * 89_000)
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
        server.wait_until_idle()


def test_a_client_that_stops_reading_is_disconnected_but_a_slow_one_is_not() -> None:
    sizes = [100, 90, 40, 40]  # of the write buffer: when writing pauses, and at each check

    async def use() -> None:
        ended = asyncio.Event()
        connection: Any = TimeoutProtocol.__new__(TimeoutProtocol)
        connection.loop, connection.write_timeout = asyncio.get_running_loop(), 0.01
        connection.transport = SimpleNamespace(get_write_buffer_size=lambda: sizes.pop(0), abort=ended.set)
        connection.flow = SimpleNamespace(pause_writing=lambda: None)
        connection.pause_writing()
        await asyncio.wait_for(ended.wait(), 30)

    asyncio.run(use())
    assert not sizes


def test_requests_not_finished_at_shutdown_get_an_error() -> None:
    """A stream ends with an error event; a response that has not started gets a status."""
    served = app(batch_size=1, limits=Limits(completion_tokens=10**6))
    with run_server(served, grace=0.5) as server, connect(server) as stream, connect(server) as client:
        body = BODY.replace(b"4000", b"30000").replace(b', "echo": true, "logprobs": 5', b"")
        stream.sendall(head(len(body)) + body)
        quiet = body.replace(b"true", b"false")
        client.sendall(head(len(quiet)) + quiet)
        while not server.service.scheduler.running or not server.service.scheduler.queue:
            time.sleep(0.01)
        server.uvicorn.should_exit = True
        events = read_to_the_end(stream)
        last = events.split(b"data: ")[-2:]
        assert b"the server is shutting down" in last[0] and last[1].startswith(b"[DONE]")
        assert events.endswith(b"0\r\n\r\n"), "the response must end, not only the connection"
        answer = read_to_the_end(client)
        assert answer.startswith(b"HTTP/1.1 503") and b"the server is shutting down" in answer


def test_a_body_in_very_many_small_chunks_gets_413() -> None:
    """Each chunk costs far more time than its byte."""
    request_head = head(0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    body = b'{"prompt": "abc", "max_tokens": 2}'
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    with run_server(app()) as server, connect(server) as client, connect(server) as hostile:
        client.sendall(request_head + chunks + b"0\r\n\r\n")
        assert client.recv(12) == b"HTTP/1.1 200", "a few small chunks are allowed"
        hostile.sendall(request_head + b"1\r\n \r\n" * 200_000)
        answer = read_to_the_end(hostile)
        assert answer.startswith(b"HTTP/1.1 413") and answer.count(b"HTTP/1.1 ") == 1
        assert b"more than 1000 chunks" in answer
        hostile.close()
        check_healthy(server)
        client.close()
        server.wait_until_idle()


def test_a_rejected_client_that_keeps_sending_is_disconnected() -> None:
    request_head = head(0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    with run_server(app(), head_timeout=0.5) as server, connect(server) as hostile:
        hostile.sendall(request_head)
        with pytest.raises(ConnectionError):
            while True:
                hostile.sendall(b"1\r\n \r\n" * 1000)
        check_healthy(server)
        server.wait_until_idle()


@pytest.mark.parametrize("stream", [b"true", b"false"])
def test_a_client_that_ends_its_side_after_a_complete_request_gets_its_response(
    stream: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "HALF_CLOSE_TIMEOUT", 600.0)  # the machine may be slow
    body = b'{"prompt": "abc", "max_tokens": 2, "stream": ' + stream + b"}"
    with run_server(app()) as server, connect(server) as client:
        client.sendall(head(len(body)) + body)
        client.shutdown(socket.SHUT_WR)
        answer = read_to_the_end(client)
        assert answer.startswith(b"HTTP/1.1 200") and b'"finish_reason"' in answer
        server.wait_until_idle()


def test_pipelined_requests_before_the_end_of_the_client_all_get_responses() -> None:
    with run_server(app()) as server, connect(server) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 5)
        client.shutdown(socket.SHUT_WR)
        assert read_to_the_end(client).count(b"HTTP/1.1 200") == 5
        server.wait_until_idle()


def test_state_files_being_sent_have_a_total_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    with run_server(app(limits=Limits(state_file_bytes=1000)), write_timeout=1.0) as server:
        name = server.post("/v1/states", {"prompt": "abc"}).json()["id"]
        path = f"http://127.0.0.1:{server.port}/v1/states/{name}/save"
        monkeypatch.setattr(server.service.states, "save", lambda name: b"x" * 4000)
        assert len(httpx.get(path).content) == 4000
        server.wait_until_idle()
        server.service.sending = 1
        assert httpx.get(path).status_code == 429
        server.service.sending = 0


def test_clients_that_disconnect_leave_nothing_behind() -> None:
    complete = head(len(BODY)) + BODY
    quiet = BODY.replace(b'"stream": true', b'"stream": false')
    cuts = [b"", b"PO", complete[:40], head(len(BODY)), complete[:-5], complete, head(len(quiet)) + quiet]
    with run_server(app(batch_size=2, max_waiting=200)) as server:
        for turn in range(12):
            for cut in cuts:
                client = connect(server)
                client.sendall(cut)
                if turn % 3 == 1:
                    time.sleep(0.01)
                if turn % 3 == 2 and cut == complete:
                    client.recv(1)
                if turn % 2:  # with RST instead of FIN
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                client.close()
        server.wait_until_idle()
        check_healthy(server)
        assert server.service.scheduler.counts["failed"] == 0


@pytest.mark.parametrize(
    "malformed",
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
    ids=lambda malformed: repr(malformed[:40]),
)
def test_malformed_requests_are_rejected(malformed: bytes) -> None:
    with run_server(app(), head_timeout=1.0) as server:
        with connect(server) as client:
            try:
                client.sendall(malformed)
                client.shutdown(socket.SHUT_WR)
            except OSError:
                pass
            answer = read_to_the_end(client)
        assert b"HTTP/1.1 500" not in answer
        check_healthy(server)
        server.wait_until_idle()


VALUES: list[Any] = [
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


def test_no_value_of_any_field_is_an_internal_error() -> None:
    with run_server(app(limits=Limits(completion_tokens=2))) as server, httpx.Client(timeout=60) as client:
        address = f"http://127.0.0.1:{server.port}"
        for field in sorted(CompletionRequest.model_fields):
            for value in VALUES:
                answer = post_ascii(
                    client, f"{address}/v1/completions", {"prompt": "abc", "max_tokens": 2, field: value}
                )
                assert answer.status_code in (200, 400, 404), (field, value, answer.text)
        for path in ("/tokenize", "/detokenize", "/v1/states"):
            for field in ("prompt", "tokens", "model", "add_special_tokens"):
                for value in VALUES:
                    answer = post_ascii(client, address + path, {field: value})
                    assert answer.status_code in (200, 201, 400, 404), (path, field, value, answer.text)
        check_healthy(server)
        assert server.service.scheduler.counts["failed"] == 0


def post_ascii(client: httpx.Client, address: str, body: Any) -> httpx.Response:
    """Post JSON in ASCII, which can also express surrogates."""
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
def test_hostile_json_is_rejected(content: bytes) -> None:
    with run_server(app()) as server:
        answer = httpx.post(
            f"http://127.0.0.1:{server.port}/v1/completions",
            content=content,
            headers={"content-type": "application/json"},
        )
        assert answer.status_code == 400, answer.text
        check_healthy(server)


@pytest.mark.parametrize(
    "options", [{"temperature": 1e-300}, {"temperature": 1e-5, "top_p": 1e-300}, {"top_p": 1e-300}]
)
def test_tiny_temperature_and_top_p_are_greedy(options: dict[str, float]) -> None:
    with run_server(app()) as server:
        body = {"prompt": "abc", "max_tokens": 10}
        greedy = server.post("/v1/completions", {**body, "temperature": 0}).json()["choices"]
        assert server.post("/v1/completions", {**body, **options}).json()["choices"] == greedy


def test_requests_beyond_max_clients_get_429() -> None:
    limits = Limits(clients=2, completion_tokens=10**5)
    with run_server(app(limits=limits, batch_size=1)) as server, connect(server) as one, connect(server) as two:
        with connect(server) as slow, connect(server) as silent:
            slow.sendall(head(10))  # an incomplete request does not count
            silent.sendall(head(10))
            while server.in_use["requests"] < 2:
                time.sleep(0.01)
            check_healthy(server)
        body = b'{"prompt": "abc", "max_tokens": 100000, "stream": true}'
        for client in (one, two):
            client.sendall(head(len(body)) + body)
        while server.in_use["running"] + server.in_use["waiting"] < 2:
            time.sleep(0.01)
        answer = httpx.get(f"http://127.0.0.1:{server.port}/health")
        assert answer.status_code == 429 and answer.headers["retry-after"]
        one.close()
        while server.in_use["requests"] > 1:
            time.sleep(0.01)
        check_healthy(server)


def test_outputs_in_progress_have_a_total_limit() -> None:
    limits = Limits(total_output=1000, completion_tokens=900)
    with run_server(app(limits=limits, batch_size=1)) as server:
        too_much = server.post("/v1/completions", {"prompt": ["a", "b"], "max_tokens": 900})
        assert too_much.status_code == 400 and "at most 1000 is allowed" in too_much.text
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
        server.service.output += 1000
        assert server.post("/v1/completions", {"prompt": "a", "max_tokens": 16}).status_code == 429
        assert server.post("/v1/completions", {"prompt": "a", "max_tokens": 15}).status_code == 200, (
            "small requests are accepted"
        )
        server.service.output -= 1000
        server.wait_until_idle()
        check_healthy(server)


def test_a_state_file_with_changed_bytes_affects_no_other_client(tmp_path: Path) -> None:
    rng = random.Random(0)
    binary = {"content-type": "application/octet-stream"}
    saved, forged = tmp_path / "saved", tmp_path / "forged"

    def changed(content: bytes) -> bytes:
        damaged = bytearray(content)
        for _ in range(rng.choice((1, 1, 8, 64))):
            damaged[rng.randrange(len(content))] = rng.randrange(256)
        return bytes(damaged)

    def change(tensor: torch.Tensor) -> torch.Tensor:
        content = torch.frombuffer(bytearray(changed(tensor.numpy().tobytes())), dtype=tensor.dtype)
        return content.view(tensor.shape)

    with run_server(app()) as server, httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=60) as client:
        name = client.post("/v1/states", json={"prompt": "some text to read"}).json()["id"]
        saved.write_bytes(content := client.get(f"/v1/states/{name}/save").content)
        for _ in range(60):
            damaged = changed(content)
            answer = client.post("/v1/states/restore", content=damaged, headers=binary)
            assert answer.status_code == (201 if damaged == content else 400), answer.text
        names, accepted = [each for each in read_file(saved)[0] if each != "since"], 0
        for _ in range(90):
            rewrite(saved, forged, **{rng.choice(names): change})  # with the right hash
            answer = client.post("/v1/states/restore", content=forged.read_bytes(), headers=binary)
            assert answer.status_code in (201, 400), answer.text
            if answer.status_code == 201:
                accepted += 1
                restored = answer.json()["id"]
                body = {"state": restored, "max_tokens": 3, "logprobs": 5, "echo": True}
                assert client.post("/v1/completions", json=body).status_code in (200, 400)
                cropped = client.post(f"/v1/states/{restored}/crop", json={"tokens": 3})
                assert cropped.status_code in (200, 400, 409), cropped.text
                assert client.delete(f"/v1/states/{restored}").status_code == 204
        assert accepted, "a file with other finite values and the right hash is valid"
        check_healthy(server)
        assert server.service.scheduler.counts["failed"] == 0


def test_a_state_file_with_a_huge_header_is_rejected_before_it_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of thousands of empty tensors would take many seconds."""
    empty = ",".join(f'"t{i}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}' for i in range(20_000))
    header = ("{" + empty + "}").encode()
    binary = {"content-type": "application/octet-stream"}
    opened: list[Any] = []
    monkeypatch.setattr("stairwell.tensor_files.safe_open", lambda *given, **named: opened.append(given))
    with run_server(app()) as server, httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=60) as client:
        for content in (struct.pack("<Q", len(header)) + header, b"\xff" * 100):
            answer = client.post("/v1/states/restore", content=content, headers=binary)
            assert answer.status_code == 400 and "header" in answer.text
        assert not opened
        check_healthy(server)


def test_a_state_file_with_other_dtypes_is_rejected(tmp_path: Path) -> None:
    binary = {"content-type": "application/octet-stream"}
    with run_server(app()) as server, httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=60) as client:
        name = client.post("/v1/states", json={"prompt": "some text to read"}).json()["id"]
        (tmp_path / "a").write_bytes(client.get(f"/v1/states/{name}/save").content)
        for tensor in read_file(tmp_path / "a")[0]:
            for dtype in (torch.float16, torch.float64, torch.complex64, torch.int32, torch.bool):
                rewrite(tmp_path / "a", tmp_path / "b", **{tensor: lambda old, dtype=dtype: old.to(dtype)})
                answer = client.post("/v1/states/restore", content=(tmp_path / "b").read_bytes(), headers=binary)
                assert answer.status_code == 400 and "damaged" in answer.text, (tensor, dtype, answer.text)
        rewrite(tmp_path / "a", tmp_path / "b", **{"state.count": lambda old: old - 1000})
        answer = client.post("/v1/states/restore", content=(tmp_path / "b").read_bytes(), headers=binary)
        assert answer.status_code == 400 and "stream 0 has count -983" in answer.text
        check_healthy(server)
        assert server.service.scheduler.counts["failed"] == 0


def test_thousands_of_states_stop_at_the_quotas() -> None:
    limits = Limits(states=3000, total_state_bytes=10**9)
    with run_server(app(limits=limits)) as server, httpx.Client(base_url=f"http://127.0.0.1:{server.port}") as client:
        first = client.post("/v1/states", json={"prompt": "abc"}).json()
        for _ in range(2999):
            server.service.states.fork(first["id"])
        rejected = client.post(f"/v1/states/{first['id']}/fork")
        assert rejected.status_code == 429 and "3000 states are stored already" in rejected.text
        assert client.post(f"/v1/states/{first['id']}/feed", json={"prompt": "d"}).status_code == 200
        assert client.delete(f"/v1/states/{first['id']}").status_code == 204
        assert client.post("/v1/states", json={}).status_code == 201
        check_healthy(server)
    few = Limits(total_state_bytes=first["bytes"] * 2)
    with run_server(app(limits=few)) as server:
        for status in (201, 201, 429):
            assert server.post("/v1/states", {"prompt": "abc"}).status_code == status


Neighbor = Callable[[Callable[[Output], None]], SequenceRequest]


def outputs_beside(neighbors: Sequence[Neighbor]) -> list[Output]:
    """Return all outputs of one sequence that is decoded together with others."""
    scheduler = Scheduler(MODEL, Bytes(), batch_size=len(neighbors) + 1)
    try:
        outputs: list[Output] = []
        finished = [threading.Event() for _ in range(len(neighbors) + 1)]

        def collect(i: int, outputs: list[Output]) -> Callable[[Output], None]:
            def on_output(output: Output) -> None:
                outputs.append(output)
                if isinstance(output, Finished):
                    finished[i].set()

            return on_output

        others = [neighbor(collect(i + 1, [])) for i, neighbor in enumerate(neighbors)]
        mine = SequenceRequest(
            Prompt(list(b"a text of mine"), num_logprobs=5), 40, Sampling(), collect(0, outputs), seed=1
        )
        scheduler.submit(*others[:1], mine, *others[1:])
        assert all(event.wait(60) for event in finished)
        return outputs
    finally:
        scheduler.close()


def plain(prompt: bytes, tokens: int) -> Neighbor:
    return lambda on_output: SequenceRequest(Prompt(list(prompt)), tokens, Sampling(), on_output, seed=2)


def disconnecting(prompt: bytes, after: int) -> Neighbor:
    def make(on_output: Callable[[Output], None]) -> SequenceRequest:
        def cancel(output: Output) -> None:
            request.cancelled = request.generated >= after
            on_output(output)

        request = SequenceRequest(Prompt(list(prompt)), 1000, Sampling(), cancel, seed=3)
        return request

    return make


def continuing(prompt: bytes, tokens: int, poisoned: bool = False) -> Neighbor:
    """Continue from a state, or from one full of NaN."""

    def make(on_output: Callable[[Output], None]) -> SequenceRequest:
        with torch.no_grad():
            logits, state = MODEL(torch.tensor([list(prompt)]), MODEL.init_state(1))

        def spoil(tensor: torch.Tensor) -> torch.Tensor:
            return tensor * torch.nan if poisoned and tensor.is_floating_point() else tensor

        start = Snapshot(state.map(spoil), logits[0, -1])
        return SequenceRequest(Prompt([], start), tokens, Sampling(), on_output)

    return make


def failing(prompt: bytes, after: int) -> Neighbor:
    """Sampling raises an error after some tokens."""

    def make(on_output: Callable[[Output], None]) -> SequenceRequest:
        def sample(logits: Any, recent: Any, generator: Any) -> int:
            if request.generated >= after:
                raise RuntimeError("an error of this sequence alone")
            return 65

        sampling: Any = sample
        request = SequenceRequest(Prompt(list(prompt)), 1000, sampling, on_output)
        return request

    return make


@pytest.mark.filterwarnings("ignore")
def test_other_sequences_do_not_change_the_outputs() -> None:
    """The others have the same lengths and leave at the same steps, so that the batch has the same shapes. Their tokens
    differ, and how they end."""
    quiet = outputs_beside(
        [plain(b"neighbor one", 6), continuing(b"neighbor two", 2), plain(b"three", 9), plain(b"4", 30)]
    )
    assert isinstance(quiet[-1], Finished) and len(quiet) == 41
    loud = outputs_beside(
        [
            disconnecting(b"ANOTHER ONE!", 6),
            continuing(b"and a bad on", 1000, poisoned=True),
            failing(b"five!", 8),
            plain(b"z", 30),
        ]
    )
    assert loud == quiet


def test_an_error_in_one_sequence_ends_that_sequence_alone(caplog: pytest.LogCaptureFixture) -> None:
    outputs = outputs_beside([failing(b"x", 3)])
    assert outputs[-1] == Finished("length", outputs[-1].text) and len(outputs) == 41
    assert "an error of this sequence alone" in caplog.text
