"""MultiMNIST's two tracks, and a rehearsal of them on training digits alone, to choose settings by."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from steelyard.data.builders import exponential_long_tail
from steelyard.data.dataset import ArrayDataset
from steelyard.data.multi_mnist import N_MAX, RHO, balanced_pairs, imbalanced_pairs
from steelyard.data.split import stratified_split
from steelyard.labels import Labels
from steelyard.papers import fixtures
from steelyard.papers.job import Job
from steelyard.papers.plm_data import DRAW, Digits, open_digits

_HELD_OUT = 0.1
"""The share of each class that the open track calibrates on."""
_PAD = 2
_FEW = 64
"""Pictures of a kind, where they are generated."""


class Tracks(NamedTuple):
    """What the two tracks train on, and what both are measured on."""

    pictures: ArrayDataset
    """Of the paper's track: two digits each, long-tailed."""
    singles: ArrayDataset
    """Of the open track: the same digits one by one, some of each class held out."""
    pairs: ArrayDataset
    """Pictures of those held-out digits, every class equally often, to calibrate on."""
    laid: ArrayDataset
    """Pictures of the digits in `singles`, each with one of every other class."""
    test: ArrayDataset
    note: str


def tracks(job: Job) -> Tracks:
    """Return the data of a job; with `validation` of a rehearsal, in which no test digit is seen.

    Rehearsal: of each class as many of MNIST's training digits as that share of the most frequent class are set aside,
    and their pictures are measured on; the long tail is drawn from the others, and is shorter by that share.
    """
    digits = open_digits(job, True)
    n_max = fixtures.MNIST_N_MAX if job.smoke else N_MAX
    if job.validation:
        n_there = int(job.validation * n_max)
        there, digits = _set_aside(digits, n_there)
        n_max -= n_there
        note = f"a rehearsal: measured on pictures of {len(there[1]):,} training digits that are not trained on"
    else:
        there, note = open_digits(job, False), f"imbalanced MultiMNIST, the draw of seed {DRAW}"
    rest, held = _long_tail(digits, n_max)
    middle = np.pad(rest[0], ((0, 0), (_PAD, _PAD), (_PAD, _PAD)))[:, None]
    most = int(np.bincount(held[1]).max())
    even = np.concatenate([np.resize(np.flatnonzero(held[1] == c), most) for c in range(10)])
    return Tracks(
        _pictures(imbalanced_pairs(*digits, n_max, seed=DRAW)),
        ArrayDataset(middle, Labels(np.eye(10, dtype=np.int8)[rest[1]])),
        _pictures(balanced_pairs(held[0][even], held[1][even], DRAW), most=_FEW if job.smoke else None),
        _pictures(balanced_pairs(*rest, DRAW), most=_FEW if job.smoke else None),
        _pictures(balanced_pairs(*there, DRAW)),
        note,
    )


def _pictures(made: tuple[NDArray[np.uint8], Labels], most: int | None = None) -> ArrayDataset:
    return ArrayDataset(made[0][:most, None], made[1].take(np.arange(len(made[0]))[:most]))


def _set_aside(digits: Digits, n: int) -> tuple[Digits, Digits]:
    """The first n of each class in a random order, and the others."""
    images, classes = digits
    order = np.random.default_rng(DRAW).permutation(len(classes))
    first = np.concatenate([order[classes[order] == c][:n] for c in range(10)])
    others = np.setdiff1d(order, first)
    return (images[first], classes[first]), (images[others], classes[others])


def _long_tail(digits: Digits, n_max: int) -> tuple[Digits, Digits]:
    """The digits that the pictures are made of: to train on, and held out."""
    images, classes = digits
    chosen = exponential_long_tail(classes, n_max, RHO, DRAW)
    split = stratified_split(Labels(np.eye(10, dtype=np.int8)[classes[chosen]]), _HELD_OUT, DRAW)
    rest, held = (chosen[part] for part in split)
    return (images[rest], classes[rest]), (images[held], classes[held])
