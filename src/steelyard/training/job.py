"""The state of a training that changes from step to step, saved and restored as a whole."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from steelyard.balance.processes import n_processes, summed
from steelyard.balance.pseudo_labels import PseudoLabels
from steelyard.objective import Objective
from steelyard.training import group
from steelyard.training.checkpoint import (
    State,
    module_tensors,
    optimizer_tensors,
    prefixed,
    restore_optimizer,
    without_prefix,
)

LOWER_IS_BETTER = ("loss", "ace", "error", "assumed_loss")
_COUNTED = ("epoch", "step", "stopped_early", "seconds", "seconds_before", "best", "best_epoch", "best_file")


class Job:
    """A training in progress: network, objective, optimizer, average, scaler, random numbers, and its position.

    `epoch` and `step` say what comes next; `sums` are the epoch's losses so far, weighted by items; `seconds` are those
    of training so far, `seconds_before` those when the epoch began.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        optimizer: torch.optim.Optimizer,
        device: torch.device,
        ema: float,
        scaled: bool,
    ) -> None:
        self.model, self.objective, self.optimizer, self.device = model, objective, optimizer, device
        self.average = Average(model, ema) if ema > 0 else None
        self.scaler = torch.amp.GradScaler(device.type, enabled=scaled)
        self.epoch, self.step, self.stopped_early = 1, 0, False
        self.seconds, self.seconds_before = 0.0, 0.0
        self.sums: dict[str, Tensor] = {}
        self.n_seen = 0
        self.best: float | None = None
        self.best_epoch, self.best_file = 0, ""

    @property
    def shown(self) -> nn.Module:
        """The network that is validated and kept: the average of the weights, where there is one."""
        return self.model if self.average is None else self.average.model

    @property
    def store(self) -> PseudoLabels | None:
        """The pseudo-labels on disk, where the objective keeps any."""
        return self.objective.resolver.stored()

    def add(self, total: Tensor, parts: dict[str, Tensor], n: int) -> None:
        """Add the loss of a step of `n` items; the caller counts `n_seen`."""
        for name, value in {"total": total.detach(), **parts}.items():
            if name not in self.sums:
                self.sums[name] = torch.zeros((), dtype=torch.float64, device=self.device)
            self.sums[name] += value.to(torch.float64) * n

    def means(self) -> dict[str, float]:
        """Return the epoch's mean losses so far, over all processes; every process must call it."""
        n = summed(torch.tensor(float(self.n_seen)))
        # A process's loss is its share of the whole batch's, times the number of processes.
        return {name: float(summed(value.cpu()) / n) for name, value in sorted(self.sums.items())}

    def is_better(self, value: float, monitor: str) -> bool:
        """Return whether `value` of the monitored metric beats the best so far; NaN never does."""
        if value != value or self.best is None:
            return value == value
        return value < self.best if monitor in LOWER_IS_BETTER else value > self.best

    def kept(self) -> dict[str, Tensor]:
        """Return what is kept of an epoch: the weights, and what the objective's probabilities need."""
        learned = dict(self.objective.named_parameters())
        needed = {name: value for name, value in module_tensors(self.objective).items() if name not in learned}
        return prefixed("model", module_tensors(self.shown)) | prefixed("objective", needed)

    def state(self) -> State | None:
        """Return everything; every process must call it, the first one gets it."""
        generators = group.gathered(_generators(self.device))
        tensors = {
            **prefixed("model", module_tensors(self.model)),
            **prefixed("objective", module_tensors(self.objective)),
            **prefixed("optimizer", optimizer_tensors(self.optimizer)),
            **{f"generators/{r}": state for r, state in enumerate(generators)},
        }
        notes = {
            **{name: getattr(self, name) for name in _COUNTED},
            "sums": {name: float(summed(value.cpu())) for name, value in self.sums.items()},
            "n_seen": int(summed(torch.tensor(self.n_seen))),
            "n_updates": 0 if self.average is None else self.average.n_updates,
            "scaler": self.scaler.state_dict(),
            "processes": n_processes(),
        }
        if self.objective.masking is not None:
            tensors["objective/masking.histogram"] = summed(self.objective.masking.histogram)
        if self.average is not None:
            tensors |= prefixed("average", module_tensors(self.average.model))
        if self.store is not None:
            self.store.flush()
        return State(tensors, notes) if group.is_first() else None

    def restore(self, state: State) -> None:
        """Restore a state that `state` returned."""
        tensors, notes = state
        for name in _COUNTED:
            setattr(self, name, notes[name])
        if self.store is not None:
            self.store.check_continues(self.epoch)
        self.model.load_state_dict(without_prefix("model", tensors))
        self.objective.load_state_dict(without_prefix("objective", tensors))
        restore_optimizer(self.optimizer, without_prefix("optimizer", tensors))
        if self.average is not None:
            self.average.model.load_state_dict(without_prefix("average", tensors))
            self.average.n_updates = notes["n_updates"]
        if notes["scaler"]:
            self.scaler.load_state_dict(notes["scaler"])
        sums, self.n_seen = notes["sums"], notes["n_seen"]
        if not group.is_first():  # the first process holds the sums over all processes
            sums, self.n_seen = dict.fromkeys(sums, 0.0), 0
            if self.objective.masking is not None:
                self.objective.masking.histogram.zero_()
        self.sums = {k: torch.tensor(v, dtype=torch.float64, device=self.device) for k, v in sums.items()}
        generators = tensors.get(f"generators/{group.rank()}")
        if generators is not None:
            _restore_generators(self.device, generators)


def _generators(device: torch.device) -> Tensor:
    """Return the states of torch's generators, of the CPU and then of the device."""
    state = torch.get_rng_state()
    return torch.cat([state, torch.cuda.get_rng_state(device)]) if device.type == "cuda" else state


def _restore_generators(device: torch.device, state: Tensor) -> None:
    n = len(torch.get_rng_state())
    torch.set_rng_state(state[:n])
    if device.type == "cuda" and len(state) > n:
        torch.cuda.set_rng_state(state[n:], device)


class Average:
    """A copy of a model whose parameters follow it: θ̄ ← d θ̄ + (1 − d) θ a step, d = min(decay, (1 + t)/(10 + t)).

    The ramp of d forgets the untrained weights. Floating buffers follow in the same way, others are copied. Not
    `torch.optim.swa_utils.AveragedModel`: its first update copies, and integers are averaged like weights.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay, self.n_updates = decay, 0

    def share(self, after: int) -> float:
        """Return 1 − d of the update that follows `after` others."""
        return 1 - min(self.decay, (1 + after) / (10 + after))

    def update(self, model: nn.Module) -> None:
        """Follow `model` after a step."""
        self.follow(model, self.share(self.n_updates))
        self.n_updates += 1

    @torch.no_grad()
    def follow(self, model: nn.Module, share: float | Tensor) -> None:
        """Move the share 1 − d, a number or a scalar on the device, of the way to `model`, without counting it."""
        for mine, theirs in zip(self.model.buffers(), model.buffers(), strict=True):
            if not mine.is_floating_point():
                mine.copy_(theirs)
        here, there = (
            [value for value in (*m.parameters(), *m.buffers()) if value.is_floating_point()]
            for m in (self.model, model)
        )
        if isinstance(share, Tensor):
            way = torch._foreach_sub(there, here)
            torch._foreach_mul_(way, share)
            torch._foreach_add_(here, way)
        else:
            torch._foreach_lerp_(here, there, share)
