"""NUS-WIDE as its owners publish it: lists of images, a list of concepts, one file of 0 and 1 a concept."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from steelyard.data.dataset import ImageDataset
from steelyard.data.files import (
    DataError,
    PathLike,
    Values,
    check_choice,
    check_distinct,
    first_file,
    read_bytes,
    read_lines,
    relative,
)
from steelyard.labels import UNKNOWN, Labels
from steelyard.labels.ids import several

_SPLITS = {"train": "Train", "test": "Test", "all": ""}
_DAMAGED = {"Labels_lake_Train.txt": b"-1130179"}  # line 78,372 of the published file, the only one of its kind


def nus_wide(
    root: PathLike,
    split: str,
    leave_out: Sequence[str] = (),
    empty: Literal["keep", "drop"] = "keep",
    *,
    size: int | tuple[int, int] | None = None,
    on_bad_image: Literal["error", "skip"] = "error",
    cache: PathLike | None = None,
) -> ImageDataset:
    """Return NUS-WIDE with its 81 concepts in the owners' order; ids are names such as "actor/0001_2124494179.jpg".

    Papers that count 80 concepts do not say which one they leave out, so none is left out unless `leave_out` names it.
    The one value of the published files that is neither 0 nor 1 ("lake", training image 78,372) is read as unknown.

    Arguments: `root`, the folder that holds `ImageList/`, `Groundtruth/`, `Concepts81.txt` (or `ConceptsList/` with
    it) and the images in `Flickr/`; `split`, "train", "test" or "all"; `leave_out`, concepts to leave out; `empty`,
    whether images without any of the concepts are kept or left out. `size`, `on_bad_image`, `cache`: see
    `ImageDataset`.
    """
    check_choice(split, tuple(_SPLITS), "split")
    check_choice(empty, ("keep", "drop"), "empty")
    left_out, home = several(leave_out, "leave_out"), Path(root)
    concept_file = first_file([home / "ConceptsList/Concepts81.txt", home / "Concepts81.txt"], "the list of concepts")
    concepts = [relative(line, concept_file, f"line {i}") for i, line in enumerate(read_lines(concept_file), 1)]
    check_distinct(concepts, concept_file, "the concept")
    if strange := [name for name in left_out if name not in concepts]:
        raise ValueError(f"leave_out names {strange[0]!r}, which is not in {concept_file}: choose from its concepts")
    names = [name for name in concepts if name not in left_out]
    listing = home / "ImageList" / f"{_SPLITS[split]}Imagelist.txt"
    lines = [line.replace("\\", "/") for line in read_lines(listing)]
    ids = [relative(line, listing, f"line {i}") for i, line in enumerate(lines, 1)]
    check_distinct(ids, listing, "the image")
    values = np.stack([_concept_column(_label_file(home, name, split), len(ids)) for name in names], axis=1)
    kept = np.flatnonzero((values != 0).any(1)) if empty == "drop" else np.arange(len(ids))
    paths = [home / "Flickr" / ids[i] for i in kept]
    return ImageDataset(paths, Labels(values[kept], names, [ids[i] for i in kept]), size, on_bad_image, cache)


def _label_file(home: Path, concept: str, split: str) -> Path:
    if split == "all":
        return home / "Groundtruth" / "AllLabels" / f"Labels_{concept}.txt"
    return home / "Groundtruth" / "TrainTestLabels" / f"Labels_{concept}_{_SPLITS[split]}.txt"


def _concept_column(path: Path, n_images: int) -> Values:
    content = read_bytes(path).removeprefix(codecs.BOM_UTF8)
    values = np.frombuffer(content.translate(None, b"\r\n \t"), np.uint8)
    lines = content.count(b"\n") + (not content.endswith(b"\n"))
    if lines == len(values) == n_images and ((values == ord("0")) | (values == ord("1"))).all():
        return values.astype(np.int8) - np.int8(ord("0"))
    return _careful_column(content.rstrip().split(b"\n"), path, n_images)


def _careful_column(lines: list[bytes], path: Path, n_images: int) -> Values:
    """The same line by line, to read the one damaged value or to name the line that is wrong."""
    values = np.empty(n_images, np.int8)
    if len(lines) != n_images:
        raise DataError(f"{path} has {len(lines)} lines for {n_images} images: fetch both files again")
    meaning = {b"0": 0, b"1": 1, _DAMAGED.get(path.name): UNKNOWN}
    for i, line in enumerate(lines):
        if (value := meaning.get(line.strip())) is None:
            shown = line.decode("utf-8", "replace").strip()
            raise DataError(f"{path}: line {i + 1} is {shown!r:.40}: it must be 0 or 1, fetch the file again")
        values[i] = value
    return values
