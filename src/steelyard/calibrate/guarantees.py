"""Find thresholds that guarantee a precision or recall on future items, not only on a sample."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeAlias, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from steelyard.balance.checks import check_choice
from steelyard.labels.targets import ArrayLike
from steelyard.losses.loss import compute_dtype
from steelyard.metrics.inputs import Pair, positive, probable

Guarantee: TypeAlias = Literal["expected", "probability"]
Goal: TypeAlias = Literal["precision", "recall"]
Counts: TypeAlias = NDArray[np.int64]

STARTS = (2.0, 1.0, 0.0, -1.0)
"""Starts of the sequences of tests for precision, in log-odds above those of the precision to reach."""
STEP = 0.1
"""Step between two thresholds that are tested, in log-odds."""
LOWEST = -9.0
"""The log-odds at which the sequences end."""
_NONE_KNOWN = {"recall": "none of its positives is known", "precision": "none of its negatives is known"}


class NoPromiseWarning(UserWarning):
    """Warns that some labels have too few known items for the guarantee asked of `thresholds`.

    Examples:
        >>> import warnings
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     t = sy.calibrate.thresholds(
        ...         np.array([[0.9], [0.2]]), np.array([[1], [0]]), "recall", level=0.9, guarantee="expected"
        ...     )
        >>> caught[0].category.__name__
        'NoPromiseWarning'
    """


@dataclass(frozen=True)
class Promise:
    """States the guarantee on the decisions "probability ≥ threshold" of each label.

    Args:
        guarantee: "expected" bounds the mean risk over samples; "probability" bounds the risk in all samples but a
            share of 1 − `confidence`.
        goal: "precision" or "recall"; the risk is 1 − precision or 1 − recall.
        level: the precision or recall to reach, 1 − risk, inside (0, 1).
        confidence: confidence of the guarantee "probability", inside (0, 1).
        joint: whether the confidence holds for all labels at once, not for each by itself.

    Examples:
        >>> promise = sy.calibrate.Promise("expected", "recall", 0.9)
        >>> round(promise.risk, 2)
        0.1
        >>> promise.sentence[:52]
        'Guaranteed on average over samples such as this one,'
    """

    guarantee: Guarantee
    goal: Goal
    level: float
    confidence: float = 0.9
    joint: bool = False

    def __post_init__(self) -> None:
        check_choice(Guarantee, guarantee=self.guarantee)
        if self.goal not in get_args(Goal):
            raise ValueError(f"goal is {self.goal!r}, but a guarantee is for a precision or recall: choose one of them")
        if self.guarantee == "expected" and self.goal == "precision":
            raise ValueError(
                'guarantee is "expected", which is for recall alone (its risk only falls with the threshold): take '
                '"probability" for precision'
            )
        if not 0 < self.level < 1:
            raise ValueError(f"level is {self.level}: give a {self.goal} above 0 and below 1")
        if not 0 < self.confidence < 1:
            raise ValueError(f"confidence is {self.confidence}: give a number above 0 and below 1, such as 0.9")
        if self.joint and self.guarantee == "expected":
            raise ValueError('joint is only for guarantee "probability", not for "expected": leave it out')

    @property
    def risk(self) -> float:
        """The allowed risk α = 1 − level."""
        return 1 - self.level

    @property
    def sentence(self) -> str:
        """The guarantee and its assumptions in words."""
        share = f"{100 * self.level:.4g} %"
        kept = {
            "recall": f"at least {share} of the future items that have a label are decided to have it",
            "precision": f"at least {share} of the future items that are decided to have a label do have it",
        }[self.goal]
        if self.guarantee == "expected":
            how = "on average over samples such as this one, for each label by itself"
        else:
            whose = "for all labels at once" if self.joint else "for each label by itself"
            how = f"with a confidence of {100 * self.confidence:.4g} %, {whose}"
        chance = {
            "recall": "which of a label's positives are known is chance",
            "precision": "which items a label is known for is chance, whether it is present or not",
        }[self.goal]
        assumed = f"future items are like these, one independent of another, and that {chance}"
        return f"Guaranteed {how}: {kept}. This assumes that {assumed}."


@dataclass(frozen=True)
class GuaranteeReport:
    """Thresholds with a guarantee, and which labels have one; all arrays are (L,).

    Examples:
        >>> p, y = np.linspace(0.01, 0.99, 99)[:, None], (np.arange(99) >= 40).astype(int)[:, None]
        >>> report = sy.calibrate.guaranteed_thresholds(p, y, sy.calibrate.Promise("probability", "recall", 0.8))
        >>> report.promised.tolist(), report.counted.tolist(), report.why
        ([True], [59], ('',))
    """

    promise: Promise
    """The guarantee asked for."""
    thresholds: Any
    """Thresholds on the probabilities."""
    promised: Any
    """True for labels whose guarantee holds; the others are always ("recall") or never ("precision") decided."""
    counted: Any
    """Number of known items that it rests on: the positives for "recall", all for "precision"."""
    why: tuple[str, ...]
    """Reason why no guarantee is possible; "" where there is one."""


class _KnownItems(NamedTuple):
    """Probabilities and labels of the known items of one label, by ascending probability."""

    p: NDArray[Any]
    present: NDArray[np.bool_]


def guaranteed_thresholds(probabilities: ArrayLike, targets: ArrayLike, promise: Promise) -> GuaranteeReport:
    """Return for each label the threshold with a guarantee: the lowest for "precision", the highest for "recall".

    Let n be the known positives of a label, p₍₁₎ ≤ … ≤ p₍ₙ₎ their probabilities, α the risk and δ = 1 − confidence.

    - expected recall, conformal risk control (Angelopoulos et al. 2022): p₍ₘ₊₁₎ with the largest m misses for which
      (m + 1)/(n + 1) ≤ α. A future positive lies below it with a probability of at most (m + 1)/(n + 1).
    - recall with confidence, learn then test (Angelopoulos et al. 2021): p₍ₖ₊₁₎ with the largest k misses for which
      P(Binomial(n, α) ≤ k) ≤ δ. The risk only grows with the threshold, so testing thresholds in ascending order, one
      after another until one fails, needs no correction, however fine the grid: this is its limit.
    - precision with confidence: of k known items at or above a threshold f are negatives; its p-value is
      P(Binomial(k, α) ≤ f). Four sequences over a grid that does not depend on the items begin at log-odds of the
      level + 2, + 1, 0 and − 1 and go down by 0.1 until a p-value exceeds δ/4. The lowest threshold passed is taken.

    `joint` divides δ by the number of labels (Bonferroni). The guarantee is void if the items influenced the
    probabilities: they must be held out from training, from choosing the model and from calibration.

    Args:
        probabilities: array (N, L).
        targets: array (N, L); unknown labels are left out, soft ones count as present from .5 on.
        promise: the guarantee that is to hold.

    Examples:
        >>> p, y = np.linspace(0.01, 0.99, 99)[:, None], (np.arange(99) >= 40).astype(int)[:, None]
        >>> promise = sy.calibrate.Promise("expected", "recall", 0.9)
        >>> sy.calibrate.guaranteed_thresholds(p, y, promise).thresholds.round(2).tolist()
        [0.46]
    """
    pair = probable(probabilities, targets)
    n_labels = pair.values.shape[1]
    delta = (1 - promise.confidence) / (n_labels if promise.joint and n_labels else 1)
    chosen, counted, why = np.empty(n_labels), np.zeros(n_labels, np.int64), []
    for c in range(n_labels):
        chosen[c], counted[c], reason = _of_label(_column(pair, c), promise, delta)
        why.append(reason)
    if n_labels and set(why) == {_NONE_KNOWN[promise.goal]}:
        lacking = {"recall": "positive", "precision": "negative"}[promise.goal]
        raise ValueError(
            f"no {lacking} of any label is known, so no {promise.goal} can be guaranteed: label some items"
        )
    dtype = compute_dtype(pair.values)
    columns = (torch.from_numpy(chosen).to(dtype), torch.tensor([not w for w in why]), torch.from_numpy(counted))
    chosen_here, promised, items = (pair.give(x.to(pair.values.device)) for x in columns)
    return GuaranteeReport(promise, chosen_here, promised, items, tuple(why))


def promised_thresholds(probabilities: ArrayLike, targets: ArrayLike, promise: Promise) -> Any:
    """Return the thresholds (L,) of `guaranteed_thresholds`; a warning names the labels without a guarantee."""
    result = guaranteed_thresholds(probabilities, targets, promise)
    unpromised = [c for c, reason in enumerate(result.why) if reason]
    if unpromised:
        first = f"label {unpromised[0]}, {result.why[unpromised[0]]}"
        warnings.warn(
            f"no guarantee is possible for {len(unpromised)} of {len(result.why)} labels (first {first}): they are "
            f"{'always' if promise.goal == 'recall' else 'never'} decided",
            NoPromiseWarning,
            stacklevel=3,
        )
    return result.thresholds


def promise_of(
    goal: str, guarantee: Guarantee, level: float | None, risk: float | None, confidence: float | None, joint: bool
) -> Promise:
    """Check the arguments of `thresholds` and return the guarantee that they ask for."""
    if goal not in get_args(Goal):
        raise ValueError(f"goal is {goal!r}, but a guarantee is given for precision or recall: choose one of them")
    if (level is None) == (risk is None):
        raise ValueError(f"level is {level} and risk is {risk}: give the {goal} to reach, or the risk, 1 less that")
    if risk is not None and not 0 < risk < 1:
        raise ValueError(f"risk is {risk}: give a number above 0 and below 1")
    if confidence is not None and guarantee == "expected":
        raise ValueError('confidence is only for guarantee "probability", not for "expected": leave it out')
    reach = level if level is not None else 1 - float(risk or 0)
    return Promise(guarantee, cast(Goal, goal), float(reach), 0.9 if confidence is None else confidence, joint)


def _column(pair: Pair, label: int) -> _KnownItems:
    known = slice(None) if pair.known is None else pair.known[:, label]
    p = pair.values[known, label].to(compute_dtype(pair.values)).cpu().numpy()
    order = np.argsort(p, kind="stable")
    return _KnownItems(p[order], positive(pair.targets[known, label]).cpu().numpy()[order])


def _of_label(column: _KnownItems, promise: Promise, delta: float) -> tuple[float, int, str]:
    """Return a label's threshold, its number of known items, and why there is no guarantee ("" where there is one)."""
    scores = column.p[column.present]
    if promise.goal == "recall":
        if not len(scores):
            return 0.0, 0, _NONE_KNOWN["recall"]
        most = _most_missed(len(scores), promise, delta)
        if most < 0:
            few = f"{_items(len(scores), 'known positive')}, at least {_fewest(promise, delta)} needed"
            return 0.0, len(scores), few
        return float(scores[most]), len(scores), ""
    n = len(column.p)
    if len(scores) == n:
        return math.inf, n, _NONE_KNOWN["precision"]
    threshold = _precise(column, promise, delta / len(STARTS))
    if threshold < math.inf:
        return threshold, n, ""
    fewest = _fewest(promise, delta / len(STARTS))
    if n < fewest:
        return math.inf, n, f"{_items(n, 'known item')}, at least {fewest} needed"
    return math.inf, n, f"no threshold is shown to reach it by {_items(n, 'known item')}"


@lru_cache(4096)
def _most_missed(n: int, promise: Promise, delta: float) -> int:
    """Return the number of n positives that may lie below the threshold; −1 if no guarantee is possible."""
    if promise.guarantee == "expected":
        m = math.floor(promise.risk * (n + 1) + 1e-9) - 1  # 1 − .9 is a little below .1
        return min(m, n - 1)
    from scipy.stats import binom

    k = int(binom.ppf(delta, n, promise.risk))  # the first with P(≤ k) ≥ δ
    while k >= 0 and binom.cdf(k, n, promise.risk) > delta:
        k -= 1
    return min(k, n - 1)


def _precise(column: _KnownItems, promise: Promise, delta: float) -> float:
    """Return the lowest threshold that a sequence of tests shows to be precise enough; infinity if there is none."""
    from scipy.stats import binom

    odds = np.arange(math.log(promise.level / promise.risk) + STARTS[0], LOWEST, -STEP)
    grid = (1 / (1 + np.exp(-odds))).astype(column.p.dtype)
    below = np.searchsorted(column.p, grid)
    positives_below = np.concatenate([[0], np.cumsum(column.present)])
    k = len(column.p) - below
    false = k - (positives_below[-1] - positives_below[below])
    failed = (binom.cdf(false, k, promise.risk) > delta) | (k == 0)
    lowest = math.inf
    for start in STARTS:
        first = round((STARTS[0] - start) / STEP)
        n_passed = int(np.append(failed[first:], True).argmax())
        if n_passed:
            lowest = min(lowest, float(grid[first + n_passed - 1]))
    return lowest


def _fewest(promise: Promise, delta: float) -> int:
    """Return the minimum number of items: if all of them are right, they are just enough."""
    if promise.guarantee == "expected":
        return math.ceil(1 / promise.risk - 1 - 1e-9)
    return math.ceil(math.log(delta) / math.log(promise.level) - 1e-9)


def _items(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 's'}"
