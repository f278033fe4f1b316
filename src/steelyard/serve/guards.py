"""Checks of every request, headers of every reply, and errors in one sentence."""

from __future__ import annotations

import hmac
import logging
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, final

from starlette.datastructures import MutableHeaders
from starlette.responses import JSONResponse

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_TARGET = 8192
"""Bytes of the path and the query of a request."""
MOST_BODY = 8192
"""Bytes of what may be written at once."""
TOKEN = "steelyard-token"
"""The header that carries the token of a write."""

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
"""Headers of every reply: nothing is loaded from elsewhere, no foreign script, no frame in other sites, no referrer."""


class Refusal(Exception):
    """A refused request; the message goes to the client and names no path."""

    status = 400
    headers: ClassVar[dict[str, str]] = {}


class Missing(Refusal):
    """The item, label or picture does not exist or may not be shown."""

    status = 404


class Busy(Refusal):
    """The server has too many requests in progress."""

    status = 503
    headers: ClassVar[dict[str, str]] = {"retry-after": "2"}


def problem(status: int, error: str, headers: dict[str, str] | None = None, **more: Any) -> JSONResponse:
    """Return a refusal as `api_types.Problem`."""
    return JSONResponse({"error": error, **more}, status, headers)


class Writes(NamedTuple):
    """The one address that may be written to, and the token without which it is refused."""

    path: str
    token: str


@final
class Guard:
    """Refuses requests that our pages do not make, and adds `HEADERS` to every reply, errors included.

    app: the application within.
    hosts: names under which it may be asked for, None for any. Starlette's TrustedHostMiddleware is not used: it
        answers 400 in plain text, and in older versions misreads [::1].
    writes: what may be written to, None for nothing: then only GET is answered.
    """

    def __init__(self, app: ASGIApp, hosts: tuple[str, ...] | None, writes: Writes | None = None) -> None:
        self._app, self._writes = app, writes
        self._hosts = None if hosts is None else {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":  # start and end of the server, which answers no websockets
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
        is_write = self._writes is not None and scope["method"] == "POST" and scope["path"] == self._writes.path
        if scope["method"] != "GET" and not is_write:
            return problem(405, "only GET is answered", {**close, "allow": "GET"})
        if not is_write and (headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers):
            return problem(413, "requests have no body here", close)
        if self._hosts is not None and _name(headers.get(b"host", b"")) not in self._hosts:
            return problem(421, "this host name is not served: use the address that steelyard serve printed", close)
        if is_write and (refused := _refused_write(scope["headers"], self._writes)) is not None:
            return problem(*refused, close)
        return None


def _refused_write(headers: list[tuple[bytes, bytes]], writes: Writes | None) -> tuple[int, str] | None:
    """Return status and sentence for a write that is not from our page, before its body is read."""
    given = dict(headers)
    deciding = (b"host", b"origin", b"content-type", b"content-length", b"sec-fetch-site", TOKEN.encode())
    if any(sum(name == one for name, _ in headers) > 1 for one in deciding):
        return 400, "a header is given twice"
    length = given.get(b"content-length", b"")
    if not (length.isdigit() and len(length) < 8) or b"transfer-encoding" in given:
        return 411, "the length of the body is not given"
    if int(length) > MOST_BODY:
        return 413, f"the body is longer than {MOST_BODY} bytes"
    if given.get(b"content-type") != b"application/json":
        return 415, "the body must be application/json"
    if not _is_same_origin(given.get(b"origin", b""), given.get(b"host", b"")):
        return 403, "answers are taken from the page of this server only"
    if given.get(b"sec-fetch-site", b"same-origin") != b"same-origin":
        return 403, "answers are taken from the page of this server only"
    if writes is None or not hmac.compare_digest(given.get(TOKEN.encode(), b""), writes.token.encode()):
        return 403, "the token is missing or of an earlier start: open the address that steelyard serve printed"
    return None


def _is_same_origin(origin: bytes, host: bytes) -> bool:
    """Return whether an Origin header names the host of the request, by HTTP or, behind a proxy, by HTTPS."""
    return bool(host) and origin.lower() in (b"http://" + host.lower(), b"https://" + host.lower())


def _name(host: bytes) -> str:
    """Return the name in a Host header, without the port, in lower case."""
    text = host.decode("latin-1").lower()
    name, colon, port = text.rpartition(":")
    return name if colon and (port.isdigit() or not port) else text
