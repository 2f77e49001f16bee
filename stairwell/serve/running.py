"""From a run folder to a running server."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

from stairwell.errors import UserError
from stairwell.export.html import LARGEST, Shown, make_page
from stairwell.generate import load_writer
from stairwell.serve.requests import Limits

LOOPBACK = ("127.0.0.1", "localhost", "::1")
GRACE = 20  # seconds for what was begun, once the server is asked to stop


def application(
    run: str | os.PathLike[str],
    host: str,
    token_file: Path | None,
    device: str,
    rows: int,
    waiting: int,
    limits: Limits,
) -> Any:
    """The service of a run folder."""
    try:
        from stairwell.serve.app import LOCAL, PLAIN, make_app
    except ImportError:
        raise UserError("the server needs starlette and uvicorn: pip install 'stairwell[serve]'") from None
    model, vocabulary = load_writer(run, device)
    token = read_token(token_file) if token_file is not None else None

    @cache
    def page() -> str:
        """The page of the HTML export, where it can run this model."""
        try:
            made = make_page([Shown(Path(run).resolve().name, model, vocabulary)])
        except UserError:
            return PLAIN
        return made if len(made) <= LARGEST else PLAIN

    # On all interfaces nobody can say under which names it is reached; elsewhere only its own are answered.
    hosts = [*LOCAL, host] if host not in ("0.0.0.0", "::") else ["*"]
    return make_app(
        model, vocabulary, name=Path(run).resolve().name, token=token, limits=limits, rows=rows, waiting=waiting,
        hosts=hosts, page=page,
    )  # fmt: skip


def read_token(path: Path) -> str:
    token = path.read_text(encoding="utf-8").strip()
    if len(token) < 8 or not token.isascii() or not token.isprintable() or " " in token:
        raise UserError(f"{path} must hold a token of at least 8 letters, digits or signs, and nothing else")
    return token


def serve(
    run: str | os.PathLike[str],
    host: str = "127.0.0.1",
    port: int = 8000,
    token_file: Path | None = None,
    device: str = "auto",
    rows: int = 16,
    waiting: int = 64,
    limits: Limits | None = None,
) -> None:
    """Serve until interrupted; then finish what was begun."""
    app = application(run, host, token_file, device, rows, waiting, limits or Limits())
    import uvicorn

    uvicorn.run(
        app, host=host, port=port, log_level="info", access_log=False, server_header=False, date_header=False,
        timeout_graceful_shutdown=GRACE, limit_concurrency=1000, timeout_keep_alive=30,
        h11_max_incomplete_event_size=65_536,
    )  # fmt: skip
