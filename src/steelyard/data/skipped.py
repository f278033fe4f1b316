"""Images that were skipped because they could not be read: which of a data set, and one sentence about them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.dataset import ImageDataset
from steelyard.data.images import BadImage, decode
from steelyard.data.subset import origin

_LONGEST = 160  # characters of a reason


def skipped_at(data: Any) -> NDArray[np.int64]:
    """Return the positions in `data` of the images that were skipped so far, see `ImageDataset.skipped`."""
    source, index = origin(data)
    return np.flatnonzero(np.isin(index, source.skipped if isinstance(source, ImageDataset) else []))


def skipped_sentence(data: Any, at: NDArray[np.int64], total: int | None = None) -> str:
    """Return how many images were left out, the first and what is wrong with it, without a full stop; "" for none.

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
        return f"1 image could not be read and was left out: {path} ({reason:.{_LONGEST}})"
    return f"{n:,} images could not be read and were left out: first {path} ({reason:.{_LONGEST}})"
