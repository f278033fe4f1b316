"""Time and memory of the metrics, beside torchmetrics where it is installed: `python bench/metrics.py [--device cuda]`.

Scores are 40,137 × 80 (the size of COCO 2014's validation) with label frequencies like COCO's. Ours and torchmetrics'
are timed in turns, so that both meet the same clocks and the same neighbours, and the ratio is the median over turns;
the range after it is that of the turns. Retrieval is paper 4's experiment on the labels of VOC 2012 validation, read
from the folder in `STEELYARD_TEST_DATA`, else on labels drawn in that size. `--million` evaluates a million items × 600
labels instead, kept as float16.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import steelyard.metrics as m
from steelyard._compat import import_torchvision


def coco_like(n_items: int, n_labels: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(0)
    frequency = np.exp(rng.normal(-4, 1, n_labels)).clip(0.002, 0.5)
    frequency[0] = 0.45
    targets = (rng.random((n_items, n_labels), dtype=np.float32) < frequency).astype(np.int8)
    scores = rng.normal(size=(n_items, n_labels)).astype(np.float32)
    scores += 2 * targets
    return torch.from_numpy(scores).sigmoid_().to(device), torch.from_numpy(targets).to(device)


def voc_like(device: str) -> tuple[torch.Tensor, torch.Tensor, str]:
    file = Path(os.environ.get("STEELYARD_TEST_DATA", "")) / "features" / "voc2012-lite0-160.npz"
    rng = np.random.default_rng(0)
    if file.is_file():
        targets, source = (np.load(file)["Y_val"] == 1).astype(np.int8), "VOC 2012 val labels"
    else:
        targets, source = (rng.random((5823, 20)) < 0.073).astype(np.int8), "drawn labels"
    eta = torch.from_numpy(rng.normal(size=targets.shape) * 1.5 + 4 * targets - 3).sigmoid().float()
    return eta.to(device), torch.from_numpy(targets).to(device), source


def timed(call: Callable[[], object], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - start)


def milliseconds(call: Callable[[], object], device: str, least: float = 500.0) -> float:
    times = [timed(call, device) for _ in range(3)][2:]  # the first calls compile and warm up
    while len(times) < 3 or (sum(times) < least and len(times) < 200):
        times.append(timed(call, device))
    return statistics.median(times)


def in_turns(ours: Callable[[], object], theirs: Callable[[], object], device: str) -> tuple[float, float, list[float]]:
    """Milliseconds of ours, of theirs, and the sorted ratios of the turns."""
    milliseconds(ours, device)
    turns = []
    for _ in range(11 if device == "cuda" else 5):
        mine = statistics.median(timed(ours, device) for _ in range(21 if device == "cuda" else 3))
        turns.append((mine, timed(theirs, device)))
    mine, yours = (statistics.median(x) for x in zip(*turns, strict=True))
    return mine, yours, sorted(b / a for a, b in turns)


def peak_over_scores(device: str, dtype: str) -> float:
    """Bytes that one call takes at its peak, beside its input, over the bytes of the scores."""
    kind = getattr(torch, dtype)
    small, few = coco_like(600, 4, device)
    m.average_precision(small.to(kind), few)
    scores, targets = coco_like(40_137, 80, device)
    scores = scores.to(kind)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        m.average_precision(scores, targets)
        return (torch.cuda.max_memory_allocated() - before) / (scores.numel() * scores.itemsize)
    with Path("/proc/self/clear_refs").open("w") as file:
        file.write("5")  # resets the high-water mark
    before = resident()
    m.average_precision(scores, targets)
    return (resident("VmHWM") - before) / (scores.numel() * scores.itemsize)


def resident(field: str = "VmRSS") -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))


def in_own_process(device: str, dtype: str) -> float:
    command = [sys.executable, __file__, "--device", device, "--only-peak", dtype]
    return float(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def million(n_items: int = 1_000_000, n_labels: int = 600) -> list[tuple[str, str, str]]:
    """Evaluate so many items, batch by batch, and tell time and the process's memory at its peak."""
    generator = torch.Generator().manual_seed(0)
    frequency = torch.logspace(-4, -0.5, n_labels)
    evaluator = m.Evaluator(n_labels, counts=(frequency * n_items).long(), dtype="float16")
    scores_bytes, adding = 2 * n_items * n_labels, 0.0
    for start in range(0, n_items, 4096):
        targets = torch.rand(min(4096, n_items - start), n_labels, generator=generator) < frequency
        z = torch.randn(targets.shape, generator=generator) + 2 * targets + torch.logit(frequency)
        probabilities = z.sigmoid_()
        adding += timed(lambda p=probabilities, t=targets: evaluator.update(p, t), "cpu")  # type: ignore[misc]
    kept = resident("VmHWM")
    start_time = time.process_time()
    computing = timed(evaluator.compute, "cpu") / 1e3
    busy = time.process_time() - start_time
    return [
        (f"Evaluator, {n_items:,} × {n_labels}", f"{adding / 1e3:.1f} s", "to add, in batches of 4,096"),
        ("  compute", f"{computing:.1f} s", f"{torch.get_num_threads()} threads, {busy:.0f} s of CPU time"),
        ("  kept", f"{evaluator.nbytes / 2**30:.2f} GiB", f"{evaluator.nbytes / scores_bytes:.2f} × the scores"),
        ("  memory after adding", f"{kept / 2**30:.2f} GiB", f"{kept / scores_bytes:.2f} ×, the process at its peak"),
        (
            "  memory at its peak",
            f"{resident('VmHWM') / 2**30:.2f} GiB",
            f"{resident('VmHWM') / scores_bytes:.2f} × the scores, Python and torch included",
        ),
    ]


def against_torchmetrics(scores: torch.Tensor, targets: torch.Tensor, device: str) -> tuple[str, str, str]:
    name = f"mAP {len(scores):,} × {scores.shape[1]}, exact"

    def ours() -> float:
        return m.mean_average_precision(scores, targets)

    try:
        import_torchvision()
        from torchmetrics.functional.classification import multilabel_average_precision
    except ImportError:
        return name, f"{milliseconds(ours, device):.2f} ms", "torchmetrics is not installed"
    long = targets.long()

    def theirs() -> float:
        return float(multilabel_average_precision(scores, long, scores.shape[1]))

    difference = abs(theirs() - ours())
    mine, yours, ratios = in_turns(ours, theirs, device)
    note = (
        f"{statistics.median(ratios):.1f} × ({ratios[0]:.1f}–{ratios[-1]:.1f}) torchmetrics "
        f"{importlib.metadata.version('torchmetrics')} ({yours:.1f} ms), difference {difference:.0e}"
    )
    return name, f"{mine:.2f} ms", note


def table(device: str, retrieval: bool) -> list[tuple[str, str, str]]:
    scores, targets = coco_like(40_137, 80, device)
    rows = [against_torchmetrics(scores, targets, device)]
    for dtype in ("float32", "float64", "float16"):
        note = f"the bytes of the {dtype} scores, beside the input"
        rows.append(("  its peak memory", f"{in_own_process(device, dtype):.2f} ×", note))
    unknown = torch.where(torch.rand_like(scores) < 0.5, -1, targets)
    double, half = scores.double(), scores.half()
    for label, call in {
        "  half the labels unknown": lambda: m.average_precision(scores, unknown),
        "  float64": lambda: m.average_precision(double, targets),
        "  float16": lambda: m.average_precision(half, targets),
        "mAP@x (by item)": lambda: m.average_precision(scores, targets, per="item"),
        "calibration error, 15 bins": lambda: m.calibration_error(scores, targets),
        "  equal mass": lambda: m.calibration_error(scores, targets, binning="mass"),
        "precision, recall, F1": lambda: m.precision_recall_f1(scores >= 0.5, targets),
        "Brier score": lambda: m.brier(scores, targets),
    }.items():
        rows.append((label, f"{milliseconds(call, device):.2f} ms", ""))
    evaluator = m.Evaluator(80, counts=targets.sum(0))
    for start in range(0, len(scores), 256):
        evaluator.update(scores[start : start + 256], targets[start : start + 256])
    seconds = timed(evaluator.compute, "cpu") / 1e3
    rows.append(("Evaluator.compute", f"{seconds:.2f} s", f"{evaluator.nbytes:,} bytes kept"))
    if retrieval:
        eta, present, source = voc_like(device)
        start_time = time.perf_counter()
        result = m.retrieval_map(eta, present)
        seconds = time.perf_counter() - start_time
        note = f"{result.n_queries:,} of {result.n_combinations:,} queries × {len(eta):,} items, {source}"
        rows.append(("retrieval, exact, 20 labels", f"{seconds:.2f} s", note))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--no-retrieval", action="store_true", help="leave out the search over all queries")
    parser.add_argument("--only-map", action="store_true", help="only mAP beside torchmetrics")
    parser.add_argument("--million", action="store_true", help="only a million items × 600 labels in an Evaluator")
    parser.add_argument("--only-peak", metavar="DTYPE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    device = options.device
    if options.only_peak:
        print(json.dumps(peak_over_scores(device, options.only_peak)))
        return
    name = torch.cuda.get_device_name() if device == "cuda" else f"{torch.get_num_threads()} threads"
    print(f"{device} ({name}), torch {torch.__version__}, numpy {np.__version__}")
    if options.million:
        rows = million()
    elif options.only_map:
        rows = [against_torchmetrics(*coco_like(40_137, 80, device), device)]
    else:
        rows = table(device, not options.no_retrieval)
    width = max(len(row[0]) for row in rows)
    for label, value, note in rows:
        print(f"{label:<{width}}  {value:>11}  {note}".rstrip())


if __name__ == "__main__":
    main()
