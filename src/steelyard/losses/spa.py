"""Strictly proper asymmetric loss."""

from __future__ import annotations

from steelyard.balance.checks import check_range
from steelyard.losses.loss import Reduction
from steelyard.losses.softplus_pair import SoftplusPair


class SPA(SoftplusPair):
    """Strictly proper asymmetric loss: a slope, a shift and a scale for each side.

    The paper's eq. 17 prints both signs of the link inverted; that form falls as z grows.

    Formula:
        ℓ₊(z) = softplus(−k₊(z − b₊))/ζ₊
        ℓ₋(z) = softplus(k₋(z − b₋))/ζ₋
        η = A/(A + B), A = k₋/ζ₋ σ(k₋(z − b₋)), B = k₊/ζ₊ σ(−k₊(z − b₊))

    Args:
        zeta_pos, k_pos, b_pos: ζ₊, k₊, b₊ of a present label (paper: 1, 1, 0).
        zeta_neg, k_neg, b_neg: ζ₋, k₋, b₋ of an absent label (paper: 5, 3, 1).
        reduction: "mean", "item", "sum" or "none".
        validate: check target values on CUDA too.

    Examples:
        >>> z = torch.tensor([-1.0, 0.0, 1.0])
        >>> torch.sigmoid(z)
        tensor([0.2689, 0.5000, 0.7311])
        >>> loss = sy.losses.SPA()
        >>> loss.probability(z)
        tensor([0.0020, 0.0538, 0.5273])
        >>> loss(z[None], torch.tensor([[0, -1, 1]]))  # the second label is unknown
        tensor(0.1569)
    """

    def __init__(
        self,
        zeta_pos: float = 1.0,
        k_pos: float = 1.0,
        b_pos: float = 0.0,
        zeta_neg: float = 5.0,
        k_neg: float = 3.0,
        b_neg: float = 1.0,
        *,
        reduction: Reduction = "mean",
        validate: bool = False,
    ) -> None:
        check_range("positive", zeta_pos=zeta_pos, k_pos=k_pos, zeta_neg=zeta_neg, k_neg=k_neg)
        check_range("finite", b_pos=b_pos, b_neg=b_neg)
        super().__init__(
            slope=(k_pos, k_neg),
            shift=(b_pos, b_neg),
            scale=(1 / zeta_pos, 1 / zeta_neg),
            reduction=reduction,
            validate=validate,
        )
