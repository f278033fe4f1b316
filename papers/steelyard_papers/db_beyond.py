"""Beyond the Distribution-Balanced paper: `auto` on its photographs, and what each of its parts is worth."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from steelyard.config.recipes import settings
from steelyard.objective.parts import Part
from steelyard_papers.auto import ROW, chosen
from steelyard_papers.db import db_scores
from steelyard_papers.db_rows import CONSTANTS
from steelyard_papers.db_rows import rows as paper_rows
from steelyard_papers.findings import above, gain, over
from steelyard_papers.job import Job
from steelyard_papers.plm_rows import Settings, merged
from steelyard_papers.published import RANKED
from steelyard_papers.reproduction import BEYOND, Reproduction
from steelyard_papers.result import Result
from steelyard_papers.sources import VOC_MLT, one_of
from steelyard_papers.study import Row, study

TABLE: Settings = {
    "model": {"backbone": "lite0"},
    "optimizer": {"kind": "adamw", "lr": 1e-3, "backbone_lr": 0.1, "weight_decay": 0.01},
}
"""How the paper's rows are fine-tuned over this network; chosen on a fifth of the training items."""
TRAINING: Settings = {
    **TABLE,
    "schedule": {"kind": "cosine", "milestones": [], "warmup_epochs": 1, "warmup_from": 0.0},
    "train": {"epochs": 8, "ema": 0.99, "keep": "last"},
}
"""How `auto` is fine-tuned, whatever the objective: as the rows, its rate falling smoothly, its weights averaged."""
_FROZEN = {"backbone": "lite0", "frozen": True, "keep_statistics": False}
_UNVARIED = {"flip": 0.0, "resized_crop": 0.0}
FROZEN: Settings = {
    "data": {"size": 224},
    "model": {**_FROZEN, "head": "bottleneck", "dropout": 0.5},
    "optimizer": {"kind": "adamw", "lr": 3e-4, "weight_decay": 0.01},
    "schedule": {"kind": "cosine", "milestones": [], "warmup_epochs": 1, "warmup_from": 0.0},
    "train": {"epochs": 8, "keep": "last", "augment": _UNVARIED},
}
"""How the paper's head is trained here over a backbone that stays as it is; chosen on a fifth of the training items."""
_ROWS = {row.name: dict(row.settings) for row in paper_rows(VOC_MLT)}
FIRST = ("mAP", "mAP tail")
"""By what it is said which rows are better than auto."""
BESIDE = ("DB-Focal", "DB")
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
        Row("without kept statistics", merged(auto, {"model": {"keep_statistics": False}})),
        Row("with one rate for all layers", merged(auto, {"optimizer": {"backbone_lr": 1.0}})),
        Row("without crops", merged(auto, {"train": {"augment": {"resized_crop": 0.0}}})),
        Row("without averaged weights", merged(auto, {"train": {"ema": 0.0}})),
        *_by_other_losses(auto),
    )


def frozen_rows(objective: Settings) -> tuple[Row, ...]:
    """Return the table's best rows and `auto`, all over a frozen backbone, and what is left without each of its parts.

    Args:
        objective: the settings of the recipe that `auto` chooses, its sampler included.
    """
    auto = merged(FROZEN, objective)
    table = {"model": _FROZEN, "train": {"augment": _UNVARIED}}
    return (
        *(Row(name, merged(_ROWS[name], table)) for name in BESIDE_FROZEN),
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


def _over(result: Result, others: Mapping[str, Result]) -> tuple[str, ...]:
    gains = (gain(result, "auto", "DB-Focal", c, f"the paper's best row by {c} is DB-Focal") for c in FIRST)
    return (*(said for found in gains for said in found), *over("auto", result, others))


REPRODUCTIONS: tuple[Reproduction, ...] = (
    Reproduction(
        "db-beyond",
        BEYOND,
        "auto on VOC-MLT, fine-tuned: mAP, and what its parts are worth",
        (one_of((VOC_MLT,), VOC_MLT),),
        5,
        partial(_beyond, rows),
        note="EfficientNet-Lite0 with ImageNet weights, fine-tuned; DB-Focal, the paper's best, and DB, the best of "
        "db-table1 here, are rows of that, their rates and crops the best of eleven tried on a fifth of the training "
        "items; auto is trained as they are, but its rate falls smoothly and its weights are averaged; "
        f"db-beyond-frozen is the same over a frozen backbone; {ROW}",
        against=("db-table1", "db-table2"),
        says=_over,
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
        f"schedule; auto's size, head, dropout and rate are chosen on a fifth of the training items; {ROW}",
        against=("db-table1-frozen", "db-table2-frozen"),
        says=_over,
    ),
)
"""For the other rows they are compared with see db-table1 and db-table1-frozen."""
