"""Where the probabilities of present and of absent labels lie."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from steelyard.labels.targets import UNKNOWN
from steelyard.report.canvas import ACCENT, OTHER, PANEL, Array, drawing, key

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def score_counts(probabilities: Array, targets: Array, bins: int = 20) -> tuple[Array, Array]:
    """Return the present and the absent cells in each of `bins` equal parts of [0, 1], unknown ones left out.

    Arguments: `probabilities` and `targets` of one shape; soft targets are present from .5 on. A value on an inner
    edge, rounded as probabilities are, belongs to the upper part.
    """
    edges = (np.arange(bins + 1) / bins).astype(probabilities.dtype)
    masks = (targets >= 0.5, (targets < 0.5) & (targets != UNKNOWN))
    present, absent = (np.histogram(probabilities[mask], edges)[0] for mask in masks)
    return present, absent


def score_histogram(present: Array, absent: Array, title: str) -> Figure:
    """Draw the shares of present and of absent cells in equal parts of [0, 1], each adding up to 1, on a log scale."""
    with drawing(PANEL, 2.9) as (figure, axes):
        edges = np.linspace(0, 1, len(present) + 1)
        lowest = 1.0
        for counts, colour, name in ((absent, ACCENT, "absent"), (present, OTHER, "present")):
            total = int(counts.sum())
            if total:
                shares = counts / total
                lowest = min(lowest, float(shares[shares > 0].min()))
                label = f"{name}: {total:,} cell{'s' * (total != 1)}"
                axes.stairs(shares, edges, color=colour, fill=True, alpha=0.22, lw=0)
                axes.stairs(shares, edges, color=colour, lw=1.5, label=label)
        axes.set_yscale("log")
        axes.yaxis.set_minor_formatter("")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_ylim(lowest / 2, 1.3)
        axes.set_xlim(0, 1)
        axes.set_xlabel("probability")
        axes.set_ylabel("share of the cells")
        key(figure, axes, columns=2, title=title)
    return figure
