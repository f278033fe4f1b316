"""A reading as a network that ONNX can hold: the same η, computed in float64 by what ONNX has."""

from __future__ import annotations

import math
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from steelyard.calibrate import Calibrator, Isotonic, Link, shift_prior
from steelyard.calibrate.crossfit import ISOTONIC_TILT
from steelyard.calibrate.isotonic import Curve
from steelyard.calibrate.probability import Reading
from steelyard.calibrate.scaling import Scaling
from steelyard.export.functions import Curves, log1mexp, log1p, logit, logsigmoid, sigmoid, softplus
from steelyard.export.sampling import UndoClassAware
from steelyard.losses import BCE, Asymmetric
from steelyard.losses.asymmetric import SAFE_MARGIN
from steelyard.losses.focused import LOG_ZERO
from steelyard.losses.ldam import SoftmaxLDAM
from steelyard.losses.pair import PairLoss
from steelyard.losses.softplus_pair import SoftplusPair


@final
class ReadingNetwork(nn.Module):
    """From logits (B, L) to η, float32, and decisions, bool: `Reading.probability` and `Reading.decisions`.

    reading: one that has η; a loss whose link cannot be written for ONNX is refused.
    """

    thresholds: Tensor

    def __init__(self, reading: Reading) -> None:
        super().__init__()
        if not reading.has_probability:
            raise ValueError(
                f"there are no probabilities to export, since {reading.why}: run steelyard calibrate first"
            )
        if reading.sets_there is not None:
            raise ValueError(
                "probabilities are read by label sets, which cannot be written for ONNX: write the frequency of each "
                "label to a file, then steelyard calibrate RUN --keep --deploy-prior FILE"
            )
        self.scores = _scores(reading)
        self.calibrated = _calibrated(reading.calibrator)
        self.present = nn.Identity() if reading.annotated is None else _Present(reading.annotated)
        self.shifted = nn.Identity() if reading.to_prior is None else _Shift(reading)
        self.by_item = isinstance(self.scores, _SoftmaxOdds) or any(
            isinstance(part, UndoClassAware) for part in self.scores.modules()
        )
        self.register_buffer("thresholds", torch.from_numpy(reading.thresholds.copy()).float())

    def forward(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return η (B, L), float32, never rounded up to 1, and which labels are decided present.

        η is NaN where a logit is, and of the whole item where labels are computed from each other: ONNX does not say
        what clipping makes of NaN, and onnxruntime makes numbers of it.
        """
        broken = logits.isnan()
        if self.by_item:
            broken = broken | broken.any(1, keepdim=True)
        odds = self.shifted(self.present(self.calibrated(self.scores(logits.double()))))
        eta = sigmoid(odds).float().clamp_max(1 - torch.finfo(torch.float32).eps / 2)
        return torch.where(broken, torch.nan, eta), (eta >= self.thresholds) & ~broken


# ---- what calibrators take


def _scores(reading: Reading) -> nn.Module:
    """Return the network from z to what a calibrator takes, float64."""
    if reading.kind == "none":
        return _Clamp()
    if reading.link is not None and reading.base != "logits":
        parts = [_link(reading.link.loss), _Weights(reading.link, reading.n_labels)]
        if reading.base == "link" and reading.link.class_aware is not None:
            parts.append(UndoClassAware(reading.link.class_aware))
        return nn.Sequential(*parts, _Clamp())
    return _SoftmaxOdds(reading.built.s) if isinstance(reading.built, SoftmaxLDAM) else nn.Identity()


def _link(loss: PairLoss) -> nn.Module:
    """Return the link of a loss, log ℓ₋'(z) − log(−ℓ₊'(z))."""
    if isinstance(loss, BCE):
        return _Smoothed(loss) if loss.smoothing else nn.Identity()
    if isinstance(loss, SoftplusPair):
        return _SoftplusLink(loss)
    if isinstance(loss, Asymmetric):
        return _AsymmetricLink(loss)
    raise ValueError(
        f"the link of {type(loss).__name__} cannot be written for ONNX: fit a calibrator that takes logits, or use one "
        "of the losses in steelyard.losses"
    )


class _Clamp(nn.Module):
    """Log-odds between −100 and 100."""

    def forward(self, odds: Tensor) -> Tensor:
        return odds.clamp(LOG_ZERO, -LOG_ZERO)


class _Weights(nn.Module):
    """+ log w₋ − log w₊."""

    shift: Tensor

    def __init__(self, link: Link, n_labels: int) -> None:
        super().__init__()
        pos, neg = (torch.as_tensor(1.0 if w is None else w).double().cpu() for w in link.class_weights())
        self.register_buffer("shift", (torch.log(neg) - torch.log(pos)).expand(n_labels).clone())

    def forward(self, odds: Tensor) -> Tensor:
        return odds + self.shift


class _Smoothed(nn.Module):
    """The link of BCE with smoothing."""

    def __init__(self, loss: BCE) -> None:
        super().__init__()
        self.edge = math.log(2 / loss.smoothing - 1)

    def forward(self, z: Tensor) -> Tensor:
        return (z + log1mexp(self.edge + z) - log1mexp(self.edge - z)).clamp(LOG_ZERO, -LOG_ZERO)


class _SoftplusLink(nn.Module):
    """The link of `SoftplusPair`: Focal, NTR, SPA, LDAM, and inside of DB."""

    low: Tensor
    high: Tensor

    def __init__(self, loss: SoftplusPair) -> None:
        super().__init__()
        self.gamma, self.k_pos, self.k_neg = loss.gamma, loss.k_pos, loss.k_neg
        self.constant = math.log(loss.c_neg * loss.k_neg) - math.log(loss.c_pos * loss.k_pos)
        self.register_buffer("high", loss.shift_positive.double().cpu().clone())
        self.register_buffer("low", loss.shift_negative.double().cpu().clone())

    def forward(self, z: Tensor) -> Tensor:
        u, v = (z - self.high) * self.k_pos, (z - self.low) * self.k_neg
        return _log_slope(v, self.gamma) - _log_slope(-u, self.gamma) + self.constant


class _AsymmetricLink(nn.Module):
    """The link of `Asymmetric`, step by step as there."""

    def __init__(self, loss: Asymmetric) -> None:
        super().__init__()
        self.gamma_pos, self.gamma_neg, self.detach = loss.gamma_pos, loss.gamma_neg, loss.detach_focus
        self.margin = loss.margin
        self.first = float(np.float32(loss.z_margin)) if loss.margin else 0.0
        self.rest = loss.z_margin - self.first if loss.margin else 0.0

    def forward(self, z: Tensor) -> Tensor:
        z = z.clamp_max(1e30)
        down = _log_slope(-z, self.gamma_pos, self.detach)
        if self.margin == 0:
            return _log_slope(z, self.gamma_neg, self.detach) - down
        over = ((z - self.first) - self.rest).clamp_min(0.0)
        below = over == 0
        log_p, log_q = logsigmoid(z), logsigmoid(-z)
        log_s = math.log1p(-self.margin) + log_p + log1mexp(over)
        s = torch.where(below, 0.5, torch.exp(log_s))
        cost = -log1p(-s)
        if self.margin < SAFE_MARGIN:
            cost = torch.where(s < 0.5, cost, -torch.log(torch.exp(log_q) + self.margin))
        up = log_p + log_q + self.gamma_neg * log_s + cost
        if self.gamma_neg > 0 and not self.detach:
            up = up + log1p(self.gamma_neg * (1 - s) * cost / s)
        return torch.where(below, LOG_ZERO, (up - down).clamp_min(LOG_ZERO))


def _log_slope(x: Tensor, gamma: float, detach: bool = False) -> Tensor:
    """Return log f'(x) of f(x) = σ(x)^γ softplus(x), see `losses.focused`."""
    slope = (gamma + 1.0) * logsigmoid(x)
    if gamma == 0.0 or detach:
        return slope
    near = x.clamp(-80.0, 80.0)
    return slope + log1p(gamma * torch.exp(-near) * softplus(near))


class _SoftmaxOdds(nn.Module):
    """s z_c − log Σ_{j≠c} e^{s z_j}: of the largest by leaving it out, of the others from their share."""

    def __init__(self, s: float) -> None:
        super().__init__()
        self.s = s

    def forward(self, z: Tensor) -> Tensor:
        z = self.s * z
        top, at = z.max(1, keepdim=True)
        largest = torch.arange(z.shape[1]) == at
        weights = torch.exp(z - top)
        share = (z - top) - torch.log(weights.sum(1, keepdim=True))
        second = torch.where(largest, -torch.inf, z).amax(1, keepdim=True).clamp_min(-1e308)
        rest = second + torch.log(torch.where(largest, 0.0, torch.exp(z - second)).sum(1, keepdim=True))
        odds = torch.where(largest, top - rest, share - torch.log(1 - torch.where(largest, 0.5, torch.exp(share))))
        return odds.clamp(LOG_ZERO, -LOG_ZERO)


# ---- calibrators


def _calibrated(calibrator: Calibrator | None) -> nn.Module:
    if calibrator is None:
        return nn.Identity()
    if isinstance(calibrator, Scaling):
        return _Line(calibrator)
    if isinstance(calibrator, Isotonic):
        return _Isotonic(calibrator)
    raise ValueError(
        f"the calibrator {type(calibrator).__name__} cannot be written for ONNX: fit temperature, platt or isotonic"
    )


class _Line(nn.Module):
    """a z + b, between −100 and 100."""

    slope: Tensor
    shift: Tensor

    def __init__(self, scaling: Scaling) -> None:
        super().__init__()
        for name in ("slope", "shift"):
            self.register_buffer(name, torch.tensor(scaling.state()[name], dtype=torch.float64))

    def forward(self, scores: Tensor) -> Tensor:
        return (self.slope * scores + self.shift).clamp(LOG_ZERO, -LOG_ZERO)


class _Isotonic(nn.Module):
    """(1−λ_c) f_c(z) + λ_c σ(a_c logit f(z) + b_c) as log-odds, with the slope that keeps its steps apart."""

    share: Tensor
    slope: Tensor
    shift: Tensor

    def __init__(self, isotonic: Isotonic) -> None:
        super().__init__()
        state = isotonic.state()
        pooled = _curve(state["pooled"])
        self.pooled = Curves([pooled])
        entries = state["own"]
        self.per_label = bool(entries)
        if entries:
            self.curves = Curves([pooled if e["curve"] is None else _curve(e["curve"]) for e in entries])
            for name in ("share", "slope", "shift"):
                self.register_buffer(name, torch.tensor([e[name] for e in entries], dtype=torch.float64))

    def forward(self, scores: Tensor) -> Tensor:
        eta = self.pooled(scores)
        if self.per_label:
            brought = sigmoid(self.slope * logit(eta) + self.shift)
            eta = (1 - self.share) * self.curves(scores) + self.share * brought  # a label without a curve has share 1
        return logit(eta) + ISOTONIC_TILT * scores / (10 + scores.abs())


def _curve(knots: dict[str, list[float]]) -> Curve:
    return Curve(np.array(knots["x"], np.float64), np.array(knots["eta"], np.float64))


# ---- the deployment prior


class _Present(nn.Module):
    """Log-odds of being present from those of being annotated, see `calibrate.prior.scale_annotated`."""

    told: Tensor
    shift: Tensor

    def __init__(self, share: NDArray[np.float64]) -> None:
        super().__init__()
        self.register_buffer("told", torch.from_numpy(~np.isnan(share)))
        self.register_buffer("shift", torch.from_numpy(np.log(np.where(np.isnan(share), 1.0, share))))

    def forward(self, odds: Tensor) -> Tensor:
        excess = softplus(-odds) + self.shift
        certain = excess <= 0
        scaled = (-excess - log1mexp(torch.where(certain, 1.0, excess))).clamp(LOG_ZERO, -LOG_ZERO)
        return torch.where(self.told, torch.where(certain, -LOG_ZERO, scaled), odds)


class _Shift(nn.Module):
    """+ logit π' − logit π; at ±100 where π' is 1 or 0."""

    by: Tensor
    certain: Tensor

    def __init__(self, reading: Reading) -> None:
        super().__init__()
        assert reading.to_prior is not None
        moved = reading.movable & ~np.isnan(reading.to_prior)
        old, new = np.where(moved, reading.prior, 0.5), np.where(moved, reading.to_prior, 0.5)
        by = torch.from_numpy(shift_prior(np.zeros((1, reading.n_labels)), old, new)[0])
        self.register_buffer("by", by)
        self.register_buffer("certain", torch.from_numpy((new == 0) | (new == 1)))

    def forward(self, odds: Tensor) -> Tensor:
        return torch.where(self.certain, self.by, odds + self.by).clamp(LOG_ZERO, -LOG_ZERO)
