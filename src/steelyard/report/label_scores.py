"""How good each label is, beside how frequent it was in training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from steelyard.report.canvas import (
    ACCENT,
    GROUPS,
    INK,
    MARKERS,
    MOST_NAMES,
    OTHER,
    PANEL,
    PAPER,
    SERIES,
    SOFT,
    Array,
    drawing,
    key,
    short,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BUCKETS = 40
_MOST_DOTS = 1000  # more would only blacken the plot


def label_bars(
    names: Sequence[str],
    counts: Array,
    f1: Array,
    precision: Array,
    recall: Array,
    support: Array,
    head: int = 100,
    tail: int = 20,
) -> Figure:
    """Draw F1 as a bar, precision and recall as marks on it, for each of up to 40 labels, most frequent at the top.

    Arguments: `names`, training `counts`, `f1`, `precision`, `recall` and the positives evaluated on, `support`: (L,)
    in any order; `head` and `tail` as `Labels.groups` takes them. A label without positives has no bar.
    """
    order = _order(counts)
    with drawing(PANEL, 1.1 + 0.21 * len(order)) as (figure, axes):
        rank = np.arange(1, len(order) + 1)
        _bands(axes.axhspan, counts[order], head, tail)
        judged = support[order] > 0
        axes.barh(rank[judged], f1[order][judged], height=0.62, color=ACCENT, lw=0, label="F1")
        for values, mark, colour, label in ((precision, "<", OTHER, "precision"), (recall, ">", INK, "recall")):
            x = values[order][judged]
            axes.plot(x, rank[judged], mark, ms=6, color=colour, mec=PAPER, mew=0.6, label=label, clip_on=False)
        for y in rank[~judged]:
            axes.text(0.01, y, "no positive to judge by", va="center", fontsize=8, color=SOFT)
        _name_rows(axes, names, counts, order)
        key(figure, axes, columns=3, first=("F1", "precision", "recall", "head", "medium", "tail"))
    return figure


def label_points(
    names: Sequence[str], counts: Array, scores: Mapping[str, Array], quantity: str, head: int = 100, tail: int = 20
) -> Figure:
    """Draw a score of several runs for each of up to 40 labels, most frequent at the top.

    Arguments: `names` and training `counts` (L,) in any order; `scores` (L,) by the name of the run, NaN where there is
    none; `quantity`, beneath the x axis; `head` and `tail` as `Labels.groups` takes them.
    """
    order = _order(counts)
    with drawing(PANEL, 1.3 + 0.21 * len(order) + 0.1 * len(scores)) as (figure, axes):
        rank = np.arange(1, len(order) + 1)
        _bands(axes.axhspan, counts[order], head, tail)
        rows = np.array(list(scores.values()))[:, order]
        some = np.isfinite(rows).any(0)
        axes.hlines(rank[some], np.nanmin(rows[:, some], 0), np.nanmax(rows[:, some], 0), color=SOFT, lw=0.8)
        for i, (name, values) in enumerate(scores.items()):
            colour, mark = SERIES[i % len(SERIES)], MARKERS[i % len(MARKERS)]
            axes.plot(values[order], rank, ls="", marker=mark, ms=5.5, color=colour, label=short(name), zorder=3)
        _name_rows(axes, names, counts, order)
        axes.set_xlabel(quantity)
        key(figure, axes, columns=3, first=("head", "medium", "tail"))
    return figure


def label_trend(counts: Array, values: Array, quantity: str, head: int = 100, tail: int = 20) -> Figure:
    """Draw a score of many labels by their rank in training: a dot each, the middle and the middle half of them.

    Arguments: training `counts` and `values` (L,), NaN where there is none; `quantity`, beside the y axis.
    """
    order = _order(counts)
    values = values[order]
    rank = np.arange(1, len(order) + 1)
    with drawing(PANEL, 3.1) as (figure, axes):
        _bands(axes.axvspan, counts[order], head, tail)
        if len(order) <= _MOST_DOTS:
            axes.plot(rank, values, ls="", marker="o", ms=2.5, alpha=0.45, color=ACCENT, mew=0)
        parts = np.array_split(np.arange(len(order)), min(_BUCKETS, max(1, len(order) // 5)))
        parts = [part for part in parts if np.isfinite(values[part]).any()]
        at = [float(rank[part].mean()) for part in parts]
        quartiles = np.array([np.nanquantile(values[part], (0.25, 0.5, 0.75)) for part in parts]).reshape(-1, 3)
        low, middle, high = quartiles.T
        axes.fill_between(at, low, high, color=OTHER, alpha=0.25, lw=0, label="middle half")
        axes.plot(at, middle, color=OTHER, lw=1.6, label="median")
        axes.set_ylim(-0.02, 1.02)
        axes.set_xlim(0.5, len(order) + 0.5)
        axes.set_ylabel(quantity)
        axes.set_xlabel("labels by rank, most frequent first")
        key(figure, axes, columns=3, first=("head", "medium", "tail", "median", "middle half"))
    return figure


def fits(n_labels: int) -> bool:
    """Return whether `label_bars` and `label_points` have room for so many labels."""
    return n_labels <= MOST_NAMES


def _order(counts: Array) -> Array:
    return np.argsort(-counts, kind="stable")


def _bands(span: Any, counts: Array, head: int, tail: int) -> None:
    """Colour the places of head, medium and tail labels, given in descending order."""
    edges = [0.5, np.count_nonzero(counts >= head) + 0.5, np.count_nonzero(counts >= tail) + 0.5, len(counts) + 0.5]
    for (group, colour), start, end in zip(GROUPS.items(), edges[:-1], edges[1:], strict=True):
        if end > start:
            span(start, end, color=colour, lw=0, zorder=0, label=group)


def _name_rows(axes: Any, names: Sequence[str], counts: Array, order: Array) -> None:
    written = [f"{short(names[c], 18)} ({int(counts[c]):,})" for c in order]
    axes.set_yticks(range(1, len(order) + 1), written, fontsize=9)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(order) + 0.5, 0.5)
    axes.set_xlim(0, 1.02)
