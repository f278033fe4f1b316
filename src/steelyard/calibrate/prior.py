"""Label frequencies that differ from training's: shift the odds, and estimate the new frequencies without labels."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from steelyard._arrays import Floats, slices
from steelyard.calibrate.calibrator import given_back, one_per_label, read_logits
from steelyard.calibrate.lines import bracketed_newton
from steelyard.labels.targets import ArrayLike, refuse
from steelyard.losses.focused import LOG_ZERO, log1mexp, softplus
from steelyard.metrics.inputs import unlabelled

_CELLS_AT_ONCE = 1 << 18
_EXPECTED = 10  # a label expected that often, and estimated never to occur, deserves a warning
_SIGMAS, _RELATIVE = 5.0, 0.1


class UncalibratedWarning(UserWarning):
    """Probabilities given to `estimate_prior` cannot be calibrated for the training prior given.

    Examples:
        >>> import warnings
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     _ = sy.calibrate.estimate_prior(torch.full((100, 1), 0.01), train_prior=0.3)
        >>> caught[0].category.__name__
        'UncalibratedWarning'
    """


@dataclass(frozen=True)
class PriorReport:
    """The estimate for each label, all (L,).

    Examples:
        >>> eta = torch.cat([torch.full((80, 1), 0.1), torch.full((20, 1), 0.9)])
        >>> report = sy.calibrate.prior_report(eta, train_prior=0.5)
        >>> report.prior, report.standard_error, report.converged
        (tensor([0.1250], dtype=torch.float64), tensor([0.0500], dtype=torch.float64), tensor([True]))
    """

    prior: Any
    """The estimated prior q."""
    standard_error: Any
    """1/√I(q), I the observed Fisher information; NaN where q is on the border or the label tells nothing."""
    steps: Any
    """Steps taken."""
    residual: Any
    """|EM(q) − q|: how far one more EM step would move the estimate."""
    converged: Any
    """True if that is below 1e-9 of q."""
    suspicious: Any
    """True if the input is visibly uncalibrated (see `prior_report`)."""


def shift_prior(log_odds: ArrayLike, from_prior: ArrayLike | float, to_prior: ArrayLike | float) -> Any:
    """Return log-odds (N, L) for a world where a label has frequency π′ instead of π.

    Formula:
        logit η′ = logit η + logit π′ − logit π

    Args:
        log_odds: calibrated log-odds (N, L).
        from_prior: π, the frequency they are calibrated for, a number or (L,), inside (0, 1) unless π' is the same.
        to_prior: π', a number or (L,) in [0, 1]; 0 and 1 give log-odds of −100 and 100.

    Examples:
        >>> log_odds = torch.logit(torch.tensor([[0.5]]))  # even odds where the label has a frequency of .1
        >>> torch.sigmoid(sy.calibrate.shift_prior(log_odds, from_prior=0.1, to_prior=0.01))
        tensor([[0.0833]])
    """
    z, dtype, from_numpy = read_logits(log_odds)
    old, new = (_prior(name, p, z.shape[1]).to(z.device) for name, p in (("from", from_prior), ("to", to_prior)))
    same = old == new
    bad = ~same & ((old <= 0) | (old >= 1))
    remedy = "odds learned where a label is never or always present cannot be shifted; leave the label out"
    refuse(bad, "from_prior", old, remedy)
    out = z + torch.where(same, 0.0, torch.logit(new) - torch.logit(torch.where(same, 0.5, old)))
    out = torch.where(~same & (new == 0), LOG_ZERO, torch.where(~same & (new == 1), -LOG_ZERO, out))
    out = torch.where(z.isnan(), z, out)
    return given_back(out.to(dtype), from_numpy)


def scale_annotated(log_odds: Tensor, share: Tensor) -> Tensor:
    """Return the log-odds (N, L), float64, that a label is present, from those that it is annotated as present.

    Where a share c of a label's positives was annotated, whatever the item (Elkan and Noto 2008), the annotated ones
    have probability c η: so η is theirs divided by c, and 1 where that is more. A share of NaN or 1 changes nothing.
    """
    excess = softplus(-log_odds) + torch.log(share)  # −log η
    certain = excess <= 0
    odds = -excess - log1mexp(torch.where(certain, 1.0, excess))
    scaled = torch.where(certain, -LOG_ZERO, odds.clamp(LOG_ZERO, -LOG_ZERO))
    return torch.where(share.isnan() | (share == 1) | log_odds.isnan(), log_odds, scaled)


def estimate_prior(probabilities: ArrayLike, train_prior: ArrayLike | float, reference: ArrayLike | None = None) -> Any:
    """Return the frequency (L,) of each label among unlabelled items: the `prior` of `prior_report`.

    Args:
        probabilities: η (N, L) of unlabelled items, calibrated for the training prior.
        train_prior: π, a number or (L,).
        reference: η (M, L) of items with training's frequencies, to check the calibration by; see `prior_report`.

    Examples:
        >>> eta = torch.cat([torch.full((80, 1), 0.1), torch.full((20, 1), 0.9)])  # of unlabelled items
        >>> sy.calibrate.estimate_prior(eta, train_prior=0.5)  # (.2 − .1)/(.9 − .1)
        tensor([0.1250], dtype=torch.float64)
    """
    return _report(probabilities, train_prior, reference).prior


def prior_report(
    probabilities: ArrayLike, train_prior: ArrayLike | float, reference: ArrayLike | None = None
) -> PriorReport:
    """Estimate the frequency of each label among unlabelled items by maximum likelihood (Saerens et al. 2002).

    Formula:
        q ← mean_i (p_i q/π)/(p_i q/π + (1 − p_i) (1 − q)/(1 − π))
        log L(q) = Σ_i log(q p_i/π + (1 − q) (1 − p_i)/(1 − π))

    Their EM repeats the first line. That is a step q(1−q)/N along the gradient of the log-likelihood, which is concave
    in q: the fixed point reported here is EM's, found by Newton's method inside a bracket, in some ten passes where EM
    may need thousands.

    Only the label frequencies may differ from training (label shift), and the input must be calibrated. It visibly is
    not, and `UncalibratedWarning` says so, where the likelihood rises to a border though training's prior would lead
    one to expect ten labels of the kind ruled out, or where the mean of `reference` differs from π. Miscalibration that
    leaves an inner maximum cannot be seen without `reference`: give it.

    Args:
        probabilities: η (N, L) of unlabelled items, calibrated for the training prior.
        train_prior: π, a number or (L,). A label with π = 0 or 1 keeps it: its probabilities tell nothing.
        reference: η (M, L) of items with training's frequencies (held out from it), to check the calibration by:
            |mean η − π| of more than 5 standard errors and more than a tenth of π or 1−π, whichever is smaller.

    Examples:
        >>> eta = torch.cat([torch.full((80, 1), 0.1), torch.full((20, 1), 0.9)])
        >>> report = sy.calibrate.prior_report(eta, train_prior=0.5)
        >>> report.prior, report.standard_error, report.suspicious
        (tensor([0.1250], dtype=torch.float64), tensor([0.0500], dtype=torch.float64), tensor([False]))
    """
    return _report(probabilities, train_prior, reference)


def _report(probabilities: ArrayLike, train_prior: ArrayLike | float, reference: ArrayLike | None) -> PriorReport:
    p, from_numpy = _probabilities("probabilities", probabilities)
    pi = _prior("train", train_prior, p.shape[1]).to(p.device)
    inner = (pi > 0) & (pi < 1)
    safe = torch.where(inner, pi, 0.5)
    zero, one = torch.zeros_like(pi), torch.ones_like(pi)
    at_zero, at_one = _score(p, safe, zero)[0] <= 0, _score(p, safe, one)[0] >= 0
    silent = (at_zero & at_one) | ~inner  # a likelihood that is flat, or no likelihood at all

    def evaluate(q: Tensor) -> tuple[Tensor, Tensor]:
        first, second = _score(p, safe, q)
        return first, q + first / second

    q, steps = bracketed_newton(evaluate, safe, zero, one, inner & ~at_zero & ~at_one, lambda q: q)
    q = torch.where(silent, pi, torch.where(at_zero, zero, torch.where(at_one, one, q)))
    border = (q == 0) | (q == 1)
    gradient, information = _score(p, safe, torch.where(border, 0.5, q))
    residual = torch.where(border | silent, 0.0, q * (1 - q) * gradient.abs() / len(p))
    error = torch.where(border | silent, torch.nan, information.rsqrt())
    suspicious = ~silent & (((q == 0) & (len(p) * pi >= _EXPECTED)) | ((q == 1) & (len(p) * (1 - pi) >= _EXPECTED)))
    if reference is not None:
        suspicious = suspicious | _off(reference, pi)
    if bool(suspicious.any()):
        _warn(suspicious, q, pi)
    fields = (q, error, steps, residual, residual <= 1e-9 * q, suspicious)
    return PriorReport(*(given_back(x, from_numpy) for x in fields))


def _score(p: Tensor, pi: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first derivative of the log-likelihood in q, and minus the second, float64 (L,)."""
    first, second = torch.zeros_like(pi), torch.zeros_like(pi)
    for rows in slices(p.shape, _CELLS_AT_ONCE):
        x = p[rows].to(torch.float64)
        ratio = (x - pi) / (pi * (1 - pi)) / (q * x / pi + (1 - q) * (1 - x) / (1 - pi))
        first += ratio.sum(0)
        second += ratio.square().sum(0)
    return first, second


def _off(reference: ArrayLike, pi: Tensor) -> Tensor:
    """Return which labels have a mean probability that training's frequency rules out."""
    r, _ = _probabilities("reference", reference)
    if r.shape[1] != len(pi):
        raise ValueError(f"reference has {r.shape[1]} labels, but probabilities has {len(pi)}: they must be the same")
    r = r.to(pi.device, torch.float64)
    gap = (r.mean(0) - pi).abs()
    error = (pi * (1 - pi) / len(r)).sqrt()  # the variance of η is at most that of the labels
    return (gap > _SIGMAS * error) & (gap > _RELATIVE * torch.minimum(pi, 1 - pi))


def _warn(suspicious: Tensor, q: Tensor, pi: Tensor) -> None:
    labels = suspicious.nonzero()[:, 0].tolist()
    c = labels[0]
    others = f" and {len(labels) - 1} more" if len(labels) > 1 else ""
    warnings.warn(
        f"probabilities of label {c}{others} are not calibrated for the training prior (estimate {q[c].item():.3g}, "
        f"training {pi[c].item():.3g}): convert logits with Link or a fitted calibrator first",
        UncalibratedWarning,
        stacklevel=4,
    )


def _probabilities(name: str, values: ArrayLike) -> tuple[Tensor, bool]:
    """Return probabilities (N, L) in [0, 1], at least one row, and whether they were an array."""
    pair = unlabelled(values, name)
    if len(pair.values) == 0:
        raise ValueError(f"{name} has shape {tuple(pair.values.shape)}: give (N, L), at least one item")
    return pair.values, pair.from_numpy


def _prior(name: str, prior: ArrayLike | float, n_labels: int) -> Tensor:
    """Return a prior as float64 (L,)."""
    q = one_per_label(prior, n_labels, f"{name}_prior")
    refuse(~((q >= 0) & (q <= 1)), f"{name}_prior", q, "a frequency lies in [0, 1]")
    return q


LEVEL = 0.01
"""Below this chance of seeing as much if no frequency had shifted, frequencies have."""


class Shift(NamedTuple):
    """Estimated frequencies after shrinkage."""

    prior: Floats
    """The frequency of each label to use, (L,); NaN without an estimate."""
    chance: float
    """The chance of estimates as far from what was expected, or farther, if nothing had shifted; NaN without any."""
    spread: float
    """τ, the deviation of the true shifts of the log-odds."""
    kept: Floats
    """The share of each label's shift that is left, (L,); 0 without an estimate."""


def believed(prior: Floats, estimate: Floats, error: Floats, n_items: int, n_reference: Floats) -> Shift:
    """Return estimates shrunk toward the frequencies they are compared with, as far as these explain them.

    A label's shift δ = logit q − logit π has two errors: of the estimate, and of π itself, which is known from M items
    as the estimate is from N, s² = (error/(q(1−q)))² (1 + N/M). If Σ δ²/s² is no more than chance (χ² at 1 %), nothing
    is shifted. Otherwise true shifts are taken as normal with deviation τ, Σ δ²/(s² + τ²) = the number of labels, and
    each is shrunk to δ τ²/(s² + τ²): a weak model's wild estimates shrink, clear ones hardly move.

    Args:
        prior: π, (L,), what probabilities are calibrated for.
        estimate, error: q and its standard error, (L,), of `prior_report`; a label without an error is left alone.
        n_items: N.
        n_reference: M, (L,).
    """
    usable = np.isfinite(error) & (error > 0) & (prior > 0) & (prior < 1) & (estimate > 0) & (estimate < 1)
    if not usable.any():
        return Shift(np.full(len(prior), np.nan), np.nan, 0.0, np.zeros(len(prior)))
    from scipy.optimize import brentq
    from scipy.special import chdtrc, expit, logit

    pi, q = prior[usable], estimate[usable]
    delta = logit(q) - logit(pi)
    variance = (error[usable] / (q * (1 - q))) ** 2 * (1 + n_items / n_reference[usable])

    def excess(spread: float) -> float:
        return float((delta**2 / (variance + spread)).sum()) - len(delta)

    chance = float(chdtrc(len(delta), excess(0.0) + len(delta)))
    has_shifted = chance < LEVEL and excess(0.0) > 0
    spread = brentq(excess, 0.0, float((delta**2).sum()), xtol=1e-15) if has_shifted else 0.0  # Paule and Mandel 1982
    shrunk, kept = np.full(len(prior), np.nan), np.zeros(len(prior))
    kept[usable] = spread / (variance + spread)
    shrunk[usable] = expit(logit(pi) + delta * kept[usable]) if spread > 0 else pi
    return Shift(shrunk, chance, float(np.sqrt(spread)), kept)
