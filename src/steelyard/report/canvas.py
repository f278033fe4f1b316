"""Style shared by all plots: colours for light and dark pages, axes, legends, SVG, PNG and PDF files."""

from __future__ import annotations

import io
import re
import unicodedata
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steelyard._extras import needed
from steelyard._files import write_atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure


MOST_NAMES = 40
"""Most names that fit along an axis."""
PANEL = 4.4
"""Width in inches of a plot that a phone shows whole."""
PAPER, INK, SOFT, FRAME, FAINT = "#ffffff", "#1d2733", "#56616f", "#8a949f", "#e3e8ee"
ACCENT, OTHER = "#1f6fb2", "#d1702a"
GROUPS = {"head": "#dbe9f6", "medium": "#eef1f4", "tail": "#fbe5d6"}
"""Background of the labels of each group."""
GROUP_LINES = {"head": ACCENT, "medium": "#6f7a86", "tail": OTHER}
SERIES = (ACCENT, OTHER, "#2f8a57", "#7d56b8", "#b93a5b", "#8a6d1f", "#147f8c", "#5b6b7d")
"""Colours of lines in one plot, in this order; `MARKERS` tells them apart without colour."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
OWN, SIGMOID = 0, 1
"""Positions in `SERIES` of the run's own probabilities and of σ(z), which look the same in every plot."""
LINES = ("-", "--", ":")
"""Styles of lines without markers, in this order."""

_NIGHT = {
    PAPER: "#14191f",
    INK: "#dde4ec",
    SOFT: "#a3afbc",
    FRAME: "#77828f",
    FAINT: "#2a323b",
    ACCENT: "#6db3f2",
    OTHER: "#f0a063",
    "#dbe9f6": "#1c3349",
    "#eef1f4": "#222a32",
    "#fbe5d6": "#47301f",
    "#6f7a86": "#a9b4c0",
    "#2f8a57": "#6fcf97",
    "#7d56b8": "#bd9df2",
    "#b93a5b": "#f28ba6",
    "#8a6d1f": "#dcbb5c",
    "#147f8c": "#5fd0dd",
    "#5b6b7d": "#9fb0c2",
}
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # the browser has fonts for scripts that matplotlib's own font lacks
    "text.parse_math": False,  # a label may hold $
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": FRAME,
    "axes.labelcolor": INK,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.unicode_minus": True,
    "text.color": INK,
    "xtick.color": FRAME,
    "ytick.color": FRAME,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "grid.color": FAINT,
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
}
_TAG = re.compile(r"<[^<>]*>")
_PLACE = re.compile(r"\b(?:d|x|y|transform)=\"[^\"]*\"")
_FONTS = re.compile(r"(?<=font-family: )'DejaVu Sans'[^;\"]*")
_DECIMALS = re.compile(r"(\.\d\d)\d+")
_COLOUR = re.compile(r"#[0-9a-f]{6}\b")


def has_matplotlib() -> bool:
    """Return whether plots can be drawn."""
    return find_spec("matplotlib") is not None


def check_matplotlib() -> None:
    """Raise without matplotlib, naming the extra that installs it."""
    with needed("plots need", "'steelyard[report]'"):
        import matplotlib  # noqa: F401


@contextmanager
def drawing(width: float = 9.0, height: float = 3.8, **grid: Any) -> Iterator[tuple[Figure, Any]]:
    """Give a figure and its axes (`grid` as for `Figure.subplots`); texts made inside follow the style."""
    check_matplotlib()
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure, figure.subplots(**grid)


def to_svg(figure: Figure) -> str:
    """Return a figure as the text of an SVG file, the same for the same figure.

    Args:
        figure: of Matplotlib, such as `unknown_rates` returns.

    Examples:
        >>> import numpy as np
        >>> import steelyard as sy
        >>> figure = sy.report.unknown_rates(["cat"], np.array([3]), np.array([0.1]))
        >>> sy.report.to_svg(figure)[:5]
        '<?xml'
    """
    text = _FONTS.sub("'DejaVu Sans', Verdana, sans-serif", _saved(figure, "svg").decode())  # of its widths
    text = _PLACE.sub(lambda place: _DECIMALS.sub(r"\1", place[0]), text)  # hundredths of a point are enough
    return re.sub(r"\n +", "\n", text)


def to_png(figure: Figure) -> bytes:
    """Return a figure as the bytes of a PNG file.

    Args:
        figure: of Matplotlib, such as `unknown_rates` returns.

    Examples:
        >>> import numpy as np
        >>> import steelyard as sy
        >>> figure = sy.report.unknown_rates(["cat"], np.array([3]), np.array([0.1]))
        >>> sy.report.to_png(figure)[1:4]
        b'PNG'
    """
    return _saved(figure, "png")


def save_figure(figure: Figure, file: str | Path) -> None:
    """Write a figure to a file, as its name ends: .svg (light and dark in one file), .png or .pdf.

    Args:
        figure: of Matplotlib, such as `unknown_rates` returns.
        file: the path, whose folder is there.

    Examples:
        >>> import numpy as np
        >>> import steelyard as sy
        >>> figure = sy.report.unknown_rates(["cat"], np.array([3]), np.array([0.1]))
        >>> sy.report.save_figure(figure, "unknown.pdf")
    """
    kind = Path(file).suffix
    if kind not in (".svg", ".png", ".pdf"):
        raise ValueError(f"{file}: a figure is written as .svg, .png or .pdf")
    write_atomic(file, by_night(to_svg(figure)) if kind == ".svg" else _saved(figure, kind[1:]))


def by_night(svg: str) -> str:
    """Return an SVG file whose colours follow the reader's light or dark mode."""
    used: set[str] = set()

    def variable(colour: re.Match[str]) -> str:
        name = colour[0]
        if name not in _NIGHT:
            return name
        used.add(name)
        return f"var(--c{name[1:]})"

    body = _TAG.sub(lambda tag: _COLOUR.sub(variable, tag[0]), svg)  # in tags only: a label may be named like a colour
    day = "".join(f"--c{c[1:]}:{c};" for c in sorted(used))
    night = "".join(f"--c{c[1:]}:{_NIGHT[c]};" for c in sorted(used))
    style = f"<style>svg{{{day}}}@media (prefers-color-scheme: dark){{svg{{{night}}}}}</style>"
    start = body.index(">", body.index("<svg")) + 1
    return f"{body[:start]}\n {style}{body[start:]}"


def short(name: str, most: int = 22) -> str:
    """Return a name cut to fit along an axis, without characters that cannot be drawn."""
    plain = "".join(c if c.isprintable() and unicodedata.category(c) != "Cs" else "·" for c in name)
    fitting = plain if len(plain) <= most else f"{plain[: most - 1]}…"
    return f" {fitting}" if fitting.startswith("_") else fitting  # matplotlib's legend leaves out what starts with _


def per_cent_axis(axis: Any) -> None:
    """Write the shares along an axis in per cent."""
    axis.set_major_formatter(lambda share, _: f"{100 * share:g}")


def look(i: int) -> dict[str, Any]:
    """Return the colour and the marker of the i-th of several series in one plot."""
    return {"color": SERIES[i % len(SERIES)], "marker": MARKERS[i % len(MARKERS)]}


def log_scale(axes: Any, format: Any = "{x:g}") -> None:
    """Give the y axis a log scale with few numbers, as `format` writes them."""
    axes.set_yscale("log")
    axes.yaxis.set_minor_formatter("")
    axes.yaxis.set_major_formatter(format)


def unit_square(axes: Any) -> None:
    """Show shares from 0 to 1 on both axes, with a grid and room for marks at the ends."""
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(-0.02, 1.02)
    axes.grid(True)


def legend(axes: Any, columns: int = 4) -> None:
    """Write the legend above the axes."""
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, frameon=False, fontsize=9, borderaxespad=0.2)


def key(figure: Any, axes: Any, columns: int = 1, title: str = "", first: Sequence[str] = ()) -> None:
    """Write the legend above a panel, row by row, beneath a title; entries named in `first` come first."""
    entries = list(zip(*axes.get_legend_handles_labels(), strict=True))
    entries.sort(key=lambda entry: first.index(entry[1]) if entry[1] in first else len(first))
    by_column = [entry for column in range(columns) for entry in entries[column::columns]]  # as matplotlib fills them
    if entries or title:
        figure.legend(
            [handle for handle, _ in by_column],
            [label for _, label in by_column],
            loc="outside upper left",
            ncols=columns,
            title=title or None,
            alignment="left",
            frameon=False,
            fontsize=9,
            title_fontsize=10,
            borderpad=0.2,
            borderaxespad=0.2,
            columnspacing=1.2,
            handlelength=1.6,
            handletextpad=0.6,
        )


def _saved(figure: Figure, format: str) -> bytes:
    import matplotlib as mpl

    content = io.BytesIO()
    nothing = {"svg": ("Date", "Creator", "Format", "Type"), "pdf": ("CreationDate", "Creator", "Producer")}
    metadata = dict.fromkeys(nothing.get(format, ()))
    with mpl.rc_context({**STYLE, "svg.hashsalt": "steelyard"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the browser has it
        figure.savefig(content, format=format, metadata=metadata, dpi=110, bbox_inches="tight", pad_inches=0.08)
    return content.getvalue()
