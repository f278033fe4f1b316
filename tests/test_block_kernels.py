"""The kernels of the head by blocks, in Triton's interpreter, against plain torch (see test_block_head)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from steelyard.balance import PickedLabels
from steelyard.kernels import block_launch, choice, fused
from steelyard.losses import BCE, Asymmetric
from steelyard.models.block import BlockHead, BlockOptimizer, SparseTargets
from steelyard.models.block.steps import Kind, noise, plain_update_
from steelyard.objective import Objective
from test_block_annotation import N, objective_of
from test_block_annotation import head_of as annotated_head
from test_block_annotation import items as annotated_items
from test_block_head import OBJECTIVES, B, F, L, batch, head_of, sparse
from triton_interpreter import assert_passes_inside, inside, outside

pytestmark = pytest.mark.interpreter


@outside
def test_in_the_interpreter() -> None:
    assert_passes_inside(__file__)


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several strips, chunks of rows and groups of listed cells even for a small block."""
    monkeypatch.setattr(block_launch, "_TILE", (2, 8))
    monkeypatch.setattr(block_launch, "_GROUP", 5)
    monkeypatch.setattr(block_launch, "_PROGRAMS", 6)
    monkeypatch.setattr(fused, "_plans", {})
    monkeypatch.setattr(block_launch, "_LISTED", 16)
    monkeypatch.setattr(block_launch, "_LANES", 16)
    monkeypatch.setattr(block_launch, "_SETTLED", (2, 4))


@inside
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, "soft") for name in OBJECTIVES if name not in ("own", "sum", "item", "NT-BCE", "class")),
        *((name, kind) for name in ("BCE", "weak") for kind in ("known", "rest unknown")),
    ],
)
def test_kernels_do_what_plain_torch_does(name: str, kind: str) -> None:
    (x, t), index = batch(kind), torch.arange(3, 3 + B)
    outs: list[Any] = []
    for using in ("plain", "fused"):
        head: BlockHead = head_of(dtype=torch.float32, block=12)
        given = x.float().requires_grad_()
        with choice.using(using):  # type: ignore[arg-type]
            value = head.step(given, sparse(t, kind), OBJECTIVES[name](), lr=0.5, index=index).total
            value.backward()
        outs.append((value, given.grad, head.weight, head.bias))
    for ours, plain in zip(*outs[::-1], strict=True):
        torch.testing.assert_close(ours, plain, rtol=2e-5, atol=2e-6)


@inside
@pytest.mark.parametrize("fill", [0, -1])
def test_picked_unknown_labels_are_weighed_as_by_plain_torch(fill: int, tmp_path: Path) -> None:
    (x, t), index, outs = annotated_items(fill), torch.arange(N), list[Any]()
    for using in ("plain", "fused"):
        head = annotated_head(False, dtype=torch.float32, block=12)
        objective = objective_of(PickedLabels(tmp_path / using, N, t.shape[1]), q=0.5)
        with choice.using(using):  # type: ignore[arg-type]
            for epoch in (1, 2):
                objective.start_epoch(epoch, 2)
                value = head.step(x.float(), SparseTargets.from_dense(t, fill), objective, lr=0.5, index=index).total
        outs.append((value, head.weight, head.bias))
    for ours, plain in zip(*outs[::-1], strict=True):
        torch.testing.assert_close(ours, plain, rtol=2e-5, atol=2e-6)


@inside
@pytest.mark.parametrize("fill", [0, -1])
@pytest.mark.parametrize("kind", ["sgd", "momentum", "adam"])
def test_weights_and_bias_move_as_by_plain_torch(kind: Kind, fill: int) -> None:
    """Four steps, the third without a listed cell: with fill −1 then nothing is known."""
    outs: list[Any] = []
    for using in ("plain", "fused"):
        rule = BlockOptimizer(kind, state="float32", eps=1e-3)
        head: BlockHead = head_of(dtype=torch.float32, block=12, optimizer=rule)
        values = []
        with choice.using(using):  # type: ignore[arg-type]
            for step in range(4):
                x, t = batch("rest unknown" if fill else "unknown", step)
                t = torch.full_like(t, fill) if step == 2 else t
                targets = SparseTargets.from_dense(t, fill)
                values.append(head.step(x.float(), targets, Objective(Asymmetric()), lr=0.1).total)
        outs.append((torch.stack(values), head.weight, head.bias, *head.moments.buffers()))
    for ours, plain in zip(*outs[::-1], strict=True):
        torch.testing.assert_close(ours, plain, rtol=2e-5, atol=2e-6)


@inside
def test_bfloat16_blocks_are_near_float32_and_marks_leave_no_trace() -> None:
    x, t = batch("unknown")
    outs = []
    for dtype in (torch.float32, torch.bfloat16):
        head = head_of(dtype=dtype, block=12, optimizer=BlockOptimizer(rounding="nearest"))
        head.load_state_dict(head_of(dtype=torch.float32).state_dict())
        with choice.using("fused"):
            value = head.step(x.float(), sparse(t, "unknown"), Objective(BCE()), lr=0.5).total
        outs.append((value, head.weight.float(), head.bias))
    for wide, narrow in zip(*outs, strict=True):
        assert narrow.isfinite().all()
        torch.testing.assert_close(wide, narrow, rtol=0.03, atol=0.03)


@inside
def test_a_logit_that_is_nan_is_not_taken_for_a_mark() -> None:
    head, (x, t) = head_of(dtype=torch.bfloat16, block=12), batch("known")
    head.weight[5, 0] = float("nan")
    with choice.using("fused"):
        value = head.value(x.float(), sparse(t, "known"), Objective(BCE())).total
    assert value.isnan()


@inside
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("kind", "state"), [("sgd", "float32"), ("momentum", "int8"), ("adam", "bfloat16"), ("adam", "int8")]
)
def test_steps_are_those_of_plain_torch(kind: Kind, state: Any, dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(0)
    rule = BlockOptimizer(kind, state=state)
    head = BlockHead(F, L, optimizer=rule, dtype=dtype)
    numbers = (0.1, 0.5, 0.01, 0.9, 0.99, 1e-8, 0.3, 0.2)
    pairs = []
    for _ in range(2):
        states = [head.moments.get(name) for name in ("m", "v", "m_scale", "v_scale")]
        pairs.append((head.weight.detach().clone(), [None if s is None else s.clone() for s in states]))
    for step in range(3):
        gradient = torch.randn(L, F, generator=g)
        (w1, s1), (w2, s2) = pairs
        plain_update_(w1, gradient, s1, noise(w1.shape, 7, 99 + step, w1.device), numbers, kind, True)
        block_launch.update_(w2, gradient, s2, 7, 99 + step, numbers, ["sgd", "momentum", "adam"].index(kind), True)
        last = 2.0**-7 if torch.bfloat16 in (dtype, *(s.dtype for s in s1 if s is not None)) else 1e-5
        if state == "int8" and kind != "sgd":
            last = 0.02  # a code may be the next one where float32 rounds otherwise
        torch.testing.assert_close(w1.float(), w2.float(), rtol=last, atol=last)
