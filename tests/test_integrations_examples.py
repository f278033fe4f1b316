"""The examples that show Steelyard inside other tools run, and show what they say they show."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from steelyard.config.recipes import METHODS
from steelyard.config.settings import load_config
from steelyard.training.settings import AugmentSettings

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
pytestmark = pytest.mark.filterwarnings("ignore")


def example(tool: str) -> Callable[..., Any]:
    """The `main` of `examples/with_TOOL.py`."""
    if importlib.util.find_spec(tool) is None:
        pytest.skip(f"{tool} is not installed")
    main: Callable[..., Any] = loaded(f"with_{tool}").main
    return main


def loaded(name: str) -> ModuleType:
    found = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_every_loss_shows_all_methods_that_can_be_over_frozen_features() -> None:
    said = {"model": {"backbone": "lite0", "frozen": True}}
    varies = {name for name in METHODS if load_config(None, name, (), said).train.augment != AugmentSettings()}
    assert set(loaded("every_loss").METHODS_SHOWN) == set(METHODS) - varies - {"db-focal"}


def test_every_example_of_a_tool_is_run_here() -> None:
    tools = {path.stem.removeprefix("with_") for path in EXAMPLES.glob("with_*.py")}
    elsewhere = {"huggingface"}  # in test_integrations_huggingface.py
    assert tools - elsewhere == {"lightning", "mlflow", "sklearn", "tensorboard", "timm", "torchmetrics"}


@pytest.mark.slow
def test_what_is_advised_of_partial_labels_is_judged_on_held_out_items(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    x = np.random.default_rng(0).normal(size=(200, 8)).astype(np.float32)
    np.savez(tmp_path / "made.npz", X_train=x, Y_train=np.where(x[:, :4] > 0.5, 1, -1))
    module = loaded("choose_partial_recipe")
    monkeypatch.setattr(module, "SHARES", (0.5,))
    monkeypatch.setattr(module, "SEEDS", 1)
    monkeypatch.setattr("sys.argv", ["", str(tmp_path / "made.npz")])
    module.main()
    name, share, bce, *_ = capsys.readouterr().out.splitlines()[1].split()
    assert (name, share) == ("made", "50%")
    assert float(bce) > 70  # chance is 31


def test_lightning() -> None:
    found = example("lightning")(n_train=1500, epochs=4)
    assert found["ACE by calibrated"] < found["ACE by σ"]
    assert found["ACE by link"] < found["ACE by σ"]
    assert found["mAP"] > 0.2  # chance is the mean prior, .17


def test_timm(capsys: pytest.CaptureFixture[str]) -> None:
    found = example("timm")(n_train=96, epochs=2)
    losses = [float(line.split()[-1]) for line in capsys.readouterr().out.splitlines()]
    assert losses == sorted(losses, reverse=True)
    assert len(losses) == 2
    assert 0 < found["mAP"] < 1
    assert 0 < found["ACE"] < 0.5


def test_sklearn() -> None:
    found = example("sklearn")(n_train=200, epochs=4)
    assert list(found) == ["SteelyardClassifier", "CalibratedClassifierCV"]
    for scores in found.values():
        assert scores["mAP"] > 0.17  # the mean prior
        assert scores["log-loss"] < 0.6931  # that of knowing nothing


def test_torchmetrics() -> None:
    found = example("torchmetrics")(n=400)
    assert found["mAP"] == pytest.approx(found["mAP of torchmetrics"], abs=1e-6)
    assert found["ACE"] < 0.1  # the probabilities are true ones


def test_tensorboard(tmp_path: Path) -> None:
    folder = example("tensorboard")(str(tmp_path / "run"), n_train=80, epochs=2)
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    read = events.EventAccumulator(str(folder / "tensorboard"))
    read.Reload()
    assert [point.step for point in read.Scalars("training/loss")] == [1, 2]
    assert torch.isfinite(torch.tensor([point.value for point in read.Scalars("validation/map")])).all()


def test_mlflow() -> None:
    kept = example("mlflow")(n_train=80, epochs=2)
    assert kept.keys() >= {"training/loss", "training/lr", "validation/map", "mAP"}
    assert 0 < kept["mAP"] <= 1
