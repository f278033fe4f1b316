"""Plots of training, epoch by epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from steelyard._arrays import Array
from steelyard.metrics.groups import label_groups
from steelyard.report.canvas import (
    FRAME,
    GROUP_LINES,
    LINES,
    PANEL,
    drawing,
    key,
    log_scale,
    look,
    per_cent_axis,
    short,
)
from steelyard.report.headline import get, percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EpochCurve: TypeAlias = tuple[list[int], list[float]]
"""Epochs, and a value for each."""

_MOST_WRITTEN = 20  # more names do not fit beside the ends of lines
_MOST_LINES = 60  # more lines cover each other


def series(history: Sequence[Mapping[str, Any]], *path: str) -> EpochCurve:
    """Return the epochs with a finite number at `path`, such as ("validation", "map"), and these numbers."""
    epochs, values = [], []
    for line in history:
        value = get(line, *path)
        if isinstance(value, int | float) and abs(value) < 1e300:
            epochs.append(int(line["epoch"]))
            values.append(float(value))
    return epochs, values


def drawable(curves: Mapping[str, EpochCurve]) -> dict[str, EpochCurve]:
    """Return the curves that have a point."""
    return {name: curve for name, curve in curves.items() if curve[0]}


def history_curves(
    curves: Mapping[str, EpochCurve],
    quantity: str,
    best: Literal["highest", "lowest"] | None = None,
    linear: bool = False,
    shares: bool = False,
) -> Figure:
    """Draw quantities over epochs; values that span more than a factor of 50 get a log scale, unless `linear`.

    Args:
        curves: epochs and values of each curve, by its text in the legend.
        quantity: text beside the y axis.
        best: which value of each curve is marked and written in the legend, "highest" or "lowest"; None for neither.
        linear: whether the y axis is linear whatever the values.
        shares: whether values are written in per cent.

    Examples:
        >>> import steelyard as sy
        >>> figure = sy.report.history_curves({"training": ([1, 2, 3], [0.9, 0.5, 0.4])}, "loss")
        >>> figure.axes[0].get_ylabel()
        'loss'
    """
    with drawing(PANEL, 3.1) as (figure, axes):
        every = [v for _, values in curves.values() for v in values]
        for i, (name, (epochs, values)) in enumerate(curves.items()):
            style, every_nth = look(i), max(1, len(epochs) // 20)  # markers tell lines apart without colour
            label = name = short(name, 30)
            if best is not None and len(values):
                best_at = int(np.argmax(values) if best == "highest" else np.argmin(values))
                value = percent(values[best_at]) if shares else f"{values[best_at]:.4g}"
                label = f"{name}: {best} {value} at epoch {epochs[best_at]}"
                axes.plot(
                    epochs[best_at], values[best_at], ls="", marker="o", ms=10, mfc="none", mec=style["color"], mew=1.2
                )
            axes.plot(epochs, values, lw=1.5, ms=3.5, markevery=every_nth, label=label, **style)
        if not linear and every and min(every) > 0 and max(every) > 50 * min(every):
            log_scale(axes)
        per_cent_axis(axes.yaxis) if shares else axes.yaxis.set_major_formatter("{x:g}")
        _epochs(axes)
        axes.set_ylabel(quantity)
        if len(curves) > 1 or best is not None:
            key(figure, axes, columns=1 if best is not None else 2)
    return figure


def ratio_curves(
    epochs: Sequence[int], ratios: Array, names: Sequence[str], counts: Array, head: int = 100, tail: int = 20
) -> Figure:
    """Draw the target ratio r̄ that partial label masking has for each label over epochs, on a log scale, by group.

    Names are written at the end of up to 20 lines; of more than 60 labels, the median and the middle half of each group
    are drawn.

    Args:
        epochs: their numbers (E,).
        ratios: r̄ of each label after each epoch (E, L).
        names: of the labels (L,).
        counts: their positives in training (L,).
        head, tail: head labels have at least `head` positives in training, tail labels fewer than `tail`.

    Examples:
        >>> import numpy as np
        >>> import steelyard as sy
        >>> ratios = np.array([[0.1, 1.0], [0.2, 0.8]])
        >>> figure = sy.report.ratio_curves([1, 2], ratios, ["rare", "frequent"], np.array([5, 300]))
        >>> figure.axes[0].get_yscale()
        'log'
    """
    with drawing(PANEL, 3.9) as (figure, axes):
        n_labels = ratios.shape[1]
        shown = np.where((ratios > 0) & np.isfinite(ratios), ratios, np.nan)  # ∞: never absent
        marker = "o" if len(epochs) == 1 else None
        for (group, members), line in zip(label_groups(counts, head, tail).items(), LINES, strict=True):
            colour, few = GROUP_LINES[group], n_labels <= _MOST_LINES
            drawn = shown[:, members[np.isfinite(shown[:, members]).all(0)]]
            if drawn.size:
                lines = drawn if few else np.median(drawn, 1)
                width, alpha = (1.3, 1.0) if n_labels <= _MOST_WRITTEN or not few else (0.7, 0.7)
                axes.plot(epochs, lines, color=colour, ls=line, lw=width, alpha=alpha, marker=marker, ms=3)
                axes.plot([], [], color=colour, ls=line, lw=1.3, label=f"{group}: {drawn.shape[1]:,}")
            if drawn.size and not few:
                axes.fill_between(epochs, *np.quantile(drawn, (0.25, 0.75), 1), color=colour, alpha=0.25, lw=0)
        log_scale(axes)
        if not (np.isfinite(shown).any() and np.nanmax(shown) > 20 * np.nanmin(shown)):
            axes.yaxis.set_minor_formatter("{x:.2g}")
        axes.set_ylabel("target ratio of positives to negatives")
        _epochs(axes)
        last = shown[-1]
        written = [c for c in range(n_labels) if np.isfinite(last[c])]
        if written and n_labels <= _MOST_WRITTEN:
            _name_ends(axes, [names[c] for c in written], np.log10(last[written]), shown)
        if len(epochs) > 1:
            axes.set_xlim(right=epochs[-1])
        key(figure, axes, columns=3)
    return figure


def _name_ends(axes: Any, names: Sequence[str], ends: Array, shown: Array) -> None:
    """Write the names to the right of the axes, beside the ends of their lines, moved apart where they would touch."""
    low, high = float(np.nanmin(np.log10(shown))), float(np.nanmax(np.log10(shown)))
    room = max(high - low, 0.3)
    low, high = low - 0.04 * room, high + 0.04 * room
    axes.set_ylim(10**low, 10**high)
    gap = 1 / max(19, len(names))
    positions = spread((ends - low) / (high - low), gap)
    for name, y, end in zip(names, positions, (ends - low) / (high - low), strict=True):
        axes.annotate(
            short(name, 14),
            xy=(1, end),
            xytext=(1.1, y),
            xycoords="axes fraction",
            va="center",
            fontsize=9,
            arrowprops={"arrowstyle": "-", "color": FRAME, "lw": 0.6, "shrinkA": 0, "shrinkB": 0, "relpos": (0, 0.5)},
        )


def spread(positions: Array, gap: float) -> Array:
    """Return positions at least `gap` apart, in the given order and as near to it as a pass up and a pass down allow.

    They stay within [0, 1] where that has room for all.
    """
    order = np.argsort(positions, kind="stable")
    moved = np.clip(positions[order], 0, 1)
    for i in range(1, len(moved)):
        moved[i] = max(moved[i], moved[i - 1] + gap)
    top = 1.0
    for i in range(len(moved) - 1, -1, -1):
        moved[i] = min(moved[i], top)
        top = moved[i] - gap
    placed = np.empty_like(moved)
    placed[order] = moved
    return placed


def _epochs(axes: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, min_n_ticks=1))
    axes.grid(True)
