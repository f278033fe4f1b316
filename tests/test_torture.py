"""The fault campaign in its short form: a few faults of every kind, none of them lost."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from torture.tally import Tally, page

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The rows of the short form."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler: faults.c is what refuses writes")
    rows = tmp_path_factory.mktemp("torture") / "rows.json"
    command = [sys.executable, "-m", "torture", "--short", "--lanes", "1", "--found", str(rows)]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": f"{ROOT}/tools:{ROOT}/tests"}, capture_output=True, text=True
    )
    assert rows.is_file(), done.stderr
    return list(json.loads(rows.read_text()))


def test_no_fault_is_lost(found: list[dict[str, Any]]) -> None:
    assert [(row["fault"], row["lost"]) for row in found if row["lost"]] == []


@pytest.mark.parametrize(
    "kind",
    [
        *("kill −9 at a random moment", "kill −9 at a write", "disk full at a write", "a read-only folder"),
        *("a jumping clock during serve", "model.safetensors cut", "newest checkpoint", "SIGINT", "SIGTERM"),
        *("a DataLoader worker", "a second calibrate into the same run", "used from another folder", "a link loop"),
    ],
)
def test_faults_of_every_kind_are_injected(found: list[dict[str, Any]], kind: str) -> None:
    assert sum(row["injected"] for row in found if kind in row["fault"]) >= 1


def test_what_is_lost_is_told() -> None:
    tally = Tally("a fault", "it holds")
    tally.add("")
    tally.add("the answer\nis another")
    text = page([tally], "make torture SEED=3")
    assert "\nmake torture SEED=3\n" in text
    assert "| a fault | 2 | it holds | 1 | 1 |" in text
    assert "| **all** | **2** | | **1** | **1** |" in text
    assert "- a fault: the answer is another" in text
    assert "## Lost" not in page([Tally("a fault", "it holds", 2)], "make torture")
