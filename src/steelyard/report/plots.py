"""Plots of labels, most frequent first: counts, co-occurrence, and scores of each label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from steelyard._arrays import Array
from steelyard.report.canvas import (
    ACCENT,
    GROUPS,
    INK,
    MOST_NAMES,
    OTHER,
    PANEL,
    PAPER,
    SOFT,
    drawing,
    key,
    legend,
    log_scale,
    look,
    per_cent_axis,
    short,
)
from steelyard.report.headline import plural

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_CELLS = 800  # more cells a side than pixels: they are averaged
_BUCKETS = 40
_MOST_DOTS = 1000  # more would only blacken the plot


def frequency_curve(names: Sequence[str], counts: Array, head: int = 100, tail: int = 20) -> Figure:
    """Draw the positives of each label, most frequent first, on a log scale, over head, medium and tail.

    Args:
        names: of the labels (L,), in any order.
        counts: their positives in training (L,).
        head, tail: head labels have at least `head` positives in training, tail labels fewer than `tail`.

    Examples:
        >>> import numpy as np
        >>> import steelyard as sy
        >>> figure = sy.report.frequency_curve(["cat", "dog", "owl"], np.array([300, 40, 5]))
        >>> figure.axes[0].get_yscale()
        'log'
    """
    order = _order(counts)
    n, rank = counts[order], _ranks(counts)
    with drawing(height=_height(3.8, names)) as (figure, axes):
        _bands(axes.axvspan, n, head, tail, numbered=True)
        seen = n > 0
        axes.plot(rank[seen], n[seen], color=ACCENT, lw=1.5, marker="o", ms=_marker(len(n)), zorder=3, clip_on=False)
        if not seen.all():
            missing = np.count_nonzero(~seen)
            low = np.full(missing, 0.6)
            axes.plot(rank[~seen], low, ls="", marker="x", ms=4, color=OTHER, label=f"never positive: {missing:,}")
        log_scale(axes, "{x:,.0f}")
        axes.set_ylim(0.5, 2 * max(1, n.max()))
        axes.set_ylabel("positives (unknown not counted)")
        _name_ranks(axes, [names[c] for c in order])
        legend(axes)
    return figure


def resampling(names: Sequence[str], counts: Array, prior: Array, resampled: Array) -> Figure:
    """Draw the share of items that have each label, as it is and after class-aware sampling.

    Args:
        names: of the labels (L,), in any order.
        counts: their positives (L,); labels are drawn most frequent first.
        prior: the share of items with each label (L,), between 0 and 1.
        resampled: the same after class-aware sampling (L,).

    Examples:
        >>> import numpy as np
        >>> import steelyard as sy
        >>> counts, prior = np.array([300, 40]), np.array([0.6, 0.08])
        >>> figure = sy.report.resampling(["cat", "dog"], counts, prior, np.array([0.55, 0.5]))
        >>> [line.get_label() for line in figure.axes[0].lines]
        ['as it is', 'after class-aware sampling']
    """
    order = _order(counts)
    shares = np.array([prior[order], resampled[order]])
    shares = np.where(shares > 0, shares, np.nan)
    with drawing(height=_height(3.8, names)) as (figure, axes):
        look_of = {"lw": 1.2, "ms": _marker(len(order))}
        axes.plot(_ranks(counts), shares[0], color=ACCENT, marker="o", label="as it is", **look_of)
        axes.plot(_ranks(counts), shares[1], color=OTHER, marker="s", label="after class-aware sampling", **look_of)
        log_scale(axes, lambda share, _: f"{100 * share:g}")
        if np.isfinite(shares).any():
            axes.set_ylim(np.nanmin(shares) / 2, min(1.3, 3 * np.nanmax(shares)))
        axes.set_ylabel("items with the label, %")
        _name_ranks(axes, [names[c] for c in order])
        legend(axes)
    return figure


def unknown_rates(names: Sequence[str], counts: Array, rates: Array) -> Figure:
    """Draw the share of items for which each label is unknown.

    Args:
        names: of the labels (L,), in any order.
        counts: their positives (L,); labels are drawn most frequent first.
        rates: the share of items for which each label is unknown (L,), between 0 and 1.

    Examples:
        >>> import numpy as np
        >>> import steelyard as sy
        >>> figure = sy.report.unknown_rates(["cat", "dog"], np.array([300, 40]), np.array([0.1, 0.3]))
        >>> [float(bar.get_height()) for bar in figure.axes[0].patches]
        [10.0, 30.0]
    """
    order = _order(counts)
    with drawing(height=_height(3.2, names)) as (figure, axes):
        width = 0.8 if len(order) <= MOST_NAMES else 1.0
        axes.bar(_ranks(counts), 100 * rates[order], width=width, color=ACCENT, lw=0)
        axes.set_ylim(0, min(100, max(1e-3, 110 * float(rates.max()))))
        axes.set_ylabel("unknown, % of items")
        _name_ranks(axes, [names[c] for c in order])
    return figure


def heat_map(names: Sequence[str], conditional: Array) -> Figure:
    """Draw p(i|j), row i given column j; names are written where they fit, else ranks.

    Args:
        names: of the labels (L,), in the order to draw, most frequent first.
        conditional: p(i|j) in row i and column j, (L, L), in the same order; NaN where it is not defined.

    Examples:
        >>> import numpy as np
        >>> import steelyard as sy
        >>> figure = sy.report.heat_map(["cat", "dog"], np.array([[1, 0.5], [0.2, 1]]))
        >>> [text.get_text() for text in figure.axes[0].get_yticklabels()]
        ['cat', 'dog']
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
        figure.colorbar(
            image, ax=axes, shrink=0.7, label="p(row | column), %", format=lambda share, _: f"{100 * share:g}"
        )
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

    Args:
        names: of the labels (L,), in any order.
        counts: their positives in training (L,).
        f1, precision, recall: the scores of each label (L,), between 0 and 1.
        support: the positives of each label among the scored items (L,); a label without any has no bar.
        head, tail: head labels have at least `head` positives in training, tail labels fewer than `tail`.

    Examples:
        >>> import numpy as np
        >>> import steelyard as sy
        >>> f1, counts = np.array([0.9, 0.5]), np.array([300, 40])
        >>> figure = sy.report.label_bars(["cat", "dog"], counts, f1, f1, f1, np.array([30, 4]))
        >>> [text.get_text() for text in figure.axes[0].get_yticklabels()]
        ['cat (300)', 'dog (40)']
    """
    order = _order(counts)
    with drawing(PANEL, 1.1 + 0.21 * len(order)) as (figure, axes):
        rank = _ranks(counts)
        _bands(axes.axhspan, counts[order], head, tail)
        judged = support[order] > 0
        axes.barh(rank[judged], f1[order][judged], height=0.62, color=ACCENT, lw=0, label="F1")
        for values, mark, colour, label in ((precision, "<", OTHER, "precision"), (recall, ">", INK, "recall")):
            x = values[order][judged]
            axes.plot(x, rank[judged], mark, ms=6, color=colour, mec=PAPER, mew=0.6, label=label, clip_on=False)
        for y in rank[~judged]:
            axes.text(0.01, y, "no positive here", va="center", fontsize=8, color=SOFT)
        _name_rows(axes, names, counts, order)
        axes.set_xlabel("%")
        key(figure, axes, columns=3, first=("F1", "precision", "recall", "head", "medium", "tail"))
    return figure


def label_points(
    names: Sequence[str], counts: Array, scores: Mapping[str, Array], quantity: str, head: int = 100, tail: int = 20
) -> Figure:
    """Draw a score of several runs for each of up to 40 labels, most frequent at the top.

    Args:
        names: of the labels (L,), in any order.
        counts: their positives in training (L,).
        scores: the score of each label (L,), between 0 and 1, by the name of the run; NaN where there is none.
        quantity: text below the x axis.
        head, tail: head labels have at least `head` positives in training, tail labels fewer than `tail`.

    Examples:
        >>> import numpy as np
        >>> import steelyard as sy
        >>> scores = {"bce": np.array([0.9, 0.4]), "plm": np.array([0.9, 0.5])}
        >>> figure = sy.report.label_points(["cat", "dog"], np.array([300, 40]), scores, "F1, %")
        >>> figure.axes[0].get_xlabel()
        'F1, %'
    """
    order = _order(counts)
    with drawing(PANEL, 1.3 + 0.21 * len(order) + 0.1 * len(scores)) as (figure, axes):
        rank = _ranks(counts)
        _bands(axes.axhspan, counts[order], head, tail)
        rows = np.array(list(scores.values()))[:, order]
        some = np.isfinite(rows).any(0)
        axes.hlines(rank[some], np.nanmin(rows[:, some], 0), np.nanmax(rows[:, some], 0), color=SOFT, lw=0.8)
        for i, (name, values) in enumerate(scores.items()):
            axes.plot(values[order], rank, ls="", ms=5.5, label=short(name), zorder=3, **look(i))
        _name_rows(axes, names, counts, order)
        axes.set_xlabel(quantity)
        key(figure, axes, columns=3, first=("head", "medium", "tail"))
    return figure


def label_trend(counts: Array, values: Array, quantity: str, head: int = 100, tail: int = 20) -> Figure:
    """Draw a score of many labels by their rank in training: a dot each, the middle and the middle half of them.

    Args:
        counts: the positives of each label in training (L,).
        values: the score of each label (L,), between 0 and 1; NaN where there is none.
        quantity: text beside the y axis.
        head, tail: head labels have at least `head` positives in training, tail labels fewer than `tail`.

    Examples:
        >>> import numpy as np
        >>> import steelyard as sy
        >>> figure = sy.report.label_trend(np.arange(1, 101), np.linspace(0, 1, 100), "F1, %")
        >>> figure.axes[0].get_ylabel()
        'F1, %'
    """
    order = _order(counts)
    values = values[order]
    rank = _ranks(counts)
    with drawing(PANEL, 3.1) as (figure, axes):
        _bands(axes.axvspan, counts[order], head, tail)
        if len(order) <= _MOST_DOTS:
            axes.plot(rank, values, ls="", marker="o", ms=2.5, alpha=0.45, color=ACCENT, mew=0)
        parts = np.array_split(np.arange(len(order)), min(_BUCKETS, max(1, len(order) // 5)))
        parts = [part for part in parts if np.isfinite(values[part]).any()]
        middle_rank = [float(rank[part].mean()) for part in parts]
        quartiles = np.array([np.nanquantile(values[part], (0.25, 0.5, 0.75)) for part in parts]).reshape(-1, 3)
        low, middle, high = quartiles.T
        axes.fill_between(middle_rank, low, high, color=OTHER, alpha=0.25, lw=0, label="middle half")
        axes.plot(middle_rank, middle, color=OTHER, lw=1.6, label="median")
        axes.set_ylim(-0.02, 1.02)
        per_cent_axis(axes.yaxis)
        axes.set_xlim(0.5, len(order) + 0.5)
        axes.set_ylabel(quantity)
        axes.set_xlabel("labels by rank, most frequent first")
        key(figure, axes, columns=3, first=("head", "medium", "tail", "median", "middle half"))
    return figure


def _order(counts: Array) -> Array:
    return np.argsort(-counts, kind="stable")


def _ranks(counts: Array) -> Array:
    return np.arange(1, len(counts) + 1)


def _height(plain: float, names: Sequence[str]) -> float:
    """Return the height of a plot, with room below for names where they fit."""
    return plain + 0.9 * (len(names) <= MOST_NAMES)


def _bands(span: Any, counts: Array, head: int, tail: int, numbered: bool = False) -> None:
    """Colour the background of head, medium and tail labels, given in descending order."""
    edges = [0.5, np.count_nonzero(counts >= head) + 0.5, np.count_nonzero(counts >= tail) + 0.5, len(counts) + 0.5]
    for (group, colour), start, end in zip(GROUPS.items(), edges[:-1], edges[1:], strict=True):
        if end > start:
            label = f"{group}: {plural(round(end - start), 'label')}" if numbered else group
            span(start, end, color=colour, lw=0, zorder=0, label=label)


def _name_rows(axes: Any, names: Sequence[str], counts: Array, order: Array) -> None:
    written = [f"{short(names[c], 18)} ({int(counts[c]):,})" for c in order]
    axes.set_yticks(range(1, len(order) + 1), written, fontsize=9)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(order) + 0.5, 0.5)
    axes.set_xlim(0, 1.02)
    per_cent_axis(axes.xaxis)


def _name_ranks(axes: Any, names: Sequence[str]) -> None:
    """Write every name along the x axis where they fit, else ranks, and the names of the first and the last."""
    axes.set_xlim(0.5, len(names) + 0.5)
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
    """Return means over blocks of `step` × `step` values, leaving out undefined ones."""
    n = -(-len(values) // step) * step
    padded = np.full((n, n), np.nan)
    padded[: len(values), : len(values)] = values
    blocks = padded.reshape(n // step, step, n // step, step)
    defined = np.isfinite(blocks)
    total, times = np.where(defined, blocks, 0).sum((1, 3)), defined.sum((1, 3))
    means: Array = np.divide(total, times, out=np.full_like(total, np.nan), where=times > 0)
    return means


def _colours() -> Any:
    """Return a colour map from white to dark blue, grey where p(i|j) is not defined."""
    import matplotlib as mpl

    return mpl.colormaps["Blues"].with_extremes(bad="#d9d9d9")
