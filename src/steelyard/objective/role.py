"""ROLE: labels that were never annotated are estimated, as parameters, beside the model."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from steelyard.balance.philox import uniform
from steelyard.labels.targets import ArrayLike, Targets, as_tensor, known
from steelyard.losses.focused import softplus
from steelyard.losses.loss import Cells, compute_dtype
from steelyard.losses.unknown import Resolver, need_index
from steelyard.objective.expected_positives import count_penalty


class Role(Resolver):
    """Regularised online label estimation (Cole et al. 2021): every item and label has a learned estimate e = σ(θ).

    Formula:
        ℓ = H(ŷ, e)/2 + H(e, ŷ)/2, H(x, y) = −Σ_positive log x + BCE(x, stop(y)) + R(x)
        R(x) = ((mean_i Σ_j x_{ij} − k)/L)²

    Label terms are averaged over B·L; k is the expected positives of an item, and stop lets no gradient through. The
    first half's label terms are cells of the objective's loss (over BCE they are the paper's), the rest is `extra`.
    A known negative, which the paper's setting does not have, is no estimate: its term is −log(1 − ŷ). With the .005
    of an estimate beside it, a label of few positives would come out several times too likely.
    θ starts uniform in σ⁻¹([.4, .6]), at ±σ⁻¹(.995) for known labels, and is trained with ten times the learning rate.

    Args:
        targets: the training labels (N, L): they set N, L and the first estimates.
        expected_positives: k (the paper: COCO 2.9, NUS-WIDE 1.9, CUB 31.4, VOC 1.5).
        seed: of the first estimates.

    Examples:
        >>> targets, index = torch.tensor([[1, -1, -1], [-1, 1, -1]]), torch.tensor([0, 1])
        >>> rule = sy.objective.Role(targets, expected_positives=1.5)
        >>> rule.estimates(index)  # .995 where a label is known to be present, near ½ elsewhere
        tensor([[0.9950, 0.5761, 0.5471],
                [0.4834, 0.9950, 0.4903]])
        >>> value = sy.Objective(sy.losses.BCE(), unknown=rule)(torch.zeros(2, 3), targets, index)
        >>> sorted(value.parts)
        ['loss', 'role_count', 'role_estimates']
    """

    reduction = "mean"

    def __init__(self, targets: ArrayLike, expected_positives: float, seed: int = 0) -> None:
        super().__init__()
        t = as_tensor(targets)
        if t.ndim != 2:
            raise ValueError(f"targets has shape {tuple(t.shape)}: give the training labels (N, L)")
        if not 0 < expected_positives <= t.shape[1]:
            raise ValueError(f"expected_positives is {expected_positives}: it must be in (0, {t.shape[1]}]")
        self.expected_positives = float(expected_positives)
        start = torch.logit(0.4 + 0.2 * uniform(seed, 0, torch.arange(len(t)), t.shape[1]))
        sure = math.log(0.995 / 0.005)
        self.theta = nn.Parameter(torch.where(known(t), torch.where(t >= 0.5, sure, -sure), start))

    def forward(self, targets: Targets, logits: Tensor, index: Tensor | None) -> Cells:
        """Return the label terms of ŷ: ½(1+e), ½(1−e) for a known positive, 0, 1 for a known negative, else ½e, ½(1−e).

        Args:
            targets: checked targets (B, L).
            logits: (B, L), without gradient.
            index: the items' numbers in the data set (B,), or None.
        """
        dtype = compute_dtype(logits)
        estimate = torch.sigmoid(self._theta(logits, index)).detach().to(dtype)
        estimate = estimate.masked_fill(targets.values == 0, 0.0)
        is_known = known(targets.values).to(dtype)
        y = targets.values.to(dtype).clamp_min(0)
        return Cells((y + estimate) / 2, (is_known - y + 1 - estimate) / 2)

    def extra(self, targets: Targets, logits: Tensor, index: Tensor | None) -> dict[str, Tensor]:
        """Return R(ŷ)/2 and the half of the estimates.

        Args:
            targets: checked targets (B, L).
            logits: (B, L), with gradient.
            index: the items' numbers in the data set (B,), or None.
        """
        z, theta = logits.to(compute_dtype(logits)), self._theta(logits, index)
        y, n = targets.values.to(z.dtype), max(z.numel(), 1)
        present, absent = y.clamp_min(0), known(targets.values).to(z.dtype) - y.clamp_min(0)
        other = torch.sigmoid(z).detach()
        labels = (present + other) * softplus(-theta) + (absent + 1 - other) * softplus(theta)
        return {
            "role_count": count_penalty(torch.sigmoid(z), self.expected_positives) / 2,
            "role_estimates": labels.sum() / n / 2 + count_penalty(torch.sigmoid(theta), self.expected_positives) / 2,
        }

    def estimates(self, index: Tensor) -> Tensor:
        """Return the estimates e (B, L) of items `index`."""
        return torch.sigmoid(self.theta[index]).detach()

    def _theta(self, logits: Tensor, index: Tensor | None) -> Tensor:
        items = need_index(index)
        theta = self.theta[items]
        if theta.shape != logits.shape:
            raise ValueError(
                f"logits has shape {tuple(logits.shape)}, but the estimates of these items have "
                f"{tuple(theta.shape)}: give one row per item and one column per label"
            )
        return theta
