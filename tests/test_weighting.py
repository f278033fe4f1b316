"""Weightings against loops: RW, class-balanced in four readings, re-balanced, deferred, and their class means."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import reference as ref
from steelyard.balance import (
    ClassBalanced,
    Deferred,
    ExpectedWeights,
    InverseFrequency,
    Rebalanced,
    Weighting,
    expected_weights,
)

COUNTS = [700, 90, 8, 1]
TARGETS = np.array([[1, 0, 0, 0], [1, 1, 0, -1], [0, 0, 0, 0], [-1, 0, 1, 1], [-1, -1, -1, -1], [0, 1, -1, 0]])
MODES = ("class", "mean_effective", "mean_weight", "mean_count")


def full(weighting: Weighting, targets: np.ndarray) -> np.ndarray:
    weights = weighting(torch.tensor(targets, dtype=torch.float64))
    assert weights.dtype == torch.float64
    return weights.expand(targets.shape).numpy()


@pytest.mark.parametrize("power", [0.5, 1.0, 0.0])
def test_inverse_frequency(power: float) -> None:
    weighting = InverseFrequency(np.array(COUNTS), power)
    np.testing.assert_allclose(full(weighting, TARGETS), ref.inverse_frequency(TARGETS, COUNTS, power), rtol=1e-12)
    assert full(weighting, TARGETS).max() == 1


def test_inverse_frequency_does_not_depend_on_the_batch() -> None:
    """A class rarer than any that is positive in the batch once weighed more than 1: 13.9 here."""
    weights = InverseFrequency(np.array([4, 775]))(torch.tensor([[0.0, 1.0]], dtype=torch.float64))
    np.testing.assert_allclose(weights.numpy(), [[1.0, (4 / 775) ** 0.5]], rtol=1e-12)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("beta", [0.0, 0.9, 0.9999])
def test_class_balanced(mode: str, beta: float) -> None:
    weighting = ClassBalanced(torch.tensor(COUNTS), beta, mode)  # type: ignore[arg-type]
    np.testing.assert_allclose(full(weighting, TARGETS), ref.class_balanced(TARGETS, COUNTS, beta, mode), rtol=1e-9)


def test_effective_number_of_huge_counts_and_beta_near_1() -> None:
    counts = [10**9, 10**6, 1]
    for beta in (0.9999, 1 - 1e-9):
        e = [float((1 - ref.mp.mpf(beta) ** n) / (1 - ref.mp.mpf(beta))) for n in counts]
        want = (1 / np.array(e)) / np.mean(1 / np.array(e))
        np.testing.assert_allclose(full(ClassBalanced(torch.tensor(counts), beta), np.ones((1, 3)))[0], want, rtol=1e-6)


@pytest.mark.parametrize("parameters", [(0.1, 10.0, 0.2), (0.1, 10.0, 0.3), (0.0, 3.0, 0.7)])
def test_rebalanced(parameters: tuple[float, float, float]) -> None:
    weighting = Rebalanced(torch.tensor(COUNTS), *parameters)
    np.testing.assert_allclose(full(weighting, TARGETS), ref.rebalanced(TARGETS, COUNTS, *parameters), rtol=1e-11)
    empty = full(weighting, TARGETS[2:3])
    np.testing.assert_allclose(empty, 1 + parameters[0], rtol=1e-12)


@pytest.mark.parametrize(
    "weighting",
    [InverseFrequency(torch.tensor(COUNTS)), Rebalanced(torch.tensor(COUNTS))]
    + [ClassBalanced(torch.tensor(COUNTS), mode=m) for m in MODES],  # type: ignore[arg-type]
    ids=lambda w: type(w).__name__,
)
def test_dtypes_and_unknown(weighting: Weighting) -> None:
    targets = torch.tensor(TARGETS)
    plain = weighting(targets)
    assert plain.dtype == torch.float32
    assert plain.isfinite().all()
    torch.testing.assert_close(plain.double(), weighting(targets.double()), rtol=1e-5, atol=1e-6)
    assert torch.equal(plain, weighting(targets.numpy()))
    unknown_as_absent = targets.clamp(min=0)
    assert torch.equal(plain, weighting(unknown_as_absent))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(plain, weighting(targets))


@given(st.lists(st.lists(st.sampled_from([-1, 0, 1]), min_size=4, max_size=4), min_size=0, max_size=6))
@settings(max_examples=60)
def test_any_batch(rows: list[list[int]]) -> None:
    targets = np.array(rows, int).reshape(-1, 4)
    np.testing.assert_allclose(
        full(Rebalanced(torch.tensor(COUNTS)), targets), ref.rebalanced(targets, COUNTS), rtol=1e-10
    )
    for mode in MODES:
        got = full(ClassBalanced(torch.tensor(COUNTS), 0.9, mode), targets)  # type: ignore[arg-type]
        np.testing.assert_allclose(got, ref.class_balanced(targets, COUNTS, 0.9, mode), rtol=1e-9)
    weights = InverseFrequency(torch.tensor(COUNTS))(torch.tensor(targets)).expand(targets.shape)
    np.testing.assert_allclose(weights, ref.inverse_frequency(targets, COUNTS), rtol=1e-6)


def test_deferred_starts_when_told() -> None:
    inner = ClassBalanced(torch.tensor(COUNTS))
    deferred = Deferred(inner, 3)
    targets = torch.tensor(TARGETS)
    for epoch in (1, 2, 3, 4, 2):
        deferred.start_epoch(epoch, 4)
        want = torch.ones(6, 4) if epoch < 3 else inner(targets).expand(6, 4)
        assert torch.equal(deferred(targets).expand(6, 4), want)


def test_class_means_over_a_table() -> None:
    rng = np.random.default_rng(0)
    targets = np.where(rng.random((300, 4)) < 0.2, -1, rng.random((300, 4)) < [0.7, 0.3, 0.05, 0.2]).astype(int)
    weights = ref.rebalanced(targets, COUNTS)
    up, down = expected_weights(Rebalanced(torch.tensor(COUNTS)), torch.tensor(targets))
    for c in range(4):
        assert float(up[c]) == pytest.approx(weights[targets[:, c] == 1, c].mean(), rel=1e-6)
        assert float(down[c]) == pytest.approx(weights[targets[:, c] == 0, c].mean(), rel=1e-6)


def test_class_means_are_computed_where_the_weighting_is() -> None:
    """On "meta" any tensor of another device is an error, as it would be on a GPU."""
    targets = torch.tensor(TARGETS)
    for weighting in (InverseFrequency(torch.tensor(COUNTS)), Deferred(ClassBalanced(torch.tensor(COUNTS)), 1)):
        for mean in expected_weights(weighting.to("meta"), targets.to("meta")):
            assert mean.device.type == "meta"
            assert mean.shape == (4,)


def test_a_class_mean_never_seen_is_that_of_the_other_sign() -> None:
    """Then a weight that both signs share cancels in the link, whatever its unit, from the first batch on."""
    targets = torch.tensor([[0, 1, -1, 0], [0, 1, -1, 1]])
    up, down = expected_weights(ClassBalanced(torch.tensor(COUNTS)), targets)
    own = ref.class_balanced(np.zeros((1, 4)), COUNTS, 0.9999, "class")[0]
    np.testing.assert_allclose(up.numpy(), [own[0], own[1], 1, own[3]], rtol=1e-6)
    np.testing.assert_allclose(down.numpy(), [own[0], own[1], 1, own[3]], rtol=1e-6)


def test_counts_are_copied() -> None:
    counts = np.array(COUNTS, np.float64)
    targets = torch.tensor(TARGETS)
    for make in (InverseFrequency, Rebalanced, lambda n: ClassBalanced(n, mode="mean_count")):
        for mine in (counts.copy(), torch.tensor(counts)):
            weighting = make(mine)
            before = weighting(targets).clone()
            mine[:] = 1.0
            assert torch.equal(weighting(targets), before)


def test_running_means_are_of_the_epoch_under_way() -> None:
    means = ExpectedWeights(2)
    ones, zeros = torch.ones(1, 2), torch.zeros(1, 2)
    means.observe(torch.tensor([[2.0, 4.0]]), ones, zeros)
    means.observe(torch.tensor([[4.0, 4.0]]), ones, zeros)
    means.observe(torch.tensor([[9.0, 9.0]]), zeros, ones * torch.tensor([1.0, 0.0]))
    up, down = means.class_weights()
    assert up.tolist() == [3.0, 4.0]
    assert down.tolist() == [9.0, 4.0]
    means.start_epoch()
    assert means.class_weights()[0].tolist() == [3.0, 4.0]
    means.observe(torch.tensor([[7.0, 5.0]]), ones, zeros)
    assert means.class_weights()[0].tolist() == [7.0, 5.0]
