"""JSON documents with a format name and a checksum, so that a corrupt one is recognised."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def sealed(content: Mapping[str, Any], format: str, version: int) -> str:
    """Return a document of `content`, one line per field, with its format, its version and the checksum of the rest."""
    lines = {"format": format, "version": version, **content, "sha256": checksum(content)}
    body = ",\n".join(f"{json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in lines.items())
    return "{\n" + body + "\n}\n"


def unsealed(text: str | bytes, format: str, version: int) -> dict[str, Any]:
    """Return the content of a document that `sealed` wrote; for any other, a ValueError says what is wrong."""
    document = json.loads(text)
    if not isinstance(document, dict) or document.pop("format", None) != format:
        raise ValueError(f'it does not say "format": "{format}"')
    if (actual := document.pop("version", None)) != version:
        raise ValueError(f"its version is {actual}, this one reads {version}")
    if document.pop("sha256", None) != checksum(document):
        raise ValueError("its checksum is wrong: it was cut short, corrupted or edited")
    return document


def checksum(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 of plain JSON content, whatever its layout."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode()).hexdigest()
