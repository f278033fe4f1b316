"""How well scores rank: average precision by label (mAP@y) and by item (mAP@x)."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor

from steelyard.kernels.choice import fuses
from steelyard.labels.targets import ArrayLike
from steelyard.metrics.groups import mean_defined
from steelyard.metrics.inputs import positive, scored, shaped
from steelyard.metrics.rows import average_precision_rows

Per = Literal["label", "item"]


def average_precision(scores: ArrayLike, targets: ArrayLike, per: Per = "label") -> Any:
    """Return the exact average precision of every label (L,), or of every item (N,), as float64.

    AP = Σ_k (R_k − R_{k−1}) P_k over the distinct scores in descending order: tied scores form one threshold, as in
    scikit-learn's `average_precision_score`, so the order of items never matters. NaN where there is no known positive.

    - `scores` (N, L): larger means more present. Any dtype, infinities allowed; NaN at a known label is refused.
    - `targets` (N, L): 1 present, 0 absent, −1 unknown (as if the cell were not there), soft: present from .5 on.
    - `per`: `"label"` ranks the items of a label, `"item"` ranks the labels of an item.
    Returns a tensor on the device of `scores`, or a numpy array for a numpy array.
    """
    return _each(scores, targets, per, False)


def mean_average_precision(scores: ArrayLike, targets: ArrayLike, per: Per = "label") -> float:
    """Return the mean of `average_precision` over the labels (or items) where it is defined; NaN if it never is.

    How many were left out: `mean_defined(average_precision(scores, targets)).left_out`.
    """
    return mean_defined(_each(scores, targets, per, True)).value


def _each(scores: ArrayLike, targets: ArrayLike, per: Per, on_cpu: bool) -> Any:
    """Average precision of each label or item, as `per` says; from a GPU on the CPU where `on_cpu`."""
    if per not in ("label", "item"):
        raise ValueError(f'per is {per!r}: give "label" or "item"')
    v, t = shaped(scores, targets, "scores")
    if v.is_cuda and (result := _fused(v, t, per, on_cpu)) is not None:
        return result
    pair = scored(scores, targets)
    v, hit, known = pair.values, positive(pair.targets), pair.known
    if per == "label":
        v, hit, known = v.T, hit.T, None if known is None else known.T
    return pair.give(average_precision_rows(v, hit, known))


def _fused(scores: Tensor, targets: Tensor, per: Per, on_cpu: bool) -> Tensor | None:
    """Average precision by the GPU's own kernels; None where there are none, or a value is not allowed."""
    if not fuses(scores.device):
        return None
    from steelyard.kernels import ranking

    if scores.dtype not in ranking.DTYPES:
        return None
    if per == "label":
        scores, targets = scores.T, targets.T
    return ranking.average_precision_rows(scores, targets, on_cpu)
