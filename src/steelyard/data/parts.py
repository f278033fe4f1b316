"""Splits of a data set: their names, and the files that hold them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from steelyard.data.files import DataError

_SAME = (
    ("train", "training", "trn"),
    ("val", "valid", "validation", "dev", "development"),
    ("test", "testing", "tst"),
)
WORDS = frozenset(word for words in _SAME for word in words) | {
    *("trainval", "eval", "evaluation", "holdout", "extra", "unlabeled", "unlabelled", "unused")
}
"""Names of splits."""

ALL = "all"
"""The split that stands for all splits together."""

ENDINGS = {
    **dict.fromkeys((".csv", ".tsv", ".tab", ".parquet", ".pq"), "table"),
    ".arff": "arff",
    ".npz": "npz",
    **dict.fromkeys((".svm", ".svmlight", ".libsvm"), "svmlight"),
}
"""The format of a data file, by the ending of its name."""


def part_named(split: str, there: Sequence[str]) -> str | None:
    """Return the one of the splits `there` that `split` names, None if there is none.

    An exact match comes first, then one that ignores case, then a synonym: train and training; val, valid, validation
    and dev; test and testing.
    """
    if split in there:
        return split
    word = split.strip().lower()
    alike = next((words for words in _SAME if word in words), (word,))
    for names in ((word,), alike):
        matching = [name for name in there if name.strip().lower() in names]
        if len(matching) == 1:
            return matching[0]
    return None


def training_part(there: Sequence[str]) -> str | None:
    """Return the part to learn from: the training part, or the only one there is; None if it must be chosen."""
    return there[0] if len(there) == 1 else part_named("train", there)


def part_of(stem: str) -> tuple[str, str] | None:
    """Return what comes before the name of a part at the end of a file's name, and that name: `mine-train`, `val`."""
    match = re.fullmatch(r"(.*[-_.])?([^-_.]+)", stem, re.S)
    return (match[1] or "", match[2]) if match and match[2].lower() in WORDS else None


def siblings(file: Path) -> dict[str, Path]:
    """Return the files that hold the splits of the same data, this one included, by the names of the splits.

    They lie beside each other, end alike, and differ in the name of the part: `mine-train.csv`, `mine-val.csv`. There
    is none where the file's own name does not end in that of a part.
    """
    if (own := part_of(file.stem)) is None:
        return {}
    alike = (other for other in sorted(file.parent.iterdir()) if other.suffix == file.suffix and other.is_file())
    named = ((part_of(other.stem), other) for other in alike)
    return {part[1]: other for part, other in named if part is not None and part[0] == own[0]}


def file_in(
    folder: Path, format: str | None, split: str | None, layouts: Iterable[str] = ()
) -> tuple[Path, str | None]:
    """Return the data file of a folder, and the part that its name says it holds where it is chosen by that.

    format: what kind of file, as `open_data` names it; None takes any.
    split: the split to read; a file named after another split does not match, one that may hold several splits does.
    layouts: the layouts that the folder is none of, for the message.
    """
    kind = "npz" if format == "labels" else format
    endings = [ending for ending, name in ENDINGS.items() if kind in (None, name)]
    entries = sorted(folder.iterdir())
    if not entries:
        raise DataError(f"{folder} is an empty folder: give a data file, or the folder of a data set")
    files = [entry for entry in entries if entry.suffix.lower() in endings and entry.is_file()]
    part = None
    if split is not None:
        exact = [file for file in files if any(file.stem == split or file.stem.endswith(f"{m}{split}") for m in "-_.")]
        named = {file: own[1] for file in files if (own := part_of(file.stem))}
        meant = None if exact else part_named(split, sorted(set(named.values())))
        if of_part := exact or [file for file, name in named.items() if name == meant]:
            files, part = of_part, meant or split
        else:
            files = [file for file in files if file not in named and file.suffix.lower() != ".arff"]
    what = f"data file{'' if split is None else f' of the split {split!r}'} ({', '.join(endings)})"
    if not files:
        known = f", and it is none of the layouts {', '.join(layouts)}" if layouts and not format else ""
        raise DataError(f"{folder} holds no {what}{known}: give the file itself, or give its format with format=")
    if len(files) > 1:
        shown = ", ".join(file.name for file in files[:4]) + (", …" if len(files) > 4 else "")
        raise DataError(f"{folder} holds {len(files)} data files ({shown}): give one of them, or choose with split=")
    return files[0], part


def format_of(file: Path) -> str:
    """Return the format of a data file, by the ending of its name."""
    kind = ENDINGS.get(file.suffix.lower())
    if kind is None:
        known = ", ".join(ENDINGS)
        raise DataError(
            f"{file} does not end as a data file does ({known}): rename it, or give its format with format="
        )
    return kind
