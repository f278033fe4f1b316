"""The folder of a run: its files are written completely or not at all, and read without pickle."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from steelyard._arrays import Floats
from steelyard._files import read_text, remove_partial, replacing, write_atomic
from steelyard._locks import Taken, sole
from steelyard._sealed import checksum
from steelyard.calibrate.probability import ProbabilityModel
from steelyard.data.columns.encoder import FILE, Encoder
from steelyard.labels.targets import ArrayLike
from steelyard.models import Model, load_model
from steelyard.training.checkpoint import load_tensors, save_tensors

_FORMAT = "steelyard model"
_VERSION = 1
_BEGUN = "steelyard run"
_FILES = (  # but for those by which a run is known: they are written over
    *("config.toml", "model.safetensors", "calibration.json", "metrics.json", "history.jsonl", "report.html"),
    *("card.md", "model.onnx", "model.json", "race.json", "folds.npz", "corrections.csv", "corrections.json", FILE),
)
_PARTIAL = re.compile(r"\.(started\.json|config\.toml)\.\d+\.partial")
_LOCK = ".writing"
_OF_FOLDER = ("format", "config", "folder")  # what `started.json` holds besides the facts of a run
_FOLDERS = ("checkpoint", "pseudo-labels", "index", "tensorboard")


@final
@dataclass(frozen=True, eq=False)
class Trained:
    """A trained model and everything needed to use it."""

    model: Model
    probability_model: ProbabilityModel
    """Maps its logits to probabilities and decisions."""
    names: tuple[str, ...]
    """Of the labels, in the order of its logits."""
    counts: Floats
    """Positives of each label in training, (L,)."""
    n_known: Floats
    """Known labels of each in training, (L,)."""
    single_label: bool
    """True if every training item has exactly one label."""
    config: str
    """The configuration of its run, as TOML."""
    folder: Path | None = None
    """Its run folder, if it has one."""
    encoder: Encoder | None = None
    """Encoder of columns, such as texts; None if inputs are features or images."""

    @property
    def prior(self) -> Floats:
        """Positives over known labels in training, (L,); NaN where nothing is known."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(self.counts / self.n_known)

    @property
    def thresholds(self) -> Floats:
        """The lowest probability, (L,), at which a label is decided present."""
        return self.probability_model.thresholds

    def read_by(self, probability_model: ProbabilityModel) -> Trained:
        """Return the same with another probability model."""
        return replace(self, probability_model=probability_model)


@final
class RunFolder:
    """The files of one run.

    `config.toml` comes first, after `started.json`, and makes a folder a run, `run.json` last and makes it a finished
    one; between them `model.json`, `model.safetensors`, `calibration.json`, `metrics.json`, `history.jsonl`,
    `report.html`, `card.md`, and the folders `checkpoint`, `pseudo-labels`, `index`, `tensorboard` and `cache`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Be the only process that writes here, in a folder that is made if need be; a second one is refused."""
        if self.path.exists() and not self.path.is_dir():
            yield  # `create` says what is wrong with it
            return
        new = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            with ExitStack() as held:
                try:
                    held.enter_context(sole(self / _LOCK))
                except Taken as other:
                    raise ValueError(
                        f"{self.path} is being written by {other}: wait until that is done, or give another folder "
                        f"(if it is gone, remove {self / _LOCK})"
                    ) from None
                yield
        finally:
            with suppress(OSError):  # of a run that was refused nothing is left
                for folder in new:
                    folder.rmdir()

    @property
    def is_run(self) -> bool:
        """Return whether a run was started here: there is a configuration and a file that only a run writes."""
        return (self / "config.toml").is_file() and self._is_marked

    @property
    def is_finished(self) -> bool:
        """Return whether the run here is finished."""
        return (self / "run.json").is_file()

    def create(self, overwrite: bool, config: str, started: Mapping[str, Any]) -> None:
        """Make the folder and begin a run in it.

        A finished run is refused, or with `overwrite` removed, its cache of features excepted. A folder that holds
        something else and no file that only a run writes is always refused, whatever its files are called: nothing that
        is not ours is ever removed.

        Args:
            overwrite: whether what is left of a run here is removed.
            config: the configuration, as TOML.
            started: plain facts by which the run is known again, see `unfinished`.
        """
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"{self.path} is a file: give a run folder, or a new path")
        if self.path.is_dir() and not self._is_marked:
            strange = sorted(
                p.name for p in self.path.iterdir() if p.name not in ("cache", _LOCK) and not _PARTIAL.fullmatch(p.name)
            )
            if strange:
                raise ValueError(
                    f"{self.path} holds {strange[0]!r} and is not a Steelyard run: give a folder that is empty or new"
                )
        if self.is_finished and not overwrite:
            raise ValueError(f"{self.path} holds a finished run: give another folder with --out, or --overwrite")
        self.path.mkdir(parents=True, exist_ok=True)
        remove_partial(self.path)
        if overwrite:
            (self / "run.json").unlink(missing_ok=True)  # first, so that what an interruption leaves is unfinished
            for name in _FOLDERS:
                shutil.rmtree(self / name, ignore_errors=True)
            for name in _FILES:
                (self / name).unlink(missing_ok=True)
        begun = {"format": _BEGUN, **started, "config": _digest(config), "folder": str(self.path.absolute())}
        write_atomic(self / "started.json", json.dumps(begun, allow_nan=False) + "\n")
        write_atomic(self / "config.toml", config)

    def write_corrections(self, path: str | os.PathLike[str]) -> None:
        """Keep a copy of the answers that were merged into the labels: the file itself may grow later."""
        ending = ".json" if Path(path).suffix.lower() == ".json" else ".csv"
        write_atomic(self / f"corrections{ending}", Path(path).read_bytes())

    @property
    def corrections(self) -> Path | None:
        """The copy of the answers, None where the run keeps none."""
        return next((file for ending in ("csv", "json") if (file := self / f"corrections.{ending}").is_file()), None)

    def unfinished(self) -> dict[str, Any] | None:
        """Return the facts of the run that was begun here and not finished, None where there is none."""
        if not self.is_run or self.is_finished:
            return None
        try:
            tomllib.loads(self.read_config())
        except tomllib.TOMLDecodeError as error:
            raise ValueError(
                f"{self / 'config.toml'} is corrupt ({error}): restore it, or begin again with --overwrite"
            ) from None
        return {name: value for name, value in self._json("started.json").items() if name not in _OF_FOLDER}

    @property
    def first_place(self) -> str | None:
        """The folder in which the run was begun; None if it was not noted, as in the first version."""
        noted = self._found("started.json").get("folder")
        return noted if isinstance(noted, str) else None

    @property
    def _is_marked(self) -> bool:
        """Return whether a file here belongs to a run."""
        started, model = self._found("started.json"), self._found("model.json")
        return started.get("format") == _BEGUN or "training labels" in started or model.get("format") == _FORMAT

    def _found(self, name: str) -> dict[str, Any]:
        """Return the content of a JSON file, empty if it cannot be read."""
        try:
            return self._json(name)
        except ValueError:
            return {}

    def read_config(self) -> str:
        """Return the configuration, which must be the one the run was started with."""
        text = self._text("config.toml")
        if self._found("started.json").get("config") not in (None, _digest(text)):  # the first version noted none
            raise ValueError(
                f"{self / 'config.toml'} is corrupt or was edited (started.json has another hash): restore it, or "
                "train again with --overwrite"
            )
        return text

    def write_model(
        self, model: Model, names: Sequence[str], counts: ArrayLike, n_known: ArrayLike, single_label: bool
    ) -> None:
        """Write the model: its tensors, what they are, and the labels with their counts in training.

        Args:
            model: as it is to be used.
            names: of the labels, (L,).
            counts, n_known: positives and known labels of each in training, (L,).
            single_label: whether every training item has exactly one label.
        """
        n, known = (np.asarray(x, np.float64) for x in (counts, n_known))
        if not len(names) == len(n) == len(known) == model.n_labels:
            raise ValueError(f"the model has {model.n_labels} labels: give as many names, counts and n_known")
        content = {
            "format": _FORMAT,
            "version": _VERSION,
            "model": model.describe(),
            "names": list(names),
            "counts": n.tolist(),
            "n_known": known.tolist(),
            "single_label": single_label,
        }
        save_tensors(self / "model.safetensors", model.state_dict(), {"names": list(names)})
        write_atomic(self / "model.json", _text_of({**content, "sha256": checksum(content)}))

    def write_trained(self, trained: Trained) -> None:
        """Write a model, how its outputs are read, and the encoder of its inputs."""
        self.write_model(trained.model.cpu(), trained.names, trained.counts, trained.n_known, trained.single_label)
        self.write_probability_model(trained.probability_model)
        if trained.encoder is not None:
            trained.encoder.save(self.path)

    def write_probability_model(self, probability_model: ProbabilityModel) -> None:
        """Write how logits become probabilities."""
        probability_model.save(self / "calibration.json")

    def write_race(self, document: Mapping[str, Any]) -> None:
        """Write the candidates of a race and what became of them."""
        write_atomic(self / "race.json", json.dumps(document, allow_nan=False, indent=1) + "\n")

    def read_race(self) -> dict[str, Any] | None:
        """Return the candidates of the run's race, None where it had none."""
        return self._json("race.json") if (self / "race.json").is_file() else None

    def write_folds(self, logits: ArrayLike, targets: ArrayLike, folds: ArrayLike, grouped: bool = False) -> None:
        """Write out-of-fold outputs, by models fitted without an item's fold: logits and targets (N, L), folds (N,).

        `grouped`: whether items of one group are in one fold, which calibrators have to keep to.
        """
        given = {"logits": logits, "targets": targets, "folds": folds, "grouped": grouped}
        arrays: dict[str, Any] = {name: np.asarray(array) for name, array in given.items()}
        with replacing(self / "folds.npz") as file:
            np.savez_compressed(file, **arrays)

    def read_folds(self) -> tuple[NDArray[np.float32], NDArray[Any]] | None:
        """Return the out-of-fold logits and targets (N, L), None where the run has none."""
        if not (self / "folds.npz").is_file():
            return None
        try:
            with np.load(self / "folds.npz", allow_pickle=False) as arrays:
                return arrays["logits"], arrays["targets"]
        except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
            raise ValueError(f"{self / 'folds.npz'} is corrupt ({error}): restore it, or train again") from None

    def read_group_folds(self) -> NDArray[np.int64] | None:
        """Return the fold (N,) of each item of `read_folds` where items of one group are in one fold, else None."""
        if self.read_folds() is None:
            return None
        with np.load(self / "folds.npz", allow_pickle=False) as arrays:
            return arrays["folds"] if bool(arrays.get("grouped", False)) else None

    def write_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Write metrics by the name of the items they were measured on, beside those of other items."""
        before = self.read_metrics() if (self / "metrics.json").exists() else {}
        write_atomic(self / "metrics.json", json.dumps({**before, **metrics}, allow_nan=False, indent=1) + "\n")

    def read_metrics(self) -> dict[str, Any]:
        """Return the metrics by the name of the items they were measured on."""
        return self._json("metrics.json")

    def finish(self, facts: Mapping[str, Any]) -> None:
        """Write `run.json`, which makes the run a finished one: versions, seconds and other plain facts."""
        write_atomic(self / "run.json", json.dumps({"finished": True, **facts}, allow_nan=False, indent=1) + "\n")

    def read_facts(self) -> dict[str, Any]:
        """Return the content of `run.json`."""
        return self._json("run.json")

    def load(self, module: Any = None) -> Trained:
        """Return the trained model; a folder that is no run, unfinished or damaged is one sentence.

        `module` is the user's own, of a run that was trained with one.
        """
        self.check_finished()
        document = self._json("model.json")
        if document.pop("sha256", None) != checksum(document) or document.get("format") != _FORMAT:
            raise ValueError(f"{self / 'model.json'} is corrupt or was edited: restore it, or train again")
        if document["version"] != _VERSION:
            newer = document["version"]
            raise ValueError(
                f"{self / 'model.json'} has version {newer}, but this steelyard reads {_VERSION}: upgrade steelyard"
            )
        tensors, notes = load_tensors(self / "model.safetensors")
        names = tuple(document["names"])
        probability_model = ProbabilityModel.load(self / "calibration.json")
        if notes.get("names") != list(names) or probability_model.n_labels != len(names):
            raise ValueError(f"the files of {self.path} belong to different runs: restore them, or train again")
        try:
            model = load_model(document["model"], tensors, module)
        except ValueError as error:
            raise ValueError(f"{self.path} cannot be loaded: {error}") from None
        counts, n_known = (np.array(document[name], np.float64) for name in ("counts", "n_known"))
        config = self.read_config()
        single, encoder = document["single_label"], Encoder.load(self.path)
        if encoder is not None and model.input.shape != (encoder.width,):
            raise ValueError(f"the files of {self.path} belong to different runs: restore them, or train again")
        return Trained(model, probability_model, names, counts, n_known, single, config, self.path, encoder)

    def check_finished(self) -> None:
        """Raise unless this is the folder of a finished run."""
        if not self.path.is_dir():
            raise ValueError(f"{self.path} is not a folder: give the folder of a run")
        if not self.is_run:
            raise ValueError(
                f"{self.path} is not a Steelyard run, it has no config.toml and started.json: give the folder of a run"
            )
        if not self.is_finished:
            raise ValueError(
                f"{self.path} holds an unfinished run: continue it with "
                + shlex.join(["steelyard", "train", str(self / "config.toml"), "--out", str(self.path)])
            )

    def _json(self, name: str) -> dict[str, Any]:
        try:
            document = json.loads(self._text(name))
        except (json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"{self / name} is corrupt, not JSON ({error}): restore it, or train again") from None
        if not isinstance(document, dict):
            raise ValueError(f"{self / name} is corrupt, not a JSON object: restore it, or train again")
        return document

    def _text(self, name: str) -> str:
        return read_text(self / name, "restore it, or train again")


def _digest(config: str) -> str:
    return hashlib.sha256(config.encode()).hexdigest()


def _text_of(content: Mapping[str, Any]) -> str:
    """Plain JSON, one line per field."""
    lines = (f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in content.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"
