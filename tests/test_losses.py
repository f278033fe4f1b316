"""Every loss of the table against 60-digit references: values, gradients, reductions, weights, soft and unknown."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import reference as ref
from reference import Pair
from steelyard import losses
from steelyard.balance import ClassBalanced, Deferred, LabelPair, Rebalanced
from steelyard.losses.focused import log1mexp, power
from steelyard.losses.table import EVERY, Row
from steelyard.objective import Objective

COUNTS = [900, 120, 15, 1]
N_ITEMS = 1000
SHIFTS = [0.0, 1.25, 0.0, 0.0]
LOGITS = np.array(
    [
        [0.0, -1.3, 2.2, 0.7],
        [-3.1, 4.0, -2.944, 8.5],
        [12.0, -15.0, 0.01, -0.4],
        [1.7, 30.0, -33.0, -2.9],
        [-0.6, 5.5, -7.25, 21.0],
        [3.0, -4.5, 0.3, 1.1],
    ]
)
HARD = np.array([[1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1], [1, 0, 1, 0], [0, 0, 1, 1]])
PARTIAL = np.array([[1, 0, -1, 1], [0, -1, 0, 0], [-1, -1, -1, -1], [1, 1, 1, 1], [-1, 0, 1, 0], [0, -1, -1, 1]])
SOFT = np.array(
    [[1, 0.3, -1, 0.95], [0, 0.5, 0, 1], [-1, -1, -1, -1], [1e-3, 1, 1, 0.999], [0.25, 0, 1, -1], [0, 0, 0.5, 0.1]]
)
WEIGHT = np.array([[0.5], [2.0], [1.0], [0.0], [3.25], [1.0]]) * np.array([1.0, 0.125, 4.0, 1.5])
TARGETS = {"hard": HARD, "unknown": PARTIAL, "soft": SOFT}
PAIR_ROWS = [row for row in EVERY if row.name not in ref.SET_LEVEL]
Reduction = losses.Reduction
REDUCTIONS: tuple[Reduction, ...] = ("mean", "item", "sum", "none")

N = torch.tensor(COUNTS)
VARIANTS: dict[str, tuple[losses.PairLoss, list[Pair]]] = {
    "BCE smoothing .4": (losses.BCE(0.4, reduction="none"), [ref.bce(0.4)] * 4),
    "Focal 0": (losses.Focal(0.0, reduction="none"), [ref.bce()] * 4),
    "ASL 0 0 no margin": (losses.Asymmetric(0.0, 0.0, 0.0, reduction="none"), [ref.bce()] * 4),
    "NT known by class": (
        losses.NegativeTolerant(
            np.array(COUNTS), np.array([1000, 200, 20, 700]), kappa=1.0, focal_scale=9.0, reduction="none"
        ),
        [ref.negative_tolerant(n, k, kappa=1.0) for n, k in zip(COUNTS, [1000, 200, 20, 700], strict=True)],
    ),
    "positives of one class shifted": (
        losses.SoftplusPair(shift=(torch.tensor(SHIFTS), 0.0), reduction="none"),
        [ref.spa(1, 1, b, 1, 1, 0) for b in SHIFTS],
    ),
    "negatives of one class shifted": (
        losses.SoftplusPair(shift=(0.0, torch.tensor(SHIFTS)), reduction="none"),
        [ref.spa(1, 1, 0, 1, 1, b) for b in SHIFTS],
    ),
    "LDAM wide": (losses.LDAM(N, 1.75, reduction="none"), [ref.ldam(m) for m in ref.ldam_margins(COUNTS, 1.75)]),
}
for focal in ((0.5, 2.0), (3.7, 1.0), (5.0, 1.0)):
    VARIANTS[f"Focal {focal}"] = losses.Focal(*focal, reduction="none"), [ref.focal(*focal)] * 4
for asl in (
    (1.0, 4.0, 0.05, True), (2.0, 1.5, 0.3, True), (0.5, 0.5, 0.2, False), (0.0, 4.0, 0.05, False),
    (0.0, 0.0, 0.05, True), (1.0, 2.0, 1e-4, True), (1.0, 2.0, 0.9, False),
):  # fmt: skip
    VARIANTS[f"ASL {asl}"] = losses.Asymmetric(*asl, reduction="none"), [ref.asymmetric(*asl)] * 4
for nt in (
    dict(lam=5.0), dict(lam=5.0, kappa=0.5, as_released=True), dict(gamma=0.5),
    dict(lam=3.0, kappa=0.3, gamma=1.5, focal_scale=4.0, as_released=True),
):  # fmt: skip
    tolerant = losses.NegativeTolerant(N, N_ITEMS, **nt, reduction="none")
    VARIANTS[f"NT {nt}"] = tolerant, [ref.negative_tolerant(n, N_ITEMS, **nt) for n in COUNTS]
SPA = (2.0, 0.5, -1.1, 0.7, 4.0, 2.3)
for hill in ((1.7, 0.5, 2.0), (1.5, 0.0, 0.0)):
    VARIANTS[f"Hill {hill}"] = losses.Hill(*hill, reduction="none"), [ref.hill(*hill)] * 4
VARIANTS["SPA other"] = losses.SPA(*SPA, reduction="none"), [ref.spa(*SPA)] * 4

every_pair = pytest.mark.parametrize("row", PAIR_ROWS, ids=lambda row: row.name)
every_target = pytest.mark.parametrize("kind", TARGETS)


def make(row: Row, reduction: Reduction = "mean") -> losses.Loss | losses.WeightedLoss:
    return row.make(torch.tensor(COUNTS), N_ITEMS, reduction)


def expected(
    name: str, z: np.ndarray, targets: np.ndarray, weight: np.ndarray | float
) -> tuple[np.ndarray, np.ndarray]:
    if name in ref.WEIGHTED:
        weight = weight * ref.rebalanced(targets, COUNTS)
    return ref.cells(ref.pairs(name, COUNTS, N_ITEMS), z, targets, weight)


@pytest.fixture(scope="module")
def true_cells() -> dict[tuple[str, str], tuple[np.ndarray, np.ndarray]]:
    """Unweighted cells and slopes of every pair at the fixed logits, computed once."""
    return {(r.name, kind): expected(r.name, LOGITS, t, 1.0) for r in PAIR_ROWS for kind, t in TARGETS.items()}


def value_and_gradient(
    loss: torch.nn.Module, z: np.ndarray, targets: torch.Tensor | np.ndarray, weight: object = None
) -> tuple[np.ndarray, np.ndarray]:
    logits = torch.tensor(z, requires_grad=True)
    value = loss(logits, targets, weight)
    (gradient,) = torch.autograd.grad(value.sum(), logits)
    return value.detach().numpy(), gradient.numpy()


def test_the_table_covers_what_the_references_cover() -> None:
    for row in PAIR_ROWS:
        assert len(ref.pairs(row.name, COUNTS, N_ITEMS)) == len(COUNTS)
    assert {row.name for row in EVERY} - {row.name for row in PAIR_ROWS} == set(ref.SET_LEVEL)


def test_a_checkpoint_holds_no_constants_of_a_loss() -> None:
    """They are given anew with the loss; one of other counts must not bring back its own."""
    softmax = losses.LDAM(torch.tensor(COUNTS), softmax=True)
    assert all(not loss.state_dict() for loss in (*map(make, EVERY), softmax))


@every_pair
@every_target
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["", "weighted"])
def test_value_and_gradient(row: Row, kind: str, reduction: Reduction, weight: Any, true_cells: dict) -> None:
    """Weights multiply terms, and not the divisor; float64 logits have float64 weights, whatever the targets' dtype."""
    targets = TARGETS[kind]
    value, slope = (x * (1 if weight is None else weight) for x in true_cells[row.name, kind])
    got, gradient = value_and_gradient(make(row, reduction), LOGITS, torch.tensor(targets), weight)
    np.testing.assert_allclose(got, ref.reduce(value, targets, reduction), rtol=1e-11)
    scale = {"mean": (targets >= 0).sum(), "item": len(targets)}.get(reduction, 1)
    np.testing.assert_allclose(gradient, slope / scale, rtol=1e-9, atol=1e-30)


@pytest.mark.parametrize("name", VARIANTS)
@every_target
def test_parameters(name: str, kind: str) -> None:
    loss, pair = VARIANTS[name]
    value, slope = ref.cells(pair, LOGITS, TARGETS[kind])
    got, gradient = value_and_gradient(loss, LOGITS, torch.tensor(TARGETS[kind]))
    np.testing.assert_allclose(got, value, rtol=1e-11, atol=1e-300)
    np.testing.assert_allclose(gradient, slope, rtol=1e-9, atol=1e-30)


@pytest.mark.parametrize("name", VARIANTS)
def test_positive_and_negative_are_the_formulas(name: str) -> None:
    loss, pair = VARIANTS[name]
    z = torch.tensor(LOGITS, requires_grad=True)
    for side, formula in ((1, loss.positive), (0, loss.negative)):
        value, slope = ref.cells(pair, LOGITS, np.full(LOGITS.shape, side))
        cost = formula(z)
        (gradient,) = torch.autograd.grad(cost.sum(), z)
        np.testing.assert_allclose(cost.detach().numpy(), value, rtol=1e-11, atol=1e-300)
        np.testing.assert_allclose(gradient.numpy(), slope, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("options", [{}, {"lam": 5.0, "mu": 0.3}, {"lam": 1.0, "kappa": 0.0}, {"as_released": True}])
@pytest.mark.parametrize("gamma", [0.0, 2.0])
def test_distribution_balanced_is_weight_times_tolerant(options: dict, gamma: float) -> None:
    loss = losses.DistributionBalanced(torch.tensor(COUNTS), N_ITEMS, gamma=gamma, reduction="none", **options)
    shape = {k: v for k, v in options.items() if k != "mu"}
    value, slope = ref.cells(
        [ref.negative_tolerant(n, N_ITEMS, gamma=gamma, **shape) for n in COUNTS],
        LOGITS,
        PARTIAL,
        ref.rebalanced(PARTIAL, COUNTS, mu=options.get("mu", 0.2)),
    )
    got, gradient = value_and_gradient(loss, LOGITS, torch.tensor(PARTIAL, dtype=torch.float64))
    np.testing.assert_allclose(got, value, rtol=1e-11)
    np.testing.assert_allclose(gradient, slope, rtol=1e-9, atol=1e-30)


def test_any_pair_is_weighed_by_any_weighting() -> None:
    class Squared(losses.FormulaLoss):
        def positive(self, z: torch.Tensor) -> torch.Tensor:
            return (z - 1) ** 2

        def negative(self, z: torch.Tensor) -> torch.Tensor:
            return z**2

    loss = losses.WeightedLoss(Squared(reduction="none"), Rebalanced(torch.tensor(COUNTS)))
    got, gradient = value_and_gradient(loss, LOGITS, torch.tensor(PARTIAL), WEIGHT)
    weight = np.where(PARTIAL < 0, 0, WEIGHT * ref.rebalanced(PARTIAL, COUNTS))
    np.testing.assert_allclose(got, weight * (LOGITS - PARTIAL) ** 2, rtol=1e-11)
    np.testing.assert_allclose(gradient, weight * 2 * (LOGITS - PARTIAL), rtol=1e-11)


@pytest.mark.parametrize("targets", [HARD, PARTIAL, HARD[:, :1], HARD[2:3], np.ones((2, 3)), PARTIAL[2:3]])
@pytest.mark.parametrize("temperatures", [(4.0, 1.0), (0.5, 2.0)])
def test_two_way(targets: np.ndarray, temperatures: tuple[float, float]) -> None:
    rows, columns = targets.shape
    z = LOGITS[:rows, :columns] if rows > 1 else LOGITS[2:3, :columns]
    got, gradient = value_and_gradient(losses.TwoWay(*temperatures), z, torch.tensor(targets))
    np.testing.assert_allclose(got, ref.two_way(z, targets, *temperatures), rtol=1e-11, atol=1e-300)
    step = 1e-6
    for i, j in np.ndindex(z.shape):
        shift = np.zeros(z.shape)
        shift[i, j] = step
        slope = (ref.two_way(z + shift, targets, *temperatures) - ref.two_way(z - shift, targets, *temperatures)) / 2e-6
        np.testing.assert_allclose(gradient[i, j], slope, atol=2e-8)


def test_ldam_softmax() -> None:
    z = LOGITS[:5] / 8
    targets = np.array([[1, 0, 0, 0], [0, 0, 1, -1], [0, 0, 0, 1], [-1, 1, 0, 0], [-1, -1, -1, -1]])
    items = np.array(ref.ldam_softmax(z, targets, COUNTS))
    for reduction, value in (("mean", items.mean()), ("item", items.sum() / 5), ("sum", items.sum())):
        loss = losses.LDAM(torch.tensor(COUNTS), softmax=True, reduction=reduction)
        got, gradient = value_and_gradient(loss, z, torch.tensor(targets))
        np.testing.assert_allclose(got, value, rtol=1e-11)
        assert (gradient[targets < 0] == 0).all()
    cell = losses.LDAM(torch.tensor(COUNTS), softmax=True, reduction="none")(torch.tensor(z), torch.tensor(targets))
    np.testing.assert_allclose(cell[torch.tensor(targets) == 1].numpy(), items, rtol=1e-11, atol=1e-14)
    assert float(cell.sum()) == pytest.approx(items.sum())
    logits = torch.tensor(z, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda x: losses.LDAM(torch.tensor(COUNTS), softmax=True)(x, torch.tensor(targets)), logits
    )


def test_ldam_softmax_of_known_labels() -> None:
    z, targets = LOGITS / 8, np.eye(4)[[0, 3, 1, 1, 2, 0]]
    items = ref.ldam_softmax(z, targets, COUNTS)
    loss = losses.LDAM(torch.tensor(COUNTS), softmax=True)
    assert float(loss(torch.tensor(z), torch.tensor(targets))) == pytest.approx(np.mean(items), rel=1e-11)
    one = losses.LDAM(torch.tensor([7]), softmax=True)  # nothing to compete with
    assert float(one(torch.tensor(z[:, :1]), torch.ones(6, 1))) == 0


def test_ldam_softmax_makes_no_nan_on_the_way() -> None:
    """Not even one that is left out later: who looks for the origin of a NaN must not be led here."""
    z = torch.zeros(2, 4, requires_grad=True)
    with torch.autograd.set_detect_anomaly(True):
        losses.LDAM(torch.tensor(COUNTS), softmax=True)(z, torch.tensor([[0, 1, 0, 0], [-1] * 4])).backward()


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ([1, 1, 0, 0], "has 2 positives"),
        ([0, 0, 0, 0], "has 0 positives"),
        ([0, -1, 0, 0], "has 0 positives"),
        ([0, 0.5, 0, 0], "is soft"),
    ],
)
def test_ldam_softmax_needs_one_positive(row: list[float], said: str) -> None:
    for known in (0, -1):
        targets = torch.tensor([[0, 0, 0, 1], row, [known, 1, 0, 0]])
        with pytest.raises(ValueError, match=rf"^targets\[1\] {said}: LDAM\(softmax=True\) needs [^\n]*$"):
            losses.LDAM(torch.tensor(COUNTS), softmax=True)(torch.zeros(3, 4), targets)


@pytest.mark.parametrize("given", [torch.tensor, lambda y: torch.tensor(y, dtype=torch.float64)])
def test_ldam_softmax_divides_by_the_weights(given: Callable[[np.ndarray], torch.Tensor]) -> None:
    """As the authors do, by torch's weighted cross-entropy: deferred weights change no item's share of the step."""
    z = LOGITS[:3] / 8
    targets = np.array([[1, 0, 0, 0], [0, 0, 1, -1], [0, 0, 0, 1]])
    items = np.array(ref.ldam_softmax(z, targets, COUNTS))
    loss = losses.LDAM(torch.tensor(COUNTS), softmax=True)
    for weight in ([1.0, 0.0, 3.0], [0.1, 0.2, 0.05]):  # the second adds up to less than 1
        got = loss(torch.tensor(z), given(targets), torch.tensor(weight)[:, None].double())
        assert float(got) == pytest.approx(np.average(items, weights=weight), rel=1e-11)
    assert float(loss(torch.tensor(z), given(targets), torch.zeros(3, 1))) == 0


def test_ldam_with_deferred_weights_is_the_authors_cross_entropy() -> None:
    """Both value and gradient of cross_entropy(s·(z − Δ_y), y, weight=w), with w the class-balanced weights."""
    counts, classes = torch.tensor([5000, 500, 50]), torch.tensor([0, 0, 1, 0, 2, 0])
    targets = torch.nn.functional.one_hot(classes)
    z = torch.tensor(np.random.default_rng(1).normal(size=(6, 3)) / 9, requires_grad=True)
    weighting = Deferred(ClassBalanced(counts, 0.9999), 2)
    objective = Objective(losses.LDAM(counts, softmax=True), weighting=weighting)
    margins = torch.tensor(ref.ldam_margins(counts.tolist()))
    for epoch in (1, 2):
        objective.start_epoch(epoch, 2)
        (gradient,) = torch.autograd.grad(objective(z, targets).total, z)
        weight = torch.ones(3, dtype=torch.float64) if epoch == 1 else (1 - 0.9999) / (1 - 0.9999 ** counts.double())
        moved = 30 * (z - targets * margins)
        (want,) = torch.autograd.grad(torch.nn.functional.cross_entropy(moved, classes, weight), z)
        torch.testing.assert_close(gradient, want, rtol=1e-6, atol=1e-9)


def test_arrays_that_torch_does_not_take() -> None:
    """Wide unsigned numbers, another byte order, a step backwards, a read-only view: as any other targets."""
    targets, z = HARD.astype(np.int64), torch.tensor(LOGITS)
    loss = losses.BCE()
    want = loss(z, targets)
    locked = targets.copy()
    locked.setflags(write=False)
    for dtype in (np.uint16, np.uint32, np.uint64, ">f4", ">i2"):
        assert loss(z, targets.astype(dtype)) == want
    assert loss(z, np.ascontiguousarray(targets[::-1])[::-1]) == want
    assert loss(z, locked) == want
    assert loss(z, torch.tensor(targets).to(torch.uint16)) == want
    with pytest.raises(ValueError, match="targets has dtype object"):
        loss(z, np.full(targets.shape, None))


@every_pair
@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.float16, torch.float32, torch.uint8, torch.bool])
def test_targets_of_any_numeric_dtype(row: Row, dtype: torch.dtype) -> None:
    targets = torch.tensor(HARD if dtype in (torch.uint8, torch.bool) else PARTIAL)
    loss = make(row)
    z = torch.tensor(LOGITS, dtype=torch.float32)
    assert loss(z, targets.to(dtype)) == loss(z, targets)
    assert loss(z, targets.to(dtype).numpy()) == loss(z, targets)


@every_pair
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_dtypes(row: Row, dtype: torch.dtype) -> None:
    z = torch.tensor(LOGITS).to(dtype).requires_grad_()
    value = make(row, "none")(z, torch.tensor(PARTIAL))
    assert value.dtype == torch.float32
    value.sum().backward()
    assert z.grad.dtype == dtype
    want, slope = expected(row.name, z.detach().double().numpy(), PARTIAL, 1.0)
    np.testing.assert_allclose(value.detach().numpy(), want, rtol=2e-6, atol=1e-16)
    fine = {torch.float16: 2e-3, torch.bfloat16: 1e-2, torch.float32: 5e-6}[dtype]
    tiny = 6e-8 if dtype == torch.float16 else 3e-9
    np.testing.assert_allclose(z.grad.double().numpy(), slope, rtol=fine, atol=tiny)


@given(
    z=st.floats(-60, 60, width=32),
    t=st.sampled_from([0.0, 1.0]) | st.floats(0, 1, width=32),
    row=st.sampled_from(PAIR_ROWS),
    upstream=st.floats(-3, 3, width=32),
)
@settings(max_examples=250)
def test_float32_is_accurate_everywhere(z: float, t: float, row: Row, upstream: float) -> None:
    loss = row.make(torch.tensor([15]), N_ITEMS, "sum")
    logits = torch.tensor([[z]], requires_grad=True)
    value = loss(logits, torch.tensor([[t]]))
    (gradient,) = torch.autograd.grad(value * upstream, logits)
    weight = ref.rebalanced(np.array([[t]]), [15]) if row.name in ref.WEIGHTED else 1.0
    want, slope = ref.cells(ref.pairs(row.name, [15], N_ITEMS), np.array([[z]]), np.array([[t]]), weight)
    if row.name == "LDAM":
        want, slope = ref.cells([ref.ldam(0.5)], np.array([[z]]), np.array([[t]]))
    np.testing.assert_allclose(float(value.detach()), want.item(), rtol=1e-5, atol=1e-12)
    np.testing.assert_allclose(float(gradient), upstream * slope.item(), rtol=1e-5, atol=1e-7)


def test_weight_broadcasts() -> None:
    z, y = torch.tensor(LOGITS), torch.tensor(PARTIAL)
    loss = losses.BCE()
    full = torch.tensor(WEIGHT)
    assert loss(z, y, 0.1) == loss(z, y, torch.full_like(z, 0.1))
    assert loss(z, y, full[:1]) == loss(z, y, full[:1].expand(6, 4))
    assert loss(z, y, full[0]) == loss(z, y, full[:1].expand(6, 4))
    assert loss(z, y, full[:, :1]) == loss(z, y, full[:, :1].expand(6, 4))
    assert loss(z, y, full.numpy()) == loss(z, y, full)


@pytest.mark.parametrize("exponent", [0.0, 0.25, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0])
def test_powers(exponent: float) -> None:
    """Those of numpy, 0⁰ = 1 too; a slope at 0 that would be infinite is 0."""
    base = np.array([0.0, 1e-3, 0.5, 1.0, 3.0])
    x = torch.tensor(base, requires_grad=True)
    got = power(x, exponent)
    np.testing.assert_allclose(got.detach().numpy(), base**exponent, rtol=1e-14)
    (slope,) = torch.autograd.grad(got.sum(), x)
    np.testing.assert_allclose(slope[1:].numpy(), exponent * base[1:] ** (exponent - 1), rtol=1e-14)
    assert slope[0] == (exponent == 1)


def test_log1mexp_from_0_down_stands_for_log_0() -> None:
    t = torch.tensor([-1.0, 0.0, 1e-9, 0.5, 2.0], dtype=torch.float64, requires_grad=True)
    got = log1mexp(t)
    want = [-100, -100, *(float(ref.mp.log(-ref.mp.expm1(-v))) for v in t[2:].tolist())]
    np.testing.assert_allclose(got.detach().numpy(), want, rtol=1e-14)
    (slope,) = torch.autograd.grad(got.sum(), t)
    np.testing.assert_allclose(slope.numpy(), [0, 0, *(1 / np.expm1(t[2:].detach().numpy()))], rtol=1e-14)


@pytest.mark.parametrize(
    "arguments",
    [
        *((0.0, gamma, 0.05, detach) for gamma in (2.0, 2.5, 4.0) for detach in (True, False)),
        *((1.0, 1.0, margin, True) for margin in (1e-4, 1e-3, 0.04)),
    ],
)
def test_asl_keeps_its_digits(arguments: tuple[float, float, float, bool]) -> None:
    """Just above p = m, where p − m cancels, and with a small margin: float32 has all the digits that it can have."""
    z = torch.cat([torch.linspace(-3, -2.8, 2001), torch.linspace(-12, 12, 481)])[:, None]
    results = []
    for dtype in (torch.float64, torch.float32):
        logits = z.clone().to(dtype).requires_grad_()
        value = losses.Asymmetric(*arguments, reduction="none")(logits, torch.zeros_like(z))
        value.sum().backward()
        results.append((value.detach().double(), logits.grad.double()))
    for exact, single in zip(*results, strict=True):
        assert (exact > 0).any()
        torch.testing.assert_close(single, exact, rtol=2e-5, atol=1e-30)


@pytest.mark.parametrize(
    "loss",
    [
        losses.BCE(0.1),
        losses.Focal(),
        losses.SPA(),
        losses.Asymmetric(1.0, detach_focus=False),
        losses.BCE(reduction="none"),
    ],
    ids=lambda loss: f"{type(loss).__name__}-{loss.reduction}",
)
def test_second_derivatives(loss: losses.PairLoss) -> None:
    z = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    targets = torch.tensor([[1, 0, -1], [0, 1, 1], [-1, -1, -1], [0, 0, 0]])
    torch.autograd.gradgradcheck(lambda x: loss(x, targets), z)


def test_set_losses_say_that_they_have_no_second_derivatives() -> None:
    z = torch.zeros(2, 3, requires_grad=True)
    targets = torch.tensor([[1, 0, 0], [0, 1, 0]])
    for loss in (losses.TwoWay(), LabelPair()):
        with pytest.raises(RuntimeError, match="no second derivatives"):
            torch.autograd.grad(loss(z, targets), z, create_graph=True)


TAIL = "reduction=mean validate=False"
PAPER_3 = "gamma=0.05 m=3.0 q=0.3 schedule=exp use_alpha_beta=True use_d=True use_p=True"
TOLERANT = "lam=2.0 kappa=0.05 gamma=0.0 focal_scale=2.0 as_released=False floor=None"
DEFAULTS: dict[Callable, str] = {
    losses.BCE: f"smoothing=0.0 {TAIL}",
    losses.Focal: f"gamma=2.0 scale=1.0 {TAIL}",
    losses.Asymmetric: f"gamma_pos=0.0 gamma_neg=4.0 margin=0.05 detach_focus=True {TAIL}",
    losses.NegativeTolerant: f"{TOLERANT} {TAIL}",
    losses.DistributionBalanced: f"alpha=0.1 beta=10.0 mu=0.2 {TOLERANT} {TAIL}",
    losses.SPA: f"zeta_pos=1.0 k_pos=1.0 b_pos=0.0 zeta_neg=5.0 k_neg=3.0 b_neg=1.0 {TAIL}",
    losses.LogitAdjusted: f"tau=1.0 floor=None {TAIL}",
    losses.Hill: f"lam=1.5 margin=1.0 gamma=2.0 {TAIL}",
    losses.LDAM: f"max_margin=0.5 softmax=False floor=None {TAIL}",
    losses.TwoWay: "t_pos=4.0 t_neg=1.0 validate=False",
    losses.PartialAnnotation: f"{PAPER_3} count=known validate=False",
    losses.Annotation: f"store=None {PAPER_3} seed=0 count=known",
    losses.Pseudo: "weight=1.0",
    losses.PairLoss: f"n_labels=None {TAIL}",
    losses.SoftplusPair: f"slope=(1.0, 1.0) shift=(0.0, 0.0) scale=(1.0, 1.0) gamma=0.0 {TAIL}",
}


@pytest.mark.parametrize("loss", DEFAULTS, ids=lambda loss: loss.__name__)
def test_defaults_are_the_promised_ones(loss: Callable) -> None:
    given = inspect.signature(loss).parameters.values()
    assert " ".join(f"{p.name}={p.default}" for p in given if p.default is not p.empty) == DEFAULTS[loss]


@pytest.mark.parametrize("validate", [False, True])
def test_validate_reaches_the_loss(validate: bool) -> None:
    n = torch.tensor(COUNTS)
    for loss in (
        *(kind(validate=validate) for kind in (losses.BCE, losses.Focal, losses.Asymmetric, losses.SPA, losses.TwoWay)),
        *(losses.LDAM(n, softmax=softmax, validate=validate) for softmax in (False, True)),
        losses.NegativeTolerant(n, N_ITEMS, validate=validate),
        losses.DistributionBalanced(n, N_ITEMS, validate=validate).loss,
        losses.PartialAnnotation(validate=validate),
    ):
        assert loss.validate is validate, type(loss).__name__
