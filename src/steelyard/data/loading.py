"""Items in batches, read here or by worker processes, with an error when a worker dies."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

WORKER_DIED = "a process that reads items was killed, perhaps because memory ran out: use fewer (train.workers)"


def loader(data: Any, slices: Any, workers: int, pin: bool) -> DataLoader[Any]:
    """Return a loader of (inputs, targets, index) of the items that `slices` lists, a batch each, for `fetched`.

    It draws no random number of the global generators. Inputs are stacked, where they are tuples part by part.
    """
    return DataLoader(
        _Fetched(data),
        batch_sampler=slices,
        num_workers=workers,
        collate_fn=_collated,
        pin_memory=pin,
        persistent_workers=workers > 0,
        generator=torch.Generator(),
        worker_init_fn=beginning() if workers else None,
    )


def beginning() -> partial[None]:
    """Return the function that each process of a loader calls first, its `worker_init_fn`."""
    return partial(_begin, os.getpid())


def _begin(parent: int, worker: int) -> None:
    """Leave Ctrl-C to the parent process; if that was killed already, exit, since torch would wait forever."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.excepthook = lambda *_: None  # which multiprocessing calls where one who asked for a tensor is gone meanwhile
    if multiprocessing.get_start_method() != "forkserver" and os.getppid() != parent:
        os._exit(1)


def fetched(batches: DataLoader[Any]) -> Iterator[Any]:
    """Yield the batches of a loader, or raise the exception it returns; the death of a process is one sentence.

    Errors of its data must be returned as values, because an EOFError, for one, signals a dead process.
    """
    iterator = _begun(batches)
    while True:
        try:
            batch = next(iterator, None)
        except (RuntimeError, ConnectionError, EOFError) as error:
            if not is_death_of_worker(error):
                raise
            with suppress(RuntimeError):  # torch's own notice, where the broken connection was seen before it
                time.sleep(0.2)
            raise ValueError(WORKER_DIED) from None
        if batch is None:
            return
        if isinstance(batch, Exception):
            raise batch
        yield batch


def _begun(batches: DataLoader[Any]) -> Iterator[Any]:
    """Start the processes of a loader; if one dies before all are running, raise only that."""
    try:
        return iter(batches)
    except RuntimeError as error:
        if not is_death_of_worker(error):
            raise
        hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
        error.__traceback__ = None  # frees torch's half-made iterator, whose destructor fails
        sys.unraisablehook = hook
    raise ValueError(WORKER_DIED)


def is_death_of_worker(error: Exception) -> bool:
    """Return whether `error` says that a process that reads items is dead; torch raises it wherever training is."""
    return not isinstance(error, RuntimeError) or str(error).startswith("DataLoader worker (pid")


class _Fetched(Dataset[Any]):
    """A data set that returns errors as values: a worker's traceback would bury their one sentence."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __getitems__(self, indices: Sequence[int]) -> Any:
        try:
            if hasattr(self.data, "__getitems__"):
                return self.data.__getitems__(indices)
            return [self.data[i] for i in indices]
        except (ValueError, OSError, EOFError) as error:
            return error.with_traceback(None)

    def __len__(self) -> int:
        return len(self.data)


def _collated(samples: Any) -> Any:
    """Stack samples into (inputs, targets, index); images of several sizes are refused in words."""
    if isinstance(samples, Exception):
        return samples
    inputs, targets, index = zip(*samples, strict=True)
    try:
        if isinstance(inputs[0], tuple):
            stacked: Any = tuple(torch.stack(part) for part in zip(*inputs, strict=True))
        else:
            stacked = torch.stack(inputs)
    except RuntimeError:
        return ValueError("images have several sizes: set data.size, the side in pixels to which all are brought")
    return stacked, torch.stack(targets), torch.tensor(index)
