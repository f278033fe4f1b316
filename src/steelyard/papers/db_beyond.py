"""Beyond the Distribution-Balanced paper: `auto` on its photographs, and what each of its parts is worth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from steelyard.papers.auto import chosen
from steelyard.papers.db import db_scores
from steelyard.papers.db_rows import CONSTANTS
from steelyard.papers.db_rows import rows as paper_rows
from steelyard.papers.findings import above
from steelyard.papers.job import Job
from steelyard.papers.plm_rows import Settings, merged
from steelyard.papers.published import RANKED
from steelyard.papers.reproduction import BEYOND, Reproduction
from steelyard.papers.result import Result
from steelyard.papers.sources import VOC_MLT, one_of
from steelyard.papers.study import Row, study
from steelyard.run.parts import Part
from steelyard.run.recipes import settings

TRAINING: Settings = {
    "model": {"backbone": "lite0", "head": "linear", "dropout": 0.5},
    "optimizer": {"kind": "adamw", "lr": 5e-4, "weight_decay": 0.05},
    "schedule": {"kind": "cosine", "milestones": [], "warmup_epochs": 1, "warmup_from": 0.0},
    "train": {"epochs": 8, "ema": 0.99, "keep": "last", "augment": {"flip": 0.5, "resized_crop": 0.3}},
}
"""How a pretrained network is fine-tuned here, whatever the objective: customary values, the best of four tried on
a fifth of the training items."""
FROZEN: Settings = {
    "data": {"size": 224},
    "model": {"backbone": "lite0", "frozen": True, "head": "bottleneck", "dropout": 0.5},
    "optimizer": {"kind": "adamw", "lr": 3e-4, "weight_decay": 0.01},
    "schedule": {"kind": "cosine", "milestones": [], "warmup_epochs": 1, "warmup_from": 0.0},
    "train": {"epochs": 8, "keep": "last", "augment": {"flip": 0.0}},
}
"""How the paper's head is trained here over a backbone that stays as it is; chosen on a fifth of the training items."""
TABLE: Settings = {
    "model": {"backbone": "lite0"},
    "optimizer": {"kind": "adamw", "lr": 3e-4, "weight_decay": 0.01},
}
"""How the paper's rows are fine-tuned over this network; chosen on a fifth of the training items."""
_ROWS = {row.name: dict(row.settings) for row in paper_rows(VOC_MLT)}
FIRST = ("mAP", "mAP tail")
"""By what it is said which rows are better than auto."""
BESIDE = ("DB-Focal", "RW")
"""The paper's best row, and the one that came out best in db-table1."""
BESIDE_FROZEN = ("DB-Focal", "CB-Focal")
"""The same of db-table1-frozen."""


def rows(objective: Settings) -> tuple[Row, ...]:
    """Return the table's best rows over the same backbone, `auto`, and what is left of it without each of its parts.

    Args:
        objective: the settings of the recipe that `auto` chooses, its sampler included.
    """
    auto = merged(TRAINING, objective)
    return (
        *(Row(name, merged(TABLE, _ROWS[name])) for name in BESIDE),
        Row("auto", auto),
        Row("without crops", merged(auto, {"train": {"augment": {"flip": 0.5}}})),
        Row("without averaged weights", merged(auto, {"train": {"ema": 0.0}})),
        *_by_other_losses(auto),
    )


def frozen_rows(objective: Settings) -> tuple[Row, ...]:
    """Return the table's best rows and `auto`, all over a frozen backbone, and what is left without each of its parts.

    Args:
        objective: the settings of the recipe that `auto` chooses, its sampler included.
    """
    auto = merged(FROZEN, objective)
    table = {"model": {"backbone": "lite0", "frozen": True}}
    unvaried = {"train": {"augment": {"flip": 0.0}}}
    return (
        *(Row(name, merged(table, _ROWS[name], unvaried)) for name in BESIDE_FROZEN),
        Row("auto", auto),
        Row("at 160 pixels", merged(auto, {"data": {"size": 160}})),
        Row("without dropout", merged(auto, {"model": {"dropout": 0.0}})),
        Row("under a linear layer", merged(auto, {"model": {"head": "linear"}})),
        *_by_other_losses(auto),
    )


def _by_other_losses(auto: Settings) -> tuple[Row, ...]:
    return (
        Row("by the focal loss", merged(auto, {"objective": {"loss": Part("focal", {"gamma": 2.0})}})),
        Row("by cross-entropy", merged(auto, {"objective": {"loss": Part("bce")}})),
    )


def _beyond(made: Callable[[Settings], tuple[Row, ...]], job: Job) -> Result:
    opened = VOC_MLT.open(job.data_root)
    name, objective = chosen(opened.train.labels)
    base = settings(CONSTANTS[VOC_MLT.name].recipe)
    result = study(job, base, made(objective), lambda _data, _seed: opened, db_scores, RANKED)
    return replace(result, notes=(f"auto chooses the recipe {name}", *above(result, "auto", FIRST)))


REPRODUCTIONS: tuple[Reproduction, ...] = (
    Reproduction(
        "db-beyond",
        BEYOND,
        "auto on VOC-MLT, fine-tuned: mAP, and what its parts are worth",
        (one_of((VOC_MLT,), VOC_MLT),),
        5,
        partial(_beyond, rows),
        note="EfficientNet-Lite0 with ImageNet weights, fine-tuned; DB-Focal, the paper's best, and RW, the best "
        "here, are rows of db-table1, their rate chosen on a fifth of the training items: the same backbone, but "
        "with the paper's bottleneck, dropout and schedule, a weight decay of .01, and no crops or averaged weights; "
        "auto's epochs and rate are the best of four tried there; db-beyond-frozen is the same over a frozen "
        "backbone, which suits so few images better",
    ),
    Reproduction(
        "db-beyond-frozen",
        BEYOND,
        "auto on VOC-MLT over a frozen backbone: mAP, and what its parts are worth",
        (one_of((VOC_MLT,), VOC_MLT),),
        5,
        partial(_beyond, frozen_rows),
        note="EfficientNet-Lite0, frozen, at the 224 pixels it was trained with, under the paper's head; DB-Focal, the "
        "paper's best, and CB-Focal, the best of db-table1-frozen here, are rows of that, by the paper's SGD and "
        "schedule; auto's size, head, dropout and rate are chosen on a fifth of the training items",
    ),
)
"""For the other rows they are compared with see db-table1 and db-table1-frozen."""
