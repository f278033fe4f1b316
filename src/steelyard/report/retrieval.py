"""How well searching by several labels works, against their number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from steelyard.report.canvas import MARKERS, PANEL, SERIES, drawing, key, short

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class RetrievalCurve(NamedTuple):
    """The mAP of one run by the number of terms of a query, and where it was sampled the interval of each."""

    by_terms: Mapping[int, float]
    intervals: Mapping[int, tuple[float, float]]


def retrieval_curves(
    curves: Mapping[str, RetrievalCurve], dashed: Mapping[str, RetrievalCurve] | None = None
) -> Figure:
    """Draw mAP in per cent against the number of terms of a query, a line a run, with intervals where sampled.

    - `curves`: by the name of the run, in the order to draw.
    - `dashed`: others of the same runs, drawn dashed in their colours, such as by σ(z) instead of η.
    """
    with drawing(PANEL, 3.6) as (figure, axes):
        places = {name: i for i, name in enumerate(curves)}
        for style, group in (("-", curves), ("--", dashed or {})):
            for name, curve in group.items():
                i = places[name]
                colour, marker = SERIES[i % len(SERIES)], MARKERS[i % len(MARKERS)]
                terms = [k for k, value in curve.by_terms.items() if np.isfinite(value)]
                values = 100 * np.array([curve.by_terms[k] for k in terms])
                label = short(name) if style == "-" else None
                axes.plot(terms, values, color=colour, ls=style, lw=1.5, marker=marker, ms=4.5, label=label)
                ends = 100 * np.array([curve.intervals[k] for k in terms]).reshape(-1, 2)
                if np.ptp(ends, axis=1).any():
                    axes.fill_between(terms, ends[:, 0], ends[:, 1], color=colour, alpha=0.2, lw=0)
        axes.set_xticks(sorted({k for curve in curves.values() for k in curve.by_terms}))
        axes.set_xlabel("terms of a query")
        axes.set_ylabel("mAP over queries, %")
        axes.set_ylim(bottom=0)
        axes.grid(True)
        key(figure, axes, columns=2)
    return figure
