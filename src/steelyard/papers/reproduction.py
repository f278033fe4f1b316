"""One table or figure of a paper: what it needs, what it runs, and what the paper prints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from steelyard.papers.job import Job
from steelyard.papers.published import Published
from steelyard.papers.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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

    def missing(self, root: Path) -> tuple[Need, ...]:
        """Return the data that is not there."""
        return tuple(need for need in self.needs if not need.check(root))

    @property
    def command(self) -> str:
        """What to type."""
        return f"steelyard reproduce {self.name}" + (" --data FOLDER" if self.needs else "")
