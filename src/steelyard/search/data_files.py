"""The data files of an index: DuckDB databases, each written once, with the tables

    items(id, path, p0, p1, …)  sorted by id, one FLOAT column per label; beyond 1,000 labels b0, b1, … of FLOAT arrays
    labels(name)                in the first file only
    dead(file, row)             rows of earlier files that were deleted or replaced
    fence(id)                   every 1,024th id, by which one id is found without a scan

A reader keeps them open: a writer may remove their names and writes under new ones. They may come from strangers: the
schema is checked before use, and the connection can reach nothing else.
"""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Timer
from typing import TYPE_CHECKING, Any, Final, TypeAlias, final

from steelyard._files import put
from steelyard.search.check import check
from steelyard.search.pointer import AGAIN, DataFile, Pointer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from steelyard.search.items import Rows
    from steelyard.search.sql import Statement

Place: TypeAlias = tuple[int, int]
"""The number of a data file and a row of it."""

_MOST_COLUMNS: Final = 1000
_MEMORY: Final = 256  # MB that DuckDB may take for a search
_FENCE: Final = 1024
_FEW: Final = 8  # ids that are looked for one by one
_FEW_DEAD: Final = 10_000
_AT_ONCE: Final = 128  # columns that are read at once: each takes a block of memory


class Gone(Exception):
    """A data file is not there any more: another generation has come."""


def columns(n_labels: int) -> tuple[list[str], int]:
    """Return the columns of probabilities, and how many labels share one."""
    width = -(-n_labels // _MOST_COLUMNS)
    return [f"{'p' if width == 1 else 'b'}{j}" for j in range(-(-n_labels // width))], width


@final
class DataFiles:
    """The data files of one generation, open; may be used by several threads.

    Args:
        folder: of the index.
        pointer: to its files.
        threads: of a search; by default one per core.
        writes: whether other files may be written too.
    """

    def __init__(self, folder: Path, pointer: Pointer, threads: int | None = None, writes: bool = False) -> None:
        try:
            import duckdb
        except ImportError:
            raise ValueError("an index needs DuckDB: pip install 'steelyard[search]'") from None
        self.folder, self.pointer, self._fences = folder, pointer, dict[int, list[str]]()
        settings: dict[str, Any] = {"autoinstall_known_extensions": False, "autoload_known_extensions": False}
        if writes:
            settings["temp_directory"] = str(folder / ".spill.partial")
        else:
            settings |= {"memory_limit": f"{_MEMORY}MB", "temp_directory": "", "preserve_insertion_order": False}
        self._connection = duckdb.connect(config={**settings, "threads": threads or os.cpu_count() or 1})
        try:
            self._attach()
            if not writes:
                self._connection.execute("SET enable_external_access = false")
                self._connection.execute("SET lock_configuration = true")
        except BaseException:
            self.close()
            raise

    def _attach(self) -> None:
        """Attach the files as f0, f1, …, check their tables, and list what is dead in each."""
        paths = [self.folder / file.name for file in self.pointer.files]
        try:
            for path, file in zip(paths, self.pointer.files, strict=True):
                if path.stat().st_size != file.bytes:
                    raise ValueError(f"{path} is corrupt (unexpected file size): {AGAIN}")
            check(self.folder, [path.name for path in paths])
            for i, path in enumerate(paths):
                self.ask(f"ATTACH {_quoted(path)} AS f{i} (READ_ONLY)")
        except (FileNotFoundError, ValueError):
            if all(path.exists() for path in paths):
                raise
            raise Gone(str(next(path for path in paths if not path.exists()))) from None
        for statement in _tables("memory", self.pointer.n_labels):
            self.ask(statement)
        tables: dict[str, set[Any]] = {}
        for database, *table in self.ask("SELECT database_name, schema_name, table_name, sql FROM duckdb_tables()"):
            tables.setdefault(database, set()).add(tuple(table))
        files = self.pointer.files
        if any(tables.get(f"f{i}") != tables["memory"] for i in range(len(files))):
            raise ValueError(f"{self.folder} is corrupt (its tables are not those of an index): {AGAIN}")
        self.dead: list[int] = []
        self._gone: set[Place] = set()
        for i, file in enumerate(files):
            later = (f"SELECT row FROM f{j}.dead WHERE file = '{file.name}'" for j in range(i, len(files)))
            self.ask(f"CREATE TABLE memory.dead{i} AS {' UNION '.join(later)}")
            self.dead.append(self.ask(f"SELECT count(*) FROM memory.dead{i}")[0][0])
            if self.dead[i] <= _FEW_DEAD:
                self._gone |= {(i, row) for (row,) in self.ask(f"SELECT row FROM memory.dead{i}")}
        listed = self.ask("SELECT name FROM f0.labels ORDER BY rowid") if files else []
        self.names: tuple[str, ...] = tuple(dict.fromkeys(name for (name,) in listed if name is not None))
        if files and len(self.names) != self.pointer.n_labels:
            raise ValueError(f"{self.folder} is corrupt (its labels are not as many as it counts): {AGAIN}")

    def close(self) -> None:
        """Close the files."""
        self._connection.close()

    def ask(
        self, sql: str, parameters: Sequence[Any] = (), seconds: float | None = None, given: Any = None
    ) -> list[tuple[Any, ...]]:
        """Return the rows of a statement, which may name the Arrow reader `given`; errors become one sentence."""
        import duckdb

        try:
            with self._connection.cursor() as cursor, _limited(cursor, seconds):
                return cursor.execute(sql, list(parameters)).fetchall()
        except duckdb.InterruptException:
            raise TimeoutError("the query takes too long: ask for fewer labels, or repeat fewer of them") from None
        except duckdb.OutOfMemoryException:
            raise ValueError(f"{self.folder} needs more than {_MEMORY} MB for this: ask for fewer items") from None
        except (duckdb.Error, UnicodeDecodeError) as error:
            why = (str(error).splitlines() or [type(error).__name__])[0]
            if "No space left" in why:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.folder)) from None
            raise ValueError(f"{self.folder} cannot be used ({why:.160}): {AGAIN}") from None

    def top(self, asked: Statement, k: int, offset: int, seconds: float | None = None) -> list[tuple[Any, ...]]:
        """See `Engine`. Rows stand for ids, which sort alike within a file: texts are read of the best alone."""
        chosen = {f"p{j}": self._column(j) for j in asked.places}
        needed = "".join(f", {column} AS {name}" for name, column in chosen.items())
        best = []
        for i, dead in enumerate(self.dead):  # a few dead rows are quicker left out afterwards than by DuckDB
            lives, more = ("true", dead) if dead <= _FEW_DEAD else (self._lives(i), 0)
            items = f"SELECT rowid AS id{needed} FROM f{i}.items WHERE {lives}"
            best.append(f"SELECT {i}, id, score FROM (WITH items AS ({items}) {asked.text} LIMIT {k + offset + more})")
        rows = self.ask(" UNION ALL ".join(best), list(asked.parameters) * len(best), seconds)
        rows = sorted((row for row in rows if row[:2] not in self._gone), key=_minus_score)
        if not (window := rows[offset : offset + k]):
            return []
        first = bisect_left(rows, _minus_score(window[0]), key=_minus_score)  # equal scores go by id
        last = bisect_right(rows, _minus_score(window[-1]), key=_minus_score)
        scores = {(i, row): score for i, row, score in rows[first:last]}
        texts = self.values(list(scores), ["id", *chosen.values()])
        ranked = sorted((-score, *texts[place]) for place, score in scores.items())
        return [(id, -score, *eta) for score, id, *eta in ranked[offset - first : offset - first + k]]

    def values(self, places: Sequence[Place], chosen: Sequence[str]) -> dict[Place, tuple[Any, ...]]:
        """Return some columns of some rows."""
        rows: dict[int, list[int]] = {}
        for i, row in places:
            rows.setdefault(i, []).append(row)
        wanted = "rowid IN (SELECT unnest(CAST(? AS BIGINT[])))"
        each = [f"SELECT {i}, rowid, {', '.join(chosen)} FROM f{i}.items WHERE {wanted}" for i in rows]
        answer = self.ask(" UNION ALL ".join(each), list(rows.values())) if each else []
        return {(i, row): tuple(rest) for i, row, *rest in answer}

    def probabilities(self, places: Sequence[Place]) -> NDArray[np.float32]:
        """Return the probabilities (n, L) of some rows."""
        import numpy as np

        names, width = columns(len(self.names))
        table = np.empty((len(places), len(names) * width), np.float32)
        step = _AT_ONCE if width == 1 else _AT_ONCE // 8  # arrays take more
        for start in range(0, len(names), step):
            some = names[start : start + step]
            values = self.values(places, some)
            for n, place in enumerate(places):
                table[n, start * width : (start + len(some)) * width] = np.ravel(values[place])
        return table[:, : len(self.names)]

    def locate(self, ids: Sequence[str]) -> dict[str, Place]:
        """Return where those of `ids` that are here lie; half a surrogate pair is in no text that is."""
        texts = [id for id in ids if id.isascii() or not any("\ud800" <= c <= "\udfff" for c in id)]
        each, given = list[str](), list[Any]()
        for i in range(len(self.pointer.files)):
            lives = f"SELECT {i}, id, rowid FROM f{i}.items WHERE {self._lives(i)} AND"
            if len(texts) > _FEW:
                each.append(f"{lives} id IN (SELECT unnest(CAST(? AS VARCHAR[])))")
                given.append(texts)
                continue
            for text in texts:
                if block := bisect_right(self._fence(i), text):
                    each.append(f"{lives} rowid >= {(block - 1) * _FENCE} AND rowid < {block * _FENCE} AND id = ?")
                    given.append(text)
        answer = self.ask(" UNION ALL ".join(each), given) if each else []
        return {id: (i, row) for i, id, row in answer}

    def write(self, rows: Rows | None, gone: Sequence[Place], merged: int, names: Sequence[str]) -> DataFile:
        """Write one more data file and return it, on the disk but not counting yet.

        Args:
            rows: items to be added.
            gone: what is dead from now on.
            merged: the files from this one on are taken into the new one.
            names: of the labels.
        """
        file = f"{uuid.uuid4().hex}.duckdb"
        older = [one.name for one in self.pointer.files]
        by_column = [[older[i] for i, _ in gone], [row for _, row in gone]]
        self.ask("INSERT INTO memory.dead SELECT unnest(CAST(? AS VARCHAR[])), unnest(CAST(? AS BIGINT[]))", by_column)
        sources = []
        for i in range(merged, len(older)):
            self.ask(f"INSERT INTO memory.dead{i} SELECT row FROM memory.dead WHERE file = '{older[i]}'")
            sources.append(f"SELECT * FROM f{i}.items WHERE rowid NOT IN (SELECT row FROM memory.dead{i})")
        if rows is not None and len(rows.ids):
            sources.append("SELECT * FROM given")
        tables = ["memory", *(f"f{i}" for i in range(merged, len(older)))]
        dead = " UNION ALL ".join(f"SELECT * FROM {table}.dead" for table in tables)
        with TemporaryDirectory() as elsewhere:
            partial = self.folder.absolute() / f".{file}.partial"
            is_odd = "?" in str(partial)  # where DuckDB would begin the name of its log
            made = Path(elsewhere, partial.name) if is_odd else partial
            group = max(2048, min(122_880, (1 << 27) // len(names) // 2048 * 2048))  # rows that are held in memory
            self.ask(f"ATTACH {_quoted(made)} AS made (ROW_GROUP_SIZE {group}, RECOVERY_MODE no_wal_writes)")
            for statement in _tables("made", len(names)):
                self.ask(statement)
            if sources:
                order = " ORDER BY id" * (len(sources) > 1)
                insert = f"INSERT INTO made.items SELECT * FROM ({' UNION ALL '.join(sources)}){order}"
                self.ask(insert, given=None if rows is None else rows.reader())
            left = "list_contains(CAST(? AS VARCHAR[]), file)"
            self.ask(f"INSERT INTO made.dead SELECT * FROM ({dead}) WHERE {left} ORDER BY ALL", [older[:merged]])
            if merged == 0:
                self.ask("INSERT INTO made.labels SELECT unnest(CAST(? AS VARCHAR[]))", [list(names)])
            self.ask(f"INSERT INTO made.fence SELECT id FROM made.items WHERE rowid % {_FENCE} = 0 ORDER BY rowid")
            counts = [self.ask(f"SELECT count(*) FROM made.{table}")[0][0] for table in ("items", "dead")]
            self.ask("CHECKPOINT made")
            self.ask("DETACH made")
            if is_odd:
                shutil.copyfile(made, partial)
        size = partial.stat().st_size
        put(partial, self.folder / file)
        return DataFile(file, size, *counts)

    def export(self, path: Path) -> None:
        """Write all items as Parquet, one column per label."""
        chosen = "".join(f", {self._column(j)} AS p{j}" for j in range(len(self.names)))
        each = [f"SELECT id, path{chosen} FROM f{i}.items WHERE {self._lives(i)}" for i in range(len(self.dead))]
        self.ask(f"COPY ({' UNION ALL '.join(each)}) TO {_quoted(path)} (FORMAT parquet)")

    def _column(self, label: int) -> str:
        names, width = columns(len(self.names))
        return names[label] if width == 1 else f"{names[label // width]}[{label % width + 1}]"

    def _lives(self, i: int) -> str:
        return f"rowid NOT IN (SELECT row FROM memory.dead{i})" if self.dead[i] else "true"

    def _fence(self, i: int) -> list[str]:
        if i not in self._fences:
            self._fences[i] = [id for (id,) in self.ask(f"SELECT id FROM f{i}.fence ORDER BY rowid")]
        return self._fences[i]


def _tables(database: str, n_labels: int) -> list[str]:
    """The statements that make the tables of a data file."""
    names, width = columns(n_labels)
    kind = "FLOAT USING COMPRESSION uncompressed" if width == 1 else f"FLOAT[{width}]"
    items = f"items(id VARCHAR, path VARCHAR, {', '.join(f'{name} {kind}' for name in names)})"
    tables = (items, "labels(name VARCHAR)", "dead(file VARCHAR, row BIGINT)", "fence(id VARCHAR)")
    return [f"CREATE TABLE {database}.{table}" for table in tables]


@contextmanager
def _limited(cursor: Any, seconds: float | None) -> Iterator[None]:
    """Interrupt what a cursor does after `seconds`."""
    timer = Timer(seconds or 0, cursor.interrupt)
    timer.daemon = True
    if seconds is not None:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _minus_score(row: tuple[Any, ...]) -> float:
    return -float(row[2])


def _quoted(path: Path) -> str:
    return "'" + str(path.absolute()).replace("'", "''") + "'"
