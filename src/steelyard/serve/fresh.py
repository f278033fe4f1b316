"""Answers that may lag behind the index by a few seconds, so that each append does not make everybody wait."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import NamedTuple, final

from steelyard.serve.recent import Recent

_MOST_KEYS = 4096


class _Last(NamedTuple):
    generation: int
    current_at: float
    """When its answer was last the newest there is."""


@final
class Fresh:
    """Answers by key and generation of the index.

    An answer of the present generation is given as it is. One of an earlier generation, if it was the newest there is
    at most `lag` seconds ago, is given once more while the new one is made; else the new one is waited for.

    kept: where answers are.
    lag: seconds.
    """

    def __init__(self, kept: Recent[bytes], lag: float) -> None:
        self._kept, self._lag = kept, lag
        self._last: OrderedDict[Hashable, _Last] = OrderedDict()
        self._renewals: set[asyncio.Task[bytes]] = set()

    async def get(
        self,
        key: Hashable,
        generation: int,
        make: Callable[[], Awaitable[bytes]],
        make_later: Callable[[], Awaitable[bytes]],
    ) -> bytes:
        """Return the answer for `key`: made by `make` where someone waits for it, by `make_later` where no one does."""
        last = self._last.get(key)
        if last is not None and last.generation != generation and time.monotonic() - last.current_at <= self._lag:
            before = self._kept.peek((key, last.generation))
            if before is not None:
                if not self._kept.knows((key, generation)):
                    renewal = asyncio.ensure_future(self._made(key, generation, make_later))
                    self._renewals.add(renewal)
                    renewal.add_done_callback(self._renewed)
                return before
        return await self._made(key, generation, make)

    async def _made(self, key: Hashable, generation: int, make: Callable[[], Awaitable[bytes]]) -> bytes:
        answer = await self._kept.get((key, generation), make)
        self._last[key] = _Last(generation, time.monotonic())
        self._last.move_to_end(key)
        if len(self._last) > _MOST_KEYS:
            self._last.popitem(last=False)
        return answer

    def _renewed(self, done: asyncio.Task[bytes]) -> None:
        self._renewals.discard(done)
        if not done.cancelled():
            done.exception()  # looked at, and told to whoever asks next and waits
