"""The one loop: epochs, steps, validation, checkpoints. Read it from top to bottom."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from steelyard._files import remove_partial
from steelyard.balance.processes import n_processes
from steelyard.data.loading import WORKER_DIED, is_death_of_worker
from steelyard.data.subset import Subset
from steelyard.losses.pair import PairLoss
from steelyard.objective import Objective
from steelyard.training import group
from steelyard.training.augment import check_overlay
from steelyard.training.batches import Resident, is_array, make_batches, make_sampler
from steelyard.training.budget import Workload, draws_of, settled
from steelyard.training.captured import Captured, can_capture, fits_on
from steelyard.training.checkpoint import Checkpoints, History, Record, without_prefix
from steelyard.training.distributed import Stopped, listening
from steelyard.training.finite import NotFinite, Watchman, check_inputs, check_weights
from steelyard.training.job import LOWER_IS_BETTER, Job
from steelyard.training.optimizer import make_optimizer, rate
from steelyard.training.progress import Watch
from steelyard.training.settings import OptimizerSettings, ScheduleSettings, TrainSettings
from steelyard.training.step import Eager, Step, Update, pick_device, pick_precision

Validate = Callable[[nn.Module, torch.device], dict[str, float]]
CHECK_EVERY = 50
"""Steps after which a GPU is asked whether the loss is still finite, and processes whether one of them must stop."""
STILL_IMPROVING = (0.1, 0.01)
"""Training has not converged if the last tenth of the validations improved the monitor by more than a hundredth."""
MOST_RATIOS = 1000
"""Labels up to which PLM's ratios are written to the history."""


class Outcome(NamedTuple):
    """What came of a training."""

    weights: dict[str, Tensor]
    """The weights that are kept, on the CPU; the objective is left with the class weights of the same epoch."""
    kept_epoch: int
    history: list[Record]
    seconds: float
    """Of training, validation left out, all sittings together."""
    stopped_early: bool
    converged: bool | None
    """False where the last epoch was still clearly better than those before it; None where nothing was monitored."""
    damaged: list[str]
    """Checkpoints that were found damaged and passed over."""
    prepared: float
    """Seconds of compiling and recording steps in this sitting, not counted in `seconds`."""


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
    """Train `model` on `data` by `objective`, going on from the checkpoints in `folder` where there are any.

    Args:
        model: inputs → logits (B, L); a `backbone` attribute gets its own learning rate.
        objective: what is minimised.
        data: items (input, target, index) with `.labels`; arrays are kept on the device where they fit.
        optimizer, schedule, settings: the sections [optimizer], [schedule], [train]; what they leave automatic is
            decided by `settled`.
        folder: `checkpoint/` and `history.jsonl` are written here.
        validate: (model, device) → metrics by name, `settings.monitor` among them; called by every process.
        watch: shows how it goes.
    """
    watch = watch or Watch()
    settings, schedule = _settled(settings, schedule, data, objective, validate is not None)
    check_overlay(settings.augment.overlay, objective)
    device = pick_device(settings.device)
    precision = pick_precision(settings.precision, device)
    torch.manual_seed(settings.seed + group.rank())
    sampler = make_sampler(settings.sampler, data.labels, settings.seed)
    batches = make_batches(data, sampler, settings.batch_size, device, settings.workers)
    captures = can_capture(batches, device, precision, settings)
    if isinstance(batches, Resident):
        check_inputs(batches.inputs, data.labels.ids)
    model.to(device)
    objective.to(device)
    step = Step(model, objective, device, precision)
    forward = group.averaged(step)
    method = make_optimizer(optimizer, model, objective, fused=captures)
    job = Job(model, objective, method, device, settings.ema, scaled=precision == torch.float16)
    checkpoints = Checkpoints(folder / "checkpoint")
    found = checkpoints.load()
    if found is not None:
        job.restore(found)
    elif job.store is not None and group.is_first():
        job.store.reset()
    group.barrier()
    if group.is_first():
        folder.mkdir(parents=True, exist_ok=True)
        remove_partial(folder)
    history = History(folder / "history.jsonl", job.epoch, writes=group.is_first())
    store = job.store
    if store is not None and captures and fits_on(device, 2 * store.n_items * store.n_labels):
        store.hold_on(device)
    watchman = Watchman(data.labels.n_labels, device)
    update = Update(forward, job, watchman, optimizer.clip_norm, looks_at_inputs=not isinstance(batches, Resident))
    runner: Eager | Captured
    if captures and isinstance(batches, Resident):
        runner = Captured(update, batches, settings)
    else:
        runner = Eager(update, batches, settings)
    waits = device.type == "cpu" or (store is not None and not store.held)
    lr, prepared, saved_at = 0.0, 0.0, time.monotonic()

    def check() -> None:
        watchman.check(job.epoch, data.labels, lr)

    def add_seconds(since: float) -> None:
        nonlocal prepared
        job.seconds += time.monotonic() - since - (runner.prepared - prepared)
        prepared = runner.prepared

    def save() -> None:
        nonlocal saved_at
        state = job.state()
        if state is not None:
            checkpoints.save(job.epoch, job.step, state)
        group.barrier()
        saved_at = time.monotonic()

    try:
        watch.begin(job.epoch, job.step, settings.epochs)
        with listening() as stop:
            while job.epoch <= settings.epochs and not job.stopped_early:
                started = time.monotonic()
                if job.step == 0:
                    job.seconds_before = job.seconds
                steps = batches.start_epoch(job.epoch, job.step)
                if job.step == 0 and step.memory is not None:
                    step.memory.start_epoch()
                group.barrier()
                objective.start_epoch(job.epoch, settings.epochs)
                group.barrier()
                forward.train()
                rates = [
                    optimizer.lr * rate(schedule, job.epoch - 1 + i / steps, settings.epochs) for i in range(steps)
                ]
                runner.start_epoch(rates)
                for batch in runner:
                    lr = rates[job.step]
                    looks = waits or (job.step + 1) % CHECK_EVERY == 0
                    job.n_seen += runner.run(batch, check if looks else None)
                    job.step += 1
                    watch.step(job.epoch, job.step, steps)
                    if n_processes() == 1 or job.step % CHECK_EVERY == 0:
                        due = time.monotonic() - saved_at >= settings.checkpoint_seconds
                        if group.agreed(stop.asked or due) and job.step < steps:
                            check()
                            check_weights(job.shown, job.epoch, job.step, lr)
                            add_seconds(started)
                            started = time.monotonic()
                            save()
                            if group.agreed(stop.asked):
                                raise Stopped(f"stopped in epoch {job.epoch}; the same command goes on from there")
                check()
                check_weights(job.shown, job.epoch, job.step, lr)
                add_seconds(started)
                record = _record(job, steps, lr)
                group.broadcast([b for b in job.shown.buffers() if b.is_floating_point()])
                last = job.epoch == settings.epochs
                if validate is not None and (job.epoch % settings.validate_every == 0 or last):
                    scores = validate(job.shown, device)
                    record["validation"] = {name: None if v != v else v for name, v in scores.items()}
                    if job.is_better(scores[settings.monitor], settings.monitor):
                        job.best, job.best_epoch = scores[settings.monitor], job.epoch
                        if settings.keep == "best" and group.is_first():
                            job.best_file = checkpoints.save_best(job.epoch, job.kept())
                    job.stopped_early = 0 < settings.patience <= job.epoch - max(job.best_epoch, 1)
                history.append(record)
                watch.epoch(record, settings.epochs)
                job.epoch, job.step, job.n_seen = job.epoch + 1, 0, 0
                for total in job.sums.values():
                    total.zero_()
                due = time.monotonic() - saved_at >= settings.checkpoint_seconds or job.store is not None
                if group.agreed(due or stop.asked or last or job.stopped_early):
                    save()
                if group.agreed(stop.asked) and not last:
                    raise Stopped(f"stopped after epoch {job.epoch - 1}; the same command goes on from there")
    except NotFinite as error:
        if error.diverged_at is not None and group.is_first():
            checkpoints.forget(job.epoch, error.diverged_at)
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
        watch.end()
        runner.close()
        if store is not None:
            store.let_go()
    keeps_best = settings.keep == "best" and job.best_epoch > 0
    chosen = checkpoints.load_best(job.best_file) if keeps_best and group.is_first() else job.kept()
    kept = {name: chosen[name].detach().cpu().clone() for name in sorted(chosen)}
    group.broadcast(list(kept.values()))
    objective.load_state_dict(without_prefix("objective", kept), strict=False)
    return Outcome(
        without_prefix("model", kept),
        job.best_epoch if keeps_best else job.epoch - 1,
        history.records,
        job.seconds,
        job.stopped_early,
        _converged(history.records, settings.monitor),
        checkpoints.damaged,
        runner.prepared,
    )


def _settled(
    settings: TrainSettings, schedule: ScheduleSettings, data: Any, objective: Objective, validates: bool
) -> tuple[TrainSettings, ScheduleSettings]:
    """What automatic settings become for a caller who left any; how validation items are annotated is unknown."""
    inside: Any = data.data if isinstance(data, Subset) else data
    is_costly = not (is_array(data) and inside.inputs.ndim == 2)
    has_link, labels = isinstance(objective.loss, PairLoss), data.labels
    if settings.monitor == "auto":
        settings = replace(settings, monitor="loss" if has_link else "map")
    held, assumes = labels if validates else None, objective.resolver.assumes_negative
    draws = draws_of(settings.sampler, labels)
    return settled(settings, schedule, Workload(labels, draws, held, is_costly, has_link, assumes))


def _converged(records: list[Record], monitor: str) -> bool | None:
    """Whether the monitor had stopped improving: in the last tenth of the epochs by less than a hundredth."""
    found = [record["validation"].get(monitor) for record in records if "validation" in record]
    values = [-value if monitor in LOWER_IS_BETTER else value for value in found if value is not None]
    if not values:
        return None
    before = values[: -max(1, round(STILL_IMPROVING[0] * len(values)))]
    best = max(before, default=-math.inf)
    return not max(values) - best > STILL_IMPROVING[1] * abs(best)


def _record(job: Job, steps: int, lr: float) -> Record:
    """The line that the history gets of the epoch that is done."""
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
