"""Values of cells in label and feature columns, and types of columns."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from steelyard.data.tables.manifest import BLANK, Manifest, encode
from steelyard.data.tables.mistakes import Mistakes
from steelyard.labels.targets import UNKNOWN

_WORDS = {
    **dict.fromkeys(("1", "true", "t", "yes", "y"), 1.0),
    **dict.fromkeys(("0", "false", "f", "no", "n"), 0.0),
    **dict.fromkeys((word.lower() for word in BLANK), float(UNKNOWN)),
}


def is_text(kind: Any) -> bool:
    """Return whether a column of this type holds texts."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_dictionary(kind))


def is_number(kind: Any) -> bool:
    """Return whether a column of this type holds numbers (other than decimals, which are read as floats)."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def is_list(kind: Any) -> bool:
    """Return whether a column of this type holds a list in each cell."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def value_of(text: str) -> float:
    """Return 1, 0, −1 or a soft value for what is written in a cell, NaN if that is none of them.

    1 true t yes y: present. 0 false f no n: absent. −1, nothing, NaN, NA, null, none, `?`: unknown. Else a number
    between 0 and 1, with a decimal point or comma. Upper and lower case are the same.
    """
    word = text.lower().replace(",", ".")
    if word in _WORDS:
        return _WORDS[word]
    try:
        number = float(word)
    except ValueError:
        return math.nan
    return number if 0 <= number <= 1 or number == UNKNOWN else math.nan


def without_decimals(column: Any) -> Any:
    """Return a column of decimals as one of floats, any other as it is."""
    return column.cast(pa.float64()) if pa.types.is_decimal(column.type) else column


def label_values(
    source: Manifest, name: str, column: Any, mistakes: Mistakes, blank: float = UNKNOWN, minus_one: float = UNKNOWN
) -> NDArray[np.float32]:
    """Return a column of a manifest as label values; cells that hold none are added to `mistakes`.

    A column of numbers is taken as such, a column of texts as `value_of` says.

    blank, minus_one: the values of cells that say nothing, and of cells that say −1.
    """
    column = without_decimals(column)
    kind = column.type
    if is_text(kind):
        codes, texts = encode(column)
        words = [*texts.to_pylist(), ""]
        meant = np.array([value_of(word) for word in words], np.float32)
        is_blank = np.array([word in BLANK or word.lower() in BLANK for word in words])
    elif is_number(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind):
        numbers = column.cast(pa.int8()) if pa.types.is_boolean(kind) else column
        cells = pc.fill_null(numbers.cast(pa.float64()), np.nan).to_numpy()
        meant, codes = np.unique(cells, return_inverse=True)
        is_blank = np.isnan(meant)
        fits = (meant >= 0) & (meant <= 1) | (meant == UNKNOWN)
        meant = np.where(is_blank, UNKNOWN, np.where(fits, meant, np.nan)).astype(np.float32)
    else:
        remedy = "convert it to 0 and 1, or name the other columns with labels="
        raise source.error(f"column {name!r} holds {kind}, no label values: {remedy}")
    meant = np.where(meant == UNKNOWN, np.where(is_blank, np.float32(blank), np.float32(minus_one)), meant)
    if (bad := np.isnan(meant)).any():
        rows = np.flatnonzero(bad[codes])
        mistakes.add(rows, lambda k: f", column {name!r} holds {str(column[int(rows[k])])!r:.60}")
    values: NDArray[np.float32] = meant[codes]
    return values


def no_label_values(source: Manifest) -> Mistakes:
    """Return a collection of cells that hold no label values."""
    remedy = "write 1 present, 0 absent, between them soft, nothing if unknown, or name the label columns with labels="
    return Mistakes(source, ", which is no label value", ", which are no label values", remedy)


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
        expected = width if width is not None else int(lengths[0]) if n else 0
        if len(odd := np.flatnonzero(lengths != expected)):
            cell = f"{source.place(start + int(odd[0]))}, column {name!r} holds {lengths[odd[0]]} numbers"
            raise source.error(f"{cell}, but the first row has {expected}: make all feature vectors equally long")
        width, column = expected, pc.list_flatten(column)
    try:
        with np.errstate(over="ignore"):  # what is too large for float32 is not finite: the caller refuses it
            return np.asarray(column.cast(pa.float64())).astype(np.float32).reshape(n, 1 if width is None else width)
    except pa.ArrowException:
        raise source.error(
            f"column {name!r} holds {column.type}, not numbers: name the feature columns with features="
        ) from None
