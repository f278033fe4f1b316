"""3×3 convolutions of few channels with the normalisations around them: Triton kernels for maps (places, C).

Maps lie channels last, so a map is a matrix of one row a place; C is 16, 32 or 64, few enough that a program has all
channels of its places, and so sums for a normalisation are taken where a convolution ends. Weights lie as (out, place
of the window, in). Sums over rows are taken in two steps in one launch, in a fixed order: every program writes its
part, and the last to come adds the parts. Arithmetic is float32 but for the products, which have the precision of the
maps.

A window has nine places. Those of a row of it lie side by side in a map as they do in the weights, so where ROW is set
they are multiplied at once, as four, the fourth being nothing.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from steelyard.kernels.norms import _line
from steelyard.kernels.pairs import _is_last

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
def _rectified(v, slope, offset, inside, dtype: tl.constexpr):
    """max(0, slope · v + offset) where `inside`, else 0; NaN stays NaN."""
    v = v.to(tl.float32) * slope + offset
    return tl.where((v <= 0) | (inside == 0), 0.0, v).to(dtype)


@triton.jit
def convolved(
    x, w, y, mean_in, inverse_in, weight_in, bias_in,
    part, counter, mean, inverse, running_mean, running_var, n_seen, n, each, eps, momentum,
    H: tl.constexpr, W: tl.constexpr, I: tl.constexpr, O: tl.constexpr, STRIDE: tl.constexpr, NORMS: tl.constexpr,
    ROW: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """y = x ∗ w for `n` places of y, its mean and 1/deviation by channel; running statistics move, `n_seen` grows.

    x is (batch, H, W, I); where NORMS, what is convolved is max(0, normalised x). A shift by the running mean keeps the
    digits of E(y²) − E(y)².
    """
    HO: tl.constexpr = (H - 1) // STRIDE + 1
    WO: tl.constexpr = (W - 1) // STRIDE + 1
    STEPS: tl.constexpr = 3 if ROW else 9
    j, o = tl.arange(0, 4 * I if ROW else I), tl.arange(0, O)
    if NORMS:
        slope, offset = _line(mean_in, inverse_in, weight_in, bias_in, j % I)
    shift = tl.load(running_mean + o)
    one, two = tl.zeros([O], tl.float32), tl.zeros([O], tl.float32)
    start = tl.program_id(0) * each
    for first in range(start, min(start + each, n), BM):
        rows = first + tl.arange(0, BM)
        across, down, item = rows % WO, rows // WO % HO, rows // (WO * HO)
        total = tl.zeros([BM, O], tl.float32)
        for k in range(STEPS):
            window = 3 * k if ROW else k
            at_y, first_x = down * STRIDE + window // 3 - 1, across * STRIDE + window % 3 - 1
            at_x = first_x[:, None] + (j // I)[None, :]
            inside = ((rows < n) & (at_y >= 0) & (at_y < H))[:, None] & (at_x >= 0) & (at_x < W) & (j < 3 * I)[None, :]
            spots = (((item * H + at_y) * W + first_x) * I)[:, None] + j[None, :]
            v = tl.load(x + spots, mask=inside, other=0.0)
            if NORMS:
                v = _rectified(v, slope[None, :], offset[None, :], inside, x.dtype.element_ty)
            weights = tl.load(w + ((o * 9 + window) * I)[None, :] + j[:, None], mask=(j < 3 * I)[:, None], other=0.0)
            total = tl.dot(v, weights, total, input_precision="ieee")
        rounded = total.to(y.dtype.element_ty)
        tl.store(y + rows[:, None] * O + o[None, :], rounded, mask=rows[:, None] < n)
        v = tl.where(rows[:, None] < n, rounded.to(tl.float32) - shift[None, :], 0.0)
        one += tl.sum(v, 0)
        two += tl.sum(v * v, 0)
    spots = part + tl.program_id(0) * 2 * O + o
    tl.store(spots, one)
    tl.store(spots + O, two)
    if _is_last(counter):
        off, square = _sums(part, o, O)
        off, square = off / n, square / n
        var = square - off * off
        var = tl.where(var < 0, 0.0, var)
        tl.store(mean + o, shift + off)
        tl.store(inverse + o, 1 / tl.sqrt(var + eps))
        tl.store(running_mean + o, shift + momentum * off)
        old = tl.load(running_var + o)
        tl.store(running_var + o, old + momentum * (var * n / (n - 1) - old))
        tl.store(n_seen, tl.load(n_seen) + 1)


@triton.jit
def joined(
    y, short, out, mean, inverse, weight, bias, n,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, MORE: tl.constexpr, SHORT: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """out = max(0, normalised y + shortcut) for `n` places of maps H × W of C channels.

    SHORT is 0: no shortcut; 1: `short` is as y; 2: it has MORE channels less, H and W are its own, and it is taken at
    every second place with MORE / 2 channels of zeros before it and as many after.
    """
    c = tl.arange(0, C)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    inside = rows[:, None] < n
    slope, offset = _line(mean, inverse, weight, bias, c)
    spots = rows[:, None] * C + c[None, :]
    v = tl.load(y + spots, mask=inside, other=0.0).to(tl.float32) * slope[None, :] + offset[None, :]
    if SHORT == 1:
        v += tl.load(short + spots, mask=inside, other=0.0).to(tl.float32)
    if SHORT == 2:
        WO: tl.constexpr = (W + 1) // 2
        HO: tl.constexpr = (H + 1) // 2
        across, down, item = rows % WO, rows // WO % HO, rows // (WO * HO)
        old = c - MORE // 2
        far = ((item * H + down * 2) * W + across * 2)[:, None] * (C - MORE) + old[None, :]
        there = inside & (old >= 0)[None, :] & (old < C - MORE)[None, :]
        v += tl.load(short + far, mask=there, other=0.0).to(tl.float32)
    tl.store(out + spots, tl.where(v <= 0, 0.0, v).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _write_sums(one, two, part, counter, sums, c, C: tl.constexpr):
    spots = part + tl.program_id(0) * 2 * C + c
    tl.store(spots, one)
    tl.store(spots + C, two)
    if _is_last(counter):
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
def normalised_back(g, y, out, mean, inverse, weight, sums, n, C: tl.constexpr, BM: tl.constexpr):
    """The gradient of y, given g, that of its normalisation, and the `sums` that came with it."""
    c = tl.arange(0, C)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    inside = rows[:, None] < n
    m, s = tl.load(mean + c), tl.load(inverse + c)
    slope = s * tl.load(weight + c)
    a, b = tl.load(sums + c) / n, tl.load(sums + C + c) / n * s
    spots = rows[:, None] * C + c[None, :]
    v = tl.load(y + spots, mask=inside, other=0.0).to(tl.float32)
    d = tl.load(g + spots, mask=inside, other=0.0).to(tl.float32)
    d = slope[None, :] * (d - a[None, :] - (v - m[None, :]) * b[None, :])
    tl.store(out + spots, d.to(out.dtype.element_ty), mask=inside)


@triton.jit
def convolved_back(
    g, w, out, y, a, short, mean, inverse, weight, bias, part, counter, sums, n, each,
    H: tl.constexpr, W: tl.constexpr, I: tl.constexpr, O: tl.constexpr, STRIDE: tl.constexpr, SHORT: tl.constexpr,
    ROW: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """The gradient of what a normalisation gave a convolution, from g, that of the convolution's result: `n` places.

    `y` (batch, H, W, I) is what was normalised. SHORT is 0: max(0, normalised y) was convolved. 1: a = max(0,
    normalised y + ...) was, and went by a shortcut too, whose far end has the gradient `short`; 2: the same, but the
    far end is half as large and has O channels. `sums` as in `masked`. ROW needs a stride of 1.
    """
    HO: tl.constexpr = (H - 1) // STRIDE + 1
    WO: tl.constexpr = (W - 1) // STRIDE + 1
    STEPS: tl.constexpr = 3 if ROW else 9
    i, j = tl.arange(0, I), tl.arange(0, 4 * O if ROW else O)
    far_x, o = j // O, j % O  # from the left, the window's places come from the right
    m, s = tl.load(mean + i), tl.load(inverse + i)
    slope, offset = _line(mean, inverse, weight, bias, i)
    one, two = tl.zeros([I], tl.float32), tl.zeros([I], tl.float32)
    start = tl.program_id(0) * each
    for first in range(start, min(start + each, n), BM):
        rows = first + tl.arange(0, BM)
        across, down, item = rows % W, rows // W % H, rows // (W * H)
        total = tl.zeros([BM, I], tl.float32)
        for k in range(STEPS):
            window = 3 * k + 2 if ROW else k
            to_y, first_x = down + 1 - window // 3, across + 1 - window % 3
            to_x = first_x[:, None] + far_x[None, :]
            in_y, in_x = (rows < n) & (to_y >= 0), (to_x >= 0) & (far_x < 3)[None, :]
            if STRIDE == 2:
                in_y, in_x = in_y & (to_y % 2 == 0), in_x & (to_x % 2 == 0)
                to_y, to_x, first_x = to_y // 2, to_x // 2, first_x // 2
            inside = (in_y & (to_y < HO))[:, None] & in_x & (to_x < WO)
            spots = (((item * HO + to_y) * WO + first_x) * O)[:, None] + j[None, :]
            d = tl.load(g + spots, mask=inside, other=0.0)
            spots = ((o * 9 + window - far_x) * I)[:, None] + i[None, :]
            total = tl.dot(d, tl.load(w + spots, mask=(far_x < 3)[:, None], other=0.0), total, input_precision="ieee")
        there = rows[:, None] < n
        spots = rows[:, None] * I + i[None, :]
        v = tl.load(y + spots, mask=there, other=0.0).to(tl.float32)
        if SHORT == 1:
            total += tl.load(short + spots, mask=there, other=0.0).to(tl.float32)
        if SHORT == 2:
            far = ((item * HO + down // 2) * WO + across // 2)[:, None] * O + ((O - I) // 2 + i)[None, :]
            at_end = there & ((down % 2 == 0) & (across % 2 == 0))[:, None]
            total += tl.load(short + far, mask=at_end, other=0.0).to(tl.float32)
        if SHORT:
            shut = tl.load(a + spots, mask=there, other=0.0) <= 0
        else:
            shut = v * slope[None, :] + offset[None, :] <= 0
        rounded = tl.where(shut, 0.0, total).to(out.dtype.element_ty)
        tl.store(out + spots, rounded, mask=there)
        d = tl.where(there, rounded.to(tl.float32), 0.0)
        one += tl.sum(d, 0)
        two += tl.sum(d * (v - m[None, :]), 0)
    _write_sums(one, two * s, part, counter, sums, i, I)


@triton.jit
def weights_back(
    x, g, part, mean, inverse, weight, bias, n, each,
    H: tl.constexpr, W: tl.constexpr, I: tl.constexpr, O: tl.constexpr, STRIDE: tl.constexpr, NORMS: tl.constexpr,
    BM: tl.constexpr,
):  # fmt: skip
    """A part, that of `each` places of g, of the gradient of a row of a convolution's windows: (programs, O, 9, I).

    x and NORMS as in `convolved`; program_id(1) says which row of the windows.
    """
    HO: tl.constexpr = (H - 1) // STRIDE + 1
    WO: tl.constexpr = (W - 1) // STRIDE + 1
    j, o = tl.arange(0, 4 * I), tl.arange(0, O)
    if NORMS:
        slope, offset = _line(mean, inverse, weight, bias, j % I)
    total = tl.zeros([4 * I, O], tl.float32)
    start = tl.program_id(0) * each
    for first in range(start, min(start + each, n), BM):
        rows = first + tl.arange(0, BM)
        across, down, item = rows % WO, rows // WO % HO, rows // (WO * HO)
        d = tl.load(g + rows[:, None] * O + o[None, :], mask=rows[:, None] < n, other=0.0)
        at_y, first_x = down * STRIDE + tl.program_id(1) - 1, across * STRIDE - 1
        at_x = first_x[None, :] + (j // I)[:, None]
        inside = ((rows < n) & (at_y >= 0) & (at_y < H))[None, :] & (at_x >= 0) & (at_x < W) & (j < 3 * I)[:, None]
        spots = (((item * H + at_y) * W + first_x) * I)[None, :] + j[:, None]
        v = tl.load(x + spots, mask=inside, other=0.0)
        if NORMS:
            v = _rectified(v, slope[:, None], offset[:, None], inside, x.dtype.element_ty)
        total = tl.dot(v, d, total, input_precision="ieee")
    spots = ((tl.program_id(0) * O + o) * 9 + tl.program_id(1) * 3) * I
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
