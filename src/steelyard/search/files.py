"""The data files of an index: DuckDB databases, each written once, with the tables

    items(id, path, p0, p1, …)  sorted by id, one FLOAT column per label; beyond 1,000 labels b0, b1, … of FLOAT arrays
    labels(name)                in the first file only
    dead(file, row)             rows of earlier files that were deleted or replaced
    fence(id)                   every 1,024th id, by which one id is found without a scan

Readers keep a file open: a writer removes its name only, and what DuckDB holds of it serves later generations too.
Files may come from strangers: they are checked before use, and the connection can reach nothing else.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, final

from steelyard.search.check import check
from steelyard.search.pointer import AGAIN, Pointer
from steelyard.search.sql import BEST_FIRST, Statement

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Row: TypeAlias = tuple[int, int]
"""The number of a data file and a row of it."""

FENCE: Final = 1024
_MOST_COLUMNS: Final = 1000
_MEMORY: Final = 352 << 20  # bytes that DuckDB may take for one file
_SMALL: Final = 32 << 20  # bytes of a file for which one thread is enough
_FEW: Final = 8  # ids that are looked for one by one
_FEW_DEAD: Final = 10_000  # rows that are quicker left out of an answer than by DuckDB
_SHALLOW: Final = 1000  # items of a ranking whose probabilities are read together with their ids
_SAMPLE: Final = 65_536  # rows that are ranked first, where at most one in _SAMPLED of them is asked for
_SAMPLED: Final = 64
_MOST_KEPT: Final = 8 << 20  # bytes of answers that are kept for one file
_AT_ONCE: Final = 128  # columns that are read at once: each takes a block of memory


class Gone(Exception):
    """A data file is not there any more: another generation has come."""


def columns(n_labels: int) -> tuple[list[str], int]:
    """Return the columns of probabilities, and how many labels share one."""
    width = -(-n_labels // _MOST_COLUMNS)
    return [f"{'p' if width == 1 else 'b'}{j}" for j in range(-(-n_labels // width))], width


def column(label: int, n_labels: int) -> str:
    """Return the SQL of the probability of one label."""
    names, width = columns(n_labels)
    return names[label] if width == 1 else f"{names[label // width]}[{label % width + 1}]"


def tables(database: str, n_labels: int) -> list[str]:
    """Return the statements that make the tables of a data file."""
    names, width = columns(n_labels)
    kind = "FLOAT USING COMPRESSION uncompressed" if width == 1 else f"FLOAT[{width}]"
    items = f"items(id VARCHAR, path VARCHAR, {', '.join(f'{name} {kind}' for name in names)})"
    each = (items, "labels(name VARCHAR)", "dead(file VARCHAR, row BIGINT)", "fence(id VARCHAR)")
    return [f"CREATE TABLE {database}.{table}" for table in each]


def connect(**settings: Any) -> Any:
    """Return a connection to a DuckDB in memory that loads no extensions."""
    try:
        import duckdb
    except ImportError:
        raise ValueError("an index needs DuckDB: pip install 'steelyard[search]'") from None
    return duckdb.connect(
        config={"autoinstall_known_extensions": False, "autoload_known_extensions": False, **settings}
    )


def attach(connection: Any, path: Path, alias: str, options: str = "READ_ONLY") -> None:
    """Attach a data file to a connection."""
    name = str(path.absolute()).replace("'", "''")
    ask(connection, path.parent, f"ATTACH '{name}' AS {alias} ({options})")


def ask(
    connection: Any,
    folder: Path,
    sql: str,
    parameters: Sequence[Any] = (),
    seconds: float | None = None,
    given: Any = None,
) -> list[tuple[Any, ...]]:
    """Return the rows of a statement, which may read the Arrow reader `given`; an error is one sentence."""
    import duckdb

    try:
        with connection.cursor() as cursor, _limited(cursor, seconds):
            return cursor.execute(sql, list(parameters)).fetchall()  # type: ignore[no-any-return]
    except duckdb.InterruptException:
        raise TimeoutError("the query takes too long: ask for fewer labels, or repeat fewer of them") from None
    except duckdb.OutOfMemoryException:
        raise ValueError(f"{folder} needs more than {_MEMORY >> 20} MB for this: ask for fewer items") from None
    except (duckdb.Error, UnicodeDecodeError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        if "No space left" in why:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder)) from None
        raise ValueError(f"{folder} cannot be used ({why:.160}): {AGAIN}") from None


@contextmanager
def _limited(cursor: Any, seconds: float | None) -> Iterator[None]:
    """Interrupt what a cursor does after `seconds`."""
    global _watch
    if seconds is None:
        yield
        return
    _deadlines[id(cursor)] = cursor, time.monotonic() + seconds
    if not _watch.is_alive():
        _watch = Thread(target=_watch_deadlines, daemon=True)
        _watch.start()
    try:
        yield
    finally:
        del _deadlines[id(cursor)]


_deadlines: dict[int, tuple[Any, float]] = {}
_watch = Thread()  # one for all: to start one for each statement takes as long as the statement


def _watch_deadlines() -> None:
    while True:
        time.sleep(0.05)
        _interrupt_late()


def _interrupt_late() -> None:
    for cursor, deadline in [*_deadlines.values()]:
        if time.monotonic() > deadline:
            cursor.interrupt()


@final
class DataFile:
    """One data file, open until nobody refers to it; may be used by several threads.

    dead: the rows of earlier files that it says are dead, by the name of the file.
    labels: that it lists.
    """

    def __init__(self, path: Path, n_labels: int, threads: int) -> None:
        self.path, self._n_labels, size = path, n_labels, path.stat().st_size
        self._connection = connect(
            threads=threads if size > _SMALL else 1,
            memory_limit=f"{min(_MEMORY, (128 << 20) + size) >> 20}MiB",
            temp_directory="",
            preserve_insertion_order=False,
        )
        attach(self._connection, path, "f")
        for statement in (
            *tables("memory", n_labels),
            "SET enable_external_access = false",
            "SET lock_configuration = true",
        ):
            self.ask(statement)
        made: dict[str, set[Any]] = defaultdict(set)
        for database, *table in self.ask("SELECT database_name, schema_name, table_name, sql FROM duckdb_tables()"):
            made[database].add(tuple(table))
        if made["f"] != made["memory"]:
            raise ValueError(f"{path.parent} is corrupt (its tables are not those of an index): {AGAIN}")
        self.dead: dict[str, set[int]] = defaultdict(set)
        for file, row in self.ask("SELECT file, row FROM f.dead"):
            self.dead[file].add(row)
        self.labels = tuple(name for (name,) in self.ask("SELECT name FROM f.labels ORDER BY rowid"))
        self._lock, self._bytes = Lock(), 0
        self._kept: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
        self._fence = [id for (id,) in self.ask("SELECT id FROM f.fence ORDER BY rowid")]

    def ask(self, sql: str, parameters: Sequence[Any] = (), seconds: float | None = None) -> list[tuple[Any, ...]]:
        """Return the rows of a statement about the tables of `f`."""
        return ask(self._connection, self.path.parent, sql, parameters, seconds)

    def top(
        self, asked: Statement, k: int, least: float, dead: Collection[int], seconds: float | None
    ) -> list[tuple[Any, ...]]:
        """Return (id, score, row, probabilities …) of the best `k` rows that are not dead and score at least `least`.

        Probabilities are left out where `k` is large, as for a page deep in the ranking: few of the rows are asked for.
        """
        own = [column(j, self._n_labels) for j in asked.places]
        chosen = "".join(f", {name} AS p{j}" for name, j in zip(own, asked.places, strict=True))
        few, lives, limit = len(dead) <= _FEW_DEAD, "true", k
        if few:
            limit += len(dead)
        else:  # dead rows of a file only become more: their number says which they are
            dead_rows = f"memory.dead{len(dead)}"
            self.ask(f"CREATE TABLE IF NOT EXISTS {dead_rows} AS SELECT unnest(?::BIGINT[]) AS row", [[*dead]])
            lives = f"rowid NOT IN (SELECT row FROM {dead_rows})"

        def ranked(where: str, least: float) -> list[tuple[int, float]]:
            """Rows are sorted by id and quicker to rank: texts and probabilities are read of the best alone."""
            scored = f"WITH items AS (SELECT rowid AS id{chosen} FROM f.items WHERE {where}) {asked.text}"
            bound = [least] if least >= 0 else []  # with one DuckDB works scores out twice, and ranks few of them
            best = f"SELECT id, score FROM ({scored}) AS asked{' WHERE score >= CAST(? AS DOUBLE)' * len(bound)}"
            rows = self.ask(f"{best} {BEST_FIRST} LIMIT {limit}", [*asked.parameters, *bound], seconds)
            return [(row, score) for row, score in rows]

        def best() -> list[tuple[Any, ...]]:
            bound = least
            if limit * _SAMPLED <= _SAMPLE < len(self._fence) * FENCE:  # few rows are ranked faster than many:
                sample = ranked(f"{lives} AND rowid < {_SAMPLE}", least)  # the best of all are not below its best
                bound = sample[-1][1] if len(sample) == limit else least
            rows = [one for one in ranked(lives, bound) if one[0] not in dead][:k]
            values = self.values([row for row, _ in rows], ["id", *(own if k <= _SHALLOW else [])]) if rows else {}
            return [(values[row][0], score, row, *values[row][1:]) for row, score in rows]

        return self._recent((asked, k, least, len(dead)), best)

    def _recent(self, key: tuple[Any, ...], make: Callable[[], list[tuple[Any, ...]]]) -> list[tuple[Any, ...]]:
        """Return what was made under a key before, or is made now: a file never changes."""
        with self._lock:
            if key in self._kept:
                return self._kept.setdefault(key, self._kept.pop(key))
        made = make()
        with self._lock:
            self._kept[key] = made
            self._bytes += _bytes(key) + _bytes(made)
            while self._bytes > _MOST_KEPT:
                oldest = next(iter(self._kept))
                self._bytes -= _bytes(oldest) + _bytes(self._kept.pop(oldest))
        return made

    def values(self, rows: Sequence[int], chosen: Sequence[str]) -> dict[int, tuple[Any, ...]]:
        """Return some columns of some rows."""
        wanted = "rowid IN (SELECT unnest(?::BIGINT[]))"
        answer = self.ask(f"SELECT rowid, {', '.join(chosen)} FROM f.items WHERE {wanted}", [rows])
        return {row: tuple(rest) for row, *rest in answer}

    def find(self, ids: Sequence[str], chosen: str) -> list[tuple[Any, ...]]:
        """Return (id, row, a chosen column) of those of `ids` that are here, dead ones too."""
        select = f"SELECT id, rowid, {chosen} FROM f.items WHERE"
        if len(ids) > _FEW:
            return self.ask(f"{select} id IN (SELECT unnest(?::VARCHAR[]))", [ids])
        block = f"{select} rowid >= ? AND rowid < ? AND id = ?"
        each = ((id, bisect_right(self._fence, id) * FENCE) for id in ids)
        found = (
            self._recent((chosen, id), partial(self.ask, block, [end - FENCE, end, id])) for id, end in each if end
        )
        return [row for rows in found for row in rows]


class Generation(NamedTuple):
    """The data files that count together, open.

    dead: rows of each that do not count.
    names: of the labels.
    """

    pointer: Pointer
    files: tuple[DataFile, ...]
    dead: tuple[set[int], ...]
    names: tuple[str, ...]

    def top(self, asked: Statement, k: int, offset: int, seconds: float | None) -> list[tuple[Any, ...]]:
        """See `Engine`."""
        best, least, last = list[tuple[Any, ...]](), -1.0, k + offset
        for n, file in enumerate(self.files):
            rows = file.top(asked, last, least, self.dead[n], seconds)
            best += ((id, score, (n, row), *eta) for id, score, row, *eta in rows)
            best = sorted(best, key=lambda row: (-row[1], row[0]))[:last]
            least = best[-1][1] if len(best) == last else least
        if last <= _SHALLOW:
            return [(id, score, *eta) for id, score, _, *eta in best[offset:]]
        chosen = [column(j, len(self.names)) for j in asked.places]
        eta = self.values([row for _, _, row in best[offset:]], chosen)
        return [(id, score, *eta[row]) for id, score, row in best[offset:]]

    def values(self, rows: Sequence[Row], chosen: Sequence[str]) -> dict[Row, tuple[Any, ...]]:
        """Return some columns of some rows."""
        by_file: dict[int, list[int]] = defaultdict(list)
        for n, row in rows:
            by_file[n].append(row)
        each = ((n, self.files[n].values(some, chosen)) for n, some in by_file.items())
        return {(n, row): values for n, answer in each for row, values in answer.items()}

    def probabilities(self, rows: Sequence[Row]) -> NDArray[np.float32]:
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

    def locate(self, ids: Sequence[str], chosen: str = "NULL") -> dict[str, tuple[Row, Any]]:
        """Return where those of `ids` that are here lie, each with a chosen column."""
        # half a surrogate pair is in no text that is here
        left = [id for id in ids if id.isascii() or not any("\ud800" <= c <= "\udfff" for c in id)]
        found: dict[str, tuple[Row, Any]] = {}
        for n, file in enumerate(self.files):
            rows = file.find(left, chosen) if left else []
            found |= {id: ((n, row), value) for id, row, value in rows if row not in self.dead[n]}
            left = [id for id in left if id not in found]
        return found


def opened(folder: Path, pointer: Pointer, threads: int | None = None, kept: Sequence[DataFile] = ()) -> Generation:
    """Open the files of a generation; those of `kept` that are among them are used again."""
    known = {file.path.name: file for file in kept}
    paths = [folder / file.name for file in pointer.files]
    try:
        for path, file in zip(paths, pointer.files, strict=True):
            if path.stat().st_size != file.bytes:
                raise ValueError(f"{path} is corrupt (unexpected file size): {AGAIN}")
        check(folder, [path.name for path in paths])
        workers = threads or os.cpu_count() or 1
        files = tuple(known.get(path.name) or DataFile(path, pointer.n_labels, workers) for path in paths)
    except (FileNotFoundError, ValueError):
        if all(path.exists() for path in paths):
            raise
        raise Gone(str(next(path for path in paths if not path.exists()))) from None
    names = tuple(dict.fromkeys(name for name in files[0].labels if name is not None)) if files else ()
    if files and len(names) != pointer.n_labels:
        raise ValueError(f"{folder} is corrupt (its labels are not as many as it counts): {AGAIN}")
    dead = tuple(set[int]().union(*(later.dead[file.path.name] for later in files)) for file in files)
    return Generation(pointer, files, dead, names)


def _bytes(what: object) -> int:
    """Return about how many bytes something takes, with what is in it."""
    inner = sum(map(_bytes, what)) if isinstance(what, tuple | list) else 0
    return sys.getsizeof(what) + inner
