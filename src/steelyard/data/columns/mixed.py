"""Items described by columns of several kinds, numbers, categories and texts, before they are encoded as features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray

from steelyard.labels import Labels

Kind: TypeAlias = Literal["number", "category", "text"]

TEXTS = "text"
"""Name of a text column that was passed without one."""
FEATURES = "feature columns"
"""Name of all numeric columns of a manifest together, beside a text column."""
FEWEST_WORDS = 4
"""Mean number of words per cell from which a column of texts counts as prose."""
MOST_CATEGORIES = 1000
"""Maximum number of distinct texts of a column of categories."""


class Column(NamedTuple):
    """One value per item."""

    kind: Kind
    values: Any
    """Numbers as float32, (N,) or (N, D); categories and texts as one Arrow array of strings."""

    def take(self, index: NDArray[np.int64]) -> Column:
        """Return the values of some items."""
        if isinstance(self.values, np.ndarray):
            return self._replace(values=self.values[index])
        return self._replace(values=self.values.take(pa.array(index)))

    def texts(self) -> list[str]:
        """Return the texts; what is missing is empty."""
        return [cell or "" for cell in self.values.to_pylist()]


def category_column(cells: Any) -> Column:
    """Return texts as categories: surrounding white space does not count, and a blank cell has no category."""
    texts = pc.utf8_trim_whitespace(cells.cast(pa.string()))
    return Column("category", pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts))


@final
class MixedDataset:
    """Items as columns, row i of each belonging to row i of `labels`, to be encoded as features (`Encoder`).

    columns: by name.
    labels: the `Labels`.
    note: how the data came about, for people to read.
    weights: how much each item counts in training, (N,); None for 1 each.
    """

    def __init__(self, columns: Mapping[str, Column], labels: Labels, note: str = "") -> None:
        self.columns, self.labels, self.note = dict(columns), labels, note
        self.weights: Any = None
        for name, column in self.columns.items():
            if len(column.values) != len(labels):
                sizes = f"{len(column.values)} rows, but labels has {len(labels)} items"
                raise ValueError(f"column {name!r} of the inputs has {sizes}: they must be equal")

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[dict[str, Any], torch.Tensor, int]:
        row = {name: column.values[index] for name, column in self.columns.items()}
        return row, torch.from_numpy(self.labels.rows([index]))[0], index


def is_prose(cells: Sequence[str]) -> bool:
    """Return whether texts are sentences rather than names: several words each, and seldom the same."""
    some = [cell for cell in cells[:2000] if cell]
    if not some or 2 * len(set(some)) < len(some):
        return False
    words = [cell.split() for cell in some]
    return sum(map(len, words)) >= FEWEST_WORDS * len(some) and not all(w.isdecimal() for row in words for w in row)


def columns_of(table: Any) -> dict[str, Column] | None:
    """Return the columns of a table of pandas, polars or Arrow, or texts as one column; None where all are numbers.

    Texts are prose or categories, as `is_prose` says; booleans and times of day are no numbers either.
    """
    if (texts := _texts_of(table)) is not None:
        return {TEXTS: Column("text", texts)}
    if (arrays := _arrow_columns(table)) is None:
        return None
    if all(_is_number(array.type) for array in arrays.values()) and not isinstance(table, pa.Table):
        return None
    return {name: _column(name, array) for name, array in arrays.items()}


def _texts_of(table: Any) -> Any:
    """One Arrow array where what is given is one text per item."""
    if isinstance(table, pa.ChunkedArray | pa.Array) and _is_text(table.type):
        return _whole(table).cast(pa.string())
    is_series = hasattr(table, "to_arrow") and not hasattr(table, "columns")
    one_each = isinstance(table, list | tuple) or getattr(table, "ndim", 0) == 1 or is_series
    if not one_each or not len(table) or not all(isinstance(cell, str) for cell in table):
        return None
    return pa.array([str(cell) for cell in table], pa.string())


def named_columns(table: Any) -> list[tuple[str, Any]] | None:
    """Return names and columns of a table of pandas, polars or Arrow, None of anything else."""
    if isinstance(table, pa.Table | pa.RecordBatch):
        return [(name, table.column(j)) for j, name in enumerate(table.schema.names)]
    if not (hasattr(table, "columns") and hasattr(table, "to_numpy")):
        return None
    pandas = hasattr(table, "iloc")
    return [(str(name), table.iloc[:, j] if pandas else table[name]) for j, name in enumerate(table.columns)]


def _arrow_columns(table: Any) -> dict[str, Any] | None:
    columns = named_columns(table)
    return None if columns is None else {name: _as_arrow(name, column) for name, column in columns}


def _as_arrow(name: str, column: Any) -> Any:
    if isinstance(column, pa.ChunkedArray | pa.Array) or hasattr(column, "to_arrow"):
        return _whole(column.to_arrow() if hasattr(column, "to_arrow") else column)
    try:
        return _whole(pa.array(column if hasattr(column, "iloc") else np.asarray(column), from_pandas=True))
    except pa.ArrowException:
        kind = getattr(column, "dtype", "something else")
        raise _unusable(name, f"{kind} of several kinds, not numbers or texts", "convert it") from None


def _whole(column: Any) -> Any:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _is_number(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _is_text(kind: Any) -> bool:
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(value) or pa.types.is_large_string(value) or pa.types.is_string_view(value))


def _column(name: str, array: Any) -> Column:
    kind = array.type
    if _is_number(kind) or pa.types.is_decimal(kind):
        return Column("number", np.asarray(array.cast(pa.float64()), np.float32))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return Column("number", _vectors(name, array))
    if not (_is_text(kind) or pa.types.is_dictionary(kind)):
        raise _unusable(name, f"{kind}, neither numbers nor texts", "convert it")
    texts = array.cast(pa.string())
    if not pa.types.is_dictionary(kind) and is_prose(texts.to_pylist()):
        return Column("text", texts)
    if (n := len(texts.unique())) > MOST_CATEGORIES:
        most = f"too many for categories (at most {MOST_CATEGORIES:,})"
        raise _unusable(name, f"{n:,} different texts, {most}", "group them")
    return Column("category", texts)


def _vectors(name: str, array: Any) -> NDArray[np.float32]:
    """Return a column of lists of numbers, such as embeddings, as (N, D)."""
    try:
        return np.array(array.to_pylist(), np.float32).reshape(len(array), -1)
    except (TypeError, ValueError):
        raise _unusable(name, "lists that are not equally long lists of numbers", "fix it") from None


def _unusable(name: str, holds: str, remedy: str) -> ValueError:
    return ValueError(f"column {name!r} of the inputs holds {holds}: {remedy}, or leave it out")
