"""Time and memory of the metrics, beside torchmetrics where it is installed: `python bench/metrics.py [--device cuda]`.

Scores are 40,137 × 80 (the size of COCO 2014's validation) with label frequencies like COCO's; retrieval is paper 4's
experiment on the labels of VOC 2012 validation, read from the folder in `STEELYARD_TEST_DATA`, else on labels drawn in
that size.
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


def milliseconds(call: Callable[[], object], device: str, least: float = 1.0) -> float:
    call()
    times: list[float] = []
    while len(times) < 3 or (sum(times) < least and len(times) < 200):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


def peak_over_scores(device: str) -> float:
    """Bytes that one call takes at its peak, beside its input, over the bytes of the scores."""
    m.average_precision(*coco_like(600, 4, device))
    scores, targets = coco_like(40_137, 80, device)
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


def in_own_process(device: str) -> float:
    command = [sys.executable, __file__, "--device", device, "--only-peak"]
    return float(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--only-peak", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--no-retrieval", action="store_true", help="leave out the search over all queries")
    options = parser.parse_args()
    device = options.device
    if options.only_peak:
        print(json.dumps(peak_over_scores(device)))
        return
    name = torch.cuda.get_device_name() if device == "cuda" else f"{torch.get_num_threads()} threads"
    print(f"{device} ({name}), torch {torch.__version__}, numpy {np.__version__}")
    scores, targets = coco_like(40_137, 80, device)
    rows: list[tuple[str, str, str]] = []
    ours = milliseconds(lambda: m.mean_average_precision(scores, targets), device)
    try:
        from torchmetrics.functional.classification import (  # type: ignore[import-not-found,unused-ignore]
            multilabel_average_precision,
        )
    except ImportError:
        rows.append(("mAP 40,137 × 80, exact", f"{ours:.2f} ms", "torchmetrics is not installed"))
    else:
        long = targets.long()
        theirs = milliseconds(lambda: multilabel_average_precision(scores, long, 80), device)
        difference = abs(
            float(multilabel_average_precision(scores, long, 80)) - m.mean_average_precision(scores, targets)
        )
        version = importlib.metadata.version("torchmetrics")
        note = f"{theirs / ours:.1f} × torchmetrics {version} ({theirs:.1f} ms), difference {difference:.0e}"
        rows.append(("mAP 40,137 × 80, exact", f"{ours:.2f} ms", note))
    rows.append(("  its peak memory", f"{in_own_process(device):.2f} ×", "the bytes of the scores, beside the input"))
    unknown = torch.where(torch.rand_like(scores) < 0.5, -1, targets)
    for label, call in {
        "  half the labels unknown": lambda: m.average_precision(scores, unknown),
        "  float64": lambda: m.average_precision(scores.double(), targets),
        "  float16": lambda: m.average_precision(scores.half(), targets),
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
    start_time = time.perf_counter()
    evaluator.compute()
    rows.append(("Evaluator.compute", f"{time.perf_counter() - start_time:.2f} s", f"{evaluator.nbytes:,} bytes kept"))
    if not options.no_retrieval:
        eta, present, source = voc_like(device)
        start_time = time.perf_counter()
        result = m.retrieval_map(eta, present)
        seconds = time.perf_counter() - start_time
        note = f"{result.n_queries:,} of {result.n_combinations:,} queries × {len(eta):,} items, {source}"
        rows.append(("retrieval, exact, 20 labels", f"{seconds:.2f} s", note))
    width = max(len(row[0]) for row in rows)
    for label, value, note in rows:
        print(f"{label:<{width}}  {value:>11}  {note}".rstrip())


if __name__ == "__main__":
    main()
