"""Guaranteed thresholds against references written with the binomial sum itself, and kept in 1,000 simulated samples.

A sample is a column of one table: 1,000 of them are one call. Risks are those of the population, in closed form.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import steelyard.calibrate as cal
from steelyard.calibrate.guarantees import LOWEST, STARTS, STEP, NoPromiseWarning, Promise, guaranteed_thresholds

SAMPLES = 1000


def at_most(k: int, n: int, p: float) -> float:
    """P(Binomial(n, p) ≤ k), summed term by term."""
    return math.fsum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k + 1))


def reference(p: list[float], y: list[int], promise: Promise, n_labels: int) -> float | None:
    """The threshold of one label, None where no promise is possible."""
    cells = [(score, truth) for score, truth in zip(p, y, strict=True) if truth != -1]
    present = sorted(score for score, truth in cells if truth == 1)
    delta, alpha, n = (1 - promise.confidence) / (n_labels if promise.joint else 1), 1 - promise.level, len(present)
    if promise.goal == "recall":
        best = None
        for missed, score in enumerate(present):
            if promise.guarantee == "expected":
                ok = (missed + 1) / (n + 1) <= alpha + 1e-12
            else:
                ok = at_most(missed, n, alpha) <= delta
            best = score if ok else best
        return best
    passed = []
    for start in STARTS:
        odds = math.log(promise.level / alpha) + start
        while odds > LOWEST + 1e-9:
            t = 1 / (1 + math.exp(-odds))
            decided = [truth for score, truth in cells if score >= t]
            if not decided or at_most(decided.count(0), len(decided), alpha) > delta / len(STARTS):
                break
            passed.append(t)
            odds -= STEP
    return min(passed, default=None)


PROMISES = [
    Promise("expected", "recall", 0.9),
    Promise("expected", "recall", 0.75),
    Promise("probability", "recall", 0.8, 0.9),
    Promise("probability", "recall", 0.9, 0.8, joint=True),
    Promise("probability", "precision", 0.7, 0.9),
    Promise("probability", "precision", 0.85, 0.8),
    Promise("probability", "precision", 0.6, 0.9, joint=True),
]


@pytest.mark.parametrize("promise", PROMISES, ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_thresholds_are_those_of_the_reference(promise: Promise, seed: int) -> None:
    g = np.random.default_rng(seed)
    p = g.beta(0.4, 0.6, (120, 4))
    p = np.round(p, 2) if seed % 2 else p  # ties
    y = np.where(g.random(p.shape) < 0.2, -1, g.random(p.shape) < p)
    y[:, 3] = np.where(np.arange(120) < 8, y[:, 3], -1)
    result = guaranteed_thresholds(p, y, promise)
    for c in range(4):
        expected = reference(p[:, c].tolist(), y[:, c].tolist(), promise, 4)
        assert bool(result.promised[c]) == (expected is not None) == (result.why[c] == "")
        assert result.thresholds[c] == pytest.approx(
            {"recall": 0.0, "precision": math.inf}[promise.goal] if expected is None else expected, rel=1e-12
        )


def misses(thresholds: np.ndarray, power: float) -> np.ndarray:
    """1 − recall where positives have the distribution function p^power."""
    return np.clip(thresholds, 0, 1) ** power


def false_share(thresholds: np.ndarray, power: float) -> np.ndarray:
    """1 − precision where p is uniform and a label is present with probability p^power; 0 where nothing is decided."""
    t = np.clip(thresholds, 0, 1 - 1e-12)
    hits = (1 - t ** (power + 1)) / (power + 1) / (1 - t)
    return np.where(np.isfinite(thresholds), 1 - hits, 0.0)


def samples(n: int, power: float, unknown: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Uniform p, labels present with probability p^power, of which some are not known; one column per sample."""
    g = np.random.default_rng(seed)
    p = g.random((n, SAMPLES))
    y = np.where(g.random(p.shape) < p**power, 1, 0)
    return p, np.where(g.random(p.shape) < unknown, -1, y)


@pytest.mark.parametrize("unknown", [0.0, 0.7])
@pytest.mark.parametrize(("level", "power"), [(0.9, 1.0), (0.8, 3.0), (0.95, 0.5)])
def test_the_expected_risk_is_kept(level: float, power: float, unknown: float) -> None:
    p, y = samples(150, power, unknown, 1)
    result = guaranteed_thresholds(p, y, Promise("expected", "recall", level))
    risks = misses(result.thresholds, power + 1)  # positives: density ∝ p^power
    assert risks.mean() <= 1 - level + 3 * risks.std() / SAMPLES**0.5
    n = (y == 1).sum(0)
    ideal = np.floor((1 - level) * (n + 1) + 1e-9) / (n + 1)  # of continuous scores the risk is this, not only less
    assert abs((risks - ideal).mean()) < 4 * risks.std() / SAMPLES**0.5


@pytest.mark.parametrize(("unknown", "confidence"), [(0.0, 0.9), (0.7, 0.7)])
@pytest.mark.parametrize("goal", ["recall", "precision"])
@pytest.mark.parametrize("power", [0.5, 1.0, 3.0])
def test_the_confidence_is_kept(goal: Any, power: float, confidence: float, unknown: float) -> None:
    level = 0.7 if goal == "precision" else 0.85
    p, y = samples(400, power, unknown, 2)
    result = guaranteed_thresholds(p, y, Promise("probability", goal, level, confidence))
    risks = misses(result.thresholds, power + 1) if goal == "recall" else false_share(result.thresholds, power)
    delta = 1 - confidence
    violated = float((risks > 1 - level + 1e-12).mean())
    assert violated <= delta + 3 * (delta * (1 - delta) / SAMPLES) ** 0.5
    if unknown == 0 or power < 3:
        assert result.promised.mean() > 0.5  # it is not kept by deciding nothing
    if goal == "recall":
        assert violated > delta / 4  # nor by a margin that nobody asked for


@pytest.mark.parametrize("guarantee", ["expected", "probability"])
def test_recall_rests_on_positives_alone(guarantee: Any) -> None:
    """Where 95 % of negatives and 40 % of positives are unknown its promise holds; that of precision would not."""
    g = np.random.default_rng(5)
    p, y = samples(400, 1.0, 0.0, 4)
    y = np.where(g.random(p.shape) < np.where(y == 1, 0.4, 0.95), -1, y)
    risks = misses(guaranteed_thresholds(p, y, Promise(guarantee, "recall", 0.9)).thresholds, 2.0)
    if guarantee == "expected":
        assert risks.mean() <= 0.1 + 3 * risks.std() / SAMPLES**0.5
    else:
        assert (risks > 0.1).mean() <= 0.1 + 3 * (0.09 / SAMPLES) ** 0.5
        result = guaranteed_thresholds(p, y, Promise("probability", "precision", 0.8))
        assert (false_share(result.thresholds, 1.0) > 0.2).mean() > 0.5  # why the sentence names its assumption


def test_confidence_of_all_labels_at_once_is_kept() -> None:
    """20 labels per sample: the worst of them breaks the promise in at most δ of the samples."""
    p, y = samples(200, 1.0, 0.3, 3)
    level, confidence, labels = 0.8, 0.8, 20
    broken = {}
    for joint in (True, False):
        parts = [slice(i, i + labels) for i in range(0, SAMPLES, labels)]
        promise = Promise("probability", "recall", level, confidence, joint)
        t = np.array([guaranteed_thresholds(p[:, at], y[:, at], promise).thresholds for at in parts])
        broken[joint] = float((misses(t, 2.0) > 1 - level).any(1).mean())
    delta = 1 - confidence
    assert broken[True] <= delta + 3 * (delta * (1 - delta) / (SAMPLES / labels)) ** 0.5 < broken[False]


def test_a_promise_that_was_only_measured_would_be_broken() -> None:
    """The plain goal meets the recall of the sample, and so fails every other time: the simulations can tell."""
    p, y = samples(150, 1.0, 0.0, 1)
    plain = cal.thresholds(p, y, "recall", level=0.9)
    assert misses(np.asarray(plain), 2.0).mean() > 0.1 + 0.005 or (misses(plain, 2.0) > 0.1).mean() > 0.3


def test_too_few_items_make_no_promise() -> None:
    y = np.zeros((60, 4), np.int8)
    y[:8, 0], y[:9, 1], y[:, 2] = 1, 1, -1
    y[:30, 3] = 1
    p = np.random.default_rng(0).random(y.shape)
    result = guaranteed_thresholds(p, y, Promise("expected", "recall", 0.9))
    assert result.promised.tolist() == [False, True, False, True]
    assert result.why[0] == "8 known positives, at least 9 needed"
    assert result.why[2] == "none of its positives is known"
    assert result.thresholds[[0, 2]].tolist() == [0, 0]
    assert result.counted.tolist() == [8, 9, 0, 30]
    with pytest.warns(NoPromiseWarning, match="2 of 4 labels .first label 0, 8 known positives.* always decided"):
        cal.thresholds(p, y, "recall", risk=0.1, guarantee="expected")
    strict = guaranteed_thresholds(p, y, Promise("probability", "recall", 0.9, 0.95))
    assert "at least 29 needed" in strict.why[0]
    assert strict.promised.tolist() == [False, False, False, True]


def test_precision_needs_known_negatives() -> None:
    y = np.ones((60, 2), np.int8)
    y[:, 1] = np.arange(60) % 2
    result = guaranteed_thresholds(np.tile(0.05 + 0.9 * y[:, 1:], 2), y, Promise("probability", "precision", 0.8))
    assert result.why == ("none of its negatives is known", "")
    assert result.thresholds[0] == math.inf
    assert 0.05 < result.thresholds[1] <= 0.95
    with pytest.raises(ValueError, match="no negative of any label is known, so no precision can be guaranteed"):
        guaranteed_thresholds(np.full((60, 1), 0.5), y[:, :1], Promise("probability", "precision", 0.8))
    with pytest.raises(ValueError, match="no positive of any label is known, so no recall"):
        guaranteed_thresholds(np.full((60, 1), 0.5), 0 * y[:, :1], Promise("expected", "recall", 0.8))


@pytest.mark.parametrize("kind", [np.float32, torch.float32, torch.float16, torch.float64])
def test_arrays_give_their_like_and_decide_what_was_counted(kind: Any) -> None:
    g = np.random.default_rng(5)
    p, y = g.random((300, 3)), g.integers(-1, 2, (300, 3))
    values = p.astype(np.float32) if kind is np.float32 else torch.tensor(p).to(kind)
    targets = y if kind is np.float32 else torch.tensor(y)
    t = cal.thresholds(values, targets, "recall", level=0.9, guarantee="probability", confidence=0.9)
    assert type(t) is type(values)
    decided = np.asarray(values) >= np.asarray(t).astype(np.asarray(values).dtype)
    missed = (~decided & (y == 1)).sum(0)
    n = (y == 1).sum(0)
    for c in range(3):
        assert at_most(int(missed[c]), int(n[c]), 0.1) <= 0.1


@pytest.mark.parametrize(
    ("goal", "more", "message"),
    [
        ("f1", {"guarantee": "expected", "level": 0.9}, "given for precision or recall"),
        ("precision", {"guarantee": "expected", "level": 0.9}, "which is for recall alone"),
        ("recall", {"guarantee": "sure", "level": 0.9}, "choose one of expected, probability"),
        ("recall", {"guarantee": "expected"}, "level is None and risk is None"),
        ("recall", {"guarantee": "expected", "level": 0.9, "risk": 0.1}, "level is 0.9 and risk is 0.1"),
        ("recall", {"guarantee": "expected", "level": 1.0}, "above 0 and below 1"),
        ("recall", {"guarantee": "probability", "risk": 1.5}, "risk is 1.5"),
        ("recall", {"guarantee": "probability", "level": 0.9, "confidence": 1.0}, "confidence is 1.0"),
        (
            "recall",
            {"guarantee": "expected", "level": 0.9, "confidence": 0.9},
            "confidence is only for guarantee .probability.",
        ),
        ("recall", {"guarantee": "expected", "level": 0.9, "joint": True}, "joint is only for guarantee"),
        ("recall", {"guarantee": "expected", "level": 0.9, "prior": 0.2}, "rests on targets alone"),
        ("recall", {"guarantee": "expected", "level": 0.9, "prior_positives": 20}, "rests on targets alone"),
        ("recall", {"level": 0.9, "confidence": 0.9}, "belong to a guarantee"),
    ],
)
def test_what_cannot_be_promised_is_one_sentence(goal: Any, more: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cal.thresholds(np.full((40, 2), 0.5), np.tile([[0, 1], [1, 0]], (20, 1)), goal, **more)


def test_the_sentence_names_what_it_rests_on() -> None:
    recall, both = Promise("expected", "recall", 0.9).sentence, Promise("probability", "precision", 0.95, 0.8, True)
    for text in (recall, both.sentence):
        assert "future items are like these" in text
        assert "chance" in text
    assert "on average" in recall
    assert "with a confidence of 80 %, for all labels at once: at least 95 %" in both.sentence
