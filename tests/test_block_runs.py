"""Runs of many labels: chosen by themselves, calibrated by bands, measured by first labels, used again."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet
import pytest
import torch

import steelyard as sy
from steelyard.data.dataset import ArrayDataset
from steelyard.folder.run_folder import RunFolder
from steelyard.labels import Labels
from steelyard.models.block import top_labels
from steelyard.predict.blocks import by_blocks
from steelyard.run import learn
from steelyard.run.blocks.probability_model import band_report, cells_of
from steelyard.run.predict import PredictRequest, predict
from steelyard.training.checkpoint import read_history
from training_jobs import forked, in_two_processes, shot, waited
from typed import done, typed


def items(n: int, n_labels: int, seed: int = 0) -> tuple[np.ndarray[Any, Any], Labels]:
    """Features, and labels of a power law that follow from them."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 6)).astype(np.float32)
    w = np.random.default_rng(99).normal(size=(6, 50))
    z = x @ w - 1.5 - np.log(np.arange(1, 51)) / 2
    rows, columns = np.nonzero(rng.random(z.shape) < 1 / (1 + np.exp(-z)))
    return x, Labels.from_cells(rows, columns, np.ones(len(rows), int), (n, n_labels), 0)


SETTINGS = {"train": {"learner": "blocks", "device": "cpu", "epochs": 5, "batch_size": 64}, "optimizer": {"lr": 0.05}}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    out = tmp_path_factory.mktemp("runs") / "run"
    return sy.fit(items(1500, 50), "bce", test=items(400, 50, 1), out=out, settings=SETTINGS, verbose=False)


def test_a_run_learns_and_is_read_back_the_same(run: Any) -> None:
    x, labels = items(400, 50, 1)
    trained = RunFolder(run.trained.folder).load()
    eta = run.probability(x)
    again = trained.probability_model.probability(trained.model(torch.from_numpy(x)))
    assert np.array_equal(eta, again.numpy())
    y = labels.values
    order = np.argsort(-eta, axis=1, kind="stable")
    for k in (1, 3, 5):
        want = np.take_along_axis(y, order[:, :k], 1).mean()
        assert run.metrics["test"]["top"]["precision"][str(k)] == pytest.approx(want, abs=1e-9)
    assert run.metrics["test"]["top"]["precision"]["1"] > 0.7
    assert [record["epoch"] for record in run.history] == [1, 2, 3, 4, 5]


def test_blocks_are_read_as_all_labels_at_once(run: Any) -> None:
    x, probability_model = torch.from_numpy(items(30, 50, 2)[0]), run.trained.probability_model
    model = run.trained.model
    for one in (probability_model, probability_model.with_prior(np.full(50, 0.1))):
        want = torch.from_numpy(one.log_odds(model(x).numpy()))
        read = by_blocks(one)
        got = torch.cat([read(model(x)[:, s : s + 8], slice(s, min(s + 8, 50))) for s in range(0, 50, 8)], 1)
        torch.testing.assert_close(got.float(), want.float(), rtol=1e-4, atol=1e-4)
        best = top_labels(model.head, model.features(x), 4, read, block=8)
        assert (best.labels.numpy() == np.argsort(-want.numpy(), axis=1, kind="stable")[:, :4]).all()


def test_drawn_cells_stand_for_all_cells(run: Any) -> None:
    """Weighted sums over drawn cells are those over all cells, to the noise of drawing; positives are all there."""
    x, labels = items(400, 50, 1)
    trained = run.trained
    cells = cells_of(trained.model, ArrayDataset(x, labels), trained.probability_model, 0, torch.device("cpu"))
    assert int(cells.targets.sum()) == int(labels.counts.sum())
    assert float(cells.weights.sum()) == pytest.approx(400 * 50, rel=0.1)
    rows = band_report(cells, trained.probability_model)
    assert sum(row["labels"] for row in rows) == 50
    assert all(row["ace"] < 0.15 for row in rows)
    link = trained.probability_model.fit(np.zeros((0, 50)), np.zeros((0, 50)), "link")
    odds = link.log_odds(trained.model(torch.from_numpy(x)).numpy())
    for z, label in list(zip(cells.log_odds.tolist(), cells.labels.tolist(), strict=True))[:20]:
        assert np.abs(odds[:, label] - z).min() < 1e-4


@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl"])
def test_predict_top_writes_the_likeliest_labels(run: Any, tmp_path: Path, ending: str) -> None:
    x = items(30, 50, 3)[0]
    np.savez(tmp_path / "new.npz", X=x)
    out = tmp_path / f"top.{ending}"
    predict(
        PredictRequest(str(run.trained.folder), str(tmp_path / "new.npz"), str(out), top=4, device="cpu", batch_size=8)
    )
    read = {"parquet": pa.parquet.read_table, "csv": pa.csv.read_csv, "jsonl": pa.json.read_json}[ending]
    table = read(out).to_pydict()
    eta = run.probability(x)
    order = np.argsort(-eta, axis=1, kind="stable")[:, :4]
    assert list(map(str, table["label"])) == [run.names[c] for c in order.ravel()]
    assert np.allclose(table["probability"], np.take_along_axis(eta, order, 1).ravel(), atol=1e-6)
    assert list(map(str, table["id"])) == [str(i) for i in range(30) for _ in range(4)]


def test_train_switches_by_itself_from_20000_labels_on_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"train": {"device": "cpu", "epochs": 1, "batch_size": 64}}
    run = sy.fit(items(120, 20_000), out=tmp_path / "run", settings=given)
    said = " ".join(capsys.readouterr().out.split())
    assert "20,000 labels or more: a linear model is trained one block of labels at a time" in said
    assert 'learner = "blocks"' in (tmp_path / "run" / "config.toml").read_text()
    assert run.metrics["validation"]["labels"] == 20_000
    assert json.loads((tmp_path / "run" / "run.json").read_text())["epochs"] == 1
    assert run.probability(items(2, 20_000)[0]).shape == (2, 20_000)
    np.savez(tmp_path / "new.npz", X=items(2, 20_000)[0])
    with pytest.raises(ValueError, match=r"20,000 labels, too many .* give --top 20"):
        predict(
            PredictRequest(str(tmp_path / "run"), str(tmp_path / "new.npz"), str(tmp_path / "all.csv"), device="cpu")
        )


def test_blocks_are_refused_where_they_cannot_be() -> None:
    with pytest.raises(ValueError, match=r"train.learner is blocks, which is for features"):
        sy.fit(items(60, 50), "two-way", settings=SETTINGS, verbose=False)


def test_picked_unknown_labels_train_without_a_table(tmp_path: Path) -> None:
    """The recipe of paper 3 by blocks: nothing of the size of items by labels is kept."""
    x, labels = items(300, 50)
    rows, columns, values = labels.cells()
    some = Labels.from_cells(rows, columns, values, (300, 50), -1)
    settings = {**SETTINGS, "objective": {"unknown": {"kind": "annotation", "q": 0.1}}}
    run = sy.fit((x, some), "bce", out=tmp_path / "run", settings=settings, verbose=False)
    assert len(run.history) == 5
    kept = sum(file.stat().st_size for file in (tmp_path / "run" / "pseudo-labels").glob("picked-*"))
    assert 0 < kept < 2 * 0.2 * 300 * 50


def written(folder: Path, n_labels: int = 50, rest_unknown: bool = False) -> Path:
    """A file of features and labels to train on."""
    x, labels = items(300, n_labels)
    values = labels.values.astype(np.int64)
    if rest_unknown:
        values = np.where(values == 1, 1, -1)
    np.savez(folder / "items.npz", X=x, Y=values)
    return folder / "items.npz"


BLOCKS = [
    part
    for setting in ("train.learner=blocks", "train.epochs=3", "train.batch_size=64", "train.checkpoint_seconds=0")
    for part in ("--set", setting)
]
RULES = {
    "bce": (),
    "plm": ("--recipe", "bce", "--set", "objective.masking.kind=plm", "--set", "objective.masking.rate=0"),
    "annotation": ("--recipe", "bce", "--set", "objective.unknown.kind=annotation", "--set", "objective.unknown.q=0.3"),
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("epoch", "step"), [(1, 2), (2, 3), (3, 4)])
def test_a_run_that_is_killed_goes_on_to_the_same_weights(
    tmp_path: Path, rule: str, epoch: int, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of the first sitting after its last checkpoint are taken again."""
    data = written(tmp_path, rest_unknown=rule == "annotation")
    asked = ("train", "--data", data, "--recipe", "bce", *RULES[rule], *BLOCKS)
    done(*asked, "--out", tmp_path / "straight")
    with monkeypatch.context() as patched:
        patched.setattr(learn, "_watch", shot(epoch, step, signal.SIGKILL))
        child = forked(lambda: typed(*asked, "--out", tmp_path / "run"), tmp_path / "note")
        assert waited(child) == -signal.SIGKILL, (tmp_path / "note").read_text()
    said = done(*asked, "--out", tmp_path / "run")
    assert f"Resuming at epoch {epoch}" in said.out
    for name in ("model.safetensors", "calibration.json", "metrics.json"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "straight" / name).read_bytes()
    losses = [[line["loss"] for line in read_history(tmp_path / run / "history.jsonl")] for run in ("run", "straight")]
    assert losses[0] == losses[1]
    assert not (tmp_path / "run" / "checkpoint").exists()


@pytest.mark.parametrize("rule", RULES)
def test_two_processes_train_one_run_by_blocks(tmp_path: Path, rule: str) -> None:
    """Labels are split: weights, losses and probabilities are those of one process, to rounding."""
    data = written(tmp_path, rest_unknown=rule == "annotation")
    asked = [str(part) for part in ("train", "--data", data, "--recipe", "bce", *RULES[rule], *BLOCKS)]
    first, second = in_two_processes(tmp_path, *asked, "--out", str(tmp_path / "two"))
    assert (first.code, first.err) == (0, "")
    assert "2 processes share every batch of 64." in first.out
    assert (second.code, second.out, second.err) == (0, "", "")
    done(*asked, "--out", tmp_path / "one")
    one, two = (sy.Run.load(tmp_path / name) for name in ("one", "two"))
    x, _ = items(70, 50, 1)
    np.testing.assert_allclose(two.logits(x), one.logits(x), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(two.probability(x), one.probability(x), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(*([line["loss"] for line in run.history] for run in (one, two)), rtol=1e-5)


def test_what_two_processes_began_one_goes_on_with(tmp_path: Path) -> None:
    """A checkpoint holds all labels."""
    data = written(tmp_path)
    asked = [str(part) for part in ("train", "--data", data, "--recipe", "bce", *BLOCKS)]
    first, second = in_two_processes(tmp_path, *asked, "--out", str(tmp_path / "run"), fails=True)
    assert first.code == second.code == 2
    said = done(*asked, "--out", tmp_path / "run")
    assert "Resuming at epoch 2" in said.out
    done(*asked, "--out", tmp_path / "one")
    one, both = (sy.Run.load(tmp_path / name) for name in ("one", "run"))
    x, _ = items(70, 50, 1)
    np.testing.assert_allclose(both.logits(x), one.logits(x), rtol=1e-4, atol=1e-5)
