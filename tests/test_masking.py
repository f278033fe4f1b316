"""PLM: its draws, its keep rates, its ratios; masks, merging and restarts are in test_state_machines."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import reference as ref
from steelyard.balance import PartialLabelMasking
from steelyard.balance.philox import philox, uniform

KNOWN_ANSWERS = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]
COUNTS, KNOWN = torch.tensor([900, 300, 40, 5, 500]), 1000
RATIO = COUNTS.double() / (KNOWN - COUNTS).double()


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_philox_known_answers(counter: list[int], key: list[int], answer: list[int]) -> None:
    """The known-answer vectors of Random123's philox4x32-10."""
    assert ref.philox4x32(counter, key) == answer
    as_tensors = tuple(torch.tensor([c], dtype=torch.int64) for c in counter)
    assert [int(x) for x in philox(as_tensors, (key[0], key[1]))] == answer  # type: ignore[arg-type]
    as_arrays = tuple(np.array([c], dtype=np.uint64) for c in counter)
    assert [int(x[0]) for x in philox(as_arrays, (key[0], key[1]))] == answer  # type: ignore[arg-type]


@given(
    seed=st.integers(0, 2**64 - 1),
    epoch=st.integers(1, 10**6),
    index=st.lists(st.integers(0, 2**62), min_size=1, max_size=3),
    n_labels=st.integers(1, 11),
)
@settings(max_examples=40)
def test_uniform_is_a_function_of_position(seed: int, epoch: int, index: list[int], n_labels: int) -> None:
    got = uniform(seed, epoch, torch.tensor(index), n_labels)
    want = [[ref.masking_uniform(seed, epoch, i, j) for j in range(n_labels)] for i in index]
    assert got.dtype == torch.float32
    assert got.tolist() == want


def test_uniform_is_uniform() -> None:
    u = uniform(3, 1, torch.arange(4000), 25).double().numpy()
    count, _ = np.histogram(u, bins=100, range=(0, 1))
    assert ((count - 1000) ** 2 / 1000).sum() < 160  # χ² with 99 degrees, p ≈ 1e-4
    assert abs(np.corrcoef(u[:, 0], u[:, 1])[0, 1]) < 0.08
    other = uniform(3, 2, torch.arange(4000), 25).double().numpy()
    assert abs(np.corrcoef(u[:, 0], other[:, 0])[0, 1]) < 0.08


def test_keep_rates() -> None:
    plm = PartialLabelMasking(COUNTS, KNOWN, initial=torch.tensor([0.5, 0.5, 0.5, 0.05, 1.0]))
    n = 40_000
    index = torch.arange(n)
    up, down = (plm.mask(torch.full((n, 5), y), index).double().mean(0) for y in (1, 0))
    want_up = torch.tensor([0.5 / 9, 1, 1, 1, 1]).double()
    want_up[1] = min(1, 0.5 / (3 / 7))
    want_down = torch.tensor([1, (3 / 7) / 0.5, (4 / 96) / 0.5, (5 / 995) / 0.05, 1]).double()
    for got, want in ((up, want_up), (down, want_down)):
        sigma = (want * (1 - want) / n).sqrt()
        assert ((got - want).abs() <= 5 * sigma + 1e-12).all(), (got, want)
    torch.testing.assert_close(plm.keep_probabilities[0].double(), want_up, rtol=1e-6, atol=0)
    torch.testing.assert_close(plm.keep_probabilities[1].double(), want_down, rtol=1e-6, atol=0)
    assert plm.mask(torch.full((n, 5), -1), index).all()


def test_masked_data_have_the_wanted_ratio_and_shift() -> None:
    """Thinning by label value multiplies the odds by r̄/r: the shift that is to be subtracted."""
    plm = PartialLabelMasking(COUNTS, KNOWN, initial="mean")
    generator = torch.Generator().manual_seed(0)
    targets = (torch.rand(60_000, 5, generator=generator) < COUNTS / KNOWN).long()
    keep = plm.mask(targets, torch.arange(60_000))
    odds = ((targets == 1) & keep).sum(0) / ((targets == 0) & keep).sum(0)
    plain = (targets == 1).sum(0) / (targets == 0).sum(0)
    torch.testing.assert_close((odds / plain).log().double(), plm.log_odds_shift, rtol=0, atol=0.25)
    torch.testing.assert_close(plm.log_odds_shift, (plm.ratio / RATIO).log().double(), rtol=1e-9, atol=1e-9)
    assert plm.log_odds_shift.dtype == torch.float64


def test_an_item_drawn_twice_keeps_its_mask_and_epochs_differ() -> None:
    plm = PartialLabelMasking(COUNTS, KNOWN, initial="mean")
    targets, index = torch.ones(50, 5), torch.arange(50)
    first = plm.mask(targets, index)
    assert torch.equal(first, plm.mask(targets, index))
    assert torch.equal(first.flip(0), plm.mask(targets, index.flip(0)))
    plm.step()
    assert not torch.equal(first, plm.mask(targets, index))
    other = PartialLabelMasking(COUNTS, KNOWN, initial="mean", seed=1)
    assert not torch.equal(first, other.mask(targets, index))


def outputs_of(histogram: list[float], n: int, bins: int) -> list[float]:
    """Outputs in the middle of their bins, `n` in all."""
    return [(b + 0.5) / bins for b, share in enumerate(histogram) for _ in range(round(share * n))]


def observe(
    plm: PartialLabelMasking, positive: list[list[float]], negative: list[list[float]], n: int, bins: int
) -> None:
    for side, histograms in ((1, positive), (0, negative)):
        columns = [outputs_of(h, n, bins) for h in histograms]
        p = torch.tensor(columns).t()
        plm.observe(p, torch.full(p.shape, side))


def test_toy_histograms() -> None:
    """The paper's toy class among two others, τ = 4."""
    positive = [[0.2, 0.2, 0.2, 0.4], [0.0, 0.0, 0.4, 0.6], [0.8, 0.2, 0.0, 0.0]]
    negative = [[0.4, 0.4, 0.0, 0.2], [0.2, 0.2, 0.2, 0.4], [1.0, 0.0, 0.0, 0.0]]
    for eps in (1e-12, 1e-6, 1e-3, 0.0):
        plm = PartialLabelMasking(torch.tensor([50, 20, 5]), 100, rate=0.7, bins=4, eps=eps)
        observe(plm, positive, negative, 10, 4)
        want = ref.masking_divergence(np.array(positive), np.array(negative), eps)
        np.testing.assert_allclose(plm.divergence().numpy(), want, rtol=1e-6, atol=1e-9)
        plm.step()
        np.testing.assert_allclose(plm.ratio.numpy(), np.exp(0.7 * want) * [1, 0.25, 5 / 95], rtol=1e-6)
        assert float(plm.divergence().abs().max()) == 0  # counting begins anew


def test_toy_class_by_hand() -> None:
    """D⁺ of the toy is .4 log .4 + 3 × .2 log .2 − .6 log ε + …, shown through two classes that fix the scale."""
    eps = 1e-6
    kl = 3 * 0.2 * math.log(0.2 / eps) + 0.4 * math.log(0.4 / (1 - 3 * eps))
    right, wrong = -math.log(1 - 3 * eps), -math.log(eps)
    scores = np.array([kl, right, wrong])
    want = (scores - scores.mean()) / scores.std()
    plm = PartialLabelMasking(torch.tensor([5, 5, 5]), 10, bins=4, eps=eps)
    same = [1.0, 0.0, 0.0, 0.0]
    observe(plm, [[0.2, 0.2, 0.2, 0.4], [0, 0, 0, 1.0], same], [same] * 3, 10, 4)
    np.testing.assert_allclose(plm.divergence().numpy(), want, rtol=1e-6)


def test_bin_edges() -> None:
    """A value on an inner edge belongs to the upper bin, 1 to the last."""
    plm = PartialLabelMasking(torch.tensor([5, 5, 5]), 10, bins=4, eps=0.0)
    plm.observe(torch.tensor([[1.0, 0.75, 0.7499]]), torch.ones(1, 3))
    plm.observe(torch.zeros(1, 3), torch.zeros(1, 3))
    got = plm.divergence().numpy()
    np.testing.assert_allclose(got, np.array([-1, -1, 2]) / math.sqrt(2), rtol=1e-6)
    plm = PartialLabelMasking(torch.tensor([5, 5, 5]), 10, bins=4, eps=0.0)
    plm.observe(torch.ones(1, 3), torch.ones(1, 3))
    plm.observe(torch.tensor([[0.0, 0.2499, 0.25]]), torch.zeros(1, 3))
    np.testing.assert_allclose(plm.divergence().numpy(), np.array([1, 1, -2]) / math.sqrt(2), rtol=1e-6)


@given(seed=st.integers(0, 10**6), rate=st.floats(0, 2), n=st.integers(2, 7))
@settings(max_examples=40)
def test_product_of_ratios_never_changes(seed: int, rate: float, n: int) -> None:
    rng = np.random.default_rng(seed)
    counts = torch.tensor(rng.integers(1, 99, n))
    plm = PartialLabelMasking(counts, 100, rate=rate)
    before = plm.ratio.log().sum()
    for _ in range(3):
        targets = torch.tensor(rng.integers(-1, 2, (30, n)))
        plm.observe(torch.tensor(rng.random((30, n)), dtype=torch.float32), targets)
        assert float(plm.divergence().sum()) == pytest.approx(0, abs=1e-9)
        plm.step()
        assert float(plm.ratio.log().sum()) == pytest.approx(float(before), abs=1e-6)
        assert plm.ratio.isfinite().all()


@pytest.mark.parametrize("initial", ["dataset", "mean", "min", "max"])
def test_initial_ratio(initial: str) -> None:
    plm = PartialLabelMasking(COUNTS, KNOWN, initial=initial)  # type: ignore[arg-type]
    want = RATIO if initial == "dataset" else getattr(RATIO, initial)().expand(5)
    torch.testing.assert_close(plm.ratio.double(), want, rtol=1e-6, atol=0)
    if initial == "dataset":
        targets = torch.randint(-1, 2, (40, 5))
        assert plm.mask(targets, torch.arange(40)).all()
        assert (plm.log_odds_shift.abs() < 1e-6).all()


def test_known_labels_by_class() -> None:
    plm = PartialLabelMasking(torch.tensor([10, 10]), torch.tensor([20, 110]))
    torch.testing.assert_close(plm.ratio.double(), torch.tensor([1.0, 0.1]).double(), rtol=1e-6, atol=0)


def test_equal_outputs_move_nothing() -> None:
    plm = PartialLabelMasking(COUNTS, KNOWN, rate=1.0)
    before = plm.ratio.clone()
    plm.observe(torch.full((3, 5), 0.3), torch.tensor([[1] * 5, [0] * 5, [1] * 5]))
    plm.step()
    torch.testing.assert_close(plm.ratio, before)
    plm.step()
    torch.testing.assert_close(plm.ratio, before)


def test_many_observations_are_counted_exactly() -> None:
    """Streaming counts do not stick at 2²⁴, where float32 does."""
    plm = PartialLabelMasking(torch.tensor([5, 5]), 10)
    assert not (plm.histogram.is_floating_point() and plm.histogram.dtype != torch.float64)


def test_observed_is_training_or_held_out() -> None:
    with pytest.raises(ValueError, match=r"observes is 'both': choose one of "):
        PartialLabelMasking(COUNTS, KNOWN, observes="both")  # type: ignore[arg-type]
    for name in ("bins", "seed"):
        with pytest.raises(ValueError, match=f"{name} is 10.5: give a whole number"):
            PartialLabelMasking(COUNTS, KNOWN, **{name: 10.5})


def test_unknown_outputs_may_be_anything_and_masks_drawn_ahead_end_with_their_epoch() -> None:
    plm = PartialLabelMasking(COUNTS, KNOWN)
    plm.observe(torch.full((4, 5), float("nan")), torch.full((4, 5), -1))
    assert not plm.histogram.any()
    plm.draw_ahead(torch.zeros(4, 5))
    assert plm.ahead.table(plm.epoch) is not None
    plm.step()
    assert plm.ahead.table(plm.epoch) is None  # the ratios changed: what was drawn holds no more
