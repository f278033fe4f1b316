"""Calibration errors, Brier score and log-loss, against references, scikit-learn and netcal."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import sklearn.metrics
import torch

import steelyard.metrics as m
from steelyard.metrics.calibration import label_mass_edges


def reference(p: np.ndarray, t: np.ndarray, bins: int) -> tuple[list[int], list[float]]:
    """Cells and |mean probability − mean target| of each bin that is not empty; bins by exact fractions."""
    members: dict[int, list[int]] = {}
    for i, value in enumerate(p):
        members.setdefault(min(int(Fraction(float(value)) * bins), bins - 1), []).append(i)
    kept = [members[b] for b in sorted(members)]
    return [len(k) for k in kept], [abs(p[k].astype(np.float64).mean() - t[k].mean()) for k in kept]


def drawn(seed: int, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    p = rng.random(shape) ** rng.choice([0.2, 1, 8], size=shape[1])
    p = np.where(rng.random(shape[1]) < 0.3, np.round(p, 1), p)
    return p, (rng.random(shape) < p**1.5).astype(np.int8)


@pytest.mark.parametrize("bins", [1, 2, 7, 15, 40])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_equal_width_against_exact_fractions(bins: int, dtype: type) -> None:
    p, t = drawn(bins, (300, 6))
    p = p.astype(dtype)
    edges = (np.arange(bins + 1) / bins).astype(dtype)
    p = np.where(np.isin(p, edges), np.nextafter(p, dtype(0.37)), p)  # what lies on an edge has its own test
    by_label = m.calibration_error(p, t, bins=bins, per="label")
    for j in range(6):
        n, gap = reference(p[:, j], t[:, j], bins)
        assert [c for c in by_label.bins.counts[j] if c] == n
        assert by_label.ace[j] == pytest.approx(np.mean(gap), abs=1e-12)
        assert by_label.mce[j] == pytest.approx(np.max(gap), abs=1e-12)
        assert by_label.ece[j] == pytest.approx(np.average(gap, weights=n), abs=1e-12)
    pooled = m.calibration_error(p, t, bins=bins)
    n, gap = reference(p.ravel(), t.ravel(), bins)
    assert (pooled.ace, pooled.mce) == pytest.approx((np.mean(gap), np.max(gap)), abs=1e-12)
    assert pooled.ece == pytest.approx(np.average(gap, weights=n), abs=1e-12)
    assert pooled.bins.counts.sum() == p.size


@pytest.mark.parametrize("bins", [3, 10, 15, 49, 100])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("per", ["pooled", "label"])
def test_an_edge_belongs_to_the_upper_bin_and_one_to_the_last(bins: int, dtype: torch.dtype, per: str) -> None:
    edges = (torch.arange(bins + 1, dtype=torch.float64) / bins).to(dtype)[:, None]
    got = m.calibration_error(edges, torch.zeros_like(edges), bins=bins, per=per).bins.counts.ravel()
    assert got.tolist() == [1] * (bins - 1) + [2]
    below = torch.nextafter(edges[1:], torch.zeros_like(edges[1:])) if dtype != torch.float16 else None
    if below is not None:
        got = m.calibration_error(below, torch.zeros_like(below), bins=bins, per=per).bins.counts.ravel()
        assert got.tolist() == [1] * bins


def test_bins_hold_what_they_say() -> None:
    p = np.array([[0.0, 0.1], [0.15, 0.9], [1.0, 0.95]])
    t = np.array([[0, 1], [1, 1], [-1, 0]])
    got = m.calibration_error(p, t, bins=10)
    assert got.bins.edges.tolist() == (np.arange(11) / 10).tolist()
    assert got.bins.counts.tolist() == [1, 2, 0, 0, 0, 0, 0, 0, 0, 2]
    np.testing.assert_allclose(got.bins.confidence[[0, 1, 9]], [0, 0.125, 0.925])
    np.testing.assert_allclose(got.bins.frequency[[0, 1, 9]], [0, 1, 0.5])
    assert np.isnan(got.bins.confidence[2:9]).all()
    assert np.isnan(got.bins.frequency[2:9]).all()
    assert got.ace == pytest.approx((0 + 0.875 + 0.425) / 3)
    assert got.mce == pytest.approx(0.875)
    assert got.ece == pytest.approx((0 + 2 * 0.875 + 2 * 0.425) / 5)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("bins", [1, 2, 8, 300])
@pytest.mark.parametrize("per", ["pooled", "label"])
def test_equal_mass(seed: int, bins: int, per: str) -> None:
    p, t = drawn(seed, (157, 5))
    unknown = np.random.default_rng(seed).random(p.shape) < 0.3
    unknown[:, 0] = seed == 0
    got = m.calibration_error(p, np.where(unknown, -1, t), bins=bins, binning="mass", per=per)
    columns = (
        [(p[~u, j], t[~u, j]) for j, u in enumerate(unknown.T)] if per == "label" else [(p[~unknown], t[~unknown])]
    )
    for j, (q, y) in enumerate(columns):
        pick = j if per == "label" else ...
        counts, edges = np.atleast_2d(got.bins.counts)[j], np.atleast_2d(got.bins.edges)[j]
        assert counts.sum() == len(q)
        assert (np.diff(edges) >= 0).all()
        assert (edges[0], edges[-1]) == (0, 1)
        if not len(q):
            assert np.isnan(np.asarray(got.ace)[pick])
            continue
        inner = np.sort(q)[np.arange(1, bins) * len(q) // bins]
        np.testing.assert_array_equal(edges, [0, *inner, 1])
        where = (q[:, None] >= inner).sum(1)
        gap = [abs(q[where == b].mean() - y[where == b].mean()) for b in range(bins) if (where == b).any()]
        assert np.asarray(got.ace)[pick] == pytest.approx(np.mean(gap))
        assert np.asarray(got.mce)[pick] == pytest.approx(np.max(gap))
        if len(np.unique(q)) == len(q):
            assert counts.max() - counts.min() <= 1


@pytest.mark.parametrize("unknown", [0.0, 0.3])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("binning", ["width", "mass"])
@pytest.mark.parametrize("per", ["pooled", "label"])
@pytest.mark.parametrize("bins", [4, 32, 64])  # k / bins is the same number in every dtype
def test_half_precision_is_binned_by_its_values(
    bins: int, per: str, binning: str, dtype: torch.dtype, unknown: float
) -> None:
    p, t = (torch.from_numpy(x) for x in drawn(2, (150, 3)))
    p, t = p.to(dtype), t.masked_fill(torch.rand(t.shape, generator=torch.Generator().manual_seed(0)) < unknown, -1)
    got, want = (m.calibration_error(x, t, bins=bins, binning=binning, per=per) for x in (p, p.double()))
    for name in ("edges", "counts", "confidence", "frequency"):
        np.testing.assert_array_equal(getattr(got.bins, name), getattr(want.bins, name))


@pytest.mark.parametrize("binning", ["width", "mass"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bins_of_labels_are_tables_of_float64(dtype: type, binning: str) -> None:
    p, t = drawn(5, (90, 3))
    bins = m.calibration_error(p.astype(dtype), t, bins=7, binning=binning, per="label").bins
    assert (bins.edges.shape, bins.edges.dtype) == ((3, 8), np.float64)
    assert (bins.counts.shape, bins.counts.dtype) == ((3, 7), np.int64)
    for x in (bins.confidence, bins.frequency):
        assert (x.shape, x.dtype) == ((3, 7), np.float64)
    if binning == "width":
        np.testing.assert_array_equal(bins.edges, np.tile((np.arange(8) / 7).astype(dtype).astype(np.float64), (3, 1)))
    assert m.calibration_error(p.astype(dtype), t, bins=7, binning=binning).bins.edges.dtype == np.float64


@pytest.mark.parametrize("binning", ["width", "mass"])
@pytest.mark.parametrize("per", ["pooled", "label"])
@pytest.mark.parametrize("bins", [15, 40])
def test_layout_in_memory_does_not_matter(bins: int, per: str, binning: str) -> None:
    p, t = drawn(6, (80, 5))
    want = m.calibration_error(p, t, bins, binning, per)
    turned = m.calibration_error(np.asfortranarray(p), np.asfortranarray(t), bins, binning, per)
    np.testing.assert_array_equal(turned.bins.edges, want.bins.edges)
    np.testing.assert_array_equal(turned.bins.counts, want.bins.counts)
    np.testing.assert_allclose(turned.ace, want.ace, atol=1e-13)


def test_a_label_of_more_items_than_are_sorted_at_once() -> None:
    n = (1 << 22) + 1
    p = (np.arange(n, dtype=np.float32) / n)[:, None]
    assert label_mass_edges(2, torch.from_numpy(p), None).tolist() == [[0, p[n // 2, 0], 1]]


def test_unknown_is_as_if_the_cell_were_not_there() -> None:
    p, t = drawn(3, (200, 7))
    unknown = np.random.default_rng(3).random(p.shape) < 0.5
    hidden = np.where(unknown, np.nan, p)
    masked = np.where(unknown, -1, t)
    flat_p, flat_t = p[~unknown][:, None], t[~unknown][:, None]
    for binning in ("width", "mass"):
        got = m.calibration_error(hidden, masked, binning=binning)
        want = m.calibration_error(flat_p, flat_t, binning=binning)
        assert (got.ace, got.mce, got.ece) == pytest.approx((want.ace, want.mce, want.ece), abs=1e-12)
        np.testing.assert_array_equal(got.bins.counts, want.bins.counts)
    assert m.brier(hidden, masked) == pytest.approx(m.brier(flat_p, flat_t), abs=1e-14)
    assert m.log_loss(hidden, masked) == pytest.approx(m.log_loss(flat_p, flat_t), abs=1e-14)


def test_order_of_items_and_of_chunks_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    p, t = drawn(4, (500, 9))
    order = np.random.default_rng(0).permutation(500)

    def everything(p: np.ndarray, t: np.ndarray) -> list[float]:
        errors = [m.calibration_error(p, t, binning=b) for b in ("width", "mass")]
        return [m.brier(p, t), m.log_loss(p, t), *(x for e in errors for x in (e.ace, e.mce, e.ece))]

    want = everything(p, t)
    assert everything(p[order], t[order]) == pytest.approx(want, abs=1e-13)
    for cells in (30, 5):  # three rows; less than one
        monkeypatch.setattr("steelyard.metrics.calibration._CELLS_AT_ONCE", cells)
        assert everything(p, t) == pytest.approx(want, abs=1e-13)


@pytest.mark.parametrize("seed", range(6))
def test_brier_and_log_loss_agree_with_scikit_learn(seed: int) -> None:
    p, t = drawn(seed, (50, 8))
    p = p.astype([np.float32, np.float64][seed % 2]).clip(1e-4, 1 - 1e-4)
    brier = [sklearn.metrics.brier_score_loss(t[:, j], p[:, j], pos_label=1) for j in range(8)]
    assert m.brier(p, t) == pytest.approx(np.mean(brier), abs=1e-6)
    assert m.log_loss(p, t) == pytest.approx(sklearn.metrics.log_loss(t.ravel(), p.ravel(), labels=[0, 1]), abs=1e-6)


def test_soft_targets_count_as_they_are() -> None:
    p, t = np.array([[0.3, 0.6]]), np.array([[0.5, 0.25]])
    assert m.brier(p, t) == pytest.approx((0.2**2 + 0.35**2) / 2)
    want = -np.mean(t * np.log(p) + (1 - t) * np.log(1 - p))
    assert m.log_loss(p, t) == pytest.approx(want)
    assert m.calibration_error(p, t, bins=1).ace == pytest.approx(abs(0.45 - 0.375))


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("soft", [np.float16, np.float32])
def test_cells_are_scored_in_float64(dtype: type, soft: type) -> None:
    p, t = drawn(7, (40, 5))
    p, t = p.clip(0.01, 0.99).astype(dtype), (0.8 * t + 0.1).astype(soft)
    eta, y = p.astype(np.float64), t.astype(np.float64)
    assert m.brier(p, t) == pytest.approx(np.mean((eta - y) ** 2), rel=1e-13)
    assert m.log_loss(p, t) == pytest.approx(-np.mean(y * np.log(eta) + (1 - y) * np.log1p(-eta)), rel=1e-13)


def test_certain_and_wrong_costs_infinity() -> None:
    assert m.log_loss(np.array([[0.0, 1.0]]), np.array([[0, 1]])) == 0
    assert m.log_loss(np.array([[0.0]]), np.array([[1]])) == np.inf
    assert m.log_loss(np.array([[1.0]]), np.array([[0]])) == np.inf


def test_agrees_with_netcal() -> None:
    netcal = pytest.importorskip("netcal.metrics", reason="netcal is not installed")
    rng = np.random.default_rng(0)
    for seed in range(10):
        p, t = drawn(seed, (400, 1))
        p = np.where(p < rng.random() * 0.5, 0.01, p).clip(1e-6, 1 - 1e-6)  # leaves some bins empty
        got = m.calibration_error(p, t)
        for name, mine in (("ACE", got.ace), ("MCE", got.mce), ("ECE", got.ece)):
            assert getattr(netcal, name)(15).measure(p.ravel(), t.ravel()) == pytest.approx(mine, abs=1e-6)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (3, 2)])
def test_nothing_known(shape: tuple[int, int]) -> None:
    p, t = np.full(shape, 0.5), np.full(shape, -1)
    assert np.isnan([m.brier(p, t), m.log_loss(p, t)]).all()
    for binning in ("width", "mass"):
        got = m.calibration_error(p, t, binning=binning)
        assert np.isnan([got.ace, got.mce, got.ece]).all()
        assert got.bins.counts.tolist() == [0] * 15
        assert np.isnan(m.calibration_error(p, t, binning=binning, per="label").ace).tolist() == [True] * shape[1]


def test_tensors_give_tensors() -> None:
    p, t = drawn(1, (60, 4))
    want = m.calibration_error(p, t, per="label")
    got = m.calibration_error(torch.from_numpy(p), torch.from_numpy(t), per="label")
    assert isinstance(got.ace, torch.Tensor)
    assert isinstance(got.bins.edges, torch.Tensor)
    np.testing.assert_array_equal(got.ace, want.ace)
    assert isinstance(m.calibration_error(torch.from_numpy(p), torch.from_numpy(t)).ace, float)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: m.brier(np.array([[0.2, 1.5]]), np.zeros((1, 2))), r"probabilities\[0, 1\] is 1.5"),
        (lambda: m.log_loss(np.array([[np.nan]]), np.zeros((1, 1))), r"probabilities\[0, 0\] is nan"),
        (lambda: m.calibration_error(np.zeros((1, 1)), np.zeros((1, 1)), bins=0), "bins is 0"),
        (lambda: m.calibration_error(np.zeros((1, 1)), np.zeros((1, 1)), bins=1.5), "bins is 1.5: give a whole number"),
        (lambda: m.calibration_error(np.zeros((1, 1)), np.zeros((1, 1)), binning="size"), "binning is 'size'"),
        (lambda: m.calibration_error(np.zeros((1, 1)), np.zeros((1, 1)), per="class"), "per is 'class'"),
    ],
)
def test_mistakes(call: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()  # type: ignore[operator]
