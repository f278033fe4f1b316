"""Straight calibration curves, log η/(1−η) = a z + b with a ≥ 0, fitted to labels and a prior by Newton's method."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from steelyard.calibrate.calibrator import Held
from steelyard.calibrate.shrinkage import prior_share

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
