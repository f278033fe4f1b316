"""Which queries there are: some labels desired, some undesired, and at least one item that answers them.

A query of k terms is a row of k numbers below 2L: c asks that label c be present, L + c that it be absent.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, islice
from math import comb
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]


def n_combinations(n_labels: int, n_terms: int) -> int:
    """Return C(L, k)(2^k − 1): the sets of k labels, each desired or undesired, at least one desired."""
    return comb(n_labels, n_terms) * ((1 << n_terms) - 1)


def every_query(n_labels: int, n_terms: int, labels_at_once: int = 4096) -> Iterator[Array]:
    """Yield all queries of `n_terms` terms as arrays (q, n_terms)."""
    signs = _signs(np.arange(1, 2**n_terms), n_terms)
    sets = combinations(range(n_labels), n_terms)
    while chunk := list(islice(sets, labels_at_once)):
        labels = np.asarray(chunk)
        yield (labels[:, None] + n_labels * ~signs[None]).reshape(-1, n_terms)


def draw_queries(n_labels: int, n_terms: int, n: int, generator: np.random.Generator) -> Array:
    """Return `n` queries (n, n_terms) drawn uniformly, with replacement, from all of `n_terms` terms."""
    # Floyd's sample of k of L labels, all rows at once: each step adds a label, or its bound if it is there already
    labels = np.empty((n, n_terms), dtype=np.int64)
    for i, bound in enumerate(range(n_labels - n_terms, n_labels)):
        drawn = generator.integers(0, bound + 1, size=n)
        taken = (labels[:, :i] == drawn[:, None]).any(1)
        labels[:, i] = np.where(taken, bound, drawn)
    labels.sort(axis=1)
    labels += n_labels * ~_signs(generator.integers(1, 2**n_terms, size=n), n_terms)
    return labels


def _signs(codes: Array, n_terms: int) -> Array:
    """Return (len(codes), n_terms): whether term i is desired, bit i of the code."""
    return (codes[:, None] >> np.arange(n_terms) & 1).astype(bool)


class Answers:
    """Tells which queries have an answer: the columns of the label table, one bit a distinct row."""

    def __init__(self, present: Array, absent: Array) -> None:
        rows = np.unique(np.concatenate([np.packbits(present, axis=1), np.packbits(absent, axis=1)], axis=1), axis=0)
        half, n_labels = rows.shape[1] // 2, present.shape[1]
        columns = [np.unpackbits(part, axis=1, count=n_labels).T for part in (rows[:, :half], rows[:, half:])]
        bits = np.packbits(np.concatenate(columns), axis=1)
        padded = np.pad(bits, ((0, 0), (0, -bits.shape[1] % 8)))
        self._bits = np.ascontiguousarray(padded).view(np.uint64)

    def exist(self, queries: Array) -> Array:
        """Return whether at least one item answers each query, (q,)."""
        alive = self._bits[queries[:, 0]]
        for term in queries.T[1:]:
            alive &= self._bits[term]
        return np.asarray(alive.any(axis=1))
