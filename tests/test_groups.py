"""Items that belong together, such as photographs of one patient, stay on one side of every split."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import steelyard as sy
from steelyard.balance.split import stratified_split
from steelyard.calibrate.crossfit import folds_of
from steelyard.cli import main
from steelyard.config.sections import EvaluateSettings
from steelyard.data.files import DataError
from steelyard.folder.run_folder import RunFolder
from steelyard.run.evaluation import judge


def copies(n_groups: int = 40, size: int = 5, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Groups of near copies with labels of pure chance: only who has seen a copy can tell them."""
    rng = np.random.default_rng(seed)
    centre, chance = rng.normal(size=(n_groups, 8)), (rng.random((n_groups, 3)) < 0.4).astype(np.int8)
    groups = np.repeat(np.arange(n_groups), size)
    x = centre[groups] + 0.01 * rng.normal(size=(len(groups), 8))
    order = rng.permutation(len(groups))
    return x[order].astype(np.float32), chance[groups][order], groups[order]


def is_split(groups: np.ndarray, sides: np.ndarray) -> bool:
    return any(len(set(sides[groups == g].tolist())) > 1 for g in np.unique(groups))


@pytest.mark.parametrize("n_groups", [2, 3, 40])
def test_no_fold_parts_a_group(n_groups: int) -> None:
    _, y, groups = copies(n_groups)
    folds = folds_of(torch.from_numpy(y), 5, 0, groups)
    assert not is_split(groups, folds)
    assert set(folds.tolist()) == set(range(folds.max() + 1))
    assert 2 <= folds.max() + 1 <= min(5, n_groups)
    assert is_split(groups, folds_of(torch.from_numpy(y), 5, 0))


def test_a_split_shares_out_groups_and_their_labels() -> None:
    _, y, groups = copies(200)
    labels = sy.Labels(y).grouped([f"patient {g}" for g in groups])
    rest, held = stratified_split(labels, 0.25)
    assert sorted([*rest, *held]) == list(range(len(y)))
    side = np.isin(np.arange(len(y)), held)
    assert not is_split(groups, side)
    np.testing.assert_allclose(y[held].mean(0), y.mean(0), atol=0.04)
    assert labels.take(held).item_groups.tolist() == labels.item_groups[held].tolist()


def test_one_group_cannot_be_split() -> None:
    labels = sy.Labels(np.eye(4, dtype=np.int8)).grouped(["a"] * 4)
    with pytest.raises(ValueError, match="one group"):
        stratified_split(labels, 0.5)
    with pytest.raises(ValueError, match="one group"):
        folds_of(torch.eye(4), 2, 0, labels.item_groups)
    with pytest.raises(ValueError, match=r"groups has shape \(3,\)"):
        labels.grouped([1, 2, 3])


def test_copies_do_not_flatter_the_folds() -> None:
    """Without groups the copies in other folds give the labels away; with them there is nothing to be known."""
    x, y, groups = copies()
    settings = {"train": {"budget": 1e8}}
    blind = sy.fit((x, y), settings=settings, verbose=False)
    aware = sy.fit((x, y), groups=groups, settings=settings, verbose=False)
    chance = y.mean(0).mean()
    scores = [run.metrics["validation"]["mAP"]["label"] for run in (blind, aware)]
    assert scores[0] > chance + 0.2
    assert scores[1] < chance + 0.12


def written(folder: Path, form: str) -> Path:
    x, y, groups = copies(30, 2)
    rows = [
        (f"i{k}", f"p{g}", x[k, 0], ";".join(f"label {c}" for c in np.flatnonzero(y[k])) or "label 0")
        for k, g in enumerate(groups)
    ]
    if form == "npz":
        np.savez(folder / "t.npz", X=x, Y=y, groups=groups)
        return folder / "t.npz"
    lines = ["id,patient,x,labels", *(",".join(map(str, row)) for row in rows)]
    if form == "long":
        lines = ["id,patient,labels", *(f"{i},{p},{name}" for i, p, _, names in rows for name in names.split(";"))]
    (folder / "t.csv").write_text("\n".join(lines) + "\n")
    return folder / "t.csv"


@pytest.mark.parametrize("form", ["list", "long", "npz"])
def test_groups_are_read(tmp_path: Path, form: str) -> None:
    file = written(tmp_path, form)
    data = sy.data.open_data(file).data if form == "npz" else sy.data.table(file, group="patient")
    groups = data.labels.item_groups
    assert len(np.unique(groups)) == 30
    assert np.bincount(groups).tolist() == [2] * 30


def test_mistakes_about_groups_are_named(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("id,patient,x,labels\na,p,1,cat\nb,,2,dog\n")
    with pytest.raises(DataError, match=r"(?s)line 3.*patient"):
        sy.data.table(tmp_path / "t.csv", group="patient")
    with pytest.raises(DataError, match="family"):
        sy.data.table(tmp_path / "t.csv", group="family")
    (tmp_path / "l.csv").write_text("id,patient,labels\na,p,cat\na,q,dog\nb,q,dog\nc,q,cat\n")
    with pytest.raises(DataError, match="group"):
        sy.data.table(tmp_path / "l.csv", form="long", group="patient")


def test_calibrators_keep_groups_together_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In training, in `calibrate` and in `evaluate`: with nothing changed they give the same probabilities."""
    written(tmp_path, "npz")
    settings = {"train": {"budget": 1e8}, "evaluate": {"calibration": "platt"}}
    run = sy.fit(tmp_path / "t.npz", out=tmp_path / "run", settings=settings, verbose=False)
    before = run.metrics["validation"]
    folder = RunFolder(tmp_path / "run")
    folds, groups = folder.read_group_folds(), np.load(tmp_path / "t.npz")["groups"]
    assert folds is not None
    assert all(len(set(folds[groups == g])) == 1 for g in set(groups.tolist()))
    monkeypatch.setattr(sys, "argv", ["steelyard", "calibrate", str(tmp_path / "run")])
    main()
    after = folder.read_metrics()["recalibration"]
    assert after["log_loss"] == pytest.approx(before["log_loss"], rel=1e-6)
    trained, (logits, targets) = folder.load(), folder.read_folds() or ()
    plain = judge(trained, (torch.tensor(logits), torch.tensor(targets)), EvaluateSettings(), True)
    eta = trained.probability_model.out_of_fold(torch.tensor(logits), torch.tensor(targets), folds)
    np.testing.assert_array_equal(plain.probabilities.numpy(), eta.numpy())


@pytest.mark.parametrize("recipe", ["auto", "bce", "role"])
def test_groups_and_items_held_out(tmp_path: Path, recipe: str) -> None:
    """The calibrator is fitted to the items held out, whose folds are their own."""
    x, y, groups = copies(40, 3)
    settings: dict[str, Any] = {"train": {"budget": 1e8 if recipe == "auto" else 0.0, "device": "cpu"}}
    run = sy.fit((x, y), recipe, groups=groups, validation=0.3, out=tmp_path / "run", settings=settings, verbose=False)
    assert 30 <= run.metrics["validation"]["items"] <= 42
