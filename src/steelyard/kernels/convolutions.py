"""3×3 convolutions of few channels with the normalisations around them: Triton kernels for maps (places, C).

Maps lie channels last, with a margin: a last row and a last column of zeros, so that (batch, H + 1, W + 1) places are
a matrix of one row a place. What lies beside a place is then a fixed number of rows away, and what is beyond an edge is
a margin's zero, the one of the row or image before as well as its own: a convolution asks nothing about edges. C is 16,
32 or 64, few enough that a program has all channels of its places, and so sums for a normalisation are taken where a
convolution ends. Weights lie as (out, place of the window, in). Sums over rows are taken in two steps in one launch, in
a fixed order: every program writes its part, and the last to come adds the parts. Arithmetic is float32 but for the
products, which have the precision of the maps.

A window has nine places. Those of a row of it lie side by side in a map as they do in the weights, so where ROW is set
they are multiplied at once, as four, the fourth's weights being nothing.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from steelyard.kernels.norms import _line
from steelyard.kernels.programs import is_last

ROWS = tl.constexpr(128)  # parts that are added at a time


@triton.jit
def _sums(part, c, C: tl.constexpr):
    """Add up the two sums of C channels that every program has written."""
    one, two = tl.zeros([C], tl.float32), tl.zeros([C], tl.float32)
    for first in range(0, tl.num_programs(0), ROWS):
        rows = first + tl.arange(0, ROWS)
        spots, there = rows[:, None] * 2 * C + c[None, :], rows[:, None] < tl.num_programs(0)
        one += tl.sum(tl.load(part + spots, mask=there, other=0.0, cache_modifier=".cg"), 0)
        two += tl.sum(tl.load(part + spots + C, mask=there, other=0.0, cache_modifier=".cg"), 0)
    return one, two


@triton.jit
def _is_real(rows, n, H: tl.constexpr, W: tl.constexpr):
    """Whether rows of a matrix are places of its maps H × W, and not of their margins, (rows, 1)."""
    return ((rows < n) & (rows % (W + 1) < W) & (rows // (W + 1) % (H + 1) < H))[:, None]


@triton.jit
def _centre(rows, H: tl.constexpr, W: tl.constexpr, STRIDE: tl.constexpr):
    """The rows, in maps H × W, of the places that a convolution of this stride makes `rows` of."""
    if STRIDE == 1:
        return rows
    HO: tl.constexpr = (H + 1) // 2 + 1
    WO: tl.constexpr = (W + 1) // 2 + 1
    return (rows // (WO * HO) * (H + 1) + rows // WO % HO * 2) * (W + 1) + rows % WO * 2


@triton.jit
def convolved(
    x, w, y, part, counter, mean, inverse, running_mean, running_var, n_seen, n, n_in, each, n_real, eps, momentum,
    H: tl.constexpr, W: tl.constexpr, I: tl.constexpr, O: tl.constexpr, STRIDE: tl.constexpr, ROW: tl.constexpr,
    BM: tl.constexpr,
):  # fmt: skip
    """y = x ∗ w for `n` rows of y, its mean and 1/deviation by channel; running statistics move, `n_seen` grows.

    x is (batch, H, W, I) with margins, `n_in` rows; `n_real` are the places of y without them. A shift by the running
    mean keeps the digits of E(y²) − E(y)².
    """
    HO: tl.constexpr = (H - 1) // STRIDE + 1
    WO: tl.constexpr = (W - 1) // STRIDE + 1
    STEPS: tl.constexpr = 3 if ROW else 9
    j, o = tl.arange(0, 4 * I if ROW else I), tl.arange(0, O)
    shift = tl.load(running_mean + o)
    one, two = tl.zeros([O], tl.float32), tl.zeros([O], tl.float32)
    start = tl.program_id(0) * each
    for first in range(start, min(start + each, n), BM):
        rows = first + tl.arange(0, BM)
        centre = _centre(rows, H, W, STRIDE)
        total = tl.zeros([BM, O], tl.float32)
        for k in range(STEPS):
            window = 3 * k if ROW else k
            spots = ((centre + (window // 3 - 1) * (W + 1) + window % 3 - 1) * I)[:, None] + j[None, :]
            v = tl.load(x + spots, mask=(spots >= 0) & (spots < n_in * I), other=0.0)
            weights = tl.load(w + ((o * 9 + window) * I)[None, :] + j[:, None], mask=(j < 3 * I)[:, None], other=0.0)
            total = tl.dot(v, weights, total, input_precision="ieee")
        is_real = _is_real(rows, n, HO, WO)
        rounded = tl.where(is_real, total, 0.0).to(y.dtype.element_ty)
        tl.store(y + rows[:, None] * O + o[None, :], rounded, mask=rows[:, None] < n)
        v = tl.where(is_real, rounded.to(tl.float32) - shift[None, :], 0.0)
        one += tl.sum(v, 0)
        two += tl.sum(v * v, 0)
    spots = part + tl.program_id(0) * 2 * O + o
    tl.store(spots, one)
    tl.store(spots + O, two)
    if is_last(counter):
        off, square = _sums(part, o, O)
        off, square = off / n_real, square / n_real
        var = square - off * off
        var = tl.where(var < 0, 0.0, var)
        tl.store(mean + o, shift + off)
        tl.store(inverse + o, 1 / tl.sqrt(var + eps))
        tl.store(running_mean + o, shift + momentum * off)
        old = tl.load(running_var + o)
        tl.store(running_var + o, old + momentum * (var * n_real / (n_real - 1) - old))
        tl.store(n_seen, tl.load(n_seen) + 1)


@triton.jit
def joined(
    y, short, out, mean, inverse, weight, bias, n, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr,
    MORE: tl.constexpr, SHORT: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """out = max(0, normalised y + shortcut) for `n` rows of maps of C channels.

    SHORT is 0: no shortcut; 1: `short` is as y; 2: it has MORE channels less, and is taken at every second place with
    MORE / 2 channels of zeros before it and as many after. H and W are the shortcut's.
    """
    HO: tl.constexpr = (H + 1) // 2 if SHORT == 2 else H
    WO: tl.constexpr = (W + 1) // 2 if SHORT == 2 else W
    c = tl.arange(0, C)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    inside, is_real = rows[:, None] < n, _is_real(rows, n, HO, WO)
    slope, offset = _line(mean, inverse, weight, bias, c)
    spots = rows[:, None] * C + c[None, :]
    v = tl.load(y + spots, mask=inside, other=0.0).to(tl.float32) * slope[None, :] + offset[None, :]
    if SHORT == 1:
        v += tl.load(short + spots, mask=inside, other=0.0).to(tl.float32)
    if SHORT == 2:
        old = c - MORE // 2
        far = _centre(rows, H, W, 2)[:, None] * (C - MORE) + old[None, :]
        there = is_real & (old >= 0)[None, :] & (old < C - MORE)[None, :]
        v += tl.load(short + far, mask=there, other=0.0).to(tl.float32)
    v = tl.where((v <= 0) | (is_real == 0), 0.0, v)
    tl.store(out + spots, v.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _write_sums(one, two, part, counter, sums, c, C: tl.constexpr):
    spots = part + tl.program_id(0) * 2 * C + c
    tl.store(spots, one)
    tl.store(spots + C, two)
    if is_last(counter):
        one, two = _sums(part, c, C)
        tl.store(sums + c, one)
        tl.store(sums + C + c, two)


@triton.jit
def masked(g, a, y, out, part, counter, sums, mean, inverse, n, each, C: tl.constexpr, BM: tl.constexpr):
    """out = g where a > 0, else 0; `sums` (2, C) are those of out and of out · (normalised y before its weight)."""
    c = tl.arange(0, C)
    m, s = tl.load(mean + c), tl.load(inverse + c)
    one, two = tl.zeros([C], tl.float32), tl.zeros([C], tl.float32)
    start = tl.program_id(0) * each
    for first in range(start, min(start + each, n), BM):
        rows = first + tl.arange(0, BM)
        inside = rows[:, None] < n
        spots = rows[:, None] * C + c[None, :]
        d = tl.load(g + spots, mask=inside, other=0.0)
        d = tl.where(tl.load(a + spots, mask=inside, other=0.0) <= 0, 0.0, d)
        tl.store(out + spots, d, mask=inside)
        d = d.to(tl.float32)
        one += tl.sum(d, 0)
        two += tl.sum(d * (tl.load(y + spots, mask=inside, other=0.0).to(tl.float32) - m[None, :]), 0)
    _write_sums(one, two * s, part, counter, sums, c, C)


@triton.jit
def normalised_back(
    g, y, out, mean, inverse, weight, sums, n, n_real, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr,
    BM: tl.constexpr,
):  # fmt: skip
    """The gradient of y, given g, that of its normalisation, and the `sums` that came with it."""
    c = tl.arange(0, C)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    inside = rows[:, None] < n
    m, s = tl.load(mean + c), tl.load(inverse + c)
    slope = s * tl.load(weight + c)
    a, b = tl.load(sums + c) / n_real, tl.load(sums + C + c) / n_real * s
    spots = rows[:, None] * C + c[None, :]
    v = tl.load(y + spots, mask=inside, other=0.0).to(tl.float32)
    d = tl.load(g + spots, mask=inside, other=0.0).to(tl.float32)
    d = slope[None, :] * (d - a[None, :] - (v - m[None, :]) * b[None, :])
    tl.store(out + spots, tl.where(_is_real(rows, n, H, W), d, 0.0).to(out.dtype.element_ty), mask=inside)


@triton.jit
def convolved_back(
    g, w, out, y, a, short, mean, inverse, part, counter, sums, n, n_out, each,
    H: tl.constexpr, W: tl.constexpr, I: tl.constexpr, O: tl.constexpr, STRIDE: tl.constexpr, SHORT: tl.constexpr,
    ROW: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """The gradient of what a normalisation gave a convolution, from g, that of the convolution's result: `n` rows.

    `y` (batch, H, W, I) is what was normalised, `a` what came of that and was convolved; g has `n_out` rows. SHORT is
    0, or the stride where `a` went by a shortcut too, whose far end has the gradient `short`, of the size of g. `sums`
    as in `masked`. ROW needs a stride of 1.
    """
    HO: tl.constexpr = (H - 1) // STRIDE + 1
    WO: tl.constexpr = (W - 1) // STRIDE + 1
    STEPS: tl.constexpr = 3 if ROW else 9
    i, j = tl.arange(0, I), tl.arange(0, 4 * O if ROW else O)
    far, o = j // O, j % O  # from the left, the window's places come from the right
    m, s = tl.load(mean + i), tl.load(inverse + i)
    one, two = tl.zeros([I], tl.float32), tl.zeros([I], tl.float32)
    start = tl.program_id(0) * each
    for first in range(start, min(start + each, n), BM):
        rows = first + tl.arange(0, BM)
        across, down, item = rows % (W + 1), rows // (W + 1) % (H + 1), rows // ((W + 1) * (H + 1))
        total = tl.zeros([BM, I], tl.float32)
        for k in range(STEPS):
            window = 3 * k + 2 if ROW else k
            to_y, to_x = 1 - window // 3, 1 - window % 3
            if STRIDE == 1:
                spots = ((rows + to_y * (W + 1) + to_x) * O)[:, None] + j[None, :]
                inside = spots >= 0
            else:
                to_y, to_x = to_y + down, to_x + across
                at = (item * (HO + 1) + to_y // 2) * (WO + 1) + to_x // 2
                spots = (at * O)[:, None] + j[None, :]
                inside = ((to_y >= 0) & (to_x >= 0) & (to_y % 2 == 0) & (to_x % 2 == 0))[:, None]
            d = tl.load(g + spots, mask=inside & (spots < n_out * O), other=0.0)
            spots = ((o * 9 + window - far) * I)[:, None] + i[None, :]
            total = tl.dot(d, tl.load(w + spots, mask=(far < 3)[:, None], other=0.0), total, input_precision="ieee")
        there = rows[:, None] < n
        spots = rows[:, None] * I + i[None, :]
        if SHORT == 1:
            total += tl.load(short + spots, mask=there, other=0.0).to(tl.float32)
        if SHORT == 2:
            end = ((item * (HO + 1) + down // 2) * (WO + 1) + across // 2)[:, None] * O + ((O - I) // 2 + i)[None, :]
            at_end = there & ((down % 2 == 0) & (across % 2 == 0))[:, None]
            total += tl.load(short + end, mask=at_end, other=0.0).to(tl.float32)
        shut = tl.load(a + spots, mask=there, other=0.0) <= 0  # as margins are
        rounded = tl.where(shut, 0.0, total).to(out.dtype.element_ty)
        tl.store(out + spots, rounded, mask=there)
        d = rounded.to(tl.float32)
        one += tl.sum(d, 0)
        two += tl.sum(d * (tl.load(y + spots, mask=there, other=0.0).to(tl.float32) - m[None, :]), 0)
    _write_sums(one, two * s, part, counter, sums, i, I)


@triton.jit
def weights_back(
    x, g, part, n, n_in, each, H: tl.constexpr, W: tl.constexpr, I: tl.constexpr, O: tl.constexpr,
    STRIDE: tl.constexpr, ROW: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """A part, that of `each` rows of g, of the gradient of a convolution's weights: (programs, O, 9, I).

    x as in `convolved`; program_id(1) says which place of the window, or which row of it where ROW.
    """
    j, o = tl.arange(0, 4 * I if ROW else I), tl.arange(0, O)
    window = tl.program_id(1) * (3 if ROW else 1)
    off = (window // 3 - 1) * (W + 1) + window % 3 - 1
    total = tl.zeros([4 * I if ROW else I, O], tl.float32)
    start = tl.program_id(0) * each
    for first in range(start, min(start + each, n), BM):
        rows = first + tl.arange(0, BM)
        d = tl.load(g + rows[:, None] * O + o[None, :], mask=rows[:, None] < n, other=0.0)
        spots = ((_centre(rows, H, W, STRIDE) + off) * I)[None, :] + j[:, None]
        v = tl.load(x + spots, mask=(spots >= 0) & (spots < n_in * I), other=0.0)
        total = tl.dot(v, d, total, input_precision="ieee")
    spots = ((tl.program_id(0) * O + o) * 9 + window) * I
    tl.store(part + spots[None, :] + j[:, None], total, mask=(j < 3 * I)[:, None])


@triton.jit
def gathered(part, out, n_parts, n, BLOCK: tl.constexpr):
    """out (layers, n) = the sum over the middle of part (layers, n_parts, n)."""
    layer = tl.program_id(1).to(tl.int64)
    spots = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for k in range(n_parts):
        total += tl.load(part + (layer * n_parts + k) * n + spots, mask=spots < n, other=0.0)
    tl.store(out + layer * n + spots, total, mask=spots < n)
