"""Focal loss."""

from __future__ import annotations

from steelyard.losses.loss import Reduction
from steelyard.losses.softplus_pair import SoftplusPair


class Focal(SoftplusPair):
    """Focal loss (Lin et al. 2017): labels that are already right count less.

    Its link is the φ of the calibration paper's eq. 14. Converted by σ instead, focal outputs are under-confident.

    Formula:
        ℓ₊(z) = −c (1 − p)^γ log p, p = σ(z)
        ℓ₋(z) = −c p^γ log(1 − p)
        log η/(1 − η) = (γ + 1) z + log(1 + γ R(z)) − log(1 + γ R(−z)), R(x) = e^(−x) softplus(x)

    Args:
        gamma: the focusing exponent γ ≥ 0; gradients flow through the focusing weight.
        scale: the constant c (the Distribution-Balanced paper trains with 2).
        reduction: "mean", "item", "sum" or "none".
        validate: check target values on CUDA too.

    Examples:
        >>> z = torch.tensor([-2.0, 0.0, 2.0])
        >>> torch.sigmoid(z)
        tensor([0.1192, 0.5000, 0.8808])
        >>> sy.losses.Focal().probability(z)  # focal outputs are under-confident: its link mends that
        tensor([0.0045, 0.5000, 0.9955])
        >>> sy.losses.Focal(gamma=0.0).probability(z)  # without a focus it is BCE
        tensor([0.1192, 0.5000, 0.8808])
    """

    def __init__(
        self, gamma: float = 2.0, scale: float = 1.0, *, reduction: Reduction = "mean", validate: bool = False
    ) -> None:
        super().__init__(gamma=gamma, scale=(scale, scale), reduction=reduction, validate=validate)
