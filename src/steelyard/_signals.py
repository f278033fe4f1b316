"""Ctrl-C and SIGTERM at any moment of a command: both end it, and none is lost."""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
SOON = 0.02  # seconds
_COMPILED = ("numpy", "torch", "pyarrow", "torchvision", "sklearn", "onnxruntime", "duckdb")


class Stop:
    """True once a stop was requested."""

    asked = False

    def deafen(self) -> None:
        """Ignore further signals: all that is left is to report the stop."""
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                signal.signal(number, signal.SIG_IGN)


@contextmanager
def handling(handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    """Let `handler` take Ctrl-C and SIGTERM; does nothing outside the main thread, which gets all signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in SIGNALS}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


@contextmanager
def stoppable() -> Iterator[Stop]:
    """Raise KeyboardInterrupt on SIGTERM as on Ctrl-C.

    If Python cannot raise it, in a destructor or a callback, it is raised again a moment later. A library that is being
    imported may turn it into an error of its own; `asked` tells whether there was a signal. A compiled library may even
    abort: nothing has begun while it is imported, so the process ends at once.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        stop.asked = True
        if _is_importing():
            os.write(2, b"steelyard: stopped\n")
            os._exit(130)
        raise KeyboardInterrupt

    timers: list[threading.Timer] = []

    def again(unraisable: Any) -> None:
        if isinstance(unraisable.exc_value, KeyboardInterrupt):
            timers.append(threading.Timer(SOON, _thread.interrupt_main))  # raised here, it would be swallowed again
            timers[-1].start()
        elif "DataLoader worker" not in str(unraisable.exc_value):  # torch reports a dead worker itself
            hook(unraisable)

    hook, sys.unraisablehook = sys.unraisablehook, again
    with handling(interrupt):
        try:
            yield stop
        finally:
            sys.unraisablehook = hook
            for timer in timers:
                timer.cancel()


def _is_importing() -> bool:
    """Return whether a compiled library is being imported right now."""
    modules = (sys.modules.get(name) for name in _COMPILED)
    return any(getattr(getattr(module, "__spec__", None), "_initializing", False) for module in modules)
