"""The prior of labels where a model is used: from a file, or estimated from items without labels."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from steelyard._arrays import Floats
from steelyard._schema import closest
from steelyard.calibrate import LabelSets, UncalibratedWarning, prior_report
from steelyard.calibrate.prior import believed
from steelyard.calibrate.probability import ProbabilityModel
from steelyard.data.files import csv_rows, read_text
from steelyard.labels.matching import some_labels
from steelyard.metrics.measures import number

ESTIMATE = "estimate"
"""Name of the prior that is estimated from the items themselves."""


@dataclass(frozen=True, eq=False)
class Deployment:
    """A prior of deployment, and its origin."""

    prior: Floats
    """π' of each label, (L,); NaN where it stays that of training."""
    report: dict[str, Any]
    """The same in plain JSON, with details."""
    notes: tuple[str, ...] = ()
    """Warnings, one sentence each."""
    moves: bool = True
    """True if any probability changes."""
    sets: LabelSets | None = None
    """Prior of whole label sets, whose frequencies are `prior`; None where each label is shifted alone."""

    def of(self, probability_model: ProbabilityModel) -> ProbabilityModel:
        """Return the probability model for this prior."""
        if self.sets is not None:
            return probability_model.with_sets(self.sets)
        return probability_model.with_prior(self.prior if self.moves else None)


def deployment(
    source: str, probability_model: ProbabilityModel, names: Sequence[str], logits: Tensor | None = None
) -> Deployment:
    """Return the prior from a file (see `read_prior`), or with "estimate" from the logits of items of deployment.

    Estimates are shrunk to what goes beyond chance, see `calibrate.prior.believed`. With label sets, both the
    frequency of each label and the number of labels per item are estimated.

    Args:
        source: a path, or "estimate".
        reading: the calibrated probability model.
        names: of the labels, (L,).
        logits: (N, L), of items where the model is used; their labels are not needed.
    """
    if source == ESTIMATE:
        if logits is None or len(logits) == 0:
            raise ValueError("there are no items to estimate the deployment prior from: give some")
        return _estimated(probability_model, names, logits)
    prior = read_prior(source, names)
    listed = ~np.isnan(prior)
    stuck = listed & ~probability_model.movable
    report = {
        "source": source,
        "labels": _rows(names, listed & ~stuck, prior=prior, calibrated_for=probability_model.prior),
    }
    notes = []
    if not listed.all():
        notes.append(f"{source} has no prior for {_which(names, ~listed)}: the frequency in training is used")
    return Deployment(prior, report, (*notes, *_stuck(names, stuck)))


def read_prior(path: str | Path, names: Sequence[str]) -> Floats:
    """Return the prior (L,) of each label from a file, NaN for a label that is not in it.

    JSON: an object {label: prior}. CSV: two columns, label and prior; a first row without a number is a header. Labels
    are matched by name, in any order; a label that the model does not have is refused.

    Args:
        path: a .json file is read as JSON, others as CSV.
        names: of the labels, (L,).
    """
    pairs = (_json_pairs if Path(path).suffix.lower() == ".json" else _csv_pairs)(path)
    column = {name: c for c, name in enumerate(names)}
    prior = np.full(len(names), np.nan)
    for where, name, value in pairs:
        if name not in column:
            meant = closest(name, names)
            hint = f"did you mean {meant!r}?" if meant else "correct or remove it"
            raise ValueError(f"{path}: {where} names {name!r:.80}, a label that the model does not have: {hint}")
        if not np.isnan(prior[column[name]]):
            raise ValueError(f"{path}: {where} names {name!r:.80} a second time: remove one of them")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise ValueError(f"{path}: {where} gives {name!r:.80} the prior {value!r:.40}: give a number from 0 to 1")
        prior[column[name]] = value
    if np.isnan(prior).all():
        raise ValueError(f"{path} holds no prior: give each label's frequency, as JSON {{label: prior}} or CSV")
    return prior


def _json_pairs(path: str | Path) -> list[tuple[str, str, Any]]:
    try:
        entries = json.loads(read_text(path), object_pairs_hook=tuple)  # which keeps a name that comes twice
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON ({error}): give an object {{label: prior}}") from None
    if not isinstance(entries, tuple):
        raise ValueError(f"{path} holds no JSON object: give {{label: prior}}")
    return [(f"entry {i}", name, value) for i, (name, value) in enumerate(entries, 1)]


def _csv_pairs(path: str | Path) -> list[tuple[str, str, Any]]:
    pairs: list[tuple[str, str, Any]] = []
    rows = [row for _, row in csv_rows(path, "two columns, label and prior") if any(cell.strip() for cell in row)]
    for i, row in enumerate(rows, 1):
        if len(row) != 2:
            raise ValueError(f"{path}: row {i} has {len(row)} columns: give two, label and prior")
        try:
            pairs.append((f"row {i}", row[0], float(row[1])))
        except ValueError:
            if i > 1:  # else it is a header
                pairs.append((f"row {i}", row[0], row[1]))
    return pairs


def _estimated(probability_model: ProbabilityModel, names: Sequence[str], logits: Tensor) -> Deployment:
    plain = probability_model.with_prior(None)
    movable = plain.movable
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UncalibratedWarning)  # reported below, by name
        estimated = prior_report(plain.probability(logits), np.where(movable, plain.prior, 0.0))
    estimate, error, sure, odd = (
        x.cpu().numpy() for x in (estimated.prior, estimated.standard_error, estimated.converged, estimated.suspicious)
    )
    reference = np.full(len(names), float(plain.n_fitted)) if plain.n_fitted else plain.n_known
    shift = believed(plain.prior, estimate, np.where(movable, error, np.nan), len(logits), reference)
    sets, final = None, shift.prior
    if plain.sets is not None and shift.spread > 0:
        sets = _sets_there(plain.sets, plain.log_odds(logits.double()), shift.kept)
        final = np.where(np.isnan(final), np.nan, sets.frequencies[0].numpy())
    columns = dict(prior=final, estimate=estimate, standard_error=error, calibrated_for=plain.prior)
    report = {
        "source": ESTIMATE,
        "items": len(logits),
        "shifted": shift.spread > 0,
        "chance_without_shift": number(shift.chance),
        "spread_of_log_odds": shift.spread,
        "converged": bool(sure[movable].all()),
        "suspicious": [names[c] for c in np.flatnonzero(odd).tolist()],
        "sizes": None if sets is None else sets.frequencies[1].tolist(),
        "labels": _rows(names, movable, **columns),
    }
    notes = []
    if shift.spread == 0:
        notes.append("these items do not show that labels are more or less frequent than before, so no prior changes")
    border = movable & ((estimate == 0) | (estimate == 1))
    if border.any():
        notes.append(f"{_which(names, border)}: estimated as never or always present, so its prior stays as it was")
    if (odd & ~border).any():
        notes.append(
            f"the prior of {_which(names, odd & ~border)} is unreliable: its probabilities are visibly uncalibrated"
        )
    return Deployment(final, report, (*notes, *_stuck(names, ~movable)), shift.spread > 0, sets)


def _sets_there(labels_here: LabelSets, log_odds: Tensor, kept: Floats) -> LabelSets:
    """Return the estimated distribution of label sets, with each label's shift shrunk to its believed share.

    A shift common to all labels belongs to the number of labels per item, b_k + k t, and is kept whole.
    """
    labels_there, share = labels_here.estimate(log_odds), torch.from_numpy(kept)
    shift = labels_there.labels - labels_here.labels
    common = shift[share > 0].mean()
    sizes = labels_there.sizes + common * torch.arange(len(labels_there.sizes))
    return LabelSets(labels_here.labels + share * (shift - common), sizes)


def _stuck(names: Sequence[str], stuck: NDArray[np.bool_]) -> list[str]:
    sentence = "never or always present in training, so no prior can shift it"
    return [f"{_which(names, stuck)}: {sentence}"] if stuck.any() else []


def _which(names: Sequence[str], which: NDArray[np.bool_]) -> str:
    return some_labels([names[c] for c in np.flatnonzero(which).tolist()])


def _rows(names: Sequence[str], which: NDArray[np.bool_], **columns: Floats) -> dict[str, dict[str, float | None]]:
    return {
        names[c]: {key: number(float(column[c])) for key, column in columns.items()}
        for c in np.flatnonzero(which).tolist()
    }
