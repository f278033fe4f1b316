"""HTML pages in one file each, light and dark, from `templates/`; they load nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import io
import math
import textwrap
from collections.abc import Iterable
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from steelyard._files import write_atomic
from steelyard.report.canvas import STYLE, by_night, to_svg
from steelyard.report.headline import four, per_cent, probability

if TYPE_CHECKING:
    from jinja2 import Environment
    from matplotlib.figure import Figure

Cell: TypeAlias = str | int | float | None


class Share(float):
    """A score or frequency, written in per cent with one decimal."""


class LossCell(float):
    """A log-loss, written with four decimals."""


class Eta(float):
    """A probability or threshold, written as .xxx."""


def share(value: float | None) -> Share | None:
    """Return a cell of a table that is written in per cent."""
    return None if value is None else Share(value)


class Picture(NamedTuple):
    """A picture inside a page, as an image of its own: it cannot run scripts or clash with others."""

    source: str
    caption: str
    figure: Figure | None = None


def plot(drawn: Figure, caption: str) -> Picture:
    """Return a plot whose colours follow the reader's light or dark mode."""
    return Picture(data_url("image/svg+xml", by_night(to_svg(drawn)).encode()), caption, drawn)


def data_url(kind: str, content: bytes) -> str:
    """Return a data: URL with the content of a file."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def write_page(path: str | Path, template: str, title: str, **context: Any) -> None:
    """Write a page to `path`, or to a name that ends in .pdf its plots; the file appears whole or not at all.

    Arguments: `path`; `template`, a file in `templates/`; `title`, plain text; `context`, the other variables of the
    template. All texts are escaped.
    """
    if Path(path).suffix.lower() == ".pdf":
        parts = (part for parts in context.values() if isinstance(parts, list) for part in parts)
        content = _pdf(part for part in parts if isinstance(part, Picture))
    else:
        page = _environment().get_template(template).render(title=title, **context)
        content = page.encode("utf-8", "xmlcharrefreplace")
    write_atomic(path, content)


def _pdf(pictures: Iterable[Picture]) -> bytes:
    """Return plots as a PDF file, one per page, each above its caption."""
    import matplotlib as mpl
    from matplotlib.backends.backend_pdf import PdfPages

    content = io.BytesIO()
    metadata = dict.fromkeys(("CreationDate", "Creator", "Producer"))
    with mpl.rc_context({**STYLE, "pdf.fonttype": 42}), PdfPages(content, metadata=metadata) as pages:
        for picture in pictures:
            if picture.figure is not None:
                picture.figure.text(0, -0.02, textwrap.fill(picture.caption, 70), va="top", fontsize=9)
                pages.savefig(picture.figure, bbox_inches="tight", pad_inches=0.2)
    return content.getvalue()


def add_paragraph(path: str | Path, text: str) -> None:
    """Add a paragraph at the top of a page that `write_page` wrote, unless it has it."""
    before, title, rest = Path(path).read_bytes().partition(b"</h1>\n")
    if (added := f"<p>{escape(text)}</p>\n".encode()) not in rest:
        write_atomic(path, before + title + added + rest)


@cache
def _environment() -> Environment:
    """Return the templates; their policy allows the style sheet and embedded pictures, no script."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("steelyard.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    style = environment.get_template("style.css").render()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    environment.globals.update(style=style, policy=policy)
    environment.filters["written"] = _written
    return environment


def _written(value: Cell) -> str:
    """Return the text of a table cell; plain numbers have four digits."""
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    if isinstance(value, Share):
        return per_cent(value)
    if isinstance(value, LossCell):
        return four(value)
    if isinstance(value, Eta):
        return "never" if math.isinf(value) else probability(value)
    if isinstance(value, float) and math.isinf(value):
        return "∞"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
