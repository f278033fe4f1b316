"""NUS-WIDE as its owners publish it: lists of images, a list of concepts, one file of 0 and 1 per concept."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Unpack

import numpy as np

from steelyard.data.dataset import Decoding, ImageDataset
from steelyard.data.files import (
    PathLike,
    Values,
    check_choice,
    check_paths,
    damaged,
    first_file,
    read_bytes,
    read_lines,
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
    **how: Unpack[Decoding],
) -> ImageDataset:
    r"""Return NUS-WIDE with its 81 concepts in the owners' order; ids are names such as "actor/0001_2124494179.jpg".

    Papers that count 80 concepts do not say which one they omit, so all are kept unless `leave_out` names one. The only
    value of the published files that is neither 0 nor 1 ("lake", training image 78,372) is read as unknown.

    Args:
        root: folder that holds `ImageList/`, `Groundtruth/`, `Concepts81.txt` (possibly in `ConceptsList/`) and the
            images in `Flickr/`.
        split: "train", "test" or "all".
        leave_out: concepts to omit.
        empty: "keep" or "drop" images without any of the concepts.
        **how: how images are decoded: `size`, `on_bad_image` and `cache` of `ImageDataset`.
    Examples:
        >>> from pathlib import Path
        >>> files = {
        ...     "Concepts81.txt": "lake\nsky\n",
        ...     "ImageList/TestImagelist.txt": "a\\1.jpg\na\\2.jpg\n",
        ...     "Groundtruth/TrainTestLabels/Labels_lake_Test.txt": "1\n0\n",
        ...     "Groundtruth/TrainTestLabels/Labels_sky_Test.txt": "1\n1\n",
        ... }
        >>> for name, text in files.items():
        ...     Path(name).parent.mkdir(parents=True, exist_ok=True)
        ...     _ = Path(name).write_text(text)
        >>> data = sy.data.nus_wide(".", "test")
        >>> list(data.labels.ids), data.labels.values.tolist()
        (['a/1.jpg', 'a/2.jpg'], [[1, 1], [0, 1]])
    """
    check_choice(split, tuple(_SPLITS), "split")
    check_choice(empty, ("keep", "drop"), "empty")
    left_out, home = several(leave_out, "leave_out"), Path(root)
    concept_file = first_file([home / "ConceptsList/Concepts81.txt", home / "Concepts81.txt"], "the list of concepts")
    concepts = check_paths(read_lines(concept_file), concept_file, "the concept")
    if strange := [name for name in left_out if name not in concepts]:
        raise ValueError(f"leave_out names {strange[0]!r}, which is not in {concept_file}: choose from its concepts")
    names = [name for name in concepts if name not in left_out]
    listing = home / "ImageList" / f"{_SPLITS[split]}Imagelist.txt"
    ids = check_paths([line.replace("\\", "/") for line in read_lines(listing)], listing, "the image")
    place, ending = ("AllLabels", "") if split == "all" else ("TrainTestLabels", f"_{_SPLITS[split]}")
    files = [home / "Groundtruth" / place / f"Labels_{name}{ending}.txt" for name in names]
    values = np.stack([_concept_column(file, len(ids)) for file in files], axis=1)
    kept = np.flatnonzero((values != 0).any(1)) if empty == "drop" else np.arange(len(ids))
    paths = [home / "Flickr" / ids[i] for i in kept]
    return ImageDataset(paths, Labels(values[kept], names, [ids[i] for i in kept]), **how)


def _concept_column(path: Path, n_images: int) -> Values:
    lines = read_bytes(path).removeprefix(codecs.BOM_UTF8).rstrip().split(b"\n")
    if len(lines) != n_images:
        raise damaged(path, f"it has {len(lines)} lines for {n_images} images")
    meaning = {b"0": 0, b"1": 1, _DAMAGED.get(path.name): UNKNOWN}
    values = [meaning.get(line.strip()) for line in lines]
    if None in values:
        i = values.index(None)
        raise damaged(path, f"line {i + 1} is {lines[i].decode('utf-8', 'replace').strip()!r:.40} and must be 0 or 1")
    return np.array(values, np.int8)
