"""A forest of extremely randomised trees whose leaves hold label frequencies, kept as tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor, nn

from steelyard.losses.loss import Cells

DIRECTIONS = 16
"""Random combinations of the labels that one tree looks at when it splits."""
PRIOR_WEIGHT = 0.1
"""Items that the label's frequency counts for in every leaf: a leaf without known items has that frequency."""
DEPTH = 32
"""Splits from the root to a leaf, at most."""
BELOW_ONE = 0.9995
"""The highest frequency of a leaf: half precision rounds what is above to 1, whose log-odds are infinite."""


class Forest(nn.Module):
    """Log-odds of the mean label frequency in the leaves that an item falls into, one leaf per tree.

    The frequency of a label in a leaf is (Σ a + w π) / (Σ (a + b) + w), summed over the leaf's training items with
    coefficients a and b, where π is the label's frequency and w = `PRIOR_WEIGHT`. Unknown labels have a = b = 0.

    Args:
        trees: how many.
        nodes: of all trees, leaves included.
        n_labels: outputs.

    Reference: Geurts, Ernst, Wehenkel, Extremely randomized trees, 2006.
    """

    roots: Tensor
    feature: Tensor
    threshold: Tensor
    child: Tensor
    leaf: Tensor
    frequency: Tensor

    def __init__(self, trees: int, nodes: int, n_labels: int) -> None:
        super().__init__()
        self.register_buffer("roots", torch.zeros(trees, dtype=torch.int32))
        self.register_buffer("feature", torch.zeros(nodes, dtype=torch.int32))
        self.register_buffer("threshold", torch.zeros(nodes))
        self.register_buffer("child", torch.zeros(nodes, 2, dtype=torch.int32))
        self.register_buffer("leaf", torch.zeros(nodes, dtype=torch.int32))
        self.register_buffer("frequency", torch.full(((nodes + trees) // 2, n_labels), 0.5, dtype=torch.float16))

    def forward(self, features: Tensor) -> Tensor:
        """Return log-odds (B, L) of features (B, F)."""
        node = self.roots.long().expand(features.shape[0], -1)
        for _ in range(DEPTH):  # a leaf is its own child
            right = features.gather(1, self.feature[node].long()) > self.threshold[node]
            node = self.child[node, right.long()].long()
        total = features.new_zeros(features.shape[0], self.frequency.shape[1])
        for leaf in self.leaf[node].long().unbind(1):
            total = total + self.frequency[leaf].float()
        return torch.logit(total / node.shape[1])


def grow_forest(x: Tensor, cells: Cells, trees: int, smallest_leaf: int, share: float, seed: int) -> Forest:
    """Return a forest grown on items.

    A tree draws a threshold for some random features, and splits by the one whose two sides differ most in their
    labels. Of many labels it looks at `DIRECTIONS` random combinations (Joly, Geurts, Wehenkel, Random forests with
    random projections of the output space, 2014). An unknown label counts as its frequency there, which speaks for
    neither side.

    Args:
        x: features (N, F), float32.
        cells: coefficients (N, L) of the labels.
        trees: how many.
        smallest_leaf: items per leaf, at least.
        share: of the features that a split considers; 0 for √F features.
        seed: of the trees.
    """
    from sklearn.tree import ExtraTreeRegressor  # half a second, which every command would wait for

    rng, inputs, n = np.random.default_rng(seed), x.cpu().numpy(), len(x)
    a, b = (part.double().cpu().numpy() for part in (cells.a, cells.b))
    known = a + b
    prior = (a.sum(0) + 0.5) / (known.sum(0) + 1)
    outputs = np.divide(a - prior * known, known, out=np.zeros_like(a), where=known > 0)
    grown = []
    for _ in range(trees):
        y = outputs
        if y.shape[1] > DIRECTIONS:
            y = y @ rng.standard_normal((y.shape[1], DIRECTIONS))
        tree = ExtraTreeRegressor(
            max_features=share or "sqrt",
            max_depth=DEPTH,
            min_samples_leaf=smallest_leaf,
            random_state=int(rng.integers(2**31)),
        )
        grown.append(tree.fit(inputs, y).tree_)
    forest = Forest(trees, sum(tree.node_count for tree in grown), a.shape[1])
    first = leaves = 0
    for k, tree in enumerate(grown):
        nodes, is_leaf = slice(first, first + tree.node_count), tree.children_left < 0
        own, row = np.arange(first, first + tree.node_count), np.cumsum(is_leaf) - 1
        of_item = (np.ones(n), (row[tree.apply(inputs)], np.arange(n)))
        member = sparse.csr_array(of_item, (int(is_leaf.sum()), n))
        frequency = (member @ a + PRIOR_WEIGHT * prior) / (member @ known + PRIOR_WEIGHT)
        sides = [np.where(is_leaf, own, side + first) for side in (tree.children_left, tree.children_right)]
        _fill(forest.roots[k], first)
        _fill(forest.feature[nodes], np.where(is_leaf, 0, tree.feature))
        _fill(forest.threshold[nodes], rounded_down(tree.threshold))
        _fill(forest.child[nodes], np.stack(sides, 1))
        _fill(forest.leaf[nodes], np.where(is_leaf, row + leaves, 0))
        _fill(forest.frequency[leaves : leaves + len(frequency)], np.minimum(frequency, BELOW_ONE))
        first, leaves = first + tree.node_count, leaves + len(frequency)
    return forest.to(x.device)


def rounded_down(threshold: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return thresholds in single precision, by which every feature in single precision goes the same way."""
    single = threshold.astype(np.float32)
    return np.where(single > threshold, np.nextafter(single, np.float32(-np.inf)), single)


def _fill(part: Tensor, values: Any) -> None:
    part.copy_(torch.as_tensor(values))
