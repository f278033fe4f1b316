"""Writing an index: checks and sorts new items, and writes one more data file per change."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from functools import partial as bound
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from steelyard._files import naming, put
from steelyard.labels.ids import Ids, check_several
from steelyard.search import pointer as pointers
from steelyard.search.check import trust
from steelyard.search.data_files import FENCE, Generation, RowPlace, ask, attach, column, columns, connect, tables
from steelyard.search.pointer import FileFacts, Pointer

Paths: TypeAlias = "Sequence[str | os.PathLike[str] | None]"
_WORN: Final = 0.2  # share of dead rows above which a file is rewritten
_GROWTH: Final = 4  # a search reads every file, some 3 ms each, so fewer files are worth more writing


class NewItems(NamedTuple):
    """Checked items to be written."""

    ids: Any
    """An Arrow array of large_string, (N,)."""
    probabilities: NDArray[Any]
    """(N, L), of any numeric type."""
    paths: Any
    """An Arrow array of large_string with nulls, (N,)."""
    embeddings: NDArray[np.float32] | None = None
    """(N, D), each of length 1."""

    @classmethod
    def checked(cls, ids: Ids, probabilities: Any, paths: Paths | None, n_labels: int, embeddings: Any) -> NewItems:
        """Return items that can be written: see `Index.build`."""
        texts, table = ids.arrow, np.asarray(probabilities)
        if table.shape != (len(texts), n_labels) or table.dtype.kind not in "fiub":
            shape = f"({len(texts)}, {n_labels}), one row per item, one column per label"
            raise ValueError(f"probabilities is {table.dtype} of shape {table.shape}: give numbers {shape}")
        for start in range(0, len(table), 1 << 16):
            block = table[start : start + (1 << 16)]
            if len(bad := np.argwhere(~((block >= 0) & (block <= 1)))):
                i, j = bad[0]
                cell = f"probabilities[{start + i}, {j}], of item {ids[start + int(i)]!r}"
                raise ValueError(f"{cell}, is {block[i, j]}: give 0 to 1")
        check_several(paths, "paths")
        if paths is not None and len(paths) != len(texts):
            raise ValueError(f"paths has {len(paths)} entries, but there are {len(texts)} items: give one per item")
        files = [None if path is None else os.fspath(path) for path in paths or [None] * len(texts)]
        try:
            return cls(texts, table, pa.array(files, pa.large_string()), _of_length_1(embeddings, len(texts)))
        except UnicodeEncodeError as error:
            path = f"paths[{files.index(error.object)}] is {error.object!r}"
            raise ValueError(f"{path}, which is not Unicode: rename that file") from None

    def reader(self, n_numbers: int) -> Any:
        """Return an Arrow reader of the items sorted by id, in the columns of a data file, some megabytes at a time.

        In an index with embeddings of so many numbers, those of items that came without are null.
        """
        n, n_labels = self.probabilities.shape
        names, width = columns(n_labels)
        kind, text = pa.float32() if width == 1 else pa.list_(pa.float32(), width), pa.large_string()
        numbers = [("v", pa.list_(pa.float32(), n_numbers))] if n_numbers else []
        table = pa.schema([("id", text), ("path", text), *((name, kind) for name in names), *numbers])
        order = pc.sort_indices(self.ids).to_numpy()
        step = max(1, min(122_880, (1 << 24) // n_labels))

        def batches() -> Iterator[Any]:
            for start in range(0, n, step):
                rows = order[start : start + step]
                block = np.zeros((len(rows), len(names) * width), np.float32)
                block[:, :n_labels] = self.probabilities[rows]
                block += np.float32(0)  # −0 becomes 0
                by_column = np.ascontiguousarray(block.reshape(len(rows), len(names), width).swapaxes(0, 1))
                flat = map(pa.array, by_column.reshape(len(names), -1))
                arrays = flat if width == 1 else (pa.FixedSizeListArray.from_arrays(x, width) for x in flat)
                texts = (x.take(pa.array(rows)) for x in (self.ids, self.paths))
                vectors = [pa.nulls(len(rows), kind) for _, kind in numbers]
                if self.embeddings is not None:
                    vectors = [pa.FixedSizeListArray.from_arrays(pa.array(self.embeddings[rows].ravel()), n_numbers)]
                yield pa.record_batch([*texts, *arrays, *vectors], schema=table)

        return pa.RecordBatchReader.from_batches(table, batches())


def _of_length_1(embeddings: Any, n_items: int) -> NDArray[np.float32] | None:
    if embeddings is None:
        return None
    table = np.asarray(embeddings, np.float32)
    if table.ndim != 2 or len(table) != n_items or not table.shape[1] or not np.isfinite(table).all():
        raise ValueError(f"embeddings has shape {table.shape}: give finite numbers ({n_items}, D), one row per item")
    length = np.maximum(np.linalg.norm(table, axis=1, keepdims=True), np.float32(1e-12))
    return np.asarray(table / length, np.float32)


def write(
    folder: Path, before: Generation, items: NewItems | None, gone: Sequence[RowPlace], notes: Mapping[str, Any]
) -> Pointer:
    """Write the generation after `before`: one more data file, into which smaller ones before it are merged.

    It adds `items`, leaves out the rows `gone`, which are deleted or replaced, and adds or changes `notes`.
    """
    old, added = before.pointer, 0 if items is None else len(items.ids)
    first = _first_merged(before, added + len(gone))
    after = old._replace(
        generation=old.generation + 1,
        n_items=old.n_items + added - len(gone),
        files=(*old.files[:first], _write_file(folder, before, items, gone, first)),
        notes={**old.notes, **notes},
    )
    trust(folder, [file.name for file in after.files])
    pointers.write(folder, after)
    return after


def export(folder: Path, generation: Generation, path: Path) -> None:
    """Write all items as Parquet, one column per label."""
    n_labels = len(generation.names)
    chosen = "".join(f", {column(j, n_labels)} AS p{j}" for j in range(n_labels))
    with connect() as connection:
        sources, dead = _living(connection, generation, generation.dead, 0, f"id, path{chosen}")
        name = str(path.absolute()).replace("'", "''")
        ask(connection, folder, f"COPY ({' UNION ALL '.join(sources)}) TO '{name}' (FORMAT parquet)", dead)


def _living(
    connection: Any, generation: Generation, dead: Sequence[set[int]], first: int, chosen: str
) -> tuple[list[str], list[Any]]:
    """Attach the files from `first` on; return a SELECT of the rows of each that are not dead, and their parameters."""
    sources, parameters = list[str](), list[Any]()
    for n, file in enumerate(generation.files[first:], first):
        attach(connection, file.path, f"f{n}")
        sources.append(f"SELECT {chosen} FROM f{n}.items WHERE rowid NOT IN (SELECT unnest(?::BIGINT[]))")
        parameters.append([*dead[n]])
    return sources, parameters


def _first_merged(before: Generation, size: int) -> int:
    """Return the first data file that is merged with all later ones, so that about log N files remain.

    A file is merged if it is at most `_GROWTH` times as large as all that follows, or if too many of its rows are dead.
    """
    files = before.pointer.files
    first = len(files)
    while first and files[first - 1].items + files[first - 1].dead <= _GROWTH * size:
        first -= 1
        size += files[first].items + files[first].dead
    return min([first, *(n for n, file in enumerate(files) if len(before.dead[n]) > _WORN * file.items)])


def _write_file(
    folder: Path, before: Generation, items: NewItems | None, gone: Sequence[RowPlace], first: int
) -> FileFacts:
    """Write one more data file, merged with those from `first` on; it is on disk but not in use yet."""
    dead = [file_dead | {row for m, row in gone if m == n} for n, file_dead in enumerate(before.dead)]
    noted = {row for row in gone if row[0] < first}
    for n, kept in enumerate(before.files[:first]):
        noted |= {(n, row) for merged in before.files[first:] for row in merged.dead[kept.path.name]}
    file, n_labels = f"{uuid.uuid4().hex}.duckdb", len(before.names)
    partial = folder.absolute() / f".{file}.partial"
    with TemporaryDirectory() as elsewhere, connect(temp_directory=str(folder / ".spill.partial")) as connection:
        run = bound(ask, connection, folder)
        is_odd = "?" in str(partial)  # where DuckDB would begin the name of its log
        made = Path(elsewhere, partial.name) if is_odd else partial
        group = max(2048, min(122_880, (1 << 27) // n_labels // 2048 * 2048))  # rows that are held in memory
        attach(connection, made, "made", f"ROW_GROUP_SIZE {group}, RECOVERY_MODE no_wal_writes")
        for statement in tables("made", n_labels, before.pointer.n_numbers):
            run(statement)
        sources, parameters = _living(connection, before, dead, first, "*")
        if items is not None:
            sources.append("SELECT * FROM given")
        if sources:
            order = " ORDER BY id" * (len(sources) > 1)
            insert = f"INSERT INTO made.items SELECT * FROM ({' UNION ALL '.join(sources)}){order}"
            run(insert, parameters, given=None if items is None else items.reader(before.pointer.n_numbers))
        by_column = [[before.files[n].path.name for n, _ in sorted(noted)], [row for _, row in sorted(noted)]]
        run("INSERT INTO made.dead SELECT unnest(?::VARCHAR[]), unnest(?::BIGINT[])", by_column)
        if first == 0:
            run("INSERT INTO made.labels SELECT unnest(?::VARCHAR[])", [list(before.names)])
        run(f"INSERT INTO made.fence SELECT id FROM made.items WHERE rowid % {FENCE} = 0 ORDER BY rowid")
        n_items = run("SELECT count(*) FROM made.items")[0][0]
        run("CHECKPOINT made")
        run("DETACH made")
        if is_odd:
            with naming(partial):
                shutil.copyfile(made, partial)
    size = partial.stat().st_size
    with naming(folder / file):  # a flush that fails names no file
        put(partial, folder / file)
    return FileFacts(file, size, n_items, len(noted))
