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
from steelyard.training.progress import Board, Watch


class Noted(Watch):
    """Notes what is passed on."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def begin(self, epoch: int, step: int, epochs: int) -> None:
        self.calls.append(("begin", epoch, step, epochs))

    def step(self, epoch: int, step: int, steps: int) -> None:
        self.calls.append(("step", epoch, step, steps))

    def epoch(self, record: dict[str, Any], epochs: int) -> None:
        self.calls.append(("epoch", record["epoch"], epochs))

    def end(self) -> None:
        self.calls.append(("end",))


def read(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Every scalar in a folder of events: (epoch, value) in order."""
    module = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason="tensorboard")
    found = module.EventAccumulator(str(folder))
    found.Reload()
    return {tag: [(e.step, e.value) for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def record(epoch: int, loss: float, **more: Any) -> dict[str, Any]:
    return {"epoch": epoch, "loss": loss, "lr": 0.5, "parts": {"loss": loss, "label_pair": 0.25}, **more}


@pytest.fixture
def board(tmp_path: Path) -> Board:
    pytest.importorskip("tensorboard", reason="the package tensorboard is not installed")
    return Board(tmp_path / "events", Noted())


def test_numbers_of_every_epoch_are_written(board: Board) -> None:
    assert not board.folder.exists()  # nothing is written before training begins
    board.begin(1, 0, 2)
    board.step(1, 1, 3)
    board.epoch(record(1, 2.0, validation={"map": 0.5, "f1": None}), 2)
    assert read(board.folder)["training/loss"] == [(1, 2.0)]  # at once, not only in the end
    board.epoch(record(2, 1.0), 2)
    board.end()
    assert read(board.folder) == {
        "training/loss": [(1, 2.0), (2, 1.0)],
        "training/lr": [(1, 0.5), (2, 0.5)],
        "training/label_pair": [(1, 0.25), (2, 0.25)],
        "validation/map": [(1, 0.5)],
    }
    assert isinstance(board.inner, Noted)
    assert board.inner.calls == [("begin", 1, 0, 2), ("step", 1, 1, 3), ("epoch", 1, 2), ("epoch", 2, 2), ("end",)]


def test_an_epoch_that_is_done_again_supersedes(board: Board) -> None:
    board.begin(1, 0, 3)
    board.epoch(record(1, 3.0), 3)
    board.epoch(record(2, 99.0), 3)
    board.end()
    again = Board(board.folder, Watch())
    again.begin(2, 4, 3)
    again.epoch(record(2, 2.0), 3)
    again.end()
    assert read(board.folder)["training/loss"] == [(1, 3.0), (2, 2.0)]


def test_it_may_end_before_it_began(board: Board) -> None:
    board.end()
    assert not board.folder.exists()


def test_a_run_writes_its_history(board: Board, tmp_path: Path) -> None:
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
        Board(tmp_path, Watch())
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
