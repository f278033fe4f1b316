"""EPR: the few known labels, and how many positives an item should have."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from steelyard import Objective
from steelyard.losses import BCE
from steelyard.objective import ExpectedPositives


def reference(z: np.ndarray, y: np.ndarray, k: float) -> float:
    """Cole et al. 2021, in float64, cell by cell."""
    p = 1 / (1 + np.exp(-z))
    terms = sum(-np.log(p[c]) if y[c] == 1 else -np.log(1 - p[c]) for c in np.ndindex(y.shape) if y[c] != -1)
    return float(terms / y.size + ((p.sum(1).mean() - k) / y.shape[1]) ** 2)


def test_value_and_gradient_are_those_of_the_formula():
    rng = np.random.default_rng(0)
    z, y = rng.normal(0, 2, (6, 4)), rng.integers(-1, 2, (6, 4))
    objective = Objective(BCE(), ExpectedPositives(1.7))
    logits = torch.tensor(z, requires_grad=True)
    value = objective(logits, torch.from_numpy(y)).total
    assert float(value.detach()) == pytest.approx(reference(z, y, 1.7), rel=1e-9)
    (grad,) = torch.autograd.grad(value, logits)
    for cell in ((0, 0), (3, 2), (5, 3)):
        up, down = z.copy(), z.copy()
        up[cell] += 1e-6
        down[cell] -= 1e-6
        slope = (reference(up, y, 1.7) - reference(down, y, 1.7)) / 2e-6
        assert float(grad[cell]) == pytest.approx(slope, rel=1e-5, abs=1e-9)


def test_unknown_labels_are_pulled_to_the_expected_number_and_no_further():
    unknown = torch.full((8, 5), -1)
    z = torch.full((8, 5), 3.0, requires_grad=True)
    optimizer = torch.optim.SGD([z], lr=50.0)
    objective = Objective(BCE(), ExpectedPositives(2.0))
    for _ in range(400):
        optimizer.zero_grad()
        objective(z, unknown).total.backward()
        optimizer.step()
    assert float(torch.sigmoid(z.detach()).sum(1).mean()) == pytest.approx(2.0, abs=1e-3)


@pytest.mark.parametrize("k", [0.0, -1.0, float("inf"), float("nan")])
def test_an_impossible_number_is_refused(k: float):
    with pytest.raises(ValueError, match=r"expected_positives is .*: it must be positive"):
        ExpectedPositives(k)
