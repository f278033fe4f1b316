"""Labels by how often they are present: head, medium and tail, and the rarest."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.labels.inputs import as_whole


def head_medium_tail(counts: NDArray[Any], head: int, tail: int) -> dict[str, NDArray[np.int64]]:
    """Return the labels with at least `head` positives, with fewer than `tail` (also with none), and between."""
    if not 0 <= tail <= head:
        raise ValueError(f"head is {head} and tail is {tail}: tail must lie between 0 and head")
    masks = {"head": counts >= head, "medium": (counts >= tail) & (counts < head), "tail": counts < tail}
    return {group: np.flatnonzero(mask) for group, mask in masks.items()}


def rarest(counts: NDArray[Any], k: int) -> NDArray[np.int64]:
    """Return the `k` labels with the fewest positives, rarest first, equal counts by position."""
    k = as_whole(k, "k")
    if not 1 <= k <= len(counts):
        raise ValueError(f"k is {k}: there are {len(counts)} labels, ask for 1 to {len(counts)} of them")
    return np.argsort(counts, kind="stable")[:k]
