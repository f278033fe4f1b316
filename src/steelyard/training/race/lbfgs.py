"""Minimise costs of many labels at once by L-BFGS, with a step size and a stopping test for each label."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

_MEMORY = 10


class Vector:
    """Weights and biases (D + 1, L), or a change of them; inner products are taken with its image.

    The image of weights of features is the vector itself. Weights that are sums of items, w = xᵀ·α, are kept as α
    (N, L) with the image x·w: the inner product of w and w' is that of α and x·w'. The bias, the last row, is its own.
    """

    def __init__(self, at: Tensor, image: Tensor | None = None) -> None:
        self.at, self.image = at, at if image is None else image

    def _of_parts(self, at: Tensor, image: Callable[[], Tensor]) -> Vector:
        return Vector(at, None if self.image is self.at else image())

    def dot(self, other: Vector) -> Tensor:
        """Return the inner product, (L,)."""
        return (self.at * other.image).sum(0)

    def dot_weights(self, other: Vector) -> Tensor:
        """Return the inner product of the weights alone, (L,)."""
        return (self.at[:-1] * other.image[:-1]).sum(0)

    def times(self, factor: Tensor) -> Vector:
        """Return the vector times factors (L,) or (D + 1, L)."""
        return self._of_parts(self.at * factor, lambda: self.image * factor)

    def copy(self) -> Vector:
        """Return a vector of its own tensors."""
        return self._of_parts(self.at.clone(), self.image.clone)

    def scale(self, factor: Tensor) -> None:
        """Multiply the vector by factors (L,) or (D + 1, L)."""
        self.at.mul_(factor)
        if self.image is not self.at:
            self.image.mul_(factor)

    def add(self, other: Vector, factor: Tensor) -> None:
        """Add another vector times factors (L,) to this one."""
        self.at.addcmul_(other.at, factor.expand_as(self.at))
        if self.image is not self.at:
            self.image.addcmul_(other.image, factor.expand_as(self.image))

    def plus(self, other: Vector) -> Vector:
        """Return the sum."""
        return self._of_parts(self.at + other.at, lambda: self.image + other.image)

    def minus(self, other: Vector) -> Vector:
        """Return the difference."""
        return self._of_parts(self.at - other.at, lambda: self.image - other.image)

    def only(self, keep: Tensor) -> Vector:
        """Return the vector of some labels."""
        return self._of_parts(self.at[:, keep], lambda: self.image[:, keep])

    def where(self, keep: Tensor, other: Vector) -> Vector:
        """Return this vector for the labels that are kept, bool (L,), and the other for the rest."""
        return self._of_parts(torch.where(keep, self.at, other.at), lambda: torch.where(keep, self.image, other.image))


class SeparableCosts(Protocol):
    """Costs of labels that do not depend on one another, as a function of weights and biases."""

    penalty: float
    """Of the squares of the weights."""
    null: Tensor
    """(L,), what it costs to predict a constant."""
    can_shrink: bool
    """True where labels can be left out."""

    def logits(self, w: Vector) -> Tensor:
        """Return z (N, L), linear in `w`."""

    def slope(self, z: Tensor) -> Tensor:
        """Return the slopes of the cost, (N, L)."""

    def gradient(self, slope: Tensor, w: Vector) -> Vector:
        """Return the gradient of cost and penalty from the slopes of the logits."""

    def curvature(self, w: Vector) -> Tensor:
        """Return a diagonal estimate (D + 1, L) of the Hessian."""

    def only(self, keep: Tensor) -> Any:
        """Return the problem of some labels."""


class _Memory:
    """The last steps of L-BFGS, which approximate the inverse Hessian."""

    def __init__(self, diagonal: Tensor) -> None:
        self.inverse = 1 / diagonal
        self.scale = torch.ones_like(diagonal[0])
        self.pairs: list[tuple[Vector, Vector, Tensor]] = []

    def direction(self, gradient: Vector) -> Vector:
        """Return −H g by the two-loop recursion."""
        q, alphas = gradient.copy(), []
        for s, y, rho in reversed(self.pairs):
            alpha = rho * q.dot(s)
            q.add(y, -alpha)
            alphas.append(alpha)
        q.scale(self.inverse * self.scale)
        for (s, y, rho), alpha in zip(self.pairs, reversed(alphas), strict=True):
            q.add(s, alpha - rho * q.dot(y))
        q.scale(-torch.ones_like(self.scale))
        return q

    def add(self, s: Vector, y: Vector) -> None:
        """Record a step s and the change y of the gradient, except for labels whose slope did not rise."""
        sy, yhy = s.dot(y), y.times(self.inverse).dot(y)
        good = sy > 1e-10 * yhy.clamp_min(1e-30)
        self.scale = torch.where(good, (sy / yhy.clamp_min(1e-30)).clamp(1e-3, 1e3), self.scale)
        self.pairs.append((s, y, torch.where(good, 1 / sy.clamp_min(1e-30), 0.0)))
        del self.pairs[:-_MEMORY]

    def only(self, keep: Tensor) -> None:
        """Forget all but some labels."""
        self.inverse, self.scale = self.inverse[:, keep], self.scale[keep]
        self.pairs = [(s.only(keep), y.only(keep), rho[keep]) for s, y, rho in self.pairs]


def minimise(problem: SeparableCosts, w: Vector, tolerance: float, most_steps: int) -> tuple[Tensor, Tensor, int]:
    """Return weights and biases (D + 1, L), which labels converged, and the steps taken."""
    result, converged = w.at.clone(), torch.zeros(w.at.shape[1], dtype=torch.bool, device=w.at.device)
    place = torch.arange(w.at.shape[1], device=w.at.device)
    z = problem.logits(w)
    gradient = problem.gradient(problem.slope(z), w)
    memory = _Memory(problem.curvature(w))
    step = 0
    for step in range(1, most_steps + 1):  # noqa: B007
        d = memory.direction(gradient)
        downhill = gradient.dot(d)
        if bool((downhill > 0).any()):  # rounding can turn a direction uphill
            d = d.where(downhill <= 0, gradient.times(-memory.inverse))
            downhill = gradient.dot(d)
        done = -downhill / 2 <= tolerance * problem.null
        converged[place] = done
        if bool(done.all()):
            break
        if problem.can_shrink and int((~done).sum()) <= 0.7 * len(done):
            result[:, place] = w.at
            keep = ~done
            problem, place, done = problem.only(keep), place[keep], done[keep]
            w, z, gradient, d = w.only(keep), z[:, keep], gradient.only(keep), d.only(keep)
            memory.only(keep)
        d.scale((~done).to(z.dtype))
        w, z, s, new = _advance(problem, w, z, d, gradient)
        memory.add(s, new.minus(gradient))
        gradient = new
    result[:, place] = w.at
    return result, converged, step


def _advance(
    problem: SeparableCosts, w: Vector, z: Tensor, d: Vector, gradient: Vector
) -> tuple[Vector, Tensor, Vector, Vector]:
    """Return weights, logits, the step and the new gradient after a step along `d`.

    A step that ends where the cost rises again by half the slope with which it began is shortened to where a straight
    slope would be 0.
    """
    dz = problem.logits(d)
    begun = gradient.dot(d)
    bend, pull = problem.penalty * d.dot_weights(d), problem.penalty * w.dot_weights(d)
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
    s = d.times(size)
    w = w.plus(s)
    return w, near, s, problem.gradient(slope, w)
