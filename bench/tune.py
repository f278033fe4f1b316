"""Time the fused losses at the largest size over tiles, warps and programs a multiprocessor, on a GPU.

PYTHONPATH=src python bench/tune.py [--losses BCE,ASL] [--size 4096x9605]
"""

from __future__ import annotations

import argparse
from itertools import product

import torch

from steelyard.kernels import fused
from steelyard_bench.command import sizes_of
from steelyard_bench.losses import batches_of, every_loss
from steelyard_bench.timing import Candidate, Clock, both_ways


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--losses", default="BCE,ASL,NT-BCE,DB-Focal")
    parser.add_argument("--size", default="4096x9605")
    parser.add_argument("--seconds", type=float, default=0.1, help="for each figure")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("no GPU here: these kernels are for one")
    device = torch.device("cuda", 0)
    (size,), names = sizes_of(given.size), given.losses.split(",")
    batches, losses = batches_of(size, device), every_loss(size, device)
    candidates = {name: Candidate([both_ways(losses[name], z, t) for z, t in batches]) for name in names}
    print(f"{torch.cuda.get_device_name()}, {given.size}, µs on the device")
    print(f"{'tile':>6s}{'warps':>6s}{'per SM':>7s}" + "".join(f"{name:>10s}" for name in names))
    for tile, warps, programs in product((512, 1024, 2048, 4096), (4, 8), (4, 8, 16, 32)):
        fused._TILE, fused._WARPS, fused._FLAT_WARPS, fused._PROGRAMS = tile, warps, warps, programs
        fused._ROW_TILE, fused._ROW_WARPS, fused._ROW_PROGRAMS = tile, warps, programs
        fused._DRAWN_TILE, fused._DRAWN_WARPS = tile, warps
        fused._plans.clear()
        times = Clock(device, given.seconds).times(candidates)
        figures = "".join(f"{1e6 * times[name].device_seconds:10.1f}" for name in names)
        print(f"{tile:6d}{warps:6d}{programs:7d}{figures}", flush=True)


if __name__ == "__main__":
    main()
