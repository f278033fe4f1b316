"""Items that are to be kept, checked, and in the order and the columns of a data file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from steelyard.labels.ids import Ids, check_several
from steelyard.search.data_files import columns

Paths: TypeAlias = "Sequence[str | os.PathLike[str] | None]"


class Rows(NamedTuple):
    """Items with their probabilities."""

    ids: Any
    """An Arrow array of large_string, (N,)."""
    probabilities: NDArray[Any]
    """(N, L), of any numeric type."""
    paths: Any
    """An Arrow array of large_string with nulls, (N,)."""

    def reader(self) -> Any:
        """Return an Arrow reader of the items sorted by id, in the columns of a data file, some megabytes at a time."""
        n, n_labels = self.probabilities.shape
        names, width = columns(n_labels)
        kind, text = pa.float32() if width == 1 else pa.list_(pa.float32(), width), pa.large_string()
        table = pa.schema([("id", text), ("path", text), *((name, kind) for name in names)])
        order = pc.sort_indices(self.ids).to_numpy()
        step = max(1, min(122_880, (1 << 24) // n_labels))

        def batches() -> Iterator[Any]:
            for start in range(0, n, step):
                at = order[start : start + step]
                block = np.zeros((len(at), len(names) * width), np.float32)
                block[:, :n_labels] = self.probabilities[at]
                block += np.float32(0)  # −0 becomes 0
                by_column = np.ascontiguousarray(block.reshape(len(at), len(names), width).swapaxes(0, 1))
                flat = map(pa.array, by_column.reshape(len(names), -1))
                cells = flat if width == 1 else (pa.FixedSizeListArray.from_arrays(x, width) for x in flat)
                texts = (x.take(pa.array(at)) for x in (self.ids, self.paths))
                yield pa.record_batch([*texts, *cells], schema=table)

        return pa.RecordBatchReader.from_batches(table, batches())


def rows_of(ids: Sequence[str], probabilities: Any, paths: Paths | None, n_labels: int) -> Rows:
    """Return items as they are to be written, checked: see `Index.build`."""
    texts = Ids(ids).arrow
    table = np.asarray(probabilities)
    if table.shape != (len(texts), n_labels) or table.dtype.kind not in "fiub":
        raise ValueError(
            f"probabilities is {table.dtype} of shape {table.shape}: give numbers ({len(texts)}, {n_labels}), one row "
            "per item, one column per label"
        )
    for start in range(0, len(table), 1 << 16):
        block = table[start : start + (1 << 16)]
        if len(bad := np.argwhere(~((block >= 0) & (block <= 1)))):
            i, j = bad[0]
            name = texts[start + int(i)].as_py()
            raise ValueError(f"probabilities[{start + i}, {j}], of item {name!r}, is {block[i, j]}: give 0 to 1")
    check_several(paths, "paths")
    if paths is not None and len(paths) != len(texts):
        raise ValueError(f"paths has {len(paths)} entries, but there are {len(texts)} items: give one per item")
    places = [None] * len(texts) if paths is None else [None if p is None else os.fspath(p) for p in paths]
    try:
        return Rows(texts, table, pa.array(places, pa.large_string()))
    except UnicodeEncodeError as error:
        at = [place == error.object for place in places].index(True)
        raise ValueError(f"paths[{at}] is {error.object!r}, which is not Unicode: rename that file") from None
