"""What a network is given: features, an image, or regions and words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from steelyard.data.dataset import ImageDataset
from steelyard.data.readers.regions import RegionDataset
from steelyard.data.subset import origin


class Input(NamedTuple):
    """Kind and shape of one input."""

    kind: Literal["features", "image", "pair"]
    shape: tuple[int, ...]
    """(F,) of features; (C, H, W) of an image, H = W = 0 where every image has its own; (R, F, T, V) of a pair: R
    regions of F features and T words out of V, number 0 being no word."""


def input_of(data: Any) -> Input:
    """Return what the items of `data` give a network to work on, told from the data set or from its first item.

    Features are floats (F,), images uint8 (C, H, W), a pair is a tuple of regions, floats (R, F), and words,
    integers (T,), from a data set that says how many words there are (`n_words`).
    """
    if len(data) == 0:
        raise ValueError("data holds no items: a network cannot be shaped without one")
    source = origin(data)[0]
    if isinstance(source, ImageDataset):
        return Input("image", (3, *(source.size or (0, 0))))
    x = data[0][0]
    if isinstance(source, RegionDataset):
        return Input("pair", (*x[0].shape, *x[1].shape, source.n_words))
    if isinstance(x, Tensor):
        if x.ndim == 3 and not x.is_floating_point():
            return Input("image", tuple(x.shape))
        if x.ndim == 1 and x.numel():
            return Input("features", tuple(x.shape))
        found = f"of shape {tuple(x.shape)} and {str(x.dtype).removeprefix('torch.')}"
    else:
        found = f"a {type(x).__name__}"
    raise ValueError(
        f"the first item of data is {found}: give features (F,), images as uint8 (C, H, W), or regions and words "
        "(steelyard.data.readers.regions)"
    )


PIXELS = 400_000
"""Of the images at a time: 16 of 160 × 160. With 256 at once Lite0 takes about twice as long for each."""


def in_pieces(network: Callable[[Any], Tensor], x: Any) -> Tensor:
    """Return `network(x)` row by row the same, some images at a time where `x` are images on the CPU."""
    if not isinstance(x, Tensor) or x.ndim != 4 or x.device.type != "cpu":
        return network(x)
    n = max(1, PIXELS // (x.shape[2] * x.shape[3]))
    return network(x) if len(x) <= n else torch.cat([network(piece) for piece in x.split(n)])
