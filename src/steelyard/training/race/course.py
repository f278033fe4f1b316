"""The race of small models over features: items that a model was not fitted to decide which is best."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from steelyard.calibrate.crossfit import folds_of
from steelyard.data.sparse import FeatureMatrix, SparseRows
from steelyard.losses.loss import Cells
from steelyard.metrics import mean_average_precision
from steelyard.models.race.members import Member, Members, MemberSpec
from steelyard.training.race.candidates import (
    TEMPERATURES,
    Items,
    Trial,
    View,
    macro_log_loss,
    n_folds_for,
    refit,
    tempered_log_loss,
    try_candidate,
)
from steelyard.training.race.specs import forest_specs, hidden_specs, linear_specs, loss_specs, named_specs, work_of

FEWEST_FOR_HIDDEN = 160
"""Items below which no hidden layer is tried: folds hold out some 30 of them, too few to say when to stop."""
FINALISTS = 8
"""Candidates that are tried on all folds."""
MOST_MEMBERS = 6
"""Terms of a mean of candidates; one candidate may be several of them."""
WORTH = 1e-3
"""The share by which a further member must lower `cost_of` out of fold."""
HOPELESS = 1.25
"""Times the lowest screened log-loss: candidates above it are not tried on all folds."""
SHARES = (0.4, 0.5, 0.65, 0.75)
"""Of the budget, by the end of each stage: linear models and kernels, forests, hidden layers, losses; the rest is for
finalists."""
DEAR = 0.2
"""The share of the budget above which a finalist is not worth its price where linear models are much cheaper."""
RATE = 4.0e10
"""Work units, multiplications of the models, of one second on two cores: what a budget in seconds is converted by."""
BUDGET = 120 * RATE
"""Work units of a race by default: about two minutes on two cores."""

Say = Callable[[str], None]


@dataclass
class Candidate:
    """A candidate and what became of it."""

    spec: MemberSpec
    work: float
    """Work units of the trial that screened it."""
    seconds: float = 0.0
    screened: float = float("nan")
    """Log-loss of the items and labels that screened it, at its best temperature."""
    screened_map: float = float("nan")
    """Mean average precision of the same."""
    trial: Trial | None = None
    log_loss: float = float("nan")
    """Out of fold, of all items, at its best temperature."""
    map: float = float("nan")
    """Mean average precision out of fold, of all items."""
    weight: float = 0.0
    """In the model that won."""
    note: str = ""

    def row(self) -> dict[str, Any]:
        """Return it as plain JSON."""
        values: dict[str, Any] = {
            "candidate": self.spec.name,
            "spec": self.spec._asdict(),
            "screened_log_loss": _plain(self.screened),
            "screened_map": _plain(self.screened_map),
            "log_loss": _plain(self.log_loss),
            "map": _plain(self.map),
            "weight": self.weight,
            "work": self.work,
            "seconds": round(self.seconds, 3),
            "note": self.note,
        }
        if self.trial is not None:
            values |= {"strength": self.trial.strength, "steps": self.trial.steps, "converged": self.trial.converged}
        return values


class Race(NamedTuple):
    """A finished race."""

    head: Members
    """The model that won, fitted to all items."""
    log_odds: Tensor
    """Its out-of-fold log-odds, (N, L), float32, on the CPU."""
    folds: NDArray[np.int64]
    candidates: list[Candidate]
    facts: dict[str, Any]
    """Further results, as JSON."""

    def document(self) -> dict[str, Any]:
        """Return the race as plain JSON, the best candidates first."""
        order = sorted(self.candidates, key=lambda c: (-c.weight, *np.nan_to_num((c.log_loss, c.screened), nan=np.inf)))
        return {**self.facts, "candidates": [candidate.row() for candidate in order]}


class _Course:
    """State shared by all stages of a race."""

    def __init__(self, items: Items, seed: int, budget: float, say: Say) -> None:
        self.items, self.seed, self.budget, self.say = items, seed, budget, say
        self.screening, self.spent = items.screening, 0.0
        self.views: dict[tuple[Any, ...], View] = {}
        self.candidates: list[Candidate] = []

    def view(self, spec: MemberSpec) -> View:
        """Return the items as a candidate sees them; of kernels only the last is kept in memory."""
        key = spec[:4]
        if key not in self.views:
            self.views = {k: v for k, v in self.views.items() if not k[1]}
            self.views[key] = View(self.items, spec, self.seed)
        return self.views[key]

    def screen(self, specs: Iterable[MemberSpec], share: float) -> None:
        """Try candidates on the folds that screen, while the budget's share for this stage lasts."""
        narrow, columns = self.items.narrowed.targets, self.items.screened_labels
        for spec in specs:
            if any(spec == candidate.spec for candidate in self.candidates):
                continue
            candidate = Candidate(spec, work_of(spec, self.items, len(self.screening)))
            self.candidates.append(candidate)
            is_late = self.spent + candidate.work > share * self.budget
            if (is_late or self.too_dear(spec)) and len(self.candidates) > 1:
                candidate.note = "skipped: over budget"
                continue
            self.spent += candidate.work
            trial = self.attempt(candidate, self.screening)
            odds = trial.log_odds
            if odds.shape[1] > narrow.shape[1]:  # a hidden layer learns all labels, those that screen judge it
                odds = odds[:, columns]
            candidate.trial, candidate.screened = trial, tempered_log_loss(odds, narrow)
            seen = ~odds.isnan().any(1)
            candidate.screened_map = _map(odds[seen], narrow[seen])
            self.say(f"{spec.name}: log-loss {candidate.screened:.4f}, mAP {100 * candidate.screened_map:.1f}")

    def too_dear(self, spec: MemberSpec) -> bool:
        """Return whether trying a candidate on all folds would leave sparse features little budget for another."""
        final = work_of(spec, self.items, self.items.n_folds, path=False)
        return isinstance(self.items.x, SparseRows) and final > DEAR * self.budget

    def attempt(self, candidate: Candidate, folds: list[int], strength: float = 0.0) -> Trial:
        """Try a candidate on some folds, at a strength or at the best, and count the seconds."""
        begun = time.monotonic()
        trial = try_candidate(self.view(candidate.spec), candidate.spec, folds, strength, self.seed)
        candidate.seconds += time.monotonic() - begun
        return trial

    def ranked(self) -> list[Candidate]:
        """Return the candidates that were screened, by log-loss, the best first."""
        return sorted((c for c in self.candidates if c.trial is not None), key=lambda c: c.screened)

    @property
    def ranked_specs(self) -> list[MemberSpec]:
        """The specs of the candidates that were screened, the best first."""
        return [candidate.spec for candidate in self.ranked()]

    @property
    def best_ranking(self) -> MemberSpec:
        """The linear candidate that was screened of the highest mean average precision."""
        return max((c for c in self.ranked() if c.spec.is_linear), key=lambda c: c.screened_map).spec

    def finalists(self) -> list[tuple[Candidate, Trial]]:
        """Try the best of each kind and of the rest on all folds; return them with their trials, the best first."""
        chosen: list[tuple[Candidate, Trial]] = []
        all_folds = list(range(self.items.n_folds))
        ranked, of_kind = self.ranked(), dict[str, Candidate]()
        for candidate in ranked:
            of_kind.setdefault(candidate.spec.kind, candidate)
        others = (candidate for candidate in ranked if of_kind[candidate.spec.kind] is not candidate)
        least = ranked[0].screened
        for candidate in [*of_kind.values(), *others][:FINALISTS]:
            if candidate.screened > HOPELESS * least:
                candidate.note = "screened only: log-loss too high"
                continue
            spec, screened = candidate.spec, candidate.trial
            assert screened is not None
            is_partial = spec.is_linear and self.items.screened_labels is not None  # it saw only some labels
            folds = all_folds if is_partial else all_folds[len(self.screening) :]
            work = work_of(spec, self.items, len(folds), path=False)
            if chosen and self.spent + work > self.budget:
                candidate.note = "screened only: over budget"
                continue
            self.spent += work
            trial = self.attempt(candidate, folds, screened.strength) if folds else screened
            if folds and not is_partial:
                steps = int(np.median([screened.steps] * len(self.screening) + [trial.steps] * len(folds)))
                odds = torch.where(screened.log_odds.isnan(), trial.log_odds, screened.log_odds)
                trial = Trial(odds, steps, screened.converged and trial.converged, screened.strength)
            candidate.trial = trial
            candidate.log_loss = tempered_log_loss(trial.log_odds, self.items.targets)
            candidate.map = mean_average_precision(trial.log_odds, self.items.targets)
            chosen.append((candidate, trial))
            self.say(f"{spec.name}: log-loss {candidate.log_loss:.4f}, mAP {100 * candidate.map:.1f}")
        return sorted(chosen, key=lambda pair: pair[0].log_loss)


def run_race(
    x: FeatureMatrix,
    targets: Tensor,
    seed: int = 0,
    budget: float = 0.0,
    single: bool = False,
    folds: NDArray[np.int64] | None = None,
    assumed: Sequence[int] = (),
    audit: tuple[FeatureMatrix, Tensor] | None = None,
    say: Say = lambda sentence: None,
    cells: Cells | None = None,
    names: SparseRows | None = None,
) -> Race:
    """Return the best small model over features, or the best mean of a few.

    Candidates are screened in stages: transforms of the features and kernels under a linear model, each along a path
    of penalties; forests; hidden layers over the transforms that did best; other losses for the best so far. The best
    of each kind and the best of the rest are then tried on all folds. The winner has the lowest `cost_of` out of fold:
    log-loss over mean average precision. Further members join while the mean of the log-odds has a lower one.

    Args:
        x: features (N, F), dense or sparse.
        targets: (N, L); unknown ones are ignored, see `positives_only`.
        seed: of folds, landmarks and hidden layers.
        budget: work units, 0 for `BUDGET`; candidates that would exceed it are skipped.
        single: whether the result must be a single candidate.
        folds: (N,), the fold of each item; by default folds that share out each label.
        assumed: labels of which only positives are known: their unknown labels are given as absent.
        audit: features and targets of fully labelled items, which decide among the finalists instead of the folds.
        say: takes a sentence about progress.
        cells: coefficients (N, L) of the loss, where items have weights; held-out items are judged without them.
        names: features (L, F) of the labels' names where items are texts, see `Items`.
    """
    budget = budget or BUDGET
    if folds is None:
        folds = folds_of(targets.cpu(), n_folds_for(len(x)), seed)
    items = Items(x, targets, folds, cells, names)
    course = _Course(items, seed, budget, say)
    course.screen(linear_specs(x), SHARES[0])
    course.screen(named_specs(items, course.ranked_specs), SHARES[1])
    course.screen(forest_specs(items), SHARES[1])
    if len(x) >= FEWEST_FOR_HIDDEN:
        course.screen(hidden_specs(course.ranked_specs, isinstance(x, SparseRows)), SHARES[2])
    course.screen(loss_specs(course.ranked_specs, course.best_ranking), SHARES[3])
    best = course.finalists()

    @cache
    def fitted(k: int) -> Member:
        candidate, trial = best[k]
        return refit(course.view(candidate.spec), candidate.spec, trial, seed)

    judged, odds = targets, [trial.log_odds for _, trial in best]
    of_assumed = torch.zeros(targets.shape[1], dtype=torch.bool, device=x.device)
    if audit is None:
        of_assumed[list(assumed)] = True
    else:
        audit_x, judged = audit[0].to(x.device), audit[1].to(x.device)
        odds = [_said_of(fitted(k), audit_x) for k in range(len(best))]
    members = chosen_members(
        FinalistScores.of(odds, judged, of_assumed), single, [c.spec.width + c.spec.trees for c, _ in best]
    )
    head = Members([best[k][0].spec for k, _ in members], x.shape[1], targets.shape[1])
    total = torch.zeros(targets.shape, device=x.device)
    for place, (k, weight) in enumerate(members):
        best[k][0].weight = weight
        head.members[place] = fitted(k).cpu()
        head.weights[place] = weight
        total += weight * best[k][1].log_odds
    facts = {
        "budget": budget,
        "spent": course.spent,
        "folds": items.n_folds,
        "screened_on": len(course.screening),
        "log_loss": macro_log_loss(total, targets),
        "map": _plain(mean_average_precision(total, targets)),
        "converged": all(best[k][1].converged for k, _ in members),
        "decided_by": "audit sample" if audit is not None else "folds",
    }
    return Race(head.eval(), total.float().cpu(), folds, course.candidates, facts)


def _said_of(member: Member, x: FeatureMatrix) -> Tensor:
    """Return the log-odds (N, L) of a member, for sparse features some items at a time."""
    with torch.no_grad():
        if not isinstance(x, SparseRows):
            return member(x)  # type: ignore[no-any-return]
        parts = [member(x[start : start + 256].dense()) for start in range(0, len(x), 256)]
        return torch.cat(parts)


class FinalistScores(NamedTuple):
    """Scores that decide among finalists, on items that none of the models was fitted to."""

    log_odds: list[Tensor]
    """(M, L) of each finalist, at its best temperature."""
    temperatures: list[float]
    targets: Tensor
    """(M, L)."""
    assumed: Tensor
    """(L,), which labels have negatives that are only assumed."""

    @classmethod
    def of(cls, log_odds: Sequence[Tensor], targets: Tensor, assumed: Tensor) -> FinalistScores:
        """Bring log-odds to their best temperature, so that in a mean none counts more than its evidence."""
        scales = [min(TEMPERATURES, key=lambda a, z=z: macro_log_loss(a * z, targets)) for z in log_odds]  # type: ignore[misc]
        return cls([a * z for a, z in zip(scales, log_odds, strict=True)], scales, targets, assumed)


def chosen_members(evidence: FinalistScores, single: bool, widths: Sequence[int]) -> list[tuple[int, float]]:
    """Return which finalists make up the model, each with its weight.

    From the winner on, members join, the same one again or another, while `cost_of` the mean falls; its log-loss alone
    where negatives are only assumed: average precision of the few positives that were annotated is too noisy there.
    """
    odds, targets = evidence.log_odds, evidence.targets
    cost = macro_log_loss if bool(evidence.assumed.any()) else cost_of
    taken = [winner(evidence, widths)]
    total = odds[taken[0]]
    best = cost(total, targets)
    while not single and len(taken) < MOST_MEMBERS:
        costs = [cost((total + z) / (len(taken) + 1), targets) for z in odds]
        k = int(np.argmin(costs))
        if costs[k] > best * (1 - WORTH):
            break
        best = costs[k]
        taken.append(k)
        total = total + odds[k]
    return [(k, evidence.temperatures[k] * taken.count(k) / len(taken)) for k in sorted(set(taken))]


def winner(evidence: FinalistScores, widths: Sequence[int]) -> int:
    """Return the best finalist: that of the lowest `cost_of`, then the simpler.

    The level of labels whose negatives are only assumed is that of being annotated, so such labels are judged by how
    high their known positives come among the other items; where only some labels are of that kind, by the mean rank of
    both.
    """
    assumed = evidence.assumed
    if not bool(assumed.any()):
        costs = [cost_of(z, evidence.targets) for z in evidence.log_odds]
        return min(range(len(widths)), key=lambda k: (costs[k], widths[k]))
    scores = [[-_map(z[:, assumed], evidence.targets[:, assumed]) for z in evidence.log_odds]]
    if not bool(assumed.all()):
        scores.append([macro_log_loss(z[:, ~assumed], evidence.targets[:, ~assumed]) for z in evidence.log_odds])
    ranks = np.argsort(np.argsort(scores, 1, "stable"), 1).mean(0)
    return min(range(len(widths)), key=lambda k: (ranks[k], widths[k]))


def cost_of(log_odds: Tensor, targets: Tensor) -> float:
    """Return log-loss / mean average precision: one per cent of the one counts as much as one per cent of the other.

    Log-loss alone says little of rare labels: a label of frequency π has at most the entropy of π to lose, so that of
    600 labels the 20 most frequent may have half of the mean. Average precision counts every label alike, but has no
    level. A tolerance of one standard error between the two would come to nothing on large tables.
    """
    return macro_log_loss(log_odds, targets) / max(_map(log_odds, targets), 1e-6)


def _map(scores: Tensor, targets: Tensor) -> float:
    """Return the mean average precision, 0 where no label has a positive."""
    value = mean_average_precision(scores, targets)
    return value if value == value else 0.0


def work_units(time: str) -> float:
    """Return the budget for a time such as 90s, 2m or 1h."""
    number, unit = (time[:-1], time[-1]) if time[-1:] in ("s", "m", "h") else (time, "s")
    try:
        seconds = float(number) * {"s": 1, "m": 60, "h": 3600}[unit]
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise ValueError(f"--budget is {time!r}: give a time such as 90s, 5m or 1h")
    return seconds * RATE


def _plain(value: float) -> float | None:
    return None if value != value else float(value)
