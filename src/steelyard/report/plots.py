"""Plots of labels, drawn by matplotlib, which is loaded when the first one is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from steelyard.report.canvas import (
    ACCENT,
    GROUPS,
    MOST_NAMES,
    OTHER,
    Array,
    check_matplotlib,
    drawing,
    legend,
    short,
    to_png,
    to_svg,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "check_matplotlib",
    "frequency_curve",
    "heat_map",
    "resampling",
    "to_png",
    "to_svg",
    "unknown_rates",
]

_MOST_CELLS = 800  # more cells a side than pixels: they are averaged


def frequency_curve(names: Sequence[str], counts: Array, head: int = 100, tail: int = 20) -> Figure:
    """Draw the positives of each label, most frequent first, on a log scale, over head, medium and tail.

    Arguments: `names` and `counts` (L,), in any order; `head` and `tail` as `Labels.groups` takes them.
    """
    order = np.argsort(-counts, kind="stable")
    n = counts[order]
    rank = np.arange(1, len(n) + 1)
    with drawing(height=3.8 + 0.9 * (len(n) <= MOST_NAMES)) as (figure, axes):
        edges = [0.5, np.count_nonzero(n >= head) + 0.5, np.count_nonzero(n >= tail) + 0.5, len(n) + 0.5]
        for (group, colour), left, right in zip(GROUPS.items(), edges[:-1], edges[1:], strict=True):
            if right > left:
                label = f"{group}: {round(right - left):,} label{'s' * (round(right - left) != 1)}"
                axes.axvspan(left, right, color=colour, lw=0, zorder=0, label=label)
        seen = n > 0
        axes.plot(rank[seen], n[seen], color=ACCENT, lw=1.5, marker="o", ms=_marker(len(n)), zorder=3, clip_on=False)
        if not seen.all():
            missing = np.count_nonzero(~seen)
            low = np.full(missing, 0.6)
            axes.plot(rank[~seen], low, ls="", marker="x", ms=4, color=OTHER, label=f"never positive: {missing:,}")
        axes.set_yscale("log")
        axes.yaxis.set_minor_formatter("")
        axes.set_ylim(0.5, 2 * max(1, n.max()))
        axes.set_xlim(0.5, len(n) + 0.5)
        axes.set_ylabel("positives (unknown not counted)")
        axes.yaxis.set_major_formatter("{x:,.0f}")
        _name_ranks(axes, [names[c] for c in order])
        legend(axes)
    return figure


def resampling(names: Sequence[str], counts: Array, prior: Array, resampled: Array) -> Figure:
    """Draw the share of items that have each label, as it is and after class-aware sampling.

    Arguments: `names`, `counts`, `prior`, `resampled` (L,), in any order; labels are drawn by `counts`.
    """
    order = np.argsort(-counts, kind="stable")
    rank = np.arange(1, len(order) + 1)
    with drawing(height=3.8 + 0.9 * (len(order) <= MOST_NAMES)) as (figure, axes):
        size = _marker(len(order))
        highest = 0.0
        lowest = 1.0
        for values, colour, mark, label in (
            (prior, ACCENT, "o", "as it is"),
            (resampled, OTHER, "s", "after class-aware sampling"),
        ):
            drawn = np.where(values[order] > 0, values[order], np.nan)
            axes.plot(rank, drawn, color=colour, lw=1.2, marker=mark, ms=size, label=label)
            if np.isfinite(drawn).any():
                lowest, highest = min(lowest, float(np.nanmin(drawn))), max(highest, float(np.nanmax(drawn)))
        axes.set_yscale("log")
        axes.yaxis.set_minor_formatter("")
        axes.set_ylim(lowest / 2, min(1.3, 3 * highest) if highest else 1)
        axes.set_xlim(0.5, len(order) + 0.5)
        axes.set_ylabel("positives / known labels")
        axes.yaxis.set_major_formatter("{x:g}")
        _name_ranks(axes, [names[c] for c in order])
        legend(axes)
    return figure


def unknown_rates(names: Sequence[str], counts: Array, rates: Array) -> Figure:
    """Draw the share of items for which each label is unknown.

    Arguments: `names`, `counts`, `rates` (L,), in any order; labels are drawn by `counts`.
    """
    order = np.argsort(-counts, kind="stable")
    with drawing(height=3.2 + 0.9 * (len(order) <= MOST_NAMES)) as (figure, axes):
        rank = np.arange(1, len(order) + 1)
        few = len(order) <= MOST_NAMES
        axes.bar(rank, 100 * rates[order], width=0.8 if few else 1.0, color=ACCENT, lw=0)
        axes.set_ylim(0, min(100, max(1e-3, 110 * float(rates.max()))))
        axes.set_xlim(0.5, len(order) + 0.5)
        axes.set_ylabel("unknown, % of items")
        _name_ranks(axes, [names[c] for c in order])
    return figure


def heat_map(names: Sequence[str], conditional: Array) -> Figure:
    """Draw p(i|j), row i given column j; names are written where they fit, else ranks.

    Arguments: `names` and `conditional` (L, L), both in the order to draw, most frequent first.
    """
    n = len(names)
    named = n <= MOST_NAMES
    side = 2.6 + 0.15 * n if named else 6.2
    with drawing(width=side + 1.2, height=side) as (figure, axes):
        step = -(-n // _MOST_CELLS)
        shown = conditional if step == 1 else _averaged(conditional, step)
        edges = (0.5, n + 0.5, n + 0.5, 0.5)
        image = axes.imshow(
            np.ma.masked_invalid(shown), cmap=_colours(), vmin=0, vmax=1, extent=edges, interpolation="nearest"
        )
        figure.colorbar(image, ax=axes, shrink=0.7, label="p(row | column)")
        if named:
            ticks = np.arange(1, n + 1)
            written = [short(name) for name in names]
            axes.set_xticks(ticks, written, rotation=90, fontsize=8)
            axes.set_yticks(ticks, written, fontsize=8)
        else:
            axes.set_xlabel("given this label, by rank")
            axes.set_ylabel("label, by rank")
        axes.tick_params(length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
    return figure


def _name_ranks(axes: Any, names: Sequence[str]) -> None:
    """Write every name along the x axis where they fit, else ranks, and the names of the first and the last."""
    if len(names) <= MOST_NAMES:
        axes.set_xticks(range(1, len(names) + 1), [short(name) for name in names], rotation=60, ha="right", fontsize=9)
        axes.tick_params(axis="x", length=0)
        for label in axes.get_xticklabels():
            label.set_rotation_mode("anchor")
    else:
        axes.set_xlabel(f"labels by rank, from {short(names[0])} to {short(names[-1])}")


def _marker(n: int) -> float:
    return 4.0 if n <= MOST_NAMES else 2.0 if n <= 200 else 0.0


def _averaged(values: Array, step: int) -> Array:
    """Means of blocks of `step` × `step` cells, of those that are defined."""
    n = -(-len(values) // step) * step
    padded = np.full((n, n), np.nan)
    padded[: len(values), : len(values)] = values
    blocks = padded.reshape(n // step, step, n // step, step)
    defined = np.isfinite(blocks)
    total, times = np.where(defined, blocks, 0).sum((1, 3)), defined.sum((1, 3))
    means: Array = np.divide(total, times, out=np.full_like(total, np.nan), where=times > 0)
    return means


def _colours() -> Any:
    """White to dark blue; grey where p(i|j) is not defined."""
    import matplotlib as mpl

    return mpl.colormaps["Blues"].with_extremes(bad="#d9d9d9")
