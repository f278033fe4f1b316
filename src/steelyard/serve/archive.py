"""The index as the application sees it: one generation for each request, and the newest for the next."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import NamedTuple, final

from steelyard.search import Index, Query
from steelyard.search.index import Hit

_LOOK_AGAIN = 1.0  # seconds


class Unsearchable(Exception):
    """The files of the index are damaged."""


class Page(NamedTuple):
    """Hits, and whether there are more."""

    hits: list[Hit]
    more: bool


@final
@dataclass(frozen=True)
class View:
    """The index as it was at one time."""

    index: Index
    generation: int

    def search(self, query: Query, k: int, offset: int) -> Page:
        """Return the best `k` after the first `offset`; items that the query rules out are left out."""
        try:
            hits = self.index.search(query, k=k + 1, offset=offset)
        except ValueError as error:
            raise Unsearchable(str(error)) from None
        found = [hit for hit in hits if hit.score > 0]
        return Page(found[:k], len(found) > k)

    def path(self, id: str) -> str | None:
        """Return the image file that is listed for an item, None where none is or there is no such item."""
        return self.index.path(id) if id in self.index else None

    def has_paths(self) -> bool:
        """Return whether the first items of any part have files."""
        return any(part.path(row) for part in self.index.parts for row in range(min(8, part.rows)))


@final
class Archive:
    """An index that others may append to, replace and delete in.

    index: an `Index`, or the folder of one.
    """

    def __init__(self, index: Index | str | os.PathLike[str]) -> None:
        opened = Index.open(index) if isinstance(index, str | os.PathLike) else index
        self.names = opened.names
        self._view = View(opened, opened.generation)
        self._looked = time.monotonic()

    @property
    def now(self) -> View:
        """The index as it is now, or was a second ago."""
        if time.monotonic() - self._looked > _LOOK_AGAIN:
            self._looked = time.monotonic()
            try:
                fresh = self._view.index.refreshed()
            except (ValueError, OSError):  # damaged or gone: what is open stays in use
                return self._view
            if fresh.names == self.names:
                self._view = View(fresh, fresh.generation)
        return self._view
