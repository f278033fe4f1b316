"""A loss made of a pair ℓ₊, ℓ₋ in one pass over logits and targets (Triton): cost, sum and gradient together.

One kernel serves every pair: KIND and a few numbers say which ℓ₊ and ℓ₋. A tile is (R, C): R rows by C labels (BLOCK),
a run of C cells of a contiguous matrix taken as one long row (FLAT), or a run of C cells of one row (ROW). A ROW begins
at its first address that can be read four cells at a time and goes round, so that all but its last tiles are read so,
without a mask; these are half as wide. A program goes through its tiles and keeps one sum a lane; the last program to
come adds the programs' sums in their order, so that the total is the same bits every time. Arithmetic is float32, the
total float64.
"""

# mypy: ignore-errors

from __future__ import annotations

import os

import triton
import triton.language as tl

SOFTPLUS = tl.constexpr(0)  # c f(k(z − b)), f(x) = σ(x)^γ softplus(x) − h x: BCE, focal, NTR, SPA, LDAM, ASL without m
SHIFTED = tl.constexpr(1)  # ASL with a margin

BLOCK, FLAT, ROW = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)  # what a tile is

HOST = tl.constexpr(0)  # the divisor is a number the host knows,
GIVEN = tl.constexpr(1)  # lies in memory,
COUNTED = tl.constexpr(2)  # is the number of known labels, which every program counts by itself,
LATE = tl.constexpr(3)  # or is that number, counted on the way: `divisor` takes its inverse, the gradient is without it

DRAWN = tl.constexpr(1)  # PLM's mask is drawn here,
STORED = tl.constexpr(2)  # or looked up in a table of one row an item

INSIDE = tl.constexpr(1)  # Σ present · inverse of a row, for its re-balanced weights, is taken from its one tile,
SUMMED = tl.constexpr(2)  # or is in `drawn`

FAST = tl.constexpr(os.environ.get("TRITON_INTERPRET", "0") != "1")  # machine instructions, not for the interpreter

PARTS = tl.constexpr(1024)  # sums of programs that are added at a time
ROOM = tl.constexpr(16384)  # that there is for the sums of programs, before their counts


@triton.jit
def _exp(x):
    """e^x in two instructions; what is below 1e-38 is 0."""
    if FAST:
        return tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x * 1.4426950408889634], tl.float32, is_pure=True, pack=1
        )
    else:
        return tl.exp(x)


@triton.jit
def _inverse(x):
    """1/x in one instruction."""
    if FAST:
        return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)
    else:
        return 1 / x


@triton.jit
def _log(x):
    """log x in two instructions, to 2e-7 of itself away from 1."""
    if FAST:
        y = tl.inline_asm_elementwise("lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)
        return y * 0.6931471805599453
    else:
        return tl.log(x)


@triton.jit
def _log1p(e):
    """log(1 + e) for e in [0, 1], to 3e-7 of itself."""
    y = -0.00837115255 * e + 0.04349389982
    y = y * e - 0.1068500286
    y = y * e + 0.176874767
    y = y * e - 0.2447477418
    y = y * e + 0.3327192838
    y = y * e - 0.4999717452
    return (y * e + 0.9999997808) * e


@triton.jit
def _fraction(d):
    """1 − e^(−d) for d ≥ 0, with all its digits where d is small."""
    y = -0.001123404219 * d + 0.008189613631
    y = y * d - 0.04163007283
    y = y * d + 0.1666624187
    y = y * d - 0.4999998188
    y = (y * d + 0.9999999987) * d
    return tl.where(d < 0.5, y, 1 - _exp(-d))


@triton.jit
def _power(x, log_x, GAMMA: tl.constexpr):
    """x^GAMMA by products where GAMMA is a small whole number, else from log x; GAMMA is not 0."""
    if GAMMA == 1:
        return x
    elif GAMMA == 2:
        return x * x
    elif GAMMA == 3:
        return x * x * x
    elif GAMMA == 4:
        return (x * x) * (x * x)
    else:
        return _exp(GAMMA * log_x)


@triton.jit
def _focused(x, H: tl.constexpr, GAMMA: tl.constexpr, DETACH: tl.constexpr):
    """f(x) = σ(x)^γ softplus(x) − h x and its slope; with DETACH the focus is a constant to training."""
    e = _exp(-tl.abs(x))
    near = _inverse(1 + e)
    p = tl.where(x >= 0, near, e * near)
    rest = _log1p(e)
    cost = tl.maximum(x, 0.0) + rest
    slope = p
    if GAMMA != 0:
        focus = _power(p, tl.minimum(x, 0.0) - rest, GAMMA)
        if DETACH:
            slope = focus * p
        else:
            q = tl.where(x >= 0, e * near, near)
            slope = focus * (p + GAMMA * q * cost)
        cost = focus * cost
    if H != 0:
        cost -= H * x
        slope -= H
    return cost, slope


@triton.jit
def _absent_shifted(s, ds, inverse, cost, GAMMA: tl.constexpr, DETACH: tl.constexpr):
    """ℓ₋ and ℓ₋' of ASL with a margin, given s, ds/dz, 1/(1 − s) and −log(1 − s)."""
    if GAMMA == 0:
        slope = tl.where(s > 0, ds * inverse, 0.0)
    elif GAMMA == 2 or GAMMA == 3 or GAMMA == 4:
        near = _power(s, s, GAMMA - 1)
        slope = ds * near * (s * inverse) if DETACH else ds * near * (s * inverse + GAMMA * cost)
        cost = near * s * cost
    else:
        some = tl.where(s > 0, s, 1.0)
        focus = tl.where(s > 0, _power(some, tl.log(some), GAMMA), 0.0)
        slope = ds * focus * (inverse if DETACH else inverse + GAMMA * (cost / some))
        cost = focus * cost
    return cost, slope


@triton.jit
def _present_shifted(z, p, q, rest, GAMMA: tl.constexpr, DETACH: tl.constexpr):
    """ℓ₊ and ℓ₊' of ASL, given log(1 + e^(−|z|))."""
    cost = tl.maximum(-z, 0.0) + rest
    slope = -q
    if GAMMA != 0:
        focus = _power(q, tl.minimum(-z, 0.0) - rest, GAMMA)
        slope = -focus * q if DETACH else -focus * (q + GAMMA * p * cost)
        cost = focus * cost
    return cost, slope


@triton.jit
def _terms(
    z, present, counts, shift_pos, shift_neg, KIND: tl.constexpr, G_POS: tl.constexpr, G_NEG: tl.constexpr,
    K_POS: tl.constexpr, K_NEG: tl.constexpr, C_POS: tl.constexpr, C_NEG: tl.constexpr, H: tl.constexpr,
    M: tl.constexpr, EDGE: tl.constexpr, EDGE_REST: tl.constexpr, DETACH: tl.constexpr, SIDED: tl.constexpr,
    SUNK: tl.constexpr,
):  # fmt: skip
    """ℓ₊(z), ℓ₊'(z), ℓ₋(z) and ℓ₋'(z); with SIDED only the two that `present` asks for are right.

    With SUNK f is taken so far below 0, where a cell does not count, that it and its slope are 0.
    """
    if KIND == SHIFTED:
        e = _exp(-tl.abs(z))
        near = _inverse(1 + e)
        p = tl.where(z >= 0, near, e * near)
        q = tl.where(z >= 0, e * near, near)
        s = (1 - M) * p * _fraction(tl.maximum((z - EDGE) - EDGE_REST, 0.0))  # p − m, without cancelling
        inverse = _inverse(q + M)  # 1/(1 − s) wherever s > 0
        ratio = s * inverse
        rest = _log1p(tl.where(present, e, tl.minimum(ratio, 1.0)) if SIDED else e)
        cost = tl.where(ratio <= 1, rest if SIDED else _log1p(tl.minimum(ratio, 1.0)), _log(inverse))
        up, rise = _present_shifted(z, p, q, rest, G_POS, DETACH)
        down, fall = _absent_shifted(s, p * q, inverse, cost, G_NEG, DETACH)
    elif SIDED and G_POS == G_NEG:
        x = tl.where(present, -K_POS * (z - shift_pos), K_NEG * (z - shift_neg))
        if SUNK:
            x = tl.where(counts, x, -1e30)
        cost, slope = _focused(x, H, G_POS, DETACH)
        up, rise = C_POS * cost, (-C_POS * K_POS) * slope
        down, fall = C_NEG * cost, (C_NEG * K_NEG) * slope
    else:
        up, rise = _focused(-K_POS * (z - shift_pos), H, G_POS, DETACH)
        down, fall = _focused(K_NEG * (z - shift_neg), H, G_NEG, DETACH)
        up, rise = C_POS * up, (-C_POS * K_POS) * rise
        down, fall = C_NEG * down, (C_NEG * K_NEG) * fall
    return up, rise, down, fall


@triton.jit
def _is_last(counter):
    """Whether this is the last program to come; the counter is then 0 again."""
    tl.debug_barrier()
    last = tl.atomic_add(counter, 1, sem="acq_rel") == tl.num_programs(0) - 1
    if last:
        tl.store(counter, 0)
    tl.debug_barrier()
    return last


@triton.jit
def _total(parts):
    """The sum of all programs' parts, in their order."""
    lane = tl.arange(0, PARTS)
    acc = tl.zeros([PARTS], tl.float64)
    for first in range(0, tl.num_programs(0), PARTS):
        there = first + lane < tl.num_programs(0)
        acc += tl.load(parts + first + lane, mask=there, other=0.0, cache_modifier=".cg")
    return tl.sum(acc, 0)


@triton.jit
def _head(base, GRAIN: tl.constexpr):
    """How many cells lie between `base` and the next multiple of GRAIN."""
    return ((GRAIN - base % GRAIN) % GRAIN).to(tl.int32)


@triton.jit
def _get(at, inside, other, MASKED: tl.constexpr):
    """What lies at `at`; with MASKED only where `inside`."""
    if MASKED:
        return tl.load(at, mask=inside, other=other)
    else:
        return tl.load(at)


@triton.jit
def _put(at, x, inside, MASKED: tl.constexpr):
    """Store x at `at`; with MASKED only where `inside`."""
    if MASKED:
        tl.store(at, x, mask=inside)
    else:
        tl.store(at, x)


@triton.jit
def _known(targets, first, n, C: tl.constexpr):
    """How many of the cells first … first + C − 1 of n are known, a lane each."""
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
    """How many of the four targets in a word are not −1."""
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
            acc += _known(targets, first, n, C)
    if WORDS and tl.program_id(0) == 0:
        last += _known(targets, whole, n, 16)
    tl.store(parts + tl.program_id(0), (tl.sum(acc, 0) + tl.sum(last, 0)).to(tl.float64))
    if _is_last(counter):
        tl.store(out, tl.maximum(_total(parts), 1.0).to(tl.float32))


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
        head = _head(base, GRAIN)
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
                at = inverse + head + first + 4 * lane
                for i in tl.static_range(4):  # few are present: hardly anything is read
                    acc += tl.load(at + i, mask=(present & (1 << (8 * i))) != 0, other=0.0)
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
        if _is_last(counter):
            tl.store(out, tl.maximum(_total(parts), 1.0).to(tl.float32))


@triton.jit
def scaled(grad, out, upstream, inverse, n, C: tl.constexpr):
    """A gradient of n cells without its divisor, times the upstream one over the divisor."""
    factor = tl.load(upstream).to(tl.float32) * tl.load(inverse)
    at = tl.program_id(0).to(tl.int64) * C + tl.arange(0, C)
    tl.store(out + at, tl.load(grad + at, mask=at < n, other=0.0) * factor, mask=at < n)


@triton.jit
def _draws(rows, first, items, item_low, item_high, k0, k1, epoch, n, INDEXED: tl.constexpr, C: tl.constexpr):
    """2²⁴ u(seed, epoch, item, label) of a tile (R, C) whose first label is a multiple of 4; one draw serves four."""
    if INDEXED:
        item = tl.load(items + rows, mask=rows < n, other=0).to(tl.int64)
    else:
        base = (item_high.to(tl.int64) << 32) | (item_low.to(tl.int64) & 0xFFFFFFFF)
        item = base + rows
    zero = tl.zeros([1, C // 4], tl.uint32)
    group = (first // 4 + tl.arange(0, C // 4)).to(tl.uint32)[None, :]
    low = (item & 0xFFFFFFFF).to(tl.uint32)[:, None] + zero
    high = ((item >> 32) & 0xFFFFFFFF).to(tl.uint32)[:, None] + zero
    c0, c1, c2, c3 = low * 0 + group, low, high, low * 0 + epoch.to(tl.uint32, bitcast=True)
    key0, key1 = k0.to(tl.uint32, bitcast=True), k1.to(tl.uint32, bitcast=True)
    for _ in tl.static_range(10):
        left, right = c0, c2
        c0, c2 = tl.umulhi(right, 0xCD9E8D57 + zero) ^ c1 ^ key0, tl.umulhi(left, 0xD2511F53 + zero) ^ c3 ^ key1
        c1, c3 = right * (0xCD9E8D57 + zero), left * (0xD2511F53 + zero)
        key0, key1 = key0 + (0x9E3779B9 + tl.zeros_like(key0)), key1 + (0xBB67AE85 + tl.zeros_like(key1))
    words = tl.join(tl.join(c0, c2), tl.join(c1, c3)).reshape(rows.shape[0], C)  # c0 c1 c2 c3 c0 …
    return (words >> 8).to(tl.int32)


@triton.jit
def _steep(drawn, beta):
    """β/drawn, by which β r grows with `inverse`; infinite in a row without positives."""
    return tl.where(drawn > 0, beta / tl.where(drawn > 0, drawn, 1.0), float("inf"))


@triton.jit
def _tile(
    acc, seen, given, z_at, t_at, w_at, out_at, rows, first, columns, inside, within, item, steep, scale, L, n, b_row,
    b_col, u_row, u_col, negative, unknown, alpha, beta, mu, seed_low, seed_high, epoch, item_low, item_high,
    HOW: tl.constexpr, MASKED: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Add the costs of one tile to acc, or with EACH store them, and its gradient; without MASKED all of it is inside.

    With TALLY known labels are added to `seen`. `columns` are the tile's labels, z_at, t_at, w_at and out_at say where
    its cells lie.
    """
    logits, targets, b_given, counted, weight, shifts, inverse, keep, items, upstream, grad, out = given
    KIND: tl.constexpr = HOW[0]
    K_POS: tl.constexpr = HOW[1]
    K_NEG: tl.constexpr = HOW[2]
    C_POS: tl.constexpr = HOW[3]
    C_NEG: tl.constexpr = HOW[4]
    B_POS: tl.constexpr = HOW[5]
    B_NEG: tl.constexpr = HOW[6]
    G_POS: tl.constexpr = HOW[7]
    G_NEG: tl.constexpr = HOW[8]
    DETACH: tl.constexpr = HOW[9]
    H: tl.constexpr = HOW[10]
    M: tl.constexpr = HOW[11]
    EDGE: tl.constexpr = HOW[12]
    EDGE_REST: tl.constexpr = HOW[13]
    SIDED: tl.constexpr = HOW[14]
    CELLS: tl.constexpr = HOW[15]
    HOLES: tl.constexpr = HOW[16]
    ASSUMED: tl.constexpr = HOW[17]
    SHIFTS: tl.constexpr = HOW[18]
    WEIGHT: tl.constexpr = HOW[19]
    REBALANCED: tl.constexpr = HOW[20]
    MASK: tl.constexpr = HOW[21]
    INDEXED: tl.constexpr = HOW[22]
    EACH: tl.constexpr = HOW[23]
    SLOPE: tl.constexpr = HOW[24]
    UPSTREAM: tl.constexpr = HOW[25]
    TALLY: tl.constexpr = HOW[26]
    COST: tl.constexpr = UPSTREAM == 0
    SOME: tl.constexpr = MASKED or MASK != 0 or (HOLES and not ASSUMED)  # not all cells count
    wide = columns.to(tl.int64)
    t = _get(targets + t_at, inside, 0, MASKED)
    z = _get(logits + z_at, inside, 0.0, MASKED).to(tl.float32)
    present = t > 0
    counts = inside
    if REBALANCED != 0:
        share = _get(inverse + columns, within, 1.0, MASKED)
        if REBALANCED == INSIDE:
            steep = _steep(tl.sum(tl.maximum(t.to(tl.float32), 0.0) * share, 1), beta)[:, None]
    if CELLS:
        a = t.to(tl.float32)
        b = _get(b_given + rows[:, None] * b_row + wide * b_col, inside, 0.0, MASKED).to(tl.float32)
        if HOLES:
            counts = _get(counted + rows[:, None] * L + wide, inside, 0, MASKED) != 0
    else:
        is_known = t != -1
        if HOLES and not ASSUMED:
            counts = inside & is_known if MASKED else is_known
        if TALLY:
            seen += counts.to(tl.int32)
        if not SIDED:
            a = tl.maximum(t.to(tl.float32), 0.0)
            b = 1 - a
            if ASSUMED:
                b = tl.where(is_known, b * negative, unknown)
        elif ASSUMED:
            a, b = 1.0, tl.where(is_known, negative, unknown)
    if MASK == STORED:
        counts = counts & (_get(keep + item + wide, inside, 0, MASKED) != 0)
    elif MASK == DRAWN:
        u = _draws(rows, first, items, item_low, item_high, seed_low, seed_high, epoch, n, INDEXED, C)
        keep_pos = _get(keep + columns, within, 0, MASKED)
        keep_neg = _get(keep + L + columns, within, 0, MASKED)
        counts = counts & (u < tl.where(t.to(tl.float32) >= 0.5, keep_pos, keep_neg))
    SUNK: tl.constexpr = MASK == DRAWN and KIND == SOFTPLUS and SIDED and G_POS == G_NEG and H == 0
    if SOME and not SUNK:
        z = tl.where(counts, z, 0.0)
    if SHIFTS != 0:
        shift_pos = _get(shifts + columns, within, 0.0, MASKED)
        shift_neg = shift_pos
        if SHIFTS == 2:
            shift_neg = _get(shifts + L + columns, within, 0.0, MASKED)
    else:
        shift_pos, shift_neg = B_POS, B_NEG
    up, rise, down, fall = _terms(
        z, present, counts, shift_pos, shift_neg, KIND, G_POS, G_NEG, K_POS, K_NEG, C_POS, C_NEG, H, M, EDGE,
        EDGE_REST, DETACH, SIDED, SUNK,
    )  # fmt: skip
    if SIDED:
        cost, slope = tl.where(present, up, down), tl.where(present, rise, fall)
        if CELLS or ASSUMED:
            w = tl.where(present, a, b)
            cost, slope = tl.where(w != 0, w * cost, 0.0), w * slope
    else:
        cost = tl.where(a != 0, a * up, 0.0) + tl.where(b != 0, b * down, 0.0)
        slope = a * rise + b * fall
    if WEIGHT or REBALANCED != 0:
        gain = 1.0
        if WEIGHT:
            gain = _get(weight + w_at, inside, 0.0, MASKED).to(tl.float32)
        if REBALANCED != 0:
            gain *= alpha + _inverse(1 + _exp(beta * mu - steep * share))
        if SOME:
            gain = tl.where(counts, gain, 0.0)
        cost, slope = gain * cost, gain * slope
        if WEIGHT:
            cost, slope = tl.where(gain != 0, cost, 0.0), tl.where(gain != 0, slope, 0.0)
    elif SOME and not SUNK:
        cost, slope = tl.where(counts, cost, 0.0), tl.where(counts, slope, 0.0)
    if COST and not EACH:
        acc += cost
    if COST and EACH:
        _put(out + out_at, cost, inside, MASKED)
    if SLOPE:
        slope = slope * scale
        if UPSTREAM == 2:
            slope *= _get(upstream + rows[:, None] * u_row + wide * u_col, inside, 0.0, MASKED).to(tl.float32)
        _put(grad + out_at, slope.to(grad.dtype.element_ty), inside, MASKED)
    return acc, seen


@triton.jit(do_not_specialize=["seed_low", "seed_high", "epoch", "item_low", "item_high"])
def loss(
    logits, targets, b_given, counted, weight, shifts, inverse, drawn, keep, items, upstream, divisor, grad, out,
    parts, counter, n, L, n_tasks, n_chunks, n_tiles,
    z_row, z_col, t_row, t_col, b_row, b_col, w_row, w_col, u_row, u_col,
    negative, unknown, host_divisor, alpha, beta, mu, seed_low, seed_high, epoch, item_low, item_high,
    KIND: tl.constexpr, K_POS: tl.constexpr, K_NEG: tl.constexpr, C_POS: tl.constexpr, C_NEG: tl.constexpr,
    B_POS: tl.constexpr, B_NEG: tl.constexpr, G_POS: tl.constexpr, G_NEG: tl.constexpr, DETACH: tl.constexpr,
    H: tl.constexpr, M: tl.constexpr, EDGE: tl.constexpr, EDGE_REST: tl.constexpr,
    SIDED: tl.constexpr, CELLS: tl.constexpr, HOLES: tl.constexpr, ASSUMED: tl.constexpr, SHIFTS: tl.constexpr,
    WEIGHT: tl.constexpr, REBALANCED: tl.constexpr, MASK: tl.constexpr, INDEXED: tl.constexpr, DIVISOR: tl.constexpr,
    EACH: tl.constexpr, SLOPE: tl.constexpr, UPSTREAM: tl.constexpr, SKIP: tl.constexpr,
    SHAPE: tl.constexpr, GRAIN: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """The loss of n rows of L labels (FLAT: of one row of L = all cells).

    The cells are those of `targets`, or with CELLS a is in `targets`, b in `b_given` and what counts in `counted`.
    HOLES: some cells may not count. ASSUMED: unknown labels are negatives of coefficient `unknown`, known negatives
    have `negative`. SIDED: no cell has both coefficients. SHIFTS: so many rows of class-wise b are in `shifts`, b₊
    first. INDEXED: the items' numbers are in `items`. EACH: `out` takes every cost instead of their sum. SLOPE: `grad`
    (contiguous) takes the gradient. UPSTREAM 1: `upstream` is a number, and with SKIP nothing is done where it is 1; 2:
    it is a matrix; 0: it is 1, and the cost is wanted. GRAIN divides L and the strides of rows, or, with ROW, the
    address a row begins at: so many cells are read at once. n_chunks programs share a row, n_tiles tiles each.
    """
    COST: tl.constexpr = UPSTREAM == 0
    HOW: tl.constexpr = (
        KIND, K_POS, K_NEG, C_POS, C_NEG, B_POS, B_NEG, G_POS, G_NEG, DETACH, H, M, EDGE, EDGE_REST, SIDED, CELLS,
        HOLES, ASSUMED, SHIFTS, WEIGHT, REBALANCED, MASK, INDEXED, EACH, SLOPE, UPSTREAM, DIVISOR == LATE,
    )  # fmt: skip
    given = logits, targets, b_given, counted, weight, shifts, inverse, keep, items, upstream, grad, out
    if SHAPE != ROW:
        L, z_row, t_row = L // GRAIN * GRAIN, z_row // GRAIN * GRAIN, t_row // GRAIN * GRAIN
        w_row = w_row // GRAIN * GRAIN
    if DIVISOR == GIVEN:
        scale = 1 / tl.load(divisor).to(tl.float32)
    elif DIVISOR == COUNTED:
        seen = tl.zeros([1024], tl.int32)
        for first in range(0, n * L, 1024):
            seen += _known(targets, first, n * L, 1024)
        scale = 1 / tl.maximum(tl.sum(seen, 0), 1).to(tl.float32)
    elif DIVISOR == LATE:
        scale = 1.0
    else:
        scale = 1 / host_divisor
    tasks = n_tasks
    if UPSTREAM == 1:
        factor = tl.load(upstream).to(tl.float32)
        if SKIP:
            tasks = tl.where(factor == 1, 0, n_tasks)
        scale = scale * factor
    acc, rim = tl.zeros([R, C], tl.float32), tl.zeros([R, C // 2], tl.float32)
    known, known_rim = tl.zeros([R, C], tl.int32), tl.zeros([R, C // 2], tl.int32)
    lane, few = tl.arange(0, C)[None, :], tl.arange(0, C // 2)[None, :]
    for task in range(tl.program_id(0), tasks, tl.num_programs(0)):
        rows, item, steep = tl.zeros([R], tl.int64), 0, 0.0
        if SHAPE == FLAT:
            begin = tl.cast(task, tl.int64) * C
            start, stop = 0, tl.minimum(L - begin, C).to(tl.int32)
        else:
            begin = tl.zeros([], tl.int64)
            rows += tl.cast(task // n_chunks, tl.int64) * R + tl.arange(0, R)
            start = (task % n_chunks) * n_tiles * C
            stop = tl.minimum(start + n_tiles * C, L)
            if MASK == STORED:
                item = tl.load(items + rows, mask=rows < n, other=0).to(tl.int64)[:, None] * L
            if REBALANCED == SUMMED:
                steep = _steep(tl.load(drawn + rows, mask=rows < n, other=0.0), beta)[:, None]
        if SHAPE == ROW:
            begin = tl.cast(task // n_chunks, tl.int64) * L
            head = _head(begin, GRAIN)
            origin = tl.multiple_of(begin + head, GRAIN)
            rest = start + tl.maximum((tl.minimum(stop, L - head) - start) // C, 0) * C
            for first in range(start, rest, C):
                columns = first + head + lane
                wide = columns.to(tl.int64)
                at, w_at = origin + first + lane, rows[:, None] * w_row + wide * w_col
                acc, known = _tile(
                    acc, known, given, at, at, w_at, at, rows, first, columns, True, True, item, steep,
                    scale, L, n, b_row, b_col, u_row, u_col, negative, unknown, alpha, beta, mu, seed_low, seed_high,
                    epoch, item_low, item_high, HOW, False, C,
                )  # fmt: skip
            for first in range(rest, stop, C // 2):
                columns = first + head + few
                columns = tl.where(columns < L, columns, columns - L)
                wide = columns.to(tl.int64)
                within = first + few < stop
                at, w_at = begin + wide, rows[:, None] * w_row + wide * w_col
                rim, known_rim = _tile(
                    rim, known_rim, given, at, at, w_at, at, rows, first, columns, within, within, item, steep,
                    scale, L, n, b_row, b_col, u_row, u_col, negative, unknown, alpha, beta, mu, seed_low, seed_high,
                    epoch, item_low, item_high, HOW, True, C // 2,
                )  # fmt: skip
        else:
            there = (rows < n)[:, None]
            for first in range(start, stop, C):
                columns = first + lane
                wide = columns.to(tl.int64)
                within = ((first + tl.arange(0, C)) // GRAIN < stop // GRAIN)[None, :]
                inside = within if SHAPE == FLAT else there & within
                z_at = begin + rows[:, None] * z_row + wide * z_col
                t_at = begin + rows[:, None] * t_row + wide * t_col
                w_at = rows[:, None] * w_row + wide * w_col
                at = begin + rows[:, None] * L + wide
                acc, known = _tile(
                    acc, known, given, z_at, t_at, w_at, at, rows, first, columns, inside, within, item, steep,
                    scale, L, n, b_row, b_col, u_row, u_col, negative, unknown, alpha, beta, mu, seed_low, seed_high,
                    epoch, item_low, item_high, HOW, True, C,
                )  # fmt: skip
    if COST and not EACH:
        tl.store(parts + tl.program_id(0), (tl.sum(tl.sum(acc, 1), 0) + tl.sum(tl.sum(rim, 1), 0)).to(tl.float64))
        if DIVISOR == LATE:
            n_known = tl.sum(tl.sum(known, 1), 0) + tl.sum(tl.sum(known_rim, 1), 0)
            tl.store(parts + ROOM + tl.program_id(0), n_known.to(tl.float64))
        if _is_last(counter):
            if DIVISOR == LATE:
                share = 1 / tl.maximum(_total(parts + ROOM), 1.0)
                tl.store(divisor, share.to(tl.float32))
            else:
                share = scale.to(tl.float64)
            tl.store(out, (_total(parts) * share).to(tl.float32))
