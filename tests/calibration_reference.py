"""The prior line of a calibrator written a second time, in numpy and scipy: own level, common slope."""

from __future__ import annotations

import numpy as np
from scipy.optimize import brentq, minimize_scalar
from scipy.special import expit


def smoothed_level(present: np.ndarray, known: np.ndarray) -> np.ndarray:
    """(n + ½)/(k + ½/r), r the rate of the labels that have a positive."""
    some = present > 0
    rate = (present[some].sum() + 0.5) / (known[some].sum() + 1)
    return (present + 0.5) / (known + 0.5 / rate)


def shift_to_level(z: np.ndarray, slope: float, level: float) -> float:
    """b with mean σ(a z + b) = level, by bisection."""

    def excess(b: float) -> float:
        return float(expit(slope * z + b).mean() - level)

    return brentq(excess, -1e3 - slope * z.max(), 1e3 - slope * z.min(), xtol=1e-13, rtol=1e-14)


def own_level_line(z: np.ndarray, t: np.ndarray, level: np.ndarray | None = None) -> tuple[float, np.ndarray]:
    """The slope that all labels share, and the shift of each to its level; z, t (N, L), t = -1 where unknown."""
    labels = [(z[t[:, c] >= 0, c], t[t[:, c] >= 0, c].astype(float)) for c in range(z.shape[1])]
    present, known = (np.array([f(y) for _, y in labels], float) for f in (np.sum, len))
    own = smoothed_level(present, known)
    rarer = min(present.sum(), (known - present).sum())
    rarer = max(rarer, min((own * known).sum(), ((1 - own) * known).sum()))
    share = 1 / (1 + rarer)
    mixed = [
        (x, (1 - share) * y + share * expit(x + shift_to_level(x, 1.0, p)))
        for (x, y), p in zip(labels, own, strict=True)
    ]

    def cost(a: float) -> float:
        """The least log-loss at slope a: each label's best shift makes its mean η that of its targets."""
        total = 0.0
        for x, y in mixed:
            s = a * x + shift_to_level(x, a, y.mean())
            total += float((y * np.logaddexp(0, -s) + (1 - y) * np.logaddexp(0, s)).sum())
        return total

    slope = float(minimize_scalar(cost, bounds=(0, 50), method="bounded", options={"xatol": 1e-11}).x)
    shifts = np.array([shift_to_level(x, slope, p) for (x, _), p in zip(labels, own, strict=True)])
    if level is None:
        return slope, shifts
    chance = known * level * (1 - level)
    stray = max(0.0, (((present - known * level) ** 2 / chance - 1).sum()) / chance.sum())
    for c, (x, _) in enumerate(labels):
        eta = expit(slope * x + shifts[c])
        explained = eta.var() / (eta.mean() * (1 - eta.mean()))
        weight = (1 - explained) / (1 + stray * known[c] * own[c] * (1 - own[c]))
        shifts[c] = shift_to_level(x, slope, weight * level[c] + (1 - weight) * own[c])
    return slope, shifts
