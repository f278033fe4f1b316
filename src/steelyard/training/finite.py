"""Stop training if the loss is not finite, and say where and why."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from steelyard.labels import Labels
from steelyard.training import group


class NotFinite(ValueError):
    """The loss became NaN or infinite; the last good checkpoint is kept.

    Args:
        message: where and, as far as it shows, why.
        diverged_at: the step, from 0, before which the weights were bad already; None where something else is to blame.
        elsewhere: whether another process met it, which can say more.
    """

    def __init__(self, message: str, diverged_at: int | None = None, elsewhere: bool = False) -> None:
        super().__init__(message)
        self.diverged_at, self.elsewhere = diverged_at, elsewhere


class FiniteMonitor:
    """Notes, without waiting for the device, the first step whose loss is not finite, and which labels were bad then.

    `note` every step, and `note_slopes` after its backward pass; `check` from time to time: it waits, and raises
    `NotFinite`.
    """

    def __init__(self, n_labels: int, device: torch.device) -> None:
        self.step = torch.full((), -1, dtype=torch.int64, device=device)
        self.item = torch.full((), -1, dtype=torch.int64, device=device)
        self.logits = torch.zeros(n_labels, dtype=torch.bool, device=device)
        self.slopes = torch.zeros(n_labels, dtype=torch.bool, device=device)
        self.first = torch.zeros((), dtype=torch.bool, device=device)
        self.parts: dict[str, Tensor] = {}

    def note(
        self,
        step: Tensor | int,
        total: Tensor,
        parts: dict[str, Tensor],
        logits: Tensor,
        inputs: Tensor | tuple[Tensor, ...] | None,
        index: Tensor,
    ) -> None:
        """Take in a step's forward pass; no value is read back. `inputs` None are known to be finite."""
        self.first = first = ~torch.isfinite(total.detach()) & (self.step < 0)
        self._keep(first, self.step, step)
        self._keep(first, self.logits, ~torch.isfinite(logits.detach()).all(dim=0))
        for name, part in parts.items():
            if name not in self.parts:
                self.parts[name] = torch.zeros((), dtype=torch.bool, device=self.step.device)
            self._keep(first, self.parts[name], ~torch.isfinite(part))
        for x in inputs if isinstance(inputs, tuple) else () if inputs is None else (inputs,):
            if x.is_floating_point():
                bad = ~torch.isfinite(x).flatten(1).all(dim=1)
                self._keep(first & bad.any(), self.item, index[bad.to(torch.int8).argmax()])

    def note_slopes(self, slopes: Tensor | None) -> None:
        """Take in the gradient of the logits of the step noted last, where there is one."""
        if slopes is not None:
            self._keep(self.first, self.slopes, ~torch.isfinite(slopes).all(dim=0))

    def check(self, epoch: int, labels: Labels, lr: float) -> None:
        """Raise if a step was bad, naming where and, if visible, why; every process must call it."""
        step = int(self.step)
        if not group.agreed(step >= 0):
            return
        if step < 0:
            raise NotFinite(f"the loss of another process's items is not finite in epoch {epoch}", elsewhere=True)
        where = f"the loss is not finite at epoch {epoch}, step {step + 1}"
        if int(self.item) >= 0:
            raise NotFinite(
                f"{where}: an input of item {labels.ids[int(self.item)]!r} is NaN or infinite; fill or leave out what "
                "is missing before training"
            )
        rate = f"lower optimizer.lr (it was {lr:.3g})"
        look = f"{rate} or look at the weights there"
        bad, slopes = (x.nonzero().flatten().tolist() for x in (self.logits, self.slopes))
        parts = " and ".join(name for name, is_bad in self.parts.items() if bool(is_bad))
        if slopes and parts and not bad:
            raise NotFinite(f"{where}, in {parts} at {_told(labels.names, slopes)}, though every logit is: {look}")
        if 0 < len(bad) < labels.n_labels:
            raise NotFinite(f"{where}: the logit of {_told(labels.names, bad)} is NaN or infinite; {look}", step)
        what = "logits of another process's items are NaN or infinite"
        if bad or parts:
            what = "the logits of all labels are NaN or infinite" if bad else "the logits are finite but too large"
        raise NotFinite(
            f"{where}: {what}, so the network itself diverged; {rate}, set optimizer.clip_norm = 1, or lengthen "
            "schedule.warmup_epochs",
            step,
            elsewhere=not bad and not parts,
        )

    @staticmethod
    def _keep(first: Tensor, held: Tensor, value: Tensor | int) -> None:
        held.copy_(torch.where(first, value, held))


def check_weights(model: nn.Module, epoch: int, step: int, lr: float) -> None:
    """Raise if a weight is not finite after `step` steps of `epoch`: no checkpoint should hold it.

    Every process must call it, since statistics of a normalisation are each process's own.
    """
    weights = {name: value for name, value in model.state_dict().items() if value.is_floating_point()}
    sums = torch._foreach_norm(list(weights.values()), 1, dtype=torch.float64)  # finite just where every number is
    good = torch.isfinite(torch.stack(sums)).tolist()
    if not group.agreed(not all(good)):
        return
    name = next((name for name, is_good in zip(weights, good, strict=True) if not is_good), "of another process")
    raise NotFinite(
        f"the weights {name} are not finite after epoch {epoch}, step {step}: lower optimizer.lr (it was {lr:.3g}), "
        "set optimizer.clip_norm = 1, or lengthen schedule.warmup_epochs",
        elsewhere=all(good),
    )


def _told(names: Sequence[str], which: list[int]) -> str:
    """Name some labels."""
    if len(which) == len(names) > 1:
        return "all labels"
    return ", ".join(repr(names[i]) for i in which[:3]) + (f" and {len(which) - 3} more" if len(which) > 3 else "")


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
                "fill in or leave out missing values before training"
            )
