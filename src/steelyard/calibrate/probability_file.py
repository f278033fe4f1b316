"""A reading as JSON text, every float64 exact, with a checksum."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from steelyard._sealed import sealed, unsealed
from steelyard.calibrate import LabelSets, Link
from steelyard.calibrate.aims import Aim
from steelyard.calibrate.store import as_document, from_document
from steelyard.objective.parts import Part, make_loss

if TYPE_CHECKING:
    from steelyard.calibrate.probability import Reading

FORMAT = "steelyard reading"
VERSION = 1
_KINDS = ("none", "link", "temperature", "platt", "isotonic")
_VECTORS = {"fitted_prior": math.nan, "to_prior": math.nan, "annotated": math.nan, "chosen_thresholds": math.inf}
"""The vectors that a reading may lack, and what null stands for in each."""


def text_of(reading: Reading) -> str:
    """Return a reading as JSON: a line a field, one that no JSON number fits (NaN, infinity) as null."""
    content = {
        "kind": reading.kind,
        "base": reading.base,
        "how": reading.how,
        "loss": {"kind": reading.loss.kind, "arguments": dict(reading.loss.arguments)},
        "counts": reading.counts.tolist(),
        "n_known": reading.n_known.tolist(),
        "link": None if reading.link is None else as_document(reading.link),
        "why": reading.why,
        "calibrator": None if reading.calibrator is None else as_document(reading.calibrator),
        **{name: _plain(getattr(reading, name)) for name in _VECTORS},
        "sets": _sets_plain(reading.sets),
        "sets_there": _sets_plain(reading.sets_there),
        "n_fitted": reading.n_fitted,
        "fitted_to": reading.fitted_to,
        "chosen_on": reading.chosen_on,
        "thresholds": _plain(reading.thresholds),
        "aim": asdict(reading.aim),
        "trials": dict(reading.trials),
    }
    return sealed(content, FORMAT, VERSION)


def fields_of(text: str, source: str) -> dict[str, Any]:
    """Return the fields of a reading from its text; `source` is the file to name where it is damaged."""
    try:
        content = unsealed(text, FORMAT, VERSION)
        counts, n_known = (np.array(content[name], np.float64) for name in ("counts", "n_known"))
        part = Part(content["loss"]["kind"], content["loss"]["arguments"])
        built = make_loss(part, counts, n_known)
        link = None if content["link"] is None else from_document(content["link"], source, built)
        calibrator = None if content["calibrator"] is None else from_document(content["calibrator"], source)
        vectors = {name: _array(content.get(name), blank) for name, blank in _VECTORS.items()}
        sets = {name: _sets(content.get(name)) for name in ("sets", "sets_there")}  # the first version had none
        labels = [None if each is None else each.labels for each in sets.values()]
        sizes = {len(v) for v in (counts, n_known, *vectors.values(), *labels) if v is not None}
        if len(sizes) != 1 or content["kind"] not in _KINDS or not (link is None or isinstance(link, Link)):
            raise ValueError("its parts do not fit together")
        fields = dict(loss=part, counts=counts, n_known=n_known, built=built, link=link, calibrator=calibrator)
        plain = {name: content[name] for name in ("why", "kind", "base", "n_fitted", "trials")}
        marks = {name: content.get(name) for name in ("fitted_to", "chosen_on")}  # the first version kept none
        return {**fields, **plain, **marks, **vectors, **sets, "aim": Aim(**content["aim"])}
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error).splitlines()[0]
        raise ValueError(
            f"{source} does not hold a whole calibration ({what:.200}): write it anew with steelyard calibrate"
        ) from None


def _plain(values: NDArray[np.float64] | None) -> list[float | None] | None:
    return None if values is None else [v if math.isfinite(v) else None for v in values.tolist()]


def _sets_plain(sets: LabelSets | None) -> dict[str, Any] | None:
    return None if sets is None else {name: _plain(getattr(sets, name).numpy()) for name in ("labels", "sizes")}


def _sets(content: Mapping[str, Any] | None) -> LabelSets | None:
    if content is None:
        return None
    rows = [[-math.inf if value is None else value for value in content[name]] for name in ("labels", "sizes")]
    return LabelSets(*(torch.tensor(row, dtype=torch.float64) for row in rows))


def _array(values: list[float | None] | None, blank: float) -> NDArray[np.float64] | None:
    return None if values is None else np.array([blank if v is None else v for v in values], np.float64)
