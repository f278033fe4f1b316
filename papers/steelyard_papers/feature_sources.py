"""COCO 2014 and CUB over features of a frozen ResNet-50, with the published lists of labels that are left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data import ArrayDataset
from steelyard.data.files import DataError
from steelyard.data.readers.coco import COCO_LABELS
from steelyard.data.readers.npz import npz, read_arrays
from steelyard.data.readers.voc import VOC_LABELS
from steelyard.labels import UNKNOWN, Labels
from steelyard.run.datasets import Datasets
from steelyard_papers.fixtures import many_labels
from steelyard_papers.frozen_features import Features, read_features
from steelyard_papers.sources import Source

OVER_FEATURES: dict[str, Any] = {
    "data": {"size": 0},
    "model": {"backbone": "linear", "bias": "prior"},
    "optimizer": {"kind": "adamw", "lr": 1e-4, "weight_decay": 0.01},
    "schedule": {"kind": "cosine", "warmup_epochs": 1},
    "train": {"epochs": 20, "batch_size": 128, "augment": {"flip": 0.0}},
}
"""How a linear layer over standardised features is trained, whatever the loss, from weights of 0. The rate was chosen
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
