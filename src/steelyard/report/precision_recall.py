"""Precision-recall curves, with a mark at the chosen threshold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from steelyard._arrays import Array
from steelyard.labels.targets import UNKNOWN
from steelyard.report.canvas import LINES, PANEL, PAPER, drawing, key, look, per_cent_axis, short, unit_square
from steelyard.report.headline import percent, probability

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_POINTS = 400  # more do not show


@dataclass(frozen=True)
class PrecisionRecallCurve:
    """The curve of one label, made by `precision_recall_curve`.

    Attributes:
        name: of the label.
        recall: of each point, ascending.
        precision: of each point.
        ap: average precision, the area under the curve.
        threshold: at or above which the label is decided present; None for no decisions.
        at: (recall, precision) at the threshold; None without one.

    Examples:
        >>> import numpy as np
        >>> import steelyard as sy
        >>> scores, targets = np.array([0.9, 0.6, 0.4]), np.array([1, 0, 1])
        >>> curve = sy.report.precision_recall_curve("cat", scores, targets, threshold=0.5)
        >>> tuple(map(float, curve.at))
        (0.5, 0.5)
    """

    name: str
    recall: Array
    precision: Array
    ap: float
    threshold: float | None
    at: tuple[float, float] | None


class Steps(NamedTuple):
    """Results of deciding at each distinct score of a label, highest first; `n_decided`, the items at or above it."""

    scores: Array
    n_decided: Array
    precision: Array
    recall: Array
    area: float


def steps(scores: Array, present: Array) -> Steps:
    """Return the results of each score of one label (N,) as the threshold; `present` bool (N,), some true."""
    order = np.argsort(-scores, kind="stable")
    s = scores[order]
    last = np.append(s[1:] != s[:-1], True)
    n_decided, true = np.flatnonzero(last) + 1, np.cumsum(present[order])[last]
    precision, recall = true / n_decided, true / true[-1]
    return Steps(s[last], n_decided, precision, recall, float(np.sum(np.diff(recall, prepend=0.0) * precision)))


def precision_recall_curve(name: str, scores: Array, targets: Array, threshold: float | None) -> PrecisionRecallCurve:
    """Return the curve over the distinct scores of one label, P_k = TP_k/(TP_k + FP_k), R_k = TP_k/positives.

    Args:
        name: of the label.
        scores: of the items (N,), higher where the label is likelier.
        targets: (N,), 1 present, 0 absent, −1 unknown (left out); a soft one is present from .5 on. At least one is.
        threshold: at or above which the label is decided present; None for no decisions. Precision is 0 where no item
            reaches it.

    Examples:
        >>> import numpy as np
        >>> import steelyard as sy
        >>> scores, targets = np.array([0.9, 0.6, 0.4]), np.array([1, 0, 1])
        >>> curve = sy.report.precision_recall_curve("cat", scores, targets, threshold=0.5)
        >>> curve.recall.tolist(), round(curve.ap, 3)
        ([0.5, 0.5, 1.0], 0.833)
    """
    known = targets != UNKNOWN
    s, hit = scores[known], targets[known] >= 0.5
    curve = steps(s, hit)
    if threshold is None:
        return PrecisionRecallCurve(name, curve.recall, curve.precision, curve.area, None, None)
    above = s >= np.asarray(threshold, s.dtype)
    hits_above = np.count_nonzero(hit & above)
    at = (hits_above / np.count_nonzero(hit), hits_above / np.count_nonzero(above) if above.any() else 0.0)
    return PrecisionRecallCurve(name, curve.recall, curve.precision, curve.area, float(threshold), at)


def precision_recall_plot(curves: Sequence[PrecisionRecallCurve], title: str) -> Figure:
    """Draw precision against recall of a few labels, each with a large mark at its threshold.

    Args:
        curves: one per label, see `precision_recall_curve`.
        title: text above the legend.

    Examples:
        >>> import numpy as np
        >>> import steelyard as sy
        >>> scores, targets = np.array([0.9, 0.6, 0.4]), np.array([1, 0, 1])
        >>> curve = sy.report.precision_recall_curve("cat", scores, targets, threshold=0.5)
        >>> sy.report.precision_recall_plot([curve], "pets").axes[0].get_xlabel()
        'recall, %'
    """
    with drawing(PANEL, 3.9) as (figure, axes):
        for i, curve in enumerate(curves):
            style = look(i) if curve.at is not None else {**look(i), "marker": None}
            x, y = _thinned(curve.recall, curve.precision)
            label = f"{short(curve.name, 18)}: AP {percent(curve.ap)}"
            if curve.threshold is not None:
                at_threshold = f", threshold {probability(curve.threshold)}"
                label += at_threshold if curve.threshold < np.inf else ", never predicted"
            line = LINES[i % len(LINES)]
            axes.plot([0, *x], [y[0], *y], color=style["color"], ls=line, lw=1.4, drawstyle="steps-pre")
            if curve.at is not None:
                axes.plot(*curve.at, ms=8, mec=PAPER, mew=0.8, ls="", clip_on=False, **style)
            axes.plot([], [], ms=5, ls=line, lw=1.4, label=label, **style)
        unit_square(axes)
        axes.set_xlabel("recall, %")
        axes.set_ylabel("precision, %")
        per_cent_axis(axes.xaxis)
        per_cent_axis(axes.yaxis)
        key(figure, axes, title=title)
    return figure


def _thinned(recall: Array, precision: Array) -> tuple[Array, Array]:
    """Return, of many points, the first, the last and the best precision in each small interval of recall."""
    if len(recall) <= _MOST_POINTS:
        return recall, precision
    stretch = np.minimum((recall * _MOST_POINTS).astype(int), _MOST_POINTS - 1)
    best = np.lexsort((-precision, stretch))
    first = np.append(True, np.diff(stretch[best]) > 0)
    kept = np.unique(np.concatenate((best[first], [0, len(recall) - 1])))
    return recall[kept], precision[kept]
