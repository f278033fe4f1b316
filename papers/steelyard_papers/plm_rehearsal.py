"""MultiMNIST's two tracks, and a rehearsal of them on training digits alone, to choose settings by."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from steelyard.data.builders import exponential_long_tail
from steelyard.data.dataset import ArrayDataset
from steelyard.data.readers.multi_mnist import N_MAX, RHO, balanced_pairs, imbalanced_pairs
from steelyard.labels import Labels
from steelyard_papers import fixtures
from steelyard_papers.plm_rows import DRAW, Digits, open_digits
from steelyard_papers.reproduction import Job

_PAD = 2


class Tracks(NamedTuple):
    """What the two tracks train on, and what both are measured on."""

    pictures: ArrayDataset
    """Of the paper's track: two digits each, long-tailed."""
    digits: ArrayDataset
    """Of the open track: the same digits one by one."""
    test: ArrayDataset
    note: str


def tracks(job: Job) -> Tracks:
    """Return the data of a job; with `validation` of a rehearsal, in which no test digit is seen.

    Rehearsal: of each class as many of MNIST's training digits as that share of the most frequent class are set aside,
    and their pictures are measured on; the long tail is drawn from the others, and is shorter by that share.
    """
    digits = open_digits(job, True)
    n_max = fixtures.MNIST_N_MAX if job.smoke else N_MAX
    if job.validation and not job.smoke:  # of generated digits there are too few to set any aside
        n_there = int(job.validation * n_max)
        there, digits = _set_aside(digits, n_there)
        n_max -= n_there
        note = f"a rehearsal: measured on pictures of {len(there[1]):,} training digits that are not trained on"
    else:
        there, note = open_digits(job, False), f"imbalanced MultiMNIST, the draw of seed {DRAW}"
    images, classes = digits
    kept = exponential_long_tail(classes, n_max, RHO, DRAW)
    middle = np.pad(images[kept], ((0, 0), (_PAD, _PAD), (_PAD, _PAD)))[:, None]
    return Tracks(
        _pictures(imbalanced_pairs(*digits, n_max, seed=DRAW)),
        ArrayDataset(middle, Labels(np.eye(10, dtype=np.int8)[classes[kept]])),
        _pictures(balanced_pairs(*there, DRAW)),
        note,
    )


def _pictures(made: tuple[NDArray[np.uint8], Labels]) -> ArrayDataset:
    return ArrayDataset(made[0][:, None], made[1])


def _set_aside(digits: Digits, n: int) -> tuple[Digits, Digits]:
    """The first n of each class in a random order, and the others."""
    images, classes = digits
    order = np.random.default_rng(DRAW).permutation(len(classes))
    first = np.concatenate([order[classes[order] == c][:n] for c in range(10)])
    others = np.setdiff1d(order, first)
    return (images[first], classes[first]), (images[others], classes[others])
