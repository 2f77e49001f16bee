"""A run folder of a tiny language model, and servers of it: a process of their own, or a thread of this one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import uvicorn

from stairwell.runs.launch import fit
from stairwell.runs.presets import preset
from stairwell.serve.connection import Impatient
from stairwell.serve.connection import Server as Uvicorn
from stairwell.serve.running import bind
from stairwell.serve.service import Service

TOKEN = "a-token-for-tests"


@dataclass
class Server:
    run: Path
    port: int
    process: subprocess.Popen[str]

    @property
    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"http://127.0.0.1:{self.port}/v1", api_key=TOKEN, max_retries=0)

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"http://127.0.0.1:{self.port}{path}", headers={"Authorization": f"Bearer {TOKEN}"})


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("server")
    (folder / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 40)
    sizes = {"core.width": "8", "core.layers": "1", "train.steps": "2", "train.batch": "2", "train.segment": "8"}
    fit(preset("lm/feedback").with_options({**sizes, "task.path": str(folder / "text.txt")}), folder / "tiny", "cpu")
    (folder / "token").write_text(TOKEN + "\n")
    return folder / "tiny"


@contextmanager
def started(run: Path, *options: str) -> Iterator[Server]:
    """`stairwell serve`, as people start it, with a token."""
    command = [sys.executable, "-m", "stairwell", "serve", run.name, "--port", "0", "--token-file", "token", *options]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen(command, cwd=run.parent, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        place = re.search(r"http://127.0.0.1:(\d+)", line)
        assert place is not None, line + process.stderr.read()
        server = Server(run, int(place[1]), process)
        give_up = time.monotonic() + 60
        while True:
            try:
                server.get("/health")
                break
            except httpx.TransportError:
                assert process.poll() is None and time.monotonic() < give_up
                time.sleep(0.1)
        yield server
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def server(tiny_run: Path) -> Iterator[Server]:
    with started(tiny_run) as found:
        yield found


@dataclass
class Inside:
    """A server in a thread of this process, whose inside can be looked at."""

    port: int
    service: Service
    uvicorn: uvicorn.Server

    @property
    def busy(self) -> dict[str, int]:
        """Whatever a client may have left behind."""
        batch = self.service.batch
        return {
            "rows": len(batch.active),
            "session": batch.session.batch,
            "waiting": len(batch.queue),
            "told": self.service.told,
            "working": self.service.working,
            "receiving": self.service.receiving,
            "sending": self.service.sending,
            "connections": len(self.uvicorn.server_state.connections),
            "requests": len(self.uvicorn.server_state.tasks),
        }

    def settle(self) -> None:
        """Wait until nobody has left anything behind."""
        give_up = time.monotonic() + 30
        while any(self.busy.values()):
            assert time.monotonic() < give_up, self.busy
            time.sleep(0.02)

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        return httpx.post(f"http://127.0.0.1:{self.port}{path}", json=body, timeout=60, **options)


@contextmanager
def inside(
    app: Any,
    patience: float = 30.0,
    answers_within: float = 60.0,
    linger: float = 30.0,
    connections: int | None = None,
    grace: float = 20.0,
) -> Iterator[Inside]:
    limits = {"patience": patience, "linger": linger, "answers_within": answers_within}
    connection: Any = type("Connection", (Impatient,), limits)
    with bind("127.0.0.1", 0) as bound:
        config = uvicorn.Config(app, http=connection, ws="none", log_level="critical", limit_concurrency=connections)
        server = Uvicorn(config, app.state.service.batch.abort, grace)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield Inside(bound.getsockname()[1], app.state.service, server)
        finally:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive()
