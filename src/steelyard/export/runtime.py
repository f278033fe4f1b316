"""Predictions through onnxruntime, from a run that was written as ONNX."""

from __future__ import annotations

import json
import math
import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from steelyard.data.inputs import Inputs, open_inputs
from steelyard.data.streams import OnBad
from steelyard.export.check import session_of
from steelyard.export.graph import OUTPUTS
from steelyard.export.onnx import FORMAT, VERSION, require
from steelyard.folder.fingerprints import fingerprints
from steelyard.folder.run_folder import RunFolder
from steelyard.models.inputs import Input
from steelyard.predict.files import Form, Format
from steelyard.predict.prediction import Predicted, Progress, Scored, check_finite, file_sink, pour, scored_of

Floats: TypeAlias = NDArray[np.float32]
Said: TypeAlias = tuple[Floats, NDArray[np.bool_], Floats]
"""η, decisions and logits, (B, L) each."""


@final
@dataclass(frozen=True, eq=False)
class OnnxModel:
    """A file of `export`, ready to run; made by `load_onnx`."""

    path: Path
    names: tuple[str, ...]
    """Of the labels, in the order of its outputs."""
    thresholds: NDArray[np.float64]
    """The lowest η, (L,), at which a label is decided present; infinite if it never is."""
    input: Input
    columns: tuple[str, ...] | None
    """The columns of a manifest that are its features, in their order, where training named them."""
    how: str
    """The computation of η, in words."""
    fingerprints: Mapping[str, str]
    """SHA-256 of the run's "model" and "calibration"; empty where it was of no run folder."""
    session: Any
    """Of onnxruntime."""

    def __call__(self, *inputs: NDArray[Any]) -> Said:
        """Return η, decisions and logits of a batch: features (B, F), images uint8 (B, C, H, W), or a pair."""
        eta, decisions, logits = self.session.run(list(OUTPUTS), self._fed(inputs))
        return eta, decisions, logits

    def open(self, path: str, images: str | None = None, on_bad_image: OnBad = "error") -> Inputs:
        """Open what lies at `path` as inputs of this model, as `steelyard predict` does."""
        image = self.input.kind == "image"
        size = (self.input.shape[1], self.input.shape[2]) if image else None
        kind: Literal["image", "features"] = "image" if image else "features"
        return open_inputs(path, images, size, on_bad_image, kind, features=self.columns, labels=self.names)

    def predict(
        self,
        inputs: Inputs,
        out: str | os.PathLike[str],
        *,
        format: Format | Literal[""] = "",
        form: Form = "wide",
        top: int = 0,
        batch_size: int = 256,
        workers: int = 0,
        progress: Progress | None = None,
    ) -> Predicted:
        """Write probabilities and decisions of all items to `out`, as `prediction.predict` does; see there."""
        with file_sink(Path(out), self.names, format, form, top) as sink:
            return pour(self.scores(inputs, batch_size, workers), [sink], inputs.n_items, progress)

    def scores(self, inputs: Inputs, batch_size: int, workers: int) -> Iterator[Scored]:
        """Return the items of each batch with their probabilities and decisions, in order."""
        if inputs.kind != self.input.kind:
            raise ValueError(f"the items are {inputs.kind}, but {self.path} takes {self.input.kind}: give such items")
        blank = np.zeros((0, len(self.names)), np.float32)
        for batch in inputs.batches(batch_size, workers):
            eta, decisions, logits = self(batch.inputs.numpy()) if batch.ids else (blank, blank.astype(bool), blank)
            check_finite(logits, batch, str(self.path))
            yield scored_of(batch, eta, decisions)

    def _fed(self, inputs: tuple[NDArray[Any], ...]) -> dict[str, NDArray[Any]]:
        slots = self.session.get_inputs()
        if len(inputs) != len(slots):
            raise ValueError(f"{self.path} takes {len(slots)} inputs, but {len(inputs)} are given: give all of them")
        fed = {}
        for x, slot in zip(inputs, slots, strict=True):
            x = np.ascontiguousarray(x, np.float32) if slot.type == "tensor(float)" else np.ascontiguousarray(x)
            if x.shape[1:] != tuple(slot.shape[1:]):
                actual, shape = (" × ".join(map(str, s)) for s in (x.shape[1:], slot.shape[1:]))
                raise ValueError(f"an item has {actual} {slot.name}, but {self.path} takes {shape}: give such items")
            fed[slot.name] = x
        return fed


def load_onnx(path: str | os.PathLike[str], threads: int = 0) -> OnnxModel:
    """Load a file of `export`: the file itself, which needs nothing beside it, or a run folder with its model.onnx.

    That of a run folder must match the run: one exported before the run was retrained or recalibrated is
    refused.

    Args:
        path: an .onnx file, or a run folder.
        threads: of onnxruntime, 0 for as many as there are cores.
    """
    given = Path(path)
    if given.is_dir():
        RunFolder(given).check_finished()
    file = given / "model.onnx" if given.is_dir() else given
    export = shlex.join(["steelyard", "export", str(given)])
    if not file.is_file():
        hint = f"write it with {export}" if given.is_dir() else "give an .onnx file, or a run folder"
        raise ValueError(f"{file} does not exist: {hint}")
    require("onnxruntime")
    session = session_of(str(file), f"{file} is not a valid ONNX file ({{reason}}): export it again", threads)
    exported = _read(session, file)
    if given.is_dir() and exported.fingerprints != fingerprints(given):
        raise ValueError(
            f"{file} is older than the run, which was retrained or recalibrated since: export it again with {export}"
        )
    return exported


def _read(session: Any, file: Path) -> OnnxModel:
    notes = session.get_modelmeta().custom_metadata_map
    if notes.get("steelyard.format") != FORMAT or notes.get("steelyard.version") != str(VERSION):
        raise ValueError(
            f"{file} was not written by steelyard export, or by another version of it: export the run again"
        )
    try:
        parts = {name: json.loads(notes[f"steelyard.{name}"]) for name in _PARTS}
        names = tuple(parts["labels"])
        thresholds = np.array([math.inf if t is None else t for t in parts["thresholds"]], np.float64)
        input = Input(parts["input"]["kind"], tuple(parts["input"]["shape"]))
        columns = None if parts["columns"] is None else tuple(parts["columns"])
        outputs = {slot.name: slot.shape[-1] for slot in session.get_outputs()}
        if outputs != dict.fromkeys(OUTPUTS, len(names)) or len(thresholds) != len(names):
            raise ValueError("its outputs are not those of its labels")
    except (KeyError, TypeError, ValueError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"the metadata of {file} is corrupt ({what}): export the run again") from None
    how = notes.get("steelyard.probabilities", "")
    return OnnxModel(file, names, thresholds, input, columns, how, parts["fingerprints"], session)


_PARTS = ("labels", "thresholds", "input", "columns", "fingerprints")
