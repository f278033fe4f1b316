"""Label sets against sums over all of them, and estimates against what items were drawn from."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from steelyard.calibrate import LabelSets, shift_prior

N_LABELS = 5
SETS = np.array(list(product((0, 1), repeat=N_LABELS)))


def weights(u: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Probabilities of all 32 sets, (N, 32), of items with potentials u (N, 5), written out."""
    padded = np.concatenate([sizes, np.full(N_LABELS + 1 - len(sizes), -np.inf)])
    raw = np.exp(u @ SETS.T + padded[SETS.sum(1)])
    return raw / raw.sum(1, keepdims=True)


def logit(p: np.ndarray) -> np.ndarray:
    return np.log(p) - np.log1p(-p)


def random_sets(seed: int, sizes: list[float]) -> LabelSets:
    rng = np.random.default_rng(seed)
    return LabelSets(torch.from_numpy(rng.normal(size=N_LABELS)), torch.tensor(sizes, dtype=torch.float64))


@pytest.mark.parametrize("sizes", [[-np.inf, 0.3, -0.2], [0.0, 1.0, -np.inf, 0.5], [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]])
def test_frequencies_are_sums_over_all_sets(sizes: list[float]) -> None:
    made = random_sets(0, sizes)
    p = weights(made.labels.numpy()[None], np.array(sizes))[0]
    labels, counts = made.frequencies
    np.testing.assert_allclose(labels, p @ SETS, atol=1e-12)
    np.testing.assert_allclose(counts, [p[SETS.sum(1) == k].sum() for k in range(len(sizes))], atol=1e-12)


def test_probabilities_are_those_of_the_shifted_sets() -> None:
    here, there = random_sets(1, [-np.inf, 0.4, 0.0, -1.0]), random_sets(2, [-np.inf, -3.0, 0.5, 0.2])
    u = np.random.default_rng(3).normal(scale=2, size=(40, N_LABELS))
    eta = weights(u, here.sizes.numpy()) @ SETS
    shifted = u + (there.labels - here.labels).numpy()
    wanted = weights(shifted, there.sizes.numpy()) @ SETS
    np.testing.assert_allclose(here.probability(logit(eta), there), wanted, atol=5e-4)
    np.testing.assert_allclose(here.probability(logit(eta)), eta, atol=5e-4)
    of_tensor = here.probability(torch.from_numpy(logit(eta)).float(), there)
    assert of_tensor.dtype == torch.float32
    np.testing.assert_allclose(of_tensor, wanted, atol=5e-4)


def test_the_most_probable_set_is_that_of_all_sets() -> None:
    here, there = random_sets(1, [-np.inf, 0.4, 0.0, -1.0]), random_sets(2, [0.3, -1.0, 0.5, 0.2])
    u = np.random.default_rng(3).normal(scale=2, size=(60, N_LABELS))
    odds = logit(weights(u, here.sizes.numpy()) @ SETS)
    p = weights(u + (there.labels - here.labels).numpy(), there.sizes.numpy())
    first, second = np.sort(p, 1)[:, -1], np.sort(p, 1)[:, -2]
    clear = first > second + 0.01
    found = here.most_probable(odds, there)
    np.testing.assert_array_equal(found[clear], SETS[p.argmax(1)][clear] == 1)
    assert clear.sum() > 50
    assert len(set(found.sum(1).tolist())) > 1
    assert (here.most_probable(odds).sum(1) >= 1).all()


def test_one_label_an_item_is_a_softmax() -> None:
    one = LabelSets(torch.zeros(N_LABELS, dtype=torch.float64), torch.tensor([-np.inf, 0.0], dtype=torch.float64))
    u = torch.randn(30, N_LABELS, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    eta = torch.softmax(u, 1)
    there = LabelSets(torch.tensor([1.0, 0, 0, 0, -1], dtype=torch.float64), one.sizes)
    torch.testing.assert_close(
        one.probability(torch.logit(eta), there), torch.softmax(u + there.labels, 1), atol=1e-6, rtol=0
    )


def test_labels_that_know_nothing_of_each_other_shift_one_by_one() -> None:
    free = torch.zeros(N_LABELS + 1, dtype=torch.float64)
    here, there = (LabelSets(torch.linspace(low, 1, N_LABELS).double(), free) for low in (-2, 0))
    z = torch.randn(20, N_LABELS, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    wanted = torch.sigmoid(shift_prior(z, torch.sigmoid(here.labels), torch.sigmoid(there.labels)))
    torch.testing.assert_close(here.probability(z, there), wanted, atol=1e-8, rtol=0)


def test_the_distribution_of_labels_has_their_frequencies() -> None:
    rng = np.random.default_rng(4)
    targets = (rng.random((300, 6)) < [0.7, 0.4, 0.2, 0.1, 0.05, 0.3]).astype(np.int8)
    targets = targets[(targets.sum(1) > 0) & (targets.sum(1) < 4)]
    labels, sizes = LabelSets.of(targets).frequencies
    np.testing.assert_allclose(labels, targets.mean(0), atol=1e-6)
    np.testing.assert_allclose(sizes, np.bincount(targets.sum(1)) / len(targets), atol=1e-6)
    never = LabelSets.of(np.pad(targets, ((0, 0), (0, 1))))
    assert 0 < float(never.frequencies[0][-1]) < 1 / len(targets)


def test_an_estimate_finds_what_items_were_drawn_from() -> None:
    """Two labels of five an item, evenly; learned where most items have one label and the first is common."""
    rng = np.random.default_rng(5)
    here = LabelSets.with_frequencies([0.7, 0.3, 0.15, 0.1, 0.05], [0.0, 0.7, 0.3])
    two = SETS[SETS.sum(1) == 2]
    y = two[rng.integers(len(two), size=6000)]
    signal = 1.2 * (2 * y - 1) + rng.normal(size=y.shape)  # log-likelihood ratio 2.4·signal of a label
    u = 2.4 * signal + here.labels.numpy()
    odds = logit(weights(u, here.sizes.numpy()) @ SETS)
    there = here.estimate(odds)
    labels, sizes = there.frequencies
    np.testing.assert_allclose(labels, y.mean(0), atol=0.03)
    assert float(sizes[2]) > 0.99
    best = weights(2.4 * signal, np.array([-np.inf, -np.inf, 0.0])) @ SETS
    found = here.probability(odds, there)
    assert np.abs(found - best).mean() < 0.01
    exact = [((eta >= 0.5) == y).all(1).mean() for eta in (1 / (1 + np.exp(-odds)), found, best)]
    assert exact[0] + 0.2 < exact[1] > exact[2] - 0.01


def test_an_estimate_where_nothing_has_changed_changes_nothing() -> None:
    here = random_sets(6, [-np.inf, 0.4, 0.0])
    rng = np.random.default_rng(7)
    p = weights(here.labels.numpy()[None], here.sizes.numpy())[0]
    y = SETS[rng.choice(len(SETS), size=8000, p=p)]
    u = 2.0 * ((2 * y - 1) + rng.normal(size=y.shape)) + here.labels.numpy()
    odds = logit(weights(u, here.sizes.numpy()) @ SETS)
    there = here.estimate(odds)
    for found, true in zip(there.frequencies, here.frequencies, strict=True):
        np.testing.assert_allclose(found, true, atol=0.03)


def test_what_cannot_be() -> None:
    for wrong, says in ((-1, "unknown labels"), (np.nan, "a label is 1 present"), (2, "a label is 1 present")):
        targets = np.array([[1.0, 0.0, 1.0, 0.0, 0.0], [0.0, 1.0, 0.0, wrong, 0.0]])
        with pytest.raises(ValueError, match=rf"targets\[1, 3\] is {wrong}: .*{says}"):
            LabelSets.of(targets)
        with pytest.raises(ValueError, match=rf"targets\[1, 3\] is {wrong}: .*{says}"):
            random_sets(0, [0.0, 0.0]).log_likelihood(torch.zeros(2, 5), targets)
    with pytest.raises(ValueError, match="at least one item"):
        LabelSets.of(np.zeros((0, 3)))
    with pytest.raises(ValueError, match="outside"):
        LabelSets.with_frequencies([0.0, 0.5], [0.5, 0.5])
    with pytest.raises(ValueError, match="sum 1"):
        LabelSets.with_frequencies([0.2, 0.5], [0.5, 0.4])
    made = random_sets(0, [0.0, 0.0])
    with pytest.raises(ValueError, match="the label sets have 5"):
        made.probability(np.zeros((2, 4)))
    with pytest.raises(ValueError, match="no items"):
        made.estimate(np.zeros((0, 5)))
    assert made.probability(np.zeros((0, 5), np.float32)).shape == (0, 5)


def test_the_likelihood_of_a_set_is_its_share_of_all_sets() -> None:
    here = random_sets(1, [-np.inf, 0.4, 0.0, -1.0])
    u = np.random.default_rng(5).normal(scale=2, size=(32, N_LABELS))
    p = weights(u, here.sizes.numpy())[np.arange(32), np.arange(32)]  # item i has the set i
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(here.log_likelihood(torch.from_numpy(u), SETS), np.log(p), atol=1e-9)
    assert (p == 0).sum() == 1 + 5 + 1  # none, four or five labels are never
    with pytest.raises(ValueError, match="targets has shape"):
        here.log_likelihood(torch.from_numpy(u), SETS[:, :4])


def test_what_probabilities_imply_does_not_depend_on_the_labels_that_were_drawn() -> None:
    here = random_sets(1, [-np.inf, 0.4, 0.0, -1.0])
    labels, sizes = here.frequencies
    u = np.random.default_rng(6).normal(scale=1.5, size=(500, N_LABELS))
    p = weights(u, here.sizes.numpy())
    odds = logit(p @ SETS)
    wanted = [p[:, SETS.sum(1) == k].sum() / 500 for k in range(4)]
    for skewed in (sizes, sizes * torch.tensor([1, 1.1, 0.95, 0.9])):
        share = skewed / skewed.sum()
        found = LabelSets.with_frequencies(labels * (share @ torch.arange(4.0).double()) / labels.sum(), share)
        found = found.implied(odds)
        np.testing.assert_allclose(found.frequencies[0], (p @ SETS).mean(0), atol=1e-3)
        np.testing.assert_allclose(found.frequencies[1], wanted, atol=0.01)
    with pytest.raises(ValueError, match="no items"):
        here.implied(odds[:0])
