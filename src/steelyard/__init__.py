"""Steelyard: multi-label learning on real data, with probabilities that mean what they say."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from steelyard import (
        annotation,
        balance,
        calibrate,
        data,
        integrations,
        labels,
        losses,
        metrics,
        models,
        objective,
        report,
        run,
        search,
        training,
    )
    from steelyard.annotation.command import audit
    from steelyard.annotation.next_cells import next_to_annotate
    from steelyard.labels import UNKNOWN, Labels
    from steelyard.objective import Objective
    from steelyard.run.api import Run, fit
    from steelyard.run.sklearn import SteelyardClassifier

__version__ = "0.1.0"
__all__ = [
    "UNKNOWN",
    "Labels",
    "Objective",
    "Run",
    "SteelyardClassifier",
    "annotation",
    "audit",
    "balance",
    "calibrate",
    "data",
    "fit",
    "integrations",
    "labels",
    "losses",
    "metrics",
    "models",
    "next_to_annotate",
    "objective",
    "report",
    "run",
    "search",
    "training",
]

_HOMES = {
    "UNKNOWN": "labels",
    "Labels": "labels",
    "Objective": "objective",
    "Run": "run.api",
    "SteelyardClassifier": "run.sklearn",
    "audit": "annotation.command",
    "fit": "run.api",
    "next_to_annotate": "annotation.next_cells",
}


def __getattr__(name: str) -> Any:
    """Import a module, or a name from its module, on first use: `steelyard --help` needs none of them."""
    if name in _HOMES:
        return getattr(import_module(f"steelyard.{_HOMES[name]}"), name)
    if name in __all__:
        return import_module(f"steelyard.{name}")
    raise AttributeError(f"module 'steelyard' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
