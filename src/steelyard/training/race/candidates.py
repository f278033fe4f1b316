"""Small models over features in memory: fitted to all folds of the items, judged on what each fold held out."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import softplus

from steelyard.data.sparse import FeatureMatrix, SparseRows
from steelyard.labels.targets import as_targets, known, labels_of_all_frequencies
from steelyard.losses.bce import BCE
from steelyard.losses.loss import Cells, known_cells
from steelyard.losses.pair import PairLoss
from steelyard.models.race.forest import Forest, grow_forest
from steelyard.models.race.members import LOSSES, Member, MemberSpec
from steelyard.models.race.transforms import Transform, make_transform
from steelyard.training.race.hidden import fit_hidden, most_steps
from steelyard.training.race.linear import (
    TOLERANCE,
    LinearFit,
    Rotation,
    Unrotated,
    fit_linear,
    is_by_item,
    is_convex,
    joined,
    picked,
    start_from_bce,
    stationary_bias,
)

SCREENED = 400
"""Held-out items that suffice to tell candidates apart: with many items one fold does."""
SCREENED_LABELS = 200
"""Labels that suffice to choose the penalty of a linear model, taken evenly from the most to the least frequent."""
STRENGTHS = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
"""C of a linear model, times the mean square norm of its features: from the strongest penalty to the weakest."""
TEMPERATURES = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.15, 1.3, 1.5, 1.8)
"""By which log-odds are scaled to see what calibration will make of them."""
ROUGH = 1e-4
"""The tolerance of fits that only rank candidates."""
FINE = 1e-5
"""The tolerance of fits whose out-of-fold log-odds are kept."""


class Items:
    """Training items: features, targets, and the fold of each.

    Args:
        x: features (N, F), float32, dense or sparse.
        targets: (N, L); unknown ones are ignored.
        folds: (N,), 0 … K−1.
        cells: coefficients (N, L) of the loss; by default those of known targets.
        names: features (L, F) of the labels' names read as texts, or None. A name is one more item to train on, of
            which its label alone is known; it is never held out.
    """

    def __init__(
        self,
        x: FeatureMatrix,
        targets: Tensor,
        folds: NDArray[np.int64],
        cells: Cells | None = None,
        names: SparseRows | None = None,
    ) -> None:
        self.x, self.targets, self.folds, self.names = x, targets, folds, names
        self.n_folds = int(folds.max()) + 1
        self.cells = _cells_of(targets) if cells is None else cells

    def split(self, fold: int) -> tuple[Tensor, Tensor]:
        """Return the items that a fold trains on, and those that it holds out."""
        held = torch.from_numpy(self.folds == fold).to(self.x.device)
        return (~held).nonzero()[:, 0], held.nonzero()[:, 0]

    @cached_property
    def name_cells(self) -> Cells:
        """The coefficients (L, L) of names: present on the diagonal where a name has a known term, else unknown.

        A name has the mean weight of an item.
        """
        assert self.names is not None
        there = torch.from_numpy(np.diff(self.names.cells.indptr) > 0).to(self.targets.device)
        weights = (self.cells.a + self.cells.b).amax(1)
        cells = _cells_of(2 * torch.diag(there.to(torch.int8)) - 1)
        return cells._replace(a=cells.a * weights[weights > 0].mean())

    def level_shift(self, rows: Tensor, loss: PairLoss | None = None, named: bool = False) -> Tensor:
        """Return how much higher the level of each label is among all items than among some, (L,), in logits of a loss.

        A fold that holds out positives trains on fewer, so its model gives them lower log-odds than other folds give
        their negatives: pooled over folds, scores of a label would fall where its labels rise. With the shift each
        item has the level of the model that is fitted to all items.

        Args:
            rows: the items that a fold trains on.
            loss: what the logits are of; None for log-odds.
            named: whether names are trained on too.
        """
        both = [self.cells, picked(self.cells, rows)]
        whole, part = (stationary_bias(loss or BCE(), joined(c, self.name_cells) if named else c) for c in both)
        return (whole - part).float()

    @property
    def screening(self) -> list[int]:
        """The folds that suffice to tell candidates apart: some 400 held-out items."""
        share = -(-SCREENED * self.n_folds // max(len(self.x), 1))
        return list(range(min(max(share, 1), self.n_folds)))

    @cached_property
    def screened_labels(self) -> Tensor | None:
        """The labels that screen linear candidates; None for all of them."""
        return labels_of_all_frequencies(self.targets, SCREENED_LABELS)

    @cached_property
    def narrowed(self) -> Items:
        """The same items with `screened_labels` alone."""
        columns = self.screened_labels
        if columns is None:
            return self
        names = None if self.names is None else self.names[columns]
        return Items(self.x, self.targets[:, columns], self.folds, picked(self.cells, (..., columns)), names)


def n_folds_for(n_items: int) -> int:
    """Return how many folds items are shared out to: the fewer items, the more each fold needs to train on."""
    return 5 if n_items < 3000 else 3


class View:
    """Items seen through a transform, which all models over it share."""

    def __init__(self, items: Items, spec: MemberSpec, seed: int) -> None:
        self.items = items
        self.transform: Transform = make_transform(spec.transform, items.x.shape[1], *spec[1:4])
        self.transform.to(items.x.device).fit(items.x, seed)
        self.x: Any = self.transform(items.x)

    @cached_property
    def narrowed(self) -> View:
        """The same features with the labels that screen candidates."""
        self.rotation, self.unit  # noqa: B018 - computed once, for both
        narrow = copy(self)
        narrow.items = self.items.narrowed
        return narrow

    @cached_property
    def rotation(self) -> Rotation | Unrotated:
        """The transformed features in the basis of their principal axes; sparse ones stay as they are."""
        return Unrotated(self.x) if isinstance(self.x, SparseRows) else Rotation.of(self.x)

    @property
    def names(self) -> SparseRows:
        """The transformed features of labels' names."""
        names: SparseRows = self.transform(self.items.names)
        return names

    @cached_property
    def unit(self) -> float:
        """The C at which a strength is 1."""
        return 1 / max(self.rotation.mean_square, 1e-12)

    @cached_property
    def scaling(self) -> tuple[Tensor, Tensor]:
        """Mean (F,) and one deviation for all features, by which inputs of hidden layers are scaled."""
        mean = self.x.mean(0)
        return mean, (self.x - mean).square().mean().sqrt().clamp_min(1e-12)

    @cached_property
    def scaled(self) -> Tensor:
        """Features of mean 0 and mean square 1."""
        mean, deviation = self.scaling
        scaled: Tensor = (self.x - mean) / deviation
        return scaled


class Trial(NamedTuple):
    """A candidate tried on some folds."""

    log_odds: Tensor
    """Out of fold, (N, L); NaN where the fold was not tried."""
    steps: int
    """Of the optimizer, to the best look; the median over folds."""
    converged: bool
    strength: float = 0.0
    """C of a linear model, in units of the features' scale; 0 for others."""


class Linear(NamedTuple):
    """A linear model of some items: its loss, and how its logits become log-odds."""

    view: View
    loss: PairLoss
    read: Callable[[Tensor], Tensor]
    alike: bool = False
    """True if loss and log-odds are the same function for every label."""
    named: bool = False
    """True if the labels' names are items to train on."""

    @classmethod
    def of(cls, view: View, loss: PairLoss, named: bool = False) -> Linear:
        """Return the linear model of a loss whose link gives log-odds."""
        return cls(view, loss, loss.link, True, named)

    def path(self, folds: list[int]) -> Trial:
        """Fit along the path of strengths on some folds; return the trial of the lowest held-out log-loss.

        Of many labels only those that screen are fitted, where labels do not differ in their loss.
        """
        if self.alike and self.view.items.screened_labels is not None:
            return Linear(self.view.narrowed, self.loss, self.read, named=self.named).path(folds)
        best, best_loss, worse = None, float("inf"), 0
        fits: dict[int, LinearFit] = {}
        for strength in STRENGTHS:
            trial = self.trial(strength, folds, fits, ROUGH)
            now = macro_log_loss(trial.log_odds, self.view.items.targets)
            if now < best_loss:
                best, best_loss, worse = trial, now, 0
            else:
                worse += 1
                if worse == 2:
                    break
        assert best is not None
        return best

    def trial(self, strength: float, folds: list[int], fits: dict[int, LinearFit], tolerance: float) -> Trial:
        """Fit one strength on some folds, each from its fit in `fits`, which is replaced."""
        items, x = self.view.items, self.view.rotation.x
        odds = _nothing(items)
        for fold in folds:
            rows, held = items.split(fold)
            fits[fold] = self.fitted(x[rows], picked(items.cells, rows), strength, fits.get(fold), tolerance)
            odds[held] = self.read(fits[fold].logits(x[held])) + items.level_shift(rows, named=self.named)
        steps = int(np.median([fits[fold].steps for fold in folds]))
        return Trial(odds, steps, all(bool(fits[fold].converged.all()) for fold in folds), strength)

    def chosen(self) -> tuple[Trial, dict[int, LinearFit]]:
        """Choose the strength on the screening folds; return all folds' trial and fits at that strength."""
        strength = self.path(self.view.items.screening).strength
        fits: dict[int, LinearFit] = {}
        return self.trial(strength, list(range(self.view.items.n_folds)), fits, FINE), fits

    def refit(self, strength: float) -> LinearFit:
        """Return the model of the transformed features, fitted to all items."""
        rotation = self.view.rotation
        return rotation.unrotated(self.fitted(rotation.x, self.view.items.cells, strength, None, TOLERANCE))

    def fitted(
        self, x: FeatureMatrix, cells: Cells, strength: float, start: LinearFit | None, tolerance: float
    ) -> LinearFit:
        """Fit to some rotated features; a loss that is not convex begins at logistic regression."""
        if self.named:
            assert isinstance(x, SparseRows)
            x, cells = self.view.names.below(x), joined(cells, self.view.items.name_cells)
        c = strength * self.view.unit
        if start is None and not is_convex(self.loss):
            start = start_from_bce(x, cells, self.loss, c, ROUGH)
        return fit_linear(x, cells, self.loss, c, start, tolerance)


def try_candidate(view: View, spec: MemberSpec, folds: list[int], strength: float, seed: int) -> Trial:
    """Try a candidate on some folds; a linear one at a strength, with 0 at the strength that suits it best there."""
    if spec.trees:
        return _try_forest(view, spec, folds, seed)
    loss = LOSSES[spec.loss]().to(view.x.device)
    if not spec.is_linear:
        return _try_hidden(view, spec, loss, folds, seed)
    model = Linear.of(view, loss, spec.named)
    return model.trial(strength, folds, {}, FINE) if strength else model.path(folds)


def _try_forest(view: View, spec: MemberSpec, folds: list[int], seed: int) -> Trial:
    """Grow a forest on some folds."""
    odds = _nothing(view.items)
    for fold in folds:
        rows, held = view.items.split(fold)
        odds[held] = _grown(view, spec, rows, seed).of_many(view.x[held]) + view.items.level_shift(rows)
    return Trial(odds, 0, True)


def _grown(view: View, spec: MemberSpec, rows: Tensor, seed: int) -> Forest:
    return grow_forest(view.x[rows], picked(view.items.cells, rows), spec.trees, spec.leaf, spec.share, seed)


def _try_hidden(view: View, spec: MemberSpec, loss: PairLoss, folds: list[int], seed: int) -> Trial:
    """Train a hidden layer on some folds, each until its held-out items say stop."""
    items, most = view.items, most_steps(len(view.x))
    columns = slice(None) if items.screened_labels is None else items.screened_labels
    odds, steps = _nothing(items), []
    for fold in folds:
        rows, held = items.split(fold)
        cells = picked(items.cells, rows)
        x, t = view.scaled[held], items.narrowed.targets[held]

        def look(network: nn.Module, x: Tensor = x, t: Tensor = t) -> float:
            return tempered_log_loss(loss.link(network(x)[:, columns]), t)

        network = new_network(view, spec, cells, seed)
        steps.append(fit_hidden(network, view.scaled[rows], cells, loss, look, most, seed))
        with torch.no_grad():
            odds[held] = loss.link(network(x)) + items.level_shift(rows)
    return Trial(odds, int(np.median(steps)), max(steps) < most)


def new_network(view: View, spec: MemberSpec, cells: Cells, seed: int) -> nn.Sequential:
    """Return a hidden layer that has not been trained, its bias at the stationary point of its loss."""
    torch.manual_seed(seed)
    member = Member(spec._replace(transform="none", kernel=""), view.x.shape[1], cells.a.shape[1])
    network = member.network.to(view.x.device)
    first, last = network[1], network[4]
    assert isinstance(first, nn.Linear)
    assert isinstance(last, nn.Linear)
    nn.init.kaiming_normal_(first.weight, nonlinearity="relu")
    nn.init.zeros_(first.bias)
    nn.init.normal_(last.weight, std=0.01 / spec.width**0.5)
    last.bias.data.copy_(stationary_bias(LOSSES[spec.loss]().to(cells.a.device), cells))
    return network


def refit(view: View, spec: MemberSpec, trial: Trial, seed: int) -> Member:
    """Return the member that a candidate's trial stands for, fitted to all items.

    Weights that are sums of items keep the penalty per item that they had in the folds. At the same C they grow with
    the items: log-odds would be spread more than those out of fold, to which calibrators are fitted, and calibrated
    probabilities would be too sure.
    """
    items, loss = view.items, LOSSES[spec.loss]().to(view.x.device)
    forest = _grown(view, spec, torch.arange(len(items.x), device=items.x.device), seed) if spec.trees else None
    if forest is not None:
        spec = spec._replace(nodes=len(forest.leaf), depth=forest.depth)
    member = Member(spec, items.x.shape[1], items.targets.shape[1]).to(items.x.device)
    member.transform.load_state_dict(view.transform.state_dict())
    if forest is not None:
        member.network[0] = forest
    elif spec.is_linear:
        share = 1 - 1 / items.n_folds if is_by_item(items.x) else 1.0
        head = Linear.of(view, loss, spec.named).refit(trial.strength * share)
        last = member.network[0]
        assert isinstance(last, nn.Linear)
        last.weight.data.copy_(head.weight.T)
        last.bias.data.copy_(head.bias)
    else:
        network = new_network(view, spec, items.cells, seed)
        fit_hidden(network, view.scaled, items.cells, loss, None, trial.steps, seed)
        member.network.load_state_dict(network.state_dict())
        first = member.network[1]
        assert isinstance(first, nn.Linear)
        mean, deviation = view.scaling  # taken into the first layer
        first.bias.data -= first.weight.data @ (mean / deviation)
        first.weight.data /= deviation
    return member.eval()


def macro_log_loss(log_odds: Tensor, targets: Tensor) -> float:
    """Return the log-loss of known labels, the mean over labels; those whose log-odds are NaN are left out."""
    cost, counted = _costs(log_odds, targets)
    n = counted.sum(0)
    return float((cost.sum(0) / n.clamp_min(1))[n > 0].mean())


def tempered_log_loss(log_odds: Tensor, targets: Tensor) -> float:
    """Return the least `macro_log_loss` of a few temperatures: what calibration will leave of it."""
    return min(macro_log_loss(a * log_odds, targets) for a in TEMPERATURES)


def _costs(log_odds: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    counted = known(targets) & ~log_odds.isnan()
    z = torch.where(counted, log_odds, 0.0).double()
    t = targets.clamp_min(0).double()
    return torch.where(counted, softplus(z) - t * z, 0.0), counted


def _cells_of(targets: Tensor) -> Cells:
    like = torch.empty(targets.shape, device=targets.device)
    return known_cells(as_targets(targets, like), torch.float32)


def _nothing(items: Items) -> Tensor:
    return torch.full(items.targets.shape, torch.nan, device=items.x.device)
