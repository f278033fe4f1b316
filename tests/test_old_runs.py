"""Run folders written by an earlier commit open, or are refused in one sentence."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import steelyard as sy
from golden.transcript import steelyard

FIXTURE = Path(__file__).parent / "fixtures" / "run-05cb1a3"


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the fixture, and the folder in which commands are run."""
    folder = shutil.copytree(FIXTURE, tmp_path / "old")
    monkeypatch.chdir(folder)
    return folder


def done(*args: str) -> Any:
    result = steelyard(*args)
    assert result["exit"] == 0, result["err"]
    return result.get("json", result.get("out"))


def rows(path: str) -> list[dict[str, str]]:
    with Path(path).open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(("run", "data"), [("features", "items.csv"), ("images", "photos/images")])
def test_it_predicts_what_it_predicted_then(old: Path, run: str, data: str) -> None:
    done("predict", run, data, "--out", "now.csv")
    then, now = rows(f"{run}.csv"), rows("now.csv")
    assert [row["id"] for row in now] == [row["id"] for row in then]
    for column in then[0]:
        values = ([row[column] for row in side] for side in (then, now))
        if column.startswith("probability:"):
            np.testing.assert_allclose(*(np.array(side, float) for side in values), rtol=1e-5, atol=1e-6)
        elif column.startswith("decision:"):
            assert np.mean([one != other for one, other in zip(*values, strict=True)]) < 0.05  # η at a threshold
    names = tuple(column.removeprefix("probability:") for column in then[0] if column.startswith("probability:"))
    assert sy.Run.load(run).names == names


@pytest.mark.parametrize(("run", "data", "items"), [("features", "items.csv", 60), ("images", "photos", 12)])
def test_it_is_evaluated_and_calibrated_again(old: Path, run: str, data: str, items: int) -> None:
    measured = done("evaluate", run, "--data", data, "--json")
    assert measured["items"] == items
    assert 0 < measured["mAP"]["label"] <= 1
    assert done("calibrate", run, "--data", data, "--kind", "temperature", "--json")["items"] == items
    assert sy.Run.load(run).metrics["recalibration"]["items"] == items


def test_its_index_is_refused_in_one_sentence_and_made_again(old: Path) -> None:
    refused = steelyard("search", "features", "cat")
    assert refused["exit"] == 2
    assert refused["err"].startswith("steelyard: features/index was written by an earlier version")
    assert refused["err"].count("\n") == 1
    done("predict", "features", "items.csv", "--index", "features/index", "--overwrite")
    hits = done("search", "features", "cat & ~dog", "-k", "3", "--json")["hits"]
    assert len(hits) == 3
    assert hits[0]["score"] >= hits[1]["score"] >= hits[2]["score"] > 0
