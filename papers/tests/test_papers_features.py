"""Features of a frozen network: its converted weights, parts that are resumed, and labels that are published."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from steelyard.data.files import DataError
from steelyard.models.resnet50 import ResNet50
from steelyard_papers import features, pal
from steelyard_papers.datasets import COCO_FEATURES, CUB_FEATURES, present, read_features
from steelyard_papers.features import drawn_order


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Seven images of COCO's names, the list of eight, of which one is missing."""
    rng = np.random.default_rng(0)
    (tmp_path / "images").mkdir()
    for i in range(7):
        Image.fromarray(rng.integers(0, 256, (20, 30, 3), np.uint8)).save(tmp_path / "images" / f"{i:04d}.png")
    np.savez(tmp_path / "list.npz", ids=np.arange(8))
    return tmp_path


class Mean:
    """A network whose features are the mean and the first pixel of an image."""

    def __init__(self) -> None:
        self.calls = 0

    def parameters(self):  # type: ignore[no-untyped-def]
        import torch

        return iter([torch.zeros(1)])

    def features(self, x):  # type: ignore[no-untyped-def]
        import torch

        self.calls += len(x)
        return torch.stack([x.float().mean((1, 2, 3)), x[:, 0, 0, 0].float()], 1)


def typed(home: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> None:
    words = [str(home / "out"), "--weights", "w", "--images", str(home / "images"), "--ids", str(home / "list.npz")]
    monkeypatch.setattr(
        "sys.argv", ["", "compute", *words, "--file", "{:04d}.png", "--part", "3", "--batch", "2", *more]
    )
    features.main()


def test_parts_are_resumed_and_cover_every_image_once(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Mean()
    monkeypatch.setattr(features, "backbone", lambda *_: model)
    typed(pictures, monkeypatch, "--parts", "0:1")
    assert len(list((pictures / "out").iterdir())) == 1
    typed(pictures, monkeypatch)
    assert model.calls == 7, "no image twice, and the part that was there is not computed again"
    ids, x = read_features(pictures / "out")
    assert sorted(ids.tolist()) == list(range(7))
    assert ids.tolist() == [i for i in drawn_order(8).tolist() if i < 7], "in the drawn order"
    assert x.dtype == np.float16
    typed(pictures, monkeypatch)
    assert model.calls == 7


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda home: (home / "a").mkdir(), "holds no .npz file: run python -m steelyard_papers.features"),
        (lambda home: _parts(home, X=np.zeros((2, 3))), "no arrays ids and X"),
        (lambda home: _parts(home, ids=np.arange(3), X=np.zeros((2, 3))), "of one length"),
        (lambda home: _parts(home, 2, ids=np.arange(2), X=np.zeros((2, 3))), "holds some items twice"),
    ],
)
def test_a_folder_that_is_not_whole_is_refused(tmp_path: Path, change, message: str) -> None:  # type: ignore[no-untyped-def]
    change(tmp_path)
    with pytest.raises(DataError, match=message):
        read_features(tmp_path / "a")


def _parts(home: Path, n: int = 1, **arrays: np.ndarray) -> None:
    (home / "a").mkdir()
    for i in range(n):
        np.savez(home / "a" / f"{i}.npz", **arrays)


def test_features_are_joined_with_labels_by_id(tmp_path: Path) -> None:
    COCO_FEATURES.generate(tmp_path)
    part = tmp_path / "features" / "coco2014" / "0.npz"
    with np.load(part) as arrays:
        ids, x = arrays["ids"], arrays["X"]
    kept = np.random.default_rng(1).permutation(len(ids))[:100]  # in another order, and not all of them
    np.savez(part, ids=ids[kept], X=x[kept])
    found = COCO_FEATURES.open(tmp_path)
    with np.load(tmp_path / "labels" / "coco2014_train.npz") as arrays:
        values = arrays["Y"]
    assert len(found.train) == 100
    assert "100 of 160 (drawn by a seed)" in found.notes[0]
    for i in (0, 7, 99):
        key = int(found.train.labels.ids[i])
        np.testing.assert_array_equal(found.train.inputs[i], x[key].astype(np.float32))
        np.testing.assert_array_equal(found.train.labels.values[i], values[key])


def test_published_lists_say_which_positives_are_known(tmp_path: Path) -> None:
    for source in (COCO_FEATURES, CUB_FEATURES):
        source.generate(tmp_path)
        whole = source.open(tmp_path)
        single = pal.thinned(whole, "SPL", 5, source, tmp_path).train.labels.values
        assert set(np.unique(single)) == {-1, 1}
        np.testing.assert_array_equal((single == 1).sum(1), 1)
        assert (whole.test.labels.values != -1).all()
    assert pal.settings_on(COCO_FEATURES, ["PPL 0.3"]) == ["PPL 0.3", "PPL 0.75", "PPL 0.4"]
    assert pal.settings_on(COCO_FEATURES, ["FAL"]) == ["FAL"]
    assert pal.settings_on(CUB_FEATURES, ["FAL", "SPL"]) == ["SPL"]
    assert [source.name for source in present(tmp_path, pal.SETS)] == ["COCO 2014", "CUB"]


def test_the_real_lists_keep_what_their_names_say(shared_data: Path) -> None:
    with np.load(shared_data / "labels" / "coco2014_train.npz") as arrays:
        whole = arrays["Y"].sum()
        shares = [arrays[name].sum() / whole for name in ("Y_075left", "Y_04left")]
        assert shares == pytest.approx([0.75, 0.4], abs=0.005)
        assert (arrays["Y_singlelabel"].sum(1) == 1).all()


BLOCKS = (3, 4, 6, 3)


def arrays() -> dict[str, np.ndarray]:
    """Return random weights under Keras' names."""
    rng = np.random.default_rng(0)
    made: dict[str, np.ndarray] = {}

    def layer(name: str, before: int, after: int, side: int) -> None:
        kernel = rng.normal(size=(side, side, before, after)) * (2 / (side * side * before)) ** 0.5
        made[f"{name}_conv.kernel"] = kernel.astype(np.float32)
        for key, low, high in (("conv.bias", -1, 1), ("bn.gamma", 0.2, 0.6), ("bn.beta", -0.2, 0.2)):
            made[f"{name}_{key}"] = rng.uniform(low, high, after).astype(np.float32)
        for key, low, high in (("bn.moving_mean", -1, 1), ("bn.moving_variance", 0.5, 2)):
            made[f"{name}_{key}"] = rng.uniform(low, high, after).astype(np.float32)

    layer("conv1", 3, 64, 7)
    before = 64
    for stage, n in enumerate(BLOCKS):
        width = 64 * 2**stage
        for block in range(n):
            name = f"conv{stage + 2}_block{block + 1}"
            layer(f"{name}_1", before, width, 1)
            layer(f"{name}_2", width, width, 3)
            layer(f"{name}_3", width, 4 * width, 1)
            if block == 0:
                layer(f"{name}_0", before, 4 * width, 1)
            before = 4 * width
    return made


def keras_features(weights: dict[str, np.ndarray], pixels: Tensor) -> Tensor:
    """Return the features of red, green, blue pixels in 0 … 255, in float64, layer by layer as Keras has them."""
    tensors = {name: torch.from_numpy(array.astype(np.float64)) for name, array in weights.items()}

    def layer(name: str, x: Tensor, stride: int) -> Tensor:
        kernel = tensors[f"{name}_conv.kernel"].permute(3, 2, 0, 1)
        x = F.conv2d(x, kernel, tensors[f"{name}_conv.bias"], stride, kernel.shape[-1] // 2)
        mean, variance, gamma, beta = (
            tensors[f"{name}_bn.{key}"][:, None, None] for key in ("moving_mean", "moving_variance", "gamma", "beta")
        )
        return (x - mean) / (variance + 1.001e-5).sqrt() * gamma + beta

    blue_green_red = pixels.double().flip(1) - torch.tensor([103.939, 116.779, 123.68]).double()[:, None, None]
    x = F.max_pool2d(layer("conv1", blue_green_red, 2).relu(), 3, 2, 1)
    for stage, n in enumerate(BLOCKS):
        for block in range(n):
            name, stride = f"conv{stage + 2}_block{block + 1}", 2 if stage and not block else 1
            y = layer(f"{name}_1", x, stride).relu()
            y = layer(f"{name}_3", layer(f"{name}_2", y, 1).relu(), 1)
            x = (y + (layer(f"{name}_0", x, stride) if block == 0 else x)).relu()
    return x.mean((2, 3))


def test_converted_weights_give_keras_features(tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    weights = arrays()
    np.savez(tmp_path / "keras.npz", **weights)
    monkeypatch.setattr("sys.argv", ["", "weights", str(tmp_path / "keras.npz"), str(tmp_path / "out.safetensors")])
    features.main()
    net = ResNet50()
    net.load_state_dict(load_file(tmp_path / "out.safetensors"))
    assert sum(p.numel() for p in net.parameters()) == 23_508_032
    pixels = torch.randint(0, 256, (1, 3, 33, 46), generator=torch.manual_seed(0)).float()
    mean, std = (torch.tensor(values)[:, None, None] for values in ResNet50.statistics)
    expected = keras_features(weights, pixels)
    here = net.eval()((pixels / 255 - mean) / std)
    assert (here - expected).norm() < 1e-5 * expected.norm()


def test_half_precision_keeps_normalisations_whole() -> None:
    weights = arrays()
    weights["conv1_bn.moving_variance"][:2] = 1e5, 1e-9  # beyond float16 either way
    half = features.converted(weights, half=True)
    assert half["bn1.running_var"][:2].tolist() == pytest.approx([1e5, 1e-9])
    assert half["conv1.weight"].dtype == torch.float16
