"""Coordination of the programs of one launch (Triton): which of them comes last, and the sum of their parts."""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

PARTS = tl.constexpr(1024)  # sums of programs that are added at a time


@triton.jit
def is_last(counter):
    """Return whether this is the last program to come; the counter is then 0 again."""
    tl.debug_barrier()
    last = tl.atomic_add(counter, 1, sem="acq_rel") == tl.num_programs(0) - 1
    if last:
        tl.store(counter, 0)
    tl.debug_barrier()
    return last


@triton.jit
def total(parts):
    """The sum of all programs' parts, in their order."""
    lane = tl.arange(0, PARTS)
    acc = tl.zeros([PARTS], tl.float64)
    for first in range(0, tl.num_programs(0), PARTS):
        there = first + lane < tl.num_programs(0)
        acc += tl.load(parts + first + lane, mask=there, other=0.0, cache_modifier=".cg")
    return tl.sum(acc, 0)
