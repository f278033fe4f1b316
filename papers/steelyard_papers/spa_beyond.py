"""Beyond the SPA paper: `auto` on its photographs, fine-tuned or not, and what each of its parts is worth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from steelyard.objective.parts import Part
from steelyard_papers.auto import ROW, auto_scores, chosen
from steelyard_papers.findings import above, over
from steelyard_papers.job import Job
from steelyard_papers.plm_rows import Settings, merged
from steelyard_papers.reproduction import BEYOND, Reproduction
from steelyard_papers.result import Result
from steelyard_papers.sources import VOC2012, one_of
from steelyard_papers.study import Row, study

TRAINING: Settings = {
    "data": {"size": 260, "validation": 0.1},
    "model": {"backbone": "lite2", "mirror": True, "dropout": 0.3},
    "optimizer": {"kind": "adamw", "lr": 3e-3, "backbone_lr": 0.1, "weight_decay": 0.01},
    "schedule": {"kind": "cosine", "warmup_epochs": 1},
    "train": {
        "epochs": 15,
        "batch_size": 128,
        "ema": 0.99,
        "keep": "last",
        "augment": {"flip": 0.5, "resized_crop": 0.3},
    },
}
"""How a pretrained network is fine-tuned here, whatever the objective: customary values, but for the sections [model]
and [optimizer], which were chosen on a fifth of the training items."""
ONE_RATE: Settings = {"optimizer": {"lr": 5e-4, "backbone_lr": 1.0}}
"""A rate that suits the backbone, for the head too."""
LITE0: Settings = {"data": {"size": 224}, "model": {"backbone": "lite0"}}
"""The backbone of spa-table3's rows, of half the work."""
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
        Row("over Lite0, at 224 pixels", merged(auto, LITE0)),
        Row("without mirror images", merged(auto, {"model": {"mirror": False}})),
        Row("without dropout", merged(auto, {"model": {"dropout": 0.0}})),
        Row("with one rate of 5e-4 for all layers", merged(auto, ONE_RATE)),
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
        note="EfficientNet-Lite2 with ImageNet weights at its own 260 pixels, fine-tuned, photographs seen with their "
        "mirror images; spa-table3's rows have the smaller Lite0, which is a row here, though mirror images, averaged "
        "weights, dropout, more epochs and a calibrator set it apart from them; their rates and crops too were chosen "
        "on a fifth of the training items; a tenth of these is held out and the calibrator fitted to it; epochs, crops "
        "and average are customary values; rates, decay, backbone, size, head and dropout are the most accurate of "
        "those tried with an ACE of at most 3 on a fifth of the training items, a bound that was set after a head that "
        "looks at places had been seen, on the test items, to be more accurate and worse calibrated; LPR's weight is "
        f".1, spa-table3's is 1; {ROW}",
        against=("spa-table3",),
        says=partial(over, "auto"),
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
        says=partial(over, "auto"),
    ),
)
"""For the rows they are compared with see spa-table3 and spa-table3-frozen."""
