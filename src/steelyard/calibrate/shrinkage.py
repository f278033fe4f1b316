"""How much a label is believed when it speaks for itself: partial pooling by the count of its rarer outcome."""

from __future__ import annotations

import math

import torch
from torch import Tensor

PRIOR_POSITIVES = 20.0
"""How many positives a label's prior is worth beside its own (chosen by examples/choose_prior_positives.py)."""
SHAPE_POSITIVES = 150.0
"""The same where a label has a curve of its own, with more ways to be wrong than a line has (chosen alike)."""
IDENTITY_POSITIVES = 1.0
"""How many positives σ is worth beside those of all labels together, in the pooled fit."""


def prior_share(present: Tensor, absent: Tensor, expected: Tensor, prior_positives: float) -> Tensor:
    """Return λ = m/(m + n), the say of a prior beside a label's own n₊ positives and n₋ negatives.

    What labels tell about a calibration curve is limited by their rarer outcome: the information on a shift of the
    log-odds is Σ η(1−η), at most the number of positives of a rare label, however many negatives there are. So the
    prior's worth is stated in that unit, m labels of the rarer kind, and n is the count of the rarer kind, as observed
    or as the prior expects it (Σ q), whichever is more: five positives where a hundred are expected are no weak
    evidence. A fit to (1−λ) y + λ q, q the prior's η at the label's own logits, is the posterior mode when the prior
    labelled cells with m such outcomes (a data-augmentation prior, the conjugate one of an exponential family). Five
    positives of five expected leave four fifths of the say to m = 20; five thousand leave it .4 %; none where hundreds
    are expected leaves it little, none where none is expected leaves it everything.

    Args:
        present, absent: n₊ and n₋.
        expected: Σ q over the known cells.
        prior_positives: m.
    """
    observed = torch.minimum(present, absent)
    n = torch.maximum(observed, torch.minimum(expected, present + absent - expected))
    return prior_positives / (prior_positives + n)


def check_prior_positives(value: float) -> float:
    """Return `value`, positive and finite."""
    if not 0 < value < math.inf:
        raise ValueError(f"prior_positives is {value}: it must be positive and finite")
    return float(value)
