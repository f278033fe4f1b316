"""What must never go wrong: huge logits, half precision, nothing known, empty batches, wrong inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext

import numpy as np
import pytest
import torch

import reference as ref
from steelyard import Objective, losses
from steelyard.balance import (
    ClassBalanced,
    Deferred,
    InverseFrequency,
    LabelPair,
    PartialLabelMasking,
    PseudoLabels,
    Rebalanced,
)
from steelyard.losses.table import EVERY, Row
from steelyard.objective import Role

N_ITEMS = 1000
MAGNITUDES = [0.0, 1e-7, 1e-3, 0.5, 3.0, 9.0, 16.7, 20.5, 50.0, 88.0, 89.0, 104.0, 350.0, 745.0, 1e3, 9999.0, 1e4]
EXTREMES = sorted({-m for m in MAGNITUDES} | set(MAGNITUDES))
HALVES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
every_loss = pytest.mark.parametrize("row", EVERY, ids=lambda row: row.name)
every_dtype = pytest.mark.parametrize("dtype", HALVES, ids=str)


def make(row: Row, n_labels: int, reduction: losses.Reduction = "mean") -> losses.Loss | losses.WeightedLoss:
    counts = torch.linspace(1, 990, n_labels).round()
    return row.make(counts, N_ITEMS, reduction)


def gradient_of(loss: torch.nn.Module, z: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    z = z.detach().clone().requires_grad_()
    value = loss(z, targets)
    (gradient,) = torch.autograd.grad(value.sum(), z)
    return value.detach(), gradient


@every_loss
@every_dtype
@pytest.mark.parametrize("target", [0.0, 1.0, 0.3])
def test_huge_logits(row: Row, dtype: torch.dtype, target: float) -> None:
    """Finite value and gradient; falling for a positive, rising for a negative, or flat."""
    if row.name in ref.SET_LEVEL:
        pytest.skip("has its own test")
    z = torch.tensor(EXTREMES).to(dtype)[:, None]
    targets = torch.full(z.shape, target)
    value, gradient = gradient_of(make(row, 1, "none"), z, targets)
    assert value.isfinite().all()
    assert gradient.isfinite().all()
    assert gradient.dtype == dtype
    if row.name != "BCE, smoothed":
        assert (value >= 0).all()
        if target == 1:
            assert (gradient <= 0).all()
            assert gradient[0] < 0
        if target == 0:
            assert (gradient >= 0).all()
            assert (row.name.startswith(("ASL", "Hill")) and gradient[-1] >= 0) or gradient[-1] > 0
    for reduction in ("mean", "item", "sum"):
        total, gradient = gradient_of(make(row, 1, reduction), z, targets)
        assert total.isfinite()
        assert gradient.isfinite().all()


@pytest.mark.parametrize(
    "row", [r for r in EVERY if r.name not in (*ref.SET_LEVEL, *ref.WEIGHTED)], ids=lambda r: r.name
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_huge_logits_have_the_right_value(row: Row, dtype: torch.dtype) -> None:
    z = np.array(EXTREMES, dtype=np.float32 if dtype == torch.float32 else np.float64)[:, None]
    rough = 5e-6 if dtype == torch.float32 else 1e-11
    for target in (0, 1):
        targets = np.full(z.shape, target)
        want, slope = ref.cells(ref.pairs(row.name, [1], N_ITEMS), z.astype(np.float64), targets)
        value, gradient = gradient_of(make(row, 1, "none"), torch.tensor(z), torch.tensor(targets))
        np.testing.assert_allclose(value.numpy(), want, rtol=rough, atol=1e-37)
        np.testing.assert_allclose(
            gradient.numpy(), slope, rtol=2 * rough, atol=1e-8 if "smoothed" in row.name else 1e-36
        )


@every_dtype
def test_two_way_of_huge_logits(dtype: torch.dtype) -> None:
    z = torch.tensor([[1e4, -1e4, 0.0], [-1e4, 1e4, 1e4], [0.0, 0.0, -1e4]]).to(dtype)
    for targets in (torch.eye(3), 1 - torch.eye(3), torch.ones(3, 3), torch.zeros(3, 3)):
        value, gradient = gradient_of(losses.TwoWay(), z, targets)
        assert value.isfinite()
        assert gradient.isfinite().all()
        assert (gradient[targets == 1] <= 0).all()
        assert (gradient[targets == 0] >= 0).all()
        want = ref.two_way(z.double().numpy(), targets.numpy())
        assert float(value) == pytest.approx(want, rel=1e-5)


@every_loss
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast(row: Row, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(6, 4)
    x, targets = 40 * torch.randn(5, 6), torch.randint(-1, 2, (5, 4))
    loss = make(row, 4)
    with torch.autocast("cpu", dtype=dtype):
        z = layer(x)
        value = loss(z, targets)
    assert z.dtype == dtype
    assert value.dtype == torch.float32
    value.backward()
    assert layer.weight.grad.isfinite().all()
    assert value == loss(z, targets)
    if row.name not in ref.SET_LEVEL:
        with torch.autocast("cpu", dtype=dtype):
            inside = loss.log_odds(z)  # type: ignore[union-attr]
        assert inside.dtype == torch.float32
        assert torch.equal(inside, loss.log_odds(z))  # type: ignore[union-attr]


@every_loss
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf"), 1e30])
@pytest.mark.parametrize("reduction", ["mean", "item", "sum", "none"])
def test_unknown_cells_are_inert(row: Row, poison: float, reduction: losses.Reduction) -> None:
    torch.manual_seed(1)
    z = 3 * torch.randn(6, 5)
    targets = torch.randint(-1, 2, (6, 5))
    targets[2] = -1
    targets[:, 4] = -1
    loss = make(row, 5, reduction)
    value, gradient = gradient_of(loss, z, targets)
    dark = z.masked_fill(targets < 0, poison)
    again, changed = gradient_of(loss, dark, targets)
    assert torch.equal(value, again)
    assert torch.equal(gradient, changed)
    assert (changed[targets < 0] == 0).all()
    weight = torch.ones(6, 5).masked_fill(targets < 0, float("nan"))
    if row.name not in ref.SET_LEVEL:
        assert torch.equal(loss(dark, targets, weight), value)


@every_loss
@pytest.mark.parametrize("reduction", ["mean", "item", "sum", "none"])
@pytest.mark.parametrize("shape", [(4, 3), (1, 1), (0, 3), (0, 1)])
def test_nothing_known(row: Row, reduction: losses.Reduction, shape: tuple[int, int]) -> None:
    loss = make(row, shape[1], reduction)
    for z in (torch.randn(shape), torch.full(shape, float("nan"))):
        value, gradient = gradient_of(loss, z, torch.full(shape, -1))
        assert (value == 0).all()
        assert (gradient == 0).all()
        assert value.shape == (shape if reduction == "none" and row.name not in ref.SET_LEVEL else ())


@every_loss
def test_one_label_and_very_many(row: Row) -> None:
    torch.manual_seed(0)
    one = make(row, 1)
    value, gradient = gradient_of(one, torch.randn(7, 1), torch.randint(-1, 2, (7, 1)))
    assert value.isfinite()
    assert gradient.isfinite().all()
    z, targets = torch.randn(3, 10_000), torch.randint(-1, 2, (3, 10_000))
    many = make(row, 10_000)
    value, gradient = gradient_of(many, z, targets)
    assert value.isfinite()
    assert gradient.isfinite().all()
    if row.name not in (*ref.SET_LEVEL, *ref.WEIGHTED):
        parts = make(row, 10_000, "none")(z, targets)
        assert float(value) == pytest.approx(float(parts.double().sum() / (targets >= 0).sum()), rel=1e-5)
        k = 137
        alone = row.make(torch.linspace(1, 990, 10_000).round()[k : k + 1], N_ITEMS, "none")
        if row.name != "LDAM":
            torch.testing.assert_close(alone(z[:, k : k + 1], targets[:, k : k + 1]), parts[:, k : k + 1])


@every_loss
def test_blocks_of_rows_agree_with_rows(row: Row) -> None:
    """A batch large enough to be worked through in pieces is the sum of its pieces."""
    torch.manual_seed(0)
    z, targets = 3 * torch.randn(700, 311, dtype=torch.float64), torch.randint(-1, 2, (700, 311)).double()
    if row.name in ref.SET_LEVEL:
        pytest.skip("not a sum over items")
    loss = make(row, 311, "sum")
    value, gradient = gradient_of(loss, z, targets)
    parts = [gradient_of(loss, z[i : i + 100], targets[i : i + 100]) for i in range(0, 700, 100)]
    assert float(value) == pytest.approx(float(sum(v for v, _ in parts)), rel=1e-12)
    torch.testing.assert_close(gradient, torch.cat([g for _, g in parts]), rtol=1e-12, atol=1e-15)
    strided = z.t().contiguous().t()
    other, same = gradient_of(loss, strided, targets.t().contiguous().t())
    assert float(other) == pytest.approx(float(value), rel=1e-12)
    torch.testing.assert_close(same, gradient, rtol=1e-12, atol=1e-15)


@every_loss
@pytest.mark.parametrize("mode", ["plain", "no_grad", "inference"])
def test_inputs_and_global_state_are_left_alone(row: Row, mode: str) -> None:
    z, targets = torch.randn(4, 3, requires_grad=mode == "plain"), torch.tensor([[1, 0, -1]] * 4)
    weight = torch.rand(4, 3)
    kept = z.detach().clone(), targets.clone(), weight.clone()
    loss = make(row, 3)
    state = {k: v.clone() for k, v in loss.state_dict().items() if isinstance(v, torch.Tensor)}
    context = {"plain": nullcontext, "no_grad": torch.no_grad, "inference": torch.inference_mode}[mode]
    with context():
        before = snapshot()
        value = loss(z, targets) if row.name in ref.SET_LEVEL else loss(z, targets, weight)
        if mode == "plain":
            value.backward()
        if row.name not in ref.SET_LEVEL:
            loss.probability(z, 2.0, 3.0)  # type: ignore[union-attr]
        assert same(before, snapshot())
    assert torch.equal(z.detach(), kept[0])
    assert torch.equal(targets, kept[1])
    assert torch.equal(weight, kept[2])
    assert all(torch.equal(v, loss.state_dict()[k]) for k, v in state.items())
    assert value.requires_grad == (mode == "plain")


def snapshot() -> tuple[object, ...]:
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_rng_state(),
        np.random.get_state()[1].copy(),  # noqa: NPY002
    )


def same(a: tuple[object, ...], b: tuple[object, ...]) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))  # type: ignore[arg-type]


def test_the_rest_leaves_state_alone(tmp_path: object) -> None:
    before = snapshot()
    z, targets, index = (
        torch.randn(4, 3, generator=torch.Generator().manual_seed(0)),
        torch.eye(4)[:, :3] - 0,
        torch.arange(4),
    )
    kept = z.clone(), targets.clone(), index.clone()
    counts = torch.tensor([50, 10, 2])
    store = PseudoLabels(tmp_path, 4, 3)  # type: ignore[arg-type]
    for unknown in ("ignore", "negative", "weak_negative", "wan", losses.Pseudo(store), Role(targets, 1.5)):
        objective = Objective(
            losses.BCE(),
            unknown,  # type: ignore[arg-type]
            PartialLabelMasking(counts, 100, initial="mean"),
            Deferred(ClassBalanced(counts), 1),
            [LabelPair()],
        )
        objective.start_epoch(1, 2)
        objective(z, targets, index)
        objective.probability(z)
        objective.start_epoch(2, 2)
    Objective(losses.BCE(reduction="item"), losses.Annotation(store, q=0.5))(z, targets, index)
    assert same(before, snapshot())
    assert torch.equal(z, kept[0])
    assert torch.equal(targets, kept[1])
    assert torch.equal(index, kept[2])


def mistakes() -> Iterator[tuple[str, Callable[[], object], tuple[str, ...]]]:
    n = torch.tensor([5, 3, 1])
    z, y = torch.zeros(2, 3), torch.zeros(2, 3)
    bce = losses.BCE()
    yield "target 2", lambda: bce(z, torch.tensor([[0, 1, 2], [0, 0, 0]])), ("targets", "2")
    yield "target -2", lambda: bce(z, y - 2), ("targets", "-2")
    yield "target -.5", lambda: bce(z, y - 0.5), ("targets", "-0.5")
    yield "target nan", lambda: bce(z, y * float("nan")), ("targets", "nan")
    yield "target 1.5", lambda: bce(z, y + 1.5), ("targets", "1.5")
    yield "target complex", lambda: bce(z, y.to(torch.complex64)), ("targets", "complex64")
    yield "target shape", lambda: bce(z, y[:, :2]), ("targets", "(2, 2)", "(2, 3)")
    yield "target transposed", lambda: bce(z, y.t()), ("targets", "(3, 2)", "(2, 3)")
    yield "target broadcast", lambda: bce(z, y[:1]), ("targets", "(1, 3)")
    yield "logits 1-d", lambda: bce(z[0], y[0]), ("logits", "(3,)")
    yield "logits 3-d", lambda: bce(z[None], y[None]), ("logits", "(1, 2, 3)")
    yield "logits int", lambda: bce(z.long(), y), ("logits", "int64")
    yield "logits complex", lambda: bce(z.to(torch.complex64), y), ("logits", "complex64")
    yield "logits numpy", lambda: bce(z.numpy(), y), ("logits", "ndarray")
    yield "weight shape", lambda: bce(z, y, torch.ones(2)), ("weight", "(2,)", "(2, 3)")
    yield "weight negative", lambda: bce(z, y, torch.full((2, 3), -1.5)), ("weight", "-1.5")
    yield "weight nan", lambda: bce(z, y, float("nan")), ("weight", "nan")
    yield "weight inf", lambda: bce(z, y, torch.full((2, 3), float("inf"))), ("weight", "inf")
    yield "weight bigger", lambda: bce(z, y, torch.ones(4, 2, 3)), ("weight", "(4, 2, 3)")
    yield "weight elsewhere", lambda: bce(z.to("meta"), y.to("meta"), torch.ones(3)), ("weight", "cpu", "meta")
    db = losses.DistributionBalanced(n, 9)
    yield "DB logits 1-d", lambda: db(z[0], y[0]), ("logits", "(3,)")
    yield "DB logits int", lambda: db(z.long(), y), ("logits", "int64")
    for make_loss, name in (
        (lambda: losses.NegativeTolerant(n, 9), "NT"),
        (lambda: losses.DistributionBalanced(n, 9), "DB"),
        (lambda: losses.LDAM(n), "LDAM"),
        (lambda: losses.LDAM(n, softmax=True), "LDAM softmax"),
    ):
        yield (
            f"{name} labels",
            lambda make_loss=make_loss: make_loss()(torch.zeros(2, 4), torch.zeros(2, 4)),
            ("3", "4"),
        )
        yield f"{name} reduction", lambda: losses.SPA(reduction="avg"), ("reduction", "avg")  # type: ignore[arg-type]
    for name, build in (
        ("NT", lambda counts, k: losses.NegativeTolerant(counts, k)),
        ("DB", lambda counts, k: losses.DistributionBalanced(counts, k)),
        ("PLM", lambda counts, k: PartialLabelMasking(counts, k)),
    ):
        if name != "PLM":
            yield f"{name} count 0", lambda build=build: build(torch.tensor([5, 0]), 9), ("counts", "0", "floor")
        yield f"{name} count over", lambda build=build: build(torch.tensor([5, 10]), 9), ("counts", "10", "9")
        yield f"{name} count -3", lambda build=build: build(torch.tensor([5, -3]), 9), ("counts", "-3")
        yield f"{name} count nan", lambda build=build: build(torch.tensor([5, float("nan")]), 9), ("counts", "nan")
        yield f"{name} count 2-d", lambda build=build: build(torch.ones(2, 2), 9), ("counts", "(2, 2)")
        yield f"{name} known shape", lambda build=build: build(n, torch.tensor([9, 9])), ("n_known", "2", "3")
        yield f"{name} known -1", lambda build=build: build(n, -1), ("n_known", "-1")
    for build in (InverseFrequency, ClassBalanced, Rebalanced, losses.LDAM):
        yield f"{build.__name__} 0", lambda build=build: build(torch.tensor([4, 0])), ("counts", "0", "floor")
        yield f"{build.__name__} empty", lambda build=build: build(torch.tensor([])), ("counts",)
        yield f"{build.__name__} floor", lambda build=build: build(torch.tensor([4, 0]), floor=-1), ("floor", "-1")
    yield "NT all positive", lambda: losses.NegativeTolerant(torch.tensor([8, 9, 9]), 9), ("counts[1]", "9")
    yield "Rebalanced alpha", lambda: Rebalanced(n, alpha=-1.0), ("alpha", "-1.0")
    yield "Rebalanced beta", lambda: Rebalanced(n, beta=float("nan")), ("beta", "nan")
    yield "ClassBalanced beta", lambda: ClassBalanced(n, 1.0), ("beta", "1.0")
    yield "ClassBalanced mode", lambda: ClassBalanced(n, mode="meen"), ("mode", "meen")  # type: ignore[arg-type]
    yield "weighting labels", lambda: ClassBalanced(n)(torch.zeros(2, 4)), ("3", "4")
    yield "Deferred", lambda: Deferred(ClassBalanced(n), 0), ("start", "0")
    yield "PLM rate", lambda: PartialLabelMasking(n, 9, rate=-1.0), ("rate", "-1.0")
    yield "PLM bins", lambda: PartialLabelMasking(n, 9, bins=1), ("bins", "1")
    yield "PLM eps", lambda: PartialLabelMasking(n, 9, eps=0.2), ("eps", "0.2")
    yield "PLM clip", lambda: PartialLabelMasking(n, 9, clip=(1.0, 0.0)), ("clip", "1.0")
    yield "PLM initial", lambda: PartialLabelMasking(n, 9, initial="median"), ("initial", "median")  # type: ignore[arg-type]
    yield "PLM initial shape", lambda: PartialLabelMasking(n, 9, initial=torch.ones(2)), ("initial", "2")
    yield "PLM initial 0", lambda: PartialLabelMasking(n, 9, initial=torch.zeros(3)), ("initial", "0")
    yield "PLM initial inf", lambda: PartialLabelMasking(n, 9, initial=n / torch.tensor([1, 1, 0])), ("initial", "inf")
    yield "PLM seed", lambda: PartialLabelMasking(n, 9, seed=-1), ("seed", "-1")
    yield "PLM targets", lambda: PartialLabelMasking(n, 9).mask(torch.zeros(2, 4)), ("3", "4")
    yield "PLM index", lambda: PartialLabelMasking(n, 9).mask(y, torch.arange(3)), ("index", "3")
    yield "PLM index float", lambda: PartialLabelMasking(n, 9).mask(y, torch.rand(2)), ("index", "float")
    yield "PLM observes logits", lambda: PartialLabelMasking(n, 9).observe(z + 3, y), ("probabilities", "3")
    yield "LabelPair", lambda: LabelPair(-1.0), ("weight", "-1.0")
    yield "LabelPair shape", lambda: LabelPair()(z, y[:, :2]), ("(2, 2)",)
    yield "LabelPair target", lambda: LabelPair()(z, y + 3), ("targets", "3")
    yield "LabelPair list", lambda: LabelPair()([[1.0]], y), ("log_odds", "list")  # type: ignore[arg-type]
    yield "LabelPair int", lambda: LabelPair()(z.long(), y), ("log_odds", "int64")
    yield "Pseudo weight", lambda: losses.Pseudo(None, float("inf")), ("weight", "inf")  # type: ignore[arg-type]
    for weighting in (Rebalanced(n), ClassBalanced(n[:1])):
        yield (
            f"weighted labels {weighting.n_labels}",
            lambda weighting=weighting: losses.WeightedLoss(bce, weighting)(torch.zeros(2, 4), torch.zeros(2, 4)),
            ("4", str(weighting.n_labels)),
        )
    yield "Objective rule", lambda: Objective(bce, "weak"), ("unknown", "weak")  # type: ignore[arg-type]
    yield "Objective rule type", lambda: Objective(bce, None), ("unknown", "None")  # type: ignore[arg-type]
    yield "Objective epoch", lambda: Objective(bce).start_epoch(0, 3), ("epoch", "0")
    yield "Objective epochs", lambda: Objective(bce).start_epoch(4, 3), ("epoch", "4", "3")
    yield "Objective loss", lambda: Objective(torch.nn.BCEWithLogitsLoss()), ("loss", "BCEWithLogitsLoss")  # type: ignore[arg-type]
    yield "Objective of cells", lambda: Objective(losses.BCE(reduction="none")), ("reduction", "none")
    yield "Objective by items", lambda: Objective(bce, losses.Annotation()), ("reduction", "'mean'", "'item'")
    yield (
        "Objective regularizer",
        lambda: Objective(bce, regularizers=[torch.nn.Linear(2, 2)]),
        ("regularizers", "Linear"),
    )  # type: ignore[list-item]
    yield "Objective weighting", lambda: Objective(bce, weighting=torch.nn.Linear(2, 2)), ("weighting", "Linear")  # type: ignore[arg-type]
    plm = PartialLabelMasking(n, 9)
    yield "Objective labels", lambda: Objective(bce, masking=plm, weighting=ClassBalanced(n[:2])), ("3", "2")
    yield "Annotation schedule", lambda: losses.Annotation(schedule="cosine"), ("schedule", "cosine")  # type: ignore[arg-type]
    pal = losses.PartialAnnotation()
    yield "PAL epoch", lambda: pal(z, y, y, 0, 2), ("epoch", "0")


MISTAKES = list(mistakes())


@pytest.mark.parametrize(("call", "fragments"), [pytest.param(c, f, id=i) for i, c, f in MISTAKES])
def test_mistakes_are_told_in_one_sentence(call: Callable[[], object], fragments: tuple[str, ...]) -> None:
    with pytest.raises(ValueError) as caught:
        call()
    text = str(caught.value)
    assert "\n" not in text
    assert ". " not in text.replace("e.g. ", "").replace("i.e. ", "")
    for fragment in fragments:
        assert fragment in text, text


N = torch.tensor([5, 3, 1])
INF, NAN = float("inf"), float("nan")
POSITIVE = ([0.0, -1.0, INF, NAN], [1e-3, 0.5])
AT_LEAST_0 = ([-1e-9, INF, NAN], [0.0, 0.5])
BELOW_1 = ([-1e-9, 1.0, NAN], [0.0, 0.999])
FINITE = ([INF, -INF, NAN], [-2.0, 0.0])
RANGES: dict[str, tuple[Callable[..., object], tuple[list[float], list[float]]]] = {
    "BCE smoothing": (losses.BCE, BELOW_1),
    "Focal gamma": (losses.Focal, AT_LEAST_0),
    "Focal scale": (losses.Focal, POSITIVE),
    "Asymmetric gamma_pos": (losses.Asymmetric, AT_LEAST_0),
    "Asymmetric gamma_neg": (losses.Asymmetric, AT_LEAST_0),
    "Asymmetric margin": (losses.Asymmetric, BELOW_1),
    "NT lam": (lambda **o: losses.NegativeTolerant(N, 9, **o), POSITIVE),
    "NT kappa": (lambda **o: losses.NegativeTolerant(N, 9, **o), FINITE),
    "NT gamma": (lambda **o: losses.NegativeTolerant(N, 9, **o), AT_LEAST_0),
    "NT focal_scale": (lambda **o: losses.NegativeTolerant(N, 9, **o), POSITIVE),
    "LDAM max_margin": (lambda **o: losses.LDAM(N, **o), POSITIVE),
    "TwoWay t_pos": (losses.TwoWay, POSITIVE),
    "TwoWay t_neg": (losses.TwoWay, POSITIVE),
    "Annotation gamma": (losses.Annotation, ([0.0, 1.0, -1.0, NAN], [1e-3, 0.999])),
    "Annotation m": (losses.Annotation, FINITE),
    "Annotation q": (losses.Annotation, ([-1e-9, 1 + 1e-9, NAN], [0.0, 1.0])),
    **{f"SPA {name}": (losses.SPA, POSITIVE) for name in ("zeta_pos", "k_pos", "zeta_neg", "k_neg")},
    **{f"SPA {name}": (losses.SPA, FINITE) for name in ("b_pos", "b_neg")},
}


@pytest.mark.parametrize("name", RANGES)
def test_a_number_is_taken_in_its_range_and_nowhere_else(name: str) -> None:
    build, (refused, taken) = RANGES[name]
    argument = name.split()[1]
    for value in refused:
        with pytest.raises(ValueError, match=rf"^{'scale' if name == 'Focal scale' else argument} is "):
            build(**{argument: value})
    for value in taken:
        build(**{argument: value})


@pytest.mark.parametrize("name", ["slope", "scale"])
@pytest.mark.parametrize("wrong", POSITIVE[0])
def test_both_sides_of_a_pair_have_a_positive_slope_and_scale(name: str, wrong: float) -> None:
    for pair in ((wrong, 1.0), (1.0, wrong)):
        with pytest.raises(ValueError, match=rf"^{name} is \(.*: both must be positive and finite$"):
            losses.SoftplusPair(**{name: pair})  # type: ignore[arg-type]


def test_a_number_is_a_weight_on_every_device() -> None:
    z = torch.zeros(2, 3, device="meta")
    for weight in (0.5, torch.tensor(0.5)):
        assert losses.BCE()(z, z, weight).device.type == "meta"


@pytest.mark.parametrize("pair", [(-1e-9, 0.5), (0.5, 1 + 1e-9), (1.5, 0.5), (0.5, -1.0)])
def test_both_ends_of_q_are_chances(pair: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match=r"^q is "):
        losses.Annotation(q=pair)
    losses.Annotation(q=(0.0, 1.0))
    losses.Annotation(q=(1.0, 0.0))


def test_a_declared_floor_stands_in_for_no_positives_and_for_no_negatives() -> None:
    z, y, empty, full = torch.randn(3, 2), torch.eye(3)[:, :2], torch.tensor([4, 0]), torch.tensor([9, 4])
    floored = losses.LDAM(empty, floor=1)
    assert torch.equal(floored(z, y), losses.LDAM(empty.clamp_min(1))(z, y))
    for build in (losses.NegativeTolerant, losses.DistributionBalanced):
        assert torch.equal(build(empty, 9, floor=1)(z, y), build(empty.clamp_min(1), 9)(z, y))
        assert torch.equal(build(full, 9, floor=1)(z, y), build(full, torch.tensor([10, 9]))(z, y))
