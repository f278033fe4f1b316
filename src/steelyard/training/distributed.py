"""Several processes that train one model: if one fails, one line says why, and none is left waiting."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

import torch
import torch.distributed as dist

from steelyard._signals import handling
from steelyard.balance.processes import n_processes
from steelyard.training import group
from steelyard.training.finite import NotFinite

Found = TypeVar("Found")


def together(work: Callable[[], Found]) -> Found:
    """Do `work` in every process; if it fails, the first process in which it does says why, and all of them end."""
    if n_processes() == 1:
        return work()
    mistake: Exception | None = None
    try:
        result = work()
    except (ValueError, OSError) as error:
        mistake = error
    try:
        failed = torch.cat(group.gathered(torch.tensor([mistake is not None])))
    except RuntimeError:  # a process that failed has said why, and has ended
        raise SystemExit(2) from None
    if not bool(failed.any()):
        return result
    if mistake is not None and not bool(failed[: group.rank()].any()):
        raise mistake
    raise SystemExit(2)


@contextmanager
def one_voice() -> Iterator[None]:
    """Let one process say what all of them ended with: the first that can say where the loss is not finite, or stop."""
    try:
        yield
    except NotFinite as error:
        if n_processes() > 1 and _first_to_know(not error.elsewhere) != group.rank():
            raise SystemExit(2) from None
        raise
    except Stopped:
        if not group.is_first():
            raise SystemExit(130) from None
        raise


def _first_to_know(knows: bool) -> int:
    """Return the first process that knows, the first of all if none does, or this one if the others have ended."""
    try:
        return int(torch.cat(group.gathered(torch.tensor([int(knows)]))).argmax())
    except RuntimeError:
        return group.rank()


@contextmanager
def missing_others() -> Iterator[None]:
    """Turn the communication library's traceback about a lost process into one sentence."""
    try:
        yield
    except RuntimeError as error:
        lost = isinstance(error, dist.DistError) or "gloo" in str(error)
        if n_processes() == 1 or not lost:
            raise
        raise ValueError(
            f"another process of this training ended, as process {group.rank()} noticed: read its output, then run the "
            "same command again to continue"
        ) from None


class Stopped(KeyboardInterrupt):
    """Training was asked to stop and has written a checkpoint."""


@contextmanager
def listening() -> Iterator[threading.Event]:
    """Give an event that Ctrl-C or SIGTERM sets; the second time Ctrl-C interrupts at once, as always."""
    asked = threading.Event()

    def ask(number: int, frame: FrameType | None) -> None:
        if asked.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.set()

    with handling(ask):
        yield asked
