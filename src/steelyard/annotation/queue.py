"""Cells of a table of labels, the best first, and the CSV file in which they are handed to people."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from steelyard._files import check_place, replacing
from steelyard.data.files import harmless
from steelyard.data.review import QUEUE_COLUMNS
from steelyard.labels import UNKNOWN, Labels

WRONG, PRESENT = "wrong?", "present?"


class Ranked(NamedTuple):
    """Cells of a table, the best first, one entry per cell in each array."""

    items: NDArray[np.int64]
    """Rows of the table."""
    labels: NDArray[np.int64]
    """Its columns."""
    given: NDArray[np.int8]
    """1 present, 0 absent, −1 unknown."""
    probability: NDArray[np.float64]
    """That the label is present, by the model alone."""
    score: NDArray[np.float64]
    """By which cells are ranked: the probability that a given label is wrong or an unknown one present, or a gain."""

    @property
    def n(self) -> int:
        """How many cells."""
        return len(self.items)

    def first(self, n: int) -> Ranked:
        """Return the first n cells."""
        return self.at(slice(n))

    def at(self, where: Any) -> Ranked:
        """Return the cells at some positions."""
        return Ranked(*(part[where] for part in self))


def nothing() -> Ranked:
    """Return an empty list."""
    whole, number = np.zeros(0, np.int64), np.zeros(0)
    return Ranked(whole, whole, np.zeros(0, np.int8), number, number)


def best(parts: Sequence[Ranked], n: int) -> Ranked:
    """Return the n cells of highest score of several lists, equal ones by item and label."""
    joined = Ranked(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
    if joined.n > n > 0:  # cells as good as the n-th are kept until the order is known
        least = np.partition(joined.score, joined.n - n)[joined.n - n]
        joined = joined.at(joined.score >= least)
    order = np.lexsort((joined.labels, joined.items, -joined.score))[:n]
    return joined.at(order)


def as_text(probability: float) -> str:
    """Return a probability in two digits; "1" and "0" are never said of what is not certain."""
    if 0.005 <= probability < 0.995:
        return f"{probability:.2f}"
    return ">0.99" if probability > 0.5 else "<0.01"


Why = Callable[[int], str]
"""Says in a few words why the cell of a rank is in the list."""


def write_queue(path: str | Path, ranked: Ranked, labels: Labels, why: Why, paths: Sequence[str] | None = None) -> None:
    """Write a CSV file with one row per cell, the best first: what `steelyard serve --review` shows.

    Its columns are rank, id, label, question ("wrong?" of a given label, "present?" of an unknown one), given (1, 0 or
    empty), probability, score, why, path. A ' is put before ids and labels that a spreadsheet would run as formulas.

    Args:
        path: of the file.
        ranked: the cells.
        labels: the table.
        why: gives the reason for each row.
        paths: the image file of each item of the table, None where there are none.
    """
    check_place(path)
    with replacing(Path(path)) as partial, partial.open("w", encoding="utf-8", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(QUEUE_COLUMNS)
        for rank, row in enumerate(rows_of(ranked, labels, why, paths), 1):
            texts = {name: harmless(row[name]) for name in ("id", "label")}
            out.writerow([rank, *(row | texts).values()])


def rows_of(ranked: Ranked, labels: Labels, why: Why, paths: Sequence[str] | None = None) -> list[dict[str, str]]:
    """Return the rows of the file, by column, but for their rank."""
    rows = []
    for k, (item, label, given, eta, score) in enumerate(zip(*(part.tolist() for part in ranked), strict=True)):
        question, shown = (PRESENT, "") if given == UNKNOWN else (WRONG, str(given))
        where = "" if paths is None else paths[item]
        numbers = (f"{eta:.6g}", f"{score:.6g}")
        values = (labels.ids[item], labels.names[label], question, shown, *numbers, why(k), where)
        rows.append(dict(zip(QUEUE_COLUMNS[1:], values, strict=True)))
    return rows
