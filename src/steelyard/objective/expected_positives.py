"""EPR: besides the few labels that were annotated, the expected number of positives of an item is known."""

from __future__ import annotations

import torch
from torch import Tensor

from steelyard.balance.checks import check_range
from steelyard.balance.processes import n_processes, summed
from steelyard.labels.targets import Targets, known
from steelyard.losses.loss import Cells, compute_dtype
from steelyard.losses.unknown import Resolver


class ExpectedPositives(Resolver):
    """Expected-positive regularisation (Cole et al. 2021): known labels, and how many positives an item should have.

    Formula:
        ℓ = −Σ_positive log ŷ − Σ_negative log(1 − ŷ) + R(ŷ)
        R(ŷ) = ((mean_i Σ_j ŷ_{ij} − k)/L)²

    Label terms are averaged over B·L; unknown labels are in R alone. The paper's setting has no known negatives.

    Args:
        expected_positives: k, the mean positives of an item (the paper: COCO 2.9, NUS-WIDE 1.9, CUB 31.4, VOC 1.5).

    Examples:
        >>> objective = sy.Objective(sy.losses.BCE(), unknown=sy.objective.ExpectedPositives(expected_positives=1.0))
        >>> objective(torch.zeros(1, 4), torch.tensor([[1, -1, -1, -1]])).parts  # R = ((2 − 1)/4)²
        {'loss': tensor(0.1733), 'expected_positives': tensor(0.0625)}
    """

    reduction = "mean"

    def __init__(self, expected_positives: float) -> None:
        super().__init__()
        check_range("positive", expected_positives=expected_positives)
        self.expected_positives = float(expected_positives)

    def forward(self, targets: Targets, logits: Tensor, index: Tensor | None) -> Cells:
        """Return y and 1−y for known labels, 0 for others, all counted.

        Args:
            targets: checked targets (B, L).
            logits: (B, L), without gradient.
            index: the items' numbers in the data set (B,), or None.
        """
        y = targets.values.to(compute_dtype(logits)).clamp_min(0)
        return Cells(y, known(targets.values).to(y.dtype) - y)

    def extra(self, targets: Targets, logits: Tensor, index: Tensor | None) -> dict[str, Tensor]:
        """Return R(ŷ).

        Args:
            targets: checked targets (B, L).
            logits: (B, L), with gradient.
            index: the items' numbers in the data set (B,), or None.
        """
        p = torch.sigmoid(logits.to(compute_dtype(logits)))
        return {"expected_positives": count_penalty(p, self.expected_positives)}


def count_penalty(p: Tensor, expected: float) -> Tensor:
    """Return R(p) of the whole batch; over several processes its value, and the gradient of this one's items."""
    mean = p.sum() / max(len(p), 1)
    if n_processes() > 1:
        whole = summed(torch.stack([p.sum(), p.new_tensor(len(p))]))
        mean = (whole[0] / whole[1].clamp_min(1)).detach() + mean - mean.detach()
    elif len(p) == 0:
        return p.sum()
    return ((mean - expected) / p.shape[1]) ** 2
