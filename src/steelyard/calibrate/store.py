"""A calibrator as a file: JSON, every float64 exact."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch

from steelyard._files import write_atomic
from steelyard.calibrate.calibrator import Calibrator, State
from steelyard.calibrate.isotonic import Isotonic
from steelyard.calibrate.link import Link, pair_of, probe
from steelyard.calibrate.platt import Platt
from steelyard.calibrate.temperature import Temperature
from steelyard.losses.distribution_balanced import WeightedLoss
from steelyard.losses.loss import Loss
from steelyard.objective.objective import Objective

FORMAT = "steelyard calibration"
VERSION = 1
FITTED: dict[str, type[Temperature | Platt | Isotonic]] = {
    "Temperature": Temperature,
    "Platt": Platt,
    "Isotonic": Isotonic,
}


def save(calibrator: Calibrator, path: str | os.PathLike[str]) -> None:
    """Write a fitted calibrator to `path` as JSON, whole or not at all; `load` gives back exactly the same η."""
    write_atomic(path, json.dumps(as_document(calibrator), allow_nan=False) + "\n")


def load(path: str | os.PathLike[str], loss: Loss | WeightedLoss | Objective | None = None) -> Calibrator:
    """Read what `save` wrote; a `Link` needs the `loss` (or an objective over it) that it belongs to.

    A saved link has the class weights of the moment it was saved.
    """
    try:
        content = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}): check the path") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a calibration written by steelyard.calibrate.save: not UTF-8") from None
    try:
        document = json.loads(content, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not a calibration written by steelyard.calibrate.save: {error}") from None
    return from_document(document, path, loss)


def as_document(calibrator: Calibrator) -> State:
    """Return a fitted calibrator as plain JSON, to stand alone or inside a larger document."""
    return {"format": FORMAT, "version": VERSION, "kind": type(calibrator).__name__, **calibrator.state()}


def from_document(
    document: Any, path: str | os.PathLike[str], loss: Loss | WeightedLoss | Objective | None = None
) -> Calibrator:
    """Return the calibrator that `as_document` described; `path` is the file to name where it is damaged."""
    try:
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise ValueError(f'it does not say "format": "{FORMAT}"')
        if document.get("version") != VERSION:
            raise ValueError(f"its version is {document.get('version')!r:.20}, this one reads {VERSION}")
        kind = document["kind"]
        if kind in FITTED:
            calibrator = FITTED[kind](document["per"], document["prior_positives"])
            calibrator.restore(document)
            return calibrator
        if kind != "Link":
            raise ValueError(f"its kind is {kind!r:.60}")
    except KeyError as error:
        raise ValueError(
            f"{path} is not a calibration written by steelyard.calibrate.save: {error} is missing"
        ) from None
    except (ValueError, TypeError, AttributeError, OverflowError, RuntimeError) as error:
        what = " ".join(str(error).split())
        raise ValueError(f"{path} is not a calibration written by steelyard.calibrate.save: {what:.200}") from None
    return _link(path, document, loss)


def _link(path: str | os.PathLike[str], document: State, loss: Loss | WeightedLoss | Objective | None) -> Link:
    name = document.get("loss")
    if not isinstance(name, str):
        raise ValueError(f"{path} is not a calibration written by steelyard.calibrate.save: its loss has no name")
    if loss is None:
        raise ValueError(f"{path} holds the link of {name}: give load that loss, loss=...")
    pair = pair_of(loss)
    try:
        wanted = torch.tensor(document["probes"], dtype=torch.float64)
        w_pos, w_neg, counts = (_vector(document[name]) for name in ("pos_weight", "neg_weight", "class_aware"))
        link = Link(pair, w_pos, w_neg, counts)
    except (KeyError, ValueError, TypeError, RuntimeError) as error:
        what = " ".join(str(error).split())
        raise ValueError(f"{path} is not a calibration written by steelyard.calibrate.save: {what:.200}") from None
    found = probe(pair)
    if wanted.shape != found.shape or not torch.allclose(wanted, found, rtol=1e-6, atol=1e-6):
        raise ValueError(
            f"{path} holds the link of another {name} than the {type(pair).__name__} given: give the loss with the "
            "settings of its training"
        )
    return link


def _vector(values: Any) -> torch.Tensor | None:
    return None if values is None else torch.tensor(values, dtype=torch.float64)


def _refuse(constant: str) -> None:
    raise ValueError(f"it holds {constant}")
