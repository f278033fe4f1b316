"""Data files of an index: DuckDB databases, each written once, with these tables:

    items(id, path, p0, p1, …)  sorted by id, one FLOAT column per label; beyond 1,000 labels b0, b1, … of FLOAT arrays;
                                with embeddings a last column v, a FLOAT array of length 1
    labels(name)                in the first file only
    dead(file, row)             rows of earlier files that were deleted or replaced
    fence(id)                   every 1,024th id, to look up one id without a scan

Readers keep files open: a writer only removes the name, and later generations share what DuckDB has cached of a file.
Files may be of unknown origin: they are checked before use, and their connections can read nothing else.
"""

from __future__ import annotations

import errno
import os
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Sequence
from functools import lru_cache, partial
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, final

from steelyard._extras import needed
from steelyard.search.check import check
from steelyard.search.plan import Statement
from steelyard.search.pointer import AGAIN, Pointer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

RowPlace: TypeAlias = tuple[int, int]
"""The number of a data file and a row of it."""
Rows: TypeAlias = "list[tuple[Any, ...]]"

FENCE: Final = 1024
MOST_HITS: Final = 100_000
_MOST_COLUMNS: Final = 1000
_MEMORY: Final = 352 << 20  # bytes that DuckDB may use for one file
_SMALL: Final = 32 << 20  # bytes of a file for which one thread and the plainest plan are enough
_SAMPLE: Final = 1 << 16  # rows of a large file that are ranked first
_FEW: Final = 8  # ids that are looked up one by one
_AT_ONCE: Final = 128  # columns per query: each takes a block of memory
_KEPT, _LONGEST, _MOST_VALUES = 256, 8192, 512  # answers that are kept for a file, their SQL, their values: some 8 MB
_KEPT_IDS, _LONGEST_ID = 4096, 512  # rows of ids kept apart, since pictures ask for many; characters of such an id


def columns(n_labels: int) -> tuple[list[str], int]:
    """Return the names of the probability columns, and the number of labels per column."""
    width = -(-n_labels // _MOST_COLUMNS)
    return [f"{'p' if width == 1 else 'b'}{j}" for j in range(-(-n_labels // width))], width


def column(label: int, n_labels: int) -> str:
    """Return the SQL of the probability of one label."""
    names, width = columns(n_labels)
    return names[label] if width == 1 else f"{names[label // width]}[{label % width + 1}]"


def tables(database: str, n_labels: int, n_numbers: int) -> list[str]:
    """Return the statements that create the tables of a data file."""
    names, width = columns(n_labels)
    kind = "FLOAT USING COMPRESSION uncompressed" if width == 1 else f"FLOAT[{width}]"
    made = [*(f"{name} {kind}" for name in names), *([f"v FLOAT[{n_numbers}]"] if n_numbers else [])]
    items = f"items(id VARCHAR, path VARCHAR, {', '.join(made)})"
    each = (items, "labels(name VARCHAR)", "dead(file VARCHAR, row BIGINT)", "fence(id VARCHAR)")
    return [f"CREATE TABLE {database}.{table}" for table in each]


def connect(**settings: Any) -> Any:
    """Return a connection to an in-memory DuckDB that loads no extensions."""
    with needed("an index needs", "'steelyard[search]'"):
        import duckdb
    return duckdb.connect(
        config={"autoinstall_known_extensions": False, "autoload_known_extensions": False, **settings}
    )


def attach(connection: Any, path: Path, alias: str, options: str = "READ_ONLY") -> None:
    """Attach a data file to a connection."""
    name = str(path.absolute()).replace("'", "''")
    ask(connection, path.parent, f"ATTACH '{name}' AS {alias} ({options})")


def ask(
    connection: Any, folder: Path, sql: str, parameters: Sequence[Any] = (), seconds: float = 0, given: Any = None
) -> Rows:
    """Return the rows of a statement, which may read the Arrow reader `given`; errors are one sentence.

    The statement is interrupted after `seconds`, if not 0.
    """
    import duckdb

    try:
        with connection.cursor() as cursor:
            timer = Timer(seconds, cursor.interrupt)
            if seconds:
                timer.start()
            try:
                return cursor.execute(sql, list(parameters)).fetchall()  # type: ignore[no-any-return]
            finally:
                timer.cancel()
    except duckdb.InterruptException:
        raise TimeoutError("the query takes too long: ask for fewer labels, or repeat fewer of them") from None
    except duckdb.OutOfMemoryException:
        raise ValueError(f"{folder} needs more than {_MEMORY >> 20} MB for this: ask for fewer items") from None
    except (duckdb.Error, UnicodeDecodeError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        if "No space left" in why:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder)) from None
        raise ValueError(f"{folder} cannot be used ({why:.160}): {AGAIN}") from None


@final
class DataFile:
    """One open data file, closed when nothing refers to it; may be used by several threads.

    ask: returns the rows of a statement over the tables of `f`, see the function of this name.
    dead: rows of earlier files that no longer count, by file name.
    labels: the labels that it lists.
    """

    def __init__(self, path: Path, n_labels: int, n_numbers: int, threads: int) -> None:
        self.path, self._n_labels, size = path, n_labels, path.stat().st_size
        self._is_large = is_large = size > _SMALL
        connection = connect(
            threads=threads if is_large else 1,
            memory_limit=f"{min(_MEMORY, (128 << 20) + size) >> 20}MiB",
            temp_directory="",
            preserve_insertion_order=False,
            late_materialization_max_rows=MOST_HITS if is_large else 0,  # reads the texts of the best items only
        )
        attach(connection, path, "f")
        self.ask = partial(ask, connection, path.parent)
        self._recent = lru_cache(_KEPT)(self.ask)  # a file never changes
        self._recent_ids = lru_cache(_KEPT_IDS)(self.ask)
        for sql in (
            *tables("memory", n_labels, n_numbers),
            "SET enable_external_access = false",
            "SET lock_configuration = true",
        ):
            self.ask(sql)
        made: dict[str, set[Any]] = defaultdict(set)
        for database, *table in self.ask("SELECT database_name, schema_name, table_name, sql FROM duckdb_tables()"):
            made[database].add(tuple(table))
        if made["f"] != made["memory"]:
            raise ValueError(f"{path.parent} is corrupt (its tables are not those of an index): {AGAIN}")
        self.dead: dict[str, set[int]] = defaultdict(set)
        for file, row in self.ask("SELECT file, row FROM f.dead"):
            self.dead[file].add(row)
        self.labels = tuple(name for (name,) in self.ask("SELECT name FROM f.labels ORDER BY rowid"))
        self._fence = [id for (id,) in self.ask("SELECT id FROM f.fence ORDER BY rowid")]

    def top(self, statement: Statement, k: int, read: bool, dead: Collection[int], seconds: float) -> Rows:
        """Return (score, id, row) of the best `k` rows that are not dead, with probabilities where they are `read`."""
        own = [f"{column(j, self._n_labels)} AS p{j}" for _, j in statement.columns]
        own += [f"{statement.likeness} AS likeness"] * bool(statement.likeness)
        source = f"(SELECT rowid AS row, id, {', '.join(own)} FROM f.items) AS items"
        chosen = ["id", "row", *(f"p{j}" for _, j in statement.columns if read)]
        limit = k
        while True:  # until enough of the best rows are not dead
            least = self._least(statement, own, limit, seconds)
            sql = statement.best(source, ", ".join(chosen), "row", limit, least)  # rows are sorted by id
            best = self._kept(sql, limit * len(chosen), seconds)
            if any(score is None or score != score or id is None for score, id, *_ in best):
                raise ValueError(f"{self.path.parent} is corrupt (an item has no id or no probability): {AGAIN}")
            alive = [row for row in best if row[2] not in dead][:k]
            if len(alive) == k or len(best) < limit:
                return alive
            limit *= 4

    def _kept(self, sql: str, n_values: int, seconds: float) -> Rows:
        """Return the rows of a statement; keep them for the next time if statement and rows are small."""
        is_small = len(sql) <= _LONGEST and n_values <= _MOST_VALUES
        return (self._recent if is_small else self.ask)(sql, seconds=seconds)

    def _least(self, statement: Statement, own: Sequence[str], limit: int, seconds: float) -> float:
        """Return a lower bound of the scores of the best `limit` rows, from a sample: fewer rows are then sorted."""
        if not own or not self._is_large or limit > _SAMPLE >> 6:
            return 0.0
        source = f"(SELECT rowid AS row, {', '.join(own)} FROM f.items WHERE rowid < {_SAMPLE}) AS items"
        sample = statement.best(source, "row", "row", limit)
        ((n, least),) = self._kept(f"SELECT count(score), min(score) FROM ({sample})", 2, seconds)
        return float(least) if n == limit and 0 < least <= 1 else 0.0  # a forged file may hold NaN

    def find(self, ids: Sequence[str], chosen: str) -> Rows:
        """Return (id, row, a chosen column) of those of `ids` that are in the file, dead rows included."""
        select = f"SELECT id, rowid, {chosen} FROM f.items WHERE"
        if len(ids) > _FEW:
            return self.ask(f"{select} id IN (SELECT unnest(?::VARCHAR[]))", [ids])
        ends = [(id, bisect_right(self._fence, id) * FENCE) for id in ids]
        block = f"{select} rowid >= ? AND rowid < ? AND id = ?"
        is_small = chosen != "v" and max(map(len, ids), default=0) <= _LONGEST_ID
        ask = self._recent_ids if is_small else self.ask
        return [row for id, end in ends if end for row in ask(block, (end - FENCE, end, id))]


class Generation(NamedTuple):
    """The open data files of one generation; `dead` holds the rows of each file that do not count."""

    pointer: Pointer
    files: tuple[DataFile, ...]
    dead: tuple[set[int], ...]
    names: tuple[str, ...]

    def top(self, statement: Statement, k: int, offset: int, seconds: float, excluded: RowPlace | None = None) -> Rows:
        """Return (score, id, probabilities of the query's labels …) of the best items after the first `offset`."""
        best: Rows = []
        for n, file in enumerate(self.files):
            dead = self.dead[n] | {excluded[1]} if excluded and excluded[0] == n else self.dead[n]
            rows = file.top(statement, k + offset, not offset, dead, seconds)
            best += ((-score, id, (n, row), eta) for score, id, row, *eta in rows)
        page = sorted(best)[offset : offset + k]
        if not offset:
            return [(-score, id, *eta) for score, id, _, eta in page]
        read = self.values([row for _, _, row, _ in page], [column(j, len(self.names)) for _, j in statement.columns])
        return [(-score, id, *read[row]) for score, id, row, _ in page]

    def values(self, rows: Sequence[RowPlace], chosen: Sequence[str]) -> dict[RowPlace, Sequence[Any]]:
        """Return some columns of some rows."""
        by_file: dict[int, list[int]] = defaultdict(list)
        for n, row in rows:
            by_file[n].append(row)
        sql = f"SELECT rowid, {', '.join(chosen)} FROM f.items WHERE rowid IN (SELECT unnest(?::BIGINT[]))"
        return {(n, row): eta for n, some in by_file.items() for row, *eta in self.files[n].ask(sql, [some])}

    def probabilities(self, rows: Sequence[RowPlace]) -> NDArray[np.float32]:
        """Return the probabilities (n, L) of some rows."""
        import numpy as np

        names, width = columns(len(self.names))
        table = np.empty((len(rows), len(names) * width), np.float32)
        step = _AT_ONCE // min(width, 8)  # arrays take more
        for start in range(0, len(names), step):
            some = names[start : start + step]
            values = self.values(rows, some)
            for n, row in enumerate(rows):
                table[n, start * width : (start + len(some)) * width] = np.ravel(values[row])
        return table[:, : len(self.names)]

    def locate(self, ids: Sequence[str], chosen: str = "NULL") -> dict[str, tuple[RowPlace, Any]]:
        """Return the row and a chosen column of those of `ids` that are in the index."""
        # no stored text holds half a surrogate pair
        left = [id for id in ids if id.isascii() or not any("\ud800" <= c <= "\udfff" for c in id)]
        located: dict[str, tuple[RowPlace, Any]] = {}
        for n, file in enumerate(self.files):
            rows = file.find(left, chosen)
            located |= {id: ((n, row), value) for id, row, value in rows if row not in self.dead[n]}
            left = [id for id in left if id not in located]
        return located


def opened(folder: Path, pointer: Pointer, threads: int | None = None, kept: Sequence[DataFile] = ()) -> Generation:
    """Open the files of a generation; reuse those of `kept` that belong to it."""
    known = {file.path.name: file for file in kept}
    paths = [folder / file.name for file in pointer.files]
    for path, file in zip(paths, pointer.files, strict=True):
        if not path.exists() or path.stat().st_size != file.bytes:
            raise ValueError(f"{path} is missing or corrupt (unexpected file size): {AGAIN}")
    check(folder, [path.name for path in paths])
    workers = threads or os.cpu_count() or 1
    files = tuple(
        known.get(path.name) or DataFile(path, pointer.n_labels, pointer.n_numbers, workers) for path in paths
    )
    names = tuple(dict.fromkeys(name for name in files[0].labels if name is not None))
    if len(names) != pointer.n_labels:
        raise ValueError(f"{folder} is corrupt (its labels are not as many as it counts): {AGAIN}")
    dead = tuple(set[int]().union(*(later.dead[file.path.name] for later in files)) for file in files)
    return Generation(pointer, files, dead, names)
