"""Check the fused two-way loss against float64 and time it, on a GPU.

PYTHONPATH=src:bench python bench/two_way.py [--out bench/figures/two_way.json] [--tune]
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from itertools import product
from pathlib import Path

import torch
import torch.nn.functional as F

from steelyard._source import commit
from steelyard.kernels import choice, fused, two_way
from steelyard.losses import TwoWay
from steelyard_bench.losses import LABEL_BYTES, batches_of, plainly
from steelyard_bench.timing import Candidate, Clock, bandwidth, both_ways

SIZES = ((256, 80), (4096, 9605))


def miss(z: torch.Tensor, t: torch.Tensor) -> tuple[float, float]:
    """Return the relative error of the value and, against its largest element, of the gradient."""
    x, y = z.detach().clone().requires_grad_(), z.detach().double().requires_grad_()
    value = TwoWay()(x, t)
    with choice.using("plain"):
        want = TwoWay()(y, t)
    (grad,), (want_grad,) = torch.autograd.grad(value, x), torch.autograd.grad(want, y)
    return abs(value.item() / want.item() - 1), ((grad - want_grad).abs().max() / want_grad.abs().max()).item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tune", action="store_true", help="time tiles, warps, programs and registers, large size")
    parser.add_argument("--out", type=Path, help="keep the figures as JSON")
    given = parser.parse_args()
    kept: dict[str, object] = {"device": torch.cuda.get_device_name(), "commit": commit()}
    device = torch.device("cuda", 0)
    clock, speed = Clock(device, 0.4), bandwidth(device, 0.4)
    print(f"{torch.cuda.get_device_name()}, a copy moves {speed / 1e12:.2f} TB/s; ms forward and backward, medians")
    for size in SIZES:
        batches, floor = batches_of(size, device), LABEL_BYTES * size[0] * size[1] / speed
        calls = [both_ways(TwoWay(), z, t) for z, t in batches]
        bce = [both_ways(F.binary_cross_entropy_with_logits, z, t.float()) for z, t in batches]
        times = clock.times({"fused": Candidate(calls), "plain": Candidate(calls, plainly), "BCE": Candidate(bce)})
        print(
            f"{size}: value and gradient miss by %.1e and %.1e; the floor is {1e3 * floor:.4f} ms" % miss(*batches[0])
        )
        ratios = {"over_floor": times["fused"].seconds / floor, "over_bce": times["fused"].over(times["BCE"])}
        kept[f"{size[0]}x{size[1]}"] = {**ratios, "ms": 1e3 * times["fused"].seconds}
        for name, t in times.items():
            called = f"{1e3 * t.seconds:9.4f} as called, {1e3 * t.device_seconds:9.4f} on the device"
            print(f"  {name:6s}{called}, {t.seconds / floor:8.2f} × floor, {t.over(times['BCE']):6.2f} × BCE")
    if given.out is not None:
        given.out.write_text(json.dumps(kept, indent=1) + "\n")
    for rows, warps, programs, limit in (
        product((8, 16, 32), (4, 8), (8, 16, 32), (128, 168, 255)) if given.tune else ()
    ):
        two_way._TILE = two_way._GRADIENT_TILE = (rows, 128)
        two_way._WARPS, two_way._PROGRAMS, two_way._REGISTERS = warps, programs, limit
        two_way._GRADIENT_WARPS, two_way._GRADIENT_PROGRAMS = warps, programs
        fused._plans.clear()
        ways = {"forward": [partial(TwoWay(), z, t) for z, t in batches], "both": calls}
        took = Clock(device, 0.05).times({name: Candidate(some) for name, some in ways.items()})
        shown = ", ".join(f"{name} {1e6 * t.device_seconds:.1f} µs" for name, t in took.items())
        print(f"  {rows} rows, {warps} warps, {programs} programs, {limit} registers: {shown}", flush=True)


if __name__ == "__main__":
    main()
