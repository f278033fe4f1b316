"""Some items of a data set, as a data set, and those of them whose images were skipped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias, final, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.utils.data import Dataset

from steelyard.data.dataset import ImageDataset, as_inputs, as_tensor, checked_index
from steelyard.data.images import BadImage, decode
from steelyard.labels import Labels
from steelyard.labels.inputs import as_index

_LONGEST_REASON = 160  # characters

AnySample: TypeAlias = tuple[Any, Tensor, int]
"""(input, target (L,), index), whatever the input is."""


@runtime_checkable
class Labelled(Protocol):
    """Interface of every data set: `labels`, a length, and items (input, target (L,), index)."""

    @property
    def labels(self) -> Labels:
        """The labels of all items."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> AnySample: ...


@final
class Subset(Dataset[AnySample]):
    """Items of `data` selected by `index`, in that order, renumbered from 0.

    A subset of a subset refers to the original data: item i of a subset is item `.index[i]` of `.data`. Labels keep
    their names and order.

    Args:
        data: a data set with `labels`, such as `ArrayDataset` or `ImageDataset`.
        index: (n,) distinct positions in `data`.

    Examples:
        >>> data = sy.data.ArrayDataset(np.eye(3), sy.Labels([[1, 0], [0, 1], [1, 1]]))
        >>> subset = sy.data.Subset(data, [2, 0])
        >>> len(subset), subset[0][0].tolist(), list(subset.labels.ids)
        (2, [0.0, 0.0, 1.0], ['2', '0'])
    """

    labels: Labels
    data: Any
    index: NDArray[np.int64]

    def __init__(self, data: Labelled, index: ArrayLike) -> None:
        self.labels = data.labels.take(index)
        chosen: NDArray[np.int64] = as_index(index, len(data), "index").astype(np.int64)
        if isinstance(data, Subset):
            chosen, data = data.index[chosen], data.data
        chosen.setflags(write=False)
        self.data, self.index = data, chosen

    @property
    def paths(self) -> list[str]:
        """The image file of each item, where `data` has `paths`."""
        paths = self.data.paths
        return [paths[i] for i in self.index.tolist()]

    @property
    def inputs(self) -> NDArray[Any]:
        """The inputs of all items as one new array, where `data` has `inputs`."""
        inputs: NDArray[Any] = self.data.inputs[self.index]
        return inputs

    @property
    def weights(self) -> NDArray[np.float32] | None:
        """Weight of each item in training; None if `data` has none."""
        weights = getattr(self.data, "weights", None)
        return None if weights is None else weights[self.index]

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, index: int) -> AnySample:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[AnySample]:
        """Return many items at once, as a torch `DataLoader` asks for them."""
        places = checked_index(indices, len(self))
        rows = self.index[places].tolist()
        many: Callable[[list[int]], list[AnySample]] | None = getattr(self.data, "__getitems__", None)
        samples = [self.data[i] for i in rows] if many is None else many(rows)
        return [(item, target, position) for (item, target, _), position in zip(samples, places.tolist(), strict=True)]


def source_of(data: Any) -> Any:
    """Return the data set that a subset is of, or the data set itself."""
    return data.data if isinstance(data, Subset) else data


def item_inputs(data: Any, index: NDArray[np.int64]) -> Tensor:
    """Return the inputs of some items of an `ArrayDataset` or a subset of one."""
    rows = data.index[index] if isinstance(data, Subset) else index
    return as_tensor(as_inputs(source_of(data).inputs[rows]))


def origin(data: Labelled) -> tuple[Labelled, NDArray[np.int64]]:
    """Return the data set that the items of `data` come from, and their places in it."""
    return (data.data, data.index) if isinstance(data, Subset) else (data, np.arange(len(data)))


def skipped_at(data: Any) -> NDArray[np.int64]:
    """Return the positions in `data` of the images that were skipped so far, see `ImageDataset.skipped`."""
    source, index = origin(data)
    return np.flatnonzero(np.isin(index, source.skipped if isinstance(source, ImageDataset) else []))


def skipped_sentence(data: Any, at: NDArray[np.int64], total: int | None = None) -> str:
    """Return how many images were left out, the first and what is wrong with it, without its full stop; "" for none.

    Arguments: `data`; `at`, positions in it; `total`, how many there are where others are of other data.
    """
    source, index = origin(data)
    if not len(at) or not isinstance(source, ImageDataset):
        return ""
    n, first = total or len(at), int(index[at[0]])
    path, box = source.paths[first], None if source.boxes is None else tuple(source.boxes[first].tolist())
    try:
        decode(path, source.size, box)
        reason = "it can be read now"
    except (BadImage, OSError) as error:
        reason = str(error).removeprefix(path).strip()
    if n == 1:
        return f"1 image could not be read and was left out: {path} ({reason:.{_LONGEST_REASON}})"
    return f"{n:,} images could not be read and were left out: first {path} ({reason:.{_LONGEST_REASON}})"
