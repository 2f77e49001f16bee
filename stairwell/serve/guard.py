"""What every request passes first, whatever its route: its host, its token, how many are here already."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Collection

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stairwell.serve.service import error


class Guard:
    """Every route, known or not: answers to addresses and its own names only, so that no web page elsewhere reaches it
    under a name of that page's ("DNS rebinding"); needs the bearer token, if there is one; lets so many clients in at a
    time, not counting those whose requests are still to come."""

    def __init__(self, app: ASGIApp, hosts: Collection[str], token: str | None, clients: int) -> None:
        self.app, self.clients = app, clients
        self.inside = self.arriving = 0  # requests, and those of them that are not whole yet
        self.hosts = None if "*" in hosts else {host.lower() for host in hosts}
        self.token = None if token is None else token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close"})
            return
        headers = dict(scope["headers"])
        answer = None
        host = host_of(headers.get(b"host", b""))
        if self.hosts is not None and host not in self.hosts and not is_address(host):
            answer = error(400, "the Host of the request is no name that this server answers to; see --allow-host")
        elif self.token is not None and not hmac.compare_digest(bearer(headers.get(b"authorization", b"")), self.token):
            answer = error(401, "a bearer token is needed: Authorization: Bearer ...", {"WWW-Authenticate": "Bearer"})
        elif self.inside - self.arriving >= self.clients:
            answer = error(429, f"{self.inside - self.arriving} clients are served already; try again later")
        if answer is not None:
            await answer(scope, receive, send)
            return
        arriving = has_body(headers)

        def arrived() -> None:
            nonlocal arriving
            self.arriving -= arriving
            arriving = False

        async def received() -> Message:
            message = await receive()
            if not message.get("more_body", False):
                arrived()
            return message

        self.inside += 1
        self.arriving += arriving
        try:
            await self.app(scope, received, send)
        finally:
            arrived()
            self.inside -= 1


def host_of(header: bytes) -> str:
    """The name or address in a Host header, without its port."""
    host = header.decode("latin-1").lower()
    if host.startswith("["):  # an address of IPv6 has colons of its own
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def has_body(headers: dict[bytes, bytes]) -> bool:
    return b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"


def is_address(host: str) -> bool:
    """Whether a host is an address of IPv4 or IPv6: no page elsewhere can have one of ours as its own name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def bearer(header: bytes) -> bytes:
    scheme, _, token = header.partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else b""
