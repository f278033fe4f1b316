"""Read embeddings that were computed elsewhere, from a file of their own beside a manifest of labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.files import DataError, listed
from steelyard.data.readers.npz import read_array, read_arrays
from steelyard.labels import Labels

_BLOCK = 1 << 16  # rows that are looked at together


def embeddings_of(path: Path, labels: Labels, items: NDArray[np.int64] | None) -> NDArray[np.float32]:
    """Return the embeddings (n, D) of some items of a manifest.

    Args:
        path: an `.npy` file with a row for each item of the manifest, in its order; or an `.npz` file with an array X,
            likewise, or with `ids` beside it, which name its rows: their order and further rows do not matter then.
        labels: of all items of the manifest.
        items: positions of the items to return; None for all.
    """
    ids: Any = None
    if path.suffix.lower() == ".npz":
        arrays = read_arrays(path)
        if "X" not in arrays:
            raise DataError(f"{path} has no array X, but {', '.join(arrays) or 'none'}: save the embeddings as X")
        array, ids = arrays["X"], arrays.get("ids")
    else:
        array = read_array(path)
    if not isinstance(array, np.ndarray) or array.ndim != 2 or array.dtype.kind not in "iuf" or array.shape[1] == 0:
        shape = f"shape {array.shape} and type {array.dtype}"
        raise DataError(f"{path} has {shape}: give embeddings as numbers, one row per item, (N, D)")
    rows = np.arange(len(labels)) if ids is None else _rows_named(path, ids, len(array), labels)
    if ids is None and len(array) != len(labels):
        sizes = f"{len(array):,} rows, but the manifest {len(labels):,} items"
        raise DataError(f"{path} has {sizes}: give a row for each, in its order, or an .npz file of X and ids")
    rows = rows if items is None else rows[items]
    chosen = np.empty((len(rows), array.shape[1]), np.float32)
    with np.errstate(over="ignore"):
        for start in range(0, len(rows), _BLOCK):
            chosen[start : start + _BLOCK] = array[rows[start : start + _BLOCK]]
    bad = np.flatnonzero(~np.isfinite(chosen).all(axis=1))
    if len(bad):
        which = f"row {rows[bad[0]]:,} (item {labels.ids[int(bad[0] if items is None else items[bad[0]])]!r})"
        others = f" and {len(bad) - 1:,} others hold" if len(bad) > 1 else " holds"
        raise DataError(f"{path}: {which}{others} no finite float32: compute them again, or remove these items")
    return chosen


def _rows_named(path: Path, ids: NDArray[Any], n: int, labels: Labels) -> NDArray[np.int64]:
    """Return the row of each item by its name."""
    if ids.shape != (n,):
        raise DataError(f"{path}: ids has shape {ids.shape}, but X {n:,} rows: give one id per row")
    place = {str(name): row for row, name in enumerate(ids.tolist())}
    if len(place) < n:
        raise DataError(f"{path}: {n - len(place):,} of its ids occur twice: name every row once")
    missing = [name for name in labels.ids if name not in place]
    if missing:
        lacks = f"{len(missing):,} of {len(labels):,} items of the manifest ({listed(missing, 3)})"
        raise DataError(f"{path} has no row for {lacks}: add them, or name the column of its ids with id=")
    return np.array([place[name] for name in labels.ids], np.int64)
