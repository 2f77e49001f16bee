"""Start a server from a run folder."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from stairwell.decode.weights import Weights
from stairwell.errors import MissingPackage, UserError
from stairwell.export.html import MAX_BYTES, PageModel, make_page
from stairwell.files import read_small_file
from stairwell.generate import load_language_model
from stairwell.serve.limits import Limits

LOOPBACK = ("127.0.0.1", "localhost", "::1")
ALL_INTERFACES = ("0.0.0.0", "::", "")
GRACE = 20  # seconds to finish the requests in progress on shutdown
ERROR_GRACE = 5  # seconds to send error responses after that
READ_SECONDS = 30.0  # seconds for a client to read its response, beyond the time limit of a request


def application(
    run: str | os.PathLike[str],
    host: str,
    token: str | None,
    device: str,
    batch_size: int,
    max_waiting: int,
    limits: Limits,
    allow_hosts: Sequence[str] = (),
    chat_template: Path | None = None,
    request_log: Callable[[str], None] | None = None,
    weights: Weights = "float32",
) -> Any:
    """Return the ASGI application that serves a run folder."""
    from stairwell.serve.app import LOCAL_HOSTS, PLAIN_PAGE, make_app
    from stairwell.serve.chat_template import read_chat_template

    template = read_chat_template(chat_template)
    model, vocabulary = load_language_model(run, device, weights)
    name = Path(run).resolve().name

    @cache
    def page() -> str:
        """Return the page of the HTML export, or a plain page for models it does not support."""
        try:
            html = make_page([PageModel(name, model, vocabulary)])
        except UserError:
            return PLAIN_PAGE
        return html if len(html) <= MAX_BYTES else PLAIN_PAGE

    return make_app(
        model,
        vocabulary,
        name=name,
        token=token,
        limits=limits,
        batch_size=batch_size,
        max_waiting=max_waiting,
        hosts=[*LOCAL_HOSTS, *names_of(host), *allow_hosts],
        page=page,
        chat_template=template,
        request_log=request_log,
    )


def names_of(host: str) -> list[str]:
    """Return the names of a server that listens on a host; on all interfaces, those of this machine."""
    return [socket.gethostname(), socket.getfqdn()] if host in ALL_INTERFACES else [host]


def read_token(path: Path) -> str:
    try:
        token = read_small_file(path).decode("utf-8").strip()
    except OSError as error:
        raise UserError(f"cannot read the token file {path}: {error.strerror}") from None
    except UnicodeError:
        token = ""
    if len(token) < 8 or not token.isascii() or not token.isprintable() or " " in token:
        raise UserError(f"{path} must have one token of at least 8 printable ASCII characters without spaces")
    return token


def bind(host: str, port: int) -> socket.socket:
    """Return a socket bound to an address. Called before the model is loaded, so that errors come early."""
    try:
        family, type_, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, type_, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except (OSError, UnicodeError) as error:
        taken = getattr(error, "errno", None) in (errno.EADDRINUSE, errno.EACCES)
        reason, option = getattr(error, "strerror", None) or error, "--port" if taken else "--host"
        raise UserError(f"cannot listen on {host}, port {port}: {reason}; choose another {option}") from None
    return bound


def serve(
    run: str | os.PathLike[str],
    host: str = "127.0.0.1",
    port: int = 8000,
    token_file: Path | None = None,
    device: str = "auto",
    batch_size: int = 16,
    max_waiting: int = 64,
    limits: Limits | None = None,
    allow_hosts: Sequence[str] = (),
    say: Callable[[str], None] = lambda line: None,
    chat_template: Path | None = None,
    request_log: Callable[[str], None] | None = None,
    weights: Weights = "float32",
) -> None:
    """Serve a run folder until interrupted, then finish the requests in progress. Port 0 chooses a free port; `say`
    prints the address, `request_log` one line per request."""
    try:
        import pydantic  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn

        from stairwell.serve.connection import Server, TimeoutProtocol
    except ImportError:
        raise MissingPackage(
            "the server requires pydantic, starlette and uvicorn", "pydantic>=2.8", "starlette>=0.46", "uvicorn>=0.30"
        ) from None
    limits = limits or Limits()
    token = read_token(token_file) if token_file is not None else None
    with bind(host, port) as bound:
        app = application(
            run, host, token, device, batch_size, max_waiting, limits, allow_hosts, chat_template, request_log, weights
        )
        config = uvicorn.Config(
            app, log_level="error", access_log=False, server_header=False, date_header=False, ws="none", lifespan="on",
            http=type("Connection", (TimeoutProtocol,), {"request_timeout": limits.seconds + READ_SECONDS}),
            timeout_graceful_shutdown=GRACE + ERROR_GRACE, limit_concurrency=2 * limits.clients,
        )  # fmt: skip
        name, port = app.state.service.name, bound.getsockname()[1]
        address = f"[{host}]" if ":" in host else host
        say(f"serving '{name}' at http://{address}:{port} (Ctrl-C stops the server)")
        if host not in LOOPBACK and token is None:
            say("everyone who can reach this address can use the server; --token-file requires a token")
        if host in ALL_INTERFACES:
            say(f"accepted hosts: addresses, localhost and {names_of(host)[0]}; add others with --allow-host NAME")
        if "*" in allow_hosts:
            say("every Host header is accepted, so any web page can reach the server; --allow-host NAME is safer")
        Server(config, app.state.service.scheduler.abort, GRACE).run(sockets=[bound])
