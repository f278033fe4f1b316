"""What every request passes and every reply carries, and the problems that are told in one sentence."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, ClassVar, final

from starlette.datastructures import MutableHeaders
from starlette.responses import JSONResponse

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


class Refusal(Exception):
    """A request is not answered; the message is for who asked and names no path."""

    status = 400
    headers: ClassVar[dict[str, str]] = {}


class Missing(Refusal):
    """There is no such item, label or picture that may be shown."""

    status = 404


class Busy(Refusal):
    """More is asked for than can be done soon."""

    status = 503
    headers: ClassVar[dict[str, str]] = {"retry-after": "2"}


def problem(status: int, error: str, headers: dict[str, str] | None = None, **more: Any) -> JSONResponse:
    """Return a refusal as `shapes.Problem`."""
    return JSONResponse({"error": error, **more}, status, headers)


@final
class Guard:
    """Refuses what no page of ours asks for, and puts `HEADERS` on every reply, that to a failure of ours too.

    app: the application within.
    hosts: names under which it may be asked for, None for any. Starlette's TrustedHostMiddleware is not used: it
        answers 400 in plain text, and in older versions misreads [::1].
    """

    def __init__(self, app: ASGIApp, hosts: tuple[str, ...] | None) -> None:
        self._app = app
        self._hosts = None if hosts is None else {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":  # the start and the end; the server is told to answer no websocket
            await self._app(scope, receive, send)
            return
        begun = False

        async def with_headers(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                headers = MutableHeaders(scope=message)
                kept = "no-cache" if message["status"] < 400 else "no-store"
                for name, value in {**HEADERS, "cache-control": kept}.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await (self._refusal(scope) or self._app)(scope, receive, with_headers)
        except Exception:
            if begun:
                raise
            logging.getLogger("steelyard.serve").exception("a request could not be answered")
            failed = problem(500, "this could not be answered: the server's log says why", {"connection": "close"})
            await failed(scope, receive, with_headers)

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        headers = dict(scope["headers"])
        scope["headers"] = [pair for pair in scope["headers"] if pair[0] != b"range"]  # files are served whole
        close = {"connection": "close"}
        if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > MOST_TARGET:
            return problem(414, f"the address is longer than {MOST_TARGET} bytes: ask for less", close)
        if scope["method"] != "GET":
            return problem(405, "only GET is answered", {**close, "allow": "GET"})
        if headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers:
            return problem(413, "requests have no body here", close)
        if self._hosts is not None and _name(headers.get(b"host", b"")) not in self._hosts:
            return problem(421, "this host name is not served: use the address that steelyard serve printed", close)
        return None


def _name(host: bytes) -> str:
    """The name in a Host header, without the port, lower case."""
    text = host.decode("latin-1").lower()
    name, colon, port = text.rpartition(":")
    return name if colon and (port.isdigit() or not port) else text
