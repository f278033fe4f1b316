"""Split a set into two parts that both hold the rare labels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard._arrays import Index
from steelyard.balance import draws
from steelyard.labels import Labels

_FREE, _REST, _HELD = -1, 0, 1


def stratified_split(labels: Labels, fraction: float, seed: int = 0) -> tuple[Index, Index]:
    """Split items into (rest, held out), increasing indices, so that both have each label in proportion.

    Iterative stratification (Sechidis, Tsoumakas, Vlahavas 2011), one label at a time: the label with the fewest
    unassigned items distributes them so that ⌊fraction · n_c + ½⌋ of its positives are held out, and at least one is on
    either side where it has two. Items without positives come last and fill the held-out part up to its share. Labels
    that still have all their positives on one side are then repaired by moving single items. A label with one positive
    stays in the rest (unless that would leave nothing to hold out).

    Items of one group (`Labels.item_groups`) stay together: groups are split as items are, with all their labels.

    Args:
        labels: of all items; unknown labels do not count.
        fraction: of items to hold out, between 0 and 1.
        seed: of the split.

    Examples:
        >>> labels = sy.Labels(np.repeat([[1, 0], [0, 1]], [90, 10], axis=0))
        >>> rest, held_out = sy.data.stratified_split(labels, 0.2)
        >>> labels.take(held_out).counts
        array([18,  2])
    """
    if not 0 < fraction < 1:
        raise ValueError(f"fraction is {fraction}: give the share of items to hold out, between 0 and 1")
    if len(labels) < 2:
        raise ValueError(f"labels holds {len(labels)} items: a split needs at least two")
    draws.check_seed(seed)
    if labels.item_groups is not None:
        return _split_groups(labels, labels.item_groups, fraction, seed)
    side = _hand_out(labels, fraction, seed)
    _mend(labels, side, seed)
    return np.flatnonzero(side == _REST), np.flatnonzero(side == _HELD)


def _split_groups(labels: Labels, groups: Index, fraction: float, seed: int) -> tuple[Index, Index]:
    """Split whole groups, each with every label that one of its items has."""
    groups = np.unique(groups, return_inverse=True)[1]
    n_groups = int(groups.max()) + 1
    if n_groups < 2:
        raise ValueError("all items are of one group: a split needs at least two groups")
    items, columns = labels.positives()
    cells = np.unique(np.stack([groups[items], columns], 1), axis=0)
    of_groups = Labels.from_cells(cells[:, 0], cells[:, 1], np.ones(len(cells)), (n_groups, labels.n_labels), 0)
    held = np.zeros(n_groups, bool)
    held[stratified_split(of_groups, fraction, seed)[1]] = True
    return np.flatnonzero(~held[groups]), np.flatnonzero(held[groups])


def _hand_out(labels: Labels, fraction: float, seed: int) -> NDArray[np.int8]:
    """Assign every item to a side, rarest label first."""
    starts, members = labels.items_by_label()
    present = labels.present()
    n_labels, counts = labels.n_labels, labels.counts
    quota = np.floor(fraction * counts + 0.5).astype(np.int64)
    quota = np.where(counts > 1, np.clip(quota, 1, counts - 1), 0)
    side = np.full(len(labels), _FREE, np.int8)
    free, held = counts.copy(), np.zeros(n_labels, np.int64)
    while free.any():
        c = int(np.argmin(np.where(free > 0, free, np.iinfo(np.int64).max)))
        own = members[starts[c] : starts[c + 1]]
        own = own[side[own] == _FREE]
        n_held = int(np.clip(quota[c] - held[c], 0, len(own)))
        chosen = own[draws.distinct(draws.key(seed, "split label", c), n_held, len(own))]
        side[own] = _REST
        side[chosen] = _HELD
        held += np.bincount(present[chosen].indices, minlength=n_labels)
        free -= np.bincount(present[own].indices, minlength=n_labels)
    bare = np.flatnonzero(side == _FREE)
    share = np.clip(np.floor(fraction * len(labels) + 0.5), 1, len(labels) - 1)
    n_held = int(np.clip(share - np.count_nonzero(side == _HELD), 0, len(bare)))
    side[bare] = _REST
    side[bare[draws.distinct(draws.key(seed, "split bare"), n_held, len(bare))]] = _HELD
    if not (side == _HELD).any():
        side[draws.distinct(draws.key(seed, "split one"), 1, len(labels))] = _HELD
    return side


def _mend(labels: Labels, side: NDArray[np.int8], seed: int) -> None:
    """Move items, one at a time, until every label with two positives has one on either side, or none can be found.

    Each step takes a label that lacks a side and moves that item of it which takes a side from fewest other labels;
    where every item takes one, half the time any item (a local search, WalkSAT). The best split met is kept.
    """
    counts, (items, columns) = labels.counts, labels.positives()
    held = np.bincount(columns[side[items] == _HELD], minlength=labels.n_labels)
    lacking = _lacking(held, counts)
    if len(lacking) == 0:
        return
    starts, members = labels.items_by_label()
    row_starts, columns = rows_of_positives(labels)
    best, best_side = len(lacking), side.copy()
    chance = draws.uniform(draws.key(seed, "split mend"), np.arange(3 * (1000 + 10 * best))).reshape(-1, 3)
    for which, noise, other in chance:
        if best == 0:
            break
        c = int(lacking[int(which * len(lacking))])
        own = members[starts[c] : starts[c + 1]][:64]
        harm = [_harm(side[i], columns[row_starts[i] : row_starts[i + 1]], held, counts) for i in own.tolist()]
        item = int(own[int(other * len(own))] if min(harm) > 0 and noise < 0.5 else own[int(np.argmin(harm))])
        side[item] = _HELD - side[item]
        held[columns[row_starts[item] : row_starts[item + 1]]] += 1 if side[item] == _HELD else -1
        lacking = _lacking(held, counts)
        if len(lacking) < best:
            best, best_side = len(lacking), side.copy()
    side[:] = best_side


def _lacking(held: Index, counts: Index) -> Index:
    """Return the labels with two positives or more that have none on one side."""
    return np.flatnonzero((counts > 1) & ((held == 0) | (held == counts)))


def _harm(side: int, has: NDArray[Any], held: Index, counts: Index) -> int:
    """Return how many labels lose a side when an item with labels `has` leaves `side`."""
    here = held[has] if side == _HELD else counts[has] - held[has]
    return int(np.count_nonzero((here == 1) & (counts[has] > 1)))


def rows_of_positives(labels: Labels) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Return (starts, columns): the labels of item i are `columns[starts[i] : starts[i + 1]]`."""
    present = labels.present()
    return present.indptr, present.indices
