"""Negative-tolerant regularisation of the Distribution-Balanced loss."""

from __future__ import annotations

import torch

from steelyard.balance.checks import check_range
from steelyard.labels.targets import ArrayLike, check_counts, check_known
from steelyard.losses.loss import Reduction
from steelyard.losses.softplus_pair import SoftplusPair


def LogitAdjusted(
    counts: ArrayLike,
    n_known: int | ArrayLike,
    tau: float = 1.0,
    *,
    floor: int | None = None,
    reduction: Reduction = "mean",
    validate: bool = False,
) -> NegativeTolerant:
    """Logit adjustment (Menon et al. 2021) for labels: BCE of a shifted logit.

    Formula:
        ℓ₊(z) = softplus(−(z − ν_c)), ν_c = τ log(1/π_c − 1)
        ℓ₋(z) = softplus(z − ν_c)

    It is `NegativeTolerant` with λ = 1 and κ = τ. z itself ranks items as if every label were as often present as
    absent (τ = 1); the link puts the frequency back.

    Args:
        counts: positives n_c of each class (L,).
        n_known: known labels k_c, one number or (L,); π_c = n_c/k_c.
        tau: τ, the strength of the adjustment (the paper: 1).
        floor: stands in for a class's 0 positives or 0 negatives, which are refused otherwise.
        reduction: "mean", "item", "sum" or "none".
        validate: check target values on CUDA too.

    Examples:
        >>> loss = sy.losses.LogitAdjusted(torch.tensor([10.0, 500.0]), n_known=1000)
        >>> loss.probability(torch.zeros(1, 2))  # at z = 0 the label is as likely as it is frequent
        tensor([[0.0100, 0.5000]])
    """
    check_range("finite", tau=tau)
    return NegativeTolerant(counts, n_known, 1.0, tau, floor=floor, reduction=reduction, validate=validate)


class NegativeTolerant(SoftplusPair):
    """Negative-tolerant BCE (Wu et al. 2020): negatives of rare labels push less.

    Formula:
        ℓ₊(z) = softplus(−(z − ν_c)), ν_c = κ log(1/π_c − 1)
        ℓ₋(z) = softplus(λ(z − ν_c))/λ

    With γ > 0 both terms are multiplied by c (1−p_t)^γ, p_t taken from the shifted and scaled logit (NT-focal; the
    gradient flows through the factor).

    Args:
        counts: positives n_c of each class (L,).
        n_known: known labels k_c, one number or (L,); π_c = n_c/k_c.
        lam: λ, the scale of the negative side (paper: 5 VOC-MLT, 2 COCO-MLT).
        kappa: κ, the strength of the class-wise shift (paper: .05).
        gamma: γ, 0 for no focal factor (paper: 2).
        focal_scale: the constant c, applied only with γ > 0 (paper's code: 2).
        as_released: divide ν by λ once more, as the authors' code does; their published numbers used it.
        floor: stands in for a class's 0 positives or 0 negatives, which are refused otherwise.
        reduction: "mean", "item", "sum" or "none".
        validate: check target values on CUDA too.

    Examples:
        >>> loss = sy.losses.NegativeTolerant(torch.tensor([10.0, 500.0]), n_known=1000)
        >>> z = torch.tensor([[2.0, 2.0]])
        >>> loss.negative(z)  # BCE: 2.13; the curve of negatives is flatter, and shifted for the rare class
        tensor([[1.7845, 2.0091]])
        >>> loss.probability(z)
        tensor([[0.8698, 0.8918]])
    """

    def __init__(
        self,
        counts: ArrayLike,
        n_known: int | ArrayLike,
        lam: float = 2.0,
        kappa: float = 0.05,
        gamma: float = 0.0,
        focal_scale: float = 2.0,
        as_released: bool = False,
        *,
        floor: int | None = None,
        reduction: Reduction = "mean",
        validate: bool = False,
    ) -> None:
        check_range("positive", lam=lam, focal_scale=focal_scale)
        check_range("finite", kappa=kappa)
        n = check_counts(counts, n_known, floor)
        absent = check_known(n_known, len(n)) - n
        if floor is not None:
            absent = absent.clamp_min(floor)
        elif (absent <= 0).any():
            i = int((absent <= 0).nonzero()[0])
            raise ValueError(f"counts[{i}] equals n_known, {n[i].item():g}: a class without negatives needs floor=1")
        nu = kappa * torch.log(absent / n)  # 1/π − 1 = (k − n)/n
        nu = nu / lam if as_released else nu
        c = focal_scale if gamma > 0 else 1.0
        super().__init__(
            slope=(1.0, lam), shift=(nu, nu), scale=(c, c / lam), gamma=gamma, reduction=reduction, validate=validate
        )
