"""Measures beyond those of an `Evaluator`: decisions that vary by fold, σ for comparison, accuracy by argmax."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from steelyard.labels.targets import UNKNOWN
from steelyard.metrics import (
    PrecisionRecallF1,
    brier,
    calibration_error,
    exact_match,
    hamming_loss,
    jaccard,
    log_loss,
    precision_recall_f1,
)
from steelyard.metrics.bootstrap import divide, interval, resample_weights, weighted_mean, weighted_sums
from steelyard.metrics.calibration import cross_entropy
from steelyard.metrics.decisions import exact_matches, ratios
from steelyard.metrics.summary import plain

Groups: TypeAlias = Mapping[str, Mapping[str, NDArray[Any]]]

_RATIOS = ("precision", "recall", "f1")
_OF_DECISIONS = frozenset({"macro", "micro", "exact_match", "hamming_loss", "jaccard", *_RATIOS})
_OF_PROBABILITIES = frozenset(
    {"brier", "log_loss", "impossible", "calibration", "ace", "mce", "ece", "by_chance", "threshold"}
)


def decision_scores(decisions: Tensor, targets: Tensor) -> dict[str, Any]:
    """Return macro and micro precision, recall and F1 of decisions (N, L), and the share of exact matches."""
    if len(targets) == 0:
        return {"macro": None, "micro": None, "exact_match": None, "hamming_loss": None}
    return {
        **_averages(precision_recall_f1(decisions, targets)),
        "exact_match": number(exact_match(decisions, targets)),
        "hamming_loss": number(hamming_loss(decisions, targets)),
    }


def redecide(
    report: dict[str, Any], decisions: Tensor, targets: Tensor, groups: Groups, resamples: int = 0, seed: int = 0
) -> None:
    """Replace an evaluator's numbers by those of decisions (N, L); intervals are those of F1 and exact match."""
    report.update(decision_scores(decisions, targets))
    by_label = precision_recall_f1(decisions, targets)
    wrong, shared = hamming_loss(decisions, targets, "label"), jaccard(decisions, targets)
    for c, row in enumerate(report["per_label"]):
        row.update({name: float(getattr(by_label, name)[c]) for name in _RATIOS})
        row.update(hamming_loss=number(float(wrong[c])), jaccard=float(shared[c]))
    for kind, members in groups.items():
        for name, index in members.items():
            if len(index):
                columns = torch.from_numpy(np.asarray(index))
                some = decisions[:, columns], targets[:, columns]
                report[kind][name].update(_averages(precision_recall_f1(*some)))
                report[kind][name]["hamming_loss"] = number(hamming_loss(*some))
    if "intervals" in report:
        report["intervals"] = without(report["intervals"], _OF_DECISIONS, drop=True)
        _add_decision_intervals(report, decisions, targets, groups, resample_weights(len(targets), resamples, seed))


def _add_decision_intervals(
    report: dict[str, Any], decisions: Tensor, targets: Tensor, groups: Groups, weights: NDArray[Any]
) -> None:
    """Add bootstrap intervals of macro F1, of all labels and of groups, and of the items with all labels right."""
    intervals = report["intervals"]
    known, present = (targets != UNKNOWN).numpy(), (targets >= 0.5).numpy()
    decided = decisions.bool().numpy() & known
    counted = (decided & present, decided, present)
    f1 = ratios(*(torch.from_numpy(weighted_sums(weights, x)) for x in counted))[2].numpy()

    def between(value: float | None, draws: NDArray[Any]) -> list[float | None]:
        ends = interval(math.nan if value is None else value, draws, intervals["confidence"])
        return [number(end) for end in ends]

    intervals["macro"] = {"f1": between(report["macro"]["f1"], f1.mean(1))}
    matches = weighted_mean(weights, exact_matches(decisions, targets).numpy())
    intervals["exact_match"] = between(report["exact_match"], matches)
    for kind, members in groups.items():
        for name, index in members.items():
            if len(index) and name in intervals.get(kind, {}):
                value = report[kind][name]["macro"]["f1"]
                intervals[kind][name]["macro"] = {"f1": between(value, f1[:, index].mean(1))}


def log_loss_interval(p: Tensor, targets: Tensor, resamples: int, confidence: float = 0.95) -> list[float | None]:
    """Return a bootstrap interval of the log-loss of known labels, the mean over labels."""
    weights = resample_weights(len(targets), resamples, 0)
    known = targets != UNKNOWN
    cost = torch.where(known, cross_entropy(p.double(), torch.where(known, targets, 0).double()), 0.0)
    sums, n = (weighted_sums(weights, x.numpy()) for x in (cost, known))
    value = float((cost.sum(0) / known.sum(0))[known.any(0)].mean())
    draws = divide(sums, n)[:, known.any(0).numpy()]
    return [number(end) for end in interval(value, np.nanmean(draws, axis=1), confidence, share=False)]


def rank(report: dict[str, Any], ranked: Mapping[str, Any]) -> None:
    """Replace what tells how labels rank items by what `ranked`, an evaluator's numbers of other scores, tells."""
    for name in ("label", "labels_left_out"):
        report["mAP"][name] = ranked["mAP"][name]
    report["auroc"] = ranked["auroc"]
    for row, other in zip(report["per_label"], ranked["per_label"], strict=True):
        row.update({name: other[name] for name in ("average_precision", "auroc")})
    for kind in ("groups", "rarest"):
        for name, part in report.get(kind, {}).items():
            part.update({key: ranked[kind][name][key] for key in ("mAP", "auroc")})
    if "intervals" in report:
        intervals, other = report["intervals"], ranked["intervals"]
        intervals["mAP"]["label"], intervals["per_label"] = other["mAP"]["label"], other["per_label"]
        for kind in ("groups", "rarest"):
            for name, part in intervals.get(kind, {}).items():
                part["mAP"] = other[kind][name]["mAP"]


def without_probabilities(report: dict[str, Any]) -> dict[str, Any]:
    """Return an evaluator's numbers with None for all that needs probabilities: rankings alone are left."""
    ranked: dict[str, Any] = without(report, _OF_DECISIONS | _OF_PROBABILITIES)
    return ranked


def without(tree: Any, names: frozenset[str], drop: bool = False) -> Any:
    """Return nested dicts and lists with the values of these names replaced by None, or dropped."""
    if isinstance(tree, list):
        return [without(entry, names, drop) for entry in tree]
    if not isinstance(tree, dict):
        return tree
    kept = {key: None if key in names else without(value, names, drop) for key, value in tree.items()}
    return {key: value for key, value in kept.items() if not (drop and key in names)}


def probability_scores(p: Tensor, targets: Tensor, bins: int) -> dict[str, Any]:
    """Return Brier score, log-loss and calibration errors of probabilities (N, L)."""
    if len(targets) == 0 or not bool((targets != -1).any()):
        return {"brier": None, "log_loss": None, "calibration": None}
    pooled, label = (calibration_error(p, targets, bins, per=per) for per in ("pooled", "label"))
    names = ("ace", "mce", "ece")
    return {
        "brier": number(brier(p, targets)),
        "log_loss": number(log_loss(p, targets)),
        "calibration": {
            "pooled": {name: number(getattr(pooled, name)) for name in names},
            "label": {name: number(float(getattr(label, name).nanmean())) for name in names},
        },
    }


def single_label_scores(
    probabilities: Tensor, logits: Tensor, targets: Tensor, rarest: Mapping[str, NDArray[Any]]
) -> dict[str, Any]:
    """Return the accuracy and error of the most probable label, on all items with one positive and by the rarest.

    Of labels with equal η the one of the larger logit is taken. `by_logit` is the accuracy of the largest logit, which
    ignores the frequencies of labels.

    Args:
        probabilities, logits: η and z, (N, L).
        targets: (N, L); items without exactly one known positive are left out.
        rarest: labels by the name of a group, "3" for the three rarest; items of those labels are theirs.
    """
    one = (targets >= 0.5).sum(1) == 1
    eta, z, truth = probabilities[one], logits[one], targets[one].float().argmax(1)
    top = eta == eta.amax(1, keepdim=True) if len(eta) else eta.bool()
    right = torch.where(top, z, -torch.inf).argmax(1) == truth if len(eta) else truth.bool()
    by_logit = z.argmax(1) == truth if len(eta) else truth.bool()

    def accuracy(among: Tensor) -> dict[str, Any]:
        n = int(among.sum())
        share = float(right[among].double().mean()) if n else math.nan
        return {"items": n, "accuracy": number(share), "error": number(1 - share)}

    return {
        **accuracy(torch.ones_like(right)),
        "items_left_out": int((~one).sum()),
        "by_logit": number(float(by_logit.double().mean())),
        "rarest": {
            name: accuracy(torch.isin(truth, torch.from_numpy(np.asarray(index)))) for name, index in rarest.items()
        },
    }


def number(value: float) -> float | None:
    """Return a number, None where JSON has none for it."""
    return float(value) if math.isfinite(value) else None


def _averages(scores: PrecisionRecallF1) -> dict[str, Any]:
    averages: dict[str, Any] = plain({"macro": asdict(scores.macro), "micro": asdict(scores.micro)})
    return averages
