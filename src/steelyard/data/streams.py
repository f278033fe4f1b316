"""Streams of batches without labels: images, decoded on the way, and rows of numbers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress, islice
from typing import Any, Literal, NamedTuple, TypeAlias, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from steelyard.data.dataset import as_tensor
from steelyard.data.files import DataError
from steelyard.data.images import REMEDY, BadImage, Box, decode
from steelyard.data.loading import beginning, fetched

Kind: TypeAlias = Literal["image", "features"]
OnBad: TypeAlias = Literal["error", "skip"]


class InputBatch(NamedTuple):
    """Some items; the bad ones are in neither `inputs` nor `ids`, so that a batch may have no inputs at all."""

    inputs: Tensor
    """Images uint8 (B, C, H, W), features float32 (B, …)."""
    ids: list[str]
    """The name of each input, (B,)."""
    bad: list[tuple[str, str]]
    """(id, reason) of each item that could not be read."""
    paths: Sequence[str] = ()
    """The file of each input, (B,); empty where they have none."""


class Image(NamedTuple):
    """An image to be decoded."""

    id: str
    path: str
    """Image file; "" if there is none."""
    box: Box | None = None
    """Crop of the image; None for all of it."""
    reason: str = ""
    """Reason why it is bad, if known before it is opened."""


class Inputs(ABC):
    """A stream of items to predict from; `open_inputs` returns one.

    Attributes:
        kind: "image" or "features".
        n_items: number of items; None if it is known only at the end of the stream.
        note: what was guessed about the data and which setting overrides each guess.

    Examples:
        >>> np.save("rows.npy", np.eye(3))
        >>> inputs = sy.data.open_inputs("rows.npy")
        >>> inputs.kind, inputs.n_items
        ('features', 3)
        >>> [batch.ids for batch in inputs.batches(batch_size=2)]
        [['0', '1'], ['2']]
    """

    kind: Kind
    n_items: int | None
    note: str

    @abstractmethod
    def batches(self, batch_size: int = 256, workers: int = 0) -> Iterator[InputBatch]:
        """Return the items in their order, at most `batch_size` at a time; `workers` processes decode images."""


@final
class ImageInputs(Inputs):
    """Images, decoded a batch at a time by the rules of `steelyard.data.images.decode`.

    Arguments: `images`, called for each pass through them; `n_items`; `size`, (height, width) to which every image is
    squeezed, None if all have one size already; `on_bad_image`, "error" raises `BadImage` at the first image that is
    missing or cannot be decoded, "skip" lists it in `InputBatch.bad`; `note`.
    """

    kind: Kind = "image"

    def __init__(
        self,
        images: Callable[[], Iterable[Image]],
        n_items: int | None,
        size: tuple[int, int] | None,
        on_bad_image: OnBad,
        note: str = "",
    ) -> None:
        self.n_items, self.note = n_items, note
        self.images, self.size, self.on_bad_image = images, size, on_bad_image

    def batches(self, batch_size: int = 256, workers: int = 0) -> Iterator[InputBatch]:
        """Return the images in their order; `workers` processes decode them, 0 decodes here."""
        check_batches(batch_size, workers)
        # The names travel to the workers a batch at a time: a stream of any length needs the memory of a few batches.
        images = iter(self.images())
        loader: DataLoader[Any] = DataLoader(
            _Decoder(self.size),
            batch_sampler=iter(lambda: list(islice(images, batch_size)), []),
            num_workers=workers,
            collate_fn=_as_it_is,
            worker_init_fn=beginning() if workers else None,
        )
        for batch in fetched(loader):
            if batch.bad and self.on_bad_image == "error":
                raise BadImage(f"{batch.bad[0][1]}: {REMEDY}")
            yield batch


@final
class FeatureInputs(Inputs):
    """Rows of numbers, or of pixels, that are arrays already.

    Arguments: `blocks`, called for each pass, gives (inputs (n, …), their n ids) of any n; `n_items`; `on_bad`, what
    to do about a row that holds values that are not finite numbers, "error" or "skip"; `kind`; `note`.
    """

    def __init__(
        self,
        blocks: Callable[[], Iterable[tuple[NDArray[Any], Sequence[str]]]],
        n_items: int | None,
        on_bad: OnBad,
        kind: Kind = "features",
        note: str = "",
    ) -> None:
        self.kind, self.n_items, self.note = kind, n_items, note
        self._blocks, self._on_bad = blocks, on_bad

    def batches(self, batch_size: int = 256, workers: int = 0) -> Iterator[InputBatch]:
        """Return the rows in their order; `workers` is not used."""
        check_batches(batch_size, workers)
        for rows, ids in _regrouped(self._blocks(), batch_size):
            if self.kind == "image":
                yield InputBatch(as_tensor(rows if rows.ndim == 4 else rows[:, None]), list(ids), [])
                continue
            with np.errstate(over="ignore"):  # too large for float32 is not finite, and bad
                numbers = np.ascontiguousarray(rows, np.float32)
            is_bad = np.asarray(~np.isfinite(numbers).reshape(len(numbers), -1).all(axis=1))
            bad = [
                (name, f"the item {name!r} holds values that are not finite numbers") for name in compress(ids, is_bad)
            ]
            if bad and self._on_bad == "error":
                raise DataError(f"{bad[0][1]}: fix or remove it, or skip it with --skip-bad (on_bad_image='skip')")
            if bad:
                numbers, ids = numbers[~is_bad], list(compress(ids, ~is_bad))
            yield InputBatch(as_tensor(numbers), list(ids), bad)


def check_batches(batch_size: int, workers: int) -> None:
    """Check the number of items per batch and of workers."""
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}: give at least 1")
    if workers < 0:
        raise ValueError(f"workers is {workers}: give how many processes decode images, or 0")


@final
class _Decoder(Dataset["InputBatch | DataError"]):
    """Decodes images for a loader; errors are returned, not raised, because it may run in another process."""

    def __init__(self, size: tuple[int, int] | None) -> None:
        self.size = size

    def __getitems__(self, images: Sequence[Image]) -> InputBatch | DataError:
        """Return a batch, or the error that says why there is none."""
        pixels: list[NDArray[np.uint8]] = []
        ids: list[str] = []
        paths: list[str] = []
        bad: list[tuple[str, str]] = []
        for image in images:
            try:
                if image.reason:
                    raise BadImage(image.reason)
                pixels.append(decode(image.path, self.size, image.box))
                ids.append(image.id)
                paths.append(image.path)
            except BadImage as error:
                bad.append((image.id, str(error)))
            except OSError as error:  # not the image's fault
                why = error.strerror or error
                return DataError(f"{image.path} cannot be read ({why}): check its disk and try again")
        if not pixels:
            return InputBatch(torch.zeros((0, 3, *(self.size or (1, 1))), dtype=torch.uint8), ids, bad)
        shapes = [one.shape for one in pixels]
        if odd := next((i for i, shape in enumerate(shapes) if shape != shapes[0]), 0):
            sizes = " and ".join(f"{ids[i]!r} has {shapes[i][2]} × {shapes[i][1]} pixels" for i in (0, odd))
            return DataError(f"{sizes}: images of several sizes cannot form a batch: give size")
        return InputBatch(torch.from_numpy(np.stack(pixels)), ids, bad, paths)


def _as_it_is(batch: Any) -> Any:
    return batch


def _regrouped(
    blocks: Iterable[tuple[NDArray[Any], Sequence[str]]], n: int
) -> Iterator[tuple[NDArray[Any], Sequence[str]]]:
    """Return rows in groups of n, the last of at most n, whatever sizes they come in."""
    rows: NDArray[Any] | None = None
    ids: list[str] = []
    for block, names in blocks:
        rows, ids = block if rows is None else np.concatenate([rows, block]), [*ids, *names]
        whole = len(ids) // n * n
        for start in range(0, whole, n):
            yield rows[start : start + n], ids[start : start + n]
        rows, ids = rows[whole:] if whole < len(ids) else None, ids[whole:]
    if rows is not None:
        yield rows, ids
