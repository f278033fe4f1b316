"""Beyond the paper on partial labels: `auto` in its settings, and what each of its parts is worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from steelyard.papers.auto import chosen
from steelyard.papers.beside import beside
from steelyard.papers.job import Job
from steelyard.papers.pal import OURS, SETTINGS, studied
from steelyard.papers.plm_rows import Settings, merged
from steelyard.papers.reproduction import BEYOND, Reproduction
from steelyard.papers.result import Result
from steelyard.papers.sources import TABLES, one_of, present
from steelyard.papers.study import Row

TRAINING: Settings = {"model": {"dropout": 0.5}, "train": {"epochs": 60}}
"""How a linear layer is trained here, whatever the objective; chosen on a fifth of the training items."""


def rows(objective: Settings, data: str) -> Sequence[Row]:
    """Return `auto` and what is left of it without each of its parts.

    Args:
        objective: the settings of the recipe that `auto` chooses.
        data: the setting they are trained in.
    """
    auto = merged(TRAINING, objective)
    return (
        Row("auto", auto, data),
        Row("without dropout", merged(auto, {"model": {"dropout": 0.0}}), data),
        Row("with 20 epochs", merged(auto, {"train": {"epochs": 20}}), data),
    )


def _made(objective: Settings, _positives: float, data: str) -> Sequence[Row]:
    return rows(objective, data)


def _beyond(job: Job) -> Result:
    found, names = {}, []
    for source in present(job.data_root, OURS):
        whole = source.open(job.data_root).train.labels
        for setting in list(SETTINGS)[: 1 if job.smoke else None]:
            name, objective = chosen(SETTINGS[setting](whole, 0))
            job.progress(f"{source.name}, {setting}: {name}")
            names.append(f"{source.name}, {setting}: {name}")
            make = partial(_made, objective)
            found[f"{source.name}, {setting}"] = studied(job, source, setting, make)
    result = beside(found)
    return replace(result, notes=(f"auto chooses: {'; '.join(names)}",))


REPRODUCTIONS: tuple[Reproduction, ...] = (
    Reproduction(
        "pal-beyond",
        BEYOND,
        "auto with partial labels: mAP, and what its parts are worth",
        (one_of(OURS, TABLES[1]),),
        20,
        _beyond,
        note="to be compared with the rows of pal-table3 to pal-table6; choices were made on a fifth of the training "
        "items",
    ),
)
"""For the rows it is compared with see pal-table3 to pal-table6."""
