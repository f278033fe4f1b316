"""Word vectors of labels, read from a text file as GloVe publishes them."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from steelyard.data.files import DataError, PathLike, require


def label_vectors(path: PathLike, names: Sequence[str]) -> NDArray[np.float32]:
    """Return one vector a label, (L, D): that of its name, or the mean of those of the name's words.

    A line of the file is a word and its D numbers, between spaces. Upper and lower case are the same; a line whose
    word is the whole name, spaces written as `_` or `-`, wins over the words. Of several lines for one word the first
    counts. Words are parts of letters and digits: "traffic light" is traffic and light. A label none of whose words
    is in the file is an error.
    """
    wholes, parts = [], []
    for name in names:
        text = name.strip().lower()
        parts.append(re.findall(r"[^\W_]+", text))
        wholes.append([text, "_".join(parts[-1]), "-".join(parts[-1])])
    vectors = _read(path, {word for words in (*wholes, *parts) for word in words})
    rows = []
    for name, whole, words in zip(names, wholes, parts, strict=True):
        found = [vectors[word] for word in whole if word in vectors][:1]
        found = found or [vectors[word] for word in words if word in vectors]
        if not found:
            raise DataError(f"{path} has no vector for a word of the label {name!r}: add a line that begins with it")
        rows.append(np.mean(found, 0))
    return np.stack(rows).astype(np.float32)


def _read(path: PathLike, wanted: set[str]) -> dict[str, NDArray[np.float64]]:
    """The vectors of the wanted words; other lines are passed over unread."""
    vectors: dict[str, NDArray[np.float64]] = {}
    width = 0
    with require(path).open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            word, _, rest = line.partition(" ")
            word = word.lower()
            if word not in wanted or word in vectors:
                continue
            try:
                vector = np.array(rest.split(), np.float64)
            except ValueError:
                vector = np.empty(0)
            width = width or len(vector)
            if len(vector) != width or not width or not np.isfinite(vector).all():
                raise DataError(f"{path}: line {number} does not hold {width or 'any'} numbers after {word!r}: mend it")
            vectors[word] = vector
    return vectors
