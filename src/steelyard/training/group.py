"""The processes of one training job, which `torchrun` starts."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from steelyard.balance.processes import n_processes


@contextmanager
def joined() -> Iterator[None]:
    """Join the process group that `torchrun` prepared, if it did, and leave it in the end.

    After a failure it is not left, which would wait for other processes that may have ended or wait themselves.
    """
    launched = "WORLD_SIZE" in os.environ and "RANK" in os.environ and not dist.is_initialized()
    if not launched:
        yield
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("cuda:nccl,cpu:gloo" if torch.cuda.is_available() else "gloo")
    yield
    dist.destroy_process_group()


def rank() -> int:
    """Return this process's number, 0 outside a process group."""
    return dist.get_rank() if n_processes() > 1 else 0


def is_first() -> bool:
    """Return whether this process is the one that writes and prints."""
    return rank() == 0


def averaged(module: nn.Module) -> nn.Module:
    """Return `module`, in a process group with gradients that are averaged over processes; its buffers stay apart."""
    if n_processes() == 1:
        return module
    known = inspect.signature(DistributedDataParallel).parameters
    name = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"  # before torch 2.13
    options: dict[str, Any] = {name: False}
    return DistributedDataParallel(module, **options)


def barrier() -> None:
    """Wait for all processes of the job."""
    if n_processes() > 1:
        dist.barrier()


def agreed(value: bool) -> bool:
    """Return whether any process of the job passed True; every process must call it."""
    if n_processes() == 1:
        return value
    flag = torch.tensor(int(value))
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag)


def gathered(x: Tensor) -> list[Tensor]:
    """Return `x` of every process in order of rank, each on the CPU and of any length; every process must call it."""
    if n_processes() == 1:
        return [x]
    parts: list[Tensor | None] = [None] * n_processes()
    dist.all_gather_object(parts, x)
    return [part for part in parts if part is not None]


def broadcast(tensors: list[Tensor]) -> None:
    """Give every process the first one's tensors, in place."""
    if n_processes() > 1:
        for tensor in tensors:
            dist.broadcast(tensor, 0)
