"""Training on a GPU: captured steps are the eager ones, and what goes wrong is said. Skipped where there is none."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import steelyard as sy
import training_runs as runs
from steelyard.data.dataset import ArrayDataset
from steelyard.labels import Labels
from steelyard.losses import BCE
from steelyard.models import ModelSettings, build_model, input_of
from steelyard.models.resnet import ResNet12, ResNet32
from steelyard.objective import Objective
from steelyard.training import captured
from steelyard.training.finite import NotFinite, check_weights
from steelyard.training.settings import AugmentSettings

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.fixture(autouse=True)
def _exact() -> Any:
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


def on_gpu(method: str, folder: Path, compile: str, **settings: Any) -> Any:
    return runs.run(method, folder, device="cuda", compile=compile, **settings)


@pytest.mark.parametrize("method", runs.METHODS)
def test_captured_is_eager(method: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    both = [on_gpu(method, tmp_path / way, way) for way in ("off", "auto")]
    runs.assert_same(*both, 1e-3, 1e-5)
    assert not caplog.records
    assert both[0][0].prepared == 0 < both[1][0].prepared


@pytest.mark.parametrize(
    "settings", [{"ema": 0.9}, {"clip_norm": 0.1}, {"kind": "adamw", "lr": 0.003}, {"compile": "on"}], ids=str
)
def test_captured_is_eager_with(settings: dict[str, Any], tmp_path: Path) -> None:
    way = settings.pop("compile", "auto")
    both = [on_gpu("bce", tmp_path / w, w, **settings) for w in ("off", way)]
    runs.assert_same(*both, 1e-3, 1e-4)


@pytest.mark.parametrize("method", ["plm", "annotation", "drw", "role"])
def test_killed_and_resumed(method: str, tmp_path: Path) -> None:
    whole = on_gpu(method, tmp_path / "whole", "auto", ema=0.9)
    with pytest.raises(runs.Killed):
        on_gpu(method, tmp_path / "cut", "auto", ema=0.9, checkpoint_seconds=0, watch=runs.KillAt(2, 5))
    runs.assert_same(on_gpu(method, tmp_path / "cut", "auto", ema=0.9), whole, 1e-3, 1e-5)


def test_divergence_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFinite, match="not finite at epoch"):
        on_gpu("bce", tmp_path, "auto", lr=1e30, epochs=20)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 3e38])
def test_weights_are_looked_through(value: float) -> None:
    model = nn.Linear(3000, 3000).cuda()
    model.weight.data[17, 5] = value
    if value == 3e38:
        model.bias.data.fill_(value)
        check_weights(model, 1, 2, 0.1)
    else:
        with pytest.raises(NotFinite, match="weight are not finite after epoch 1, step 2"):
            check_weights(model, 1, 2, 0.1)


class _Hungry(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + torch.empty(1 << 42, dtype=torch.uint8, device=x.device)[0]


def test_want_of_memory_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"ran out of memory with train\.batch_size = 32"):
        on_gpu("bce", tmp_path, "auto", model=_Hungry(runs.F, runs.L))


class _Asking(BCE):
    """A loss that waits for the device, which a graph cannot record."""

    def evaluate(self, *given: Any) -> Tensor:
        value = super().evaluate(*given)
        return value if value.item() > 0 else value * 0


def test_what_cannot_be_captured_runs_eagerly(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "objective_of", lambda *given: Objective(_Asking()))
    with caplog.at_level(logging.WARNING):
        both = [on_gpu("bce", tmp_path / way, way) for way in ("off", "auto")]
    runs.assert_same(*both, 1e-3, 1e-5)
    assert [record.message[:30] for record in caplog.records] == ["Steps run without CUDA graphs:"]


@pytest.mark.parametrize("kind", [ResNet12, ResNet32])
def test_images_are_compiled_and_captured_in_bfloat16(kind: type[ResNet12] | type[ResNet32], tmp_path: Path) -> None:
    """The recipe in small: the loss falls as it does eagerly, with images varied on the device."""
    rng = np.random.default_rng(0)
    values = (rng.random((300, 4)) < 0.4).astype(np.int8)
    images = rng.integers(0, 60, (300, 1, 32, 32)).astype(np.uint8)
    for item, label in zip(*values.nonzero(), strict=True):
        images[item, 0, 8 * label : 8 * label + 6, 4:28] += 150
    data = ArrayDataset(images, Labels(values))
    losses = []
    for way in ("off", "on"):
        torch.manual_seed(0)
        network = kind(1)
        model = nn.Sequential(_Scaled(), network, nn.Linear(kind.n_features, 4))
        outcome, _ = runs.run(
            "bce",
            tmp_path / way,
            model,
            data,
            device="cuda",
            compile=way,
            precision="bfloat16",
            epochs=6,
            augment=AugmentSettings(flip=0.5, pad_crop=1),
        )
        losses.append([record["loss"] for record in outcome.history])
    assert losses[1][-1] < 0.5 * losses[1][0]
    np.testing.assert_allclose(losses[1][0], losses[0][0], rtol=0.1)


def test_statistics_that_are_to_be_kept_are(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    data = ArrayDataset(rng.integers(0, 256, (96, 3, 32, 32), np.uint8), Labels(rng.integers(0, 2, (96, 4))))
    settings = ModelSettings("resnet32", keep_statistics=True, weights=str(tmp_path / "w.safetensors"))
    torch.manual_seed(0)
    network, x = ResNet32(3), torch.from_numpy(data.inputs) / 255
    for _ in range(50):
        network.train()(x)
    save_file(network.state_dict(), tmp_path / "w.safetensors")
    kept = {f"backbone.{name}": t for name, t in network.state_dict().items() if "running" in name}
    found = []
    for way in ("off", "auto"):
        torch.manual_seed(0)
        model = build_model(settings, input_of(data), data.labels)
        outcome, _ = runs.run(
            "bce", tmp_path / way, model, data, device="cuda", compile=way, precision="bfloat16", epochs=3
        )
        assert all(torch.equal(outcome.weights[name].cpu(), t) for name, t in kept.items())
        found.append([record["loss"] for record in outcome.history])
    np.testing.assert_allclose(found[1], found[0], rtol=0.1)


class _Scaled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.float() / 255


def test_it_is_chosen_where_it_can_be(tmp_path: Path) -> None:
    assert captured.fits_on(torch.device("cuda"), 1e6)
    assert not captured.fits_on(torch.device("cuda"), 1e13)


@pytest.mark.parametrize("recipe", ["auto", "asl", "bce"])
def test_small_models_learn_on_the_gpu_what_they_learn_on_the_cpu(recipe: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 8)).astype(np.float32)
    y = (x[:, :3] + 0.5 * rng.normal(size=(200, 3)) > 0).astype(np.int8)
    runs_by_device = [
        sy.fit((x, y), recipe, settings={"train": {"device": device, "budget": 1e9}}, verbose=False)
        for device in ("cpu", "cuda")
    ]
    scores = [run.metrics["validation"]["mAP"]["label"] for run in runs_by_device]
    assert scores[1] == pytest.approx(scores[0], abs=0.01)
