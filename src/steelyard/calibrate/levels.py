"""The prior of a label's calibration line: the label's own level, and the slope that all labels share."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from steelyard.calibrate.calibrator import Held, as_vector
from steelyard.calibrate.lines import Line, fit_common_slope
from steelyard.calibrate.shrinkage import IDENTITY_POSITIVES, prior_share
from steelyard.labels.targets import ArrayLike, refuse

_MAX_STEPS = 200


def smoothed_level(present: Tensor, known: Tensor) -> Tensor:
    """Return the frequency of each label from its counts, (n + ½)/(k + ½/r), inside (0, 1).

    Half a positive is added, among as many items as it takes to meet half a positive at the rate r. A label with no
    positive among k items so has a level of at most 1/2k, and one of which little is known has about r. The rate is
    that of all labels with a positive together, (Σ n + ½)/(Σ k + 1): labels without one would make r so small that the
    half positive outweighs what other labels show.

    Args:
        present: n, positives of each label (L,), float64.
        known: k, known outcomes of each label (L,), float64.
    """
    with_positives = present > 0
    rate = (present[with_positives].sum() + 0.5) / (known[with_positives].sum() + 1)
    return (present + 0.5) / (known + 0.5 / rate)


def own_level_line(held: Held, level: Tensor | None) -> Line:
    """Return the prior line of each label: one slope for all labels, and the shift that gives the label its own level.

    The slope minimises the log-loss of all labels, each with a shift of its own, so that labels whose level is wrong
    do not flatten it; slope 1 is its prior, worth one positive. The shift b_c then solves

        mean of σ(a z + b_c) over the n_c known items of the label = w_c level_c + (1 − w_c) ȳ_c,
        w_c = (1 − ρ_c) / (1 + τ² n_c ȳ_c (1 − ȳ_c)),

    where ȳ_c is the label's own frequency among these items (`smoothed_level`). ρ_c = Var η/(mean η (1 − mean η)) is
    the share of the label's variance that the logits explain: by chance a sample has more or fewer positives than the
    level says, and as far as the logits explain that, it is no error of η. So a sharp model is held to the positives
    that its items have, and a model that tells items apart badly to the level. τ² is how far the frequencies of these
    items stray from the levels beyond chance (`_stray`), as when they come from elsewhere. The weights are those of
    least variance: the label's frequency scatters about the mean η by (1 − ρ) ȳ(1 − ȳ)/n, and the mean η about the
    level by ρ ȳ(1 − ȳ)/n + τ² (ȳ(1 − ȳ))².

    Args:
        held: what the calibrator is fitted on.
        level: the frequency of each label (L,) where the items come from, such as training's; None, or NaN for a
            label, takes ȳ. A label with no known item has its mean taken over all items.
    """
    known = held.present + held.absent
    own = smoothed_level(held.present, known)
    cells = _all_where_none_known(held)
    one = torch.ones(1, dtype=torch.float64, device=own.device)
    identity = Line(one, shift_to_level(cells, one, own))
    share = prior_share(held.present.sum(), held.absent.sum(), (own * known).sum(), IDENTITY_POSITIVES)
    slope = fit_common_slope(held, identity, share)
    line = Line(slope, shift_to_level(cells, slope, own))
    if level is None:
        return line
    given = torch.where(level.isnan(), own, level)
    explained = torch.where(known > 0, _explained(cells, line), 0.0)
    weight = (1 - explained) / (1 + _stray(held, level) * known * own * (1 - own))
    return Line(slope, shift_to_level(cells, slope, weight * given + (1 - weight) * own))


def shift_to_level(cells: Held, slope: Tensor, level: Tensor) -> Tensor:
    """Return the shift b (L,) of each label at which the mean of σ(a z + b) over its known items is `level`.

    The mean rises with b. Newton's method on its log-odds, inside the bracket where all items have less, or all have
    more, than the level; bisection where a step leaves the bracket or does not shrink.
    """
    target = torch.logit(level)
    lowest, highest, n = _range(cells)
    low, high = target - slope * highest, target - slope * lowest
    shift, before = (low + high) / 2, torch.full_like(level, torch.inf)
    for _ in range(_MAX_STEPS):
        mean, square = _mean_eta(cells, Line(slope, shift), n)
        low, high = torch.where(mean < level, shift, low), torch.where(mean > level, shift, high)
        newton = shift - (torch.logit(mean) - target) * mean * (1 - mean) / (mean - square)
        step = (newton - shift).abs()
        rounding = step <= 1e-12 * (1 + shift.abs())  # such a step shrinks no further
        fair = rounding | ((newton >= low) & (newton <= high) & (step < before / 2))
        following = torch.where(fair, newton, (low + high) / 2)
        following = torch.where(n > 0, following, target)
        before = (following - shift).abs()
        shift = following
        if bool((before <= 1e-12 * (1 + shift.abs())).all()):
            break
    return shift


def _stray(held: Held, level: Tensor) -> Tensor:
    """Return τ², the variance of the log-odds of frequencies about their levels beyond chance, over all labels.

    The moment estimate from Pearson's statistic: a label with n known items has Σ y − n level of variance
    n level (1 − level) (1 + τ² n level (1 − level)).
    """
    known = held.present + held.absent
    has_level = (known > 0) & ~level.isnan()
    n, q, present = known[has_level], level[has_level], held.present[has_level]
    chance = n * q * (1 - q)
    beyond = ((present - n * q).square() / chance - 1).sum() / chance.sum()
    return beyond.nan_to_num(0.0).clamp_min(0.0)


def check_level(level: ArrayLike | None, held: Held) -> Tensor | None:
    """Return given frequencies as float64 (L,) on the device of the logits; NaN where a level is not known."""
    if level is None:
        return None
    q, n_labels = as_vector(level).to(held.logits.device), held.logits.shape[1]
    if q.shape != (n_labels,):
        raise ValueError(f"level has shape {tuple(q.shape)}: give one frequency for each of {n_labels} labels")
    refuse((q <= 0) | (q >= 1), "level", q, "it must lie inside (0, 1): smooth counts, say (n + ½)/(k + 1)")
    return q


def _all_where_none_known(held: Held) -> Held:
    """Return the same, with all items of a label counted as known where none is; their targets are not to be used."""
    if held.known is None:
        return held
    none = (held.present + held.absent) == 0
    return replace(held, known=held.known | (none & torch.isfinite(held.logits)))


def _range(cells: Held) -> tuple[Tensor, Tensor, Tensor]:
    """Return the smallest and the largest known logit of each label, 0 where there is none, and their number."""
    lowest = torch.full_like(cells.present, torch.inf)
    highest, n = -lowest, torch.zeros_like(lowest)
    for c in cells.chunks():
        known = c.known > 0
        lowest = torch.minimum(lowest, torch.where(known, c.z, torch.inf).amin(0))
        highest = torch.maximum(highest, torch.where(known, c.z, -torch.inf).amax(0))
        n += c.known.sum(0)
    return torch.where(n > 0, lowest, 0.0), torch.where(n > 0, highest, 0.0), n


def _mean_eta(cells: Held, line: Line, n: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean of η and of η² over the known items of each label."""
    total, squares = torch.zeros_like(n), torch.zeros_like(n)
    for c in cells.chunks():
        eta = c.known * torch.sigmoid(line.at(c.z))
        total += eta.sum(0)
        squares += eta.square().sum(0)
    return total / n.clamp_min(1), squares / n.clamp_min(1)


def _explained(cells: Held, line: Line) -> Tensor:
    """Return ρ = Var η/(mean η (1 − mean η)) of each label, in [0, 1]; 0 where no item is known."""
    mean, square = _mean_eta(cells, line, _range(cells)[2])
    variance = (square - mean.square()).clamp_min(0)
    return torch.where(mean > 0, variance / (mean * (1 - mean)), 0.0).clamp(0, 1)
