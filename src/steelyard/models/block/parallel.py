"""Labels split over the processes of a job: each keeps some weights, sees all items, and results are added up.

A step gathers features, targets and items' numbers of all processes, goes through the labels that are here, and adds up
objective and gradients of features. Traffic per step is that of features and their gradients, 2 B D numbers, however
many labels there are.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from steelyard.balance.processes import n_processes, summed
from steelyard.models.block.sparse import SparseTargets


def share_of_labels(n_labels: int) -> slice:
    """Return the labels of this process: about equally many each, shares beginning at multiples of 4."""
    return _shares(n_labels)[dist.get_rank() if n_processes() > 1 else 0]


def _shares(n_labels: int) -> list[slice]:
    n = n_processes()
    each = -(-n_labels // (4 * n)) * 4
    return [slice(min(rank * each, n_labels), min((rank + 1) * each, n_labels)) for rank in range(n)]


def of_all_shares(x: Tensor, n_labels: int) -> Tensor:
    """Return values by label (n, …) for the labels of all processes, (L, …)."""
    return _joined(x, [share.stop - share.start for share in _shares(n_labels)])


def gathered(
    x: Tensor, targets: SparseTargets, items: Tensor | None
) -> tuple[Tensor, SparseTargets, Tensor | None, slice]:
    """Return features, targets and items' numbers of all processes, in their order, and which rows are of this one."""
    sizes = torch.zeros(n_processes(), 3, dtype=torch.int64, device=x.device)
    sizes[dist.get_rank()] = torch.tensor([len(x), len(targets.rows), targets.n_unknown])
    sizes = summed(sizes)
    n_rows, n_cells = sizes[:, 0].tolist(), sizes[:, 1].tolist()
    starts = [sum(n_rows[:rank]) for rank in range(len(n_rows))]
    first = starts[dist.get_rank()]
    features = _joined(x.detach(), n_rows)
    rows, labels, values = (_joined(part, n_cells) for part in (targets.rows + first, targets.labels, targets.values))
    shape = (sum(n_rows), targets.shape[1])
    joined = SparseTargets(rows, labels, values, shape, targets.fill, int(sizes[:, 2].sum()))
    numbers = None if items is None else _joined(items.to(x.device), n_rows)
    return features, joined, numbers, slice(first, first + len(x))


def _joined(x: Tensor, sizes: list[int]) -> Tensor:
    """Return the rows of all processes, of which there may be different numbers."""
    padded = x.new_zeros(max(sizes), *x.shape[1:])
    padded[: len(x)] = x
    parts = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(parts, padded)
    return torch.cat([part[:n] for part, n in zip(parts, sizes, strict=True)])


def of_all_labels(total: Tensor, gradient: Tensor | None, own: slice) -> tuple[Tensor, Tensor | None]:
    """Return objective and gradient of features summed over labels; gradients of this process's rows.

    They are as many times larger as there are processes, since gradients of processes are averaged.
    """
    if gradient is not None:
        gradient = summed(gradient)[own] * n_processes()
    return summed(total), gradient


def best_of_all(labels: Tensor, scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the best k labels (B, k) of those that processes found for the same items, equal ones by label."""
    n = torch.zeros(n_processes(), dtype=torch.int64, device=labels.device)
    n[dist.get_rank()] = labels.shape[1]
    sizes = summed(n).tolist()
    joined = torch.cat([_joined(x.t().contiguous(), sizes).t() for x in (labels.double(), scores.double())])
    all_labels, all_scores = joined.chunk(2)
    values, order = torch.sort(all_scores, dim=1, descending=True, stable=True)
    return all_labels.gather(1, order)[:, :k].long(), values[:, :k].to(scores.dtype)
