"""The formulas of the four papers written a second time: 60-digit or float64, loops, no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mpmath
import numpy as np

mp = mpmath.MPContext()
mp.dps = 60
Number = Any
Partial = Callable[[Number, Number], Number]


@dataclass(frozen=True)
class Pair:
    """ℓ₊ and ℓ₋ of (z, f), f the logit that the focusing weight is taken from: a constant to training if detached."""

    positive: Partial
    negative: Partial
    detached: bool = False

    def cost(self, z: float, target: float) -> Number:
        """t ℓ₊(z) + (1−t) ℓ₋(z)."""
        t, z = mp.mpf(float(target)), mp.mpf(float(z))
        return t * self.positive(z, z) + (1 - t) * self.negative(z, z)

    def slope(self, z: float, target: float) -> Number:
        """Its derivative as training sees it, by differences of 60-digit numbers."""
        t, at = mp.mpf(float(target)), mp.mpf(float(z))

        def cost(x: Number) -> Number:
            f = at if self.detached else x
            return t * self.positive(x, f) + (1 - t) * self.negative(x, f)

        return mp.diff(cost, at)

    def log_odds(self, z: float) -> Number:
        """log ℓ₋' − log(−ℓ₊')."""
        return mp.log(self.slope(z, 0)) - mp.log(-self.slope(z, 1))


def sigmoid(x: Number) -> Number:
    return 1 / (1 + mp.exp(-x))


def softplus(x: Number) -> Number:
    return mp.log1p(mp.exp(x)) if x < 0 else x + mp.log1p(mp.exp(-x))


def bce(smoothing: float = 0.0) -> Pair:
    s = mp.mpf(smoothing)

    def of(y: int) -> Partial:
        t = y * (1 - s) + s / 2
        return lambda z, f: t * softplus(-z) + (1 - t) * softplus(z)

    return Pair(of(1), of(0))


def asymmetric(gamma_pos: float, gamma_neg: float, margin: float, detached: bool, scale: float = 1.0) -> Pair:
    """−(1−p)^γ₊ log p and −s^γ₋ log(1−s), s = (p−m)₊; focal is γ₊ = γ₋, m = 0."""
    m, c = mp.mpf(margin), mp.mpf(scale)

    def absent(z: Number, f: Number) -> Number:
        s, focus = max(sigmoid(z) - m, mp.mpf(0)), max(sigmoid(f) - m, mp.mpf(0))
        remains = sigmoid(-z) + m if s > 0 else mp.mpf(1)
        return -c * focus**gamma_neg * mp.log(remains)

    return Pair(lambda z, f: c * sigmoid(-f) ** gamma_pos * softplus(-z), absent, detached)


def focal(gamma: float = 2.0, scale: float = 1.0) -> Pair:
    return asymmetric(gamma, gamma, 0.0, False, scale)


def negative_tolerant(
    n: float,
    k: float,
    lam: float = 2.0,
    kappa: float = 0.05,
    gamma: float = 0.0,
    focal_scale: float = 2.0,
    as_released: bool = False,
) -> Pair:
    nu = mp.mpf(kappa) * mp.log(mp.mpf(k) / n - 1) / (lam if as_released else 1)
    c = focal_scale if gamma > 0 else 1
    return Pair(
        lambda z, f: c * sigmoid(-(f - nu)) ** gamma * softplus(-(z - nu)),
        lambda z, f: c * sigmoid(lam * (f - nu)) ** gamma * softplus(lam * (z - nu)) / lam,
    )


def spa(zp: float = 1, kp: float = 1, bp: float = 0, zn: float = 5, kn: float = 3, bn: float = 1) -> Pair:
    return Pair(lambda z, f: softplus(-kp * (z - bp)) / zp, lambda z, f: softplus(kn * (z - bn)) / zn)


def ldam_margins(counts: Sequence[float], largest: float = 0.5) -> np.ndarray:
    """Δ_c = C/n_c^¼ with the largest margin given."""
    raw = np.asarray(counts, dtype=np.float64) ** -0.25
    return raw * largest / raw.max()


def ldam(margin: float) -> Pair:
    return Pair(lambda z, f: softplus(-(z - mp.mpf(float(margin)))), lambda z, f: softplus(z))


def hill(lam: float = 1.5, margin: float = 1.0, gamma: float = 2.0) -> Pair:
    """(1−p_m)^γ softplus(−(z−m)) and (λ−p) p²."""
    return Pair(
        lambda z, f: sigmoid(margin - z) ** gamma * softplus(margin - z),
        lambda z, f: (lam - sigmoid(z)) * sigmoid(z) ** 2,
    )


def pairs(name: str, counts: Sequence[int], n_items: int) -> list[Pair]:
    """One pair a class for a row of the table of losses, at the parameters that its call shows."""
    one: dict[str, Pair] = {
        "BCE": bce(),
        "BCE, smoothed": bce(0.1),
        "Focal": focal(),
        "ASL": asymmetric(0.0, 4.0, 0.05, True),
        "ASL, focus not detached": asymmetric(1.0, 4.0, 0.05, False),
        "R-BCE": bce(),
        "SPA": spa(),
        "Hill": hill(),
    }
    if name in one:
        return [one[name]] * len(counts)
    if name in ("NT-BCE", "DB"):
        return [negative_tolerant(n, n_items) for n in counts]
    if name == "Logit-adjusted":
        return [negative_tolerant(n, n_items, lam=1.0, kappa=1.0) for n in counts]
    if name in ("NT-Focal", "DB-Focal"):
        return [negative_tolerant(n, n_items, gamma=2.0) for n in counts]
    if name == "LDAM":
        return [ldam(m) for m in ldam_margins(counts)]
    raise KeyError(name)


WEIGHTED = ("R-BCE", "DB", "DB-Focal")
SET_LEVEL = ("Two-way",)


def rebalanced(
    targets: np.ndarray, counts: Sequence[float], alpha: float = 0.1, beta: float = 10.0, mu: float = 0.2
) -> np.ndarray:
    """r̂ = α + σ(β(r − μ)), r_i = (1/n_i)/Σ_{j positive} 1/n_j; r → ∞ without positives. Soft: by degree."""
    out = np.empty(targets.shape)
    for k, row in enumerate(targets):
        total = sum(max(y, 0.0) / n for y, n in zip(row, counts, strict=True))
        for i, n in enumerate(counts):
            r = np.inf if total == 0 else (1 / n) / total
            out[k, i] = alpha + (1.0 if np.isinf(r) else 1 / (1 + np.exp(-beta * (r - mu))))
    return out


def inverse_frequency(targets: np.ndarray, counts: Sequence[float], power: float = 0.5) -> np.ndarray:
    """n_c^−power over the largest such among all classes."""
    raw = np.asarray(counts, dtype=np.float64) ** -power
    return np.broadcast_to(raw / raw.max(), targets.shape)


def class_balanced(targets: np.ndarray, counts: Sequence[float], beta: float, mode: str) -> np.ndarray:
    """Inverse effective numbers 1/E, E(n) = (1−βⁿ)/(1−β), over their mean over classes; 1 without positives."""
    n = np.asarray(counts, dtype=np.float64)

    def effective(x: Number) -> Number:
        return (1 - beta**x) / (1 - beta)

    unit = np.mean(1 / effective(n))
    out = np.ones(targets.shape)
    for k, row in enumerate(targets):
        here = row == 1
        if mode == "class":
            out[k] = 1 / effective(n) / unit
        elif here.any():
            out[k] = {
                "mean_effective": 1 / np.mean(effective(n[here])),
                "mean_weight": np.mean(1 / effective(n[here])),
                "mean_count": 1 / effective(np.mean(n[here])),
            }[mode] / unit
    return out


def reduce(cells: np.ndarray, targets: np.ndarray, reduction: str) -> np.ndarray:
    """Reduce cells that are 0 where unknown."""
    if reduction == "mean":
        return cells.sum() / max((targets >= 0).sum(), 1)
    if reduction == "item":
        return cells.sum() / max(len(cells), 1)
    return cells if reduction == "none" else cells.sum()


def cells(
    pair_of: Sequence[Pair], z: np.ndarray, targets: np.ndarray, weight: np.ndarray | float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Value and slope of every cell, weighted, 0 where unknown."""
    w = np.broadcast_to(np.asarray(weight, dtype=np.float64), z.shape)
    value, slope = np.zeros(z.shape), np.zeros(z.shape)
    for i, j in zip(*np.nonzero(targets >= 0), strict=True):
        value[i, j] = w[i, j] * float(pair_of[j].cost(z[i, j], targets[i, j]))
        slope[i, j] = w[i, j] * float(pair_of[j].slope(z[i, j], targets[i, j]))
    return value, slope


def two_way(z: np.ndarray, targets: np.ndarray, t_pos: float = 4.0, t_neg: float = 1.0) -> float:
    """Mean over items with a positive, plus mean over classes with a positive, of the softplus of two lses."""

    def one_axis(rows: np.ndarray, ys: np.ndarray) -> float:
        values = []
        for row, y in zip(rows, ys, strict=True):
            if not (y == 1).any():
                continue
            negatives, positives = [mp.mpf(float(v)) for v in row[y == 0]], [mp.mpf(float(v)) for v in row[y == 1]]
            if not negatives:
                values.append(mp.mpf(0))  # lse of nothing is −∞
                continue
            low = t_neg * mp.log(mp.fsum(mp.exp(v / t_neg) for v in negatives))
            high = t_pos * mp.log(mp.fsum(mp.exp(-v / t_pos) for v in positives))
            values.append(softplus(low + high))
        return float(mp.fsum(values) / len(values)) if values else 0.0

    return one_axis(z, targets) + one_axis(z.T, targets.T)


def ldam_softmax(z: np.ndarray, targets: np.ndarray, counts: Sequence[float], s: float = 30.0) -> list[float]:
    """Cross-entropy of s(z − Δ_y) over the known labels of each item that has its one positive."""
    margins, out = ldam_margins(counts), []
    for row, y in zip(z, targets, strict=True):
        if (y == 1).any():
            c = int(np.argmax(y == 1))
            terms = [
                mp.mpf(s) * (mp.mpf(float(v)) - (mp.mpf(float(margins[c])) if j == c else 0)) for j, v in enumerate(row)
            ]
            used = [terms[j] for j in range(len(row)) if y[j] >= 0]
            top = max(used)
            out.append(float(top + mp.log(mp.fsum(mp.exp(t - top) for t in used)) - terms[c]))
    return out


def label_pair(scores: np.ndarray, targets: np.ndarray) -> tuple[float, np.ndarray]:
    """2/(L(L−1)) Σ y_t(1−y_t') softplus(s_t' − s_t), mean over items, with its gradient: the naive double loop."""
    b, n = scores.shape
    total, gradient = 0.0, np.zeros(scores.shape)
    scale = 2 / (n * (n - 1)) / b if n > 1 and b else 0.0
    for i in range(b):
        for t in range(n):
            for u in range(n):
                if t != u and targets[i, t] >= 0 and targets[i, u] >= 0:
                    w = targets[i, t] * (1 - targets[i, u]) * scale
                    d = scores[i, u] - scores[i, t]
                    total += w * np.logaddexp(0, d)
                    g = w * np.exp(-np.logaddexp(0, -d))
                    gradient[i, u] += g
                    gradient[i, t] -= g
    return total, gradient


def partial_annotation(
    z: np.ndarray,
    targets: np.ndarray,
    pseudo: np.ndarray,
    picked: np.ndarray,
    d: float = 1.0,
    gamma: float = 0.05,
    use_alpha_beta: bool = True,
    use_p: bool = True,
    count: str = "known",
) -> float:
    """Eq. 11 of the partial-annotation paper with its four means, mean over items."""
    positives = (targets == 1).sum() + (pseudo[targets < 0].sum() if count == "pseudo" else 0)
    beta = max(positives / targets.size, gamma)
    alpha = 1 - beta
    if not use_alpha_beta:
        alpha = beta = 1.0

    def mean(terms: list[float]) -> float:
        return sum(terms) / len(terms) if terms else 0.0

    total = 0.0
    for row, y, guess, take in zip(z, targets, pseudo, picked, strict=True):
        known = [j for j in range(len(row)) if y[j] >= 0]
        drawn = [j for j in range(len(row)) if y[j] < 0 and take[j]]
        log_p, log_q = -np.logaddexp(0, -row), -np.logaddexp(0, row)
        p = 2.0 if use_p and (1 / (1 + np.exp(-row)) < 0.1).all() else 1.0
        total += p * (
            alpha * (mean([-y[j] * log_p[j] for j in known]) + d * mean([-guess[j] * log_p[j] for j in drawn]))
            + beta
            * (mean([-(1 - y[j]) * log_q[j] for j in known]) + d * mean([-(1 - guess[j]) * log_q[j] for j in drawn]))
        )
    return total / len(z)


def philox4x32(counter: Sequence[int], key: Sequence[int], rounds: int = 10) -> list[int]:
    """Philox4x32 of Salmon et al. 2011 in Python integers."""
    c, (k0, k1) = list(counter), key
    for _ in range(rounds):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k0, b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ k1, a & 0xFFFFFFFF]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c


def masking_uniform(seed: int, epoch: int, index: int, label: int) -> float:
    """Counter (label // 4, index low, index high, epoch), upper 24 bits of word label % 4, over 2²⁴."""
    counter = [label // 4, index & 0xFFFFFFFF, index >> 32, epoch]
    return (philox4x32(counter, [seed & 0xFFFFFFFF, seed >> 32])[label % 4] >> 8) / 2**24


def masking_divergence(positive: np.ndarray, negative: np.ndarray, eps: float) -> np.ndarray:
    """D_c = D̃⁺ − D̃⁻ of histograms (L, τ): KL to nearly one-hot P, standardised; ε = 0 is the limit 1 − P̂[true]."""

    def scores(histogram: np.ndarray, true_bin: int) -> np.ndarray:
        p_hat = histogram / histogram.sum(1, keepdims=True)
        if eps == 0:
            return 1 - p_hat[:, true_bin]
        p = np.full(histogram.shape[1], eps)
        p[true_bin] = 1 - (len(p) - 1) * eps
        return np.array([sum(a * np.log(a / b) for a, b in zip(row, p, strict=True) if a > 0) for row in p_hat])

    def standard(x: np.ndarray) -> np.ndarray:
        return (x - x.mean()) / x.std() if x.std() > 0 else np.zeros_like(x)

    return standard(scores(positive, histogram_last(positive))) - standard(scores(negative, 0))


def histogram_last(histogram: np.ndarray) -> int:
    return histogram.shape[1] - 1


def role(z: np.ndarray, e: np.ndarray, targets: np.ndarray, k: float) -> float:
    """½[−Σ_pos log ŷ + BCE(ŷ, e) + R(ŷ)] + ½[−Σ_pos log e + BCE(e, ŷ) + R(e)], label terms over B·L."""
    y = 1 / (1 + np.exp(-z))
    positive = targets == 1
    slots = z.size

    def cross(p: np.ndarray, t: np.ndarray) -> float:
        return float(-(t * np.log(p) + (1 - t) * np.log(1 - p)).sum() / slots)

    def count(p: np.ndarray) -> float:
        return float(((p.sum(1).mean() - k) / z.shape[1]) ** 2)

    one = -np.log(y[positive]).sum() / slots + cross(y, e) + count(y)
    two = -np.log(e[positive]).sum() / slots + cross(e, y) + count(e)
    return float(0.5 * one + 0.5 * two)
