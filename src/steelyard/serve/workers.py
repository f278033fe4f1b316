"""Threads for what would hold up the event loop: few of them, and a queue that is refused when it is long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, final

Result = TypeVar("Result")


class Busy(Exception):
    """More is asked for than can be done soon."""


@final
class Workers:
    """A few threads.

    n: how many.
    waiting: tasks that may wait or run at once; one more raises `Busy`.
    """

    def __init__(self, n: int, waiting: int = 64) -> None:
        self._pool = ThreadPoolExecutor(n)
        self._waiting, self._now = waiting, 0

    async def run(self, task: Callable[[], Result]) -> Result:
        """Return what `task` returns, run in one of the threads."""
        if self._now >= self._waiting:
            raise Busy
        self._now += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, task)
        finally:
            self._now -= 1

    def close(self) -> None:
        """Wait for what runs, drop what waits."""
        self._pool.shutdown(wait=True, cancel_futures=True)
