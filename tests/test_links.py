"""The derived link: the zero of the training gradient maps back to η, for every loss that claims a probability."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

import reference as ref
from steelyard import losses
from steelyard.losses.table import EVERY

COUNTS = [900, 120, 15, 1]
N_ITEMS = 1000
CLASSES = torch.tensor(COUNTS)
WEIGHTS = (0.1, 1.0, 7.0, 100.0)
GRID = torch.cat(
    [torch.sigmoid(torch.linspace(-9.2, 9.2, 17, dtype=torch.float64)), torch.tensor([1e-4, 0.5, 0.94, 1 - 1e-4])]
).clamp(1e-4, 1 - 1e-4)
Linked = losses.PairLoss | losses.WeightedLoss
LINKED: dict[str, Callable[[], Linked]] = {
    row.name: lambda row=row: row.make(CLASSES, N_ITEMS, "sum") for row in EVERY if row.name not in ref.SET_LEVEL
} | {
    "BCE smoothing .6": lambda: losses.BCE(0.6, reduction="sum"),
    "Focal .5": lambda: losses.Focal(0.5, reduction="sum"),
    "Focal 5": lambda: losses.Focal(5.0, 3.0, reduction="sum"),
    "ASL 1 4 .05 detached": lambda: losses.Asymmetric(1.0, reduction="sum"),
    "ASL 0 4 .05 not detached": lambda: losses.Asymmetric(detach_focus=False, reduction="sum"),
    "ASL 2 2 0 detached": lambda: losses.Asymmetric(2.0, 2.0, 0.0, reduction="sum"),
    "ASL 2 2 0 not detached": lambda: losses.Asymmetric(2.0, 2.0, 0.0, detach_focus=False, reduction="sum"),
    "ASL 0 0 .05": lambda: losses.Asymmetric(0.0, 0.0, 0.05, reduction="sum"),
    "ASL 0 1 .3": lambda: losses.Asymmetric(0.0, 1.0, 0.3, reduction="sum"),
    "ASL 1 0 .2 not detached": lambda: losses.Asymmetric(1.0, 0.0, 0.2, detach_focus=False, reduction="sum"),
    "ASL tiny margin": lambda: losses.Asymmetric(0.0, 2.0, 1e-3, reduction="sum"),
    "NT-Focal lam 5 released": lambda: losses.NegativeTolerant(
        CLASSES, N_ITEMS, 5.0, 0.5, 2.0, as_released=True, reduction="sum"
    ),
    "NT lam .5": lambda: losses.NegativeTolerant(CLASSES, N_ITEMS, 0.5, 1.0, reduction="sum"),
    "SPA other": lambda: losses.SPA(2.0, 0.5, -1.0, 0.7, 4.0, 2.5, reduction="sum"),
    "Hill 2 0 1": lambda: losses.Hill(2.0, 0.0, 1.0, reduction="sum"),
    "LDAM wide": lambda: losses.LDAM(CLASSES, 3.0, reduction="sum"),
}
every_link = pytest.mark.parametrize("name", LINKED)


class Rewritten(losses.FormulaLoss):
    """BCE as a user would write it."""

    def positive(self, z: Tensor) -> Tensor:
        return F.softplus(-z)

    def negative(self, z: Tensor) -> Tensor:
        return F.softplus(z)


class Hill(losses.FormulaLoss):
    """Hill loss, whose link rises and falls again."""

    def positive(self, z: Tensor) -> Tensor:
        return F.softplus(-z)

    def negative(self, z: Tensor) -> Tensor:
        p = torch.sigmoid(z)
        return (1.5 - p) * p**2


class OneBadClass(losses.FormulaLoss):
    """Class 2 alone has no link."""

    def __init__(self) -> None:
        super().__init__(3, reduction="sum")

    def positive(self, z: Tensor) -> Tensor:
        return F.softplus(-z)

    def negative(self, z: Tensor) -> Tensor:
        p = torch.sigmoid(z)
        bad = torch.tensor([0.0, 0.0, 1.0], dtype=z.dtype)
        return bad * (1.5 - p) * p**2 + (1 - bad) * F.softplus(z)


class FormulaFocal(losses.FormulaLoss):
    """Focal by its two formulas, to meet the built-in one."""

    def positive(self, z: Tensor) -> Tensor:
        return torch.sigmoid(-z) ** 2 * F.softplus(-z)

    def negative(self, z: Tensor) -> Tensor:
        return torch.sigmoid(z) ** 2 * F.softplus(z)


LINKED |= {"user BCE": lambda: Rewritten(reduction="sum"), "user focal": lambda: FormulaFocal(reduction="sum")}


def reach(loss: Linked) -> tuple[float, float]:
    return (loss.loss if isinstance(loss, losses.WeightedLoss) else loss).eta_range


def gradients_of_parts(loss: Linked, z: Tensor) -> tuple[Tensor, Tensor]:
    z = z.clone().requires_grad_()
    (up,) = torch.autograd.grad(loss.positive(z).sum(), z)
    (down,) = torch.autograd.grad(loss.negative(z).sum(), z)
    return up, down


def gradients_of_call(loss: Linked, z: Tensor) -> tuple[Tensor, Tensor]:
    """What training sees: a batch of positives, a batch of negatives; a weighting's own weights divided out."""
    out = []
    for targets in (torch.ones_like(z), torch.zeros_like(z)):
        x = z.clone().requires_grad_()
        undo = None
        if isinstance(loss, losses.WeightedLoss):
            undo = 1 / torch.tensor(ref.rebalanced(targets[:1].numpy(), COUNTS)).expand_as(z)
        out += torch.autograd.grad(loss(x, targets, undo), x)
    return out[0], out[1]


def zeros(
    gradients: Callable[[Linked, Tensor], tuple[Tensor, Tensor]], loss: Linked, eta: Tensor, up: Tensor, down: Tensor
) -> Tensor:
    """Bisect w₊ η g₊(z) + w₋ (1−η) g₋(z), negative on the left of its zero."""
    low, high = torch.full_like(eta, -60.0), torch.full_like(eta, 60.0)
    for _ in range(48):
        z = (low + high) / 2
        g_up, g_down = gradients(loss, z)
        left = up * eta * g_up + down * (1 - eta) * g_down < 0
        low, high = torch.where(left, z, low), torch.where(left, high, z)
    return (low + high) / 2


def reachable(loss: Linked) -> tuple[Tensor, Tensor, Tensor]:
    """(η, w₊, w₋) of the grid whose odds, with weights taken out, lie within the stated range; one column a class."""
    w = torch.tensor(WEIGHTS, dtype=torch.float64)
    eta, up, down = (x.reshape(-1) for x in torch.meshgrid(GRID, w, w, indexing="ij"))
    low, high = reach(loss)
    odds = eta / (1 - eta) * up / down
    within = (odds > low / (1 - low)) & (odds < (high / (1 - high) if high < 1 else math.inf))
    return tuple(x[within][:, None].expand(-1, len(COUNTS)).contiguous() for x in (eta, up, down))  # type: ignore[return-value]


@every_link
@pytest.mark.parametrize("gradients", [gradients_of_parts, gradients_of_call])
def test_the_zero_of_the_gradient_maps_back(name: str, gradients: Callable) -> None:
    loss = LINKED[name]()
    eta, up, down = reachable(loss)
    z = zeros(gradients, loss, eta, up, down)
    tried = 0
    for w_up in WEIGHTS:
        for w_down in WEIGHTS:
            rows = (up[:, 0] == w_up) & (down[:, 0] == w_down)
            back = loss.probability(z[rows], w_up, w_down)
            assert ((back - eta[rows]).abs() < 1e-6).all(), (w_up, w_down)
            tried += int(rows.sum())
    assert tried == len(eta) > 60


@every_link
def test_range_is_what_the_link_reaches(name: str) -> None:
    """The stated ends are approached and never passed."""
    loss = LINKED[name]()
    low, high = reach(loss)
    z = torch.cat([torch.linspace(-40, 40, 16001), torch.tensor([-1e4, -1e3, 1e3, 1e4])]).double()
    eta = loss.probability(z[:, None].expand(-1, 4)).detach()
    inside = eta[eta > 1e-40]
    assert float(inside.min()) <= low + 2e-3
    assert float(inside.min()) >= low - 1e-9
    assert float(eta.max()) == pytest.approx(high, abs=1e-6)


def test_asl_ceiling() -> None:
    s = 0.95
    odds = s**4 / (1 - s)
    assert losses.Asymmetric().eta_range[1] == pytest.approx(odds / (1 + odds), abs=1e-12)
    assert losses.Asymmetric().eta_range[1] == pytest.approx(0.942, abs=5e-4)
    flowing = s**4 / (1 - s) - 4 * s**3 * math.log(1 - s)
    assert losses.Asymmetric(detach_focus=False).eta_range[1] == pytest.approx(flowing / (1 + flowing), abs=1e-12)


@pytest.mark.parametrize(
    ("given", "ends"),
    [((0, 0, 0), (0, 1)), ((0, 4, 0), (0, 1)), ((1e-3,), (0, 1)), ((0, 0, 0.05), (0.05 / 1.05, 1 / 1.05))],
)
def test_asl_ends(given: tuple[float, ...], ends: tuple[float, float]) -> None:
    """With γ₊ > 0, however small, or without a margin every η is reached; with neither focus η/(1−η) = p/(1−s)."""
    assert losses.Asymmetric(*given).eta_range == pytest.approx(ends, abs=1e-9)


@pytest.mark.parametrize("detach", [True, False])
def test_asl_keeps_its_ceiling_at_huge_logits(detach: bool) -> None:
    loss = losses.Asymmetric(detach_focus=detach)
    z = torch.tensor([[30.0, 1e4, 1e6, 1e8, 3e38]])
    want = torch.full_like(z, torch.tensor(loss.eta_range[1], dtype=torch.float64).logit().item())
    torch.testing.assert_close(loss.log_odds(z), want, rtol=2e-6, atol=0)


@every_link
def test_monotone(name: str) -> None:
    z = torch.linspace(-40, 40, 4001, dtype=torch.float64)[:, None].expand(-1, 4)
    log_odds = LINKED[name]().log_odds(z).detach()
    rise = log_odds.diff(dim=0)
    assert (rise >= -1e-10).all()
    assert float((log_odds[-1] - log_odds[0]).min()) > 5


@pytest.mark.parametrize("row", [r for r in EVERY if r.name not in ref.SET_LEVEL], ids=lambda row: row.name)
def test_log_odds_against_60_digits(row) -> None:  # type: ignore[no-untyped-def]
    loss = row.make(CLASSES, N_ITEMS, "sum")
    z = np.array([-2.9, -2.0, -0.3, 0.0, 0.6, 1.5, 2.9])
    pair = ref.pairs(row.name, COUNTS, N_ITEMS)
    want = np.array([[float(p.log_odds(v)) for p in pair] for v in z])
    wide = torch.tensor(z)[:, None].expand(-1, 4)
    np.testing.assert_allclose(loss.log_odds(wide).numpy(), want, rtol=1e-9, atol=1e-9)
    got = loss.log_odds(wide.float())
    assert got.dtype == torch.float32
    np.testing.assert_allclose(got.numpy(), want, rtol=2e-5, atol=2e-5)
    up, down = torch.tensor([0.1, 1.0, 7.0, 100.0]), np.array([3.0, 0.5, 1.0, 20.0])
    shift = np.log(down / up.numpy())
    np.testing.assert_allclose(loss.log_odds(wide, up, down).numpy(), want + shift, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(loss.probability(wide, up, down).numpy(), 1 / (1 + np.exp(-want - shift)), atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@every_link
def test_finite_for_every_finite_logit(name: str, dtype: torch.dtype) -> None:
    ends = torch.tensor([0.0, 1e-6, 1.0, 5.0, 17.0, 88.0, 89.0, 104.0, 710.0, 1e3, 1e4])
    z = torch.cat([-ends.flip(0), ends]).to(dtype)[:, None].expand(-1, 4).clone().requires_grad_()
    loss = LINKED[name]()
    log_odds, probability = loss.log_odds(z), loss.probability(z, 100.0, 0.1)
    assert log_odds.isfinite().all()
    assert log_odds.dtype == probability.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert ((probability >= 0) & (probability <= 1)).all()
    (gradient,) = torch.autograd.grad(log_odds.sum(), z)
    assert gradient.isfinite().all()
    assert (gradient >= 0).all()


def phi(p: float, gamma_pos: float, gamma_neg: float, m: float) -> float:
    """Eq. 14-15: ℓ₋' / (ℓ₋' − ℓ₊') of the focal and asymmetric pair, differentiated in p by hand."""
    s = max(p - m, 0.0)
    up = gamma_pos * (1 - p) ** (gamma_pos - 1) * math.log(p) - (1 - p) ** gamma_pos / p
    down = s**gamma_neg / (1 - s) - (gamma_neg * s ** (gamma_neg - 1) * math.log(1 - s) if gamma_neg else 0.0)
    return down / (down - up)


def detached(p: float, gamma_pos: float, gamma_neg: float, m: float) -> float:
    s = max(p - m, 0.0)
    down = s**gamma_neg / (1 - s)
    return down / (down + (1 - p) ** gamma_pos / p)


@given(
    p=st.floats(0.06, 0.999),
    gammas=st.tuples(st.sampled_from([0.0, 1.0, 2.0, 2.5]), st.sampled_from([1.0, 2.0, 4.0])),
    m=st.sampled_from([0.0, 0.01, 0.05]),
)
def test_phi_and_its_detached_variant(p: float, gammas: tuple[float, float], m: float) -> None:
    z = torch.tensor([math.log(p / (1 - p))], dtype=torch.float64)
    flowing = losses.Asymmetric(*gammas, m, detach_focus=False).probability(z)
    assert float(flowing) == pytest.approx(phi(p, *gammas, m), abs=1e-9)
    assert float(losses.Asymmetric(*gammas, m).probability(z)) == pytest.approx(detached(p, *gammas, m), abs=1e-9)
    assert float(losses.Focal(gammas[1]).probability(z)) == pytest.approx(phi(p, gammas[1], gammas[1], 0.0), abs=1e-9)


def test_spa_in_closed_form() -> None:
    z = np.linspace(-9, 9, 31)
    a = 3 / 5 / (1 + np.exp(-3 * (z - 1)))
    b = 1 / (1 + np.exp(z))
    np.testing.assert_allclose(losses.SPA().probability(torch.tensor(z)).numpy(), a / (a + b), rtol=1e-12)


def test_smoothing_is_undone() -> None:
    eta = torch.tensor([0.001, 0.3, 0.5, 0.9, 0.999], dtype=torch.float64)
    z = torch.logit(eta * 0.9 + 0.05)
    torch.testing.assert_close(losses.BCE(0.1).probability(z), eta, rtol=0, atol=1e-12)
    beyond = losses.BCE(0.1).log_odds(torch.tensor([-1e4, -3.0, 3.0, 1e4]))
    torch.testing.assert_close(beyond, torch.tensor([-100.0, -100.0, 100.0, 100.0]))


def refusals() -> Iterator[tuple[str, Callable[[], Tensor]]]:
    z = torch.zeros(2, 3)
    for probe in ("log_odds", "probability"):
        yield f"TwoWay {probe}", lambda probe=probe: getattr(losses.TwoWay(), probe)(z)
        softmax = losses.LDAM(torch.tensor([3, 2, 1]), softmax=True)
        yield f"LDAM {probe}", lambda probe=probe, loss=softmax: getattr(loss, probe)(z)
        yield f"Hill {probe}", lambda probe=probe: getattr(Hill(), probe)(z)
        yield f"one class {probe}", lambda probe=probe: getattr(OneBadClass(), probe)(z)


@pytest.mark.parametrize("call", [pytest.param(call, id=name) for name, call in refusals()])
def test_refusals_say_why(call: Callable[[], Tensor]) -> None:
    with pytest.raises(losses.NoLink) as caught:
        call()
    text = str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert "\n" not in text
    assert len(text) > 40


@pytest.mark.parametrize("gamma", [1.0, 2.0])
def test_a_focused_slope_overshoots(gamma: float) -> None:
    """So a pair whose positive side is too flat to make up for it has no link."""
    with pytest.raises(losses.NoLink, match="SoftplusPair has no probability: its stationary log-odds fall as z grows"):
        losses.SoftplusPair(slope=(0.01, 1.0), gamma=gamma).probability(torch.zeros(1, 1))


def test_reading_a_user_pair_builds_no_graph() -> None:
    """Probabilities of plain logits are plain: ready for numpy, as those of every built-in loss are."""
    z = torch.zeros(2, 3)
    assert not losses.BCE().probability(z).requires_grad
    assert not Rewritten().probability(z).requires_grad
    with torch.no_grad():
        assert not Rewritten().log_odds(z).requires_grad


def test_a_refused_pair_still_trains() -> None:
    z = torch.tensor([[0.5, -2.0]], requires_grad=True, dtype=torch.float64)
    Hill(reduction="sum")(z, torch.tensor([[1, 0]])).backward()
    p = 1 / (1 + np.exp(2.0))
    want = [-1 / (1 + np.exp(0.5)), (3 * p - 3 * p**2) * p * (1 - p)]
    np.testing.assert_allclose(z.grad.numpy()[0], want, rtol=1e-12)  # type: ignore[union-attr]


@pytest.mark.parametrize("reduction", ["mean", "item", "sum", "none"])
def test_rewritten_bce_is_bce(reduction: losses.Reduction) -> None:
    torch.manual_seed(0)
    z = (6 * torch.randn(9, 5, dtype=torch.float64)).requires_grad_()
    targets = torch.randint(-1, 2, (9, 5)).double()
    targets[0] = torch.tensor([0.2, 0.5, 0.9, -1.0, 1.0])
    weight = torch.rand(9, 5)
    mine, theirs = Rewritten(reduction=reduction), losses.BCE(reduction=reduction)
    a, b = mine(z, targets, weight), theirs(z, targets, weight)
    torch.testing.assert_close(a, b)
    torch.testing.assert_close(torch.autograd.grad(a.sum(), z), torch.autograd.grad(b.sum(), z))
    torch.testing.assert_close(mine.log_odds(z, 2.0, 0.3), theirs.log_odds(z, 2.0, 0.3))
    torch.testing.assert_close(mine.probability(z), torch.sigmoid(z))
    dark = torch.where(targets < 0, float("nan"), z.detach()).requires_grad_()
    (gradient,) = torch.autograd.grad(mine(dark, targets).sum(), dark)
    assert gradient.isfinite().all()


@pytest.mark.parametrize(("wrong", "shown"), [(-1.0, "-1"), (math.nan, "nan"), (math.inf, "inf")])
def test_a_wrong_class_weight_is_named_by_its_place(wrong: float, shown: str) -> None:
    weight = torch.tensor([1.0, 2.0, wrong, -5.0])
    for name in ("pos_weight", "neg_weight"):
        with pytest.raises(ValueError, match=rf"^{name}\[2\] is {shown}: a class weight is positive and finite$"):
            losses.SPA().log_odds(torch.zeros(2, 4), **{name: weight})
        with pytest.raises(ValueError, match=rf"^{name} is {shown}"):
            losses.SPA().probability(torch.zeros(2, 4), **{name: wrong})
        with pytest.raises(ValueError, match=rf"^{name} has shape \(3,\)"):
            losses.SPA().probability(torch.zeros(2, 4), **{name: torch.ones(3)})
    with pytest.raises(ValueError, match=rf"^weight\[2\] is {shown}: a weight is finite and at least 0$"):
        losses.SPA()(torch.zeros(2, 4), torch.zeros(2, 4), torch.tensor([0.0, 0.5, wrong, -5.0]))
