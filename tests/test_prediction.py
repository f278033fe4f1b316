"""Predictions as files: three formats, two forms, bad items, streams, and a kill in the middle."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from small_run import NAMES, items, part, small_run
from steelyard.data.inputs import inputs_of, open_inputs
from steelyard.data.streams import FeatureInputs, InputBatch, Inputs
from steelyard.folder.run_folder import Trained
from steelyard.labels import Labels
from steelyard.models import Input, ModelSettings, build_model
from steelyard.predict.prediction import predict
from training_jobs import forked, waited


def expected(trained: Trained, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    with torch.inference_mode():
        eta = trained.probability_model.probability(trained.model(torch.from_numpy(x))).numpy()
    return eta, eta >= trained.thresholds.astype(np.float32)


def run() -> Trained:
    trained = small_run(part("focal"))
    return trained.read_by(replace(trained.probability_model, chosen_thresholds=np.array([0.5, 0.3, np.inf, 0.05])))


class Some(Inputs):
    """Two good items, a bad one, a batch of bad ones alone, and a good one."""

    kind = "features"
    n_items = None
    note = ""

    def __init__(self, x: np.ndarray) -> None:
        self.x = torch.from_numpy(x)

    def batches(self, batch_size: int = 256, workers: int = 0) -> Iterator[InputBatch]:
        yield InputBatch(self.x[:2], ["a", 'b "1"\n,'], [("broken", "broken.jpg is truncated")])
        yield InputBatch(self.x[:0], [], [("gone", "gone.jpg is missing")])
        yield InputBatch(self.x[2:3], ["ü"], [])


def read_wide(path: Path) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Ids, probabilities and decisions, NaN where empty, of a wide file of any format."""
    if path.suffix == ".jsonl":
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        blank = [np.nan] * len(NAMES)
        eta = [list(r["probabilities"].values()) if r["probabilities"] else blank for r in records]
        said = [[float(name in r["labels"]) for name in NAMES] if r["labels"] is not None else blank for r in records]
        assert all(list(r["probabilities"]) == list(NAMES) for r in records if r["probabilities"])
        return [r["id"] for r in records], np.array(eta), np.array(said)
    if path.suffix == ".csv":
        with path.open(encoding="utf-8", newline="") as file:
            head, *rows = list(csv.reader(file))
        table: list[list[Any]] = [[row[0], *(float(v) if v else np.nan for v in row[1:])] for row in rows]
    else:
        whole = pq.read_table(path)
        head = whole.column_names
        columns = whole.to_pydict()
        table = [[np.nan if columns[n][i] is None else columns[n][i] for n in head] for i in range(whole.num_rows)]
        assert {str(whole.schema.field(f"probability:{n}").type) for n in NAMES} == {"float"}
    assert head == ["id", *(f"probability:{n}" for n in NAMES), *(f"decision:{n}" for n in NAMES)]
    numbers = np.array([row[1:] for row in table], np.float64).reshape(-1, 2 * len(NAMES))
    return [row[0] for row in table], numbers[:, : len(NAMES)], numbers[:, len(NAMES) :]


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_wide_files_hold_every_probability_exactly(tmp_path: Path, ending: str) -> None:
    trained, data = run(), items(700, seed=1)
    out = tmp_path / f"p.{ending}"
    done = []
    found = predict(trained, inputs_of(data), out, batch_size=64, progress=lambda n, total: done.append((n, total)))
    assert found == (700, ())
    assert done[-1] == (700, 700)
    ids, eta, said = read_wide(out)
    wanted, decided = expected(trained, data.inputs)
    assert ids == list(data.labels.ids)
    assert np.array_equal(eta.astype(np.float32), wanted)
    assert np.array_equal(said, decided)
    assert not decided[:, 2].any()
    assert 0 < decided[:, [0, 1, 3]].mean() < 1


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_an_item_that_cannot_be_read_has_no_probabilities(tmp_path: Path, ending: str) -> None:
    trained, x = run(), items(3).inputs
    out = tmp_path / f"p.{ending}"
    found = predict(trained, Some(x), out)
    assert found.bad == (("broken", "broken.jpg is truncated"), ("gone", "gone.jpg is missing"))
    assert found.n_items == 5
    ids, eta, said = read_wide(out)
    assert ids == ["a", 'b "1"\n,', "broken", "gone", "ü"]
    wanted, decided = expected(trained, x)
    # How many items are computed at once, here five, may change the last digit, by the processor.
    np.testing.assert_allclose(eta[[0, 1, 4]], wanted, rtol=2e-6)
    assert np.array_equal(said[[0, 1, 4]], decided)
    assert np.isnan(eta[[2, 3]]).all()
    assert np.isnan(said[[2, 3]]).all()


def read_long(path: Path) -> list[tuple[Any, ...]]:
    if path.suffix == ".jsonl":
        return [tuple(json.loads(line).values()) for line in path.read_text(encoding="utf-8").splitlines()]
    if path.suffix == ".csv":
        with path.open(encoding="utf-8", newline="") as file:
            head, *rows = list(csv.reader(file))
        assert head == ["id", "label", "probability", "decision"]
        return [(r[0], r[1] or None, float(r[2]) if r[2] else None, int(r[3]) if r[3] else None) for r in rows]
    return [tuple(record.values()) for record in pq.read_table(path).to_pylist()]


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("top", [0, 2, 9])
def test_long_files_hold_what_is_decided_or_most_probable(tmp_path: Path, ending: str, top: int) -> None:
    trained, x = run(), items(3, seed=2).inputs
    out = tmp_path / f"p.{ending}"
    predict(trained, Some(x), out, form="long", top=top)
    eta, decided = expected(trained, x)
    wanted: list[tuple[Any, ...]] = []
    for name, row in zip(["a", 'b "1"\n,', "broken", "gone", "ü"], [0, 1, None, None, 2], strict=True):
        if row is None:
            wanted.append((name, None, None, None))
            continue
        chosen = np.argsort(-eta[row], kind="stable")[:top] if top else np.flatnonzero(decided[row])
        wanted += [(name, NAMES[c], eta[row, c], int(decided[row, c])) for c in chosen]
    found = read_long(out)
    assert [(r[0], r[1], r[3]) for r in found] == [(r[0], r[1], r[3]) for r in wanted]
    assert [None if r[2] is None else np.float32(r[2]) for r in found] == [r[2] for r in wanted]


FORMULAS = ["=1+1", "+1", "-x", "@x", "\tx", "x=1", "'=x"]


@pytest.mark.parametrize("form", ["wide", "long"])
@pytest.mark.parametrize(("ending", "raw"), [("csv", False), ("csv", True), ("jsonl", False), ("parquet", False)])
def test_no_spreadsheet_runs_an_id(tmp_path: Path, ending: str, raw: bool, form: Any) -> None:
    """An id or a label that begins like a formula has a ' before it in CSV, unless that is switched off."""
    trained = replace(run(), names=("=cmd", "b", "c", "d"))
    x = items(len(FORMULAS)).inputs
    out = tmp_path / f"x.{ending}"
    inputs = FeatureInputs(lambda: [(x, FORMULAS)], len(x), "error")
    predict(trained, inputs, out, form=form, top=4 if form == "long" else 0, raw_ids=raw)
    guarded = ending == "csv" and not raw
    if ending == "csv":
        with out.open(encoding="utf-8", newline="") as file:
            records = list(csv.DictReader(file))
    elif ending == "jsonl":
        records = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    else:
        records = pq.read_table(out).to_pylist()
    ids = list(dict.fromkeys(record["id"] for record in records))
    assert ids == ([f"'{name}" for name in FORMULAS[:5]] + FORMULAS[5:] if guarded else FORMULAS)
    if form == "long":
        assert {record["label"] for record in records} == {"'=cmd" if guarded else "=cmd", "b", "c", "d"}


def test_blocks_join_whatever_their_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained, data = run(), items(100)
    predict(trained, inputs_of(data), tmp_path / "whole.parquet", batch_size=100)
    monkeypatch.setattr("steelyard.predict.files._CELLS", 40)
    for ending in ("csv", "jsonl", "parquet"):
        predict(trained, inputs_of(data), tmp_path / f"p.{ending}", batch_size=7)
        ids, eta, said = read_wide(tmp_path / f"p.{ending}")
        whole = read_wide(tmp_path / "whole.parquet")
        assert ids == whole[0]
        np.testing.assert_allclose(eta, whole[1], rtol=1e-6)
        assert np.array_equal(said, whole[2])
    assert pq.ParquetFile(tmp_path / "p.parquet").num_row_groups > 5


def test_nothing_to_predict_is_a_file_without_rows(tmp_path: Path) -> None:
    nothing = FeatureInputs(list, 0, "error")
    for ending in ("csv", "jsonl", "parquet"):
        found = predict(run(), nothing, tmp_path / f"p.{ending}")
        assert found.n_items == 0
        if ending != "jsonl":
            assert read_wide(tmp_path / f"p.{ending}")[0] == []


def test_images_good_and_bad(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    g = np.random.default_rng(0)
    for i in range(3):
        Image.fromarray(g.integers(0, 256, (17, 17, 3), dtype=np.uint8)).save(folder / f"{i}.png")
    (folder / "1b.png").write_bytes((folder / "1.png").read_bytes()[:40])
    labels = Labels(np.eye(4, dtype=np.int8), NAMES)
    torch.manual_seed(0)
    model = build_model(ModelSettings(backbone="resnet12", pretrained=False), Input("image", (3, 16, 16)), labels)
    trained = replace(run(), model=model)
    found = predict(trained, open_inputs(folder, size=16, on_bad_image="skip"), tmp_path / "p.csv", batch_size=2)
    assert [name for name, _ in found.bad] == ["1b.png"]
    ids, eta, _ = read_wide(tmp_path / "p.csv")
    assert sorted(ids) == ["0.png", "1.png", "1b.png", "2.png"]
    assert np.isnan(eta).any(1).tolist() == [name == "1b.png" for name in ids]
    with pytest.raises(ValueError, match=r"1b\.png"):
        predict(trained, open_inputs(folder, size=16), tmp_path / "q.csv")
    assert not (tmp_path / "q.csv").exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["p.csv", "photos"]
    with pytest.raises(ValueError, match=r"items are features, but the model takes images"):
        predict(trained, inputs_of(items(3)), tmp_path / "q.csv")


def test_mistakes_are_told_before_any_work(tmp_path: Path) -> None:
    trained, data = run(), inputs_of(items(3))
    (tmp_path / "folder.csv").mkdir()
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("p.xlsx", {}, r"p\.xlsx ends in none of \.csv"),
        ("p.csv", {"format": "xml"}, "format is 'xml'"),
        ("p.csv", {"form": "tall"}, "form is 'tall'"),
        ("p.csv", {"top": 3}, "only with form='long'"),
        ("p.csv", {"top": -1, "form": "long"}, "top is -1"),
        ("no/p.csv", {}, "its folder does not exist"),
        ("folder.csv", {}, "is a folder"),
    ]
    for name, options, said in cases:
        with pytest.raises(ValueError, match=said) as error:
            predict(trained, data, tmp_path / name, **options)
        assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match=r"no probabilities.*TwoWay.*steelyard calibrate"):
        predict(small_run(part("two_way")), data, tmp_path / "p.csv")
    wrong = FeatureInputs(lambda: [(np.zeros((1, 5), np.float32), ["x"])], 1, "error")
    with pytest.raises(ValueError, match=r"'x' has 5 features, but the model takes 3"):
        predict(trained, wrong, tmp_path / "p.csv")
    with torch.no_grad():
        next(trained.model.head.parameters()).fill_(torch.nan)
    with pytest.raises(ValueError, match=r"for item '0' is not finite"):
        predict(trained, data, tmp_path / "p.csv")
    assert [p.name for p in tmp_path.iterdir()] == ["folder.csv"]
    predict(run(), data, tmp_path / "any.name", format="jsonl")
    assert len((tmp_path / "any.name").read_text(encoding="utf-8").splitlines()) == 3


def test_an_error_in_the_middle_leaves_the_old_file(tmp_path: Path) -> None:
    out = tmp_path / "p.csv"
    out.write_text("old")

    def blocks() -> Iterator[tuple[np.ndarray, list[str]]]:
        yield items(50).inputs, [str(i) for i in range(50)]
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        predict(run(), FeatureInputs(blocks, None, "error"), out, batch_size=10)
    assert out.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["p.csv"]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_killed_in_the_middle_leaves_the_old_file(tmp_path: Path, ending: str) -> None:
    out = tmp_path / f"p.{ending}"
    predict(small_run(), inputs_of(items(20)), out)
    before = out.read_bytes()
    under_way, note = tmp_path / "under way", tmp_path / "failure.txt"

    def blocks() -> Iterator[tuple[Any, list[str]]]:
        x = items(64).inputs
        for k in range(10**9):
            yield x, [f"{k}-{i}" for i in range(64)]
            if k == 3:
                under_way.touch()

    child = forked(lambda: predict(small_run(), FeatureInputs(blocks, None, "error"), out, batch_size=64), note)
    latest = time.monotonic() + 60
    while not under_way.exists() and not note.exists() and time.monotonic() < latest:
        time.sleep(0.002)
    time.sleep(0.2)
    os.kill(child, signal.SIGKILL)
    assert waited(child) == -signal.SIGKILL, note.read_text()
    assert under_way.exists()
    assert out.read_bytes() == before


STREAM = """
import resource, sys
sys.path.insert(0, sys.argv[2])
from small_run import items, small_run
from steelyard.data.streams import FeatureInputs
from steelyard.predict import prediction
from steelyard.predict import files as prediction_files
prediction_files._CELLS = 1 << 16
x, run = items(4096).inputs, small_run()
def peak(n):
    blocks = ((x, [f"{k}-{i}" for i in range(4096)]) for k in range(n))
    prediction.predict(run, FeatureInputs(lambda: blocks, None, "error"), sys.argv[1], batch_size=4096)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(-peak(10) + peak(150))
"""


def test_a_long_stream_needs_no_more_memory_than_a_short_one(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STREAM, str(tmp_path / "p.parquet"), str(Path(__file__).parent)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, check=True, capture_output=True, text=True, env=env)
    assert int(result.stdout) < 20_000  # kilobytes; 570,000 items more, whose ids alone would take 40 MB
