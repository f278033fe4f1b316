"""What a metric takes, and what it refuses in one sentence."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np
import pytest
import torch

from steelyard.metrics.inputs import Pair, decided, probable, scored, unlabelled

Check = Callable[[np.ndarray, np.ndarray], Pair]
NO_SCORE = "a known label needs a score to rank by, so mend the model or mark the label unknown"
NO_PROBABILITY = "a probability lies in [0, 1], so give logits through their link first"
NO_DECISION = "give 0 or 1, say p >= threshold"


def refused(words: str) -> AbstractContextManager[object]:
    return pytest.raises(ValueError, match=f"^{re.escape(words)}$")


@pytest.mark.parametrize(("check", "name"), [(scored, "scores"), (probable, "probabilities"), (decided, "decisions")])
def test_an_array_is_called_by_its_name(check: Check, name: str) -> None:
    with refused(f"{name} has shape (3,): give (N, L), one row per item, one column per label"):
        check(np.zeros(3), np.zeros(3))
    with refused(f"targets has shape (3, 2), but {name} has (2, 3): they must be equal"):
        check(np.zeros((2, 3)), np.zeros((3, 2)))
    with refused(f"{name} has dtype complex128: give real numbers of at most 64 bits"):
        check(np.zeros((1, 1), complex), np.zeros((1, 1)))
    with refused("targets has dtype <U1: give real numbers of at most 64 bits"):
        check(np.zeros((1, 1)), np.array([["1"]]))


@pytest.mark.parametrize(
    ("check", "bad", "words"),
    [
        (scored, np.nan, f"scores[0, 1] is nan: {NO_SCORE}"),
        (probable, np.nan, f"probabilities[0, 1] is nan: {NO_PROBABILITY}"),
        (probable, 1.5, f"probabilities[0, 1] is 1.5: {NO_PROBABILITY}"),
        (probable, -0.5, f"probabilities[0, 1] is -0.5: {NO_PROBABILITY}"),
        (decided, np.nan, f"decisions[0, 1] is nan: {NO_DECISION}"),
        (decided, 0.5, f"decisions[0, 1] is 0.5: {NO_DECISION}"),
    ],
)
def test_a_bad_value_is_refused_only_where_the_label_is_known(check: Check, bad: float, words: str) -> None:
    values = np.array([[0, bad, 1]])
    for targets in ([[1, 0, 1]], [[1, 0, -1]]):
        with refused(words):
            check(values, np.array(targets))
    known = check(values, np.array([[1, -1, 0]])).known
    assert known.tolist() == [[True, False, True]]


@pytest.mark.parametrize("check", [scored, probable])
def test_whole_numbers_become_float64(check: Check) -> None:
    pair = check(np.array([[0, 1]]), np.array([[0, 1]]))
    assert pair.values.dtype == torch.float64
    assert pair.values.tolist() == [[0, 1]]


def test_probabilities_without_labels_have_none_unknown() -> None:
    assert unlabelled(np.array([[0, 0.5, 1]])).known is None
    nowhere = unlabelled(torch.empty(0, 3, device="meta"))
    assert nowhere.known is None
    assert nowhere.targets.device == nowhere.values.device
    with refused(f"probabilities[0, 0] is 2: {NO_PROBABILITY}"):
        unlabelled(np.array([[2.0]]))
    with refused(f"eta[0, 0] is 2: {NO_PROBABILITY}"):
        unlabelled(np.array([[2.0]]), "eta")
