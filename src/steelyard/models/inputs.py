"""Inputs of a network: features, an image, or regions and words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from steelyard.data.dataset import ImageDataset
from steelyard.data.readers.regions import RegionDataset
from steelyard.data.subset import origin


class Input(NamedTuple):
    """Kind and shape of the input of one item.

    Examples:
        >>> sy.models.Input("image", (3, 64, 64)).kind
        'image'
    """

    kind: Literal["features", "image", "pair"]
    """Kind of the input."""
    shape: tuple[int, ...]
    """(F,) for features; (C, H, W) for an image, with H = W = 0 if sizes differ; (R, F, T, V) for a pair: R regions
    with F features and T words from a vocabulary of V, where number 0 means no word."""


def input_of(data: Any) -> Input:
    """Return the kind and shape of the inputs in `data`, read from the data set or its first item.

    Args:
        data: items of features (F,), floats; of images (C, H, W), uint8; or of pairs of regions, floats (R, F), and
            words, integers (T,), from a data set whose `n_words` is the size of the vocabulary.
    Examples:
        >>> data = sy.data.ArrayDataset(np.zeros((2, 5)), sy.Labels([[1, 0], [0, 1]]))
        >>> sy.models.input_of(data)
        Input(kind='features', shape=(5,))
    """
    if len(data) == 0:
        raise ValueError("data holds no items: give at least one, to determine the shape of the network")
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
        shown = f"of shape {tuple(x.shape)} and {str(x.dtype).removeprefix('torch.')}"
    else:
        shown = f"a {type(x).__name__}"
    raise ValueError(
        f"the first item of data is {shown}: give features (F,), images as uint8 (C, H, W), or regions and words "
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
