"""Turn any model's scores into probabilities by the labels that are known."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.calibrate.scaling import Platt

_EDGE = 1e-6  # of scores in [0, 1], so that their log-odds are finite


def teacher_probabilities(scores: ArrayLike, targets: Any) -> NDArray[np.float32]:
    """Return scores (N, L) as probabilities, one line of log-odds per label fitted to the known labels (`Platt`).

    Scores that all lie in [0, 1] are taken as probabilities, others as they are: cosines, logits, ranks. A label with
    few known labels leans on all labels together. What has no score (NaN) has no probability.

    Args:
        scores: (N, L), such as those of a zero-shot model.
        targets: (N, L), −1 unknown.

    Examples:
        >>> scores = np.linspace(-1, 1, 100)[:, None]  # cosines of a zero-shot model
        >>> targets = np.where(np.arange(100)[:, None] % 5 == 0, scores > 0.3, -1)  # one item in five is annotated
        >>> sy.calibrate.teacher_probabilities(scores, targets)[[0, 99]].round()
        array([[0.],
               [1.]], dtype=float32)
    """
    given, known = np.asarray(scores, dtype=np.float64), np.asarray(targets)
    if given.shape != known.shape or given.ndim != 2:
        raise ValueError(f"scores has shape {given.shape}, but targets has {known.shape}: give (N, L) for both")
    missing = np.isnan(given)
    judged = known[~missing & (known >= 0)]
    if not (judged >= 0.5).any() or not (judged < 0.5).any():
        raise ValueError(
            "scores can be calibrated only where some labels are known to be present and some to be absent: let some "
            "items be labelled in full"
        )
    z = np.where(missing, 0.5, given)
    if z.min() >= 0 and z.max() <= 1:
        clipped = np.clip(z, _EDGE, 1 - _EDGE)
        z = np.log(clipped) - np.log1p(-clipped)
    calibrator = Platt().fit(z, np.where(missing, -1, known))
    return np.where(missing, np.nan, np.asarray(calibrator(z))).astype(np.float32)
