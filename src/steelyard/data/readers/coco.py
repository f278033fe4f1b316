"""COCO as its owners publish it: `annotations/instances_{split}{year}.json` and images in `{split}{year}/`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Unpack

import numpy as np

from steelyard.data.dataset import Decoding, ImageDataset
from steelyard.data.files import PathLike, check_choice, check_distinct, damaged, field, read_json, relative
from steelyard.labels import Labels

COCO_LABELS = (
    *("person", "bicycle", "car", "motorcycle", "airplane", "bus", "train", "truck", "boat", "traffic light"),
    *("fire hydrant", "stop sign", "parking meter", "bench", "bird", "cat", "dog", "horse", "sheep", "cow"),
    *("elephant", "bear", "zebra", "giraffe", "backpack", "umbrella", "handbag", "tie", "suitcase", "frisbee"),
    *("skis", "snowboard", "sports ball", "kite", "baseball bat", "baseball glove", "skateboard", "surfboard"),
    *("tennis racket", "bottle", "wine glass", "cup", "fork", "knife", "spoon", "bowl", "banana", "apple"),
    *("sandwich", "orange", "broccoli", "carrot", "hot dog", "pizza", "donut", "cake", "chair", "couch"),
    *("potted plant", "bed", "dining table", "toilet", "tv", "laptop", "mouse", "remote", "keyboard", "cell phone"),
    *("microwave", "oven", "toaster", "sink", "refrigerator", "book", "clock", "vase", "scissors", "teddy bear"),
    *("hair drier", "toothbrush"),
)
"""The eighty categories of COCO's instances, in the order of their ids."""


def coco(
    root: PathLike, year: int, split: str, empty: Literal["keep", "drop"] = "keep", **how: Unpack[Decoding]
) -> ImageDataset:
    """Return COCO: a label is present if at least one instance of it, crowds included, is annotated.

    Labels are in the order of their category ids; item ids are the owners' image ids, such as "554625".

    Args:
        root: folder that holds `annotations/instances_{split}{year}.json` and the images in `{split}{year}/`.
        year: 2014 or 2017.
        split: "train" or "val".
        empty: "keep" images without any label (as PLM does) or "drop" them (as the papers on partial labels and
            calibration do).
        **how: how images are decoded: `size`, `on_bad_image` and `cache` of `ImageDataset`.

    Examples:
        >>> import json
        >>> from pathlib import Path
        >>> Path("annotations").mkdir()
        >>> content = {
        ...     "categories": [{"id": 1, "name": "person"}, {"id": 3, "name": "car"}],
        ...     "images": [{"id": 7, "file_name": "7.jpg"}, {"id": 9, "file_name": "9.jpg"}],
        ...     "annotations": [{"image_id": 9, "category_id": 3}],
        ... }
        >>> _ = Path("annotations/instances_val2017.json").write_text(json.dumps(content))
        >>> data = sy.data.coco(".", 2017, "val")
        >>> list(data.labels.ids), data.labels.values.tolist()
        (['7', '9'], [[0, 0], [0, 1]])
    """
    check_choice(empty, ("keep", "drop"), "empty")
    path = Path(root) / "annotations" / f"instances_{split}{year}.json"
    content = read_json(path, _slim)
    names, column = _categories(content, path)
    files = _images(content, path)
    row = {number: i for i, number in enumerate(files)}
    items, labels = _cells(content, path, row, column)
    ids = [str(number) for number in files]
    table = Labels.from_cells(items, labels, np.ones(len(items), np.int8), (len(ids), len(names)), 0, names, ids)
    paths = [Path(root) / f"{split}{year}" / name for name in files.values()]
    if empty == "drop":
        kept = np.unique(items)
        table, paths = table.take(kept), [paths[i] for i in kept]
    return ImageDataset(paths, table, **how)


def _slim(record: dict[str, Any]) -> Any:
    """Reduce an annotation to its image and category, and an image to its id and name; outlines are dropped at once."""
    if "category_id" in record and "image_id" in record:
        return record["image_id"], record["category_id"]
    if "file_name" in record and "id" in record:
        return record["id"], record["file_name"]
    return record


def _categories(content: Any, path: Path) -> tuple[list[str], dict[int, int]]:
    listed = field(content, "categories", list, path, "the file")
    numbered: dict[int, str] = {}
    for i, record in enumerate(listed):
        where = f"categories[{i}]"
        numbered[field(record, "id", int, path, where)] = field(record, "name", str, path, where)
    if not listed or len(numbered) < len(listed):
        raise damaged(path, "categories is empty or has an id twice")
    names = [numbered[number] for number in sorted(numbered)]
    check_distinct(names, path, "the category")
    return names, {number: i for i, number in enumerate(sorted(numbered))}


def _images(content: Any, path: Path) -> dict[int, str]:
    files: dict[int, str] = {}
    for i, record in enumerate(field(content, "images", list, path, "the file")):
        if not (isinstance(record, tuple) and type(record[0]) is int and isinstance(record[1], str)):
            raise damaged(path, f"images[{i}] has no id and file_name")
        if record[0] in files:
            raise damaged(path, f"images[{i}] has the id {record[0]} of an earlier one")
        files[record[0]] = relative(record[1], path, f"images[{i}]")
    if not files:
        raise damaged(path, "images is empty")
    return files


def _cells(content: Any, path: Path, row: dict[int, int], column: dict[int, int]) -> tuple[list[int], list[int]]:
    items, labels = [], []
    for i, record in enumerate(field(content, "annotations", list, path, "the file")):
        try:
            image, category = record
            items.append(row[image])
            labels.append(column[category])
        except (TypeError, ValueError, KeyError):
            raise damaged(path, f"annotations[{i}] names no listed image and category ({record!r:.80})") from None
    return items, labels
