"""Isotonic calibration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Self, TypeAlias, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from steelyard.balance.checks import check_choice
from steelyard.calibrate.calibrator import (
    Calibrator,
    NotFitted,
    Per,
    State,
    as_vector,
    check_labels,
    held_out,
)
from steelyard.calibrate.lines import (
    IDENTITY_POSITIVES,
    SHAPE_POSITIVES,
    check_level,
    check_prior_positives,
    fit_line,
    own_level_line,
    prior_share,
)
from steelyard.labels.targets import ArrayLike
from steelyard.losses.focused import LOG_ZERO

Array: TypeAlias = NDArray[np.float64]


class Curve(NamedTuple):
    """A piecewise linear, non-decreasing curve: knots x, strictly increasing, and their η; flat beyond the ends."""

    x: Array
    eta: Array


class Own(NamedTuple):
    """The curve of one label: η = (1 − share) curve(z) + share σ(slope logit f(z) + shift), f the pooled curve."""

    curve: Curve | None
    """None for a label without positives or without negatives, whose share is 1: it has the pooled curve's shape."""
    share: float
    slope: float
    shift: float


@final
class Isotonic(Calibrator):
    """Isotonic regression: non-decreasing least-squares fits, a label's own shrunk towards that of all labels.

    Formula:
        η = (1 − λ_c) f_c(z) + λ_c σ(a_c logit f(z) + b_c)
        λ_c = m/(m + min(n₊, n₋))

    f is fitted on the cells of all labels, f_c on the label's own, by scikit-learn's pool-adjacent-violators, linear
    between its steps. A label is shrunk in two steps, both with a prior worth m positives (see `lines`): the line
    a_c, b_c, whose prior has the label's own level from counts and a slope that all labels share (see `lines`), brings
    the pooled curve to the label's level; and λ_c gives the label's own shape a say. f itself
    has σ as a prior worth one positive, so that η does not reach 0 or 1 unless σ(z) does. Below thousands of positives
    `Platt` has fewer ways to be wrong. The steps tie items that the logits distinguish: rank by the logits.

    Args:
        per: "label", or "pooled" for one curve.
        prior_positives: m, how many positives the prior is worth beside a label's own (150).

    Examples:
        >>> z = torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0]).repeat(200)[:, None]
        >>> y = torch.arange(1000)[:, None] // 5 < 200 * torch.sigmoid(2 * z)  # z is half of what it should be
        >>> calibrator, levels = sy.calibrate.Isotonic(per="pooled").fit(z, y), z[:5]
        >>> torch.sigmoid(levels[:, 0])
        tensor([0.1192, 0.2689, 0.5000, 0.7311, 0.8808])
        >>> calibrator(levels)[:, 0]  # σ(2z), up to the prior, one positive's worth of σ(z)
        tensor([0.0202, 0.1203, 0.5000, 0.8847, 0.9848])
    """

    def __init__(self, per: Per = "label", prior_positives: float = SHAPE_POSITIVES) -> None:
        check_choice(Per, per=per)
        self.per: Per = per
        self.prior_positives = check_prior_positives(prior_positives)
        self._pooled: Curve | None = None
        self._own: list[Own] = []

    def fit(self, logits: ArrayLike, targets: ArrayLike, level: ArrayLike | None = None) -> Self:
        """Fit to logits (N, L) and targets (N, L) that training has not seen, and return self; `level`: see Calibrator.

        Not used where all labels have one curve.
        """
        held = held_out(*(x.cpu() if isinstance(x, Tensor) else x for x in (logits, targets)))
        frequency = check_level(level, held)
        z, t = (x.to(torch.float64).numpy() for x in (held.logits, held.targets))
        known = held.known.numpy()
        every = z[known]
        identity = torch.sigmoid(torch.from_numpy(every))
        share = prior_share(held.present.sum(), held.absent.sum(), identity.sum(), IDENTITY_POSITIVES).item()
        pooled = _rising(every, (1 - share) * t[known] + share * identity.numpy())
        self._pooled, self._own = pooled, []
        if self.per == "label":
            heights = replace(
                held, logits=torch.logit(interpolated([pooled], torch.from_numpy(z))).clamp(LOG_ZERO, -LOG_ZERO)
            )
            line = fit_line(heights, own_level_line(heights, frequency), self.prior_positives, False, True)
            for c, (slope, shift) in enumerate(zip(line.slope.tolist(), line.shift.tolist(), strict=True)):
                cells = known[:, c]
                rarer = min(float(held.present[c]), float(held.absent[c]))
                own = _rising(z[cells, c], t[cells, c]) if rarer > 0 else None
                self._own.append(Own(own, self.prior_positives / (self.prior_positives + rarer), slope, shift))
        return self

    def state(self) -> State:
        """Return what was fitted, as plain JSON."""
        return {
            "per": self.per,
            "prior_positives": self.prior_positives,
            "pooled": _plain(self._fitted()),
            "own": [
                {"share": o.share, "slope": o.slope, "shift": o.shift, "curve": o.curve and _plain(o.curve)}
                for o in self._own
            ],
        }

    def restore(self, state: State) -> None:
        """Restore what `state` returned."""
        if not isinstance(state["own"], list) or (len(state["own"]) == 0) != (self.per == "pooled"):
            raise ValueError("its curves are not one for each label")
        self._pooled, self._own = _curve(state["pooled"]), [_own(entry) for entry in state["own"]]

    def _fitted(self) -> Curve:
        if self._pooled is None:
            raise NotFitted("Isotonic is not fitted: call fit(logits, targets) on held-out items first")
        return self._pooled

    def _eta(self, z: Tensor) -> Tensor:
        eta = interpolated([self._fitted()], z.detach().cpu())
        if self.per == "label":
            check_labels(z, len(self._own))
            share, slope, shift = as_vector(np.array([own[1:] for own in self._own])).unbind(1)
            brought = torch.sigmoid(slope * torch.logit(eta).clamp(LOG_ZERO, -LOG_ZERO) + shift)
            curves = [self._fitted() if own.curve is None else own.curve for own in self._own]  # share 1 without one
            eta = (1 - share) * interpolated(curves, z.detach().cpu()) + share * brought
        return eta.to(z.device)

    def _log_odds(self, z: Tensor) -> Tensor:
        return torch.logit(self._eta(z))


def interpolated(curves: Sequence[Curve], z: Tensor) -> Tensor:
    """Return curves, one per column or one for all, at z (N, L), float64: `numpy.interp` by a binary search."""
    x = as_vector(np.concatenate([np.append(curve.x, np.inf) for curve in curves]))
    eta = as_vector(np.concatenate([np.append(curve.eta, 0.0) for curve in curves]))
    size = torch.tensor([len(curve.x) for curve in curves])
    first = torch.cumsum(size + 1, 0) - size - 1
    inside = torch.minimum(torch.maximum(z, x[first]), x[first + size - 1])
    knot = torch.zeros_like(inside, dtype=torch.int64) + first
    for i in reversed(range((max(len(curve.x) for curve in curves) - 1).bit_length())):
        further = torch.minimum(knot + (1 << i), first + size)  # where x is infinite
        knot = torch.where(x[further] <= inside, further, knot)
    return eta[knot] + (inside - x[knot]) / (x[knot + 1] - x[knot]) * (eta[knot + 1] - eta[knot])


def _rising(z: Array, t: Array) -> Curve:
    """Return the non-decreasing fit to t at z: knots at the ends of its steps, tied logits as one."""
    from sklearn.isotonic import IsotonicRegression  # a second, which every command would wait for

    fit = IsotonicRegression(y_min=0.0, y_max=1.0, increasing=True, out_of_bounds="clip").fit(z, t)
    return Curve(np.asarray(fit.X_thresholds_, np.float64), np.asarray(fit.y_thresholds_, np.float64))


def _plain(curve: Curve) -> dict[str, list[float]]:
    return {"x": curve.x.tolist(), "eta": curve.eta.tolist()}


def _curve(knots: dict[str, Any]) -> Curve:
    x, eta = (np.array(knots[name], np.float64) for name in ("x", "eta"))
    if x.ndim != 1 or x.shape != eta.shape or len(x) == 0 or not (np.isfinite(x).all() and (np.diff(x) > 0).all()):
        raise ValueError("the knots of a curve are out of order")
    if not ((eta >= 0) & (eta <= 1)).all() or (np.diff(eta) < 0).any():
        raise ValueError("a curve falls or leaves [0, 1]")
    return Curve(x, eta)


def _own(entry: dict[str, Any]) -> Own:
    share, slope, shift = (float(entry[name]) for name in ("share", "slope", "shift"))
    curve = entry["curve"] if entry["curve"] is None else _curve(entry["curve"])
    if not (0 < share <= 1 and 0 <= slope < np.inf and abs(shift) < np.inf):
        raise ValueError("a label has a share outside (0, 1], a negative slope, or a number that is not finite")
    return Own(curve, share, slope, shift)
