"""Checks of the arguments of a table of labels."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from steelyard.labels.targets import UNKNOWN

LEGEND = "a label is 1 present, 0 absent, between them soft, or -1 unknown"


def as_values(values: ArrayLike | torch.Tensor) -> NDArray[Any]:
    """Return `values` as a numpy array of real numbers."""
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        values = (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"values has dtype {array.dtype}: {LEGEND}")
    return array


def as_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return (N, L), N ≥ 0 items and L ≥ 1 labels."""
    if len(shape) != 2 or shape[0] < 0 or shape[1] < 1:
        raise ValueError(f"the table has shape {tuple(shape)}: give N items and at least one label, (N, L)")
    return int(shape[0]), int(shape[1])


def as_whole(value: Any, name: str) -> int:
    """Return a whole number, numpy's among them, as an int; 1.5, True and "2" are refused."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise ValueError(f"{name} is {value!r:.60}: give a whole number") from None


def as_index(index: ArrayLike, n: int, name: str) -> NDArray[np.int64]:
    """Return whole numbers (k,) from 0 to n − 1."""
    numbers = np.asarray(index)
    if numbers.ndim != 1 or (numbers.dtype.kind not in "iu" and len(numbers)):
        raise ValueError(f"{name} has dtype {numbers.dtype} and shape {numbers.shape}: give whole numbers, (k,)")
    if len(numbers) and not (numbers.min() >= 0 and numbers.max() < n):
        k = int(np.argmax((numbers < 0) | (numbers >= n)))
        raise ValueError(f"{name}[{k}] is {numbers[k]}: it must lie between 0 and {n - 1}")
    return numbers.astype(np.int64, copy=False)


def bad_values(values: NDArray[Any]) -> NDArray[np.bool_] | None:
    """Return the mask of values outside {−1} ∪ [0, 1], None where there is none."""
    if values.dtype == bool or values.size == 0:
        return None
    bad: NDArray[np.bool_] = ~((values >= 0) & (values <= 1) | (values == UNKNOWN))
    return bad if bad.any() else None
