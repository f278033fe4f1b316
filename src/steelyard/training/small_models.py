"""Small models over features: fitted to all items, judged by what each fold held out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from steelyard.calibrate.crossfit import folds_of
from steelyard.data.dataset import ArrayDataset, as_inputs, as_tensor
from steelyard.data.sparse import FeatureMatrix, SparseRows, is_wide
from steelyard.labels import Labels
from steelyard.labels.targets import UNKNOWN, as_targets
from steelyard.losses import BCE
from steelyard.losses.loss import Cells, known_cells
from steelyard.losses.pair import PairLoss
from steelyard.models import Input
from steelyard.models.heads import LinearHead
from steelyard.models.model import Model
from steelyard.models.race.members import MemberSpec
from steelyard.models.race.transforms import Standardised
from steelyard.objective import Objective
from steelyard.training.batches import is_array
from steelyard.training.loop import Outcome
from steelyard.training.race.candidates import Items, Linear, View, n_folds_for
from steelyard.training.race.course import Race, Say, run_race
from steelyard.training.race.linear import LinearFit

FEW_NEGATIVES = 10
"""A label with fewer known negatives, while some of its cells are unknown, is one of which only positives are known."""
FEWEST_ITEMS = 20
"""Items below which folds say nothing."""
MOST_CELLS = 3e8
"""Items × labels, or items × features, above which small models do not fit in memory."""


class OutOfFold(NamedTuple):
    """Out-of-fold log-odds: each item scored by models fitted without its fold."""

    logits: Tensor
    """(N, L), float32."""
    targets: Tensor
    """(N, L)."""
    folds: NDArray[np.int64]
    """(N,)."""


class Baseline(NamedTuple):
    """Logistic regression on the same items, the usual alternative."""

    out_of_fold: Tensor
    """Log-odds (N, L) of the training items."""
    model: LinearFit
    """Of the features as they are, fitted to all training items, on the CPU."""


def features_of(data: Any) -> FeatureMatrix:
    """Return the features (N, F) of a data set in memory, float32; sparse ones of many columns stay so."""
    if is_wide(data.inputs):
        return SparseRows(data.inputs)
    return as_tensor(as_inputs(data.inputs)).float()


def positives_only(targets: NDArray[Any]) -> NDArray[np.bool_]:
    """Return the labels (L,) of which only positives are known: some unknown, and fewer than ten known negatives."""
    unknown = (targets == UNKNOWN).any(0)
    negatives = ((targets != UNKNOWN) & (targets < 0.5)).sum(0)
    return np.asarray(unknown & (negatives < FEW_NEGATIVES))


def assuming_negative(data: Any) -> tuple[Any, tuple[int, ...]]:
    """Return features with unknown labels taken as absent wherever only positives are known, and which labels.

    Without negatives there is nothing to tell a present label from: what is learned for such a label is the
    probability that it was annotated.
    """
    values = data.labels.values
    only = positives_only(values)
    if not only.any():
        return data, ()
    assumed = np.where(only, np.maximum(values, 0), values)
    labels = Labels(assumed, data.labels.names, data.labels.ids).grouped(data.labels.item_groups)
    return ArrayDataset(data.inputs, labels, "features", getattr(data, "weights", None)), tuple(
        np.flatnonzero(only).tolist()
    )


def annotated_sentence(names: Sequence[str], only: Sequence[int]) -> str:
    """Return what is assumed of labels whose negatives are not known."""
    which = "every label" if len(only) == len(names) else f"{len(only)} labels, such as {names[only[0]]},"
    return (
        f"of {which} only positives are known, so unknown is taken as absent: its probability is that of being "
        "annotated, not of being present"
    )


def annotated_share(labels: Labels, only: Sequence[int], per_item: float) -> NDArray[np.float64]:
    """Return the share of each label's positives that was annotated, (L,): NaN for labels with known negatives.

    Nothing is known of it without `per_item`: then it is 1, and probabilities are those of being annotated.

    Args:
        labels: of training, unknown ones taken as absent.
        only: the labels of which only positives are known.
        per_item: how many of those labels an item has on average, 0 where nobody knows.
    """
    columns = list(only)
    share = np.full(labels.n_labels, np.nan)
    if not per_item:
        share[columns] = 1
        return share
    observed = float(labels.counts[columns].sum()) / len(labels)
    if per_item < observed:
        raise ValueError(
            f"--positives-per-item is {per_item:g}, but items have {observed:.3g} annotated labels on average: give "
            "more than that"
        )
    share[columns] = observed / per_item
    return share


def annotated_note(names: Sequence[str], share: NDArray[np.float64], per_item: float = 0.0) -> str:
    """Return what probabilities mean for labels of which training knew positives alone.

    Args:
        names: of all labels.
        share: of `annotated_share`.
        per_item: as given for it, 0 to leave it out of the sentence.
    """
    only = np.flatnonzero(~np.isnan(share)).tolist()
    if (share[only] == 1).all():
        return annotated_sentence(names, only)
    to = f"so that items have {per_item:g} of them on average, " if per_item else ""
    return (
        f"of {len(only)} labels only positives are known: their probabilities are scaled {to}as if positives had been "
        "annotated at random; scores on such items are of annotations"
    )


def race(
    data: Any,
    settings: Any,
    device: torch.device,
    say: Say,
    only: Sequence[int] = (),
    audit: Any = None,
    names: Any = None,
) -> tuple[Race, OutOfFold]:
    """Run the race on features.

    Args:
        data: the training items; unknown labels are taken as absent where `only` says so.
        settings: those of [train].
        device: where to compute.
        say: takes a sentence about progress.
        only: the labels of which only positives are known.
        audit: fully labelled items that decide among the finalists, or None.
        names: features (L, F) of the labels' names read as texts, scipy sparse, or None.
    """
    targets = _targets_of(data)
    x, folds = features_of(data).to(device), _folds_of(data, targets, settings.seed)
    judged = None if audit is None else (features_of(audit), _targets_of(audit))
    cells = _known_cells(data, targets, device)
    few = isinstance(x, SparseRows) and len(data) >= data.labels.n_labels  # names have as many cells as labels squared
    texts = SparseRows(names, device) if few and names is not None else None
    result = run_race(
        x, targets.to(device), settings.seed, settings.budget, settings.single, folds, only, judged, say, cells, texts
    )
    return result, OutOfFold(result.log_odds, targets, result.folds)


def _targets_of(data: Any) -> Tensor:
    return torch.from_numpy(data.labels.rows(np.arange(len(data))))


def linear(data: Any, objective: Objective, device: torch.device, seed: int) -> tuple[LinearFit, OutOfFold, bool]:
    """Fit the linear model of an objective whose cells are fixed, its penalty chosen by folds.

    Returns the model of the features as they are, its out-of-fold logits, and whether all labels converged.
    """
    targets = _targets_of(data)
    view = standardised_view(data, device, seed, _weighted(_cells(objective, targets), data))
    assert isinstance(objective.loss, PairLoss)
    model = Linear(view, objective.loss.to(device), objective.to(device).log_odds)
    trial, fits = model.chosen()
    logits = torch.empty(targets.shape)
    for fold, fit in fits.items():
        rows, held = view.items.split(fold)
        shift = view.items.level_shift(rows, model.loss)
        logits[held.cpu()] = (fit.logits(view.rotation.x[held]) + shift).cpu()
    fit = _of_features(model.refit(trial.strength), view)
    return fit, OutOfFold(logits, targets, view.items.folds), trial.converged


def baseline(data: Any, device: torch.device, seed: int) -> Baseline:
    """Return logistic regression with its penalty chosen by folds."""
    view = standardised_view(data, device, seed, _known_cells(data, _targets_of(data), device))
    model = Linear.of(view, BCE())
    trial, _ = model.chosen()
    fit = _of_features(model.refit(trial.strength), view)
    return Baseline(trial.log_odds.cpu(), fit._replace(weight=fit.weight.cpu(), bias=fit.bias.cpu()))


def standardised_view(data: Any, device: torch.device, seed: int, cells: Cells | None = None) -> View:
    """Return training items in folds, their features standardised, or as they are where they are sparse."""
    targets = _targets_of(data)
    if cells is not None:
        cells = Cells(*(None if part is None else part.to(device) for part in cells))  # type: ignore[arg-type]
    items = Items(features_of(data).to(device), targets.to(device), _folds_of(data, targets, seed), cells)
    return View(items, MemberSpec("none" if isinstance(items.x, SparseRows) else "standardise"), seed)


def _weighted(cells: Cells, data: Any) -> Cells:
    """Return the coefficients of all cells times the weight of their item."""
    if (given := getattr(data, "weights", None)) is None:
        return cells
    weights = torch.from_numpy(given).to(cells.a.device)[:, None]
    return cells._replace(a=cells.a * weights, b=cells.b * weights)


def _known_cells(data: Any, targets: Tensor, device: torch.device) -> Cells | None:
    """Return the coefficients of known targets where items have weights, None where each counts as 1."""
    if getattr(data, "weights", None) is None:
        return None
    there = targets.to(device)
    return _weighted(known_cells(as_targets(there, torch.empty(there.shape, device=device)), torch.float32), data)


def _folds_of(data: Any, targets: Tensor, seed: int) -> NDArray[np.int64]:
    return folds_of(targets, n_folds_for(len(data)), seed, data.labels.item_groups)


def fill_linear(model: Model, fit: LinearFit) -> None:
    """Make a linear model of features as they are the head of `model`, which normalises them first."""
    head, normalise = model.head, model.normalise
    assert isinstance(head, LinearHead)
    weight, bias = fit.weight.cpu(), fit.bias.cpu()
    head.last.weight.data.copy_((weight * normalise.std[:, None]).T)
    head.last.bias.data.copy_(bias + normalise.mean @ weight)


def start_from_regression(model: Model, data: Any, device: torch.device, seed: int) -> bool:
    """Start a linear model, its biases at the objective's stationary point, at logistic regression's weights.

    Objectives that cannot be fitted to convergence (random masks, pseudo-labels, samplers) are trained step by step
    from there. The biases become regression's, moved by as much as the objective moves the level of each label.
    Returns whether the model is one that can be started so.
    """
    head, settings = model.head, model.settings
    if settings.bias == "zero" or settings.backbone != "linear" or not isinstance(head, LinearHead):
        return False
    if not is_array(data) or not is_small(data, model.input):
        return False
    known = assuming_negative(data)[0]
    n, k = (torch.tensor(part, dtype=torch.float64) for part in (known.labels.counts, known.labels.n_known))
    level = torch.log(n.clamp_min(0.5)) - torch.log((k - n).clamp_min(0.5))
    moved = head.last.bias.data - level.to(head.last.bias.dtype)
    fill_linear(model, baseline(known, device, seed).model)
    head.last.bias.data += moved
    return True


def is_small(data: Any, given: Input) -> bool:
    """Return whether small models can be fitted to features: enough items for folds, and all fit in memory."""
    if given.kind == "features" and is_array(data) and is_wide(data.inputs):
        cells = max(data.inputs.nnz, given.shape[0] * data.labels.n_labels)
    else:
        cells = len(data) * given.shape[0]
    return len(data) >= FEWEST_ITEMS and max(cells, len(data) * data.labels.n_labels) <= MOST_CELLS


def _of_features(fit: LinearFit, view: View) -> LinearFit:
    """Return a model of standardised features as one of the features themselves."""
    transform = view.transform
    if isinstance(view.x, SparseRows):
        return fit
    assert isinstance(transform, Standardised)
    weight = fit.weight / transform.deviation[:, None]
    return fit._replace(weight=weight, bias=fit.bias - transform.mean @ weight)


def outcome_of(network: nn.Module, begun: float, converged: bool) -> Outcome:
    """Return a training without epochs as the training loop would report it."""
    weights = {name: tensor.detach().cpu() for name, tensor in network.state_dict().items()}
    return Outcome(weights, 0, [], time.monotonic() - begun, False, converged, [], 0.0)


def _cells(objective: Objective, targets: Tensor) -> Cells:
    """Return the coefficients of all cells, and let the objective note its mean weights."""
    objective.start_epoch(1, 1)
    objective.train()
    nothing = torch.zeros(targets.shape)
    with torch.no_grad():
        return objective.cells(as_targets(targets, nothing), nothing, torch.arange(len(targets)))
