"""What every request passes and every reply carries."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_TARGET = 8192
"""Bytes of the path and the query of a request."""

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
"""Nothing from elsewhere, no script but ours, in no other site's frame, and no word to other sites."""


@final
class Guard:
    """Refuses what no page of ours asks for, and puts `HEADERS` on every reply, that to a failure of ours too.

    app: the application within.
    hosts: names under which it may be asked for, None for any.
    """

    def __init__(self, app: ASGIApp, hosts: tuple[str, ...] | None) -> None:
        self._app = app
        self._hosts = None if hosts is None else {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return

        begun = False

        async def with_headers(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                own = {name for name, _ in message["headers"]}
                extra = [(k.encode(), v.encode()) for k, v in HEADERS.items() if k.encode() not in own]
                message = {**message, "headers": [*message["headers"], *extra]}
            await send(message)

        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        refused = self._refusal(scope)
        if refused is None:
            try:
                await self._app(scope, receive, with_headers)
                return
            except Exception:
                if begun:
                    raise
                logging.getLogger("steelyard.serve").exception("a request could not be answered")
                refused = 500, "this could not be answered: the server's log says why"
        status, sentence = refused
        body = f'{{"error":"{sentence}"}}'.encode()
        kind = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        close = [(b"connection", b"close"), *([(b"allow", b"GET")] if status == 405 else [])]
        await with_headers({"type": "http.response.start", "status": status, "headers": kind + close})
        await with_headers({"type": "http.response.body", "body": body})

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers = dict(scope["headers"])
        if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > MOST_TARGET:
            return 414, f"the address is longer than {MOST_TARGET} bytes: ask for less"
        if scope["method"] != "GET":
            return 405, "only GET is answered"
        if headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers:
            return 413, "requests have no body here"
        if self._hosts is not None and _name(headers.get(b"host", b"")) not in self._hosts:
            return 421, "this host name is not served: use the address that steelyard serve printed"
        return None


def _name(host: bytes) -> str:
    """The name in a Host header, without the port, lower case."""
    text = host.decode("latin-1").lower()
    name, colon, port = text.rpartition(":")
    return name if colon and (port.isdigit() or not port) else text
