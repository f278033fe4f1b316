"""Inputs brought to mean 0 and deviation 1, by statistics that travel with the weights."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from steelyard.data.sparse import is_wide
from steelyard.data.subset import origin
from steelyard.models.backbone import Statistics
from steelyard.models.inputs import Input

_IMAGES = 2000
_CELLS = 1 << 22  # of one block of features


class Normalise(nn.Module):
    """(x − mean) / std per channel of an image, per feature otherwise.

    Images of integers are 0..255 and become 0..1 first; images of floats are taken to lie in 0..1 already. One
    channel becomes three where the backbone wants three. Of a pair only the regions change; an all-zero region, which
    stands for none, stays zero.

    input: kind and shape; `statistics`: (mean, std) per channel, or None for 0 and 1 until `fit`; `channels`: those of
        the backbone.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, input: Input, statistics: Statistics | None, channels: int) -> None:
        super().__init__()
        self.kind, self.channels, self.given = input.kind, channels, statistics is not None
        shape = (channels, 1, 1) if self.kind == "image" else (input.shape[1 if self.kind == "pair" else 0],)
        mean, std = statistics or ((0.0,) * shape[0], (1.0,) * shape[0])
        self.register_buffer("mean", torch.tensor(mean).view(shape))
        self.register_buffer("std", torch.tensor(std).view(shape))

    def forward(self, x: Any) -> Any:
        """Return normalised inputs, floats."""
        if self.kind == "pair":
            regions, words = x
            there = (regions != 0).any(-1, keepdim=True)
            return torch.where(there, (regions.to(self.mean.dtype) - self.mean) / self.std, 0.0), words
        if self.kind == "image":
            mean, std = (self.mean, self.std) if x.is_floating_point() else (255 * self.mean, 255 * self.std)
            if x.shape[1] != self.channels:
                x = x.expand(-1, self.channels, -1, -1)
            return (x - mean) / std
        return (x.to(self.mean.dtype) - self.mean) / self.std

    @torch.no_grad()
    def fit(self, data: Any) -> None:
        """Take mean and deviation from training items; statistics that came with pretrained weights are kept.

        Of images and regions at most 2,000 items are looked at, evenly spaced; of features all. A feature that is
        always the same, to a millionth of its mean, is only centred. The deviation is the population's.
        """
        if self.given:
            return
        if is_wide(getattr(origin(data)[0], "inputs", None)):
            self._fit_sparse(data.inputs, data.labels.ids)
            return
        n = 0
        total = square = torch.zeros(self.mean.numel(), dtype=torch.float64)
        for first, block in self._blocks(data):
            x = block.double()
            if self.kind == "features" and not bool(torch.isfinite(x).all()):
                i, j = (~torch.isfinite(x)).nonzero()[0].tolist()
                name = data.labels.ids[first + i]
                raise ValueError(
                    f"feature {j} of item {name!r} is {x[i, j]}: fill in or remove values that are not numbers"
                )
            if n == 0:
                shift = x.mean(0)  # keeps the digits of features far from 0
            n += len(x)
            total, square = total + (x - shift).sum(0), square + ((x - shift) ** 2).sum(0)
        if n == 0:
            return
        mean = shift + total / n
        std = (square / n - (total / n) ** 2).clamp_min(0).sqrt()
        std = torch.where(std > 1e-6 * mean.abs(), std, 1.0)
        self.mean.copy_(mean.view_as(self.mean))
        self.std.copy_(std.view_as(self.std))

    def _fit_sparse(self, cells: Any, ids: Any) -> None:
        """Take mean and deviation of sparse features without writing them out."""
        odd = ~np.isfinite(cells.data)
        if odd.any():
            row, column = (part[odd][0] for part in cells.nonzero())
            raise ValueError(
                f"feature {column} of item {ids[int(row)]!r} is {cells.data[odd][0]}: fill or remove what is not a "
                "number"
            )
        exact = cells.astype(np.float64)
        mean = np.asarray(exact.mean(0)).ravel()
        std = np.sqrt(np.maximum(np.asarray(exact.multiply(exact).mean(0)).ravel() - mean**2, 0))
        self.mean.copy_(torch.from_numpy(mean))
        self.std.copy_(torch.from_numpy(np.where(std > 1e-6 * np.abs(mean), std, 1.0)))

    def _blocks(self, data: Any) -> Iterator[tuple[int, Tensor]]:
        """(number of the first item, inputs as rows (n, channels or features)) of one part of `data` after another."""
        every = max(1, math.ceil(len(data) / _IMAGES)) if self.kind != "features" else 1
        step = 50 if self.kind != "features" else max(1, _CELLS // self.mean.numel())
        chosen = list(range(0, len(data), every))
        for start in range(0, len(chosen), step):
            items = chosen[start : start + step]
            many = getattr(data, "__getitems__", None)
            inputs = [sample[0] for sample in (many(items) if many else map(data.__getitem__, items))]
            if self.kind == "image":
                rows = torch.cat([image.flatten(1).T for image in inputs]).double() / 255
                yield items[0], rows.expand(-1, self.channels)
            elif self.kind == "pair":
                regions = torch.cat([regions for regions, _ in inputs])
                yield items[0], regions[(regions != 0).any(-1)]
            else:
                yield items[0], torch.stack(inputs)
