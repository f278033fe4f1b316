"""Replies: JSON without NaN, compressed where it pays, known again by their tag."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
from typing import Any

from fastapi import Request, Response

_WORTH_COMPRESSING = 1400  # bytes that fit into one packet anyway


def numbers(values: Any, digits: int = 6) -> list[float | None]:
    """Return plain numbers for JSON, rounded."""
    return [None if not math.isfinite(v) else round(v, digits) for v in map(float, values)]


def as_json(content: Any) -> bytes:
    """Return `content` as JSON."""
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode(
        "utf-8", "surrogatepass"
    )


def reply(
    request: Request,
    body: bytes,
    kind: str = "application/json",
    status: int = 200,
    tag: str | None = None,
    keep: str = "no-cache",
    packed: bytes | None = None,
) -> Response:
    """Return `body` as a response, 304 where the client has it.

    Args:
        request: that is answered.
        body: of the response.
        kind: its content type.
        status: of the response.
        tag: by which a client knows it again, by default a hash of it.
        keep: for how long a client may keep it without asking, a Cache-Control header.
        packed: the body compressed by gzip, where that is at hand.
    """
    tag = tag or f'"{hashlib.sha256(body).hexdigest()[:24]}"'
    headers = {"cache-control": keep, "vary": "accept-encoding"}
    if status == 200:
        headers["etag"] = tag
        if tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
    if not kind.startswith("image/jpeg") and "gzip" in request.headers.get("accept-encoding", ""):
        if packed is None and len(body) > _WORTH_COMPRESSING:
            packed = gzip.compress(body, 5)
        if packed is not None:
            body, headers["content-encoding"] = packed, "gzip"
    return Response(body, status, headers, media_type=kind)
