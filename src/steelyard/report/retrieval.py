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

    Where there are several runs, a second panel has what each is above the first, for lines may hide each other.

    - `curves`: by the name of the run, in the order to draw.
    - `dashed`: others of the same runs, drawn dashed in their colours, such as by σ(z) instead of η.
    """
    drawn = [(name, curve, "-") for name, curve in curves.items()]
    drawn += [(name, curve, "--") for name, curve in (dashed or {}).items()]
    several = len(curves) > 1
    grid = {"nrows": 2, "sharex": True, "gridspec_kw": {"height_ratios": (3, 2)}} if several else {}
    with drawing(PANEL, 5.4 if several else 3.6, squeeze=False, **grid) as (figure, panels):
        axes, places = panels[0, 0], {name: i for i, name in enumerate(curves)}
        for name, curve, style in drawn:
            i = places[name]
            look = {
                "color": SERIES[i % len(SERIES)],
                "marker": MARKERS[i % len(MARKERS)],
                "ms": 4.5,
                "lw": 1.5,
                "ls": style,
            }
            terms = [k for k, value in curve.by_terms.items() if np.isfinite(value)]
            values = 100 * np.array([curve.by_terms[k] for k in terms])
            axes.plot(terms, values, label=short(name) if style == "-" else None, **look)
            ends = 100 * np.array([curve.intervals[k] for k in terms]).reshape(-1, 2)
            if np.ptp(ends, axis=1).any():
                axes.fill_between(terms, ends[:, 0], ends[:, 1], color=look["color"], alpha=0.2, lw=0)
            if several:
                first = 100 * np.array([drawn[0][1].by_terms.get(k, np.nan) for k in terms])
                panels[1, 0].plot(terms, values - first, **look)
        axes.set_ylabel("mAP over queries, %")
        axes.set_ylim(bottom=0)
        if several:
            panels[1, 0].set_ylabel(f"above {short(drawn[0][0], 14)}, points")
        for panel in panels[:, 0]:
            panel.grid(True)
        panels[-1, 0].set_xticks(sorted({k for curve in curves.values() for k in curve.by_terms}))
        panels[-1, 0].set_xlabel("terms of a query")
        key(figure, axes, columns=2)
    return figure
