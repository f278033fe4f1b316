"""Build one ONNX graph of a model and its probability model."""

from __future__ import annotations

import copy
import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

import torch
from torch import Tensor, nn

from steelyard.calibrate.probability import ProbabilityModel
from steelyard.export.trace import ProbabilityNetwork, traced
from steelyard.folder.run_folder import Trained
from steelyard.losses.pair import PairLoss
from steelyard.models import Model
from steelyard.models.race.members import Member
from steelyard.predict.inputs import side_of

OUTPUTS = ("probabilities", "decisions", "logits")
"""η, float32 (B, L); which labels are decided present, bool (B, L); z, float32 (B, L)."""
INPUTS = {"features": ("features",), "image": ("images",), "pair": ("regions", "words")}
"""By the kind of input."""


class _TracedLink(nn.Module):
    """The link of a loss inside a model, as a float64 graph: onnxruntime's own operations are poor at large logits."""

    def __init__(self, loss: PairLoss, n_labels: int) -> None:
        super().__init__()
        self.odds = traced(loss.link, n_labels)

    def link(self, z: Tensor) -> Tensor:
        """Return log-odds (B, L) of logits."""
        return self.odds(z.double()).to(z.dtype)  # type: ignore[no-any-return]


class _Whole(nn.Module):
    """A copy of a model, followed by its probability model."""

    def __init__(self, model: Model, probability_model: ProbabilityModel) -> None:
        super().__init__()
        self.model, self.probability_model = copy.deepcopy(model), ProbabilityNetwork(probability_model)
        trace_links(self.model, probability_model.n_labels)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return η, decisions and logits; all NaN for an item with NaN, which onnxruntime's ReLU turns into 0."""
        logits = self.model(inputs if len(inputs) > 1 else inputs[0])
        for x in inputs:
            if x.is_floating_point():
                logits = torch.where(x.isnan().flatten(1).any(1, keepdim=True), torch.nan, logits)
        eta, decisions = self.probability_model(logits)
        return eta, decisions, logits


def trace_links(model: nn.Module, n_labels: int) -> None:
    """Replace the links inside a race's members by float64 graphs of theirs."""
    for member in model.modules():
        if isinstance(member, Member):
            member.loss = _TracedLink(member.loss, n_labels)  # type: ignore[assignment]


def graph_of(trained: Trained) -> Any:
    """Return a model and its probability model as an ONNX model for any batch size, or raise."""
    network = _Whole(trained.model.cpu().eval(), trained.probability_model).eval()
    inputs = examples(trained, 2)
    batch = torch.export.Dim("batch", min=1)
    try:
        with quiet(), torch.no_grad():
            program = torch.onnx.export(
                network,
                inputs,
                dynamo=True,
                verbose=False,
                input_names=list(INPUTS[trained.model.input.kind]),
                output_names=list(OUTPUTS),
                dynamic_shapes=(tuple({0: batch} for _ in inputs),),
            )
    except torch.onnx.errors.OnnxExporterError as error:
        raise _refusal(trained, f"{_first_cause(error):.200}") from error
    assert program is not None
    if any(not value.type.tensor_type.shape.dim[0].dim_param for value in program.model_proto.graph.input):
        raise _refusal(trained, "its batches are of one size")
    proto = program.model_proto
    _forget(proto.graph)
    for function in proto.functions:
        _forget(function)
    return proto


def _forget(graph: Any) -> None:
    """Remove the notes of the exporter at every node: source lines and the folders they lie in."""
    for node in graph.node:
        node.ClearField("metadata_props")
        node.ClearField("doc_string")
        for attribute in node.attribute:
            if attribute.HasField("g"):  # reading the field would create it
                _forget(attribute.g)
    graph.ClearField("metadata_props")
    graph.ClearField("doc_string")
    graph.ClearField("value_info")


def _refusal(trained: Trained, why: str) -> ValueError:
    settings = trained.model.settings
    return ValueError(
        f"the model, backbone {settings.backbone} and head {settings.head}, cannot be written as ONNX ({why}): choose "
        "another backbone"
    )


def _first_cause(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def examples(trained: Trained, n: int, seed: int = 0) -> tuple[Tensor, ...]:
    """Return `n` random inputs of a model, as many tensors as it takes: features like those of training, noise else."""
    model, dice = trained.model, torch.Generator().manual_seed(seed)
    shape = model.input.shape
    if model.input.kind == "features":
        mean, std = model.normalise.mean.cpu(), model.normalise.std.cpu()
        return (mean + 2 * std * torch.randn(n, *shape, generator=dice),)
    if side := side_of(model):
        return (torch.randint(0, 256, (n, shape[0], *side), generator=dice, dtype=torch.uint8),)
    regions, features, length, vocabulary = shape
    words = torch.randint(0, vocabulary, (n, length), generator=dice)
    return torch.randn(n, regions, features, generator=dice), words


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the messages of the exporter about its internals."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir", "torch.export")]
    before = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
