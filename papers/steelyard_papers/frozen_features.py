r"""Features of photographs by a frozen ResNet-50, computed once, in parts, and kept beneath the data folder.

    python -m steelyard_papers.frozen_features DATA/features/coco2014 --weights resnet50.safetensors \
        --images DATA/coco256 --ids DATA/labels/coco2014_train.npz --file '{:012d}.jpg' --most 20000

writes DATA/features/coco2014/ID.npz, parts of up to --part items each with `ids` and `X`, float16 (n, 2048). Items are
taken in an order drawn by seed 0, so that whatever has been computed is a fair sample. Typed again, the command
computes the parts that are missing; parts made elsewhere, with --parts FROM:TO, may be copied into the folder.
--weights is what `python -m steelyard_papers.resnet50_weights` writes. A GPU is used where there is one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

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


class Features(NamedTuple):
    """Features of some items."""

    ids: NDArray[Any]
    x: NDArray[np.float16]
    """(n, F)."""


def drawn_order(n: int, most: int = 0) -> NDArray[np.int64]:
    """Return the places of the items in the order in which features are computed, the first `most` of them (0: all)."""
    return np.random.default_rng(ORDER).permutation(n)[: most or None]


def read_features(folder: Path) -> Features:
    """Return the features of all parts in a folder, in the order of the parts' names."""
    parts = sorted(folder.glob("*.npz"))
    if not parts:
        raise DataError(f"{folder} holds no .npz file: run python -m steelyard_papers.frozen_features to make some")
    arrays = [read_arrays(part) for part in parts]
    for part, content in zip(parts, arrays, strict=True):
        if not {"ids", "X"} <= content.keys() or content["X"].ndim != 2 or len(content["X"]) != len(content["ids"]):
            raise DataError(f"{part} has no arrays ids and X, (n, F), of one length: compute it again")
        if content["X"].shape[1] != arrays[0]["X"].shape[1]:
            raise DataError(f"{part} has {content['X'].shape[1]} features per item, {parts[0]} another number")
    ids = np.concatenate([content["ids"] for content in arrays])
    if len(np.unique(ids)) < len(ids):
        raise DataError(f"{folder} holds some items twice: keep the parts of one run of frozen_features only")
    return Features(ids, np.concatenate([content["X"] for content in arrays]))


def compute(model: Model, paths: Sequence[Path], size: int, batch: int, workers: int) -> NDArray[np.float16]:
    """Return the features (n, F) of image files, each squeezed to a square."""
    data = ImageDataset(paths, Labels(np.zeros((len(paths), 1), np.int8)), size)
    device = next(model.parameters()).device
    slices = [list(range(i, min(i + batch, len(paths)))) for i in range(0, len(paths), batch)]
    found = []
    with torch.no_grad():
        for x, *_ in fetched(loader(data, slices, workers, pin=device.type == "cuda")):
            x = x.to(device).contiguous(memory_format=torch.channels_last)
            found.append(model.features(x).float().cpu().numpy().astype(np.float16))
    whole = np.concatenate(found)
    if not np.isfinite(whole).all():
        raise ValueError(f"{paths[int(np.argmin(np.isfinite(whole).all(1)))]} has features beyond float16: check it")
    return whole


def backbone(weights: Path, size: int, device: torch.device) -> Model:
    """Return ResNet-50 with these weights, in evaluation mode."""
    one = ImageDataset(["none.jpg"], Labels(np.zeros((1, 1), np.int8)), size)
    settings = ModelSettings(backbone="resnet50", weights=str(weights), frozen=True)
    return build_model(settings, input_of(one), one.labels).to(device).eval()


def write_parts(given: argparse.Namespace) -> None:
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
        x = compute(model, paths, given.size, given.batch, given.workers)
        with replacing(part) as partial, partial.open("wb") as stream:
            np.savez(stream, ids=ids[at], X=x)
        print(f"{part}: {len(at):,} items, {len(spans[number]) - len(at)} without an image", flush=True)


def main() -> None:
    """Compute features as the command line asks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    for name, what in (("weights", "safetensors file"), ("images", "folder of images"), ("ids", ".npz: ids or names")):
        parser.add_argument(f"--{name}", type=Path, required=True, help=what)
    parser.add_argument("--file", default="{}.jpg", help="an item's file beneath --images, such as '{:012d}.jpg'")
    parser.add_argument("--most", type=int, default=0, help="how many items, 0 for all")
    parser.add_argument("--part", type=int, default=2000, help="items per part")
    parser.add_argument("--parts", help="FROM:TO, the numbers of the parts to compute; by default all")
    parser.add_argument("--size", type=int, default=224, help="side of the square that images are squeezed to")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--workers", type=int, default=0, help="processes that decode images")
    parser.add_argument("--device", default="auto")
    try:
        write_parts(parser.parse_args())
    except (DataError, ValueError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
