"""The data sets of the papers on photographs and partial labels: where each is put, how it is opened, its counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

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
from steelyard.run.datasets import Datasets
from steelyard_papers import fixtures
from steelyard_papers.reproduction import LEFT_OUT, Job, Need
from steelyard_papers.result import Result, RowResult, RunResult


@dataclass(frozen=True)
class Source:
    """A data set that a person may have.

    Args:
        name: as tables have it.
        where: what it is beneath the folder that --data names.
        files: files and folders beneath it, by which it is known to be there; of several joined by "|" one will do.
        open: (folder) → the items to train and to test on.
        fixture: (folder) writes a few generated items in the same layout.
        settings: what it needs besides a study's settings, nested as in a TOML file.
    """

    name: str
    where: str
    files: tuple[str, ...]
    open: Callable[[Path], Datasets]
    fixture: Callable[[Path], None]
    settings: Mapping[str, Any] = field(default_factory=dict)

    def is_there(self, root: Path) -> bool:
        """Return whether all of its files are there."""
        return all(any((root / name).exists() for name in names.split("|")) for names in self.files)

    def over(self, base: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of a study with those that the data set needs."""
        return {name: {**base.get(name, {}), **self.settings.get(name, {})} for name in (*base, *self.settings)}


def present(root: Path, sources: Sequence[Source]) -> list[Source]:
    """Return those of the sources that are there."""
    return [source for source in sources if source.is_there(root)]


def left_out(root: Path, sources: Sequence[Source]) -> tuple[str, ...]:
    """Return a sentence for each of the sources that is not there."""
    return tuple(f"{source.name}{LEFT_OUT}" for source in sources if not source.is_there(root))


def one_of(sources: Sequence[Source], shown: Source) -> Need:
    """Return the need of at least one of the sources; --smoke runs on `shown`."""
    names = " or ".join(source.name for source in sources)
    places: dict[str, list[str]] = {}
    for source in sources:
        places.setdefault(source.where, []).append(source.name)
    where = "; ".join(f"{', '.join(there)}: {place}" for place, there in places.items())
    where = sources[0].where if len(places) == 1 else where
    return Need(names, where, lambda root: bool(present(root, sources)), shown.fixture)


def _voc_mlt(root: Path) -> Datasets:
    release, arrays = root / "appendix/VOCdevkit/longtail2012", root / "labels/voc_mlt.npz"
    test = "test" if (root / "VOCdevkit/VOC2007/ImageSets/Main/test.txt").is_file() else "trainval"
    train = voc_mlt(release if release.is_dir() else arrays, root)
    on = test if test == "test" else f"{test}, since the images of its test split are not there"
    note = f"VOC-MLT, the published split of {len(train):,} images, tested on VOC 2007 {on}"
    return Datasets(train, None, voc(root, 2007, test, "positive"), (note,))


def _coco_mlt(root: Path) -> Datasets:
    release, arrays = root / "appendix/coco/longtail2017", root / "labels/coco_mlt.npz"
    train = coco_mlt(release if release.is_dir() else arrays, root)
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


def _voc2012(root: Path) -> Datasets:
    train, test = (voc(root, 2012, split, "negative") for split in ("train", "val"))
    return Datasets(train, None, test, ("VOC 2012 train and val, what is only difficult counts as absent",))


def _coco2014(root: Path) -> Datasets:
    train, test = (coco(root, 2014, split, "drop") for split in ("train", "val"))
    return Datasets(train, None, test, ("COCO 2014 train and val, images without a label left out",))


def _nus_wide(root: Path) -> Datasets:
    train, test = (nus_wide(root / "NUS-WIDE", split, empty="drop") for split in ("train", "test"))
    return Datasets(train, None, test, ("NUS-WIDE, all of its concepts, images without any left out",))


def _cub(root: Path) -> Datasets:
    return Datasets(cub(root, "train"), None, cub(root, "test"), ("CUB's attributes, however certain",))


def _open_images(root: Path) -> Datasets:
    train, test = (open_images(root / "OpenImages", split) for split in ("train", "test"))
    return Datasets(train, None, test, ("Open Images, its boxable classes, labels that nobody judged unknown",))


def _wider(root: Path) -> Datasets:
    train, test = (wider_attribute(root / "WIDER-Attribute", split) for split in ("trainval", "test"))
    return Datasets(train, None, test, ("WIDER-Attribute, an item a person",))


def _vispr(root: Path) -> Datasets:
    train, test = (vispr(root / "VISPR", split) for split in ("train", "test"))
    return Datasets(train, None, test, ("VISPR train and test",))


def _vqa(root: Path) -> Datasets:
    home = root / "VQA"
    train = vqa(home, "train")
    words = WordTable.of(train.questions, least=2)
    image_ids = np.load(home / "image_ids.npy", allow_pickle=False)
    parts = (train, vqa(home, "val", train.labels.names))
    both = [RegionDataset(part, home / "regions.npy", image_ids, words) for part in parts]
    return Datasets(both[0], None, both[1], ("VQA v2 train and val, over regions that a detector described",))


def _mulan(name: str, root: Path) -> Datasets:
    home = root / "mulan"
    parts: list[ArrayDataset] = []
    for split in ("train", "test"):
        file = home / f"{name}-{split}.arff"
        parts.append(arff(file) if file.is_file() else npz(home / f"{name}.npz", split))
    train, test = parts
    return Datasets(train, None, test, (f"{name} with Mulan's split",))


_VOC_PLACE = "VOCdevkit/ from host.robots.ox.ac.uk/pascal/VOC"
_COCO_PLACE = "annotations/ and the folders of images from cocodataset.org"
_COCO_VAL, _COCO_VAL_PART = "annotations/instances_val2017.json", "labels/coco2014_val_part.npz"
"""The test part of COCO-MLT, and its substitute: ids and labels of images of val2014 that lie in train2017/."""
RELEASE = "from github.com/wutong16/DistributionBalancedLoss"

VOC_MLT = Source(
    "VOC-MLT",
    f"{_VOC_PLACE}, 2007 and 2012, and appendix/VOCdevkit/longtail2012/ {RELEASE}",
    (
        "appendix/VOCdevkit/longtail2012|labels/voc_mlt.npz",
        "VOCdevkit/VOC2012/JPEGImages",
        "VOCdevkit/VOC2007/ImageSets/Main",
    ),
    _voc_mlt,
    fixtures.voc_mlt,
)
COCO_MLT = Source(
    "COCO-MLT",
    f"{_COCO_PLACE}, 2017, and appendix/coco/longtail2017/ {RELEASE}",
    ("appendix/coco/longtail2017|labels/coco_mlt.npz", "train2017", f"{_COCO_VAL}|{_COCO_VAL_PART}"),
    _coco_mlt,
    fixtures.coco_mlt,
)
VOC2012 = Source("VOC 2012", _VOC_PLACE, ("VOCdevkit/VOC2012/ImageSets/Main/val.txt",), _voc2012, fixtures.voc2012)
COCO2014 = Source("COCO 2014", _COCO_PLACE, ("annotations/instances_val2014.json",), _coco2014, fixtures.coco2014)
NUS_WIDE = Source(
    "NUS-WIDE",
    "NUS-WIDE/ with ImageList/, Groundtruth/, Flickr/",
    ("NUS-WIDE/ImageList",),
    _nus_wide,
    fixtures.nus_wide,
)
CUB = Source("CUB", "CUB_200_2011/ and attributes.txt", ("CUB_200_2011/images.txt",), _cub, fixtures.cub)
OPEN_IMAGES = Source(
    "Open Images",
    "OpenImages/ with the label files of its boxable classes, train/ and test/",
    ("OpenImages/train", "OpenImages/test"),
    _open_images,
    fixtures.open_images,
)
WIDER = Source(
    "WIDER-Attribute",
    "WIDER-Attribute/ with wider_attribute_annotation/ and Image/",
    ("WIDER-Attribute/Image",),
    _wider,
    fixtures.wider_attribute,
)
VISPR = Source("VISPR", "VISPR/ with annotations/ and images/", ("VISPR/annotations",), _vispr, fixtures.vispr)
VQA = Source(
    "VQA v2",
    "VQA/ with the question and annotation files from visualqa.org, regions.npy (images, regions, features) and "
    "image_ids.npy",
    ("VQA/regions.npy", "VQA/image_ids.npy"),
    _vqa,
    fixtures.vqa,
)


def _table(name: str) -> Source:
    where = "mulan/ with its ARFF files from mulan.sourceforge.net"
    files = (f"mulan/{name}-train.arff|mulan/{name}.npz",)
    return Source(name, where, files, partial(_mulan, name), partial(fixtures.mulan, name))


TABLES = tuple(_table(name) for name in ("delicious", "bibtex", "corel5k"))


COLUMNS = (
    *("training items", "test items", "labels", "positives an item"),
    *("most frequent over rarest label", "% of training labels unknown"),
)


def data_table(sources: Sequence[Source], job: Job) -> Result:
    """Return what there is to say of those of the data sets that are there, counted in them."""
    rows: list[RowResult] = []
    notes: list[str] = []
    for source in present(job.data_root, sources):
        datasets = source.open(job.data_root)
        labels = datasets.train.labels
        seen = labels.counts[labels.counts > 0]
        values: tuple[float, ...] = (
            float(len(labels)),
            float(len(datasets.test)),
            float(labels.n_labels),
            float(labels.counts.sum() / len(labels)),
            float(seen.max() / seen.min()),
            100 * labels.unknown_rate,
        )
        rows.append(RowResult(source.name, (RunResult(0, dict(zip(COLUMNS, values, strict=True))),)))
        notes += datasets.notes
    return Result(COLUMNS, tuple(rows), data="; ".join(notes), seeds=(0,))
