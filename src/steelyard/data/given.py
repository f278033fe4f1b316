"""Data given in Python as (inputs, labels): arrays, tables, lists of labels, sparse matrices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.columns.mixed import named_columns
from steelyard.data.dataset import sparse_features
from steelyard.data.files import label_order
from steelyard.labels import Labels
from steelyard.labels.inputs import as_values
from steelyard.labels.targets import UNKNOWN


def given_inputs(inputs: Any) -> Any:
    """Return inputs as one array (N, …); a sparse matrix stays one."""
    if _is_sparse(inputs):
        return sparse_features(inputs)
    if (columns := named_columns(inputs)) is not None:
        return _numbers(columns, len(inputs), "inputs")
    return np.asarray(inputs)


def given_labels(labels: Any, names: Sequence[str] | None = None) -> Labels:
    """Return labels given in any usual form as a table.

    Args:
        labels: `Labels`; an array or nested lists (N, L) of 1, 0, −1 or NaN (unknown) or between; a table of pandas,
            polars or Arrow, whose columns are the names; a scipy sparse matrix, where unstored cells are absent; or one
            list of label names per item, where unlisted labels are absent.
        names: of the labels of training, where these are other items.
    """
    if isinstance(labels, Labels):
        return labels
    if _is_sparse(labels):
        cells = labels.tocoo()
        values = _without_nan(as_values(cells.data))
        return Labels.from_cells(cells.row, cells.col, values, cells.shape, 0, names)
    if (columns := named_columns(labels)) is not None:
        return Labels(_without_nan(_numbers(columns, len(labels), "labels")), [name for name, _ in columns])
    if (lists := lists_of_labels(labels)) is not None:
        return _listed(lists, names)
    return Labels(_without_nan(as_values(labels)), names)


def _is_sparse(data: Any) -> bool:
    return hasattr(data, "tocoo") and hasattr(data, "toarray")


def _numbers(columns: Sequence[tuple[str, Any]], n: int, what: str) -> NDArray[Any]:
    """Return the columns of a table of n rows as one array; what is missing is NaN."""
    arrays = []
    for name, column in columns:
        values = np.asarray(column)
        try:
            arrays.append(values if values.dtype.kind in "biuf" else np.array(list(map(_number, values)), np.float64))
        except (TypeError, ValueError):
            holds = f"holds {getattr(column, 'dtype', values.dtype)}, not numbers"
            raise ValueError(f"column {name!r} of the {what} {holds}: encode it, or leave it out") from None
    return np.stack(arrays, axis=1) if arrays else np.zeros((n, 0))


def _number(cell: Any) -> float:
    """Return a cell of a column of objects as a number; None, and pandas' NA, are NaN."""
    if isinstance(cell, str | bytes | np.datetime64 | np.timedelta64):
        raise TypeError("neither a text nor a time is a number")
    return np.nan if cell is None or str(cell) == "<NA>" else float(cell)


def _without_nan(values: NDArray[Any]) -> NDArray[Any]:
    """Return the values with −1, unknown, where they are NaN."""
    return np.where(np.isnan(values), UNKNOWN, values) if values.dtype.kind == "f" else values


def lists_of_labels(labels: Any) -> list[list[Any]] | None:
    """Return one list of label names per item if that is given, None if it is a table of values."""
    if isinstance(labels, str | bytes) or (hasattr(labels, "dtype") and getattr(labels, "ndim", 1) != 1):
        return None
    rows = list(labels) if isinstance(labels, Iterable) else []
    if not rows or not all(isinstance(row, list | tuple | set | frozenset | np.ndarray) for row in rows):
        return None
    lists = [sorted(row, key=str) if isinstance(row, set | frozenset) else list(row) for row in rows]
    texts = any(isinstance(entry, str) for row in lists for entry in row)
    ragged = len({len(row) for row in lists}) > 1
    sets = any(isinstance(row, set | frozenset) for row in rows)
    return lists if texts or ragged or sets else None


def _listed(lists: list[list[Any]], names: Sequence[str] | None) -> Labels:
    """Return a table of labels from one list of names, or of whole numbers, per item."""
    for i, row in enumerate(lists):
        if odd := [entry for entry in row if not isinstance(entry, str | int | np.integer)]:
            remedy = "give the names of the item's labels, or a table (N, L) with equally long rows"
            raise ValueError(f"labels[{i}] holds {odd[0]!r:.40}: {remedy}")
    texts = [[str(entry) for entry in row] for row in lists]
    known = {entry for row in texts for entry in row}
    order = tuple(sorted(known, key=label_order) if names is None else names)
    if strange := sorted(known - set(order)):
        among = f"not among the {len(order)} labels of training"
        raise ValueError(f"the label {strange[0]!r} is {among}: remove it, or train with items that have it")
    place = {name: j for j, name in enumerate(order)}
    items = np.repeat(np.arange(len(texts)), [len(row) for row in texts])
    columns = np.array([place[entry] for row in texts for entry in row], np.int64)
    return Labels.from_cells(items, columns, np.ones(len(columns), np.int8), (len(texts), len(order)), 0, order)
