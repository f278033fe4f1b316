"""Load labels with out-of-fold probabilities: of a run, from a file of scores, or by logistic regression."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from scipy.special import expit

from steelyard._arrays import Array
from steelyard.calibrate.crossfit import cross_fitted, fewest_of_a_kind, folds_of
from steelyard.config.sections import DataSettings
from steelyard.data.dataset import ArrayDataset, ImageDataset
from steelyard.data.files import csv_rows
from steelyard.data.readers.npz import read_arrays
from steelyard.data.subset import source_of
from steelyard.folder.run_folder import RunFolder, Trained
from steelyard.labels import UNKNOWN, Labels
from steelyard.predict.feature_cache import features_for, kept_for
from steelyard.run.datasets import Datasets, open_datasets, open_to_inspect, paths_of
from steelyard.run.evaluation import judge
from steelyard.run.locate import run_config
from steelyard.training.batches import is_array, n_workers
from steelyard.training.small_models import FEWEST_ITEMS, assuming_negative, baseline
from steelyard.training.step import pick_device

PREFIX = "probability:"
"""Prefix of the columns that `steelyard predict` writes."""


class AuditData(NamedTuple):
    """Labels with probabilities from models that have not seen them."""

    labels: Labels
    probabilities: Array
    """(N, L)."""
    paths: Sequence[str] | None
    """Image file of each item."""
    embeddings: Array | None
    """Array (N, D) where items are features or pass a frozen backbone."""
    note: str = ""
    """Origin of the probabilities, for people to read."""


def is_run(path: str | os.PathLike[str]) -> bool:
    """Return whether the path is the folder of a run."""
    return Path(path).is_dir() and RunFolder(path).is_run


def of_run(run: str | os.PathLike[str], console: Console | None = None) -> AuditData:
    """Return the training items of a run with its out-of-fold probabilities, or else its validation items."""
    trained, config = RunFolder(run).load(), run_config(run)
    if not trained.probability_model.has_probability:
        raise ValueError(
            f"{run} has no probabilities, since {trained.probability_model.why}: run steelyard calibrate first"
        )
    if not config.data.path or not Path(config.data.path).exists():
        raise ValueError(
            f"the data of the run, {config.data.path or 'given in Python'}, is not there: put it back, or audit data "
            "with --scores"
        )
    own = open_datasets(config.data, config.model, config.train.seed)
    folds = RunFolder(run).read_folds()
    if folds is not None:
        items, outputs, note = own.train, folds, "out-of-fold probabilities of all training items"
        if len(folds[0]) != len(items):
            raise ValueError(
                f"the data of the run has {len(items):,} items, but its folds.npz {len(folds[0]):,}: the data was "
                "changed since, train again"
            )
    else:
        items = outputs = _validation(run, own)
        note = f"only the {len(items):,} validation items, since training has seen the others"
    device, workers = pick_device(config.train.device), n_workers(-1, items)
    judged = judge(trained, outputs, config.evaluate, True, device, workers, console)
    labels = items.labels.arranged(trained.names, UNKNOWN).grouped(items.labels.item_groups)
    return AuditData(labels, judged.probabilities.numpy(), paths_of(items), _embeddings(trained, items, console), note)


def _validation(run: str | os.PathLike[str], own: Datasets) -> Any:
    if own.validation is None:
        raise ValueError(
            f"{run} has neither out-of-fold outputs nor validation items: train with --holdout 0.2, or audit the data "
            "with --scores"
        )
    return own.validation


def _embeddings(trained: Trained, items: Any, console: Console | None) -> Array | None:
    """Return features for the search of near-duplicates; None where there are none."""
    if is_array(items):
        return _features(items)
    if isinstance(source_of(items), ImageDataset) and (keeping := kept_for(trained, items, console)) is not None:
        device = pick_device("auto")
        computed = features_for(trained.model, items, keeping, 256, device, n_workers(-1, items), console)[1]
        return np.asarray(computed.inputs)
    return None


def _features(items: Any) -> Array | None:
    inputs = items.inputs
    return inputs if inputs.ndim == 2 and inputs.shape[1] else None


def of_data(settings: DataSettings, scores: str | None, seed: int = 0) -> AuditData:
    """Return labelled data with probabilities from a file or, for features, from logistic regression."""
    data = open_to_inspect(settings).data
    labels, embeddings = data.labels, _features(data) if isinstance(data, ArrayDataset) else None
    if scores is not None:
        return AuditData(labels, read_scores(scores, labels), paths_of(data), embeddings, f"probabilities of {scores}")
    if embeddings is None or len(data) < FEWEST_ITEMS:
        raise ValueError(
            f"{settings.path} has no out-of-fold probabilities: train first and audit the run, or give a file of such "
            "with --scores"
        )
    eta = regression(data, seed)
    note = "out-of-fold probabilities of logistic regression; audit a run for those of a better model"
    return AuditData(labels, eta, None, embeddings, note)


def regression(data: Any, seed: int = 0) -> Array:
    """Return the calibrated out-of-fold probabilities (N, L) of logistic regression on features."""
    known = assuming_negative(data)[0]
    odds = baseline(known, torch.device("cpu"), seed).out_of_fold.double()
    targets = torch.from_numpy(known.labels.rows(np.arange(len(data))))
    if fewest_of_a_kind(targets) > 0:
        odds = cross_fitted("platt", odds, targets, folds_of(targets, seed=seed, groups=known.labels.item_groups))
    return np.asarray(torch.sigmoid(odds).numpy())


def read_scores(path: str, labels: Labels) -> Array:
    """Return the probabilities (N, L) that a file gives the items and labels of a table.

    A CSV file has a column `id` and one column per label, called LABEL or probability:LABEL, as `steelyard predict`
    writes it. An .npz file has `probabilities` or `logits` (N, L), and `ids` and `names` where their order differs.
    """
    file = Path(path)
    if not file.is_file():
        raise ValueError(f"--scores is {path}, which is not a file: give a .csv or .npz file of probabilities")
    if file.suffix.lower() == ".npz":
        values, ids, names = _from_npz(file, labels)
    elif file.suffix.lower() == ".csv":
        values, ids, names = _from_csv(file, labels)
    else:
        raise ValueError(f"--scores is {path}: give a .csv or .npz file")
    places = [_places("item", labels.ids, ids, path), _places("label", labels.names, names, path)]
    ordered = values[np.ix_(*places)]
    bad = np.argwhere(~((ordered >= 0) & (ordered <= 1)))
    if len(bad):
        i, c = bad[0].tolist()
        one = f"probability {ordered[i, c]:g} for item {labels.ids[i]!r}, label {labels.names[c]!r}"
        raise ValueError(f"{path} has {one}: it must lie between 0 and 1")
    return ordered


def _places(kind: str, keys: Sequence[str], there: Sequence[str], path: str) -> list[int]:
    """Return where each item or label of the table is in the file."""
    place = {key: k for k, key in enumerate(there)}
    if len(place) < len(there):
        twice = next(key for k, key in enumerate(there) if place[key] != k)
        raise ValueError(f"{path} lists {kind} {twice!r} twice: keep one")
    missing = next((key for key in keys if key not in place), None)
    if missing is not None:
        raise ValueError(f"{path} has no probabilities of {kind} {missing!r}: give those of every {kind}")
    return [place[key] for key in keys]


def _from_npz(file: Path, labels: Labels) -> tuple[Array, Sequence[str], Sequence[str]]:
    arrays = read_arrays(file)
    if (name := next((n for n in ("probabilities", "logits") if n in arrays), None)) is None:
        raise ValueError(f"{file} holds neither probabilities nor logits: name the array one of these")
    try:
        values = np.asarray(arrays[name], np.float64)
    except ValueError:
        raise ValueError(f"{name} of {file} holds {arrays[name].dtype}: write it again, with numbers") from None
    ids, names = (list(map(str, arrays.get(n, own))) for n, own in (("ids", labels.ids), ("names", labels.names)))
    if values.shape != (len(ids), len(names)):
        raise ValueError(f"{name} of {file} has shape {values.shape}: give {(len(ids), len(names))}")
    return expit(values) if name == "logits" else values, ids, names


def _from_csv(file: Path, labels: Labels) -> tuple[Array, Sequence[str], Sequence[str]]:
    rows = csv_rows(file, "a CSV file of id and probabilities")
    _, head = next(rows, (1, [""]))
    if head[:1] != ["id"]:
        raise ValueError(f"the first column of {file} is {''.join(head[:1])!r}: it must be id")
    names = [name.removeprefix(PREFIX) for name in head]
    columns = [k for k in range(1, len(head)) if names[k] in set(labels.names)]
    ids, values = [], []
    for line, row in rows:
        if row:  # not an empty line
            values.append(_numbers(row, columns, f"{file} line {line}"))
            ids.append(row[0])
    return np.array(values).reshape(len(ids), len(columns)), ids, [names[k] for k in columns]


def _numbers(row: Sequence[str], columns: Sequence[int], where: str) -> list[float]:
    try:
        return [float(row[k]) for k in columns]
    except (IndexError, ValueError):
        raise ValueError(f"{where} lacks a probability: give a number for every label") from None
