"""The head by blocks against a plain linear layer with torch's own optimizers, in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from steelyard.balance import ClassBalanced, InverseFrequency, LabelPair, PartialLabelMasking, Rebalanced
from steelyard.kernels import block_launch, choice, fused
from steelyard.labels import Labels
from steelyard.losses import BCE, Asymmetric, TwoWay
from steelyard.losses.pair import FormulaLoss
from steelyard.losses.table import EVERY, Row
from steelyard.models.block import BlockHead, BlockOptimizer, SparseTargets
from steelyard.models.block import head as head_module
from steelyard.models.block.steps import Moments, noise, plain_update_
from steelyard.objective import Objective

B, F, L = 7, 5, 23
PAIRS = [row for row in EVERY if row.name != "Two-way"]
COUNTS = torch.arange(1, L + 1)


class Exponential(FormulaLoss):
    """A loss of a user's own, with class-wise constants."""

    def __init__(self) -> None:
        super().__init__(L)
        self.register_buffer("rate", torch.linspace(0.2, 0.5, L, dtype=torch.float64))

    def positive(self, z: Tensor) -> Tensor:
        return torch.exp(-z * self.rate)

    def negative(self, z: Tensor) -> Tensor:
        return torch.exp(z * self.rate)


def batch(kind: str, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(B, F, generator=g, dtype=torch.float64)
    t = (torch.rand(B, L, generator=g) < 0.2).double()
    if kind in ("unknown", "soft"):
        t[torch.rand(B, L, generator=g) < 0.3] = -1
    if kind == "soft":
        t = torch.where(torch.rand(B, L, generator=g) < 0.2, torch.rand(B, L, generator=g).double(), t)
    if kind == "rest unknown":
        t = torch.where(torch.rand(B, L, generator=g) < 0.7, -1.0, t)
    return x, t.float().double()


def sparse(t: Tensor, kind: str) -> SparseTargets:
    return SparseTargets.from_dense(t, -1 if kind == "rest unknown" else 0)


def head_of(**given: Any) -> BlockHead:
    torch.manual_seed(1)
    head = BlockHead(F, L, **{"block": 8, "dtype": torch.float64, **given})
    with torch.no_grad():
        head.weight.normal_()
        head.bias.normal_()
    return head


def plain(head: BlockHead, x: Tensor, t: Tensor, objective: Objective, index: Tensor | None) -> tuple[Any, ...]:
    """Value and gradients of features, weights and bias by a dense product."""
    x, w, b = (v.detach().double().clone().requires_grad_() for v in (x, head.weight, head.bias))
    value = objective(x @ w.T + b, t, index).total
    value.backward()
    return value.detach(), x.grad, w.grad, b.grad


OBJECTIVES: dict[str, Any] = {
    **{row.name: lambda row=row: Objective(row.make(COUNTS, 40, "mean")) for row in PAIRS},
    "own": lambda: Objective(Exponential()),
    "sum": lambda: Objective(BCE(reduction="sum")),
    "item": lambda: Objective(BCE(reduction="item")),
    "negative": lambda: Objective(BCE(), "negative"),
    "weak": lambda: Objective(BCE(), "weak_negative"),
    "wan": lambda: Objective(BCE(), "wan"),
    "inverse": lambda: Objective(BCE(), weighting=InverseFrequency(COUNTS)),
    "class": lambda: Objective(BCE(), weighting=ClassBalanced(COUNTS)),
    "items": lambda: Objective(BCE(), weighting=ClassBalanced(COUNTS, mode="mean_effective")),
    "both": lambda: Objective(EVERY[7].make(COUNTS, 40, "mean"), weighting=InverseFrequency(COUNTS)),
    "pairs": lambda: Objective(BCE(), regularizers=[LabelPair(0.7)]),
    "pairs of logits": lambda: Objective(EVERY[3].make(COUNTS, 40, "mean"), regularizers=[LabelPair(3.0, link=False)]),
    "two pairs": lambda: Objective(EVERY[11].make(COUNTS, 40, "item"), regularizers=[LabelPair(2.0), LabelPair(0.5)]),
    "plm": lambda: Objective(BCE(), masking=PartialLabelMasking(COUNTS, 40, rate=0, initial="mean")),
    "plm, negative": lambda: Objective(BCE(), "negative", PartialLabelMasking(COUNTS, 40, rate=0, initial="mean")),
}


@pytest.mark.parametrize("kind", ["known", "unknown", "soft", "rest unknown"])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_value_and_gradients_are_those_of_the_plain_head(name: str, kind: str) -> None:
    head, (x, t), index = head_of(), batch(kind), torch.arange(3, 3 + B)
    objective = OBJECTIVES[name]()
    want, dx, dw, db = plain(head, x, t, objective, index)
    given = x.clone().requires_grad_()
    before = head.weight.clone(), head.bias.clone()
    value = head.step(given, sparse(t, kind), objective, lr=0.5, index=index)
    value.total.backward()
    tight = (
        dict(rtol=2e-6, atol=1e-7) if name in ("both", "R-BCE", "DB", "DB-Focal", "inverse", "class", "items") else {}
    )
    torch.testing.assert_close(value.total, want, **tight)
    torch.testing.assert_close(given.grad, dx, **tight)
    torch.testing.assert_close(head.weight, before[0] - 0.5 * dw, **tight)
    torch.testing.assert_close(head.bias, before[1] - 0.5 * db, **tight)


@pytest.mark.parametrize(
    ("kind", "state", "near"),
    [
        ("sgd", "float32", 0),
        ("momentum", "float32", 0),
        ("adam", "float32", 0),
        ("momentum", "int8", 0.01),
        ("adam", "int8", 0.02),
    ],
)
def test_ten_steps_are_those_of_torchs_optimizers(kind: str, state: str, near: float) -> None:
    """In float64, where states are not narrowed, equal; with 8 bits near."""
    rule = BlockOptimizer(kind, weight_decay=0.1, state=state)  # type: ignore[arg-type]
    head, objective = head_of(optimizer=rule), Objective(BCE())
    w, b = head.weight.clone().requires_grad_(), head.bias.clone().requires_grad_()
    groups = [{"params": [w], "weight_decay": 0.1}, {"params": [b], "weight_decay": 0.0}]
    theirs: torch.optim.Optimizer = torch.optim.AdamW(groups, lr=0.05)
    if kind != "adam":
        theirs = torch.optim.SGD(groups, lr=0.05, momentum=0.9 if kind == "momentum" else 0)
    for i in range(10):
        x, t = batch("unknown", i)
        theirs.zero_grad()
        objective(x @ w.T + b, t).total.backward()
        theirs.step()
        head.step(x, sparse(t, "unknown"), objective, lr=0.05)
    close = dict(atol=near, rtol=0) if near else {}
    torch.testing.assert_close(head.weight, w.detach(), **close)
    torch.testing.assert_close(head.bias, b.detach(), **close)


def test_small_blocks_of_a_cpu_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    x, t = batch("soft")
    outs = []
    for cells in (1 << 20, 8 * B):
        monkeypatch.setattr(head_module, "_CPU_CELLS", cells)
        head, given = head_of(block=24), x.clone().requires_grad_()
        value = head.step(given, sparse(t, "soft"), Objective(Asymmetric()), lr=0.5).total
        value.backward()
        outs.append((value, given.grad, head.weight, head.bias))
    for one, three in zip(*outs, strict=True):
        torch.testing.assert_close(one, three)


class Launches(TorchDispatchMode):
    """Counts operations that launch a kernel on a GPU: all but views and empty tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not function.is_view and "empty" not in function.name():
            self.names.append(function.name())
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(("kind", "most"), [("sgd", 10), ("momentum", 11), ("adam", 11)])
def test_a_step_of_one_block_is_few_launches(kind: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With few labels a step takes as long as its launches; a dense layer with torch's BCE and SGD has about 15."""
    kernels: list[str] = []
    for module in (block_launch, fused):
        monkeypatch.setattr(module, "_run", lambda plan, *rest: kernels.append(plan.kernel))
    head, (x, t) = head_of(dtype=torch.float32, optimizer=BlockOptimizer(kind), block=24), batch("known")  # type: ignore[arg-type]
    given, targets, objective = x.float().requires_grad_(), sparse(t, "known"), Objective(BCE())
    with choice.using("fused"), Launches() as launches:
        head.step(given, targets, objective, lr=0.5).total.backward()
    assert kernels == ["pick", "slopes", "put", *(["update"] if kind != "sgd" else []), "settle"]
    assert len(launches.names) + len(kernels) <= most, launches.names


def test_features_of_16_bits_get_gradients_of_16_bits() -> None:
    x, t = batch("known")
    gradients = []
    for dtype in (torch.float32, torch.bfloat16):
        given = x.bfloat16().to(dtype).requires_grad_()
        head_of(dtype=torch.float32).value(given, sparse(t, "known"), Objective(BCE())).total.mul_(3.0).backward()
        gradients.append(given.grad)
    wide, narrow = gradients
    assert narrow.dtype == torch.bfloat16
    assert torch.equal(wide.bfloat16(), narrow)


def test_stochastic_rounding_takes_small_steps_on_average() -> None:
    """A step of 1/64 of a unit in the last place: nearest loses it, stochastic rounding takes it."""
    gradient = torch.full((64, 32), 2.0**-8 / 64)
    for stochastic, mean in ((False, 0.0), (True, 100 / 64 * 2.0**-8)):
        weight = torch.ones(64, 32, dtype=torch.bfloat16)
        for step in range(100):
            numbers = (-1.0, 1.0, 0.0, 0.0, 0.0, 1e-8, 1.0, 1.0)
            bits = noise(weight.shape, 0, step * 977, weight.device)
            plain_update_(weight, gradient, [None] * 4, bits, numbers, "sgd", stochastic)
        moved = (weight.double() - 1).mean().item()
        assert moved == pytest.approx(mean, rel=0.1)


@pytest.mark.parametrize("state", ["bfloat16", "int8"])
def test_narrow_states_follow_wide_ones(state: str) -> None:
    torch.manual_seed(0)
    weights = torch.randn(40, 16)
    truth = weights.clone()
    rules = [BlockOptimizer("adam", state=s, betas=(0.9, 0.99)) for s in (state, "float32")]  # type: ignore[arg-type]
    moments = [Moments(weights, torch.zeros(40), rule) for rule in rules]
    for _ in range(300):
        slopes, x = torch.randn(8, 40), torch.randn(8, 16)
        slopes = slopes + x @ torch.ones(16, 1) * 0.3
        for w, m in zip((weights, truth), moments, strict=True):
            m.begin()
            m.step(w, slopes, x, 0, 1e-3, 1.0)
    assert (weights - truth).norm() / truth.norm() < 0.02
    m, root = moments[0].get("m"), moments[0].get("v")
    assert m is not None
    assert root is not None
    scale = moments[0].get("v_scale")
    v = root.float() if scale is None else ((root.float() / 255).square() * scale).square()
    assert v.mean() / moments[1].v.mean() == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize(
    ("state", "dtype"), [("int8", torch.float32), ("bfloat16", torch.float32), ("float32", torch.bfloat16)]
)
def test_each_weight_is_rounded_by_bits_of_its_own(state: Any, dtype: torch.dtype, rounding: Any) -> None:
    g = torch.Generator().manual_seed(0)
    slopes, x = torch.randn(8, 40, generator=g), torch.randn(8, 16, generator=g).to(dtype)
    ours, theirs = (torch.ones(40, 16, dtype=dtype) for _ in range(2))
    rule = BlockOptimizer("adam", state=state, rounding=rounding)
    moments, other = (Moments(ours, torch.zeros(40), rule) for _ in range(2))
    moments.begin()
    moments.step(ours, slopes.to(dtype), x, 0, 0.1, 1.0)
    states = [other.get(name) for name in ("m", "v", "m_scale", "v_scale")]
    bits = noise(ours.shape, 0, 0x85EBCA77, ours.device)  # the key of the first step of seed 0
    numbers = (0.1, 1.0, 0.0, 0.9, 0.999, 1e-8, 1 / (1 - 0.9), (1 - 0.999) ** -0.5)
    plain_update_(theirs, slopes.to(dtype).t() @ x, states, bits, numbers, "adam", rounding == "stochastic")
    assert torch.equal(ours, theirs)
    for name, there in zip(("m", "v"), states, strict=False):
        assert torch.equal(moments.get(name), there)


def test_rounding_does_not_depend_on_blocks() -> None:
    whole = noise(torch.Size((10, 6)), 0, 12345, torch.device("cpu"))
    assert (noise(torch.Size((4, 6)), 3, 12345, torch.device("cpu")) == whole[3:7]).all()
    heads = [head_of(block=block, dtype=torch.bfloat16) for block in (4, 8, 24)]
    x, t = batch("unknown")
    for head in heads:
        head.step(x.float(), sparse(t, "unknown"), Objective(BCE()), lr=0.5)
    assert all((head.weight == heads[0].weight).all() for head in heads)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("row", PAIRS, ids=lambda row: row.name)
def test_huge_logits_stay_finite_and_unknown_labels_inert(row: Row, dtype: torch.dtype) -> None:
    objective = Objective(row.make(COUNTS, 40, "mean"))
    x, t = batch("unknown")
    for size in (1e-30, 1e4, 1e15):
        heads = [head_of(dtype=dtype) for _ in range(2)]
        for head in heads:
            head.weight.mul_(size)
        heads[1].weight[0] = 1e18  # of a label that is unknown everywhere
        t[:, 0] = -1
        outs = []
        for head in heads:
            given = x.float().requires_grad_()
            value = head.step(given, sparse(t, "unknown"), objective, lr=1e-3).total
            value.backward()
            assert given.grad is not None
            assert math.isfinite(value.item())
            assert given.grad.isfinite().all()
            assert head.weight.isfinite().all()
            outs.append((value, given.grad, head.weight[1:]))
        for one, other in zip(*outs, strict=True):
            assert torch.equal(one, other)


def test_targets_of_items_are_those_of_the_table() -> None:
    _, t = batch("soft")
    index = torch.tensor([4, 0, 4, 2])
    for fill in (0, -1):
        rows, columns = (t != fill).nonzero(as_tuple=True)
        labels = Labels.from_cells(rows, columns, t[rows, columns], (B, L), fill)
        targets = SparseTargets.from_labels(labels, index)
        torch.testing.assert_close(targets.dense(), t[index].float())
        assert targets.n_known == int((t[index] >= 0).sum())
        torch.testing.assert_close(targets.dense(4, 11), t[index, 4:11].float())
    weights = torch.rand(L, dtype=torch.float64)
    torch.testing.assert_close(targets.row_sums(weights), (t[index].clamp_min(0) * weights).sum(1))


def test_a_bottleneck_is_trained_by_its_own_optimizer() -> None:
    head, (x, t) = head_of(bottleneck=3, dtype=torch.float32), batch("known")
    assert [name for name, p in head.named_parameters() if p.requires_grad] == ["first.weight", "first.bias"]
    head.step(x.float(), sparse(t, "known"), Objective(BCE()), lr=0.1).total.backward()
    assert head.first.weight.grad is not None
    assert head.first.weight.grad.abs().sum() > 0


def test_states_are_saved_and_a_continued_run_is_the_same() -> None:
    rule = BlockOptimizer("adam", state="int8")
    heads = [head_of(optimizer=rule, dtype=torch.bfloat16) for _ in range(2)]
    for i in range(4):
        x, t = batch("unknown", i)
        for n, head in enumerate(heads):
            if n and i == 2:
                saved = head.state_dict()
                heads[1] = head = head_of(optimizer=rule, dtype=torch.bfloat16)
                head.load_state_dict(saved)
            head.step(x.float(), sparse(t, "unknown"), Objective(BCE()), lr=0.1)
    assert torch.equal(heads[0].weight, heads[1].weight)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BlockHead(0, 3), "n_features is 0"),
        (lambda: BlockHead(3, 3, block=6), "block is 6: give a multiple of 4"),
        (lambda: BlockHead(3, 3, dtype=torch.float16), "choose torch.bfloat16"),
        (lambda: BlockOptimizer("adamw"), "kind is 'adamw'"),  # type: ignore[arg-type]
        (lambda: BlockOptimizer(momentum=1.0), "momentum is 1.0"),
        (lambda: SparseTargets.from_cells([0, 0], [1, 1], [1, 1], (1, 2)), "listed twice"),
        (lambda: SparseTargets.from_cells([0], [2], [1], (1, 2)), "labels holds 2"),
        (lambda: SparseTargets.from_cells([0], [1], [float("nan")], (1, 2)), r"values\[0\] is nan"),
        (lambda: SparseTargets.from_cells([0], [1], [2], (1, 2)), r"values\[0\] is 2"),
        (lambda: head_of().step(*_given(Objective(TwoWay()))), "compares labels with each other"),
        (lambda: head_of().step(torch.zeros(2, F), sparse(batch("known")[1], ""), Objective(BCE()), 0.1), "2 items"),
        (
            lambda: head_of().step(*_given(Objective(BCE(), masking=PartialLabelMasking(COUNTS, 40)))),
            "observes='validation'",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        make()
    assert "\n" not in str(error.value)


def _given(objective: Objective) -> tuple[Any, ...]:
    x, t = batch("known")
    return x, sparse(t, "known"), objective, 0.1


def test_weightings_by_label_and_item_are_their_weights() -> None:
    _, t = batch("soft")
    targets = sparse(t, "soft")
    for weighting in (InverseFrequency(COUNTS), *(ClassBalanced(COUNTS, 0.9, m) for m in ("class", "mean_count"))):
        by_label, by_item = weighting.marginal(targets.row_sums)
        product = torch.ones(B, L, dtype=torch.float64)
        product = product if by_label is None else product * by_label
        product = product if by_item is None else product * by_item[:, None]
        torch.testing.assert_close(product, weighting(t, torch.float64))
    with pytest.raises(ValueError, match="choose another"):
        Rebalanced(COUNTS).marginal(targets.row_sums)


def test_asymmetric_margin_is_in_the_table() -> None:
    """The kernels know two kinds of pairs; both are tested above."""
    assert any(isinstance(row.make(COUNTS, 40, "mean"), Asymmetric) for row in PAIRS)
