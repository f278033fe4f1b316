"""Describe a request to reproduce, and a table or figure: its data, its run and the paper's numbers."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console

from steelyard.config.layers import planted
from steelyard_papers.ledger import is_something_else
from steelyard_papers.published import Published
from steelyard_papers.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _silent(sentence: str) -> None:
    """Say nothing."""


_SET_HERE = (
    ("train", "seed", "--seeds says how many runs there are, with the seeds 0, 1, …"),
    ("data", "cache", "it lies in --out"),
)


def _is_damaged(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _can_be_written(path: Path) -> bool:
    """Return whether a file exists or can be created with its folders: checked before hours of training."""
    if path.exists():
        return path.is_file() and os.access(path, os.W_OK)
    home = next(folder for folder in path.absolute().parents if folder.exists())
    return home.is_dir() and os.access(home, os.W_OK)


@dataclass(frozen=True)
class Job:
    """A request to reproduce a table or figure.

    Args:
        data_root: the folder that holds the data sets in their owners' layouts.
        out: the folder of runs and results; a run in it that is finished is not trained again.
        seeds: of the runs of every row.
        sets: texts "section.key=value" that override a setting of every row, recorded in the result.
        rows: names or patterns of the rows to run; none for all.
        smoke: whether this is a trial on generated data: one epoch of a tiny network.
        validation: the share of the training items to measure on in place of the test items, which stay unseen; 0 for
            none.
        ledger: a file that notes what was measured on runs; what is in it is not trained again. None for none.
        note: what to know about this copy of the data, for the result.
        command: what was typed, for the result.
        progress: called with a sentence at a time.
        console: a terminal on which trainings show how far they are, None for none.
    """

    data_root: Path
    out: Path
    seeds: tuple[int, ...] = (0,)
    sets: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    smoke: bool = False
    validation: float = 0.0
    ledger: Path | None = None
    note: str = ""
    command: str = ""
    progress: Callable[[str], None] = _silent
    console: Console | None = None

    def __post_init__(self) -> None:
        if not self.seeds or min(self.seeds) < 0 or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds is {list(self.seeds)}: give at least one, each 0 or more and only once")
        if not 0 <= self.validation < 1:
            raise ValueError(f"validation is {self.validation}: give a share of at least 0 and below 1")
        if self.ledger is not None and not _can_be_written(self.ledger):
            raise ValueError(f"ledger is {self.ledger}, which no file can be written to: name another")
        if self.ledger is not None and is_something_else(self.ledger):
            raise ValueError(f"ledger is {self.ledger}, which exists but is not a ledger: pass a ledger or a new path")
        for text in (self.note, *self.sets, *self.rows):
            if _is_damaged(text):
                raise ValueError(f"{text!r} holds bytes that are not UTF-8: type it again")
        for section, key, instead in _SET_HERE:
            if key in self.overrides.get(section, {}):
                raise ValueError(f"{section}.{key} is not to be set here: {instead}")

    @property
    def overrides(self) -> Mapping[str, Any]:
        """The settings of `sets`, nested as in a TOML file."""
        return planted(self.sets)


LEFT_OUT = " is not there and left out"
"""End of the note that data is missing, after its name."""
BEYOND = "What none of the papers has"
"""The place of a paper's name in what goes beyond them."""


@dataclass(frozen=True)
class Need:
    """Data that a person brings.

    Args:
        what: its name.
        where: where to get it, and where to put it beneath the folder that --data names.
        check: (folder) → whether it is there.
        fixture: (folder) writes a few generated items in the same layout, for --smoke.
    """

    what: str
    where: str
    check: Callable[[Path], bool]
    fixture: Callable[[Path], None]


class Tuned(NamedTuple):
    """Settings that were chosen for a network other than the paper's."""

    sets: tuple[str, ...]
    """As typed behind --set."""
    how: str
    """A sentence on how they were chosen."""


@dataclass(frozen=True)
class Reproduction:
    """A table or figure that can be run.

    Args:
        name: such as "plm-table1".
        paper: in a few words, or `BEYOND`.
        title: what it shows.
        needs: the data, none for what is a matter of formulas.
        minutes: for one seed of all rows on one GPU, roughly; 0 where nothing is trained.
        run: does it.
        published: what the paper prints.
        note: what is chosen here, or differs from the paper.
        draw: makes the figure of a result, from `Result.figure` and its rows.
        whole: whether it needs all of its rows, so that none can be chosen.
        shown: a pattern of the rows among which the dashboard names the best, where rows are on different data.
        against: the names of other results that its page compares it with, where they lie beside it,
        says: and sentences about that, made of the result and those.
        tuned: settings by which it may be run over another network, named on the page of a result that has them all.
    """

    name: str
    paper: str
    title: str
    needs: tuple[Need, ...]
    minutes: float
    run: Callable[[Job], Result]
    published: Published | None = None
    note: str = ""
    draw: Callable[[Result], Figure] | None = None
    whole: bool = False
    shown: str = "*"
    against: tuple[str, ...] = ()
    says: Callable[[Result, Mapping[str, Result]], tuple[str, ...]] | None = None
    tuned: Tuned | None = None

    def missing(self, root: Path) -> tuple[Need, ...]:
        """Return the data that is not there."""
        return tuple(need for need in self.needs if not need.check(root))

    def compared(self, result: Result, others: Mapping[str, Result]) -> tuple[str, ...]:
        """Return sentences that compare a result with those of `others` it belongs beside."""
        there = {name: others[name] for name in self.against if name in others}
        return self.says(result, there) if self.says is not None and there else ()

    @property
    def command(self) -> str:
        """The command to type."""
        return f"steelyard reproduce {self.name}" + (" --data FOLDER" if self.needs else "")
