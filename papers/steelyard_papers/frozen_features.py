r"""Features of photographs by a frozen ResNet-50, computed once, in parts, and kept beneath the data folder.

    python -m steelyard_papers.frozen_features DATA/features/coco2014 --weights resnet50.safetensors \
        --images DATA/coco256 --ids DATA/labels/coco2014_train.npz --file '{:012d}.jpg' --most 20000

writes DATA/features/coco2014/ID.npz, parts of up to --part items each with `ids` and `X`, float16 (n, 2048). Items are
taken in an order drawn by seed 0, so that whatever has been computed is a fair sample. Typed again, the command
computes the parts that are missing; parts made elsewhere, with --parts FROM:TO, may be copied into the folder.
--weights is what `python -m steelyard_papers.resnet50_weights` writes. A GPU is used where there is one.

`COCO_FEATURES` and `CUB_FEATURES` are the data sets that are read from them, `VOC_FEATURES` one of a smaller network.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from steelyard._files import replacing
from steelyard.data import ArrayDataset
from steelyard.data.dataset import ImageDataset
from steelyard.data.files import DataError
from steelyard.data.loading import fetched, loader
from steelyard.data.readers.coco import COCO_LABELS
from steelyard.data.readers.npz import npz, read_arrays
from steelyard.data.readers.voc import VOC_LABELS
from steelyard.labels import UNKNOWN, Labels
from steelyard.models import build_model, input_of
from steelyard.models.model import Model
from steelyard.models.settings import ModelSettings
from steelyard.run.datasets import Datasets
from steelyard.training.step import pick_device
from steelyard_papers.fixtures import many_labels
from steelyard_papers.sources import Source

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


OVER_FEATURES: dict[str, Any] = {
    "data": {"size": 0},
    "model": {"backbone": "linear", "bias": "prior"},
    "optimizer": {"kind": "adamw", "lr": 1e-4, "weight_decay": 0.01},
    "schedule": {"kind": "cosine", "warmup_epochs": 1},
    "train": {"epochs": 20, "batch_size": 128, "augment": {"flip": 0.0}},
}
"""Training of a linear layer over standardised features, whatever the loss, from weights of 0. The rate was chosen
by hand among four on a quarter of VOC 2012's training items; no test item was seen."""
_MADE = "computed by python -m steelyard_papers.frozen_features"


@dataclass(frozen=True)
class FeatureSource(Source):
    """Features in `features/` and label matrices in `labels/` of the data folder.

    Args:
        lists: by the name of a setting, (folder, training labels) → the training labels that a published list leaves.
        fully_labelled: whether all training labels are known; where not, `lists` are the only settings.
    """

    lists: Mapping[str, Callable[[Path, Labels], Labels]] = field(default_factory=dict)
    fully_labelled: bool = True


def _joined(features: Features, ids: NDArray[Any], values: NDArray[Any], names: Any) -> tuple[ArrayDataset, int]:
    """Return the items that have features, in the order of `ids`, and how many of `ids` have none."""
    place = {key: i for i, key in enumerate(features.ids.tolist())}
    there = np.array([i for i, key in enumerate(ids.tolist()) if key in place], np.int64)
    rows = [place[key] for key in ids[there].tolist()]
    labels = Labels(values[there].astype(np.int8), names=names, ids=[str(key) for key in ids[there].tolist()])
    return ArrayDataset(features.x[rows].astype(np.float32), labels), len(ids) - len(there)


def _open(name: str, files: tuple[str, str], names: Any, root: Path) -> Datasets:
    """Return the training and the test items of which there are features."""
    features = read_features(root / "features" / name)
    parts, notes = [], []
    for file in files:
        arrays = read_arrays(root / "labels" / file)
        ids = arrays["ids"] if "ids" in arrays else arrays["names"]
        part, missing = _joined(features, ids, arrays["Y"], names)
        if not len(part):
            raise DataError(f"{root / 'features' / name} has features of no item of labels/{file}: compute them")
        parts.append(part)
        notes.append(f"{len(part):,}" + (f" of {len(ids):,} (drawn by a seed)" if missing else ""))
    return Datasets(parts[0], None, parts[1], notes=(f"{notes[0]} training and {notes[1]} test items",))


def _coco(root: Path) -> Datasets:
    found = _open("coco2014", ("coco2014_train.npz", "coco2014_val_part.npz"), COCO_LABELS, root)
    said = (
        f"COCO 2014 over features of a frozen ResNet-50, {found.notes[0]}, those val images whose pixels were at hand"
    )
    return found._replace(notes=(said,))


def _voc(root: Path) -> Datasets:
    train, test = (npz(root / _VOC_FILE, split, -1) for split in ("train", "val"))
    absent = [Labels((part.labels.values == 1).astype(np.int8), names=part.labels.names) for part in (train, test)]
    parts = [ArrayDataset(part.inputs, labels) for part, labels in zip((train, test), absent, strict=True)]
    note = "VOC 2012 over features of a frozen EfficientNet-Lite0 at 160 pixels; what is only difficult is absent"
    return Datasets(parts[0], None, parts[1], (note,))


def _voc_fixture(root: Path) -> None:
    """Write a few generated features and labels: 1 present, 0 difficult, −1 absent."""
    (root / "features").mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = {"classes": np.array(VOC_LABELS)}
    for k, (split, n) in enumerate((("train", 96), ("val", 40))):
        values = many_labels(n, len(VOC_LABELS), k)
        x = values @ np.random.default_rng(0).normal(size=(len(VOC_LABELS), 24))
        arrays |= {f"X_{split}": x.astype(np.float16), f"Y_{split}": 2 * values - 1}
    np.savez(root / _VOC_FILE, **arrays)


def _cub(root: Path) -> Datasets:
    found = _open("cub", ("cub_attributes_train_single.npz", "cub_attributes_val.npz"), None, root)
    said = f"CUB over features of a frozen ResNet-50, {found.notes[0]}, one published positive per training item"
    labels = found.train.labels
    single = Labels(np.where(labels.values == 1, 1, UNKNOWN).astype(np.int8), names=labels.names, ids=labels.ids)
    return found._replace(train=ArrayDataset(found.train.inputs, single), notes=(said,))


def _left(array: str, root: Path, labels: Labels) -> Labels:
    """Return the labels of a published list: the positives it keeps, all others unknown."""
    arrays = read_arrays(root / "labels" / "coco2014_train.npz")
    place = {str(key): i for i, key in enumerate(arrays["ids"].tolist())}
    kept = arrays[array][[place[key] for key in labels.ids]]
    return Labels(np.where(kept == 1, 1, UNKNOWN).astype(np.int8), names=labels.names, ids=labels.ids)


def _fixture(name: str, files: tuple[str, str], n_labels: int, lists: bool, root: Path) -> None:
    """Write a few generated features and labels in the layout of the real ones."""
    key = "ids" if lists else "names"
    rng = np.random.default_rng(0)
    (root / "labels").mkdir(parents=True, exist_ok=True)
    (root / "features" / name).mkdir(parents=True, exist_ok=True)
    for k, (file, n) in enumerate(zip(files, (160, 40), strict=True)):
        values = many_labels(n, n_labels, k).astype(np.uint8)
        values[values.sum(1) == 0, 0] = 1
        ids: NDArray[Any] = 1000 * k + np.arange(n) if lists else np.array([f"{k}/{i}.jpg" for i in range(n)])
        x = values @ rng.normal(size=(n_labels, 24)) + rng.normal(size=(n, 24))
        np.savez(root / "features" / name / f"{k}.npz", ids=ids, X=np.maximum(x, 0).astype(np.float16))
        first = np.eye(n_labels, dtype=np.uint8)[values.argmax(1)]
        arrays: dict[str, Any] = {key: ids, "Y": values if lists or k else first}
        if lists and not k:
            arrays |= dict.fromkeys(("Y_075left", "Y_04left", "Y_singlelabel"), first)
        np.savez(root / "labels" / file, **arrays)


_VOC_FILE = "features/voc2012-lite0-160.npz"
_COCO_FILES = ("coco2014_train.npz", "coco2014_val_part.npz")
_CUB_FILES = ("cub_attributes_train_single.npz", "cub_attributes_val.npz")

COCO_FEATURES = FeatureSource(
    "COCO 2014",
    f"features/coco2014/, {_MADE}, and labels/{_COCO_FILES[0]}, labels/{_COCO_FILES[1]}",
    ("features/coco2014", *(f"labels/{file}" for file in _COCO_FILES)),
    _coco,
    partial(_fixture, "coco2014", _COCO_FILES, len(COCO_LABELS), True),
    OVER_FEATURES,
    {
        "PPL 0.75": partial(_left, "Y_075left"),
        "PPL 0.4": partial(_left, "Y_04left"),
        "SPL": partial(_left, "Y_singlelabel"),
    },
)
"""COCO in the place of its photographs: three published lists say which positives are known."""
CUB_FEATURES = FeatureSource(
    "CUB",
    f"features/cub/, {_MADE}, and labels/{_CUB_FILES[0]}, labels/{_CUB_FILES[1]}",
    ("features/cub", *(f"labels/{file}" for file in _CUB_FILES)),
    _cub,
    partial(_fixture, "cub", _CUB_FILES, 30, False),
    OVER_FEATURES,
    {"SPL": lambda root, labels: labels},
    fully_labelled=False,
)
"""CUB's attributes: one positive per training item is published, all labels of the test items."""
VOC_FEATURES = FeatureSource(
    "VOC 2012", f"{_VOC_FILE} with X_train, Y_train, X_val, Y_val", (_VOC_FILE,), _voc, _voc_fixture, OVER_FEATURES
)
"""VOC in the place of its photographs."""


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
