"""Modules of one's own in `fit`: logits or features, trained, calibrated, kept, and asked for again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import steelyard as sy
from run_data import QUICK, items


class Net(nn.Module):
    """Two layers over features (B, 5)."""

    def __init__(self, n_outputs: int = 3) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, n_outputs))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.net(x)
        return logits


class OfImages(nn.Module):
    """Logits of the mean colour, and a record of what came in."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        assert x.dtype == torch.float32
        assert 0 <= float(x.min()) <= float(x.max()) <= 1
        logits: Tensor = self.last(x.mean((2, 3)))
        return logits


def fit(data: Any, model: Any, recipe: str = "bce", **given: Any) -> sy.Run:
    settings = {**QUICK, **given.pop("settings", {})}
    return sy.fit(data, recipe, model=model, settings=settings, verbose=False, **given)


def test_a_module_of_logits_is_trained_as_it_is_and_comes_back_from_its_folder(tmp_path: Path) -> None:
    data, net = items(), Net()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    run = fit(data, net, out=tmp_path / "run", settings={"train": {"epochs": 40}, "optimizer": {"lr": 0.01}})
    trained = run.trained.model.backbone.module
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items()), "a copy is trained"
    assert not torch.equal(trained.net[0].weight, net.net[0].weight)
    x = torch.from_numpy(data[0])
    with torch.no_grad():
        np.testing.assert_allclose(run.logits(data[0]), trained.eval()(x).numpy(), atol=1e-6)
    assert sy.metrics.mean_average_precision(run.probability(data[0]), data[1]) > 0.8
    again = sy.Run.load(tmp_path / "run", model=Net())
    np.testing.assert_array_equal(again.probability(data[0]), run.probability(data[0]))
    kept = run.save(tmp_path / "copy")
    np.testing.assert_array_equal(kept.probability(data[0]), run.probability(data[0]))


def test_a_module_of_features_gets_a_head_that_starts_at_the_labels_frequencies() -> None:
    data = items()
    run = fit(data, Net(7), settings={"optimizer": {"lr": 1e-9}})
    assert run.trained.model.head.last.weight.shape == (3, 7)
    np.testing.assert_allclose(run.probability(data[0]).mean(0), data[1].mean(0), atol=0.03)


@pytest.mark.parametrize("recipe", ["auto", "asl", "plm", "splc", "two-way", "pal"])
def test_every_kind_of_recipe_trains_a_module(recipe: str) -> None:
    run = fit(items(unknown=0.3), Net(), recipe, settings={"evaluate": {"calibration": "temperature"}})
    assert len(run.history) == 2
    assert np.isfinite(run.logits(items()[0])).all()


def test_a_module_takes_images_as_floats_between_0_and_1() -> None:
    images = np.random.default_rng(0).integers(0, 256, (60, 3, 4, 4), np.uint8)
    labels = (images.mean((2, 3)) > 127).astype(np.int8)
    run = fit((images, labels), OfImages())
    assert run.probability(images).shape == (60, 3)


def test_what_was_trained_before_may_stay_as_it_is() -> None:
    net = Net()
    net.net[0].requires_grad_(False)
    run = fit(items(), net)
    trained = run.trained.model.backbone.module
    assert torch.equal(trained.net[0].weight, net.net[0].weight)
    assert not torch.equal(trained.net[2].weight, net.net[2].weight)


def test_a_run_asks_for_its_module_and_refuses_another(tmp_path: Path) -> None:
    fit(items(), Net(), out=tmp_path / "run")
    with pytest.raises(ValueError, match=r"Run.load\(folder, model=module\)"):
        sy.Run.load(tmp_path / "run")
    with pytest.raises(ValueError, match="another model"):
        sy.Run.load(tmp_path / "run", model=nn.Linear(5, 3))


@pytest.mark.parametrize(
    ("module", "sentence"),
    [
        (nn.Linear(4, 3), r"does not take features of 5 .*first layer"),
        (nn.Unflatten(1, (5, 1)), r"returns \(1, 5, 1\)"),
        (lambda x: x, "model is a function"),
    ],
)
def test_modules_that_do_not_fit_are_one_sentence(module: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as error:
        fit(items(), module)
    assert "\n" not in str(error.value)


def test_settings_that_are_the_modules_own_business_are_refused() -> None:
    with pytest.raises(ValueError, match=r"model\.keep_statistics"):
        fit(items(), Net(), settings={"model": {"keep_statistics": True}})
    with pytest.raises(ValueError, match="choose another head"):
        fit(items(), Net(7), settings={"model": {"head": "none"}})
    with pytest.raises(ValueError, match=r"sy\.fit\(data, model=module\)"):
        fit(items(), None, settings={"model": {"backbone": "own"}})
