"""The head by blocks on a GPU: steps of its kernels against plain torch."""

from __future__ import annotations

from typing import Any, get_args

import pytest
import torch

from steelyard.kernels import block_launch, choice
from steelyard.losses import BCE, Asymmetric
from steelyard.models.block import BlockHead, BlockOptimizer, SparseTargets
from steelyard.models.block.steps import Kind, noise, plain_update_
from steelyard.objective import Objective

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
pytest.importorskip("triton", reason="Triton is not installed")

NUMBERS = (0.1, 0.5, 0.01, 0.9, 0.99, 1e-8, 0.3, 0.2)
"""Learning rate, scale of gradients, decay, β₁, β₂, ε, and what undoes the start of both means."""


@pytest.mark.parametrize("width", [768, 72])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("kind", "state"),
    [("sgd", "float32"), ("momentum", "bfloat16"), ("momentum", "int8"), ("adam", "bfloat16"), ("adam", "int8")],
)
def test_steps_are_those_of_plain_torch(kind: Kind, state: Any, dtype: torch.dtype, width: int) -> None:
    head = BlockHead(width, 1001, optimizer=BlockOptimizer(kind, state=state), dtype=dtype, device="cuda")
    both = []
    for _ in range(2):
        states = [head.moments.get(name) for name in ("m", "v", "m_scale", "v_scale")]
        both.append((head.weight.detach().clone(), [None if s is None else s.clone() for s in states]))
    (plain, plain_states), (fused, fused_states) = both
    for step in range(3):
        gradient = torch.randn(head.weight.shape, device="cuda").to(dtype)
        bits = noise(plain.shape, 7, 99 + step, plain.device)
        plain_update_(plain, gradient, plain_states, bits, NUMBERS, kind, True)
        block_launch.update_(fused, gradient, fused_states, 7, 99 + step, NUMBERS, get_args(Kind).index(kind), True)
        last = 2.0**-7 if torch.bfloat16 in (dtype, *(s.dtype for s in plain_states if s is not None)) else 1e-4
        torch.testing.assert_close(plain.float(), fused.float(), rtol=last, atol=last)
        for ours, theirs in zip(fused_states, plain_states, strict=True):
            if ours is not None and not ours.is_floating_point():
                apart = (ours.int() - theirs.int()).abs()
                assert apart.max() <= 1  # where float32 rounds otherwise
                assert apart.float().mean() < 1e-3
            if ours is not None:
                ours.copy_(theirs)
        fused.copy_(plain)


@pytest.mark.parametrize("kind", get_args(Kind))
@pytest.mark.parametrize("loss", [BCE(), Asymmetric()], ids=["BCE", "ASL"])
def test_a_step_is_that_of_plain_torch(kind: Kind, loss: Any) -> None:
    x = torch.randn(64, 96, device="cuda")
    targets = SparseTargets.from_dense((torch.rand(64, 6400) < 0.01).float()).to("cuda")
    outs: list[Any] = []
    for using in ("plain", "fused"):
        torch.manual_seed(0)
        rule = BlockOptimizer(kind, state="float32", eps=1e-3)
        head = BlockHead(96, 6400, optimizer=rule, block=1536, dtype=torch.float32, device="cuda")
        given = x.clone().requires_grad_()
        with choice.using(using):  # type: ignore[arg-type]
            value = head.step(given, targets, Objective(loss), lr=0.1).total
            value.backward()
        outs.append((value, given.grad, head.weight, head.bias))
    for ours, plain in zip(*outs[::-1], strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-3, atol=1e-5)
