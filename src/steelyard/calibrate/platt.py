"""Platt scaling."""

from __future__ import annotations

from typing import final

from torch import Tensor

from steelyard.calibrate.scaling import Scaling


@final
class Platt(Scaling):
    """Platt scaling: η = σ(a_c z + b_c), a_c ≥ 0 (Platt 1999).

    a, b minimise the log-loss of the known labels; a label's are shrunk by partial pooling (see `shrinkage`) toward the
    slope that all labels share and the shift that gives the label its own level, from counts (see `levels`). A rare
    label so keeps its frequency, which a line shared by all labels does not know.

    Args:
        per: "label", or "pooled" for one line.
        prior_positives: m, how many positives the prior is worth beside a label's own (20).
    """

    @property
    def _has_shift(self) -> bool:
        return True

    @property
    def shift(self) -> Tensor:
        """The shifts b, float64 (L,), or (1,) if pooled."""
        return self._fitted().shift
