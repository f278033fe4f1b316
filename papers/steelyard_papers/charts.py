"""One chart per paper: the numbers it prints and ours, and the gains over its baseline."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import TYPE_CHECKING

from steelyard.report.canvas import ACCENT, INK, OTHER, drawing, legend
from steelyard_papers.claims import Paper
from steelyard_papers.published import PUBLISHED
from steelyard_papers.result import Result, RowResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_HEIGHT = 0.27


def chart(paper: Paper, results: Mapping[str, Result]) -> Figure:
    """Draw the rows in print of the paper's main column: values on the left, gains over the baseline on the right.

    Rows of which nothing was run here have the printed value alone; so has the baseline where all do.
    """
    published = PUBLISHED[paper.table]
    printed = {row: value for row in published.rows if (value := published.value(row, paper.column)) is not None}
    found = {row.name: row for row in results[paper.table].rows} if paper.table in results else {}
    names = list(printed)[::-1]
    ours = [name for name in names if _mean(found.get(name), paper.column)[0] is not None]
    with drawing(width=9, height=_HEIGHT * len(names) + 1.3, ncols=2, sharey=True) as (figure, axes):
        for i, name in enumerate(names):
            _point(axes[0], i + 0.14, printed[name], 0.0, OTHER, "s", "in print" if not i else None)
            mean, error = _mean(found.get(name), paper.column)
            if mean is not None:
                _point(axes[0], i - 0.14, mean, error, ACCENT, "o", "here" if name == ours[0] else None)
        _gains(axes[1], names, printed, found, paper)
        axes[0].set_yticks(range(len(names)), names)
        axes[0].set_xlabel(f"{paper.column}, %")
        axes[1].set_xlabel(f"{paper.column} less that of {paper.baseline}")
        axes[1].axvline(0, color=INK, lw=0.6)
        legend(axes[0])
    return figure


def _gains(axes, names, printed, found, paper: Paper) -> None:  # type: ignore[no-untyped-def]
    """Draw bars of the gains, with two standard errors of ours."""
    base, error_of_base = _mean(found.get(paper.baseline), paper.column)
    for i, name in enumerate(names):
        if name == paper.baseline:
            continue
        axes.barh(i + 0.18, printed[name] - printed[paper.baseline], 0.34, color=OTHER)
        mean, error = _mean(found.get(name), paper.column)
        if mean is not None and base is not None:
            both = 2 * sqrt(error**2 + error_of_base**2)
            axes.barh(i - 0.18, mean - base, 0.34, color=ACCENT, xerr=both or None, error_kw={"lw": 0.8, "ecolor": INK})


def _point(axes, y: float, x: float, error: float, colour: str, marker: str, label: str | None) -> None:  # type: ignore[no-untyped-def]
    axes.errorbar(x, y, xerr=2 * error or None, fmt=marker, ms=5, color=colour, lw=1, label=label)


def _mean(row: RowResult | None, column: str) -> tuple[float | None, float]:
    """Return the mean over the seeds and its standard error, 0 of one seed."""
    if row is None or (mean := row.mean(column)) is None:
        return None, 0.0
    return mean, (row.std(column) or 0.0) / sqrt(len(row.values(column)))
