"""The one loop: epochs, steps, validation, checkpoints. Read it from top to bottom."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from steelyard.balance.processes import n_processes
from steelyard.objective import Objective
from steelyard.training import group
from steelyard.training.augment import augment
from steelyard.training.batches import Resident, make_batches, make_sampler
from steelyard.training.checkpoint import Checkpoints, without_prefix
from steelyard.training.finite import Watchman, check_inputs
from steelyard.training.history import History, Record
from steelyard.training.job import Job
from steelyard.training.optimizer import make_optimizer, rate, set_rate
from steelyard.training.progress import Watch
from steelyard.training.settings import OptimizerSettings, ScheduleSettings, TrainSettings
from steelyard.training.step import Step, pick_device, pick_precision
from steelyard.training.stopping import Stopped, listening

Validate = Callable[[nn.Module, torch.device], dict[str, float]]
CHECK_EVERY = 50
"""Steps after which a GPU is asked whether the loss is still finite, and processes whether one of them must stop."""
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
    damaged: list[str]
    """Checkpoints that were found damaged and passed over."""


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
        optimizer, schedule, settings: the sections [optimizer], [schedule], [train].
        folder: `checkpoint/` and `history.jsonl` are written here.
        validate: (model, device) → metrics by name, `settings.monitor` among them; called by every process.
        watch: shows how it goes.
    """
    watch = watch or Watch()
    device = pick_device(settings.device)
    precision = pick_precision(settings.precision, device)
    torch.manual_seed(settings.seed + group.rank())
    sampler = make_sampler(settings.sampler, data.labels, settings.seed)
    batches = make_batches(data, sampler, settings.batch_size, device, settings.workers)
    if isinstance(batches, Resident):
        check_inputs(batches.inputs, data.labels.ids)
    model.to(device)
    objective.to(device)
    step = Step(model, objective, device, precision)
    forward = DistributedDataParallel(step, broadcast_buffers=False) if n_processes() > 1 else step
    method = make_optimizer(optimizer, model, objective)
    job = Job(model, objective, method, device, settings.ema, scaled=precision == torch.float16)
    checkpoints = Checkpoints(folder / "checkpoint")
    found = checkpoints.load()
    if found is not None:
        job.restore(found)
    elif job.store is not None and group.is_first():
        job.store.reset()
    group.barrier()
    history = History(folder / "history.jsonl", job.epoch, writes=group.is_first())
    watch.begin(job.epoch, job.step, settings.epochs)
    saved_at = time.monotonic()

    def save() -> None:
        nonlocal saved_at
        state = job.state()
        if state is not None:
            checkpoints.save(job.epoch, job.step, state)
        group.barrier()
        saved_at = time.monotonic()

    try:
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
                watchman = Watchman(data.labels.n_labels, device)
                lr = 0.0
                for batch in batches:
                    lr = optimizer.lr * rate(schedule, job.epoch - 1 + job.step / steps, settings.epochs)
                    set_rate(method, lr)
                    draws = batches.draws(job.step, len(batch.index), device)
                    inputs = augment(batch.inputs, settings.augment, settings.seed, job.epoch, draws)
                    total, parts, logits = forward(inputs, batch.targets, batch.index)
                    watchman.note(job.step, total, parts, logits)
                    looks = device.type == "cpu" or (job.step + 1) % CHECK_EVERY == 0
                    if looks:
                        watchman.check(job.epoch, data.labels.names, lr)
                    method.zero_grad(set_to_none=True)
                    job.scaler.scale(total).backward()
                    if optimizer.clip_norm > 0:
                        job.scaler.unscale_(method)
                        nn.utils.clip_grad_norm_(step.parameters(), optimizer.clip_norm)
                    job.scaler.step(method)
                    job.scaler.update()
                    if job.average is not None:
                        job.average.update(model)
                    job.add(total, parts, len(batch.index))
                    job.step += 1
                    watch.step(job.epoch, job.step, steps)
                    if n_processes() == 1 or job.step % CHECK_EVERY == 0:
                        due = time.monotonic() - saved_at >= settings.checkpoint_seconds
                        if group.agreed(stop.asked or due) and job.step < steps:
                            watchman.check(job.epoch, data.labels.names, lr)
                            job.seconds += time.monotonic() - started
                            started = time.monotonic()
                            save()
                            if group.agreed(stop.asked):
                                raise Stopped
                watchman.check(job.epoch, data.labels.names, lr)
                job.seconds += time.monotonic() - started
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
                if group.is_first():
                    history.append(record)
                watch.epoch(record, settings.epochs)
                job.epoch, job.step, job.sums, job.n_seen = job.epoch + 1, 0, {}, 0
                due = time.monotonic() - saved_at >= settings.checkpoint_seconds or job.store is not None
                if group.agreed(due or stop.asked or last or job.stopped_early):
                    save()
                if group.agreed(stop.asked) and not last:
                    raise Stopped
    except torch.OutOfMemoryError:
        raise ValueError(
            f"the GPU ran out of memory with train.batch_size = {settings.batch_size}: make it smaller, or data.size"
        ) from None
    finally:
        watch.end()
    keeps_best = settings.keep == "best" and job.best_epoch > 0
    kept = checkpoints.load_best(job.best_file) if keeps_best and group.is_first() else job.kept()
    objective.load_state_dict(without_prefix("objective", kept), strict=False)
    return Outcome(
        {name: value.cpu() for name, value in without_prefix("model", kept).items()},
        job.best_epoch if keeps_best else job.epoch - 1,
        history.records,
        job.seconds,
        job.stopped_early,
        checkpoints.damaged,
    )


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
