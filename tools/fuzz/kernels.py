"""Losses on random batches against formulas in float64: `python -m fuzz.kernels --count 100000 [--device cuda]`.

A case is a loss with its constants, a rule for unknown labels or weights, a reduction, shapes, dtypes, strides, and
targets of a mix. On a GPU the fused kernels answer, and a kernel is compiled for what does not change in a variant, so
a variant is tried on many inputs; on a CPU the plain code answers, and every case is a variant of its own.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import torch
from torch import Tensor

from steelyard.losses import BCE, LDAM, SPA, Asymmetric, DistributionBalanced, Focal, NegativeTolerant, TwoWay
from steelyard.objective import Objective

Formula = Callable[[Tensor], tuple[Tensor, Tensor, Tensor, Tensor]]
"""z in float64 → ℓ₊, ℓ₊', ℓ₋, ℓ₋'."""

LAST = {torch.float64: 0.0, torch.float32: 0.0, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
LEAST = {torch.float64: 0.0, torch.float32: 0.0, torch.bfloat16: 0.0, torch.float16: 2.0**-25}
LABELS = (1, 2, 5, 16, 37, 80, 128, 300, 1203)
EXTREMES = (1e4, -1e4, 100.0, -100.0, 20.0, -20.0, 0.0, -0.0)


def _softplus(x: Tensor) -> Tensor:
    return torch.logaddexp(torch.zeros_like(x), x)


def _focused(x: Tensor, gamma: float, detach: bool) -> tuple[Tensor, Tensor]:
    """σ(x)^γ softplus(x) and its derivative."""
    focus, s = torch.exp(-gamma * _softplus(-x)), torch.sigmoid(x)
    flows = 0.0 if detach else gamma
    return focus * _softplus(x), focus * (s + flows * torch.sigmoid(-x) * _softplus(x))


def _pair(
    up: tuple[float, Any, float],
    down: tuple[float, Any, float],
    gamma: tuple[float, float] = (0.0, 0.0),
    detach: bool = False,
) -> Formula:
    """ℓ₊ = c f(−k(z − b)) of up = (k, b, c), ℓ₋ = c f(k(z − b)) of down."""

    def formula(z: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        k, b, c = up
        p, dp = _focused(-k * (z - b), gamma[0], detach)
        q, c_down = down[0], down[2]
        n, dn = _focused(q * (z - down[1]), gamma[1], detach)
        return c * p, -c * k * dp, c_down * n, c_down * q * dn

    return formula


def _smoothed(s: float) -> Formula:
    def formula(z: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        up, down = _softplus(-z) + s / 2 * z, _softplus(z) - s / 2 * z
        return up, s / 2 - torch.sigmoid(-z), down, torch.sigmoid(z) - s / 2

    return formula


def _shifted(gamma_pos: float, gamma_neg: float, m: float, detach: bool) -> Formula:
    def formula(z: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        up, rise = _focused(-z, gamma_pos, detach)
        p, q = torch.sigmoid(z), torch.sigmoid(-z)
        s = (p - m).clamp_min(0)
        cost, focus = -torch.log1p(-s), s**gamma_neg
        slope = torch.where(s > 0, focus * p * q / (1 - s), 0)
        if not detach and gamma_neg:
            slope = slope + torch.where(s > 0, gamma_neg * s ** (gamma_neg - 1) * p * q * cost, 0)
        return up, -rise, focus * cost, slope

    return formula


class Made(NamedTuple):
    """A loss, and the same by formulas."""

    loss: Any
    formula: Formula | None
    rebalance: Tensor | None = None
    """Counts, where labels are weighed by r̂."""


def _make(name: str, n: Tensor, k: float, reduction: Any) -> Made:
    count = n.double()
    nu = 0.05 * torch.log(k / count - 1)
    margin = 0.5 * (count.min() / count) ** 0.25
    one = (1.0, 0.0, 1.0)
    tolerant = _pair((1.0, nu, 1.0), (2.0, nu, 0.5))
    focal = _pair((1.0, nu, 2.0), (2.0, nu, 1.0), (2.0, 2.0))
    table: dict[str, Callable[[], Made]] = {
        "BCE": lambda: Made(BCE(reduction=reduction), _pair(one, one)),
        "BCE, smoothed": lambda: Made(BCE(0.1, reduction=reduction), _smoothed(0.1)),
        "Focal": lambda: Made(Focal(reduction=reduction), _pair(one, one, (2.0, 2.0))),
        "Focal 1.5": lambda: Made(Focal(1.5, 3.0, reduction=reduction), _pair((1, 0, 3), (1, 0, 3), (1.5, 1.5))),
        "ASL": lambda: Made(Asymmetric(reduction=reduction), _shifted(0.0, 4.0, 0.05, True)),
        "ASL, not detached": lambda: Made(
            Asymmetric(1.0, detach_focus=False, reduction=reduction), _shifted(1.0, 4.0, 0.05, False)
        ),
        "ASL, no margin": lambda: Made(
            Asymmetric(1.0, 2.0, 0.0, reduction=reduction), _pair(one, one, (1.0, 2.0), True)
        ),
        "NT-BCE": lambda: Made(NegativeTolerant(n, k, reduction=reduction), tolerant),
        "NT-Focal": lambda: Made(NegativeTolerant(n, k, gamma=2.0, reduction=reduction), focal),
        "DB": lambda: Made(DistributionBalanced(n, k, reduction=reduction), tolerant, n),
        "DB-Focal": lambda: Made(DistributionBalanced(n, k, gamma=2.0, reduction=reduction), focal, n),
        "SPA": lambda: Made(SPA(reduction=reduction), _pair((1.0, 0.0, 1.0), (3.0, 1.0, 0.2))),
        "LDAM": lambda: Made(LDAM(n, reduction=reduction), _pair((1.0, margin, 1.0), one)),
        "Two-way": lambda: Made(TwoWay(), None),
    }
    return table[name]()


LOSSES = (
    *("BCE", "BCE, smoothed", "Focal", "Focal 1.5", "ASL", "ASL, not detached", "ASL, no margin", "NT-BCE", "NT-Focal"),
    *("DB", "DB-Focal", "SPA", "LDAM", "Two-way"),
)


class Variant(NamedTuple):
    """What does not change among the inputs of a variant."""

    loss: str
    reduction: str
    rule: str
    """Of unknown labels, or "" where the loss is called by itself."""
    weight: str
    labels: int
    items: tuple[int, ...]
    dtype: torch.dtype
    target_dtype: torch.dtype
    mix: str
    layout: str
    target_layout: str


def variant(random: Random, device: str) -> Variant:
    """Draw a variant."""
    loss = random.choice(LOSSES)
    rule = random.choice(("", "", "", "ignore", "negative", "weak_negative", "wan"))
    if loss == "Two-way" or (rule and loss.startswith("DB")):
        rule = ""
    reduction = random.choice(("mean", "item", "sum") if rule else ("mean", "item", "sum", "none"))
    mix = random.choice(("hard", "unknown", "unknown", "soft", "soft unknown", "all unknown", "no positives"))
    if loss == "Two-way" and "soft" in mix:
        mix = "unknown"
    wide = (torch.float32, torch.float64, torch.float16)
    whole = (torch.int8, torch.int64, torch.int32, *wide)
    sure = (torch.bool, torch.uint8, *whole)
    kinds = wide if "soft" in mix else sure if mix in ("hard", "no positives") else whole
    labels = random.choice(LABELS)
    most = max(1, (4_000 if device == "cpu" else 40_000) // labels)
    pools = ((1, 2, 3, 7, 33, 100), (16, 64, 256), (5, 31, 257))
    weight = "" if rule or loss == "Two-way" else random.choice(("", "", "number", "label", "item", "cell"))
    floats = (torch.float32, torch.float32, torch.bfloat16, torch.float16)
    return Variant(
        loss,
        reduction,
        rule,
        weight,
        labels,
        tuple(min(items, most) for items in random.sample(random.choice(pools), 2)),
        random.choice((*floats, torch.float64) if device == "cpu" else floats),
        random.choice(kinds),
        mix,
        random.choice(("plain", "plain", "turned", "every other", "shifted", "repeated")),
        random.choice(("plain", "plain", "turned", "every other", "repeated")),
    )


def laid_out(x: Tensor, layout: str) -> Tensor:
    """The same numbers, or with "repeated" the first row of them, with other strides."""
    rows, labels = x.shape
    if layout == "turned":
        return x.T.contiguous().T
    if layout == "every other":
        room = x.new_zeros(2 * rows, 3 * labels)
        room[::2, ::3] = x
        return room[::2, ::3]
    if layout == "shifted":
        room = x.new_zeros(rows, labels + 3)
        room[:, 1 : labels + 1] = x
        return room[:, 1 : labels + 1]
    return x[:1].expand(rows, labels) if layout == "repeated" else x


def _inputs(v: Variant, items: int, g: torch.Generator) -> tuple[Tensor, Tensor, Tensor | float | None]:
    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=g, device=g.device)

    scale = float(10 ** (3 * torch.rand((), generator=g, device=g.device).item() - 1.5))
    z = scale * torch.randn(items, v.labels, generator=g, device=g.device)
    extreme = torch.tensor(EXTREMES, device=g.device)[
        torch.randint(0, len(EXTREMES), (items, v.labels), generator=g, device=g.device)
    ]
    z = torch.where(uniform(items, v.labels) < 0.03, extreme, z).to(v.dtype)
    t = (uniform(items, v.labels) < uniform(1, 1)).double()
    if "soft" in v.mix:
        t = torch.where(uniform(items, v.labels) < 0.7, uniform(items, v.labels).to(v.target_dtype).double(), t)
    if "unknown" in v.mix:
        t = torch.where(uniform(items, v.labels) < uniform(1, 1) + (v.mix == "all unknown"), -1.0, t)
    if v.mix == "no positives":
        t.zero_()
    t = laid_out(t.to(v.target_dtype), v.target_layout)
    weight: Tensor | float | None = None
    if v.weight == "number":
        weight = 0.3
    elif v.weight:
        w = 4 * uniform(*{"label": (v.labels,), "item": (items, 1), "cell": (items, v.labels)}[v.weight])
        weight = torch.where(w < 0.4, 0.0, w)
    return laid_out(z, v.layout), t, weight


def _reference(
    v: Variant, made: Made, z: Tensor, t: Tensor, weight: Any, upstream: Tensor | float
) -> tuple[Tensor, ...]:
    """Value, gradient, and of each how large the terms are that it is a sum of."""
    z, t = z.double(), t.double()
    known = t >= 0
    a, b = torch.where(known, t, 0.0), torch.where(known, 1 - t, 0.0)
    counted = known.sum().clamp_min(1)
    if v.rule in ("negative", "weak_negative", "wan"):
        faint = 1 / max(v.labels - 1, 1)
        b = torch.where(known, b, 1.0 if v.rule == "negative" else faint)
        b = torch.where(known, b * faint, b) if v.rule == "wan" else b
        counted = torch.tensor(max(t.numel(), 1))
    if made.rebalance is not None:
        inverse = 1 / made.rebalance.double()
        total = (a * inverse).sum(1, keepdim=True)
        r = 0.1 + torch.where(total > 0, torch.sigmoid(10 * (inverse / total - 0.2)), 1.0)
        a, b = a * r, b * r
    if weight is not None:
        a, b = a * weight, b * weight
    assert made.formula is not None
    up, rise, down, fall = made.formula(torch.where((a > 0) | (b > 0), z, 0.0))
    divisor = {"mean": counted.item(), "item": float(len(z)), "sum": 1.0, "none": 1.0}[v.reduction]
    cells, slopes = a * up + b * down, a * rise + b * fall
    sizes, steep = (a * up).abs() + (b * down).abs(), (a * rise).abs() + (b * fall).abs()
    if v.loss == "BCE, smoothed":
        steep = steep + 0.1 * (a + b)  # a side is a difference itself
    if v.reduction != "none":
        cells, sizes = cells.sum() / divisor, sizes.sum() / divisor
    factor = upstream / divisor
    return cells, slopes * factor, sizes, steep * abs(factor) if isinstance(factor, float) else steep * factor.abs()


def _two_way(z: Tensor, t: Tensor) -> Tensor:
    def axis(x: Tensor, y: Tensor) -> Tensor:
        """Mean over rows with a positive of softplus(lse of negatives + lse of turned positives)."""
        hollow = torch.full_like(x, -math.inf)
        low = torch.logsumexp(torch.where(y == 0, x, hollow), 1)
        high = 4 * torch.logsumexp(torch.where(y == 1, -x / 4, hollow), 1)
        rows = (y == 1).any(1) & (y == 0).any(1)
        total = _softplus((low + high)[rows]).sum()
        return total / (y == 1).any(1).sum().clamp_min(1)

    return axis(z, t) + axis(z.T, t.T)


def misses(v: Variant, made: Made, items: int, g: torch.Generator) -> Tensor:
    """By how much a case misses: at most 1 is right, two numbers, of the value and of the gradient."""
    z, t, weight = _inputs(v, items, g)
    if v.rule in ("", "ignore") and v.loss != "Two-way" and items % 3 == 0:  # what does not count may be anything
        z = torch.where(t.double() < 0, torch.nan, z)
    x = z.detach().requires_grad_()
    if v.rule:
        value = Objective(made.loss, v.rule).to(z.device)(x, t).total  # type: ignore[arg-type]
    else:
        value = made.loss(x, t) if weight is None else made.loss(x, t, weight)
    upstream = torch.randn(value.shape, generator=g, device=g.device).to(value.dtype) if value.ndim else 1.5
    value.backward(torch.as_tensor(upstream, dtype=value.dtype, device=value.device))
    assert x.grad is not None
    fine = 1e-9 if v.dtype == torch.float64 else 1e-5
    if v.loss == "Two-way":
        wide = z.detach().double().requires_grad_()
        want = _two_way(wide, t.double())
        want_grad = torch.autograd.grad(1.5 * want, wide, allow_unused=True)[0] if want.requires_grad else None
        want_grad = torch.zeros_like(wide) if want_grad is None else want_grad.nan_to_num(0.0)
        far = 1 + wide.detach().abs().max() / 100  # what a float32 of that size rounds off, in the exponent
        want, size, steep = (
            want.detach(),
            far * (want.detach().abs() + 1),
            far * (want_grad.abs() + want_grad.abs().max()),
        )
    else:
        want, want_grad, size, steep = _reference(v, made, z.detach(), t, weight, upstream)
    expected = torch.float64 if v.dtype == torch.float64 else torch.float32
    assert value.dtype == expected, value.dtype
    assert x.grad.dtype == v.dtype, x.grad.dtype
    assert x.grad.shape == z.shape
    off = (value.detach().double() - want).abs() / (fine * size + 1e-30)
    room = fine * steep + LAST[v.dtype] * want_grad.abs() + LEAST[v.dtype] + 1e-30
    off_grad = (x.grad.double() - want_grad).abs() / room
    return torch.stack(
        [torch.where(part.isfinite(), part, math.inf).max() if part.numel() else part.sum() for part in (off, off_grad)]
    )


def run(seed: int, count: int, per: int, device: str, until: float) -> dict[str, Any]:
    """Try `count` cases, `per` of them on a variant."""
    random, g = Random(seed), torch.Generator(device)
    g.manual_seed(seed)
    done, variants, faults, worst = 0, 0, list[str](), 0.0
    while done < count and time.time() < until:
        v = variant(random, device)
        n = torch.randint(1, 300, (v.labels,), generator=g, device=g.device)
        try:
            made = _make(v.loss, n, 400, v.reduction)
            made = made._replace(loss=made.loss.to(device))
            found = torch.stack([misses(v, made, random.choice(v.items), g) for _ in range(min(per, count - done))])
            for what, off in zip(("value", "gradient"), found.max(0).values.tolist(), strict=True):
                worst = max(worst, off) if math.isfinite(off) else worst
                if off > 1:
                    faults.append(f"the {what} misses by {off:.3g} of what is allowed: {v}")
        except Exception as error:
            faults.append(f"{type(error).__name__}: {error}: {v}")
        done += min(per, count - done)
        variants += 1
    return {"cases": done, "variants": variants, "faults": faults, "worst": worst, "device": device}


def _work(share: tuple[int, int, int, str, float]) -> dict[str, Any]:
    torch.set_num_threads(1)
    return run(*share)


def main() -> None:
    """Compare losses with their formulas on random cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="cases")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--minutes", type=float, default=60.0, help="the most that it may take")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--out", type=Path, help="a JSON file for the record")
    told = parser.parse_args()
    per = 1 if told.device == "cpu" else 400
    until, began, jobs = time.time() + 60 * told.minutes, time.time(), told.jobs
    shares = [
        (told.first + i, told.count // jobs + (i < told.count % jobs), per, told.device, until) for i in range(jobs)
    ]
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        parts = pool.map(_work, shares)
    record = {
        "cases": sum(part["cases"] for part in parts),
        "variants": sum(part["variants"] for part in parts),
        "faults": [fault for part in parts for fault in part["faults"]],
        "worst": max(part["worst"] for part in parts),
        "device": told.device,
    }
    if told.out is not None:
        told.out.write_text(json.dumps(record, indent=1) + "\n")
    for fault in record["faults"][:40]:
        print(fault)
    print(
        f"{record['cases']:,} cases, {record['variants']:,} variants on {told.device} in {time.time() - began:.0f} s: "
        f"{len(record['faults'])} faults, the largest miss {record['worst']:.3g} of what is allowed"
    )
    sys.exit(1 if record["faults"] else 0)


if __name__ == "__main__":
    main()
