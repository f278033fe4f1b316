"""P@k, nDCG@k, PSP@k by streams, and calibration lines shared by frequency bands, against plain references."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from steelyard.calibrate import HeldOutCells, bands_of, fit_bands
from steelyard.metrics import TopEvaluator, propensities


def reference(top: list[list[int]], positives: list[set[int]], worth: dict[int, float], k: int) -> dict[str, float]:
    """The measures by their formulas, one item at a time."""
    precision, ndcg, recall, found, best = [], [], [], 0.0, 0.0
    for order, present in zip(top, positives, strict=True):
        hits = [label in present for label in order[:k]]
        precision.append(sum(hits) / k)
        if not present:
            continue
        recall.append(sum(hits) / len(present))
        ideal = sum(1 / math.log2(j + 2) for j in range(min(k, len(present))))
        ndcg.append(sum(hit / math.log2(j + 2) for j, hit in enumerate(hits)) / ideal)
        found += sum(worth[label] for label in order[:k] if label in present)
        best += sum(sorted((worth[label] for label in present), reverse=True)[:k])
    mean = [sum(x) / len(x) for x in (precision, ndcg, recall)]
    return dict(zip(("precision", "ndcg", "recall", "psp"), (*mean, found / best), strict=True))


def test_streamed_measures_are_those_of_the_formulas() -> None:
    rng = np.random.default_rng(0)
    counts = rng.integers(1, 100, 30)
    top = [rng.permutation(30)[:5].tolist() for _ in range(50)]
    positives = [set(rng.choice(30, rng.integers(0, 9), replace=False).tolist()) for _ in range(50)]
    parts = [TopEvaluator(counts, 1000) for _ in range(2)]
    for start in range(0, 50, 7):
        some = range(start, min(start + 7, 50))
        cells = [(i, label) for i, j in enumerate(some) for label in positives[j]]
        rows, labels = zip(*cells, strict=True)
        parts[start % 2].update([top[i] for i in some], rows, labels)
    parts[0].merge(parts[1])
    found = parts[0].compute()
    worth = {c: 1 + (math.log(1000) - 1) * 2.5**0.55 * (n + 1.5) ** -0.55 for c, n in enumerate(counts)}
    assert found["items"] == 50
    for k in (1, 3, 5):
        for name, want in reference(top, positives, worth, k).items():
            assert found[name][k] == pytest.approx(want), (name, k)


def test_propensities_are_one_minus_what_is_missed() -> None:
    p = propensities([0, 1, 10, 10**6], 10**6)
    assert (np.diff(p) > 0).all()
    assert p[-1] == pytest.approx(1, abs=0.02)
    assert p[1] == pytest.approx(1 / (1 + (math.log(10**6) - 1)), rel=1e-12)  # (b + 1)^a cancels


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TopEvaluator([1], 10, ks=()), "ks is"),
        (lambda: TopEvaluator([1, 2], 10).update([[0, 1]], [], []), "K at least 5"),
        (lambda: TopEvaluator([1], 10).merge(TopEvaluator([1], 10, (2,))), "other k's"),
        (lambda: propensities([1], 2), "at least 3"),
        (
            lambda: fit_bands(HeldOutCells(*(torch.zeros(2),) * 2, torch.zeros(2).long(), torch.ones(2)), [1]),
            "some of them",
        ),
    ],
)
def test_what_cannot_be_is_refused(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]


def drawn(n: int, counts: np.ndarray, lines: np.ndarray, seed: int = 0) -> HeldOutCells:
    """Cells whose η is a line of their band."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, len(counts), n)
    z = rng.normal(-1, 2, n)
    a, b = lines[bands_of(counts)[labels]].T
    y = rng.random(n) < 1 / (1 + np.exp(-(a * z + b)))
    return HeldOutCells(*(torch.from_numpy(x) for x in (z, y.astype(float), labels)), torch.ones(n))


def test_bands_find_their_lines_and_share_strength() -> None:
    counts = np.array([0, 1, 2, 3, 5, 1000])
    assert bands_of(counts).tolist() == [0, 1, 2, 2, 3, 10]
    lines = np.tile([1.0, 0.0], (11, 1))
    lines[2], lines[10] = (0.5, -1.0), (1.5, 1.0)
    fitted = fit_bands(drawn(200_000, counts, lines), counts)
    for label, band in enumerate(bands_of(counts)):
        assert fitted.slope[label] == pytest.approx(lines[band][0], abs=0.05)
        assert fitted.shift[label] == pytest.approx(lines[band][1], abs=0.05)
    few = drawn(3000, counts[:5], lines)
    alone = HeldOutCells(*(part[few.labels != 3] for part in few))  # but for one cell label 3's band has only label 2
    shared = fit_bands(alone, counts)
    assert shared.slope[2] == shared.slope[3]


def test_weights_stand_for_cells_that_were_not_drawn() -> None:
    counts = np.array([4, 4])
    lines = np.tile([0.8, -2.0], (4, 1))
    cells = drawn(100_000, counts, lines)
    negative = cells.targets == 0
    kept = ~negative | (torch.rand(100_000, generator=torch.Generator().manual_seed(0)) < 0.2)
    some = HeldOutCells(*(part[kept] for part in cells[:3]), torch.where(negative, 5.0, 1.0)[kept])
    whole, part = fit_bands(cells, counts), fit_bands(some, counts)
    assert part.slope[0] == pytest.approx(whole.slope[0].item(), abs=0.05)
    assert part.shift[0] == pytest.approx(whole.shift[0].item(), abs=0.05)


def test_a_band_without_cells_has_the_line_of_all() -> None:
    counts = np.array([1, 100])
    cells = drawn(50_000, counts[:1], np.tile([0.7, 0.3], (8, 1)))
    fitted = fit_bands(cells, counts)
    assert fitted.slope[1] == pytest.approx(fitted.slope[0].item(), abs=0.01)
