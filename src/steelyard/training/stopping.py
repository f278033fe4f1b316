"""Ctrl-C and SIGTERM: finish the step, keep the work, then stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stopped(KeyboardInterrupt):
    """Training was asked to stop and has written a checkpoint."""


class StopFlag:
    """Whether a stop was asked for."""

    def __init__(self) -> None:
        self.asked = False


@contextmanager
def listening() -> Iterator[StopFlag]:
    """Give a flag that Ctrl-C or SIGTERM raises; the second time Ctrl-C interrupts at once, as always."""
    flag = StopFlag()
    if threading.current_thread() is not threading.main_thread():
        yield flag
        return

    def raise_flag(number: int, frame: FrameType | None) -> None:
        if flag.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        flag.asked = True

    before = {number: signal.signal(number, raise_flag) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield flag
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
