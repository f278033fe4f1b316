"""The rows of the campaign: what is done, and how often."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from torture import clock, commands, damage, elsewhere, full, kills, odd, processes, rivals, served, shut, signals
from torture.commands import Place
from torture.tally import Tally

Work: TypeAlias = Callable[[Place, random.Random], Tally]


class Part(NamedTuple):
    """One row of the table, still to be done."""

    name: str
    work: Work


KILLED = (
    (commands.TRAIN, 25, 4, 1),
    (commands.PREDICT, 20, 1, 1),
    (commands.PARQUET, 15, 2, 1),
    (commands.APPEND, 25, 2, 1),
    (commands.CALIBRATE, 15, 1, 1),
    (commands.REPRODUCE, 10, 12, 4),
)
"""How often each command is killed at a random moment, at every how many-th write, and how often the disk is full."""


def parts(short: bool, every: int = 1) -> list[Part]:
    """Return the rows, in the order of the table; `short` is a few of each."""
    found: list[Part] = []

    def row(name: str, work: Callable[..., Tally], *given: object) -> None:
        found.append(Part(name, lambda place, rng: work(place, *given, rng)))

    killed = KILLED[3:4] if short else KILLED
    for command, moments, apart, _ in killed:
        row(f"kill moment {command.name}", kills.at_random, command, 1 if short else moments)
        row(f"kill write {command.name}", kills.at_writes, command, 18 if short else every * apart)
    for command, _, _, apart in killed:
        row(f"full {command.name}", full.disk_full, command, 9 if short else every * apart)
    row("shut", shut.read_only, 1 if short else 2)
    for command in (commands.APPEND,) if short else (commands.TRAIN, commands.APPEND, commands.CALIBRATE):
        row(f"clock {command.name}", clock.jumps, command, 1 if short else 5)
    row("clock serve", clock.serving, 2 if short else 20)
    row("served and retrained", served.retrained, 1 if short else 6)
    for file in list(damage.FILES)[:: 3 if short else 1]:
        row(f"damage {file}", damage.finished_run, file, 1 if short else 5, 1 if short else 20)
    for file in ("newest checkpoint",) if short else damage.UNFINISHED:
        row(f"damage unfinished {file}", damage.unfinished_run, file, 0 if short else 3, 1 if short else 7)
    for number in (signal.SIGINT, signal.SIGTERM):
        for command, *_ in killed:
            row(f"{number.name} {command.name}", signals.stopped, command, number, 1 if short else 8)
    for command in (commands.CALIBRATE,) if short else (commands.TRAIN, commands.CALIBRATE):
        row(f"writers {command.name}", rivals.two_writers, command, 1 if short else 10)
    row("elsewhere", elsewhere.relative_paths, 1 if short else 12)
    row("odd", odd.odd_files, 2 if short else len(odd.KINDS))
    row("process worker", processes.readers, 1 if short else 8)
    if not short:
        row("process outside", signals.stopped_from_outside, commands.TRAIN, 10)
        row("process torchrun", processes.one_of_two, 5)
    return found
