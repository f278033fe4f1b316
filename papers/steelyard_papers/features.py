r"""Features of photographs by a frozen ResNet-50, computed once, in parts, and kept beneath the data folder.

    python -m steelyard_papers.features weights WEIGHTS.npz DATA/weights/resnet50.safetensors [--half]
    python -m steelyard_papers.features compute DATA/features/coco2014 --weights DATA/weights/resnet50.safetensors \
        --images DATA/coco256 --ids DATA/labels/coco2014_train.npz --file '{:012d}.jpg' --most 20000

The first makes weights of Keras' ResNet-50 (v1) fit `model.backbone=resnet50 model.weights=FILE`. WEIGHTS.npz holds the
arrays of Keras applications' ResNet50 without its last layer, under Keras' names with "." for "/" (conv1_conv.kernel,
conv2_block1_0_bn.gamma, …), for pictures of blue, green, red in 0 … 255 less the means of ImageNet. The result takes
red, green, blue, and its convolutions have no bias: subtracting a bias from the running mean of the batch normalisation
that follows gives the same outputs. --half stores kernels as float16, which halves the file.

The second writes DATA/features/coco2014/ID.npz, parts of up to --part items each with `ids` and `X`, float16 (n, 2048).
Items are taken in an order drawn by seed 0, so that whatever has been computed is a fair sample. Typed again, it
computes the parts that are missing; parts made elsewhere, with --parts FROM:TO, may be copied into the folder. A GPU is
used where there is one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor

from steelyard._files import replacing
from steelyard.data.dataset import ImageDataset
from steelyard.data.files import DataError
from steelyard.data.loading import fetched, loader
from steelyard.data.readers.npz import read_arrays
from steelyard.labels import Labels
from steelyard.models import build_model, input_of
from steelyard.models.model import Model
from steelyard.models.settings import ModelSettings
from steelyard.training.step import pick_device

ORDER = 0
"""The seed of the order in which items are taken."""
_BLOCKS = (3, 4, 6, 3)


def drawn_order(n: int, most: int = 0) -> NDArray[np.int64]:
    """Return the places of the items in the order in which features are computed, the first `most` of them (0: all)."""
    return np.random.default_rng(ORDER).permutation(n)[: most or None]


def computed(model: Model, paths: Sequence[Path], size: int, batch: int, workers: int) -> NDArray[np.float16]:
    """Return the features (n, F) of image files, each squeezed to a square."""
    data = ImageDataset(paths, Labels(np.zeros((len(paths), 1), np.int8)), size)
    device = next(model.parameters()).device
    slices = [list(range(i, min(i + batch, len(paths)))) for i in range(0, len(paths), batch)]
    parts = []
    with torch.no_grad():
        for x, *_ in fetched(loader(data, slices, workers, pin=device.type == "cuda")):
            x = x.to(device).contiguous(memory_format=torch.channels_last)
            parts.append(model.features(x).float().cpu().numpy().astype(np.float16))
    whole = np.concatenate(parts)
    if not np.isfinite(whole).all():
        raise ValueError(f"{paths[int(np.argmin(np.isfinite(whole).all(1)))]} has features beyond float16: check it")
    return whole


def backbone(weights: Path, size: int, device: torch.device) -> Model:
    """Return ResNet-50 with these weights, in evaluation mode."""
    one = ImageDataset(["none.jpg"], Labels(np.zeros((1, 1), np.int8)), size)
    settings = ModelSettings(backbone="resnet50", weights=str(weights), frozen=True)
    return build_model(settings, input_of(one), one.labels).to(device).eval()


def compute(given: argparse.Namespace) -> None:
    """Compute the parts that are asked for and not there yet."""
    arrays = read_arrays(given.ids)
    key = next((name for name in ("ids", "names") if name in arrays), None)
    if key is None:
        raise DataError(f"{given.ids} has no array ids or names: name the file that lists the items")
    ids = arrays[key]
    keep = np.array([(given.images / given.file.format(i)).is_file() for i in ids.tolist()])
    if not keep.any():
        raise DataError(f"{given.images / given.file.format(ids[0].item())} is no file: see --images and --file")
    order = drawn_order(len(ids), given.most)
    spans = [order[i : i + given.part] for i in range(0, len(order), given.part)]
    first, last = (int(text) if text else None for text in (given.parts or ":").split(":"))
    device = pick_device(given.device, "--device")
    model = backbone(given.weights, given.size, device)
    given.folder.mkdir(parents=True, exist_ok=True)
    for number in range(len(spans))[first:last]:
        part = given.folder / f"{given.ids.stem}-{number:04d}.npz"
        at = spans[number][keep[spans[number]]]
        if part.exists() or not len(at):
            continue
        paths = [given.images / given.file.format(i) for i in ids[at].tolist()]
        x = computed(model, paths, given.size, given.batch, given.workers)
        with replacing(part) as partial, partial.open("wb") as stream:
            np.savez(stream, ids=ids[at], X=x)
        print(f"{part}: {len(at):,} items, {len(spans[number]) - len(at)} without an image", flush=True)


def converted(arrays: Mapping[str, NDArray[Any]], half: bool = False) -> dict[str, Tensor]:
    """Return the tensors of `steelyard.models.resnet50.ResNet50` from Keras' arrays.

    half: kernels as float16; batch normalisations keep float32, for a variance may be above float16's 65,504.
    """
    tensors: dict[str, Tensor] = {}
    for keras, convolution, normalisation in _layers():
        kernel = arrays[f"{keras}_conv.kernel"]
        if keras == "conv1":
            kernel = kernel[:, :, ::-1]
        of_convolution = _tensor(kernel.transpose(3, 2, 0, 1))
        tensors[f"{convolution}.weight"] = of_convolution.half() if half else of_convolution
        tensors[f"{normalisation}.weight"] = _tensor(arrays[f"{keras}_bn.gamma"])
        tensors[f"{normalisation}.bias"] = _tensor(arrays[f"{keras}_bn.beta"])
        tensors[f"{normalisation}.running_mean"] = _tensor(
            arrays[f"{keras}_bn.moving_mean"] - arrays[f"{keras}_conv.bias"]
        )
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


def _tensor(array: NDArray[Any]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, np.float32))


def convert(given: argparse.Namespace) -> None:
    """Convert a file of weights."""
    with np.load(given.weights, allow_pickle=False) as arrays:
        tensors = converted(arrays, given.half)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, given.out)
    print(f"{given.out}: {len(tensors)} tensors, {sum(t.numel() for t in tensors.values()):,} numbers")


def main() -> None:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    weights = commands.add_parser("weights", help="convert Keras' weights")
    weights.set_defaults(do=convert)
    weights.add_argument("weights", type=Path)
    weights.add_argument("out", type=Path)
    weights.add_argument("--half", action="store_true", help="store kernels as float16")
    parts = commands.add_parser("compute", help="compute features")
    parts.set_defaults(do=compute)
    parts.add_argument("folder", type=Path)
    for name, what in (("weights", "safetensors file"), ("images", "folder of images"), ("ids", ".npz: ids or names")):
        parts.add_argument(f"--{name}", type=Path, required=True, help=what)
    parts.add_argument("--file", default="{}.jpg", help="an item's file beneath --images, such as '{:012d}.jpg'")
    parts.add_argument("--most", type=int, default=0, help="how many items, 0 for all")
    parts.add_argument("--part", type=int, default=2000, help="items per part")
    parts.add_argument("--parts", help="FROM:TO, the numbers of the parts to compute; by default all")
    parts.add_argument("--size", type=int, default=224, help="side of the square that images are squeezed to")
    parts.add_argument("--batch", type=int, default=64)
    parts.add_argument("--workers", type=int, default=0, help="processes that decode images")
    parts.add_argument("--device", default="auto")
    given = parser.parse_args()
    try:
        given.do(given)
    except (DataError, ValueError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
