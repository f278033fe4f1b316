"""Top labels, the start at the prior and class weights of the head by blocks, against dense references."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from steelyard.balance import ClassAware
from steelyard.labels import Labels
from steelyard.losses import BCE, TwoWay
from steelyard.losses.loss import NoLink
from steelyard.models.block import BlockHead, SparseTargets, log_odds_of, prior_bias, top_labels
from steelyard.models.block.sums import cell_sums
from steelyard.models.block.terms import terms_of
from steelyard.models.block.top import merged
from steelyard.objective import Objective, prior_logits
from test_block_head import OBJECTIVES, F, L, batch, head_of, sparse


def best(scores: np.ndarray[Any, Any], k: int) -> np.ndarray[Any, Any]:
    """Labels by score, then number."""
    return np.stack([np.lexsort((np.arange(len(row)), -row))[:k] for row in scores])


@pytest.mark.parametrize("block", [4, 8, 24])
@pytest.mark.parametrize("k", [1, 3, 23])
@pytest.mark.parametrize("digits", [0, 6])
def test_top_labels_are_the_best_of_all(k: int, block: int, digits: int) -> None:
    """With rounded scores many are equal: labels then come by number."""
    head, (x, _) = head_of(), batch("known")
    found = top_labels(head, x, k, lambda z, _: z.round(decimals=digits), block)
    scores = head(x).round(decimals=digits).numpy()
    want = best(scores, k)
    assert (found.labels.numpy() == want).all()
    assert (found.scores.numpy() == np.take_along_axis(scores, want, 1)).all()


def test_ties_at_the_last_place_of_a_long_block_go_to_the_first_labels() -> None:
    scores = torch.zeros(2, 100)
    scores[0, 70], scores[1, :50] = 1.0, -1.0
    assert merged(None, scores, 10, 3).labels.tolist() == [[80, 10, 11], [60, 61, 62]]


@pytest.mark.parametrize("name", [name for name in OBJECTIVES if name != "own"])
def test_log_odds_by_blocks_are_those_of_the_objective(name: str) -> None:
    objective, head, (x, t) = OBJECTIVES[name](), head_of(), batch("unknown")
    head.step(x, sparse(t, "unknown"), objective, lr=0.1)
    probability_model = log_odds_of(objective)
    parts = [probability_model(head.logits(x, labels), labels) for labels in head.blocks(8)]
    torch.testing.assert_close(torch.cat(parts, 1), objective.log_odds(head(x)))
    with pytest.raises(NoLink):
        log_odds_of(Objective(TwoWay()))


@pytest.mark.parametrize("fill", [0, -1])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_start_and_class_weights_are_those_of_dense_targets(name: str, fill: int) -> None:
    _, t = batch("soft" if fill == 0 else "rest unknown")
    rows, columns = (t != fill).nonzero(as_tuple=True)
    labels = Labels.from_cells(rows, columns, t[rows, columns], t.shape, fill)
    want = prior_logits(OBJECTIVES[name](), labels)
    torch.testing.assert_close(prior_bias(OBJECTIVES[name](), labels), want, rtol=1e-5, atol=1e-5)
    if name == "own":
        return
    dense, sparsely = OBJECTIVES[name](), OBJECTIVES[name]()
    z, index = torch.zeros(t.shape, dtype=torch.float64), torch.arange(len(t))
    dense(z, t, index)
    head = BlockHead(F, L, block=8, dtype=torch.float64)
    head.value(torch.zeros(len(t), F, dtype=torch.float64), SparseTargets.from_labels(labels), sparsely, index)
    for ours, theirs in zip(sparsely.class_weights(), dense.class_weights(), strict=True):
        torch.testing.assert_close(torch.as_tensor(ours), torch.as_tensor(theirs), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("most", [2, 12, 1024])
def test_sums_between_nodes_are_near(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weight of a label is smooth in its count, so that few counts stand for many."""
    monkeypatch.setattr("steelyard.models.block.sums._MOST_NODES", most)
    _, t = batch("known")
    objective = OBJECTIVES["R-BCE"]()
    terms = terms_of(objective, sparse(t, "known"), torch.zeros(L), None)
    sums = cell_sums(terms, sparse(t, "known"))
    want = (objective.weightings[0](t, torch.float64) * (1 - t)).sum(0)
    off = ((sums.weighted_negative - want) / want).abs().max()
    assert off < {2: 1.0, 12: 0.02, 1024: 1e-6}[most]


def test_a_number_of_labels_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="k is 24: give 1 to 23"):
        top_labels(head_of(), batch("known")[0], 24)


def test_a_hundred_thousand_labels_start_from_their_counts_and_are_visited_alike() -> None:
    rng = np.random.default_rng(0)
    n, m = 2000, 100_000
    cells = np.unique(rng.integers(0, n, 20_000) * m + (m * rng.random(20_000) ** 3).astype(int))
    labels = Labels.from_cells(cells // m, cells % m, np.ones(len(cells), int), (n, m), 0)
    bias = prior_bias(Objective(BCE()), labels).numpy()
    counts = np.maximum(labels.counts, 0.5)
    assert np.allclose(bias, np.log(counts) - np.log(np.where(labels.counts > 0, n - counts, n)), atol=1e-6)
    drawn = ClassAware(labels, visits=1).left()  # one item of each label that has one, without a table
    there = np.flatnonzero(labels.counts)
    assert len(drawn) == len(there)
    assert np.array_equal(np.unique(labels.listed(drawn)[1]), there)
