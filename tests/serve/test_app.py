"""The service, asked as clients ask: the numbers of PyTorch, no cross-talk, and every mistake told."""

from __future__ import annotations

import asyncio
import errno
import json
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors import SafetensorError

from stairwell import FeedbackConfig, GlobalCachedStaircaseConfig, LanguageModel, LanguageModelConfig, LSTMConfig
from stairwell.decode import Session, greedy
from stairwell.errors import UserError
from stairwell.serve import requests
from stairwell.serve.app import ROUTES, make_app
from stairwell.serve.guard import host_of
from stairwell.serve.requests import Limits
from stairwell.serve.running import application, read_token
from stairwell.serve.states import States
from stairwell.stream import Stream, encode
from stairwell.text import BPE, Bytes, Characters, Words

WORDS = Characters.build(["abcdefg\n"])


def make_model(core: Any = None, inputs: int = WORDS.size) -> LanguageModel:
    torch.manual_seed(0)
    core = core or FeedbackConfig(width=8, heads=2, layers=2, memory=6)
    return LanguageModel(LanguageModelConfig(core=core, inputs=inputs)).eval()


MODEL = make_model()
JSON = {"content-type": "application/json"}


def with_client(use: Callable[[httpx.AsyncClient, Any], Awaitable[Any]], app: Any = None, **options: Any) -> Any:
    """Let `use` talk to an application, whose batch is closed afterwards."""
    app = app or make_app(MODEL, WORDS, **options)

    async def run() -> Any:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await use(client, app)

    try:
        return asyncio.run(run())
    finally:
        app.state.service.batch.close()


def ask(path: str, body: Any = None, method: str = "POST", **options: Any) -> httpx.Response:
    async def use(client: httpx.AsyncClient, app: Any) -> httpx.Response:
        content = json.dumps(body)  # in ASCII, so that anything can be said
        return await client.request(method, path, content=content, headers=JSON)

    return with_client(use, **options)


def expected(prompt: str, tokens: int) -> str:
    ids = torch.from_numpy(WORDS.encode(prompt))[None]
    return WORDS.decode(greedy(Session(MODEL, MODEL.init_state(1)), ids, tokens)[0].numpy())


def test_a_completion_is_what_the_model_says() -> None:
    answer = ask("/v1/completions", {"model": "stairwell", "prompt": "abc", "max_tokens": 20, "temperature": 0}).json()
    assert answer["choices"][0]["text"] == expected("abc", 20)
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 20, "total_tokens": 23}


def test_many_clients_get_what_each_would_get_alone() -> None:
    """More than there are rows, of different lengths, so that they come and go all the time."""
    prompts = ["abc", "g", "ba" * 9, "fed\n", "cc", "dad", "egg", "face", "bad"]

    async def use(client: httpx.AsyncClient, app: Any) -> list[httpx.Response]:
        bodies = [
            {"prompt": prompt, "max_tokens": 5 + 7 * i, "temperature": 0.9, "seed": i, "stop": ["never so"]}
            for i, prompt in enumerate(prompts)
        ]
        together = await asyncio.gather(*(client.post("/v1/completions", json=body) for body in bodies))
        alone = [await client.post("/v1/completions", json=body) for body in bodies]
        assert app.state.service.batch.counts["steps"] < 2 * sum(5 + 7 * i for i in range(9))
        return [*zip(together, alone)]

    for together, alone in with_client(use, rows=4):
        assert together.status_code == alone.status_code == 200
        assert together.json()["choices"] == alone.json()["choices"]


def test_a_stream_adds_up_to_the_whole() -> None:
    body = {"prompt": ["abc", "de"], "max_tokens": 12, "temperature": 1, "seed": 3, "n": 2}

    async def use(client: httpx.AsyncClient, app: Any) -> Any:
        whole = (await client.post("/v1/completions", json=body)).json()
        extra = {"stream": True, "stream_options": {"include_usage": True}}
        texts, reasons, usage = [""] * 4, [None] * 4, None
        async with client.stream("POST", "/v1/completions", json={**body, **extra}) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            lines = [line async for line in response.aiter_lines() if line]
        assert lines[-1] == "data: [DONE]"
        for line in lines[:-1]:
            event = json.loads(line.removeprefix("data: "))
            usage = event.get("usage", usage)
            for part in event["choices"]:
                texts[part["index"]] += part["text"]
                reasons[part["index"]] = part["finish_reason"] or reasons[part["index"]]
        assert texts == [choice["text"] for choice in whole["choices"]]
        assert reasons == ["length"] * 4 and usage == whole["usage"]
        assert len(set(texts)) > 1

    with_client(use)


def test_echo_and_logprobs_score_a_text_given_as_tokens() -> None:
    """As lm_eval asks."""
    ids = WORDS.encode("abcde").tolist()
    body = {"prompt": [ids, ids[:2]], "max_tokens": 1, "echo": True, "logprobs": 2, "temperature": 0}
    choices = ask("/v1/completions", body).json()["choices"]
    with torch.no_grad():
        wanted = MODEL(torch.tensor([ids]), MODEL.init_state(1))[0][0].log_softmax(-1)
    found = choices[0]["logprobs"]
    assert choices[0]["text"][:5] == "abcde" and len(choices[0]["text"]) == 6
    assert found["tokens"][:5] == list("abcde") and found["text_offset"] == [0, 1, 2, 3, 4, 5]
    assert found["token_logprobs"][0] is None and found["top_logprobs"][0] is None
    scores = [float(wanted[i, token]) for i, token in enumerate(ids[1:])]
    assert found["token_logprobs"][1:5] == pytest.approx(scores, abs=1e-5)
    assert found["token_logprobs"][5] == pytest.approx(float(wanted[4].max()), abs=1e-5)
    # The two likeliest, and the token itself.
    for token, top, before in zip(found["tokens"][1:], found["top_logprobs"][1:], wanted):
        likely = {WORDS.decode([int(i)]) for i in before.topk(2).indices}
        assert set(top) == likely | {token}
    scored = ask("/v1/completions", {**body, "max_tokens": 0}).json()["choices"][1]
    assert scored["text"] == "ab" and len(scored["logprobs"]["tokens"]) == 2


def test_a_stop_string_ends_a_text() -> None:
    whole = expected("abc", 30)
    stop = whole[4:6]
    choice = ask("/v1/completions", {"prompt": "abc", "max_tokens": 30, "temperature": 0, "stop": stop}).json()
    assert choice["choices"][0]["text"] == whole[: whole.index(stop)]
    assert choice["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        ({"prompt": "xyz"}, 400, "not in the training text"),
        ({"prompt": ""}, 400, "a prompt is empty"),
        ({"prompt": []}, 400, "'prompt' must be"),
        ({"prompt": [["a"]]}, 400, "a prompt is"),
        ({"prompt": [3, 99]}, 400, "token 99 is out of range"),
        ({"prompt": "\ud800"}, 400, "not valid UTF-8"),
        ({"prompt": "a" * 101}, 400, "too long: at most 100"),
        ({"prompt": "a", "max_tokens": -1}, 400, "'max_tokens' must be a whole number"),
        ({"prompt": "a", "max_tokens": 51}, 400, "from 0 to 50"),
        ({"prompt": "a", "max_tokens": True}, 400, "'max_tokens'"),
        ({"prompt": "a", "temperature": "hot"}, 400, "'temperature' must be a number"),
        ({"prompt": "a", "top_p": 0}, 400, "top_p must be above 0"),
        ({"prompt": "a", "stream": 1}, 400, "'stream' must be true or false"),
        ({"prompt": "a", "stop": ["a", ""]}, 400, "'stop' must be"),
        ({"prompt": "a", "n": 1000}, 400, "'n' must be"),
        ({"prompt": ["a"] * 20, "n": 2}, 400, "more than 32 texts"),
        ({"prompt": "a", "best_of": 3}, 400, "'best_of' is not supported"),
        ({"prompt": "a", "pickle": "x"}, 400, "unknown field 'pickle'"),
        ({"prompt": "a", "\ud800": 1}, 400, "unknown field"),
        ({"prompt": "a", "model": "gpt"}, 404, "there is no model 'gpt'"),
        ({"prompt": "a", "state": "../../etc/passwd"}, 404, "no such state"),
        ([1], 400, "must be a JSON object"),
    ],
    ids=lambda part: repr(part)[:40],
)
def test_mistakes_are_told(body: Any, status: int, told: str) -> None:
    answer = ask("/v1/completions", body, limits=Limits(prompt=100, tokens=50))
    assert answer.status_code == status
    assert told in answer.json()["error"]["message"]


def test_a_long_text_is_refused_before_it_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tokens would take time and memory; of many prompts not even the first is."""
    encoded: list[str] = []
    monkeypatch.setattr(requests, "encode", lambda vocabulary, prompt: encoded.append(prompt) or encode(WORDS, prompt))
    bpe = BPE.build(["abc abc abcabc\n" * 20], 260)
    assert max(bpe.lengths) > 3
    for body in ({"prompt": "a" * 900_000}, {"prompt": ["b", "a" * 101]}, {"prompt": ["a"] * 33}):
        answer = ask("/v1/completions", body, limits=Limits(prompt=100))
        assert answer.status_code == 400, answer.text
    with pytest.raises(requests.Refused, match="more is too long: at most 100"):
        requests.tokens_of("a" * (100 * max(bpe.lengths) + 1), bpe, Limits(prompt=100))
    assert encoded == ["b"]


def test_no_text_of_allowed_length_is_refused_by_its_number_of_characters() -> None:
    """The longest tokens, as many as there may be."""
    bpe = BPE.build(["abc abc abcabc\n" * 20], 260)
    word = max((word for word in ("a", "abc", " abc", "abcabc") if len(bpe.encode(word)) == 1), key=len)
    assert len(word) > 1
    for vocabulary, longest in ((bpe, word), (Bytes(), "a"), (WORDS, "a"), (Words.build(["ab"]), "ab" + " " * 1000)):
        assert len(requests.tokens_of(longest * 50, vocabulary, Limits(prompt=50))) == 50


def test_the_size_of_an_answer_is_bounded_before_anything_is_read() -> None:
    body = {"prompt": "a" * 1000, "n": 8, "echo": True, "max_tokens": 0}
    limits = Limits(answer=8000)
    assert ask("/v1/completions", body, limits=limits).status_code == 200
    for more in ({"logprobs": 0}, {"logprobs": 5, "n": 2}, {"max_tokens": 1}):
        answer = ask("/v1/completions", {**body, **more}, limits=limits)
        assert answer.status_code == 400 and "at most 8000" in answer.text
    small = ask("/v1/completions", {**body, "n": 1, "logprobs": 5}, limits=limits)
    assert small.status_code == 200 and len(small.content) < 60 * 8000


def test_what_is_no_json_or_too_large_is_refused() -> None:
    async def use(client: httpx.AsyncClient, app: Any) -> None:
        for content, headers, status in (
            (b"{", JSON, 400),
            (b'{"prompt": NaN}', JSON, 400),
            (b"[" * 100_000, JSON, 400),
            (b"{}", {"content-type": "text/plain"}, 415),
            (b" " * 200_000, JSON, 413),
        ):
            answer = await client.post("/v1/completions", content=content, headers=headers)
            assert answer.status_code == status, (content[:20], answer.text)
        assert (await client.get("/v1/completions")).status_code == 405
        assert (await client.get("/nothing")).json()["error"]["code"] == 404
        for host in ("evil.example", "127.0.0.1.evil.example", "1", ""):
            assert (await client.get("/health", headers={"host": host})).status_code == 400
        for host in ("192.168.1.7:8000", "[fe80::1]:8000", "LOCALHOST"):
            assert (await client.get("/health", headers={"host": host})).status_code == 200

    with_client(use, limits=Limits(body=150_000))


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/"), ("GET", "/health"), ("GET", "/metrics"), ("GET", "/v1/models"), ("POST", "/v1/completions"),
        ("POST", "/tokenize"), ("POST", "/v1/states"), ("GET", "/v1/states/x/save"), ("GET", "/nothing"),
    ],
)  # fmt: skip
def test_a_token_guards_every_route(method: str, path: str) -> None:
    async def use(client: httpx.AsyncClient, app: Any) -> list[int]:
        answers = []
        for header in (None, "Bearer wrong", "Bearer", "secret-token", "Bearer secret-token"):
            headers = {"authorization": header} if header else {}
            answers.append((await client.request(method, path, headers=headers, json={"prompt": "a"})).status_code)
        return answers

    found = with_client(use, token="secret-token")
    assert found[:4] == [401] * 4 and found[4] != 401


def test_too_many_are_told_to_come_back() -> None:
    async def use(client: httpx.AsyncClient, app: Any) -> list[httpx.Response]:
        body = {"prompt": "abc", "max_tokens": 300, "temperature": 1}
        answers = await asyncio.gather(*(client.post("/v1/completions", json=body) for _ in range(12)))
        again = await client.post("/v1/completions", json=body)
        assert again.status_code == 200
        return answers

    answers = with_client(use, rows=1, waiting=3)
    statuses = sorted(answer.status_code for answer in answers)
    assert set(statuses) == {200, 429} and statuses.count(429) >= 6
    late = next(answer for answer in answers if answer.status_code == 429)
    assert late.headers["retry-after"] and "wait already" in late.json()["error"]["message"]


def test_a_request_ends_when_its_time_is_up() -> None:
    answer = ask("/v1/completions", {"prompt": "abc", "max_tokens": 4000}, limits=Limits(seconds=0.05)).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] < 4000


def test_a_client_that_leaves_makes_room() -> None:
    async def use(client: httpx.AsyncClient, app: Any) -> None:
        batch = app.state.service.batch
        body = {"prompt": "abc", "max_tokens": 4000, "temperature": 1, "stream": True}
        task = asyncio.ensure_future(client.post("/v1/completions", json=body))
        while not batch.active:
            await asyncio.sleep(0.01)
        task.cancel()
        until = time.monotonic() + 20
        while batch.active and time.monotonic() < until:
            await asyncio.sleep(0.01)
        assert not batch.active and batch.counts["written_tokens"] < 4000

    with_client(use, rows=1)


def test_a_bug_ends_requests_but_not_the_service() -> None:
    async def use(client: httpx.AsyncClient, app: Any) -> None:
        batch, body = app.state.service.batch, {"prompt": "abc", "max_tokens": 5, "temperature": 0}
        whole = batch.session.step
        batch.session.step = lambda tokens: 1 / 0
        assert (await client.post("/v1/completions", json=body)).status_code == 503
        batch.session.step = whole
        answer = await client.post("/v1/completions", json=body)
        assert answer.json()["choices"][0]["text"] == expected("abc", 5)
        assert "stairwell_failed_total 1" in (await client.get("/metrics")).text

    with_client(use)


def test_states_are_fed_forked_cropped_saved_and_restored() -> None:
    async def use(client: httpx.AsyncClient, app: Any) -> None:
        async def said(state: str, prompt: str = "") -> str:
            body = {"prompt": prompt, "max_tokens": 12, "temperature": 0, "state": state}
            return (await client.post("/v1/completions", json=body)).json()["choices"][0]["text"]

        made = (await client.post("/v1/states", json={"prompt": "abc"})).json()
        name = made["id"]
        assert made["tokens"] == 3 and await said(name) == expected("abc", 12)
        fork = (await client.post(f"/v1/states/{name}/fork")).json()["id"]
        assert (await client.post(f"/v1/states/{fork}/feed", json={"prompt": "gg"})).json()["tokens"] == 5
        assert await said(fork) == expected("abcgg", 12) and await said(name) == expected("abc", 12)
        assert await said(name, "gg") == expected("abcgg", 12)
        content = (await client.get(f"/v1/states/{fork}/save")).content
        assert (await client.post(f"/v1/states/{fork}/crop", json={"tokens": 2})).json()["tokens"] == 3
        assert await said(fork) == expected("abc", 12)
        kind = {"content-type": "application/octet-stream"}
        restored = (await client.post("/v1/states/restore", content=content, headers=kind)).json()
        assert restored["tokens"] == 5 and await said(restored["id"]) == expected("abcgg", 12)
        assert (await client.delete(f"/v1/states/{name}")).status_code == 204
        assert (await client.get(f"/v1/states/{name}")).status_code == 404
        refused = await client.post(f"/v1/states/{fork}/crop", json={"tokens": 40})
        assert refused.status_code == 409 and "cannot take back 40 tokens" in refused.json()["error"]["message"]
        for damaged in (b"", b"noise", content[:-7], content[:200] + b"\x00" + content[201:]):
            answer = await client.post("/v1/states/restore", content=damaged, headers=kind)
            assert answer.status_code == 400 and "/tmp" not in answer.text, answer.text
        empty = (await client.post("/v1/states", json={})).json()["id"]
        body = {"prompt": "", "state": empty}
        assert (await client.post("/v1/completions", json=body)).status_code == 409

    with_client(use)


def test_states_have_a_quota_and_are_forgotten() -> None:
    now = [0.0]
    states = States(MODEL, WORDS, Limits(states=2, state_seconds=10), clock=lambda: now[0])
    first = states.keep(states.fresh)
    states.keep(states.fresh)
    with pytest.raises(Exception, match="2 states are kept already"):
        states.keep(states.fresh)
    now[0] = 9
    states.read(first)
    now[0] = 15
    states.keep(states.fresh)  # the second one was forgotten, the first was asked for
    states.read(first)
    assert len(states) == 2


def test_a_full_disk_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def full_in_safetensors(*_: Any) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    async def use(client: httpx.AsyncClient, app: Any) -> None:
        name = (await client.post("/v1/states", json={"prompt": "abc"})).json()["id"]
        content = (await client.get(f"/v1/states/{name}/save")).content
        kind = {"content-type": "application/octet-stream"}
        for problem in (full, full_in_safetensors):
            monkeypatch.setattr(Stream, "save", problem)
            monkeypatch.setattr(Path, "write_bytes", problem)
            saved = await client.get(f"/v1/states/{name}/save")
            restored = await client.post("/v1/states/restore", content=content, headers=kind)
            for answer in (saved, restored):
                assert answer.status_code == 507 and "no disk space left" in answer.json()["error"]["message"]

    with_client(use)


def test_a_core_that_cannot_take_tokens_back_is_served_too() -> None:
    app = make_app(make_model(LSTMConfig(width=8, layers=1)), WORDS)

    async def use(client: httpx.AsyncClient, app: Any) -> None:
        name = (await client.post("/v1/states", json={"prompt": "abc"})).json()["id"]
        body = {"prompt": "a", "state": name, "max_tokens": 3}
        assert (await client.post("/v1/completions", json=body)).status_code == 200
        assert (await client.post(f"/v1/states/{name}/crop", json={"tokens": 1})).status_code == 409

    with_client(use, app)


def test_every_route_is_described_as_it_is() -> None:
    described = ask("/openapi.json", method="GET").json()["paths"]
    methods = {path: {name.upper() for name in parts} & {"GET", "POST", "DELETE"} for path, parts in described.items()}
    assert methods == {route.path: set(route.methods or ()) - {"HEAD"} for route in ROUTES}


@pytest.mark.parametrize(
    ("header", "host"),
    [(b"LocalHost:80", "localhost"), (b"127.0.0.1", "127.0.0.1"), (b"[::1]:8000", "::1"), (b"[::1", "::1"), (b"", "")],
)
def test_a_host_is_read_without_its_port(header: bytes, host: str) -> None:
    assert host_of(header) == host


def test_a_server_on_all_interfaces_answers_to_addresses_and_its_own_names(
    tiny_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "Machine")

    def asked(host: str, bound: str = "0.0.0.0", allowed: list[str] = []) -> int:  # noqa: B006
        app = application(tiny_run, bound, None, "cpu", 1, 1, Limits(), allowed)

        async def use(client: httpx.AsyncClient, app: Any) -> int:
            return (await client.get("/health", headers={"host": host})).status_code

        return with_client(use, app)

    assert [asked("10.0.0.3:8000"), asked("[::1]"), asked("machine:8000"), asked("localhost")] == [200] * 4
    assert [asked("evil.example"), asked("evil.example", "::"), asked("machine", "127.0.0.1")] == [400] * 3
    assert [asked("my.example", allowed=["My.example"]), asked("any.example", allowed=["*"])] == [200] * 2


def test_a_token_file_holds_one_word(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("  a-long-token\n")
    assert read_token(file) == "a-long-token"
    for content in (b"", b"short", b"two words here", b"\xff\xfe\x00long enough", "tökens-are-ascii".encode()):
        file.write_bytes(content)
        with pytest.raises(UserError, match="must hold a token"):
            read_token(file)
    with pytest.raises(UserError, match="cannot read the token file"):
        read_token(tmp_path / "none")


def test_prompts_of_those_who_wait_are_read_together() -> None:
    """In as many calls as they have lengths."""

    async def use(client: httpx.AsyncClient, app: Any) -> None:
        batch, shapes = app.state.service.batch, []
        hidden = batch.model.hidden
        batch.model.hidden = lambda x, state: (shapes.append(tuple(x.shape)), hidden(x, state))[1]
        try:
            body = {"prompt": ["abcd", "ab", "gfed", "abcdefg"], "max_tokens": 0, "echo": True, "logprobs": 1}
            together = (await client.post("/v1/completions", json=body)).json()["choices"]
            assert shapes == [(4, 2), (3, 2), (1, 3)]
        finally:
            del batch.model.hidden
        for choice, prompt in zip(together, body["prompt"]):
            alone = (await client.post("/v1/completions", json={**body, "prompt": prompt})).json()["choices"][0]
            assert choice["text"] == alone["text"] == prompt
            found, wanted = (part["logprobs"]["token_logprobs"][1:] for part in (choice, alone))
            assert found == pytest.approx(wanted, abs=1e-5)

    with_client(use, make_app(make_model(), WORDS))


def test_a_request_does_not_inherit_the_options_of_the_one_before() -> None:
    whole, seeds = expected("abc", 30), []

    async def use(client: httpx.AsyncClient, app: Any) -> None:
        async def said(**options: Any) -> str:
            body = {"prompt": "abc", "max_tokens": 30, **options}
            return (await client.post("/v1/completions", json=body)).json()["choices"][0]["text"]

        assert await said(temperature=0, stop=[whole[4:6]]) == whole[: whole.index(whole[4:6])]
        assert await said(temperature=0) == whole
        assert await said(temperature=0, repetition_penalty=50) != whole
        assert await said(temperature=0) == whole
        seeds.extend([await said(seed=1), await said(), await said(), await said(seed=1)])

    with_client(use)
    assert len(set(seeds)) == 3 and seeds[0] == seeds[3]


def test_a_fork_and_its_parent_go_their_own_ways() -> None:
    async def use(client: httpx.AsyncClient, app: Any) -> None:
        async def said(state: str) -> str:
            body = {"max_tokens": 12, "temperature": 0, "state": state}
            return (await client.post("/v1/completions", json=body)).json()["choices"][0]["text"]

        async def changed(state: str, how: str, **body: Any) -> int:
            return (await client.post(f"/v1/states/{state}/{how}", json=body)).json()["tokens"]

        parent = (await client.post("/v1/states", json={"prompt": "abcde"})).json()["id"]
        fork = (await client.post(f"/v1/states/{parent}/fork")).json()["id"]
        assert fork != parent
        # In turns, each way of changing one and then the other.
        assert await changed(parent, "feed", prompt="gg") == 7 and await said(fork) == expected("abcde", 12)
        assert await changed(fork, "feed", prompt="f\n") == 7 and await said(parent) == expected("abcdegg", 12)
        assert await changed(parent, "crop", tokens=4) == 3 and await said(fork) == expected("abcdef\n", 12)
        assert await changed(fork, "crop", tokens=1) == 6 and await said(parent) == expected("abc", 12)
        assert (await client.delete(f"/v1/states/{parent}")).status_code == 204
        assert await said(fork) == expected("abcdef", 12)

    with_client(use)


def test_a_long_state_is_cropped_by_exactly_as_many_tokens_as_asked() -> None:
    """Longer than the memory, and than the tokens that are kept to be read again."""
    text = "abcdefg\nbadcafe" * 12
    ids = WORDS.encode(text).tolist()
    with torch.no_grad():
        wanted = MODEL(torch.tensor([ids]), MODEL.init_state(1))[0][0].log_softmax(-1)

    async def use(client: httpx.AsyncClient, app: Any) -> None:
        async def scores(state: str) -> list[float]:
            """Of the tokens that follow the state."""
            body = {"state": state, "prompt": "ga", "max_tokens": 0, "echo": True, "logprobs": 0}
            choice = (await client.post("/v1/completions", json=body)).json()["choices"][0]
            return choice["logprobs"]["token_logprobs"]

        made = (await client.post("/v1/states", json={"prompt": text})).json()
        assert made["tokens"] == len(ids) > 64 and made["croppable"] == 32
        g = int(WORDS.encode("g")[0])
        left = len(ids)
        for tokens in (1, 1, 7, 23):  # 32 in all, in several steps
            left -= tokens
            cropped = await client.post(f"/v1/states/{made['id']}/crop", json={"tokens": tokens})
            assert cropped.json()["tokens"] == left
            assert (await scores(made["id"]))[0] == pytest.approx(float(wanted[left - 1, g]), abs=1e-5)
        assert cropped.json()["croppable"] == 0
        fed = await client.post(f"/v1/states/{made['id']}/feed", json={"prompt": text[left:]})
        assert fed.json()["tokens"] == len(ids)
        assert (await scores(made["id"]))[0] == pytest.approx(float(wanted[-1, g]), abs=1e-5)

    with_client(use)


def test_texts_of_one_prompt_read_it_once() -> None:
    async def use(client: httpx.AsyncClient, app: Any) -> None:
        body = {"prompt": "abcdef", "n": 4, "max_tokens": 5, "seed": 1, "echo": True, "logprobs": 1}
        choices = (await client.post("/v1/completions", json=body)).json()["choices"]
        assert app.state.service.batch.counts["prompt_tokens"] == 6
        assert all(choice["text"].startswith("abcdef") for choice in choices) and len({*map(str, choices)}) == 4
        first = [choice["logprobs"]["token_logprobs"][:6] for choice in choices]
        assert first[1:] == first[:-1]

    with_client(use)


def test_half_a_character_in_the_prompt_is_finished_by_the_text() -> None:
    """The model is made to say the second byte of é."""
    model = make_model(inputs=256)
    with torch.no_grad():
        model.head.bias[0xA9] += 100  # type: ignore[union-attr]
    app = make_app(model, Bytes())

    async def use(client: httpx.AsyncClient, app: Any) -> None:
        body = {"prompt": [ord("a"), 0xC3], "max_tokens": 1, "temperature": 0}
        assert (await client.post("/v1/completions", json=body)).json()["choices"][0]["text"] == "é"

    with_client(use, app)


def test_offsets_are_of_the_text_although_a_stop_string_holds_it_back() -> None:
    whole = expected("abc", 8)
    body = {"prompt": "abc", "max_tokens": 8, "temperature": 0, "logprobs": 0, "stop": [whole[1:3] + "never"]}
    choice = ask("/v1/completions", body).json()["choices"][0]
    assert choice["text"] == whole and choice["logprobs"]["text_offset"] == list(range(8))


def test_a_core_with_a_longest_stream_stops_there() -> None:
    core = GlobalCachedStaircaseConfig(width=8, heads=2, layers=1, chunk=4, compute=1, max_tokens=20)
    app = make_app(make_model(core), WORDS)

    async def use(client: httpx.AsyncClient, app: Any) -> None:
        body = {"prompt": "abcdefgabc", "max_tokens": 100}
        answer = (await client.post("/v1/completions", json=body)).json()
        assert answer["usage"]["completion_tokens"] == 11 and answer["choices"][0]["finish_reason"] == "length"
        answer = await client.post("/v1/completions", json={"prompt": "abc" * 10})
        assert answer.status_code == 400 and "more than max_tokens=20" in answer.text
        name = (await client.post("/v1/states", json={"prompt": "abcdefgabc"})).json()["id"]
        assert (await client.post(f"/v1/states/{name}/feed", json={"prompt": "abc" * 10})).status_code == 400
        assert (await client.get(f"/v1/states/{name}")).json()["tokens"] == 10
        assert app.state.service.batch.counts["failed"] == 0

    with_client(use, app)


def test_tokens_models_health_and_numbers() -> None:
    async def use(client: httpx.AsyncClient, app: Any) -> None:
        found = (await client.post("/tokenize", json={"prompt": "abc"})).json()
        assert found["tokens"] == WORDS.encode("abc").tolist() and found["count"] == 3
        assert (await client.post("/detokenize", json={"tokens": found["tokens"]})).json() == {"prompt": "abc"}
        assert (await client.get("/v1/models")).json()["data"][0]["id"] == "stairwell"
        assert (await client.get("/v1/models/stairwell")).status_code == 200
        assert (await client.get("/v1/models/other")).status_code == 404
        assert (await client.get("/health")).json()["status"] == "ok"
        numbers = (await client.get("/metrics")).text
        assert "stairwell_requests_total 0" in numbers and "stairwell_states 0" in numbers
        assert "<title>" in (await client.get("/")).text

    with_client(use)


def test_bytes_that_are_no_text_have_names_and_half_characters_wait() -> None:
    app = make_app(make_model(inputs=256), Bytes())

    async def use(client: httpx.AsyncClient, app: Any) -> None:
        body = {"prompt": list("é".encode()), "max_tokens": 0, "echo": True, "logprobs": 0}
        choice = (await client.post("/v1/completions", json=body)).json()["choices"][0]
        assert choice["text"] == "é" and choice["logprobs"]["tokens"] == ["bytes:\\xc3", "bytes:\\xa9"]

    with_client(use, app)
