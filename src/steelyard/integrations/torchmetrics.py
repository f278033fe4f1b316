"""The metrics as torchmetrics classes: `update`, `compute`, `reset`, in a MetricCollection, under Lightning's `log`.

Each is thin over a function of `steelyard.metrics` and gives its value on all batches together, in one process or many.
`update(preds, target)` takes tensors (N, L); `target` is 1 present, 0 absent, −1 unknown (as if the cell were not
there) or soft. Nothing is guessed: `MeanAveragePrecision` takes scores of any range, the others take probabilities and
refuse logits. Values are float64 tensors, NaN where the metric is undefined.

A MetricCollection lets metrics share what they keep if the names and first values of their states agree. The names here
tell what is kept and by which settings, so that metrics share it exactly where that is right.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Literal, TypeAlias, TypeVar, get_args

import torch
from torch import Tensor

from steelyard._compat import import_torchvision
from steelyard.calibrate.calibrator import as_vector
from steelyard.labels.targets import ArrayLike
from steelyard.metrics import calibration, decisions, ranking
from steelyard.metrics.groups import mean_defined
from steelyard.metrics.inputs import Pair, positive, probable, scored

try:
    import_torchvision()  # torchmetrics imports it where it is installed, and fails where that fails
except ModuleNotFoundError as error:
    if error.name != "torchvision":
        raise
try:
    from torchmetrics import Metric
except ModuleNotFoundError as error:
    if error.name != "torchmetrics":
        raise
    raise ImportError(
        "steelyard.integrations.torchmetrics needs torchmetrics, which is not installed: pip install torchmetrics"
    ) from None

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
Threshold: TypeAlias = float | ArrayLike
T = TypeVar("T")


class _Summed(Metric):
    """A metric of sums over batches: what it keeps does not grow."""

    is_differentiable = False
    full_state_update = False

    def __init__(self, state: str, shape: tuple[int, ...], options: dict[str, Any]) -> None:
        super().__init__(**options)
        self._state = state
        self.add_state(state, torch.zeros(shape, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add a batch: probabilities (N, L) in [0, 1] and targets (N, L)."""
        setattr(self, self._state, self._sums + self._batch(probable(preds, target)))

    @property
    def _sums(self) -> Tensor:
        sums: Tensor = getattr(self, self._state)
        return sums

    @abstractmethod
    def _batch(self, pair: Pair) -> Tensor:
        """Return the sums of one batch."""


class _Kept(Metric):
    """A metric that has to keep every item: values (n, L) and targets (n, L), a tensor a batch of each."""

    is_differentiable = False
    full_state_update = False

    def __init__(self, n_labels: int, states: dict[str, torch.dtype], options: dict[str, Any]) -> None:
        super().__init__(**options)
        self.n_labels = _at_least_one("n_labels", n_labels)
        self._states = states
        for name in states:
            self.add_state(name, [], dist_reduce_fx="cat")

    def _keep(self, pair: Pair, target: Tensor) -> None:
        values = _labelled(pair, self.n_labels).values
        if pair.known is not None:
            values = torch.where(pair.known, values, 0.0)
        for (name, dtype), batch in zip(self._states.items(), (values, target), strict=True):
            getattr(self, name).append(batch.to(dtype, copy=True))

    def _all(self) -> list[Tensor]:
        """Return what this process kept, or, once synchronised, what all did."""
        self._seed()
        kept = (getattr(self, name) for name in self._states)
        return [torch.cat(x) if isinstance(x, list) else x for x in kept]

    def _seed(self) -> None:
        """Give a process that saw no item an empty batch: what is gathered must have one dtype and rank everywhere."""
        for name, dtype in self._states.items():
            if isinstance(kept := getattr(self, name), list) and not kept:
                kept.append(torch.empty(0, self.n_labels, dtype=dtype, device=self.device))

    def _sync_dist(self, dist_sync_fn: Callable[..., Any], process_group: Any | None = None) -> None:  # type: ignore[override]
        self._seed()
        super()._sync_dist(dist_sync_fn, process_group)


class MeanAveragePrecision(_Kept):
    """The mean of the exact average precision over labels (mAP@y) or items (mAP@x), undefined ones left out.

    Keeps every score, and a byte for its target; `per` and `each` do not change what is kept.

    Args:
        n_labels: L.
        per: "label" ranks the items of a label, "item" the labels of an item.
        each: give every label's (L,) or item's (N,) instead of the mean, NaN where there is no known positive.
        dtype: how scores are kept, "float32" or "float16" (which makes ties).
        **options: those of `torchmetrics.Metric`, such as `compute_on_cpu`.
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
        kind = {"float32": torch.float32, "float16": torch.float16}[_choose("dtype", dtype, ("float32", "float16"))]
        super().__init__(n_labels, {f"scores_{dtype}": kind, f"present_{dtype}": torch.int8}, options)
        self.per = _choose("per", per, get_args(ranking.Per))
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
        return each if self.each else _number(mean_defined(each).value, each)


class CalibrationError(_Summed):
    """How far the mean probability of a bin of equal width is from the frequency of its labels: ACE, MCE or ECE.

    Keeps three sums a label and bin, whatever the number of items. Bins of equal mass: `MassCalibrationError`.

    Args:
        n_labels: L.
        error: "ace", the mean gap over the bins that are not empty; "mce", the largest; "ece", the mean over cells.
        bins: their number.
        per: "pooled" puts the cells of all labels together; "label" gives one value a label (L,).
        **options: those of `torchmetrics.Metric`.
    """

    higher_is_better = False

    def __init__(
        self, n_labels: int, error: Error = "ace", bins: int = 15, per: CellsPer = "pooled", **options: Any
    ) -> None:
        shape = (3, _at_least_one("n_labels", n_labels), _at_least_one("bins", bins))
        super().__init__(f"sums_in_{bins}_bins", shape, options)
        self.n_labels, self.bins = n_labels, bins
        self.error = _choose("error", error, get_args(Error))
        self.per = _choose("per", per, get_args(CellsPer))

    def _batch(self, pair: Pair) -> Tensor:
        return calibration.bin_sums(_labelled(pair, self.n_labels), calibration.width_edges(self.bins, pair.values))

    def compute(self) -> Tensor:
        """Return the error, pooled or of each label."""
        sums = self._sums.sum(1) if self.per == "pooled" else self._sums
        value: Tensor = getattr(calibration.from_sums(sums, calibration.width_edges(self.bins, sums)), self.error)
        return value


class MassCalibrationError(_Kept):
    """`CalibrationError` for bins that hold equally many cells, whose edges only all items together can tell.

    Keeps every probability and target as float32.

    Args:
        n_labels, error, bins, per, **options: those of `CalibrationError`.
    """

    higher_is_better = False

    def __init__(
        self, n_labels: int, error: Error = "ace", bins: int = 15, per: CellsPer = "pooled", **options: Any
    ) -> None:
        super().__init__(n_labels, {"probabilities": torch.float32, "targets": torch.float32}, options)
        self.bins = _at_least_one("bins", bins)
        self.error = _choose("error", error, get_args(Error))
        self.per = _choose("per", per, get_args(CellsPer))

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add a batch: probabilities (N, L) in [0, 1] and targets (N, L)."""
        pair = probable(preds, target)
        self._keep(pair, pair.targets)

    def compute(self) -> Tensor:
        """Return the error, pooled or of each label."""
        probabilities, targets = self._all()
        errors = calibration.calibration_error(probabilities, targets, self.bins, "mass", self.per)
        value = getattr(errors, self.error)
        return value if isinstance(value, Tensor) else _number(value, probabilities)


class _Decided(_Summed):
    """A metric of the decisions η ≥ threshold."""

    higher_is_better = True
    threshold: Tensor

    def __init__(
        self, name: str, n_labels: int, threshold: Threshold, shape: tuple[int, ...], options: dict[str, Any]
    ) -> None:
        limit = _limit(threshold, _at_least_one("n_labels", n_labels))
        super().__init__(f"{name}_{_digest(limit)}", shape, options)
        self.n_labels = n_labels
        self.register_buffer("threshold", limit, persistent=False)

    def _decide(self, pair: Pair) -> Pair:
        """Return the decisions in the place of the probabilities."""
        decided = _labelled(pair, self.n_labels).values >= self.threshold.to(pair.values.dtype)
        return Pair(decided, pair.targets, pair.known, pair.from_numpy)


class _ByLabel(_Decided):
    """What true, predicted and actual positives of each label tell."""

    _ratio: int
    """Which of `decisions.ratios`."""

    def __init__(
        self, n_labels: int, threshold: Threshold = 0.5, average: LabelAverage = "macro", **options: Any
    ) -> None:
        super().__init__("counts", n_labels, threshold, (3, n_labels), options)
        self.average = _choose("average", average, get_args(LabelAverage))

    def _batch(self, pair: Pair) -> Tensor:
        return decisions.decision_counts(self._decide(pair))

    def compute(self) -> Tensor:
        """Return the average, or the values of the labels."""
        true, predicted, support = self._sums.sum(1) if self.average == "micro" else self._sums
        value = decisions.ratios(true, predicted, support)[self._ratio]
        return value.mean() if self.average == "macro" else value


class LabelPrecision(_ByLabel):
    """Precision TP/(TP+FP) of the decisions η ≥ threshold, 0 where nothing is predicted.

    Args:
        n_labels, threshold, average, **options: those of `LabelF1`.
    """

    _ratio = 0


class LabelRecall(_ByLabel):
    """Recall TP/(TP+FN) of the decisions η ≥ threshold, 0 where a label has no known positive.

    Args:
        n_labels, threshold, average, **options: those of `LabelF1`.
    """

    _ratio = 1


class LabelF1(_ByLabel):
    """F1 = 2TP/(2TP+FP+FN) of the decisions η ≥ threshold, 0 where nothing is predicted and no positive is known.

    Args:
        n_labels: L.
        threshold: one number, or one a label (L,); rounded to the dtype of the probabilities.
        average: "macro", the mean over all labels; "micro", that of all cells pooled; "none", one value a label (L,).
        **options: those of `torchmetrics.Metric`.
    """

    _ratio = 2


class ExactMatch(_Decided):
    """The fraction of items whose every known label is decided rightly by η ≥ threshold; those without one left out.

    Args:
        n_labels: L.
        threshold: one number, or one a label (L,); rounded to the dtype of the probabilities.
        **options: those of `torchmetrics.Metric`.
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


class _MeanCost(_Summed):
    """The mean of what the known labels cost."""

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
    """The Brier score, the mean of (η − y)² over the known labels; soft targets count as they are.

    Args:
        **options: those of `torchmetrics.Metric`.
    """

    _cost = staticmethod(calibration.squared_error)


class LogLoss(_MeanCost):
    """The mean of −y log η − (1 − y) log(1 − η) over the known labels; infinite where a certainty was wrong.

    Args:
        **options: those of `torchmetrics.Metric`.
    """

    _cost = staticmethod(calibration.cross_entropy)


def _limit(threshold: Threshold, n_labels: int) -> Tensor:
    """Return thresholds as float64, () or (L,)."""
    limit = as_vector(threshold).cpu().clone()
    if limit.shape not in ((), (n_labels,)) or bool(limit.isnan().any()):
        raise ValueError(
            f"threshold has shape {tuple(limit.shape)}: give one number, or one for each of {n_labels} labels, not NaN"
        )
    return limit


def _digest(limit: Tensor) -> str:
    """Return what tells thresholds apart in the name of a state."""
    return hashlib.sha256(repr(limit.tolist()).encode()).hexdigest()[:16]


def _labelled(pair: Pair, n_labels: int) -> Pair:
    """Return the batch, which must have the labels of the metric."""
    if pair.values.shape[1] != n_labels:
        raise ValueError(f"preds has {pair.values.shape[1]} labels, but n_labels is {n_labels}: they must be equal")
    return pair


def _number(value: float, like: Tensor) -> Tensor:
    return torch.tensor(value, dtype=torch.float64, device=like.device)


def _choose(name: str, value: T, choices: tuple[T, ...]) -> T:
    if value not in choices:
        raise ValueError(f"{name} is {value!r}: choose one of {', '.join(map(str, choices))}")
    return value


def _at_least_one(name: str, value: int) -> int:
    if value < 1:
        raise ValueError(f"{name} is {value}: give at least 1")
    return value
