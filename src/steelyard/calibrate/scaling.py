"""Calibrators that are straight in log-odds, log η/(1−η) = a z + b with a ≥ 0: `Platt` and `Temperature`."""

from __future__ import annotations

from typing import ClassVar, Self, final

import torch
from torch import Tensor

from steelyard.balance.checks import check_choice
from steelyard.calibrate.calibrator import Calibrator, NotFitted, Per, State, check_labels, held_out
from steelyard.calibrate.lines import (
    IDENTITY_POSITIVES,
    PRIOR_POSITIVES,
    Line,
    check_level,
    check_prior_positives,
    fit_line,
    own_level_line,
)
from steelyard.labels.targets import ArrayLike


class Scaling(Calibrator):
    """A straight line in log-odds, pooled or one per label: the most likely one given the labels and the prior.

    The pooled line has σ as its prior, worth one positive, so that it is finite even on labels that a threshold tells
    apart. A label's prior line is worth `prior_positives` (see `lines`): with a shift it has the label's own level
    and the slope of all labels (see `lines`), without one it is the pooled line. Falling lines are not allowed: where
    labels ask for one, a = 0.
    """

    _has_shift: ClassVar[bool]
    """True if b is fitted; else it stays 0."""

    def __init__(self, per: Per = "label", prior_positives: float = PRIOR_POSITIVES) -> None:
        check_choice(Per, per=per)
        self.per: Per = per
        self.prior_positives = check_prior_positives(prior_positives)
        self._line: Line | None = None

    @final
    def fit(self, logits: ArrayLike, targets: ArrayLike, level: ArrayLike | None = None) -> Self:
        """Fit to logits (N, L) and targets (N, L) that training has not seen, and return self; `level`: see Calibrator.

        Not used without a shift, or where all labels have one line.
        """
        held = held_out(logits, targets)
        frequency = check_level(level, held)
        one = torch.ones(1, dtype=torch.float64, device=held.logits.device)
        if self.per == "label" and self._has_shift:
            line = own_level_line(held, frequency)
        else:
            line = fit_line(held, Line(one, torch.zeros_like(one)), IDENTITY_POSITIVES, True, self._has_shift)
        if self.per == "label":
            line = fit_line(held, line, self.prior_positives, False, self._has_shift)
        self._line = Line(line.slope.cpu(), line.shift.cpu())
        return self

    @final
    def state(self) -> State:
        """Return what was fitted, as plain JSON."""
        line = self._fitted()
        return {
            "per": self.per,
            "prior_positives": self.prior_positives,
            "slope": line.slope.tolist(),
            "shift": line.shift.tolist(),
        }

    @final
    def restore(self, state: State) -> None:
        """Restore what `state` returned."""
        slope, shift = (torch.tensor(state[name], dtype=torch.float64) for name in ("slope", "shift"))
        if slope.ndim != 1 or slope.shape != shift.shape or len(slope) == 0:
            raise ValueError("its slopes and shifts are not one for each label")
        if self.per == "pooled" and len(slope) != 1:
            raise ValueError(f"it is pooled and has {len(slope)} slopes")
        if not (torch.isfinite(torch.cat([slope, shift])).all() and (slope >= 0).all()):
            raise ValueError("a slope is negative, or a number is not finite")
        if not self._has_shift and shift.any():
            raise ValueError("it has shifts, which a temperature does not")
        self._line = Line(slope, shift)

    @property
    @final
    def slope(self) -> Tensor:
        """The slopes a, float64 (L,), or (1,) if pooled."""
        return self._fitted().slope

    @final
    def _fitted(self) -> Line:
        if self._line is None:
            raise NotFitted(f"{type(self).__name__} is not fitted: call fit(logits, targets) on held-out items first")
        return self._line

    @final
    def _log_odds(self, z: Tensor) -> Tensor:
        line = self._fitted()
        if self.per == "label":
            check_labels(z, len(line.slope))
        return line.at(z)

    @final
    def _eta(self, z: Tensor) -> Tensor:
        return torch.sigmoid(self._log_odds(z))


@final
class Platt(Scaling):
    """Platt scaling: a line of the logit for each label (Platt 1999).

    Formula:
        η = σ(a_c z + b_c), a_c ≥ 0

    a, b minimise the log-loss of the known labels; a label's are shrunk by partial pooling (see `lines`) toward the
    slope that all labels share and the shift that gives the label its own level, from counts (see `lines`). A rare
    label so keeps its frequency, which a line shared by all labels does not know.

    Args:
        per: "label", or "pooled" for one line.
        prior_positives: m, how many positives the prior is worth beside a label's own (20).

    Examples:
        >>> z = torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0]).repeat(200)[:, None]
        >>> y = torch.arange(1000)[:, None] // 5 < 200 * torch.sigmoid(2 * z - 1)  # z is too small, and too high
        >>> calibrator = sy.calibrate.Platt().fit(z, y)
        >>> calibrator.slope, calibrator.shift
        (tensor([1.9810], dtype=torch.float64), tensor([-0.9643], dtype=torch.float64))
    """

    _has_shift = True

    @property
    def shift(self) -> Tensor:
        """The shifts b, float64 (L,), or (1,) if pooled."""
        return self._fitted().shift


@final
class Temperature(Scaling):
    """Temperature scaling: a factor of the logit for each label (Guo et al. 2017).

    Formula:
        η = σ(z/T_c), T_c > 0

    T minimises the log-loss of the known labels; a label's T is shrunk toward the pooled one by partial pooling (see
    `lines`), the pooled fit counting as m positives. A temperature moves no logit across 0: logits whose zero is
    not at even odds (rebalanced training, any loss but BCE) need log-odds from `Link` as input, or `Platt`. For the
    same reason it cannot give a rare label its level, and `fit` makes no use of `level`.

    Args:
        per: "label", or "pooled" for one temperature.
        prior_positives: m, how many positives the pooled fit is worth beside a label's own (20).

    Examples:
        >>> z = torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0]).repeat(200)[:, None]
        >>> y = torch.arange(1000)[:, None] // 5 < 200 * torch.sigmoid(2 * z)  # z is half of what it should be
        >>> calibrator = sy.calibrate.Temperature().fit(z, y)
        >>> calibrator.temperature
        tensor([0.4962], dtype=torch.float64)
    """

    _has_shift = False

    @property
    def temperature(self) -> Tensor:
        """T, float64 (L,), or (1,) if pooled; infinite where the labels do not rise with the logits."""
        return 1 / self.slope
