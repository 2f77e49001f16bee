"""The server under load: throughput at 1, 4 and 16 clients, and its memory over many requests.

small, large: one process serves, with its defaults; this one asks, through HTTP, with the same requests for everyone.
`loop` is what people do without a server: one text after another in one process, by `generate`'s own functions. All
take turns, so that a slow moment of the machine hits everyone; before anything is timed the server must give each token
that it writes the probability that the model gives it. The models are untrained: what they say does not matter to the
time that it takes, but many tokens are as good as equally likely, so that texts differ by rounding.

memory: the resident memory of a server, by the thousand requests of all kinds: whole, streamed, abandoned, refused,
with states that are made, forked, saved, restored and forgotten.
"""

from __future__ import annotations

import asyncio
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import torch

from bench.records import ROOT
from bench.speed import spread
from stairwell.generate import Choice, load_language_model, write
from stairwell.models import LanguageModel
from stairwell.runs.launch import fit
from stairwell.runs.presets import preset
from stairwell.stream import Stream
from stairwell.text import Bytes

CLIENTS = (1, 4, 16)
ROUNDS = 5
PROMPT, TOKENS = 64, 128  # bytes to read, tokens to write
SHAPES = {
    "small": {"width": 256, "layers": 4, "heads": 4, "memory": 256},
    "large": {"width": 512, "layers": 8, "heads": 8, "memory": 256},
}
CASES = (*SHAPES, "memory")
TINY = {"width": 16, "layers": 1, "heads": 2, "memory": 16}
LONG, STEP = 10_000, 1_000  # requests of the memory's measurement


@dataclass(frozen=True)
class Asked:
    prompt: str
    seed: int

    @property
    def body(self) -> dict[str, Any]:
        return {"prompt": self.prompt, "max_tokens": TOKENS, "temperature": 0.8, "seed": self.seed}


def make_run(folder: Path, sizes: dict[str, int]) -> Path:
    """A language model of bytes with these sizes, after one step of training."""
    (folder / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 100)
    options = {f"core.{name}": str(size) for name, size in sizes.items()}
    options |= {"task.path": str(folder / "text.txt"), "task.unit": "bytes", "train.steps": "1", "train.batch": "2"}
    fit(preset("lm/feedback").with_options(options), folder / "served", "cpu")
    return folder / "served"


@contextmanager
def served(run: Path, *options: str) -> Iterator[tuple[str, int]]:
    """The address and the process of a server of this run."""
    command = [sys.executable, "-m", "stairwell", "serve", str(run), "--port", "0", "--device", "cpu", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    server = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        line = server.stderr.readline()
        found = re.search(r"http://\S+", line)
        if found is None:
            sys.exit(line + server.stderr.read())
        yield found[0], server.pid
    finally:
        server.terminate()
        server.communicate()


def asked(n: int) -> list[Asked]:
    text = "the quick brown fox jumps over the lazy dog " * 4
    return [Asked(text[i % 40 : i % 40 + PROMPT], i) for i in range(n)]


async def ask_all(address: str, clients: int, requests: Sequence[Asked], **more: Any) -> list[dict[str, Any]]:
    """As many clients, each asking for its next text when it has its last; the texts as choices of OpenAI's."""
    left = iter(enumerate(requests))
    choices: list[dict[str, Any]] = [{} for _ in requests]
    limits = httpx.Limits(max_connections=clients)
    async with httpx.AsyncClient(base_url=address, timeout=600, limits=limits) as http:

        async def client() -> None:
            for i, request in left:
                answer = (await http.post("/v1/completions", json={**request.body, **more})).raise_for_status().json()
                assert answer["usage"]["completion_tokens"] == TOKENS
                choices[i] = answer["choices"][0]

        await asyncio.gather(*(client() for _ in range(clients)))
    return choices


def check_equal(model: LanguageModel, address: str, requests: Sequence[Asked]) -> None:
    """All at once: the log-probabilities of what the server writes against the model's own."""
    choices = asyncio.run(ask_all(address, len(requests), requests, logprobs=0))
    for request, choice in zip(requests, choices):
        stream = Stream(model, Bytes())
        stream.feed(request.prompt)
        known = stream.surprise(b"".join(map(as_bytes, choice["logprobs"]["tokens"])))
        error = (known + torch.tensor(choice["logprobs"]["token_logprobs"])).abs().max()
        if not error < 1e-3:
            sys.exit(f"the server's log-probabilities differ from the model's by {error:.2g}")


def as_bytes(token: str) -> bytes:
    """A token of bytes as the server spells it."""
    return bytes.fromhex(token[6:].replace("\\x", "")) if token.startswith("bytes:") else token.encode()


def measure_throughput(case: str, sizes: dict[str, int], rounds: int = ROUNDS, texts: int = 16) -> list[dict[str, Any]]:
    requests = asked(texts)
    with tempfile.TemporaryDirectory() as folder:
        run = make_run(Path(folder), sizes)
        model, vocabulary = load_language_model(run, "cpu")

        def loop() -> None:
            for one in requests:
                for _ in write(model, vocabulary, one.prompt, TOKENS, Choice(temperature=0.8), (), one.seed):
                    pass

        with served(run) as (address, _):
            check_equal(model, address, requests)
            ways: dict[str, Callable[[], Any]] = {"loop": loop}
            for clients in CLIENTS:
                ways[str(clients)] = lambda clients=clients: asyncio.run(ask_all(address, clients, requests))
            for way in ways.values():  # until everything is warm
                way()
            times: dict[str, list[float]] = {name: [] for name in ways}
            for _ in range(rounds):
                for name, way in ways.items():
                    began = time.perf_counter()
                    way()
                    times[name].append(time.perf_counter() - began)
    middle = {name: statistics.median(taken) for name, taken in times.items()}
    return [
        {
            "case": case,
            "what": name,
            "tokens_per_second": round(texts * TOKENS / middle[name], 1),
            "over_loop": round(middle["loop"] / middle[name], 2),
            "spread": spread(times[name]),
            "texts": texts,
            "prompt": PROMPT,
            "tokens": TOKENS,
            "rounds": rounds,
            **sizes,
        }
        for name in ways
    ]


def resident(process: int) -> int:
    """Bytes of a process that lie in memory."""
    pages = Path(f"/proc/{process}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


async def ask_for_everything(address: str, requests: int, clients: int = 8) -> None:
    """So many requests of all kinds, by turns."""
    left = iter(range(requests))
    body: dict[str, Any] = {"prompt": "the quick", "max_tokens": 4}
    async with httpx.AsyncClient(base_url=address, timeout=600) as http:

        async def abandon() -> None:
            async with http.stream(
                "POST", "/v1/completions", json={**body, "max_tokens": 500, "stream": True}
            ) as begun:
                await anext(begun.aiter_raw())

        async def stream() -> None:
            async with http.stream("POST", "/v1/completions", json={**body, "stream": True, "logprobs": 5}) as begun:
                async for _ in begun.aiter_raw():
                    pass

        async def states() -> None:
            """Six requests."""
            name = (await http.post("/v1/states", json={"prompt": "the quick brown"})).json()["id"]
            twin = (await http.post(f"/v1/states/{name}/fork")).json()["id"]
            content = (await http.get(f"/v1/states/{twin}/save")).content
            kind = {"content-type": "application/octet-stream"}
            again = (await http.post("/v1/states/restore", content=content, headers=kind)).json()["id"]
            for each in (name, twin, again):
                await http.delete(f"/v1/states/{each}")

        async def client() -> None:
            for i in left:
                if i % 20 == 0:
                    await states()
                elif i % 20 == 10:
                    await abandon()
                elif i % 20 == 15:
                    assert (await http.post("/v1/completions", json={"prompt": ""})).status_code == 400
                elif i % 4 == 1:
                    await stream()
                else:
                    (await http.post("/v1/completions", json={**body, "logprobs": 2, "echo": True})).raise_for_status()

        await asyncio.gather(*(client() for _ in range(clients)))


def measure_memory(requests: int = LONG, step: int = STEP) -> list[dict[str, Any]]:
    records = []
    with tempfile.TemporaryDirectory() as folder:
        run = make_run(Path(folder), TINY)
        with served(run) as (address, process):
            httpx.get(address)  # the page is made once and kept
            for done in range(0, requests + 1, step):
                if done:
                    asyncio.run(ask_for_everything(address, step))
                megabytes = round(resident(process) / 2**20, 1)
                records.append({"case": "memory", "what": "server", "after": done, "megabytes": megabytes})
    return records


def measure(cases: Sequence[str] = CASES) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for case in cases:
        found += measure_memory() if case == "memory" else measure_throughput(case, SHAPES[case])
    return found
