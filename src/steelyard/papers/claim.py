"""Several processes at the same runs: each takes those that no other is at."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def claimed(file: Path, waits: bool) -> Iterator[bool]:
    """Give whether what `file` stands for is this process's now; with `waits` it is, once another has let go of it.

    The claim is a lock on the file, which the system lets go of however the process ends.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(file, os.O_CREAT | os.O_RDWR, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)
