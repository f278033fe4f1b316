"""Runs whose items are laid over each other: what the readings are calibrated for, and what cannot be done."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from steelyard import fit
from steelyard.training.augment import OVERLAY, overlaid, uniforms
from steelyard.training.batches import TrainingBatch
from steelyard.training.settings import AugmentSettings

SETTINGS: dict[str, Any] = {
    "model": {"backbone": "small"},
    "train": {"epochs": 1, "batch_size": 32, "augment": {"overlay": 1.0}},
    "evaluate": {"calibration": "link", "thresholds": "half"},
}


def bars(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Images with one bright bar, whose height is their label; label 0 is ten times as common as label 3."""
    rng = np.random.default_rng(seed)
    which = rng.choice(4, n, p=[0.5, 0.3, 0.15, 0.05])
    images = rng.integers(0, 40, (n, 1, 16, 16)).astype(np.uint8)
    for i, c in enumerate(which):
        images[i, 0, 4 * c : 4 * c + 3] += 200
    return images, np.eye(4, dtype=np.int8)[which]


def changed(**train: Any) -> dict[str, Any]:
    return SETTINGS | {"train": SETTINGS["train"] | train}


def test_the_prior_is_that_of_items_in_twos() -> None:
    """Two of N items have label c between them in 1 − (1 − π_c)² of all cases; drawn by class, each class counts ¼."""
    images, values = bars(400)
    prior = values.mean(0)
    plain = fit((images, values), "bce", validation=0.0, settings=SETTINGS, verbose=False)
    np.testing.assert_allclose(plain.trained.probability_model.prior, 1 - (1 - prior) ** 2)
    even = fit(
        (images, values), "bce", validation=0.0, settings=changed(sampler={"kind": "class_aware"}), verbose=False
    )
    np.testing.assert_allclose(even.trained.probability_model.prior, 1 - 0.75**2)
    some = changed(augment={"overlay": 0.5})
    alone = fit((images, values), "bce", validation=0.0, settings=some, verbose=False)
    np.testing.assert_allclose(alone.trained.probability_model.prior, prior)  # most items are still single ones
    assert [run.trained.single_label for run in (plain, even, alone)] == [False, False, True]


def test_the_prior_that_items_in_twos_show_is_the_stated_one() -> None:
    """What training really draws, counted."""
    _, values = bars(6400)
    settings = AugmentSettings(overlay=1.0)
    seen = []
    for start in range(0, 6400, 64):
        u = uniforms(settings, 0, 1, torch.arange(start, start + 64))
        part = torch.from_numpy(values[start : start + 64])
        seen.append(
            overlaid(TrainingBatch(torch.zeros(64, 1, 1, 1), part, torch.arange(64)), 1.0, u[:, OVERLAY]).targets
        )
    prior = values.mean(0)
    expected = 1 - (1 - prior) ** 2
    spread = np.sqrt(2 * expected * (1 - expected) / 6400)
    assert (np.abs(torch.cat(seen).double().mean(0).numpy() - expected) < 5 * spread).all()


def test_masks_of_single_items_are_refused() -> None:
    with pytest.raises(ValueError, match=r"train\.augment\.overlay .* objective\.masking"):
        fit(bars(60), "plm", settings=SETTINGS, verbose=False)
