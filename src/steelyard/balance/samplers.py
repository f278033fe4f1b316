"""Samplers that balance classes, over any number of processes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import final

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray
from torch.utils.data import Sampler

from steelyard.balance import draws
from steelyard.labels import Labels
from steelyard.labels.inputs import as_whole

MOST_DRAWS = 12
"""Draws per item in an epoch of `ClassAware`, unless the visits of each class are given."""
_CHUNK = 1 << 16  # draws worked out at a time


class PlannedSampler(Sampler[int], ABC):
    """A sampler whose epoch is a plan of draws, each a pure function of (seed, epoch, position in the plan).

    Process r of R takes the draws r, r + R, r + 2R, …; the last ≤ R − 1 are dropped, so that all processes make
    equally many. `rank` and `num_replicas` are those of `torch.distributed` where it is initialised, else 0 and 1.
    """

    def __init__(self, rank: int | None, num_replicas: int | None, seed: int) -> None:
        super().__init__()
        running = dist.is_available() and dist.is_initialized()
        world, here = (dist.get_world_size(), dist.get_rank()) if running else (1, 0)
        self.num_replicas = world if num_replicas is None else as_whole(num_replicas, "num_replicas")
        self.rank = here if rank is None else as_whole(rank, "rank")
        if not 0 <= self.rank < self.num_replicas:
            raise ValueError(
                f"rank is {self.rank} of {self.num_replicas} replicas: it must lie between 0 and that, less 1"
            )
        self.seed = draws.check_seed(seed)

    def set_epoch(self, epoch: int, start: int = 0) -> None:
        """Make the next iteration that of `epoch`, from draw `start` of its plan on.

        `start` counts the draws that all processes together have used: steps × batch size × processes. An interrupted
        epoch resumes exactly, even with another number of processes.
        """
        epoch, start = as_whole(epoch, "epoch"), as_whole(start, "start")
        if epoch < 0:
            raise ValueError(f"epoch is {epoch}: give a whole number, at least 0")
        size = self._plan(epoch)
        if not 0 <= start <= size:
            raise ValueError(f"start is {start}, but epoch {epoch} has {size} draws: give a start from 0 to {size}")
        self.epoch, self.start, self._size = epoch, start, size

    def __len__(self) -> int:
        return (self._size - self.start) // self.num_replicas

    def __iter__(self) -> Iterator[int]:
        first, n = self.start + self.rank, len(self)
        step = max(1, _CHUNK // self.num_replicas)
        for done in range(0, n, step):
            positions = np.arange(done, min(done + step, n)) * self.num_replicas + first
            yield from self._draw(positions).tolist()

    def left(self) -> NDArray[np.int64]:
        """Return the remaining draws of the epoch all at once, in the order of iteration."""
        return self._draw(np.arange(len(self)) * self.num_replicas + self.start + self.rank)

    @abstractmethod
    def _plan(self, epoch: int) -> int:
        """Prepare the plan of `epoch` and return how many draws it has."""

    @abstractmethod
    def _draw(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the items drawn at increasing `positions` of the prepared plan."""


class ClassSampler(PlannedSampler):
    """A planned sampler that visits classes: those with a positive, each a list of its items."""

    def __init__(self, labels: Labels, rank: int | None, num_replicas: int | None, seed: int) -> None:
        super().__init__(rank, num_replicas, seed)
        self._classes = np.flatnonzero(labels.counts)
        if len(self._classes) == 0:
            raise ValueError("labels holds no positive label: there is no class to visit")
        self._starts, self._items = labels.items_by_label()
        self._counts, self._n_items = labels.counts, labels.n_items


@final
class Shuffled(PlannedSampler):
    """Visit every item once per epoch, in random order.

    Args:
        n_items: N.
        rank: the number of this process; that of `torch.distributed` where it is initialised, else 0.
        num_replicas: how many processes share an epoch; likewise, else 1.
        seed: of the order.

    Examples:
        >>> sampler = sy.balance.Shuffled(n_items=6)
        >>> sorted(sampler)
        [0, 1, 2, 3, 4, 5]
        >>> sampler.set_epoch(1)
        >>> parts = [list(sy.balance.Shuffled(6, rank=rank, num_replicas=2)) for rank in (0, 1)]
        >>> sorted(parts[0] + parts[1])  # two processes share an epoch
        [0, 1, 2, 3, 4, 5]
    """

    def __init__(self, n_items: int, rank: int | None = None, num_replicas: int | None = None, seed: int = 0) -> None:
        super().__init__(rank, num_replicas, seed)
        self.n_items = as_whole(n_items, "n_items")
        if self.n_items < 1:
            raise ValueError(f"n_items is {n_items}: there is nothing to visit")
        self.set_epoch(0)

    def _plan(self, epoch: int) -> int:
        self._order = draws.shuffled(draws.key(self.seed, "shuffled", epoch), self.n_items)
        return self.n_items

    def _draw(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._order[positions]


@final
class ClassAware(ClassSampler):
    """Visit every class N_e times per epoch, drawing an item that has it each time, with replacement.

    A round visits each class once, in a random order; an epoch is N_e rounds. Label i then comes with the frequency of
    `labels.resampled_prior()`. Classes without positives are not visited, and items
    without positives are never drawn.

    Formula:
        p̂_i = 1/C Σ_j n_{i∩j}/n_j

    Args:
        labels: of all items.
        visits: N_e; by default N_max/4 rounded up (N_max positives of the largest class), but then an epoch ends after
            12 draws per item, in the middle of a round if need be: COCO-MLT's 80 labels come to 11.8, and thousands of
            labels would come to hundreds.
        rank: the number of this process; that of `torch.distributed` where it is initialised, else 0.
        num_replicas: how many processes share an epoch; likewise, else 1.
        seed: of the draws.

    Examples:
        >>> labels = sy.Labels(np.repeat([[1, 0], [0, 1]], [95, 5], axis=0))  # 95 items of one class, 5 of another
        >>> drawn = list(sy.balance.ClassAware(labels, visits=100))
        >>> sum(item < 95 for item in drawn), sum(item >= 95 for item in drawn)
        (100, 100)
    """

    def __init__(
        self,
        labels: Labels,
        visits: int | None = None,
        rank: int | None = None,
        num_replicas: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(labels, rank, num_replicas, seed)
        self._most = MOST_DRAWS * labels.n_items if visits is None else None
        self.visits = -(-int(labels.counts.max()) // 4) if visits is None else as_whole(visits, "visits")
        if self.visits < 1:
            raise ValueError(f"visits is {visits}: every class is visited at least once per epoch")
        self.set_epoch(0)

    def _plan(self, epoch: int) -> int:
        self._order_stream = draws.key(self.seed, "class-aware order", epoch)
        self._item_stream = draws.key(self.seed, "class-aware item", epoch)
        n_draws = self.visits * len(self._classes)
        return n_draws if self._most is None else min(n_draws, self._most)

    def _draw(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        n = len(self._classes)
        rounds, round_index = np.unique(positions // n, return_inverse=True)
        order = np.argsort(draws.bits(self._order_stream, rounds[:, None] * n + np.arange(n)), axis=1)
        visited = self._classes[order[round_index, positions % n]]
        chosen = draws.below(self._item_stream, positions, self._counts[visited])
        drawn: NDArray[np.int64] = self._items[self._starts[visited] + chosen]
        return drawn


@final
class Undersample(ClassSampler):
    """Take S random items of every class each epoch, all items of a class that has fewer, and no item twice.

    The epoch's plan is the union of the classes' draws in random order: an item drawn for two of its labels comes
    once, so an epoch has at most S·C draws, and how many depends on the epoch. Classes and items without positives
    are left out.

    Args:
        labels: of all items.
        per_class: S (the paper: 500 MultiMNIST, 1000 COCO).
        rank: the number of this process; that of `torch.distributed` where it is initialised, else 0.
        num_replicas: how many processes share an epoch; likewise, else 1.
        seed: of the draws.

    Examples:
        >>> labels = sy.Labels(np.repeat([[1, 0], [0, 1]], [95, 5], axis=0))
        >>> drawn = list(sy.balance.Undersample(labels, per_class=20))
        >>> sum(item < 95 for item in drawn), sum(item >= 95 for item in drawn)  # all items of the rare class
        (20, 5)
    """

    def __init__(
        self,
        labels: Labels,
        per_class: int,
        rank: int | None = None,
        num_replicas: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(labels, rank, num_replicas, seed)
        self.per_class = as_whole(per_class, "per_class")
        if self.per_class < 1:
            raise ValueError(f"per_class is {per_class}: take at least one item of every class")
        self.set_epoch(0)

    def _plan(self, epoch: int) -> int:
        chosen = [
            self._items[
                self._starts[c]
                + draws.distinct(draws.key(self.seed, "undersample", epoch, c), min(self.per_class, n), n)
            ]
            for c, n in zip(self._classes.tolist(), self._counts[self._classes].tolist(), strict=True)
        ]
        taken = np.zeros(self._n_items, bool)
        taken[np.concatenate(chosen)] = True
        union = np.flatnonzero(taken)
        self._order = union[draws.shuffled(draws.key(self.seed, "undersample order", epoch), len(union))]
        return len(self._order)

    def _draw(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._order[positions]
