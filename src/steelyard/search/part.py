"""A part of an index: some items sorted by id, in files that are written once and never changed.

`part-N.parquet` has the columns `key` (N · 2³² + row), `id` and `p0`, `p1`, …, the probabilities, float32, never null,
plain and not compressed, so that a scan is a copy, and one value lies at a place that can be computed. `part-N.arrow`
has ids and paths, mapped into memory: one is found by its row at once, a row by its id in log N steps.
"""

from __future__ import annotations

import inspect
import os
from bisect import bisect_left
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from steelyard._files import replacing
from steelyard._locks import has_locks, lock
from steelyard.search.blocks import Blocks, sums_of
from steelyard.search.manifest import PartFacts
from steelyard.search.sql import column

Floats: TypeAlias = NDArray[np.float32]
Ints: TypeAlias = NDArray[np.int64]

MOST_ROWS: Final = 2**31
_GROUP = 1 << 18
_GROUP_CELLS = 1 << 25
_FEW = 256
_TABLE_BLOCK = 1 << 20
_NAMES_BLOCK = 1 << 16


class Gone(Exception):
    """A file of a part is not there any more: another generation has come."""


class Rows(NamedTuple):
    """Items with their probabilities."""

    ids: Any
    """An Arrow array of large_string, (N,)."""
    probabilities: NDArray[Any]
    """(N, L), of any float type."""
    paths: Any
    """An Arrow array of large_string with nulls, (N,)."""


def group_rows(n_labels: int) -> int:
    """Return the rows of a row group: enough for a scan, few enough to be held while they are written."""
    return int(max(2048, min(_GROUP, _GROUP_CELLS // max(1, n_labels) // 2048 * 2048)))


def write_part(folder: Path, number: int, rows: Rows) -> PartFacts:
    """Write items as the part `number`, sorted by id."""
    n, n_labels = rows.probabilities.shape
    order = pc.sort_indices(rows.ids).to_numpy()
    in_order = bool((order[1:] > order[:-1]).all())
    facts = PartFacts(number, n, (0, 0))
    schema = pa.schema(
        [
            pa.field("key", pa.int64(), nullable=False),
            pa.field("id", pa.large_string(), nullable=False),
            *(pa.field(column(j), pa.float32(), nullable=False) for j in range(n_labels)),
        ]
    )
    size = group_rows(n_labels)
    options: dict[str, Any] = {"data_page_size": 4 * size + 4096}
    if "max_rows_per_page" in inspect.signature(pq.ParquetWriter.__init__).parameters:
        options["max_rows_per_page"] = size
    with replacing(folder / facts.table) as partial:
        with pq.ParquetWriter(
            partial,
            schema,
            compression="none",
            use_dictionary=False,
            column_encoding={"key": "DELTA_BINARY_PACKED"},
            store_schema=False,
            **options,
        ) as writer:
            for start in range(0, n, size):
                stop = min(n, start + size)
                at = slice(start, stop) if in_order else order[start:stop]
                block = np.ascontiguousarray(rows.probabilities[at].T, np.float32) + np.float32(0)  # −0 becomes 0
                key = (number << 32) + np.arange(start, stop)
                ids = rows.ids[start:stop] if in_order else rows.ids.take(pa.array(at))
                writer.write_table(pa.table([pa.array(key), ids, *map(pa.array, block)], schema=schema), size)
        table_bytes, table_sums = partial.stat().st_size, sums_of(partial, _TABLE_BLOCK)
    ids, paths = (x if in_order else x.take(pa.array(order)) for x in (rows.ids, rows.paths))
    named = pa.record_batch([ids, paths], names=["id", "path"])
    with replacing(folder / facts.names) as partial:
        with pa.OSFile(str(partial), "wb") as sink, pa.ipc.new_file(sink, named.schema) as names:
            names.write_batch(named)
        names_bytes, names_sums = partial.stat().st_size, sums_of(partial, _NAMES_BLOCK)
    return PartFacts(number, n, (table_bytes, names_bytes), (table_sums, names_sums))


@final
class Part:
    """An open part; while it is open no writer removes its files. What is read of them is tested first."""

    def __init__(self, folder: Path, facts: PartFacts, n_labels: int) -> None:
        self.facts, self.n_labels, self.table = facts, n_labels, folder / facts.table
        self._held = -1
        try:
            self._held = os.open(folder / facts.names, os.O_RDONLY)
            lock(self._held, shared=True)
            sizes = self.table.stat().st_size, os.fstat(self._held).st_size
            if not os.path.samestat(os.fstat(self._held), (folder / facts.names).stat()):
                raise Gone
        except FileNotFoundError:
            raise Gone from None
        if sizes != facts.bytes:
            raise ValueError(f"{self.table} or its names are not as they were written: make the index anew")
        self._names = Blocks(folder / facts.names, facts.sums[1], _NAMES_BLOCK)
        self._names.test(0, min(_NAMES_BLOCK, facts.bytes[1]))  # what is there, before the texts
        self._names.test(max(0, facts.bytes[1] - _NAMES_BLOCK))  # and after them
        source = pa.memory_map(str(folder / facts.names))
        self._start = source.read_buffer(facts.bytes[1]).address
        batch = pa.ipc.open_file(source).get_batch(0)
        self._ids, self._paths = batch.column(0), batch.column(1)

    def close(self) -> None:
        """Let go of the files."""
        if self._held >= 0:
            os.close(self._held)
            self._held = -1

    def __del__(self) -> None:
        self.close()

    @property
    def rows(self) -> int:
        """How many, the deleted ones counted."""
        return self.facts.rows

    @property
    def first_key(self) -> int:
        """The key of its first row."""
        return self.facts.number << 32

    def id(self, row: int) -> str:
        """Return the id of a row."""
        return str(self._tested(self._ids, row).as_py())

    def path(self, row: int) -> str | None:
        """Return the path of a row."""
        found: str | None = self._tested(self._paths, row).as_py()
        return found

    def _tested(self, texts: Any, row: int) -> Any:
        """An entry of an Arrow array of strings, its bytes tested."""
        missing, offsets, content = texts.buffers()
        if missing is not None:
            self._names.test(missing.address - self._start + row // 8, missing.address - self._start + row // 8 + 1)
        at = offsets.address - self._start + 8 * row
        self._names.test(at, at + 16)
        begin, end = self._names.bytes[at : at + 16].view("<i8").tolist()
        if end > begin:  # what is empty may lie anywhere
            self._names.test(content.address - self._start + begin, content.address - self._start + end)
        return texts[row]

    @property
    def ids(self) -> Any:
        """An Arrow array of all ids, sorted."""
        self._names.test()
        return self._ids

    def find(self, ids: Any) -> Ints:
        """Return the row of each id of an Arrow array, −1 where it is not here; null is nowhere."""
        if len(ids) <= _FEW:
            return np.array([self._row(text) for text in ids.to_pylist()], np.int64)
        once = ids.unique()
        at = pc.index_in(self.ids, value_set=once)
        rows = np.full(len(once), -1, np.int64)
        rows[at.drop_null().to_numpy()] = pc.indices_nonzero(at.is_valid()).to_numpy()
        return np.asarray(rows[pc.index_in(ids, value_set=once).to_numpy()])

    def _row(self, text: str | None) -> int:
        if text is None:
            return -1
        row = bisect_left(_Texts(self), text.encode())
        return row if row < self.rows and self.id(row) == text else -1

    def values(self, rows: Ints, columns: Sequence[int]) -> Floats:
        """Return the probabilities of some rows and labels, (rows, columns)."""
        size = group_rows(self.n_labels)
        group, within = np.divmod(rows, size)
        offsets = self._offsets[group][:, columns] + 4 * within[:, None]
        self._table.test_at(offsets)
        found = self._table.bytes[offsets[..., None] + np.arange(4)]
        return np.ascontiguousarray(found).view("<f4").reshape(offsets.shape)

    def test(self, columns: Sequence[int]) -> None:
        """Raise unless the keys and the probabilities of some labels, all rows, are as they were written."""
        for j in (0, *(2 + j for j in columns)):
            for begin, end in zip(*(bounds[:, j].tolist() for bounds in self._chunks), strict=True):
                self._table.test(begin, end)

    @cached_property
    def _table(self) -> Blocks:
        table = Blocks(self.table, self.facts.sums[0], _TABLE_BLOCK)
        table.test(len(table.bytes) - 8)
        footer = int(table.bytes[-8:-4].view("<u4")[0])
        table.test(len(table.bytes) - 8 - footer)
        return table

    @cached_property
    def _chunks(self) -> tuple[Ints, Ints]:
        """Where each row group's part of each column begins and ends in the table, (groups, columns)."""
        meta = pq.read_metadata(pa.BufferReader(pa.py_buffer(self._table.bytes)))
        shape = (meta.num_row_groups, 2 + self.n_labels)
        chunks = [meta.row_group(g).column(j) for g in range(shape[0]) for j in range(shape[1])]
        begins = np.array([chunk.data_page_offset for chunk in chunks], np.int64)
        return begins.reshape(shape), (begins + [chunk.total_compressed_size for chunk in chunks]).reshape(shape)

    @cached_property
    def _offsets(self) -> Ints:
        """Where the values of each row group and label begin in the table: they come last in their part of it."""
        starts = np.arange(0, self.rows, group_rows(self.n_labels))
        return np.asarray(self._chunks[1][:, 2:] - 4 * np.diff(starts, append=self.rows)[:, None])

    def read(self, keep: NDArray[np.bool_]) -> Rows:
        """Return the rows that are to be kept, all columns."""
        self._table.test()
        table = pq.read_table(self.table, columns=[column(j) for j in range(self.n_labels)])
        values = np.empty((int(keep.sum()), self.n_labels), np.float32)
        for j, chunks in enumerate(table.columns):
            values[:, j] = chunks.to_numpy()[keep]
        mask = pa.array(keep)
        return Rows(self.ids.filter(mask), values, self._paths.filter(mask))


def remove_unless_held(folder: Path, facts: PartFacts) -> None:
    """Remove the files of a part, unless some process has it open, or it cannot be told whether one has."""
    if not has_locks():
        return
    try:
        descriptor = os.open(folder / facts.names, os.O_RDONLY)
    except FileNotFoundError:
        (folder / facts.table).unlink(missing_ok=True)
        return
    try:
        if lock(descriptor, waits=False):
            (folder / facts.names).unlink(missing_ok=True)  # first, as that is the one a reader asks for
            (folder / facts.table).unlink(missing_ok=True)
    finally:
        os.close(descriptor)


class _Texts(Sequence[bytes]):
    """The bytes of the ids of a part, for a binary search."""

    def __init__(self, part: Part) -> None:
        self._part = part

    def __len__(self) -> int:
        return self._part.rows

    def __getitem__(self, i: Any) -> Any:
        return self._part.id(i).encode()
