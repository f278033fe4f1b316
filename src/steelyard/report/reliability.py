"""Reliability diagrams: how often a label is there when the model says it is with probability p."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from steelyard.metrics.calibration import Bins
from steelyard.report.canvas import FRAME, MARKERS, PANEL, SERIES, Array, drawing, key

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_Z = 1.959964  # 95 % of a normal distribution lie within


def wilson(frequency: Array, n: Array) -> tuple[Array, Array]:
    """Return the ends of Wilson's 95 % interval of a share `frequency` of `n` > 0 independent cells.

    (f + z²/2n ± z √(f(1−f)/n + z²/4n²)) / (1 + z²/n).
    """
    spread = _Z**2 / n
    middle = frequency + spread / 2
    half = _Z * np.sqrt(frequency * (1 - frequency) / n + spread / (4 * n))
    return (middle - half) / (1 + spread), (middle + half) / (1 + spread)


def reliability_diagram(readings: Sequence[tuple[str, Bins]], intervals: bool = True, title: str = "") -> Figure:
    """Draw the share of present labels against the mean probability of each bin, and below it the cells of each bin.

    Arguments: `readings`, a text for the legend and pooled bins each, drawn over each other; `intervals`,
    whether each point has its 95 % interval, as if cells were independent; `title`. Empty bins are not drawn.
    """
    with drawing(PANEL, 4.9, nrows=2, sharex=True, gridspec_kw={"height_ratios": (4, 1)}) as (figure, (axes, strip)):
        axes.plot([0, 1], [0, 1], color=FRAME, lw=1, ls=(0, (4, 3)), zorder=1)
        for i, (name, bins) in enumerate(readings):
            colour = SERIES[i % len(SERIES)]
            n, confidence, frequency, edges = (
                np.asarray(x, dtype=np.float64) for x in (bins.counts, bins.confidence, bins.frequency, bins.edges)
            )
            filled = n > 0
            x, y = confidence[filled], frequency[filled]
            if intervals:
                low, high = wilson(y, n[filled])
                axes.vlines(x, low, high, color=colour, lw=3, alpha=0.3, zorder=2)
            axes.plot(x, y, color=colour, lw=1.4, marker=MARKERS[i % len(MARKERS)], ms=4.5, label=name, zorder=3 + i)
            width = np.diff(edges) / (len(readings) + 0.4)
            left = edges[:-1] + np.diff(edges) * 0.2 / (len(readings) + 0.4) + i * width
            strip.bar(left[filled], n[filled], width=width[filled], align="edge", color=colour, lw=0)
        _frame(axes, strip, max([int(np.max(b.counts, initial=0)) for _, b in readings], default=0))
        key(figure, axes, title=title)
    return figure


def _frame(axes: Any, strip: Any, most: int) -> None:
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(-0.02, 1.02)
    axes.grid(True)
    axes.set_ylabel("share that is present")
    strip.set_yscale("log")
    strip.set_ylim(0.5, 3 * max(1, most))
    strip.yaxis.set_minor_formatter("")
    strip.yaxis.set_major_formatter(lambda value, _: _thousands(value))
    strip.set_ylabel("cells")
    strip.set_xlabel("probability")


def _thousands(value: float) -> str:
    """1, 10, 100, 1k, 10k, 1M: ticks of a log scale in few letters."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"
