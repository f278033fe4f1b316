"""A training step of ResNet-32 on a GPU: plain modules, torch.compile and our kernels, each captured as a CUDA graph.

PYTHONPATH=src python bench/resnet32.py [--batch 128] [--only own]      milliseconds a step and images a second
PYTHONPATH=src python bench/resnet32.py --tune                          each kernel over tiles, the fastest first
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from steelyard.models import fused_resnet32 as fused
from steelyard.models.fused import Norm, Stats
from steelyard.models.resnet import ResNet32

LAYERS = ((16, 16, 32, 1), (16, 32, 32, 2), (32, 32, 16, 1), (32, 64, 16, 2), (64, 64, 8, 1))
"""Channels read and made, side, stride."""


def captured(run: Callable[[], None]) -> Callable[[], None]:
    """Return what plays `run` back as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def microseconds(replay: Callable[[], None], seconds: float = 0.003) -> float:
    """Return how long a replay takes on the device, the best of three."""
    best, times = float("inf"), 4
    for _ in range(4):  # the first finds how many make `seconds`
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(times):
            replay()
        end.record()
        torch.cuda.synchronize()
        each = start.elapsed_time(end) * 1e3 / times
        best, times = min(best, each), max(4, int(seconds * 1e6 / each))
    return best


def step_of(way: str, batch: int) -> tuple[Callable[[], None], float]:
    """Return a captured step of training and the seconds that it took to prepare."""
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    network = ResNet32(3)
    model = nn.Sequential(network, nn.Linear(64, 10)).cuda().train().to(memory_format=torch.channels_last)
    x = torch.randn(batch, 3, 32, 32, device="cuda").contiguous(memory_format=torch.channels_last)
    targets = (torch.rand(batch, 10, device="cuda") < 0.1).float()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=True)
    began = time.monotonic()
    if way == "own":
        network.use_kernels(torch.device("cuda"))
    run: Any = torch.compile(model, dynamic=False) if way == "compiled" else model

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            logits = run(x)
        F.binary_cross_entropy_with_logits(logits.float(), targets).backward()
        optimizer.step()

    replay = captured(step)
    return replay, time.monotonic() - began


def norm_like(channels: int) -> Norm:
    ones, zeros = torch.ones(channels, device="cuda"), torch.zeros(channels, device="cuda")
    n_seen = torch.zeros((), dtype=torch.int64, device="cuda")
    counters = torch.zeros(1, dtype=torch.int32, device="cuda")
    return Norm(ones, zeros, zeros.clone(), ones.clone(), n_seen, counters, 1e-5, 0.1)


def maps(batch: int, channels: int, side: int) -> Tensor:
    """Of `side`, margins included."""
    x = torch.randn(batch, channels, side, side, device="cuda", dtype=torch.bfloat16)
    return x.contiguous(memory_format=torch.channels_last)


class Layer:
    """A convolution between two normalisations, by each of its kernels."""

    def __init__(self, batch: int, inputs: int, outputs: int, side: int, stride: int) -> None:
        self.inputs, self.outputs, self.stride = inputs, outputs, stride
        self.places = batch * (side // stride + 1) ** 2
        self.x, self.a = maps(batch, inputs, side + 1), maps(batch, inputs, side + 1)
        self.y, self.weight = maps(batch, outputs, side // stride + 1), maps(outputs, inputs, 3)
        self.before, self.after = norm_like(inputs), norm_like(outputs)
        self.stats = Stats(torch.zeros(inputs, device="cuda"), torch.ones(inputs, device="cuda"))

    def convolve(self, tile: dict[str, int], programs: int) -> None:
        fused._CONVOLVED, fused._PROGRAMS = {self.inputs: tile}, {self.inputs: programs}
        fused._convolve(self.x, self.weight, self.stride, self.after)

    def back(self, tile: dict[str, int], programs: int) -> None:
        fused._CONVOLVED, fused._PROGRAMS = {self.outputs: tile}, {self.outputs: programs}
        here = fused._Before(self.x, self.a, self.stats, self.before, self.y if self.stride > 1 else self.x)
        fused._convolve_back(self.y, self.weight, self.stride, here)

    def weights(self, tile: dict[str, int], parts: int) -> None:
        fused._WEIGHTS, fused._PARTS = {self.inputs: tile}, {self.outputs: parts}
        plan: Any = type("Plan", (), {"weights": [self.weight], "strides": [self.stride], "aside": _Now()})
        gradient = fused._WeightGradients(plan, [self.weight])
        gradient.add(0, self.x, self.y)
        gradient.done()


def calls(batch: int) -> Iterator[tuple[str, dict[str, int], Callable[[], None]]]:
    """Every kernel with every tile: (what, the tile, a call)."""
    for inputs, outputs, side, stride in LAYERS:
        layer, what = Layer(batch, inputs, outputs, side, stride), f"{inputs} → {outputs}"
        for row, rows, warps, stages, programs in product((True, False), (64, 128), (4, 8), (2, 3, 5), (132, 264, 528)):
            tile = {"ROW": row, "BM": rows, "num_warps": warps, "num_stages": stages}
            too_wide = (4 if row else 1) * max(inputs, outputs) * rows * stages > 75_000
            if too_wide or (programs > 132 and rows * programs > layer.places):
                continue
            said = {**tile, "programs": programs}
            yield f"convolved {what}", said, partial(layer.convolve, tile, programs)
            if stride == 1 or not row:
                yield f"back {what}", said, partial(layer.back, tile, programs)
        for row, rows, warps, stages, parts in product((True, False), (64, 128), (4, 8), (2, 3), (8, 15, 33, 66)):
            tile = {"ROW": row, "BM": rows, "num_warps": warps, "num_stages": stages}
            yield f"weights {what}", {**tile, "parts": parts}, partial(layer.weights, tile, parts)


class _Now:
    """Nothing runs beside the rest here: it is timed alone."""

    def fork(self) -> Any:
        return torch.enable_grad()

    def join(self) -> None:
        pass


def tune(batch: int, share: str) -> None:
    """Time everything; with a `share`, only compile that part of it."""
    mine, of = (int(number) for number in share.split("/")) if share else (0, 1)
    found: dict[str, list[tuple[float, str]]] = {}
    layer = ""
    for k, (what, said, call) in enumerate(calls(batch)):
        if k % of != mine:
            continue
        if what.split(maxsplit=1)[1] != layer:
            _show(found)
            found, layer = {}, what.split(maxsplit=1)[1]
        try:
            call()
            if not share:
                found.setdefault(what, []).append((microseconds(captured(call)), str(said)))
        except Exception as error:  # a tile that does not fit
            if not share:
                print(f"{what} {said}: {str(error).splitlines()[0][:90]}")
    _show(found)


def _show(found: dict[str, list[tuple[float, str]]]) -> None:
    for what, times in found.items():
        print(what)
        for each, tile in sorted(times)[:4]:
            print(f"  {each:7.2f} µs {tile}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--only", default="plain,compiled,own")
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--share", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("no GPU here: these kernels are for one")
    if given.share:
        tune(given.batch, given.share)
    elif given.tune:
        n = max(1, (os.cpu_count() or 2) - 2)
        words = [sys.executable, __file__, "--batch", str(given.batch), "--share"]
        for compiling in [subprocess.Popen([*words, f"{k}/{n}"]) for k in range(n)]:
            compiling.wait()
        tune(given.batch, "")
    else:
        print(f"{torch.cuda.get_device_name()}, a step of {given.batch} images of 32 × 32, bfloat16")
        for way in given.only.split(","):
            replay, prepared = step_of(way, given.batch)
            each = microseconds(replay, 0.3)
            print(
                f"{way:9s} {each / 1e3:7.3f} ms, {given.batch / each * 1e3:6.0f}k images/s; ready in {prepared:.0f} s"
            )


if __name__ == "__main__":
    main()
