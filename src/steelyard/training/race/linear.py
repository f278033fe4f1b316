"""Linear heads trained to convergence, all labels at once."""

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
from steelyard.training.race.lbfgs import Vector, minimise

TOLERANCE = 1e-6
"""A label has converged when the next step promises to lower its cost by less than this share of what it costs to
predict its frequency for every item."""
MOST_STEPS = 300
_CELLS_AT_ONCE = 1 << 17
_WEIGHTS_AT_ONCE = 4_000_000
"""Weights of sparse features that are advanced together, of which the method keeps some twenty copies."""
_ITEM_SPACE = 2
"""Features per item from which weights of sparse features are kept as sums of items."""


class LinearFit(NamedTuple):
    """Weights (F, L) and biases (L,) of linear heads, and whether each label converged, bool (L,)."""

    weight: Tensor
    bias: Tensor
    converged: Tensor
    steps: int
    by_item: Tensor | None = None
    """(N, L), where the weights were fitted as sums of items: weight = xᵀ · by_item."""

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
    n_rows = 2 * len(x) if is_by_item(x) else x.shape[1]
    some = max(32, _WEIGHTS_AT_ONCE // (n_rows + 1))
    if isinstance(x, SparseRows) and loss.n_labels is None and cells.a.shape[1] > some:
        parts = []  # labels do not depend on one another
        for first in range(0, cells.a.shape[1], some):
            labels = slice(first, first + some)
            begin = None if start is None else _of_labels(start, labels)
            few = picked(cells, (slice(None), labels))
            parts.append(fit_linear(x, few, loss, strength, begin, tolerance, most_steps))
        return _joined(parts)
    bias = stationary_bias(loss, cells)
    kind = _ItemRegression if is_by_item(x) else _Regression
    problem = kind(x, cells, loss, 1.0 / strength, null_cost(loss, cells, bias))
    return problem.fit(*minimise(problem, problem.start(start, bias), tolerance, most_steps))


def is_by_item(x: FeatureMatrix) -> bool:
    """Return whether weights are fitted as sums of items: sparse features outnumber the items, as in texts."""
    return isinstance(x, SparseRows) and x.shape[1] >= _ITEM_SPACE * len(x)


def _of_labels(fit: LinearFit, labels: slice) -> LinearFit:
    by_item = None if fit.by_item is None else fit.by_item[:, labels]
    return LinearFit(fit.weight[:, labels], fit.bias[labels], fit.converged[labels], 0, by_item)


def _joined(fits: list[LinearFit]) -> LinearFit:
    by_item = [fit.by_item for fit in fits if fit.by_item is not None]
    return LinearFit(
        torch.cat([fit.weight for fit in fits], 1),
        torch.cat([fit.bias for fit in fits]),
        torch.cat([fit.converged for fit in fits]),
        max(fit.steps for fit in fits),
        torch.cat(by_item, 1) if by_item else None,
    )


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

    def __init__(self, x: Any, cells: Cells, loss: PairLoss, penalty: float, null: Tensor) -> None:
        self.x, self.cells, self.loss, self.penalty, self.null = x, cells, loss, penalty, null
        self.weight = (cells.a + cells.b).sum(0).clamp_min(1.0)
        self.can_shrink = loss.n_labels is None

    def start(self, fit: LinearFit | None, bias: Tensor) -> Vector:
        """Return where to begin: at a fit, or with weights of 0."""
        if fit is None:
            w = torch.zeros(self.x.shape[1] + 1, len(bias), dtype=self.x.dtype, device=self.x.device)
            w[-1] = bias.to(w.dtype)
            return Vector(w)
        return Vector(torch.cat([fit.weight, fit.bias[None]]))

    def fit(self, w: Tensor, converged: Tensor, steps: int) -> LinearFit:
        """Return the model of the weights and biases (D + 1, L) that were reached."""
        return LinearFit(w[:-1], w[-1], converged, steps)

    def logits(self, w: Vector) -> Tensor:
        """Return x · w + b, (N, L)."""
        return affine(self.x, w.at[:-1], w.at[-1])

    def slope(self, z: Tensor) -> Tensor:
        """Return a ℓ₊'(z) + b ℓ₋'(z), (N, L)."""
        out = torch.empty_like(z)
        for rows in slices(z.shape, _CELLS_AT_ONCE):
            slope_of(self.loss, z[rows], self.cells.rows(rows), out[rows])
        return out

    def gradient(self, slope: Tensor, w: Vector) -> Vector:
        """Return the gradient of cost and penalty from the slopes of the logits, (N, L)."""
        g = torch.empty_like(w.at)
        if isinstance(self.x, SparseRows):
            torch.add(self.x.transposed_product(slope), w.at[:-1], alpha=self.penalty, out=g[:-1])
        else:
            torch.addmm(w.at[:-1], self.x.T, slope, beta=self.penalty, out=g[:-1])
        g[-1] = slope.sum(0)
        return Vector(g)

    def curvature(self, w: Vector) -> Tensor:
        """Return a diagonal estimate (D + 1, L) of the Hessian, from the curvature at the biases."""
        z, h = w.at[-1:].double(), 1e-3
        up, down = (_both_slopes(self.loss, z + s * h) for s in (1, -1))
        a, b = (part.sum(0, dtype=torch.float64) for part in (self.cells.a, self.cells.b))
        bend = ((up[0] - down[0])[0] * a + (up[1] - down[1])[0] * b) / (2 * h)
        bend = bend.clamp_min(1e-6 * self.weight).to(w.at.dtype)
        return torch.cat([bend * self.spread().to(w.at.dtype)[:, None] + self.penalty, bend[None]])

    def spread(self) -> Tensor:
        """Return the mean square of every coordinate of an item, (D,)."""
        return self.x.mean_square() if isinstance(self.x, SparseRows) else self.x.square().mean(0)

    def only(self, keep: Tensor) -> _Regression:
        """Return the problem of some labels."""
        return type(self)(self.x, picked(self.cells, (..., keep)), self.loss, self.penalty, self.null[keep])


class _ItemRegression(_Regression):
    """The same with weights that are sums of items, for sparse features that outnumber the items.

    The optimum is such a sum, since its gradient is xᵀ·slope + w/C = 0, and so is every step from 0 that scales all
    features alike. With fewer items than features there is less to keep and to add up.
    """

    def start(self, fit: LinearFit | None, bias: Tensor) -> Vector:
        """Return where to begin: at a fit, or with weights of 0."""
        if fit is None or fit.by_item is None:
            alpha = torch.zeros(len(self.x) + 1, len(bias), dtype=self.x.dtype, device=self.x.device)
            alpha[-1] = bias.to(alpha.dtype)
        else:
            alpha = torch.cat([fit.by_item, fit.bias[None]])
        return self._with_image(alpha)

    def _with_image(self, alpha: Tensor) -> Vector:
        weight = self.x.transposed_product(alpha[:-1])
        return Vector(alpha, torch.cat([self.x.affine(weight, alpha.new_zeros(alpha.shape[1])), alpha[-1:]]))

    def fit(self, w: Tensor, converged: Tensor, steps: int) -> LinearFit:
        """Return the model of the sums and biases (N + 1, L) that were reached."""
        return LinearFit(self.x.transposed_product(w[:-1]), w[-1], converged, steps, w[:-1])

    def logits(self, w: Vector) -> Tensor:
        """Return x · w + b, (N, L)."""
        return w.image[:-1] + w.image[-1]

    def gradient(self, slope: Tensor, w: Vector) -> Vector:
        """Return the gradient of cost and penalty from the slopes of the logits, (N, L)."""
        return self._with_image(torch.cat([slope + self.penalty * w.at[:-1], slope.sum(0, keepdim=True)]))

    def spread(self) -> Tensor:
        """Return the mean square of a feature of an item, for every item the same, (N,)."""
        mean: Tensor = self.x.mean_square().mean()
        return mean.expand(len(self.x))


def picked(cells: Cells, key: Any) -> Cells:
    """Return the cells at an index of items, or of (items, labels)."""
    return Cells(*(None if part is None else part[key] for part in cells))  # type: ignore[arg-type]


def joined(cells: Cells, more: Cells) -> Cells:
    """Return the cells of some items and of further ones."""
    parts = zip(cells, more, strict=True)
    return Cells(*(None if a is None or b is None else torch.cat([a, b]) for a, b in parts))  # type: ignore[arg-type]


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
