"""The rows of the Distribution-Balanced paper's tables and figures: what each of them trains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from steelyard.objective.parts import Part
from steelyard_papers.findings import Claim, Difference
from steelyard_papers.result import on
from steelyard_papers.sources import COCO_MLT, VOC_MLT, Source
from steelyard_papers.study import Row

_BATCH, _WARM_UP = 32, 500


class Constants(NamedTuple):
    """The paper's constants for one data set."""

    mu: float
    lam: float
    beta: float
    """Of CB-Focal."""
    n_items: int
    """Of its published split, by which warm-up iterations are epochs."""
    most: int
    """Positives of the first label that the split was made for."""
    recipe: str
    size: int
    """Pixels of a side here: the paper's 224, or more where a run takes less than a minute."""


CONSTANTS = {
    VOC_MLT.name: Constants(0.3, 5.0, 0.99, 1142, 800, "voc-mlt-db", 256),
    COCO_MLT.name: Constants(0.2, 2.0, 0.9, 1909, 1200, "coco-mlt-db", 224),
}


def _plain(source: Source) -> dict[str, Any]:
    """80 epochs over all items, as every row without re-sampling."""
    warm_up = _WARM_UP * _BATCH / CONSTANTS[source.name].n_items
    return {
        "schedule": {"milestones": [55, 70], "warmup_epochs": warm_up},
        "train": {"epochs": 80, "sampler": {"kind": "shuffle"}},
    }


def _loss(kind: str, **arguments: Any) -> dict[str, Any]:
    return {"loss": Part(kind, arguments)}


def _balanced(source: Source, **changed: Any) -> dict[str, Any]:
    """The loss of the paper, with the shift as released; `changed` takes parts of it away."""
    c = CONSTANTS[source.name]
    arguments = {"alpha": 0.1, "beta": 10.0, "mu": c.mu, "lam": c.lam, "kappa": 0.05, "gamma": 2.0, "as_released": True}
    return _loss("distribution_balanced", **(arguments | changed))


def _tolerant(source: Source, **changed: Any) -> dict[str, Any]:
    """Its negative-tolerant part alone."""
    arguments = {"lam": CONSTANTS[source.name].lam, "kappa": 0.05, "as_released": True}
    return _loss("negative_tolerant", **(arguments | changed))


def _class_balanced(source: Source) -> dict[str, Any]:
    beta = CONSTANTS[source.name].beta
    return {"weighting": Part("class_balanced", {"beta": beta, "mode": "mean_effective"})}


_BCE = _loss("bce")
_FOCAL = _loss("focal", gamma=2.0, scale=2.0)
_INVERSE = {"weighting": Part("inverse_frequency")}
_UNSHIFTED = {"lam": 1.0, "kappa": 0.0}
_OLTR = {"model": {"head": "oltr", "dropout": 0.0, "reachability": 10.0}, "optimizer": {"lr": 0.1, "backbone_lr": 0.1}}
"""With the rates and the factor of the reachability that its authors released, and without dropout, as theirs."""


def _row(name: str, objective: Mapping[str, Any], *others: Mapping[str, Any]) -> Row:
    """A row: its objective, and what else it changes of a training with re-sampling."""
    changed: dict[str, Any] = {"objective": dict(objective)}
    for other in others:
        for section, content in other.items():
            changed[section] = {**changed.get(section, {}), **content}
    return Row(name, changed)


def rows(source: Source) -> tuple[Row, ...]:
    """Return the rows of Table 1."""
    plain = _plain(source)
    return (
        _row("ERM", _BCE, plain),
        _row("RW", _BCE | _INVERSE, plain),
        _row("Focal", _FOCAL, plain),
        _row("RS", _BCE),
        _row("RS-Focal", _FOCAL),
        _row("ML-GCN", _BCE, plain, {"model": {"head": "ml_gcn"}}),
        _row("OLTR", _BCE, plain, _OLTR),
        _row("LDAM", _loss("ldam"), plain),
        _row("CB-Focal", _FOCAL | _class_balanced(source), plain, {"optimizer": {"lr": 0.1}}),
        _row("R-BCE", _balanced(source, gamma=0.0, **_UNSHIFTED)),
        _row("R-BCE-Focal", _balanced(source, **_UNSHIFTED)),
        _row("DB", _balanced(source, gamma=0.0)),
        _row("DB-Focal", _balanced(source)),
    )


ON_COCO = ("ERM", "RS", "RS-Focal", "R-BCE-Focal", "DB", "DB-Focal")
"""The rows of Table 1 that are run on COCO-MLT, whose trainings take the longest; others where they are asked for."""


def weighted(source: Source) -> tuple[Row, ...]:
    """Return the rows of Table 2: re-sampling with weights."""
    own = {row.name: row for row in rows(source)}
    return (
        own["RS"],
        own["RS-Focal"],
        _row("RS+RW-Focal", _FOCAL | _INVERSE),
        _row("RS+CB-Focal", _FOCAL | _class_balanced(source), {"optimizer": {"lr": 0.1}}),
        own["R-BCE-Focal"],
    )


def combinations(source: Source) -> tuple[Row, ...]:
    """Return the parts of the method combined: re-sampling, weights, the negative-tolerant form, the focal factor."""
    plain = _plain(source)
    own = {row.name: row for row in rows(source)}
    return (
        own["ERM"],
        own["RS"],
        _row("RS + RW", _BCE | _INVERSE),
        _row("RS + CB", _BCE | _class_balanced(source)),
        _row("R-BCE without RS", _balanced(source, gamma=0.0, **_UNSHIFTED), plain),
        own["R-BCE"],
        _row("NT-BCE without RS", _tolerant(source), plain),
        _row("NT-BCE", _tolerant(source)),
        _row("DB without RS", _balanced(source, gamma=0.0), plain),
        own["DB"],
        own["Focal"],
        own["RS-Focal"],
        own["R-BCE-Focal"],
        _row("NT-Focal", _tolerant(source, gamma=2.0)),
        own["DB-Focal"],
        _row("DB-Focal, the formula", _balanced(source, as_released=False)),
    )


STEPS = ("ERM", "RS", "R-BCE", "DB")
"""From plain training to the whole method, as Figure 6 takes them."""

SWEEPS: dict[str, dict[str, tuple[str, tuple[float, ...]]]] = {
    "db-fig7": {"β": ("beta", (1.0, 5.0, 10.0, 20.0, 50.0)), "λ": ("lam", (1.0, 2.0, 3.0, 5.0, 10.0))},
    "db-fig10": {"μ": ("mu", (0.1, 0.2, 0.3, 0.4, 0.5)), "κ": ("kappa", (0.0, 0.02, 0.05, 0.1, 0.2))},
}
"""The constants that a figure varies, and their values; the others are the paper's."""


def sweep(name: str, source: Source) -> tuple[Row, ...]:
    """Return the rows of a figure of `SWEEPS`: DB-Focal with one constant after another changed."""
    return tuple(
        _row(f"{symbol} = {value:g}", _balanced(source, **{argument: value}))
        for symbol, (argument, values) in SWEEPS[name].items()
        for value in values
    )


def _better(row: str, over: str, *sources: Source, table: str = "db-table1") -> tuple[Difference, ...]:
    """That a row is better than another over all labels and over those of the tail, on each of the data sets."""
    columns = [on(column, source.name) for source in sources for column in ("mAP", "mAP tail")]
    return tuple(Difference(table, row, over, column) for column in columns)


_MIDDLE, _BEST = ("RS", "RS-Focal", "R-BCE"), ("DB", "DB-Focal")
CLAIMS = (
    Claim(
        "DB-Focal is above plain training, over all labels and over those of the tail",
        _better("DB-Focal", "ERM", VOC_MLT, COCO_MLT),
    ),
    Claim("Re-sampling by class is above plain training", _better("RS", "ERM", VOC_MLT, COCO_MLT)),
    Claim(
        "Re-balanced weights add to re-sampling",
        (*_better("R-BCE", "RS", VOC_MLT), *_better("R-BCE-Focal", "RS-Focal", VOC_MLT, COCO_MLT)),
    ),
    Claim(
        "Tolerance of negatives adds to re-balanced weights",
        (*_better("DB", "R-BCE", VOC_MLT), *_better("DB-Focal", "R-BCE-Focal", VOC_MLT, COCO_MLT)),
    ),
    Claim(
        "Re-balanced weights suit re-sampling better than weights of the classes do",
        (
            *_better("R-BCE-Focal", "RS+RW-Focal", VOC_MLT, table="db-table2"),
            *_better("R-BCE-Focal", "RS+CB-Focal", VOC_MLT, table="db-table2"),
        ),
    ),
    Claim(
        "Plain training is below re-sampling, R-BCE or not, and that below both forms of DB, each step by itself",
        (
            *(one for row in _MIDDLE for one in _better(row, "ERM", VOC_MLT)),
            *(one for row in _BEST for over in _MIDDLE for one in _better(row, over, VOC_MLT)),
        ),
    ),
)
"""The main claims of the paper, and last the order of its rows that is to be seen on VOC-MLT."""
