"""The store of pseudo-labels at Open Images' size: disk, memory and seconds of an epoch.

python bench/pseudo_labels.py [--items 5600000] [--labels 600] [--epochs 2] [--folder DIR]
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

import torch

from steelyard.balance import PseudoLabels

BATCH = 4096


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ask.add_argument("--items", type=int, default=5_600_000)
    ask.add_argument("--labels", type=int, default=600)
    ask.add_argument("--epochs", type=int, default=2)
    ask.add_argument("--folder", default=None)
    given = ask.parse_args()
    before = peak()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        start = time.perf_counter()
        store = PseudoLabels(folder, given.items, given.labels)
        store.reset()
        print(f"made and reset in {time.perf_counter() - start:.1f} s; memory {peak() - before:.2f} GB above imports")
        for epoch in range(1, given.epochs + 1):
            start = time.perf_counter()
            store.start_epoch(epoch)
            for index in torch.randperm(given.items).split(BATCH):
                soft = store.read(index)
                store.write(index, (soft + 0.001 * epoch).clamp_(0, 1))
            store.flush()
            seconds = time.perf_counter() - start
            rate = given.items / seconds
            print(f"epoch {epoch}: {seconds:.1f} s, {rate:,.0f} items/s; memory {peak() - before:.2f} GB above imports")
        disk = sum(file.stat().st_blocks * 512 for file in Path(folder).iterdir()) / 1e9
        print(f"{given.items:,} items x {given.labels} labels: {disk:.2f} GB of disk, {peak():.2f} GB of memory in all")


def peak() -> float:
    """The most memory that the process has held, GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


if __name__ == "__main__":
    main()
