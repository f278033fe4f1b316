"""The core on a GPU: the same values, gradients and draws as on a CPU. Skipped where there is none."""

from __future__ import annotations

import pytest
import torch

from steelyard.balance import ClassBalanced, LabelPair, PartialLabelMasking, Rebalanced, expected_weights
from steelyard.balance.philox import uniform
from steelyard.losses import BCE, LDAM, SPA, Annotation
from steelyard.losses.table import TABLE, Row
from steelyard.objective import Objective, Role

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

B, L = 64, 37
ROWS = pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)


def batch(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(1)
    logits = (6 * torch.randn(B, L, generator=g)).to(dtype)
    logits[0, :4] = torch.tensor([1e4, -1e4, 100.0, -100.0])
    targets = torch.randint(-1, 2, (B, L), generator=g)
    return logits, targets, torch.randint(1, 400, (L,), generator=g)


def both(loss: torch.nn.Module, logits: torch.Tensor, *rest: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    out = []
    for device in ("cpu", "cuda"):
        z = logits.detach().clone().to(device).requires_grad_()
        value = loss.to(device)(z, *(r.to(device) for r in rest))
        value = value.total if isinstance(value, tuple) else value
        value.sum().backward()
        assert z.grad is not None
        assert z.grad.dtype == logits.dtype
        out.append((value.detach().cpu(), z.grad.cpu()))
    return out


@ROWS
@pytest.mark.parametrize("reduction", ["mean", "item", "sum", "none"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_losses(row: Row, reduction: str, dtype: torch.dtype) -> None:
    logits, targets, counts = batch(dtype)
    (v, g), (v_cuda, g_cuda) = both(row.make(counts, 400, reduction), logits, targets)  # type: ignore[arg-type]
    tight = dict(rtol=1e-10, atol=1e-12) if dtype == torch.float64 else dict(rtol=2e-5, atol=1e-7)
    torch.testing.assert_close(v_cuda, v, **tight)
    torch.testing.assert_close(g_cuda, g, **(tight if dtype in (torch.float64, torch.float32) else {}))


@ROWS
def test_losses_under_autocast_and_compiled(row: Row) -> None:
    logits, targets, counts = batch()
    loss = row.make(counts, 400, "mean").to("cuda")
    z, y = logits.cuda(), targets.cuda()
    eager = loss(z, y)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        torch.testing.assert_close(loss(z, y), eager)
    torch.compiler.reset()  # one `forward` serves all losses, and its recompilations are limited
    compiled = torch.compile(loss, fullgraph=True)
    torch.testing.assert_close(compiled(z, y), eager, rtol=2e-5, atol=1e-7)


def test_ldam_softmax() -> None:
    logits, _, counts = batch()
    targets = torch.eye(L)[torch.arange(B) % L]
    (v, g), (v_cuda, g_cuda) = both(LDAM(counts, softmax=True), logits, targets)
    torch.testing.assert_close(v_cuda, v)
    torch.testing.assert_close(g_cuda, g)


def test_draws_are_the_same_bits() -> None:
    index = torch.tensor([0, 5, 2**33 + 1])
    assert torch.equal(uniform(2**40 + 3, 7, index, 101), uniform(2**40 + 3, 7, index.cuda(), 101).cpu())
    _, targets, counts = batch()
    plm = PartialLabelMasking(counts, 400, initial="mean")
    kept = plm.mask(targets, torch.arange(B))
    assert torch.equal(plm.to("cuda").mask(targets.cuda(), torch.arange(B).cuda()).cpu(), kept)


def test_objective() -> None:
    logits, targets, counts = batch()
    index = torch.arange(B)

    def make() -> Objective:
        return Objective(
            SPA(),
            masking=PartialLabelMasking(counts, 400, initial="mean"),
            weighting=Rebalanced(counts),
            regularizers=[LabelPair(0.1)],
        )

    results = []
    for device in ("cpu", "cuda"):
        objective = make().to(device)
        objective.start_epoch(1, 2)
        z = logits.detach().clone().to(device).requires_grad_()
        objective(z, targets.to(device), index.to(device)).total.backward()
        objective.start_epoch(2, 2)
        assert objective.masking is not None
        assert z.grad is not None
        results.append([x.cpu() for x in (z.grad, objective.probability(z).detach(), objective.masking.ratio)])
    for cpu, cuda in zip(*results, strict=True):
        torch.testing.assert_close(cuda, cpu, rtol=2e-5, atol=1e-7)


def test_rules_and_weightings() -> None:
    logits, targets, counts = batch()
    for objective in (
        Objective(BCE(), unknown="wan", weighting=ClassBalanced(counts, mode="mean_effective")),
        Objective(BCE(), unknown=Role(targets, 3.0)),
    ):
        (v, g), (v_cuda, g_cuda) = both(objective, logits, targets, torch.arange(B))
        torch.testing.assert_close(v_cuda, v, rtol=2e-5, atol=1e-7)
        torch.testing.assert_close(g_cuda, g, rtol=2e-5, atol=1e-7)


def test_class_means_of_targets_on_the_device() -> None:
    _, targets, counts = batch()
    want = expected_weights(Rebalanced(counts), targets)
    for weighting in (Rebalanced(counts), Rebalanced(counts).to("cuda")):
        for found, mean in zip(expected_weights(weighting, targets.cuda()), want, strict=True):
            assert found.is_cuda
            torch.testing.assert_close(found.cpu(), mean, rtol=1e-6, atol=1e-7)


def test_pseudo_labels_stay_on_disk(tmp_path) -> None:
    from steelyard.balance import PseudoLabels

    logits, targets, _ = batch()
    objective = Objective(BCE(reduction="item"), unknown=Annotation(PseudoLabels(tmp_path, B, L))).to("cuda")
    objective.start_epoch(1, 3)
    objective(logits.cuda(), targets.cuda(), torch.arange(B).cuda())
    objective.start_epoch(2, 3)
    stored = objective.resolver.store.read(torch.arange(B).cuda())
    torch.testing.assert_close(stored.cpu(), torch.sigmoid(logits), rtol=0, atol=0.5 / 254 + 1e-6)
