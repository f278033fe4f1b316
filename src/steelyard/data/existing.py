"""Items whose image files are there: what is missing ends the command with its names, or is left out."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from steelyard.data.dataset import ImageDataset
from steelyard.data.files import DataError, listed
from steelyard.data.located import is_file
from steelyard.data.opening import Opened


def existing(opened: Opened) -> Opened:
    """Return the data without the items whose image is missing, which `.note` names; where none may be, refuse them.

    Whether items may be left out is what `on_bad_image` of the data says; that all of them are missing is a mistake in
    any case.
    """
    data, where = opened.data, opened.settings.get("path", "the data")
    if opened.unfound:
        raise DataError(
            f"{where}: no image of column {opened.unfound!r} is found beside it or in a folder there: name their "
            f"folder with --images, or read labels alone with --id {opened.unfound}"
        )
    if not isinstance(data, ImageDataset) or not len(data) or _was_checked(opened):
        return opened
    paths = data.paths
    there = {path: is_file(path) for path in set(paths)}
    kept = np.array([there[path] for path in paths])
    if kept.all():
        return opened
    missing = [path for path in paths if not there[path]]
    lacks = f"{len(missing):,} of {len(paths):,} images are missing ({listed(missing, 3)})"
    if not kept.any():
        raise DataError(f"{where}: {lacks}: add them, or name the folder that holds them with --images")
    if data.on_bad_image == "error":
        raise DataError(f"{where}: {lacks}: add them, remove their items, or leave them out with --skip-missing")
    at = np.flatnonzero(kept)
    smaller = ImageDataset(
        pa.array(paths, pa.large_string()).take(pa.array(at)),
        data.labels.take(at),
        data.size,
        data.on_bad_image,
        boxes=None if data.boxes is None else data.boxes[at],
        note=data.note,
    )
    note = opened.note if opened.format == "table" else f"{opened.note} {lacks}: they are left out."
    return opened._replace(data=smaller, note=note)


def _was_checked(opened: Opened) -> bool:
    """Whether the reader has refused missing images already."""
    return opened.format == "table" and opened.settings.get("on_bad_image") == "error"
