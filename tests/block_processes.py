"""One process of two that share the labels of a head: run by test_block_processes through torchrun."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import Tensor

from steelyard.balance import PickedLabels
from steelyard.models.block import BlockHead, BlockOptimizer, SparseTargets, log_odds_of, top_labels
from test_block_annotation import N, objective_of
from test_block_annotation import head_of as annotated_head
from test_block_annotation import items as annotated_items
from test_block_head import OBJECTIVES, B, F, L, batch, head_of


def annotated(rank: int, out: str) -> tuple[list[Tensor], Tensor, int]:
    """Values of two epochs and the weights of this share, under paper 3's rule."""
    head, whole = BlockHead(F, L, block=8, split=True, dtype=torch.float64), annotated_head(False)
    head.weight.copy_(whole.weight[head.share])
    head.bias.copy_(whole.bias)
    objective = objective_of(PickedLabels(f"{out}/picked", N, L), q=0.5)
    (x, t), own, values = annotated_items(-1), slice(0, 10) if rank == 0 else slice(10, N), []
    for epoch in (1, 2):
        objective.start_epoch(epoch, 2)
        targets = SparseTargets.from_dense(t[own], -1)
        values.append(head.step(x[own], targets, objective, lr=0.1, index=torch.arange(N)[own]).total)
    return values, head.weight.detach(), head.share.start


def main(out: str) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    found = {}
    for name in ("BCE", "DB", "plm", "wan", "LDAM"):
        head = BlockHead(F, L, block=8, split=True, dtype=torch.float64, optimizer=BlockOptimizer("adam"))
        whole = head_of()
        head.weight.copy_(whole.weight[head.share])
        head.bias.copy_(whole.bias)
        objective, values, own = OBJECTIVES[name](), [], slice(0, 3) if rank == 0 else slice(3, B)
        for step in range(3):
            x, t = batch("unknown", step)
            given = x[own].clone().requires_grad_()
            targets = SparseTargets.from_dense(t[own])
            value = head.step(given, targets, objective, lr=0.1, index=torch.arange(B)[own]).total
            value.backward()
            values.append((value.detach(), given.grad / 2))  # type: ignore[operator]
        weights = [torch.zeros(L, F, dtype=torch.float64) for _ in range(2)]
        mine = torch.zeros(L, F, dtype=torch.float64)
        mine[head.share] = head.weight
        dist.all_gather(weights, mine)
        top = top_labels(head, batch("unknown", 9)[0], 5, log_odds_of(objective), block=4)
        found[name] = (values, sum(weights), top.labels, head.share.start)
    found["annotation"] = annotated(rank, out)
    torch.save(found, f"{out}/{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
