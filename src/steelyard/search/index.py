"""The index: stored probabilities of items, searched in a fraction of a second for millions of items."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, final

from steelyard._files import replacing
from steelyard._locks import sole
from steelyard.search import pointer as pointers
from steelyard.search.data_files import MOST_HITS, DataFile, Generation, RowPlace, opened
from steelyard.search.plan import EVERYTHING, Statement
from steelyard.search.pointer import Pointer
from steelyard.search.query import Query

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from steelyard.search.writing import NewItems, Paths


NO_LIKENESS = (
    "the items of this index have no embeddings to compare: make it again with steelyard predict RUN DATA --index DIR "
    "--overwrite --embeddings"
)


class Hit(NamedTuple):
    """One item of a search result.

    Examples:
        >>> index = sy.search.Index.build("index", ["a", "b"], [[0.75, 0.5], [0.25, 1.0]], ["cat", "dog"])
        >>> hit = index.search("cat & dog")[0]
        >>> hit.id, hit.score, hit.probabilities
        ('a', 0.375, {'cat': 0.75, 'dog': 0.5})
    """

    id: str
    """The id of the item."""
    score: float
    """The probability that the query is true for it; changed by `like`, see `Index.search`."""
    probabilities: dict[str, float]
    """The probability of each label of the query, in the order of the index."""


class Engine(Protocol):
    """Answers queries over the items of one index."""

    def top(self, statement: Statement, k: int, offset: int) -> list[tuple[Any, ...]]:
        """Return the rows offset … offset + k of the answer: (score, id, probabilities of the query's labels …)."""


@final
class Index:
    """Items and their label probabilities in a folder, made by `Index.build`, opened by `Index.open`.

    An open index stays at the generation it opened, whatever others write, and may be used by several threads.
    `append`, `replace` and `delete` write a new generation, all or nothing, and switch to it; writers wait for each
    other. `refreshed` returns the newest.

    Args:
        folder: of the index.
        generation: the files to search.
        threads: of a search; by default one per core.

    Examples:
        >>> index = sy.search.Index.build("index", ["a", "b"], [[0.75, 0.5], [0.25, 1.0]], ["cat", "dog"])
        >>> [(hit.id, hit.score) for hit in index.search("cat & ~dog")]
        [('a', 0.375), ('b', 0.0)]
        >>> index.delete(["b"])
        >>> len(sy.search.Index.open("index"))
        1
    """

    def __init__(self, folder: Path, generation: Generation, threads: int | None = None) -> None:
        self.folder, self._now, self._threads = folder, generation, threads

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
        embeddings: Any = None,
    ) -> Index:
        """Make an index in `folder` and return it open.

        Args:
            folder: new, empty, or with `overwrite` that of an index, which counts until the new one is whole.
            ids: of the N items, distinct.
            probabilities: (N, L) between 0 and 1; kept as float32.
            names: of the L labels, distinct.
            paths: of the items' files, None where an item has none.
            overwrite: whether an index in `folder` is replaced.
            notes: plain facts to keep, such as which model this is from.
            embeddings: (N, D), scaled to length 1; the cosine of two says how much items are like each other.
        """
        from steelyard.labels.ids import Ids
        from steelyard.search.writing import NewItems

        path, labels = Path(folder), tuple(Ids(names, "names"))
        if not labels:
            raise ValueError("names is empty: an index needs at least one label")
        items = NewItems.checked(Ids(ids), probabilities, paths, len(labels), embeddings)
        n_numbers = 0 if items.embeddings is None else items.embeddings.shape[1]
        pointer = Pointer(uuid.uuid4().hex, 0, len(labels), 0, (), _plain(notes), n_numbers)
        pointers.check_folder(path)
        path.mkdir(parents=True, exist_ok=True)
        with sole(path / pointers.LOCK, waits=True):
            if pointers.exists(path) and not overwrite:
                raise ValueError(f"{path} holds an index: give another folder, or overwrite=True")
            index = cls(path, Generation(pointer, (), (), labels))
            index._write(index._now, items, [], {})
            return index

    @classmethod
    def open(cls, folder: str | os.PathLike[str], threads: int | None = None) -> Index:
        """Return the index in `folder`, as it is now; a search uses `threads`, by default one per core."""
        return cls(Path(folder), _newest(Path(folder), threads), threads)

    def refreshed(self) -> Index:
        """Return the newest generation: this index if it is the newest, else another that shares its open files."""
        if pointers.read(self.folder)[:2] == (self.uuid, self.generation):
            return self
        return Index(self.folder, _newest(self.folder, self._threads, self._now.files), self._threads)

    @property
    def names(self) -> tuple[str, ...]:
        """The labels, in the order of the columns of `rows`."""
        return self._now.names

    @property
    def n_items(self) -> int:
        """The number of items."""
        return self._now.pointer.n_items

    def __len__(self) -> int:
        return self.n_items

    @property
    def notes(self) -> dict[str, Any]:
        """The notes given to `build`."""
        return dict(self._now.pointer.notes)

    @property
    def uuid(self) -> str:
        """The identity of the index; every build gives a new one, in the same folder too."""
        return self._now.pointer.uuid

    @property
    def generation(self) -> int:
        """The number of writes, the build included."""
        return self._now.pointer.generation

    @property
    def _open(self) -> Generation:
        if not self._now.files:
            raise ValueError(f"{self.folder} was closed: open it again")
        return self._now

    def close(self) -> None:
        """Close the files that no other generation uses."""
        self._now = self._now._replace(files=())

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def n_numbers(self) -> int:
        """The length of the embeddings by which `search` compares items; 0 if items have none."""
        return self._now.pointer.n_numbers

    def search(
        self,
        query: str | Query | None,
        k: int = 20,
        offset: int = 0,
        engine: Engine | None = None,
        seconds: float | None = None,
        like: str | None = None,
    ) -> list[Hit]:
        """Return the `k` best items for a query after the first `offset`, best first, ties by id.

        Args:
            query: a text, see `Query`, or one that is parsed already; None, with `like`, for all items.
            k, offset: how many, and after how many.
            engine: computes the answer; by default DuckDB in this process.
            seconds: after which DuckDB gives up with a `TimeoutError`; by default never.
            like: the id of an item, itself left out: scores are multiplied by (1 + cosine of both embeddings)/2.
        """
        for name, value, least in (("k", k, 1), ("offset", offset, 0)):
            if isinstance(value, bool) or not hasattr(value, "__index__") or value < least:
                raise ValueError(f"{name} is {value!r:.60}: give a whole number, at least {least}")
        k, offset, now = int(k), int(offset), self._open
        if k + offset > MOST_HITS:
            raise ValueError(f"k + offset is {k + offset:,}: give at most {MOST_HITS:,}")
        if query is None and like is None:
            raise ValueError("query and like are None: give one of them")
        statement, excluded = EVERYTHING, None
        if query is not None:
            statement = (Query.parse(query) if isinstance(query, str) else query).statement(now.names)
        if like is not None:
            if not self.n_numbers or engine is not None:
                raise ValueError(
                    NO_LIKENESS if engine is None else "only DuckDB finds similar items: leave `engine` out"
                )
            ((excluded, embedding),) = self._located(now, [like], "v")
            if embedding is None:
                raise ValueError(f"item {like!r:.60} came without an embedding: give another item")
            statement = statement.like(embedding)
        top = engine.top if engine is not None else partial(now.top, seconds=seconds or 0, excluded=excluded)
        rows = top(statement, k, offset)
        labels = [label for label, _ in statement.columns]
        return [Hit(id, score, dict(zip(labels, eta, strict=True))) for score, id, *eta in rows]

    def rows(self, ids: Sequence[str]) -> NDArray[np.float32]:
        """Return the probabilities (n, L) of items of the index."""
        now = self._open
        return now.probabilities([row for row, _ in self._located(now, ids)])

    def paths(self, ids: Sequence[str]) -> list[str | None]:
        """Return the files of items of the index, None where an item has none."""
        return [path for _, path in self._located(self._open, ids, "path")]

    def path(self, id: str) -> str | None:
        """Return the file of an item of the index, None if it has none."""
        return self.paths([id])[0]

    def first_path(self) -> str | None:
        """Return the file of any item, None if no item has one."""
        sql = "SELECT path FROM f.items WHERE path IS NOT NULL LIMIT 1"
        return next((path for file in self._open.files for (path,) in file.ask(sql)), None)

    def holding(self, ids: Sequence[str]) -> set[str]:
        """Return those of `ids` that are in the index."""
        return set(self._open.locate(ids))

    def __contains__(self, id: object) -> bool:
        return isinstance(id, str) and bool(self.holding([id]))

    def _located(self, now: Generation, ids: Sequence[str], chosen: str = "NULL") -> list[tuple[RowPlace, Any]]:
        """Return the row and a chosen column of each item."""
        if isinstance(ids, str):
            raise ValueError(f"ids is the single string {ids!r:.60}: give one string for each")
        rows = now.locate(ids, chosen)
        if missing := [id for id in ids if id not in rows]:
            raise ValueError(f"item {missing[0]!r} is not in {self.folder}: give ids of items that are")
        return [rows[id] for id in ids]

    def export(self, path: str | os.PathLike[str]) -> None:
        """Write the items as one Parquet file with the columns id, path, p0, p1, …, for Spark and others."""
        from steelyard.search.writing import export

        with replacing(path) as unfinished:
            export(self.folder, self._open, unfinished)

    def append(
        self, ids: Sequence[str], probabilities: Any, paths: Paths | None = None, embeddings: Any = None
    ) -> None:
        """Add items; an id that the index holds already is refused."""
        with self._writing(ids, probabilities, paths, embeddings) as (newest, items, existing):
            if existing:
                raise ValueError(f"item {min(existing)!r} is in {self.folder} already, nothing was added: use replace")
            self._write(newest, items, [], {})

    def replace(
        self,
        ids: Sequence[str],
        probabilities: Any,
        paths: Paths | None = None,
        notes: Mapping[str, Any] | None = None,
        embeddings: Any = None,
    ) -> int:
        """Add items, replacing those with the same ids, and notes likewise; return the number of items replaced."""
        changed = _plain(notes)
        with self._writing(ids, probabilities, paths, embeddings) as (newest, items, existing):
            self._write(newest, items, [row for row, _ in existing.values()], changed)
        return len(existing)

    def delete(self, ids: Sequence[str]) -> None:
        """Remove items of the index."""
        with self._writing(ids) as (newest, _, existing):
            if missing := [id for id in ids if id not in existing]:
                raise ValueError(f"item {missing[0]!r} is not in {self.folder}: nothing was deleted")
            self._write(newest, None, [row for row, _ in existing.values()], {})

    @contextmanager
    def _writing(
        self, ids: Sequence[str], probabilities: Any = None, paths: Paths | None = None, embeddings: Any = None
    ) -> Iterator[tuple[Generation, NewItems | None, dict[str, tuple[RowPlace, Any]]]]:
        """Lock the index; give its newest generation, the items to write, and the rows of ids that it holds already."""
        from steelyard.labels.ids import Ids
        from steelyard.search.writing import NewItems

        texts, items = Ids(ids), None
        if probabilities is not None:
            items = NewItems.checked(texts, probabilities, paths, len(self.names), embeddings)
            if items.embeddings is not None and (n := items.embeddings.shape[1]) != self.n_numbers:
                many = f"{self.n_numbers} numbers, but {n} are given"
                raise ValueError(f"{self.folder} keeps embeddings of {many}: give as many, or make the index again")
        with sole(self.folder / pointers.LOCK, waits=True):
            newest = opened(self.folder, pointers.read(self.folder), self._threads, self._now.files)
            if newest.names != self.names:
                raise ValueError(f"{self.folder} was made again with other labels: open it again")
            yield newest, items, newest.locate(list(texts))

    def _write(self, before: Generation, items: NewItems | None, gone: list[RowPlace], notes: dict[str, Any]) -> None:
        """Write the generation after `before` and switch to it."""
        from steelyard.search.writing import write

        after = write(self.folder, before, items, gone, notes)
        self._now = opened(self.folder, after, self._threads, before.files)
        pointers.clean(self.folder, after)

    def __repr__(self) -> str:
        return f"Index({str(self.folder)!r}, {self.n_items:,} items, {len(self.names)} labels)"


def _newest(folder: Path, threads: int | None, kept: Sequence[DataFile] = ()) -> Generation:
    while True:
        pointer = pointers.read(folder)
        try:
            return opened(folder, pointer, threads, kept)
        except (FileNotFoundError, ValueError):
            if pointers.read(folder) == pointer:  # otherwise a writer finished meanwhile and removed files
                raise


def _plain(notes: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return notes as they will be read back."""
    try:
        return json.loads(json.dumps(dict(notes or {}), allow_nan=False))  # type: ignore[no-any-return]
    except (TypeError, ValueError) as error:
        raise ValueError(f"notes cannot be kept as JSON ({error}): give plain facts") from None
