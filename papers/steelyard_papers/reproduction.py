"""One table or figure of a paper: what it needs, what it runs, and what the paper prints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from steelyard_papers.job import Job
from steelyard_papers.published import Published
from steelyard_papers.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure


LEFT_OUT = " is not there and left out"
"""What follows the name of data in the note that it is missing."""
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
    """How they were chosen, in a sentence."""


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
        tuned: settings by which it may be run over another network, said on the page of a result that has them all.
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
        """Return what is to be said of a result beside those of `others` that it is compared with."""
        there = {name: others[name] for name in self.against if name in others}
        return self.says(result, there) if self.says is not None and there else ()

    @property
    def command(self) -> str:
        """What to type."""
        return f"steelyard reproduce {self.name}" + (" --data FOLDER" if self.needs else "")
