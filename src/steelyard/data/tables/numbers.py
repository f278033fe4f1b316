"""Columns of a manifest as rows of features."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from steelyard.data.files import DataError
from steelyard.data.tables.manifest import Manifest


def feature_column(
    source: Manifest, name: str, column: Any, start: int = 0, width: int | None = None
) -> NDArray[np.float32]:
    """Return a column of numbers, or of vectors of numbers, as float32 (n, width), NaN where a cell is blank.

    source, name: the file and the name of the column, for messages.
    start: the row of the file with which the column begins.
    width: how long its vectors are, where that is known; by default as the first of them.
    """
    n = len(column)
    if pa.types.is_nested(column.type):
        lengths = np.asarray(pc.list_value_length(column).fill_null(0))
        wanted = width if width is not None else int(lengths[0]) if n else 0
        if len(odd := np.flatnonzero(lengths != wanted)):
            raise DataError(
                f"{source.path}: {source.place(start + int(odd[0]))}, column {name!r} holds {lengths[odd[0]]} numbers, "
                f"but the first row has {wanted}: a feature vector is equally long in every row"
            )
        width, column = wanted, pc.list_flatten(column)
    try:
        with np.errstate(over="ignore"):  # what is too large for float32 is not finite: the caller refuses it
            return np.asarray(column.cast(pa.float64())).astype(np.float32).reshape(n, 1 if width is None else width)
    except pa.ArrowException:
        raise DataError(f"{source.path}: column {name!r} holds {column.type}, no numbers: see features=") from None
