"""Benchmark of the server: throughput with 1, 4 and 16 clients, and memory over many requests.

small, large: a server with the default options in its own process; this process sends the same requests in each case.
`loop` generates the same texts one after the other without a server, by the functions of `generate`. The cases take
turns, so that a slow phase of the machine affects all of them. Before anything is timed, the log-probabilities from the
server are compared with the model's. The models are untrained, which does not affect the time, but many tokens are
almost equally probable, so the texts differ by rounding.

memory: the resident memory of a server, after every thousand requests of all types: whole, streamed, disconnected and
invalid completions, and states that are created, forked, saved, restored and deleted.
"""

from __future__ import annotations

import asyncio
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import torch

from bench.records import ROOT
from bench.speed import spread, time_interleaved
from stairwell.decode import Sampling
from stairwell.generate import generate, load_language_model
from stairwell.models import LanguageModel
from stairwell.runs.launch import fit
from stairwell.runs.presets import preset
from stairwell.stream import Stream
from stairwell.text import Bytes

CLIENTS = (1, 4, 16)
ROUNDS = 5
PROMPT, TOKENS = 64, 128  # bytes per prompt, generated tokens per text
SHAPES = {
    "small": {"width": 256, "layers": 4, "heads": 4, "memory": 256},
    "large": {"width": 512, "layers": 8, "heads": 8, "memory": 256},
}
CASES = (*SHAPES, "memory")
TINY = {"width": 16, "layers": 1, "heads": 2, "memory": 16}
MEMORY_REQUESTS, MEMORY_STEP = 10_000, 1_000  # requests in total, and between two measurements


@dataclass(frozen=True)
class CompletionBody:
    prompt: str
    seed: int

    @property
    def json(self) -> dict[str, Any]:
        return {"prompt": self.prompt, "max_tokens": TOKENS, "temperature": 0.8, "seed": self.seed}


def make_run(folder: Path, sizes: dict[str, int]) -> Path:
    """Return the run folder of a byte-level language model of these sizes, trained for one step."""
    (folder / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 100)
    options = {f"core.{name}": str(size) for name, size in sizes.items()}
    options |= {"task.path": str(folder / "text.txt"), "task.unit": "bytes", "train.steps": "1", "train.batch": "2"}
    fit(preset("lm/feedback").with_options(options), folder / "served", "cpu")
    return folder / "served"


@contextmanager
def running_server(run: Path, *options: str) -> Iterator[tuple[str, int]]:
    """Start a server of a run; yield its address and process id."""
    command = [sys.executable, "-m", "stairwell", "serve", str(run), "--port", "0", "--device", "cpu"]
    command += ["--no-request-log", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    server = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        line = server.stderr.readline()
        address = re.search(r"http://\S+", line)
        if address is None:
            sys.exit(line + server.stderr.read())
        yield address[0], server.pid
    finally:
        server.terminate()
        server.communicate()


def make_requests(n: int) -> list[CompletionBody]:
    text = "the quick brown fox jumps over the lazy dog " * 4
    return [CompletionBody(text[i % 40 : i % 40 + PROMPT], i) for i in range(n)]


async def complete_all(
    address: str, clients: int, requests: Sequence[CompletionBody], **more: Any
) -> list[dict[str, Any]]:
    """Complete all requests with this many clients, each sending one request at a time; return their choices."""
    remaining = iter(enumerate(requests))
    choices: list[dict[str, Any]] = [{} for _ in requests]
    limits = httpx.Limits(max_connections=clients)
    async with httpx.AsyncClient(base_url=address, timeout=600, limits=limits) as http:

        async def client() -> None:
            for i, request in remaining:
                answer = (await http.post("/v1/completions", json={**request.json, **more})).raise_for_status().json()
                assert answer["usage"]["completion_tokens"] == TOKENS
                choices[i] = answer["choices"][0]

        await asyncio.gather(*(client() for _ in range(clients)))
    return choices


def check_logprobs(model: LanguageModel, address: str, requests: Sequence[CompletionBody]) -> None:
    """Compare the log-probabilities of a full batch with those of the model."""
    choices = asyncio.run(complete_all(address, len(requests), requests, logprobs=0))
    for request, choice in zip(requests, choices):
        stream = Stream(model, Bytes())
        stream.feed(request.prompt)
        losses = stream.token_losses(b"".join(map(as_bytes, choice["logprobs"]["tokens"])))
        error = (losses + torch.tensor(choice["logprobs"]["token_logprobs"])).abs().max()
        if not error < 1e-3:
            sys.exit(f"the log-probabilities from the server differ from the model's by {error:.2g}")


def as_bytes(token: str) -> bytes:
    """Return the bytes of a token in a response."""
    return bytes.fromhex(token[6:].replace("\\x", "")) if token.startswith("bytes:") else token.encode()


def measure_throughput(case: str, sizes: dict[str, int], rounds: int = ROUNDS, texts: int = 16) -> list[dict[str, Any]]:
    requests = make_requests(texts)
    with tempfile.TemporaryDirectory() as folder:
        run = make_run(Path(folder), sizes)
        model, vocabulary = load_language_model(run, "cpu")

        def loop() -> None:
            for request in requests:
                for _ in generate(
                    model, vocabulary, request.prompt, TOKENS, Sampling(temperature=0.8), (), request.seed
                ):
                    pass

        with running_server(run) as (address, _):
            check_logprobs(model, address, requests)
            cases: dict[str, Callable[[], Any]] = {"loop": loop}
            for clients in CLIENTS:
                cases[str(clients)] = lambda clients=clients: asyncio.run(complete_all(address, clients, requests))
            times = time_interleaved(cases, rounds, warm_up=1)
    median = {name: statistics.median(seconds) for name, seconds in times.items()}
    return [
        {
            "case": case,
            "what": name,
            "tokens_per_second": round(texts * TOKENS / median[name], 1),
            "over_loop": round(median["loop"] / median[name], 2),
            "spread": spread(times[name]),
            "texts": texts,
            "prompt": PROMPT,
            "tokens": TOKENS,
            "rounds": rounds,
            **sizes,
        }
        for name in cases
    ]


def resident(process: int) -> int:
    """Return the resident memory of a process in bytes."""
    pages = Path(f"/proc/{process}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


async def send_all_types(address: str, requests: int, clients: int = 8) -> None:
    """Send requests of all types in turn."""
    remaining = iter(range(requests))
    body: dict[str, Any] = {"prompt": "the quick", "max_tokens": 4}
    async with httpx.AsyncClient(base_url=address, timeout=600) as http:

        async def disconnect() -> None:
            async with http.stream(
                "POST", "/v1/completions", json={**body, "max_tokens": 500, "stream": True}
            ) as response:
                await anext(response.aiter_raw())

        async def stream() -> None:
            async with http.stream("POST", "/v1/completions", json={**body, "stream": True, "logprobs": 5}) as response:
                async for _ in response.aiter_raw():
                    pass

        async def states() -> None:
            """Send six requests."""
            id = (await http.post("/v1/states", json={"prompt": "the quick brown"})).json()["id"]
            fork = (await http.post(f"/v1/states/{id}/fork")).json()["id"]
            content = (await http.get(f"/v1/states/{fork}/save")).content
            binary = {"content-type": "application/octet-stream"}
            restored = (await http.post("/v1/states/restore", content=content, headers=binary)).json()["id"]
            for state in (id, fork, restored):
                await http.delete(f"/v1/states/{state}")

        async def client() -> None:
            for i in remaining:
                if i % 20 == 0:
                    await states()
                elif i % 20 == 10:
                    await disconnect()
                elif i % 20 == 15:
                    assert (await http.post("/v1/completions", json={"prompt": ""})).status_code == 400
                elif i % 4 == 1:
                    await stream()
                else:
                    (await http.post("/v1/completions", json={**body, "logprobs": 2, "echo": True})).raise_for_status()

        await asyncio.gather(*(client() for _ in range(clients)))


def measure_memory(requests: int = MEMORY_REQUESTS, step: int = MEMORY_STEP) -> list[dict[str, Any]]:
    records = []
    with tempfile.TemporaryDirectory() as folder:
        run = make_run(Path(folder), TINY)
        with running_server(run) as (address, process):
            httpx.get(address)  # the page is made once and cached
            for done in range(0, requests + 1, step):
                if done:
                    asyncio.run(send_all_types(address, step))
                megabytes = round(resident(process) / 2**20, 1)
                records.append({"case": "memory", "what": "server", "after": done, "megabytes": megabytes})
    return records


def measure(cases: Sequence[str] = CASES) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    for case in cases:
        records += measure_memory() if case == "memory" else measure_throughput(case, SHAPES[case])
    return records
