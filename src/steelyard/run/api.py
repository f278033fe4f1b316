"""Training in Python: `fit` trains on data, `Run` gives probabilities."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from torch import nn

from steelyard._files import write_atomic
from steelyard.balance.processes import n_processes
from steelyard.config.sections import DataSettings
from steelyard.config.settings import Config, load_config
from steelyard.data.columns.mixed import MixedDataset, columns_of
from steelyard.data.dataset import ArrayDataset, item_weights
from steelyard.data.given import given_inputs, given_labels
from steelyard.data.inputs import Inputs, inputs_of
from steelyard.data.subset import Labelled
from steelyard.folder.run_folder import RunFolder, Trained
from steelyard.labels import Labels
from steelyard.models.own import OWN, OwnModule
from steelyard.predict.inputs import inputs_at, side_of
from steelyard.predict.prediction import batch_logits
from steelyard.run.datasets import Datasets
from steelyard.run.train import prepare
from steelyard.run.train import run as run_training
from steelyard.training import group
from steelyard.training.batches import all_outputs
from steelyard.training.checkpoint import read_history
from steelyard.training.distributed import together
from steelyard.training.progress import Logger
from steelyard.training.step import pick_device

Data: TypeAlias = "str | os.PathLike[str] | Labelled | tuple[Any, Any]"
"""A path as `steelyard inspect` takes it, a data set, or (inputs, labels)."""


class Run:
    """A trained run: it gives logits, probabilities and decisions for inputs, and holds its metrics.

    Make one with `steelyard.fit` or `Run.load`.

    Args:
        trained: the model and how its logits become probabilities.
        metrics: scores, by the items they were measured on: "validation", "test".
        history: one dict per epoch.

    Examples:
        >>> import numpy as np
        >>> import steelyard as sy
        >>> x = np.random.default_rng(0).normal(size=(80, 3))
        >>> y = (x[:, :2] > 0).astype(int)
        >>> run = sy.fit((x, y), "bce", validation=0.25, verbose=False)
        >>> run.names
        ('0', '1')
        >>> run.probability(x).shape
        (80, 2)
        >>> run.metrics["validation"]["items"]
        20
    """

    def __init__(self, trained: Trained, metrics: dict[str, Any], history: list[dict[str, Any]]) -> None:
        self.trained, self.metrics, self.history = trained, metrics, history

    @classmethod
    def load(cls, folder: str | os.PathLike[str], model: nn.Module | None = None) -> Run:
        """Return the finished run in a folder.

        Args:
            folder: the run folder.
            model: the module of your own that the run was trained with, if any: only its weights are kept.

        Examples:
            >>> import tempfile
            >>> import numpy as np
            >>> import steelyard as sy
            >>> x = np.random.default_rng(0).normal(size=(80, 3))
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     run = sy.fit((x, (x > 0).astype(int)), "bce", out=f"{folder}/run", verbose=False)
            ...     again = sy.Run.load(f"{folder}/run")
            >>> bool((again.probability(x) == run.probability(x)).all())
            True
        """
        return _done(RunFolder(folder).load(model), Path(folder))

    def save(self, folder: str | os.PathLike[str], overwrite: bool = False) -> Run:
        """Write the run to a folder, for `Run.load` and every command, and return the run in it.

        Model, calibration, thresholds, metrics and history are written, but no report and no search index.

        Args:
            folder: a new or empty folder.
            overwrite: whether a run in it is replaced.

        Examples:
            >>> import tempfile
            >>> from pathlib import Path
            >>> import numpy as np
            >>> import steelyard as sy
            >>> x = np.random.default_rng(0).normal(size=(80, 3))
            >>> run = sy.fit((x, (x > 0).astype(int)), "bce", verbose=False)
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     _ = run.save(f"{folder}/run")
            ...     Path(f"{folder}/run/metrics.json").exists()
            True
        """
        target, trained = RunFolder(folder), self.trained
        if trained.folder is not None and trained.folder.absolute() == target.path.absolute():
            raise ValueError(f"{folder} is the folder of this run: give another")
        with target.writing():
            target.create(overwrite, trained.config, {})
            if trained.folder is not None and (answers := RunFolder(trained.folder).corrections) is not None:
                target.write_corrections(answers)
            target.write_trained(trained)
            target.write_metrics(self.metrics)
            write_atomic(target / "history.jsonl", "".join(json.dumps(record) + "\n" for record in self.history))
            target.finish({})
        return Run.load(folder, own.module if isinstance(own := trained.model.backbone, OwnModule) else None)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the labels, in the order of the columns of `probability`."""
        return self.trained.names

    def logits(self, inputs: Any, batch_size: int = 256, device: str = "auto") -> NDArray[np.float32]:
        """Return the logits (N, L) of inputs.

        Args:
            inputs: an array, a tensor, a DataFrame, a data set, or a path as for `steelyard predict`.
            batch_size: items per batch.
            device: "auto", "cpu", "cuda" or "cuda:N".

        Examples:
            >>> import numpy as np
            >>> import steelyard as sy
            >>> x = np.random.default_rng(0).normal(size=(80, 3))
            >>> run = sy.fit((x, (x > 0).astype(int)), "bce", verbose=False)
            >>> run.logits(x[:5]).shape
            (5, 3)
        """
        model, torch_device = self.trained.model, pick_device(device, "device")
        if model.input.kind == "pair" and isinstance(inputs, Labelled):
            return np.asarray(all_outputs(model.to(torch_device), inputs, batch_size, torch_device)[0])
        rows = batch_logits(self.trained, self._inputs(inputs), batch_size, torch_device, 0)
        return np.concatenate([np.zeros((0, len(self.names)), np.float32), *(logits.numpy() for logits, _ in rows)])

    def probability(self, inputs: Any, batch_size: int = 256, device: str = "auto") -> NDArray[np.float32]:
        """Return the calibrated probabilities η (N, L) of inputs.

        Args:
            inputs: an array, a tensor, a DataFrame, a data set, or a path as for `steelyard predict`.
            batch_size: items per batch.
            device: "auto", "cpu", "cuda" or "cuda:N".

        Examples:
            >>> import numpy as np
            >>> import steelyard as sy
            >>> x = np.random.default_rng(0).normal(size=(80, 3))
            >>> run = sy.fit((x, (x > 0).astype(int)), "bce", verbose=False)
            >>> eta = run.probability(x)
            >>> bool(eta[x[:, 0] > 1, 0].min() > eta[x[:, 0] < -1, 0].max())
            True
        """
        eta: NDArray[np.float32] = self.trained.probability_model.probability(self.logits(inputs, batch_size, device))
        return eta

    def decide(self, inputs: Any, batch_size: int = 256, device: str = "auto") -> NDArray[np.bool_]:
        """Return which labels are present by the thresholds, bool (N, L).

        Args:
            inputs: an array, a tensor, a DataFrame, a data set, or a path as for `steelyard predict`.
            batch_size: items per batch.
            device: "auto", "cpu", "cuda" or "cuda:N".

        Examples:
            >>> import numpy as np
            >>> import steelyard as sy
            >>> x = np.random.default_rng(0).normal(size=(80, 3))
            >>> run = sy.fit((x, (x > 0).astype(int)), "bce", verbose=False)
            >>> decisions = run.decide(x)
            >>> bool((decisions == (x > 0)).mean() > 0.9)
            True
        """
        decisions: NDArray[np.bool_] = self.trained.probability_model.decisions(
            self.probability(inputs, batch_size, device)
        )
        return decisions

    def _inputs(self, inputs: Any) -> Inputs:
        if isinstance(inputs, str | os.PathLike):
            return inputs_at(self.trained, os.fspath(inputs))
        if isinstance(inputs, Labelled):
            return inputs_of(inputs, side_of(self.trained.model))
        encoder = self.trained.encoder
        columns = None if encoder is None else columns_of(inputs)
        array = given_inputs(inputs) if encoder is None or columns is None else encoder.features(columns)
        nothing = Labels(np.full((array.shape[0], 1), -1, np.int8))
        return inputs_of(ArrayDataset(array, nothing), side_of(self.trained.model))


def fit(
    data: Data,
    recipe: str | None = "auto",
    *,
    validation: Data | float | None = None,
    test: Data | None = None,
    groups: Any = None,
    audit: Data | None = None,
    out: str | os.PathLike[str] | None = None,
    settings: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    verbose: bool = True,
    logger: Logger | None = None,
    sample_weight: Any = None,
    model: nn.Module | None = None,
) -> Run:
    """Train on `data` and return the run: model, calibrated probabilities, thresholds and metrics.

    Args:
        data: a path as for `steelyard inspect`, a data set, or (inputs, labels): inputs (N, …), an array, a sparse
            matrix, texts, or a table of pandas, polars or Arrow with columns of numbers, categories and texts; labels
            (N, L) of 1, 0, −1 or NaN (unknown) or between: an array, a table, a sparse matrix, one list of label names
            per item, or `Labels`.
        recipe: a name of `steelyard train --recipes`; "auto" chooses one, None takes the plain settings.
        validation: share of the items to hold out (0.1), or other items in the form of `data`.
        test: other items, scored at the end.
        groups: one value per item, such as a patient: items that share it stay together in every split. With a path,
            the name of a column.
        audit: fully labelled items in the form of `data`, which decide among the candidates of recipe "auto".
        out: the run folder; an unfinished run in it resumes. None keeps the run in memory only.
        settings: nested dict in the shape of the TOML file, such as {"train": {"epochs": 5}}.
        overwrite: whether a run in `out` is replaced.
        verbose: whether progress is shown.
        logger: an object with `log(numbers, epoch)`, such as one for MLflow (examples/with_mlflow.py).
        sample_weight: weight of each item, (N,), for models fitted to features; scores count every item alike.
        model: a module of your own from a batch of inputs to logits (B, L), or to features (B, K), which get a linear
            head. A copy is trained by the training loop with the recipe's objective. Inputs come as they are: features
            as float32, images as floats in 0..1.

    Examples:
        From arrays; −1 is unknown:

        >>> import numpy as np
        >>> import steelyard as sy
        >>> x = np.random.default_rng(0).normal(size=(80, 3))
        >>> y = (x[:, :2] > 0).astype(int)
        >>> y[:10, 0] = -1
        >>> run = sy.fit((x, y), "bce", validation=0.25, verbose=False)
        >>> run.decide(x[:4]).shape
        (4, 2)

        From a table of image files, into a run folder:

        >>> run = sy.fit("photos/labels.csv", out="runs/photos")  # doctest: +SKIP
        >>> run.probability("new-photos/")  # doctest: +SKIP
    """
    where: dict[str, Any] = {}
    datasets = None
    if isinstance(data, str | os.PathLike):
        if sample_weight is not None:
            raise ValueError("sample_weight is given, but data is a path: give (inputs, labels), or leave it out")
        given = {"path": data, "validation": validation, "test": test, "group": groups, "audit": audit}
        where = {name: _file_or_share(name, value) for name, value in given.items() if value is not None}
    else:
        _check_settings(settings)
        train = _dataset("data", data)
        if groups is not None:
            train = copy(train)
            train.labels = train.labels.grouped(groups)
        if sample_weight is not None:
            train = copy(train)
            train.weights = item_weights(sample_weight, len(train))
        if isinstance(validation, int | float):
            where["validation"], validation = float(validation), None
        elif validation is not None:
            where["validation"] = 0.0
        others = {"validation": validation, "test": test, "audit": audit}
        datasets = Datasets(
            train, **{name: _dataset(name, part, train.labels) for name, part in others.items() if part is not None}
        )

    own = {} if model is None else {"backbone": OWN}

    def configure(name: str | None) -> Config:
        return load_config(None, name, (), settings).with_overrides({"data": where, "model": own})

    console = Console() if verbose else None
    with torch.random.fork_rng(range(torch.cuda.device_count())), group.joined():
        if out is None and n_processes() > 1:
            raise ValueError("out is None, but several processes train: give a run folder that all of them see")
        request = together(lambda: prepare(configure, recipe, datasets))._replace(logger=logger, module=model)
        if out is not None:
            return _done(run_training(request, Path(out), overwrite, console), Path(out))
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "run"
            return _done(replace(run_training(request, folder, False, console, draws=False), folder=None), folder)


def _done(trained: Trained, out: Path) -> Run:
    folder = RunFolder(out)
    return Run(trained, folder.read_metrics(), read_history(folder / "history.jsonl"))


def _file_or_share(name: str, given: Any) -> str | float:
    if isinstance(given, str | os.PathLike):
        return os.fspath(given)
    if name == "validation" and isinstance(given, int | float):
        return float(given)
    raise ValueError(f"{name} is a {type(given).__name__}, but data is a path: give a path or a split too")


def _check_settings(settings: Mapping[str, Any] | None) -> None:
    """Refuse settings about files if the data is not a path; defaults, as in a run's configuration, are accepted."""
    given = (settings or {}).get("data") or {}
    for name, value in given.items() if isinstance(given, Mapping) else ():
        if name not in ("validation", "size", "cache") and value and value != getattr(DataSettings(), name, value):
            raise ValueError(f"settings has data.{name}, but data is not a path: leave it out")


def _dataset(name: str, data: Any, like: Labels | None = None) -> Any:
    """Return a data set unchanged, or (inputs, labels) as a data set; labels without names get those of `like`."""
    if isinstance(data, Labelled):
        return data
    if not (isinstance(data, tuple) and len(data) == 2):
        forms = "a path, a data set, or" if like is None else "like data, a data set or"
        raise ValueError(f"{name} is a {type(data).__name__}: give {forms} (inputs, labels)")
    inputs, labels = data[0], given_labels(data[1], None if like is None else like.names)
    if (columns := columns_of(inputs)) is not None:
        return MixedDataset(columns, labels)
    return ArrayDataset(given_inputs(inputs), labels)
