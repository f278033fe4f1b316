"""Temperature scaling."""

from __future__ import annotations

from typing import final

from torch import Tensor

from steelyard.calibrate.scaling import Scaling


@final
class Temperature(Scaling):
    """Temperature scaling: η = σ(z/T_c), T_c > 0 (Guo et al. 2017).

    T minimises the log-loss of the known labels; a label's T is shrunk toward the pooled one by partial pooling (see
    `shrinkage`), the pooled fit counting as m positives. A temperature moves no logit across 0: logits whose zero is
    not at even odds (rebalanced training, any loss but BCE) want log-odds from `Link` as input, or `Platt`. For the
    same reason it cannot give a rare label its level, and `fit` makes no use of `level`.

    Args:
        per: "label", or "pooled" for one temperature.
        prior_positives: m, how many positives the pooled fit is worth beside a label's own (20).
    """

    @property
    def _has_shift(self) -> bool:
        return False

    @property
    def temperature(self) -> Tensor:
        """T, float64 (L,), or (1,) if pooled; infinite where the labels do not rise with the logits."""
        return 1 / self.slope
