"""Platt scaling."""

from __future__ import annotations

from typing import final

from torch import Tensor

from steelyard.calibrate.scaling import Scaling


@final
class Platt(Scaling):
    """Platt scaling: η = σ(a_c z + b_c), a_c ≥ 0 (Platt 1999).

    a, b minimise the log-loss of the known labels; a label's are shrunk toward the pooled ones by partial pooling (see
    `shrinkage`), the pooled fit counting as m positives.

    Args:
        per: "label", or "pooled" for one line.
        prior_positives: m, how many positives the pooled fit is worth beside a label's own (20).
    """

    @property
    def _has_shift(self) -> bool:
        return True

    @property
    def shift(self) -> Tensor:
        """The shifts b, float64 (L,), or (1,) if pooled."""
        return self._fitted()[0].shift
