"""Things in a folder of images that are not image files: link loops, pipes, sockets, folders, devices."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Callable
from pathlib import Path

from torture.child import Running, typed
from torture.commands import Place
from torture.processes import IMAGES
from torture.tally import Tally

SOON = 60.0
"""Seconds after which a command that waits for a file is taken to hang."""
NAME = "odd.png"


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        folder = os.open(path.parent, os.O_RDONLY)  # a path to a socket may have some hundred characters only
        try:
            one.bind(f"/proc/self/fd/{folder}/{path.name}")
        finally:
            os.close(folder)


def _two_links(path: Path) -> None:
    other = path.with_name("other.txt")
    other.symlink_to(path)
    path.symlink_to(other)


KINDS: dict[str, Callable[[Path], object]] = {
    "a link to itself": lambda path: path.symlink_to(path),
    "two links to each other": _two_links,
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
    "a FIFO": lambda path: os.mkfifo(path),
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "a socket": _socket,
    "an empty file": lambda path: path.touch(),
}


def odd_files(place: Place, times: int, rng: random.Random) -> Tally:
    """Put something odd among images, and predict with and without leaving it out."""
    tally = Tally(
        "a link loop, FIFO or the like among images to predict",
        "one line names it; with --skip-bad it is left out, and the rest is equal",
    )
    work = place.anew()
    if (ended := typed(IMAGES.args, work)).code:
        raise RuntimeError(ended.err)
    folder = next(path for path in sorted((work / "photos").rglob("*.png"))).parent
    predict = ("predict", "new", str(folder.relative_to(work)))
    wanted = _rows(typed(predict, work).out)
    for name in [*KINDS, *rng.choices(list(KINDS), k=times)][:times]:
        KINDS[name](folder / NAME)
        wrong = _met(predict, work, wanted)
        for left in (NAME, "other.txt"):
            (folder / left).unlink(missing_ok=True)
        tally.add(f"{name}: {wrong}" if wrong else "")
    return tally


def _met(predict: tuple[str, ...], work: Path, wanted: list[str]) -> str:
    """Return what is wrong about predicting from a folder with something odd in it, "" where nothing is."""
    refused = Running(predict, work).wait(SOON)
    skipped = Running((*predict, "--skip-bad"), work).wait(SOON)
    if wrong := refused.wrong(2) or skipped.wrong(0):
        return wrong
    if NAME not in refused.err or NAME not in skipped.err:
        return f"does not name it: {refused.err!r}, {skipped.err!r}"
    rest = [row for row in _rows(skipped.out) if NAME not in row]
    return "" if rest == wanted else f"the other rows differ: {set(rest) ^ set(wanted)}"


def _rows(text: str) -> list[str]:
    return text.splitlines()
