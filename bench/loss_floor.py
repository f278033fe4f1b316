"""Time and memory of every fused loss over the floor: the bytes that it must move, and one gradient.

    PYTHONPATH=src:bench python bench/loss_floor.py [--out bench/figures/loss_floor.json]

Forward and backward at 4,096 × 9,605 on a GPU, the device alone, medians. Two-way, which compares labels with each
other, has a bench of its own (`two_way.py`).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from steelyard._source import commit
from steelyard.losses.table import TABLE
from steelyard_bench.losses import LABEL_BYTES, batches_of, every_loss
from steelyard_bench.timing import Candidate, Clock, bandwidth, both_ways

SIZE = (4096, 9605)


def main() -> None:
    """Print a line per loss, and keep the worst of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="keep the figures as JSON")
    parser.add_argument("--seconds", type=float, default=0.2, help="of each loss")
    given = parser.parse_args()
    device, cells = torch.device("cuda", 0), SIZE[0] * SIZE[1]
    clock, batches, losses = Clock(device, given.seconds), batches_of(SIZE, device), every_loss(SIZE, device)
    speed = bandwidth(device, given.seconds)
    names = [row.name for row in TABLE if row.name != "Two-way"]
    times = clock.times({name: Candidate([both_ways(losses[name], z, t) for z, t in batches]) for name in names})
    rows = {
        name: {
            "over_floor": took.device_seconds * speed / (LABEL_BYTES * cells),
            "gradients": (took.memory or 0) / (4 * cells),
            "ms": 1e3 * took.device_seconds,
            "ms_as_called": 1e3 * took.seconds,
        }
        for name, took in times.items()
    }
    for name, row in rows.items():
        print(f"{name:28s}", {key: round(value, 3) for key, value in row.items()})
    worst = {key: max(row[key] for row in rows.values()) for key in ("over_floor", "gradients")}
    print("worst", worst)
    if given.out is not None:
        kept = {"device": torch.cuda.get_device_name(), "commit": commit(), "bandwidth": speed}
        given.out.write_text(json.dumps({**kept, "worst": worst, "losses": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
