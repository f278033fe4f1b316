"""Imbalanced MultiMNIST: two shifted digits in one picture, zeros a hundred times as common as nines."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard._arrays import Index
from steelyard.balance import draws
from steelyard.balance.split import stratified_split
from steelyard.data.builders import exponential_long_tail
from steelyard.data.dataset import ArrayDataset
from steelyard.data.files import PathLike
from steelyard.data.readers.mnist import mnist
from steelyard.labels import Labels

Images: TypeAlias = NDArray[np.uint8]

N_MAX = 5923
RHO = 100.0
SIZE = 32
_PAD = 2
_SHIFT = 6


def multi_mnist(root: PathLike, train: bool = True, seed: int = 0) -> ArrayDataset:
    """Return Imbalanced MultiMNIST: images uint8 (1, 32, 32) with labels "0" … "9".

    The training set is `imbalanced_pairs` of MNIST's 60,000 training digits, 14,694 pictures; the test set is
    `balanced_pairs` of its 10,000 test digits, 90,000 pictures.

    Args:
        root: folder that holds `MNIST/raw/`.
        train: True for the training set, False for the test set.
        seed: determines the digits, pairs and shifts.

    Examples:
        >>> from pathlib import Path
        >>> def write_idx(name, array):
        ...     header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
        ...     return Path("MNIST/raw", name).write_bytes(header + array.tobytes())
        >>> Path("MNIST/raw").mkdir(parents=True)
        >>> _ = write_idx("t10k-images-idx3-ubyte", np.zeros((10, 28, 28), np.uint8))
        >>> _ = write_idx("t10k-labels-idx1-ubyte", np.arange(10, dtype=np.uint8))
        >>> data = sy.data.multi_mnist(".", train=False)
        >>> len(data), data[0][0].shape, int(data[0][1].sum())
        (90, torch.Size([1, 32, 32]), 2)
    """
    digits = mnist(root, train)
    images, classes = digits.inputs[:, 0], digits.labels.positives()[1]
    pictures, labels = (
        imbalanced_pairs(images, classes, seed=seed) if train else balanced_pairs(images, classes, seed=seed)
    )
    return ArrayDataset(pictures[:, None], labels)


def multi_mnist_digits(root: PathLike, seed: int = 0, held_out: float = 0.1) -> tuple[ArrayDataset, ArrayDataset]:
    """Return single training digits, and pairs of held-out digits for validation.

    They are for training that forms and shifts new pairs at every step (train.augment: pad_crop 6, overlay 1). Digits
    are centred in images uint8 (1, 32, 32) and have one label each; the pairs are those of `multi_mnist_held_out`.

    Args:
        root: folder that holds `MNIST/raw/`.
        seed: selects the digits, as in `multi_mnist`.
        held_out: share of each class used for validation only, at least one digit.

    Examples:
        >>> from pathlib import Path
        >>> def write_idx(name, array):
        ...     header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
        ...     return Path("MNIST/raw", name).write_bytes(header + array.tobytes())
        >>> Path("MNIST/raw").mkdir(parents=True)
        >>> digits = np.repeat(np.arange(10, dtype=np.uint8), sy.data.exponential_counts(5923, 10, 100))
        >>> _ = write_idx("train-images-idx3-ubyte", np.zeros((len(digits), 28, 28), np.uint8))
        >>> _ = write_idx("train-labels-idx1-ubyte", digits)
        >>> train, validation = sy.data.multi_mnist_digits(".", held_out=0.001)
        >>> len(train), int(train[0][1].sum()), int(validation[0][1].sum())
        (14675, 1, 2)
    """
    images, classes, rest, held = _parted(root, seed, held_out)
    labels = np.eye(10, dtype=np.int8)[classes[rest]]
    middle = np.pad(images[rest], ((0, 0), (_PAD, _PAD), (_PAD, _PAD)))
    return ArrayDataset(middle[:, None], Labels(labels)), _even_pairs(images, classes, held, seed)


def multi_mnist_held_out(root: PathLike, seed: int = 0, held_out: float = 0.15) -> tuple[ArrayDataset, ArrayDataset]:
    """Return training pictures that contain no held-out digit, and pairs of held-out digits to choose settings by.

    A digit appears in two training pictures on average, so pictures held out at random would contain digits seen in
    training. Here none does; about (1 − `held_out`)² of the pictures remain. The pairs are `balanced_pairs` of the
    held-out digits, with rarer classes repeated until all ten are equally frequent, as in the test set.

    Args:
        root, seed: as in `multi_mnist`.
        held_out: share of each class to hold out, at least one digit.

    Examples:
        >>> from pathlib import Path
        >>> def write_idx(name, array):
        ...     header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
        ...     return Path("MNIST/raw", name).write_bytes(header + array.tobytes())
        >>> Path("MNIST/raw").mkdir(parents=True)
        >>> digits = np.repeat(np.arange(10, dtype=np.uint8), sy.data.exponential_counts(5923, 10, 100))
        >>> _ = write_idx("train-images-idx3-ubyte", np.zeros((len(digits), 28, 28), np.uint8))
        >>> _ = write_idx("train-labels-idx1-ubyte", digits)
        >>> train, validation = sy.data.multi_mnist_held_out(".", held_out=0.001)
        >>> len(train), len(validation)
        (14653, 540)
    """
    images, classes, rest, held = _parted(root, seed, held_out)
    pictures, labels = imbalanced_pairs(images, classes, seed=seed)
    chosen = np.sort(np.concatenate([rest, held]))
    free = np.isin(chosen, rest)
    kept = np.flatnonzero(free & free[_partners(len(chosen), seed)])
    return ArrayDataset(pictures[kept, None], labels.take(kept)), _even_pairs(images, classes, held, seed)


def _parted(root: PathLike, seed: int, held_out: float) -> tuple[Images, Index, Index, Index]:
    """MNIST's training digits, their classes, and which the long tail keeps: to train on, and held out."""
    data = mnist(root, True)
    classes: Index = data.labels.positives()[1].astype(np.int64)
    chosen = exponential_long_tail(classes, N_MAX, RHO, seed)
    rest, held = stratified_split(data.labels.take(chosen), held_out, seed)
    return data.inputs[:, 0], classes, chosen[rest], chosen[held]


def _even_pairs(images: Images, classes: Index, held: Index, seed: int) -> ArrayDataset:
    """Pair digits, repeated until each class has as many as the largest."""
    most = int(np.bincount(classes[held]).max())
    even = np.concatenate([np.resize(held[classes[held] == c], most) for c in range(10)])
    pictures, labels = balanced_pairs(images[even], classes[even], seed)
    return ArrayDataset(pictures[:, None], labels)


def imbalanced_pairs(
    images: ArrayLike, classes: ArrayLike, n_max: int = N_MAX, rho: float = RHO, seed: int = 0
) -> tuple[Images, Labels]:
    """Pair each digit of an exponential long tail with another one (the training set): images (N, 32, 32) and labels.

    Class i keeps n_i = ⌊n_max ρ^(−i/9)⌋ digits, drawn by seed (5923, 3550, … 59 of MNIST's training digits, 14,694
    pictures). Each digit is padded to 32 × 32 and shifted by −6 … 6 in both directions, and so is another digit drawn
    uniformly from the same imbalanced set. The picture is their pixelwise maximum; its labels are the union.

    Args:
        images: (M, 28, 28) uint8.
        classes: digit of each image, (M,), 0 … 9.
        n_max: number of digits of class 0.
        rho: ρ, the count of class 0 divided by that of class 9.
        seed: determines the digits, pairs and shifts.

    Examples:
        >>> classes = np.repeat(np.arange(10), 8)
        >>> images, labels = sy.data.imbalanced_pairs(np.zeros((80, 28, 28), np.uint8), classes, n_max=8, rho=8)
        >>> images.shape, labels.n_labels
        ((33, 32, 32), 10)
    """
    digits, which = _check_digits(images, classes)
    chosen = exponential_long_tail(which, n_max, rho, seed)
    other = chosen[_partners(len(chosen), seed)]
    return _superimpose(digits, which, chosen, other, draws.key(seed, "imbalanced shift"))


def _partners(n: int, seed: int) -> Index:
    """For each of n digits another one, drawn evenly."""
    position = np.arange(n)
    other = draws.below(draws.key(seed, "imbalanced partner"), position, n - 1)
    return other + (other >= position)


def balanced_pairs(images: ArrayLike, classes: ArrayLike, seed: int = 0) -> tuple[Images, Labels]:
    """Pair each digit with a random one of each other class (the test set): images (9M, 32, 32) and labels.

    Both digits of a picture are padded and shifted again, as in `imbalanced_pairs`. With m_c digits of class c among M,
    label c has exactly 8 m_c + M positives for every seed. The nine pictures of a digit are consecutive.

    Args:
        images: (M, 28, 28) uint8.
        classes: digit of each image, (M,), 0 … 9.
        seed: determines the pairs and shifts.

    Examples:
        >>> images, labels = sy.data.balanced_pairs(np.zeros((10, 28, 28), np.uint8), np.arange(10))
        >>> images.shape, labels.counts.tolist()
        ((90, 32, 32), [18, 18, 18, 18, 18, 18, 18, 18, 18, 18])
    """
    digits, which = _check_digits(images, classes)
    draws.check_seed(seed)
    counts = np.bincount(which)
    first = np.cumsum(counts) - counts
    partner = (np.repeat(which, 9) + np.tile(np.arange(1, 10), len(which))) % 10
    drawn = draws.below(draws.key(seed, "balanced partner"), np.arange(len(partner)), counts[partner])
    other = np.argsort(which, kind="stable")[first[partner] + drawn]
    return _superimpose(digits, which, np.repeat(np.arange(len(which)), 9), other, draws.key(seed, "balanced shift"))


def _check_digits(images: ArrayLike, classes: ArrayLike) -> tuple[Images, Index]:
    digits, which = np.asarray(images), np.asarray(classes)
    if digits.ndim != 3 or digits.shape[1:] != (28, 28) or digits.dtype != np.uint8:
        raise ValueError(f"images has shape {digits.shape} and dtype {digits.dtype}: give (M, 28, 28) of uint8")
    if which.shape != (len(digits),) or which.dtype.kind not in "iu":
        raise ValueError(f"classes has shape {which.shape} and dtype {which.dtype}: give one digit per image")
    if not np.array_equal(np.unique(which), np.arange(10)):
        raise ValueError(f"classes holds the digits {np.unique(which).tolist()}: give each of 0 to 9 at least once")
    return digits, which.astype(np.int64)


def _superimpose(digits: Images, which: Index, one: Index, other: Index, stream: int) -> tuple[Images, Labels]:
    """Shift the digits at `one` and at `other` and lay each pair over each other."""
    n = len(one)
    shifts = draws.below(stream, np.arange(4 * n), 2 * _SHIFT + 1).reshape(4, n) - _SHIFT
    room = _PAD + _SHIFT
    padded = np.pad(digits, ((0, 0), (room, room), (room, room)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (SIZE, SIZE), axis=(1, 2))
    down, right, other_down, other_right = _SHIFT - shifts
    pictures = np.maximum(windows[one, down, right], windows[other, other_down, other_right])
    values = np.zeros((n, 10), np.int8)
    values[np.arange(n), which[one]] = 1
    values[np.arange(n), which[other]] = 1
    return pictures, Labels(values)
