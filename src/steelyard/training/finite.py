"""A loss that is not a number stops training, in words that help."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class NotFinite(ValueError):
    """The loss became NaN or infinite; the last good checkpoint is kept."""


class Watchman:
    """Notes, without waiting for the device, the first step whose loss is not finite, and which labels were bad then.

    `note` every step, `check` from time to time: it waits, and raises `NotFinite`.
    """

    def __init__(self, n_labels: int, device: torch.device) -> None:
        self.step = torch.full((), -1, dtype=torch.int64, device=device)
        self.labels = torch.zeros(n_labels, dtype=torch.bool, device=device)
        self.parts: dict[str, Tensor] = {}

    def note(self, step: Tensor | int, total: Tensor, parts: dict[str, Tensor], logits: Tensor) -> None:
        """Take in a step's loss and logits; no value is read back."""
        first = ~torch.isfinite(total) & (self.step < 0)
        self.step.copy_(torch.where(first, step, self.step))
        self.labels.copy_(torch.where(first, ~torch.isfinite(logits).all(dim=0), self.labels))
        for name, part in parts.items():
            if name not in self.parts:
                self.parts[name] = torch.zeros((), dtype=torch.bool, device=self.step.device)
            self.parts[name].copy_(torch.where(first, ~torch.isfinite(part), self.parts[name]))

    def check(self, epoch: int, names: Sequence[str], lr: float) -> None:
        """Raise if a step was bad."""
        step = int(self.step)
        if step < 0:
            return
        bad = [names[i] for i in torch.nonzero(self.labels).flatten().tolist()]
        parts = [name for name, is_bad in self.parts.items() if bool(is_bad)]
        where = f"epoch {epoch}, step {step + 1}"
        if not bad:
            raise NotFinite(
                f"the loss is not finite at {where}, in {' and '.join(parts)}, though every logit is: lower the "
                f"learning rate (it was {lr:.3g}) or the weights of the objective"
            )
        if len(bad) == len(names) > 1:
            raise NotFinite(
                f"the loss is not finite at {where}: the logits of all labels are NaN or infinite, so the network "
                f"itself diverged; lower optimizer.lr (it was {lr:.3g}), set optimizer.clip_norm = 1, or lengthen "
                "schedule.warmup_epochs"
            )
        told = ", ".join(repr(name) for name in bad[:3]) + (f" and {len(bad) - 3} more" if len(bad) > 3 else "")
        raise NotFinite(
            f"the loss is not finite at {where}: the logit of {told} is NaN or infinite; lower optimizer.lr (it was "
            f"{lr:.3g}) or look at that label's weight"
        )


def check_inputs(inputs: Tensor, ids: Sequence[str]) -> None:
    """Raise if a feature is NaN or infinite, naming the item and the column."""
    if not inputs.is_floating_point():
        return
    for start in range(0, len(inputs), 65536):
        bad = ~torch.isfinite(inputs[start : start + 65536])
        if bool(bad.any()):
            spot = bad.nonzero()[0].tolist()
            item = start + spot[0]
            value = inputs[(item, *spot[1:])].item()
            raise ValueError(
                f"item {ids[item]!r} has the value {value} in input {tuple(spot[1:]) if len(spot) > 2 else spot[1]}: "
                "fill or leave out what is missing before training"
            )
