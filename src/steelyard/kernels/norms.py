"""Batch normalisation with what follows it, in as few passes over memory as can be: Triton kernels for maps (rows, C).

Maps lie channels last, so a map is a matrix of one row a place; C is a multiple of 64. Sums over rows are taken in two
steps in one launch, in a fixed order: every program writes its part, and the last to come, as a counter tells, adds the
parts. Arithmetic is float32 throughout.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from steelyard.kernels.programs import is_last

PARTS = tl.constexpr(128)  # programs that may share a sum


@triton.jit
def _total(part, columns, n_sums, which, C):
    """Add up sum number `which`, of the `n_sums` that every program has written."""
    rows = tl.arange(0, PARTS)
    spots = (rows[:, None] * n_sums + which) * C + columns[None, :]
    there = rows[:, None] < tl.num_programs(0)
    return tl.sum(tl.load(part + spots, mask=there, other=0.0, cache_modifier=".cg"), 0)


@triton.jit
def statistics(
    x, part, counters, mean, inverse, running_mean, running_var, n_seen, n, each, C, eps, momentum,
    BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Mean and 1/deviation of every channel over `n` rows of x; running statistics move, `n_seen` grows by one."""
    columns = tl.program_id(1) * BC + tl.arange(0, BC)
    shift = tl.load(x + columns).to(tl.float32)  # any value of the channel: keeps the digits of E(x²) − E(x)²
    one, two = tl.zeros([BM, BC], tl.float32), tl.zeros([BM, BC], tl.float32)
    start = tl.program_id(0) * each
    for first in range(start, min(start + each, n), BM):
        rows = first + tl.arange(0, BM)
        inside = rows[:, None] < n
        v = tl.load(x + rows[:, None] * C + columns[None, :], mask=inside, other=0.0).to(tl.float32) - shift[None, :]
        v = tl.where(inside, v, 0.0)
        one += v
        two += v * v
    spots = part + tl.program_id(0) * 2 * C + columns
    tl.store(spots, tl.sum(one, 0))
    tl.store(spots + C, tl.sum(two, 0))
    if is_last(counters + tl.program_id(1)):
        off, square = _total(part, columns, 2, 0, C) / n, _total(part, columns, 2, 1, C) / n
        var = square - off * off
        var = tl.where(var < 0, 0.0, var)
        tl.store(mean + columns, shift + off)
        tl.store(inverse + columns, 1 / tl.sqrt(var + eps))
        old_mean, old_var = tl.load(running_mean + columns), tl.load(running_var + columns)
        tl.store(running_mean + columns, old_mean + momentum * (shift + off - old_mean))
        tl.store(running_var + columns, old_var + momentum * (var * n / (n - 1) - old_var))
        if tl.program_id(1) == 0:
            tl.store(n_seen, tl.load(n_seen) + 1)


@triton.jit
def _line(mean, inverse, weight, bias, columns):
    """Slope and offset of the normalisation of channels: y = slope · x + offset."""
    slope = tl.load(inverse + columns) * tl.load(weight + columns)
    return slope, tl.load(bias + columns) - tl.load(mean + columns) * slope


@triton.jit
def rectified(x, y, mean, inverse, weight, bias, n, C, BM: tl.constexpr, BC: tl.constexpr):
    """y = max(0, normalised x); NaN stays NaN."""
    columns = tl.program_id(1) * BC + tl.arange(0, BC)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    slope, offset = _line(mean, inverse, weight, bias, columns)
    spots = rows[:, None] * C + columns[None, :]
    inside = rows[:, None] < n
    v = tl.load(x + spots, mask=inside, other=0.0).to(tl.float32) * slope[None, :] + offset[None, :]
    tl.store(y + spots, tl.where(v <= 0, 0.0, v).to(y.dtype.element_ty), mask=inside)


@triton.jit
def rectified_sums(
    g, x, part, counters, mean, inverse, weight, bias, sums, n, each, C, BM: tl.constexpr, BC: tl.constexpr
):
    """Gradients of bias and weight, one after the other in `sums` (2, C), from g, the gradient of `rectified`."""
    columns = tl.program_id(1) * BC + tl.arange(0, BC)
    slope, offset = _line(mean, inverse, weight, bias, columns)
    m, s = tl.load(mean + columns), tl.load(inverse + columns)
    one, two = tl.zeros([BM, BC], tl.float32), tl.zeros([BM, BC], tl.float32)
    start = tl.program_id(0) * each
    for first in range(start, min(start + each, n), BM):
        rows = first + tl.arange(0, BM)
        inside = rows[:, None] < n
        spots = rows[:, None] * C + columns[None, :]
        v = tl.load(x + spots, mask=inside, other=0.0).to(tl.float32)
        d = tl.load(g + spots, mask=inside, other=0.0).to(tl.float32)
        d = tl.where(v * slope[None, :] + offset[None, :] <= 0, 0.0, d)
        one += d
        two += d * (v - m[None, :])
    spots = part + tl.program_id(0) * 2 * C + columns
    tl.store(spots, tl.sum(one, 0))
    tl.store(spots + C, tl.sum(two, 0) * s)
    if is_last(counters + tl.program_id(1)):
        for k in tl.static_range(2):
            tl.store(sums + k * C + columns, _total(part, columns, 2, k, C))


@triton.jit
def rectified_back(g, x, out, mean, inverse, weight, bias, sums, n, C, BM: tl.constexpr, BC: tl.constexpr):
    """The gradient of x, given g and the `sums` of `rectified_sums`."""
    columns = tl.program_id(1) * BC + tl.arange(0, BC)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    slope, offset = _line(mean, inverse, weight, bias, columns)
    m, s = tl.load(mean + columns), tl.load(inverse + columns)
    a, b = tl.load(sums + columns) / n, tl.load(sums + C + columns) / n * s
    spots = rows[:, None] * C + columns[None, :]
    inside = rows[:, None] < n
    v = tl.load(x + spots, mask=inside, other=0.0).to(tl.float32)
    d = tl.load(g + spots, mask=inside, other=0.0).to(tl.float32)
    d = tl.where(v * slope[None, :] + offset[None, :] <= 0, 0.0, d)
    d = slope[None, :] * (d - a[None, :] - (v - m[None, :]) * b[None, :])
    tl.store(out + spots, d.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _corner(rows, width):
    """The first place, in the map, of the 2×2 windows `rows` of a map that is `width` (even) wide."""
    half = width // 2
    return (rows // half) * 2 * width + (rows % half) * 2


@triton.jit
def pooled(
    x, z, y, code, x_top, z_top,
    x_mean, x_inverse, x_weight, x_bias, z_mean, z_inverse, z_weight, z_bias, n, width, C,
    BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """y = max(0, the largest of each 2×2 window of normalised x + normalised z), for `n` windows.

    `code` says which place of the window it was (4: none, y is 0); x_top and z_top are x and z there.
    """
    columns = tl.program_id(1) * BC + tl.arange(0, BC)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    inside = rows[:, None] < n
    x_slope, x_offset = _line(x_mean, x_inverse, x_weight, x_bias, columns)
    z_slope, z_offset = _line(z_mean, z_inverse, z_weight, z_bias, columns)
    offset = (x_offset + z_offset)[None, :]
    corner = _corner(rows, width)
    best = tl.full([BM, BC], float("-inf"), tl.float32)
    where = tl.zeros([BM, BC], tl.int32)
    x_best, z_best = tl.zeros([BM, BC], tl.float32), tl.zeros([BM, BC], tl.float32)
    for k in tl.static_range(4):
        spots = (corner + (k // 2) * width + k % 2)[:, None] * C + columns[None, :]
        a = tl.load(x + spots, mask=inside, other=0.0).to(tl.float32)
        b = tl.load(z + spots, mask=inside, other=0.0).to(tl.float32)
        v = a * x_slope[None, :] + b * z_slope[None, :] + offset
        better = (v > best) | (v != v)
        best = tl.where(better, v, best)
        where = tl.where(better, k, where)
        x_best, z_best = tl.where(better, a, x_best), tl.where(better, b, z_best)
    spots = rows[:, None] * C + columns[None, :]
    tl.store(y + spots, tl.where(best <= 0, 0.0, best).to(y.dtype.element_ty), mask=inside)
    tl.store(code + spots, tl.where(best <= 0, 4, where).to(tl.uint8), mask=inside)
    tl.store(x_top + spots, x_best.to(x_top.dtype.element_ty), mask=inside)
    tl.store(z_top + spots, z_best.to(z_top.dtype.element_ty), mask=inside)


@triton.jit
def pooled_sums(
    g, h, code, x_top, z_top, part, counters, x_mean, x_inverse, z_mean, z_inverse, sums, n, each, C,
    TWO: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Gradients of the bias of both normalisations and of the weights of x's and of z's, in `sums` (3, C).

    The gradient of `pooled` is g, or g + h where TWO is set.
    """
    columns = tl.program_id(1) * BC + tl.arange(0, BC)
    xm, xs = tl.load(x_mean + columns), tl.load(x_inverse + columns)
    zm, zs = tl.load(z_mean + columns), tl.load(z_inverse + columns)
    one, two = tl.zeros([BM, BC], tl.float32), tl.zeros([BM, BC], tl.float32)
    three = tl.zeros([BM, BC], tl.float32)
    start = tl.program_id(0) * each
    for first in range(start, min(start + each, n), BM):
        rows = first + tl.arange(0, BM)
        inside = rows[:, None] < n
        spots = rows[:, None] * C + columns[None, :]
        d = tl.load(g + spots, mask=inside, other=0.0).to(tl.float32)
        if TWO:
            d += tl.load(h + spots, mask=inside, other=0.0).to(tl.float32)
        d = tl.where(tl.load(code + spots, mask=inside, other=4) == 4, 0.0, d)
        one += d
        two += d * (tl.load(x_top + spots, mask=inside, other=0.0).to(tl.float32) - xm[None, :])
        three += d * (tl.load(z_top + spots, mask=inside, other=0.0).to(tl.float32) - zm[None, :])
    spots = part + tl.program_id(0) * 3 * C + columns
    tl.store(spots, tl.sum(one, 0))
    tl.store(spots + C, tl.sum(two, 0) * xs)
    tl.store(spots + 2 * C, tl.sum(three, 0) * zs)
    if is_last(counters + tl.program_id(1)):
        for k in tl.static_range(3):
            tl.store(sums + k * C + columns, _total(part, columns, 3, k, C))


@triton.jit
def pooled_back(
    g, h, code, x, z, x_out, z_out,
    x_mean, x_inverse, x_weight, z_mean, z_inverse, z_weight, sums, n, width, C,
    TWO: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """The gradients of x and z, given that of `pooled` and the `sums` of `pooled_sums`."""
    columns = tl.program_id(1) * BC + tl.arange(0, BC)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    inside = rows[:, None] < n
    xm, xs, xw = tl.load(x_mean + columns), tl.load(x_inverse + columns), tl.load(x_weight + columns)
    zm, zs, zw = tl.load(z_mean + columns), tl.load(z_inverse + columns), tl.load(z_weight + columns)
    places = n * 4
    common = (tl.load(sums + columns) / places)[None, :]
    xb, zb = tl.load(sums + C + columns) / places, tl.load(sums + 2 * C + columns) / places
    spots = rows[:, None] * C + columns[None, :]
    d = tl.load(g + spots, mask=inside, other=0.0).to(tl.float32)
    if TWO:
        d += tl.load(h + spots, mask=inside, other=0.0).to(tl.float32)
    where = tl.load(code + spots, mask=inside, other=4)
    corner = _corner(rows, width)
    for k in tl.static_range(4):
        spots = (corner + (k // 2) * width + k % 2)[:, None] * C + columns[None, :]
        here = tl.where(where == k, d, 0.0) - common
        a = tl.load(x + spots, mask=inside, other=0.0).to(tl.float32)
        a = (xs * xw)[None, :] * (here - (a - xm[None, :]) * (xs * xb)[None, :])
        tl.store(x_out + spots, a.to(x_out.dtype.element_ty), mask=inside)
        b = tl.load(z + spots, mask=inside, other=0.0).to(tl.float32)
        b = (zs * zw)[None, :] * (here - (b - zm[None, :]) * (zs * zb)[None, :])
        tl.store(z_out + spots, b.to(z_out.dtype.element_ty), mask=inside)
