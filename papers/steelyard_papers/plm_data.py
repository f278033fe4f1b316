"""The data of the PLM paper: imbalanced MultiMNIST, long-tailed CIFAR-10 and CIFAR-100, COCO 2014."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from steelyard.data.builders import exponential_counts, exponential_long_tail
from steelyard.data.dataset import ArrayDataset
from steelyard.data.readers.cifar import cifar10, cifar100
from steelyard.data.readers.coco import coco
from steelyard.data.readers.mnist import mnist
from steelyard.data.readers.multi_mnist import N_MAX, balanced_pairs, imbalanced_pairs
from steelyard.data.subset import Subset
from steelyard.run.datasets import Datasets
from steelyard_papers import fixtures
from steelyard_papers.feature_sources import COCO_FEATURES
from steelyard_papers.job import Job
from steelyard_papers.reproduction import Need

DRAW = 0
"""The seed of the data: all runs see the same items, whatever their own seed."""

Digits = tuple[NDArray[np.uint8], NDArray[np.int64]]
"""Images (M, 28, 28) and classes (M,)."""


def _has_mnist(root: Path) -> bool:
    raw = root / "MNIST" / "raw"
    names = (f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))
    return all((raw / name).is_file() or (raw / f"{name}.gz").is_file() for name in names)


def _has_one(root: Path, *names: str) -> bool:
    return any((root / name).is_dir() for name in names)


def has_coco(root: Path) -> bool:
    """Return whether COCO 2014 is there as its owners publish it."""
    return all((root / "annotations" / f"instances_{split}2014.json").is_file() for split in ("train", "val"))


MNIST = Need(
    "MNIST",
    "its four idx files from http://yann.lecun.com/exdb/mnist/ or torchvision's download, put in MNIST/raw/",
    _has_mnist,
    fixtures.mnist,
)
CIFAR10 = Need(
    "CIFAR-10",
    "the binary or python version from https://www.cs.toronto.edu/~kriz/cifar.html, unpacked to "
    "cifar-10-batches-bin/ or cifar-10-batches-py/",
    lambda root: _has_one(root, "cifar-10-batches-bin", "cifar-10-batches-py"),
    fixtures.cifar10,
)
CIFAR100 = Need(
    "CIFAR-100",
    "the binary or python version from https://www.cs.toronto.edu/~kriz/cifar.html, unpacked to cifar-100-binary/ or "
    "cifar-100-python/",
    lambda root: _has_one(root, "cifar-100-binary", "cifar-100-python"),
    fixtures.cifar100,
)
COCO = Need(
    "COCO 2014",
    "images and instances of train and val from https://cocodataset.org, unpacked to annotations/, train2014/ and "
    f"val2014/; or {COCO_FEATURES.where}",
    lambda root: has_coco(root) or COCO_FEATURES.is_there(root),
    fixtures.coco,
)


def open_digits(job: Job, train: bool) -> Digits:
    """Return the digits of MNIST."""
    data = mnist(job.data_root, train)
    return data.inputs[:, 0], data.labels.positives()[1].astype(np.int64)


def open_multi_mnist(job: Job, draw: int = DRAW) -> Datasets:
    """Return imbalanced MultiMNIST, the draw of this seed: 14,694 pictures to train on, 90,000 to test on."""
    n_max = fixtures.MNIST_N_MAX if job.smoke else N_MAX
    made = imbalanced_pairs(*open_digits(job, True), n_max, seed=draw), balanced_pairs(*open_digits(job, False), draw)
    train, test = (ArrayDataset(pictures[:, None], labels) for pictures, labels in made)
    note = f"imbalanced MultiMNIST, the draw of seed {draw}: positives {', '.join(map(str, train.labels.counts))}"
    return Datasets(train, None, test, (note,))


def open_cifar(job: Job, n_classes: int, rho: float) -> Datasets:
    """Return CIFAR-10 or CIFAR-100, thinned to a long tail of ρ; the test part is whole."""
    whole, test, n_max = _cifar10(job) if n_classes == 10 else _cifar100(job)
    ratio = min(rho, float(n_max))
    for name, n, wanted in zip(
        whole.labels.names, whole.labels.counts, exponential_counts(n_max, n_classes, ratio), strict=True
    ):
        if n < wanted:
            raise ValueError(
                f"CIFAR-{n_classes} in {job.data_root} has {n} training images of {name}, but the long tail takes "
                f"{wanted}: fetch all of it"
            )
    kept = exponential_long_tail(whole.labels.positives()[1], n_max, ratio, DRAW)
    notes = [f"long tails of CIFAR-{n_classes}, the draw of seed {DRAW}"]
    if len(whole) != 50_000:
        notes.append(f"drawn from the {len(whole):,} training images that this copy has")
    return Datasets(Subset(whole, kept), None, test, tuple(notes))


def open_coco(job: Job) -> Datasets:
    """Return COCO 2014 train and val, images without labels kept, as the paper has them."""
    train, val = (coco(job.data_root, 2014, split) for split in ("train", "val"))
    return Datasets(train, None, val, (f"COCO 2014: {len(train):,} images to train on, {len(val):,} to test on",))


def _cifar10(job: Job) -> tuple[ArrayDataset, ArrayDataset, int]:
    found = [
        batch
        for batch in range(1, 6)
        for home in ("cifar-10-batches-bin", "cifar-10-batches-py")
        for ending in (".bin", "")
        if (job.data_root / home / f"data_batch_{batch}{ending}").is_file()
    ]
    whole = cifar10(job.data_root, True, sorted(set(found)) or (1, 2, 3, 4, 5))
    return whole, cifar10(job.data_root, False), fixtures.CIFAR10_N_MAX if job.smoke else 5000


def _cifar100(job: Job) -> tuple[ArrayDataset, ArrayDataset, int]:
    whole, test = (cifar100(job.data_root, train) for train in (True, False))
    return whole, test, fixtures.CIFAR100_N_MAX if job.smoke else 500


def examples(datasets: Datasets, n: int) -> tuple[NDArray[np.uint8], list[str]]:
    """Return `n` pictures of the training part, spread over its length, (n, 32, 32), and the labels of each."""
    at = np.linspace(0, len(datasets.train) - 1, n).astype(int)
    labels = datasets.train.labels
    names = [", ".join(labels.names[c] for c in np.flatnonzero(row == 1)) for row in labels.rows(at)]
    return datasets.train.inputs[at, 0], names
