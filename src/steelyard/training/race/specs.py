"""Candidates of a race, and their costs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from steelyard.data.sparse import FeatureMatrix, SparseRows
from steelyard.models.race.forest import DIRECTIONS
from steelyard.models.race.members import MemberSpec
from steelyard.training.race.candidates import Items
from steelyard.training.race.hidden import batch_size, most_steps

LANDMARKS = 1500
"""Most items that stand for all in a kernel."""
TREES = 100
"""Of a forest."""
FORESTS = ((1, 0.0), (3, 0.3))
"""Least items per leaf, and share of the features that a split considers (0: their square root)."""
WORK_OF_A_LEVEL, WORK_OF_A_LOOK = 5000.0, 10.0
"""Work units of one item at one level of a tree, and of each label combination and feature there, measured."""
MOST_MEMORY = 2**26
"""Bytes of a forest."""
BYTES_OF_LEAF = 40
"""Of two nodes, which is what a leaf adds to a tree; 2 for each label come on top."""
REDUCED = 256
"""Directions to which sparse features are reduced for kernels and hidden layers."""


def linear_specs(x: FeatureMatrix) -> list[MemberSpec]:
    """Return linear candidates: transforms that suit these features, then kernels over them."""
    if isinstance(x, SparseRows):
        return sparse_specs(x)
    some = x[:: max(1, len(x) // 2000)]
    positive = bool((some >= 0).all())
    sparse = positive and float((some == 0).float().mean()) > 0.5
    binary = positive and bool(((some == 0) | (some == 1)).all())
    simple = ["none", "standardise"]
    if positive:
        simple += ["tfidf"] if binary else ["sqrt", "tfidf"]
    landmarks = min(len(x), LANDMARKS)
    if sparse:
        kernels = [("tfidf", "gauss", 1.0), ("standardise", "laplace", 2.0), ("standardise", "gauss", 1.0)]
    else:
        kernels = [("standardise", "gauss", s) for s in (0.3, 0.5, 1.0)]
        kernels += [("standardise", "laplace", s) for s in (1.0, 2.0)]
    kernel_specs = [MemberSpec(transform, kernel, landmarks, scale) for transform, kernel, scale in kernels]
    return [MemberSpec(transform) for transform in simple] + kernel_specs


def sparse_specs(x: SparseRows) -> list[MemberSpec]:
    """Return linear candidates for sparse features: what leaves 0 as it is; the rest sees them reduced."""
    values = x.cells.data
    positive = bool((values >= 0).all())
    simple = ["none"]
    if positive:
        simple += ["tfidf"] if bool((values == 1).all()) else ["sqrt", "tfidf"]
    return [*map(MemberSpec, simple), MemberSpec("svd", "gauss", min(len(x), LANDMARKS), 1.0)]


def named_specs(items: Items, ranked: Sequence[MemberSpec]) -> list[MemberSpec]:
    """Return the best linear candidate without a kernel, trained on the labels' names too where these are texts."""
    simple = [spec for spec in ranked if spec.kind == "linear"]
    return [spec._replace(named=True) for spec in simple[:1] if items.names is not None]


def forest_specs(items: Items) -> list[MemberSpec]:
    """Return forests over dense features; a leaf has more items where the trees would take more than `MOST_MEMORY`."""
    if isinstance(items.x, SparseRows):
        return []
    n, n_labels = items.targets.shape
    fitting = -(-TREES * n * (BYTES_OF_LEAF + 2 * n_labels) // MOST_MEMORY)
    return [MemberSpec("none", trees=TREES, leaf=max(leaf, fitting), share=share) for leaf, share in FORESTS]


def hidden_specs(ranked: Sequence[MemberSpec], sparse: bool = False) -> Iterator[MemberSpec]:
    """Yield hidden layers over the two best simple transforms; over sparse features as they are reduced."""
    if sparse:
        yield MemberSpec("svd", width=1024, dropout=0.5)
        return
    simple = [spec.transform for spec in ranked if spec.kind == "linear"]
    for transform in dict.fromkeys([*simple[:1], "standardise"]):
        for width in (256, 1024):
            yield MemberSpec(transform, width=width, dropout=0.5)


def loss_specs(ranked: Sequence[MemberSpec], best_ranking: MemberSpec) -> Iterator[MemberSpec]:
    """Yield the linear candidate of the lowest log-loss under other losses, and that of the highest mAP under SPA."""
    best = next((spec for spec in ranked if spec.is_linear), None)
    if best is not None:
        yield best._replace(loss="spa")
        yield best_ranking._replace(loss="spa")
        yield best._replace(loss="asl")


def work_of(spec: MemberSpec, items: Items, n_folds: int, path: bool = True) -> float:
    """Return the work units of a trial on some folds: multiplications, from the shapes alone."""
    (n, width), n_labels = items.x.shape, items.targets.shape[1]
    is_sparse, cells = isinstance(items.x, SparseRows), 0.0
    if isinstance(items.x, SparseRows):
        cells, width = items.x.per_item, min(REDUCED, width)
    if spec.trees:
        looks = (spec.share * width or width**0.5) * (min(n_labels, DIRECTIONS) + 4)
        levels = n * (1 - 1 / items.n_folds) * (math.log2(max(n / spec.leaf, 1)) + 1)
        return n_folds * spec.trees * levels * (WORK_OF_A_LEVEL + WORK_OF_A_LOOK * looks)
    inputs = spec.landmarks if spec.kernel else width
    once = n * width * inputs if spec.kernel else 0
    if spec.is_linear:
        if is_sparse and not spec.kernel:  # a product with a sparse matrix takes some four times as long per cell
            inputs, rank = 0, 4 * cells
        else:
            rank = min(inputs, n)
        steps = 70 if path else 30
        trained = n * (1 - 1 / items.n_folds) + (n_labels if spec.named else 0)
        n_labels = items.narrowed.targets.shape[1] if path else n_labels
        return float(once + n * inputs * rank + n_folds * steps * trained * n_labels * (2 * rank + 60))
    size = batch_size(n)
    most = min(most_steps(n), 15 * n / size)
    return float(n_folds * most * size * 3 * (inputs * spec.width + spec.width * n_labels))
