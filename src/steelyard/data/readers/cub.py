"""CUB-200-2011 as its owners publish it: 312 attributes of birds, each with the annotator's certainty."""

from __future__ import annotations

import codecs
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
from numpy.typing import NDArray

from steelyard.data.dataset import ImageDataset
from steelyard.data.files import (
    DataError,
    PathLike,
    check_choice,
    check_distinct,
    first_file,
    folder,
    read_bytes,
    read_lines,
    relative,
)
from steelyard.labels import UNKNOWN, Labels

_COLUMNS = ("image", "attribute", "present", "certainty", "time")


def cub(
    root: PathLike,
    split: str,
    min_certainty: int = 1,
    *,
    size: int | tuple[int, int] | None = None,
    on_bad_image: Literal["error", "skip"] = "error",
    cache: PathLike | None = None,
) -> ImageDataset:
    """Return the attributes of CUB-200-2011; ids are image names such as "001.Black_footed_Albatross/….jpg".

    Arguments: `root`, the folder that holds `CUB_200_2011/` (`attributes.txt` lies beside it or in its `attributes/`);
    `split`, "train" or "test"; `min_certainty`, from 1 to 4: a label whose annotator was less certain (1 not visible,
    2 guessing, 3 probably, 4 definitely) is unknown; with 1, as the papers do, every label counts.
    `size`, `on_bad_image`, `cache`: see `ImageDataset`.
    """
    check_choice(split, ("train", "test"), "split")
    check_choice(min_certainty, (1, 2, 3, 4), "min_certainty")
    home = folder(root, "CUB_200_2011")
    name_file = first_file(
        [home / "attributes/attributes.txt", home.parent / "attributes.txt"], "the list of attributes"
    )
    names = _numbered(name_file)
    check_distinct(names, name_file, "the attribute")
    image_file, split_file = home / "images.txt", home / "train_test_split.txt"
    ids = [relative(name, image_file, f"line {i}") for i, name in enumerate(_numbered(image_file), 1)]
    check_distinct(ids, image_file, "the image")
    train = _numbered(split_file)
    if len(train) != len(ids):
        raise DataError(
            f"{split_file} has {len(train)} lines for the {len(ids)} images of {image_file}: fetch both again"
        )
    for i, flag in enumerate(train, 1):
        if flag not in ("0", "1"):
            raise DataError(
                f"{split_file}: line {i} says {flag!r:.40}: it must be 1 (train) or 0 (test); fetch it again"
            )
    present, certainty = _attributes(home / "attributes" / "image_attribute_labels.txt", len(ids), len(names))
    kept = [i for i, flag in enumerate(train) if flag == ("1" if split == "train" else "0")]
    values = np.where(certainty[kept] < min_certainty, UNKNOWN, present[kept]).astype(np.int8)
    paths = [home / "images" / ids[i] for i in kept]
    return ImageDataset(paths, Labels(values, names, [ids[i] for i in kept]), size, on_bad_image, cache)


def _numbered(path: Path) -> list[str]:
    """What stands behind the numbers 1, 2, … at the start of the lines."""
    entries = []
    for i, line in enumerate(read_lines(path), 1):
        number, _, entry = line.partition(" ")
        if number != str(i) or not entry.strip():
            raise DataError(
                f"{path}: line {i} is {line!r:.60}: it must be {i}, a space and an entry; fetch the file again"
            )
        entries.append(entry.strip())
    return entries


def _attributes(path: Path, n_images: int, n_attributes: int) -> tuple[NDArray[np.int8], NDArray[np.int8]]:
    """Presence and certainty, (N, L) each; every pair of image and attribute must be there once.

    Two lines of the published file, of images 2275 and 9364, hold a 0 and a space too much before the time.
    """
    content = read_bytes(path).removeprefix(codecs.BOM_UTF8)
    if not content.isascii():
        line = content[: int(np.argmax(np.frombuffer(content, np.uint8) > 127))].count(b"\n") + 1
        raise DataError(f"{path}: line {line} holds something else than numbers: fetch the file again")
    longer: list[Any] = []

    def keep_for_later(row: Any) -> str:
        longer.append(row)
        return "skip"

    try:
        table = csv.read_csv(
            pa.BufferReader(content),
            csv.ReadOptions(column_names=_COLUMNS, use_threads=False),
            csv.ParseOptions(delimiter=" ", quote_char=False, invalid_row_handler=keep_for_later),
            csv.ConvertOptions(column_types=dict.fromkeys(_COLUMNS[:4], pa.int32()) | {"time": pa.string()}),
        )
    except pa.ArrowInvalid as error:
        raise DataError(f"{path}: {str(error).splitlines()[0]:.160}: fetch the file again") from None
    rows = np.stack([table[name].to_numpy() for name in _COLUMNS[:4]])
    extra = [_longer_row(row, path) for row in longer]
    rows = np.concatenate([rows, np.array(extra, np.int32).reshape(-1, 4).T], axis=1)
    image, attribute, present, certainty = rows
    for what, values, low, high in (
        ("image", image, 1, n_images),
        ("attribute", attribute, 1, n_attributes),
        ("presence", present, 0, 1),
        ("certainty", certainty, 1, 4),
    ):
        if (bad := np.flatnonzero(~((values >= low) & (values <= high)))).size:  # NaN where blank
            cell = f"image {image[bad[0]]}, attribute {attribute[bad[0]]}"
            raise DataError(
                f"{path}: {what} is {values[bad[0]]} for {cell}: it must be {low} to {high}; fetch it again"
            )
    cell = (image - 1).astype(np.int64) * n_attributes + attribute - 1
    times = np.bincount(cell, minlength=n_images * n_attributes)
    if (times != 1).any():
        wrong = int(np.argmax(times != 1))
        i, j = divmod(wrong, n_attributes)
        raise DataError(f"{path} lists image {i + 1}, attribute {j + 1} {times[wrong]} times, not once: fetch it again")
    order = np.argsort(cell)
    shape = (n_images, n_attributes)
    return present[order].astype(np.int8).reshape(shape), certainty[order].astype(np.int8).reshape(shape)


def _longer_row(row: Any, path: Path) -> list[int]:
    parts = row.text.split()
    try:
        if len(parts) == 6 and parts[4] == "0" and float(parts[5]) >= 0:
            return [int(part) for part in parts[:4]]
    except ValueError:
        pass
    raise DataError(
        f"{path}: line {row.number} has {row.actual_columns} columns ({row.text!r:.60}): it must be image, attribute, "
        "presence, certainty, time; fetch the file again"
    )
