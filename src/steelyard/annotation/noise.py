"""Estimate how often given labels are wrong from out-of-fold probabilities.

One label is given present with probability

    p(z) = a + (1 − a − m) η(z),    η(z) = σ(e^s z + t)

where z is the log-odds of its out-of-fold probability and η the probability that it is truly present; m is the share of
true positives that are given absent, f the share of given positives that are wrong, and a, the share of true negatives
that are given present, follows from f and the counts. By Bayes' rule a given label is wrong with probability

    a (1 − η) / p  where it is given present,    m η / (1 − p)  where it is given absent.

Far from the boundary η is near 0 or 1: how often labels contradict it there tells m and f. A single label has few items
there, so all labels share one rate, ν, and those of each label deviate from it as far as its own items ask for: the
maximum of the likelihood times normal densities of logit m and logit f about logit ν.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from steelyard._arrays import Floats

DEVIATION = 0.2
"""Prior deviation of a label's logit m and logit f from the shared rate."""
SLOPE_DEVIATION = 0.5
"""Prior deviation of s from 0: probabilities are calibrated, or nearly so."""
USUAL = -2.9
"""Prior mean of the logit of the shared rate: 5 %; its deviation is 1, a factor of about 3."""
MOST = 0.5
"""Upper bound of a, the share of negatives given present."""
LARGEST = 12.0
"""Log-odds are clipped to ± this value."""
N_BINS = 240
"""Number of bins of the log-odds, each 0.1 wide."""
_STEPS = 300
_FEWER_STEPS = 30
_AT_ONCE = 2e6


class Rates(NamedTuple):
    """The noise of each label, (L,) each; NaN where a label has no known positive or no known negative."""

    missing: Floats
    """m, the share of true positives that are given absent."""
    wrong: Floats
    """f, the share of given positives that are wrong."""
    added: Floats
    """a, the share of true negatives that are given present."""
    slope: Floats
    """e^s."""
    shift: Floats
    """t."""
    shared: float
    """ν, the rate shared by all labels."""

    def present(self, log_odds: Floats) -> Floats:
        """Return η, (…, L), of log-odds (…, L), whatever is given; where no rate is known, their own probability."""
        known = ~np.isnan(self.slope)
        x = np.where(known, self.slope, 1.0) * log_odds + np.where(known, self.shift, 0.0)
        return np.asarray(1 / (1 + np.exp(-x)))

    def wrong_if_present(self, eta: Floats) -> Floats:
        """Return the probability, (…, L), that a label is wrong which is given present."""
        return np.asarray(self.added * (1 - eta) / (self.added + (1 - self.added - self.missing) * eta))

    def wrong_if_absent(self, eta: Floats) -> Floats:
        """Return the probability, (…, L), that a label is wrong which is given absent."""
        given = self.added + (1 - self.added - self.missing) * eta
        return np.asarray(self.missing * eta / (1 - given))


def bin_of(log_odds: NDArray[Any]) -> NDArray[np.int64]:
    """Return the bin of each of some log-odds."""
    width = 2 * LARGEST / N_BINS
    return np.clip((log_odds + LARGEST) / width, 0, N_BINS - 1).astype(np.int64)


def centres() -> Floats:
    """Return the log-odds in the middle of each bin."""
    width = 2 * LARGEST / N_BINS
    return np.asarray(np.arange(N_BINS) * width + width / 2 - LARGEST, np.float64)


class _Parameters(NamedTuple):
    """Parameters of R fits: logit m − logit ν, logit f − logit ν, s and t, each (R, L), and logit ν, (R, 1)."""

    m: Tensor
    f: Tensor
    s: Tensor
    t: Tensor
    shared: Tensor

    def noise(self, total: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return a, m and f of each label, (R, L), given the counts of its known items (R, L, 2)."""
        m, f = torch.sigmoid(self.shared + self.m), torch.sigmoid(self.shared + self.f)
        negatives, positives = total.unbind(-1)
        truly_present = (1 - f) * positives / (1 - m)
        truly_absent = (negatives + positives - truly_present).clamp_min(1e-3)
        return (f * positives / truly_absent).clamp(max=MOST), m, f


def fit_rates(counts: NDArray[Any], resamples: Sequence[NDArray[Any]] = ()) -> list[Rates]:
    """Estimate the noise of every label; return the rates of the counts, then those of each resample of them.

    Args:
        counts: known labels (L, bins, 2) by label, bin of the log-odds and whether they are given present.
        resamples: of the counts; their fits start from that of the counts, many at a time.
    """
    n = torch.as_tensor(np.asarray(counts, np.float64))
    usable = (n.sum(1) > 0).all(1).nonzero()[:, 0]
    zero = torch.zeros(1, len(usable), dtype=torch.float64)
    usual = torch.full((1, 1), USUAL, dtype=torch.float64)
    first = _fitted(n[None, usable], _Parameters(zero, zero, zero, zero, usual), _STEPS)
    rates = _spread_out(first, n[None, usable].sum(2), usable, len(counts))
    at_once = max(1, int(_AT_ONCE / (max(len(usable), 1) * N_BINS)))
    for start in range(0, len(resamples), at_once):
        some = torch.as_tensor(np.asarray(resamples[start : start + at_once], np.float64))[:, usable]
        begin = _Parameters(*(part.expand(len(some), -1) for part in first))
        rates += _spread_out(_fitted(some, begin, _FEWER_STEPS), some.sum(2), usable, len(counts))
    return rates


def _fitted(n: Tensor, begin: _Parameters, steps: int) -> _Parameters:
    """Return the parameters of R fits to counts (R, L, bins, 2)."""
    values = [value.clone().requires_grad_() for value in begin]
    if n.numel() == 0:
        return begin
    optimizer = torch.optim.LBFGS(values, max_iter=steps, history_size=20, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = _cost(n, _Parameters(*values))
        value.backward()
        return value

    optimizer.step(closure)
    return _Parameters(*(value.detach() for value in values))


def _cost(n: Tensor, here: _Parameters) -> Tensor:
    """Return minus the logarithm of likelihood × prior, summed over fits, up to a constant."""
    a, m, _ = here.noise(n.sum(2))
    eta = torch.sigmoid(here.s.exp()[..., None] * torch.from_numpy(centres()) + here.t[..., None])
    p = (a[..., None] + (1 - a - m)[..., None] * eta).clamp(1e-12, 1 - 1e-12)
    likelihood = (n[..., 1] * p.log() + n[..., 0] * torch.log1p(-p)).sum()
    spread = (here.m.square() + here.f.square()).sum() / (2 * DEVIATION**2)
    spread = spread + here.s.square().sum() / (2 * SLOPE_DEVIATION**2) + (here.shared - USUAL).square().sum() / 2
    return spread - likelihood


def _spread_out(fits: _Parameters, total: Tensor, usable: Tensor, n_labels: int) -> list[Rates]:
    """Return R rates of all labels, NaN at those that cannot be used."""
    parts = (*fits.noise(total), fits.s.exp(), fits.t)
    whole = np.full((len(parts), len(total), n_labels), np.nan)
    whole[:, :, usable.numpy()] = torch.stack(parts).numpy()
    shared = torch.sigmoid(fits.shared[:, 0]).tolist()
    return [Rates(m, f, a, s, t, rate) for a, m, f, s, t, rate in zip(*whole, shared, strict=True)]
