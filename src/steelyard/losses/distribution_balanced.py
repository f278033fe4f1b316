"""The Distribution-Balanced loss: re-balanced weights times negative-tolerant terms."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from steelyard.balance.weighting import Rebalanced, Weighting
from steelyard.labels.targets import ArrayLike
from steelyard.losses.loss import Reduction
from steelyard.losses.negative_tolerant import NegativeTolerant
from steelyard.losses.pair import PairLoss


class WeightedLoss(nn.Module):
    """A loss whose labels are weighed by a weighting w of their targets y.

    Formula:
        ℓ(z, y) = w(y) (y ℓ₊(z) + (1 − y) ℓ₋(z))

    `positive`, `negative` and the link are those of the loss without the weights, which depend on the item: give their
    class means (`steelyard.balance.expected_weights`) as w₊ and w₋, or let an `Objective` keep them.

    Args:
        loss: the pair whose terms are weighted, such as `NegativeTolerant`.
        weighting: the weights of a batch, from its targets.

    Examples:
        >>> weighting = sy.balance.InverseFrequency(torch.tensor([400.0, 100.0]))
        >>> loss = sy.losses.WeightedLoss(sy.losses.BCE(reduction="none"), weighting)
        >>> loss(torch.zeros(1, 2), torch.tensor([[1, 1]]))  # .69 times 1/2 and 1
        tensor([[0.3466, 0.6931]])
    """

    def __init__(self, loss: PairLoss, weighting: Weighting) -> None:
        super().__init__()
        self.loss: PairLoss = loss
        self.weighting: Weighting = weighting
        self.eta_range = loss.eta_range

    @property
    def reduction(self) -> Reduction:
        """The reduction of the loss."""
        return self.loss.reduction

    def forward(self, logits: Tensor, targets: ArrayLike, weight: ArrayLike | float | None = None) -> Tensor:
        """Return the loss; `weight` (anything that broadcasts to (B, L)) multiplies each label's term once more.

        Args:
            logits: (B, L), floating-point.
            targets: (B, L), 1 present, 0 absent, −1 unknown, between them soft.
            weight: a number, (L,), (B, 1) or (B, L), finite and at least 0.
        """
        loss, weighting = self.loss, self.weighting
        batch = loss.batch(logits, targets, weight)
        if logits.shape[1] != weighting.n_labels:
            raise ValueError(
                f"logits has {logits.shape[1]} labels, but the weighting was made for {weighting.n_labels}: "
                "make them equal"
            )
        return loss.evaluate_batch(logits, batch._replace(weights=weighting.weights, rebalanced=weighting.kernel()))

    def positive(self, z: Tensor) -> Tensor:
        """Return ℓ₊(z) without its weight.

        Args:
            z: logits, any shape.
        """
        return self.loss.positive(z)

    def negative(self, z: Tensor) -> Tensor:
        """Return ℓ₋(z) without its weight.

        Args:
            z: logits, any shape.
        """
        return self.loss.negative(z)

    def log_odds(
        self, z: Tensor, pos_weight: ArrayLike | float | None = None, neg_weight: ArrayLike | float | None = None
    ) -> Tensor:
        """Return log η/(1−η), given the mean weights of positives and negatives.

        Args:
            z: logits (…, L).
            pos_weight, neg_weight: w₊ and w₋, the mean weights of present and absent labels in training, numbers or
                (L,); None for 1.
        """
        return self.loss.log_odds(z, pos_weight, neg_weight)

    def probability(
        self, z: Tensor, pos_weight: ArrayLike | float | None = None, neg_weight: ArrayLike | float | None = None
    ) -> Tensor:
        """Return η at logits z: σ of `log_odds`.

        Args:
            z: logits (…, L).
            pos_weight, neg_weight: w₊ and w₋, the mean weights of present and absent labels in training, numbers or
                (L,); None for 1.
        """
        return torch.sigmoid(self.log_odds(z, pos_weight, neg_weight))


def DistributionBalanced(
    counts: ArrayLike,
    n_known: int | ArrayLike,
    alpha: float = 0.1,
    beta: float = 10.0,
    mu: float = 0.2,
    lam: float = 2.0,
    kappa: float = 0.05,
    gamma: float = 0.0,
    focal_scale: float = 2.0,
    as_released: bool = False,
    *,
    floor: int | None = None,
    reduction: Reduction = "mean",
    validate: bool = False,
) -> WeightedLoss:
    """Distribution-Balanced loss (Wu et al. 2020): `Rebalanced` weights r̂ × `NegativeTolerant` terms.

    R-BCE is `lam=1, kappa=0`; DB-Focal is `gamma=2`; NT-BCE is `NegativeTolerant` alone.

    Formula:
        ℓ₊(z) = r̂ softplus(−(z − ν_c)), ν_c = κ log(1/π_c − 1)
        ℓ₋(z) = r̂ softplus(λ(z − ν_c))/λ

    Args:
        counts: positives n_c of each class (L,).
        n_known: known labels k_c, one number or (L,).
        alpha, beta, mu: of r̂ (paper: .1, 10, .3 VOC-MLT; .1, 10, .2 COCO-MLT).
        lam, kappa: λ and κ of NTR (paper: 5, .05 VOC-MLT; 2, .05 COCO-MLT).
        gamma: γ of the focal factor, 0 for none (paper: 2).
        focal_scale: the constant of the focal factor, applied only with γ > 0 (paper's code: 2).
        as_released: divide ν by λ once more, as the authors' code does; their published numbers used it.
        floor: stands in for a class's 0 positives or 0 negatives, which are refused otherwise.
        reduction: "mean", "item", "sum" or "none".
        validate: check target values on CUDA too.

    Examples:
        >>> counts = torch.tensor([900.0, 50.0, 10.0])
        >>> loss = sy.losses.DistributionBalanced(counts, n_known=1000)
        >>> logits, targets = torch.zeros(2, 3), torch.tensor([[1, 0, -1], [0, 1, 1]])
        >>> loss(logits, targets)
        tensor(0.4790)
        >>> loss.weighting(targets)[1]  # r̂ of an item with the two rare labels: the rarest counts most
        tensor([0.2293, 0.5174, 1.0982])
        >>> loss.probability(logits[:1])  # a DB logit of 0 is not η = .5
        tensor([[0.5400, 0.4430, 0.4099]])
    """
    terms = NegativeTolerant(
        counts,
        n_known,
        lam,
        kappa,
        gamma,
        focal_scale,
        as_released,
        floor=floor,
        reduction=reduction,
        validate=validate,
    )
    return WeightedLoss(terms, Rebalanced(counts, alpha, beta, mu, floor=floor))
