"""torch.compile captures every loss in one graph, and value and gradient stay what they are in eager mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from steelyard import losses
from steelyard.losses.table import TABLE

COUNTS = torch.tensor([900, 120, 15, 1])
LOSSES: dict[str, Callable[[], torch.nn.Module]] = {
    row.name: lambda row=row: row.make(COUNTS, 1000, "mean") for row in TABLE
} | {
    "LDAM softmax": lambda: losses.LDAM(COUNTS, softmax=True),
    "ASL 1 2 .3": lambda: losses.Asymmetric(1.0, 2.0, 0.3, reduction="item"),
    "cells": lambda: losses.SPA(reduction="none"),
}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("name", LOSSES)
def test_one_graph_same_numbers(name: str) -> None:
    torch.manual_seed(0)
    loss = LOSSES[name]()
    targets = torch.tensor([[1, 0, -1, 0], [0, 1, 0, -1], [-1, -1, -1, -1], [0, 0, 0, 1], [-1, 0, 1, 0]])
    z = 4 * torch.randn(5, 4)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    results = []
    for call in (loss, compiled):
        x = z.clone().masked_fill(targets < 0, float("nan")).requires_grad_()
        value = call(x, targets)
        results.append((value.detach(), *torch.autograd.grad(value.sum(), x)))
    torch.testing.assert_close(results[0], results[1], rtol=1e-5, atol=1e-7)
    assert results[1][1].isfinite().all()


@pytest.mark.parametrize("name", ["BCE", "DB"])
def test_weights_and_soft_targets_compile(name: str) -> None:
    torch.manual_seed(0)
    loss = LOSSES[name]()
    z, soft, weight = 4 * torch.randn(5, 4), torch.rand(5, 4), torch.rand(5, 4)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(z, soft, weight), loss(z, soft, weight))


def test_a_user_pair_compiles() -> None:
    class Softplus(losses.FormulaLoss):
        def positive(self, z: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.softplus(-z)

        def negative(self, z: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.softplus(2 * z) / 2

    z = torch.randn(5, 4, requires_grad=True)
    targets = torch.randint(-1, 2, (5, 4))
    loss = Softplus()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(z, targets), loss(z, targets))
    torch.testing.assert_close(torch.autograd.grad(compiled(z, targets), z), torch.autograd.grad(loss(z, targets), z))


def test_value_checks_step_aside_under_compile_and_shapes_do_not() -> None:
    compiled = torch.compile(losses.BCE(), fullgraph=True, backend="aot_eager")
    compiled(torch.zeros(2, 3), torch.full((2, 3), 7.0))
    with pytest.raises(Exception, match="exception"):
        compiled(torch.zeros(2, 3), torch.zeros(2, 4))
