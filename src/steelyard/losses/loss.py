"""The base of all losses: checks of inputs, coefficients of labels, reductions."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from steelyard.balance.checks import check_choice
from steelyard.kernels.fused import IGNORED, KernelRebalanced, KernelRule, Mask
from steelyard.labels.targets import ArrayLike, Targets, as_targets, as_tensor, known, refuse

Reduction = Literal["mean", "item", "sum", "none"]


class Cells(NamedTuple):
    """The coefficients of a batch, which say what each cell costs.

    Formula:
        cost = a ℓ₊(z) + b ℓ₋(z)

    (a, b) is (1, 0) where a label is present, (0, 1) absent, (t, 1−t) soft and (0, 0) unknown, times weight and mask.

    Args:
        a: the coefficient of ℓ₊, (B, L).
        b: the coefficient of ℓ₋, (B, L).
        counted: which cells the mean divides by, bool (B, L); None for all. The logit of a cell that is not counted is
            ignored.
        side: where no cell has both coefficients, 1 where a may be positive and 0 where b may be, (B, L).

    Examples:
        >>> cells = sy.losses.Cells(a=torch.tensor([[1.0, 0.0]]), b=torch.tensor([[0.0, 0.5]]))
        >>> sy.losses.BCE().evaluate(torch.zeros(1, 2), cells)  # present; absent at half weight: 1½ log 2 / 2
        tensor(0.5199)
    """

    a: Tensor
    b: Tensor
    counted: Tensor | None = None
    side: Tensor | None = None

    def times(self, weight: Tensor) -> Cells:
        """Return the cells with both coefficients multiplied by `weight`, which is finite everywhere."""
        return self._replace(a=self.a * weight, b=self.b * weight)

    def inert(self, z: Tensor) -> Tensor:
        """Return z with 0 at cells that do not count: they may hold anything, even NaN, and NaN times 0 is NaN."""
        if self.counted is None:
            return z
        if z.device.type == "cpu" and not torch.compiler.is_compiling() and math.isfinite(z.detach().sum().item()):
            return z  # all is finite: skip the selection, the slowest step on a CPU
        return torch.where(self.counted, z, 0)

    def rows(self, rows: slice) -> Cells:
        """Return the cells of some items."""
        counted, side = (None if part is None else part[rows] for part in (self.counted, self.side))
        return Cells(self.a[rows], self.b[rows], counted, side)

    def n_counted(self) -> Tensor | float:
        """Return the number of cells that count."""
        return float(self.a.numel()) if self.counted is None else self.counted.sum()


class NoLink(ValueError):
    """Raised when probabilities are asked of a loss that has none.

    Examples:
        >>> try:
        ...     sy.losses.TwoWay().probability(torch.zeros(1, 2))
        ... except sy.losses.NoLink as error:
        ...     print(error)
        TwoWay has no probability: it ranks labels against each other; fit calibrate.Temperature instead
    """


def compute_dtype(z: Tensor) -> torch.dtype:
    """Return the dtype of the arithmetic: float64 for float64 logits, float32 for all others."""
    return torch.float64 if z.dtype == torch.float64 else torch.float32


def known_cells(targets: Targets, dtype: torch.dtype) -> Cells:
    """Return the cells of `targets` with unknown labels ignored."""
    if targets.all_known:
        t = targets.values.to(dtype)
        return Cells(t, 1 - t, None, t if targets.hard else None)
    if targets.hard and not torch.compiler.is_compiling():  # in bytes: a comparison is far slower on a CPU
        t = targets.values.to(torch.int8)
        counted, present = (t + 1).clamp_max_(1), t.clamp_min(0)
        a = present.to(dtype)
        return Cells(a, (counted - present).to(dtype), counted.view(torch.bool), a)
    counted = known(targets.values)
    a = targets.values.to(dtype).clamp_min(0)
    return Cells(a, counted.to(dtype) - a, counted, a if targets.hard else None)


class LossBatch(NamedTuple):
    """Checked targets and what decides how they enter a loss: a rule for unknown labels, a mask, weights.

    `cells` applies them in this order. Rule, mask and class-wise weights are here twice: as functions, and as the fused
    kernels know them, so that a loss can choose.
    """

    targets: Targets
    rule: KernelRule | None = IGNORED
    """None: the kernels do not know it."""
    resolve: Callable[[], Cells] | None = None
    """The cells under the rule; None: unknown labels are ignored."""
    mask: Mask | None = None
    kept: Callable[[], Tensor] | None = None
    """The mask (B, L)."""
    rebalanced: KernelRebalanced | None = None
    weights: Callable[[Tensor], Tensor] | None = None
    """Weights that follow from the present labels (B, L); the kernels know them if `rebalanced` is given."""
    weight: Tensor | None = None
    """Further weights, which broadcast to (B, L); values at unknown labels are ignored."""

    def cells(self, dtype: torch.dtype) -> Cells:
        """Return the coefficients: unknown labels resolved, then masked, then weighted."""
        cells = known_cells(self.targets, dtype) if self.resolve is None else self.resolve()
        present = cells.a
        if self.kept is not None:
            cells = cells.times(self.kept().to(dtype))
        if self.weights is not None:
            cells = cells.times(self.weights(present))
        if self.weight is not None:
            cells = cells.times(self.weight if cells.counted is None else torch.where(cells.counted, self.weight, 0))
        return cells


class Loss(nn.Module, ABC):
    """A loss of logits (B, L) and targets (B, L).

    Shapes and dtypes are always checked; target values in eager mode on the CPU, and elsewhere only with
    `validate=True`, since that waits for the device.

    Args:
        n_labels: L where the loss has class-wise constants, else None.
        reduction: "mean" (Σ w·ℓ over the number of known labels), "item" (sum over labels, mean over items), "sum" or
            "none" (B, L).
        validate: check target values on CUDA too.

    Examples:
        >>> loss = sy.losses.BCE(reduction="none")
        >>> isinstance(loss, sy.losses.Loss)
        True
        >>> loss(torch.zeros(1, 3), torch.tensor([[1, 0, -1]]), weight=torch.tensor([1.0, 2.0, 9.0]))
        tensor([[0.6931, 1.3863, 0.0000]])
    """

    def __init__(self, n_labels: int | None, reduction: Reduction, validate: bool) -> None:
        super().__init__()
        check_choice(Reduction, reduction=reduction)
        self.n_labels = n_labels
        self.reduction: Reduction = reduction
        self.validate = validate

    @abstractmethod
    def evaluate(self, logits: Tensor, cells: Cells, divisor: Tensor | float | None = None) -> Tensor:
        """Return the reduced loss of `cells`; `divisor` replaces the one that the reduction implies.

        Args:
            logits: (B, L).
            cells: the coefficients of the batch.
            divisor: what the sum is divided by; None for that of the reduction.
        """

    def forward(self, logits: Tensor, targets: ArrayLike, weight: ArrayLike | float | None = None) -> Tensor:
        """Return the loss; `weight` (anything that broadcasts to (B, L)) multiplies each label's term.

        Args:
            logits: (B, L), floating-point.
            targets: (B, L), 1 present, 0 absent, −1 unknown, between them soft.
            weight: a number, (L,), (B, 1) or (B, L), finite and at least 0.
        """
        return self.evaluate_batch(logits, self.batch(logits, targets, weight))

    def evaluate_batch(self, logits: Tensor, batch: LossBatch, divisor: Tensor | float | None = None) -> Tensor:
        """Return the reduced loss of `batch`; a loss that has a fused kernel may use it here."""
        return self.evaluate(logits, batch.cells(compute_dtype(logits)), divisor)

    def batch(self, logits: Tensor, targets: ArrayLike, weight: ArrayLike | float | None = None) -> LossBatch:
        """Return checked targets and weights, unknown labels ignored."""
        self.check_logits(logits)
        checked = as_targets(targets, logits, self.validate)
        return LossBatch(checked, weight=None if weight is None else check_weight(weight, logits, checked))

    def check_logits(self, logits: Tensor) -> None:
        """Raise unless `logits` is a real floating (B, L) tensor with this loss's L."""
        if not isinstance(logits, Tensor) or not logits.is_floating_point():
            kind = logits.dtype if isinstance(logits, Tensor) else type(logits).__name__
            raise ValueError(f"logits is {kind}: give a floating-point tensor (B, L)")
        if logits.ndim != 2:
            raise ValueError(f"logits has shape {tuple(logits.shape)}: give (B, L), one row per item")
        if self.n_labels is not None and logits.shape[1] != self.n_labels:
            raise ValueError(
                f"logits has {logits.shape[1]} labels, but this loss was made for {self.n_labels}: make them equal"
            )

    def amount(self, shape: torch.Size, cells: Cells) -> Tensor | float:
        """Return what the reduction divides by: counted cells ("mean"), items ("item"), else 1."""
        if self.reduction == "mean":
            return cells.n_counted()
        return float(shape[0]) if self.reduction == "item" else 1.0

    def divisor(self, shape: torch.Size, cells: Cells) -> Tensor | float:
        """Return `amount`, or 1 if it is 0."""
        return or_one(self.amount(shape, cells))


def or_one(amount: Tensor | float) -> Tensor | float:
    """Return an amount to divide by: 1 where it is 0."""
    return torch.where(amount > 0, amount, 1) if isinstance(amount, Tensor) else amount or 1.0


def check_weight(weight: ArrayLike | float, logits: Tensor, targets: Targets) -> Tensor:
    """Return `weight` as a tensor that broadcasts to `logits`; on the CPU its values at known labels are checked."""
    dtype = compute_dtype(logits)
    w = torch.tensor(weight, dtype=dtype) if isinstance(weight, int | float) else as_tensor(weight).to(dtype)
    w = w.to(logits.device) if w.ndim == 0 else w
    try:
        fits = torch.broadcast_shapes(w.shape, logits.shape) == logits.shape
    except RuntimeError:
        fits = False
    if not fits:
        raise ValueError(
            f"weight has shape {tuple(w.shape)}, but logits has {tuple(logits.shape)}: "
            "give a number, (L,), (B, 1) or (B, L)"
        )
    if w.device != logits.device:
        raise ValueError(f"weight is on {w.device}, but logits is on {logits.device}: move one of them")
    if w.device.type == "cpu" and not torch.compiler.is_compiling() and w.numel():
        low, high = torch.aminmax(w)
        if not (low.item() >= 0 and high.item() < math.inf):
            bad = ~((w >= 0) & (w < math.inf))
            bad = bad & known(targets.values) if w.shape == logits.shape else bad
            refuse(bad, "weight", w, "a weight is finite and at least 0")
    return w
