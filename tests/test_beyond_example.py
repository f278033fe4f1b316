"""The ablation on MultiMNIST: its rows are sound, its files and its summary hold what was measured."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from steelyard.data.dataset import ArrayDataset
from steelyard.labels import Labels
from steelyard.run.datasets import Datasets

SMALL = {"model": {"backbone": "small"}, "train": {"batch_size": 20, "sampler": {"visits": 6}}}


@pytest.fixture(scope="module")
def beyond() -> ModuleType:
    file = Path(__file__).parents[1] / "examples" / "beyond_multi_mnist.py"
    spec = importlib.util.spec_from_file_location("beyond_multi_mnist", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["beyond_multi_mnist"] = module  # where its dataclass looks for its types
    spec.loader.exec_module(module)
    return module


def bars(n: int, per_item: int, seed: int) -> ArrayDataset:
    """Ten kinds of bars, one or two an image, the first kinds more often."""
    rng = np.random.default_rng(seed)
    values = np.zeros((n, 10), np.int8)
    images = np.zeros((n, 1, 32, 32), np.uint8)
    for i in range(n):
        for c in {i % 10, *rng.choice(10, per_item - 1, p=np.arange(10, 0, -1) / 55).tolist()}:
            values[i, c] = 1
            images[i, 0, 3 * c : 3 * c + 2] = 255
    return ArrayDataset(images, Labels(values))


def test_rows_differ_as_they_say(beyond: ModuleType) -> None:
    made = {name: beyond.config_of(row, 3, None) for name, row in beyond.ROWS.items()}
    assert all(config.train.seed == 3 for config in made.values())
    assert len({repr(config) for config in made.values()}) == len(made)
    for name, config in made.items():
        assert config.data.split == ("digits" if beyond.ROWS[name].track == "open" else "train"), name
        assert (config.train.augment.overlay == 1) == (beyond.ROWS[name].track == "open"), name
        assert (config.objective.masking.kind == "plm") == name.startswith("plm"), name
    assert made["still"].train.augment == made["bce"].train.augment
    assert made["plm-validation"].train.validate_every == 1
    assert made["open"].train.validate_every == made["open"].train.epochs
    for name in ("beyond", "open"):
        assert not beyond.ROWS[name].changes
    assert made["averaged"].train.epochs < made["open"].train.epochs


def test_settings_are_joined_and_not_changed(beyond: ModuleType) -> None:
    one, other = {"a": {"b": 1, "c": 2}}, {"a": {"b": 3}, "d": 4}
    assert beyond.joined(one, other) == {"a": {"b": 3, "c": 2}, "d": 4}
    assert one == {"a": {"b": 1, "c": 2}}


def test_scores(beyond: ModuleType) -> None:
    targets = torch.tensor([[1, 0, 1, 0], [0, 1, 1, 0], [1, 1, 0, 1]])
    eta = torch.where(targets == 1, 0.9, 0.1)
    found = beyond.scores(eta, targets, np.array([9, 5, 1, 2]))
    assert found == pytest.approx({"f1": 100, "rarest_f1": 100, "exact_match": 100, "ace": 10}, abs=1e-4)
    eta[0, 0] = 0.2  # the most common label: the three rarest do not see it
    found = beyond.scores(eta, targets, np.array([9, 5, 1, 2]))
    assert found["f1"] == pytest.approx(100 * (3 + 2 / 3) / 4)
    assert found["rarest_f1"] == pytest.approx(100)
    assert found["exact_match"] == pytest.approx(200 / 3)


def test_what_is_measured_is_written_once_and_summed_up(
    beyond: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    paper = Datasets(bars(100, 2, 0), None, bars(60, 2, 1))
    digits = Datasets(bars(100, 1, 2), bars(60, 2, 3), bars(60, 2, 4))
    monkeypatch.setattr(beyond, "opened", lambda track, root, validates: paper if track == "paper" else digits)
    chosen = ("plm-validation", "beyond", "even-warped")
    rows: dict[str, Any] = {
        name: beyond.Row(
            row.track, row.what, row.recipe, beyond.joined(row.changes, SMALL), 0.2 if row.observes else 0.0
        )
        for name, row in beyond.ROWS.items()
        if name in chosen
    }
    monkeypatch.setattr(beyond, "ROWS", rows)
    monkeypatch.setattr(sys, "argv", ["beyond", "here", "--out", str(tmp_path), "--seeds", "0", "1", "--epochs", "1"])
    beyond.main()
    files = sorted(file.name for file in tmp_path.glob("*.json"))
    assert files == sorted(["beyond.json", *(f"{name}.{seed}.json" for name in chosen for seed in (0, 1))])
    summary = json.loads((tmp_path / "beyond.json").read_text())
    assert list(summary["rows"]) == list(rows)
    for name in chosen:
        each = [json.loads((tmp_path / f"{name}.{seed}.json").read_text()) for seed in (0, 1)]
        for way, found in summary["rows"][name]["scores"].items():
            for score, value in found.items():
                both = [one["scores"][way][score] for one in each]
                assert value["mean"] == pytest.approx(np.mean(both))
                assert value["std"] == pytest.approx(np.std(both))
    assert "temperature" in summary["rows"]["even-warped"]["reading"]
    assert "prior estimated" in capsys.readouterr().out
    times = {file: file.stat().st_mtime_ns for file in tmp_path.glob("*.[01].json")}
    monkeypatch.setattr(beyond, "trained", None)  # nothing is trained again
    beyond.main()
    assert times == {file: file.stat().st_mtime_ns for file in tmp_path.glob("*.[01].json")}
