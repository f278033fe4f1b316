"""Passes over targets before that of the loss (Triton): known labels, and the sums of re-balanced weights."""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from steelyard.kernels.arithmetic import FAST
from steelyard.kernels.programs import is_last, total


@triton.jit
def cells_before(base, GRAIN: tl.constexpr):
    """Return how many cells lie between `base` and the next multiple of GRAIN."""
    return ((GRAIN - base % GRAIN) % GRAIN).to(tl.int32)


@triton.jit
def known_cells(targets, first, n, C: tl.constexpr):
    """Return how many of the cells first … first + C − 1 of n are known, a lane each."""
    lane = tl.arange(0, C)
    inside = lane < tl.minimum(n - first, C).to(tl.int32)
    return (tl.load(targets + first + lane, mask=inside, other=-1).to(tl.float32) != -1).to(tl.int32)


@triton.jit
def _words(targets, left, C: tl.constexpr):
    """C targets of a byte as words of four; beyond `left`, a multiple of 16, all are unknown."""
    quad = tl.arange(0, C // 4)
    return tl.load(targets.to(tl.pointer_type(tl.int32)) + quad, mask=quad // 4 < left // 16, other=-1)


@triton.jit
def _known_of(word):
    """Return how many of the four targets in a word are not −1."""
    signs = ~word & -2139062144  # 0x80808080
    if FAST:
        return tl.inline_asm_elementwise("popc.b32 $0, $1;", "=r,r", [signs], tl.int32, is_pure=True, pack=1)
    else:
        return ((signs >> 7) & 1) + ((signs >> 15) & 1) + ((signs >> 23) & 1) + ((signs >> 31) & 1)


@triton.jit
def count(targets, out, parts, counter, n, WORDS: tl.constexpr, C: tl.constexpr):
    """The number of known labels of a contiguous matrix of n, at least 1, as float32 in `out`.

    WORDS: targets are of a byte, from an address on that is a multiple of 16, and are read as words of four.
    """
    whole = n // 16 * 16 if WORDS else n
    acc, last = tl.zeros([C // 4 if WORDS else C], tl.int32), tl.zeros([16], tl.int32)
    for tile in range(tl.program_id(0), tl.cdiv(whole, C), tl.num_programs(0)):
        first = tl.cast(tile, tl.int64) * C
        if WORDS:
            acc += _known_of(_words(targets + first, whole - first, C))
        else:
            acc += known_cells(targets, first, n, C)
    if WORDS and tl.program_id(0) == 0:
        last += known_cells(targets, whole, n, 16)
    tl.store(parts + tl.program_id(0), (tl.sum(acc, 0) + tl.sum(last, 0)).to(tl.float64))
    if is_last(counter):
        tl.store(out, tl.maximum(total(parts), 1.0).to(tl.float32))


@triton.jit
def rows(
    targets, inverse, drawn, out, parts, counter, n, L, t_row, t_col, HOLES: tl.constexpr, GRAIN: tl.constexpr,
    C: tl.constexpr,
):  # fmt: skip
    """Σ_j present_j inverse_j of each of n rows in `drawn`, and, with HOLES, what `count` gives in `out`.

    A row goes round from its first address that is a multiple of GRAIN. Targets of a byte, GRAIN 16, are read as words
    of four, in which a present one has a lowest bit and no highest, an unknown one both.
    """
    SOFT: tl.constexpr = targets.dtype.element_ty.is_floating()
    WORDS: tl.constexpr = GRAIN == 16
    WIDTH: tl.constexpr = C // 4 if WORDS else C
    REST: tl.constexpr = 32 if WORDS else C // 2
    lane, few = tl.arange(0, WIDTH), tl.arange(0, REST)
    seen, seen_last = tl.zeros([WIDTH], tl.int32), tl.zeros([REST], tl.int32)
    for row in range(tl.program_id(0), n, tl.num_programs(0)):
        base = tl.cast(row, tl.int64) * t_row
        head = cells_before(base, GRAIN)
        origin = tl.multiple_of(base + head, GRAIN)
        acc, last = tl.zeros([WIDTH], tl.float32), tl.zeros([REST], tl.float32)
        if WORDS:
            rest = tl.maximum((L - head) // GRAIN, 0) * GRAIN
        else:
            rest = tl.maximum((L - head) // C, 0) * C
        for first in range(0, rest, C):
            if WORDS:
                word = _words(targets + origin + first, rest - first, C)
                present = word & ~(word >> 7)
                address = inverse + head + first + 4 * lane
                for i in tl.static_range(4):  # few are present: hardly anything is read
                    acc += tl.load(address + i, mask=(present & (1 << (8 * i))) != 0, other=0.0)
                if HOLES:
                    seen += _known_of(word)
            else:
                t = tl.load(targets + origin + (first + lane).to(tl.int64) * t_col)
                share = tl.load(inverse + head + first + lane, mask=t > 0, other=0.0)
                acc += t.to(tl.float32) * share if SOFT else share
                if HOLES:
                    seen += (t != -1).to(tl.int32)
        for first in range(rest, L, REST):
            columns = first + head + few
            columns = tl.where(columns < L, columns, columns - L)
            inside = first + few < L
            t = tl.load(targets + base + columns.to(tl.int64) * t_col, mask=inside, other=-1 if HOLES else 0)
            share = tl.load(inverse + columns, mask=inside & (t > 0), other=0.0)
            last += t.to(tl.float32) * share if SOFT else share
            if HOLES:
                seen_last += (t != -1).to(tl.int32)
        tl.store(drawn + row, tl.sum(acc, 0) + tl.sum(last, 0))
    if HOLES:
        tl.store(parts + tl.program_id(0), (tl.sum(seen, 0) + tl.sum(seen_last, 0)).to(tl.float64))
        if is_last(counter):
            tl.store(out, tl.maximum(total(parts), 1.0).to(tl.float32))
