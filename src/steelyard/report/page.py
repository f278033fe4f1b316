"""One HTML page in one file: text, tables and pictures, nothing fetched from elsewhere."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1d2733; background: #fff; max-width: 62rem; margin: 2rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: .2rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin-top: 2.2rem; border-bottom: 1px solid #d8dee6; padding-bottom: .2rem; }
p { max-width: 48rem; overflow-wrap: anywhere; }
figure { margin: 1rem 0; }
figure img { max-width: 100%; height: auto; display: block; }
figcaption { color: #56616f; font-size: .9rem; max-width: 48rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .92rem; }
th, td { text-align: left; padding: .2rem .9rem .2rem 0; border-bottom: 1px solid #e8ecf1; vertical-align: top;
  overflow-wrap: anywhere; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.facts th { font-weight: normal; white-space: nowrap; color: #56616f; }
pre { background: #f4f6f9; padding: .7rem 1rem; overflow-x: auto; font-size: .88rem; }
details { margin: .6rem 0; }
summary { cursor: pointer; }
"""


def heading(text: str) -> str:
    """Return a heading of a part of the page."""
    return f"<h2>{escape(text)}</h2>\n"


def paragraph(text: str) -> str:
    """Return a paragraph."""
    return f"<p>{escape(text)}</p>\n"


def code(text: str) -> str:
    """Return lines of a program."""
    return f"<pre><code>{escape(text)}</code></pre>\n"


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """Return facts, each a name and a text."""
    body = "\n".join(f'<tr><th scope="row">{escape(name)}</th><td>{escape(text)}</td></tr>' for name, text in rows)
    return f'<table class="facts"><tbody>\n{body}\n</tbody></table>\n'


def table(header: Sequence[str], rows: Iterable[Sequence[str | int | float]], fold: str | None = None) -> str:
    """Return a table; numbers stand at the right. With `fold`, it opens when this text is clicked."""
    listed = [list(row) for row in rows]
    numeric = [bool(listed) and all(not isinstance(row[i], str) for row in listed) for i in range(len(header))]
    align = [' class="number"' if number else "" for number in numeric]
    head = "".join(f"<th{a}>{escape(text)}</th>" for a, text in zip(align, header, strict=True))
    body = "\n".join(
        "<tr>" + "".join(f"<td{a}>{escape(_cell(cell))}</td>" for a, cell in zip(align, row, strict=True)) + "</tr>"
        for row in listed
    )
    shown = f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>\n'
    return shown if fold is None else f"<details><summary>{escape(fold)}</summary>\n{shown}</details>\n"


def figure(svg: str, caption: str) -> str:
    """Return a picture with a caption; as an image of its own it can neither run scripts nor clash with others."""
    data = base64.b64encode(svg.encode()).decode()
    text = escape(caption)
    source = f"data:image/svg+xml;base64,{data}"
    return f'<figure><img src="{source}" alt="{text}"><figcaption>{text}</figcaption></figure>\n'


def write_page(path: str | Path, title: str, parts: Iterable[str]) -> None:
    """Write a page to `path`; the file appears whole or not at all.

    Arguments: `path`; `title`, plain text; `parts`, HTML made by the functions of this module, in order.
    """
    target = Path(path)
    page = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n{''.join(parts)}</body>\n</html>\n"
    )
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        partial.write_text(page, encoding="utf-8")
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _cell(value: str | int | float) -> str:
    return value if isinstance(value, str) else f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
