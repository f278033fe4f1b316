"""Write a run as one ONNX file: raw inputs go in, calibrated probabilities, decisions and logits come out."""

from __future__ import annotations

import json
import math
import os
import tomllib
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from steelyard._extras import needed
from steelyard._files import check_place, replacing
from steelyard.export.check import Checked
from steelyard.export.check import check as run_check
from steelyard.export.graph import graph_of
from steelyard.folder.fingerprints import fingerprints
from steelyard.folder.run_folder import RunFolder, Trained
from steelyard.predict.inputs import side_of

FORMAT = "steelyard model"
VERSION = 1

_LARGEST = (1 << 31) - (1 << 16)


class Exported(NamedTuple):
    """Summary of an export."""

    path: Path
    bytes: int
    checked: Checked | None
    """None where it was not asked for."""


def export(run: str | os.PathLike[str], out: str | os.PathLike[str] | None = None, check: bool = True) -> Path:
    """Write a finished run as ONNX and return the file, RUN/model.onnx by default; see `export_run`."""
    return export_run(run, out, check).path


def export_run(run: str | os.PathLike[str], out: str | os.PathLike[str] | None = None, check: bool = True) -> Exported:
    """Write a finished run as one ONNX file, RUN/model.onnx by default; see `export_trained`."""
    file = Path(run, "model.onnx") if out is None else out
    return export_trained(RunFolder(run).load(), file, check, fingerprints(run))


def export_trained(
    trained: Trained, out: str | os.PathLike[str], check: bool = True, prints: Mapping[str, str] | None = None
) -> Exported:
    """Write a trained model as one ONNX file, complete and checked, or leave the file as it was before.

    Its inputs are those of the model, any number at a time: `features`, float32 (B, F); `images`, uint8 (B, C, H, W);
    or `regions` and `words`. Its outputs are `probabilities`, `decisions` and `logits`, (B, L) each. Normalisation,
    network, link with class weights, class-aware sampling undone, calibrator and deployment prior are all inside; what
    follows the logits is float64. The metadata holds what `runtime` reads: labels, thresholds, kind and shape of
    the input, how η came about, and of a run folder the fingerprints; and `preprocessing`, how images are resized.

    Args:
        trained: of a run folder, or of `fit`; its model is on the CPU and in evaluation mode afterwards.
        out: the file.
        check: whether η of random inputs, and of logits far and near, is compared with torch's through onnxruntime
            first: more than 1e-5 apart is an error; see `check.check`.
        prints: the `fingerprints` of the run folder that it is of.
    """
    require("onnx", "onnxscript", *(("onnxruntime",) if check else ()))
    path = Path(out)
    check_place(path)
    if path.suffix.lower() != ".onnx":
        raise ValueError(f"{path} does not end in .onnx: rename it")
    proto = graph_of(trained)
    for key, value in described(trained, prints or {}).items():
        entry = proto.metadata_props.add()
        entry.key, entry.value = key, value
    if proto.ByteSize() > _LARGEST:
        raise ValueError(
            f"the model has {proto.ByteSize() / 2**30:.1f} GiB, but one ONNX file holds at most 2: use a smaller one"
        )
    checked = run_check(proto, trained) if check else None
    content = proto.SerializeToString()
    with replacing(path) as partial:
        partial.write_bytes(content)
    return Exported(path, len(content), checked)


def require(*packages: str) -> None:
    """Raise unless these packages of the extra `export` are there."""
    with needed("ONNX needs", "'steelyard[export]'"):
        for package in packages:
            import_module(package)


def described(trained: Trained, prints: Mapping[str, str]) -> dict[str, str]:
    """Return the metadata of a file: plain texts, JSON where it is more than one; `prints` are `fingerprints`."""
    shape = (trained.model.input.shape[0], *side) if (side := side_of(trained.model)) else trained.model.input.shape
    thresholds = [t if math.isfinite(t) else None for t in trained.thresholds.tolist()]
    columns = tomllib.loads(trained.config).get("data", {}).get("features") or None
    content: dict[str, Any] = {
        "labels": list(trained.names),
        "thresholds": thresholds,
        "input": {"kind": trained.model.input.kind, "shape": list(shape)},
        "preprocessing": _preprocessing(trained),
        "columns": columns,
        "fingerprints": dict(prints),
    }
    texts = {key: json.dumps(value, ensure_ascii=False, allow_nan=False) for key, value in content.items()}
    plain = {"format": FORMAT, "version": str(VERSION), "probabilities": trained.probability_model.how}
    return {f"steelyard.{key}": value for key, value in {**plain, **texts}.items()}


def _preprocessing(trained: Trained) -> dict[str, Any]:
    """Return what happens to an item before and inside the file, so that inputs can be prepared from the file alone."""
    model = trained.model
    inside = {
        "mean": model.normalise.mean.flatten().tolist(),
        "std": model.normalise.std.flatten().tolist(),
        "normalised": "inside the model: (x - mean) / std, integer pixels divided by 255 first",
    }
    side = side_of(model)
    if side is None:
        return {"dtype": "float32", **inside}
    resize = {"height": side[0], "width": side[1], "mode": "squash", "interpolation": "bilinear", "antialias": True}
    channels = "RGB" if model.input.shape[0] == 3 else "grey" if model.input.shape[0] == 1 else "as in training"
    return {"resize": resize, "channels": channels, "layout": "NCHW", "dtype": "uint8", "range": [0, 255], **inside}
