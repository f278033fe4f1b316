"""What the four papers print wrongly or leave open, each checked by numbers.

    python examples/errata.py

Every row compares the printed form, and the one used here, with something computed without either: a minimum found by
bisection, a sum written out, a count. docs/errata.md has the derivations.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from steelyard.balance import ClassBalanced, PartialLabelMasking, Rebalanced
from steelyard.losses import SPA, Asymmetric, Focal, NegativeTolerant, PartialAnnotation
from steelyard.metrics import calibration_error, label_groups, rarest_labels

VOC_MLT = (6, 34, 8, 14, 154, 17, 249, 29, 479, 4, 240, 48, 11, 20, 775, 100, 5, 82, 7, 64)
"""Positives of the 20 classes of VOC-MLT, of 1142 images."""
ETA = torch.linspace(0.02, 0.92, 46, dtype=torch.float64)


class Claim(NamedTuple):
    """A claim about a paper, what the printed and the used form give, and whether the numbers bear it out."""

    paper: str
    claim: str
    printed: str
    used: str
    holds: bool


Formula = Callable[[Tensor], Tensor]


def slope(formula: Formula, z: Tensor) -> Tensor:
    """The gradient that training sees."""
    x = z.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(formula(x).sum(), x)
    return gradient


def minimiser(positive: Formula, negative: Formula, eta: Tensor) -> Tensor:
    """Where training comes to rest: the root in z of η ℓ₊'(z) + (1−η) ℓ₋'(z), by bisection."""
    low, high = torch.full_like(eta, -20), torch.full_like(eta, 20)
    for _ in range(80):
        z = (low + high) / 2
        falls = eta * slope(positive, z) + (1 - eta) * slope(negative, z) < 0
        low, high = torch.where(falls, z, low), torch.where(falls, high, z)
    return z


def softplus(x: Tensor) -> Tensor:
    return torch.logaddexp(x, torch.zeros_like(x))


def worst(found: Tensor, truth: Tensor) -> float:
    return float((found - truth).abs().max())


def within(error: float) -> str:
    return "exact" if error < 1e-9 else f"off by up to {error:.2g}"


def spa_link() -> Claim:
    """Eq. 17 of the SPA paper has both signs inverted."""
    z = minimiser(lambda z: softplus(-z), lambda z: softplus(3 * (z - 1)) / 5, ETA)

    def link(sign: int) -> Tensor:
        a, b = 3 / 5 * torch.sigmoid(sign * 3 * (z - 1)), torch.sigmoid(-sign * z)
        return a / (a + b)

    printed, used = link(-1), SPA().probability(z)
    holds = bool((printed.diff() < 0).all()) and worst(printed, ETA) > 0.5 and worst(used, ETA) < 1e-9
    says = f"falls as η grows; off by up to {worst(printed, ETA):.2f}"
    return Claim("SPA", "link (17): both signs are inverted", says, within(worst(used, ETA)), holds)


def asymmetric(detach: bool) -> tuple[Formula, Formula]:
    """ASL with γ₊ = 0, γ₋ = 4, m = .05, its focus detached or not."""

    def negative(z: Tensor) -> Tensor:
        s = (torch.sigmoid(z) - 0.05).clamp_min(0)
        focus = s**4
        return -(focus.detach() if detach else focus) * torch.log1p(-s)

    return lambda z: softplus(-z), negative


def asl_link() -> Claim:
    """φ of eqs. 14 and 15 is not the link of ASL as its authors train it."""
    z = minimiser(*asymmetric(detach=True), ETA)
    up, down = (slope(part, z) for part in reversed(asymmetric(detach=False)))
    phi, used = up / (up - down), Asymmetric().probability(z)
    holds = worst(phi, ETA) > 0.05 and worst(used, ETA) < 1e-9
    return Claim(
        "SPA",
        "φ (14, 15) for ASL, focus detached as in its code",
        f"off by up to {worst(phi, ETA):.2f}",
        within(worst(used, ETA)),
        holds,
    )


def asl_through() -> Claim:
    """With gradients through the focus, φ is right."""
    z = minimiser(*asymmetric(detach=False), ETA)
    used = Asymmetric(detach_focus=False).probability(z)
    z_focal = minimiser(
        lambda z: torch.sigmoid(-z) ** 2 * softplus(-z), lambda z: torch.sigmoid(z) ** 2 * softplus(z), ETA
    )
    both = max(worst(used, ETA), worst(Focal().probability(z_focal), ETA))
    sigma = worst(torch.sigmoid(z_focal), ETA)
    return Claim(
        "SPA",
        "φ for focal and ASL, gradients through the focus: right",
        within(both),
        f"the same; σ of focal is off by up to {sigma:.2f}",
        both < 1e-9 and sigma > 0.05,
    )


def histograms(n_classes: int = 20, bins: int = 10) -> np.ndarray:
    """Outputs of the positives of some classes over the bins; more of the rarer classes lie low."""
    rng = np.random.default_rng(0)
    return np.stack([rng.dirichlet(0.3 + np.linspace(0, 3, bins) * c / n_classes) for c in range(n_classes)])


def divergence(seen: np.ndarray, eps: float) -> np.ndarray:
    """KL(P̂ ‖ P), P all in the last bin but for a floor ε."""
    target = np.full(seen.shape[1], eps)
    target[-1] = 1 - (seen.shape[1] - 1) * eps
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(seen > 0, seen * (np.log(seen) - np.log(target)), 0).sum(1)


def standardised(x: np.ndarray) -> np.ndarray:
    return (x - x.mean()) / x.std()


def plm_infinite() -> Claim:
    """PLM's divergence is infinite as printed."""
    toy = np.array([[0.2, 0.2, 0.2, 0.4]])
    printed, used = divergence(toy, 0.0)[0], divergence(toy, 1e-12)[0]
    return Claim(
        "PLM", "KL of its example (.2 .2 .2 .4)", f"{printed}", f"{used:.2f} with ε = 1e-12", math.isinf(printed)
    )


def plm_floor() -> Claim:
    """The floor's size matters, and there is a limit as it goes to 0."""
    seen = histograms()
    limit = standardised(1 - seen[:, -1])
    sizes = (1e-2, 1e-12, 1e-100)
    off = {eps: float(np.abs(standardised(divergence(seen, eps)) - limit).max()) for eps in sizes}
    shrinks = off[1e-12] / off[1e-100]  # like 1/log(1/ε), so by 100/12
    return Claim(
        "PLM",
        "the floor ε: standardised scores tend to those of 1 − P̂[true bin]",
        f"silent; ε = 1e-2 is off by {off[1e-2]:.2f}",
        f"1e-12 by {off[1e-12]:.3f}, 1e-100 by {off[1e-100]:.4f}",
        off[1e-2] > 0.3 and abs(shrinks / (100 / 12) - 1) < 0.05,
    )


def plm_standardised() -> Claim:
    """The text's "D⁺ = D⁻" can only mean the standardised divergences: then the product of the ratios never changes."""
    rng = np.random.default_rng(1)
    masking = PartialLabelMasking([300, 60, 20, 8], 1000, rate=0.5)
    targets = torch.from_numpy((rng.random((1000, 4)) < [0.3, 0.06, 0.02, 0.008]).astype(np.int8))
    outputs = torch.from_numpy(rng.random((1000, 4)))
    masking.observe(outputs, targets)
    before = masking.ratio.log().sum()
    positive, negative = (h / h.sum(1, keepdims=True) for h in masking.histogram.numpy())
    raw = float((divergence(positive, 1e-12) - divergence(negative[:, ::-1], 1e-12)).sum())
    masking.step()
    moved = float((masking.ratio.log().sum() - before).abs())
    return Claim(
        "PLM",
        "Σ log r̄ after a step, D raw or standardised",
        f"moves by {0.5 * abs(raw):.1f}",
        "stays" if moved < 1e-9 else f"moves by {moved:.2g}",
        moved < 1e-9 and abs(raw) > 1,
    )


def plm_rarest() -> Claim:
    """Table 3's "K = 50" cannot be meant for the 10 classes of CIFAR-10."""
    counts = [int(5000 * 100 ** (-i / 9)) for i in range(10)]
    try:
        rarest_labels(counts, 50)
        refused = False
    except ValueError:
        refused = True
    five = rarest_labels(counts, 5).tolist()
    return Claim("PLM", "Table 3: the 50 rarest of CIFAR-10's classes", "there are 10", f"K = 5: {five}", refused)


def db_shift() -> Claim:
    """The released code divides ν by λ once more."""
    counts, lam, kappa = torch.tensor(VOC_MLT, dtype=torch.float64), 5.0, 0.05
    nu = kappa * torch.log(1142 / counts - 1)

    def centre(as_released: bool) -> Tensor:
        """Where ℓ₊' is −½: there z = ν."""
        loss = NegativeTolerant(counts, 1142, lam, kappa, as_released=as_released)
        low, high = torch.full((1, 20), -9.0, dtype=torch.float64), torch.full((1, 20), 9.0, dtype=torch.float64)
        for _ in range(80):
            z = (low + high) / 2
            left = slope(loss.positive, z) < -0.5
            low, high = torch.where(left, z, low), torch.where(left, high, z)
        return z[0]

    released, used = centre(True), centre(False)
    rare = counts.argmin()
    return Claim(
        "DB",
        "ν of VOC-MLT's rarest class (n = 4, λ = 5): released code, formula",
        f"{released[rare]:.4f}",
        f"{used[rare]:.4f}",
        worst(used, nu) < 1e-9 and worst(released, nu / lam) < 1e-9,
    )


def db_groups() -> Claim:
    """The text's "over 100" for head classes is not what its splits use."""
    over = sum(n > 100 for n in VOC_MLT)
    groups = [len(members) for members in label_groups(VOC_MLT).values()]
    return Claim(
        "DB",
        "head classes of VOC-MLT: over 100, or from 100 on",
        f"{over} of 20",
        "{}/{}/{}, as published".format(*groups),
        over == 5 and groups == [6, 6, 8],
    )


def db_class_balanced() -> Claim:
    """An item's weight from the mean effective number of its classes is none of the released modes."""
    counts, beta = [5, 50, 500], 0.9
    e = [(1 - beta**n) / (1 - beta) for n in counts]
    item = torch.tensor([[1.0, 0.0, 1.0]], dtype=torch.float64)
    got = {}
    for mode in ("mean_effective", "mean_weight", "mean_count"):
        weighting = ClassBalanced(counts, beta, mode)  # type: ignore[arg-type]
        got[mode] = float(weighting(item)[0, 0]) * weighting.normaliser
    text = 2 / (e[0] + e[2])
    released = [(1 / e[0] + 1 / e[2]) / 2, (1 - beta) / (1 - beta ** ((5 + 500) / 2)), 1 / e[0]]  # w, n, least n
    holds = abs(got["mean_effective"] - text) < 1e-9 and min(abs(text - r) for r in released) > 0.01
    holds = holds and abs(got["mean_weight"] - released[0]) < 1e-9 and abs(got["mean_count"] - released[1]) < 1e-9
    return Claim(
        "DB",
        "CB weight of an item with classes of 5 and 500: code, text",
        "/".join(f"{r:.3f}" for r in released),
        f"{got['mean_effective']:.3f}",
        holds,
    )


def db_no_positive() -> Claim:
    """An item without positives: r is 1/0."""
    got = Rebalanced([5, 50, 500], alpha=0.1)(torch.zeros(1, 3))
    return Claim(
        "DB",
        "r̂ of an item without positives",
        "silent: r = 1/0",
        f"{float(got[0, 0]):.1f} = 1 + α",
        bool((got == 1.1).all()),
    )


ALPHA, BETA = 0.95, 0.05


def rest(loss: PartialAnnotation, targets: Tensor, pseudo: Tensor, of: tuple[int, int]) -> float:
    """The logit of one cell at which its gradient is 0."""
    low, high = -20.0, 20.0
    everything = torch.ones(targets.shape, dtype=torch.bool)
    for _ in range(80):
        z = torch.zeros(targets.shape, dtype=torch.float64)
        z[of] = middle = (low + high) / 2
        gradient = slope(lambda x: loss(x, targets, pseudo, 7, 10, everything), z)[of]
        low, high = (middle, high) if gradient < 0 else (low, middle)
    return middle


def pal_bracket() -> Claim:
    """With eq. 8's bracket closed early, known and pseudo-labelled cells of one label would need different links."""
    targets = torch.tensor([[0.3, -1.0]], dtype=torch.float64)
    pseudo = torch.tensor([[0.0, 0.3]], dtype=torch.float64)
    loss = PartialAnnotation(gamma=0.2, use_p=False)
    alpha, beta = loss.rule.alpha_beta(targets)
    odds = math.log(0.3 / 0.7)
    gains = [math.exp(rest(loss, targets, pseudo, (0, c)) - odds) for c in (0, 1)]
    factor = float(alpha / beta)
    alone = minimiser(lambda z: softplus(-z), softplus, torch.tensor([0.3], dtype=torch.float64))  # d weighs both sides
    early = float(torch.exp(alone - odds))
    return Claim(
        "partial labels",
        "odds of a known and of a pseudo-labelled cell, over the true ones",
        f"{factor:.0f} and {early:.0f}: α and β weigh the known one alone",
        f"{gains[0]:.3f} and {gains[1]:.3f}",
        all(abs(gain - factor) < 1e-6 for gain in gains) and abs(early - 1) < 1e-6,
    )


def pal_slots() -> Claim:
    """With T = observed labels, positives alone would give α = 0."""
    targets = torch.tensor([[1, -1, -1, -1, -1, -1, -1, -1, -1, -1], [-1, 1, 1, -1, -1, -1, -1, -1, -1, -1]])
    observed = float((targets == 1).sum() / (targets >= 0).sum())
    alpha, beta = PartialAnnotation().rule.alpha_beta(targets.double())
    return Claim(
        "partial labels",
        "β of a batch with only positives known: T observed, T all slots",
        f"β = {observed:.0f}, α = {1 - observed:.0f}",
        f"β = {float(beta):.2f}, α = {float(alpha):.2f}",
        observed == 1 and abs(float(beta) - 0.15) < 1e-12,
    )


def pal_trust() -> Claim:
    """The text wants d = 1 at epoch e_T − m, and less before."""
    good = True
    for schedule in ("exp", "linear"):
        rule, d = PartialAnnotation(schedule=schedule).rule, []  # type: ignore[arg-type]
        for epoch in range(1, 11):
            rule.start_epoch(epoch, 10)
            d.append(rule.d)
        good = good and abs(d[6] - 1) < 1e-12 and all(a < b for a, b in pairwise(d))
    return Claim(
        "partial labels", "d at epoch e_T − m = 7 of 10", "not 1, though the text says so", "1, and less before", good
    )


def pal_boost() -> Claim:
    """p is to help items of which the model says that nothing is there."""
    targets, pseudo = torch.tensor([[1, 0, 0]]), torch.zeros(1, 3)
    ratio = []
    for top in (0.05, 0.6):
        z = torch.logit(torch.tensor([[top, 0.05, 0.02]]))
        value = [float(PartialAnnotation(use_p=p)(z, targets, pseudo, 1, 10)) for p in (True, False)]
        ratio.append(value[0] / value[1])
    return Claim(
        "partial labels",
        "p of an item with all outputs below .1, and of another",
        "1 and 2: the sign is inverted",
        f"{ratio[0]:.0f} and {ratio[1]:.0f}",
        abs(ratio[0] - 2) < 1e-6 and abs(ratio[1] - 1) < 1e-6,
    )


def pal_same_step() -> Claim:
    """A pseudo-label of the same step cancels all but a constant push to positive."""
    z = torch.linspace(-6, 6, 121, dtype=torch.float64)
    y = torch.sigmoid(z)

    def gradient(pseudo: Tensor) -> Tensor:
        return -ALPHA * pseudo * (1 - y) + BETA * (1 - pseudo) * y

    same, before = gradient(y), gradient(torch.full_like(z, 0.01))
    return Claim(
        "partial labels",
        "pull of a pseudo-label of the same step, and of the epoch before (.01)",
        f"up at {float((same < 0).double().mean()):.0%} of logits from −6 to 6".replace("%", " %"),
        f"up at {float((before < 0).double().mean()):.0%}".replace("%", " %"),
        bool((same < 0).all()) and bool((before > 0).any()),
    )


def pal_feedback() -> Claim:
    """Fed back raw, a rare label runs away upwards; fed back through the link, it stays."""

    def settled(link: bool, prior: float = 0.02) -> float:
        pseudo = prior
        for _ in range(2000):
            target = (prior + pseudo) / 2  # known and picked ones count alike at d = 1
            odds = ALPHA / BETA * target / (1 - target)
            raw = odds / (1 + odds)
            pseudo = target if link else raw
        return pseudo

    raw, linked = settled(False), settled(True)
    return Claim(
        "partial labels",
        "where pseudo-labels of an uninformative label of frequency .02 settle",
        f"fed back raw: {raw:.2f}",
        f"through the link: {linked:.2f}",
        abs(raw - 0.95) < 0.01 and abs(linked - 0.02) < 1e-6,
    )


def ace_bins() -> Claim:
    """ACE needs its bins to be told: the same outputs give other numbers with others."""
    rng = np.random.default_rng(2)
    p = rng.beta(0.3, 2, (5000, 10))
    y = (rng.random(p.shape) < p**1.3).astype(np.int8)
    ace = {
        "10 of equal width": calibration_error(p, y, bins=10).ace,
        "15 of equal width": calibration_error(p, y, bins=15).ace,
        "15 of equal mass": calibration_error(p, y, bins=15, binning="mass").ace,
    }
    centre = np.clip((p.ravel() * 15).astype(int), 0, 14)
    by_hand = np.mean([abs(p.ravel()[centre == b].mean() - y.ravel()[centre == b].mean()) for b in np.unique(centre)])
    low, high = 100 * min(ace.values()), 100 * max(ace.values())
    return Claim(
        "SPA",
        "ACE of the same outputs, by its bins",
        f"silent: {low:.1f} to {high:.1f} %",
        f"{100 * ace['15 of equal width']:.1f} %: 15 of equal width, pooled",
        abs(by_hand - ace["15 of equal width"]) < 1e-9 and high > 1.2 * low,
    )


CHECKS: tuple[Callable[[], Claim], ...] = (
    plm_infinite,
    plm_floor,
    plm_standardised,
    plm_rarest,
    db_shift,
    db_groups,
    db_class_balanced,
    db_no_positive,
    pal_bracket,
    pal_slots,
    pal_trust,
    pal_boost,
    pal_same_step,
    pal_feedback,
    spa_link,
    asl_link,
    asl_through,
    ace_bins,
)


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ask.add_argument("--json", action="store_true", help="print the claims as JSON")
    asked = ask.parse_args()
    claims = [check() for check in CHECKS]
    if asked.json:
        print(json.dumps([claim._asdict() for claim in claims], ensure_ascii=False))
    else:
        for claim in claims:
            print(f"{claim.paper}: {claim.claim}")
            print(f"    the printed form gives: {claim.printed}")
            print(f"    the form used here gives: {claim.used}")
            print(f"    confirmed by the numbers: {'yes' if claim.holds else 'NO'}\n")
    if not all(claim.holds for claim in claims):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
