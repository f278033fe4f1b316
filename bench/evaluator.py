"""A million items × 600 labels in an Evaluator, kept as float16: seconds, and memory of the process at its peak.

python bench/evaluator.py [--items 1000000] [--labels 600]
python bench/evaluator.py --top --labels 1000000      # the first five labels of each item in a TopEvaluator
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch

from steelyard.metrics import Evaluator, TopEvaluator


def resident(field: str) -> int:
    """Bytes of this process, as the kernel tells them."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))


def first_labels(n_items: int, n_labels: int) -> None:
    """Stream random first labels and positives, 15 per item, by batches of 1,024."""
    rng = np.random.default_rng(0)
    evaluator, adding = TopEvaluator(np.arange(1, n_labels + 1), n_items), 0.0
    before = resident("VmRSS")
    for start in range(0, n_items, 1024):
        n = min(1024, n_items - start)
        top, labels = rng.integers(0, n_labels, (n, 5)), rng.integers(0, n_labels, 15 * n)
        began = time.process_time()
        evaluator.update(top, np.repeat(np.arange(n), 15), labels)
        adding += time.process_time() - began
    evaluator.compute()
    more = (resident("VmHWM") - before) / 2**20
    print(f"{n_items:,} × {n_labels:,}, first 5: {adding:.1f} s of CPU, {more:.0f} MiB more than at the start")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--labels", type=int, default=600)
    parser.add_argument("--top", action="store_true")
    given = parser.parse_args()
    if given.top:
        first_labels(given.items, given.labels)
        return
    generator = torch.Generator().manual_seed(0)
    frequency = torch.logspace(-4, -0.5, given.labels)
    evaluator = Evaluator(given.labels, counts=(frequency * given.items).long(), dtype="float16")
    scores, adding = 2 * given.items * given.labels, 0.0
    for start in range(0, given.items, 4096):
        targets = torch.rand(min(4096, given.items - start), given.labels, generator=generator) < frequency
        z = torch.randn(targets.shape, generator=generator) + 2 * targets + torch.logit(frequency)
        probabilities = z.sigmoid_()
        began = time.perf_counter()
        evaluator.update(probabilities, targets)
        adding += time.perf_counter() - began
    kept, began, busy = resident("VmHWM"), time.perf_counter(), time.process_time()
    evaluator.compute()
    took, busy = time.perf_counter() - began, time.process_time() - busy
    print(f"{given.items:,} × {given.labels}, torch {torch.__version__}, {torch.get_num_threads()} threads")
    print(f"adding, in batches of 4,096    {adding:8.1f} s")
    print(f"computing                      {took:8.1f} s, {busy:.0f} s of CPU")
    for name, size in (
        ("kept", evaluator.nbytes),
        ("the process, after adding", kept),
        ("the process, at its peak", resident("VmHWM")),
    ):
        print(f"{name:30s} {size / 2**30:8.2f} GiB, {size / scores:.2f} × the scores")


if __name__ == "__main__":
    main()
