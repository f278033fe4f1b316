"""An index: the probabilities of items, kept so that a query finds the best of millions in a fraction of a second."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from steelyard.labels.ids import Ids
from steelyard.labels.inputs import as_whole
from steelyard.search import manifest as manifests
from steelyard.search.change import check_folder, clean, commit, dead_keys
from steelyard.search.explanation import Explanation, explanation
from steelyard.search.items import Paths, plain_notes, rows_of, texts_of
from steelyard.search.manifest import Manifest
from steelyard.search.part import Gone, Part, Rows
from steelyard.search.query import Query
from steelyard.search.sql import statement

Floats: TypeAlias = NDArray[np.float32]
Ints: TypeAlias = NDArray[np.int64]

MOST_HITS: Final = 100_000


class Hit(NamedTuple):
    """An item that was found."""

    id: str
    score: float
    probabilities: dict[str, float]
    """Of the labels of the query, in the order of the index."""


class Engine(Protocol):
    """What answers the SQL of `sql.statement` over the items of one index."""

    def top(self, sql: str, parameters: Sequence[float], k: int, offset: int) -> list[tuple[Any, ...]]:
        """Return the rows offset … offset + k of the answer: (id, score, probabilities of the query's labels …)."""


class _Generation(NamedTuple):
    """All that an open index consists of."""

    manifest: Manifest
    parts: tuple[Part, ...]
    dead: Ints
    """Keys of deleted rows, sorted."""

    def find(self, ids: Any) -> tuple[Ints, Ints]:
        """Return the part (its place among the parts, −1 for none) and the row of each id of an Arrow array."""
        where, row = np.full(len(ids), -1, np.int64), np.zeros(len(ids), np.int64)
        for p, part in enumerate(self.parts):
            rows = part.find(ids)
            here = np.flatnonzero(rows >= 0)
            keys = rows[here] + part.first_key
            here = here[np.searchsorted(self.dead, keys) == np.searchsorted(self.dead, keys, "right")]
            where[here], row[here] = p, rows[here]
        return where, row

    def keys(self, where: Ints, row: Ints) -> Ints:
        """Return the keys of rows of parts."""
        first = np.array([0, *(part.first_key for part in self.parts)], np.int64)
        return first[where + 1] + row


@final
class Index:
    """Items with the probabilities of their labels in a folder, made by `Index.build`, opened by `Index.open`.

    One that is open keeps to the generation it opened, whatever others write, and may be used by several threads.
    `append`, `replace` and `delete` make a new generation, all or nothing, and go over to it; writers wait for each
    other. `refreshed` gives the newest.
    """

    def __init__(self, folder: Path, now: _Generation) -> None:
        self.folder = folder
        self._now = now
        self._engine: tuple[_Generation, Engine] | None = None
        self._lock = Lock()

    @classmethod
    def build(
        cls,
        folder: str | os.PathLike[str],
        ids: Sequence[str],
        probabilities: Any,
        names: Sequence[str],
        paths: Paths | None = None,
        overwrite: bool = False,
        notes: Mapping[str, Any] | None = None,
    ) -> Index:
        """Make an index in `folder` and return it open.

        Args:
            folder: new, empty, or with `overwrite` that of an index, which counts until the new one is whole.
            ids: of the N items, distinct.
            probabilities: (N, L) between 0 and 1; kept as float32.
            names: of the L labels, distinct.
            paths: of the items' files, None where an item has none.
            overwrite: whether an index in `folder` is replaced.
            notes: plain facts to keep, such as where thumbnails lie and which model this is from.
        """
        place = Path(folder)
        labels = tuple(Ids(names, "names"))
        rows = rows_of(ids, probabilities, paths, len(labels))
        kept = plain_notes(notes or {})
        check_folder(place)
        place.mkdir(parents=True, exist_ok=True)
        with manifests.writing(place):
            if manifests.exists(place) and not overwrite:
                raise ValueError(f"{place} holds an index: give another folder, or overwrite=True")
            before = _last(place)
            clean(place, before)
            base = Manifest(
                labels,
                kept,
                0 if before is None else before.generation,
                next_part=0 if before is None else before.next_part,
            )
            after = commit(place, base, [], rows if len(rows.ids) else None, np.zeros(0, np.int64))
            clean(place, after)
            return cls(place, _opened(place, after))

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Index:
        """Return the index in `folder`, as it is now."""
        place = Path(folder)
        for _ in range(100):
            try:
                return cls(place, _opened(place, manifests.read(place)))
            except Gone:  # between the manifest and its parts a writer finished
                continue
        raise ValueError(f"{place} lacks files that its manifest names: make the index anew")

    @property
    def names(self) -> tuple[str, ...]:
        """The labels, in the order of the columns of `rows`."""
        return self._now.manifest.names

    @property
    def n_items(self) -> int:
        """Items."""
        return self._now.manifest.n_items

    def __len__(self) -> int:
        return self.n_items

    @property
    def notes(self) -> dict[str, Any]:
        """The facts that were given to `build`."""
        return dict(self._now.manifest.notes)

    @property
    def generation(self) -> int:
        """How many times it was written."""
        return self._now.manifest.generation

    @property
    def parts(self) -> tuple[Part, ...]:
        """Its parts; each has `.table`, a Parquet file with the columns key, id, p0, p1, …"""
        return self._now.parts

    @property
    def dead(self) -> Ints:
        """Keys of the rows of its parts that are deleted, sorted."""
        return self._now.dead

    def refreshed(self) -> Index:
        """Return the newest generation: this index itself if it is that, else another."""
        return self if manifests.read(self.folder).generation == self.generation else Index.open(self.folder)

    def close(self) -> None:
        """Let go of its files, which a writer may then remove."""
        with self._lock:
            self._engine = None
        for part in self._now.parts:
            part.close()

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def search(self, query: str | Query, k: int = 20, offset: int = 0, engine: Engine | None = None) -> list[Hit]:
        """Return the `k` best items for a query after the first `offset`, best first, ties by id.

        Args:
            query: a text, see `Query`, or one that is parsed already.
            k, offset: how many, and after how many.
            engine: what does the work; by default DuckDB within this process.
        """
        k, offset = as_whole(k, "k"), as_whole(offset, "offset")
        for name, value, least in (("k", k, 1), ("offset", offset, 0)):
            if value < least:
                raise ValueError(f"{name} is {value}: give a whole number, at least {least}")
        if k + offset > MOST_HITS:
            raise ValueError(f"k + offset is {k + offset:,}: give at most {MOST_HITS:,}")
        asked = Query.parse(query, self.names) if isinstance(query, str) else query
        sql = statement(asked, self.names)
        if engine is None:
            columns = [self.names.index(label) for label in sql.labels]
            for part in self.parts:
                part.test(columns)
            engine = self._own_engine()
        found = engine.top(sql.text, sql.parameters, k, offset)
        return [Hit(item, score, dict(zip(sql.labels, eta, strict=True))) for item, score, *eta in found]

    def _own_engine(self) -> Engine:
        from steelyard.search.duckdb_engine import DuckDB

        with self._lock:
            now = self._now
            if self._engine is None or self._engine[0] is not now:
                self._engine = now, DuckDB(Index(self.folder, now))
            return self._engine[1]

    def explain(self, query: str | Query, id: str) -> Explanation:
        """Return how the score of an item for a query comes about, step by step."""
        asked = Query.parse(query, self.names) if isinstance(query, str) else query
        return explanation(asked, self.names, self.rows([id])[0])

    def rows(self, ids: Sequence[str]) -> Floats:
        """Return the probabilities (n, L) of some items, which must be there."""
        now = self._now
        where, row = now.find(texts_of(ids))
        if len(missing := np.flatnonzero(where < 0)):
            raise ValueError(f"item {ids[int(missing[0])]!r} is not in {self.folder}: give ids of items that are")
        found = np.empty((len(row), len(self.names)), np.float32)
        for p, part in enumerate(now.parts):
            here = np.flatnonzero(where == p)
            if len(here):
                found[here] = part.values(row[here], range(len(self.names)))
        return found

    def path(self, id: str) -> str | None:
        """Return the path of the file of an item, None where it has none; it must be there."""
        now = self._now
        where, row = now.find(texts_of([id]))
        if where[0] < 0:
            raise ValueError(f"item {id!r} is not in {self.folder}: give the id of an item that is")
        return now.parts[int(where[0])].path(int(row[0]))

    def __contains__(self, id: object) -> bool:
        return isinstance(id, str) and bool(self._now.find(texts_of([id]))[0][0] >= 0)

    def append(self, ids: Sequence[str], probabilities: Any, paths: Paths | None = None) -> None:
        """Add items whose ids are not there yet."""
        self._change(rows_of(ids, probabilities, paths, len(self.names)), replace=False)

    def replace(
        self,
        ids: Sequence[str],
        probabilities: Any,
        paths: Paths | None = None,
        notes: Mapping[str, Any] | None = None,
    ) -> None:
        """Add items in the place of those with the same ids, and notes in that of those so named, if there are any."""
        changed = plain_notes(notes or {})
        self._change(rows_of(ids, probabilities, paths, len(self.names)), replace=True, notes=changed)

    def delete(self, ids: Sequence[str]) -> None:
        """Remove items, which must be there."""
        gone = Ids(ids)
        with manifests.writing(self.folder):
            now = self._newest()
            where, row = now.find(gone.arrow)
            if len(missing := np.flatnonzero(where < 0)):
                raise ValueError(f"item {gone[int(missing[0])]!r} is not in {self.folder}: nothing was deleted")
            self._commit(now, None, now.keys(where, row))

    def _change(self, rows: Rows, replace: bool, notes: Mapping[str, Any] | None = None) -> None:
        with manifests.writing(self.folder):
            now = self._newest()
            where, row = now.find(rows.ids)
            there = np.flatnonzero(where >= 0)
            if len(there) and not replace:
                name = rows.ids[int(there[0])].as_py()
                raise ValueError(f"item {name!r} is in {self.folder} already, nothing was added: use replace")
            noted = dataclasses.replace(now.manifest, notes={**now.manifest.notes, **(notes or {})})
            dead = now.keys(where[there], row[there])
            self._commit(now._replace(manifest=noted), rows if len(rows.ids) else None, dead)

    def _newest(self) -> _Generation:
        """The newest generation, for the one who holds the lock of writers."""
        now = _opened(self.folder, manifests.read(self.folder))
        if now.manifest.names != self.names:
            raise ValueError(f"{self.folder} was made anew with other labels: open it again")
        clean(self.folder, now.manifest)
        return now

    def _commit(self, now: _Generation, added: Rows | None, more_dead: Ints) -> None:
        after = commit(self.folder, now.manifest, now.parts, added, np.union1d(now.dead, more_dead))
        with self._lock:
            self._now, self._engine = _opened(self.folder, after), None  # what is being asked of the old is answered
        for part in now.parts:
            part.close()
        clean(self.folder, after)

    def __repr__(self) -> str:
        return f"Index({str(self.folder)!r}, {self.n_items:,} items, {len(self.names)} labels)"


def _opened(folder: Path, manifest: Manifest) -> _Generation:
    parts = tuple(Part(folder, facts, len(manifest.names)) for facts in manifest.parts)
    try:
        return _Generation(manifest, parts, dead_keys(folder, manifest))
    except FileNotFoundError:
        raise Gone from None


def _last(folder: Path) -> Manifest | None:
    return manifests.read(folder) if manifests.exists(folder) else None
