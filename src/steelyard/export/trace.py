"""From logits to probabilities as torch computes them, traced into operations that ONNX can hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor, fx, nn
from torch._decomp import core_aten_decompositions
from torch._higher_order_ops.while_loop import while_loop_op
from torch._ops import OpOverload
from torch.fx.experimental.proxy_tensor import make_fx

from steelyard.calibrate.link import MAX_STEPS, StepFunction, loop
from steelyard.calibrate.probability import ProbabilityModel

_aten = torch.ops.aten


def sigmoid(x: Tensor) -> Tensor:
    """Return σ(x) with all digits where it is small; onnxruntime's own keeps digits above 1e-16 only."""
    e = torch.exp(-x.abs())
    return torch.where(x >= 0, 1.0, e) / (1 + e)


def log1p(x: Tensor) -> Tensor:
    """Return log(1 + x), x > −1, as log(u) · x/(u − 1) with u = 1 + x rounded, which corrects the rounding."""
    u = 1 + x
    rounded = u == 1
    return torch.where(rounded, x, torch.log(u) * (x / torch.where(rounded, 1.0, u - 1)))


def expm1(x: Tensor) -> Tensor:
    """Return eˣ − 1, for |x| < 1 as (u − 1) · x/log u with u = eˣ rounded, which corrects the rounding."""
    u = torch.exp(x)
    near = (x.abs() < 1) & (u != 1)
    lost = (u - 1) * (x / torch.log(torch.where(near, u, 2.0)))
    return torch.where(u == 1, x, torch.where(near, lost, u - 1))


def log_sigmoid(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return log σ(x), and what torch keeps for its derivative."""
    e = torch.exp(-x.abs())
    return x.clamp_max(0.0) - torch.log1p(e), e


PRIMITIVES: dict[Any, Callable[..., Any]] = {
    _aten.sigmoid.default: sigmoid,
    _aten.log1p.default: log1p,
    _aten.expm1.default: expm1,
    _aten.log_sigmoid_forward.default: log_sigmoid,
}
"""Functions of torch that ONNX lacks, or that onnxruntime computes with too few digits, and their replacements."""


@final
class ProbabilityNetwork(nn.Module):
    """From logits (B, L) to η, float32, and decisions, bool, as a `ProbabilityModel` makes them.

    Link, calibrator and prior shift are traced as they are, also those of a loss that is not of this package.

    reading: one that has η.
    """

    thresholds: Tensor

    def __init__(self, probability_model: ProbabilityModel) -> None:
        super().__init__()
        if not probability_model.has_probability:
            raise ValueError(
                f"there are no probabilities to export, since {probability_model.why}: run steelyard calibrate first"
            )
        if probability_model.sets_there is not None:
            raise ValueError(
                "probabilities are read by label sets, which cannot be written for ONNX: write the frequency of each "
                "label to a file, then steelyard calibrate RUN --keep --deploy-prior FILE"
            )
        self.odds = traced(probability_model.odds_of, probability_model.n_labels)
        self.register_buffer("thresholds", torch.from_numpy(probability_model.thresholds.copy()).float())
        self.by_item = _hang_together(probability_model)

    def forward(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return η (B, L), float32, never rounded up to 1, and which labels are decided present.

        η is NaN where a logit is, and of the whole item where labels are computed from each other: ONNX does not say
        what clipping makes of NaN, and onnxruntime makes numbers of it.
        """
        broken = logits.isnan()
        if self.by_item:
            broken = broken | broken.any(1, keepdim=True)
        eta = sigmoid(self.odds(logits.double())).float().clamp_max(1 - torch.finfo(torch.float32).eps / 2)
        return torch.where(broken, torch.nan, eta), (eta >= self.thresholds) & ~broken


def _hang_together(probability_model: ProbabilityModel) -> bool:
    """Return whether NaN at one label makes another label NaN; some row has NaN at the first of any two labels."""
    label = torch.arange(probability_model.n_labels)
    broken = torch.stack([(label >> bit) % 2 == side for bit in range(len(label).bit_length()) for side in (0, 1)])
    odds = probability_model.odds_of(torch.where(broken, torch.nan, 0.0).double())
    return bool((odds.isnan() & ~broken).any())


def traced(function: Callable[[Tensor], Tensor], n_labels: int) -> nn.Module:
    """Return a function from logits (B, L) to (B, L), float64, as a graph of plain operations, for every B.

    One item is enough to trace, since the operations do not depend on the number of items.
    """
    item = torch.linspace(-1.0, 1.0, n_labels, dtype=torch.float64)[None]
    table = {**core_aten_decompositions(), **PRIMITIVES}
    before = loop.set(_graph_loop)
    try:
        with torch.no_grad():  # values of constants, such as a prior, are looked at on the way: no error
            module = make_fx(lambda z: function(z), decomposition_table=table, _error_on_data_dependent_ops=False)(item)
    finally:
        loop.reset(before)
    _keep_digits(module)
    return module


def _keep_digits(module: fx.GraphModule) -> None:
    """Turn plain numbers into tensors, because the exporter rounds plain numbers to float32."""
    for i, node in enumerate(list(module.graph.nodes)):
        slots = node.target._schema.arguments if isinstance(node.target, OpOverload) else ()
        for j, (value, slot) in enumerate(zip(node.args, slots, strict=False)):
            if isinstance(value, float) and isinstance(slot.type, torch.TensorType):
                module.register_buffer(f"number_{i}_{j}", torch.tensor(value, dtype=torch.float64))
                with module.graph.inserting_before(node):
                    node.update_arg(j, module.graph.get_attr(f"number_{i}_{j}"))
    module.recompile()


def _graph_loop(step: StepFunction, s: Tensor, given: tuple[Tensor, ...]) -> Tensor:
    """Repeat a step of `undo_class_aware` until nothing moves, as a loop of the graph."""

    def goes_on(i: Tensor, s: Tensor, moved: Tensor, *given: Tensor) -> Tensor:
        return (i < MAX_STEPS) & moved.any()

    def following(i: Tensor, s: Tensor, moved: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
        return i + 1, *step(s, *given)

    start: Any = (torch.zeros((), dtype=torch.int64), s, s > 0)
    settled: Tensor = while_loop_op(goes_on, following, start, given)[1]
    return settled
