"""Samplers: eq. 1, exact plans, one process for each draw, resuming."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.utils.data import DataLoader

from steelyard.balance import draws
from steelyard.balance.samplers import ClassAware, Shuffled, Undersample
from steelyard.labels import Labels


def long_tail(n_items: int = 400, n_labels: int = 7, seed: int = 0) -> Labels:
    """Correlated labels of very different frequency; the last one is never positive."""
    rng = np.random.default_rng(seed)
    common = rng.random((n_items, 1))
    values = (0.6 * rng.random((n_items, n_labels)) + 0.4 * common) < 0.7 * 0.6 ** np.arange(n_labels)
    values[:, -1] = False
    return Labels(values.astype(np.int8))


LABELS = long_tail()
SAMPLERS: dict[str, Callable[..., ClassAware | Undersample]] = {
    "class_aware": lambda **options: ClassAware(LABELS, visits=37, **options),
    "class_aware_default": lambda **options: ClassAware(LABELS, **options),
    "undersample": lambda **options: Undersample(LABELS, 23, **options),
    "undersample_all": lambda **options: Undersample(LABELS, 10**6, **options),
}
PLAN = [182, 48, 223, 212, 146, 345, 265, 223, 124, 46, 296, 92]
SUBSET = [354, 240, 223, 86, 364, 165, 124, 172, 196, 182, 257, 152]
every_sampler = pytest.mark.parametrize("make", SAMPLERS.values(), ids=SAMPLERS.keys())


def z_of_epoch(labels: Labels, visits: int, seed: int) -> np.ndarray:
    """(positives drawn − N_e Σ_j p(i|j)) / √(Σ_j N_e p(i|j)(1 − p(i|j))), label by label."""
    y = labels.values.astype(float)
    n = y.sum(0)
    seen = n > 0
    p = (y.T @ y)[:, seen] / n[seen]
    drawn = labels.rows(np.fromiter(ClassAware(labels, visits, seed=seed), np.int64)).sum(0)
    deviation = np.sqrt(visits * (p * (1 - p)).sum(1))
    z = np.divide(drawn - visits * p.sum(1), deviation, out=np.zeros(len(n)), where=deviation > 0)
    assert np.array_equal(drawn[deviation == 0], (visits * p.sum(1))[deviation == 0])
    np.testing.assert_allclose(labels.resampled_prior(), p.sum(1) / seen.sum(), rtol=1e-12)
    return z


def test_frequencies_are_those_of_equation_1(shared_data: Path) -> None:
    z = np.array([z_of_epoch(long_tail(seed=seed), 3000, seed) for seed in range(12)])
    assert np.abs(z).max() < 4.5  # 72 labels that vary
    assert 0.7 < z[:, :-1].std() < 1.3
    with np.load(shared_data / "labels" / "voc_mlt.npz") as file:
        voc = Labels(file["Y"])
    with np.load(shared_data / "labels" / "coco_mlt.npz") as file:
        coco = Labels(file["Y"])
    assert ClassAware(voc).visits == 194  # 775 / 4, rounded up
    assert len(ClassAware(voc)) == 194 * 20
    for labels in (voc, coco):
        assert np.abs(z_of_epoch(labels, 2000, seed=1)).max() < 4.5


def test_every_class_is_visited_in_every_round_and_its_items_evenly() -> None:
    starts, members = LABELS.items_by_label()
    one_hot = Labels(np.eye(5, dtype=np.int8))
    rounds = np.reshape(list(ClassAware(one_hot, 200, seed=3)), (200, 5))
    assert (np.sort(rounds, axis=1) == np.arange(5)).all()
    orders = Counter(map(tuple, rounds.tolist()))
    assert len(orders) > 80  # of 120
    rare = int(np.flatnonzero(LABELS.counts)[-1])
    own = members[starts[rare] : starts[rare + 1]]
    assert 1 < len(own) < 40
    only = Labels(LABELS.values[:, [rare]])
    plan = list(ClassAware(only, 400 * len(own), seed=1))
    repeats, pairs = np.count_nonzero(np.diff(plan) == 0), len(plan) - 1
    assert abs(repeats - pairs / len(own)) < 4.5 * np.sqrt(pairs / len(own))
    drawn = Counter(plan)
    assert set(drawn) == set(own.tolist())
    z = (np.array(list(drawn.values())) - 400) / np.sqrt(400 * (1 - 1 / len(own)))
    assert np.abs(z).max() < 4.5


def test_an_epoch_over_more_labels_than_items_ends() -> None:
    """1,000 items of 20,000 labels: the authors' rule would draw hundreds of times as many items as there are."""
    rng = np.random.default_rng(0)
    labels = Labels((rng.random((200, 4000)) < rng.uniform(0, 0.2, 4000)).astype(np.int8))
    sampler = ClassAware(labels)
    n_classes = int((labels.counts > 0).sum())
    assert sampler.visits == -(-int(labels.counts.max()) // 4)
    assert sampler.visits * n_classes > 100 * labels.n_items
    assert len(sampler) == len(list(sampler)) == 12 * labels.n_items
    visited = np.zeros(labels.n_items)
    for epoch in range(8):
        sampler.set_epoch(epoch)
        visited += np.bincount(sampler.left(), minlength=labels.n_items)
    weight = (labels.values / np.maximum(labels.counts, 1)).sum(1)  # an item is drawn in proportion to Σ y/n
    want = visited.sum() * weight / weight.sum()
    assert np.abs(visited - want).max() < 6 * np.sqrt(want.max())
    assert len(ClassAware(labels, visits=3)) == 3 * n_classes  # what is asked for is done


@pytest.mark.parametrize(("n_items", "n_labels", "largest"), [(1142, 20, 775), (1909, 80, 1128)])
def test_the_splits_of_the_paper_have_the_epochs_of_its_authors(n_items: int, n_labels: int, largest: int) -> None:
    values = np.zeros((n_items, n_labels), np.int8)
    values[:largest, 0] = 1
    values[np.arange(1, n_labels), np.arange(1, n_labels)] = 1
    assert len(ClassAware(Labels(values))) == -(-largest // 4) * n_labels


def test_undersample_takes_s_of_each_class_and_no_item_twice() -> None:
    sampler = Undersample(LABELS, 23)
    inclusion = np.zeros(len(LABELS))
    for epoch in range(200):
        sampler.set_epoch(epoch)
        plan = list(sampler)
        assert len(set(plan)) == len(plan) == len(sampler)
        positives = LABELS.rows(plan)
        assert (positives.sum(0) >= np.minimum(23, LABELS.counts)).all()
        assert positives.any(1).all()
        assert len(plan) <= 23 * np.count_nonzero(LABELS.counts)
        inclusion[plan] += 1
    n = LABELS.counts.astype(float)
    chance = 1 - np.prod(np.where(LABELS.values == 1, 1 - np.minimum(1, 23 / np.maximum(n, 23)), 1), axis=1)
    spread = np.sqrt(200 * chance * (1 - chance))
    z = (inclusion - 200 * chance)[spread > 0] / spread[spread > 0]
    assert np.abs(z).max() < 5
    assert (chance == 1).any()
    assert (inclusion[chance == 1] == 200).all()
    whole = list(Undersample(LABELS, 10**6))
    assert sorted(whole) == np.flatnonzero(LABELS.values.any(1)).tolist()
    assert whole != sorted(whole)


@every_sampler
def test_reproducible_by_seed_and_epoch(make: Callable[..., ClassAware | Undersample]) -> None:
    first, second = make(), make()
    plans = []
    for epoch in (0, 1, 2):
        first.set_epoch(epoch)
        second.set_epoch(epoch)
        plans.append(list(first))
        assert plans[-1] == list(first) == list(second)
        assert all(isinstance(item, int) for item in plans[-1][:3])
    plans.append(list(make(seed=1)))
    assert len({tuple(plan) for plan in plans}) == 4


def test_the_plan_never_changes() -> None:
    """The same numbers on every machine and in every version."""
    assert list(ClassAware(LABELS, 2, seed=5)) == PLAN
    sampler = Undersample(LABELS, 2, seed=5)
    sampler.set_epoch(3)
    assert list(sampler) == SUBSET


@every_sampler
def test_a_loader_resumes_by_its_batches(make: Callable[..., ClassAware | Undersample]) -> None:
    sampler = make(seed=9)
    sampler.set_epoch(4)
    loader = DataLoader(torch.arange(len(LABELS)), batch_size=8, sampler=sampler)
    batches = [batch.tolist() for batch in loader]
    assert len(loader) == len(batches)
    sampler.set_epoch(4, start=3 * 8)
    assert [batch.tolist() for batch in loader] == batches[3:]


def test_more_processes_than_classes() -> None:
    plan = list(ClassAware(LABELS, 50))
    shares = [list(ClassAware(LABELS, 50, rank=rank, num_replicas=100)) for rank in (0, 57, 99)]
    assert shares == [plan[rank::100][: len(plan) // 100] for rank in (0, 57, 99)]


def test_an_epoch_of_a_billion_draws_starts_at_once() -> None:
    sampler = ClassAware(LABELS, 200_000_000, rank=1, num_replicas=3)
    assert len(sampler) == 200_000_000 * 6 // 3
    sampler.set_epoch(0, start=200_000_000 * 6 - 7)
    assert LABELS.rows(list(sampler)).any(1).tolist() == [True, True]


def _share(rank: int, port: int, folder: str) -> None:
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    samplers = [ClassAware(LABELS, 11), Undersample(LABELS, 9)]
    for sampler in samplers:
        sampler.set_epoch(2)
    aware = torch.tensor(list(samplers[0]))
    gathered = [torch.zeros_like(aware) for _ in range(2)]
    dist.all_gather(gathered, aware)
    np.savez(Path(folder) / f"{rank}.npz", aware=np.stack([g.numpy() for g in gathered]), under=list(samplers[1]))
    dist.destroy_process_group()


def test_two_real_processes_share_a_plan(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.start_processes(_share, (port, str(tmp_path)), nprocs=2, start_method="fork")
    aware, under = ClassAware(LABELS, 11), Undersample(LABELS, 9)
    for sampler in (aware, under):
        sampler.set_epoch(2)
    files = [np.load(tmp_path / f"{rank}.npz") for rank in range(2)]
    plan = list(aware)
    assert all(np.array_equal(file["aware"], [plan[0::2], plan[1::2]]) for file in files)
    plan = list(under)
    half = len(plan) // 2
    assert [file["under"].tolist() for file in files] == [plan[0::2][:half], plan[1::2][:half]]


def test_unknown_labels_are_not_visited() -> None:
    labels = Labels([[1, -1], [-1, 1], [0, -1], [-1, -1]])
    assert set(ClassAware(labels, 50)) == {0, 1}
    assert sorted(Undersample(labels, 3)) == [0, 1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ClassAware(Labels([[0, 0]])), "no positive label"),
        (lambda: Undersample(Labels([[-1]]), 1), "no positive label"),
        (lambda: ClassAware(LABELS, 0), "visits is 0"),
        (lambda: Undersample(LABELS, 0), "per_class is 0"),
        (lambda: ClassAware(LABELS, rank=2, num_replicas=2), "rank is 2 of 2"),
        (lambda: ClassAware(LABELS, rank=1), "rank is 1 of 1"),
        (lambda: ClassAware(LABELS, seed=-1), "seed is -1"),
        (lambda: ClassAware(LABELS, visits=1.5), "visits is 1.5: give a whole number"),
        (lambda: Shuffled(2.5), "n_items is 2.5: give a whole number"),
        (lambda: Shuffled(3, rank=0.0, num_replicas=1), "rank is 0.0: give a whole number"),
        (lambda: Shuffled(3, rank=0, num_replicas="2"), "num_replicas is '2': give a whole number"),
        (lambda: Shuffled(3).set_epoch(1.0), "epoch is 1.0: give a whole number"),
        (lambda: Shuffled(3).set_epoch(1, start=0.5), "start is 0.5: give a whole number"),
        (lambda: ClassAware(LABELS).set_epoch(-1), "epoch is -1"),
        (lambda: ClassAware(LABELS, 2).set_epoch(0, start=13), "start is 13, but epoch 0 has 12 draws: give"),
    ],
)
def test_mistakes_are_one_sentence(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_whole_numbers_of_numpy_will_do() -> None:
    wanted = ClassAware(LABELS, 3, rank=1, num_replicas=2, seed=5)
    made = ClassAware(LABELS, np.int64(3), rank=np.int32(1), num_replicas=np.uint8(2), seed=np.int64(5))
    made.set_epoch(np.int64(0))
    assert list(made) == list(wanted)
    assert list(Undersample(LABELS, np.int8(2))) == list(Undersample(LABELS, 2))
    assert list(Shuffled(np.int64(7))) == list(Shuffled(7))


def test_draws_are_splitmix64() -> None:
    """Two outputs published for seed 1234567, and what is derived from them."""
    assert draws.bits(1234567, np.arange(2)).tolist() == [6457827717110365317, 3203168211198807973]
    assert draws.uniform(1234567, np.array([1]))[0] == (3203168211198807973 >> 11) / 2**53
    counters = np.array([5, 0, 3])
    assert np.array_equal(draws.bits(8, counters), draws.bits(8, np.arange(6))[counters])
    keys = {
        draws.key(seed, purpose, *rest) for seed in (0, 1, 2**64) for purpose in "ab" for rest in ((), (0,), (1, 0))
    }
    assert len(keys) == 18


def test_draws_below_and_distinct_are_even() -> None:
    counts = np.bincount(draws.below(draws.key(0, "t"), np.arange(70_000), 7), minlength=7)
    assert ((counts - 10_000) ** 2 / 10_000).sum() < 25
    for k, n in ((1, 1), (3, 40), (20, 40), (39, 40), (40, 40), (0, 5)):
        chosen = np.concatenate([draws.distinct(draws.key(seed, "d"), k, n) for seed in range(400)]).reshape(400, k)
        assert all(len(set(row)) == k for row in chosen.tolist())
        times = np.bincount(chosen.ravel(), minlength=n)
        spread = np.sqrt(400 * k / n * (1 - k / n))
        assert len(times) == n
        assert np.abs(times - 400 * k / n).max() <= 4.5 * spread
