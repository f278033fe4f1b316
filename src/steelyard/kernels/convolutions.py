"""3×3 convolutions of few channels with the normalisations around them: Triton kernels for maps (places, C).

Maps lie channels last, with a margin: a last row and a last column of zeros, so that (batch, H + 1, W + 1) places are
a matrix of one row a place. What lies beside a place is then a fixed number of rows away, and what is beyond an edge is
a margin's zero, the one of the row or image before as well as its own: a convolution asks nothing about edges. C is 16,
32 or 64, few enough that a program has all channels of its places, and so sums for a normalisation are taken where a
convolution ends. Weights lie as (out, place of the window, in). Sums over rows are taken in two steps in one launch, in
a fixed order: every program writes its part, and the last to come adds the parts. Arithmetic is float32 but for the
products, which have the precision of the maps.

A window has nine places. Those of a row of it lie side by side in a map as they do in the weights, so where ROW is set
they are read and multiplied at once, as four, the fourth's weights being nothing, and all three rows are asked for
before the first is needed: what windows share then comes from a core's own cache. Where it is not, places come one by
one, as many ahead as there are stages, which is for maps of many channels.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from steelyard.kernels.norms import _line
from steelyard.kernels.pairs import _is_last


@triton.jit
def _sums(part, c, C: tl.constexpr):
    """Add up the two sums of C channels that every program has written."""
    ROWS: tl.constexpr = 8192 // C  # at a time
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
def _row(x, centre, k, j, n_in, W: tl.constexpr, I: tl.constexpr):
    """Four places each of maps (n_in, I): row k of the windows around the rows `centre`, and one more."""
    spots = ((centre + (k - 1) * (W + 1) - 1) * I)[:, None] + j[None, :]
    return tl.load(x + spots, mask=(spots >= 0) & (spots < n_in * I), other=0.0)


@triton.jit
def _by_rows(x, centre, w0, w1, w2, j, n_in, total, W: tl.constexpr, I: tl.constexpr):
    """Add the products of the three rows of windows with theirs of the weights."""
    v0 = _row(x, centre, 0, j, n_in, W, I)
    v1 = _row(x, centre, 1, j, n_in, W, I)
    v2 = _row(x, centre, 2, j, n_in, W, I)
    total = tl.dot(v0, w0, total, input_precision="ieee")
    total = tl.dot(v1, w1, total, input_precision="ieee")
    return tl.dot(v2, w2, total, input_precision="ieee")


@triton.jit
def _row_of_weights(w, k, j, o, I: tl.constexpr):
    """Row k of a convolution's weights as (4 · in, out), the last quarter nothing."""
    return tl.load(w + ((o * 9 + 3 * k) * I)[None, :] + j[:, None], mask=(j < 3 * I)[:, None], other=0.0)


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
    j, o = tl.arange(0, 4 * I if ROW else I), tl.arange(0, O)
    shift = tl.load(running_mean + o)
    one, two = tl.zeros([BM, O], tl.float32), tl.zeros([BM, O], tl.float32)
    if ROW:
        w0, w1, w2 = _row_of_weights(w, 0, j, o, I), _row_of_weights(w, 1, j, o, I), _row_of_weights(w, 2, j, o, I)
    start = tl.program_id(0) * each
    for first in range(start, min(start + each, n), BM):
        rows = first + tl.arange(0, BM)
        centre = _centre(rows, H, W, STRIDE)
        total = tl.zeros([BM, O], tl.float32)
        if ROW:
            total = _by_rows(x, centre, w0, w1, w2, j, n_in, total, W, I)
        else:
            for k in range(9):
                spots = ((centre + (k // 3 - 1) * (W + 1) + k % 3 - 1) * I)[:, None] + j[None, :]
                v = tl.load(x + spots, mask=(spots >= 0) & (spots < n_in * I), other=0.0)
                weights = tl.load(w + ((o * 9 + k) * I)[None, :] + j[:, None])
                total = tl.dot(v, weights, total, input_precision="ieee")
        is_real = _is_real(rows, n, HO, WO)
        rounded = tl.where(is_real, total, 0.0).to(y.dtype.element_ty)
        tl.store(y + rows[:, None] * O + o[None, :], rounded, mask=rows[:, None] < n)
        v = tl.where(is_real, rounded.to(tl.float32) - shift[None, :], 0.0)
        one += v
        two += v * v
    spots = part + tl.program_id(0) * 2 * O + o
    tl.store(spots, tl.sum(one, 0))
    tl.store(spots + O, tl.sum(two, 0))
    if _is_last(counter):
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
def _row_of_weights_back(w, k, j, i, I: tl.constexpr, O: tl.constexpr):
    """Row k of a convolution's weights, from its right to its left, as (4 · out, in), the last quarter nothing."""
    far = j // O
    spots = ((j % O * 9 + 3 * k + 2 - far) * I)[:, None] + i[None, :]
    return tl.load(w + spots, mask=(far < 3)[:, None], other=0.0)


@triton.jit
def _past_rectifier(total, spots, there, out, y, a, m):
    """Write a gradient past a rectifier, whose result was `a`, to `out`; return it, and it · (y − mean)."""
    shut = tl.load(a + spots, mask=there, other=0.0) <= 0  # as margins are
    rounded = tl.where(shut, 0.0, total).to(out.dtype.element_ty)
    tl.store(out + spots, rounded, mask=there)
    d = rounded.to(tl.float32)
    return d, d * (tl.load(y + spots, mask=there, other=0.0).to(tl.float32) - m[None, :])


@triton.jit
def convolved_back(
    g, w, out, y, a, short, mean, inverse, part, counter, sums, n, each,
    W: tl.constexpr, I: tl.constexpr, O: tl.constexpr, SHORT: tl.constexpr, ROW: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """The gradient of what a normalisation gave a convolution, from g, that of the convolution's result: `n` rows.

    `y` is what was normalised, `a` what came of that and was convolved; where SHORT, `a` went by a shortcut too, whose
    far end has the gradient `short`. `sums` as in `masked`.
    """
    i, j = tl.arange(0, I), tl.arange(0, 4 * O if ROW else O)
    m, s = tl.load(mean + i), tl.load(inverse + i)
    one, two = tl.zeros([BM, I], tl.float32), tl.zeros([BM, I], tl.float32)
    if ROW:  # the row above a place has seen it in the window's last row
        w0, w1 = _row_of_weights_back(w, 2, j, i, I, O), _row_of_weights_back(w, 1, j, i, I, O)
        w2 = _row_of_weights_back(w, 0, j, i, I, O)
    start = tl.program_id(0) * each
    for first in range(start, min(start + each, n), BM):
        rows = first + tl.arange(0, BM)
        total = tl.zeros([BM, I], tl.float32)
        if ROW:
            total = _by_rows(g, rows, w0, w1, w2, j, n, total, W, O)
        else:
            for k in range(9):
                spots = ((rows + (1 - k // 3) * (W + 1) + 1 - k % 3) * O)[:, None] + j[None, :]
                d = tl.load(g + spots, mask=(spots >= 0) & (spots < n * O), other=0.0)
                total = tl.dot(d, _weights_back(w, k, j, i, I), total, input_precision="ieee")
        there, spots = rows[:, None] < n, rows[:, None] * I + i[None, :]
        if SHORT:
            total += tl.load(short + spots, mask=there, other=0.0).to(tl.float32)
        d, e = _past_rectifier(total, spots, there, out, y, a, m)
        one += d
        two += e
    _write_sums(tl.sum(one, 0), tl.sum(two, 0) * s, part, counter, sums, i, I)


@triton.jit
def _weights_back(w, k, o, i, I: tl.constexpr):
    """Weights of place k of the window, as (out, in)."""
    return tl.load(w + ((o * 9 + k) * I)[:, None] + i[None, :])


@triton.jit
def _beside(g, rows, o, n, O: tl.constexpr):
    """Rows of g (n, O); those after the last are 0."""
    return tl.load(g + rows[:, None] * O + o[None, :], mask=(rows < n)[:, None], other=0.0)


@triton.jit
def strided_back(
    g, w, out, y, a, short, mean, inverse, part, counter, sums, n, each,
    H: tl.constexpr, W: tl.constexpr, I: tl.constexpr, O: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """What `convolved_back` with a shortcut is, through a stride of 2: `n` rows of g give those of y (batch, H, W, I).

    Place (p, q) of g has seen the places (2p, 2q), (2p, 2q + 1), (2p + 1, 2q), (2p + 1, 2q + 1) of y, and so have its
    neighbours to the right and below some of them: by one, two, two and four of the nine weights. `short` is of g's
    size; its middle channels are those of y.
    """
    P: tl.constexpr = (W + 1) // 2 + 1
    Q: tl.constexpr = (H + 1) // 2 + 1
    i, o = tl.arange(0, I), tl.arange(0, O)
    m, s = tl.load(mean + i), tl.load(inverse + i)
    one, two = tl.zeros([BM, I], tl.float32), tl.zeros([BM, I], tl.float32)
    start = tl.program_id(0) * each
    for first in range(start, min(start + each, n), BM):
        rows = first + tl.arange(0, BM)
        here, right = _beside(g, rows, o, n, O), _beside(g, rows + 1, o, n, O)
        below, beyond = _beside(g, rows + P, o, n, O), _beside(g, rows + P + 1, o, n, O)
        down, across = rows // P % Q * 2, rows % P * 2
        far = (rows // (P * Q) * (H + 1) + down) * (W + 1) + across
        middle = ((O - I) // 2 + i)[None, :]
        t00 = tl.load(short + rows[:, None] * O + middle, mask=(rows < n)[:, None], other=0.0).to(tl.float32)
        t00 = tl.dot(here, _weights_back(w, 4, o, i, I), t00, input_precision="ieee")
        t01 = tl.dot(here, _weights_back(w, 5, o, i, I), input_precision="ieee")
        t01 = tl.dot(right, _weights_back(w, 3, o, i, I), t01, input_precision="ieee")
        t10 = tl.dot(here, _weights_back(w, 7, o, i, I), input_precision="ieee")
        t10 = tl.dot(below, _weights_back(w, 1, o, i, I), t10, input_precision="ieee")
        t11 = tl.dot(here, _weights_back(w, 8, o, i, I), input_precision="ieee")
        t11 = tl.dot(right, _weights_back(w, 6, o, i, I), t11, input_precision="ieee")
        t11 = tl.dot(below, _weights_back(w, 2, o, i, I), t11, input_precision="ieee")
        t11 = tl.dot(beyond, _weights_back(w, 0, o, i, I), t11, input_precision="ieee")
        for k in tl.static_range(4):
            total = t00 if k == 0 else t01 if k == 1 else t10 if k == 2 else t11
            there = (rows < n) & (down + k // 2 <= H) & (across + k % 2 <= W)
            spots = (far + k // 2 * (W + 1) + k % 2)[:, None] * I + i[None, :]
            d, e = _past_rectifier(total, spots, there[:, None], out, y, a, m)
            one += d
            two += e
    _write_sums(tl.sum(one, 0), tl.sum(two, 0) * s, part, counter, sums, i, I)


@triton.jit
def _row_across(x, centre, k, j, n_in, W: tl.constexpr, I: tl.constexpr):
    """What `_row` is, but (4 · channels, rows)."""
    spots = ((centre + (k - 1) * (W + 1) - 1) * I)[None, :] + j[:, None]
    return tl.load(x + spots, mask=(spots >= 0) & (spots < n_in * I), other=0.0)


@triton.jit
def weights_back(
    x, g, part, n, n_in, each, H: tl.constexpr, W: tl.constexpr, I: tl.constexpr, O: tl.constexpr,
    STRIDE: tl.constexpr, ROW: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """A part, that of `each` rows of g, of the gradient of a convolution's weights: (programs, O, 9, I).

    x as in `convolved`; where ROW is not set, program_id(1) says which place of the window.
    """
    j, o = tl.arange(0, 4 * I if ROW else I), tl.arange(0, O)
    window = tl.program_id(1)
    off = (window // 3 - 1) * (W + 1) + window % 3 - 1
    total = tl.zeros([4 * I if ROW else I, O], tl.float32)
    if ROW:
        total1, total2 = tl.zeros([4 * I, O], tl.float32), tl.zeros([4 * I, O], tl.float32)
    start = tl.program_id(0) * each
    for first in range(start, min(start + each, n), BM):
        rows = first + tl.arange(0, BM)
        centre = _centre(rows, H, W, STRIDE)
        d = tl.load(g + rows[:, None] * O + o[None, :], mask=rows[:, None] < n, other=0.0)
        if ROW:
            v0 = _row_across(x, centre, 0, j, n_in, W, I)
            v1 = _row_across(x, centre, 1, j, n_in, W, I)
            v2 = _row_across(x, centre, 2, j, n_in, W, I)
            total = tl.dot(v0, d, total, input_precision="ieee")
            total1 = tl.dot(v1, d, total1, input_precision="ieee")
            total2 = tl.dot(v2, d, total2, input_precision="ieee")
        else:
            spots = ((centre + off) * I)[None, :] + j[:, None]
            v = tl.load(x + spots, mask=(spots >= 0) & (spots < n_in * I), other=0.0)
            total = tl.dot(v, d, total, input_precision="ieee")
    spots = (((tl.program_id(0) * O + o) * 9 + window) * I)[None, :] + j[:, None]
    tl.store(part + spots, total, mask=(j < 3 * I)[:, None])
    if ROW:
        tl.store(part + spots + 3 * I, total1, mask=(j < 3 * I)[:, None])
        tl.store(part + spots + 6 * I, total2, mask=(j < 3 * I)[:, None])


@triton.jit
def gathered(part, out, n_parts, n, BLOCK: tl.constexpr):
    """out (layers, n) = the sum over the middle of part (layers, n_parts, n)."""
    layer = tl.program_id(1).to(tl.int64)
    spots = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for k in range(n_parts):
        total += tl.load(part + (layer * n_parts + k) * n + spots, mask=spots < n, other=0.0)
    tl.store(out + layer * n + spots, total, mask=spots < n)
