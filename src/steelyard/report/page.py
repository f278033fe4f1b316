"""One HTML page in one file: text, tables and pictures, nothing fetched from elsewhere, in light and dark."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Collection, Iterable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from steelyard._files import write_atomic
from steelyard.report.canvas import by_night, to_svg

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Cell: TypeAlias = str | int | float | None

_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1d2733; --soft: #56616f; --line: #d8dee6; --faint: #e8ecf1;
  --block: #f4f6f9; --best: #dbe9f6; --link: #1a5f9c; }
@media (prefers-color-scheme: dark) { :root { --paper: #14191f; --ink: #dde4ec; --soft: #a3afbc; --line: #3a4450;
  --faint: #2a323b; --block: #1c232b; --best: #1c3349; --link: #6db3f2; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 62rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: .2rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin-top: 2.2rem; border-bottom: 1px solid var(--line); padding-bottom: .2rem; }
p, li { max-width: 48rem; overflow-wrap: anywhere; }
a { color: var(--link); }
figure { margin: 1rem 0; }
figure img { max-width: 100%; height: auto; display: block; }
figcaption { color: var(--soft); font-size: .9rem; max-width: 48rem; }
.panels { columns: 21rem; column-gap: 2rem; }
.panels figure { break-inside: avoid; margin: 0; padding: .6rem 0; max-width: 32rem; }
.panels figure img { width: 100%; }
figure.hit { display: inline-block; vertical-align: top; width: 224px; margin: 8px; overflow-wrap: anywhere; }
.numbers { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 11rem), 1fr)); gap: 1rem 1.5rem;
  margin: 1.4rem 0; }
.numbers dt { color: var(--soft); font-size: .9rem; }
.numbers dd { margin: 0; }
.numbers .value { font-size: 1.7rem; line-height: 1.2; font-variant-numeric: tabular-nums; }
.numbers .meaning { font-size: .88rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .92rem; }
th, td { text-align: left; padding: .2rem .9rem .2rem 0; border-bottom: 1px solid var(--faint); vertical-align: top;
  overflow-wrap: anywhere; }
thead th { vertical-align: bottom; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
td.number { white-space: nowrap; }
td.best { font-weight: bold; background: var(--best); }
.keyed th, .keyed td { overflow-wrap: break-word; }
.keyed th:first-child, .keyed td:first-child { position: sticky; left: 0; background: var(--paper);
  overflow-wrap: anywhere; min-width: 6.5rem; max-width: 16rem; }
.facts th { font-weight: normal; white-space: nowrap; color: var(--soft); }
pre { background: var(--block); padding: .7rem 1rem; overflow-x: auto; font-size: .88rem; }
@media (max-width: 30rem) { table { font-size: .85rem; } th, td { padding-right: .6rem; } }
details { margin: .6rem 0; }
summary { cursor: pointer; }
"""

_POLICY = (
    f"default-src 'none'; style-src 'sha256-{base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'; "
    "img-src data:; base-uri 'none'; form-action 'none'"
)
"""What a page may load: its own style sheet and the pictures inside it; no script, and nothing from elsewhere."""


class Number(NamedTuple):
    """A number that matters: what it is called, as it is written, and what it says in one sentence."""

    name: str
    value: str
    meaning: str


def heading(text: str) -> str:
    """Return a heading of a part of the page."""
    return f"<h2>{escape(text)}</h2>\n"


def paragraph(text: str) -> str:
    """Return a paragraph."""
    return f"<p>{escape(text)}</p>\n"


def remarks(texts: Iterable[str]) -> str:
    """Return sentences, one below the other."""
    return "<ul>\n" + "".join(f"<li>{escape(text)}</li>\n" for text in texts) + "</ul>\n"


def code(text: str) -> str:
    """Return lines of a program."""
    return f"<pre><code>{escape(text)}</code></pre>\n"


def folded(summary: str, content: str) -> str:
    """Return HTML that opens when `summary`, a plain text, is clicked."""
    return f"<details><summary>{escape(summary)}</summary>\n{content}</details>\n"


def links(pages: Iterable[tuple[str, str]]) -> str:
    """Return links in one paragraph, each a text and an address relative to this page."""
    return "<p>" + " · ".join(f'<a href="{escape(address)}">{escape(text)}</a>' for text, address in pages) + "</p>\n"


def numbers(shown: Iterable[Number]) -> str:
    """Return the numbers that matter, large, each with its sentence."""
    body = "\n".join(
        f'<div><dt>{escape(n.name)}</dt><dd class="value">{escape(n.value)}</dd>'
        f'<dd class="meaning">{escape(n.meaning)}</dd></div>'
        for n in shown
    )
    return f'<dl class="numbers">\n{body}\n</dl>\n'


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """Return facts, each a name and a text."""
    body = "\n".join(f'<tr><th scope="row">{escape(name)}</th><td>{escape(text)}</td></tr>' for name, text in rows)
    return f'<table class="facts"><tbody>\n{body}\n</tbody></table>\n'


def table(
    header: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    fold: str | None = None,
    places: int | None = None,
    best: Collection[tuple[int, int]] = (),
) -> str:
    """Return a table; numbers stand at the right, None is a dash. With `fold`, it opens when this text is clicked.

    `places` are the decimals of fractions, else four digits are written; `best` are cells (row, column) to mark. A
    first column of texts stays in view when the table is moved sideways.
    """
    listed = [list(row) for row in rows]
    numeric = [bool(listed) and all(not isinstance(row[i], str) for row in listed) for i in range(len(header))]
    align = [' class="number"' if number else "" for number in numeric]
    head = "".join(f"<th{a}>{escape(text)}</th>" for a, text in zip(align, header, strict=True))
    body = "\n".join(
        "<tr>"
        + "".join(
            f'<td class="best number"><span title="the best of its column">★</span> {escape(_cell(cell, places))}</td>'
            if (i, j) in best
            else f"<td{align[j]}>{escape(_cell(cell, places))}</td>"
            for j, cell in enumerate(row)
        )
        + "</tr>"
        for i, row in enumerate(listed)
    )
    keyed = ' class="keyed"' if listed and not numeric[0] else ""
    shown = f'<div class="wide"><table{keyed}><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>\n'
    return shown if fold is None else folded(fold, shown)


def figure(svg: str, caption: str) -> str:
    """Return a picture with a caption; as an image of its own it can neither run scripts nor clash with others."""
    data = base64.b64encode(by_night(svg).encode()).decode()
    text = escape(caption)
    source = f"data:image/svg+xml;base64,{data}"
    return f'<figure><img src="{source}" alt="{text}"><figcaption>{text}</figcaption></figure>\n'


def plot(drawn: Figure, caption: str) -> str:
    """Return a plot as `figure` does."""
    return figure(to_svg(drawn), caption)


def panels(figures: Iterable[str]) -> str:
    """Return small figures side by side where there is room, else one below the other."""
    return f'<div class="panels">\n{"".join(figures)}</div>\n'


def write_page(path: str | Path, title: str, parts: Iterable[str]) -> None:
    """Write a page to `path`; the file appears whole or not at all.

    Arguments: `path`; `title`, plain text; `parts`, HTML made by the functions of this module, in order.
    """
    page = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n{''.join(parts)}</body>\n</html>\n"
    )
    write_atomic(path, page.encode("utf-8", "xmlcharrefreplace"))


def add_paragraph(path: str | Path, text: str) -> None:
    """Put a paragraph at the top of a page that `write_page` wrote, unless it is there."""
    before, title, rest = Path(path).read_bytes().partition(b"</h1>\n")
    if (added := paragraph(text).encode()) not in rest:
        write_atomic(path, before + title + added + rest)


def _cell(value: Cell, places: int | None) -> str:
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    if isinstance(value, float) and math.isinf(value):
        return "∞"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}" if places is None else f"{value:,.{places}f}"
