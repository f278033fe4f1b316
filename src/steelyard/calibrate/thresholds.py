"""From probabilities to decisions: the threshold of each label for a goal."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from steelyard._arrays import slices
from steelyard.balance.checks import check_choice, check_range
from steelyard.calibrate.calibrator import one_per_label
from steelyard.calibrate.guarantees import Guarantee, promise_of, promised_thresholds
from steelyard.labels.targets import ArrayLike, refuse
from steelyard.losses.loss import compute_dtype
from steelyard.metrics.inputs import Pair, positive, probable, unlabelled

Goal: TypeAlias = Literal["f1", "precision", "recall", "cost"]

F1_SHARE = 3.0
"""For F1 a label is decided at most this many times as often as it is present: at three times, F1 is at most ½."""
F1_LIFT = 1.2
"""For F1 a decision is at least this many times as precise as deciding at random, or right more often than not."""

_CELLS_AT_ONCE = 1 << 21


@dataclass(frozen=True)
class ThresholdReport:
    """Thresholds and what is expected of the decisions probability ≥ threshold, all (L,).

    Examples:
        >>> eta, targets = torch.tensor([[0.9], [0.6], [0.4], [0.1]]), torch.tensor([[1], [0], [1], [0]])
        >>> report = sy.calibrate.threshold_report(eta, targets, goal="recall", level=1.0)
        >>> report.thresholds, report.precision, report.recall, report.reached
        (tensor([0.2500]), tensor([0.6667]), tensor([1.]), tensor([True]))
    """

    thresholds: Any
    """The least probability of a label that is decided present; inf where none is."""
    value: Any
    """The quantity that the goal optimises: F1, recall (at a precision), precision (at a recall), cost per item."""
    precision: Any
    """The share of decisions that are right."""
    recall: Any
    """The share of positives that are decided present."""
    f1: Any
    """F1."""
    decided: Any
    """Items that are decided to have the label, of those it was chosen by."""
    share: Any
    """The same as a share of them."""
    reached: Any
    """True where the goal is reached: the precision or recall, or for F1 and cost a threshold that decides."""

    @property
    def never(self) -> Any:
        """The labels (L,), bool, that are never decided present: their threshold is infinite."""
        return self.thresholds == math.inf


class _ThresholdGoal(NamedTuple):
    goal: Goal
    level: float
    false_positive: Tensor
    false_negative: Tensor
    prior: Tensor


def thresholds(
    probabilities: ArrayLike,
    targets: ArrayLike | None = None,
    goal: Goal = "f1",
    *,
    level: float | None = None,
    cost_fp: ArrayLike | float | None = None,
    cost_fn: ArrayLike | float | None = None,
    prior_positives: float = 0.0,
    prior: ArrayLike | float | None = None,
    guarantee: Guarantee | None = None,
    risk: float | None = None,
    confidence: float | None = None,
    joint: bool = False,
) -> Any:
    """Return the threshold (L,) of each label: a label is decided present where its probability is at least that.

    `threshold_report` has the definition of each goal and what its decisions are expected to give. A label for which no
    threshold reaches the goal is never decided present: its threshold is inf. With a `guarantee`, thresholds are those
    of `guaranteed_thresholds`: the precision or recall is guaranteed for future items instead of measured on these, to
    which nothing else may have been fitted; a warning names the labels without a guarantee.

    Args:
        probabilities: η (N, L), calibrated wherever no target is given.
        targets: (N, L), 1 present, 0 absent, −1 unknown (left out); a soft one is present from .5 on. None takes
            expected counts from the probabilities instead.
        goal: "f1", the best F1; "precision", the best recall at a precision of `level`; "recall", the best precision
            at a recall of `level`; "cost", the least cost.
        level: the precision or recall to reach, in (0, 1]; only for these two goals, which need it.
        cost_fp, cost_fn: c₊ and c₋, the costs of a false positive and of a false negative, positive numbers or (L,);
            only for "cost", which needs both. Without targets the threshold is Bayes', c₊/(c₊ + c₋).
        prior_positives: m ≥ 0, the number of positives that the probabilities are worth beside a label's own (0 counts
            the sample alone; runs use 20, as calibrators do).
        prior: π', the frequency of each label where decisions will be made, a number or (L,) in [0, 1]; NaN or None
            keeps the frequency among these items.
        guarantee: None measures on these items; "expected" guarantees a recall on average over samples, "probability" a
            precision or recall with a confidence. Needs targets, and excludes costs, `prior` and `prior_positives`.
        risk: 1 − `level`, given in its place; only with a guarantee.
        confidence: of the guarantee "probability" (.9).
        joint: True if that confidence is to hold for all labels at once, not for each by itself.

    Examples:
        >>> eta = torch.tensor([[0.9], [0.6], [0.4], [0.1]])
        >>> targets = torch.tensor([[1], [0], [1], [-1]])
        >>> sy.calibrate.thresholds(eta, targets)  # all three known items: F1 is .8
        tensor([0.4000])
        >>> sy.calibrate.thresholds(eta, targets, goal="precision", level=0.9)
        tensor([0.7500])
        >>> sy.calibrate.thresholds(eta, goal="cost", cost_fp=1.0, cost_fn=9.0)  # a miss costs nine false alarms
        tensor([0.1000])
    """
    if guarantee is not None:
        plain = (cost_fp, cost_fn, prior) == (None, None, None) and prior_positives == 0
        if not plain or targets is None:
            raise ValueError("a guarantee rests on targets alone: give them, and no cost_fp, cost_fn or prior")
        promise = promise_of(goal, guarantee, level, risk, confidence, joint)
        return promised_thresholds(probabilities, targets, promise)
    if joint or not (risk is None and confidence is None):
        raise ValueError('risk, confidence and joint belong to a guarantee: add guarantee="probability"')
    return threshold_report(
        probabilities,
        targets,
        goal,
        level=level,
        cost_fp=cost_fp,
        cost_fn=cost_fn,
        prior_positives=prior_positives,
        prior=prior,
    ).thresholds


def threshold_report(
    probabilities: ArrayLike,
    targets: ArrayLike | None = None,
    goal: Goal = "f1",
    *,
    level: float | None = None,
    cost_fp: ArrayLike | float | None = None,
    cost_fn: ArrayLike | float | None = None,
    prior_positives: float = 0.0,
    prior: ArrayLike | float | None = None,
) -> ThresholdReport:
    """Choose for each label the best of all cuts between distinct probabilities, and say what it is expected to give.

    A label is decided present where its probability is at least the threshold. With k cells so decided, T positives
    among them and P positives in all, the goals are

    Formula:
        F1 = 2 T/(k + P), precision = T/k, recall = T/P, cost = c_fp (k − T) + c_fn (P − T)

    - "f1": the largest F1;
    - "precision": the largest recall T/P among cuts with precision T/k of at least `level`; inf where there is none;
    - "recall": the largest precision T/k among cuts with recall T/P of at least `level`;
    - "cost": the least c_fp (k − T) + c_fn (P − T). Without targets that is Bayes' threshold c_fp/(c_fp + c_fn).

    The best F1 alone leads to useless decisions: where probabilities hardly tell items apart, F1 grows
    with k, and a label of frequency .002 is decided for every item. So "f1" takes only cuts that decide for at most
    3 times as many items as have the label, k ≤ 3 P, and with a precision T/k of at least 1.2 times its frequency, or
    of ½. Any other cut has F1 ≤ ½, or is hardly better than chance. A label without such a cut, or with known
    negatives and no known positive, is never decided: its threshold is inf. Nor is a threshold 0, which any item
    would pass, unless every item has the label: a cut below all items is at the least probable one, at most ½.

    Positives are counted from `targets`; without them, or for a label without a known positive or a known negative
    (unless all items are known to have it), expected ones from calibrated probabilities over all items, T = Σ η (F1 is
    then that of the expected counts, which differs from the expected F1 by O(1/P)). With few positives the best cut of
    a sample is a matter of chance: `prior_positives` = m counts an item as (1−λ) y + λ η, λ = m/(m + max(n₊, Σ η)), the
    partial pooling of the calibrators; 0 takes the sample as it is. For a world where a label has another frequency π'
    than π among these items, `prior` weighs its positives π'/π and its negatives (1−π')/(1−π) in all counts; the
    thresholds are still those of the probabilities given. Of cuts that do equally well the highest is taken ("recall":
    the lowest). A threshold lies half-way between the probabilities that it parts; below all of them it is 0 (but see
    "f1").

    Args:
        probabilities, targets, goal, level, cost_fp, cost_fn, prior_positives, prior: as for `thresholds`.

    Examples:
        >>> eta, targets = torch.tensor([[0.9], [0.6], [0.4], [0.1]]), torch.tensor([[1], [0], [1], [0]])
        >>> report = sy.calibrate.threshold_report(eta, targets)
        >>> report.thresholds, report.f1, report.decided
        (tensor([0.2500]), tensor([0.8000]), tensor([3]))
        >>> sy.calibrate.threshold_report(eta).f1  # without targets: as the probabilities predict
        tensor([0.7600])
    """
    check_range("at least 0", prior_positives=prior_positives)
    pair, label_known = _inputs(probabilities, targets)
    aim = _aim(goal, level, cost_fp, cost_fn, prior, pair.values)
    n_items, n_labels = pair.values.shape
    some = slices((n_labels, n_items), _CELLS_AT_ONCE)
    blocks = [_block(pair, labels, aim, prior_positives, label_known) for labels in some]
    columns = [torch.cat(parts) for parts in zip(*blocks, strict=True)]
    dtype = compute_dtype(pair.values)
    return ThresholdReport(*(pair.give(c.to(dtype) if c.dtype.is_floating_point else c) for c in columns))


def _block(pair: Pair, labels: slice, aim: _ThresholdGoal, prior: float, has_targets: bool) -> tuple[Tensor, ...]:
    """Return the fields of a report for some labels."""
    p = pair.values[:, labels].to(compute_dtype(pair.values))
    y = positive(pair.targets[:, labels]).double()
    used = torch.ones_like(p, dtype=torch.bool) if pair.known is None else pair.known[:, labels]
    n = y.sum(0) if has_targets else torch.zeros_like(y[0])
    no_positive = (n == 0) & used.any(0) & has_targets
    full = (n == len(y)) & has_targets
    expected = torch.where(used, p, 0.0).sum(0, dtype=torch.float64)
    both = (n > 0) & ((n < used.sum(0)) | full)
    share = torch.where(both, prior / (prior + torch.maximum(n, expected)), 1.0)
    used = used | (share == 1)
    t = torch.where(used, (1 - share) * y + share * p.double(), 0.0)
    w_pos, w_neg = _class_weights(aim.prior[labels], t, used)
    p, order = torch.where(used, p, -1.0).sort(dim=0, descending=True)
    nothing = torch.zeros_like(t[:1])
    hits = torch.cat([nothing, t.gather(0, order).cumsum(0)])
    recall = _over(hits, hits[-1:])  # before weights, which cancel, round anything
    k = torch.cat([nothing, used.gather(0, order).double().cumsum(0)])
    hits, k = w_pos * hits, w_pos * hits + w_neg * (k - hits)
    low = torch.cat([p[1:], torch.full_like(p[:1], -1.0)])
    a_cut = torch.cat([torch.ones_like(used[:1]), (p > low) & (p >= 0)])
    precision, f1 = _over(hits, k), _over(2 * hits, k + hits[-1:])
    cost = (aim.false_positive[labels] * (k - hits) + aim.false_negative[labels] * (hits[-1:] - hits)) / k[-1:]
    if aim.goal == "f1":
        a_cut[1:] &= (_defensible(hits, k, precision)[1:] & (p > 0) & ~no_positive) | full
    chosen = _choose(aim, precision, recall, f1, cost, a_cut)
    threshold = _cuts(p, low, aim.goal == "f1", full).gather(0, chosen)[0]
    if aim.goal == "cost":
        wrong_yes, wrong_no = w_neg * aim.false_positive[labels], w_pos * aim.false_negative[labels]
        bayes = wrong_yes / (wrong_yes + wrong_no)
        below = (p >= bayes.to(p.dtype)).sum(0, keepdim=True)
        chosen = torch.where(share == 1, below, chosen)
        threshold = torch.where(share == 1, bayes.to(p.dtype), threshold)
    precision, recall, f1, cost = (x.gather(0, chosen)[0] for x in (precision, recall, f1, cost))
    value = {"f1": f1, "precision": recall, "recall": precision, "cost": cost}[aim.goal]
    reached = {"precision": precision, "recall": recall}.get(aim.goal, precision) >= aim.level
    reached &= threshold < torch.inf
    return threshold, value, precision, recall, f1, chosen[0], chosen[0] / used.sum(0), reached


def _defensible(hits: Tensor, k: Tensor, precision: Tensor) -> Tensor:
    """Return which cuts "f1" may take: not far more decisions than positives, and better than chance."""
    positives = hits[-1:]
    few = k <= (F1_SHARE * positives).clamp_min(1.0)
    return few & (precision >= (F1_LIFT * _over(positives, k[-1:])).clamp_max(0.5))


def _cuts(p: Tensor, low: Tensor, never_zero: bool, full: Tensor) -> Tensor:
    """Return the threshold of each cut, the first of which decides for nothing; p descends, `low` is the next."""
    last = torch.where(full, 0.0, p.clamp_max(0.5)) if never_zero else torch.zeros_like(p)
    between = torch.where(low >= 0, low + (p - low) / 2, last)
    between = torch.where((between > low) | (low < 0), between, p)  # neighbouring floats have nothing between them
    return torch.cat([torch.full_like(p[:1], torch.inf), between])


def _class_weights(prior: Tensor, t: Tensor, used: Tensor) -> tuple[Tensor, Tensor]:
    """Return π'/π and (1−π')/(1−π) of each label, 1 where π' is not given or π is 0 or 1."""
    pi = t.sum(0) / used.sum(0).clamp_min(1)
    apply = ~prior.isnan() & (pi > 0) & (pi < 1)
    safe = torch.where(apply, pi, 0.5)
    return torch.where(apply, prior / safe, 1.0), torch.where(apply, (1 - prior) / (1 - safe), 1.0)


def _choose(aim: _ThresholdGoal, precision: Tensor, recall: Tensor, f1: Tensor, cost: Tensor, a_cut: Tensor) -> Tensor:
    """Return which cut (1, L) is best: 0 decides for nothing, k for the k highest."""
    if aim.goal == "recall":
        merit = torch.where(a_cut & (recall >= aim.level), precision, -1.0)
        return len(merit) - 1 - merit.flip(0).argmax(0, keepdim=True)
    if aim.goal == "precision":
        a_cut, merit = a_cut & (precision >= aim.level), recall
        a_cut[0] = True  # what is left where nothing is precise enough
    else:
        merit = f1 if aim.goal == "f1" else -cost
    return torch.where(a_cut, merit, -torch.inf).argmax(0, keepdim=True)


def _over(a: Tensor, b: Tensor) -> Tensor:
    return torch.where(b > 0, a / b, 0.0)


def _inputs(probabilities: ArrayLike, targets: ArrayLike | None) -> tuple[Pair, bool]:
    """Return checked probabilities and targets, all unknown but used where none are given."""
    pair = unlabelled(probabilities) if targets is None else probable(probabilities, targets)
    if len(pair.values) == 0:
        raise ValueError("probabilities has no row: a threshold is chosen on items, so give at least one")
    if pair.known is not None:
        present = positive(pair.targets)
        blank = {"positive": ~present.any(0), "negative": ~(pair.known & ~present).any(0)}
        for kind, labels in blank.items():
            outside = labels & ~((pair.values >= 0) & (pair.values <= 1)).all(0)
            if bool(outside.any()):
                c = int(outside.nonzero()[0])
                raise ValueError(
                    f"probabilities of label {c}, which has no known {kind}, leave [0, 1]: nothing else is there to "
                    "choose its threshold by, so mend them"
                )
    return pair, targets is not None


def _aim(
    goal: Goal,
    level: float | None,
    cost_fp: ArrayLike | float | None,
    cost_fn: ArrayLike | float | None,
    prior: ArrayLike | float | None,
    like: Tensor,
) -> _ThresholdGoal:
    """Check the goal and what belongs to it."""
    n_labels, given = like.shape[1], {"cost_fp": cost_fp, "cost_fn": cost_fn}
    check_choice(Goal, goal=goal)
    needs_level = goal in ("precision", "recall")
    if needs_level and (level is None or not 0 < level <= 1):
        raise ValueError(f"level is {level}: give the {goal} to reach, in (0, 1]")
    if not needs_level and level is not None:
        raise ValueError(f"level is {level}: it belongs to the goals precision and recall, not to {goal}")
    if goal == "cost" and (cost_fp is None or cost_fn is None):
        raise ValueError("cost_fp or cost_fn is missing: give what a false positive and a false negative cost")
    if goal != "cost" and not (cost_fp is None and cost_fn is None):
        raise ValueError(f"cost_fp and cost_fn belong to the goal cost, not to {goal}: leave them out")
    costs = [one_per_label(1.0 if c is None else c, n_labels, name) for name, c in given.items()]
    for name, c in zip(given, costs, strict=True):
        refuse(~((c > 0) & (c < math.inf)), name, c, "a cost is positive and finite")
    frequency = one_per_label(math.nan if prior is None else prior, n_labels, "prior")
    refuse((frequency < 0) | (frequency > 1), "prior", frequency, "a frequency lies in [0, 1]")
    return _ThresholdGoal(
        goal, 0.0 if level is None else float(level), *(x.to(like.device) for x in (*costs, frequency))
    )
