"""Hashes that change when a run is retrained or recalibrated."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_OF_DECISIONS = ("chosen_thresholds", "chosen_on", "thresholds", "aim", "trials", "how", "sha256")
"""Fields of a calibration that change no probability."""


def probability_print(folder: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of what turns the logits of a run into probabilities; thresholds do not count."""
    document = json.loads(Path(folder, "calibration.json").read_bytes())
    content = {key: value for key, value in document.items() if key not in _OF_DECISIONS}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def fingerprints(folder: str | os.PathLike[str]) -> dict[str, str]:
    """Return the SHA-256 of a run's model and of its calibration, by which a file made of them is known again."""
    digests = {}
    for name, files in {"model": ("model.json", "model.safetensors"), "calibration": ("calibration.json",)}.items():
        digest = hashlib.sha256()
        for file in files:
            with Path(folder, file).open("rb") as content:
                while block := content.read(1 << 20):
                    digest.update(block)
        digests[name] = digest.hexdigest()
    return digests


def is_outdated(notes: Mapping[str, Any], folder: str | os.PathLike[str]) -> bool:
    """Return whether an index whose `notes` these are has a model or probabilities that a run no longer has.

    One that was made by hand notes neither.
    """
    now = {**fingerprints(folder), "probabilities": probability_print(folder)}
    return any(notes.get(name) not in (None, now[name]) for name in ("model", "probabilities"))
