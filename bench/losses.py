"""Forward + backward of every loss at 1024 × 600 as a multiple of torch's BCEWithLogitsLoss, in one run.

    make bench

Each round times torch's loss and then one of ours; the figure is the median over rounds of the ratio, so that a busy
machine slows both. Targets: 1 % positives as int8; the same with 30 % unknown; soft ones. Also LPR and PLM's masks.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from steelyard.balance import LabelPair, PartialLabelMasking
from steelyard.losses.table import TABLE

ITEMS, LABELS, ROUNDS = 1024, 600, 40


def once(loss: Callable[..., torch.Tensor], logits: torch.Tensor, targets: torch.Tensor) -> float:
    logits.grad = None
    start = time.perf_counter()
    loss(logits, targets).backward()
    return time.perf_counter() - start


def ratio(loss: Callable[..., torch.Tensor], logits: torch.Tensor, targets: torch.Tensor, plain: torch.Tensor) -> float:
    peer = torch.nn.BCEWithLogitsLoss()
    for _ in range(5):
        once(peer, logits, plain), once(loss, logits, targets)
    rounds = [(once(loss, logits, targets), once(peer, logits, plain)) for _ in range(ROUNDS)]
    return statistics.median(ours / theirs for ours, theirs in rounds)


def main() -> None:
    torch.manual_seed(0)
    logits = (3 * torch.randn(ITEMS, LABELS)).requires_grad_()
    hard = (torch.rand(ITEMS, LABELS) < 0.01).to(torch.int8)
    holes = torch.where(torch.rand(ITEMS, LABELS) < 0.3, -1, hard)
    soft, plain = torch.rand(ITEMS, LABELS), hard.float()
    counts = hard.sum(0).clamp_min(1)
    peer = torch.nn.BCEWithLogitsLoss()
    floor = statistics.median(once(peer, logits, plain) for _ in range(ROUNDS))
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {ITEMS} × {LABELS}")
    print(f"torch BCEWithLogitsLoss, forward + backward: {1e3 * floor:.2f} ms = 1.0\n")
    print(f"{'':26s}{'hard':>8s}{'unknown':>9s}{'soft':>8s}")
    for row in TABLE:
        loss = row.make(counts, ITEMS, "mean")
        figures = [ratio(loss, logits, targets, plain) for targets in (hard, holes, soft)]
        print(f"{row.name:26s}{figures[0]:8.1f}{figures[1]:9.1f}{figures[2]:8.1f}")
    print(f"{'LabelPair':26s}{ratio(LabelPair(), logits, hard, plain):8.1f}")
    plm = PartialLabelMasking(counts, ITEMS)
    masked = ratio(lambda z, t: z.sum() * plm.mask(t).sum(), logits, hard, plain)
    print(f"{'PLM mask':26s}{masked:8.1f}")


if __name__ == "__main__":
    main()
