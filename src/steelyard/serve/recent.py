"""What was made lately, kept by key within a budget, and made once for all who ask for it at the same time."""

from __future__ import annotations

import asyncio
import sys
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar, final

Value = TypeVar("Value")
_ENTRY = 300  # bytes of an entry besides its key and its value


@final
class Recent(Generic[Value]):
    """A cache of the most recently used values, for one event loop.

    budget: bytes that keys and values may take together.
    size: bytes of a value.
    """

    def __init__(self, budget: int, size: Callable[[Value], int]) -> None:
        self._budget, self._size = budget, size
        self._values: OrderedDict[Hashable, Value] = OrderedDict()
        self._used = 0
        self._underway: dict[Hashable, asyncio.Future[Value]] = {}

    async def get(self, key: Hashable, make: Callable[[], Awaitable[Value]]) -> Value:
        """Return the value of `key`, made by `make` where it is not there; a failure is told to all and not kept."""
        if key in self._values:
            self._values.move_to_end(key)
            return self._values[key]
        if key not in self._underway:
            task = asyncio.ensure_future(make())
            self._underway[key] = task
            task.add_done_callback(lambda done: self._done(key, done))
        return await asyncio.shield(self._underway[key])  # one client that goes away does not take it from the others

    def _done(self, key: Hashable, done: asyncio.Future[Value]) -> None:
        del self._underway[key]
        if done.cancelled() or done.exception() is not None:
            return
        value = done.result()
        self._values[key] = value
        self._used += self._bytes(key, value)
        while self._used > self._budget:
            self._used -= self._bytes(*self._values.popitem(last=False))

    def _bytes(self, key: Hashable, value: Value) -> int:
        return _ENTRY + bytes_of(key) + self._size(value)


def bytes_of(key: object) -> int:
    """Return the bytes that a key takes, with the texts and tuples in it."""
    inner = sum(map(bytes_of, key)) if isinstance(key, tuple) else 0
    return sys.getsizeof(key) + inner
