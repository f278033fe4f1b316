"""Compare an ONNX file with the run it was made from, through onnxruntime."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from steelyard.calibrate.probability import ProbabilityModel
from steelyard.export.graph import INPUTS, OUTPUTS, examples
from steelyard.folder.run_folder import Trained

TOLERANCE = 1e-5
"""Largest allowed difference between η of the file and η of the run."""

_GRID = (*np.linspace(-40, 40, 321).tolist(), -1e4, -300.0, 300.0, 1e4)
_CANNOT_RUN = (
    "onnxruntime cannot run the exported file ({reason}): fit a calibrator that takes logits, or use one of the losses "
    "in steelyard.losses"
)


class Checked(NamedTuple):
    """Largest differences between an exported file and its run, over all cells."""

    probability: float
    """|Δη| of the same inputs."""
    logit: float
    """|Δz| of the same inputs, in parts of the largest |z| or of 1."""
    probability_model: float
    """|Δη| of the same logits, between −10,000 and 10,000, less the effect of a trillionth of a logit."""


def check(proto: Any, trained: Trained) -> Checked:
    """Return how far an ONNX model is from the run, on random inputs and on small and large logits; or raise.

    η more than 1e-5 apart is an error, unless the logits are equal but for rounding and the calibrator magnifies
    that, as the steps of isotonic regression do, or float32 itself rounds so much in this network.
    """
    session = session_of(proto.SerializeToString(), _CANNOT_RUN)
    result, rounding = list[Checked](), 0.0
    for n, seed in ((1, 1), (3, 2), (8, 3)):
        inputs = examples(trained, n, seed)
        fed = dict(zip(INPUTS[trained.model.input.kind], (x.numpy() for x in inputs), strict=True))
        eta, decided, z = session.run(list(OUTPUTS), fed)
        expected = _logits(trained, inputs)
        largest = max(1.0, float(np.abs(expected).max()))
        apart = _apart(eta, trained.probability_model.probability(expected))
        result.append(Checked(apart, _apart(z, expected) / largest, _read_apart(trained.probability_model, z, eta)))
        if result[-1].probability > TOLERANCE and result[-1].logit > TOLERANCE:
            rounding = max(rounding, _apart(_logits(trained, inputs, torch.float64), expected) / largest)
        if (decided != trained.probability_model.decisions(eta)).any():
            raise RuntimeError("decisions of the exported file differ from its thresholds: nothing was written")
    rows = np.repeat(np.array(_GRID, np.float32)[:, None], len(trained.names), 1)
    rows = np.concatenate([rows, np.random.default_rng(0).normal(0, 4, (256, rows.shape[1])).astype(np.float32)])
    eta = session_of(after_logits(proto).SerializeToString(), _CANNOT_RUN).run(["probabilities"], {"logits": rows})[0]
    result.append(Checked(0.0, 0.0, _read_apart(trained.probability_model, rows, eta)))
    worst = Checked(*map(max, zip(*result, strict=True)))
    as_rounded = worst.logit <= max(TOLERANCE, 10 * rounding)
    if not (worst.probability_model <= TOLERANCE and (worst.probability <= TOLERANCE or as_rounded)):
        raise RuntimeError(
            f"the exported file gives probabilities up to {max(worst.probability, worst.probability_model):.2g} from "
            f"those of the run (logits up to {worst.logit:.2g} of the largest): nothing was written"
        )
    return worst


def _logits(trained: Trained, inputs: tuple[Tensor, ...], dtype: torch.dtype = torch.float32) -> NDArray[Any]:
    model = trained.model if dtype == torch.float32 else copy.deepcopy(trained.model).to(dtype)
    given = tuple(x.to(dtype) if x.is_floating_point() else x for x in inputs)
    with torch.inference_mode():
        logits: Tensor = model(given if len(given) > 1 else given[0])
    return np.asarray(logits.numpy())


def session_of(model: str | bytes, sentence: str, threads: int = 0) -> Any:
    """Return a file, or its content, opened by onnxruntime; where that fails, raise `sentence` with the {reason}."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    try:
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has an exception of its own for every kind of damage
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(sentence.replace("{reason}", reason[:160])) from None


def after_logits(proto: Any) -> Any:
    """Return the part of a file that makes η of logits; onnx's own extractor forgets what loops take from outside."""
    part = type(proto)()
    part.CopyFrom(proto)
    graph = part.graph
    needed, kept = {"probabilities"}, []
    for node in reversed(proto.graph.node):
        if needed & set(node.output) and "logits" not in node.output:
            kept.append(node)
            needed |= set(_read(node))
    for field, result in (
        ("node", kept[::-1]),
        ("initializer", [i for i in proto.graph.initializer if i.name in needed]),
        ("input", [o for o in proto.graph.output if o.name == "logits"]),
        ("output", [o for o in proto.graph.output if o.name == "probabilities"]),
    ):
        graph.ClearField(field)
        getattr(graph, field).extend(result)
    return part


def _read(node: Any) -> Iterator[str]:
    """Yield the names of all inputs of a node, also in the graphs inside it."""
    yield from node.input
    for attribute in node.attribute:
        for inner in attribute.g.node:
            yield from _read(inner)
        yield from (output.name for output in attribute.g.output)


def _apart(actual: NDArray[Any], expected: NDArray[Any]) -> float:
    distance = np.abs(actual.astype(np.float64) - expected)
    return float(np.where(np.isnan(distance), np.inf, distance).max(initial=0))


def _read_apart(probability_model: ProbabilityModel, logits: NDArray[np.float32], eta: NDArray[np.float32]) -> float:
    """Return the largest error of η given logits, except where η depends on the last digits of the logits.

    It does in places: class-aware sampling leaves almost nothing to tell η by where Σ σ is almost 1.
    """
    z = logits.astype(np.float64)
    low, high = (probability_model.probability(z * factor) for factor in (1 - 1e-12, 1 + 1e-12))
    beyond = np.abs(eta.astype(np.float64) - probability_model.probability(logits)) - np.abs(high - low)
    return float(np.where(np.isnan(beyond), np.inf, beyond).max(initial=0))
