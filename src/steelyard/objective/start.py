"""The initial bias of training, at which the objective is stationary while the model ignores its input."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from steelyard.balance.weighting import Weighting
from steelyard.labels import Labels
from steelyard.labels.targets import as_targets, known
from steelyard.losses.loss import Cells, NoLink
from steelyard.losses.pair import PairLoss
from steelyard.objective.expected_positives import ExpectedPositives
from steelyard.objective.objective import Objective

FLOOR = 0.5
"""Number of positives, or of negatives, assumed for a label without any."""
FARTHEST = 30.0
"""Largest initial logit; links are checked to be monotone up to it."""
_MOST_EXPECTED = 0.95
_FROM_END = 0.05  # log-odds between the start and the end of a link's range, where nothing would learn
_STEPS = 60  # of bisection: 60 / 2⁶⁰ is below float64's resolution of a logit


class CellSums(NamedTuple):
    """Σa and Σb of every label, float64 (L,): the weights with which positives and negatives enter the first epoch."""

    a: Tensor
    b: Tensor

    @property
    def log_odds(self) -> Tensor:
        """log Σa/Σb."""
        return torch.log(self.a) - torch.log(self.b)


def prior_logits(
    objective: Objective,
    labels: Labels,
    frequencies: NDArray[np.float64] | None = None,
    n_epochs: int = 1,
    batch_size: int = 128,
) -> Tensor:
    """Return the logits z (L,), float64, at which the cells of the first epoch are stationary.

    Formula:
        Σ a ℓ₊′(z) + Σ b ℓ₋′(z) = 0

    A bias that starts there gives every label the probability Σa/(Σa+Σb) by the loss's link: the frequency of the
    label as training will see it, so that no step is spent on learning it. For BCE over known labels z is the log-odds
    of the label's frequency. Raises `NoLink` where the loss has none.

    Args:
        objective, labels, frequencies, n_epochs, batch_size: as `first_cells` takes them.

    Examples:
        >>> labels = sy.Labels(np.array([[1, 0], [0, 0], [0, 1], [0, -1]]))
        >>> torch.sigmoid(sy.objective.prior_logits(sy.Objective(sy.losses.BCE()), labels))  # 1 of 4, 1 of 3 known
        tensor([0.2500, 0.3333], dtype=torch.float64)
        >>> z = sy.objective.prior_logits(sy.Objective(sy.losses.SPA()), labels)
        >>> sy.losses.SPA().probability(z)  # by the link of another loss, the same frequencies
        tensor([0.2500, 0.3333], dtype=torch.float64)
    """
    loss = checked_loss(objective)
    return start_at(loss, first_cells(objective, labels, frequencies, n_epochs, batch_size).log_odds)


def first_cells(
    objective: Objective,
    labels: Labels,
    frequencies: NDArray[np.float64] | None = None,
    n_epochs: int = 1,
    batch_size: int = 128,
) -> CellSums:
    """Return Σa and Σb over the training cells as rule, masks and weights give them in the first epoch.

    Masks enter by the chance that a cell is kept, pseudo-labels as ½, whatever an unfinished run has stored. A label
    without positives, or without negatives, has half a cell of them; one without known items has the odds of all
    labels together. Under `ExpectedPositives` a label without known negatives has its share of the expected number. A
    rule that starts at 0 has even odds.

    Args:
        objective: what will be minimised, on the CPU; its rule and weights are left in epoch 1 of `n_epochs`.
        labels: of the training items, in the order of their numbers.
        frequencies: how often an epoch visits each item (N,), up to a factor; None: all equally often.
        n_epochs: how many epochs there will be, on which some rules depend.
        batch_size: items of a step: some weights depend on who else is in the batch.
    """
    if objective.resolver.start_at_zero:
        even = torch.ones(labels.n_labels, dtype=torch.float64)
        return CellSums(even, even)
    n = labels.n_items
    weights = torch.ones(n, dtype=torch.float64) if frequencies is None else torch.from_numpy(frequencies).double()
    order = np.random.default_rng(0).permutation(n)
    sums, counts = torch.zeros(2, 2, labels.n_labels, dtype=torch.float64)
    with _in_first_epoch(objective, labels.n_labels, n_epochs):
        for start in range(0, n, batch_size):
            index = order[start : start + batch_size]
            rows = torch.from_numpy(index)
            cells = _cells(objective, torch.from_numpy(labels.rows(index)), rows)
            drawn = weights[rows, None]
            for side, coefficient in enumerate((cells.a, cells.b)):
                sums[side] += (drawn * coefficient).sum(0)
                counts[side] += ((drawn > 0) & (coefficient > 0)).sum(0)
    a, b = floored(sums, counts)
    if isinstance(objective.resolver, ExpectedPositives):
        share = (objective.resolver.expected_positives * a / a.sum()).clamp_max(_MOST_EXPECTED)
        b = torch.where((counts[1] == 0) & (counts[0] > 0), a * (1 - share) / share, b)
    return CellSums(a, b)


def start_at(loss: PairLoss, log_odds: Tensor, outputs: Tensor | None = None) -> Tensor:
    """Return the bias (L,), float64, at which the mean probability by the loss's link has these log-odds.

    Log-odds that the link does not reach (ASL's ends at η = .942) become those just inside its end.

    Args:
        loss: one that has a link.
        log_odds: (L,).
        outputs: logits (n, L) of some items without the bias; None: 0, as of a last layer whose weights are 0.
    """
    given = log_odds.new_zeros(1, len(log_odds), dtype=torch.float64) if outputs is None else outputs.double()

    def reached(bias: Tensor) -> Tensor:
        return torch.logit(torch.sigmoid(loss.link(given + bias)).mean(0))

    low, high = (torch.full_like(log_odds, end, dtype=torch.float64) for end in (-FARTHEST, FARTHEST))
    target = log_odds.double().clamp(reached(low) + _FROM_END, reached(high) - _FROM_END)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        below = reached(middle) < target
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return (low + high) / 2


def checked_loss(objective: Objective) -> PairLoss:
    """Return the loss of an objective; raise `NoLink` where it has no link."""
    if not isinstance(objective.loss, PairLoss):
        raise NoLink(f"{type(objective.loss).__name__} has no link, so no bias at which it is stationary")
    objective.loss.check_link()
    return objective.loss


def _cells(objective: Objective, values: Tensor, index: Tensor) -> Cells:
    """Return the cells of some items in the first epoch, masked as they are on average, and weighted."""
    logits = torch.zeros(values.shape, dtype=torch.float64)
    targets = as_targets(values, logits, False)
    cells = objective.cells(targets, logits, index)
    if objective.masking is not None:
        keep_positive, keep_negative = objective.masking.keep_probabilities
        t = objective.masked(targets)
        cells = cells.times(torch.where(known(t), torch.where(t >= 0.5, keep_positive, keep_negative), 1.0))
    return cells


def floored(sums: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Return Σa and Σb above 0: half a cell where there is none, all labels' sums for a label without known items."""
    pooled = sums.sum(1, keepdim=True)
    pooled = torch.where(pooled > 0, pooled, FLOOR)
    other = sums.flip(0) / counts.flip(0).clamp_min(1)  # the mean weight of a cell of the other side
    floored = torch.where(sums > 0, sums, FLOOR * other)
    a, b = torch.where((sums > 0).any(0), floored, pooled)
    return a, b


class _Undecided:
    """A store of pseudo-labels before the first prediction."""

    feedback = "raw"

    def __init__(self, n_labels: int) -> None:
        self.n_labels = n_labels

    def start_epoch(self, epoch: int) -> None:
        """Do nothing, since there is nothing to carry over."""

    def read(self, index: Tensor) -> Tensor:
        """Return ½ for every label of the items."""
        return torch.full((len(index), self.n_labels), 0.5)


@contextmanager
def _in_first_epoch(objective: Objective, n_labels: int, n_epochs: int) -> Iterator[None]:
    """Put the objective into epoch 1, in evaluation mode, with a store that an unfinished run has not written to."""
    resolver: Any = objective.resolver
    was_training, store = objective.training, resolver.stored()
    objective.eval()
    if store is not None:
        resolver.store = _Undecided(n_labels)
    try:
        resolver.start_epoch(1, n_epochs)
        for weighting in objective.weightings:
            if isinstance(weighting, Weighting):
                weighting.start_epoch(1, n_epochs)
        with torch.no_grad():
            yield
    finally:
        objective.train(was_training)
        if store is not None:
            resolver.store = store
