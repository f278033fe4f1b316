"""The fused kernels on a GPU: values, gradients and draws of the plain code in float64, under all that torch offers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from steelyard.balance import ClassBalanced, LabelPair, PartialLabelMasking
from steelyard.balance.label_pair import _PairSum
from steelyard.balance.philox import uniform
from steelyard.kernels import choice, compiled, fused
from steelyard.losses import BCE, SPA, Asymmetric, DistributionBalanced, Focal, FormulaLoss, NegativeTolerant, TwoWay
from steelyard.losses.table import TABLE, Row
from steelyard.objective import Objective

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
pytest.importorskip("triton", reason="Triton is not installed")

ROWS = pytest.mark.parametrize("row", [row for row in TABLE if row.name != "Two-way"], ids=lambda row: row.name)
ALL_ROWS = pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
SHAPES = ((257, 37), (256, 80), (33, 600), (5, 9605), (7, 1), (1, 4099))
EXTREMES = torch.tensor([1e4, -1e4, 100.0, -100.0, 20.0, -20.0, 0.0, -0.0])
LAST = {torch.float32: 0.0, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
LEAST = {torch.float32: 0.0, torch.bfloat16: 0.0, torch.float16: 2.0**-25}


@pytest.fixture(autouse=True)
def _fresh_inputs() -> None:
    print(f"seed {torch.seed()}")


def logits_of(rows: int, labels: int, dtype: torch.dtype = torch.float32) -> Tensor:
    z = 6 * torch.randn(rows, labels, device="cuda")
    z.view(-1)[: len(EXTREMES)] = EXTREMES[: z.numel()].cuda()
    return z.to(dtype)


def targets_of(kind: str, rows: int, labels: int) -> Tensor:
    t = (torch.rand(rows, labels, device="cuda") < 0.3).to(torch.int8)
    if kind == "unknown":
        t[torch.rand(rows, labels, device="cuda") < 0.4] = -1
        t[rows // 2] = -1
    return torch.rand(rows, labels, device="cuda") if kind == "soft" else t


def close(got: Tensor, want: Tensor, atol: float = 1e-30, dtype: torch.dtype = torch.float32) -> None:
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), want.double(), rtol=1e-5 + LAST[dtype], atol=atol + LEAST[dtype])


def both(loss: Any, z: Tensor, *rest: Any, upstream: Tensor | None = None) -> list[tuple[Tensor, Tensor]]:
    """Value and gradient by the kernels, and by the plain code in float64."""
    results = []
    for chosen, x in (("auto", z.detach()), ("plain", z.detach().double())):
        x = x.requires_grad_()
        with choice.using(chosen):  # type: ignore[arg-type]
            value = loss(x, *rest)
        assert (type(value.grad_fn).__name__ == "_FusedBackward") == (chosen == "auto")
        value.backward(torch.ones_like(value) if upstream is None else upstream.to(value.dtype))
        assert x.grad is not None
        results.append((value.detach(), x.grad))
    return results


def check(loss: Any, z: Tensor, *rest: Any, cancels: bool = False, upstream: Tensor | None = None) -> None:
    (value, grad), (want, want_grad) = both(loss, z, *rest, upstream=upstream)
    close(value, want)
    rounding = 2e-6 * want_grad.abs().max().item() + 1e-9  # of two slopes that may cancel to nothing
    close(grad, want_grad, rounding if cancels else 1e-30, z.dtype)


@ROWS
@pytest.mark.parametrize("reduction", ["mean", "item", "sum", "none"])
def test_every_loss(row: Row, reduction: Any) -> None:
    for rows, labels in SHAPES:
        loss = row.make(torch.randint(1, 300, (labels,)), 400, reduction).to("cuda")
        for kind in ("hard", "unknown", "soft"):
            upstream = torch.randn(rows, labels, device="cuda") if reduction == "none" else None
            z, t = logits_of(rows, labels), targets_of(kind, rows, labels)
            check(loss, z, t, cancels=kind == "soft" or "smooth" in row.name, upstream=upstream)


@ALL_ROWS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dtypes(row: Row, dtype: torch.dtype) -> None:
    loss = row.make(torch.randint(1, 300, (80,)), 400, "mean").to("cuda")
    for t_dtype in (torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.float32):
        t = targets_of("hard" if t_dtype in (torch.bool, torch.uint8) else "unknown", 64, 80).to(t_dtype)
        check(loss, logits_of(64, 80, dtype), t, cancels="smooth" in row.name)


@pytest.mark.parametrize("shape", [*SHAPES, (4096, 9605), (4096, 9600), (1024, 600), (20000, 80), (1, 1)], ids=str)
def test_two_way(shape: tuple[int, int]) -> None:
    """Both means, with temperatures, weights and every kind of target, against the plain code in float64."""
    rows, labels = shape
    for kind in ("hard", "unknown", "soft"):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            z, t = logits_of(rows, labels, dtype), targets_of(kind, rows, labels)
            check(TwoWay(), z, t, cancels=kind == "soft")
    check(TwoWay(0.5, 2.0), logits_of(rows, labels), targets_of("unknown", rows, labels))
    check(TwoWay(), logits_of(rows, labels), targets_of("soft", rows, labels), torch.rand(labels).cuda(), cancels=True)
    rare = (torch.rand(shape, device="cuda") < 2.4 / labels).to(torch.int8)
    z = logits_of(rows, labels)
    check(TwoWay(), z, rare)
    assert torch.equal(TwoWay()(z, rare), TwoWay()(z, rare))
    z[rare == 0] = torch.nan
    assert TwoWay()(z, torch.where(rare == 0, -1, rare)) == 0
    assert TwoWay()(z, rare).isnan() == (rare == 0).any()


def test_two_way_of_strided_huge_and_one_sided_inputs() -> None:
    z, t = logits_of(80, 120), targets_of("unknown", 80, 120)
    for a, b in (
        (z[::2, ::3], t[::2, ::3]),
        (z[:30, 1:41], t[:30, :40].contiguous()),
        (z[:40, :30].T, t[:30, :40]),
        (z[:1, :40].expand(30, 40), t[:30, :40]),
    ):
        check(TwoWay(), a, b)
    for dtype in (torch.float32, torch.float16):
        for some in (t, t * 0, t * 0 + 1, t * 0 - 1):
            check(TwoWay(), (1e4 * torch.randn(80, 120, device="cuda").clamp(-6, 6)).to(dtype), some)


@pytest.mark.parametrize("detach", [True, False])
@pytest.mark.parametrize("margin", [0.0, 1e-3, 0.05, 0.3])
def test_exponents(margin: float, detach: bool) -> None:
    near = torch.logit(torch.tensor(margin or 0.5)).item()
    z = torch.cat([logits_of(50, 80), near + 1e-3 * torch.randn(50, 80, device="cuda")])
    for gamma_pos, gamma_neg in ((0, 4), (1, 0), (0.5, 0.5), (2, 1), (3, 2.5), (0, 3), (1.5, 5)):
        check(Asymmetric(gamma_pos, gamma_neg, margin, detach), z, targets_of("unknown", 100, 80))
    for gamma in (0.5, 1, 1.5, 3, 4, 7):
        check(Focal(gamma), z, targets_of("hard", 100, 80))


@pytest.mark.parametrize("kind", ["hard", "unknown"])
@pytest.mark.parametrize("name", ["ASL", "NT-BCE", "DB", "BCE"])
def test_strides_and_weights(name: str, kind: str) -> None:
    row = next(row for row in TABLE if row.name == name)
    loss = row.make(torch.randint(1, 300, (40,)), 400, "none" if name == "BCE" else "mean").to("cuda")
    z, t = logits_of(80, 120), targets_of(kind, 80, 120)
    for a, b in (
        (z[:30, :40], t[:30, :40]),
        (z[::2, ::3], t[::2, ::3]),
        (z[:30, 1:41], t[:30, :40].contiguous()),
        (z[:40, :30].T, t[:30, :40]),
        (z[:1, :40].expand(30, 40), t[:30, :40]),
        (z[:30, :40], t[:30, :1].expand(30, 40)),
    ):
        check(loss, a, b)
        for w in (torch.rand(()), torch.rand(40).cuda(), torch.rand(len(a), 1).cuda(), torch.rand(a.shape).cuda()):
            check(loss, a, b, w)


def test_targets_at_any_address() -> None:
    """Re-balanced weights and the count read bytes as words: only where they lie so."""
    rows, labels = 6, 2500
    counts = torch.randint(1, 300, (labels,))
    losses = [BCE().to("cuda"), DistributionBalanced(counts, 400).to("cuda")]
    for kind in ("hard", "unknown"):
        for offset in (0, 1, 4, 16):
            flat = targets_of(kind, 1, rows * labels + 16)[0, offset : offset + rows * labels].view(rows, labels)
            for t in (flat, targets_of(kind, rows, labels + 16)[:, offset : offset + labels]):
                for dtype in (torch.float32, torch.bfloat16):
                    for loss in losses:
                        check(loss, logits_of(rows, labels, dtype), t)


def test_large_matrices_scale_in_place_and_stay_right_twice() -> None:
    rows, labels = 2048, 4201
    assert rows * labels > fused._SMALL
    for dtype in (torch.float32, torch.float16):
        loss, t = Asymmetric(), targets_of("unknown", rows, labels)
        z = logits_of(rows, labels, dtype)
        (value, once), (want, want_grad) = both(loss, z, t)
        close(value, want)
        close(once, want_grad, dtype=dtype)
        with torch.no_grad():
            close(loss(z, t), want)
        x = z.clone().requires_grad_()
        out = loss(x, t)
        (first,) = torch.autograd.grad(out * 3, x, retain_graph=True)
        kept = first.clone()
        (second,) = torch.autograd.grad(out * 65536, x, retain_graph=True)
        (third,) = torch.autograd.grad(out * -2, x)
        assert torch.equal(first, kept)
        for got, factor in ((first, 3), (second, 65536), (third, -2)):
            close(got, want_grad * factor, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_histogram_of_outputs(dtype: torch.dtype) -> None:
    for rows, labels in SHAPES:
        z, t = logits_of(rows, labels, dtype), targets_of("unknown", rows, labels)
        near = ((torch.sigmoid(z.double()) * 10) % 1 - 0.5).abs() > 0.499999  # rounding decides the bin
        z, t = torch.where(near, 0.2, z.double()).to(dtype), t
        one, other = (PartialLabelMasking(torch.full((labels,), 3), 40).cuda() for _ in range(2))
        one.observe_logits(z, t)
        with choice.using("plain"):
            other.observe_logits(z, t)
        assert torch.equal(one.histogram, other.histogram)
        assert other.histogram.sum() == (t != -1).sum()


def test_memory_is_one_gradient() -> None:
    rows, labels = 4096, 9605
    counts = torch.randint(1, 300, (labels,))
    for make in (BCE(), Asymmetric(), DistributionBalanced(counts, 400, gamma=2.0), TwoWay()):
        loss, z, t = make.to("cuda"), logits_of(rows, labels).requires_grad_(), targets_of("unknown", rows, labels)
        loss(z, t).backward()
        z.grad = None
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        loss(z, t).backward()
        extra = torch.cuda.max_memory_allocated() - before
        assert extra <= 4 * rows * labels + 2**20


@pytest.mark.parametrize("loss", [Asymmetric(), TwoWay()], ids=["ASL", "Two-way"])
def test_the_same_bits_every_time_and_on_two_streams(loss: Any) -> None:
    z, t = logits_of(2000, 600), targets_of("unknown", 2000, 600)
    want = loss(z, t).item()
    streams = [torch.cuda.Stream() for _ in range(2)]
    got: list[Tensor] = []
    torch.cuda.synchronize()
    for _ in range(20):
        for stream in streams:
            with torch.cuda.stream(stream):
                got.append(loss(z, t))
    torch.cuda.synchronize()
    assert {value.item() for value in got} == {want}


@ALL_ROWS
def test_cuda_graphs(row: Row) -> None:
    for rows, labels in ((256, 80), (512, 4099)):
        loss = row.make(torch.randint(1, 300, (labels,)), 400, "mean").to("cuda")
        z, t = logits_of(rows, labels).requires_grad_(), targets_of("unknown", rows, labels)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                z.grad = None
                (loss(z, t) * 3).backward()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        z.grad = None
        with torch.cuda.graph(graph):
            value = loss(z, t)
            (value * 3).backward()
        for _ in range(3):
            with torch.no_grad():
                z.copy_(logits_of(rows, labels))
                t.copy_(targets_of("unknown", rows, labels))
            graph.replay()
            (_, _), (want, want_grad) = both(loss, z, t)
            assert z.grad is not None
            close(value.detach(), want)
            close(z.grad, 3 * want_grad, 2e-6 * want_grad.abs().max().item() if "smooth" in row.name else 1e-30)


@ALL_ROWS
def test_compiled_autocast_and_checkpointed(row: Row) -> None:
    loss = row.make(torch.randint(1, 300, (80,)), 400, "mean").to("cuda")
    z, t = logits_of(64, 80), targets_of("unknown", 64, 80)
    eager = loss(z, t)
    torch.compiler.reset()
    torch.testing.assert_close(torch.compile(loss, fullgraph=True)(z, t), eager, rtol=2e-5, atol=1e-7)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert torch.equal(loss(z, t), eager)
    x, y = z.clone().requires_grad_(), z.clone().requires_grad_()
    loss(2 * x, t).backward()
    torch.utils.checkpoint.checkpoint(lambda v: loss(2 * v, t), y, use_reentrant=False).backward()
    assert x.grad is not None
    assert y.grad is not None
    assert torch.equal(x.grad, y.grad)


def test_second_derivatives() -> None:
    z = (2 * torch.randn(20, 80, device="cuda")).requires_grad_()
    t = targets_of("unknown", 20, 80)
    results = []
    for chosen in ("auto", "plain"):
        with choice.using(chosen):  # type: ignore[arg-type]
            (first,) = torch.autograd.grad(Focal()(z, t), z, create_graph=True)
            results.append(torch.autograd.grad(first.square().sum(), z)[0])
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("rule", ["ignore", "negative", "weak_negative", "wan"])
@pytest.mark.parametrize("how", ["index", "counter", "ahead"])
@pytest.mark.parametrize("shape", [(130, 77), (21, 5003), (21, 5004)])
def test_objective(rule: Any, how: str, shape: tuple[int, int]) -> None:
    rows, labels = shape
    counts = torch.randint(20, 380, (labels,))
    for loss, weighted in (
        (BCE(), False),
        (Asymmetric(reduction="item"), True),
        (NegativeTolerant(counts, 400), False),
    ):
        pair = []
        for _ in range(2):
            plm = PartialLabelMasking(counts, 400, initial="mean", seed=2**63 + 5)
            objective = Objective(loss, rule, plm, ClassBalanced(counts) if weighted else None).to("cuda")
            objective.start_epoch(1, 3)
            objective.start_epoch(2, 3)
            pair.append(objective)
        for kind in ("hard", "unknown"):
            z, t = logits_of(rows, labels), targets_of(kind, rows, labels)
            index = None if how == "counter" else torch.randperm(rows, device="cuda") + (2**33 if how == "index" else 0)
            results = []
            for objective, chosen, x in zip(pair, ("auto", "plain"), (z.clone(), z.double()), strict=True):
                if how == "ahead":
                    table = torch.zeros_like(t)
                    table[index] = t
                    objective.masking.draw_ahead(table)
                x.requires_grad_()
                with choice.using(chosen):  # type: ignore[arg-type]
                    value = objective(x, t, index)
                value.total.backward()
                results.append((value.total.detach(), x.grad))
            (value, grad), (want, want_grad) = results
            close(value, want)
            close(grad, want_grad)


@pytest.mark.parametrize("labels", [101, 5003, 5004])
def test_draws_are_the_same_bits(labels: int) -> None:
    """A label kept has a gradient, a label hidden has none."""
    rows, seed = 300, 2**50 + 3
    plm = PartialLabelMasking(torch.randint(20, 380, (labels,)), 400, initial="mean", seed=seed).to("cuda")
    objective = Objective(BCE(reduction="sum"), masking=plm)
    z, t = torch.zeros(rows, labels, device="cuda", requires_grad=True), targets_of("hard", rows, labels)
    index = torch.randint(0, 2**40, (rows,), device="cuda")
    objective(z, t, index).total.backward()
    keep = torch.where(t == 1, *plm.keep_probabilities)
    assert z.grad is not None
    assert torch.equal(z.grad != 0, uniform(seed, 1, index, labels) < keep)


def test_more_than_2_to_31_cells() -> None:
    """The last rows are worth what they are worth alone; the sum is that of two halves."""
    labels = 40960
    rows = 2**31 // labels + 100
    if torch.cuda.mem_get_info()[0] < 30 * 2**30:
        pytest.skip("needs 30 GB of GPU memory")
    z = torch.randn(rows, labels, device="cuda", dtype=torch.bfloat16).requires_grad_()
    t = torch.empty(rows, labels, dtype=torch.int8, device="cuda").random_(-1, 2)
    counts = torch.randint(1, 300, (labels,))
    for make in (BCE(reduction="sum"), NegativeTolerant(counts, 400, reduction="sum")):
        loss = make.to("cuda")
        value = loss(z, t)
        value.backward()
        assert z.grad is not None
        for some in (slice(0, 50), slice(rows - 50, rows)):
            x = z.detach()[some].clone().requires_grad_()
            loss(x, t[some]).backward()
            assert x.grad is not None
            assert torch.equal(z.grad[some], x.grad)
        half = rows // 2
        with torch.no_grad():
            parts = loss(z[:half], t[:half]).double() + loss(z[half:], t[half:]).double()
        close(value.detach(), parts)
        z.grad = None
    mean = BCE()(z.detach(), t)
    close(mean, BCE(reduction="sum")(z.detach(), t).double() / (t != -1).sum())
    across = torch.randn(labels, rows, device="cuda", dtype=torch.bfloat16).T  # a step between labels is over 2^31/L
    got = SPA(reduction="sum")(across, t)
    close(got, sum(SPA(reduction="sum")(across[i : i + 8192].contiguous(), t[i : i + 8192]).double()
                   for i in range(0, rows, 8192)))  # fmt: skip


@pytest.mark.parametrize("kind", ["hard", "unknown", "soft"])
def test_a_formula_is_compiled_by_itself(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Softplus(FormulaLoss):
        def positive(self, z: Tensor) -> Tensor:
            return torch.nn.functional.softplus(-z)

        def negative(self, z: Tensor) -> Tensor:
            return torch.nn.functional.softplus(z)

    calls = []

    def noted(function: Any) -> Any:
        calls.append(function)
        return torch.compile(function)

    monkeypatch.setattr(compiled, "_fast", noted)
    for rows in (64, 17):
        z, t = logits_of(rows, 80).clamp(-15, 15).requires_grad_(), targets_of(kind, rows, 80)
        for loss, twin in ((Softplus(), BCE()), (Softplus(reduction="none"), BCE(reduction="none"))):
            got, want = loss(z, t), twin(z, t)
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
            up = torch.rand_like(want)
            torch.testing.assert_close(
                torch.autograd.grad(got, z, up)[0], torch.autograd.grad(want, z, up)[0], rtol=1e-5, atol=1e-7
            )
    assert len(calls) == 4
    assert Softplus not in compiled._refused


@pytest.mark.parametrize("shape", [(1024, 600), (64, 37), (9, 5000), (2, 1_000_000)])
def test_label_pairs(shape: tuple[int, int]) -> None:
    rows, labels = shape
    for kind in ("few", "unknown", "soft") if labels < 1000 else ("few",):
        s = logits_of(rows, labels)
        t = targets_of(kind, rows, labels) if kind != "few" else torch.zeros(shape, dtype=torch.int8, device="cuda")
        if kind == "few":
            t.scatter_(1, torch.randint(0, labels, (rows, 3), device="cuda"), 1)
        s[t == -1] = torch.nan
        x, y = s.clone().requires_grad_(), s.double().cpu().requires_grad_()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        got = LabelPair()(x, t)
        got.backward()
        assert torch.cuda.max_memory_allocated() - before < 24 * rows * labels + 2**22
        want = _PairSum.apply(y, t.cpu()) * 2 / (labels * (labels - 1)) / rows
        want.backward()
        assert x.grad is not None
        assert y.grad is not None
        close(got.detach().cpu(), want.detach())
        torch.testing.assert_close(x.grad.cpu().double(), y.grad, rtol=1e-5, atol=1e-6 * y.grad.abs().max().item())
