"""The rows that the PLM paper compares, and their set-ups."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from steelyard.config import recipes
from steelyard_papers.feature_sources import COCO_FEATURES
from steelyard_papers.job import Job
from steelyard_papers.plm_data import DRAW, has_coco, open_cifar, open_coco, open_multi_mnist
from steelyard_papers.plm_measures import decision_columns, decisions_of_3, decisions_of_10, errors, rarest_apart
from steelyard_papers.result import Result
from steelyard_papers.study import Row, study

RHOS = (200, 100, 50, 20, 10)
SEVERAL_SEEDS = (100, 10)
"""The ρ of Tables 3 and 4 that are run with all seeds, the others with one."""
RATES = (1.0, 0.1, 0.01, 0.0)
"""λ of Table 5; with 0 no ratio moves, and nothing is masked: that is BCE."""
INITIAL = ("dataset", "mean", "min", "max")
HEAD_AND_TAIL = ("BCE", "BCE + PLM")
"""The rows that figures compare."""

Settings = dict[str, Any]


def plm(**arguments: Any) -> Settings:
    """Return the settings of PLM with these arguments."""
    return {"objective": {"masking": {"kind": "plm", **arguments}}}


def base_of(recipe: str) -> Settings:
    """Return the set-up of a recipe without its method, which the rows give."""
    settings = recipes.settings(recipe)
    settings["objective"] = {"reduction": "item"}
    settings["evaluate"] = {**settings["evaluate"], "batch_size": 1024}
    return settings


def merged(*parts: Settings) -> Settings:
    """Return settings laid over each other, section by section; of a key that several have, the last one's value."""
    whole: Settings = {}
    for part in parts:
        for section, content in part.items():
            whole[section] = {**whole.get(section, {}), **content}
    return whole


FOCAL: Settings = {"objective": {"loss": {"kind": "focal", "gamma": 2.0}}}
CB: Settings = {"objective": {"weighting": "class_balanced"}}
CB_OF_ITEMS: Settings = {"objective": {"weighting": {"kind": "class_balanced", "mode": "mean_weight"}}}
"""An item has the weight of its class, as its authors have it where items have one class each."""
LDAM_DRW: Settings = {
    "objective": {
        "loss": {"kind": "ldam", "softmax": True},
        "weighting": {"kind": "class_balanced", "start": 161},
    },
    "model": {"head": "cosine"},
    "evaluate": {"calibration": "auto"},
}


def _with_and_without(masked: Settings, per_class: int) -> tuple[Row, ...]:
    """The eight rows of Tables 1 and 2: four methods, and PLM on top of each."""
    undersampled: Settings = {"train": {"sampler": {"kind": "undersample", "per_class": per_class}}}
    methods: dict[str, Settings] = {"BCE": {}, "Focal": FOCAL, "CB": CB, "Undersampling": undersampled}
    alone = (Row(name, settings) for name, settings in methods.items())
    on_top = (Row(f"{name} + PLM", merged(settings, masked)) for name, settings in methods.items())
    return (*alone, *on_top)


MULTI_MNIST = _with_and_without(plm(rate=0.01), 500)
ON_COCO = _with_and_without(plm(rate=0.01, clip=(0.0, 1.0)), 1000)


def multi_mnist(job: Job, rows: Sequence[Row], drawn: bool = False) -> Result:
    """Run rows on MultiMNIST, which every seed draws anew where `drawn`."""
    whole = study(
        job,
        base_of("multimnist-plm"),
        rows,
        lambda _, seed: open_multi_mnist(job, seed if drawn else DRAW),
        decisions_of_3,
        (*decision_columns(5, 3), "0-1"),
        seeded_data=drawn,
    )
    return rarest_apart(whole, (5, 3))


def coco(job: Job, rows: Sequence[Row]) -> Result:
    """Run rows on COCO 2014: on its photographs, or on features of them where those alone are there."""
    base, open_data = base_of("coco-plm"), partial(open_coco, job)
    if not has_coco(job.data_root):
        base, open_data = over_features(base), partial(COCO_FEATURES.open, job.data_root)
    columns = (*decision_columns(20, 10), "0-1")
    return rarest_apart(study(job, base, rows, lambda *_: open_data(), decisions_of_10, columns), (20, 10))


def over_features(base: Settings) -> Settings:
    """Return the settings for a linear layer over features, trained for as many epochs: in each the ratios move."""
    alone = {name: part for name, part in base.items() if name not in ("optimizer", "schedule")}
    return merged(COCO_FEATURES.over(alone), {"train": {"epochs": base["train"]["epochs"]}})


def cifar(job: Job, n_classes: int, rows: Sequence[Row]) -> Result:
    """Run rows on the long tails of CIFAR-10 or CIFAR-100 whose ρ they name."""
    columns = ("error", "error of the K rarest")
    return study(
        job, base_of("cifar10-lt-plm"), rows, lambda rho, _: open_cifar(job, n_classes, float(rho)), errors, columns
    )


def rhos_of(job: Job) -> tuple[int, ...]:
    """Return the ρ of Tables 3 and 4."""
    return RHOS[-1:] if job.smoke else RHOS


def cifar_rows(rate: float, rhos: Sequence[int], named: bool = True) -> tuple[Row, ...]:
    """Return the rows of Tables 3 and 4: six methods for each ρ, which the name of a row says where `named`."""
    methods: dict[str, Settings] = {
        "BCE": {},
        "Focal": FOCAL,
        "CB": CB_OF_ITEMS,
        "LDAM-DRW": LDAM_DRW,
        "BCE + PLM": plm(rate=rate),
        "Focal + PLM": merged(FOCAL, plm(rate=rate)),
    }
    return tuple(
        Row(f"{name}, ρ {rho}" if named else name, settings, str(rho), 0 if rho in SEVERAL_SEEDS else 1)
        for rho in rhos
        for name, settings in methods.items()
    )


def chosen(rows: Sequence[Row], names: Sequence[str]) -> tuple[Row, ...]:
    """Return the rows of these names."""
    return tuple(row for row in rows if row.name in names)
