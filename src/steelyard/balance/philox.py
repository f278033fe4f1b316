"""Counter-based random numbers: Philox4x32-10 (Salmon et al. 2011), the same bits in torch, numpy and Triton.

u(seed, epoch, index, label) is a pure function: no state, any order, any device, any number of processes.
The key is the seed (low, high 32 bits); the counter is (label // 4, index low, index high, epoch), and of its four
outputs number label % 4 is taken. Its upper 24 bits over 2²⁴ are a float32 in [0, 1), exactly.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

MASK = 0xFFFFFFFF
MULTIPLIER = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)


def philox(counter: tuple[Any, Any, Any, Any], key: tuple[int, int], rounds: int = 10) -> tuple[Any, Any, Any, Any]:
    """Return the four outputs for counters and key given as 64-bit integers (tensors or arrays) below 2³²."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(rounds):
        left, right = c0 * MULTIPLIER[0], c2 * MULTIPLIER[1]  # 64-bit products: low and high words are exact
        c0, c1, c2, c3 = (right >> 32) & MASK ^ c1 ^ k0, right & MASK, (left >> 32) & MASK ^ c3 ^ k1, left & MASK
        k0, k1 = (k0 + WEYL[0]) & MASK, (k1 + WEYL[1]) & MASK
    return c0, c1, c2, c3


def uniform(seed: int, epoch: int, index: Tensor, n_labels: int, first: int = 0) -> Tensor:
    """Return u(seed, epoch, index, label) as float32 (B, n_labels) for items `index` (B,) and labels from `first` on.

    `first` is a multiple of 4.
    """
    index = index.to(torch.int64).unsqueeze(1)
    group = first // 4 + torch.arange((n_labels + 3) // 4, device=index.device).unsqueeze(0)
    zero = torch.zeros_like(index + group)
    counter = (group + zero, (index & MASK) + zero, (index >> 32) + zero, zero + epoch)
    words = torch.stack(philox(counter, (seed & MASK, (seed >> 32) & MASK)), dim=-1)
    return (words.flatten(1)[:, :n_labels] >> 8).to(torch.float32) * 2.0**-24


def uniform_at(seed: int, epoch: int, index: Tensor, labels: Tensor) -> Tensor:
    """Return u(seed, epoch, index, label) as float32 (n,) of single cells, given by item and label."""
    index, labels = index.to(torch.int64), labels.to(torch.int64)
    counter = (labels // 4, index & MASK, index >> 32, torch.full_like(index, epoch))
    words = torch.stack(philox(counter, (seed & MASK, (seed >> 32) & MASK)))
    return (words.gather(0, (labels % 4)[None])[0] >> 8).to(torch.float32) * 2.0**-24
