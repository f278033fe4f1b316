"""Average precision by label (mAP@y) and by item (mAP@x), exact, tied scores as one threshold.

A positive with score s contributes (positives at or above s) / (cells at or above s), and the average precision of a
row is the mean of that over its positives. Both are counts, so nothing depends on how a sort leaves ties.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from steelyard.balance.checks import check_choice
from steelyard.kernels.choice import fuses
from steelyard.labels.targets import ArrayLike
from steelyard.metrics.groups import mean_defined
from steelyard.metrics.inputs import positive, scored, shaped

LONG_ROW = 512
"""From this many cells on, sorting scores without their labels is the faster way on a CPU."""
CELLS_AT_ONCE = 1 << 18


def average_precision_rows(scores: Tensor, positive: Tensor, known: Tensor | None = None) -> Tensor:
    """Return the average precision (R,) of each row of `scores` (R, M), float64, NaN without a positive.

    `positive` and `known` (None: all) are boolean (R, M); positives must be known. Any strides, any device.
    """
    if scores.device.type == "cpu" and scores.shape[1] >= LONG_ROW:
        return by_sorting_rows(scores, positive, known)
    return by_sorting_cells(scores, positive, known)


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
        positives = [np.sort(v[h]) for v, h in zip(values, hits, strict=True)]
        values.sort()
        for i, (v, p, n) in enumerate(zip(values, positives, n_known, strict=True)):
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


def by_sorting_cells(scores: Tensor, positive: Tensor, known: Tensor | None = None) -> Tensor:
    """Sort each row together with its labels, and count along it; on any device, some rows at a time."""
    if scores.device.type == "cpu" and scores.itemsize == 2:
        scores = scores.float()  # the same values, which a CPU compares faster
    step = max(1, max(scores.numel() // 8, CELLS_AT_ONCE) // max(1, scores.shape[1]))
    masks = [None] * len(scores) if known is None else known.split(step)
    blocks = zip(scores.split(step), positive.split(step), masks, strict=False)
    return torch.cat([_count_along(*block) for block in blocks])


def _count_along(scores: Tensor, positive: Tensor, known: Tensor | None) -> Tensor:
    if known is not None:
        scores = torch.where(known, scores, -torch.inf)
    s, order = scores.sort(1, descending=True)
    hit = positive.gather(1, order)
    hits = hit.cumsum(1, dtype=torch.int32)
    above = (torch.ones_like(hit) if known is None else known.gather(1, order)).cumsum(1, dtype=torch.int32)
    width = s.shape[1]
    ends = torch.arange(width, device=s.device).repeat(len(s), 1)  # where the scores tied with each cell end
    ends[:, :-1].masked_fill_(s[:, 1:] == s[:, :-1], width)
    ends = ends.flip(1).cummin(1).values.flip(1)
    precision = hits.gather(1, ends).double() / above.gather(1, ends)
    return torch.where(hit, precision, 0.0).sum(1) / hit.sum(1)


Per = Literal["label", "item"]


def average_precision(scores: ArrayLike, targets: ArrayLike, per: Per = "label") -> Any:
    """Return the exact average precision of every label (L,), or of every item (N,), as float64.

    P_k and R_k are precision and recall at the k-th of the distinct scores in descending order: tied scores form one
    threshold, as in scikit-learn's `average_precision_score`, so the order of items never matters. NaN where there is
    no known positive.

    Returns a tensor on the device of `scores`, or a numpy array for a numpy array.

    Formula:
        AP = Σ_k (R_k − R_{k−1}) P_k

    Args:
        scores: (N, L), larger means more present. Any dtype, infinities allowed; NaN at a known label is refused.
        targets: (N, L), 1 present, 0 absent, −1 unknown (as if the cell were not there), soft: present from .5 on.
        per: "label" ranks the items of a label, "item" the labels of an item.

    Examples:
        >>> scores = torch.tensor([[0.9, 0.8], [0.7, 0.2], [0.4, 0.6]])
        >>> targets = torch.tensor([[1, 0], [0, -1], [1, 1]])
        >>> sy.metrics.average_precision(scores, targets)
        tensor([0.8333, 0.5000], dtype=torch.float64)
        >>> sy.metrics.average_precision(scores, targets, per="item")  # the second item has no positive
        tensor([1., nan, 1.], dtype=torch.float64)
    """
    return _each(scores, targets, per, False)


def mean_average_precision(scores: ArrayLike, targets: ArrayLike, per: Per = "label") -> float:
    """Return the mean of `average_precision` over the labels (or items) where it is defined; NaN if it never is.

    How many were left out: `mean_defined(average_precision(scores, targets)).left_out`.

    Args:
        scores: (N, L), any real numbers; higher ranks first.
        targets: (N, L), 1 present, 0 absent, −1 unknown (left out); a soft target is present from .5 on.
        per: "label" for (L,), "item" for (N,).

    Examples:
        >>> scores = torch.tensor([[0.9, 0.8], [0.7, 0.2], [0.4, 0.6]])
        >>> targets = torch.tensor([[1, 0], [0, -1], [1, 1]])
        >>> round(sy.metrics.mean_average_precision(scores, targets), 3)  # (5/6 + 1/2)/2
        0.667
    """
    return mean_defined(_each(scores, targets, per, True)).value


def _each(scores: ArrayLike, targets: ArrayLike, per: Per, on_cpu: bool) -> Any:
    """Return the average precision of each label or item; with `on_cpu` that of a GPU's tensors on the CPU."""
    check_choice(Per, per=per)
    v, t = shaped(scores, targets, "scores")
    if v.is_cuda and (result := _fused(v, t, per, on_cpu)) is not None:
        return result
    pair = scored(scores, targets)
    v, hit, known = pair.values, positive(pair.targets), pair.known
    if per == "label":
        v, hit, known = v.T, hit.T, None if known is None else known.T
    return pair.give(average_precision_rows(v, hit, known))


def _fused(scores: Tensor, targets: Tensor, per: Per, on_cpu: bool) -> Tensor | None:
    """Return average precision by the fused kernels; None where there are none, or a value is not allowed."""
    if not fuses(scores.device):
        return None
    from steelyard.kernels import ranking

    if scores.dtype not in ranking.DTYPES:
        return None
    if per == "label":
        scores, targets = scores.T, targets.T
    return ranking.average_precision_rows(scores, targets, on_cpu)
