"""Order statistics of more probabilities than one would sort: exact, by counting their bits, in some 100 kB."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]
Chunks: TypeAlias = Callable[[], Iterable[Array]]

_CODES = 1 << 16
_CELLS_AT_ONCE = 1 << 18


def mass_edges(bins: int, chunks: Chunks) -> Array:
    """Return the order statistics ⌊kn/bins⌋, k = 1 … bins − 1, of all n probabilities: (bins − 1,), float64.

    `chunks()` yields them, 1-d float16 or float32 arrays of one dtype, the same at every call; none at all gives NaN. A
    probability's bits, read as an integer, are in the order of its value: their upper 16 are counted in one pass, and
    for float32 the lower 16 in a second one, where the upper are those of an order statistic.
    """
    upper, kind = np.zeros(_CODES, np.int64), np.dtype(np.float16)
    for codes in _codes(chunks):
        kind = codes.dtype
        upper += np.bincount(codes if kind == np.uint16 else codes >> 16, minlength=_CODES)
    n = int(upper.sum())
    if n == 0:
        return np.full(bins - 1, np.nan)
    rank = np.arange(1, bins) * n // bins
    ends = upper.cumsum()
    high = np.searchsorted(ends, rank, side="right")
    if kind == np.uint16:
        return high.astype(np.uint16).view(np.float16).astype(np.float64)
    wanted, slot = np.unique(high, return_inverse=True)
    slots = np.full(_CODES, -1, np.int64)
    slots[wanted] = np.arange(len(wanted))
    lower = np.zeros(len(wanted) * _CODES, np.int64)
    for codes in _codes(chunks):
        place = slots[codes >> 16]
        mine = place >= 0
        lower += np.bincount(place[mine] * _CODES + (codes[mine] & (_CODES - 1)), minlength=len(lower))
    within = rank - (ends - upper)[high]
    ends = lower.reshape(-1, _CODES).cumsum(1)
    low = [np.searchsorted(ends[s], r, side="right") for s, r in zip(slot, within, strict=True)]
    return (high << 16 | np.array(low, np.int64)).astype(np.uint32).view(np.float32).astype(np.float64)


def _codes(chunks: Chunks) -> Iterable[Array]:
    """Yield the bits of some cells at a time, without the sign that −0 has."""
    for chunk in chunks():
        sign = np.uint16(0x8000) if chunk.itemsize == 2 else np.uint32(0x80000000)
        bits = chunk.view(sign.dtype)
        for start in range(0, len(bits), _CELLS_AT_ONCE):
            yield bits[start : start + _CELLS_AT_ONCE] & ~sign
