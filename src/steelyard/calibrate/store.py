"""Calibrators and probability models as JSON, every float64 exact."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from steelyard._files import read_text, write_atomic
from steelyard._sealed import sealed, unsealed
from steelyard.calibrate.aim import Aim
from steelyard.calibrate.calibrator import Calibrator, State
from steelyard.calibrate.crossfit import MAKERS, Fitted
from steelyard.calibrate.label_sets import LabelSets
from steelyard.calibrate.link import Link, has_probes, pair_of
from steelyard.losses.distribution_balanced import WeightedLoss
from steelyard.losses.loss import Loss, NoLink
from steelyard.objective.objective import Objective
from steelyard.objective.parts import Part, make_loss

if TYPE_CHECKING:
    from steelyard.calibrate.probability import ProbabilityModel

FORMAT = "steelyard calibration"
VERSION = 1
FITTED: dict[str, Fitted] = {maker.__name__: maker for maker in MAKERS.values()}

MODEL_FORMAT = "steelyard reading"
_KINDS = ("none", "link", *MAKERS)
_VECTORS = {"fitted_prior": math.nan, "to_prior": math.nan, "annotated": math.nan, "chosen_thresholds": math.inf}
"""The vectors that a model may lack, and the meaning of null in each."""
AGAIN = "check the path, or write it again with steelyard calibrate"
_NOT_ONE = "is not a calibration written by steelyard.calibrate.save"


def save(calibrator: Calibrator, path: str | os.PathLike[str]) -> None:
    """Write a fitted calibrator to `path` as JSON, whole or not at all; `load` gives back exactly the same η.

    Args:
        calibrator: a fitted one, or a `Link`.
        path: the file to write.

    Examples:
        >>> z = torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0]).repeat(200)[:, None]
        >>> y = torch.arange(1000)[:, None] // 5 < 200 * torch.sigmoid(2 * z)
        >>> calibrator = sy.calibrate.Platt().fit(z, y)
        >>> sy.calibrate.save(calibrator, "platt.json")
        >>> torch.equal(sy.calibrate.load("platt.json")(z), calibrator(z))
        True
    """
    write_atomic(path, json.dumps(as_document(calibrator), allow_nan=False) + "\n")


def load(path: str | os.PathLike[str], loss: Loss | WeightedLoss | Objective | None = None) -> Calibrator:
    """Read what `save` wrote; a `Link` needs the `loss` (or an objective over it) that it belongs to.

    A saved link has the class weights of the moment it was saved.

    Args:
        path: a file that `save` wrote.
        loss: the loss, or an objective over it, that a saved `Link` belongs to; others need none.

    Examples:
        >>> loss = sy.losses.SPA()
        >>> sy.calibrate.save(sy.calibrate.Link(loss), "link.json")
        >>> sy.calibrate.load("link.json", loss)(torch.zeros(1, 1))
        tensor([[0.0538]])
        >>> sy.calibrate.load("link.json", sy.losses.BCE())
        Traceback (most recent call last):
            ...
        ValueError: link.json holds the link of another SPA than the BCE given: give the loss with the ...
    """
    content = read_text(path, AGAIN)
    with _refused(f"{path} {_NOT_ONE}: "):
        document = json.loads(content, parse_constant=_refuse)
    return from_document(document, path, loss)


@contextmanager
def _refused(before: str, after: str = "") -> Iterator[None]:
    """Turn errors of a corrupt document into one sentence; a loss without a link is passed on."""
    try:
        yield
    except NoLink:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RuntimeError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else " ".join(str(error).split())
        raise ValueError(f"{before}{reason:.200}{after}") from None


def as_document(calibrator: Calibrator) -> State:
    """Return a fitted calibrator as plain JSON, to stand alone or inside a larger document."""
    return {"format": FORMAT, "version": VERSION, "kind": type(calibrator).__name__, **calibrator.state()}


def from_document(
    document: Any, path: str | os.PathLike[str], loss: Loss | WeightedLoss | Objective | None = None
) -> Calibrator:
    """Return the calibrator that `as_document` described; `path` is the file to name where it is damaged."""
    with _refused(f"{path} {_NOT_ONE}: "):
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise ValueError(f'it does not say "format": "{FORMAT}"')
        if document.get("version") != VERSION:
            raise ValueError(f"its version is {document.get('version')!r:.20}, this one reads {VERSION}")
        kind = document["kind"]
        if kind in FITTED:
            calibrator = FITTED[kind](document["per"], document["prior_positives"])
            calibrator.restore(document)
            return calibrator
        if kind != "Link" or not isinstance(document["loss"], str):
            raise ValueError(f"its kind is {kind!r:.60} of {document.get('loss')!r:.60}")
        probes = _vector(document["probes"])
        weights = [_vector(document[name]) for name in ("pos_weight", "neg_weight", "class_aware")]
        link = None if loss is None else Link(pair_of(loss), *weights)
    if link is None:
        raise ValueError(f"{path} holds the link of {document['loss']}: pass that loss to load as `loss`")
    if not has_probes(link.loss, probes):
        raise ValueError(
            f"{path} holds the link of another {document['loss']} than the {type(link.loss).__name__} given: give the "
            "loss with the settings of its training"
        )
    return link


def _vector(values: Any) -> torch.Tensor | None:
    return None if values is None else torch.tensor(values, dtype=torch.float64)


def _refuse(constant: str) -> None:
    raise ValueError(f"it holds {constant}")


def text_of(model: ProbabilityModel) -> str:
    """Return a probability model as JSON, one line per field; NaN and infinity are null."""
    content = {
        "kind": model.kind,
        "base": model.base,
        "how": model.how,
        "loss": {"kind": model.loss.kind, "arguments": dict(model.loss.arguments)},
        "counts": model.counts.tolist(),
        "n_known": model.n_known.tolist(),
        "link": None if model.link is None else as_document(model.link),
        "why": model.why,
        "calibrator": None if model.calibrator is None else as_document(model.calibrator),
        **{name: _plain(getattr(model, name)) for name in _VECTORS},
        "sets": _sets_plain(model.sets),
        "sets_there": _sets_plain(model.sets_there),
        "n_fitted": model.n_fitted,
        "fitted_to": model.fitted_to,
        "chosen_on": model.chosen_on,
        "thresholds": _plain(model.thresholds),
        "aim": asdict(model.aim),
        "trials": dict(model.trials),
    }
    return sealed(content, MODEL_FORMAT, VERSION)


def fields_of(text: str, source: str) -> dict[str, Any]:
    """Return the fields of a probability model from its text; `source` is the file to name where it is damaged."""
    broken, again = f"{source} does not hold a whole calibration (", "): write it again with steelyard calibrate"
    with _refused(broken, again):
        content = unsealed(text, MODEL_FORMAT, VERSION)
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
