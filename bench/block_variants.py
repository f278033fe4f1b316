"""Tiles of the block kernels, forms of the products and sizes of gradients tried on a GPU, to choose constants by.

    python bench/block_variants.py [--parts adam small …] [--out FILE] [--then FILE]

Prints one line per variant. `adam` chooses the sizes whose slower Adam, of bfloat16 and int8 states, takes least, and
`small` times steps of few labels as they are called and as CUDA graphs; both are kept in --out. With --then the bench
`block_head` runs after it in the same process, with the chosen sizes, and writes its file.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import pstats
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
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


def chosen(**values: Any) -> Any:
    """Constants of the steps of optimizers, whichever module holds them."""
    here = {name: values.pop(name) for name in ("_ROWS",) if name in values}
    stack = ExitStack()
    stack.enter_context(constants(steps, **here))
    stack.enter_context(constants(block_launch, **values))
    return stack


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

                def run(name: str = name) -> None:
                    block_launch.slopes_(room, 0, terms[name], nothing)

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


def adam(result: dict[str, Any]) -> dict[str, Any]:
    """Choose lanes and warps, then rows of gradients, then the hint, for a step of 1,024 × 10⁶; return what to set."""
    x, targets = torch.randn(1024, D, device="cuda"), targets_of(1024, 10**6)
    rules = {state: BlockOptimizer("adam", state=state) for state in ("bfloat16", "int8")}  # type: ignore[arg-type]
    steps_ = {name: stepper(head_of(10**6, rule, BLOCK), x, targets, Objective(BCE())) for name, rule in rules.items()}
    sgd = stepper(head_of(10**6, NEAREST, BLOCK), x, targets, Objective(BCE()))
    best: dict[str, Any] = {
        "_ROWS": steps._ROWS,
        "_LANES": block_launch._LANES,
        "_LANE_WARPS": block_launch._LANE_WARPS,
        "_HINT": block_launch._HINT,
    }
    rows: list[dict[str, Any]] = []
    result["adam"] = {"tried": rows}

    def worst(name: str, values: dict[str, Any]) -> float:
        try:
            with chosen(**values):
                ratios = {state: block_head.in_turns(step, sgd, 4)["ratio"] for state, step in steps_.items()}
        except Exception as error:  # sizes that do not run are not chosen
            print(f"{name:44s} {type(error).__name__}: {str(error)[:90]}", flush=True)
            return float("inf")
        rows.append({"variant": name, **values, **ratios})
        print(f"{name:44s}", {state: round(ratio, 3) for state, ratio in ratios.items()}, flush=True)
        return max(ratios.values())

    least = worst("as it is", best)
    for changes in (
        [{"_LANES": 2048, "_LANE_WARPS": 8}, {"_LANES": 1024, "_LANE_WARPS": 4}],
        [{"_ROWS": rows_} for rows_ in (11264, 16896, 22528, 33792)],
        [{"_HINT": False}],
    ):
        before = best
        for change in changes:
            ratio = worst(str(change), before | change)
            if ratio < least:
                least, best = ratio, before | change
    with constants(steps.Moments, step=overlapped):
        for rows_ in sorted({8192, best["_ROWS"]}):
            worst(f"rows {rows_}, beside products", best | {"_ROWS": rows_})
    result["adam"] |= {"best": best, "ratio": least}
    print("best", best, round(least, 3), flush=True)
    return best


def recorded(step: Callable[[], None]) -> Callable[[], None]:
    """The step as a CUDA graph, its numbers as they are: what a step would take without the host."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def small(result: dict[str, Any]) -> None:
    """Steps of few labels over those of the dense head: both as they are called, and both as CUDA graphs."""
    result["small"] = rows = []
    for n_items, n_labels in (
        (128, 20_000),
        (256, 20_000),
        (512, 20_000),
        (1024, 20_000),
        (128, 50_000),
        (512, 50_000),
    ):
        x, targets = torch.randn(n_items, D, device="cuda").bfloat16(), targets_of(n_items, n_labels)
        ours = stepper(head_of(n_labels, NEAREST, BLOCK), x, targets, Objective(BCE()))
        plain = plain_step(n_labels, targets, x)
        called = block_head.in_turns(ours, plain, 5, steps=16)
        row = {"items": n_items, "labels": n_labels, "ms": called["ms"], "plain_ms": called["other_ms"]}
        rows.append(row | {"ratio": called["ratio"]})
        try:
            graphs = block_head.in_turns(recorded(ours), recorded(plain), 5, steps=16)
            rows[-1] |= {"graph_ms": graphs["ms"], "graph_plain_ms": graphs["other_ms"], "graphs": graphs["ratio"]}
        except Exception as error:  # what cannot be recorded is a finding too
            rows[-1]["error"] = f"{type(error).__name__}: {error}"[:200]
        print({k: round(v, 4) if isinstance(v, float) else v for k, v in rows[-1].items()}, flush=True)


def few_labels() -> None:
    """Where time goes at 20,000 labels: on the host, on the device, in which functions."""
    for n_items in (1024, 128):
        x, targets = torch.randn(n_items, D, device="cuda").bfloat16(), targets_of(n_items, 20_000)
        ours = stepper(head_of(20_000, NEAREST, BLOCK), x, targets, Objective(BCE()))
        for name, step in (("ours", ours), ("plain", plain_step(20_000, targets, x))):
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


PARTS: dict[str, Callable[[], Any]] = {
    "few": few_labels,
    "slopes": slopes,
    "forms": lambda: [forms(n) for n in (1024, 4096)],
    "blocks": blocks,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=["adam", "small", *PARTS], default=["adam", "small"])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--then", type=Path, help="run block_head as well, and keep its figures here")
    given = parser.parse_args()
    kept = given.out is not None and given.out.exists()
    result: dict[str, Any] = json.loads(given.out.read_text(encoding="utf-8")) if kept else {}
    result |= {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    best: dict[str, Any] = {}
    for part in given.parts:
        began = time.perf_counter()
        if part == "adam":
            best = adam(result)
        elif part == "small":
            small(result)
        else:
            PARTS[part]()
        gc.collect()
        torch.cuda.empty_cache()
        print(f"-- {part}: {time.perf_counter() - began:.0f} s", flush=True)
        if given.out is not None:
            given.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if given.then is not None:
        with chosen(**best):
            block_head.run(block_head.parsed(["--out", str(given.then)]))


if __name__ == "__main__":
    main()
