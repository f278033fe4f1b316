"""Average precision of many rows of scores at once, exactly, tied scores forming one threshold.

A positive with score s contributes (positives at or above s) / (cells at or above s), and the average precision of a
row is the mean of that over its positives. Both are counts, so nothing depends on how a sort leaves ties. There are two
ways to count: on a CPU, long rows are sorted without their labels and the positives looked up in them; elsewhere the
positives alone are sorted, and every cell of the row is dropped between two of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

Array: TypeAlias = np.ndarray[Any, Any]

LONG_ROW = 512
"""From this many cells on, sorting whole rows is the faster way on a CPU."""

LEAST_ROOM = 1 << 24
"""Bytes of workspace that are always allowed."""


def average_precision_rows(scores: Tensor, positive: Tensor, known: Tensor | None = None) -> Tensor:
    """Return the average precision (R,) of each row of `scores` (R, M), float64, NaN without a positive.

    `positive` and `known` (None: all) are boolean (R, M); positives must be known. Any strides, any device.
    """
    if scores.device.type == "cpu" and scores.shape[1] >= LONG_ROW:
        return by_sorting_rows(scores, positive, known)
    return by_sorting_positives(scores, positive, known)


def by_sorting_rows(scores: Tensor, positive: Tensor, known: Tensor | None = None) -> Tensor:
    """Sort each row, and look the positives up in it; `torch.get_num_threads()` rows at a time."""
    n_rows, width = scores.shape
    every = (scores.float() if scores.dtype == torch.bfloat16 else scores).numpy()  # numpy has no bfloat16
    is_hit, is_known = positive.numpy(), None if known is None else known.numpy()
    wide = np.float64 if every.dtype == np.float64 else np.float32
    out = np.full(n_rows, np.nan)
    workers = max(1, min(torch.get_num_threads(), n_rows))
    step = max(1, min(16, n_rows // (2 * workers)))

    def block(start: int) -> None:
        rows = slice(start, start + step)
        values = np.array(every[rows], dtype=wide, order="C")
        hits = np.ascontiguousarray(is_hit[rows])
        n_known = np.full(len(values), width)
        if is_known is not None:
            unknown = np.logical_not(is_known[rows], order="C")
            values[unknown] = -np.inf
            n_known -= unknown.sum(1)
        found = [np.sort(v[h]) for v, h in zip(values, hits, strict=True)]
        values.sort()
        for i, (v, p, n) in enumerate(zip(values, found, n_known, strict=True)):
            if len(p):
                above = np.minimum(width - np.searchsorted(v, p), n)  # an unknown cell ties with a known -inf
                out[start + i] = np.mean((len(p) - np.searchsorted(p, p)) / above)

    if workers == 1 or n_rows * width < 1 << 16:
        for start in range(0, n_rows, step):
            block(start)
    else:
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(block, range(0, n_rows, step)))
    return torch.from_numpy(out)


def by_sorting_positives(scores: Tensor, positive: Tensor, known: Tensor | None = None) -> Tensor:
    """Sort the positives of each row, and count the cells that fall between them; batched, on any device.

    Rows are taken in order of their positives, as many at a time as fit in a workspace about twice as large as the
    scores.
    """
    if scores.device.type == "cpu" and scores.itemsize == 2:
        scores = scores.float()  # the same values, which a CPU compares faster
    out = torch.full((len(scores),), torch.nan, dtype=torch.float64, device=scores.device)
    counts = positive.sum(1)
    for rows, longest in _blocks(counts, scores):
        if rows is None:
            return _bucket(scores, positive, known, None, counts, longest)
        out[rows] = _bucket(scores, positive, known, rows, counts[rows], longest)
    return out


def _blocks(counts: Tensor, scores: Tensor) -> Iterator[tuple[Tensor | None, int]]:
    """Yield (rows, most positives in one) for the rows that have positives; rows None: all there are, in one block."""
    descending, order = counts.sort(descending=True)
    n = descending.cpu().numpy()
    n = n[n > 0]
    before = np.concatenate([[0], np.cumsum(n)])
    room = max(2 * scores.numel() * scores.itemsize, LEAST_ROOM)
    start = 0
    while start < len(n):
        # bytes of the first k rows of the block: 60 a positive, 12 (16 for float64) a place in the padded table
        bytes_used = 60 * (before[start + 1 :] - before[start])
        bytes_used += (8 + scores.itemsize) * n[start] * np.arange(1, len(n) - start + 1)
        k = max(1, int(np.searchsorted(bytes_used, room, side="right")))
        rows = None if k == len(counts) else order[start : start + k]
        yield rows, int(n[start])
        start += k


def _bucket(
    scores: Tensor, positive: Tensor, known: Tensor | None, rows: Tensor | None, count: Tensor, longest: int
) -> Tensor:
    """Average precision of `rows`, which have `count` positives each, `longest` at most."""
    device, width = scores.device, scores.shape[1]
    row, col = (positive if rows is None else positive[rows]).nonzero(as_tuple=True)
    value = scores[row if rows is None else rows[row], col]
    order = value.argsort()
    value = value[order[row[order].argsort(stable=True)]]  # ascending within each row; `row` itself is unchanged
    place = torch.arange(len(row), device=device) - (count.cumsum(0) - count)[row]
    at = row * longest + place
    table = torch.full((len(count), longest), torch.inf, dtype=value.dtype, device=device)
    table.view(-1)[at] = value

    wide = torch.int32 if len(count) * width < 1 << 31 else torch.int64
    between = torch.zeros(len(count), longest + 1, dtype=torch.int32, device=device)
    one = torch.ones((), dtype=torch.int32, device=device)
    step = max(1, max(scores.numel() * scores.itemsize // 2, LEAST_ROOM // 4) // ((8 + scores.itemsize) * len(count)))
    for start in range(0, width, step):
        cells = slice(start, start + step)
        s = scores[:, cells] if rows is None else scores[rows, cells]
        index = torch.searchsorted(table, s.contiguous(), right=True)
        if known is None:
            weight = one.expand(index.shape)
        else:
            weight = (known[:, cells] if rows is None else known[rows, cells]).int()
        between.scatter_add_(1, index, weight)
    n_known = torch.full_like(count, width) if known is None else (known if rows is None else known[rows]).sum(1)
    above = n_known.cumsum(0)[row] - between.view(-1).cumsum(0, dtype=wide)[at + row]
    del between
    hits = count[row] - torch.searchsorted(table, table, out_int32=True).view(-1)[at]
    precision = torch.zeros(table.shape, dtype=torch.float64, device=device)
    precision.view(-1)[at] = hits.double() / above
    return precision.sum(1) / count
