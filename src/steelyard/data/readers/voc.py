"""Pascal VOC as its owners publish it: a list of images and one file a class in `ImageSets/Main/`."""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path
from typing import Literal, Unpack

import numpy as np

from steelyard.data.dataset import Decoding, ImageDataset
from steelyard.data.files import PathLike, Values, check_choice, check_paths, damaged, first_file, folder, read_lines
from steelyard.labels import UNKNOWN, Labels

VOC_LABELS = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)
"""The twenty classes of Pascal VOC, in the order of its owners."""

_DIFFICULT = {"unknown": UNKNOWN, "positive": 1, "negative": 0}


def voc(
    root: PathLike,
    year: int,
    split: str,
    difficult: Literal["unknown", "positive", "negative"] = "unknown",
    **how: Unpack[Decoding],
) -> ImageDataset:
    """Return Pascal VOC with its 20 labels; ids are the owners' image names, such as "2008_000008".

    The owners write 1 (present), −1 (absent), and 0 where every object of the class is difficult.

    Arguments: `root`, the folder that holds `VOCdevkit/`; `year`, 2007 or 2012; `split`, "train", "val", "trainval" or
    "test"; `difficult`, what a 0 becomes. `size`, `on_bad_image`, `cache`: see `ImageDataset`.
    """
    check_choice(difficult, tuple(_DIFFICULT), "difficult")
    home = folder(root, f"VOCdevkit/VOC{year}")
    main = home / "ImageSets" / "Main"
    listing = first_file([main / f"{split}.txt"], f"the split {split!r} of VOC {year}")
    ids = check_paths(read_lines(listing), listing, "the image")
    columns = [_class_column(main / f"{name}_{split}.txt", ids) for name in VOC_LABELS]
    published = np.stack(columns, axis=1)
    values = np.where(published == 0, _DIFFICULT[difficult], published == 1).astype(np.int8)
    paths = [home / "JPEGImages" / f"{name}.jpg" for name in ids]
    return ImageDataset(paths, Labels(values, VOC_LABELS, ids), **how)


def _class_column(path: Path, ids: list[str]) -> Values:
    """The values 1, 0, −1 of one class, which must be stated for the images of `ids` in that order."""
    values = []
    for i, (line, wanted) in enumerate(zip_longest(read_lines(path), ids), 1):
        name, _, value = (line or "").partition(" ")
        if name != wanted:
            raise damaged(path, f"line {i} is of {name!r:.60}, but the split has {wanted!r:.60}")
        if value.strip() not in ("1", "0", "-1"):
            raise damaged(path, f"line {i} has the value {value.strip()!r:.40} and must have 1, 0 or -1")
        values.append(int(value))
    return np.array(values, np.int8)
