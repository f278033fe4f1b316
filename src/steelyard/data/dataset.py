"""Items with their labels: arrays in memory, and image files decoded when asked for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, TypedDict

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, issparse
from torch import Tensor
from torch.utils.data import Dataset

from steelyard.data.cache import ImageCache, stamp_of
from steelyard.data.images import REMEDY, BadImage, Size, as_size, decode
from steelyard.labels import Labels
from steelyard.labels.ids import check_several
from steelyard.labels.targets import UNKNOWN

Sample: TypeAlias = tuple[Tensor, Tensor, int]
"""(input, target (L,), index): images are uint8 (C, H, W), features float32."""


class Decoding(TypedDict, total=False):
    """Settings of image decoding; see the arguments of `ImageDataset`."""

    size: Size
    on_bad_image: Literal["error", "skip"]
    cache: str | os.PathLike[str] | None


class ArrayDataset(Dataset[Sample]):
    """Inputs held in one array, with their labels.

    Features (N, …) may have any numeric dtype; images are uint8 (N, C, H, W) or (N, H, W).

    Args:
        inputs: row i belongs to row i of `labels`. Features are returned as float32, images as uint8 (C, H, W). A SciPy
            sparse matrix (N, F) stays sparse; single rows are returned dense.
        labels: the `Labels`.
        note: a sentence about where the data came from.
        weights: weight of each item in training, (N,), at least 0; None gives every item the weight 1.

    Examples:
        >>> labels = sy.Labels([[1, 0], [0, -1], [1, 1]], ["cat", "dog"])
        >>> data = sy.data.ArrayDataset(np.eye(3), labels)
        >>> len(data)
        3
        >>> features, target, index = data[1]
        >>> features.tolist(), target.tolist(), index
        ([0.0, 1.0, 0.0], [0, -1], 1)
    """

    def __init__(self, inputs: Any, labels: Labels, note: str = "", weights: Any = None) -> None:
        inputs = sparse_features(inputs) if issparse(inputs) else np.asanyarray(inputs)
        n, shape = len(labels), inputs.shape
        if inputs.ndim < 2 or inputs.dtype.kind not in "biuf":
            raise ValueError(f"inputs has shape {shape} of {inputs.dtype}: give numbers, one row per item, (N, …)")
        if shape[0] != n:
            raise ValueError(f"inputs has {shape[0]} rows, but labels has {n} items: they must be equal")
        self.inputs, self.labels, self.note = inputs, labels, note
        self.weights = None if weights is None else item_weights(weights, len(labels))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Sample:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        """Return many items at once, as a torch `DataLoader` asks for them."""
        index = checked_index(indices, len(self))
        return _samples(as_tensor(as_inputs(self.inputs[index])).unbind(), self.labels, index)


def item_weights(weights: Any, n: int) -> NDArray[np.float32]:
    """Return checked weights of n items, (N,), float32."""
    values = np.asarray(weights, np.float64)
    if values.shape != (n,):
        raise ValueError(f"sample_weight has shape {values.shape}: give one number for each of {n} items")
    if not (np.isfinite(values).all() and (values >= 0).all() and values.any()):
        raise ValueError("sample_weight holds something else than numbers of at least 0, or is zero throughout: fix it")
    return values.astype(np.float32)


def sparse_features(inputs: Any) -> csr_array:
    """Return a scipy sparse matrix as CSR of float32, in which no cell is stored twice and no 0 is."""
    if inputs.dtype.kind not in "biuf" or inputs.ndim != 2:
        shape = f"sparse matrix of shape {inputs.shape} of {inputs.dtype}"
        raise ValueError(f"inputs is a {shape}: give numbers, one row per item")
    cells = csr_array(inputs, dtype=np.float32, copy=True)
    cells.sum_duplicates()
    cells.eliminate_zeros()
    return cells


def as_inputs(array: Any) -> NDArray[Any]:
    """Return rows in the form of `ArrayDataset`'s items: images uint8 (n, C, H, W), features float32."""
    if issparse(array):
        return np.asarray(array.toarray(), np.float32)
    if array.dtype != np.uint8 or array.ndim < 3:
        return np.asarray(array.astype(np.float32, copy=False))
    return np.asarray(array[:, None] if array.ndim == 3 else array)


def as_tensor(array: NDArray[Any]) -> Tensor:
    """Return an array as a tensor that shares its memory, where that may be written to; else a copy."""
    whole = np.ascontiguousarray(array)
    return torch.from_numpy(whole if whole.flags.writeable else whole.copy())


class ImageDataset(Dataset[Sample]):
    """Image files, decoded on request to RGB uint8 (3, H, W); see `steelyard.data.images.decode`.

    Any torch `DataLoader` takes it, with forked or spawned workers; whole batches are fetched at once.

    Args:
        paths: one image file per item, as a sequence or an Arrow array of strings.
        labels: the `Labels`; row i belongs to path i.
        size: side of a square, or (height, width), to which every image is resized without cropping. None keeps each
            image's own size; batches then need your own collate function.
        on_bad_image: what happens when an image is missing or cannot be decoded: "error" raises `BadImage`; "skip"
            returns a black image whose labels are all unknown, so that it affects no loss and no score, and adds its
            index to `.skipped`.
        cache: folder for decoded images; needs `size`. See `steelyard.data.cache.ImageCache`.
        boxes: crop of each image, (N, 4): (left, top, right, bottom) in pixels of the upright image. None: no crops.
        note: a sentence about where the data came from.
    Examples:
        >>> from PIL import Image
        >>> Image.new("RGB", (40, 30), "red").save("a.png")
        >>> data = sy.data.ImageDataset(["a.png"], sy.Labels([[1, 0]]), size=8)
        >>> image, target, index = data[0]
        >>> image.shape, image[:, 0, 0].tolist()
        (torch.Size([3, 8, 8]), [255, 0, 0])
    """

    def __init__(
        self,
        paths: Sequence[str | os.PathLike[str]] | pa.Array | pa.ChunkedArray,
        labels: Labels,
        size: Size = None,
        on_bad_image: Literal["error", "skip"] = "error",
        cache: str | os.PathLike[str] | None = None,
        boxes: NDArray[Any] | None = None,
        note: str = "",
    ) -> None:
        check_several(paths, "paths")
        if len(paths) != len(labels):
            raise ValueError(f"paths has {len(paths)} entries, but labels has {len(labels)} items: they must be equal")
        if on_bad_image not in ("error", "skip"):
            raise ValueError(f"on_bad_image is {on_bad_image!r}: give 'error' or 'skip'")
        if cache is not None and size is None:
            raise ValueError("cache is given without size: it keeps images of one size, so give size, e.g. 224")
        self.labels, self.note = labels, note
        self.on_bad_image: Literal["error", "skip"] = on_bad_image
        self.size = as_size(size)
        self.boxes = None if boxes is None else _checked_boxes(boxes, len(labels))
        # One Arrow array instead of a million strings: forked workers then share it instead of copying it page by page.
        self._paths = _as_texts(paths)
        self._cache = None
        if cache is not None and self.size is not None:
            self._cache = ImageCache(cache, self.paths, self.size, self.boxes)
        # One byte per item, shared by all worker processes.
        self._skipped = torch.zeros(len(labels), dtype=torch.uint8)
        if on_bad_image == "skip":
            self._skipped.share_memory_()

    @property
    def paths(self) -> list[str]:
        """The image file of each item."""
        return list(self._paths.to_pylist())

    def resized(self, size: int | tuple[int, int], cache: str | os.PathLike[str] | None = None) -> ImageDataset:
        """Return the same images and labels, decoded to another size."""
        return ImageDataset(self._paths, self.labels, size, self.on_bad_image, cache, self.boxes, self.note)

    def take(self, index: NDArray[np.int64]) -> ImageDataset:
        """Return the images at `index` with their labels."""
        boxes = None if self.boxes is None else self.boxes[index]
        paths, labels = self._paths.take(pa.array(index)), self.labels.take(index)
        return ImageDataset(paths, labels, self.size, self.on_bad_image, boxes=boxes, note=self.note)

    @property
    def skipped(self) -> NDArray[np.int64]:
        """Indices of the bad images met so far, in this process or in a worker; `labels` still holds their rows."""
        return np.flatnonzero(self._skipped.numpy())

    def note_skipped(self, index: NDArray[np.int64]) -> None:
        """Record bad images that were met while features of all images were computed."""
        self._skipped[torch.from_numpy(index)] = 1

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Sample:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        """Return many items at once, as a torch `DataLoader` asks for them."""
        index = checked_index(indices, len(self))
        images, bad = [], []
        for i in index.tolist():
            image = self._image(i)
            bad.append(image is None)
            images.append(np.zeros((3, *(self.size or (1, 1))), np.uint8) if image is None else image)
        samples = _samples([torch.from_numpy(image) for image in images], self.labels, index)
        for (_, target, i), is_bad in zip(samples, bad, strict=True):
            if is_bad:
                target.fill_(UNKNOWN)
                self._skipped[i] = 1
        return samples

    def _image(self, i: int) -> NDArray[np.uint8] | None:
        """Return image `i` from the cache or its file; None if it is bad and may be skipped."""
        path = str(self._paths[i])
        if self._cache is not None and (kept := self._cache.read(i, path)) is not None:
            return kept
        stamp = stamp_of(path)  # before the file is read: should it change meanwhile, it will be decoded again
        skip = self.on_bad_image == "skip"
        if skip and self._cache is not None and self._cache.is_bad(i, stamp):
            return None
        image = None
        try:
            image = decode(path, self.size, None if self.boxes is None else tuple(self.boxes[i].tolist()))
        except BadImage as error:
            if not skip:
                raise BadImage(f"{error}: {REMEDY}") from None
        if self._cache is not None:
            self._cache.write(i, stamp, image)
        return image


def _samples(inputs: Sequence[Tensor], labels: Labels, index: NDArray[np.int64]) -> list[Sample]:
    targets = torch.from_numpy(labels.rows(index)).unbind()
    return list(zip(inputs, targets, index.tolist(), strict=True))


def checked_index(indices: Sequence[int], n: int) -> NDArray[np.int64]:
    """Return positions among n items, those from the end counted from the start."""
    index = np.asarray(indices, np.int64)
    if ((index < -n) | (index >= n)).any():
        raise IndexError(f"index {index[(index < -n) | (index >= n)][0]} is out of range for {n} items")
    return np.where(index < 0, index + n, index)


def _checked_boxes(boxes: NDArray[Any], n: int) -> NDArray[np.float64]:
    b = np.asarray(boxes, np.float64)
    if b.shape != (n, 4):
        raise ValueError(f"boxes has shape {b.shape}: give (left, top, right, bottom) for each of {n} items")
    bad = ~(np.isfinite(b).all(1) & (b[:, 0] < b[:, 2]) & (b[:, 1] < b[:, 3]))
    if bad.any():
        i = int(np.flatnonzero(bad)[0])
        raise ValueError(f"boxes[{i}] is {b[i].tolist()}: give left < right and top < bottom, in pixels")
    return b


def _as_texts(paths: Any) -> pa.Array:
    """Return paths as one Arrow array; an Arrow array stays one."""
    if isinstance(paths, pa.ChunkedArray):
        paths = paths.combine_chunks()
    if isinstance(paths, pa.Array):
        return paths.cast(pa.large_string())
    texts = [os.fspath(path) for path in paths]
    try:
        return pa.array(texts, pa.large_string())
    except UnicodeEncodeError as error:
        raise ValueError(f"paths holds {error.object!a:.80}, a name that is not UTF-8: rename that file") from None
