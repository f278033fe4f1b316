"""Reliability diagrams, and histograms of probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from steelyard._arrays import Array
from steelyard.labels.targets import UNKNOWN
from steelyard.metrics.calibration import Bins
from steelyard.report.canvas import (
    FRAME,
    LINES,
    PANEL,
    SERIES,
    SOFT,
    drawing,
    key,
    log_scale,
    look,
    per_cent_axis,
    unit_square,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_Z = 1.959964  # 95 % of a normal distribution lie within


def wilson(frequency: Array, n: Array) -> tuple[Array, Array]:
    """Return the ends of Wilson's 95 % interval of a share `frequency` of `n` > 0 independent trials.

    (f + z²/2n ± z √(f(1−f)/n + z²/4n²)) / (1 + z²/n).
    """
    spread = _Z**2 / n
    middle = frequency + spread / 2
    half = _Z * np.sqrt(frequency * (1 - frequency) / n + spread / (4 * n))
    return (middle - half) / (1 + spread), (middle + half) / (1 + spread)


def reliability_diagram(
    curves: Sequence[tuple[str, Bins]], intervals: bool = True, title: str = "", looks: Sequence[int] | None = None
) -> Figure:
    """Draw the share of present labels against the mean probability of each bin, and below it the size of each bin.

    Empty bins are not drawn.

    Args:
        curves: (text in the legend, pooled bins of `calibration_error`) of each curve; curves are drawn over each
            other.
        intervals: whether each point has its 95 % interval, as if labels were independent.
        title: text above the legend; "" for none.
        looks: the number of each curve's colour and marker; by default 0, 1, … in their order.

    Examples:
        >>> import numpy as np
        >>> import steelyard as sy
        >>> eta, targets = np.array([[0.1], [0.9], [0.8]]), np.array([[0], [1], [1]])
        >>> bins = sy.metrics.calibration_error(eta, targets).bins
        >>> sy.report.reliability_diagram([("η", bins)]).axes[0].get_ylabel()
        'observed frequency, %'
    """
    with drawing(PANEL, 4.9, nrows=2, sharex=True, gridspec_kw={"height_ratios": (4, 1)}) as (figure, (axes, strip)):
        axes.plot([0, 1], [0, 1], color=FRAME, lw=1, ls=(0, (4, 3)), zorder=1)
        for i, (name, bins) in enumerate(curves):
            style = look(i if looks is None else looks[i])
            colour = style["color"]
            n, confidence, frequency, edges = (
                np.asarray(x, dtype=np.float64) for x in (bins.counts, bins.confidence, bins.frequency, bins.edges)
            )
            filled = n > 0
            x, y = confidence[filled], frequency[filled]
            if intervals:
                low, high = wilson(y, n[filled])
                axes.vlines(x, low, high, color=colour, lw=3, alpha=0.3, zorder=2)
            axes.plot(x, y, lw=1.4, ms=4.5, label=name, zorder=3 + i, **style)
            width = np.diff(edges) / (len(curves) + 0.4)
            left = edges[:-1] + np.diff(edges) * 0.2 / (len(curves) + 0.4) + i * width
            strip.bar(left[filled], n[filled], width=width[filled], align="edge", color=colour, lw=0)
        unit_square(axes)
        axes.set_ylabel("observed frequency, %")
        per_cent_axis(axes.yaxis)
        log_scale(strip, lambda value, _: _thousands(value))
        strip.set_ylim(0.5, 3 * max([1, *(int(np.max(np.asarray(bins.counts), initial=0)) for _, bins in curves)]))
        strip.set_ylabel("labels")
        strip.set_xlabel("probability")
        key(figure, axes, title=title)
    return figure


def score_counts(probabilities: Array, targets: Array, bins: int = 20) -> tuple[Array, Array]:
    """Return the number of present and of absent labels in each of `bins` equal parts of [0, 1], without unknown ones.

    A probability on an inner edge, in the precision of `probabilities`, counts in the upper part.

    Args:
        probabilities: in [0, 1], of any shape.
        targets: of the same shape, 1 present, 0 absent, −1 unknown; a soft one is present from .5 on.
        bins: the number of parts.

    Examples:
        >>> import numpy as np
        >>> import steelyard as sy
        >>> eta, targets = np.array([[0.1], [0.9], [0.8]]), np.array([[0], [1], [-1]])
        >>> present, absent = sy.report.score_counts(eta, targets, bins=2)
        >>> present.tolist(), absent.tolist()
        ([0, 1], [1, 0])
    """
    edges = (np.arange(bins + 1) / bins).astype(probabilities.dtype)
    masks = (targets >= 0.5, (targets < 0.5) & (targets != UNKNOWN))
    present, absent = (np.histogram(probabilities[mask], edges)[0] for mask in masks)
    return present, absent


def score_histogram(present: Array, absent: Array, title: str) -> Figure:
    """Draw how the probabilities of present and of absent labels are distributed over [0, 1], on a log scale.

    Args:
        present, absent: how many present and absent labels have a probability in each part, see `score_counts`.
        title: text above the legend.

    Examples:
        >>> import numpy as np
        >>> import steelyard as sy
        >>> sy.report.score_histogram(np.array([1, 9]), np.array([9, 1]), "all").axes[0].get_yscale()
        'log'
    """
    with drawing(PANEL, 2.9) as (figure, axes):
        edges = np.linspace(0, 1, len(present) + 1)
        lowest = 1.0
        for counts, colour, line, name in ((absent, SOFT, LINES[1], "absent"), (present, SERIES[2], "-", "present")):
            total = int(counts.sum())
            if total:
                shares = counts / total
                lowest = min(lowest, float(shares[shares > 0].min()))
                label = f"{name}: {total:,}"
                axes.stairs(shares, edges, color=colour, fill=True, alpha=0.22, lw=0)
                axes.stairs(shares, edges, color=colour, lw=1.5, ls=line, label=label)
        log_scale(axes, lambda share, _: f"{100 * share:g}")
        axes.set_ylim(lowest / 2, 1.3)
        axes.set_xlim(0, 1)
        axes.set_xlabel("probability")
        axes.set_ylabel("share of these labels, %")
        key(figure, axes, columns=2, title=title)
    return figure


def _thousands(value: float) -> str:
    """Return a tick of a log scale in few letters: 1, 10, 100, 1k, 10k, 1M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"
