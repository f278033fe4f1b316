"""WIDER-Attribute as its owners publish it: people in photographs, each with a box and fourteen attributes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from steelyard.data.dataset import Decoding, ImageDataset
from steelyard.data.files import PathLike, check_choice, check_distinct, damaged, field, first_file, read_json, relative
from steelyard.labels import UNKNOWN, Labels

_FOLDERS = {"train": ("train/",), "val": ("val/",), "trainval": ("train/", "val/"), "test": ("test/",)}
_MEANING = {1: 1, -1: 0, 0: UNKNOWN}


def wider_attribute(root: PathLike, split: str, **how: Unpack[Decoding]) -> ImageDataset:
    """Return WIDER-Attribute: one item per person, cropped to the person's box.

    The published files hold 1 (present), −1 (absent) and 0 (not specified), read as unknown. An id is the image name,
    "#" and the number of the person in that image, from 0.

    Args:
        root: folder that holds `wider_attribute_annotation/` (or the JSON files themselves) and the images in `Image/`.
        split: "train", "val", "trainval" or "test".
        **how: how images are decoded: `size`, `on_bad_image` and `cache` of `ImageDataset`.

    Examples:
        >>> import json
        >>> from pathlib import Path
        >>> person = {"bbox": [5, 5, 20, 40], "attribute": [1, 0]}
        >>> content = {
        ...     "attribute_id_map": {"0": "Male", "1": "Hat"},
        ...     "images": [{"file_name": "test/0--Parade/1.jpg", "targets": [person]}],
        ... }
        >>> _ = Path("wider_attribute_test.json").write_text(json.dumps(content))
        >>> data = sy.data.wider_attribute(".", "test")
        >>> list(data.labels.ids), data.labels.values.tolist()
        (['test/0--Parade/1.jpg#0'], [[1, -1]])
    """
    check_choice(split, tuple(_FOLDERS), "split")
    home = Path(root)
    name = f"wider_attribute_{'test' if split == 'test' else 'trainval'}.json"
    path = first_file([home / "wider_attribute_annotation" / name, home / name], f"the annotation of {split!r}")
    content = read_json(path)
    names = _attributes(content, path)
    ids: list[str] = []
    paths: list[Path] = []
    boxes: list[tuple[float, float, float, float]] = []
    values: list[list[int]] = []
    for i, image in enumerate(field(content, "images", list, path, "the file")):
        file = relative(field(image, "file_name", str, path, f"images[{i}]"), path, f"images[{i}]")
        if not file.startswith(_FOLDERS[split]):
            continue
        for j, person in enumerate(field(image, "targets", list, path, f"images[{i}]")):
            where = f"images[{i}], targets[{j}]"
            ids.append(f"{file}#{j}")
            paths.append(home / "Image" / file)
            boxes.append(_box(person, path, where))
            values.append(_values(person, len(names), path, where))
    if not ids:
        raise damaged(path, f"it has no person in {' or '.join(_FOLDERS[split])}")
    check_distinct(ids, path, "the person")
    labels = Labels(np.array(values, np.int8), names, ids)
    return ImageDataset(paths, labels, **how, boxes=np.array(boxes))


def _attributes(content: Any, path: Path) -> list[str]:
    """The names of attributes 0, 1, … in that order; the owners' keys are strings."""
    listed = field(content, "attribute_id_map", dict, path, "the file")
    if sorted(listed) != sorted(str(i) for i in range(len(listed))) or not listed:
        raise damaged(path, f"attribute_id_map has the keys {sorted(listed)!r:.60}, not 0, 1, … as strings")
    names = [str(listed[str(i)]) for i in range(len(listed))]
    check_distinct(names, path, "the attribute")
    return names


def _box(person: Any, path: Path, where: str) -> tuple[float, float, float, float]:
    box = field(person, "bbox", list, path, where)
    sides = [side for side in box if isinstance(side, (int, float)) and abs(side) < 1 << 31]
    x, y, width, height = map(float, sides) if len(box) == len(sides) == 4 else (0.0, 0.0, 0.0, 0.0)
    if not (x < x + width < math.inf and y < y + height < math.inf):
        raise damaged(path, f"{where}: bbox is {box!r:.60} and must be x, y, width, height in pixels")
    return x, y, x + width, y + height


def _values(person: Any, n_labels: int, path: Path, where: str) -> list[int]:
    listed = field(person, "attribute", list, path, where)
    if len(listed) != n_labels or not all(isinstance(value, int) and value in _MEANING for value in listed):
        raise damaged(path, f"{where}: attribute is {listed!r:.60} and must be {n_labels} numbers of 1, -1 or 0")
    return [_MEANING[value] for value in listed]
