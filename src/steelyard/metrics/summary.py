"""Every metric of a store of items, as one nested dict."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from steelyard._arrays import Array, slices
from steelyard.metrics import bootstrap as boot
from steelyard.metrics.calibration import (
    CalibrationErrors,
    bin_sums,
    cross_entropy,
    error_by_chance,
    from_sums,
    label_mass_edges,
    label_sums,
    squared_error,
    width_edges,
)
from steelyard.metrics.decisions import averages, exact_matches, overlap, ratios
from steelyard.metrics.groups import label_groups, mean_defined, rarest_labels
from steelyard.metrics.inputs import Pair, positive, probable
from steelyard.metrics.ordered import TOP, auroc, item_measures, item_names, propensities
from steelyard.metrics.ranking import average_precision
from steelyard.metrics.store import Store, mass_edges

_LABELS_AT_ONCE = 16


@dataclass(frozen=True)
class Summary:
    """The settings of one computation over a store; `compute` does it."""

    store: Store
    names: tuple[str, ...]
    counts: Array | None
    bins: int
    threshold: Array
    rarest: Sequence[int]
    head: int
    tail: int
    training_items: int

    def compute(self, resamples: int, confidence: float, seed: int) -> dict[str, Any]:
        """Return the report; items are taken in their canonical order, so that it depends on nothing else."""
        order = self.store.canonical_order()
        weights = boot.resample_weights(len(order), resamples if len(order) else 0, seed)
        labels = _LabelSums(self, order, weights)
        items = _ByItem(self, order, weights)
        report = {
            "items": len(order),
            "labels": self.store.n_labels,
            "known": int(labels.known.sum()),
            "unknown": len(order) * self.store.n_labels - int(labels.known.sum()),
            "positives": int(labels.support.sum()),
            "threshold": self.threshold.tolist(),
            "mAP": {
                **_named_mean("label", "labels_left_out", labels.ap),
                **_named_mean("item", "items_left_out", items.ap),
            },
            "auroc": _named_mean("label", "labels_left_out", labels.auroc),
            **items.ordered(),
            **_decision_report(labels.true, labels.predicted, labels.support),
            "hamming_loss": _over(labels.wrong.sum(), labels.known.sum()),
            "exact_match": mean_defined(items.match).value,
            "exact_match_items_left_out": mean_defined(items.match).left_out,
            "brier": _over(labels.square.sum(), labels.known.sum()),
            "log_loss": _over(labels.log.sum(), labels.known.sum()),
            "impossible": int(labels.impossible.sum()),
            "calibration": {
                "pooled": {"width": _error(labels.pooled_width), "mass": _error(labels.pooled_mass)},
                "label": {"width": _mean_error(labels.width), "mass": _mean_error(labels.mass)},
            },
            "per_label": list(labels.rows()),
        }
        groups = self._groups()
        for kind, members in groups.items():
            report[kind] = {name: labels.part(index) for name, index in members.items()}
        if len(weights):
            draws = {**labels.draws(groups), **items.draws()}
            draws["mAP"] = {"label": labels.ranked(), **draws["mAP"]}
            intervals = _intervals(draws, report, confidence)
            report["intervals"] = {"confidence": confidence, "resamples": resamples, **intervals}
        made: dict[str, Any] = plain(report)
        return made

    def _groups(self) -> dict[str, dict[str, Array]]:
        if self.counts is None:
            return {}
        return {
            "groups": label_groups(self.counts, self.head, self.tail),
            "rarest": {str(k): rarest_labels(self.counts, k) for k in self.rarest},
        }

    def decide(self, scores: Array, labels: slice) -> Array:
        """Return scores ≥ threshold, the threshold rounded as the kept scores are."""
        limit = self.threshold if self.threshold.ndim == 0 else self.threshold[labels]
        return np.asarray(scores >= limit.astype(self.store.dtype).astype(np.float32))

    def width_edges(self) -> Tensor:
        """Return the edges of bins of equal width, rounded as the kept scores are."""
        return width_edges(self.bins, torch.from_numpy(np.empty(0, self.store.dtype)))


class _LabelSums:
    """Sums over items for each label, a few labels at a time."""

    def __init__(self, plan: Summary, order: Array, weights: Array) -> None:
        self.plan = plan
        n_labels, bins, resamples = plan.store.n_labels, plan.bins, len(weights)
        self.ap, self.auroc, self.square, self.log = (np.empty(n_labels) for _ in range(4))
        self.true, self.predicted, self.support, self.known, self.impossible = np.empty((5, n_labels), np.int64)
        self.ap_draws = np.empty((resamples, n_labels))
        self.count_draws = np.empty((3, resamples, n_labels))
        wide_edges = plan.width_edges()
        pooled_edges = wide_edges.clone()
        if not np.isnan(inner := mass_edges(bins, plan.store.known)).any():
            pooled_edges[1:-1] = torch.from_numpy(inner)
        width, pooled_mass, label_mass = torch.empty(3, 3, n_labels, bins, dtype=torch.float64)
        for start in range(0, n_labels, _LABELS_AT_ONCE):
            labels = slice(start, start + _LABELS_AT_ONCE)
            scores, targets = (column[order] for column in plan.store.columns(labels))
            scores = scores.astype(np.float32, copy=False)
            pair = probable(scores, targets)
            self.ap[labels] = average_precision(scores, targets)
            self.auroc[labels] = auroc(scores, targets)
            self._count(labels, scores, pair, weights)
            (self.known[labels], self.square[labels]), (_, self.log[labels]) = (
                label_sums(pair, cell).numpy() for cell in (squared_error, cross_entropy)
            )
            width[:, labels], pooled_mass[:, labels] = bin_sums(pair, wide_edges), bin_sums(pair, pooled_edges)
            label_mass[:, labels] = bin_sums(pair, label_mass_edges(bins, pair.values, pair.known))
        self.width, self.mass = (from_sums(x, torch.empty(0)) for x in (width, label_mass))  # edges are not reported
        self.width_sums, self.wide_edges = width, wide_edges
        self.pooled_width = from_sums(width.sum(1), wide_edges)
        self.pooled_mass = from_sums(pooled_mass.sum(1), pooled_edges)

    def _count(self, labels: slice, scores: Array, pair: Pair, weights: Array) -> None:
        """Count decisions, and draw the resamples of what is ranked and decided."""
        hit = positive(pair.targets).numpy()
        known = pair.mask.numpy()
        predicted = self.plan.decide(scores, labels) & known
        counted = (predicted & hit, predicted, hit)
        self.true[labels], self.predicted[labels], self.support[labels] = (x.sum(0) for x in counted)
        t = pair.targets.numpy()
        # scores of unknown labels are kept as 0
        self.impossible[labels] = ((scores == 0) & (t > 0) | (scores == 1) & (t < 1)).sum(0)
        if len(weights):
            self.count_draws[:, :, labels] = [boot.weighted_sums(weights, x) for x in counted]
            for j in range(hit.shape[1]):
                draws = boot.weighted_average_precision(scores[:, j], hit[:, j], known[:, j], weights)
                self.ap_draws[:, labels.start + j] = draws
            self.ap_draws[:, labels] = boot.widened(self.ap_draws[:, labels], self.support[labels])

    @property
    def wrong(self) -> Array:
        """Known cells of each label that are decided wrongly."""
        wrong: Array = self.predicted + self.support - 2 * self.true
        return wrong

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the report of each label."""
        decided = _ratios(self.true, self.predicted, self.support)
        for j, name in enumerate(self.plan.names):
            yield {
                "name": name,
                "training_positives": None if self.plan.counts is None else self.plan.counts[j].item(),
                "positives": self.support[j],
                "known": self.known[j],
                "average_precision": self.ap[j],
                "auroc": self.auroc[j],
                **{name: x[j] for name, x in decided.items()},
                "hamming_loss": _over(self.wrong[j], self.known[j]),
                "brier": _over(self.square[j], self.known[j]),
                "log_loss": _over(self.log[j], self.known[j]),
                **{name: float(getattr(self.width, name)[j]) for name in ("ace", "mce", "ece")},
            }

    def part(self, index: Array) -> dict[str, Any]:
        """Return the report of some labels; calibration errors are those of their cells pooled."""
        error = from_sums(self.width_sums[:, torch.from_numpy(np.asarray(index))].sum(1), self.wide_edges)
        return {
            "labels": len(index),
            **_named_mean("mAP", "labels_left_out", self.ap[index]),
            "auroc": mean_defined(self.auroc[index]).value,
            "hamming_loss": _over(self.wrong[index].sum(), self.known[index].sum()),
            **_decision_report(self.true[index], self.predicted[index], self.support[index]),
            "brier": _over(self.square[index].sum(), self.known[index].sum()),
            "log_loss": _over(self.log[index].sum(), self.known[index].sum()),
            **{name: float(getattr(error, name)) for name in ("ace", "mce", "ece")},
            "by_chance": error_by_chance(error.bins)._asdict(),
        }

    def draws(self, groups: dict[str, dict[str, Array]]) -> dict[str, Any]:
        """Return the resamples of what is averaged over labels, by the path the metric has in the report.

        Macro precision and recall have none: a label without a decision, or without a positive, counts 0 there, so that
        they jump with single items, and resamples of few items do not cover them.
        """

        def averages(index: Array) -> dict[str, Any]:
            true, predicted, support = self.count_draws[:, :, index]
            return {
                "macro": {"f1": _ratios(true, predicted, support)["f1"].mean(1)},
                "micro": _ratios(true.sum(1), predicted.sum(1), support.sum(1)),
            }

        return {
            **averages(np.arange(self.plan.store.n_labels)),
            "per_label": [{"average_precision": v} for v in self.ap_draws.T],
            **{
                kind: {name: {"mAP": self.ranked(i), **averages(i)} for name, i in members.items() if len(i)}
                for kind, members in groups.items()
            },
        }

    def ranked(self, index: Array | slice = slice(None)) -> Array:
        """Return the mAP of some labels in every resample."""
        return np.array([mean_defined(row).value for row in self.ap_draws[:, index]])


class _ByItem:
    """The measures of each item: its ranking, whether all its decisions are right, its losses."""

    def __init__(self, plan: Summary, order: Array, weights: Array) -> None:
        n_labels, self.weights = plan.store.n_labels, weights
        every, end = slice(0, n_labels), 0
        # room for all at once: small results kept between large temporary ones would tear the heap to pieces
        p = None if plan.counts is None or plan.training_items < 3 else propensities(plan.counts, plan.training_items)
        shapes = ((), (), (len(item_names(p)),), *(((2,), (2,)) if len(weights) else ()))
        columns = [np.empty((len(order), *shape)) for shape in shapes]
        for block_scores, block_targets in plan.store.blocks():
            for rows in slices(block_scores.shape, 1 << 20):
                scores, targets = block_scores[rows].astype(np.float32), block_targets[rows]
                row = [
                    average_precision(scores, targets, per="item"),
                    exact_matches(plan.decide(scores, every), targets).numpy(),
                    item_measures(scores, targets, p),
                ]
                if len(weights):
                    row += _item_sums(probable(scores, targets))
                for column, part in zip(columns, row, strict=True):
                    column[end : end + len(scores)] = part
                end += len(scores)
        self.ap, self.match, orders, *self.sums = (column[order] for column in columns)
        self.orders = dict(zip(item_names(p), orders.T, strict=True))

    def ordered(self) -> dict[str, Any]:
        """Return ranking loss, coverage error, and P@k, nDCG@k and PSP@k."""
        top: dict[str, float] = {}
        for k in TOP:
            top |= {name: mean_defined(self.orders[name]).value for name in (f"p@{k}", f"ndcg@{k}")}
            gained, best = (self.orders.get(f"{name}@{k}", np.zeros(0)).sum() for name in ("psp", "best"))
            top[f"psp@{k}"] = _over(gained, best)
        whole = {name: mean_defined(self.orders[name]).value for name in ("ranking_loss", "coverage_error")}
        return {**whole, "top": top}

    def draws(self) -> dict[str, Any]:
        """Return the resamples of what is averaged over items, by the path the metric has in the report.

        Calibration errors have none: resampled items are farther from calibrated than the items are.
        """
        square, log = self.sums
        n, square = boot.weighted_sums(self.weights, square).T
        finite = np.isfinite(log).all()
        log = boot.weighted_sums(self.weights, log)[:, 1] if finite else np.full(len(self.weights), np.nan)
        return {
            "mAP": {"item": boot.weighted_mean(self.weights, self.ap)},
            "exact_match": boot.weighted_mean(self.weights, self.match),
            "brier": boot.divide(square, n),
            "log_loss": boot.divide(log, n),
        }


def _item_sums(pair: Pair) -> list[Array]:
    """Return (n, 2) known labels and squared error of each item, and the same with log-loss."""
    turned = Pair(pair.values.T, pair.targets.T, None if pair.known is None else pair.known.T, True)
    return [label_sums(turned, cell).T.numpy() for cell in (squared_error, cross_entropy)]


def _intervals(draws: Any, report: Any, confidence: float, name: str = "") -> Any:
    """Return the interval of every metric in `draws`, whose values have the same paths in `report`."""
    if isinstance(draws, dict):
        return {key: _intervals(value, report[key], confidence, key) for key, value in draws.items()}
    if isinstance(draws, list):
        return [_intervals(*pair, confidence) for pair in zip(draws, report, strict=True)]
    return boot.interval(float(report), draws, confidence, share=name != "log_loss")


def _ratios(*counts: Array) -> dict[str, Array]:
    true, predicted, support = (torch.from_numpy(np.asarray(c)) for c in counts)
    shares = (*ratios(true, predicted, support), overlap(true, predicted, support))
    return {name: x.numpy() for name, x in zip(("precision", "recall", "f1", "jaccard"), shares, strict=True)}


def _decision_report(*counts: Array) -> dict[str, dict[str, float]]:
    macro, micro = averages(*(torch.from_numpy(c) for c in counts))
    return {"macro": asdict(macro), "micro": asdict(micro)}


def _named_mean(name: str, left_out: str, values: Array) -> dict[str, Any]:
    mean = mean_defined(values)
    return {name: mean.value, left_out: mean.left_out}


def _error(e: CalibrationErrors) -> dict[str, Any]:
    bins = {name: getattr(e.bins, name).tolist() for name in ("edges", "counts", "confidence", "frequency")}
    by_chance = error_by_chance(e.bins)._asdict()
    return {"ace": float(e.ace), "mce": float(e.mce), "ece": float(e.ece), "by_chance": by_chance, "bins": bins}


def _mean_error(e: CalibrationErrors) -> dict[str, float]:
    return {name: mean_defined(getattr(e, name)).value for name in ("ace", "mce", "ece")}


def _over(a: Any, b: Any) -> float:
    return float(a) / float(b) if b else math.nan


def plain(tree: Any) -> Any:
    """Return nested dicts and lists of plain Python values; None for numbers that JSON lacks."""
    if isinstance(tree, dict):
        return {key: plain(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [plain(value) for value in tree]
    value = tree.item() if isinstance(tree, np.generic | Tensor) else tree
    return None if isinstance(value, float) and not math.isfinite(value) else value
