"""Folders as the owners of data sets publish them: how each is recognised, and which reader it goes to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple, TypeAlias, TypedDict

from steelyard.data.dataset import ArrayDataset, ImageDataset
from steelyard.data.files import PathLike, check_choice
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

Data: TypeAlias = ArrayDataset | ImageDataset | Questions | RegionDataset

_TRAIN_TEST = ("train", "test")
_DIGITS = (*_TRAIN_TEST, "digits", "pairs")


class Decoding(TypedDict):
    """How images are decoded, see `ImageDataset`."""

    size: int | tuple[int, int] | None
    on_bad_image: Literal["error", "skip"]
    cache: PathLike | None


class Layout(NamedTuple):
    """A folder as the owners of a data set publish it."""

    read: Callable[[Path, str, int, Decoding], Data]
    """(root, split, year, how images are decoded) → the data."""
    splits: tuple[str, ...]
    shows: tuple[str, ...]
    """Patterns of files or folders in the root, for a {split} of a {year}; one that is there shows the layout."""
    years: tuple[int, ...] = (0,)


class Spot(NamedTuple):
    """Where a layout was found."""

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
                found = next((root for root in roots if next(root.glob(pattern), None) is not None), None)
                if found is not None:
                    yield Spot(found, year, split)
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
    if split in _TRAIN_TEST:
        return multi_mnist(root, _train(split))
    digits, pairs = multi_mnist_digits(root)
    return digits if split == "digits" else pairs


def _cifar10(root: Path, split: str) -> ArrayDataset:
    """Read the training batches that are there and say so: parts of the data set travel without the rest."""
    home = next((home for name in ("bin", "py") if (home := root / f"cifar-10-batches-{name}").is_dir()), root)
    there = tuple(batch for batch in range(1, 6) if list(home.glob(f"data_batch_{batch}*")))
    data = cifar10(root, _train(split), there or (1, 2, 3, 4, 5))
    if split == "train" and len(there) < 5:
        data.note = f"training batches {', '.join(map(str, there))} of 5 are there, the others are missing"
    return data


def _open_images(root: Path, split: str, how: Decoding) -> ImageDataset:
    """Read the boxable classes where their file is there, else all of them."""
    boxable = next(root.glob(f"*{split}-annotations-human-imagelabels-boxable.csv"), None) is not None
    data = open_images(root, split, "boxable" if boxable else "all", **how)
    data.note = f"{'the boxable' if boxable else 'all'} classes"
    return data


LAYOUTS = {
    "voc": Layout(
        lambda root, split, year, how: voc(root, year, split, **how),
        ("train", "trainval", "val", "test"),
        ("VOCdevkit/VOC{year}/ImageSets/Main/{split}.txt",),
        tuple(range(2012, 2005, -1)),
    ),
    "coco": Layout(
        lambda root, split, year, how: coco(root, year, split, **how),
        ("train", "val"),
        ("annotations/instances_{split}{year}.json",),
        (2017, 2014),
    ),
    "mnist": Layout(lambda root, split, year, how: _mnist(root, split), _TRAIN_TEST, ("MNIST/raw",)),
    "multi_mnist": Layout(lambda root, split, year, how: _multi_mnist(root, split), _DIGITS, ("MNIST/raw",)),
    "cifar10": Layout(
        lambda root, split, year, how: _cifar10(root, split),
        _TRAIN_TEST,
        ("cifar-10-batches-bin", "cifar-10-batches-py"),
    ),
    "cifar100": Layout(
        lambda root, split, year, how: cifar100(root, _train(split)),
        _TRAIN_TEST,
        ("cifar-100-binary", "cifar-100-python"),
    ),
    "nus_wide": Layout(
        lambda root, split, year, how: nus_wide(root, split, **how),
        ("train", "test", "all"),
        ("ImageList/*magelist.txt",),
    ),
    "cub": Layout(lambda root, split, year, how: cub(root, split, **how), _TRAIN_TEST, ("CUB_200_2011",)),
    "open_images": Layout(
        lambda root, split, year, how: _open_images(root, split, how),
        ("train", "validation", "test"),
        ("{split}-annotations-human-imagelabels*.csv", "oidv[567]-{split}-annotations-human-imagelabels*.csv"),
    ),
    "wider_attribute": Layout(
        lambda root, split, year, how: wider_attribute(root, split, **how),
        ("train", "val", "trainval", "test"),
        ("wider_attribute_annotation", "wider_attribute_*.json"),
    ),
    "vispr": Layout(
        lambda root, split, year, how: vispr(root, split, **how),
        ("train", "val", "test"),
        ("annotations/{split}2017/*.json", "{split}2017/*.json"),
    ),
    "vqa": Layout(
        lambda root, split, year, how: vqa(root, split), ("train", "val"), ("v2_mscoco_{split}2014_annotations.json",)
    ),
    "vqa_regions": Layout(
        lambda root, split, year, how: vqa_regions(root, split), ("train", "val"), ("regions/{split}.npy",)
    ),
}
"""The layouts that are known, by the name of their format."""
