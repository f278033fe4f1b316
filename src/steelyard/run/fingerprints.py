"""What tells a run from itself before it was trained or calibrated anew."""

from __future__ import annotations

import hashlib
import os

from steelyard.run.folder import RunFolder


def fingerprints(folder: str | os.PathLike[str]) -> dict[str, str]:
    """Return the SHA-256 of a run's model and of its calibration, by which a file made of them is known again."""
    run = RunFolder(folder)
    found = {}
    for name, files in {"model": ("model.json", "model.safetensors"), "calibration": ("calibration.json",)}.items():
        digest = hashlib.sha256()
        for file in files:
            with (run / file).open("rb") as content:
                while block := content.read(1 << 20):
                    digest.update(block)
        found[name] = digest.hexdigest()
    return found
