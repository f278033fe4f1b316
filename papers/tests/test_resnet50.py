"""ResNet-50 from red, green, blue gives the features of Keras' network, which takes blue, green, red."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from steelyard.models.resnet50 import ResNet50
from steelyard_papers import resnet50_weights

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
    monkeypatch.setattr("sys.argv", ["", str(tmp_path / "keras.npz"), str(tmp_path / "out.safetensors")])
    resnet50_weights.main()
    net = ResNet50()
    net.load_state_dict(load_file(tmp_path / "out.safetensors"))
    assert sum(p.numel() for p in net.parameters()) == 23_508_032
    pixels = torch.randint(0, 256, (2, 3, 45, 70), generator=torch.manual_seed(0)).float()
    mean, std = (torch.tensor(values)[:, None, None] for values in ResNet50.statistics)
    expected = keras_features(weights, pixels)
    features = net.eval()((pixels / 255 - mean) / std)
    assert (features - expected).norm() < 1e-5 * expected.norm()


def test_half_precision_keeps_normalisations_whole() -> None:
    large = torch.tensor([1e5, 1e-9])  # beyond float16 either way
    half = resnet50_weights.halved({"bn1.running_var": large, "conv1.weight": torch.full((2, 3, 7, 7), 0.1)})
    assert torch.equal(half["bn1.running_var"], large)
    assert half["conv1.weight"].dtype == torch.float16
