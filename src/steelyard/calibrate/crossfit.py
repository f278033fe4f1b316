"""Choices by cross-fitting on held-out items: the kind of calibrator, and whether to use label sets."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import logsigmoid

from steelyard._arrays import Floats
from steelyard.balance.split import stratified_split
from steelyard.calibrate.calibrator import Calibrator
from steelyard.calibrate.isotonic import Isotonic
from steelyard.calibrate.label_sets import LabelSets
from steelyard.calibrate.scaling import Platt, Scaling, Temperature
from steelyard.labels import UNKNOWN, Labels
from steelyard.labels.targets import labels_of_all_frequencies

Folds: TypeAlias = NDArray[np.int64]

Fitted: TypeAlias = type[Temperature | Platt | Isotonic]
MAKERS: dict[str, Fitted] = {"temperature": Temperature, "platt": Platt, "isotonic": Isotonic}
"""The calibrators that are fitted, the simpler first."""

BASES = {"link": "", "sampled": " on odds as sampled", "logits": " on logits"}
"""The inputs of a calibrator and how reports name them: all undone, class-aware sampling left in, z itself."""
N_FOLDS = 5
LARGE = 4e6
"""Cells of a table of which calibrators are cross-fitted on two halves."""
CHOOSING_LABELS = 200
"""Labels that suffice to choose among calibrators."""
FEWEST = 10
"""With fewer known positives, or negatives, cross-fitting teaches nothing."""
TILT = 5e-4
"""Log-odds at either end that keep items apart which a flat part of a calibration curve would tie."""


def folds_of(
    targets: Tensor, n_folds: int | None = None, seed: int = 0, groups: NDArray[np.int64] | None = None
) -> Folds:
    """Return the fold 0 … K−1 of each item, (N,), so that each has its share of every label's positives.

    A fold is split off after the other by `stratified_split`; a label with fewer positives than folds misses some, and
    of a handful of items a fold may get none.

    Args:
        targets: (N, L).
        n_folds: K, as many as there are items at most; by default 5, or 2 of tables so large that fits take minutes.
        seed: of the split.
        groups: (N,); items of one group are in one fold.
    """
    n = len(targets)
    n_folds = n_folds or (N_FOLDS if targets.numel() <= LARGE else 2)
    n_groups = n if groups is None else len(np.unique(groups))
    if n_groups < 2 <= n:
        raise ValueError("all items are of one group, so no fold can be held out: give another data.group, or none")
    folds, left, k = np.zeros(n, np.int64), np.arange(n), min(n_folds, n_groups)
    labels = Labels(targets).grouped(groups)
    for fold in range(k - 1):
        if len(left) < 2 or (
            groups is not None and len(np.unique(groups[left])) < 2
        ):  # a split keeps a label's only two positives apart before it keeps to its share
            break
        rest, held = stratified_split(labels.take(left), 1 / (k - fold), seed + fold)
        folds[left[held]] = fold + 1
        left = left[rest]
    return folds


def mark_of(targets: Tensor) -> int:
    """Return a checksum of a table of targets (N, L), whatever its dtype, by which items that were fitted on are known.

    Logits would not do: another device rounds them otherwise.
    """
    content = np.ascontiguousarray(targets.cpu().to(torch.float32).numpy())
    return zlib.crc32(content.data, zlib.crc32(str(tuple(targets.shape)).encode()))


def mean_eta(log_odds: Tensor, targets: Tensor) -> Floats:
    """Return the mean η of the known items of each label, of all items where none is known."""
    known = targets != UNKNOWN
    counted = torch.where(known.any(0), known, True)
    mean: Floats = (torch.where(counted, torch.sigmoid(log_odds), 0.0).sum(0) / counted.sum(0)).numpy()
    return mean


def fewest_of_a_kind(targets: Tensor) -> float:
    """Return the number of known positives, or of known negatives, whichever is smaller."""
    known = targets[targets != UNKNOWN].double()
    positive = float(known.sum())
    return min(positive, len(known) - positive)


def outside(targets: Tensor, folds: Folds, fold: int) -> Tensor | None:
    """Return the items outside a fold, or None where they hold no known positive, or no known negative."""
    others = torch.from_numpy(np.flatnonzero(folds != fold))
    return others if fewest_of_a_kind(targets[others]) > 0 else None


def cross_fitted(kind: str, scores: Tensor, targets: Tensor, folds: Folds, level: Floats | None = None) -> Tensor:
    """Return log-odds (N, L), those of each fold by a calibrator that was fitted on the others alone.

    Where the others hold no positive, or no negative, to fit on, the scores are left as they are.

    Args:
        kind: of the calibrator, one of `MAKERS`.
        scores: log-odds or logits (N, L), float64.
        targets: (N, L).
        folds: (N,), of `folds_of`.
        level: how frequent each label is, (L,), see `Calibrator.fit`.
    """
    out = scores.clone()
    for fold in np.unique(folds).tolist():
        others = outside(targets, folds, fold)
        if others is not None:
            inside = torch.from_numpy(np.flatnonzero(folds == fold))
            calibrator = MAKERS[kind]().fit(scores[others], targets[others], level)
            out[inside] = calibrated(calibrator, scores[inside])
    return out


def calibrated(calibrator: Calibrator, scores: Tensor) -> Tensor:
    """Return the log-odds that a calibrator gives scores (N, L), float64, in the order of the scores.

    The steps of `Isotonic` and lines of slope 0 tie items that the scores distinguish, which would cost mean average
    precision: they get a slope of 0.001 in log-odds from end to end, x/(10 + |x|), less than 0.0003 in η.
    """
    odds: Tensor = calibrator.log_odds(scores)
    if isinstance(calibrator, Scaling):
        flat = calibrator.slope == 0
    else:
        flat = torch.tensor([isinstance(calibrator, Isotonic)])
    tilted = odds + TILT * scores.sign() * (1 - 10 / (10 + scores.abs()))
    return torch.where(flat, tilted, odds) if bool(flat.any()) else odds


class CalibratorChoice(NamedTuple):
    """The chosen calibrator, its input, and the out-of-fold log-loss of each that was tried."""

    kind: str
    base: str
    losses: dict[str, float]


def settle(
    kind: str,
    bases: Mapping[str, Tensor],
    has_link: bool,
    targets: Tensor,
    folds: Folds | None,
    level: Floats | None = None,
    refitted: bool = False,
) -> CalibratorChoice:
    """Settle on a calibrator: its kind, where that is "auto", and what it takes, where there are several bases.

    Chosen by `choose`; with too few known positives or negatives, the link, or where there is none Platt, on the last
    base; "link" too where nothing can be fitted and there is no link.

    Of a model that was refitted to all items, Platt comes before the link: a mean of log-odds, which is below the
    log-odds of the mean, makes rare labels too rare, and few held-out positives cannot prove that.

    Args:
        kind: one of `MAKERS`, or "auto".
        bases: what a calibrator may take, log-odds or logits (N, L), float64, by their names in `BASES`.
        has_link: whether the first base is the log-odds of a link, usable without a calibrator.
        targets: (N, L).
        folds: (N,), or None for those of `folds_of`.
        level: how frequent each label is, (L,), see `Calibrator.fit`.
        refitted: whether the scores come from models of folds, in whose place one model is fitted to all items.
    """
    kinds, first = list(MAKERS) if kind == "auto" else [kind], next(iter(bases))
    candidates = {(k, base): scores for k in kinds for base, scores in bases.items()}
    if kind == "auto" and has_link:
        candidates = {("link", first): bases[first], **candidates}
    if kind == "auto" and refitted:
        candidates = {("platt", first): bases[first], **candidates}
    rarer = fewest_of_a_kind(targets)
    if len(candidates) == 1:
        return CalibratorChoice(kind, first, {})
    if rarer >= FEWEST and len(targets) > 1:
        fold_of = folds_of(targets) if folds is None else folds
        if all(outside(targets, fold_of, fold) is not None for fold in np.unique(fold_of).tolist()):
            columns = labels_of_all_frequencies(targets, CHOOSING_LABELS)
            if columns is not None and fewest_of_a_kind(targets[:, columns]) >= FEWEST:
                candidates = {key: scores[:, columns] for key, scores in candidates.items()}
                targets, level = targets[:, columns], None if level is None else level[columns.numpy()]
            return choose(candidates, targets, fold_of, level)
    if kind == "auto":
        return CalibratorChoice("platt" if rarer > 0 and not has_link else "link", first, {})
    return CalibratorChoice(*list(candidates)[-1], {})


def choose(
    candidates: Mapping[tuple[str, str], Tensor], targets: Tensor, folds: Folds, level: Floats | None = None
) -> CalibratorChoice:
    """Choose by K-fold log-loss the first candidate that is no worse than the best by more than one standard error.

    The error is that of the difference to the best, from its spread over items, whose labels are summed: cells of one
    item are not independent.

    Args:
        candidates: by kind of calibrator and name of a base, the simpler first, what it takes, (N, L), float64; the
            kind "link" leaves it as it is.
        targets: (N, L), with a known label.
        folds: (N,), of `folds_of`.
        level: how frequent each label is, (L,), see `Calibrator.fit`.
    """
    n_known = int((targets != UNKNOWN).sum())
    costs = {
        (kind, base): item_log_loss(
            scores if kind == "link" else cross_fitted(kind, scores, targets, folds, level), targets
        )
        for (kind, base), scores in candidates.items()
    }
    best = min(costs.values(), key=lambda cost: float(cost.sum()))
    excesses = {key: cost - best for key, cost in costs.items()}
    chosen = next(k for k, e in excesses.items() if float(e.sum()) <= float(e.std(correction=0)) * len(e) ** 0.5)
    losses = {kind + BASES[base]: float(cost.sum()) / n_known for (kind, base), cost in costs.items()}
    return CalibratorChoice(*chosen, losses)


def item_log_loss(log_odds: Tensor, targets: Tensor) -> Tensor:
    """Return −Σ_c y log η + (1−y) log(1−η) over the known labels of each item, float64 (N,)."""
    known = targets != UNKNOWN
    x, t = torch.where(known, log_odds, 0.0), targets.to(torch.float64)
    return torch.where(known, -t * logsigmoid(x) - (1 - t) * logsigmoid(-x), 0.0).sum(1)


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
        inside, others = (torch.from_numpy(np.flatnonzero(mask)) for mask in (folds == fold, folds != fold))
        sets, z, t = LabelSets.of(labels[others]), odds[inside], labels[inside]
        gain = sets.log_likelihood(sets.potentials(z), t)
        by_label[inside] += gain
        evidence = z - torch.logit(sets.frequencies[0]) + sets.labels
        by_evidence[inside] = gain - sets.log_likelihood(evidence, t)
    return LabelSets.of(present).implied(odds) if _is_clear(by_label) and _is_clear(by_evidence) else None


def _is_clear(gain: Tensor) -> bool:
    """Return whether gains (N,) are above 0 on average, beyond their error; one of −inf or NaN decides against it."""
    return bool(gain.mean() > ERRORS * gain.std(correction=0) / len(gain) ** 0.5)
