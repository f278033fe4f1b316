"""Time and memory of `BlockHead` beside the same three matrix products alone, and beside a plain head.

    python bench/block_head.py --out bench/figures/block_head.json [--parts optimizers plain sizes losses errors]

For each size, in one process: the products z = x Wᵀ, dx = g W and dW = gᵀ x over the same blocks by cuBLAS, one step of
the head (SGD by nearest rounding, then other optimizers and losses), and plain torch where it fits. Times are medians
of CUDA events. A ratio is the median of five, each of two times taken one after the other, since clocks drift; steps of
few labels, which take as long as their launches, are timed sixteen in a row, and their ratio is the median of eleven.
Peaks are those of torch's allocator beyond weights and optimizer states.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

from steelyard._source import commit
from steelyard.balance import PartialLabelMasking
from steelyard.losses import BCE
from steelyard.losses.table import TABLE
from steelyard.models.block import BlockHead, BlockOptimizer, SparseTargets
from steelyard.models.block.head import BLOCK
from steelyard.objective import Objective

D = 768
SIZES = [(512, 10**6), (1024, 10**6), (4096, 10**6), (1024, 3 * 10**6)]
TURNS, TURNS_OF_FEW = 5, 11
PARTS = ("optimizers", "plain", "sizes", "losses", "errors")
NEAREST = BlockOptimizer(rounding="nearest")
OPTIMIZERS = {
    "sgd, stochastic": BlockOptimizer(),
    "momentum, bfloat16": BlockOptimizer("momentum"),
    "adam, bfloat16": BlockOptimizer("adam"),
    "adam, int8": BlockOptimizer("adam", state="int8"),
}


def median_ms(run: Callable[[], Any], repeats: int) -> float:
    for _ in range(2):
        run()
    times = []
    for _ in range(repeats):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop))
    return sorted(times)[len(times) // 2]


def in_turns(one: Callable[[], Any], other: Callable[[], Any], repeats: int, steps: int = 1) -> dict[str, Any]:
    """Milliseconds of both, taken in turns, and the median of the first over the second."""

    def many(run: Callable[[], Any]) -> Callable[[], None]:
        return lambda: [run() for _ in range(steps)] and None

    turns = TURNS if steps == 1 else TURNS_OF_FEW
    pairs = [(median_ms(many(one), repeats) / steps, median_ms(many(other), repeats) / steps) for _ in range(turns)]
    ratios = [a / b for a, b in pairs]
    first, second = zip(*pairs, strict=True)
    return {"ms": median(first), "other_ms": median(second), "ratio": median(ratios), "ratios": ratios}


def peak_gb(run: Callable[[], Any]) -> float:
    """Memory that a run takes beyond what is there before it."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 1e9


def targets_of(n_items: int, n_labels: int, positives: int = 20) -> SparseTargets:
    """Random positives of a power law, none twice."""
    g = torch.Generator().manual_seed(0)
    rows = torch.arange(n_items).repeat_interleave(positives)
    labels = (n_labels * torch.rand(len(rows), generator=g).pow(3)).long().clamp_max(n_labels - 1)
    keys = torch.unique(rows * n_labels + labels)
    ones = torch.ones(len(keys))
    return SparseTargets.from_cells(keys // n_labels, keys % n_labels, ones, (n_items, n_labels)).to("cuda")


def products(x: torch.Tensor, weight: torch.Tensor, block: int) -> Callable[[], None]:
    """The three products of a step over blocks, nothing else."""
    room = torch.randn(len(x), block, device="cuda", dtype=x.dtype)
    out = torch.empty(block, D, device="cuda", dtype=x.dtype)

    def run() -> None:
        for start in range(0, len(weight), block):
            w = weight[start : start + block]
            z = room.view(-1)[: len(x) * len(w)].view(len(x), len(w))
            torch.mm(x, w.t(), out=z)
            torch.mm(z, w)
            torch.mm(z.t(), x, out=out[: len(w)])

    return run


def plain_step(n_labels: int, targets: SparseTargets, x: torch.Tensor, through: bool = True) -> Callable[[], None]:
    """A linear layer, torch's BCE over dense targets that are there already, SGD: what the head stands beside."""
    layer = torch.nn.Linear(D, n_labels, device="cuda", dtype=torch.bfloat16)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
    dense = torch.zeros(len(x), n_labels, dtype=torch.bfloat16, device="cuda")
    dense[targets.rows.long(), targets.labels.long()] = 1

    def run() -> None:
        optimizer.zero_grad()
        features = x.detach().requires_grad_(through)
        torch.nn.functional.binary_cross_entropy_with_logits(layer(features), dense).backward()
        optimizer.step()

    return run


def losses(n_labels: int) -> dict[str, Objective]:
    counts = torch.arange(1, n_labels + 1).flip(0).clamp_min(3)
    rows = {row.name: Objective(row.make(counts, 2 * n_labels, "mean")) for row in TABLE if row.name != "Two-way"}
    masking = PartialLabelMasking(counts, 2 * n_labels, rate=0, initial="mean")
    rows["PLM"] = Objective(BCE(), masking=masking)
    rows["wan"] = Objective(BCE(), "wan")
    return {name: objective.cuda() for name, objective in rows.items()}


def head_of(n_labels: int, optimizer: BlockOptimizer, block: int) -> BlockHead:
    return BlockHead(D, n_labels, optimizer=optimizer, block=block, device="cuda")


def measure(n_items: int, n_labels: int, block: int, repeats: int) -> dict[str, Any]:
    """One size: the products alone, then SGD, in turns, twice."""
    x = torch.randn(n_items, D, device="cuda", dtype=torch.bfloat16)
    targets, objective = targets_of(n_items, n_labels), Objective(BCE())
    head = head_of(n_labels, NEAREST, block)
    features = x.float().requires_grad_()

    def step() -> None:
        head.step(features, targets, objective, lr=1e-3).total.backward()
        features.grad = None

    turns = in_turns(products(x, head.weight, block), step, repeats)
    row: dict[str, Any] = {"items": n_items, "labels": n_labels, "block": block}
    row |= {"products_ms": turns["ms"], "step_ms": turns["other_ms"]}
    row |= {"share": turns["ratio"], "shares": turns["ratios"]}
    gc.collect()
    row["peak_gb"] = peak_gb(step)
    row["total_gib"] = torch.cuda.max_memory_allocated() / 2**30
    return row


def correctness() -> dict[str, float]:
    """Return ‖ours − float64‖ / ‖float64‖ on random inputs: values, gradients of features, moves of weights."""
    n_items, n_labels, width, out = 64, 6400, 64, {}
    index = torch.arange(n_items, device="cuda")
    for name, objective in losses(n_labels).items():
        for dtype in (torch.bfloat16, torch.float32) if name in ("BCE", "ASL", "DB", "PLM") else (torch.bfloat16,):
            x, targets = torch.randn(n_items, width, device="cuda").to(dtype), targets_of(n_items, n_labels)
            ours = BlockHead(width, n_labels, optimizer=NEAREST, block=1536, dtype=dtype, device="cuda")
            exact = BlockHead(width, n_labels, optimizer=NEAREST, block=1536, dtype=torch.float64, device="cuda")
            exact.load_state_dict(ours.state_dict())
            results = []
            for head, features in ((ours, x), (exact, x.double())):
                given, before = features.clone().requires_grad_(), head.weight.double().clone()
                value = head.step(given, targets, objective, lr=640.0, index=index).total
                value.backward()
                assert given.grad is not None
                results.append((value.double(), given.grad.double(), head.weight.double() - before))
            for part, ours_, exact_ in zip(("value", "features", "weights"), *results, strict=True):
                error = float((ours_ - exact_).detach().norm() / exact_.detach().norm())
                if not error < 0.05:
                    raise SystemExit(f"{name}, {dtype}, {part}: relative error {error}")
                out[f"{name}, {dtype}, {part}"] = error
    return out


def timed_sizes(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Every size and block beside its products."""
    rows = []
    for n_items, n_labels in SIZES:
        for block in arguments.blocks:
            rows.append(measure(n_items, n_labels, block, arguments.repeats))
            print(rows[-1], flush=True)
            gc.collect()
            torch.cuda.empty_cache()
    return rows


def run(arguments: argparse.Namespace) -> None:
    """Measure parts, each kept as soon as it is there; what is not measured stays as the file has it."""
    torch.backends.cuda.matmul.allow_tf32 = False
    result: dict[str, Any] = {}
    if arguments.out.exists():
        result = json.loads(arguments.out.read_text(encoding="utf-8"))
    result |= {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "commit": commit()}
    parts: dict[str, Callable[[], Any]] = {
        "optimizers": lambda: timed_optimizers(1024, 10**6, arguments.repeats),
        "plain": lambda: timed_plain(arguments.repeats),
        "sizes": lambda: timed_sizes(arguments),
        "losses": lambda: timed_losses(1024, 10**6, arguments.repeats),
        "errors": correctness,
    }
    for name in arguments.parts:
        began = time.perf_counter()
        result[name] = parts[name]()
        print(f"-- {name}: {time.perf_counter() - began:.0f} s", flush=True)
        if all(part in result for part in ("sizes", "optimizers", "plain", "losses")):
            result["bars"] = bars(result)
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for dtype in ("float32", "bfloat16"):
        for name in ("value", "features", "weights"):
            worst = max((v, k) for k, v in result["errors"].items() if dtype in k and k.endswith(name))
            print(dtype, "largest error", worst, flush=True)
    for name, value in result["bars"].items():
        print(f"{name:24s} {value:.3f}", flush=True)


def bars(result: dict[str, Any]) -> dict[str, float]:
    """The figures that bench/bars.toml names."""
    rows = {(row["items"], row["labels"]): row for row in result["sizes"] if row["block"] == BLOCK}
    ratios = {name: row["ratio"] for name, row in result["optimizers"].items()}
    dense = [row["ratio"] for row in result["plain"] if row["labels"] >= 20_000]
    return {
        "share_1024": rows[1024, 10**6]["share"],
        "share_4096": rows[4096, 10**6]["share"],
        "momentum_over_sgd": ratios["momentum, bfloat16"],
        "adam_over_sgd": max(ratios["adam, bfloat16"], ratios["adam, int8"]),
        "slowest_loss_over_bce": max(row["ratio"] for row in result["losses"].values()),
        "peak_gb_1024": rows[1024, 10**6]["peak_gb"],
        "total_gib_3m": rows[1024, 3 * 10**6]["total_gib"],
        "peak_3m_over_1m": rows[1024, 3 * 10**6]["peak_gb"] / rows[1024, 10**6]["peak_gb"],
        "block_over_dense_20000": max(dense),
    }


def stepper(
    head: BlockHead, x: torch.Tensor, targets: SparseTargets, objective: Objective, through: bool = True
) -> Callable[[], None]:
    """One step and, with `through`, the gradient of features; `train` over given features takes none."""
    features, index = x.detach().clone().requires_grad_(through), torch.arange(len(x), device="cuda")

    def step() -> None:
        value = head.step(features, targets, objective, lr=1e-3, index=index)
        if through:
            value.total.backward()
            features.grad = None

    return step


def timed_optimizers(n_items: int, n_labels: int, repeats: int) -> dict[str, Any]:
    """Other optimizers over SGD."""
    x, targets, out = torch.randn(n_items, D, device="cuda"), targets_of(n_items, n_labels), {}
    sgd = stepper(head_of(n_labels, NEAREST, BLOCK), x, targets, Objective(BCE()))
    for name, rule in OPTIMIZERS.items():
        step = stepper(head_of(n_labels, rule, BLOCK), x, targets, Objective(BCE()))
        turns = in_turns(step, sgd, repeats)
        out[name] = {"ms": turns["ms"], "sgd_ms": turns["other_ms"], "ratio": turns["ratio"], "peak_gb": peak_gb(step)}
        print(name, {k: round(v, 3) for k, v in out[name].items()}, flush=True)
        del step
        gc.collect()
        torch.cuda.empty_cache()
    return out


def timed_losses(n_items: int, n_labels: int, repeats: int) -> dict[str, Any]:
    """Every loss over BCE."""
    x, targets = torch.randn(n_items, D, device="cuda"), targets_of(n_items, n_labels)
    head, out, rows = head_of(n_labels, NEAREST, BLOCK), {}, losses(n_labels)
    bce = stepper(head, x, targets, rows["BCE"])
    for name, objective in rows.items():
        turns = in_turns(stepper(head, x, targets, objective), bce, repeats)
        out[name] = {"ms": turns["ms"], "bce_ms": turns["other_ms"], "ratio": turns["ratio"]}
        print(name, {k: round(v, 3) for k, v in out[name].items()}, flush=True)
    return out


def timed_plain(repeats: int) -> list[dict[str, Any]]:
    """The plain head and this one from where they may meet."""
    rows = []
    few = [(n_items, n_labels) for n_labels in (20_000, 30_000, 50_000) for n_items in (128, 1024)]
    for n_items, n_labels in (*few, (128, 200_000), (1024, 10**6)):
        x, targets = torch.randn(n_items, D, device="cuda", dtype=torch.bfloat16), targets_of(n_items, n_labels)
        rows.append({"items": n_items, "labels": n_labels, **beside_plain(x, targets, repeats)})
        print({k: round(v, 4) for k, v in rows[-1].items()}, flush=True)
        gc.collect()
        torch.cuda.empty_cache()
    return rows


def beside_plain(x: torch.Tensor, targets: SparseTargets, repeats: int, plain: bool = True) -> dict[str, float]:
    """Milliseconds and peak gigabytes of a step of this head and, where it fits, of the plain one, and their ratio.

    Ratios are of steps with the gradient of features, and (`weights_ratio`) of those without.
    """
    n_labels = targets.shape[1]
    ours = stepper(head_of(n_labels, NEAREST, BLOCK), x, targets, Objective(BCE()))
    if not plain:
        return {"block_ms": median_ms(ours, repeats), "block_gb": peak_gb(ours)}
    theirs, steps = plain_step(n_labels, targets, x), 16 if n_labels < 10**6 else 1
    turns = in_turns(ours, theirs, repeats, steps)
    row = {"block_ms": turns["ms"], "plain_ms": turns["other_ms"], "ratio": turns["ratio"]}
    row |= {"block_gb": peak_gb(ours), "plain_gb": peak_gb(theirs)}
    del ours, theirs
    still = stepper(head_of(n_labels, NEAREST, BLOCK), x, targets, Objective(BCE()), through=False)
    turns = in_turns(still, plain_step(n_labels, targets, x, through=False), repeats, steps)
    return row | {"weights_ms": turns["ms"], "weights_plain_ms": turns["other_ms"], "weights_ratio": turns["ratio"]}


def parsed(words: list[str] | None = None) -> argparse.Namespace:
    """Return the arguments of a command line, by default of this one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("bench/figures/block_head.json"))
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--blocks", type=int, nargs="+", default=[BLOCK])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    return parser.parse_args(words)


if __name__ == "__main__":
    run(parsed())
