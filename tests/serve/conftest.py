"""A run folder of a tiny language model, and servers of it, in their own process or in a thread of this one."""

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
from stairwell.serve.connection import Server as Uvicorn
from stairwell.serve.connection import TimeoutProtocol
from stairwell.serve.run_server import bind
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
    """Start `stairwell serve` with a token; yield when it responds."""
    command = [sys.executable, "-m", "stairwell", "serve", run.name, "--port", "0", "--token-file", "token"]
    command += ["--no-request-log", *options]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen(command, cwd=run.parent, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        address = re.search(r"http://127.0.0.1:(\d+)", line)
        assert address is not None, line + process.stderr.read()
        server = Server(run, int(address[1]), process)
        deadline = time.monotonic() + 60
        while True:
            try:
                server.get("/health")
                break
            except httpx.TransportError:
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.1)
        yield server
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def server(tiny_run: Path) -> Iterator[Server]:
    with started(tiny_run) as server:
        yield server


@dataclass
class LocalServer:
    """A server in a thread of this process, with access to its internals."""

    port: int
    service: Service
    uvicorn: uvicorn.Server

    @property
    def in_use(self) -> dict[str, int]:
        """Everything that a client could leave behind."""
        scheduler = self.service.scheduler
        return {
            "running": len(scheduler.running),
            "session": scheduler.session.batch,
            "waiting": len(scheduler.queue),
            "output": self.service.output,
            "working": self.service.working,
            "receiving": self.service.receiving,
            "sending": self.service.sending,
            "connections": len(self.uvicorn.server_state.connections),
            "requests": len(self.uvicorn.server_state.tasks),
        }

    def wait_until_idle(self) -> None:
        deadline = time.monotonic() + 30
        while any(self.in_use.values()):
            assert time.monotonic() < deadline, self.in_use
            time.sleep(0.02)

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        return httpx.post(f"http://127.0.0.1:{self.port}{path}", json=body, timeout=60, **options)


@contextmanager
def run_server(
    app: Any,
    head_timeout: float = 30.0,
    request_timeout: float = 60.0,
    write_timeout: float = 30.0,
    connections: int | None = None,
    grace: float = 20.0,
) -> Iterator[LocalServer]:
    timeouts = {"head_timeout": head_timeout, "write_timeout": write_timeout, "request_timeout": request_timeout}
    connection: Any = type("Connection", (TimeoutProtocol,), timeouts)
    with bind("127.0.0.1", 0) as bound:
        config = uvicorn.Config(app, http=connection, ws="none", log_level="critical", limit_concurrency=connections)
        server = Uvicorn(config, app.state.service.scheduler.abort, grace)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield LocalServer(bound.getsockname()[1], app.state.service, server)
        finally:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive()
