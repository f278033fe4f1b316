"""DuckDB within this process: scans the parts of an index, and sorts no more than it must.

Within a part items are sorted by id, so its integer keys stand for the ids and no text is read for the millions of
items that are not found. Each part gives its best, and these few are put in order by their ids.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, final

import pyarrow as pa

from steelyard.search.change import dead_rows

if TYPE_CHECKING:
    from steelyard.search.index import Index

_GLOB = str.maketrans({"[": "[[]", "*": "[*]", "?": "[?]"})


@final
class DuckDB:
    """The engine over one generation of an index.

    Args:
        index: open, and to stay open.
        threads: how many; by default as many as there are cores.
    """

    def __init__(self, index: Index, threads: int | None = None) -> None:
        try:
            import duckdb
        except ImportError:
            raise ValueError("searching needs DuckDB: pip install 'steelyard[search]'") from None
        n = threads or os.cpu_count() or 1
        self._error: type[Exception] = duckdb.Error
        self._folder, self._parts = index.folder, index.parts
        self._connection = duckdb.connect(
            config={
                "threads": n,
                "memory_limit": f"{max(160, 32 * n)}MB",
                "temp_directory": "",
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
                "preserve_insertion_order": False,
            }
        )
        self._connection.execute("SET parquet_metadata_cache = true")
        self._sources: list[str] = []
        for i, part in enumerate(self._parts):
            path = str(part.table.resolve()).translate(_GLOB).replace("'", "''")
            source = f"SELECT key AS id, * EXCLUDE (id, key) FROM read_parquet('{path}', hive_partitioning = false)"
            dead = dead_rows(part, index.dead) + part.first_key
            if len(dead):
                given = pa.table({"key": pa.array(dead)})
                self._connection.register("given", given)
                self._connection.execute(f"CREATE TABLE dead_{i} AS SELECT key FROM given")
                self._connection.unregister("given")
                source += f" AS i WHERE NOT EXISTS (SELECT 1 FROM dead_{i} AS d WHERE d.key = i.key)"
            self._sources.append(source)
        self._connection.execute("SET lock_configuration = true")

    def top(self, sql: str, parameters: Sequence[float], k: int, offset: int) -> list[tuple[Any, ...]]:
        """Return the rows offset … offset + k of the answer, see `Engine`."""
        if not self._sources:
            return []
        best = f"{sql} LIMIT {k + offset}"
        answers = [f"SELECT * FROM (WITH items AS ({source}) {best})" for source in self._sources]
        try:
            with self._connection.cursor() as cursor:
                found = cursor.execute(" UNION ALL ".join(answers), list(parameters) * len(answers)).fetchall()
        except self._error as error:
            what = str(error).splitlines()[0]
            raise ValueError(f"{self._folder} cannot be searched ({what:.160}): make the index anew") from None
        parts = {part.facts.number: part for part in self._parts}
        rows = [(parts[key >> 32].id(key & 0xFFFFFFFF), *rest) for key, *rest in found]
        rows.sort(key=lambda row: (-row[1], row[0]))
        return rows[offset : offset + k]
