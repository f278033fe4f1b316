"""Several processes at the same runs: each takes those that no other is at."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from steelyard._locks import Taken, sole


@contextmanager
def claimed(file: Path, waits: bool) -> Iterator[bool]:
    """Give whether what `file` stands for is this process's now; with `waits` it is, once another has let go of it.

    The claim is a lock on the file, which the system lets go of however the process ends.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        try:
            held.enter_context(sole(file, waits))
            is_ours = True
        except Taken:
            is_ours = False
        yield is_ours
