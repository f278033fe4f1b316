"""Beyond the Distribution-Balanced paper: `auto` on its photographs, and what each of its parts is worth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from steelyard.config.recipes import settings
from steelyard.objective.parts import Part
from steelyard.run.datasets import Datasets
from steelyard_papers import db
from steelyard_papers.auto import ROW, chosen
from steelyard_papers.db import base_of, db_scores
from steelyard_papers.db_rows import CONSTANTS
from steelyard_papers.db_rows import rows as paper_rows
from steelyard_papers.findings import above, beside_best, gain
from steelyard_papers.published import RANKED
from steelyard_papers.reproduction import BEYOND, Job, Reproduction
from steelyard_papers.result import Result, beside
from steelyard_papers.sources import COCO_MLT, VOC_MLT, Source, one_of, present
from steelyard_papers.study import OpenData, Row, Settings, chosen_rows, merged, study

TRAINING: Settings = {
    "model": {"mirror": True},
    "schedule": {"kind": "cosine", "milestones": [], "warmup_epochs": 1, "warmup_from": 0.0},
    "train": {"epochs": 8, "ema": 0.99, "keep": "last"},
}
"""How `auto` is fine-tuned, whatever the objective: as the rows, but its rate falls smoothly, its weights are averaged,
and photographs are seen with their mirror images."""
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
_ROWS = {source.name: {row.name: dict(row.settings) for row in paper_rows(source)} for source in (VOC_MLT, COCO_MLT)}
FIRST = ("mAP", "mAP tail")
"""By what it is said which rows are better than auto."""
BESIDE = ("DB-Focal", "DB")
"""The paper's two best rows, DB-Focal the best."""
ON_COCO = (*BESIDE, "auto", "with a tenth held out")
"""The rows that are run on COCO-MLT."""
BESIDE_FROZEN = ("DB-Focal", "CB-Focal")
"""The same of db-table1-frozen."""


def rows(objective: Settings, source: Source = VOC_MLT) -> tuple[Row, ...]:
    """Return the paper's best rows, `auto`, and what is left of it without each of its parts.

    Args:
        objective: the settings of the recipe that `auto` chooses, its sampler included.
        source: the data set; on COCO-MLT without the parts.
    """
    auto = merged(TRAINING, objective)
    made = (
        *(Row(name, _ROWS[source.name][name]) for name in BESIDE),
        Row("auto", auto),
        Row("with a tenth held out", merged(auto, {"data": {"validation": 0.1}})),
        Row("without mirror images", merged(auto, {"model": {"mirror": False}})),
        Row("without averaged weights", merged(auto, {"train": {"ema": 0.0}})),
        Row("without kept statistics", merged(auto, {"model": {"keep_statistics": False}})),
        Row("without crops", merged(auto, {"train": {"augment": {"flip": 0.5, "resized_crop": 0.0}}})),
        *_by_other_losses(auto),
    )
    return made if source is VOC_MLT else tuple(row for row in made if row.name in ON_COCO)


def frozen_rows(objective: Settings) -> tuple[Row, ...]:
    """Return the table's best rows and `auto`, all over a frozen backbone, and what is left without each of its parts.

    Args:
        objective: the settings of the recipe that `auto` chooses, its sampler included.
    """
    auto = merged(FROZEN, objective)
    table = {"model": _FROZEN, "train": {"augment": _UNVARIED}}
    return (
        *(Row(name, merged(_ROWS[VOC_MLT.name][name], table)) for name in BESIDE_FROZEN),
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


COLUMNS = (*RANKED, "ACE")


def _fine_tuned(job: Job) -> Result:
    """`auto` beside the paper's rows on the data that is there."""
    notes: list[str] = []
    found = {}
    for source in present(job.data_root, (VOC_MLT, COCO_MLT)):
        opened = source.open(job.data_root)
        name, objective = chosen(opened.train.labels)
        wanted = {row.name for row in chosen_rows(job, rows(objective))}
        made = [row for row in rows(objective, source) if row.name in wanted]
        if made:
            part = study(replace(job, rows=()), base_of(source), made, _given(opened), db_scores, COLUMNS)
            notes += [f"on {source.name} auto chooses the recipe {name}"]
            notes += [f"on {source.name}, {said}" for said in above(part, "auto", (*FIRST, "ACE"))]
            found[source.name] = part
    return replace(beside(found), notes=tuple(notes))


def _given(opened: Datasets) -> OpenData:
    return lambda _data, _seed: opened


def _frozen(job: Job) -> Result:
    """`auto` and the table's best rows over a frozen backbone."""
    opened = VOC_MLT.open(job.data_root)
    name, objective = chosen(opened.train.labels)
    base = settings(CONSTANTS[VOC_MLT.name].recipe)
    result = study(job, base, frozen_rows(objective), _given(opened), db_scores, RANKED)
    return replace(result, notes=(f"auto chooses the recipe {name}", *above(result, "auto", FIRST)))


def _over(tables: tuple[str, ...], result: Result, others: Mapping[str, Result]) -> tuple[str, ...]:
    """How auto stands to the paper's best row, and to the best row of its tables here."""
    columns = [column for column in result.columns if column.startswith(FIRST)]
    gains = (gain(result, "auto", "DB-Focal", c, f"the paper's best row by {c} is DB-Focal") for c in columns)
    errors = [column for column in result.columns if column.startswith("ACE")]
    judged = beside_best("auto", [*columns, *errors], result, others, tables)
    return (*(said for found in gains for said in found), *judged)


TABLES = ("db-table1", "db-table2", "db-parts")
FROZEN_TABLES = tuple(f"{name}-frozen" for name in TABLES)
REPRODUCTIONS: tuple[Reproduction, ...] = (
    Reproduction(
        "db-beyond",
        BEYOND,
        "auto on VOC-MLT and COCO-MLT, fine-tuned: mAP, calibration, and what its parts are worth",
        (one_of((VOC_MLT, COCO_MLT), VOC_MLT),),
        5,
        _fine_tuned,
        note="ResNet-50 with ImageNet weights, fine-tuned; DB-Focal and DB, the paper's best, are those of db-table1; "
        "auto is trained as they are, but its rate falls smoothly, its weights are averaged, and a photograph is seen "
        "with its mirror image: customary values, none of them tuned; ACE is that of the derived link with what "
        "sampling and weights add, and with a tenth held out that of a calibrator fitted to it; "
        f"db-beyond-frozen is auto over a frozen backbone; {ROW}",
        against=TABLES,
        says=partial(_over, TABLES),
    ),
    Reproduction(
        "db-beyond-frozen",
        BEYOND,
        "auto on VOC-MLT over a frozen backbone: mAP, and what its parts are worth",
        (one_of((VOC_MLT,), VOC_MLT),),
        5,
        _frozen,
        note="EfficientNet-Lite0, frozen, at the 224 pixels it was trained with, under the paper's head; DB-Focal, the "
        "paper's best, and CB-Focal, the best of db-table1-frozen here, are rows of that, by the paper's SGD and "
        f"schedule; auto's size, head, dropout and rate are chosen on a fifth of the training items; {ROW}",
        against=FROZEN_TABLES,
        says=partial(_over, FROZEN_TABLES),
    ),
)
"""For the other rows they are compared with see db-table1 and db-table1-frozen."""

FROZEN_SETS = (
    *("model.backbone=lite0", "model.frozen=true", "model.keep_statistics=false"),
    *("train.augment.flip=0", "train.augment.resized_crop=0"),
)
"""What is set besides the paper's set-up."""
TWINNED = ("db-table1", "db-table2", "db-parts", "db-fig6", "db-fig7", "db-fig10")


def _run_frozen(of: Reproduction, job: Job) -> Result:
    result = of.run(job if job.smoke else replace(job, sets=(*FROZEN_SETS, *job.sets)))
    return replace(result, changed=job.sets)


def twin(of: Reproduction) -> Reproduction:
    """Return a table or figure of the paper as one over a frozen backbone."""
    about = "the backbone is EfficientNet-Lite0, frozen"
    return replace(
        of,
        name=f"{of.name}-frozen",
        title=f"{of.title}, over a frozen backbone",
        minutes=of.minutes / 10,
        run=partial(_run_frozen, of),
        published=None,
        tuned=None,
        note=f"{about}; {of.note}".replace("network, schedule", "head, schedule")
        .replace(" for the head and .01 below it", "")
        .replace("by SGD, ", "")
        .replace(db.VARIED, "photographs are not varied")
        .replace("db-table1", "db-table1-frozen"),
    )


TWINS: tuple[Reproduction, ...] = tuple(twin(of) for of in db.REPRODUCTIONS if of.name in TWINNED)
"""The tables and figures of the paper that train, over a frozen backbone: minutes on a CPU."""
