"""Calibration lines, log η/(1−η) = a z + b with a ≥ 0: how they are fitted, and the prior of each label."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from steelyard.balance.checks import check_range
from steelyard.calibrate.calibrator import Chunk, FitData, as_vector
from steelyard.labels.targets import ArrayLike, refuse

PRIOR_POSITIVES = 20.0
"""Weight of a label's prior, in positives (chosen by examples/choose_prior_positives.py)."""
SHAPE_POSITIVES = 150.0
"""The same for a label's own curve, which can go wrong in more ways than a line (chosen in the same way)."""
IDENTITY_POSITIVES = 1.0
"""Weight of σ in the pooled fit, in positives."""


def prior_share(present: Tensor, absent: Tensor, expected: Tensor, prior_positives: float) -> Tensor:
    """Return λ = m/(m + n), the weight of a prior beside a label's own n₊ positives and n₋ negatives.

    What labels tell about a calibration curve is limited by their rarer outcome: the information on a shift of the
    log-odds is Σ η(1−η), at most the number of positives of a rare label, however many negatives there are. So the
    prior's worth is stated in that unit, m labels of the rarer kind, and n is the count of the rarer kind, as observed
    or as the prior expects it (Σ q), whichever is more: five positives where a hundred are expected are no weak
    evidence. A fit to (1−λ) y + λ q, q the prior's η at the label's own logits, is the posterior mode when the prior
    labelled cells with m such outcomes (a data-augmentation prior, the conjugate one of an exponential family). With
    five positives of five expected, m = 20 has four fifths of the weight; with five thousand, .4 %; with none where
    hundreds are expected, little; with none where none is expected, all of it.

    Args:
        present, absent: n₊ and n₋.
        expected: Σ q over the known labels.
        prior_positives: m.
    """
    observed = torch.minimum(present, absent)
    n = torch.maximum(observed, torch.minimum(expected, present + absent - expected))
    return prior_positives / (prior_positives + n)


def check_prior_positives(value: float) -> float:
    """Return `value`, positive and finite."""
    check_range("positive", prior_positives=value)
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


def fit_line(held: FitData, prior: Line, prior_positives: float, pooled: bool, has_shift: bool) -> Line:
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
    own = share < 1
    mean = ((1 - share) * present + share * expected) / n
    b = torch.logit(mean) if has_shift else torch.zeros_like(mean)

    def derivatives(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        cost, da, db, aa, ab, bb = _grouped(_derivatives(held, prior, share, centre, spread, a, b), pooled)
        return (cost, da, db, aa, ab, bb) if has_shift else (cost, da, 0 * db, aa, 0 * ab, bb)

    a, b = _minimum(derivatives, lambda x: x, torch.zeros_like(mean), b, own & (spread > 0))
    safe = torch.where(spread > 0, spread, 1.0)
    slope, shift = a / safe, b - a * centre / safe
    return Line(torch.where(own, slope, prior.slope), torch.where(own, shift, prior.shift))


def fit_common_slope(held: FitData, prior: Line, share: Tensor) -> Tensor:
    """Return the slope a ≥ 0, (1,), that minimises Σ CE((1−λ) y + λ σ(prior), σ(a z + b_c)), b_c free."""
    centre, spread, n, expected = _moments(held, prior, False, True)
    scale = ((n * spread.square()).sum() / n.sum()).sqrt()[None]
    mean = ((1 - share) * held.present + share * expected) / n
    b = torch.where((held.present + held.absent) > 0, torch.logit(mean), 0.0)

    def derivatives(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        cost, da, db, aa, ab, bb = _derivatives(held, prior, share, centre, scale, a, b)
        return total(cost), total(da), db, total(aa), ab, bb

    def total(x: Tensor) -> Tensor:
        return x.sum(0, keepdim=True)

    a, _ = _minimum(derivatives, total, torch.zeros_like(scale), b, scale > 0)
    return a / torch.where(scale > 0, scale, 1.0)


def _minimum(
    derivatives: Callable[[Tensor, Tensor], tuple[Tensor, ...]],
    total: Callable[[Tensor], Tensor],
    a: Tensor,
    b: Tensor,
    busy: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the slopes a ≥ 0 and shifts b that minimise convex costs, by Newton's method with step halving.

    One slope has one shift, or the shifts of all labels: the Hessian is then an arrow, whose shifts are eliminated.

    Args:
        derivatives: the costs at (a, b), and their first and second derivatives: by a, by b, aa, ab, bb.
        total: the sum over the shifts of one slope.
        a, b: where to begin; a is 0, b the best for it. Where the cost does not fall as a grows, that is the minimum.
        busy: which slopes are to be found; others stay.
    """
    now = derivatives(a, b)
    busy = busy & (now[1] < 0)
    size = torch.ones_like(a)
    for _ in range(_MAX_STEPS):
        if not bool(busy.any()):
            break
        cost, da, db, aa, ab, bb = now
        bb = bb + 1e-12 * (aa + bb) + 1e-300
        reduced = torch.maximum(aa - total(ab.square() / bb), 1e-12 * aa + 1e-300)
        step_a = -(da - total(ab * db / bb)) / reduced
        step_b = -(db + ab * step_a) / bb
        decrement = -(da * step_a + total(db * step_b))
        step = torch.where(busy, size, 0.0)
        near = (a + step * step_a, b + step * step_b)
        then = derivatives(*near)
        better = busy & (then[0] <= cost - 1e-4 * step * decrement + 1e-13 * cost.abs())
        a, b, *rest = (torch.where(better, x, y) for x, y in zip((*near, *then), (a, b, *now), strict=True))
        now = tuple(rest)
        size = torch.where(better, (2 * size).clamp_max(1.0), size / 2)
        done = better & (decrement < 1e-10)  # Newton's method squares the error: nothing is left after this step
        busy = busy & ~done & (size > 1e-12)
    return a.clamp_min(0.0), b


def _moments(held: FitData, prior: Line, pooled: bool, has_shift: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return mean and deviation of the known logits (0 and root mean square without shift), their number, and Σ q."""
    sums = held.sums(lambda c: (c.known, c.z, c.known * torch.sigmoid(prior.at(c.z))))
    n, z_sum, expected = _grouped(sums, pooled)
    n = n.clamp_min(1.0)
    centre = z_sum / n if has_shift else torch.zeros_like(n)
    square = held.sums(lambda c: (c.known * (c.z - centre).square(),))
    return centre, (_grouped(square, pooled)[0] / n).sqrt(), n, expected


def _derivatives(
    held: FitData, prior: Line, share: Tensor, centre: Tensor, spread: Tensor, a: Tensor, b: Tensor
) -> Tensor:
    """Return the cost of each label and its derivatives a, b, aa, ab, bb, (6, L), at lines in standardised logits."""
    safe = torch.where(spread > 0, spread, 1.0)

    def parts(c: Chunk) -> tuple[Tensor, ...]:
        u = (c.z - centre) / safe
        x, t = a * u + b, (1 - share) * c.t + share * torch.sigmoid(prior.at(c.z))
        p, q = torch.sigmoid(x), torch.sigmoid(-x)
        slope, bend = c.known * (p * (1 - t) - q * t), c.known * p * q
        value = -c.known * (t * logsigmoid(x) + (1 - t) * logsigmoid(-x))
        return value, slope * u, slope, bend * u * u, bend * u, bend

    return held.sums(parts)


def _grouped(sums: Tensor, pooled: bool) -> Tensor:
    return sums.sum(1, keepdim=True) if pooled else sums


def smoothed_level(present: Tensor, known: Tensor) -> Tensor:
    """Return the frequency of each label from its counts, (n + ½)/(k + ½/r), inside (0, 1).

    Half a positive is added, among as many items as it takes to meet half a positive at the rate r. A label with no
    positive among k items so has a level of at most 1/2k, and one with few known items has about r. The rate is
    that of all labels with a positive together, (Σ n + ½)/(Σ k + 1): labels without one would make r so small that the
    half positive outweighs what other labels show.

    Args:
        present: n, positives of each label (L,), float64.
        known: k, known outcomes of each label (L,), float64.
    """
    with_positives = present > 0
    rate = (present[with_positives].sum() + 0.5) / (known[with_positives].sum() + 1)
    return (present + 0.5) / (known + 0.5 / rate)


def own_level_line(held: FitData, level: Tensor | None) -> Line:
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


def shift_to_level(cells: FitData, slope: Tensor, level: Tensor) -> Tensor:
    """Return the shift b (L,) of each label at which the mean of σ(a z + b) over its known items is `level`.

    The mean rises with b: Newton's method on its log-odds, inside the bracket where all items have less, or all have
    more, than the level.
    """
    target = torch.logit(level)
    lowest, highest, n = _range(cells)

    def evaluate(shift: Tensor) -> tuple[Tensor, Tensor]:
        mean, square = _mean_eta(cells, Line(slope, shift), n)
        return level - mean, shift - (torch.logit(mean) - target) * mean * (1 - mean) / (mean - square)

    low, high = target - slope * highest, target - slope * lowest
    shift, _ = bracketed_newton(evaluate, (low + high) / 2, low, high, n > 0, lambda b: 1 + b.abs())
    return torch.where(n > 0, shift, target)


def bracketed_newton(
    evaluate: Callable[[Tensor], tuple[Tensor, Tensor]],
    x: Tensor,
    low: Tensor,
    high: Tensor,
    busy: Tensor,
    scale: Callable[[Tensor], Tensor],
) -> tuple[Tensor, Tensor]:
    """Return the roots x (L,) of falling functions and the steps taken, by Newton's method inside of brackets.

    A step that leaves the bracket, or is not half the one before, is a bisection; one of 1e-12 `scale(x)` is the last.

    Args:
        evaluate: the functions at x, and where Newton's step from x leads.
        x, low, high: where to begin, and the brackets.
        busy: the roots to find; others stay at x.
        scale: what a step is compared with.
    """
    before, steps = torch.full_like(x, torch.inf), torch.zeros(x.shape, dtype=torch.int64, device=x.device)
    for _ in range(_MAX_STEPS):
        if not bool(busy.any()):
            break
        value, newton = evaluate(x)
        low, high = torch.where(value > 0, x, low), torch.where(value < 0, x, high)
        step = (newton - x).abs()
        steps += busy
        busy = busy & ~(step <= 1e-12 * scale(x))
        fair = (newton >= low) & (newton <= high) & (step < before / 2)
        following = torch.where(fair, newton, (low + high) / 2)
        before = (following - x).abs()
        x = torch.where(busy, following, x)
    return x, steps


def _stray(held: FitData, level: Tensor) -> Tensor:
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


def check_level(level: ArrayLike | None, held: FitData) -> Tensor | None:
    """Return given frequencies as float64 (L,) on the device of the logits; NaN where a level is not known."""
    if level is None:
        return None
    q, n_labels = as_vector(level).to(held.logits.device), held.logits.shape[1]
    if q.shape != (n_labels,):
        raise ValueError(f"level has shape {tuple(q.shape)}: give one frequency for each of {n_labels} labels")
    refuse((q <= 0) | (q >= 1), "level", q, "it must lie inside (0, 1): smooth counts, say (n + ½)/(k + 1)")
    return q


def _all_where_none_known(held: FitData) -> FitData:
    """Return the same, with all items of a label counted as known where none is; the targets must not be used."""
    none = (held.present + held.absent) == 0
    return replace(held, known=held.known | (none & torch.isfinite(held.logits)))


def _range(cells: FitData) -> tuple[Tensor, Tensor, Tensor]:
    """Return the smallest and the largest known logit of each label, 0 where there is none, and their number."""
    n = cells.known.sum(0, dtype=torch.float64)
    lowest = torch.where(cells.known, cells.logits, torch.inf).amin(0).double()
    highest = torch.where(cells.known, cells.logits, -torch.inf).amax(0).double()
    return torch.where(n > 0, lowest, 0.0), torch.where(n > 0, highest, 0.0), n


def _mean_eta(cells: FitData, line: Line, n: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean of η and of η² over the known items of each label."""
    mean, square = cells.sums(lambda c: [(c.known * torch.sigmoid(line.at(c.z))) ** k for k in (1, 2)]) / n.clamp_min(1)
    return mean, square


def _explained(cells: FitData, line: Line) -> Tensor:
    """Return ρ = Var η/(mean η (1 − mean η)) of each label, in [0, 1]; 0 where no item is known."""
    mean, square = _mean_eta(cells, line, cells.known.sum(0))
    variance = (square - mean.square()).clamp_min(0)
    return torch.where(mean > 0, variance / (mean * (1 - mean)), 0.0).clamp(0, 1)
