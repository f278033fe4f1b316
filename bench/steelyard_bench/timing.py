"""Seconds and memory of calls that are timed in turns, so that all meet the same clocks and the same neighbours.

A round times every candidate once, in an order of its own, so that none has always the same one before it; those that
take long leave after fewer rounds than the others. A figure is the median over rounds, a ratio the median of the ratios
of the rounds that both were in. On a GPU, events are recorded around the calls: as they are made, launches included and
after one more that is not timed, and in rounds of their own with the device held up until all is launched, so that the
device alone is timed.
"""

from __future__ import annotations

import math
import os
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import cycle, islice
from typing import NamedTuple

import torch
from torch import Tensor

Call = Callable[[], object]

_ROUNDS = (5, 400)  # at least, at most
_HELD_UP = 50  # rounds of the device alone, at most: it is steadier than a host
_TURN = 1e-3  # seconds of calls between two readings of a clock
_CALLS = (4, 100)  # between them, where a call is short
_CYCLES = 2e9  # a second, of a GPU
_FLUSH = 256 << 20  # bytes, more than any cache holds


class Candidate(NamedTuple):
    """What is timed."""

    calls: Sequence[Call]
    """The same call on several inputs."""
    under: Callable[[], AbstractContextManager[None]] = nullcontext
    """What the calls are made under."""
    cached: bool = False
    """Whether all inputs fit into a GPU's cache together: then it is flushed before the device alone is timed."""


class Times(NamedTuple):
    """Seconds of a call, one value per round."""

    called: list[float]
    on_device: list[float]
    """Launches left out; on a CPU the same as `called`."""
    memory: int | None
    """Bytes that a call takes at its peak beyond what was there before."""

    @property
    def seconds(self) -> float:
        """The median of a call as it is made."""
        return statistics.median(self.called)

    @property
    def device_seconds(self) -> float:
        """The median of a call on the device alone."""
        return statistics.median(self.on_device)

    def over(self, peer: Times) -> float:
        """Return the median, over the rounds of both, of this candidate's time as a multiple of the peer's."""
        return statistics.median(a / b for a, b in zip(self.called, peer.called, strict=False))


class Clock:
    """Times candidates on a device, each for about `seconds` in all."""

    def __init__(self, device: torch.device, seconds: float) -> None:
        self.device, self.seconds, self.is_gpu = device, seconds, device.type == "cuda"
        self._read: Tensor | None = None

    def times(self, candidates: Mapping[str, Candidate]) -> dict[str, Times]:
        """Return what a call of each candidate takes; all are called once to compile and warm up before."""
        turns, memory, rounds = {}, {}, {}
        for name, candidate in candidates.items():
            with candidate.under():
                for call in candidate.calls:
                    call()
                memory[name] = peak(candidate.calls[0], self.device)
                once = self._around([candidate.calls[0]])
            n = max(len(candidate.calls), min(_CALLS[1], math.ceil(_TURN / max(once, 1e-6))))
            turns[name] = list(islice(cycle(candidate.calls), max(n, _CALLS[0]) if once < 10 * _TURN else n))
            turn = max(once * len(turns[name]), 1e-9)
            rounds[name] = max(_ROUNDS[0], min(_ROUNDS[1], round(self.seconds / turn)))
        found = {name: Times([], [], memory[name]) for name in candidates}
        order, chance = list(candidates), random.Random(0)
        for i in range(max(rounds.values())):
            chance.shuffle(order)
            for name in order:
                if i < rounds[name]:
                    with candidates[name].under():
                        found[name].called.append(self._around(turns[name]) / len(turns[name]))
        for i in range(min(_HELD_UP, max(rounds.values())) if self.is_gpu else 0):
            for name, candidate in candidates.items():
                if i < rounds[name]:
                    with candidate.under():
                        few = max(_CALLS[0], len(candidate.calls))  # a device takes so many launches while held up
                        some = turns[name][: 1 if candidate.cached else few]
                        found[name].on_device.append(self._held_up(some, candidate.cached) / len(some))
        return {name: t if self.is_gpu else t._replace(on_device=t.called) for name, t in found.items()}

    def _around(self, calls: Sequence[Call]) -> float:
        """Return the seconds that calls take together, as they are made."""
        if not self.is_gpu:
            start = time.perf_counter()
            for call in calls:
                call()
            return time.perf_counter() - start
        torch.cuda.synchronize(self.device)
        calls[0]()
        return self._between_events(calls)

    def _held_up(self, calls: Sequence[Call], flush: bool) -> float:
        """Return the seconds that calls take on the device, which begins when all of them are launched."""
        torch.cuda.synchronize(self.device)
        start = time.perf_counter()
        for call in calls:
            call()
        launching = time.perf_counter() - start
        torch.cuda.synchronize(self.device)
        if flush:
            self._flush()
        torch.cuda._sleep(int(_CYCLES * (2 * launching + 1e-4)))
        return self._between_events(calls)

    @staticmethod
    def _between_events(calls: Sequence[Call]) -> float:
        """Return the seconds that pass on the device while calls run there."""
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for call in calls:
            call()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    def _flush(self) -> None:
        """Read so much that nothing else is left in the device's cache."""
        if self._read is None:
            self._read = torch.zeros(_FLUSH // 4, device=self.device)
        self._read.sum()


def peak(call: Call, device: torch.device) -> int:
    """Return the bytes of tensors that a call takes at its peak, what it leaves behind included."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it would write to stderr
    with torch.autograd.profiler.profile(profile_memory=True) as watched:
        call()
    results = watched.kineto_results
    assert results is not None
    changes = sorted((e.start_ns(), e.nbytes()) for e in results.events() if e.name() == "[memory]")
    taken = most = 0
    for _, change in changes:
        taken += change
        most = max(most, taken)
    return most


def bandwidth(device: torch.device, seconds: float) -> float:
    """Return the bytes a second that a large copy moves, read and written: what no loss can beat."""
    size = 1 << 30 if device.type == "cuda" else 1 << 28
    source = torch.ones(size, dtype=torch.uint8, device=device)
    copy = torch.empty_like(source)
    moved = Clock(device, seconds).times({"copy": Candidate([lambda: copy.copy_(source)])})["copy"]
    return 2 * size / moved.device_seconds


def both_ways(loss: Callable[[Tensor, Tensor], Tensor], logits: Tensor, targets: Tensor) -> Call:
    """Return a call of forward and backward."""

    def call() -> None:
        loss(logits, targets).backward()
        logits.grad = None

    return call
