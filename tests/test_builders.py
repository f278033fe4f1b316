"""Builders: the papers' figures, the right chances, splits that keep rare labels on both sides."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from steelyard.balance.split import stratified_split
from steelyard.data.builders import (
    exponential_counts,
    exponential_long_tail,
    keep_labels,
    keep_positives,
    keep_single_positive,
    pareto_counts,
    pareto_long_tail,
)
from steelyard.data.dataset import ArrayDataset
from steelyard.data.opening import open_data
from steelyard.data.readers.mnist import mnist
from steelyard.data.readers.multi_mnist import (
    balanced_pairs,
    imbalanced_pairs,
    multi_mnist_digits,
    multi_mnist_held_out,
)
from steelyard.labels import UNKNOWN, Labels

VOC_MLT = [6, 34, 8, 14, 154, 17, 249, 29, 479, 4, 240, 48, 11, 20, 775, 100, 5, 82, 7, 64]
DIGITS = [5923, 3550, 2128, 1276, 764, 458, 274, 164, 98, 59]
PAL_CELLS, PPL_CELLS, SPL_CELLS = [0, 2, 3, 4, 5, 6, 9, 11], [0, 2, 3, 4, 5, 6, 8, 11], [2, 4, 8, 9]
HELD_OUT = [0, 6, 9, 11]


def stored_with(values: np.ndarray, fill: int) -> Labels:
    items, columns = np.nonzero(values != fill)
    return Labels.from_cells(items, columns, values[items, columns], values.shape, fill)


def random_values(n_items: int, n_labels: int, seed: int, unknown: float = 0.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    values = (rng.random((n_items, n_labels)) < 0.6 / np.arange(1, n_labels + 1)).astype(np.int8)
    values[rng.random(values.shape) < unknown] = UNKNOWN
    return values


# ---- long tails


@pytest.mark.parametrize(
    ("n_max", "n_classes", "totals"),
    [(5000, 10, [11203, 12406, 13996, 17023, 20431]), (500, 100, [9502, 10847, 12608, 15907, 19573])],
)
def test_totals_of_imbalanced_cifar(n_max: int, n_classes: int, totals: list[int]) -> None:
    assert [int(exponential_counts(n_max, n_classes, rho).sum()) for rho in (200, 100, 50, 20, 10)] == totals


def test_counts_are_exact_where_floating_point_is_not() -> None:
    assert exponential_counts(5923, 10, 100).tolist() == DIGITS
    assert exponential_counts(5000, 10, 10).tolist() == [5000, 3871, 2997, 2320, 1796, 1391, 1077, 834, 645, 500]
    wrong = 0
    for base in range(2, 30):  # n_max ρ^(−i/3) with ρ = base³ is whole at every i
        assert exponential_counts(base**3, 4, base**3).tolist() == [base**3, base**2, base, 1]
        wrong += [int(base**3 * (base**3) ** (-i / 3)) for i in range(4)] != [base**3, base**2, base, 1]
    assert wrong > 0
    assert exponential_counts(7, 1, 3).tolist() == [7]
    for n_max, rho in ((np.int64(5923), 100), (np.int32(5923), np.int64(100)), (5923, np.float32(100))):
        assert exponential_counts(n_max, np.int64(10), rho).tolist() == DIGITS  # whose powers no int64 holds
    assert exponential_counts(7, 4, 1).tolist() == [7] * 4


def test_exponential_long_tail_picks_by_seed(shared_data: Path) -> None:
    raw = np.frombuffer((shared_data / "cifar-10-batches-bin" / "data_batch_1.bin").read_bytes(), np.uint8)
    classes = raw.reshape(-1, 3073)[:, 0]
    chosen = exponential_long_tail(classes, 5000, 100, seed=1)
    assert np.bincount(classes[chosen]).tolist() == exponential_counts(5000, 10, 100).tolist()
    assert (np.diff(chosen) > 0).all()
    assert np.array_equal(chosen, exponential_long_tail(classes, 5000, 100, seed=1))
    assert not np.array_equal(chosen, exponential_long_tail(classes, 5000, 100, seed=2))


def test_pareto_counts_end_as_the_published_sets_do() -> None:
    assert pareto_counts(800, 20)[[0, -1]].tolist() == [800, 4]
    assert pareto_counts(1200, 80)[[0, -1]].tolist() == [1200, 6]
    assert pareto_counts(10, 20).min() == 1
    assert (np.diff(pareto_counts(800, 20)) < 0).all()
    x_last = 100 ** (1 / 6)
    assert 1 - x_last**-6 == pytest.approx(0.99)
    assert 800 * x_last**-7 == pytest.approx(3.713, abs=1e-3)


def test_pareto_long_tail_of_voc_looks_like_voc_mlt(shared_data: Path) -> None:
    with np.load(shared_data / "features" / "voc2012-lite0-160.npz") as file:
        train = Labels((file["Y_train"] == 1).astype(np.int8), file["classes"])
    for seed in range(3):
        chosen = pareto_long_tail(train, 800, seed=seed)
        long_tail = train.take(chosen)
        assert 1100 <= len(chosen) <= 1300
        assert (np.diff(chosen) > 0).all()
        assert len(long_tail.groups()["tail"]) == 8
        assert len(long_tail.groups()["head"]) in (5, 6)
        assert np.abs(np.log(long_tail.counts / VOC_MLT)).max() < np.log(1.55)
        assert np.corrcoef(np.log(long_tail.counts), np.log(VOC_MLT))[0, 1] > 0.98
        aim = np.sort(pareto_counts(800, 20))
        assert np.abs(np.sort(long_tail.counts) - aim)[:8].max() <= 2


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.integers(1, 60))
def test_pareto_long_tail_keeps_every_label_and_takes_what_it_can(seed: int, n_max: int) -> None:
    values = random_values(80, 6, seed, unknown=0.2)
    values[:, 4] = 0
    values[:3, 5] = [1, 0, 0]
    labels = Labels(values)
    chosen = pareto_long_tail(labels, n_max, seed=seed)
    assert len(np.unique(chosen)) == len(chosen)
    counts = labels.take(chosen).counts
    assert np.array_equal(counts > 0, labels.counts > 0)
    ranked = np.argsort(-np.nan_to_num(labels.resampled_prior()), kind="stable")
    last = [c for c in ranked if labels.counts[c]][-1]
    aim = int(pareto_counts(n_max, int((labels.counts > 0).sum()))[-1])
    assert counts[last] >= min(aim, labels.counts[last])
    assert np.array_equal(chosen, pareto_long_tail(labels, n_max, seed=seed))


# ---- missing labels


@pytest.mark.parametrize("unknown", [0.0, 0.3, 0.95])
@pytest.mark.parametrize("fraction", [0.05, 0.3, 0.9, 1.0])
def test_chances_of_kept_labels(unknown: float, fraction: float) -> None:
    values = random_values(6000, 8, 1, unknown)
    labels = Labels(values, names=list("abcdefgh"))
    pal, ppl = keep_labels(labels, fraction, seed=3).values, keep_positives(labels, fraction, seed=3).values
    assert ((pal == values) | (pal == UNKNOWN)).all()
    assert ((ppl == UNKNOWN) | (ppl == 1) & (values == 1)).all()
    for kept, of in ((pal, values != UNKNOWN), (ppl, values == 1)):
        for cells in (of, of & (values == 1), of & (np.arange(len(of)) % 2 == 0)[:, None]):
            n = cells.sum()
            assert abs((kept[cells] != UNKNOWN).sum() - fraction * n) <= 4.5 * np.sqrt(n * fraction * (1 - fraction))
    for made in (keep_labels(labels, fraction, seed=3), keep_positives(labels, fraction, seed=3)):
        assert made.names == labels.names
        assert made.ids == labels.ids
    assert fraction == 1 or not np.array_equal(pal, keep_labels(labels, fraction, seed=4).values)


def test_single_positive_is_one_of_the_positives_evenly() -> None:
    values = np.tile(np.array([[1, 1, 0, 1], [-1, 0, 0, -1], [0, 0, 1, -1]], np.int8), (3000, 1))
    kept = keep_single_positive(Labels(values), seed=2).values
    assert ((kept == UNKNOWN) | (kept == 1) & (values == 1)).all()
    assert (kept[1::3] == UNKNOWN).all()
    assert ((kept == 1).sum(1)[0::3] == 1).all()
    assert (kept[2::3, 2] == 1).all()
    chosen = (kept[0::3] == 1).sum(0)
    assert chosen[2] == 0
    assert np.abs(chosen[[0, 1, 3]] - 1000).max() < 4.5 * np.sqrt(3000 * 2 / 9)


@pytest.mark.parametrize("soft", [False, True])
def test_the_draw_does_not_depend_on_how_labels_are_stored(soft: bool) -> None:
    values = random_values(300, 7, 2, unknown=0.4).astype(np.float32)
    if soft:
        values[values == 1] = np.random.default_rng(0).choice([0.25, 0.75, 1.0], int((values == 1).sum()))
    one, other = stored_with(values, 0), stored_with(values, UNKNOWN)
    for build in (lambda y: keep_labels(y, 0.3), lambda y: keep_labels(y, 0.9), lambda y: keep_positives(y, 0.5)):
        assert np.array_equal(build(one).values, build(other).values)
    assert np.array_equal(keep_single_positive(one).values, keep_single_positive(other).values)
    assert ((keep_labels(one, 0.5).values == values) | (keep_labels(one, 0.5).values == UNKNOWN)).all()


def test_draws_never_change() -> None:
    """The same cells on every machine and in every version."""
    labels = Labels(np.ones((4, 3), np.int8))
    assert np.flatnonzero(keep_labels(labels, 0.5, seed=7).values == 1).tolist() == PAL_CELLS
    assert np.flatnonzero(keep_positives(labels, 0.5, seed=7).values == 1).tolist() == PPL_CELLS
    assert np.flatnonzero(keep_single_positive(labels, seed=7).values == 1).tolist() == SPL_CELLS
    assert stratified_split(Labels(np.eye(4, dtype=np.int8)[np.arange(12) % 4]), 0.34, seed=7)[1].tolist() == HELD_OUT


def test_kept_labels_of_a_large_sparse_table_stay_sparse() -> None:
    """A table whose dense form is refused; several blocks of draws."""
    n = 700_000
    items = np.repeat(np.arange(n), 3)
    columns = (np.arange(3 * n) * 1_000_003 // 7) % 4000
    labels = Labels.from_cells(items, columns, np.arange(3 * n) % 2, (n, 4000), UNKNOWN)
    for made, of in (
        (keep_labels(labels, 0.25), labels.n_known.sum()),
        (keep_positives(labels, 0.25), labels.counts.sum()),
    ):
        assert made.fill == UNKNOWN
        assert abs(made.n_known.sum() - of / 4) < 4.5 * np.sqrt(of * 3 / 16)
    single = keep_single_positive(labels)
    assert single.n_known.sum() == single.counts.sum() == len(np.unique(labels.positives()[0]))


def test_partial_labels_are_savable(tmp_path: Path) -> None:
    made = keep_labels(Labels(random_values(50, 4, 0)), 0.4, seed=1)
    made.save(tmp_path / "pal.npz")
    assert np.array_equal(Labels.load(tmp_path / "pal.npz").values, made.values)
    assert keep_labels(Labels(np.zeros((0, 3))), 0.5).values.shape == (0, 3)


# ---- splits


def lacking(values: np.ndarray, held: np.ndarray) -> int:
    """Labels with two positives or more that have none on one side."""
    n, h = (values == 1).sum(0), (values[held] == 1).sum(0)
    return int(((n > 1) & ((h == 0) | (h == n))).sum())


@settings(max_examples=250)
@given(
    hnp.arrays(np.int8, st.tuples(st.integers(2, 9), st.integers(1, 8)), elements=st.sampled_from([0, 0, 1, -1])),
    st.floats(0.02, 0.98),
    st.integers(0, 10**6),
)
def test_split_keeps_rare_labels_on_both_sides_whenever_any_split_does(
    values: np.ndarray, fraction: float, seed: int
) -> None:
    rest, held = stratified_split(Labels(values), fraction, seed)
    assert len(rest)
    assert len(held)
    assert np.array_equal(np.sort(np.concatenate([rest, held])), np.arange(len(values)))
    assert (np.diff(rest) > 0).all()
    assert (np.diff(held) > 0).all()
    sides = np.array(list(itertools.product([False, True], repeat=len(values))))
    n = (values == 1).sum(0)
    h = sides @ (values == 1).astype(int)
    possible = ((n > 1) & ((h == 0) | (h == n))).sum(1).min()
    assert lacking(values, held) == possible
    again = stratified_split(Labels(values), fraction, seed)
    assert np.array_equal(again[1], held)


@pytest.mark.parametrize("n_items", [8, 20, 34])
def test_split_finds_the_only_ways_to_keep_every_label(n_items: int) -> None:
    """Many labels of three positives that one way of halving the items, unknown to the search, is sure to keep."""
    for seed in range(12):
        rng = np.random.default_rng(seed)
        half = rng.permutation(n_items)[: n_items // 2]
        values = np.zeros((n_items, 5 * n_items // 2), np.int8)
        for label in values.T:
            label[rng.choice(half)] = 1
            label[rng.choice(np.setdiff1d(np.arange(n_items), half))] = 1
            label[rng.choice(np.flatnonzero(label == 0))] = 1
        assert lacking(values, half) == 0
        assert lacking(values, stratified_split(Labels(values), 0.3, seed)[1]) == 0


def test_split_always_holds_something_out() -> None:
    rest, held = stratified_split(Labels(np.eye(5, dtype=np.int8)), 0.4)
    assert (len(rest), len(held)) == (4, 1)
    rest, held = stratified_split(Labels(np.zeros((5, 2), np.int8)), 0.99)
    assert (len(rest), len(held)) == (1, 4)


def test_split_of_real_sets_is_near_the_share_of_every_label(shared_data: Path) -> None:
    tables = {name: np.load(shared_data / "mulan" / f"{name}.npz")["Y_train"] for name in ("corel5k", "enron")}
    tables |= {name: np.load(shared_data / "labels" / f"{name}.npz")["Y"] for name in ("voc_mlt", "coco_mlt")}
    for values in tables.values():
        labels = Labels(values)
        for fraction in (0.1, 0.3):
            _, held = stratified_split(labels, fraction, seed=1)
            assert abs(len(held) / len(labels) - fraction) < 0.012
            assert lacking(values, held) == 0
            off = np.abs(labels.take(held).counts - fraction * labels.counts)
            at_random = np.sqrt(labels.counts * fraction * (1 - fraction)) * np.sqrt(2 / np.pi)
            assert off.mean() < 0.45 * at_random.mean()
            single = np.flatnonzero(labels.counts == 1)
            assert labels.take(held).counts[single].sum() == 0


def test_split_of_a_hundred_thousand_items() -> None:
    values = random_values(100_000, 100, 5)
    rest, held = stratified_split(Labels(values), 0.2)
    assert len(held) == pytest.approx(20_000, abs=20)
    assert len(rest) + len(held) == 100_000
    assert np.abs(values[held].sum(0) - 0.2 * values.sum(0)).max() <= 2


def test_split_is_random_by_seed_and_even() -> None:
    values = np.repeat(np.eye(2, dtype=np.int8), [30, 10], axis=0)
    times = np.zeros(40)
    for seed in range(400):
        held = stratified_split(Labels(values), 0.3, seed)[1]
        assert values[held].sum(0).tolist() == [9, 3]
        times[held] += 1
    assert np.abs(times - 120).max() < 4.5 * np.sqrt(400 * 0.21)


# ---- MultiMNIST


def digits_of(folder: Path, train: bool = True) -> tuple[np.ndarray, np.ndarray]:
    data = mnist(folder, train)
    return data.inputs[:, 0], data.labels.values.argmax(1)


def test_imbalanced_multi_mnist_has_the_papers_figures(shared_data: Path) -> None:
    images, classes = digits_of(shared_data)
    pictures, labels = imbalanced_pairs(images, classes)
    assert pictures.shape == (14694, 32, 32)
    assert pictures.dtype == np.uint8
    assert labels.names == tuple("0123456789")
    n = np.array(DIGITS, float)
    others = n.sum() - 1
    mean, spread = n + (n.sum() - n) * n / others, np.sqrt((n.sum() - n) * n / others * (1 - n / others))
    assert (np.abs(labels.counts - mean) < 4 * spread).all()
    paper = np.array([9485, 6167, 3967, 2476, 1508, 875, 538, 331, 164, 105])
    assert (np.abs(labels.counts - paper) < 4 * np.sqrt(2) * spread).all()
    assert set(labels.values.sum(1).tolist()) == {1, 2}
    assert np.array_equal(pictures, imbalanced_pairs(images, classes)[0])


def test_multi_mnist_test_set_is_exact(shared_data: Path) -> None:
    images, classes = digits_of(shared_data, train=False)
    pictures, labels = balanced_pairs(images, classes)
    assert pictures.shape == (90_000, 32, 32)
    expected = [17840, 19080, 18256, 18080, 17856, 17136, 17664, 18224, 17792, 18072]
    assert labels.counts.tolist() == expected
    assert (labels.values.sum(1) == 2).all()
    assert (labels.values.reshape(10_000, 9, 10).sum(1) == 1 + 8 * np.eye(10)[classes]).all()


def test_digits_of_the_training_set_and_pairs_of_held_out_ones(shared_data: Path) -> None:
    images, classes = digits_of(shared_data)
    digits, pairs = multi_mnist_digits(shared_data, held_out=0.1)
    held = np.floor(0.1 * np.array(DIGITS) + 0.5).astype(int)
    assert digits.labels.counts.tolist() == (np.array(DIGITS) - held).tolist()
    assert (digits.labels.values.sum(1) == 1).all()
    assert digits.inputs.shape == (14694 - held.sum(), 1, 32, 32)
    assert (pairs.labels.values.sum(1) == 2).all()
    assert pairs.labels.counts.tolist() == [18 * int(held.max())] * 10
    number = {image.tobytes(): i for i, image in enumerate(images)}
    used = [number[np.ascontiguousarray(image[0, 2:-2, 2:-2]).tobytes()] for image in digits.inputs]
    assert (classes[used] == digits.labels.values.argmax(1)).all()
    assert not digits.inputs[..., [0, 1, -2, -1]].any()
    chosen = exponential_long_tail(classes, 5923, 100.0)
    assert set(used) < set(chosen.tolist())
    left = sorted(set(chosen.tolist()) - set(used))
    even = [i for c in range(10) for i in itertools.islice(itertools.cycle([j for j in left if classes[j] == c]), 592)]
    assert np.array_equal(pairs.inputs[:, 0], balanced_pairs(images[even], classes[even])[0])
    for split, part in {"digits": digits, "pairs": pairs}.items():
        opened = open_data(shared_data, format="multi_mnist", split=split).data
        assert isinstance(opened, ArrayDataset)
        assert np.array_equal(opened.inputs, part.inputs)


def test_pictures_without_held_out_digits(shared_data: Path) -> None:
    """Shifts undone, every picture of the training part holds one of the digits that may be in it, whole."""
    images, classes = digits_of(shared_data)
    rest, pairs = multi_mnist_held_out(shared_data, held_out=0.15)
    digits, same = multi_mnist_digits(shared_data, held_out=0.15)
    assert np.array_equal(pairs.inputs, same.inputs)  # the same digits are held out
    whole, labels = imbalanced_pairs(images, classes)
    places = {picture.tobytes(): i for i, picture in enumerate(whole)}
    index = np.array([places[picture.tobytes()] for picture in rest.inputs[:, 0]])
    assert np.array_equal(labels.values[index], rest.labels.values)
    n = len(digits.labels)
    assert abs(len(rest) / 14694 - (n / 14694) ** 2) < 0.01
    # A picture's first digit is the long tail's digit of the same number; that of each kept picture may be trained on.
    chosen = exponential_long_tail(classes, 5923, 100.0)
    free = {np.ascontiguousarray(image[0, 2:-2, 2:-2]).tobytes() for image in digits.inputs}
    assert all(images[chosen[i]].tobytes() in free for i in index.tolist())
    left_out = np.setdiff1d(np.arange(14694), index)
    share = np.mean([images[chosen[i]].tobytes() in free for i in left_out.tolist()])
    assert 0.35 < share < 0.55  # left out for the other digit in them


def marked_digits(per_class: int) -> tuple[np.ndarray, np.ndarray]:
    """Digits that are one bright point whose brightness is the image's number plus one."""
    images = np.zeros((10 * per_class, 28, 28), np.uint8)
    images[:, 14, 13] = np.arange(10 * per_class) + 1
    return images, np.repeat(np.arange(10), per_class)


def test_digits_are_shifted_evenly_and_lie_over_each_other() -> None:
    images, classes = marked_digits(20)
    shifts, partners = [], []
    for seed in range(30):
        pictures, labels = balanced_pairs(images, classes, seed)
        flat = pictures.reshape(len(pictures), -1)
        bright = np.sort(flat, axis=1)[:, -2:]
        alone = bright[:, 0] == 0  # both points fell on one place, where the brighter stays
        assert alone.mean() < 0.02
        for number in (bright[~alone, 0], bright[~alone, 1]):
            place = np.argmax(flat[~alone] == number[:, None], axis=1)
            shifts.append(np.stack([place // 32 - 16, place % 32 - 15], axis=1))
        first = np.repeat(np.arange(200), 9)[~alone]
        second = bright[~alone].astype(int).sum(1) - 2 - first
        assert np.array_equal(np.minimum(first, second) + 1, bright[~alone, 0])
        one_hot = np.eye(10)[classes[first]] + np.eye(10)[classes[second]]
        assert np.array_equal(labels.values[~alone], one_hot)
        partners.append(second)
    down, right = np.concatenate(shifts).T
    for moved in (down, right):
        assert (moved.min(), moved.max()) == (-6, 6)
        counts = np.bincount(moved + 6)
        expected = len(moved) / 13
        assert ((counts - expected) ** 2 / expected).sum() < 40  # twelve degrees of freedom
    assert abs(np.corrcoef(down, right)[0, 1]) < 4.5 / np.sqrt(len(down))
    drawn = np.bincount(np.concatenate(partners), minlength=200)
    assert ((drawn - drawn.mean()) ** 2 / drawn.mean()).sum() < 199 + 4.5 * np.sqrt(2 * 199)


def test_what_leaves_the_picture_is_lost_and_nothing_comes_round() -> None:
    images = np.full((20, 28, 28), 255, np.uint8)
    pictures, _ = imbalanced_pairs(images, np.arange(20) % 10, n_max=2, rho=1)
    covered = (pictures > 0).sum((1, 2))
    assert (pictures > 0).any((1, 2)).all()
    for picture in pictures:  # a union of two boxes, each at least 22 wide, is never split by a wrap
        rows = np.flatnonzero(picture.any(1))
        columns = np.flatnonzero(picture.any(0))
        assert len(rows) == rows[-1] - rows[0] + 1
        assert len(columns) == columns[-1] - columns[0] + 1
    assert covered.min() < 32 * 32


def test_a_digit_is_never_paired_with_itself() -> None:
    images, classes = marked_digits(2)
    for seed in range(40):
        pictures, labels = imbalanced_pairs(images, classes, n_max=2, rho=1, seed=seed)
        flat = np.sort(pictures.reshape(20, -1), axis=1)
        assert (flat[:, -1] != flat[:, -2]).all()
        assert labels.values[np.arange(20), classes].all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: exponential_counts(50, 10, 100), "n_max is 50"),
        (lambda: exponential_counts(50, 0, 10), "n_classes 0"),
        (lambda: exponential_counts(50.5, 10, 10), "n_max is 50.5: give a whole number"),
        (lambda: exponential_counts(50, 2.0, 10), "n_classes is 2.0: give a whole number"),
        (lambda: pareto_counts(10.5, 3), "n_max is 10.5: give a whole number"),
        (lambda: exponential_counts(50, 10, 0.5), "rho 0.5"),
        (lambda: exponential_long_tail([0, 1, 1], 2, 2.0), "class 0 has 1 items, but the long tail needs 2"),
        (lambda: exponential_long_tail([0.5], 1, 1), "dtype float64"),
        (lambda: pareto_counts(0, 3), "n_max is 0"),
        (lambda: pareto_long_tail(Labels([[1]]), 1, alpha=0), "alpha 0"),
        (lambda: keep_labels(Labels([[1]]), 0), "fraction is 0"),
        (lambda: keep_positives(Labels([[1]]), 1.5), "fraction is 1.5"),
        (lambda: keep_single_positive(Labels([[1]]), seed=-1), "seed is -1"),
        (lambda: stratified_split(Labels([[1], [1]]), 1.0), "fraction is 1.0"),
        (lambda: stratified_split(Labels([[1]]), 0.5), "at least two"),
        (lambda: imbalanced_pairs(np.zeros((3, 27, 28), np.uint8), [0, 1, 2]), r"shape \(3, 27, 28\)"),
        (lambda: balanced_pairs(np.zeros((3, 28, 28), np.uint8), [0, 1]), "one digit per image"),
        (lambda: balanced_pairs(np.zeros((3, 28, 28), np.uint8), [0, 1, 2]), r"digits \[0, 1, 2\]"),
    ],
)
def test_mistakes_are_one_sentence(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
