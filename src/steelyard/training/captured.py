"""Steps as CUDA graphs: a step is captured once, then replayed without Python between its kernels."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from steelyard.balance.processes import n_processes
from steelyard.balance.weighting import Deferred, Weighting
from steelyard.losses.partial_annotation import Annotation
from steelyard.losses.unknown import Pseudo, Resolver
from steelyard.objective import Objective
from steelyard.training.augment import OVERLAY, check_images, n_draws, overlaid, uniforms, varied
from steelyard.training.batches import SHARE_OF_GPU, Batches, Resident
from steelyard.training.job import Job
from steelyard.training.settings import AugmentSettings, TrainSettings
from steelyard.training.step import Check, Eager, Step

COMPILES_FROM = 5000
"""Steps from which on a network of images is compiled; chosen, not measured."""
TRIES_FROM = 2000
"""Steps from which on cuDNN tries all its convolutions before one is taken; chosen, not measured."""
_log = logging.getLogger("steelyard")


def can_capture(batches: Batches, device: torch.device, precision: torch.dtype, settings: TrainSettings) -> bool:
    """Return whether the steps of such a training may be captured: one process, data on its GPU, no loss scaling."""
    return (
        device.type == "cuda"
        and isinstance(batches, Resident)
        and n_processes() == 1
        and precision != torch.float16
        and settings.compile != "off"
    )


def fits_on(device: torch.device, n_bytes: float) -> bool:
    """Return whether so much may be kept on `device` beside the data."""
    return device.type != "cuda" or n_bytes <= SHARE_OF_GPU * torch.cuda.mem_get_info(device)[0]


class Captured(Eager):
    """The same steps as `Eager`, each a CUDA graph: one for every size of batch, recorded the second time it comes.

    A graph finds everything that changes at a fixed place on the device: the number of the step, the epoch's order and
    random numbers, learning rates, and the share by which the average follows. PLM's masks and the picks of partial
    annotation are drawn once an epoch. Where the objective is another function from some epoch on (deferred weights),
    steps are recorded again. What cannot be recorded runs as `Eager` would run it, and a line in the log says why.
    """

    batches: Resident

    def __init__(self, forward: nn.Module, job: Job, *more: Any) -> None:
        super().__init__(forward, job, *more)
        augmentation = self.settings.augment
        self.device, self.share = self.batches.device, self.batches.share
        self.is_varied = augmentation != AugmentSettings()
        if self.is_varied:
            check_images(self.batches.inputs)
        groups = job.optimizer.param_groups
        self.scalars = torch.zeros(len(groups) + 1, device=self.device)
        for group, lr in zip(groups, self.scalars, strict=False):
            group["lr"] = lr
        self.at = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.within = torch.arange(self.share, device=self.device)
        self.order = torch.zeros(0, dtype=torch.int64, device=self.device)
        self.uniforms = torch.zeros(0, n_draws(augmentation), device=self.device)
        self.table = torch.zeros(0, len(self.scalars), device=self.device)
        self.graphs: dict[int, Callable[[], None]] = {}
        self.warm: set[int] = set()
        self.phase: tuple[Hashable, ...] = ()
        self.is_broken = False
        self.is_cuda = self.device.type == "cuda"
        if self.is_cuda:
            self.stream, self.side = torch.cuda.Stream(self.device), torch.cuda.Stream(self.device)
            self.pool = torch.cuda.graph_pool_handle()
            self.beside, self.join = self._beside, self._join
            job.objective.overlap(self._beside, self._join)
            _lay_out(job.model, job.optimizer)
            if isinstance(forward, Step) and self._compiles():
                forward.compiled = [torch.compile(job.model, dynamic=False)]

    def start_epoch(self, rates: Sequence[float]) -> None:
        """Begin, or take up again, the job's epoch; `rates` are the learning rates of its steps."""
        job, first = self.job, self.job.step * self.share
        left = self.batches.order()
        total = first + len(left)
        if total > len(self.order):
            self._forget()  # graphs only know the old addresses
            room = max(total, len(self.batches.targets))
            self.order = torch.zeros(room, dtype=torch.int64, device=self.device)
            self.table = torch.zeros(-(-room // self.share), len(self.scalars), device=self.device)
            if self.is_varied:
                self.uniforms = torch.zeros(room, self.uniforms.shape[1], device=self.device)
        self.order[first:total] = left
        if self.is_varied:
            draws = torch.arange(total, device=self.device)
            self.uniforms[:total] = uniforms(self.settings.augment, self.settings.seed, job.epoch, draws)
        rows = torch.zeros(len(rates), len(self.scalars))
        for i, group in enumerate(job.optimizer.param_groups):
            rows[:, i] = torch.tensor(rates, dtype=torch.float64) * group["share"]
        if job.average is not None:
            done = job.average.n_updates - job.step
            rows[job.step :, -1] = torch.tensor([job.average.share(done + i) for i in range(job.step, len(rates))])
        self.table[: len(rates)] = rows.to(self.device)
        self.at.fill_(job.step)
        draw_ahead(job.objective, self.batches.targets)
        phase = phase_of(job.objective)
        if phase != self.phase:
            self.phase = phase
            self._forget()

    def __iter__(self) -> Iterator[int]:
        """Yield the number of items of each of the epoch's steps."""
        left = len(self.batches.sampler)
        for start in range(0, left, self.share):
            yield min(self.share, left - start)

    def run(self, n: int, check: Check | None) -> int:
        """Take a step of `n` items; `check`, if given, is called after it."""
        expected = self.job.objective.expected
        if expected is not None and expected.fresh:  # as its first batch would do
            expected.sums.zero_()
            expected.fresh = False
        if n in self.graphs:
            self.graphs[n]()
        else:
            if self.is_cuda and not self.is_broken:
                torch.cuda.synchronize(self.device)  # what was asked for before is training, not preparing
            started = time.monotonic()
            if self.is_broken:
                self._step(n)
            elif n not in self.warm:
                self.warm.add(n)
                self._warm_up(n)
            else:
                self._record(n)
            if not self.is_broken:
                self.prepared += time.monotonic() - started
        if self.job.average is not None:
            self.job.average.n_updates += 1
        if check is not None:
            check()
        return n

    def _step(self, n: int) -> None:
        """All of a step, on the device from beginning to end."""
        rows = self.at * self.share + self.within[:n]
        batch = self.batches.rows(self.order[rows])
        if self.is_varied and isinstance(batch.inputs, Tensor):
            u = self.uniforms[rows]
            images = varied(batch.inputs, self.settings.augment, u)
            batch = overlaid(batch._replace(inputs=images), self.settings.augment.overlay, u[:, OVERLAY])
        self.scalars.copy_(self.table.index_select(0, self.at).squeeze(0))
        if isinstance(self.forward, Step):
            self.forward.is_compiled = n == self.share
        with self.beside():
            self.job.objective.resolver.prepare(batch.targets, batch.index)
        self.update(self.at.squeeze(0), batch)
        if self.job.average is not None:
            self.job.average.follow(self.job.model, self.scalars[-1])
        self.at += 1

    def close(self) -> None:
        """Release what the steps needed."""
        self.job.objective.overlap()
        self._forget()

    def _compiles(self) -> bool:
        """Return whether it pays to have the network compiled: it is slow to begin with."""
        is_image = self.batches.inputs.ndim == 4
        return self.settings.compile == "on" or (is_image and self._n_steps() >= COMPILES_FROM)

    def _tries(self, n: int) -> bool:
        """Return whether trying all convolutions pays for a batch of n: it takes as long as many steps."""
        return n == self.share and (self.settings.compile == "on" or self._n_steps() >= TRIES_FROM)

    def _n_steps(self) -> int:
        return self.settings.epochs * (len(self.batches.inputs) // self.settings.batch_size)

    def _warm_up(self, n: int) -> None:
        """Take a step as Python runs it, so that libraries choose their kernels before they are recorded."""
        now = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(now)
        with torch.cuda.stream(self.stream), _chosen_kernels(self._tries(n)):
            self._step(n)
        now.wait_stream(self.stream)
        torch.cuda.synchronize(self.device)

    def _record(self, n: int) -> None:
        """Capture a step and run it; if that fails, run this and all later steps in Python."""
        random = torch.cuda.get_rng_state(self.device) if self.is_cuda else None
        try:
            self.graphs[n] = self._capture(n)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            _log.warning("Steps run without CUDA graphs: %s", str(error).strip().split("\n")[0])
            self.is_broken = True
            self._forget()
            if random is not None:
                _renew_generator(self.device, random)
            self._step(n)
            return
        self.graphs[n]()

    def _capture(self, n: int) -> Callable[[], None]:
        """Capture one step as a CUDA graph and return a function that replays it."""
        graph = torch.cuda.CUDAGraph()
        with _chosen_kernels(self._tries(n)), torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
            self._step(n)
        return graph.replay

    def _forget(self) -> None:
        if self.is_cuda:
            torch.cuda.synchronize(self.device)
            self.job.optimizer.zero_grad(set_to_none=True)
            self.pool = torch.cuda.graph_pool_handle()
        self.graphs.clear()
        self.warm.clear()

    @contextmanager
    def _beside(self) -> Iterator[None]:
        """Run kernels beside those that follow, until `_join`."""
        now = torch.cuda.current_stream(self.device)
        self.side.wait_stream(now)
        with torch.cuda.stream(self.side):
            yield

    def _join(self) -> None:
        torch.cuda.current_stream(self.device).wait_stream(self.side)


def draw_ahead(objective: Objective, targets: Tensor) -> None:
    """Let the objective make the epoch's draws for all items, whose targets lie on the device, if there is room."""
    masking, resolver = objective.masking, objective.resolver
    if not fits_on(targets.device, 5 * targets.numel()):
        return
    if masking is not None:
        masking.draw_ahead(targets.clamp_min(0) if resolver.assumes_negative else targets)
    if isinstance(resolver, Annotation):
        resolver.draw_ahead(targets)


def phase_of(objective: Objective) -> tuple[Hashable, ...]:
    """Return what decides which kernels the objective runs, and with which constants, in the epoch under way."""
    phase: list[Hashable] = []
    if objective.masking is not None and objective.masking.ahead.epoch != objective.epoch:
        phase.append(objective.epoch)
    for part in objective.modules():
        if isinstance(part, Deferred):
            phase.append(part.epoch >= part.start)
        elif isinstance(part, Annotation):
            store = part.stored()
            is_ready = part.ahead.epoch == part.epoch and store is not None and store.held
            phase.append(None if is_ready else objective.epoch)
        elif isinstance(part, Pseudo):
            phase.append(None if part.store.held else objective.epoch)
        elif isinstance(part, Weighting | Resolver):
            is_constant = type(part).start_epoch in (Weighting.start_epoch, Resolver.start_epoch)
            phase.append(None if is_constant else objective.epoch)
    return tuple(phase)


def _lay_out(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Keep the weights of convolutions as GPUs like them, channels last, and the optimizer's state likewise."""
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                state[name] = torch.empty_like(parameter).copy_(value)


def _renew_generator(device: torch.device, state: Tensor) -> None:
    """Give the device's random generator a new state: after a failed capture the old one cannot be used."""
    fresh = torch.Generator(device)
    fresh.set_state(state)
    torch.cuda.default_generators[device.index].graphsafe_set_state(fresh.graphsafe_get_state())


@contextmanager
def _chosen_kernels(tries: bool) -> Iterator[None]:
    """Let cuDNN try all its convolutions and take the fastest, or, where that does not pay, the likely one."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = tries
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
