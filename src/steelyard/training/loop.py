"""The training loop: epochs, steps, validation, checkpoints."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from steelyard._files import remove_partial
from steelyard.balance.processes import n_processes
from steelyard.data.loading import WORKER_DIED, is_death_of_worker
from steelyard.data.subset import source_of
from steelyard.losses.pair import PairLoss
from steelyard.objective import Objective
from steelyard.training import group
from steelyard.training.augment import check_overlay
from steelyard.training.batches import Resident, is_array, make_batches, make_sampler
from steelyard.training.budget import Workload, draws_of, settled
from steelyard.training.captured import Captured, can_capture, fits_on
from steelyard.training.checkpoint import Checkpoints, History, Record, without_prefix
from steelyard.training.distributed import Stopped, listening
from steelyard.training.finite import FiniteMonitor, NotFinite, check_inputs, check_weights
from steelyard.training.job import LOWER_IS_BETTER, Job
from steelyard.training.optimizer import make_optimizer, rate
from steelyard.training.progress import Watch
from steelyard.training.settings import OptimizerSettings, ScheduleSettings, TrainSettings
from steelyard.training.step import Eager, Step, pick_device, pick_precision

Validate = Callable[[nn.Module, torch.device], dict[str, float]]
CHECK_EVERY = 50
"""Steps after which a GPU is asked whether the loss is still finite, and processes whether one of them must stop."""
STILL_IMPROVING = (0.1, 0.01)
"""Training has not converged if the last tenth of the validations improved the monitor by more than a hundredth."""
MOST_RATIOS = 1000
"""Labels up to which PLM's ratios are written to the history."""


class Outcome(NamedTuple):
    """The result of `train`.

    Examples:
        >>> sy.training.Outcome._fields[:3]
        ('weights', 'kept_epoch', 'history')
    """

    weights: dict[str, Tensor]
    """The weights that are kept, on the CPU; the objective keeps the class weights of the same epoch."""
    kept_epoch: int
    """The epoch whose weights are kept."""
    history: list[Record]
    """One record per epoch, as in `history.jsonl`."""
    seconds: float
    """Seconds of training without validation, summed over all sessions."""
    stopped_early: bool
    """True if training stopped because the monitored score no longer improved."""
    converged: bool | None
    """False if the last epochs still improved clearly; None if nothing was monitored."""
    damaged: list[str]
    """Corrupt checkpoints that were skipped."""
    prepared: float
    """Seconds spent compiling and capturing steps in this session; not counted in `seconds`."""


def train(
    model: nn.Module,
    objective: Objective,
    data: Any,
    optimizer: OptimizerSettings,
    schedule: ScheduleSettings,
    settings: TrainSettings,
    folder: Path,
    validate: Validate | None = None,
    watch: Watch | None = None,
) -> Outcome:
    """Train `model` on `data` by `objective`, resuming from checkpoints in `folder` if there are any.

    Args:
        model: inputs → logits (B, L); a `backbone` attribute gets its own learning rate.
        objective: what is minimised.
        data: items (input, target, index) with `.labels`; arrays are moved to the device if they fit.
        optimizer: the section [optimizer].
        schedule: the section [schedule].
        settings: the section [train]; automatic values are decided by `settled`.
        folder: where `checkpoint/` and `history.jsonl` are written.
        validate: (model, device) → metrics by name, `settings.monitor` among them; called by every process.
        watch: reports progress.

    Examples:
        >>> from pathlib import Path
        >>> data = sy.data.ArrayDataset(np.eye(4), sy.Labels(np.eye(4, dtype=np.int8)))
        >>> objective = sy.Objective(sy.losses.BCE())
        >>> settings = sy.training.TrainSettings(epochs=2, batch_size=2, device="cpu")
        >>> optimizer, schedule = sy.training.OptimizerSettings(), sy.training.ScheduleSettings()
        >>> model = torch.nn.Linear(4, 4)
        >>> outcome = sy.training.train(model, objective, data, optimizer, schedule, settings, Path("run"))
        >>> outcome.kept_epoch, [record["steps"] for record in outcome.history]
        (2, [2, 2])
    """
    settings, schedule = _settled(settings, schedule, data, objective, validate is not None)
    training = _LoopState(model, objective, data, optimizer, schedule, settings, folder, validate, watch or Watch())
    job = training.job
    try:
        training.watch.begin(job.epoch, job.step, settings.epochs)
        with listening() as stop:
            while job.epoch <= settings.epochs and not job.stopped_early:
                training.run_epoch(stop)
                training.end_epoch(stop)
    except NotFinite as error:
        if error.diverged_at is not None and group.is_first():
            training.checkpoints.forget(job.epoch, error.diverged_at)
        raise
    except torch.OutOfMemoryError:
        raise ValueError(
            f"the GPU ran out of memory with train.batch_size = {settings.batch_size}: make it smaller, or data.size"
        ) from None
    except RuntimeError as error:
        if not is_death_of_worker(error):
            raise
        raise ValueError(WORKER_DIED) from None
    finally:
        training.watch.end()
        training.runner.close()
        if job.store is not None:
            job.store.let_go()
    return training.outcome()


class _LoopState:
    """A training from its preparation to its outcome; the arguments are those of `train`, none of them automatic."""

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        data: Any,
        optimizer: OptimizerSettings,
        schedule: ScheduleSettings,
        settings: TrainSettings,
        folder: Path,
        validate: Validate | None,
        watch: Watch,
    ) -> None:
        """Move data, network and objective to the device, and resume from the last checkpoint, if there is one."""
        check_overlay(settings.augment.overlay, objective)
        self.settings, self.schedule, self.top_lr, self.labels = settings, schedule, optimizer.lr, data.labels
        self.validate, self.watch = validate, watch
        self.device = device = pick_device(settings.device)
        precision = pick_precision(settings.precision, device)
        torch.manual_seed(settings.seed + group.rank())
        sampler = make_sampler(settings.sampler, data.labels, settings.seed)
        self.batches = make_batches(data, sampler, settings.batch_size, device, settings.workers)
        captures = can_capture(self.batches, device, precision, settings)
        if isinstance(self.batches, Resident):
            check_inputs(self.batches.inputs, data.labels.ids)
        model.to(device)
        objective.to(device)
        step = Step(model, objective, device, precision)
        self.memory, self.forward = step.memory, group.averaged(step)
        method = make_optimizer(optimizer, model, objective, fused=captures)
        self.job = job = Job(model, objective, method, device, settings.ema, scaled=precision == torch.float16)
        self.checkpoints = Checkpoints(folder / "checkpoint")
        state, store = self.checkpoints.load(), job.store
        if state is not None:
            job.restore(state)
        elif store is not None and group.is_first():
            store.reset()
        group.barrier()
        if group.is_first():
            folder.mkdir(parents=True, exist_ok=True)
            remove_partial(folder)
        self.history = History(folder / "history.jsonl", job.epoch, writes=group.is_first())
        if store is not None and captures and fits_on(device, 2 * store.n_items * store.n_labels):
            store.hold_on(device)
        self.waits = device.type == "cpu" or (store is not None and not store.held)
        self.watchman = FiniteMonitor(data.labels.n_labels, device)
        kind = Captured if captures else Eager
        self.runner = kind(self.forward, job, self.watchman, self.batches, settings, optimizer.clip_norm)
        self.saved_at = time.monotonic()
        self.steps, self.lr = 0, 0.0
        """Of the epoch under way, and of the step taken last."""

    def run_epoch(self, stop: Event) -> None:
        """Take the remaining steps of the job's epoch."""
        job, settings, started = self.job, self.settings, self._clock()
        if job.step == 0:
            job.seconds_before = job.seconds
        self.steps = steps = self.batches.start_epoch(job.epoch, job.step)
        if job.step == 0 and self.memory is not None:
            self.memory.start_epoch()
        group.barrier()
        job.objective.start_epoch(job.epoch, settings.epochs)
        group.barrier()
        self.forward.train()
        epochs = [job.epoch - 1 + i / steps for i in range(steps)]
        rates = [self.top_lr * rate(self.schedule, at, settings.epochs) for at in epochs]
        self.runner.start_epoch(rates)
        for batch in self.runner:
            self.lr = rates[job.step]
            looks = self.waits or (job.step + 1) % CHECK_EVERY == 0
            job.n_seen += self.runner.run(batch, self._check_loss if looks else None)
            job.step += 1
            self.watch.step(job.epoch, job.step, steps)
            if job.step == steps or (n_processes() > 1 and job.step % CHECK_EVERY):
                continue
            if group.agreed(stop.is_set() or self._is_due()):
                started = self._pause(started)
                self._save()
                if group.agreed(stop.is_set()):
                    raise Stopped(f"stopped in epoch {job.epoch}; run the same command again to continue")
        self._pause(started)

    def end_epoch(self, stop: Event) -> None:
        """Validate, keep what is best, write the history and, where it is time, a checkpoint; begin the next epoch."""
        job, settings = self.job, self.settings
        record = _record(job, self.steps, self.lr)
        group.broadcast([b for b in job.shown.buffers() if b.is_floating_point()])
        is_last = job.epoch == settings.epochs
        if self.validate is not None and (job.epoch % settings.validate_every == 0 or is_last):
            scores = self.validate(job.shown, self.device)
            record["validation"] = {name: None if v != v else v for name, v in scores.items()}
            if job.is_better(scores[settings.monitor], settings.monitor):
                job.best, job.best_epoch = scores[settings.monitor], job.epoch
                if settings.keep == "best" and group.is_first():
                    job.best_file = self.checkpoints.save_best(job.epoch, job.kept())
            job.stopped_early = 0 < settings.patience <= job.epoch - max(job.best_epoch, 1)
        self.history.append(record)
        self.watch.epoch(record, settings.epochs)
        job.epoch, job.step, job.n_seen = job.epoch + 1, 0, 0
        for total in job.sums.values():
            total.zero_()
        is_due = self._is_due() or job.store is not None
        if group.agreed(is_due or stop.is_set() or is_last or job.stopped_early):
            self._save()
        if group.agreed(stop.is_set()) and not is_last:
            raise Stopped(f"stopped after epoch {job.epoch - 1}; run the same command again to continue")

    def outcome(self) -> Outcome:
        """Return the outcome; the objective gets the class weights of the epoch that is kept."""
        job, settings, records = self.job, self.settings, self.history.records
        keeps_best = settings.keep == "best" and job.best_epoch > 0
        chosen = self.checkpoints.load_best(job.best_file) if keeps_best and group.is_first() else job.kept()
        kept = {name: chosen[name].detach().cpu().clone() for name in sorted(chosen)}
        group.broadcast(list(kept.values()))
        job.objective.load_state_dict(without_prefix("objective", kept), strict=False)
        return Outcome(
            without_prefix("model", kept),
            job.best_epoch if keeps_best else job.epoch - 1,
            records,
            job.seconds,
            job.stopped_early,
            _converged(records, settings.monitor),
            self.checkpoints.damaged,
            self.runner.prepared,
        )

    def _clock(self) -> float:
        """Return seconds of which differences are training: compiling and recording are left out."""
        return time.monotonic() - self.runner.prepared

    def _is_due(self) -> bool:
        return time.monotonic() - self.saved_at >= self.settings.checkpoint_seconds

    def _check_loss(self) -> None:
        self.watchman.check(self.job.epoch, self.labels, self.lr)

    def _pause(self, started: float) -> float:
        """Check that all is well after the steps since `started`, count their seconds, and return the time."""
        self._check_loss()
        check_weights(self.job.shown, self.job.epoch, self.job.step, self.lr)
        now = self._clock()
        self.job.seconds += now - started
        return now

    def _save(self) -> None:
        state = self.job.state()
        if state is not None:
            self.checkpoints.save(self.job.epoch, self.job.step, state)
        group.barrier()
        self.saved_at = time.monotonic()


def _settled(
    settings: TrainSettings, schedule: ScheduleSettings, data: Any, objective: Objective, validates: bool
) -> tuple[TrainSettings, ScheduleSettings]:
    """Decide automatic settings; how validation items are annotated is not known here."""
    is_costly = not (is_array(data) and source_of(data).inputs.ndim == 2)
    has_link = isinstance(objective.loss, PairLoss) and not objective.resolver.no_link
    labels = data.labels
    if settings.monitor == "auto":
        settings = replace(settings, monitor="loss" if has_link else "map")
    held, assumes = labels if validates else None, objective.resolver.assumes_negative
    draws = draws_of(settings.sampler, labels)
    return settled(settings, schedule, Workload(labels, draws, held, is_costly, has_link, assumes))


def _converged(records: list[Record], monitor: str) -> bool | None:
    """Return whether the monitor improved by less than a hundredth in the last tenth of the epochs."""
    scores_seen = [record["validation"].get(monitor) for record in records if "validation" in record]
    values = [-value if monitor in LOWER_IS_BETTER else value for value in scores_seen if value is not None]
    if not values:
        return None
    before = values[: -max(1, round(STILL_IMPROVING[0] * len(values)))]
    best = max(before, default=-math.inf)
    return not max(values) - best > STILL_IMPROVING[1] * abs(best)


def _record(job: Job, steps: int, lr: float) -> Record:
    """Return the history record of the epoch that just ended."""
    means, seconds = job.means(), job.seconds - job.seconds_before
    record: Record = {
        "epoch": job.epoch,
        "steps": steps,
        "seconds": round(seconds, 3),
        "lr": lr,
        "loss": means.pop("total"),
        "parts": means,
        "items_per_second": round(job.n_seen * n_processes() / max(seconds, 1e-9), 1),
    }
    masking = job.objective.masking
    if masking is not None and masking.n_labels <= MOST_RATIOS:
        record["plm_ratio"] = masking.ratio.tolist()
    return record
