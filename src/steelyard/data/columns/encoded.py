"""New items of a manifest whose columns are encoded as a run encoded those of training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from steelyard.data.columns.encoder import Encoder
from steelyard.data.columns.mixed import FEATURES, Column
from steelyard.data.dataset import as_inputs
from steelyard.data.files import DataError
from steelyard.data.streams import FeatureInputs, Inputs, OnBad
from steelyard.data.tables.columns import Columns
from steelyard.data.tables.manifest import Manifest
from steelyard.data.tables.values import feature_column

_BLOCK = 256  # rows that are written out at a time: a row may have twenty thousand features


def text_rows(
    source: Manifest,
    id: str | None,
    text: str | None,
    features: Sequence[str],
    encoder: Encoder,
    on_bad: OnBad = "error",
) -> Inputs:
    """Return the rows of a manifest as a stream of features.

    Args:
        source: the manifest.
        id: the column that names the items; guessed if not given.
        text: the column of texts; by default that of training.
        features: the columns of numbers beside it.
        encoder: of the run.
        on_bad: what to do about a row that holds something else than finite numbers.
    """
    column = text or encoder.text
    if column is None:
        raise DataError(
            f"{source.path} is a file, but the run was trained on columns of a table in memory: give run.probability "
            "such a table"
        )
    for name, argument in ((column, "text"), *((name, "features") for name in features), *([(id, "id")] if id else [])):
        source.check_column(name, argument)
    id = id or Columns(source, (column, *features)).id_column(None)
    called = "numbered" if id is None else f"named by column {id!r}"
    note = f"{source.path}: the input is the text of column {column!r}, items are {called}; set by text and id."
    n_items = source.count()

    def blocks() -> Iterator[tuple[NDArray[Any], list[str]]]:
        start = 0
        for block in source.stream(dict.fromkeys([column, *([id] if id else [])]), features):
            columns = {column: Column("text", pa.array(block[column]))}
            if features:
                parts = [feature_column(source, name, block[name], start) for name in features]
                columns[FEATURES] = Column("number", np.concatenate(parts, axis=1))
            found, n = encoder.features(columns), len(block[column])
            ids = _ids(source, block[id].to_pylist() if id else None, start, n)
            for first in range(0, n, _BLOCK):
                yield as_inputs(found[first : first + _BLOCK]), ids[first : first + _BLOCK]
            start += n

    return FeatureInputs(blocks, n_items, on_bad, note=note)


def _ids(source: Manifest, names: list[str | None] | None, start: int, n: int) -> list[str]:
    if names is None:
        return [str(i) for i in range(start, start + n)]
    return [(name or "").strip() or source.row(start + i) for i, name in enumerate(names)]
