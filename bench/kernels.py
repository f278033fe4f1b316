"""Forward + backward of every loss on a GPU beside torch's BCE, timm's ASL, plain and compiled code, in one run.

    PYTHONPATH=src python bench/kernels.py --json kernels.json     # some minutes
    PYTHONPATH=src python bench/kernels.py --tune                  # tile, warps and programs at the largest size

`eager` is the time of a call as it is made (launches included), `device` that of a replayed CUDA graph of it, both the
median of rounds over inputs that do not all fit in the cache. The floor is a kernel that reads a logit and a target of
one byte and writes a gradient: 9 bytes a label. Memory is what a call needs at its peak beyond its inputs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor

from steelyard.balance import LabelPair, PartialLabelMasking
from steelyard.kernels import choice, fused
from steelyard.losses import BCE, LDAM, SPA, Asymmetric, DistributionBalanced, Focal, NegativeTolerant
from steelyard.objective import Objective

SIZES = ((256, 80), (1024, 600), (65536, 80), (4096, 9605))
CACHE = 200_000_000  # bytes of inputs after which none is left in any cache
POSITIVES = 2.4  # a row

Call = Callable[[Tensor, Tensor], Any]


@triton.jit
def _floor(logits, targets, grad, n, C: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0).to(tl.int64) * C + tl.arange(0, C)
    inside = at < n
    z = tl.load(logits + at, mask=inside, other=0.0)
    tl.store(grad + at, z + tl.load(targets + at, mask=inside, other=0).to(tl.float32), mask=inside)


def floor(z: Tensor, t: Tensor) -> Tensor:
    grad = torch.empty_like(z)
    _floor[(triton.cdiv(z.numel(), 2048),)](z.detach(), t, grad, z.numel(), C=2048)
    return grad


def both_ways(loss: Call) -> Call:
    """A call of forward and backward."""

    def call(z: Tensor, t: Tensor) -> None:
        z.grad = None
        value = loss(z, t)
        (value.total if hasattr(value, "total") else value).backward()

    return call


def inputs(rows: int, labels: int) -> list[tuple[Tensor, Tensor]]:
    """Fresh logits and targets, so many that they do not stay in the cache."""
    sets = max(1, min(16, CACHE // (9 * rows * labels)))
    made = []
    for _ in range(sets):
        z = (3 * torch.randn(rows, labels, device="cuda")).requires_grad_()
        made.append((z, (torch.rand(rows, labels, device="cuda") < POSITIVES / labels).to(torch.int8)))
    return made


def seconds(calls: list[Callable[[], Any]], budget: float) -> float:
    """Median time of a call, by events around one round of all, repeated for `budget` seconds."""
    for _ in range(2):
        for call in calls:
            call()
    torch.cuda.synchronize()
    times, stop = [], time.perf_counter() + budget
    while len(times) < 5 or (time.perf_counter() < stop and len(times) < 200):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for call in calls:
            call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3 / len(calls))
    return statistics.median(times)


def graphs(call: Call, sets: list[tuple[Tensor, Tensor]]) -> list[Callable[[], Any]] | None:
    """A captured graph of the call for each set of inputs; None where it cannot be captured."""
    made: list[Callable[[], Any]] = []
    try:
        for z, t in sets[:8]:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                call(z, t)
            torch.cuda.current_stream().wait_stream(side)
            z.grad = None
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                call(z, t)
            made.append(graph.replay)
    except RuntimeError:
        torch.cuda.synchronize()
        return None
    return made


def measure(name: str, call: Call, sets: list[tuple[Tensor, Tensor]], budget: float) -> dict[str, Any]:
    z, t = sets[0]
    call(z, t)
    z.grad = None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call(z, t)
    torch.cuda.synchronize()
    memory = torch.cuda.max_memory_allocated() - before
    for x, _ in sets:
        x.grad = None
    eager = seconds([lambda z=z, t=t: call(z, t) for z, t in sets], budget)
    replays = graphs(call, sets)
    device = seconds(replays, budget) if replays else None
    for x, _ in sets:
        x.grad = None
    return dict(name=name, eager=eager, device=device, memory=memory)


def losses(rows: int, labels: int) -> dict[str, Any]:
    counts = torch.randint(1, max(2, rows // 4), (labels,))
    n = max(rows, 2) * 2
    return {
        "BCE": BCE(),
        "BCE smoothed": BCE(0.1),
        "Focal": Focal(),
        "ASL": Asymmetric(),
        "ASL focus not detached": Asymmetric(detach_focus=False),
        "SPA": SPA(),
        "LDAM": LDAM(counts),
        "NT-BCE": NegativeTolerant(counts, n),
        "DB": DistributionBalanced(counts, n),
        "DB-Focal": DistributionBalanced(counts, n, gamma=2.0),
    }


def timm_loss() -> Any | None:
    try:
        from steelyard._compat import import_torchvision

        import_torchvision()
        from timm.loss import AsymmetricLossMultiLabel  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError as error:
        print(f"timm's ASL is left out: {error}")
        return None
    return AsymmetricLossMultiLabel()


def rows_of(size: tuple[int, int], compiled: list[str], budget: float) -> list[dict[str, Any]]:
    sets = inputs(*size)
    with_floats = [(z, t.float()) for z, t in sets]
    table = [measure("floor: 9 bytes a label", floor, sets, budget)]
    bce = torch.nn.BCEWithLogitsLoss()
    table.append(measure("torch BCEWithLogitsLoss", both_ways(bce), with_floats, budget))
    peer = timm_loss()
    if peer is not None:
        table.append(measure("timm AsymmetricLossMultiLabel", both_ways(lambda z, t: peer(z, t)), with_floats, budget))
    for name, loss in losses(*size).items():
        loss = loss.to("cuda")
        table.append(measure(name, both_ways(loss), sets, budget))
        with choice.using("plain"):
            table.append(measure(f"{name}, plain", both_ways(loss), sets, budget))
        if name in compiled:
            torch.compiler.reset()
            once = torch.compile(loss, dynamic=False)
            table.append(measure(f"{name}, compiled", both_ways(once), sets, budget))
    counts = torch.full((size[1],), max(1, size[0] // 4))
    plm = PartialLabelMasking(counts, size[0] * 2, initial="max", seed=7)
    masked = Objective(BCE(), masking=plm).to("cuda")
    masked.masking.observe = lambda *_: None  # type: ignore[method-assign,union-attr]
    index = torch.arange(size[0], device="cuda")
    table.append(measure("BCE, PLM drawn inside", both_ways(lambda z, t: masked(z, t, index)), sets, budget))
    with choice.using("plain"):
        table.append(measure("BCE, PLM, plain", both_ways(lambda z, t: masked(z, t, index)), sets, budget))
    del sets, with_floats
    torch.cuda.empty_cache()
    return table


def label_pairs(budget: float) -> list[dict[str, Any]]:
    """LPR at the size of the issue, and at a fixed number of positives a row over growing L."""
    table = []
    for rows, labels in ((1024, 600), (64, 10_000), (64, 100_000), (64, 1_000_000)):
        z = torch.randn(rows, labels, device="cuda").requires_grad_()
        t = torch.zeros(rows, labels, dtype=torch.int8, device="cuda")
        t.scatter_(1, torch.randint(0, labels, (rows, 3), device="cuda"), 1)
        table.append(measure(f"LPR {rows} × {labels}", both_ways(LabelPair()), [(z, t)], budget))
    return table


def bandwidth() -> float:
    """Bytes a second of a large copy, read and written."""
    a = torch.randint(0, 255, (2**30,), dtype=torch.uint8, device="cuda")
    b = torch.empty_like(a)
    return 2 * a.numel() / seconds([lambda: b.copy_(a)], 0.5)


def show(title: str, table: list[dict[str, Any]], cells: int, rate: float) -> None:
    print(f"\n{title}\n{'':34s}{'eager µs':>10s}{'device µs':>11s}{'× bytes':>9s}{'× BCE':>8s}{'MB':>9s}")
    peer = next((row["eager"] for row in table if row["name"].startswith("torch BCE")), None)
    for row in table:
        device = row["device"] or row["eager"]
        over = f"{device / (9 * cells / rate):9.2f}" if cells else f"{'':9s}"
        of = f"{row['eager'] / peer:8.2f}" if peer else f"{'':8s}"
        on_device = f"{1e6 * row['device']:11.1f}" if row["device"] else f"{'-':>11s}"
        print(f"{row['name']:34s}{1e6 * row['eager']:10.1f}{on_device}{over}{of}{row['memory'] / 1e6:9.1f}", flush=True)


def tune(budget: float) -> None:
    """Time the largest size over tiles, warps and programs a multiprocessor."""
    size = SIZES[-1]
    sets = inputs(*size)
    chosen = ("BCE", "ASL", "NT-BCE", "DB-Focal")
    made = {name: loss.to("cuda") for name, loss in losses(*size).items() if name in chosen}
    print(f"{'tile':>6s}{'warps':>6s}{'per SM':>7s}" + "".join(f"{name:>10s}" for name in chosen))
    for tile in (512, 1024, 2048, 4096):
        for warps in (4, 8):
            for programs in (4, 8, 16, 32):
                fused._TILE, fused._WARPS, fused._PROGRAMS = tile, warps, programs
                fused._plans.clear()
                times = []
                for name in chosen:
                    replays = graphs(both_ways(made[name]), sets)
                    times.append(seconds(replays, budget) if replays else float("nan"))
                print(f"{tile:6d}{warps:6d}{programs:7d}" + "".join(f"{1e6 * s:10.1f}" for s in times), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write all figures here")
    parser.add_argument("--budget", type=float, default=0.3, help="seconds for each figure")
    parser.add_argument("--compiled", nargs="*", default=["BCE", "ASL", "DB-Focal"], help="losses to compile as well")
    parser.add_argument("--tune", action="store_true", help="only look for the best tile")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("no GPU here: these kernels are for one")
    torch.manual_seed(0)
    name = torch.cuda.get_device_name()
    print(f"{name}, torch {torch.__version__}, triton {triton.__version__}")
    if args.tune:
        tune(args.budget)
        return
    rate = bandwidth()
    print(f"a copy moves {rate / 1e12:.2f} TB/s, read and written")
    found: dict[str, Any] = dict(gpu=name, torch=torch.__version__, triton=triton.__version__, bandwidth=rate, sizes={})
    for size in SIZES:
        title = f"{size[0]} × {size[1]}"
        found["sizes"][title] = rows_of(size, args.compiled, args.budget)
        show(title, found["sizes"][title], size[0] * size[1], rate)
        if args.json:
            args.json.write_text(json.dumps(found, indent=1))
    found["label_pairs"] = label_pairs(args.budget)
    show("label pairs", found["label_pairs"], 0, rate)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
