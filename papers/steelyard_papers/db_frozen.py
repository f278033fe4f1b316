"""The Distribution-Balanced paper's tables and figures that train, over a frozen backbone: minutes on a CPU."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from steelyard_papers import db
from steelyard_papers.job import Job
from steelyard_papers.reproduction import Reproduction
from steelyard_papers.result import Result

SETS = (
    *("model.backbone=lite0", "model.frozen=true", "model.keep_statistics=false"),
    *("train.augment.flip=0", "train.augment.resized_crop=0"),
)
"""What is set besides the paper's set-up."""
NAMES = ("db-table1", "db-table2", "db-parts", "db-fig6", "db-fig7", "db-fig10")


def _frozen(of: Reproduction, job: Job) -> Result:
    result = of.run(job if job.smoke else replace(job, sets=(*SETS, *job.sets)))
    return replace(result, changed=job.sets)


def made(of: Reproduction) -> Reproduction:
    """Return a table or figure of the paper as one over a frozen backbone."""
    about = "the backbone is EfficientNet-Lite0, frozen"
    return replace(
        of,
        name=f"{of.name}-frozen",
        title=f"{of.title}, over a frozen backbone",
        minutes=of.minutes / 10,
        run=partial(_frozen, of),
        published=None,
        tuned=None,
        note=f"{about}; {of.note}".replace("network, schedule", "head, schedule")
        .replace(" for the head and .01 below it", "")
        .replace("by SGD, ", "")
        .replace(db.VARIED, "photographs are not varied")
        .replace("db-table1", "db-table1-frozen"),
    )


REPRODUCTIONS: tuple[Reproduction, ...] = tuple(made(of) for of in db.REPRODUCTIONS if of.name in NAMES)
"""In the order of the paper."""
