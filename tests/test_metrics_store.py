"""Where an evaluator keeps its items: what comes out is what went in, in blocks that grow as they fill."""

from __future__ import annotations

import numpy as np
import pytest

from steelyard.metrics import store as store_module
from steelyard.metrics.store import Store

BYTES = 3 * (4 + 1)
"""Of a row of three labels: a float32 and an int8 each."""


def kept(*batches: int) -> Store:
    """Return a store of batches of so many rows of three labels."""
    store = Store(3, np.dtype(np.float32))
    for n in batches:
        store.append(np.zeros((n, 3), np.float32), np.zeros((n, 3), np.int8))
    return store


def lengths(store: Store) -> list[int]:
    return [len(scores) for scores, _ in store.blocks()]


def test_whole_targets_take_a_byte_and_soft_ones_four() -> None:
    store = Store(2, np.dtype(np.float16))
    targets = [np.array([row], np.float32) for row in ([1, 0], [-1, 1], [0.5, 0.25], [-1, 0.75], [0, 1])]
    scores = [np.full((1, 2), i, np.float16) for i in range(5)]
    for batch in zip(scores, targets, strict=True):
        store.append(*batch)
    got_scores, got_targets = zip(*store.blocks(), strict=True)
    assert [t.dtype for t in got_targets] == [np.int8, np.float32, np.int8]
    np.testing.assert_array_equal(np.concatenate(got_targets), np.concatenate(targets))
    np.testing.assert_array_equal(np.concatenate(got_scores), np.concatenate(scores))


def test_blocks_double_as_they_fill() -> None:
    store = kept(*[1] * 960)
    assert lengths(store) == [64, 128, 256, 512]
    assert store.nbytes == 960 * BYTES
    assert kept(1).nbytes == 64 * BYTES


def test_a_large_batch_gets_the_room_it_wants() -> None:
    store = kept(60, 1000)
    assert lengths(store) == [64, 996]
    assert store.nbytes == 1060 * BYTES


@pytest.mark.parametrize(("cells", "rows"), [(300, 100), (200, 66), (2, 1)])
def test_no_block_is_larger_than_the_largest(cells: int, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "CELLS_IN_BLOCK", cells)
    assert lengths(kept(3 * rows)) == [rows] * 3


def test_rows_wider_than_what_is_worked_on_at_a_time() -> None:
    n_labels = (1 << 20) + 1
    targets = np.zeros((2, n_labels), np.int8)
    targets[0, 0] = -1
    store = Store(n_labels, np.dtype(np.float16))
    store.append(np.zeros((2, n_labels), np.float16), targets)
    assert [len(scores) for scores in store.known()] == [n_labels - 1, n_labels]
    assert sorted(store.canonical_order()) == [0, 1]


@pytest.mark.parametrize(
    ("dtype", "order"),
    [("float32", [8, 11, 4, 0, 10, 5, 6, 3, 9, 2, 1, 7]), ("float16", [9, 7, 2, 0, 4, 5, 3, 1, 8, 11, 6, 10])],
)
def test_the_order_is_the_one_that_intervals_were_drawn_in(dtype: str, order: list[int]) -> None:
    """Another one is as good, but a report's intervals could no longer be had again from its seed."""
    store = Store(3, np.dtype(dtype))
    cells = np.arange(36).reshape(12, 3)
    store.append((cells / 36).astype(dtype), (cells // 2 % 3 - 1).astype(np.int8))
    assert store.canonical_order().tolist() == order
