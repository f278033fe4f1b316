"""The fused kernels of the losses, in Triton's interpreter, against the plain code in float64 (see test_kernels)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed")

from reference import two_way as reference_two_way
from steelyard.balance import ClassBalanced, LabelPair, PartialLabelMasking, Rebalanced
from steelyard.kernels import choice, fused, label_pairs, two_way
from steelyard.losses import BCE, Asymmetric, DistributionBalanced, Focal, NegativeTolerant, TwoWay
from steelyard.losses.pair import AnalyticLoss
from steelyard.losses.table import TABLE, Row
from steelyard.objective import Objective
from steelyard_bench.losses import masked_inside
from triton_interpreter import generator, inside

pytestmark = [pytest.mark.interpreter, inside]

B, L = 13, 37
EXTREMES = torch.tensor([1e4, -1e4, 100.0, -100.0, 20.0, -20.0, 0.0, -0.0])


@pytest.fixture
def g() -> torch.Generator:
    return generator()


@pytest.fixture(autouse=True)
def fuse() -> Iterator[None]:
    with choice.using("fused"):
        yield


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several tiles, programs and launches even for a small matrix."""
    monkeypatch.setattr(fused, "_plans", {})
    monkeypatch.setattr(fused, "_TILE", 64)
    monkeypatch.setattr(fused, "_WIDEST", 32)
    monkeypatch.setattr(fused, "_NARROWEST", 16)
    monkeypatch.setattr(fused, "_FEW", 0)
    monkeypatch.setattr(fused, "_SMALL", 0)
    monkeypatch.setattr(two_way, "_TILE", (4, 16))
    monkeypatch.setattr(two_way, "_GRADIENT_TILE", (2, 16))
    monkeypatch.setattr(two_way, "_GROUP", (8, 4))
    monkeypatch.setattr(two_way, "_LAST_GROUPS", 0)


@pytest.fixture
def long_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of 16 labels are long, and have several tiles."""
    monkeypatch.setattr(fused, "_plans", {})
    monkeypatch.setattr(fused, "_LONG", 16)
    for name in ("_ROW_TILE", "_DRAWN_TILE", "_SUM_TILE"):
        monkeypatch.setattr(fused, name, 32)


def logits_of(g: torch.Generator, rows: int = B, labels: int = L, dtype: torch.dtype = torch.float32) -> Tensor:
    z = 6 * torch.randn(rows, labels, generator=g)
    z.view(-1)[: len(EXTREMES)] = EXTREMES[: z.numel()]
    return z.to(dtype)


def targets_of(g: torch.Generator, kind: str, rows: int = B, labels: int = L) -> Tensor:
    t = torch.randint(0, 2, (rows, labels), generator=g).to(torch.int8)
    if kind == "unknown":
        t[torch.rand(rows, labels, generator=g) < 0.4] = -1
        t[rows // 2] = -1
    elif kind == "soft":
        t = torch.rand(rows, labels, generator=g)
        t.view(-1)[::5] = 1.0
        t.view(-1)[1::5] = 0.0
        t.view(-1)[2::7] = -1.0
    return t


def reference(loss: Any, z: Tensor, *rest: Any, upstream: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Value and gradient by the plain code in float64."""
    x = z.detach().double().requires_grad_()
    with choice.using("plain"):
        value = loss(x, *rest)
    value.backward(torch.ones_like(value) if upstream is None else upstream.double())
    assert x.grad is not None
    return value.detach(), x.grad


def close(got: Tensor, want: Tensor, atol: float = 1e-30, dtype: torch.dtype = torch.float32) -> None:
    """Equal to 1e-5 relative + atol, then rounding to the dtype of the output; the interpreter cuts bfloat16 off."""
    last = {torch.float32: 0.0, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-11}[dtype]
    least = {torch.float32: 0.0, torch.bfloat16: 0.0, torch.float16: 2.0**-25}[dtype]
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), want.double(), rtol=1e-5 + last, atol=atol + least)


def check(loss: Any, z: Tensor, *rest: Any, cancels: bool = False, upstream: Tensor | None = None) -> None:
    """Compare value and gradient; where ℓ₊' and ℓ₋' cancel, only what is left of a cell's largest slope counts."""
    want, want_grad = reference(loss, z, *rest, upstream=upstream)
    x = z.detach().requires_grad_()
    value = loss(x, *rest)
    assert value.grad_fn is not None
    assert type(value.grad_fn).__name__.startswith("_Fused")
    value.backward(torch.ones_like(value) if upstream is None else upstream)
    assert x.grad is not None
    close(value.detach(), want)
    top = want_grad.abs().max().item()
    close(x.grad, want_grad, 2e-6 * top if cancels else 1e-30, z.dtype)


EVERY_TARGET = (("hard", torch.bool), ("unknown", torch.int8), ("unknown", torch.float64), ("soft", torch.float32))
ONE_TILE = [(B, L, kind, torch.float32, r) for kind in ("hard", "soft") for r in ("mean", "item", "sum", "none")]
ONE_TILE += [(B, L, "unknown", torch.int8, "mean"), (B, L, "unknown", torch.int8, "none")]
SHAPES = [(B, L, "unknown"), (5, 1, "hard"), (1, 1, "hard"), (1, 203, "hard"), (16, 16, "unknown")]
MANY_TILES = [(*shape, torch.int8, "mean") for shape in SHAPES]
CLASS_WISE = [(5, labels, *target, "mean") for labels in (64, 101) for target in EVERY_TARGET]
CASES = [(row, "as_it_is", ONE_TILE) for row in TABLE]
CASES += [(row, "small_tiles", MANY_TILES) for row in TABLE]
CASES += [
    (row, tiles, CLASS_WISE)
    for row in TABLE
    if row.name in ("LDAM", "NT-BCE", "R-BCE", "DB", "DB-Focal")
    for tiles in ("small_tiles", "long_rows")
]


@pytest.mark.parametrize(("row", "tiles", "batches"), CASES, ids=lambda x: getattr(x, "name", str(x)[:12]))
def test_every_loss(row: Row, tiles: str, batches: list[Any], g: torch.Generator, request: Any) -> None:
    """Every reduction, every kind and dtype of target, shapes that no tile divides."""
    if tiles != "as_it_is":
        request.getfixturevalue(tiles)
    for rows, labels, kind, dtype, reduction in batches:
        loss = row.make(torch.randint(1, 300, (labels,), generator=g), 400, reduction)
        upstream = torch.randn(rows, labels, generator=g) if reduction == "none" and row.name != "Two-way" else None
        z, t = logits_of(g, rows, labels), targets_of(g, kind, rows, labels).to(dtype)
        check(loss, z, t, cancels=kind == "soft" or "smooth" in row.name, upstream=upstream)


@pytest.mark.parametrize("detach", [True, False])
@pytest.mark.parametrize("margin", [0.0, 1e-3, 0.05, 0.3])
def test_exponents(margin: float, detach: bool, g: torch.Generator) -> None:
    z = torch.cat([logits_of(g), (torch.logit(torch.tensor(margin or 0.5)) + 1e-3 * torch.randn(2, L, generator=g))])
    for gamma_pos, gamma_neg in ((0, 4), (1, 0), (0.5, 0.5), (2, 1), (3, 2.5), (0, 3), (1.5, 5), (4, 2)):
        loss = Asymmetric(gamma_pos, gamma_neg, margin, detach)
        for kind in ("unknown", "soft"):
            check(loss, z, targets_of(g, kind, len(z)), cancels=kind == "soft")
    for gamma in (0.5, 1, 1.5, 3, 4, 7):
        check(Focal(gamma), z, targets_of(g, "hard", len(z)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dtypes(dtype: torch.dtype, g: torch.Generator) -> None:
    counts = torch.randint(1, 300, (L,), generator=g)
    for loss in (BCE(), Asymmetric(), DistributionBalanced(counts, 400, gamma=2.0, reduction="item"), TwoWay()):
        for t_dtype in (torch.bool, torch.uint8, torch.int8, torch.int64, torch.float16, torch.float32, torch.float64):
            t = targets_of(g, "hard" if t_dtype in (torch.bool, torch.uint8) else "unknown")
            check(loss, logits_of(g, dtype=dtype), t.to(t_dtype))


def test_strides(g: torch.Generator) -> None:
    counts = torch.randint(1, 300, (L,), generator=g)
    for loss in (
        Asymmetric(),
        NegativeTolerant(counts, 400),
        DistributionBalanced(counts, 400),
        BCE(reduction="none"),
        TwoWay(),
    ):
        for kind in ("hard", "unknown"):
            z, t = logits_of(g, 2 * B, 3 * L), targets_of(g, kind, 2 * B, 3 * L)
            for a, b in (
                (z[:B, :L], t[:B, :L]),
                (z[::2, ::3], t[::2, ::3]),
                (z[:B, 1 : L + 1], t[:B, :L].contiguous()),
                (z[:L, :B].T, t[:B, :L]) if 2 * B >= L else (z[:B, :L], t[B:, L : 2 * L]),
                (z[:B, :L].T.contiguous().T, t[:B, :L].T.contiguous().T),
                (z[:1, :L].expand(B, L), t[:B, :L]),
                (z[:B, :L], t[:B, :1].expand(B, L)),
            ):
                check(loss, a, b)


@pytest.mark.usefixtures("long_rows")
def test_targets_are_counted_at_any_address(g: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """As words of four where they lie so, one by one elsewhere: unknown labels, and Σ present · inverse of a row."""
    monkeypatch.setattr(fused, "_SMALL", 0)
    monkeypatch.setattr(fused, "_FEW", 0)
    monkeypatch.setattr(fused, "_COUNT_TILE", 64)
    for rows, labels in ((1, 16), (3, 65), (1, 31), (2, 129)):
        inverse = torch.rand(labels, generator=g)
        balance = fused.KernelRebalanced(inverse, 0.1, 10.0, 0.2)
        for offset in (0, 1, 16):
            for dtype in (torch.int8, torch.int32, torch.float32):
                wide = targets_of(g, "unknown", 1, rows * labels + 16)[0].to(dtype)
                wide = wide[offset : offset + rows * labels].view(rows, labels)
                apart = targets_of(g, "unknown", rows, labels + 16).to(dtype)[:, offset : offset + labels]
                for t in (wide, apart):
                    drawn, n = fused._summed(t, fused.IGNORED, balance, None)
                    assert isinstance(n, Tensor)
                    assert n.item() == max((t != -1).sum().item(), 1)
                    torch.testing.assert_close(drawn, ((t == 1) * inverse).sum(1), rtol=1e-6, atol=1e-6)
                    assert fused._in_words(t) == (dtype == torch.int8 and offset % 16 == 0 and t.data_ptr() % 16 == 0)
                n = fused._n_counted(wide, fused.IGNORED, torch.empty(rows, labels))
                assert isinstance(n, Tensor)
                assert n.item() == max((wide != -1).sum().item(), 1)


def test_known_labels_are_counted_on_the_way(g: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """No launch counts them first where the gradient is small: one forward, and one that puts the divisor in."""
    from steelyard.kernels import pairs

    monkeypatch.setattr(fused, "_FEW", 0)
    kernels: list[str] = []
    run = fused._run
    monkeypatch.setattr(fused, "_run", lambda plan, *rest: (kernels.append(plan.kernel), run(plan, *rest))[1])
    for t in (targets_of(g, "unknown"), torch.full((B, L), -1, dtype=torch.int8), targets_of(g, "soft")):
        for loss in (BCE(), DistributionBalanced(torch.randint(1, 300, (L,), generator=g), 400)):
            kernels.clear()
            check(loss, logits_of(g), t, cancels=True)
            assert kernels == ["loss", "scaled"]
    kernels.clear()
    BCE()(logits_of(g), t)
    monkeypatch.setattr(fused, "_FEW", 10**6)
    check(BCE(), logits_of(g), targets_of(g, "unknown"))  # so few that every program may count them
    assert kernels == ["loss", "loss"]
    assert pairs.ROOM.value == fused._MOST_PROGRAMS


def test_weights(g: torch.Generator) -> None:
    counts = torch.randint(1, 300, (L,), generator=g)
    for loss in (Asymmetric(), DistributionBalanced(counts, 400), BCE(reduction="none"), TwoWay()):
        for kind in ("hard", "unknown", "soft"):
            for shape in ((), (L,), (B, 1), (B, L)):
                w = torch.rand(shape, generator=g)
                check(loss, logits_of(g), targets_of(g, kind), w, cancels=kind == "soft")
        check(loss, logits_of(g), targets_of(g, "unknown"), torch.rand(L, B, generator=g).T)


def test_what_does_not_count_may_be_anything(g: torch.Generator) -> None:
    counts = torch.randint(1, 300, (L,), generator=g)
    for loss in (BCE(), Focal(), Asymmetric(), DistributionBalanced(counts, 400), TwoWay()):
        z, t = logits_of(g), targets_of(g, "unknown")
        z[t == -1] = torch.nan
        z.requires_grad_()
        value = loss(z, t)
        value.backward()
        assert value.isfinite()
        assert (z.grad[t == -1] == 0).all()
        nothing = loss(z, torch.full_like(t, -1))
        nothing.backward()
        assert nothing == 0


def test_no_items_and_no_labels() -> None:
    for shape in ((0, 5), (4, 0), (0, 0)):
        for loss in (BCE(), TwoWay()):
            z = torch.zeros(shape, requires_grad=True)
            value = loss(z, torch.zeros(shape, dtype=torch.int8))
            value.backward()
            assert value == 0
            assert z.grad is not None


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_upstream(dtype: torch.dtype, small: bool, g: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any factor, backward twice, and no result that changes behind one's back."""
    if not small:
        monkeypatch.setattr(fused, "_SMALL", 0)
    for loss in (
        BCE(),
        Asymmetric(reduction="item"),
        NegativeTolerant(torch.full((L,), 7), 400, reduction="sum"),
        TwoWay(),
    ):
        z, t = logits_of(g, dtype=dtype), targets_of(g, "unknown")
        _, want = reference(loss, z, t)
        for factor in (1.0, -2.5, 1024.0, 0.0):
            x = z.clone().requires_grad_()
            value = loss(x, t)
            (value * factor).backward()
            assert x.grad is not None
            close(x.grad, want * factor, dtype=dtype)
        x = z.clone().requires_grad_()
        value = loss(x, t)
        (first,) = torch.autograd.grad(value * 3, x, retain_graph=True)
        kept = first.clone()
        (second,) = torch.autograd.grad(value * 5, x, retain_graph=True)
        (third,) = torch.autograd.grad(value, x)
        assert torch.equal(first, kept)
        for got, factor in ((first, 3), (second, 5), (third, 1)):
            close(got, want * factor, dtype=dtype)
        with pytest.raises(RuntimeError, match="second time"):
            value.backward()


def test_second_derivatives(g: torch.Generator) -> None:
    counts = torch.randint(1, 300, (L,), generator=g)
    for loss in (BCE(0.1), Focal(), DistributionBalanced(counts, 400, gamma=2.0, reduction="none")):
        t, w = targets_of(g, "unknown"), torch.rand(L, generator=g)
        results = []
        for chosen in ("fused", "plain"):
            z = (2 * torch.randn(B, L, generator=torch.Generator().manual_seed(5))).requires_grad_()
            with choice.using(chosen):  # type: ignore[arg-type]
                (first,) = torch.autograd.grad(loss(z, t, w).sum(), z, create_graph=True)
                (second,) = torch.autograd.grad(first.square().sum(), z)
            results.append((first.detach(), second))
        for got, want in zip(*results, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-9)


@pytest.mark.usefixtures("small_tiles")
def test_the_same_bits_every_time(g: torch.Generator) -> None:
    z, t = logits_of(g, 20, 30), targets_of(g, "unknown", 20, 30)
    for loss in (Asymmetric(), TwoWay()):
        assert len({loss(z, t).item() for _ in range(3)}) == 1


@pytest.mark.parametrize("tiles", ["small_tiles", None])
@pytest.mark.parametrize("temperatures", [(4.0, 1.0), (0.5, 2.0), (1.0, 0.25)])
def test_two_way(
    temperatures: tuple[float, float], tiles: str | None, g: torch.Generator, request: pytest.FixtureRequest
) -> None:
    """The double loop in many digits, then the plain code; every kind of target, shapes that no tile divides."""
    if tiles is not None:
        request.getfixturevalue(tiles)
    loss = TwoWay(*temperatures)
    for rows, labels in ((1, 1), (1, 19), (23, 1), (5, 33), (21, 34)):
        for kind in ("hard", "unknown", "soft"):
            z, t = logits_of(g, rows, labels), targets_of(g, kind, rows, labels)
            check(loss, z, t, cancels=kind == "soft")
            if kind != "soft" and rows * labels < 200:
                want = reference_two_way(z.double().numpy(), t.numpy(), *temperatures)
                assert loss(z, t).item() == pytest.approx(want, rel=1e-5, abs=1e-30)


@pytest.mark.parametrize("tiles", ["small_tiles", None])
def test_two_way_without_a_side(tiles: str | None, g: torch.Generator, request: pytest.FixtureRequest) -> None:
    """Rows and labels without positives, without negatives, unknown throughout; huge logits, whole logits NaN."""
    if tiles is not None:
        request.getfixturevalue(tiles)
    for dtype in (torch.float32, torch.float16):
        z = (1e4 * torch.randn(7, 21, generator=g).clamp(-6, 6)).to(dtype)
        t = targets_of(g, "unknown", 7, 21)
        t[0], t[1], t[2], t[:, 0], t[:, 1], t[:, 2] = 0, 1, -1, 0, 1, -1
        for some in (t, t * 0, t * 0 + 1, t * 0 - 1):
            check(TwoWay(), z, some)
            assert not torch.signbit(TwoWay()(z, some))
    z = logits_of(g, 7, 21)
    z[t == -1] = torch.nan
    check(TwoWay(), z, t)
    for row, label in ((0, 5), (1, 4), (4, 1), (5, 7)):
        poisoned = z.clone()
        poisoned[row, label] = torch.nan
        value, want = reference(TwoWay(), poisoned, t)
        x = poisoned.requires_grad_()
        got = TwoWay()(x, t)
        got.backward()
        assert got.isnan() == value.isnan()
        assert torch.equal(x.grad.isnan(), want.isnan())


def test_two_way_launches_little_and_only_once(g: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels: list[str] = []
    run = fused._run
    monkeypatch.setattr(fused, "_run", lambda plan, *rest: (kernels.append(plan.kernel), run(plan, *rest))[1])
    check(TwoWay(), logits_of(g), targets_of(g, "hard"))
    assert kernels == ["partials", "gradient"]
    monkeypatch.setattr(two_way, "_LAST_GROUPS", 0)
    monkeypatch.setattr(fused, "_plans", {})
    kernels.clear()
    check(TwoWay(), logits_of(g), targets_of(g, "hard"))
    assert kernels == ["partials", "settled", "gradient"]
    kernels.clear()
    z = logits_of(g).requires_grad_()
    with pytest.raises(RuntimeError, match="no second derivatives"):
        torch.autograd.grad(TwoWay()(z, targets_of(g, "hard")), z, create_graph=True)
    assert TwoWay()(z.detach().double(), targets_of(g, "hard")).dtype == torch.float64
    assert kernels == ["partials", "settled"]

    class Doubled(TwoWay):
        def evaluate(self, logits: Tensor, cells: Any, divisor: Any = None) -> Tensor:
            return 2 * super().evaluate(logits, cells, divisor)

    t = targets_of(g, "unknown")
    torch.testing.assert_close(Doubled()(z, t), 2 * TwoWay()(z, t))
    kernels.clear()
    for rule in ("ignore", "weak_negative"):  # an objective gives coefficients
        check(lambda x, y, rule=rule: Objective(TwoWay(), rule)(x, y).parts["loss"], z, t)
    assert kernels == 2 * ["partials", "settled", "gradient"]


def test_float64_takes_the_plain_path(g: torch.Generator) -> None:
    z = logits_of(g).double().requires_grad_()
    assert type(BCE()(z, targets_of(g, "hard")).grad_fn).__name__ == "_OnePassBackward"


def objectives(loss: AnalyticLoss, counts: Tensor, rule: Any, weighted: bool, seed: int) -> tuple[Objective, Objective]:
    made = []
    for _ in range(2):
        plm = PartialLabelMasking(counts, 400, initial="mean", seed=seed)
        objective = Objective(loss, rule, plm, ClassBalanced(counts) if weighted else None)
        objective.start_epoch(1, 3)
        objective.start_epoch(2, 3)
        made.append(objective)
    return made[0], made[1]


@pytest.mark.parametrize(
    ("rule", "long"),
    [("ignore", False), ("negative", False), ("weak_negative", False), ("wan", False), ("ignore", True), ("wan", True)],
)
@pytest.mark.parametrize("how", ["index", "counter", "ahead"])
def test_objective(rule: str, how: str, long: bool, g: torch.Generator, request: pytest.FixtureRequest) -> None:
    """Rule, mask, weights and loss in one launch are what they are one after the other."""
    if long:
        request.getfixturevalue("long_rows")
    rows = 4 if long else B
    counts = torch.randint(20, 380, (L,), generator=g)
    losses = ((BCE(), False), (Asymmetric(reduction="item"), True), (NegativeTolerant(counts, 400), False))
    tried = {"index": losses[:1] if long else losses, "counter": losses[:1], "ahead": losses[1:2]}[how]
    for loss, weighted in tried:
        ours, plain = objectives(loss, counts, rule, weighted, 2**63 + 12345)
        for kind in ("hard", "unknown", "soft"):
            z, t = logits_of(g, rows), targets_of(g, kind, rows)
            index = None if how == "counter" else torch.randperm(rows, generator=g) + (2**33 if how == "index" else 0)
            if how == "ahead":
                table = torch.zeros_like(t)
                table[index] = t
                for objective in (ours, plain):
                    objective.masking.draw_ahead(table)
            x, y = z.clone().requires_grad_(), z.double().requires_grad_()
            value = ours(x, t, index)
            assert type(value.parts["loss"].grad_fn).__name__ == "_FusedBackward"
            with choice.using("plain"):
                want = plain(y, t, index)
            value.total.backward()
            want.total.backward()
            assert x.grad is not None
            close(value.total.detach(), want.total.detach())
            close(x.grad, y.grad, 2e-6 * y.grad.abs().max().item() if kind == "soft" else 1e-30)
            if isinstance(loss, BCE):  # 0 in the same cells: those that are masked, or too far out
                assert torch.equal(x.grad == 0, y.grad.float() == 0)
            assert ours.masking.n_drawn == plain.masking.n_drawn == (0 if index is not None else plain.masking.n_drawn)
            assert torch.equal(ours.masking.histogram, plain.masking.histogram)
        for a, b in zip(ours.class_weights(), plain.class_weights(), strict=True):
            torch.testing.assert_close(torch.as_tensor(a), torch.as_tensor(b))


def test_the_masked_loss_of_the_bench_is_that_of_an_objective(g: torch.Generator) -> None:
    counts, index = torch.randint(20, 380, (L,), generator=g), torch.randperm(B, generator=g)
    plm = PartialLabelMasking(counts, 400, initial="mean", seed=3)
    z, t = logits_of(g), targets_of(g, "hard")
    assert torch.equal(masked_inside(plm, index)(z, t), Objective(BCE(), masking=plm)(z, t, index).total)


def test_objective_without_masks_and_twice_differentiated(g: torch.Generator) -> None:
    counts = torch.randint(20, 380, (L,), generator=g)
    loss = DistributionBalanced(counts, 400)
    z, t = logits_of(g).clamp(-9, 9), targets_of(g, "unknown")
    plm = PartialLabelMasking(counts, 400, initial="mean")
    for objective in (Objective(loss).eval(), Objective(loss, masking=plm, weighting=Rebalanced(counts))):
        results = []
        for chosen in ("fused", "plain"):
            x = z.clone().requires_grad_()
            with choice.using(chosen):  # type: ignore[arg-type]
                value = objective(x, t, torch.arange(B)).total
                (first,) = torch.autograd.grad(value, x, create_graph=True)
                (second,) = torch.autograd.grad(first.square().sum(), x)
            results.append((value.detach(), first.detach(), second))
        for got, want in zip(*results, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-10)


@pytest.mark.parametrize("width", [16, 2048])
def test_label_pairs(width: int, g: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any number of positives, soft and unknown labels, any strides: the plain sum and gradient in float64."""
    monkeypatch.setattr(label_pairs, "_WIDEST", width)
    launched: list[int] = []
    pair_sum = label_pairs.pair_sum
    monkeypatch.setattr(label_pairs, "pair_sum", lambda s, t: launched.append(1) or pair_sum(s, t))  # type: ignore[func-returns-value]
    for labels in (2, 33):
        for kind in ("few", "many", "none", "unknown", "soft", "bool", "strided"):
            s = logits_of(g, 4, labels)
            rare = (torch.rand(4, labels, generator=g) < (0.9 if kind == "many" else 0.05)).to(torch.int8)
            t = targets_of(g, kind, 4, labels) if kind in ("unknown", "soft") else rare
            t = t * 0 if kind == "none" else t.bool() if kind == "bool" else t
            if kind == "strided":
                s, t = s.T.contiguous().T, t.repeat(1, 2)[:, ::2]
            s[t == -1] = torch.nan
            x, y = s.double().requires_grad_(), s.clone().requires_grad_()
            want = LabelPair(0.5)(x, t)
            want.backward()
            with choice.using("fused"):
                got = LabelPair(0.5)(y, t)
            got.backward()
            assert len(launched) == 1
            launched.clear()
            close(got.detach(), want.detach())
            torch.testing.assert_close(
                y.grad.double(), x.grad, rtol=1e-5, atol=1e-6 * x.grad.abs().max().item() + 1e-30
            )


def safe_logits(rows: int, labels: int, bins: int) -> torch.Tensor:
    """Logits whose σ is not so near an edge of a bin that rounding decides, and extremes."""
    p = (torch.randint(0, bins, (rows, labels)) + 0.05 + 0.9 * torch.rand(rows, labels)) / bins
    z = torch.logit(p.double()).float()
    z.view(-1)[:4] = torch.tensor([1e4, -1e4, 60.0, -60.0])[: z.numel()]
    return z


@pytest.mark.parametrize("kind", ["int8", "bool", "soft", "transposed"])
@pytest.mark.parametrize("shape", [(13, 37), (1, 1), (33, 5), (0, 7)])
@pytest.mark.parametrize("bins", [2, 10])
def test_histogram(shape: tuple[int, int], kind: str, bins: int) -> None:
    rows, labels = shape
    z = safe_logits(rows, labels, bins)
    t = torch.randint(-1, 2, shape, dtype=torch.int8)
    if kind == "bool":
        t = t > 0
    elif kind == "soft":
        t = torch.rand(shape).where(t >= 0, torch.tensor(-1.0))
    elif kind == "transposed":
        z, t = z.t().contiguous().t(), t.t().contiguous().t()
    one, other = (PartialLabelMasking(torch.full((labels,), 3), 40, bins=bins) for _ in range(2))
    for _ in range(2):  # counts add up
        with choice.using("fused"):
            one.observe_logits(z, t)
        with choice.using("plain"):
            other.observe_logits(z, t)
    assert torch.equal(one.histogram, other.histogram)
    assert other.histogram.sum() == 2 * (t != -1).sum()
    with pytest.raises(ValueError, match=rf"logits has shape .*: give \(B, {labels}\)"):
        one.observe_logits(torch.zeros(2, labels + 1), torch.zeros(2, labels))
