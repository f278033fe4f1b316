"""Worker threads with a bounded queue, and a cache whose entries are computed once for simultaneous requests."""

from __future__ import annotations

import asyncio
import sys
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, final

from steelyard.serve.guards import Busy

Result = TypeVar("Result")
_ENTRY = 300  # bytes of an entry besides its key and its value


@final
class Workers:
    """A few threads for work that would block the event loop; the queue of Starlette's own threads is unbounded.

    n: how many.
    waiting: tasks that may wait or run at once; one more raises `Busy`.
    """

    def __init__(self, n: int, waiting: int = 64) -> None:
        self._pool = ThreadPoolExecutor(n)
        self._waiting, self._now = waiting, 0

    async def run(self, task: Callable[..., Result], *given: object) -> Result:
        """Return what `task` returns, run in one of the threads."""
        if self._now >= self._waiting:
            raise Busy("too much is asked for at once: try again in a moment")
        self._now += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, task, *given)
        finally:
            self._now -= 1

    def close(self) -> None:
        """Wait for what runs, drop what waits."""
        self._pool.shutdown(wait=True, cancel_futures=True)


@final
class AnswerCache:
    """A cache of the most recently used answers, for use in one event loop.

    budget: bytes that keys and answers may take together.
    """

    def __init__(self, budget: int) -> None:
        self._budget, self._used = budget, 0
        self._values: OrderedDict[Hashable, bytes] = OrderedDict()
        self._underway: dict[Hashable, asyncio.Future[bytes]] = {}

    async def get(self, key: Hashable, make: Callable[[], Awaitable[bytes]]) -> bytes:
        """Return the value of `key`, made by `make` where it is not there; a failure is told to all and not kept."""
        if key in self._values:
            self._values.move_to_end(key)
            return self._values[key]
        if key not in self._underway:
            task = asyncio.ensure_future(make())
            self._underway[key] = task
            task.add_done_callback(lambda done: self._done(key, done))
        return await asyncio.shield(self._underway[key])  # a client that disconnects must not cancel it for the others

    def _done(self, key: Hashable, done: asyncio.Future[bytes]) -> None:
        del self._underway[key]
        if done.cancelled() or done.exception() is not None:
            return
        self._values[key] = done.result()
        self._used += _bytes(key, done.result())
        while self._used > self._budget:
            self._used -= _bytes(*self._values.popitem(last=False))


def _bytes(key: Hashable, value: bytes) -> int:
    return _ENTRY + bytes_of(key) + len(value)


def bytes_of(key: object) -> int:
    """Return the bytes that a key takes, with the texts and tuples in it."""
    inner = sum(map(bytes_of, key)) if isinstance(key, tuple) else 0
    return sys.getsizeof(key) + inner
