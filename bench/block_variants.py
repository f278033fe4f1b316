"""Tiles of the block kernels, forms of the products and sizes of gradients tried on a GPU, to choose constants by.

    python bench/block_variants.py

Prints one line per variant: milliseconds and, where the floor is memory, the share of the bandwidth of a plain copy.
"""

from __future__ import annotations

import cProfile
import gc
import pstats
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

import block_head
from block_head import BLOCK, NEAREST, D, head_of, losses, median_ms, plain_step, products, stepper, targets_of
from steelyard.kernels import block_launch
from steelyard.losses import BCE
from steelyard.models.block import BlockHead, BlockOptimizer, steps
from steelyard.models.block.terms import terms_of
from steelyard.objective import Objective


@contextmanager
def constants(module: Any, **values: Any) -> Iterator[None]:
    before = {name: getattr(module, name) for name in values}
    for name, value in values.items():
        setattr(module, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


def tried(name: str, run: Callable[[], Any], repeats: int = 10) -> float | None:
    """Time one variant; print why where it does not run."""
    try:
        ms = median_ms(run, repeats)
    except Exception as error:
        print(f"{name:64s} {type(error).__name__}: {str(error)[:90]}", flush=True)
        return None
    print(f"{name:64s} {ms:8.3f} ms", flush=True)
    return ms


def slopes(n_items: int = 1024) -> None:
    """The kernel `slopes` alone, by tile."""
    room = torch.randn(n_items, BLOCK, device="cuda").bfloat16()
    other = torch.empty_like(room)
    tried("copy of a block, as many bytes", lambda: other.copy_(room))
    targets, rows = targets_of(n_items, 10**6), losses(10**6)
    nothing = block_launch.Listed(targets.rows[:0], targets.labels[:0], targets.values[:0])
    bias = torch.zeros(10**6, device="cuda")
    names = ("BCE", "ASL", "DB-Focal", "PLM")
    index = torch.arange(n_items, device="cuda")
    terms = {name: terms_of(rows[name], targets, bias, index) for name in names}
    for tile, warps, stages, programs in (
        ((4, 512), 8, 1, 4224), ((4, 512), 4, 1, 4224), ((8, 512), 8, 1, 4224), ((4, 1024), 8, 1, 4224),
        ((2, 1024), 8, 1, 4224), ((8, 256), 8, 1, 8448), ((4, 256), 4, 1, 8448), ((4, 512), 8, 2, 4224),
        ((4, 512), 8, 3, 4224), ((4, 512), 8, 1, 2112), ((4, 512), 8, 1, 8448),
    ):  # fmt: skip
        few = names if (tile, stages, programs) in (((4, 512), 1, 4224), ((8, 512), 1, 4224)) else names[:1]
        for name in few:
            with constants(block_launch, _TILE=tile, _WARPS=warps, _STAGES=stages, _PROGRAMS=programs):
                costs = torch.zeros(block_launch.n_costs(*room.shape), dtype=torch.float64, device="cuda")

                def run(name: str = name, costs: torch.Tensor = costs) -> None:
                    block_launch.slopes_(room, 0, terms[name], nothing, costs)

                room.normal_()
                tried(f"slopes {name} tile {tile} warps {warps} stages {stages} programs {programs}", run)


def forms(n_items: int) -> None:
    """Each product of a block in several forms."""
    x = torch.randn(n_items, D, device="cuda").bfloat16()
    w = torch.randn(BLOCK, D, device="cuda").bfloat16()
    z = torch.randn(n_items, BLOCK, device="cuda").bfloat16()
    out, sums = torch.empty_like(w), torch.zeros(n_items, D, device="cuda")
    tried(f"{n_items}: z, mm", lambda: torch.mm(x, w.t(), out=z))
    z.normal_()
    tried(f"{n_items}: dx, mm to bfloat16", lambda: torch.mm(z, w))
    tried(f"{n_items}: dx, mm to float32", lambda: torch.mm(z, w, out_dtype=torch.float32))
    tried(f"{n_items}: dx, addmm to float32", lambda: torch.addmm(sums, z, w, out_dtype=torch.float32))
    for n in (4, 8, 11, 16):
        width = BLOCK // n // 8 * 8

        def split(n: int = n, width: int = width) -> None:
            a = z[:, : n * width].view(n_items, n, width).transpose(0, 1)
            torch.bmm(a, w[: n * width].view(n, width, D), out_dtype=torch.float32).sum(0)

        tried(f"{n_items}: dx, bmm of {n} parts to float32", split)
    tried(f"{n_items}: dW, mm", lambda: torch.mm(z.t(), x, out=out))
    tried(f"{n_items}: dW, addmm in place", lambda: w.addmm_(z.t(), x, beta=1, alpha=-1e-9))


def overlapped(self: Any, weight: torch.Tensor, slopes: torch.Tensor, x: torch.Tensor, *rest: Any) -> None:
    """`Moments.step` with the update of one piece beside the product of the next."""
    first, lr, scale = rest
    main, side = torch.cuda.current_stream(), _side()
    pieces = list(range(0, len(weight), steps._ROWS))
    done: list[torch.cuda.Event] = []
    grads = [torch.empty(steps._ROWS, weight.shape[1], dtype=weight.dtype, device="cuda") for _ in range(2)]
    for i, start in enumerate(pieces):
        rows = slice(start, start + steps._ROWS)
        if i > 1:
            main.wait_event(done[i - 2])
        gradient = torch.mm(slopes[:, rows].t(), x, out=grads[i % 2][: len(weight[rows])])
        made = main.record_event()
        with torch.cuda.stream(side):
            side.wait_event(made)
            self._move(weight[rows], gradient, first + start, lr, scale)
            done.append(side.record_event())
    for event in done[-2:]:
        main.wait_event(event)


_streams: list[torch.cuda.Stream] = []


def _side() -> torch.cuda.Stream:
    if not _streams:
        _streams.append(torch.cuda.Stream(priority=-1))
    return _streams[0]


def optimizers() -> None:
    """A whole step of 1,024 × 10⁶ with Adam, by size of gradients and of programs."""
    x, targets = torch.randn(1024, D, device="cuda"), targets_of(1024, 10**6)
    for name, rule in (
        ("sgd", NEAREST),
        ("bf16", BlockOptimizer("adam")),
        ("int8", BlockOptimizer("adam", state="int8")),
    ):
        head = head_of(10**6, rule, BLOCK)
        step = stepper(head, x, targets, Objective(BCE()))
        tried(f"adam {name} as it is", step)
        if name != "sgd":
            for rows, lanes, warps, hint in (
                (16384, 2048, 4, False), (16384, 1024, 4, True), (16384, 4096, 8, True), (16384, 2048, 8, True),
                (11264, 2048, 4, True), (16896, 2048, 4, True), (22528, 2048, 4, True), (33792, 2048, 4, True),
                (65536, 2048, 4, True), (262144, 2048, 4, False),
            ):  # fmt: skip
                with constants(block_launch, _LANES=lanes, _LANE_WARPS=warps, _HINT=hint), constants(steps, _ROWS=rows):
                    tried(f"adam {name} rows {rows} lanes {lanes} warps {warps} hint {hint}", step)
            with constants(steps.Moments, step=overlapped):
                for rows in (8192, 16384, 22528, 33792):
                    with constants(steps, _ROWS=rows):
                        tried(f"adam {name} rows {rows} beside products", step)
        del head, step
        gc.collect()
        torch.cuda.empty_cache()


def few_labels() -> None:
    """Where time goes at 20,000 labels: on the host, on the device, in which functions."""
    for n_items in (1024, 128):
        x, targets = torch.randn(n_items, D, device="cuda").bfloat16(), targets_of(n_items, 20_000)
        ours = stepper(head_of(20_000, NEAREST, BLOCK), x, targets, Objective(BCE()))
        for name, step in (("ours", ours), ("plain", plain_step(n_items, 20_000, targets, x))):
            for _ in range(20):
                step()
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(100):
                step()
            issued = time.perf_counter()
            torch.cuda.synchronize()
            done = time.perf_counter()
            print(
                f"{n_items} × 20,000 {name}: host {(issued - start) * 10:.3f} ms, done {(done - start) * 10:.3f} ms",
                flush=True,
            )
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as device:
        for _ in range(10):
            ours()
        torch.cuda.synchronize()
    print(device.key_averages().table(sort_by="cuda_time_total", row_limit=16, max_name_column_width=50), flush=True)
    profile = cProfile.Profile()
    profile.enable()
    for _ in range(200):
        ours()
    profile.disable()
    pstats.Stats(profile).sort_stats("tottime").print_stats(22)


def blocks() -> None:
    """Share of the products alone by size of a block."""
    for n_items in (1024, 4096):
        x, targets = torch.randn(n_items, D, device="cuda").bfloat16(), targets_of(n_items, 10**6)
        head: BlockHead = head_of(10**6, NEAREST, BLOCK)
        for block in (131072, 250000, 262144, 333336, 500000):
            head.block = block
            alone = products(x, head.weight, block)
            turns = block_head.in_turns(alone, stepper(head, x, targets, Objective(BCE())), 5)
            print(f"{n_items}: block {block} share {turns['ratio']:.3f}, {turns['other_ms']:.3f} ms", flush=True)
            del alone
            gc.collect()
            torch.cuda.empty_cache()


if __name__ == "__main__":
    for part in (few_labels, slopes, lambda: forms(1024), lambda: forms(4096), optimizers, blocks):
        began = time.perf_counter()
        part()
        gc.collect()
        torch.cuda.empty_cache()
        print(f"-- {time.perf_counter() - began:.0f} s", flush=True)
