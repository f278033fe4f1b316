"""CUB-200-2011 as its owners publish it: 312 attributes of birds, each with the annotator's certainty."""

from __future__ import annotations

import codecs
import re
from pathlib import Path
from typing import Unpack

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
from numpy.typing import NDArray

from steelyard.data.dataset import Decoding, ImageDataset
from steelyard.data.files import (
    PathLike,
    check_choice,
    check_distinct,
    check_paths,
    damaged,
    first_file,
    folder,
    read_bytes,
    read_lines,
)
from steelyard.labels import UNKNOWN, Labels

_LIMITS = {"image": (1, 0), "attribute": (1, 0), "presence": (0, 1), "certainty": (1, 4)}
_DAMAGED = re.compile(rb"(?m)^((?:[0-9]+ ){4})0 +(?=[0-9])")


def cub(root: PathLike, split: str, min_certainty: int = 1, **how: Unpack[Decoding]) -> ImageDataset:
    r"""Return CUB-200-2011 with its 312 attributes; ids are image names such as "001.Black_footed_Albatross/….jpg".

    Args:
        root: folder that holds `CUB_200_2011/`; `attributes.txt` lies beside it or in its `attributes/`.
        split: "train" or "test".
        min_certainty: 1 to 4; a label whose annotator was less certain (1 not visible, 2 guessing, 3 probably,
            4 definitely) becomes unknown. 1, as in the papers, keeps every label.
        **how: how images are decoded: `size`, `on_bad_image` and `cache` of `ImageDataset`.

    Examples:
        >>> from pathlib import Path
        >>> home = Path("CUB_200_2011")
        >>> (home / "attributes").mkdir(parents=True)
        >>> files = {  # the last one: image, attribute, present, certainty, seconds
        ...     "attributes/attributes.txt": "1 has_bill_shape::curved\n",
        ...     "images.txt": "1 a/1.jpg\n2 a/2.jpg\n",
        ...     "train_test_split.txt": "1 1\n2 1\n",
        ...     "attributes/image_attribute_labels.txt": "1 1 1 4 2.5\n2 1 0 2 3.5\n",
        ... }
        >>> for name, text in files.items():
        ...     _ = (home / name).write_text(text)
        >>> sy.data.cub(".", "train", min_certainty=3).labels.values.tolist()
        [[1], [-1]]
    """
    check_choice(split, ("train", "test"), "split")
    check_choice(min_certainty, (1, 2, 3, 4), "min_certainty")
    home = folder(root, "CUB_200_2011")
    places = [home / "attributes/attributes.txt", home.parent / "attributes.txt"]
    name_file = first_file(places, "the list of attributes")
    names = _numbered(name_file)
    check_distinct(names, name_file, "the attribute")
    image_file, split_file = home / "images.txt", home / "train_test_split.txt"
    ids = check_paths(_numbered(image_file), image_file, "the image")
    train = _numbered(split_file)
    if len(train) != len(ids):
        raise damaged(split_file, f"it has {len(train)} lines for the {len(ids)} images of {image_file}")
    if odd := [i for i, flag in enumerate(train) if flag not in ("0", "1")]:
        raise damaged(split_file, f"line {odd[0] + 1} says {train[odd[0]]!r:.40} and must be 1 or 0")
    present, certainty = _attributes(home / "attributes" / "image_attribute_labels.txt", len(ids), len(names))
    kept = [i for i, flag in enumerate(train) if flag == ("1" if split == "train" else "0")]
    values = np.where(certainty[kept] < min_certainty, UNKNOWN, present[kept]).astype(np.int8)
    paths = [home / "images" / ids[i] for i in kept]
    return ImageDataset(paths, Labels(values, names, [ids[i] for i in kept]), **how)


def _numbered(path: Path) -> list[str]:
    """Return the entries that follow the numbers 1, 2, … at the start of each line."""
    entries = []
    for i, line in enumerate(read_lines(path), 1):
        number, _, entry = line.partition(" ")
        if number != str(i) or not entry.strip():
            raise damaged(path, f"line {i} is {line!r:.60} and must be {i}, a space and an entry")
        entries.append(entry.strip())
    return entries


def _attributes(path: Path, n_images: int, n_attributes: int) -> tuple[NDArray[np.int8], NDArray[np.int8]]:
    """Presence and certainty, (N, L) each; every pair of image and attribute must be there once.

    Two lines of the published file, of images 2275 and 9364, hold a 0 and a space too much before the time.
    """
    content = _DAMAGED.sub(rb"\1", read_bytes(path).removeprefix(codecs.BOM_UTF8))
    try:
        table = csv.read_csv(
            pa.BufferReader(content),
            csv.ReadOptions(column_names=[*_LIMITS, "time"], use_threads=False),
            csv.ParseOptions(delimiter=" ", quote_char=False),
            csv.ConvertOptions(column_types=dict.fromkeys(_LIMITS, pa.int32()) | {"time": pa.binary()}),
        )
    except pa.ArrowInvalid as error:
        raise damaged(path, f"{str(error).splitlines()[0]:.160}") from None
    columns = {name: table[name].to_numpy() for name in _LIMITS}
    image, attribute = columns["image"], columns["attribute"]
    for name, (low, high) in _LIMITS.items():
        top = {"image": n_images, "attribute": n_attributes}.get(name, high)
        values = columns[name]
        if (bad := np.flatnonzero(~((values >= low) & (values <= top)))).size:  # NaN where blank
            cell = f"image {image[bad[0]]}, attribute {attribute[bad[0]]}"
            raise damaged(path, f"{name} is {values[bad[0]]} for {cell} and must be {low} to {top}")
    cell = (image - 1).astype(np.int64) * n_attributes + attribute - 1
    times = np.bincount(cell, minlength=n_images * n_attributes)
    if (times != 1).any():
        wrong = int(np.argmax(times != 1))
        i, j = divmod(wrong, n_attributes)
        raise damaged(path, f"it lists image {i + 1}, attribute {j + 1} {times[wrong]} times, not once")
    order = np.argsort(cell)
    present, certainty = (
        columns[name][order].astype(np.int8).reshape(n_images, n_attributes) for name in ("presence", "certainty")
    )
    return present, certainty
