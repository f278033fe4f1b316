"""Plots of labels, drawn by matplotlib, which is loaded when the first one is drawn."""

from __future__ import annotations

import io
import unicodedata
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array: TypeAlias = NDArray[Any]

_MOST_NAMES = 40  # more do not fit along an axis
_MOST_CELLS = 800  # more cells a side than pixels: they are averaged
_GROUPS = {"head": "#dbe9f6", "medium": "#eef1f4", "tail": "#fbe5d6"}
_INK, _ACCENT, _OTHER = "#1d2733", "#1f6fb2", "#d1702a"
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # the browser has fonts for scripts that matplotlib's own font lacks
    "text.parse_math": False,  # a label may hold $
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#8a949f",
    "axes.labelcolor": _INK,
    "text.color": _INK,
}


def check_matplotlib() -> None:
    """Refuse to go on without matplotlib, naming the extra that brings it."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ValueError("plots need matplotlib, which is not installed: pip install 'steelyard[report]'") from None


def to_svg(figure: Figure) -> str:
    """Return a figure as the text of an SVG file, the same for the same figure."""
    return _saved(figure, "svg").decode()


def to_png(figure: Figure) -> bytes:
    """Return a figure as the bytes of a PNG file."""
    return _saved(figure, "png")


def frequency_curve(names: Sequence[str], counts: Array, head: int = 100, tail: int = 20) -> Figure:
    """Draw the positives of each label, most frequent first, on a log scale, over head, medium and tail.

    Arguments: `names` and `counts` (L,), in any order; `head` and `tail` as `Labels.groups` takes them.
    """
    order = np.argsort(-counts, kind="stable")
    n = counts[order]
    rank = np.arange(1, len(n) + 1)
    with _drawing(height=3.8 + 0.9 * (len(n) <= _MOST_NAMES)) as (figure, axes):
        edges = [0.5, np.count_nonzero(n >= head) + 0.5, np.count_nonzero(n >= tail) + 0.5, len(n) + 0.5]
        for (group, colour), left, right in zip(_GROUPS.items(), edges[:-1], edges[1:], strict=True):
            if right > left:
                label = f"{group}: {round(right - left):,} label{'s' * (round(right - left) != 1)}"
                axes.axvspan(left, right, color=colour, lw=0, zorder=0, label=label)
        seen = n > 0
        axes.plot(rank[seen], n[seen], color=_ACCENT, lw=1.5, marker="o", ms=_marker(len(n)), zorder=3, clip_on=False)
        if not seen.all():
            missing = np.count_nonzero(~seen)
            low = np.full(missing, 0.6)
            axes.plot(rank[~seen], low, ls="", marker="x", ms=4, color=_OTHER, label=f"never positive: {missing:,}")
        axes.set_yscale("log")
        axes.yaxis.set_minor_formatter("")
        axes.set_ylim(0.5, 2 * max(1, n.max()))
        axes.set_xlim(0.5, len(n) + 0.5)
        axes.set_ylabel("positives (unknown not counted)")
        axes.yaxis.set_major_formatter("{x:,.0f}")
        _name_ranks(axes, [names[c] for c in order])
        _legend(axes)
    return figure


def resampling(names: Sequence[str], counts: Array, prior: Array, resampled: Array) -> Figure:
    """Draw the share of items that have each label, as it is and after class-aware sampling.

    Arguments: `names`, `counts`, `prior`, `resampled` (L,), in any order; labels are drawn by `counts`.
    """
    order = np.argsort(-counts, kind="stable")
    rank = np.arange(1, len(order) + 1)
    with _drawing(height=3.8 + 0.9 * (len(order) <= _MOST_NAMES)) as (figure, axes):
        size = _marker(len(order))
        highest = 0.0
        lowest = 1.0
        for values, colour, mark, label in (
            (prior, _ACCENT, "o", "as it is"),
            (resampled, _OTHER, "s", "after class-aware sampling"),
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
        _legend(axes)
    return figure


def unknown_rates(names: Sequence[str], counts: Array, rates: Array) -> Figure:
    """Draw the share of items for which each label is unknown.

    Arguments: `names`, `counts`, `rates` (L,), in any order; labels are drawn by `counts`.
    """
    order = np.argsort(-counts, kind="stable")
    with _drawing(height=3.2 + 0.9 * (len(order) <= _MOST_NAMES)) as (figure, axes):
        rank = np.arange(1, len(order) + 1)
        few = len(order) <= _MOST_NAMES
        axes.bar(rank, 100 * rates[order], width=0.8 if few else 1.0, color=_ACCENT, lw=0)
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
    named = n <= _MOST_NAMES
    side = 2.6 + 0.15 * n if named else 6.2
    with _drawing(width=side + 1.2, height=side) as (figure, axes):
        step = -(-n // _MOST_CELLS)
        shown = conditional if step == 1 else _averaged(conditional, step)
        edges = (0.5, n + 0.5, n + 0.5, 0.5)
        image = axes.imshow(
            np.ma.masked_invalid(shown), cmap=_colours(), vmin=0, vmax=1, extent=edges, interpolation="nearest"
        )
        figure.colorbar(image, ax=axes, shrink=0.7, label="p(row | column)")
        if named:
            ticks = np.arange(1, n + 1)
            short = [_short(name) for name in names]
            axes.set_xticks(ticks, short, rotation=90, fontsize=8)
            axes.set_yticks(ticks, short, fontsize=8)
        else:
            axes.set_xlabel("given this label, by rank")
            axes.set_ylabel("label, by rank")
        axes.tick_params(length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
    return figure


@contextmanager
def _drawing(width: float = 9.0, height: float = 3.8) -> Iterator[tuple[Figure, Any]]:
    """Give a figure and its axes; texts made meanwhile, ticks too, follow the style."""
    check_matplotlib()
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure, figure.subplots()


def _saved(figure: Figure, format: str) -> bytes:
    import matplotlib as mpl

    content = io.BytesIO()
    metadata = {"Date": None} if format == "svg" else None
    with mpl.rc_context({**_STYLE, "svg.hashsalt": "steelyard"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the browser has it
        figure.savefig(content, format=format, metadata=metadata, dpi=110, bbox_inches="tight", pad_inches=0.08)
    return content.getvalue()


def _name_ranks(axes: Any, names: Sequence[str]) -> None:
    """Write every name along the x axis where they fit, else ranks, and the names of the first and the last."""
    if len(names) <= _MOST_NAMES:
        axes.set_xticks(range(1, len(names) + 1), [_short(name) for name in names], rotation=60, ha="right", fontsize=9)
        axes.tick_params(axis="x", length=0)
        for label in axes.get_xticklabels():
            label.set_rotation_mode("anchor")
    else:
        axes.set_xlabel(f"labels by rank, from {_short(names[0])} to {_short(names[-1])}")


def _short(name: str, most: int = 22) -> str:
    """A name that fits along an axis, without characters that cannot be drawn."""
    plain = "".join(c if c.isprintable() and unicodedata.category(c) != "Cs" else "·" for c in name)
    return plain if len(plain) <= most else f"{plain[: most - 1]}…"


def _marker(n: int) -> float:
    return 4.0 if n <= _MOST_NAMES else 2.0 if n <= 200 else 0.0


def _legend(axes: Any) -> None:
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, frameon=False, fontsize=9, borderaxespad=0.2)


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
