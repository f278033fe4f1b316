"""The data sets of the papers: where each is put, how it is opened, what is counted in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data import (
    ArrayDataset,
    ImageDataset,
    RegionDataset,
    WordTable,
    arff,
    coco,
    coco_mlt,
    cub,
    npz,
    nus_wide,
    open_images,
    vispr,
    voc,
    voc_mlt,
    vqa,
    wider_attribute,
)
from steelyard.data.files import DataError
from steelyard.data.readers.coco import COCO_LABELS
from steelyard.data.readers.npz import read_arrays, to_labels
from steelyard.labels import UNKNOWN, Labels
from steelyard.run.datasets import Datasets
from steelyard_papers import generated
from steelyard_papers.result import Result, RowResult, RunResult
from steelyard_papers.study import Job

LEFT_OUT = " is not there and left out"
"""End of the note that data is missing, after its name."""


def _not_opened(root: Path) -> Datasets:
    raise NotImplementedError


@dataclass(frozen=True)
class DataSet:
    """A data set that a person may have.

    Args:
        name: as tables have it.
        where: where to get it, and where to put it beneath the folder that --data names.
        files: files and folders beneath it, by which it is known to be there; of several joined by "|" one will do.
        generate: (folder) writes a few generated items in the same layout, for --smoke.
        open: (folder) → the items to train and to test on.
        settings: what it needs besides a study's settings, nested as in a TOML file.
        lists: by the name of a setting, (folder, training labels) → the training labels that a published list leaves.
        fully_labelled: whether all training labels are known; where not, `lists` are the only settings.
    """

    name: str
    where: str
    files: tuple[str, ...]
    generate: Callable[[Path], None]
    open: Callable[[Path], Datasets] = _not_opened
    settings: Mapping[str, Any] = field(default_factory=dict)
    lists: Mapping[str, Callable[[Path, Labels], Labels]] = field(default_factory=dict)
    fully_labelled: bool = True

    def is_there(self, root: Path) -> bool:
        """Return whether all of its files are there."""
        return all(any((root / name).exists() for name in names.split("|")) for names in self.files)

    @property
    def is_features(self) -> bool:
        """True if it stands, as features of a frozen network, for photographs of the same name."""
        return self.files[0].startswith("features/")


def present(root: Path, sources: Sequence[DataSet]) -> list[DataSet]:
    """Return those of the data sets that are there, photographs before features of the same name."""
    there = [source for source in sources if source.is_there(root)]
    return list({source.name: source for source in reversed(there)}.values())[::-1]


def left_out(root: Path, sources: Sequence[DataSet]) -> tuple[str, ...]:
    """Return a sentence for each data set that is not there."""
    there = {source.name for source in present(root, sources)}
    return tuple(f"{name}{LEFT_OUT}" for name in dict.fromkeys(s.name for s in sources) if name not in there)


# Digits and small pictures, which the PLM paper's own file opens

_IDX = tuple(
    f"MNIST/raw/{part}-{kind}-ubyte|MNIST/raw/{part}-{kind}-ubyte.gz"
    for part in ("train", "t10k")
    for kind in ("images-idx3", "labels-idx1")
)
MNIST = DataSet(
    "MNIST",
    "its four idx files from http://yann.lecun.com/exdb/mnist/ or torchvision's download, put in MNIST/raw/",
    _IDX,
    generated.mnist,
)
_CIFAR = "the binary or python version from https://www.cs.toronto.edu/~kriz/cifar.html, unpacked to {0}/ or {1}/"


def _cifar(name: str, folders: tuple[str, str], generate: Callable[[Path], None]) -> DataSet:
    return DataSet(name, _CIFAR.format(*folders), ("|".join(folders),), generate)


CIFAR10 = _cifar("CIFAR-10", ("cifar-10-batches-bin", "cifar-10-batches-py"), generated.cifar10)
CIFAR100 = _cifar("CIFAR-100", ("cifar-100-binary", "cifar-100-python"), generated.cifar100)

# Photographs

_VOC_PLACE = "VOCdevkit/ from host.robots.ox.ac.uk/pascal/VOC"
_COCO_PLACE = "annotations/ and the folders of images from cocodataset.org"
_COCO_VAL, _COCO_VAL_PART = "annotations/instances_val2017.json", "labels/coco2014_val_part.npz"
"""The test part of COCO-MLT, and its substitute: ids and labels of images of val2014 that lie in train2017/."""
RELEASE = "from github.com/wutong16/DistributionBalancedLoss"


def first_of(root: Path, names: str) -> Path:
    """Return the first of several paths, joined by "|", that is there; the last if none is."""
    paths = [root / name for name in names.split("|")]
    return next((path for path in paths if path.exists()), paths[-1])


def _voc_mlt(root: Path) -> Datasets:
    test = "test" if (root / "VOCdevkit/VOC2007/ImageSets/Main/test.txt").is_file() else "trainval"
    train = voc_mlt(first_of(root, VOC_MLT.files[0]), root)
    tested = test if test == "test" else f"{test}, since the images of its test split are not there"
    note = f"VOC-MLT, the published split of {len(train):,} images, tested on VOC 2007 {tested}"
    return Datasets(train, None, voc(root, 2007, test, "positive"), (note,))


def _coco_mlt(root: Path) -> Datasets:
    train = coco_mlt(first_of(root, COCO_MLT.files[0]), root)
    split = f"COCO-MLT, the published split of {len(train):,} images, tested on"
    if (root / _COCO_VAL).is_file():
        return Datasets(train, None, coco(root, 2017, "val"), (f"{split} COCO 2017 val",))
    test = _val_part(root, set(train.labels.ids))
    of = "images of COCO's val2014 that are not in it, since those of COCO 2017 val are not there"
    return Datasets(train, None, test, (f"{split} {len(test):,} {of}",))


def _val_part(root: Path, but: set[str]) -> ImageDataset:
    """The images of val2014 that a file has labels of, without those whose ids are in `but`."""
    path = root / _COCO_VAL_PART
    arrays = read_arrays(path)
    if missing := [name for name in ("ids", "Y") if name not in arrays]:
        raise DataError(f"{path} has no array {missing[0]}: give one with ids and Y, labels in COCO's order")
    ids = [str(number) for number in arrays["ids"]]
    labels = to_labels(arrays["Y"], 0, list(COCO_LABELS), ids, str(path))
    labels = labels.take(np.flatnonzero([name not in but for name in ids]))
    return ImageDataset([root / "train2017" / f"{int(name):012d}.jpg" for name in labels.ids], labels)


def _pair(read: Callable[[str], Any], splits: tuple[str, str], note: str) -> Datasets:
    """The items of two splits, to train and to test on."""
    return Datasets(read(splits[0]), None, read(splits[1]), (note,))


def _vqa(root: Path) -> Datasets:
    home = root / "VQA"
    train = vqa(home, "train")
    words = WordTable.of(train.questions, least=2)
    image_ids = np.load(home / "image_ids.npy", allow_pickle=False)
    parts = (train, vqa(home, "val", train.labels.names))
    both = [RegionDataset(part, home / "regions.npy", image_ids, words) for part in parts]
    return Datasets(both[0], None, both[1], ("VQA v2 train and val, over regions that a detector described",))


VOC_MLT = DataSet(
    "VOC-MLT",
    f"{_VOC_PLACE}, 2007 and 2012, and appendix/VOCdevkit/longtail2012/ {RELEASE}",
    (
        "appendix/VOCdevkit/longtail2012|labels/voc_mlt.npz",
        "VOCdevkit/VOC2012/JPEGImages",
        "VOCdevkit/VOC2007/ImageSets/Main",
    ),
    generated.voc_mlt,
    _voc_mlt,
)
COCO_MLT = DataSet(
    "COCO-MLT",
    f"{_COCO_PLACE}, 2017, and appendix/coco/longtail2017/ {RELEASE}",
    ("appendix/coco/longtail2017|labels/coco_mlt.npz", "train2017", f"{_COCO_VAL}|{_COCO_VAL_PART}"),
    generated.coco_mlt,
    _coco_mlt,
)
VOC2012 = DataSet(
    "VOC 2012",
    _VOC_PLACE,
    ("VOCdevkit/VOC2012/ImageSets/Main/val.txt",),
    generated.voc2012,
    lambda root: _pair(
        lambda split: voc(root, 2012, split, "negative"),
        ("train", "val"),
        "VOC 2012 train and val, what is only difficult counts as absent",
    ),
)
_COCO_FILES = tuple(f"annotations/instances_{split}2014.json" for split in ("train", "val"))
COCO2014 = DataSet(
    "COCO 2014",
    _COCO_PLACE,
    _COCO_FILES,
    generated.coco2014,
    lambda root: _pair(
        lambda split: coco(root, 2014, split, "drop"),
        ("train", "val"),
        "COCO 2014 train and val, images without a label left out",
    ),
)
NUS_WIDE = DataSet(
    "NUS-WIDE",
    "NUS-WIDE/ with ImageList/, Groundtruth/, Flickr/",
    ("NUS-WIDE/ImageList",),
    generated.nus_wide,
    lambda root: _pair(
        lambda split: nus_wide(root / "NUS-WIDE", split, empty="drop"),
        ("train", "test"),
        "NUS-WIDE, all of its concepts, images without any left out",
    ),
)
CUB = DataSet(
    "CUB",
    "CUB_200_2011/ and attributes.txt",
    ("CUB_200_2011/images.txt",),
    generated.cub,
    lambda root: _pair(lambda split: cub(root, split), ("train", "test"), "CUB's attributes, however certain"),
)
OPEN_IMAGES = DataSet(
    "Open Images",
    "OpenImages/ with the label files of its boxable classes, train/ and test/",
    ("OpenImages/train", "OpenImages/test"),
    generated.open_images,
    lambda root: _pair(
        lambda split: open_images(root / "OpenImages", split),
        ("train", "test"),
        "Open Images, its boxable classes, labels that nobody judged unknown",
    ),
)
WIDER = DataSet(
    "WIDER-Attribute",
    "WIDER-Attribute/ with wider_attribute_annotation/ and Image/",
    ("WIDER-Attribute/Image",),
    generated.wider_attribute,
    lambda root: _pair(
        lambda split: wider_attribute(root / "WIDER-Attribute", split),
        ("trainval", "test"),
        "WIDER-Attribute, an item a person",
    ),
)
VISPR = DataSet(
    "VISPR",
    "VISPR/ with annotations/ and images/",
    ("VISPR/annotations",),
    generated.vispr,
    lambda root: _pair(lambda split: vispr(root / "VISPR", split), ("train", "test"), "VISPR train and test"),
)
VQA = DataSet(
    "VQA v2",
    "VQA/ with the question and annotation files from visualqa.org, regions.npy (images, regions, features) and "
    "image_ids.npy",
    ("VQA/regions.npy", "VQA/image_ids.npy"),
    generated.vqa,
    _vqa,
)


def _mulan(name: str, root: Path) -> Datasets:
    home = root / "mulan"

    def read(split: str) -> ArrayDataset:
        file = home / f"{name}-{split}.arff"
        return arff(file) if file.is_file() else npz(home / f"{name}.npz", split)

    return _pair(read, ("train", "test"), f"{name} with Mulan's split")


def _table(name: str) -> DataSet:
    where = "mulan/ with its ARFF files from mulan.sourceforge.net"
    files = (f"mulan/{name}-train.arff|mulan/{name}.npz",)
    return DataSet(name, where, files, partial(generated.mulan, name), partial(_mulan, name))


TABLES = tuple(_table(name) for name in ("delicious", "bibtex", "corel5k"))

# Features of a frozen network in the place of photographs

OVER_FEATURES: dict[str, Any] = {
    "data": {"size": 0},
    "model": {"backbone": "linear", "bias": "prior"},
    "optimizer": {"kind": "adamw", "lr": 1e-4, "weight_decay": 0.01},
    "schedule": {"kind": "cosine", "warmup_epochs": 1},
    "train": {"epochs": 20, "batch_size": 128, "augment": {"flip": 0.0}},
}
"""Training of a linear layer over standardised features, whatever the loss, from weights of 0. The rate was chosen
by hand among four on a quarter of VOC 2012's training items; no test item was seen."""


def read_features(folder: Path) -> tuple[NDArray[Any], NDArray[np.float16]]:
    """Return ids and features (n, F) of all parts in a folder, in the order of the parts' names."""
    parts = sorted(folder.glob("*.npz"))
    if not parts:
        raise DataError(f"{folder} holds no .npz file: run python -m steelyard_papers.features to make some")
    arrays = [read_arrays(part) for part in parts]
    for part, content in zip(parts, arrays, strict=True):
        if not {"ids", "X"} <= content.keys() or content["X"].ndim != 2 or len(content["X"]) != len(content["ids"]):
            raise DataError(f"{part} has no arrays ids and X, (n, F), of one length: compute it again")
        if content["X"].shape[1] != arrays[0]["X"].shape[1]:
            raise DataError(f"{part} has {content['X'].shape[1]} features per item, {parts[0]} another number")
    ids = np.concatenate([content["ids"] for content in arrays])
    if len(np.unique(ids)) < len(ids):
        raise DataError(f"{folder} holds some items twice: keep the parts of one run of features only")
    return ids, np.concatenate([content["X"] for content in arrays])


def _over_features(name: str, files: tuple[str, str], names: Any, root: Path) -> Datasets:
    """The training and the test items of which there are features."""
    ids, x = read_features(root / "features" / name)
    place = {key: i for i, key in enumerate(ids.tolist())}
    parts, notes = [], []
    for file in files:
        arrays = read_arrays(root / file)
        listed = arrays["ids"] if "ids" in arrays else arrays["names"]
        there = np.array([i for i, key in enumerate(listed.tolist()) if key in place], np.int64)
        if not len(there):
            raise DataError(f"{root / 'features' / name} has features of no item of {file}: compute them")
        keys = listed[there].tolist()
        labels = Labels(arrays["Y"][there].astype(np.int8), names=names, ids=[str(key) for key in keys])
        parts.append(ArrayDataset(x[[place[key] for key in keys]].astype(np.float32), labels))
        notes.append(f"{len(there):,}" + (f" of {len(listed):,} (drawn by a seed)" * (len(there) < len(listed))))
    return Datasets(parts[0], None, parts[1], (f"{notes[0]} training and {notes[1]} test items",))


def _coco_features(root: Path) -> Datasets:
    opened = _over_features("coco2014", _COCO_LABEL_FILES, COCO_LABELS, root)
    whose = "those val images whose pixels were available"
    note = f"COCO 2014 over features of a frozen ResNet-50, {opened.notes[0]}, {whose}"
    return opened._replace(notes=(note,))


def _cub_features(root: Path) -> Datasets:
    opened = _over_features("cub", _CUB_LABEL_FILES, None, root)
    note = f"CUB over features of a frozen ResNet-50, {opened.notes[0]}, one published positive per training item"
    train = ArrayDataset(opened.train.inputs, _only_positives(opened.train.labels.values, opened.train.labels))
    return opened._replace(train=train, notes=(note,))


def _voc_features(root: Path) -> Datasets:
    def read(split: str) -> ArrayDataset:
        part = npz(root / _VOC_FILE, split, -1)
        return ArrayDataset(part.inputs, Labels((part.labels.values == 1).astype(np.int8), names=part.labels.names))

    note = "VOC 2012 over features of a frozen EfficientNet-Lite0 at 160 pixels; what is only difficult is absent"
    return _pair(read, ("train", "val"), note)


def _only_positives(kept: NDArray[Any], labels: Labels) -> Labels:
    """The labels that `kept` lists as 1 present, all others unknown."""
    return Labels(np.where(kept == 1, 1, UNKNOWN).astype(np.int8), names=labels.names, ids=labels.ids)


def _listed(array: str, root: Path, labels: Labels) -> Labels:
    """The labels that a published list leaves."""
    arrays = read_arrays(root / _COCO_LABEL_FILES[0])
    place = {str(key): i for i, key in enumerate(arrays["ids"].tolist())}
    return _only_positives(arrays[array][[place[key] for key in labels.ids]], labels)


_MADE = "computed by python -m steelyard_papers.features"
_VOC_FILE = "features/voc2012-lite0-160.npz"
_COCO_LABEL_FILES = ("labels/coco2014_train.npz", "labels/coco2014_val_part.npz")
_CUB_LABEL_FILES = ("labels/cub_attributes_train_single.npz", "labels/cub_attributes_val.npz")
COCO_FEATURES = DataSet(
    "COCO 2014",
    f"features/coco2014/, {_MADE}, and {', '.join(_COCO_LABEL_FILES)}",
    ("features/coco2014", *_COCO_LABEL_FILES),
    partial(generated.features, "coco2014", _COCO_LABEL_FILES, len(COCO_LABELS), True),
    _coco_features,
    OVER_FEATURES,
    {
        "PPL 0.75": partial(_listed, "Y_075left"),
        "PPL 0.4": partial(_listed, "Y_04left"),
        "SPL": partial(_listed, "Y_singlelabel"),
    },
)
"""Three published lists say which positives are known."""
CUB_FEATURES = DataSet(
    "CUB",
    f"features/cub/, {_MADE}, and {', '.join(_CUB_LABEL_FILES)}",
    ("features/cub", *_CUB_LABEL_FILES),
    partial(generated.features, "cub", _CUB_LABEL_FILES, 30, False),
    _cub_features,
    OVER_FEATURES,
    {"SPL": lambda root, labels: labels},
    fully_labelled=False,
)
"""One positive per training item is published, all labels of the test items."""
VOC_FEATURES = DataSet(
    "VOC 2012",
    f"{_VOC_FILE} with X_train, Y_train, X_val, Y_val",
    (_VOC_FILE,),
    partial(generated.voc_features, _VOC_FILE),
    _voc_features,
    OVER_FEATURES,
)


def counted(columns: Sequence[str], sources: Sequence[DataSet], job: Job) -> Result:
    """Return what is counted in those of the data sets that are there."""
    rows: list[RowResult] = []
    notes: list[str] = []
    for source in present(job.data_root, sources):
        datasets = source.open(job.data_root)
        labels = datasets.train.labels
        positives = float(labels.counts.sum())
        negatives = float(labels.n_known.sum()) - positives
        values = {
            "training items": float(len(labels)),
            "test items": float(len(datasets.test)),
            "labels": float(labels.n_labels),
            "positives per item": positives / len(labels),
            "negatives per item": negatives / len(labels),
            "positives over negatives": positives / negatives if negatives else None,
        }
        rows.append(RowResult(source.name, (RunResult(0, {column: values[column] for column in columns}),)))
        notes += datasets.notes
    return Result(tuple(columns), tuple(rows), data="; ".join(notes), seeds=(0,))
