"""Image files decoded once into arrays, so that a GPU trains on them without waiting for files."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from steelyard.data.dataset import ArrayDataset, ImageDataset
from steelyard.data.subset import Subset
from steelyard.run.datasets import Datasets
from steelyard.training.batches import n_workers, ordered

MOST = 4 << 30
"""Bytes of pixels of a part up to which it is decoded as a whole."""
_BATCH = 256


def in_memory(datasets: Datasets, workers: int = -1) -> Datasets:
    """Return the same items, image files of one size as arrays of pixels where they take no more than `MOST` bytes.

    Args:
        datasets: as training takes them; what is no image file, or may be skipped, stays as it is.
        workers: processes that decode, -1 for as many as there are cores, eight at most.
    """
    parts = {name: _decoded(getattr(datasets, name), workers) for name in ("train", "validation", "test")}
    return datasets._replace(**parts)


def _decoded(data: Any, workers: int) -> Any:
    inside = data.data if isinstance(data, Subset) else data
    if not isinstance(inside, ImageDataset) or inside.size is None or inside.on_bad_image == "skip":
        return data
    shape = (len(data), 3, *inside.size)
    if prod(shape) > MOST:
        return data
    pixels = np.empty(shape, np.uint8)
    for batch in ordered(data, _BATCH, n_workers(workers, data)):
        pixels[batch.index.numpy()] = np.asarray(batch.inputs)
    return ArrayDataset(pixels, data.labels, inside.note)
