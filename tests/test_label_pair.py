"""LPR against the naive double loop, in value and gradient, without any L×L memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import reference as ref
from steelyard import Objective, losses
from steelyard.balance import LabelPair
from steelyard.balance.label_pair import _all_pairs

cell = st.sampled_from([-1.0, 0.0, 1.0])
soft = st.sampled_from([-1.0, 0.0, 1.0, 0.5]) | st.floats(0, 1)


def both(scores: np.ndarray, targets: np.ndarray, weight: float = 1.0) -> tuple[float, np.ndarray]:
    s = torch.tensor(scores, requires_grad=True)
    value = LabelPair(weight)(s, torch.tensor(targets))
    (gradient,) = torch.autograd.grad(value, s)
    return float(value.detach()), gradient.numpy()


@given(data=st.data(), b=st.integers(1, 4), n=st.integers(1, 6), is_soft=st.booleans())
@settings(max_examples=120)
def test_against_the_double_loop(data: st.DataObject, b: int, n: int, is_soft: bool) -> None:
    size = b * n
    targets = data.draw(st.lists(soft if is_soft else cell, min_size=size, max_size=size))
    scores = data.draw(st.lists(st.floats(-40, 40), min_size=size, max_size=size))
    s, y = np.array(scores).reshape(b, n), np.array(targets).reshape(b, n)
    value, gradient = both(s, y)
    want, slope = ref.label_pair(s, y)
    np.testing.assert_allclose(value, want, rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(gradient, slope, rtol=1e-9, atol=1e-14)


def test_by_hand() -> None:
    """One positive, two negatives of three labels: 2/(3·2) of two softpluses."""
    value, _ = both(np.array([[1.0, 0.0, 3.0]]), np.array([[1.0, 0.0, 0.0]]), weight=2.0)
    assert value == pytest.approx(2 * (np.log1p(np.exp(-1)) + np.log1p(np.exp(2))) / 3)


@pytest.mark.parametrize("shape", [(3, 1), (0, 4), (0, 1)])
def test_no_pairs(shape: tuple[int, int]) -> None:
    value, gradient = both(np.ones(shape), np.ones(shape))
    assert value == 0
    assert (gradient == 0).all()


def test_returns_float32_for_half_precision_always() -> None:
    for shape in ((2, 3), (2, 1), (0, 3)):
        assert LabelPair()(torch.zeros(shape, dtype=torch.float16), torch.ones(shape)).dtype == torch.float32


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1e30])
def test_unknown_labels_are_inert(poison: float) -> None:
    rng = np.random.default_rng(0)
    s, y = rng.standard_normal((4, 6)), rng.integers(-1, 2, (4, 6)).astype(float)
    value, gradient = both(s, y)
    again, same = both(np.where(y < 0, poison, s), y)
    assert value == again
    np.testing.assert_array_equal(gradient, same)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_huge_scores(dtype: torch.dtype) -> None:
    s = torch.tensor([[1e4, -1e4, 0.0, 1e4]]).to(dtype).requires_grad_()
    value = LabelPair()(s, torch.tensor([[0, 1, 0, 1]]))
    assert value.dtype == torch.float32
    want, _ = ref.label_pair(s.detach().double().numpy(), np.array([[0, 1, 0, 1]]))
    assert float(value.detach()) == pytest.approx(want, rel=1e-5)
    (gradient,) = torch.autograd.grad(value, s)
    assert gradient.dtype == dtype
    assert gradient.isfinite().all()


class Largest(TorchDispatchMode):
    """Notes the largest tensor that any operation returns."""

    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self.numel = max(self.numel, leaf.untyped_storage().nbytes() // max(leaf.element_size(), 1))
        return out


@pytest.mark.parametrize("share", [0.001, 0.5])
def test_no_matrix_of_labels_by_labels(share: float) -> None:
    b, n = 3, 1600
    generator = torch.Generator().manual_seed(0)
    s = torch.randn(b, n, generator=generator).requires_grad_()
    targets = (torch.rand(b, n, generator=generator) < share).float()
    with Largest() as largest:
        LabelPair()(s, targets).backward()
    assert largest.numel <= max(20 * b * n, 1 << 19) < n * n // 4  # a block of fixed size, or a few times the batch


@pytest.mark.parametrize("link", [True, False])
def test_an_objective_feeds_it_the_link(link: bool) -> None:
    """The log-odds of the loss's link without class weights, or z itself; gradients flow through the link."""
    torch.manual_seed(0)
    z = torch.randn(6, 4, dtype=torch.float64)
    y = torch.randint(-1, 2, (6, 4)).double()
    loss = losses.SPA()
    objective = Objective(loss, regularizers=[LabelPair(0.7, link=link)])
    x = z.clone().requires_grad_()
    value = objective(x, y)
    scores = loss.log_odds(z) if link else z
    want, slope = ref.label_pair(scores.numpy(), y.numpy())
    assert float(value.total.detach() - loss(z, y)) == pytest.approx(0.7 * want, rel=1e-9)
    (gradient,) = torch.autograd.grad(value.total, x)
    x = z.clone().requires_grad_()
    (plain,) = torch.autograd.grad(loss(x, y), x)
    steep = torch.ones_like(z)
    if link:
        x = z.clone().requires_grad_()
        (steep,) = torch.autograd.grad(loss.log_odds(x).sum(), x)
    np.testing.assert_allclose((gradient - plain).numpy(), 0.7 * slope * steep.numpy(), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("cells", [1, 100, 1 << 24])
def test_all_pairs_at_once_are_the_pairs_of_the_positives(cells: int) -> None:
    """The form for devices, however many labels it takes at a time, against the one that goes by positives."""
    g = torch.Generator().manual_seed(0)
    z = (3 * torch.randn(6, 7, generator=g, dtype=torch.float64)).requires_grad_()
    targets = torch.randint(-1, 2, (6, 7), generator=g).double()
    targets[0, :3] = torch.tensor([0.3, 0.5, 1.0])
    value = LabelPair()(z, targets) * 6 * 21
    (slope,) = torch.autograd.grad(value, z)
    known = targets != -1
    s = torch.where(known, z.detach(), 0)
    total, gradient = _all_pairs(s, targets.clamp_min(0), known.double() - targets.clamp_min(0), cells)
    torch.testing.assert_close(total, value.detach())
    torch.testing.assert_close(gradient, slope)
