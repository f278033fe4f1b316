"""Linear heads trained to convergence: one quasi-Newton method over all labels at once."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch import Tensor

from steelyard._arrays import slices
from steelyard.data.sparse import FeatureMatrix, SparseRows
from steelyard.losses.bce import BCE
from steelyard.losses.loss import Cells
from steelyard.losses.pair import AnalyticLoss, PairLoss
from steelyard.objective.start import FLOOR, start_at

TOLERANCE = 1e-6
"""A label has converged when the next step promises to lower its cost by less than this share of what it costs to
predict its frequency for every item."""
MOST_STEPS = 300
_MEMORY = 10
_CELLS_AT_ONCE = 1 << 17
_WEIGHTS_AT_ONCE = 4_000_000
"""Weights of sparse features that are advanced together, of which the method keeps some twenty copies."""


class LinearFit(NamedTuple):
    """Weights (F, L) and biases (L,) of linear heads, and whether each label converged, bool (L,)."""

    weight: Tensor
    bias: Tensor
    converged: Tensor
    steps: int

    def logits(self, x: FeatureMatrix) -> Tensor:
        """Return z (N, L) of features (N, F)."""
        return affine(x, self.weight, self.bias)


def affine(x: FeatureMatrix, weight: Tensor, bias: Tensor) -> Tensor:
    """Return x · weight + bias."""
    return x.affine(weight, bias) if isinstance(x, SparseRows) else torch.addmm(bias, x, weight)


class Unrotated(NamedTuple):
    """Sparse features as they are: neither centred, which changes no optimum but the bias, nor rotated."""

    x: SparseRows

    @property
    def mean_square(self) -> float:
        """The mean square distance of an item from the mean."""
        return float(self.x.mean_square().sum() - self.x.mean().square().sum())

    def unrotated(self, fit: LinearFit) -> LinearFit:
        """Return the head as it is."""
        return fit


class Rotation(NamedTuple):
    """Features in the basis of their principal axes, in which the Hessian of every label is close to diagonal.

    An L2 penalty does not change under a rotation, so a head fitted here is the head fitted to the features
    themselves; with fewer items than features it has fewer weights.
    """

    x: Tensor
    """Rotated features (N, R), R ≤ min(N, F)."""
    centre: Tensor
    """Mean of the features, (F,)."""
    axes: Tensor
    """(F, R), orthonormal columns."""

    @classmethod
    def of(cls, features: Tensor) -> Rotation:
        """Return the rotation of features (N, F) about their mean."""
        centre = features.mean(0)
        x = features - centre
        n, width = x.shape
        gram = (x @ x.T if n < width else x.T @ x).double()
        values, vectors = torch.linalg.eigh(gram)
        keep = values > values[-1].clamp_min(1e-30) * 1e-10
        if n < width:
            axes = (x.T @ (vectors[:, keep] / values[keep].sqrt()).to(x.dtype)).contiguous()
        else:
            axes = vectors[:, keep].to(x.dtype).contiguous()
        return cls(x @ axes, centre, axes)

    @property
    def mean_square(self) -> float:
        """The mean square distance of an item from the mean."""
        return float(self.x.square().sum(1).mean())

    def unrotated(self, fit: LinearFit) -> LinearFit:
        """Return the head of the features themselves."""
        weight = self.axes @ fit.weight
        return fit._replace(weight=weight, bias=fit.bias - self.centre @ weight)


def fit_linear(
    x: FeatureMatrix,
    cells: Cells,
    loss: PairLoss,
    strength: float,
    start: LinearFit | None = None,
    tolerance: float = TOLERANCE,
    most_steps: int = MOST_STEPS,
) -> LinearFit:
    """Minimise Σ_i (a ℓ₊(z) + b ℓ₋(z)) + ‖w‖²/(2C) for every label, z = x·w + b.

    L-BFGS, with a diagonal first guess of the inverse Hessian, advances all labels in the same matrix products; each
    has a step size and stopping test of its own. Steps are accepted by the slope along the search direction, so a
    loss whose gradient is not that of its value (ASL with a detached focus) is followed on the potential that its
    training gradient has. For a convex pair the result is the optimum, for others a local one.

    Args:
        x: features (N, F), centred and best rotated (`Rotation`), or sparse.
        cells: coefficients (N, L) of the loss.
        loss: a pair.
        strength: C, the inverse of the L2 penalty.
        start: where to begin; by default weights 0 and biases at the loss's stationary point.
        tolerance: see `TOLERANCE`; independent of the scale of features and of how rare a label is.
        most_steps: after which labels that have not converged are left as they are.
    """
    some = max(32, _WEIGHTS_AT_ONCE // (x.shape[1] + 1))
    if isinstance(x, SparseRows) and loss.n_labels is None and cells.a.shape[1] > some:
        parts = []  # labels do not depend on one another
        for first in range(0, cells.a.shape[1], some):
            labels = slice(first, first + some)
            begin = start and LinearFit(start.weight[:, labels], start.bias[labels], start.converged[labels], 0)
            few = picked(cells, (slice(None), labels))
            parts.append(fit_linear(x, few, loss, strength, begin, tolerance, most_steps))
        weight = torch.cat([part.weight for part in parts], 1)
        level, done = (torch.cat([getattr(part, name) for part in parts]) for name in ("bias", "converged"))
        return LinearFit(weight, level, done, max(part.steps for part in parts))
    bias = stationary_bias(loss, cells)
    problem = _Regression(x, cells, loss, 1.0 / strength, null_cost(loss, cells, bias))
    if start is None:
        w = torch.zeros(x.shape[1] + 1, cells.a.shape[1], dtype=x.dtype, device=x.device)
        w[-1] = bias.to(x.dtype)
    else:
        w = torch.cat([start.weight, start.bias[None]])
    w, converged, steps = _minimise(problem, w, tolerance, most_steps)
    return LinearFit(w[:-1], w[-1], converged, steps)


def is_convex(loss: PairLoss) -> bool:
    """Return whether both sides of a pair are convex in z, so that a linear model of it has one optimum."""
    z = torch.linspace(-30, 30, 601, dtype=torch.float64)[:, None].expand(-1, loss.n_labels or 1)
    ups, downs = _both_slopes(deepcopy(loss).cpu(), z)
    return all(float(slopes.diff(dim=0).min()) >= -1e-9 for slopes in (ups, downs))


def start_from_bce(x: FeatureMatrix, cells: Cells, loss: PairLoss, strength: float, tolerance: float) -> LinearFit:
    """Return where a pair that is not convex begins: logistic regression, its biases moved to the level of the pair."""
    plain = BCE()
    fit = fit_linear(x, cells, plain, strength, tolerance=tolerance)
    moved = stationary_bias(loss, cells) - stationary_bias(plain, cells)
    return fit._replace(bias=fit.bias + moved.to(fit.bias.dtype))


def null_cost(loss: PairLoss, cells: Cells, bias: Tensor) -> Tensor:
    """Return what it costs, (L,), to predict the best constant, the stationary bias (L,), for every item."""
    z = bias[None]
    a, b = (part.sum(0, dtype=torch.float64) for part in (cells.a, cells.b))
    cost = (a * loss.positive(z) + b * loss.negative(z))[0]
    return cost.clamp_min(1e-3).to(cells.a.dtype)


def stationary_bias(loss: PairLoss, cells: Cells) -> Tensor:
    """Return the bias (L,), float64, at which Σ a ℓ₊'(z) + Σ b ℓ₋'(z) = 0; a side without cells has half a cell."""
    a, b = (part.sum(0, dtype=torch.float64) for part in (cells.a, cells.b))
    log_odds = torch.log(a.clamp_min(FLOOR)) - torch.log(b.clamp_min(FLOOR))
    if isinstance(loss, BCE) and loss.smoothing == 0:  # its link is the identity: nothing to search for
        return log_odds
    return start_at(loss, log_odds)


class _Regression:
    """Slopes of some labels' costs; labels that are done can be left out where the loss has no class-wise constants."""

    def __init__(self, x: FeatureMatrix, cells: Cells, loss: PairLoss, penalty: float, null: Tensor) -> None:
        self.x, self.cells, self.loss, self.penalty, self.null = x, cells, loss, penalty, null
        self.weight = (cells.a + cells.b).sum(0).clamp_min(1.0)
        self.can_shrink = loss.n_labels is None

    def logits(self, w: Tensor) -> Tensor:
        return affine(self.x, w[:-1], w[-1])

    def slope(self, z: Tensor) -> Tensor:
        """Return a ℓ₊'(z) + b ℓ₋'(z), (N, L)."""
        out = torch.empty_like(z)
        for rows in slices(z.shape, _CELLS_AT_ONCE):
            slope_of(self.loss, z[rows], self.cells.rows(rows), out[rows])
        return out

    def gradient(self, slope: Tensor, w: Tensor) -> Tensor:
        g = torch.empty_like(w)
        if isinstance(self.x, SparseRows):
            torch.add(self.x.transposed_product(slope), w[:-1], alpha=self.penalty, out=g[:-1])
        else:
            torch.addmm(w[:-1], self.x.T, slope, beta=self.penalty, out=g[:-1])
        g[-1] = slope.sum(0)
        return g

    def curvature(self, w: Tensor) -> Tensor:
        """Return a diagonal estimate (F + 1, L) of the Hessian, from the curvature at the biases."""
        z, h = w[-1:].double(), 1e-3
        up, down = (_both_slopes(self.loss, z + s * h) for s in (1, -1))
        a, b = (part.sum(0, dtype=torch.float64) for part in (self.cells.a, self.cells.b))
        bend = ((up[0] - down[0])[0] * a + (up[1] - down[1])[0] * b) / (2 * h)
        bend = bend.clamp_min(1e-6 * self.weight).to(w.dtype)
        spread = self.x.mean_square().to(w.dtype) if isinstance(self.x, SparseRows) else self.x.square().mean(0)
        return torch.cat([bend * spread[:, None] + self.penalty, bend[None]])

    def only(self, keep: Tensor) -> _Regression:
        """Return the problem of some labels."""
        return _Regression(self.x, picked(self.cells, (..., keep)), self.loss, self.penalty, self.null[keep])


def picked(cells: Cells, key: Any) -> Cells:
    """Return the cells at an index of items, or of (items, labels)."""
    return Cells(*(None if part is None else part[key] for part in cells))  # type: ignore[arg-type]


def slope_of(loss: PairLoss, z: Tensor, cells: Cells, out: Tensor) -> None:
    """Write a ℓ₊'(z) + b ℓ₋'(z) to `out`, as training sees it."""
    if isinstance(loss, AnalyticLoss):
        loss.cost_and_slope(z, cells, out)
        return
    with torch.enable_grad():
        z = z.detach().requires_grad_()
        inert = cells.inert(z)
        cost = cells.a * loss.positive(inert) + cells.b * loss.negative(inert)
        out.copy_(torch.autograd.grad(cost.sum(), z)[0])


def _both_slopes(loss: PairLoss, z: Tensor) -> tuple[Tensor, Tensor]:
    one, zero = torch.ones_like(z), torch.zeros_like(z)
    up, down = torch.empty_like(z), torch.empty_like(z)
    slope_of(loss, z, Cells(one, zero), up)
    slope_of(loss, z, Cells(zero, one), down)
    return up, down


class _Memory:
    """The last steps of L-BFGS and what they say of the inverse Hessian."""

    def __init__(self, diagonal: Tensor) -> None:
        self.inverse = 1 / diagonal
        self.scale = torch.ones_like(diagonal[0])
        self.pairs: list[tuple[Tensor, Tensor, Tensor]] = []

    def direction(self, gradient: Tensor) -> Tensor:
        """Return −H g by the two-loop recursion."""
        q, alphas = gradient.clone(), []
        for s, y, rho in reversed(self.pairs):
            alpha = rho * (s * q).sum(0)
            q.addcmul_(y, alpha.expand_as(y), value=-1)
            alphas.append(alpha)
        q *= self.inverse * self.scale
        for (s, y, rho), alpha in zip(self.pairs, reversed(alphas), strict=True):
            beta = rho * (y * q).sum(0)
            q.addcmul_(s, (alpha - beta).expand_as(s))
        return q.neg_()

    def add(self, s: Tensor, y: Tensor) -> None:
        """Record a step s and the change y of the gradient, except for labels whose slope did not rise."""
        sy = (s * y).sum(0)
        yhy = (y * y * self.inverse).sum(0)
        good = sy > 1e-10 * yhy.clamp_min(1e-30)
        self.scale = torch.where(good, (sy / yhy.clamp_min(1e-30)).clamp(1e-3, 1e3), self.scale)
        self.pairs.append((s, y, torch.where(good, 1 / sy.clamp_min(1e-30), 0.0)))
        del self.pairs[:-_MEMORY]

    def only(self, keep: Tensor) -> None:
        """Forget all but some labels."""
        self.inverse, self.scale = self.inverse[:, keep], self.scale[keep]
        self.pairs = [(s[:, keep], y[:, keep], rho[keep]) for s, y, rho in self.pairs]


def _minimise(problem: _Regression, w: Tensor, tolerance: float, most_steps: int) -> tuple[Tensor, Tensor, int]:
    """Return weights (F + 1, L), which labels converged, and the steps taken."""
    result, converged = w.clone(), torch.zeros(w.shape[1], dtype=torch.bool, device=w.device)
    place = torch.arange(w.shape[1], device=w.device)
    z = problem.logits(w)
    gradient = problem.gradient(problem.slope(z), w)
    memory = _Memory(problem.curvature(w))
    step = 0
    for step in range(1, most_steps + 1):  # noqa: B007
        d = memory.direction(gradient)
        downhill = (gradient * d).sum(0)
        if bool((downhill > 0).any()):  # rounding can turn a direction uphill
            d = torch.where(downhill > 0, -gradient * memory.inverse, d)
            downhill = (gradient * d).sum(0)
        done = -downhill / 2 <= tolerance * problem.null
        converged[place] = done
        if bool(done.all()):
            break
        if problem.can_shrink and int((~done).sum()) <= 0.7 * len(done):
            result[:, place] = w
            keep = ~done
            problem, place, done = problem.only(keep), place[keep], done[keep]
            w, z, gradient, d = w[:, keep], z[:, keep], gradient[:, keep], d[:, keep]
            memory.only(keep)
        d[:, done] = 0.0
        w, z, new = _advance(problem, w, z, d, gradient)
        memory.add(*new[:2])
        gradient = new[2]
    result[:, place] = w
    return result, converged, step


def _advance(
    problem: _Regression, w: Tensor, z: Tensor, d: Tensor, gradient: Tensor
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor, Tensor]]:
    """Return weights, logits and (step, change of the gradient, gradient) after a step along `d`.

    A step that ends where the cost rises again by half the slope with which it began is shortened to where a straight
    slope would be 0.
    """
    dz = problem.logits(d)
    begun = (gradient * d).sum(0)
    bend, pull = problem.penalty * d[:-1].square().sum(0), problem.penalty * (w[:-1] * d[:-1]).sum(0)
    size = torch.ones_like(begun)
    for _ in range(6):
        near = torch.addcmul(z, dz, size.expand_as(dz))
        slope = problem.slope(near)
        ends = (slope * dz).sum(0) + pull + size * bend
        over = ends > -0.5 * begun
        if not bool(over.any()):
            break
        shorter = size * (begun / (begun - ends)).clamp(0.1, 0.9)
        size = torch.where(over, shorter, size)
    s = d * size
    w = w + s
    new = problem.gradient(slope, w)
    return w, near, (s, new - gradient, new)
