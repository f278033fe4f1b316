"""The separator between labels in one cell."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from steelyard.data.tables.columns import Columns
from steelyard.data.tables.manifest import encode

_MARKS = (";", "|", ",")


def separator_of(columns: Columns, name: str, given: str | None) -> str | None:
    """Return the separator between labels in a cell, as given or guessed; None if each cell is one label."""
    column = columns.cells[name]
    if given is not None or pa.types.is_nested(column.type):
        return given
    cells = encode(column)[1].to_pylist()
    if any(cell.startswith("[") and cell.endswith("]") for cell in cells):
        remedy = "use a Parquet list column, or, if the brackets belong to a label, give separator="
        raise columns.source.error(f"column {name!r} holds lists in brackets: write cat;dog, {remedy}")
    times = {mark: sum(mark in cell for cell in cells) for mark in _MARKS}
    best = max(_MARKS, key=lambda mark: times[mark])
    if times[best]:
        return best
    return " " if _space_separates(cells) else None


def are_lists(cells: Sequence[str]) -> bool:
    """Return whether most cells have separators between short names, or spaces between labels."""
    marked = [cell for cell in cells if any(mark in cell for mark in (";", "|"))]
    parts = [part.split() for cell in marked for part in cell.replace("|", ";").split(";")]
    short = sum(len(words) <= 3 for words in parts)
    return (2 * len(marked) > len(cells) and short >= 0.8 * len(parts)) or _space_separates(cells)


def marks_join_labels(cells: Sequence[str]) -> bool:
    """Do `;` or `|` stand between names that are cells of their own too ("cat;dog" beside "dog")?"""
    marked = [cell for cell in cells if any(mark in cell for mark in (";", "|"))]
    parts = {part.strip() for cell in marked for part in cell.replace("|", ";").split(";")}
    return not parts.isdisjoint(cells)


def _space_separates(cells: Sequence[str]) -> bool:
    """Do spaces stand between labels ("1 19", "clear primary") rather than inside of their names ("traffic light")?

    Numbers are never names of several words. Other words must recur in at least twice as many different cells as there
    are words, and in more than one role: names such as "red car", "blue bus" recur too, but always in their place.
    """
    lists = [cell.split() for cell in cells]
    words = {word for words in lists for word in words}
    if max(map(len, lists), default=0) < 2:
        return False
    if all(word.isdecimal() for word in words):
        return True
    firsts = {words[0] for words in lists}
    others = {word for words in lists for word in words[1:]}
    return 2 * len(words) <= len(cells) and not firsts.isdisjoint(others)
