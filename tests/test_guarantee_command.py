"""`steelyard calibrate --guarantee`: what it prints and keeps, and on which items it refuses to promise anything."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from run_data import write_table
from steelyard.folder.run_folder import RunFolder
from typed import done, typed

NAMES = ("cat", "dog", "owl")
RECALL = ("--thresholds", "recall", "--target", 0.8)


def table(path: Path, n: int, seed: int) -> Path:
    """Items with four features; owls are rare."""
    g = np.random.default_rng(seed)
    x = g.normal(size=(n, 4)).astype(np.float32)
    y = (x[:, :3] + 0.4 * g.normal(size=(n, 3)) > [0, 0.4, 2.4]).astype(np.int8)
    return write_table(path, x, y, NAMES)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of one table: `held` with held-out items, `folds` judged by folds, `loop` that chose its epoch by them."""
    folder = tmp_path_factory.mktemp("guarantee")
    data = table(folder / "items.csv", 400, 0)
    table(folder / "new.csv", 300, 1)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("steelyard.run.run_report.has_matplotlib", lambda: False)
        done("train", "--data", data, "--recipe", "bce", "--out", folder / "held", "--holdout", 0.5)
        done("train", "--data", data, "--recipe", "bce", "--out", folder / "folds")
        done("train", "--data", data, "--recipe", "bce", "--out", folder / "loop", "--set", "train.epochs=2")
    return folder


def test_a_promise_is_printed_and_kept_on_held_out_items(place: Path, tmp_path: Path) -> None:
    run = shutil.copytree(place / "held", tmp_path / "run")
    said = done("calibrate", run, *RECALL, "--guarantee", "probability", "--confidence", 0.8)
    text = " ".join(said.out.split())
    assert "Thresholds that guarantee a recall of at least 80.0 % (on 100 items" in text
    assert "Guaranteed with a confidence of 80 %, for each label by itself: at least 80 % of the future items" in text
    assert "This assumes that future items are like these" in text
    assert "No guarantee possible for owl: " in text
    assert "They are always decided." in text
    kept = RunFolder(run).read_metrics()["recalibration"]["promise"]
    assert [row["promised"] for row in kept["labels"]] == [True, True, False]
    trained = RunFolder(run).load()
    assert (trained.probability_model.aim.guarantee, trained.probability_model.aim.confidence) == ("probability", 0.8)
    assert trained.thresholds[2] == 0
    assert 0 < trained.thresholds[0] < 1
    again = json.loads(done("calibrate", run, *RECALL, "--guarantee", "probability", "--confidence", 0.8, "--json").out)
    assert again["promise"] == kept
    plain = json.loads(done("calibrate", run, *RECALL, "--json").out)
    assert "promise" not in plain
    assert RunFolder(run).load().probability_model.aim.guarantee == ""


def test_kept_calibrators_promise_on_other_items_all_of_which_count(place: Path, tmp_path: Path) -> None:
    run = shutil.copytree(place / "loop", tmp_path / "run")
    before = RunFolder(run).load().probability_model
    new = ("--data", place / "new.csv", "--keep", *RECALL, "--guarantee", "expected", "--json")
    printed = json.loads(done("calibrate", run, *new).out)
    assert printed["thresholds"]["items"] == 300
    assert printed["promise"]["guarantee"] == "expected"
    assert "confidence" not in printed["promise"]
    after = RunFolder(run).load().probability_model
    assert after.how == before.how
    assert np.array_equal(after.counts, before.counts)
    half = json.loads(done("calibrate", run, *new[:2], *new[3:], "--holdout", 0.25).out)
    assert half["thresholds"]["items"] == 75


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("folds", *RECALL, "--guarantee", "expected"), "only out-of-fold ones"),
        (("folds", *RECALL, "--guarantee", "expected"), "train with --holdout SHARE"),
        (("loop", *RECALL, "--guarantee", "expected"), "chose the epoch that is kept"),
        (("held", *RECALL, "--guarantee", "expected", "--keep"), "fitted to the run's validation items"),
        (("held", *RECALL, "--guarantee", "sure"), "choose expected or probability"),
        (("held", "--guarantee", "expected"), "add --thresholds precision or recall"),
        (("held", "--thresholds", "precision", "--guarantee", "expected"), "which is for recall alone"),
        (("held", *RECALL, "--confidence", 0.9), "--confidence belongs to a guarantee"),
        (("held", *RECALL, "--joint"), "--joint belongs to a guarantee"),
        (("held", *RECALL, "--holdout", 0.5), "--holdout belongs to a guarantee"),
        (("held", *RECALL, "--guarantee", "expected", "--holdout", 1), "above 0 and below 1"),
        (("held", *RECALL, "--guarantee", "expected", "--joint"), "leave them out"),
        (("held", *RECALL, "--guarantee", "probability", "--confidence", 2), "confidence is 2.0"),
        (("held", *RECALL, "--guarantee", "expected", "--deploy-prior", "p.csv"), "leave out --deploy-prior"),
    ],
)
def test_what_cannot_be_promised_is_one_line(place: Path, args: tuple[object, ...], message: str) -> None:
    before = (place / str(args[0]) / "calibration.json").read_bytes()
    shown = typed("calibrate", place / str(args[0]), *args[1:])
    assert (shown.code, shown.err.count("\n")) == (2, 1)
    assert message in shown.err
    assert (place / str(args[0]) / "calibration.json").read_bytes() == before
