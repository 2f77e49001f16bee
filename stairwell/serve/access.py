"""Access checks for every request: its host, its token, and the number of requests being served."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Collection

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stairwell.serve.service import error_response


class AccessMiddleware:
    """Checks requests to all paths. The Host must be an address or a known name, so that a foreign web page cannot
    reach the server under the page's own name (DNS rebinding). The bearer token must be right, if there is one. At most
    `max_clients` requests are served at once, not counting those whose body is still arriving."""

    def __init__(self, app: ASGIApp, hosts: Collection[str], token: str | None, max_clients: int) -> None:
        self.app, self.max_clients = app, max_clients
        self.requests = self.arriving = 0  # all, and those whose body is incomplete
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
        rejection = None
        host = host_of(headers.get(b"host", b""))
        if self.hosts is not None and host not in self.hosts and not is_address(host):
            rejection = error_response(400, "this server does not accept this Host; start it with --allow-host NAME")
        elif self.token is not None and not hmac.compare_digest(bearer(headers.get(b"authorization", b"")), self.token):
            rejection = error_response(
                401,
                "the bearer token is missing or wrong; send Authorization: Bearer ...",
                {"WWW-Authenticate": "Bearer"},
            )
        elif self.requests - self.arriving >= self.max_clients:
            rejection = error_response(429, f"{self.max_clients} requests are being served already; try again later")
        if rejection is not None:
            await rejection(scope, receive, send)
            return
        arriving = has_body(headers)

        def arrived() -> None:
            nonlocal arriving
            self.arriving -= arriving
            arriving = False

        async def receive_and_count() -> Message:
            message = await receive()
            if not message.get("more_body", False):
                arrived()
            return message

        self.requests += 1
        self.arriving += arriving
        try:
            await self.app(scope, receive_and_count, send)
        finally:
            arrived()
            self.requests -= 1


def host_of(header: bytes) -> str:
    """Return the name or address in a Host header, without the port."""
    host = header.decode("latin-1").lower()
    if host.startswith("["):  # an IPv6 address, which has colons itself
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def has_body(headers: dict[bytes, bytes]) -> bool:
    return b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"


def is_address(host: str) -> bool:
    """Return whether a host is an IP address. A foreign web page cannot have such a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def bearer(header: bytes) -> bytes:
    scheme, _, token = header.partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else b""
