"""Beyond the SPA paper: `auto` on its photographs, fine-tuned or not, and what each of its parts is worth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from steelyard.objective.parts import Part
from steelyard_papers.auto import ROW, auto_scores, chosen
from steelyard_papers.findings import above, beside_best
from steelyard_papers.reproduction import BEYOND, Job, Reproduction
from steelyard_papers.result import Result
from steelyard_papers.sources import VOC2012, one_of
from steelyard_papers.spa import FINE
from steelyard_papers.study import Row, Settings, merged, study

TRAINING: Settings = merged(
    FINE,
    {
        "model": {"mirror": True},
        "train": {"ema": 0.99, "keep": "best", "monitor": "loss", "augment": {"flip": 0.5, "resized_crop": 0.64}},
    },
)
"""How a pretrained network is fine-tuned here, whatever the objective: as the rows of spa-table3, the epoch chosen as
theirs, with crops, averaged weights and mirror images, customary values that were not tuned."""
FROZEN: Settings = {
    "data": {"size": 224, "validation": 0.1},
    "model": {"backbone": "lite0", "frozen": True, "dropout": 0.5},
    "optimizer": {"kind": "adamw", "lr": 1e-3, "weight_decay": 0.01},
    "schedule": {"kind": "cosine"},
    "train": {"epochs": 60, "batch_size": 128, "keep": "last"},
}
"""How a linear layer is trained here over a backbone that stays as it is; chosen on a fifth of the training items."""


def rows(objective: Settings) -> tuple[Row, ...]:
    """Return `auto` on photographs, and what is left of it without each of its parts.

    Args:
        objective: the settings of the recipe that `auto` chooses.
    """
    auto = merged(TRAINING, objective)
    return (
        Row("auto", auto),
        Row("without mirror images", merged(auto, {"model": {"mirror": False}})),
        Row("without crops", merged(auto, {"train": {"augment": {"flip": 0.5}}})),
        Row("without averaged weights", merged(auto, {"train": {"ema": 0.0}})),
        *_either_way(auto),
    )


def frozen_rows(objective: Settings) -> tuple[Row, ...]:
    """Return `auto` over a frozen backbone and what is left of it without each of its parts.

    Args:
        objective: the settings of the recipe that `auto` chooses.
    """
    auto = merged(FROZEN, objective)
    return (
        Row("auto", auto),
        Row("at 160 pixels", merged(auto, {"data": {"size": 160}})),
        Row("without dropout", merged(auto, {"model": {"dropout": 0.0}})),
        *_either_way(auto),
    )


def _either_way(auto: Settings) -> tuple[Row, ...]:
    """The rows that are the same whether the backbone is frozen or not."""
    spa = {"loss": Part("spa"), "label_pair": Part("on", {"weight": 0.1})}
    return (
        Row("without held-out items", merged(auto, {"data": {"validation": 0.0}})),
        Row("by SPA + LPR", merged(auto, {"objective": spa})),
        Row("by the two-way loss", merged(auto, {"objective": {"loss": Part("two_way")}})),
    )


COLUMNS = ("mAP@y", "mAP@x", "ACE", "ACE by chance", "MCE", "ACE by the link")
FIRST = ("mAP@y", "ACE")
"""By what it is said which rows are better than auto."""


def _beyond(made: Callable[[Settings], tuple[Row, ...]], job: Job) -> Result:
    opened = VOC2012.open(job.data_root)
    name, objective = chosen(opened.train.labels)
    result = study(job, {}, made(objective), lambda _data, _seed: opened, auto_scores, COLUMNS)
    return replace(result, notes=(f"auto chooses the recipe {name}", *above(result, "auto", FIRST)))


REPRODUCTIONS: tuple[Reproduction, ...] = (
    Reproduction(
        "spa-beyond",
        BEYOND,
        "auto on VOC 2012, fine-tuned: accuracy and calibration, and what its parts are worth",
        (one_of((VOC2012,), VOC2012),),
        5,
        partial(_beyond, rows),
        note="ResNet-50 with ImageNet weights, trained as the rows of spa-table3, the epoch chosen as theirs; besides, "
        "auto has crops of at least .64 of an image, averaged weights and mirror images, customary values that are not "
        "tuned, and a calibrator fitted to the tenth that every row holds out; LPR's weight is .1, spa-table3's is 1; "
        f"{ROW}",
        against=("spa-table3",),
        says=partial(beside_best, "auto", FIRST, tables=("spa-table3",)),
    ),
    Reproduction(
        "spa-beyond-frozen",
        BEYOND,
        "auto on VOC 2012 over a frozen backbone: accuracy and calibration, and what its parts are worth",
        (one_of((VOC2012,), VOC2012),),
        10,
        partial(_beyond, frozen_rows),
        note="EfficientNet-Lite0, frozen, at the 224 pixels it was trained with, under a linear layer; a tenth of the "
        "training items is held out and the calibrator fitted to it; size, dropout and rate were chosen on a fifth of "
        f"the training items; LPR's weight is .1, spa-table3-frozen's is 1; {ROW}",
        against=("spa-table3-frozen",),
        says=partial(beside_best, "auto", FIRST, tables=("spa-table3-frozen",)),
    ),
)
"""For the rows they are compared with see spa-table3 and spa-table3-frozen."""
