"""PLM whose ratios are moved by outputs on validation items."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from steelyard import fit
from steelyard.balance import PartialLabelMasking
from steelyard.losses import BCE
from steelyard.objective import Objective

OBSERVES = {"kind": "plm", "rate": 0.5, "observes": "validation"}


def data(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    values = (rng.random((n, 3)) < [0.5, 0.2, 0.1]).astype(np.int8)
    return (rng.normal(size=(n, 4)) + values @ rng.normal(size=(3, 4))).astype(np.float32), values


def settings(epochs: int, **masking: Any) -> dict[str, Any]:
    return {
        "objective": {"masking": OBSERVES | masking},
        "optimizer": {"lr": 0.3},
        "schedule": {"kind": "constant"},
        "train": {"epochs": epochs, "keep": "last", "batch_size": 30},
    }


def test_ratios_follow_the_outputs_on_validation_items() -> None:
    """The second epoch's ratio, recomputed from what the same training, stopped after one epoch, says of the items."""
    train, held = data(300), data(120, seed=1)
    one, two = (fit(train, None, validation=held, settings=settings(n, eps=0.0), verbose=False) for n in (1, 2))
    first, second = (np.array(record["plm_ratio"]) for record in two.history)
    counts, n = train[1].sum(0), len(train[1])
    np.testing.assert_allclose(first, counts / (n - counts))
    p, y = 1 / (1 + np.exp(-one.logits(held[0]))), held[1]
    far = np.array([(p[y[:, c] == 1, c] < 0.9).mean() for c in range(3)])
    near = np.array([(p[y[:, c] == 0, c] >= 0.1).mean() for c in range(3)])
    assert far.std() > 0.01
    assert near.std() > 0.01
    moved = (far - far.mean()) / far.std() - (near - near.mean()) / near.std()
    np.testing.assert_allclose(second, first * np.exp(0.5 * moved), rtol=1e-6)


def test_training_outputs_are_then_not_counted() -> None:
    objective = Objective(BCE(), masking=PartialLabelMasking(torch.tensor([5, 5]), 10, observes="validation"))
    objective.start_epoch(1, 2)
    objective(torch.randn(4, 2), torch.tensor([[1, 0], [0, 1], [1, 1], [0, 0]]), index=torch.arange(4))
    assert not objective.masking.histogram.any()
    plain = Objective(BCE(), masking=PartialLabelMasking(torch.tensor([5, 5]), 10))
    plain.start_epoch(1, 2)
    plain(torch.randn(4, 2), torch.tensor([[1, 0], [0, 1], [1, 1], [0, 0]]), index=torch.arange(4))
    assert int(plain.masking.histogram.sum()) == 8


def test_mistakes() -> None:
    with pytest.raises(ValueError, match=r'observes is "validation", but there are no such items'):
        fit(data(60), None, validation=0.0, settings=settings(1), verbose=False)
    with pytest.raises(ValueError, match="observes is 'test': choose one of training, validation"):
        PartialLabelMasking(torch.tensor([5, 5]), 10, observes="test")  # type: ignore[arg-type]
