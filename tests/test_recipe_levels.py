"""Every recipe gives rare labels their frequency on new items, with validation items and without."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import steelyard as sy
from steelyard.config.recipes import METHODS
from steelyard.losses import NoLink

POSITIVES = (5, 16, 37, 200, 1200)
"""Of 4,000 training items."""
NEEDS_MORE = {"teacher", "finetune", "scratch"}
"""A file of scores, images."""


@cache
def sets() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Features and labels of 4,000 training items and of 20,000 others, by one threshold per label."""
    directions = np.random.default_rng(0).normal(size=(20, len(POSITIVES)))

    def drawn(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(n, 20)).astype(np.float32)
        scores = x @ directions
        return x, scores / np.linalg.norm(directions, axis=0) + 2 * rng.normal(size=scores.shape)

    (x, scores), (new_x, new_scores) = drawn(4000, 1), drawn(20_000, 2)
    least = np.sort(scores, 0)[::-1][POSITIVES, range(len(POSITIVES))]
    return x, (scores > least).astype(np.int8), new_x, new_scores > least


@pytest.mark.slow
@pytest.mark.parametrize("validation", [0, "auto"])
@pytest.mark.parametrize("recipe", sorted(set(METHODS) - NEEDS_MORE))
def test_mean_probabilities_are_frequencies_and_cost_no_more_than_the_constant(
    recipe: str, validation: int | str
) -> None:
    x, y, new_x, new_y = sets()
    settings = {"train": {"device": "cpu", "epochs": 6}, "data": {"validation": validation}}
    run = sy.fit((x, y), recipe, settings=settings, verbose=False)
    try:
        eta = run.probability(new_x).astype(np.float64)
    except NoLink:
        assert validation == 0
        return
    n, rare = np.array(POSITIVES), slice(0, 3)
    off = np.abs(eta.mean(0) / y.mean(0) - 1)
    assert (off < 4 / np.sqrt(n))[rare].all(), off  # counts of n positives are off by 1/√n
    # draws by class are undone as if labels were independent given the item
    assert (off[3:] < (0.35 if validation == 0 else 0.1)).all(), off
    frequency, eta = new_y.mean(0), np.clip(eta, 1e-12, 1 - 1e-12)
    cost = -np.where(new_y, np.log(eta), np.log1p(-eta)).mean(0)
    constant = -(frequency * np.log(frequency) + (1 - frequency) * np.log1p(-frequency))
    assert (cost / constant < 1 + 3 / np.sqrt(new_y.sum(0))).all(), cost / constant
