"""Label-distribution-aware margins."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from steelyard.balance.checks import check_range
from steelyard.labels.targets import ArrayLike, check_counts
from steelyard.losses.loss import Cells, Loss, NoLink, Reduction, compute_dtype
from steelyard.losses.softplus_pair import SoftplusPair


class SigmoidLDAM(SoftplusPair):
    """LDAM for many labels: ℓ₊ = softplus(−(z−Δ_c)), ℓ₋ = softplus(z), Δ_c = Δ_max (n_min/n_c)^¼."""

    def __init__(self, margins: Tensor, reduction: Reduction, validate: bool) -> None:
        super().__init__(shift=(margins, torch.zeros_like(margins)), reduction=reduction, validate=validate)


class SoftmaxLDAM(Loss):
    """LDAM for one label per item: cross-entropy of s·(z − Δ_y) over the item's known labels, s = 30 (Cao et al. 2019).

    Every item needs exactly one positive, or no known label at all. Its reductions count items: "mean" is the weighted
    mean over items with a known label, Σ w·ℓ / Σ w with the weights at their labels, as in the authors' code (without
    weights the plain mean); "none" puts an item's loss into the cell of its label.
    """

    margins: Tensor

    def __init__(self, margins: Tensor, reduction: Reduction, validate: bool, s: float = 30.0) -> None:
        super().__init__(len(margins), reduction, validate)
        self.s = s
        self.register_buffer("margins", margins, persistent=False)

    def evaluate(self, logits: Tensor, cells: Cells, divisor: Tensor | float | None = None) -> Tensor:
        """Return the reduced loss of `cells`; a is an item's weight at its label, b is not read."""
        hit = (cells.a if cells.side is None else cells.side) > 0  # a is 0 where the weight or a mask is
        if self.validate or (cells.a.device.type == "cpu" and not torch.compiler.is_compiling()):
            self._check_single(hit, cells)
        z = logits.to(compute_dtype(logits))
        if cells.counted is not None:
            z = z.masked_fill(~cells.counted, -math.inf)
            z = torch.where(cells.counted.any(dim=1, keepdim=True), z, 0)
        z = self.s * (z - torch.where(hit, self.margins.to(z.dtype), 0))
        cost = torch.where(hit, cells.a * -torch.log_softmax(z, dim=1), 0)
        if self.reduction == "none":
            return cost
        return cost.sum() / (self.divisor(logits.shape, cells) if divisor is None else divisor)

    def amount(self, shape: torch.Size, cells: Cells) -> Tensor | float:
        """Return the sum of the items' weights, each that of its label ("mean"), the number of items ("item"), or 1."""
        return cells.a.sum() if self.reduction == "mean" else super().amount(shape, cells)

    def log_odds(self, z: Tensor, pos_weight: object = None, neg_weight: object = None) -> Tensor:
        """Raise: a softmax over labels gives no label its own probability."""
        raise NoLink(
            "LDAM(softmax=True) has no probability per label: its labels compete in one softmax; use softmax=False"
        )

    probability = log_odds

    def _check_single(self, hit: Tensor, cells: Cells) -> None:
        some = torch.ones_like(hit[:, 0]) if cells.counted is None else cells.counted.any(dim=1)
        bad = some & (hit.sum(dim=1) != 1)
        soft = (hit & (cells.b > 0)).any(dim=1)
        if soft.any():
            raise ValueError(f"targets[{int(soft.nonzero()[0])}] is soft: LDAM(softmax=True) needs labels of 0 or 1")
        if bad.any():
            row = int(bad.nonzero()[0])
            raise ValueError(
                f"targets[{row}] has {int(hit[row].sum())} positives: LDAM(softmax=True) needs exactly one"
            )


def LDAM(
    counts: ArrayLike,
    max_margin: float = 0.5,
    softmax: bool = False,
    *,
    floor: int | None = None,
    reduction: Reduction = "mean",
    validate: bool = False,
) -> SigmoidLDAM | SoftmaxLDAM:
    """Label-distribution-aware margin loss: the rarer a class, the larger the margin its positives must clear.

    C is such that the largest margin Δ_c is `max_margin`; it is taken off the positive logit. The many-label form (a
    sigmoid each, no extra scale) is a pair and has a link.

    Formula:
        ℓ₊(z) = softplus(−(z − Δ_c)), Δ_c = C/n_c^(1/4)
        ℓ₋(z) = softplus(z)
        log η/(1 − η) = log σ(z) − log σ(Δ_c − z)

    Args:
        counts: positives n_c of each class (L,).
        max_margin: the margin of the rarest class (.5).
        softmax: the single-label original, cross-entropy of 30·(z − Δ); it has no link. Its logits are cosines, as
            `model.head = "cosine"` gives them: times 30, those of a linear layer may be too steep to learn from.
        floor: stands in for a count of 0, which is refused otherwise.
        reduction: "mean", "item", "sum" or "none".
        validate: check target values on CUDA too.

    Examples:
        >>> loss = sy.losses.LDAM(torch.tensor([1600.0, 100.0]))
        >>> loss.positive(torch.zeros(2))  # the rarer class has the larger margin, .5, against .25
        tensor([0.8259, 0.9741])
        >>> loss.probability(torch.zeros(1, 2))
        tensor([[0.4707, 0.4455]])
        >>> sy.losses.LDAM(torch.tensor([1600.0, 100.0]), softmax=True).probability(torch.zeros(1, 2))
        Traceback (most recent call last):
            ...
        steelyard.losses.loss.NoLink: LDAM(softmax=True) has no probability ...
    """
    check_range("positive", max_margin=max_margin)
    n = check_counts(counts, floor=floor)
    margins = max_margin * (n.min() / n) ** 0.25
    return (SoftmaxLDAM if softmax else SigmoidLDAM)(margins, reduction, validate)
