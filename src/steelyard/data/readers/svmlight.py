"""Sparse text files of features and labels: svmlight (LIBSVM) and the extreme classification repository's (XMC)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.sparse import csr_array

from steelyard.data.dataset import ArrayDataset
from steelyard.data.files import DataError, PathLike, label_order, require
from steelyard.labels import Labels

_MOST = 50_000_000  # features, or labels, that a file may number
_REMEDY = "write labels as 3,7 and features as 12:0.5, separated by spaces"


def svmlight(path: PathLike) -> ArrayDataset:
    """Return sparse features and labels of a text file, one item per line: `3,7 12:0.5 40:1`.

    Numbers are kept as they are written, from 0 or from 1. A first line of three numbers, as XMC files have it, says
    how many items, features and labels there are; without one these are the largest that occur, so that two files may
    differ: join them, or add that line. What follows # is a comment; a label that an item does not list is absent.
    """
    rows: list[int] = []
    columns: list[int] = []
    values: list[float] = []
    items: list[int] = []
    marks: list[str] = []
    header: tuple[int, int, int] | None = None
    n = 0
    for line, text in _lines(path):
        if n == 0 and header is None and (header := _header(text)) is not None:
            continue
        first, _, rest = text.partition(" ")
        cells = rest.split()
        if ":" in first:  # an item without labels
            first, cells = "", text.split()
        try:
            named = [mark for mark in first.split(",") if mark]
            pairs = [cell.split(":") for cell in cells if not cell.startswith("qid:")]
            columns += [int(one) for one, _ in pairs]
            values += [float(two) for _, two in pairs]
        except ValueError:
            raise DataError(f"{path}: line {line} is no item ({text[:60]!r}): {_REMEDY}") from None
        if len(values) and not np.isfinite(values[-len(pairs) :]).all():
            raise DataError(f"{path}: line {line} holds values that are not finite numbers: fix or remove it")
        rows += [n] * len(pairs)
        items += [n] * len(named)
        marks += named
        n += 1
    if not n:
        raise DataError(f"{path} holds no items: {_REMEDY}")
    width = header[1] if header else max(columns, default=-1) + 1
    if columns and not (min(columns) >= 0 and max(columns) < min(width, _MOST)):
        raise DataError(f"{path} numbers features from {min(columns)} to {max(columns)}, but says {width}: fix it")
    if header and header[0] != n:
        raise DataError(f"{path} has {n:,} items, but says {header[0]:,} in its first line: download or write it again")
    inputs = csr_array((np.array(values, np.float32), (rows, columns)), (n, width))
    return ArrayDataset(inputs, _labels(path, items, marks, n, header[2] if header else None))


def _labels(path: PathLike, items: list[int], marks: list[str], n: int, n_labels: int | None) -> Labels:
    names = sorted(set(marks), key=label_order) if n_labels is None else [str(c) for c in range(min(n_labels, _MOST))]
    place = {name: c for c, name in enumerate(names)}
    if not names or (strange := next((mark for mark in marks if mark not in place), None)) is not None:
        what = f"the label {strange!r:.40}, but says {n_labels}" if names else "no label"
        raise DataError(f"{path} has {what}: {_REMEDY}")
    index = np.array([place[mark] for mark in marks], np.int64)
    return Labels.from_cells(np.array(items, np.int64), index, np.ones(len(index), np.int8), (n, len(names)), 0, names)


def _header(text: str) -> tuple[int, int, int] | None:
    words = text.split()
    if len(words) != 3 or not all(word.isdecimal() for word in words):
        return None
    return int(words[0]), int(words[1]), int(words[2])


def _lines(path: PathLike) -> Iterator[tuple[int, str]]:
    """Yield number and text of the lines, comments and empty lines left out."""
    try:
        with require(path).open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if text := line.split("#")[0].strip():
                    yield number, text
    except UnicodeDecodeError:
        raise DataError(f"{path} is not UTF-8 text: {_REMEDY}") from None
