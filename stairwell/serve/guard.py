"""What every request passes first, whatever its route: its host, its token, how many are here already."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Collection

from starlette.types import ASGIApp, Receive, Scope, Send

from stairwell.serve.service import error


class Guard:
    """Every route, known or not: answers to addresses and its own names only, so that no web page elsewhere reaches it
    under a name of that page's ("DNS rebinding"); needs the bearer token, if there is one; lets so many clients in at a
    time."""

    def __init__(self, app: ASGIApp, hosts: Collection[str], token: str | None, clients: int) -> None:
        self.app, self.clients, self.inside = app, clients, 0
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
        elif self.inside >= self.clients:
            answer = error(429, f"{self.inside} clients are served already; try again later")
        if answer is not None:
            await answer(scope, receive, send)
            return
        self.inside += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self.inside -= 1


def host_of(header: bytes) -> str:
    """The name or address in a Host header, without its port."""
    host = header.decode("latin-1").lower()
    if host.startswith("["):  # an address of IPv6 has colons of its own
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


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
