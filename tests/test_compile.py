"""torch.compile captures every loss in one graph, and value and gradient stay what they are in eager mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import pytest
import torch

from steelyard import Objective, losses
from steelyard.kernels import compiled
from steelyard.losses import pair
from steelyard.losses.table import EVERY

COUNTS = torch.tensor([900, 120, 15, 1])
LOSSES: dict[str, Callable[[], torch.nn.Module]] = {
    row.name: lambda row=row: row.make(COUNTS, 1000, "mean") for row in EVERY
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


class Squared(losses.FormulaLoss):
    """A pair of a user's own."""

    def positive(self, z: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.softplus(-z) ** 2

    def negative(self, z: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.softplus(z) ** 2


@pytest.fixture
def by_compiler(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Compile on a CPU too, without a C++ compiler; gives the graphs that were compiled."""
    graphs: list[object] = []

    def backend(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> Callable[..., object]:
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(pair, "compiles", lambda device: not torch.compiler.is_compiling())
    monkeypatch.setattr(compiled, "_fast", cache(lambda function: torch.compile(function, backend=backend)))
    monkeypatch.setattr(compiled, "_refused", set())
    return graphs


@pytest.mark.parametrize(
    "reduction", ["mean", "none", *(pytest.param(r, marks=pytest.mark.slow) for r in ("item", "sum"))]
)
def test_a_user_pair_is_compiled_by_itself(by_compiler: list[object], reduction: losses.loss.Reduction) -> None:
    torch.manual_seed(0)
    loss, objective = Squared(reduction=reduction), Objective(Squared(reduction="item"), unknown="negative")
    for rows in (5, 3, 9):  # the last batch of an epoch is smaller
        z, targets = torch.randn(rows, 4, requires_grad=True), torch.randint(-1, 2, (rows, 4))
        for weight in (None, torch.rand(rows, 4), 0.5):
            up = torch.rand(rows, 4) if reduction == "none" else torch.rand(())
            (grad,) = torch.autograd.grad(got := loss(z, targets, weight), z, up)
            with plainly():
                (want_grad,) = torch.autograd.grad(want := loss(z, targets, weight), z, up)
            torch.testing.assert_close(got, want)
            torch.testing.assert_close(grad, want_grad)
        with plainly():
            want = objective(z, targets).total
        torch.testing.assert_close(objective(z, targets).total, want)
    assert 2 <= len(by_compiler) <= 12


@contextmanager
def plainly() -> Iterator[None]:
    """Do without the compiler for a while."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pair, "compiles", lambda device: False)
        yield


def test_what_cannot_be_compiled_works_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, by_compiler: list[object]
) -> None:
    tried = []

    def no_compiler(*given: object) -> None:
        tried.append(given)
        raise RuntimeError("no compiler is here\nand more")

    class Wrong(Squared):
        def positive(self, z: torch.Tensor) -> torch.Tensor:
            raise ValueError("a mistake of one's own")

    monkeypatch.setattr(compiled, "_fast", lambda function: no_compiler)
    z, targets = torch.randn(5, 4), torch.randint(-1, 2, (5, 4))
    for _ in range(2):
        got = Squared()(z, targets)
        with plainly():
            torch.testing.assert_close(got, Squared()(z, targets))
    assert len(tried) == 1
    said = [record.getMessage() for record in caplog.records if record.name == "steelyard"]
    assert said == ["Squared is not compiled (no compiler is here): it works, more slowly"]
    with pytest.raises(ValueError, match="a mistake of one's own"):
        Wrong()(z, targets)


@pytest.mark.parametrize("name", ["BCE", "DB-Focal", "ASL", "LDAM"])
def test_functorch_takes_every_loss_apart(name: str) -> None:
    torch.manual_seed(0)
    loss, z, targets = LOSSES[name](), torch.randn(5, 4, requires_grad=True), torch.randint(-1, 2, (5, 4))
    (want,) = torch.autograd.grad(loss(z, targets), z)
    torch.testing.assert_close(torch.func.grad(lambda x: loss(x, targets))(z.detach()), want)


def test_value_checks_step_aside_under_compile_and_shapes_do_not() -> None:
    compiled = torch.compile(losses.BCE(), fullgraph=True, backend="aot_eager")
    compiled(torch.zeros(2, 3), torch.full((2, 3), 7.0))
    with pytest.raises(Exception, match="exception"):
        compiled(torch.zeros(2, 3), torch.zeros(2, 4))
