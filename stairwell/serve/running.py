"""From a run folder to a running server."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from stairwell.errors import UserError
from stairwell.export.html import LARGEST, Shown, make_page
from stairwell.files import read_small
from stairwell.generate import load_language_model
from stairwell.serve.requests import Limits

LOOPBACK = ("127.0.0.1", "localhost", "::1")
ALL_INTERFACES = ("0.0.0.0", "::", "")
GRACE = 20  # seconds for what was begun, once the server is asked to stop
FAREWELL = 5  # seconds in which those whose time is up then are told
LINGER = 30.0  # seconds beyond a request's own time until its answer must have been taken


def application(
    run: str | os.PathLike[str],
    host: str,
    token: str | None,
    device: str,
    rows: int,
    waiting: int,
    limits: Limits,
    allow_hosts: Sequence[str] = (),
) -> Any:
    """The service of a run folder."""
    from stairwell.serve.app import LOCAL, PLAIN, make_app

    model, vocabulary = load_language_model(run, device)
    name = Path(run).resolve().name

    @cache
    def page() -> str:
        """The page of the HTML export, where it can run this model."""
        try:
            made = make_page([Shown(name, model, vocabulary)])
        except UserError:
            return PLAIN
        return made if len(made) <= LARGEST else PLAIN

    hosts = [*LOCAL, *names_of(host), *allow_hosts]
    return make_app(
        model, vocabulary, name=name, token=token, limits=limits, rows=rows, waiting=waiting, hosts=hosts, page=page
    )


def names_of(host: str) -> list[str]:
    """The names under which a server that listens there is reached: on all interfaces, this machine's own."""
    return [socket.gethostname(), socket.getfqdn()] if host in ALL_INTERFACES else [host]


def read_token(path: Path) -> str:
    try:
        token = read_small(path).decode("utf-8").strip()
    except OSError as error:
        raise UserError(f"cannot read the token file {path}: {error.strerror}") from None
    except UnicodeError:
        token = ""
    if len(token) < 8 or not token.isascii() or not token.isprintable() or " " in token:
        raise UserError(f"{path} must hold a token of at least 8 letters, digits or signs, and nothing else")
    return token


def bind(host: str, port: int) -> socket.socket:
    """A socket of this address, before anything is loaded: what is wrong with it is told at once."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except (OSError, UnicodeError) as error:
        taken = getattr(error, "errno", None) in (errno.EADDRINUSE, errno.EACCES)
        reason, other = getattr(error, "strerror", None) or error, "--port" if taken else "--host"
        raise UserError(f"cannot listen on {host}, port {port}: {reason}; choose another {other}") from None
    return bound


def serve(
    run: str | os.PathLike[str],
    host: str = "127.0.0.1",
    port: int = 8000,
    token_file: Path | None = None,
    device: str = "auto",
    rows: int = 16,
    waiting: int = 64,
    limits: Limits | None = None,
    allow_hosts: Sequence[str] = (),
    say: Callable[[str], None] = lambda line: None,
) -> None:
    """Serve until interrupted; then finish what was begun. Port 0 is any that is free; `say` is told which."""
    try:
        import uvicorn

        from stairwell.serve.connection import Impatient, Server
    except ImportError:
        raise UserError("the server needs starlette and uvicorn: pip install 'stairwell[serve]'") from None
    limits = limits or Limits()
    token = read_token(token_file) if token_file is not None else None
    with bind(host, port) as bound:
        app = application(run, host, token, device, rows, waiting, limits, allow_hosts)
        config = uvicorn.Config(
            app, log_level="error", access_log=False, server_header=False, date_header=False, ws="none", lifespan="on",
            http=type("Connection", (Impatient,), {"answers_within": limits.seconds + LINGER}),
            timeout_graceful_shutdown=GRACE + FAREWELL, limit_concurrency=2 * limits.clients,
        )  # fmt: skip
        name, port = app.state.service.name, bound.getsockname()[1]
        place = f"[{host}]" if ":" in host else host
        say(f"'{name}' is served at http://{place}:{port} (Ctrl-C ends it)")
        if host not in LOOPBACK and token is None:
            say("anyone who reaches this address can use it: --token-file asks for a token")
        if host in ALL_INTERFACES:
            say(f"it answers to addresses, localhost and {names_of(host)[0]}: --allow-host NAME for other names")
        if "*" in allow_hosts:
            say("it answers to any name, those that web pages elsewhere make up included: --allow-host NAME is safer")
        Server(config, app.state.service.batch.abort, GRACE).run(sockets=[bound])
