"""Hill loss: negatives that the model takes for positives cost less."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from steelyard.balance.checks import check_range
from steelyard.losses.focused import focused, focused_log_slope
from steelyard.losses.loss import Reduction
from steelyard.losses.pair import AnalyticLoss


class Hill(AnalyticLoss):
    """Hill loss (Zhang et al. 2021): an absent label with a very high probability costs less.

    Formula:
        ℓ₊(z) = (1 − p_m)^γ softplus(−(z − m)), p_m = σ(z − m)
        ℓ₋(z) = (λ − p) p², p = σ(z)
        ℓ₋′(z) = p² (1 − p) (2 λ − 3 p)

    ℓ₋′ falls again where p is large, "down the hill". With the positives of the authors' code
    (γ = 2, m = 1) ℓ₊' falls faster, so that a link exists; over −log p (γ = 0) it does not, and is refused.

    Args:
        lam: λ (the authors: 1.5).
        margin: m of the positive logit (the authors: 1).
        gamma: γ of the positive side (the authors: 2).
        reduction: "mean", "item", "sum" or "none".
        validate: check target values on CUDA too.

    Examples:
        >>> loss, z = sy.losses.Hill(), torch.tensor([0.0, 2.0, 6.0])
        >>> loss.negative(z).diff()  # beyond z = 2 a negative hardly costs more: it may be a missing positive
        tensor([0.2304, 0.0196])
        >>> loss.probability(z)
        tensor([0.1962, 0.3861, 0.9531])
        >>> sy.losses.Hill(margin=0.0, gamma=0.0).probability(z)
        Traceback (most recent call last):
            ...
        steelyard.losses.loss.NoLink: Hill has no probability: its stationary log-odds fall as z grows ...
    """

    def __init__(
        self,
        lam: float = 1.5,
        margin: float = 1.0,
        gamma: float = 2.0,
        *,
        reduction: Reduction = "mean",
        validate: bool = False,
    ) -> None:
        super().__init__(reduction=reduction, validate=validate)
        if not 1.5 <= lam < math.inf:
            raise ValueError(f"lam is {lam}: it must be at least 1.5 and finite, else sure negatives would pay")
        check_range("finite", margin=margin)
        check_range("at least 0", gamma=gamma)
        self.lam, self.margin, self.gamma = float(lam), float(margin), float(gamma)

    def sided(self, z: Tensor, side: Tensor | float) -> tuple[Tensor, Tensor]:
        """Return ℓ₊, ℓ₊' where side is 1 and ℓ₋, ℓ₋' where it is 0."""
        up, fall = focused(self.margin - z, self.gamma)
        p, q = torch.sigmoid(z), torch.sigmoid(-z)
        down, rise = (self.lam - p) * p * p, p * p * q * (2 * self.lam - 3 + 3 * q)
        return side * up + (1 - side) * down, (1 - side) * rise - side * fall

    def link(self, z: Tensor) -> Tensor:
        """Return log ℓ₋'(z) − log(−ℓ₊'(z))."""
        log_q = F.logsigmoid(-z)
        flat = self.lam == 1.5  # then 2 λ − 3 p is 3 (1 − p), which a large z must not make 0
        rest = math.log(3) + log_q if flat else torch.log(2 * self.lam - 3 + 3 * torch.sigmoid(-z))
        return 2 * F.logsigmoid(z) + log_q + rest - focused_log_slope(self.margin - z, self.gamma)
