"""A run folder that a newer version wrote is refused in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from small_run import saved_run, small_run
from steelyard._sealed import checksum
from steelyard.folder.run_folder import RunFolder


def test_a_newer_model_is_refused_and_says_what_to_do(tmp_path: Path) -> None:
    folder = saved_run(tmp_path / "run", small_run()).path
    RunFolder(folder).load()
    file = folder / "model.json"
    content = json.loads(file.read_text())
    del content["sha256"]
    content["version"] += 1
    file.write_text(json.dumps({**content, "sha256": checksum(content)}))
    with pytest.raises(ValueError, match=r"model\.json has version 2, but this steelyard reads 1: upgrade steelyard$"):
        RunFolder(folder).load()
