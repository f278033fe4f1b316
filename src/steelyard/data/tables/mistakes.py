"""Mistakes in a manifest, collected so that one sentence names up to ten of them by their lines in the file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from steelyard.data.files import DataError
from steelyard.data.tables.manifest import MOST_NAMED, Manifest, encode


@final
class Mistakes:
    """Items of a manifest that are wrong in one way.

    source: the manifest.
    what: what is wrong, as it ends the sentence: ", which is no label value", or " has no id".
    plural: the same of several.
    remedy: what to do about it.
    """

    def __init__(self, source: Manifest, what: str, plural: str, remedy: str) -> None:
        self._source, self._what, self._plural, self._remedy = source, what, plural, remedy
        self._total = 0
        self._first: list[tuple[int, str]] = []

    def add(self, rows: NDArray[np.int64] | Sequence[int], what: str | Callable[[int], str] = "") -> None:
        """Record the items `rows`; `what` describes them, or the k-th: ", column 'cat' holds 'maybe'"."""
        self._total += len(rows)
        self._first += [
            (int(row), what if isinstance(what, str) else what(k)) for k, row in enumerate(rows[:MOST_NAMED])
        ]

    def check(self) -> None:
        """Raise an error of one sentence about them, if there are any."""
        if not self._total:
            return
        first = sorted(self._first, key=lambda mistake: mistake[0])[:MOST_NAMED]
        lines = self._source.places([row for row, _ in first])
        shown = enumerated([f"{line}{text}" for line, (_, text) in zip(lines, first, strict=True)], self._total)
        ending = self._what if self._total == 1 else self._plural
        raise DataError(f"{self._source.path}: {shown}{ending}: {self._remedy}")


def refuse(source: Manifest, rows: NDArray[np.int64], what: str, plural: str, remedy: str) -> None:
    """Raise one sentence about the items `rows`, if there are any; see `Mistakes`."""
    mistakes = Mistakes(source, what, plural, remedy)
    mistakes.add(rows)
    mistakes.check()


def check_filled(
    source: Manifest, codes: NDArray[np.int64], what: str, remedy: str = "add it, or remove the row"
) -> None:
    """Refuse a column with blank cells, given as `encode` returns it; `what` a cell should hold."""
    refuse(source, np.flatnonzero(codes < 0), f" has no {what}", f" have no {what}", remedy)


def filled(source: Manifest, column: Any, what: str) -> tuple[NDArray[np.int64], Any]:
    """Return a column of texts as `encode` does; one with blank cells is refused, `what` a cell should hold."""
    codes, texts = encode(column)
    check_filled(source, codes, what)
    return codes, texts


def enumerated(parts: Sequence[str], total: int) -> str:
    """Return "a; b; c and 5 more" of the first parts of `total`."""
    more = f" and {total - len(parts):,} more" if total > len(parts) else ""
    return "; ".join(parts) + more
