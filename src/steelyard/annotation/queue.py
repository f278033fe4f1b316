"""Ranked labels of items, and the CSV file that hands them to people as questions."""

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
    """Labels of items, the best first: one entry per item and label in each array.

    Examples:
        >>> eta = np.array([[0.2, 0.5], [0.9, 0.6]])
        >>> cells = sy.next_to_annotate(np.full((2, 2), -1), eta, budget=3, by="uncertainty")
        >>> cells.n, cells.first(2).items.tolist(), cells.first(2).labels.tolist()
        (3, [0, 1], [1, 1])
    """

    items: NDArray[np.int64]
    """Rows of the table of labels."""
    labels: NDArray[np.int64]
    """Columns of the table."""
    given: NDArray[np.int8]
    """1 present, 0 absent, −1 unknown."""
    probability: NDArray[np.float64]
    """Probability that the label is present, by the model alone."""
    score: NDArray[np.float64]
    """The ranking: the probability that a given label is wrong or that an unknown one is present, or the gain."""

    @property
    def n(self) -> int:
        """The number of entries."""
        return len(self.items)

    def first(self, n: int) -> Ranked:
        """Return the first n entries."""
        return self.at(slice(n))

    def at(self, where: Any) -> Ranked:
        """Return the entries at these positions."""
        return Ranked(*(part[where] for part in self))


def nothing() -> Ranked:
    """Return an empty list."""
    whole, number = np.zeros(0, np.int64), np.zeros(0)
    return Ranked(whole, whole, np.zeros(0, np.int8), number, number)


def best(parts: Sequence[Ranked], n: int) -> Ranked:
    """Merge lists and return the n entries of highest score; ties are ordered by item and label."""
    joined = Ranked(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
    if joined.n > n > 0:  # cells as good as the n-th are kept until the order is known
        least = np.partition(joined.score, joined.n - n)[joined.n - n]
        joined = joined.at(joined.score >= least)
    order = np.lexsort((joined.labels, joined.items, -joined.score))[:n]
    return joined.at(order)


def as_text(probability: float) -> str:
    """Format a probability with two digits, such as .39; it never reads "1.00" or ".00"."""
    if 0.005 <= probability < 0.995:
        return f"{probability:.2f}".removeprefix("0")
    return ">.99" if probability > 0.5 else "<.01"


def score_text(score: float) -> str:
    """Format a score with three digits, such as .281; a probability that is not certain never reads "1"."""
    return ">.999" if 0.9995 <= score <= 1 else f"{score:.3g}".removeprefix("0")


Why = Callable[[int], str]
"""Returns a short reason why an entry is in the list."""


def write_queue(path: str | Path, ranked: Ranked, labels: Labels, why: Why, paths: Sequence[str] | None = None) -> None:
    """Write a CSV file with one row per question, the best first, for `steelyard serve --review`.

    Its columns are rank, id, label, question ("wrong?" of a given label, "present?" of an unknown one), given (1, 0 or
    empty), probability, score, why, path. A ' is put before ids and labels that a spreadsheet would run as formulas.

    Args:
        path: where to write the file.
        ranked: the entries to write.
        labels: the table of labels that `ranked` refers to.
        why: function that returns the reason for row k.
        paths: image file of each item of the table; None if the items are not images.

    Examples:
        >>> labels = sy.Labels(np.array([[1, -1], [-1, 0]]), names=["cat", "dog"], ids=["a", "b"])
        >>> cells = sy.next_to_annotate(labels, np.array([[0.9, 0.5], [0.3, 0.2]]), budget=2)
        >>> sy.annotation.write_queue("queue.csv", cells, labels, why=lambda k: "little is known")
        >>> print(open("queue.csv").readline().strip())
        rank,id,label,question,given,probability,score,why,path
    """
    check_place(path)
    with replacing(Path(path)) as partial, partial.open("w", encoding="utf-8", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(QUEUE_COLUMNS)
        for rank, row in enumerate(rows_of(ranked, labels, why, paths), 1):
            texts = {name: harmless(row[name]) for name in ("id", "label")}
            out.writerow([rank, *(row | texts).values()])


def rows_of(ranked: Ranked, labels: Labels, why: Why, paths: Sequence[str] | None = None) -> list[dict[str, str]]:
    """Return the rows of the file as dictionaries by column, without the rank."""
    rows = []
    for k, (item, label, given, eta, score) in enumerate(zip(*(part.tolist() for part in ranked), strict=True)):
        question, shown = (PRESENT, "") if given == UNKNOWN else (WRONG, str(given))
        where = "" if paths is None else paths[item]
        numbers = (f"{eta:.6g}", f"{score:.6g}")
        values = (labels.ids[item], labels.names[label], question, shown, *numbers, why(k), where)
        rows.append(dict(zip(QUEUE_COLUMNS[1:], values, strict=True)))
    return rows
