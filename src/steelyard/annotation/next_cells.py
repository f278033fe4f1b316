"""Choose the unknown labels to annotate next.

Annotating a cell whose label is present with probability η adds η(1−η) to what is known about that label (its Fisher
information, under a linear model of the log-odds). What label c gains is the logarithm of what is known,

    log(I_c + η(1−η)) − log I_c,    I_c = Σ η(1−η) over its known items,

so that one cell more is worth most to rare labels, of which little is known, where η is neither near 0 nor near 1: of a
rare label these are the likeliest items. Cells chosen before in the same batch count as known, and where there are
embeddings, each further cell of a label from the same neighbourhood counts less.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from steelyard._arrays import Array, Floats, Index
from steelyard.annotation.near import standardised
from steelyard.annotation.queue import Ranked
from steelyard.data.files import check_choice
from steelyard.labels import UNKNOWN, Labels

By: TypeAlias = Literal["gain", "uncertainty", "random"]

METHODS = ("gain", "uncertainty", "random")
UNITS = ("cell", "item")
FLOOR = 0.5
"""Information that every label starts with, about that of two annotated items."""
NEIGHBOURHOODS = 64
"""Number of clusters of items by their embeddings."""
_SAMPLE = 20_000
_ROWS = 16_384


def next_to_annotate(
    labels: Labels | Array,
    probabilities: Array,
    budget: float,
    *,
    by: By = "gain",
    unit: str = "cell",
    embeddings: Array | None = None,
    item_cost: float = 0.0,
    cell_cost: float | Array = 1.0,
    quota: int | Mapping[str, int] | None = None,
    information: Array | None = None,
    exclude: Array | None = None,
    seed: int = 0,
) -> Ranked:
    """Return the unknown labels of items most worth annotating, the best first; their `score` is the gain per cost.

    Args:
        labels: `Labels`, or an array (N, L) of 1 (present), 0 (absent) and −1 (unknown).
        probabilities: calibrated probabilities (N, L), by models that have not seen the labels of that item.
        budget: total cost to spend; with the default costs, the number of labels to ask about.
        by: "gain"; or, as baselines, "uncertainty" (η nearest ½) or "random".
        unit: "cell" asks about single labels of items; "item" asks about all unknown labels of an item.
        embeddings: array (N, D); if given, the questions about a label are spread over items that look different.
        item_cost: cost of opening an item, paid once per item.
        cell_cost: cost of one question, or an array (L,) with one cost per label.
        quota: maximum number of questions per label, or a mapping from label names to such numbers.
        information: information about each label (L,) from items other than these, see I_c above.
        exclude: boolean array (N, L) of labels not to ask about, such as those that nobody could tell.
        seed: seed of "random" and of the neighbourhoods of embeddings.

    Examples:
        >>> labels = np.array([[1, -1], [0, -1], [-1, 0], [1, 0]])
        >>> eta = np.array([[0.9, 0.1], [0.2, 0.5], [0.6, 0.1], [0.7, 0.2]])
        >>> cells = sy.next_to_annotate(labels, eta, budget=2)
        >>> cells.items.tolist(), cells.labels.tolist()
        ([1, 2], [1, 0])
        >>> sy.next_to_annotate(labels, eta, budget=2, quota=1, cell_cost=[1, 2]).labels.tolist()
        [0]
    """
    table = labels if isinstance(labels, Labels) else Labels(labels)
    given, eta, cost = _checked(table, probabilities, budget, by, unit, item_cost, cell_cost)
    open_cells = given == UNKNOWN
    if not open_cells.any():
        raise ValueError(
            "there is no unknown label: what is not annotated must be empty or -1, not 0 (--absent unknown)"
        )
    if exclude is not None:
        open_cells &= ~_mask(exclude, given.shape)
    rng = np.random.default_rng(seed)
    near = None if embeddings is None else neighbourhoods(embeddings, len(table), seed)
    most = _quotas(table, quota)
    if by == "gain":
        more = np.zeros(table.n_labels) if information is None else np.asarray(information, np.float64)
        gain = _gains(open_cells, given != UNKNOWN, eta, more + FLOOR, most, near)
    else:
        value = rng.random(eta.shape) if by == "random" else 0.5 - np.abs(eta - 0.5)
        gain = _capped(np.where(open_cells, value, -np.inf), most)
    if item_cost == 0 and unit == "cell":
        return _cells(gain, eta, cost, budget, by)
    return _items(gain, eta, cost, item_cost, budget, whole=unit == "item")


def _checked(
    table: Labels, probabilities: Array, budget: float, by: str, unit: str, item_cost: float, cell_cost: Any
) -> tuple[Array, Floats, Floats]:
    """Check the arguments; return labels and probabilities (N, L) and the cost of a question per label (L,)."""
    check_choice(by, METHODS, "by")
    check_choice(unit, UNITS, "unit")
    if not 0 < budget < float("inf"):
        raise ValueError(f"budget is {budget:g}: give a number above 0")
    eta = np.asarray(probabilities, np.float64)
    if eta.shape != (len(table), table.n_labels):
        raise ValueError(
            f"probabilities has shape {eta.shape}, but the labels have {(len(table), table.n_labels)}: give one "
            "probability per item and label"
        )
    if not ((eta >= 0) & (eta <= 1)).all():
        raise ValueError("probabilities holds numbers that are not between 0 and 1: give calibrated probabilities")
    cost = np.asarray(cell_cost, np.float64)
    if cost.shape not in ((), (table.n_labels,)):
        raise ValueError(f"cell_cost has shape {cost.shape}: give one number, or one for each label")
    if not ((cost > 0) & np.isfinite(cost)).all() or not 0 <= item_cost < float("inf"):
        raise ValueError(
            "cell_cost or item_cost is too low or not finite: give a cell_cost above 0 and an item_cost of at least 0"
        )
    return table.values, eta, np.broadcast_to(cost, table.n_labels)


def _quotas(table: Labels, quota: int | Mapping[str, int] | None) -> Index:
    """Return the maximum number of questions per label, (L,)."""
    most = np.full(table.n_labels, len(table), np.int64)
    if quota is None:
        return most
    if isinstance(quota, Mapping):
        for name, n in quota.items():
            if name not in table.names:
                raise ValueError(f"quota names {name!r}, not a label: choose among {', '.join(table.names[:3])} …")
            most[table.names.index(name)] = n
    else:
        most[:] = quota
    if (most < 0).any():
        raise ValueError("quota is below 0: give the number of cells of a label that may be taken, 0 for none")
    return most


def _mask(exclude: Array, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    mask = np.asarray(exclude)
    if mask.shape != shape or mask.dtype != np.bool_:
        raise ValueError(f"exclude is {mask.dtype} of shape {mask.shape}: give a boolean array of shape {shape}")
    return mask


def _gains(open_cells: Array, is_known: Array, eta: Floats, more: Floats, most: Index, near: Index | None) -> Floats:
    """Return the gain (N, L) of each label that may be asked after the better ones of its column; −∞ for the others."""
    worth = eta * (1 - eta)
    known = np.where(is_known, worth, 0.0).sum(0) + more
    out = np.full(eta.shape, -np.inf)
    for c in range(eta.shape[1]):
        rows = np.flatnonzero(open_cells[:, c])
        value = worth[rows, c]
        order = np.argsort(-value, kind="stable")
        if near is not None:
            value = value / np.sqrt(1 + _rank_within(near[rows], order))
            order = np.argsort(-value, kind="stable")
        order = order[: most[c]]
        added = value[order]
        before = known[c] + np.concatenate([[0.0], np.cumsum(added)[:-1]]) if len(order) else added
        out[rows[order], c] = np.log1p(added / before)
    return out


def _rank_within(group: Index, order: Index) -> Index:
    """Return for each entry the number of entries of its group that precede it in the order."""
    by_group = order[np.argsort(group[order], kind="stable")]
    sizes = np.bincount(group)
    rank = np.arange(len(group)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    out = np.empty(len(group), np.int64)
    out[by_group] = rank
    return out


def _capped(value: Floats, most: Index) -> Floats:
    """Keep the best entries of each label, up to its quota; set the others to −∞."""
    for c in np.flatnonzero(most < len(value)).tolist():
        value[np.argsort(-value[:, c], kind="stable")[most[c] :], c] = -np.inf
    return value


def _cells(gain: Floats, eta: Floats, cost: Floats, budget: float, by: str) -> Ranked:
    """Return the entries of highest gain per cost that the budget pays for."""
    score = gain / cost if by == "gain" else gain
    n_most = min(int(np.isfinite(score).sum()), int(budget / cost.min() + 1e-9))
    flat = score.ravel()
    some = np.argpartition(-flat, n_most - 1)[:n_most] if 0 < n_most < flat.size else np.arange(flat.size)
    order = some[np.lexsort((some, -flat[some]))][:n_most]
    paid = np.cumsum(np.broadcast_to(cost, gain.shape).ravel()[order])
    return _as_ranked(order[paid <= budget + 1e-9], score, eta)


def _items(gain: Floats, eta: Floats, cost: Floats, item_cost: float, budget: float, whole: bool) -> Ranked:
    """Return the items of highest gain per cost, each with the entries that maximise it, or with all (`whole`)."""
    best = np.argsort(-gain / cost, axis=1, kind="stable")
    sorted_gain = np.take_along_axis(gain, best, 1)
    there = np.isfinite(sorted_gain)
    paid = item_cost + np.cumsum(np.where(there, cost[best], 0.0), axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        rate = np.where(there, np.cumsum(np.where(there, sorted_gain, 0.0), axis=1) / paid, -np.inf)
    last = there.sum(1) - 1 if whole else rate.argmax(1)
    value = np.where(there.any(1), np.take_along_axis(rate, np.maximum(last, 0)[:, None], 1)[:, 0], -np.inf)
    price = np.take_along_axis(paid, np.maximum(last, 0)[:, None], 1)[:, 0]
    chosen, left = [], budget
    for item in np.argsort(-value, kind="stable").tolist():
        if not np.isfinite(value[item]):
            break
        if price[item] <= left + 1e-9:
            left -= price[item]
            chosen.append(item * gain.shape[1] + best[item, : last[item] + 1])
    order = np.concatenate(chosen) if chosen else np.zeros(0, np.int64)
    return _as_ranked(order, np.broadcast_to(value[:, None], gain.shape), eta)


def _as_ranked(order: Index, score: Floats, eta: Floats) -> Ranked:
    items, labels = np.divmod(order, eta.shape[1])
    given = np.full(len(order), UNKNOWN, np.int8)
    return Ranked(items, labels, given, eta[items, labels], score[items, labels])


def neighbourhoods(embeddings: Array, n_items: int, seed: int) -> Index:
    """Return the cluster (N,) of each item, by k-means fitted to a sample."""
    from sklearn.cluster import MiniBatchKMeans

    x = standardised(embeddings, n_items)
    some = np.random.default_rng(seed).permutation(n_items)[:_SAMPLE]
    k = min(NEIGHBOURHOODS, max(1, n_items // 10))
    model = MiniBatchKMeans(k, n_init=1, random_state=seed).fit(x[some])
    return np.concatenate([model.predict(x[i : i + _ROWS]) for i in range(0, n_items, _ROWS)]).astype(np.int64)
