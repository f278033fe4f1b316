"""An objective under Lightning's Trainer: its epochs, what it observes, and calibration on the validation items.

`examples/with_lightning.py` shows it whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, final

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from steelyard._compat import import_torchvision
from steelyard._extras import needed
from steelyard.calibrate import Calibrator
from steelyard.losses.pair import PairLoss
from steelyard.objective import Objective
from steelyard.training.group import gathered

with suppress(ModuleNotFoundError):
    import_torchvision()  # Lightning imports torchmetrics, which imports it where it is installed
with needed("steelyard.integrations.lightning needs", "lightning"):
    from lightning import Callback, LightningModule, Trainer

__all__ = ["ObjectiveCallback"]

_NO_VALIDATION = "there is no validation to fit the calibrator by: give the Trainer a loader and write validation_step"


@final
class ObjectiveCallback(Callback):
    """Runs the `Objective` of a LightningModule through a fit, and calibrates the fitted module.

    The objective must be a sub-module of the LightningModule, so that Lightning moves it to the device and saves its
    state in checkpoints; the callback starts its epochs, 1 to `max_epochs`. Under DDP its buffers are not synchronised,
    because each process counts for itself.

    With a calibrator, or with PLM that observes validation items, `validation_step` must return {"logits": (B, L),
    "targets": (B, L)}. The calibrator is fitted after `fit` to the logits of the last validation, and after `validate`
    to those of that validation, so `trainer.validate(ckpt_path="best")` calibrates the best epoch. It takes the
    log-odds of the objective's link, or logits if the loss has none. Lightning's distributed sampler may repeat one or
    two items.

    Args:
        calibrator: `Temperature`, `Platt` or `Isotonic`; None uses the objective's link.

    Examples:
        >>> from steelyard.integrations.lightning import ObjectiveCallback
        >>> callback = ObjectiveCallback(sy.calibrate.Platt())  # for lightning.Trainer(callbacks=[callback])
        >>> callback.probability(torch.zeros(1, 2))
        Traceback (most recent call last):
        ValueError: no module was fitted or validated yet: give this callback to a Trainer first
    """

    def __init__(self, calibrator: Calibrator | None = None) -> None:
        if calibrator is not None and not isinstance(calibrator, Calibrator):
            raise ValueError(f"calibrator is {type(calibrator).__name__}: give one of steelyard.calibrate, or None")
        self.calibrator = calibrator
        self._objective: Objective | None = None
        self._seen: list[tuple[Tensor, Tensor]] = []

    def probability(self, logits: Tensor) -> Tensor:
        """Return η of logits (B, L), by the calibrator, or by the objective's link where there is none."""
        if self._objective is None:
            raise ValueError("no module was fitted or validated yet: give this callback to a Trainer first")
        if self.calibrator is None:
            return self._objective.probability(logits)
        eta: Tensor = self.calibrator(self._read(logits))
        return eta

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Find the objective, and refuse a setup that cannot work, before anything is trained."""
        objectives = [part for part in pl_module.modules() if isinstance(part, Objective)]
        if len(objectives) != 1:
            raise ValueError(
                f"{type(pl_module).__name__} holds {len(objectives)} objectives: assign one steelyard.Objective in "
                "__init__"
            )
        self._objective = objectives[0]
        if stage == "fit" and (trainer.max_epochs is None or trainer.max_epochs < 1):
            raise ValueError(
                f"max_epochs is {trainer.max_epochs}: an objective is scheduled over its epochs, so give max_epochs"
            )
        self._keep_buffers_apart(pl_module)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse a fit that could not be calibrated in the end."""
        if self.calibrator is not None and not trainer.enable_validation:
            raise ValueError(_NO_VALIDATION)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin an epoch of the objective: PLM's ratios move, schedules advance."""
        self._carried.start_epoch(trainer.current_epoch + 1, trainer.max_epochs or 1)

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forget the logits of the validation before."""
        self._seen.clear()

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Keep a batch's logits for the calibrator, and show them to PLM where it observes validation items."""
        objective = self._carried
        masking = objective.masking
        observes = trainer.state.fn == "fit" and masking is not None and masking.observes == "validation"
        if trainer.sanity_checking or (self.calibrator is None and not observes):
            return
        if not isinstance(outputs, Mapping) or not {"logits", "targets"} <= outputs.keys():
            raise ValueError('validation_step gave no logits: return {"logits": (B, L), "targets": (B, L)}')
        logits, targets = outputs["logits"].detach(), outputs["targets"]
        if masking is not None and observes:
            masking.observe_logits(logits, targets.clamp_min(0) if objective.resolver.assumes_negative else targets)
        if self.calibrator is not None:
            self._seen.append((logits.cpu(), targets.cpu()))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Calibrate by what `Trainer.validate` gave."""
        if trainer.state.fn == "validate":
            self._calibrate()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Calibrate by the last validation of the fit."""
        self._calibrate()

    @property
    def _carried(self) -> Objective:
        assert self._objective is not None  # `setup` comes before every other hook
        return self._objective

    def _keep_buffers_apart(self, module: LightningModule) -> None:
        """Keep DistributedDataParallel from overwriting the counts of a process with those of the first one."""
        name = next(name for name, part in module.named_modules() if part is self._objective)
        own = {f"{name}.{buffer}" for buffer, _ in self._carried.named_buffers()}
        ignored = own.union(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, sorted(ignored))

    def _read(self, logits: Tensor) -> Tensor:
        """Return the input of the calibrator: log-odds if the loss has a link, else logits."""
        return self._carried.log_odds(logits) if isinstance(self._carried.loss, PairLoss) else logits

    def _calibrate(self) -> None:
        if self.calibrator is None:
            return
        if not self._seen:
            raise ValueError(_NO_VALIDATION)
        parts = [gathered(torch.cat(column)) for column in zip(*self._seen, strict=True)]
        device = next((buffer.device for buffer in self._carried.buffers()), torch.device("cpu"))
        logits, targets = (torch.cat(part).to(device) for part in parts)
        with torch.no_grad():
            self.calibrator.fit(self._read(logits), targets)
        self._seen.clear()
