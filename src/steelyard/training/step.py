"""One step of training: what is computed between a batch and its gradient."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from steelyard.models.model import Model
from steelyard.objective import Objective
from steelyard.training import group


class Step(nn.Module):
    """The model and the objective as one module, so that DistributedDataParallel averages the gradients of both.

    The network runs in `precision` (by autocast, where it is not float32); the objective always has float32 logits.
    """

    def __init__(self, model: nn.Module, objective: Objective, device: torch.device, precision: torch.dtype) -> None:
        super().__init__()
        self.model, self.objective = model, objective
        self.device, self.precision = device, precision
        self.memory = model if isinstance(model, Model) and model.has_memory else None
        self._compiled: list[Callable[..., Any]] = []  # in a list, so that its parameters are not counted twice
        self.is_compiled = False

    def set_compiled(self, network: Callable[..., Any]) -> None:
        """Run `network`, a compiled form of the model, in its stead while `is_compiled` says so."""
        self._compiled = [network]

    def forward(self, inputs: Any, targets: Tensor, index: Tensor) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        """Return the total to minimise, its parts by name, and the logits, which keep their gradient.

        Logits that are not finite in any process, where looking costs no wait, do not reach the objective, its ratios
        and pseudo-labels: the total is NaN in all.
        """
        network = self._compiled[0] if self.is_compiled and self._compiled else self.model
        with torch.autocast(self.device.type, self.precision, enabled=self.precision != torch.float32):
            if self.memory is None:
                logits = network(inputs)
            else:
                logits, features = network(inputs, with_features=True)
        if self.memory is not None and self.training:
            self.memory.observe(features.detach(), targets)
        logits = logits.float()
        if logits.requires_grad:
            logits.retain_grad()
        stored = self.objective.resolver.stored()
        waits = logits.device.type == "cpu" or (stored is not None and not stored.held)
        if waits and group.agreed(not bool(torch.isfinite(logits).all())):
            return logits.sum() * math.nan, {}, logits
        value = self.objective(logits, targets, index)
        parts = {name: part.detach() for name, part in value.parts.items()}
        return value.total, parts, logits


def pick_device(name: str, said: str = "train.device") -> torch.device:
    """Return the device of this name; "auto" is the GPU of this process, or the CPU without one.

    name: auto, cpu, cuda or cuda:N. said: where it was given, to be named where it is wrong.
    """
    if name == "auto":
        return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise ValueError(f"{said} is {name!r}: give auto, cpu, cuda or cuda:N")
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ValueError(f"{said} is {name!r}, but this machine has no usable GPU: give cpu or auto")
        if device.index is not None and device.index >= torch.cuda.device_count():
            n = torch.cuda.device_count()
            raise ValueError(
                f"{said} is {name!r}, but this machine has {n} GPUs, numbered from 0: give cuda:{n - 1} or less"
            )
        return torch.device("cuda", torch.cuda.current_device()) if device.index is None else device
    return device


def pick_precision(name: str, device: torch.device) -> torch.dtype:
    """Return the dtype that `train.precision` names; "auto" is bfloat16 on a GPU that has it, else float32."""
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" and torch.cuda.is_bf16_supported() else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[name]
