"""Forests: grown on known labels, read as tensors."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import steelyard as sy
from steelyard.export.onnx import export_run
from steelyard.labels.targets import as_targets
from steelyard.losses.loss import Cells, known_cells
from steelyard.metrics import mean_average_precision
from steelyard.models.race.forest import ENOUGH, PRIOR_WEIGHT, Forest, grow_forest, rounded_down
from steelyard.models.race.members import Members, MemberSpec
from steelyard.training.race.course import run_race
from steelyard.training.race.linear import fit_linear


def steps(n: int = 200, seed: int = 0, noise: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Features, and labels that are boxes in five of them: what trees find and lines do not."""
    x = torch.from_numpy(np.random.default_rng(seed).uniform(-1, 1, (n, 5 + noise)).astype(np.float32))
    y = torch.stack([(x[:, 0].abs() < 0.5) & (x[:, 1] > 0), (x[:, 2] * x[:, 3] > 0.1), x[:, 4].abs() > 0.7], 1)
    return x, y.to(torch.int8)


def cells_of(y: torch.Tensor) -> Cells:
    return known_cells(as_targets(y, torch.zeros(y.shape)), torch.float32)


def by_hand(forest: Forest, x: torch.Tensor) -> np.ndarray:
    """Walk every item down every tree, one split at a time, in float64."""
    child, feature, threshold = (part.numpy() for part in (forest.child, forest.feature, forest.threshold))
    eta = []
    for row in x.numpy():
        at_leaves = []
        for root in forest.roots.tolist():
            node = root
            while child[node, 0] != node:
                node = child[node, int(row[feature[node]] > threshold[node])]
            at_leaves.append(forest.frequency[forest.leaf[node]].double().numpy())
        eta.append(np.mean(at_leaves, 0))
    return np.log(eta) - np.log1p(-np.array(eta))


@pytest.mark.parametrize(("leaf", "share"), [(1, 0.0), (4, 0.5)])
def test_log_odds_are_those_of_a_walk_by_hand(leaf: int, share: float) -> None:
    x, y = steps()
    forest = grow_forest(x, cells_of(y), 7, leaf, share, seed=3)
    np.testing.assert_allclose(forest(x).numpy(), by_hand(forest, x), atol=2e-5)
    assert torch.equal(forest(x), grow_forest(x, cells_of(y), 7, leaf, share, seed=3)(x))
    assert not torch.equal(forest(x), grow_forest(x, cells_of(y), 7, leaf, share, seed=4)(x))


@pytest.mark.parametrize("smallest", [1, 5])
def test_leaves_hold_the_frequencies_of_their_items_and_of_those_around(smallest: int) -> None:
    x, y = steps()
    y[::3, 1] = sy.UNKNOWN
    y[torch.rand(len(y), generator=torch.Generator().manual_seed(0)) < 0.7, 2] = sy.UNKNOWN
    forest = grow_forest(x, cells_of(y), 1, smallest, 1.0, seed=0)
    ways = [way(forest, row) for row in x]

    def pulled(values: torch.Tensor, toward: float) -> float:
        return float((values.sum() + PRIOR_WEIGHT * toward) / (len(values) + PRIOR_WEIGHT))

    for c in range(3):
        label = y[:, c][y[:, c] >= 0].double()
        prior = float((label.sum() + 0.5) / (len(label) + 1))
        for own in {ways[item][-1]: ways[item] for item in range(len(x))}.values():
            known_at = []
            for node in own:
                mine = y[[node in other for other in ways], c].double()
                known_at.append(mine[mine >= 0])
            enough = [values for values in known_at if len(values) >= ENOUGH]
            expected = pulled(known_at[-1], pulled(enough[-1], prior))
            assert float(forest.frequency[forest.leaf[own[-1]], c]) == pytest.approx(expected, rel=1e-3)


def way(forest: Forest, row: torch.Tensor) -> list[int]:
    """The nodes of the first tree through which an item falls, its leaf the last."""
    nodes = [int(forest.roots[0])]
    while int(forest.child[nodes[-1], 0]) != nodes[-1]:
        nodes.append(int(forest.child[nodes[-1], int(row[forest.feature[nodes[-1]]] > forest.threshold[nodes[-1]])]))
    return nodes


def test_unknown_labels_are_inert() -> None:
    x, y = steps()
    y[:50, 0] = sy.UNKNOWN
    cells = cells_of(y)
    soft = y.float()
    soft[:50, 0] = float("nan")  # what an unknown label holds has no say
    again = known_cells(as_targets(soft.nan_to_num(-1), torch.zeros(y.shape)), torch.float32)
    assert torch.equal(grow_forest(x, cells, 3, 2, 0.0, 0)(x), grow_forest(x, again, 3, 2, 0.0, 0)(x))
    alone = grow_forest(x[50:], Cells(cells.a[50:, :1], cells.b[50:, :1]), 30, 2, 1.0, 0)(x)
    with_unknown = grow_forest(x, Cells(cells.a[:, :1], cells.b[:, :1]), 30, 2, 1.0, 0)(x)
    assert mean_average_precision(with_unknown, steps()[1][:, :1]) > 0.9
    assert mean_average_precision(alone, steps()[1][:, :1]) > 0.9


def test_only_ratios_of_weights_count_and_a_weight_of_0_takes_an_item_out() -> None:
    x, y = steps()
    weights = torch.linspace(0.5, 2, len(x))[:, None]
    weights[:40] = 0

    def grown(scale: float, y: torch.Tensor) -> torch.Tensor:
        cells = cells_of(y)
        return grow_forest(x, Cells(cells.a * weights * scale, cells.b * weights * scale), 9, 2, 0.0, 0)(x)

    assert torch.equal(grown(1, y), grown(1 / 1024, y))
    wrong = y.clone()
    wrong[:40] = 1 - wrong[:40]
    assert torch.equal(grown(1, y), grown(1, wrong))


@pytest.mark.parametrize("present", [0, 1])
@pytest.mark.parametrize("n", [40, 100_000])
def test_constant_labels_and_features_stay_finite(n: int, present: int) -> None:
    x, y = torch.ones(n, 2), torch.full((n, 2), present, dtype=torch.int8)
    odds = grow_forest(x, cells_of(y), 5, 1, 0.0, 0)(x)
    assert bool(odds.isfinite().all())
    assert bool(((odds > 0) == bool(present)).all())


def test_items_without_known_labels_leave_the_prior() -> None:
    x, y = steps()
    odds = grow_forest(x, cells_of(torch.full_like(y, sy.UNKNOWN)), 3, 1, 0.0, 0)(x)
    assert bool((odds == 0).all())


def test_threads_do_not_change_the_trees() -> None:
    x, y = steps()
    alone = grow_forest(x, cells_of(y), 9, 1, 0.0, 0)(x)
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert torch.equal(grow_forest(x, cells_of(y), 9, 1, 0.0, 0)(x), alone)
    finally:
        torch.set_num_threads(threads)


def test_many_labels_are_split_by_combinations_of_them() -> None:
    x, y = steps()
    wide = y.repeat(1, 20)
    odds = grow_forest(x, cells_of(wide), 40, 2, 1.0, 0)(steps(300, 1)[0])
    assert mean_average_precision(odds, steps(300, 1)[1].repeat(1, 20)) > 0.85


def test_a_forest_travels_and_wins_where_lines_cannot() -> None:
    x, y = steps(300, noise=30)
    race = run_race(x, y, budget=1e12, single=True)
    assert race.head.members[0].spec.kind == "trees"
    again = Members.of_description(json.loads(json.dumps(race.head.describe())), 35, 3).eval()
    again.load_state_dict(race.head.state_dict())
    test_x, test_y = steps(400, 1, noise=30)
    assert torch.equal(race.head(test_x), again(test_x))
    line = fit_linear(x, cells_of(y), sy.losses.BCE(), 1.0).logits(test_x)
    assert mean_average_precision(again(test_x), test_y) > mean_average_precision(line, test_y) + 0.1


def test_a_threshold_in_single_precision_splits_as_in_double() -> None:
    threshold = np.random.default_rng(0).normal(size=2000)
    near = threshold.astype(np.float32)
    for x in (near, np.nextafter(near, np.float32(9)), np.nextafter(near, np.float32(-9))):
        np.testing.assert_array_equal(x > rounded_down(threshold), x.astype(np.float64) > threshold)


@pytest.mark.onnx
@pytest.mark.usefixtures("pages")
def test_a_run_of_a_forest_is_exported(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    x, y = (part.numpy() for part in steps(200, noise=30))
    train = {"single": True, "budget": 1e12}
    run = sy.fit((x, y), out=tmp_path / "run", settings={"train": train}, verbose=False)
    assert run.trained.model.head.members[0].spec.kind == "trees"
    export_run(tmp_path / "run")  # which compares the file with the run through onnxruntime


def test_the_name_says_what_it_is() -> None:
    assert MemberSpec("none", trees=100, leaf=3).name == "none, 100 trees, leaves of 3"
