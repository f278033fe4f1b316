"""Calibration curves that are straight in log-odds: log η/(1−η) = a z + b, a ≥ 0."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import NamedTuple, Self, final

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from steelyard.calibrate.calibrator import Calibrator, Held, NotFitted, Per, State, check_labels, check_per, held_out
from steelyard.calibrate.shrinkage import IDENTITY_POSITIVES, PRIOR_POSITIVES, check_prior_positives, prior_share
from steelyard.labels.targets import ArrayLike

_MAX_STEPS = 200


class Line(NamedTuple):
    """a and b of log η/(1−η) = a z + b, float64, (L,) or (1,)."""

    slope: Tensor
    shift: Tensor

    def at(self, z: Tensor) -> Tensor:
        """Return a z + b; a = 0 is flat even where z is infinite, NaN stays NaN."""
        slope, shift = self.slope.to(z.device), self.shift.to(z.device)
        return torch.where((slope > 0) | z.isnan(), slope * z, 0.0) + shift


class Scaling(Calibrator):
    """A straight line in log-odds, pooled or a label: the most likely one given the labels and the prior.

    The pooled line has σ as its prior, worth one positive, so that it is finite even on labels that a threshold tells
    apart; a label's line has the pooled one, worth `prior_positives` (see `shrinkage`). Falling lines are not
    allowed: where labels ask for one, a = 0.
    """

    def __init__(self, per: Per = "label", prior_positives: float = PRIOR_POSITIVES) -> None:
        check_per(per)
        self.per: Per = per
        self.prior_positives = check_prior_positives(prior_positives)
        self._line: Line | None = None
        self._pooled: Line | None = None

    @property
    @abstractmethod
    def _has_shift(self) -> bool:
        """Whether b is fitted, or stays 0."""

    @final
    def fit(self, logits: ArrayLike, targets: ArrayLike) -> Self:
        """Fit to logits (N, L) and targets (N, L) that training has not seen, and return self."""
        held = held_out(logits, targets)
        one = torch.ones(1, dtype=torch.float64, device=held.logits.device)
        identity = Line(one, torch.zeros_like(one))
        pooled = fit_line(held, identity, IDENTITY_POSITIVES, True, self._has_shift)
        line = pooled
        if self.per == "label":
            line = fit_line(held, pooled, self.prior_positives, False, self._has_shift)
        self._pooled, self._line = (Line(x.slope.cpu(), x.shift.cpu()) for x in (pooled, line))
        return self

    @final
    def state(self) -> State:
        """Return what was fitted, as plain JSON."""
        line, pooled = self._fitted()
        return {
            "per": self.per,
            "prior_positives": self.prior_positives,
            "slope": line.slope.tolist(),
            "shift": line.shift.tolist(),
            "pooled": [pooled.slope.item(), pooled.shift.item()],
        }

    @final
    def restore(self, state: State) -> None:
        """Take back what `state` gave."""
        slope, shift = (torch.tensor(state[name], dtype=torch.float64) for name in ("slope", "shift"))
        pooled = torch.tensor(state["pooled"], dtype=torch.float64)
        if slope.ndim != 1 or slope.shape != shift.shape or pooled.shape != (2,) or len(slope) == 0:
            raise ValueError("its slopes and shifts are not one for each label")
        if self.per == "pooled" and len(slope) != 1:
            raise ValueError(f"it is pooled and has {len(slope)} slopes")
        if not (torch.isfinite(torch.cat([slope, shift, pooled])).all() and (slope >= 0).all() and pooled[0] >= 0):
            raise ValueError("a slope is negative, or a number is not finite")
        if not self._has_shift and (shift.any() or pooled[1] != 0):
            raise ValueError("it has shifts, which a temperature does not")
        self._line, self._pooled = Line(slope, shift), Line(pooled[:1], pooled[1:])

    @property
    @final
    def slope(self) -> Tensor:
        """The slopes a, float64 (L,), or (1,) if pooled."""
        return self._fitted()[0].slope

    @final
    def _fitted(self) -> tuple[Line, Line]:
        if self._line is None or self._pooled is None:
            raise NotFitted(f"{type(self).__name__} is not fitted: call fit(logits, targets) on held-out items first")
        return self._line, self._pooled

    @final
    def _log_odds(self, z: Tensor) -> Tensor:
        line, _ = self._fitted()
        if self.per == "label":
            check_labels(z, len(line.slope))
        return line.at(z)

    @final
    def _eta(self, z: Tensor) -> Tensor:
        return torch.sigmoid(self._log_odds(z))


def fit_line(held: Held, prior: Line, prior_positives: float, pooled: bool, has_shift: bool) -> Line:
    """Return the lines that minimise Σ CE((1−λ) y + λ σ(prior), σ(a z + b)) subject to a ≥ 0; λ = 1 gives the prior.

    One line over all labels if `pooled`, else one each; λ is their `prior_share`. The problem is convex. If, at a = 0
    with the best b, the cost does not fall as a grows, that is the constrained optimum; otherwise the free optimum has
    a > 0, and Newton's method with step halving, on standardised logits, finds it.
    """
    centre, spread, n, expected = _moments(held, prior, pooled, has_shift)
    present, absent = _grouped(torch.stack([held.present, held.absent]), pooled)
    share = prior_share(present, absent, expected, prior_positives)
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
