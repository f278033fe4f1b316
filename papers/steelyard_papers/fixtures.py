"""A few generated items in the layouts of the data sets' owners: what --smoke runs on where the data is not at hand.

Every function writes beneath a folder. The pictures show something of their labels, and every label has positives, so
that a run on them goes through all that a run on the real data goes through.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from steelyard.data.builders import exponential_counts
from steelyard.data.readers.coco import COCO_LABELS
from steelyard.data.readers.voc import VOC_LABELS

MNIST_N_MAX, CIFAR10_N_MAX, CIFAR100_N_MAX = 200, 60, 20
"""Images of the most frequent class."""
_SIDE = 32  # pixels of a photograph
_COCO_GAPS = (12, 26, 29, 30, 45, 66, 68, 69, 71, 83)  # the numbers from 1 to 90 that no category of COCO has


def mnist(folder: Path) -> None:
    """Write `MNIST/raw/`: patches of light whose place says the digit, in the counts of a long tail."""
    rng = np.random.default_rng(0)
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    train = np.repeat(np.arange(10), exponential_counts(MNIST_N_MAX, 10, 100.0))
    for part, digits in (("train", train), ("t10k", np.arange(40) % 10)):
        images = np.zeros((len(digits), 28, 28), np.uint8)
        for digit in range(10):
            top, left = 4 + 10 * (digit // 5), 1 + 5 * (digit % 5)
            at = np.flatnonzero(digits == digit)
            images[at, top : top + 9, left : left + 5] = rng.integers(120, 256, (len(at), 9, 5))
        (raw / f"{part}-images-idx3-ubyte").write_bytes(_idx(images))
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(_idx(digits.astype(np.uint8)))


def cifar10(folder: Path) -> None:
    """Write `cifar-10-batches-bin/`, in the counts of a long tail, all training images in its first batch."""
    home = folder / "cifar-10-batches-bin"
    home.mkdir(parents=True, exist_ok=True)
    names = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
    (home / "batches.meta.txt").write_text("\n".join(names) + "\n")
    train = np.repeat(np.arange(10), exponential_counts(CIFAR10_N_MAX, 10, 10.0))
    (home / "data_batch_1.bin").write_bytes(_coloured(train, 10).tobytes())
    (home / "test_batch.bin").write_bytes(_coloured(np.arange(40) % 10, 10).tobytes())


def cifar100(folder: Path) -> None:
    """Write `cifar-100-binary/`, in the counts of a long tail."""
    home = folder / "cifar-100-binary"
    home.mkdir(parents=True, exist_ok=True)
    for kind, n in (("fine", 100), ("coarse", 20)):
        (home / f"{kind}_label_names.txt").write_text("".join(f"{kind}_{i}\n" for i in range(n)))
    train = np.repeat(np.arange(100), exponential_counts(CIFAR100_N_MAX, 100, 10.0))
    for stem, classes in (("train", train), ("test", np.arange(200) % 100)):
        coarse = (classes // 5).astype(np.uint8)[:, None]
        (home / f"{stem}.bin").write_bytes(np.concatenate([coarse, _coloured(classes, 100)], axis=1).tobytes())


def coco(folder: Path, year: int = 2014, n_train: int = 96, n_val: int = 40) -> None:
    """Write `annotations/instances_{train,val}{year}.json` and the images they name."""
    numbers = [i for i in range(1, 91) if i not in _COCO_GAPS]
    categories = [{"id": number, "name": name} for number, name in zip(numbers, COCO_LABELS, strict=True)]
    for seed, (split, n) in enumerate((("train", n_train), ("val", n_val))):
        values = many_labels(n, len(COCO_LABELS), seed)
        images: list[dict[str, Any]] = []
        annotations: list[dict[str, Any]] = []
        for i, row in enumerate(values):
            image_id = 1000 * (seed + 1) + i
            name = f"COCO_{split}{year}_{image_id:012d}.jpg" if year == 2014 else f"{image_id:012d}.jpg"
            photograph(folder / f"{split}{year}" / name, row)
            images.append({"id": image_id, "file_name": name})
            for j in np.flatnonzero(row):
                annotations.append({"id": len(annotations) + 1, "image_id": image_id, "category_id": numbers[j]})
        content = {"images": images, "annotations": annotations, "categories": categories}
        (folder / "annotations").mkdir(parents=True, exist_ok=True)
        (folder / "annotations" / f"instances_{split}{year}.json").write_text(json.dumps(content))


def voc(folder: Path, year: int, ids: dict[str, list[str]], values: dict[str, NDArray[np.int8]]) -> None:
    """Write `VOCdevkit/VOC{year}` with images of the given names and labels (n, 20), by split."""
    home = folder / "VOCdevkit" / f"VOC{year}"
    main = home / "ImageSets" / "Main"
    main.mkdir(parents=True, exist_ok=True)
    for split, names in ids.items():
        (main / f"{split}.txt").write_text("".join(f"{name}\n" for name in names))
        for label, column in zip(VOC_LABELS, values[split].T, strict=True):
            rows = (f"{name} {1 if value else -1:2d}\n" for name, value in zip(names, column, strict=True))
            (main / f"{label}_{split}.txt").write_text("".join(rows))
        for name, row in zip(names, values[split], strict=True):
            photograph(home / "JPEGImages" / f"{name}.jpg", row)


def many_labels(n: int, n_labels: int, seed: int = 0, positives: float = 2.5) -> NDArray[np.int8]:
    """Return labels (n, n_labels) with a long tail; every label is positive somewhere, and nowhere all are."""
    rng = np.random.default_rng(seed)
    share = 1 / np.arange(1, n_labels + 1)
    values: NDArray[np.int8] = (rng.random((n, n_labels)) < np.minimum(0.9, share * positives / share.sum())).astype(
        np.int8
    )
    values[rng.integers(0, n, n_labels), np.arange(n_labels)] = 1
    values[rng.integers(0, n, 4 * n_labels), rng.integers(0, n_labels, 4 * n_labels)] = 1
    return values


def photograph(path: Path, row: NDArray[np.int8]) -> None:
    """Write an image on which every positive label of `row` lights a place of its own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(int(row.sum()) + 7)
    pixels = rng.integers(0, 60, (_SIDE, _SIDE, 3)).astype(np.uint8)
    for j in np.flatnonzero(row):
        top, left = 4 * (j // 8) % _SIDE, 4 * (j % 8)
        pixels[top : top + 4, left : left + 4, j % 3] = 250
    Image.fromarray(pixels).save(path, quality=90)


def _idx(array: NDArray[np.uint8]) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def _coloured(classes: NDArray[np.int64], n_classes: int) -> NDArray[np.uint8]:
    """Records (N, 1 + 3072) of a class and an image whose brightness, channel by channel, says which it is."""
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 40, (len(classes), 3, 1024)).astype(np.uint8)
    turn = 2 * np.pi * classes[:, None] / n_classes + np.array([0, 2, 4])
    light = (90 + 80 * np.sin(turn)).astype(np.uint8)
    return np.concatenate([classes[:, None].astype(np.uint8), (noise + light[:, :, None]).reshape(len(classes), -1)], 1)
