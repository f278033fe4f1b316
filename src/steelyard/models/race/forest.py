"""A forest of extremely randomised trees whose leaves hold label frequencies, kept as tensors."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor, nn

from steelyard.losses.loss import Cells

DIRECTIONS = 16
"""Random combinations of the labels that one tree looks at when it splits."""
PRIOR_WEIGHT = 0.5
"""Items that the frequency around a leaf counts for in it: a leaf without known items has that frequency."""
ENOUGH = 5
"""Items with a known label that a node needs to give the frequency around its leaves."""
DEPTH = 32
"""Splits from the root to a leaf, at most."""
BETWEEN = (1e-7, 0.9995)
"""Frequencies of leaves: half precision rounds what is lower to 0 and what is higher to 1, of infinite log-odds."""
AT_ONCE = 8192
"""Items that go down the trees at once, to bound the memory."""


class Forest(nn.Module):
    """Log-odds of the mean label frequency in the leaves that an item falls into, one leaf per tree.

    The frequency of a label in a leaf is (Σ a + w φ) / (Σ (a + b) + w), summed over the leaf's training items with
    coefficients a and b, where w is `PRIOR_WEIGHT` mean weights of an item and φ is the label's frequency around the
    leaf: that in the first node on the way up, the leaf included, of `ENOUGH` known items, pulled in the same way
    toward that of all items. Unknown labels have a = b = 0; a leaf that does not know a label says what its neighbours
    know.

    Args:
        trees: how many.
        nodes: of all trees, leaves included.
        depth: splits from a root to a leaf, at most.
        n_labels: outputs.

    Reference: Geurts, Ernst, Wehenkel, Extremely randomized trees, 2006.
    """

    roots: Tensor
    feature: Tensor
    threshold: Tensor
    child: Tensor
    leaf: Tensor
    frequency: Tensor

    def __init__(self, trees: int, nodes: int, depth: int, n_labels: int) -> None:
        super().__init__()
        self.depth = depth
        self.register_buffer("roots", torch.zeros(trees, dtype=torch.int32))
        self.register_buffer("feature", torch.zeros(nodes, dtype=torch.int32))
        self.register_buffer("threshold", torch.zeros(nodes))
        self.register_buffer("child", torch.zeros(nodes, 2, dtype=torch.int32))
        self.register_buffer("leaf", torch.zeros(nodes, dtype=torch.int32))
        self.register_buffer("frequency", torch.full(((nodes + trees) // 2, n_labels), 0.5, dtype=torch.float16))

    def forward(self, features: Tensor) -> Tensor:
        """Return log-odds (B, L) of features (B, F)."""
        n, width = features.shape
        values, child = features.reshape(-1), self.child.view(-1)
        first = (torch.arange(n, device=features.device) * width).repeat(len(self.roots))
        node = self.roots[:, None].expand(-1, n).reshape(-1)  # tree by tree, so that one stays in the cache
        for _ in range(self.depth):  # a leaf is its own child
            value = values.index_select(0, first + self.feature.index_select(0, node))
            node = child.index_select(0, 2 * node + (value > self.threshold.index_select(0, node)))
        total = features.new_zeros(n, self.frequency.shape[1])
        for leaf in self.leaf.index_select(0, node).view(-1, n).unbind():
            total = total + self.frequency.index_select(0, leaf)
        return torch.logit(total / len(self.roots))

    def of_many(self, features: Tensor) -> Tensor:
        """Return log-odds (N, L) of features (N, F), `AT_ONCE` items at a time."""
        return torch.cat([self(part) for part in features.split(AT_ONCE)])


def grow_forest(x: Tensor, cells: Cells, trees: int, smallest_leaf: int, share: float, seed: int) -> Forest:
    """Return a forest grown on items.

    A tree draws a threshold for some random features, and splits by the one whose two sides differ most in their
    labels. Of many labels it looks at `DIRECTIONS` random combinations (Joly, Geurts, Wehenkel, Random forests with
    random projections of the output space, 2014). An unknown label counts as its frequency there, which speaks for
    neither side; an item without known labels has no say.

    Args:
        x: features (N, F), float32.
        cells: coefficients (N, L) of the labels.
        trees: how many; as many are grown at once as torch has threads.
        smallest_leaf: items per leaf, at least.
        share: of the features that a split considers; 0 for √F features.
        seed: of the trees.
    """
    inputs, n = x.cpu().numpy(), len(x)
    a, b = (part.float().cpu().numpy() for part in (cells.a, cells.b))
    known = a + b
    weights = known.max(1)
    if not weights.any():
        weights += 1
    unit = float(weights[weights > 0].mean())
    prior = (a.sum(0, dtype=np.float64) + 0.5 * unit) / (known.sum(0, dtype=np.float64) + unit)
    outputs = np.divide(
        a - prior * known, known, out=np.zeros(a.shape, np.float32), where=known > 0, casting="same_kind"
    )
    grown = _trees(inputs, outputs, weights, [(seed, k) for k in range(trees)], smallest_leaf, share)
    forest = Forest(trees, sum(t.node_count for t in grown), max(t.max_depth for t in grown), a.shape[1])
    first = leaves = 0
    for k, tree in enumerate(grown):
        nodes, is_leaf = slice(first, first + tree.node_count), tree.children_left < 0
        own, row = np.arange(first, first + tree.node_count), np.cumsum(is_leaf) - 1
        of_item = (np.ones(n), (row[tree.apply(inputs)], np.arange(n)))
        member = sparse.csr_array(of_item, (int(is_leaf.sum()), n))
        frequency = _frequencies(tree, member @ a, member @ known, prior, unit)
        sides = [np.where(is_leaf, own, side + first) for side in (tree.children_left, tree.children_right)]
        _fill(forest.roots[k], first)
        _fill(forest.feature[nodes], np.where(is_leaf, 0, tree.feature))
        _fill(forest.threshold[nodes], rounded_down(tree.threshold))
        _fill(forest.child[nodes], np.stack(sides, 1))
        _fill(forest.leaf[nodes], np.where(is_leaf, row + leaves, 0))
        _fill(forest.frequency[leaves : leaves + len(frequency)], frequency.clip(*BETWEEN))
        first, leaves = first + tree.node_count, leaves + len(frequency)
    return forest.to(x.device)


def _trees(
    inputs: NDArray[Any],
    outputs: NDArray[Any],
    weights: NDArray[Any],
    seeds: list[tuple[int, int]],
    leaf: int,
    share: float,
) -> list[Any]:
    from sklearn.tree import ExtraTreeRegressor  # the import takes half a second: not for every command

    def grown(seed: tuple[int, int]) -> Any:
        rng, y = np.random.default_rng(seed), outputs
        if y.shape[1] > DIRECTIONS:
            y = y @ rng.standard_normal((y.shape[1], DIRECTIONS), np.float32)
        tree = ExtraTreeRegressor(
            max_features=share or "sqrt",
            max_depth=DEPTH,
            min_samples_leaf=leaf,
            random_state=int(rng.integers(2**31)),
        )
        return tree.fit(inputs, y, weights).tree_

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        return list(pool.map(grown, seeds))


def _frequencies(tree: Any, a: NDArray[Any], known: NDArray[Any], prior: NDArray[Any], unit: float) -> NDArray[Any]:
    """Return the frequencies of a tree's leaves from their sums of coefficients, see `Forest`."""
    is_leaf = tree.children_left < 0
    sides, pull = (tree.children_left, tree.children_right), PRIOR_WEIGHT * unit
    levels = [np.zeros(1, np.int64)]
    inner = []
    while len(levels[-1]):
        inner.append(levels[-1][~is_leaf[levels[-1]]])
        levels.append(np.concatenate([side[inner[-1]] for side in sides]))
    present, all_known = (np.zeros((len(is_leaf), a.shape[1]), np.float32) for _ in range(2))
    present[is_leaf], all_known[is_leaf] = a, known
    for above in reversed(inner):
        for sums in (present, all_known):
            sums[above] = sums[sides[0][above]] + sums[sides[1][above]]
    around = (present + pull * prior) / (all_known + pull)
    for above in inner:
        for side in sides:
            below = side[above]
            around[below] = np.where(all_known[below] >= ENOUGH * unit, around[below], around[above])
    return np.asarray((a + pull * around[is_leaf]) / (known + pull))


def rounded_down(threshold: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return thresholds in single precision, by which every feature in single precision goes the same way."""
    single = threshold.astype(np.float32)
    return np.where(single > threshold, np.nextafter(single, np.float32(-np.inf)), single)


def _fill(part: Tensor, values: Any) -> None:
    part.copy_(torch.as_tensor(values))
