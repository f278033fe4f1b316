"""The table of losses: what README shows and what the shared tests go through. A new loss adds a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from steelyard.losses.asymmetric import Asymmetric
from steelyard.losses.bce import BCE
from steelyard.losses.distribution_balanced import DistributionBalanced, WeightedLoss
from steelyard.losses.focal import Focal
from steelyard.losses.ldam import LDAM
from steelyard.losses.loss import Loss, Reduction
from steelyard.losses.negative_tolerant import NegativeTolerant
from steelyard.losses.spa import SPA
from steelyard.losses.two_way import TwoWay

Make = Callable[[Tensor, int, Reduction], Loss | WeightedLoss]


class Row(NamedTuple):
    """A loss as README tells of it, and how to make one from class counts, a number of items and a reduction."""

    name: str
    call: str
    positive: str
    negative: str
    link: str
    source: str
    make: Make


TABLE: tuple[Row, ...] = (
    Row("BCE", "BCE()", "softplus(−z)", "softplus(z)", "σ(z)", "", lambda n, k, r: BCE(reduction=r)),
    Row(
        "BCE, smoothed",
        "BCE(smoothing=.1)",
        "softplus(−z) + (s/2) z",
        "softplus(z) − (s/2) z",
        "(σ(z) − s/2)/(1−s)",
        "Szegedy 2016",
        lambda n, k, r: BCE(0.1, reduction=r),
    ),
    Row(
        "Focal",
        "Focal()",
        "−(1−p)^γ log p",
        "−p^γ log(1−p)",
        "derived",
        "Lin 2017",
        lambda n, k, r: Focal(reduction=r),
    ),
    Row(
        "ASL",
        "Asymmetric()",
        "−(1−p)^γ₊ log p",
        "−s^γ₋ log(1−s), s = (p−m)₊",
        "derived, up to .942",
        "Ben-Baruch 2021",
        lambda n, k, r: Asymmetric(reduction=r),
    ),
    Row(
        "ASL, focus not detached",
        "Asymmetric(1., detach_focus=False)",
        "the same",
        "the same",
        "derived (φ)",
        "Ben-Baruch 2021",
        lambda n, k, r: Asymmetric(1.0, detach_focus=False, reduction=r),
    ),
    Row(
        "NT-BCE",
        "NegativeTolerant(n, k)",
        "softplus(−(z−ν))",
        "softplus(λ(z−ν))/λ",
        "derived",
        "Wu 2020",
        lambda n, k, r: NegativeTolerant(n, k, reduction=r),
    ),
    Row(
        "NT-Focal",
        "NegativeTolerant(n, k, gamma=2.)",
        "× 2(1−p_t)^γ",
        "× 2(1−p_t)^γ",
        "derived",
        "Wu 2020",
        lambda n, k, r: NegativeTolerant(n, k, gamma=2.0, reduction=r),
    ),
    Row(
        "R-BCE",
        "DistributionBalanced(n, k, lam=1., kappa=0.)",
        "r̂ softplus(−z)",
        "r̂ softplus(z)",
        "derived, w₊ w₋ by class",
        "Wu 2020",
        lambda n, k, r: DistributionBalanced(n, k, lam=1.0, kappa=0.0, reduction=r),
    ),
    Row(
        "DB",
        "DistributionBalanced(n, k)",
        "r̂ softplus(−(z−ν))",
        "r̂ softplus(λ(z−ν))/λ",
        "derived, w₊ w₋ by class",
        "Wu 2020",
        lambda n, k, r: DistributionBalanced(n, k, reduction=r),
    ),
    Row(
        "DB-Focal",
        "DistributionBalanced(n, k, gamma=2.)",
        "× 2(1−p_t)^γ",
        "× 2(1−p_t)^γ",
        "derived, w₊ w₋ by class",
        "Wu 2020",
        lambda n, k, r: DistributionBalanced(n, k, gamma=2.0, reduction=r),
    ),
    Row(
        "SPA",
        "SPA()",
        "softplus(−k₊(z−b₊))/ζ₊",
        "softplus(k₋(z−b₋))/ζ₋",
        "A/(A+B)",
        "SPA + LPR paper",
        lambda n, k, r: SPA(reduction=r),
    ),
    Row(
        "LDAM",
        "LDAM(n)",
        "softplus(−(z−Δ))",
        "softplus(z)",
        "derived",
        "Cao 2019",
        lambda n, k, r: LDAM(n, reduction=r),
    ),
    Row(
        "Two-way",
        "TwoWay()",
        "set-level",
        "set-level",
        "none",
        "Kobayashi 2023",
        lambda n, k, r: TwoWay(),
    ),
)


def markdown() -> str:
    """Return the table as README shows it."""
    lines = ["| loss | call | ℓ₊(z) | ℓ₋(z) | its probability | source |", "|---|---|---|---|---|---|"]
    lines += [f"| {r.name} | `{r.call}` | {r.positive} | {r.negative} | {r.link} | {r.source} |" for r in TABLE]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(markdown(), end="")
