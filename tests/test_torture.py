"""The fault campaign in its short form: a few faults of every kind, none of them lost."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from torture.tally import Tally, keep, page

ROOT = Path(__file__).resolve().parent.parent
KINDS = (
    *("a second calibrate into the same run", "kill −9 at a write", "disk full at a write"),
    *("kill −9 at a random moment", "a read-only folder", "a jumping clock during serve", "model.safetensors cut"),
    *("newest checkpoint", "SIGINT", "SIGTERM", "a DataLoader worker", "used from another folder", "a link loop"),
    "trained again while it is served",
)


@pytest.mark.slow
def test_faults_of_every_kind_are_injected_and_none_is_lost(tmp_path: Path) -> None:
    """Single faults are injected by test_commands, test_one_writer and test_torture_mended, in seconds."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler: faults.c is what refuses writes")
    rows = tmp_path / "rows.json"
    command = [sys.executable, "-m", "torture", "--short", "--lanes", "1", "--found", str(rows)]
    path = os.pathsep.join([f"{ROOT}/tools", f"{ROOT}/tests", os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert rows.is_file(), done.stderr
    found = json.loads(rows.read_text())["rows"].values()
    assert [(row["fault"], row["why"]) for row in found if row["lost"]] == []
    for kind in KINDS:
        assert sum(row["injected"] for row in found if kind in row["fault"]) >= 1, kind


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


def test_rows_that_are_done_again_replace_those_that_were_kept(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    first = [Tally("a", "it holds", 2, ["it did not"]), Tally("b", "it holds", 3)]
    assert keep(file, first, False) == first
    document = json.loads(file.read_text())
    assert (document["injected"], document["lost"], document["rows"]["a"]["lost"]) == (5, 1, 1)
    assert keep(file, [Tally("a", "it holds", 4)], True) == [Tally("a", "it holds", 4), first[1]]
    document = json.loads(file.read_text())
    assert (document["injected"], document["lost"]) == (7, 0)
    assert all(row["date"] and row["commit"] for row in document["rows"].values())
    assert keep(file, first[1:], False) == first[1:]
