"""The uniform numbers of PLM's mask inside a kernel (Triton): Philox, by seed, epoch, item and label alone."""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def philox(c0, c1, c2, c3, key0, key1):
    """The four words of Philox4x32-10 at counters of one shape and two keys, all uint32."""
    zero = tl.zeros_like(c0)
    for _ in tl.static_range(10):
        left, right = c0, c2
        c0, c2 = tl.umulhi(right, 0xCD9E8D57 + zero) ^ c1 ^ key0, tl.umulhi(left, 0xD2511F53 + zero) ^ c3 ^ key1
        c1, c3 = right * (0xCD9E8D57 + zero), left * (0xD2511F53 + zero)
        key0, key1 = key0 + (0x9E3779B9 + tl.zeros_like(key0)), key1 + (0xBB67AE85 + tl.zeros_like(key1))
    return c0, c1, c2, c3


@triton.jit
def draws(rows, first, items, item_low, item_high, k0, k1, epoch, n, INDEXED: tl.constexpr, C: tl.constexpr):
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
    c0, c1, c2, c3 = philox(c0, c1, c2, c3, key0, key1)
    words = tl.join(tl.join(c0, c2), tl.join(c1, c3)).reshape(rows.shape[0], C)  # c0 c1 c2 c3 c0 …
    return (words >> 8).to(tl.int32)


@triton.jit
def drawn_at(rows, labels, items, item_low, item_high, k0, k1, epoch, INDEXED: tl.constexpr):
    """2²⁴ u(seed, epoch, item, label) of single cells (n,), given by row of the batch and label."""
    if INDEXED:
        item = tl.load(items + rows).to(tl.int64)
    else:
        item = ((item_high.to(tl.int64) << 32) | (item_low.to(tl.int64) & 0xFFFFFFFF)) + rows
    low, high = (item & 0xFFFFFFFF).to(tl.uint32), ((item >> 32) & 0xFFFFFFFF).to(tl.uint32)
    epochs = low * 0 + epoch.to(tl.uint32, bitcast=True)
    key0, key1 = k0.to(tl.uint32, bitcast=True), k1.to(tl.uint32, bitcast=True)
    c0, c1, c2, c3 = philox((labels // 4).to(tl.uint32), low, high, epochs, key0, key1)
    word = labels % 4
    words = tl.where(word < 2, tl.where(word == 0, c0, c1), tl.where(word == 2, c2, c3))
    return (words >> 8).to(tl.int32)
