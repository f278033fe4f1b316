"""The files of the page, read once: what a request names is looked up among them and never on the disk."""

from __future__ import annotations

import gzip
from importlib import resources
from typing import NamedTuple

KINDS = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


class StaticFile(NamedTuple):
    """A file, its content type, and the file compressed."""

    body: bytes
    kind: str
    packed: bytes


def static_files() -> dict[str, StaticFile]:
    """Return the files in `static/` by their names."""
    found = {}
    for entry in resources.files("steelyard.serve").joinpath("static").iterdir():
        kind = KINDS.get(entry.name.rpartition(".")[2])
        if kind is not None:
            body = entry.read_bytes()
            found[entry.name] = StaticFile(body, kind, gzip.compress(body, 9))
    return found
