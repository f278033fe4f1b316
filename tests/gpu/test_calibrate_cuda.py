"""Metrics and calibration on a GPU: what a CPU gives, on the device of the input. Skipped where there is none."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

import steelyard.calibrate as cal
import steelyard.metrics as m
from steelyard.balance import PartialLabelMasking, Rebalanced
from steelyard.losses import BCE, WeightedLoss
from steelyard.losses.loss import NoLink
from steelyard.losses.table import TABLE, Row
from steelyard.objective import Objective

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

N, L = 3000, 11


def held(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Logits that are too steep and shifted, targets with unknown and soft ones, rare and absent labels; counts."""
    g = torch.Generator().manual_seed(3)
    z = 3 * torch.randn(N, L, generator=g) - torch.linspace(0, 6, L)
    y = (torch.rand(N, L, generator=g) < torch.sigmoid(0.6 * z + 0.5)).float()
    y[torch.rand(N, L, generator=g) < 0.1] = 0.25
    y[torch.rand(N, L, generator=g) < 0.2] = -1
    y[:, 3][y[:, 3] > 0] = 0
    y[:, 5] = -1
    return z.to(dtype), y, torch.randint(5, 900, (L,), generator=g)


def same(cuda: Any, cpu: Any, rtol: float = 1e-9, atol: float = 1e-11) -> None:
    """Compare two results field by field; tensors must lie on the GPU and the CPU."""
    if dataclasses.is_dataclass(cpu):
        for field in dataclasses.fields(cpu):
            same(getattr(cuda, field.name), getattr(cpu, field.name), rtol, atol)
    elif isinstance(cpu, Tensor):
        assert cuda.is_cuda
        assert cuda.dtype == cpu.dtype
        rtol, atol = (rtol, atol) if cpu.dtype == torch.float64 else (1e-6, 1e-7)
        torch.testing.assert_close(cuda.cpu(), cpu, rtol=rtol, atol=atol, equal_nan=True)
    else:
        torch.testing.assert_close(cuda, cpu, rtol=rtol, atol=atol, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("per", ["label", "pooled"])
@pytest.mark.parametrize("kind", [cal.Platt, cal.Temperature, cal.Isotonic])
def test_fitted_calibrators(kind: type[cal.Platt], per: str, dtype: torch.dtype) -> None:
    z, y, _ = held(dtype)
    on_cpu, on_cuda = kind(per=per).fit(z, y), kind(per=per).fit(z.cuda(), y.cuda())  # type: ignore[arg-type]
    same(on_cuda(z.cuda()), on_cpu(z), rtol=1e-7)
    same(on_cuda.log_odds(z.cuda()), on_cpu.log_odds(z), rtol=1e-7)
    same(on_cpu(z.cuda()), on_cpu(z))  # fitted here, used there, and the other way round
    torch.testing.assert_close(on_cuda(z), on_cpu(z), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_link(row: Row, tmp_path: Any) -> None:
    z, _, counts = held(torch.float64)
    w_pos, w_neg = torch.linspace(0.1, 9, L, dtype=torch.float64), torch.full((L,), 0.5, dtype=torch.float64)

    def links(device: str) -> list[cal.Link]:
        loss = row.make(counts, N, "mean").to(device)
        inner = loss.loss if isinstance(loss, WeightedLoss) else loss
        return [
            cal.Link(inner),  # type: ignore[arg-type]
            cal.Link(inner, w_pos.to(device), w_neg, class_aware=counts.to(device)),  # type: ignore[arg-type]
        ]

    try:
        on_cpu = links("cpu")
    except NoLink:
        with pytest.raises(NoLink):
            links("cuda")
        return
    for a, b in zip(links("cuda"), on_cpu, strict=True):
        same(a(z.cuda()), b(z), rtol=1e-8, atol=1e-9)
        same(a.log_odds(z.cuda()), b.log_odds(z), rtol=1e-8, atol=1e-8)
        cal.save(a, tmp_path / "link.json")
        same(cal.load(tmp_path / "link.json", a.loss)(z.cuda()), b(z), rtol=1e-8, atol=1e-9)
        with pytest.raises(ValueError, match=r"pos_weight\[0\] is 0"):
            cal.Link(a.loss, torch.zeros(L, device="cuda"))


def test_link_of_an_objective() -> None:
    z, _, counts = held()
    results = []
    for device in ("cpu", "cuda"):
        masking = PartialLabelMasking(counts, N, initial="mean")
        objective = Objective(BCE(), masking=masking, weighting=Rebalanced(counts)).to(device)
        results.append(cal.Link(objective)(z.to(device)))
    same(results[1], results[0])


def test_priors() -> None:
    z, _, _ = held(torch.float64)
    pi, q = torch.linspace(0.05, 0.6, L, dtype=torch.float64), torch.linspace(0.3, 0.9, L, dtype=torch.float64)
    q[0], q[1], pi[2], q[2] = 0, 1, 0, 0
    for prior in (pi, pi.cuda()):  # priors may lie on either
        same(cal.shift_prior(z.cuda(), prior, q), cal.shift_prior(z, pi, q))
    g = torch.Generator().manual_seed(1)
    likelihood = torch.randn(N, L, generator=g, dtype=torch.float64) + 1.5 * (torch.rand(N, L, generator=g) < q)
    p = torch.sigmoid(1.5 * likelihood - 1.125 + torch.logit(pi))
    want = cal.prior_report(p, pi)
    got = cal.prior_report(p.cuda(), pi)
    same(got.prior, want.prior)
    same(got.standard_error, want.standard_error, rtol=1e-6)
    assert bool(got.converged.all())
    same(cal.estimate_prior(p.cuda(), pi.cuda()), want.prior)
    for where in ("cpu", "cuda"):
        with pytest.warns(cal.UncalibratedWarning):
            cal.estimate_prior(p.cuda(), pi, reference=(p * 0.3).to(where))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
@pytest.mark.parametrize(
    ("goal", "extra"),
    [
        ("f1", {}),
        ("f1", {"prior_positives": 20.0}),
        ("precision", {"level": 0.8}),
        ("recall", {"level": 0.7}),
        ("cost", {"cost_fp": 1.0, "cost_fn": torch.linspace(1, 5, L)}),
    ],
)
def test_thresholds(goal: Any, extra: dict[str, Any], dtype: torch.dtype) -> None:
    z, y, _ = held()
    p = torch.sigmoid(z).mul(200).round().div(200).to(dtype)  # ties, and unlike cuts that are never nearly as good
    same(cal.threshold_report(p.cuda(), y.cuda(), goal, **extra), cal.threshold_report(p, y, goal, **extra))
    same(cal.thresholds(p.cuda(), None, goal, **extra), cal.thresholds(p, None, goal, **extra))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_metrics(dtype: torch.dtype) -> None:
    z, y, counts = held()
    p = torch.sigmoid(z).to(dtype)
    for per in ("label", "item"):
        same(m.average_precision(p.cuda(), y.cuda(), per), m.average_precision(p, y, per))
    for binning in ("width", "mass"):
        for pooled in ("pooled", "label"):
            same(
                m.calibration_error(p.cuda(), y.cuda(), binning=binning, per=pooled),  # type: ignore[arg-type]
                m.calibration_error(p, y, binning=binning, per=pooled),  # type: ignore[arg-type]
            )
    for metric in (m.brier, m.log_loss):
        assert metric(p.cuda(), y.cuda()) == pytest.approx(metric(p, y), rel=1e-12)
    said = p >= 0.5
    same(m.precision_recall_f1(said.cuda(), y.cuda()), m.precision_recall_f1(said, y))
    assert m.exact_match(said.cuda(), y.cuda()) == m.exact_match(said, y)
    reports = []
    for device in ("cpu", "cuda"):
        evaluator = m.Evaluator(L, counts=counts)
        evaluator.update(p.to(device), y.to(device))
        reports.append(evaluator.compute())
    assert reports[0] == reports[1]


def test_torchmetrics_classes() -> None:
    tm = pytest.importorskip("steelyard.integrations.torchmetrics", exc_type=ImportError)
    z, y, _ = held()
    p = torch.sigmoid(z)
    for make in (
        lambda: tm.MeanAveragePrecision(L),
        lambda: tm.MeanAveragePrecision(L, "item", each=True),
        lambda: tm.MeanAveragePrecision(L, compute_on_cpu=True),
        lambda: tm.CalibrationError(L),
        lambda: tm.MassCalibrationError(L, "mce", per="label"),
        lambda: tm.LabelF1(L, torch.linspace(0.1, 0.6, L)),
        lambda: tm.ExactMatch(L, 0.3),
        tm.Brier,
        tm.LogLoss,
    ):
        on_cpu, on_cuda = make(), make().to("cuda")
        for rows in (slice(0, 1000), slice(1000, None)):
            on_cpu.update(p[rows], y[rows])
            on_cuda.update(p[rows].cuda(), y[rows].cuda())
        got = on_cuda.compute()
        assert got.is_cuda != on_cuda.compute_on_cpu
        torch.testing.assert_close(got.cpu(), on_cpu.compute(), rtol=1e-9, atol=1e-11, equal_nan=True)


def test_average_precision_of_float64_keeps_to_its_room() -> None:
    g = torch.Generator().manual_seed(0)
    scores = torch.randn(40_000, 80, generator=g, dtype=torch.float64).cuda()
    targets = (torch.rand(40_000, 80, generator=g) < torch.linspace(0.001, 0.5, 80)).to(torch.int8).cuda()
    m.average_precision(scores[:100], targets[:100])
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    m.average_precision(scores, targets)
    assert torch.cuda.max_memory_allocated() - before <= 3 * scores.numel() * scores.itemsize


def test_targets_on_a_gpu_are_looked_at() -> None:
    with pytest.raises(ValueError, match=r"^targets\[0, 0\] is 2: a label is 1 present, 0 absent, between them soft"):
        m.brier(torch.zeros(1, 1, device="cuda"), torch.full((1, 1), 2, device="cuda"))
