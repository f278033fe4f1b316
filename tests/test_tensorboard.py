"""The history for TensorBoard: what is written can be read back, and a missing package is said in time."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import steelyard as sy
from run_data import QUICK, items
from steelyard.folder.run_folder import RunFolder
from steelyard.run import learn
from steelyard.training.progress import Logged, TensorBoard, Watch


def read(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Every scalar in a folder of events: (epoch, value) in order."""
    module = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason="tensorboard")
    found = module.EventAccumulator(str(folder))
    found.Reload()
    return {tag: [(e.step, e.value) for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def record(epoch: int, loss: float, **more: Any) -> dict[str, Any]:
    return {"epoch": epoch, "loss": loss, "lr": 0.5, "parts": {"loss": loss, "label_pair": 0.25}, **more}


@pytest.fixture
def board(tmp_path: Path) -> TensorBoard:
    pytest.importorskip("tensorboard", reason="the package tensorboard is not installed")
    return TensorBoard(tmp_path / "events")


def test_numbers_of_every_epoch_are_written(board: TensorBoard) -> None:
    assert not board.folder.exists()  # nothing is written before training begins
    shown = Logged(board, Watch())
    shown.epoch(record(1, 2.0, validation={"map": 0.5, "f1": None}), 2)
    assert read(board.folder)["training/loss"] == [(1, 2.0)]  # at once, not only in the end
    shown.epoch(record(2, 1.0), 2)
    assert read(board.folder) == {
        "training/loss": [(1, 2.0), (2, 1.0)],
        "training/lr": [(1, 0.5), (2, 0.5)],
        "training/label_pair": [(1, 0.25), (2, 0.25)],
        "validation/map": [(1, 0.5)],
    }


def test_an_epoch_that_is_done_again_supersedes(board: TensorBoard) -> None:
    for epoch, loss in ((1, 3.0), (2, 99.0)):
        board.log({"training/loss": loss}, epoch)
    TensorBoard(board.folder).log({"training/loss": 2.0}, 2)
    assert read(board.folder)["training/loss"] == [(1, 3.0), (2, 2.0)]


def test_a_run_writes_its_history(board: TensorBoard, tmp_path: Path) -> None:
    settings = {**QUICK, "train": {**QUICK["train"], "tensorboard": True}}
    run = sy.fit(items(), "bce", out=tmp_path / "run", settings=settings, verbose=False)
    found = read(tmp_path / "run" / "tensorboard")
    for name in ("map", "f1", "ace", "loss"):
        wanted = [(line["epoch"], pytest.approx(line["validation"][name], rel=1e-6)) for line in run.history]
        assert found[f"validation/{name}"] == wanted
    assert [value for _, value in found["training/loss"]] == [pytest.approx(line["loss"]) for line in run.history]
    sy.fit(items(), "bce", out=tmp_path / "run", settings=settings, verbose=False, overwrite=True)
    assert len(read(tmp_path / "run" / "tensorboard")["training/loss"]) == 2  # nothing of the run before


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    sentence = "which is not installed: pip install tensorboard, or set it to false"
    with pytest.raises(ValueError, match=sentence):
        TensorBoard(tmp_path)
    settings = {"train": {**QUICK["train"], "tensorboard": True}}

    def never(*_: object) -> None:
        raise AssertionError("training began")

    monkeypatch.setattr(learn, "train", never)
    before = RunFolder(tmp_path / "run")
    before.create(False, "[train]\n", {})
    before.finish({})
    with pytest.raises(ValueError, match=sentence):
        sy.fit(items(), "bce", out=tmp_path / "run", overwrite=True, settings=settings, verbose=False)
    assert (tmp_path / "run" / "run.json").exists()  # what was there is not lost for it
