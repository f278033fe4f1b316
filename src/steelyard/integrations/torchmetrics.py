"""The metrics as torchmetrics classes: `update`, `compute`, `reset`, in a MetricCollection, under Lightning's `log`.

Each is a thin layer over a function of `steelyard.metrics` and gives its value on all batches together, in one process
or many. `update(preds, target)` takes tensors (N, L); `target` is 1 present, 0 absent, −1 unknown (as if the cell were
not there) or soft. Nothing is guessed: `MeanAveragePrecision` takes scores of any range, the others take probabilities
and refuse logits. Values are float64 tensors, NaN where the metric is undefined.

A MetricCollection lets metrics share what they keep if the names and first values of their states agree. The names here
tell what is kept and by which settings, so that metrics share it exactly where that is right.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor

from steelyard._compat import import_torchvision
from steelyard._extras import needed
from steelyard.metrics import calibration, decisions, ranking
from steelyard.metrics.groups import mean_defined
from steelyard.metrics.inputs import Pair, positive, probable, scored

with suppress(ModuleNotFoundError):
    import_torchvision()  # torchmetrics imports it where it is installed, and fails where that fails
with needed("steelyard.integrations.torchmetrics needs", "torchmetrics"):
    from steelyard.integrations.torchmetrics_base import (
        Kept,
        Summed,
        Threshold,
        at_least_one,
        choose,
        digest_of,
        labelled,
        limit_of,
        number,
    )

__all__ = [
    "Brier",
    "CalibrationError",
    "ExactMatch",
    "LabelF1",
    "LabelPrecision",
    "LabelRecall",
    "LogLoss",
    "MassCalibrationError",
    "MeanAveragePrecision",
]

Error: TypeAlias = Literal["ace", "mce", "ece"]
CellsPer: TypeAlias = Literal["pooled", "label"]
LabelAverage: TypeAlias = Literal["macro", "micro", "none"]


class MeanAveragePrecision(Kept):
    """Mean of the exact average precision over labels (mAP@y) or items (mAP@x), leaving out undefined ones.

    Keeps every score, and one byte for its target; `per` and `each` do not change what is kept.

    Args:
        n_labels: L.
        per: "label" ranks the items of each label, "item" the labels of each item.
        each: return the value of every label (L,) or item (N,) instead of the mean, NaN if it has no known positive.
        dtype: dtype of stored scores, "float32" or "float16" (which creates ties).
        **options: those of `torchmetrics.Metric`, such as `compute_on_cpu`.

    Examples:
        >>> from steelyard.integrations.torchmetrics import MeanAveragePrecision
        >>> metric = MeanAveragePrecision(n_labels=2)
        >>> metric.update(torch.tensor([[0.9, 0.2], [0.4, 0.8]]), torch.tensor([[1, 0], [0, -1]]))
        >>> metric.compute().item()
        1.0
    """

    higher_is_better = True

    def __init__(
        self,
        n_labels: int,
        per: ranking.Per = "label",
        each: bool = False,
        dtype: Literal["float32", "float16"] = "float32",
        **options: Any,
    ) -> None:
        kind = {"float32": torch.float32, "float16": torch.float16}[choose("dtype", dtype, ("float32", "float16"))]
        super().__init__(n_labels, {f"scores_{dtype}": kind, f"present_{dtype}": torch.int8}, options)
        self.per = choose("per", per, get_args(ranking.Per))
        self.each = each

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add a batch: scores (N, L), larger for more present, and targets (N, L)."""
        pair = scored(preds, target)
        hit = positive(pair.targets).to(torch.int8)
        self._keep(pair, hit if pair.known is None else torch.where(pair.known, hit, -1))

    def compute(self) -> Tensor:
        """Return the mean, or the average precisions."""
        scores, targets = self._all()
        each: Tensor = ranking.average_precision(scores, targets, self.per)
        return each if self.each else number(mean_defined(each).value, each)


class CalibrationError(Summed):
    """Gap between mean probability and label frequency in bins of equal width: ACE, MCE or ECE.

    Keeps three sums per label and bin, for any number of items. For bins of equal mass see `MassCalibrationError`.

    Args:
        n_labels: L.
        error: "ace", the mean gap over non-empty bins; "mce", the largest; "ece", the mean over cells.
        bins: number of bins.
        per: "pooled" takes the cells of all labels together; "label" returns one value per label (L,).
        **options: those of `torchmetrics.Metric`.

    Examples:
        >>> from steelyard.integrations.torchmetrics import CalibrationError
        >>> metric = CalibrationError(n_labels=2, error="ece")
        >>> metric.update(torch.tensor([[0.75, 0.25], [0.75, 0.25]]), torch.tensor([[1, 0], [1, 0]]))
        >>> metric.compute().item()
        0.25
    """

    higher_is_better = False

    def __init__(
        self, n_labels: int, error: Error = "ace", bins: int = 15, per: CellsPer = "pooled", **options: Any
    ) -> None:
        shape = (3, at_least_one("n_labels", n_labels), at_least_one("bins", bins))
        super().__init__(f"sums_in_{bins}_bins", shape, options)
        self.n_labels, self.bins = n_labels, bins
        self.error = choose("error", error, get_args(Error))
        self.per = choose("per", per, get_args(CellsPer))

    def _batch(self, pair: Pair) -> Tensor:
        return calibration.bin_sums(labelled(pair, self.n_labels), calibration.width_edges(self.bins, pair.values))

    def compute(self) -> Tensor:
        """Return the error, pooled or of each label."""
        sums = self._sums.sum(1) if self.per == "pooled" else self._sums
        value: Tensor = getattr(calibration.from_sums(sums, calibration.width_edges(self.bins, sums)), self.error)
        return value


class MassCalibrationError(Kept):
    """`CalibrationError` with bins that hold equally many cells, whose edges depend on all items together.

    Keeps every probability and target as float32.

    Args:
        n_labels, error, bins, per: as for `CalibrationError`.
        **options: those of `torchmetrics.Metric`.

    Examples:
        >>> from steelyard.integrations.torchmetrics import MassCalibrationError
        >>> metric = MassCalibrationError(n_labels=2, error="ece", bins=2)
        >>> metric.update(torch.tensor([[0.75, 0.25], [0.75, 0.25]]), torch.tensor([[1, 0], [1, 0]]))
        >>> metric.compute().item()
        0.25
    """

    higher_is_better = False

    def __init__(
        self, n_labels: int, error: Error = "ace", bins: int = 15, per: CellsPer = "pooled", **options: Any
    ) -> None:
        super().__init__(n_labels, {"probabilities": torch.float32, "targets": torch.float32}, options)
        self.bins = at_least_one("bins", bins)
        self.error = choose("error", error, get_args(Error))
        self.per = choose("per", per, get_args(CellsPer))

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add a batch: probabilities (N, L) in [0, 1] and targets (N, L)."""
        pair = probable(preds, target)
        self._keep(pair, pair.targets)

    def compute(self) -> Tensor:
        """Return the error, pooled or of each label."""
        probabilities, targets = self._all()
        errors = calibration.calibration_error(probabilities, targets, self.bins, "mass", self.per)
        value = getattr(errors, self.error)
        return value if isinstance(value, Tensor) else number(value, probabilities)


class _Decided(Summed):
    """A metric of the decisions η ≥ threshold."""

    higher_is_better = True
    threshold: Tensor

    def __init__(
        self, name: str, n_labels: int, threshold: Threshold, shape: tuple[int, ...], options: dict[str, Any]
    ) -> None:
        limit = limit_of(threshold, at_least_one("n_labels", n_labels))
        super().__init__(f"{name}_{digest_of(limit)}", shape, options)
        self.n_labels = n_labels
        self.register_buffer("threshold", limit, persistent=False)

    def _decide(self, pair: Pair) -> Pair:
        """Return decisions instead of probabilities."""
        decided = labelled(pair, self.n_labels).values >= self.threshold.to(pair.values.dtype)
        return Pair(decided, pair.targets, pair.known, pair.from_numpy)


class _LabelRatio(_Decided):
    """A ratio of true, predicted and actual positives of each label."""

    _ratio: int
    """Index into `decisions.ratios`."""

    def __init__(
        self, n_labels: int, threshold: Threshold = 0.5, average: LabelAverage = "macro", **options: Any
    ) -> None:
        super().__init__("counts", n_labels, threshold, (3, n_labels), options)
        self.average = choose("average", average, get_args(LabelAverage))

    def _batch(self, pair: Pair) -> Tensor:
        return decisions.decision_counts(self._decide(pair))

    def compute(self) -> Tensor:
        """Return the average, or the values of the labels."""
        true, predicted, support = self._sums.sum(1) if self.average == "micro" else self._sums
        value = decisions.ratios(true, predicted, support)[self._ratio]
        return value.mean() if self.average == "macro" else value


class LabelPrecision(_LabelRatio):
    """Precision TP/(TP+FP) of the decisions η ≥ threshold, 0 if nothing is predicted.

    Args:
        n_labels, threshold, average: as for `LabelF1`.
        **options: those of `torchmetrics.Metric`.

    Examples:
        >>> from steelyard.integrations.torchmetrics import LabelPrecision
        >>> metric = LabelPrecision(n_labels=2, average="none")
        >>> metric.update(torch.tensor([[0.9, 0.2], [0.6, 0.8]]), torch.tensor([[1, 0], [0, 1]]))
        >>> metric.compute().tolist()
        [0.5, 1.0]
    """

    _ratio = 0


class LabelRecall(_LabelRatio):
    """Recall TP/(TP+FN) of the decisions η ≥ threshold, 0 if a label has no known positive.

    Args:
        n_labels, threshold, average: as for `LabelF1`.
        **options: those of `torchmetrics.Metric`.

    Examples:
        >>> from steelyard.integrations.torchmetrics import LabelRecall
        >>> metric = LabelRecall(n_labels=2, threshold=0.7, average="none")
        >>> metric.update(torch.tensor([[0.9, 0.2], [0.6, 0.8]]), torch.tensor([[1, 0], [1, 1]]))
        >>> metric.compute().tolist()
        [0.5, 1.0]
    """

    _ratio = 1


class LabelF1(_LabelRatio):
    """F1 = 2TP/(2TP+FP+FN) of the decisions η ≥ threshold, 0 if nothing is predicted and no positive is known.

    Args:
        n_labels: L.
        threshold: one number, or one per label (L,); rounded to the dtype of the probabilities.
        average: "macro", the mean over all labels; "micro", over all cells pooled; "none", one value per label (L,).
        **options: those of `torchmetrics.Metric`.

    Examples:
        >>> from steelyard.integrations.torchmetrics import LabelF1
        >>> metric = LabelF1(n_labels=2)
        >>> metric.update(torch.tensor([[0.9, 0.2], [0.4, 0.8]]), torch.tensor([[1, 0], [0, 1]]))
        >>> metric.compute().item()
        1.0
    """

    _ratio = 2


class ExactMatch(_Decided):
    """Fraction of items whose every known label is decided correctly by η ≥ threshold; items without one are left out.

    Args:
        n_labels: L.
        threshold: one number, or one per label (L,); rounded to the dtype of the probabilities.
        **options: those of `torchmetrics.Metric`.

    Examples:
        >>> from steelyard.integrations.torchmetrics import ExactMatch
        >>> metric = ExactMatch(n_labels=2)
        >>> metric.update(torch.tensor([[0.9, 0.2], [0.6, 0.8]]), torch.tensor([[1, -1], [0, 1]]))
        >>> metric.compute().item()
        0.5
    """

    def __init__(self, n_labels: int, threshold: Threshold = 0.5, **options: Any) -> None:
        super().__init__("matches", n_labels, threshold, (2,), options)

    def _batch(self, pair: Pair) -> Tensor:
        decided = self._decide(pair)
        match = decisions.exact_matches(decided.values, decided.targets)
        return torch.stack([match.nansum(), (~match.isnan()).sum()])

    def compute(self) -> Tensor:
        """Return the fraction."""
        return self._sums[0] / self._sums[1]


class _MeanCost(Summed):
    """The mean cost of the known labels."""

    higher_is_better = False
    _cost: Callable[[Tensor, Tensor], Tensor]

    def __init__(self, **options: Any) -> None:
        super().__init__(f"sums_of_{type(self).__name__}", (2,), options)

    def _batch(self, pair: Pair) -> Tensor:
        return calibration.label_sums(pair, type(self)._cost).sum(1)

    def compute(self) -> Tensor:
        """Return the mean."""
        return self._sums[1] / self._sums[0]


class Brier(_MeanCost):
    """Brier score: the mean of (η − y)² over known labels; soft targets count as they are.

    Args:
        **options: those of `torchmetrics.Metric`.

    Examples:
        >>> from steelyard.integrations.torchmetrics import Brier
        >>> metric = Brier()
        >>> metric.update(torch.tensor([[0.75, 0.25]]), torch.tensor([[1, -1]]))
        >>> metric.compute().item()
        0.0625
    """

    _cost = staticmethod(calibration.squared_error)


class LogLoss(_MeanCost):
    """Mean of −y log η − (1 − y) log(1 − η) over known labels; infinite if a probability of 0 or 1 was wrong.

    Args:
        **options: those of `torchmetrics.Metric`.

    Examples:
        >>> from steelyard.integrations.torchmetrics import LogLoss
        >>> metric = LogLoss()
        >>> metric.update(torch.tensor([[0.5, 0.25]]), torch.tensor([[1, -1]]))
        >>> round(metric.compute().item(), 4)
        0.6931
    """

    _cost = staticmethod(calibration.cross_entropy)
