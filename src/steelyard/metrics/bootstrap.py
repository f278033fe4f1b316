"""Confidence intervals by resampling items: every metric as a function of how often each item was drawn."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from steelyard._arrays import Array

_RESAMPLES_AT_ONCE = 16


def resample_weights(n_items: int, resamples: int, seed: int) -> Array:
    """Return how often each item is drawn in each resample of `n_items` with replacement: (resamples, n_items)."""
    generator = np.random.default_rng(seed)
    weights = np.empty((resamples, n_items), np.uint16)
    for row in weights:
        row[:] = np.bincount(generator.integers(0, n_items, size=n_items), minlength=n_items)
    return weights


def weighted_average_precision(scores: Array, positive: Array, known: Array, weights: Array) -> Array:
    """Return the average precision of one label in every resample: (resamples,), NaN where no positive was drawn.

    `scores`, `positive` and `known` are (N,), `weights` (resamples, N). The label is sorted once; each resample is a
    cumulative sum of its weights in that order.
    """
    items = np.flatnonzero(known)
    items = items[np.argsort(-scores[items].astype(np.float64), kind="stable")]
    s, hit = scores[items], np.flatnonzero(positive[items])
    out = np.full(len(weights), np.nan)
    if not len(hit):
        return out
    last = np.append(np.flatnonzero(s[1:] != s[:-1]), len(s) - 1)  # where each threshold ends
    threshold = np.searchsorted(last, hit)  # of each positive
    ends = last[threshold]
    final = np.searchsorted(hit, ends, side="right") - 1  # the last positive at that threshold
    for start in range(0, len(weights), _RESAMPLES_AT_ONCE):
        w = weights[start : start + _RESAMPLES_AT_ONCE][:, items]
        above = np.cumsum(w, axis=1)[:, ends]
        drawn = w[:, hit].astype(np.float64)
        hits = np.cumsum(drawn, axis=1)
        precision = np.divide(hits[:, final], above, out=np.zeros(above.shape), where=above > 0)
        out[start : start + len(w)] = divide((drawn * precision).sum(1), hits[:, -1])
    return out


def weighted_sums(weights: Array, values: Array) -> Array:
    """Return Σ_i w_i v_i for every resample: (resamples, …) from (resamples, N) and (N, …), in float64."""
    out = np.zeros((len(weights), *values.shape[1:]))
    flat, step = values.reshape(len(values), -1), 1 << 16
    for start in range(0, len(values), step):
        rows = slice(start, start + step)
        out.reshape(len(weights), -1)[:] += weights[:, rows].astype(np.float64) @ flat[rows].astype(np.float64)
    return out


def weighted_mean(weights: Array, values: Array) -> Array:
    """Return the mean of the defined values (N,) in every resample; NaN where none was drawn."""
    defined = ~np.isnan(values)
    total, n = (weighted_sums(weights, v) for v in (np.where(defined, values, 0.0), defined))
    return divide(total, n)


def divide(a: Array, b: Array) -> Array:
    """Return a / b, NaN where b is 0."""
    out = np.full(a.shape, np.nan)
    np.divide(a, b, out=out, where=b > 0)
    return out


def widened(draws: Array, positives: Array) -> Array:
    """Return resampled average precisions (resamples, L) spread by √(m/(m−1)) about their means, m positives each.

    Drawing m positives out of m with replacement varies (m−1)/m as much as drawing them from where they came from
    (Rao and Wu 1988); with the three positives of a rare label that is a third too little. m = 1 has nothing to vary.
    """
    m = positives.astype(np.float64)
    drawn = ~np.isnan(draws)
    mean = np.where(drawn, draws, 0.0).sum(0) / np.maximum(drawn.sum(0), 1)
    return np.asarray(mean + (draws - mean) * np.sqrt(m / np.maximum(m - 1, 1)))


def interval(value: float, draws: Array, confidence: float, share: bool = True) -> list[float]:
    """Return the bias-corrected normal interval of a metric that is `value`, from its resamples where it is defined.

    φ(θ̂) − b ± z·s with b = mean φ(θ*) − φ(θ̂), s the standard deviation of φ(θ*), taken back by φ⁻¹: φ = arcsin √θ for
    a `share`, which is in [0, 1], the identity for what is only at least 0. A percentile interval would carry the bias
    of ranking metrics twice. NaN where resamples do not vary, or too few are defined.
    """
    defined = draws[~np.isnan(draws)]
    if len(defined) < 2 or not math.isfinite(value):
        return [math.nan, math.nan]
    point, drawn = np.asarray(value), defined
    if share:
        point, drawn = (np.arcsin(np.sqrt(np.clip(x, 0.0, 1.0))) for x in (point, drawn))
    middle = 2 * point - drawn.mean()
    half = NormalDist().inv_cdf((1 + confidence) / 2) * drawn.std(ddof=1)
    if half == 0:
        return [math.nan, math.nan]
    ends = np.array([middle - half, middle + half]).clip(0.0, np.pi / 2 if share else None)
    return [float(end) for end in (np.sin(ends) ** 2 if share else ends)]
