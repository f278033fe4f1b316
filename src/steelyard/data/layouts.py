"""Folders as the owners of data sets publish them: how each is recognised, and which reader it goes to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TypeAlias, Unpack

from steelyard.data.columns.mixed import MixedDataset
from steelyard.data.dataset import ArrayDataset, Decoding, ImageDataset
from steelyard.data.files import check_choice
from steelyard.data.readers.cifar import cifar10, cifar100
from steelyard.data.readers.coco import coco
from steelyard.data.readers.cub import cub
from steelyard.data.readers.mnist import mnist
from steelyard.data.readers.multi_mnist import multi_mnist, multi_mnist_digits
from steelyard.data.readers.nus_wide import nus_wide
from steelyard.data.readers.open_images import open_images
from steelyard.data.readers.regions import RegionDataset, vqa_regions
from steelyard.data.readers.vispr import vispr
from steelyard.data.readers.voc import voc
from steelyard.data.readers.vqa import Questions, vqa
from steelyard.data.readers.wider_attribute import wider_attribute

Data: TypeAlias = ArrayDataset | ImageDataset | MixedDataset | Questions | RegionDataset

_TRAIN_TEST = ("train", "test")
_DIGITS = (*_TRAIN_TEST, "digits", "pairs")


class Layout(NamedTuple):
    """A folder as the owners of a data set publish it."""

    read: Callable[..., Data]
    """Called with root and split, with `year` where there are several, and with `Decoding` where items are files."""
    splits: tuple[str, ...]
    shows: tuple[str, ...]
    """Patterns of files or folders in the root, for a {split} of a {year}; one that is there shows the layout."""
    years: tuple[int, ...] = (0,)
    takes: str = "images"
    """Further arguments of its reader: "images" for `Decoding`, "answers" for names of labels, or none."""


class Spot(NamedTuple):
    """A place in which a layout was recognised."""

    root: Path
    year: int
    split: str


def spots(place: Path, layout: Layout) -> Iterator[Spot]:
    """Every year and split of a layout at `place`, its root or a folder inside it."""
    here = place.absolute()
    for year in layout.years:
        for split in layout.splits:
            for shows in layout.shows:
                pattern = shows.format(year=year, split=split)
                parts = PurePosixPath(pattern).parts
                inside = [k for k in range(len(parts) + 1) if here.parts[len(here.parts) - k :] == parts[:k]]
                roots = [here.parents[k - 1] if k else place for k in inside]
                matched = next((root for root in roots if next(root.glob(pattern), None) is not None), None)
                if matched is not None:
                    yield Spot(matched, year, split)
                    break


def _train(split: str) -> bool:
    check_choice(split, _TRAIN_TEST, "split")
    return split == "train"


def _mnist(root: Path, split: str) -> ArrayDataset:
    digits = mnist(root, _train(split))
    digits.note = "format 'multi_mnist' makes imbalanced pairs of these digits"
    return digits


def _multi_mnist(root: Path, split: str) -> ArrayDataset:
    """Read the fixed pictures of the paper, or the digits they are made of and pairs of held-out ones."""
    check_choice(split, _DIGITS, "split")
    return multi_mnist(root, _train(split)) if split in _TRAIN_TEST else multi_mnist_digits(root)[split == "pairs"]


def _cifar10(root: Path, split: str) -> ArrayDataset:
    """Read the training batches that are there and say so: parts of the data set travel without the rest."""
    home = next((home for name in ("bin", "py") if (home := root / f"cifar-10-batches-{name}").is_dir()), root)
    there = tuple(batch for batch in range(1, 6) if list(home.glob(f"data_batch_{batch}*")))
    data = cifar10(root, _train(split), there or (1, 2, 3, 4, 5))
    if split == "train" and len(there) < 5:
        data.note = f"training batches {', '.join(map(str, there))} of 5 are there, the others are missing"
    return data


def _open_images(root: Path, split: str, **how: Unpack[Decoding]) -> ImageDataset:
    """Read the boxable classes where their file is there, else all of them."""
    boxable = next(root.glob(f"*{split}-annotations-human-imagelabels-boxable.csv"), None) is not None
    data = open_images(root, split, "boxable" if boxable else "all", **how)
    data.note = f"{'the boxable' if boxable else 'all'} classes"
    return data


def _with_year(read: Callable[..., ImageDataset]) -> Callable[..., ImageDataset]:
    return lambda root, split, year, **how: read(root, year, split, **how)


_LABELS_OF_OPEN_IMAGES = "{split}-annotations-human-imagelabels*.csv"
LAYOUTS = {
    "voc": Layout(
        _with_year(voc),
        ("train", "trainval", "val", "test"),
        ("VOCdevkit/VOC{year}/ImageSets/Main/{split}.txt",),
        tuple(range(2012, 2005, -1)),
    ),
    "coco": Layout(_with_year(coco), ("train", "val"), ("annotations/instances_{split}{year}.json",), (2017, 2014)),
    "mnist": Layout(_mnist, _TRAIN_TEST, ("MNIST/raw",), takes=""),
    "multi_mnist": Layout(_multi_mnist, _DIGITS, ("MNIST/raw",), takes=""),
    "cifar10": Layout(_cifar10, _TRAIN_TEST, ("cifar-10-batches-bin", "cifar-10-batches-py"), takes=""),
    "cifar100": Layout(
        lambda root, split: cifar100(root, _train(split)),
        _TRAIN_TEST,
        ("cifar-100-binary", "cifar-100-python"),
        takes="",
    ),
    "nus_wide": Layout(nus_wide, ("train", "test", "all"), ("ImageList/*magelist.txt",)),
    "cub": Layout(cub, _TRAIN_TEST, ("CUB_200_2011",)),
    "open_images": Layout(
        _open_images, ("train", "validation", "test"), (_LABELS_OF_OPEN_IMAGES, f"oidv[567]-{_LABELS_OF_OPEN_IMAGES}")
    ),
    "wider_attribute": Layout(
        wider_attribute, ("train", "val", "trainval", "test"), ("wider_attribute_annotation", "wider_attribute_*.json")
    ),
    "vispr": Layout(vispr, ("train", "val", "test"), ("annotations/{split}2017/*.json", "{split}2017/*.json")),
    "vqa": Layout(vqa, ("train", "val"), ("v2_mscoco_{split}2014_annotations.json",), takes="answers"),
    "vqa_regions": Layout(vqa_regions, ("train", "val"), ("regions/{split}.npy",), takes="answers"),
}
"""The layouts that are known, by the name of their format."""


def read_layout(layout: Layout, at: Spot, names: Any, how: Decoding) -> Data:
    """Read a layout where it was found; `names`: the labels, where they are answers that another part counted."""
    year = {"year": at.year} if at.year else {}
    taken = {"images": how, "answers": {} if names is None else {"answers": names}}.get(layout.takes, {})
    return layout.read(at.root, at.split, **year, **taken)
