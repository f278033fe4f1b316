"""Whether the items at hand are read by label sets: only where held-out items show that this explains them better."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from steelyard.calibrate import LabelSets
from steelyard.calibrate.crossfit import folds_of, item_log_loss
from steelyard.labels import UNKNOWN

MOST_LABELS = 100
"""L, above which label sets are too slow to be the default."""
MOST_AT_ONCE = 8
"""Labels that an item may have at most."""
SPREAD = 0.5
"""The variance of the number of labels, as a share of what independent labels would have, above which none is tried."""
ERRORS = 2.0
"""Standard errors by which the log-likelihood must be better."""
_MOST_ITEMS = 4096


def label_sets(log_odds: Tensor, targets: Tensor) -> LabelSets | None:
    """Return the distribution of the label sets that η is calibrated for, None where labels are to be read one by one.

    It is taken where all of this holds: every label is known; there are at most 100 labels, 8 of an item; how many an
    item has varies at most half as much, Var |S| ≤ ½ Σ π(1−π), as if labels came independently of each other; and the
    label sets of held-out items are more probable, log p(S|x) by two standard errors, by label sets fitted on the other
    folds than (1) label by label, and than (2) where η_c tells of label c alone and nothing of the others, p(S|x) ∝
    p(S) Π_{c∈S} odds(η_c)/odds(π_c): a model of that kind does not know how many labels an item has, and what follows
    from its η for other label sets would be wrong. An item with a number of labels that no other fold has is impossible
    there, and decides against label sets.

    Args:
        log_odds: of η, (N, L), float64, calibrated.
        targets: (N, L), of items that training has not seen.
    """
    n, n_labels = targets.shape
    if n < 10 or n_labels < 2 or n_labels > MOST_LABELS or bool((targets == UNKNOWN).any()):
        return None
    present = (targets >= 0.5).double()
    sizes, prior = present.sum(1), present.mean(0)
    if sizes.max() > MOST_AT_ONCE or sizes.var(correction=0) > SPREAD * (prior * (1 - prior)).sum():
        return None
    some = torch.arange(0, n, -(-n // _MOST_ITEMS))
    odds, labels = log_odds[some].double(), present[some]
    folds = folds_of(labels)
    by_label, by_evidence = item_log_loss(odds, labels), torch.zeros(len(some), dtype=torch.float64)
    for fold in np.unique(folds).tolist():
        inside, others = (torch.from_numpy(np.flatnonzero(at)) for at in (folds == fold, folds != fold))
        sets, z, t = LabelSets.of(labels[others]), odds[inside], labels[inside]
        found = sets.log_likelihood(sets.potentials(z), t)
        by_label[inside] += found
        evidence = z - torch.logit(sets.frequencies[0]) + sets.labels
        by_evidence[inside] = found - sets.log_likelihood(evidence, t)
    return LabelSets.of(present).implied(odds) if _is_clear(by_label) and _is_clear(by_evidence) else None


def _is_clear(gain: Tensor) -> bool:
    """Whether gains (N,) are above 0 on average, beyond their error; one that is −inf or NaN decides against it."""
    return bool(gain.mean() > ERRORS * gain.std(correction=0) / len(gain) ** 0.5)
