"""Weights of Keras' ResNet-50 (v1) as a file for `model.backbone=resnet50 model.weights=FILE`.

    python -m steelyard_papers.resnet50_weights WEIGHTS.npz OUT.safetensors [--half]

WEIGHTS.npz holds the arrays of Keras applications' ResNet50 without its last layer, under Keras' names with "." for "/"
(conv1_conv.kernel, conv2_block1_0_bn.gamma, …), for pictures of blue, green, red in 0 … 255 less the means of ImageNet.
The result takes red, green, blue, as pictures are here, and its convolutions have no bias: subtracting a bias from the
running mean of the batch normalisation that follows gives the same outputs. --half stores kernels as float16, which
halves the file.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

_BLOCKS = (3, 4, 6, 3)


def converted(arrays: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    """Return the tensors of `steelyard.models.resnet50.ResNet50` from Keras' arrays."""
    tensors: dict[str, Tensor] = {}
    for keras, convolution, normalisation in _layers():
        kernel = arrays[f"{keras}_conv.kernel"]
        if keras == "conv1":
            kernel = kernel[:, :, ::-1]
        mean = arrays[f"{keras}_bn.moving_mean"] - arrays[f"{keras}_conv.bias"]
        tensors[f"{convolution}.weight"] = _tensor(kernel.transpose(3, 2, 0, 1))
        tensors[f"{normalisation}.weight"] = _tensor(arrays[f"{keras}_bn.gamma"])
        tensors[f"{normalisation}.bias"] = _tensor(arrays[f"{keras}_bn.beta"])
        tensors[f"{normalisation}.running_mean"] = _tensor(mean)
        tensors[f"{normalisation}.running_var"] = _tensor(arrays[f"{keras}_bn.moving_variance"])
        tensors[f"{normalisation}.num_batches_tracked"] = torch.tensor(0)
    return tensors


def _layers() -> Iterator[tuple[str, str, str]]:
    """Yield Keras' name of each layer, and those of its convolution and its batch normalisation here."""
    yield "conv1", "conv1", "bn1"
    for stage, n in enumerate(_BLOCKS):
        for block in range(n):
            keras, here = f"conv{stage + 2}_block{block + 1}", f"stages.{stage}.{block}"
            for i in (1, 2, 3):
                yield f"{keras}_{i}", f"{here}.conv{i}", f"{here}.bn{i}"
            if block == 0:
                yield f"{keras}_0", f"{here}.shortcut.0", f"{here}.shortcut.1"


def halved(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return kernels as float16; batch normalisations keep float32, for a variance may be above float16's 65,504."""
    return {name: tensor.half() if tensor.ndim == 4 else tensor for name, tensor in tensors.items()}


def _tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, np.float32))


def main() -> None:
    """Convert a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--half", action="store_true", help="store kernels as float16")
    given = parser.parse_args()
    with np.load(given.weights, allow_pickle=False) as arrays:
        tensors = converted(arrays)
    if given.half:
        tensors = halved(tensors)
    save_file(tensors, given.out)
    print(f"{given.out}: {len(tensors)} tensors, {sum(t.numel() for t in tensors.values()):,} numbers")


if __name__ == "__main__":
    main()
