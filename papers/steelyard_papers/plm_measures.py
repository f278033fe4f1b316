"""What the PLM paper measures: decisions at one half, errors of the most probable class, distributions of outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from steelyard.metrics import exact_match, precision_recall_f1, rarest_labels
from steelyard_papers.result import Result, RunResult
from steelyard_papers.study import Measured
from steelyard_papers.trial import Trial

RATIOS = ("precision", "recall", "F1")
_BINS = 10


def decision_columns(*rarest: int) -> tuple[str, ...]:
    """Return the columns of Tables 1 and 2 but the last: means over the classes and over the `rarest` of them."""
    names = ["precision", *_apart("recall", rarest), *_apart("F1", rarest)]
    return tuple(names)


def _apart(name: str, rarest: Sequence[int]) -> list[str]:
    return [name, *(f"{name} of the {k} rarest" for k in rarest)]


def rarest_apart(result: Result, rarest: Sequence[int]) -> Result:
    """Return the runs with recall and F1 of their `rarest` classes, from what was measured class by class."""
    counts = next((run.details["counts"] for row in result.rows for run in row.runs if "counts" in run.details), None)
    if counts is None:
        return replace(result, columns=tuple(column for column in result.columns if column in _values(result)))
    rare = {k: rarest_labels(np.array(counts), k) for k in rarest}

    def more(run: RunResult) -> RunResult:
        apart = {
            f"{name} of the {k} rarest": float(np.mean(np.array(run.details[name])[at]))
            for name in ("recall", "F1")
            for k, at in rare.items()
        }
        return replace(run, values={**run.values, **apart})

    return replace(result, rows=tuple(replace(row, runs=tuple(map(more, row.runs))) for row in result.rows))


def _values(result: Result) -> set[str]:
    return {name for row in result.rows for run in row.runs for name in run.values}


def decisions_of_3(trial: Trial) -> Measured:
    """Measure σ(z) ≥ ½, the three rarest classes apart, and the items that are all right."""
    return _decisions(trial, 3)


def decisions_of_10(trial: Trial) -> Measured:
    """Measure σ(z) ≥ ½, the ten rarest classes apart, and the items that are all right."""
    return _decisions(trial, 10)


def errors(trial: Trial) -> Measured:
    """Measure the most probable class, the rarer half of the classes apart, in per cent of wrong items."""
    truth, said = trial.targets.float().argmax(1), trial.logits.argmax(1)
    wrong = (truth != said).double()
    half = torch.from_numpy(rarest_labels(trial.counts, len(trial.names) // 2).copy())
    rare = torch.isin(truth, half)
    accuracy = [_share(1 - wrong[truth == c]) for c in range(len(trial.names))]
    values = {"error": _share(wrong), "error of the K rarest": _share(wrong[rare])}
    return Measured(values, {"accuracy": accuracy}, _drawn(trial))


def _decisions(trial: Trial, k: int) -> Measured:
    decided = torch.sigmoid(trial.logits) >= 0.5
    found = precision_recall_f1(decided, trial.targets)
    by_class = {name: (100 * getattr(found, name.lower()).double()).tolist() for name in RATIOS}
    rare = rarest_labels(trial.counts, k)
    values: dict[str, float | None] = {name: float(np.mean(by_class[name])) for name in RATIOS}
    values |= {f"{name} of the {k} rarest": float(np.mean(np.array(by_class[name])[rare])) for name in RATIOS}
    values["0-1"] = 100 * float(exact_match(decided, trial.targets))
    ratios = [record["plm_ratio"] for record in trial.history if "plm_ratio" in record]
    return Measured(values, by_class, _drawn(trial) | {"ratios": ratios})


def _drawn(trial: Trial) -> dict[str, Any]:
    """Names and counts, and the distributions of outputs of each class."""
    p = torch.sigmoid(trial.logits)
    return {
        "names": list(trial.names),
        "counts": trial.counts.tolist(),
        "data_ratio": (trial.counts / (trial.n_known - trial.counts)).tolist(),
        "positives": _histograms(p, trial.targets == 1),
        "negatives": _histograms(p, trial.targets == 0),
    }


def _histograms(p: Tensor, among: Tensor) -> list[list[float]]:
    """The share of a class's outputs in each of ten equal bins of [0, 1], (L, 10); zeros of a class without any."""
    spot = (p.double() * _BINS).long().clamp(0, _BINS - 1)
    counts = torch.zeros(p.shape[1], _BINS, dtype=torch.float64)
    for c in range(p.shape[1]):
        counts[c] = torch.bincount(spot[among[:, c], c], minlength=_BINS)
    shares = counts / counts.sum(1, keepdim=True).clamp_min(1)
    return [[round(share, 5) for share in row] for row in shares.tolist()]


def _share(values: Tensor) -> float | None:
    """The mean in per cent, None of nothing."""
    return 100 * float(values.mean()) if len(values) else None
