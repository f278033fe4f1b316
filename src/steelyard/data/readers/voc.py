"""Pascal VOC as its owners publish it: a list of images and one file per class in `ImageSets/Main/`."""

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
    r"""Return Pascal VOC with its 20 labels; ids are the owners' image names, such as "2008_000008".

    The published files hold 1 (present), −1 (absent), and 0 if every object of the class is difficult.

    Args:
        root: folder that holds `VOCdevkit/`.
        year: 2007 or 2012.
        split: "train", "val", "trainval" or "test".
        difficult: meaning of a 0.
        **how: how images are decoded: `size`, `on_bad_image` and `cache` of `ImageDataset`.

    Examples:
        >>> from pathlib import Path
        >>> from steelyard.data.readers.voc import VOC_LABELS
        >>> main = Path("VOCdevkit/VOC2007/ImageSets/Main")
        >>> main.mkdir(parents=True)
        >>> _ = (main / "val.txt").write_text("000005\n000007\n")
        >>> for name in VOC_LABELS:
        ...     values = (1, -1) if name == "chair" else (-1, 0)
        ...     _ = (main / f"{name}_val.txt").write_text("000005 {:2}\n000007 {:2}\n".format(*values))
        >>> labels = sy.data.voc(".", 2007, "val").labels
        >>> labels.values[:, labels.names.index("chair")].tolist(), labels.unknown_rate
        ([1, 0], 0.475)
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
    for i, (line, expected) in enumerate(zip_longest(read_lines(path), ids), 1):
        name, _, value = (line or "").partition(" ")
        if name != expected:
            raise damaged(path, f"line {i} is of {name!r:.60}, but the split has {expected!r:.60}")
        if value.strip() not in ("1", "0", "-1"):
            raise damaged(path, f"line {i} has the value {value.strip()!r:.40} and must have 1, 0 or -1")
        values.append(int(value))
    return np.array(values, np.int8)
