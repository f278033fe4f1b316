"""Random numbers by position: a pure function of (key, counter), the same on every machine and in any order."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from steelyard.labels.inputs import as_whole

Bits: TypeAlias = NDArray[np.uint64]

_GOLDEN = 0x9E3779B97F4A7C15
_WORD = (1 << 64) - 1


def key(seed: int, purpose: str, *parts: int) -> int:
    """Return the 64-bit key of a stream of draws: one for each seed, purpose and whole numbers such as the epoch."""
    word = 0
    for part in (seed, int.from_bytes(purpose.encode(), "little"), *parts):
        for shift in range(0, max(1, part.bit_length()), 64):
            word = int(_mix(np.array([(word * 3 + (part >> shift) + _GOLDEN) & _WORD], np.uint64))[0])
    return word


def bits(stream: int, counters: NDArray[Any]) -> Bits:
    """Return the words of SplitMix64 started at `stream`, at positions `counters` (whole numbers ≥ 0)."""
    word = counters.astype(np.uint64)
    word += np.uint64(1)
    word *= np.uint64(_GOLDEN)
    word += np.uint64(stream)
    return _mix(word)


def uniform(stream: int, counters: NDArray[Any]) -> NDArray[np.float64]:
    """Return numbers uniform on [0, 1), multiples of 2⁻⁵³."""
    leading: NDArray[np.float64] = (bits(stream, counters) >> np.uint64(11)).astype(np.float64)
    leading *= 2.0**-53
    return leading


def below(stream: int, counters: NDArray[Any], bounds: NDArray[Any] | int) -> NDArray[np.int64]:
    """Return whole numbers uniform on 0 … bounds − 1, for bounds far below 2⁵³."""
    return (uniform(stream, counters) * bounds).astype(np.int64)


def shuffled(stream: int, n: int, counter: int = 0) -> NDArray[np.int64]:
    """Return a random order of 0 … n − 1."""
    return np.argsort(bits(stream, np.arange(counter, counter + n)), kind="stable")


def distinct(stream: int, k: int, n: int) -> NDArray[np.int64]:
    """Return `k` distinct numbers of 0 … n − 1 in random order, in O(k log k)."""
    if 2 * k >= n:
        return shuffled(stream, n)[:k]
    numbers = np.zeros(0, np.int64)
    counter = 0
    while len(numbers) < k:
        drawn = below(stream, np.arange(counter, counter + 2 * k), n)
        counter += 2 * k
        both = np.concatenate([numbers, drawn])
        numbers = both[np.sort(np.unique(both, return_index=True)[1])]
    return numbers[:k]


def check_seed(seed: int) -> int:
    """Return `seed`, a whole number of at least 0."""
    if (whole := as_whole(seed, "seed")) < 0:
        raise ValueError(f"seed is {seed}: give a whole number, at least 0")
    return whole


def _mix(word: Bits) -> Bits:
    """Return the words after the finishing steps of SplitMix64, in place."""
    shifted = np.empty_like(word)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        np.right_shift(word, np.uint64(shift), out=shifted)
        np.bitwise_xor(word, shifted, out=word)
        np.multiply(word, np.uint64(factor), out=word)
    return word
