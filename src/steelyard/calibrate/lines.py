"""Straight calibration curves, log η/(1−η) = a z + b with a ≥ 0: how they are fitted, and the prior of each label."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from steelyard.calibrate.calibrator import Held, as_vector
from steelyard.labels.targets import ArrayLike, refuse

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


_MAX_STEPS = 200


class Line(NamedTuple):
    """a and b of log η/(1−η) = a z + b, float64, (L,) or (1,)."""

    slope: Tensor
    shift: Tensor

    def at(self, z: Tensor) -> Tensor:
        """Return a z + b; a = 0 is flat even where z is infinite, NaN stays NaN."""
        slope, shift = self.slope.to(z.device), self.shift.to(z.device)
        return torch.where((slope > 0) | z.isnan(), slope * z, 0.0) + shift


def fit_line(held: Held, prior: Line, prior_positives: float, pooled: bool, has_shift: bool) -> Line:
    """Return the lines that minimise Σ CE((1−λ) y + λ σ(prior), σ(a z + b)) subject to a ≥ 0; λ = 1 gives the prior.

    One line over all labels if `pooled`, else one each; λ is their `prior_share`, and 1 for a line without shift of a
    label with positives or negatives alone, which tell no slope. The problem is convex. If, at a = 0 with the best b,
    the cost does not fall as a grows, that is the constrained optimum; otherwise the free optimum has a > 0, and
    Newton's method with step halving, on standardised logits, finds it.
    """
    centre, spread, n, expected = _moments(held, prior, pooled, has_shift)
    present, absent = _grouped(torch.stack([held.present, held.absent]), pooled)
    share = prior_share(present, absent, expected, prior_positives)
    if not has_shift:
        share = torch.where(torch.minimum(present, absent) > 0, share, 1.0)
    mean = ((1 - share) * present + share * expected) / n
    a = torch.zeros_like(mean)
    b = torch.logit(mean) if has_shift else torch.zeros_like(mean)
    frame = (centre, spread)
    cost, gradient, hessian = _derivatives(held, prior, share, frame, a, b, pooled)
    own = share < 1
    busy = own & (spread > 0) & (gradient[0] < 0)
    direction, decrement = _newton(gradient, hessian, has_shift)
    size = torch.ones_like(a)
    for _ in range(_MAX_STEPS):
        if not bool(busy.any()):
            break
        step = torch.where(busy, size, 0.0)
        near = (a + step * direction[0], b + step * direction[1])
        new_cost, new_gradient, new_hessian = _derivatives(held, prior, share, frame, *near, pooled)
        better = busy & (new_cost <= cost - 1e-4 * step * decrement + 1e-13 * cost.abs())
        last = better & (decrement < 1e-10)  # Newton's method squares the error: nothing is left after this step
        a, b = torch.where(better, near[0], a), torch.where(better, near[1], b)
        cost = torch.where(better, new_cost, cost)
        gradient, hessian = (torch.where(better, x, y) for x, y in ((new_gradient, gradient), (new_hessian, hessian)))
        direction, decrement = _newton(gradient, hessian, has_shift)
        size = torch.where(better, (2 * size).clamp_max(1.0), size / 2)
        busy = busy & ~last & (size > 1e-12)
    a = a.clamp_min(0.0)
    safe = torch.where(spread > 0, spread, 1.0)
    slope, shift = a / safe, b - a * centre / safe
    return Line(torch.where(own, slope, prior.slope), torch.where(own, shift, prior.shift))


def fit_common_slope(held: Held, prior: Line, share: Tensor) -> Tensor:
    """Return the slope a ≥ 0, (1,), that minimises Σ CE((1−λ) y + λ σ(prior), σ(a z + b_c)) with a free b_c per label.

    The shifts are not wanted: the Hessian is an arrow, whose shifts are eliminated from each Newton step.
    """
    centre, spread, n, expected = _moments(held, prior, False, True)
    scale = ((n * spread.square()).sum() / n.sum()).sqrt()
    mean = ((1 - share) * held.present + share * expected) / n
    known = (held.present + held.absent) > 0
    a, b = torch.zeros(1, dtype=torch.float64, device=n.device), torch.where(known, torch.logit(mean), 0.0)
    frame = (centre, scale)
    cost, gradient, hessian = _derivatives(held, prior, share, frame, a, b, False)
    if not (float(scale) > 0 and float(gradient[0].sum()) < 0):
        return a
    size = 1.0
    for _ in range(_MAX_STEPS):
        step_a, step_b, decrement = _arrow_newton(gradient, hessian)
        near = (a + size * step_a, b + size * step_b)
        new_cost, new_gradient, new_hessian = _derivatives(held, prior, share, frame, *near, False)
        total, new_total = float(cost.sum()), float(new_cost.sum())
        if new_total <= total - 1e-4 * size * decrement + 1e-13 * abs(total):
            (a, b), cost, gradient, hessian = near, new_cost, new_gradient, new_hessian
            size = min(2 * size, 1.0)
            if decrement < 1e-10:  # Newton's method squares the error: nothing is left after this step
                break
        else:
            size /= 2
            if size < 1e-12:
                break
    return a.clamp_min(0.0) / scale


def _arrow_newton(gradient: Tensor, hessian: Tensor) -> tuple[Tensor, Tensor, float]:
    """Return the Newton step of the one slope (1,) and of the shifts (L,), and how much it promises."""
    aa, ab, bb = hessian
    bb = bb + 1e-12 * bb.max() + 1e-300
    reduced = (aa.sum() - (ab.square() / bb).sum()).clamp_min(1e-12 * aa.sum() + 1e-300)
    step_a = -(gradient[0].sum() - (ab * gradient[1] / bb).sum()) / reduced
    step_b = -(gradient[1] + ab * step_a) / bb
    return step_a[None], step_b, -float(gradient[0].sum() * step_a + (gradient[1] * step_b).sum())


def _moments(held: Held, prior: Line, pooled: bool, has_shift: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return mean and deviation of the known logits (0 and root mean square without shift), their number, and Σ q."""
    sums = _total(
        torch.stack([c.known.sum(0), c.z.sum(0), (c.known * torch.sigmoid(prior.at(c.z))).sum(0)])
        for c in held.chunks()
    )
    n, z_sum, expected = _grouped(sums, pooled)
    n = n.clamp_min(1.0)
    centre = z_sum / n if has_shift else torch.zeros_like(n)
    square = _total((c.known * (c.z - centre).square()).sum(0)[None] for c in held.chunks())
    return centre, (_grouped(square, pooled)[0] / n).sqrt(), n, expected


def _derivatives(
    held: Held, prior: Line, share: Tensor, frame: tuple[Tensor, Tensor], a: Tensor, b: Tensor, pooled: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the cost, its gradient (2, ·) and its second derivatives (aa, ab, bb) at lines in standardised logits."""
    centre, spread = frame
    safe = torch.where(spread > 0, spread, 1.0)
    parts = []
    for c in held.chunks():
        u = (c.z - centre) / safe
        x, t = a * u + b, _mixed(c.z, c.t, prior, share)
        p, q = torch.sigmoid(x), torch.sigmoid(-x)
        slope, bend = c.known * (p * (1 - t) - q * t), c.known * p * q
        value = -c.known * (t * logsigmoid(x) + (1 - t) * logsigmoid(-x))
        parts.append(torch.stack([v.sum(0) for v in (value, slope * u, slope, bend * u * u, bend * u, bend)]))
    sums = _grouped(_total(parts), pooled)
    return sums[0], sums[1:3], sums[3:]


def _newton(gradient: Tensor, hessian: Tensor, has_shift: bool) -> tuple[Tensor, Tensor]:
    """Return the Newton direction (2, ·) and how much it promises, −gradient · direction; a ridge of 1e-12 keeps it."""
    aa, ab, bb = hessian
    if not has_shift:
        direction = torch.stack([-gradient[0] / (aa + 1e-300), torch.zeros_like(aa)])
        return direction, -(gradient * direction).sum(0)
    ridge = 1e-12 * (aa + bb) + 1e-300
    aa, bb = aa + ridge, bb + ridge
    determinant = aa * bb - ab * ab
    direction = -torch.stack([bb * gradient[0] - ab * gradient[1], aa * gradient[1] - ab * gradient[0]]) / determinant
    return direction, -(gradient * direction).sum(0)


def _mixed(z: Tensor, t: Tensor, prior: Line, share: Tensor) -> Tensor:
    return (1 - share) * t + share * torch.sigmoid(prior.at(z))


def _total(parts: Iterable[Tensor]) -> Tensor:
    return torch.stack(list(parts)).sum(0)


def _grouped(sums: Tensor, pooled: bool) -> Tensor:
    return sums.sum(1, keepdim=True) if pooled else sums


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
