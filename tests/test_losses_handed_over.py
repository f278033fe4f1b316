"""What pairs hand to the kernels of a GPU and to the compiler, as seen on a CPU; and rows wider than a block."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from steelyard import losses
from steelyard.kernels import choice, fused
from steelyard.labels.targets import as_targets
from steelyard.losses import pair
from steelyard.losses.loss import known_cells

Z = np.array([[0.3, -1.0, 2.0, 0.5], [-2.0, 1.5, 0.1, -0.7], [1.0, 0.0, -3.0, 2.5]])
Y = np.array([[1, 0, -1, -1], [-1, -1, 0, 1], [-1, -1, -1, -1]])
COUNTS = torch.tensor([60, 25, 8, 40])


def launched(
    logits: torch.Tensor,
    given: torch.Tensor | fused.KernelCells,
    pair: fused.KernelPair,
    plain: Callable[[torch.Tensor], torch.Tensor],
    *,
    each: bool = False,
    divisor: torch.Tensor | float | None = None,
    weight: torch.Tensor | None = None,
    rebalanced: fused.KernelRebalanced | None = None,
    rule: fused.KernelRule = fused.IGNORED,
    mask: fused.Mask | None = None,
) -> torch.Tensor:
    """`fused.value` as its description says, for BCE."""
    assert (pair.kind, rule, mask) == (fused.SOFTPLUS, fused.IGNORED, None)
    if isinstance(given, torch.Tensor):
        a, known = given.clamp_min(0).float(), (given >= 0).float()
        b = known - a
    else:
        a, b, known = given.a, given.b, torch.ones_like(given.a) if given.counted is None else given.counted
        assert given.sided == bool((a * b == 0).all())
    z = torch.where(known.bool(), logits, 0)
    cost = a * torch.nn.functional.softplus(-z) + b * torch.nn.functional.softplus(z)
    if weight is not None:
        assert weight.shape == logits.shape
        cost = cost * weight
    if rebalanced is not None:
        share = rebalanced.inverse / (a * rebalanced.inverse).sum(1, keepdim=True)
        cost = cost * (rebalanced.alpha + torch.sigmoid(rebalanced.beta * (share - rebalanced.mu)))
    out = cost if each else cost.sum() / (known.sum().clamp_min(1) if divisor is None else divisor)
    torch.testing.assert_close(plain(logits), out)
    return out


@pytest.mark.parametrize("reduction", ["mean", "item", "sum", "none"])
def test_kernels_are_given_all_that_a_loss_is_made_of(
    monkeypatch: pytest.MonkeyPatch, reduction: losses.Reduction
) -> None:
    calls = []
    monkeypatch.setattr(fused, "value", lambda *given, **more: (calls.append(more), launched(*given, **more))[1])
    z = torch.tensor(Z, dtype=torch.float32)
    bce = losses.BCE(reduction=reduction)
    balanced = losses.DistributionBalanced(COUNTS, 100, lam=1.0, kappa=0.0, reduction=reduction)
    full, soft = torch.tensor(np.abs(Y)), torch.tensor(np.where(Y == 1, 0.7, Y))
    cells = [known_cells(as_targets(y, z), torch.float32) for y in (torch.tensor(Y), full, soft)]
    ways = [
        lambda: [bce(z, y, w) for y in (torch.tensor(Y), full, soft) for w in (None, 0.5, torch.tensor(Z**2))],
        lambda: [balanced(z, y) for y in (full, torch.tensor(np.where(Y < 0, 1, Y)))],
        lambda: [bce.evaluate(z, each, divisor) for each in cells for divisor in (None, 5.0)],
    ]
    for way in ways:
        want = way()
        assert not calls
        with choice.using("fused"):
            got = way()
        assert len(calls) == len(want)
        calls.clear()
        torch.testing.assert_close(got, want)
    with choice.using("fused"):
        assert bce.kernel_for(z) is not None
        assert bce.kernel_for(z.double()) is None
        assert bce.kernel_for(z[:0]) is None
        with pytest.raises(ValueError, match="logits is list: give a floating-point tensor"):
            bce(Z.tolist(), full)


def test_a_loss_that_computes_something_else_has_no_kernel() -> None:
    for name in (
        "sided",
        "positive",
        "negative",
        "forward",
        "evaluate",
        "evaluate_batch",
        "cost_and_slope",
        "amount",
        "divisor",
    ):
        changed = {name: getattr(losses.BCE, name)}
        assert type("Changed", (losses.BCE,), changed)().kernel() is None, name
        assert type("WithItsOwn", (losses.BCE,), changed | {"kernel": losses.BCE.kernel})().kernel() is not None
    assert type("Renamed", (losses.BCE,), {"name": "renamed"})().kernel() is not None


def test_other_bases_of_a_loss_hear_of_it() -> None:
    heard = []

    class Listening:
        def __init_subclass__(cls) -> None:
            heard.append(cls.__name__)

    class Both(losses.BCE, Listening):
        """A loss and something else."""

    assert heard == ["Both"]


class Squared(losses.FormulaLoss):
    """A pair of a user's own."""

    def positive(self, z: torch.Tensor) -> torch.Tensor:
        return (z - 1) ** 2

    def negative(self, z: torch.Tensor) -> torch.Tensor:
        return (z + 1) ** 2


@pytest.mark.parametrize("reduction", ["mean", "item", "sum", "none"])
def test_a_user_s_pair_is_compiled_where_it_should_be_and_only_there(
    monkeypatch: pytest.MonkeyPatch, reduction: losses.Reduction
) -> None:
    loss, z, y, calls = Squared(reduction=reduction), torch.tensor(Z), torch.tensor(Y), []
    cells = known_cells(as_targets(y, z), torch.float64)
    monkeypatch.setattr(pair, "compiled", lambda function, *given: (calls.append(function), function(*given))[1])
    want = [loss(z, y), loss.evaluate(z, cells), loss.evaluate(z, cells, 5.0)]
    assert not calls
    monkeypatch.setattr(pair, "compiles", lambda device: True)
    got = [loss(z, y), loss.evaluate(z, cells), loss.evaluate(z, cells, 5.0)]
    assert len(calls) == 3
    torch.testing.assert_close(got, want)
    with pytest.raises(ValueError, match=r"logits is torch.int64: give a floating-point tensor"):
        loss(y, y)


def test_rows_wider_than_a_block_and_of_no_labels() -> None:
    wide = 65536 * torch.get_num_threads() + 1
    z = torch.linspace(-3, 3, 2 * wide, dtype=torch.float64).view(2, wide)
    want = np.logaddexp(0, z.numpy()).mean()
    assert float(losses.BCE()(z, torch.zeros(2, wide))) == pytest.approx(want, rel=1e-12)
    assert float(losses.BCE()(torch.zeros(3, 0), torch.zeros(3, 0))) == 0
