"""Another part of data that was opened, with the same settings and the same labels in the same order."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from steelyard.data.dataset import ArrayDataset
from steelyard.data.files import DataError, PathLike, check_choice, faults_of, listed
from steelyard.data.located import ImageFolder
from steelyard.data.opening import Opened, layout_at, open_data
from steelyard.data.parts import ENDINGS, file_in, part_named, siblings
from steelyard.data.tables.manifest import Manifest, encode
from steelyard.labels import UNKNOWN, Labels
from steelyard.labels.ids import several

_ALWAYS = ("path", "format", "size", "on_bad_image", "cache", "class_names")


def open_part(
    opened: Opened, split: str | None = None, path: PathLike | None = None, unseen: Literal["error", "drop"] = "error"
) -> Opened:
    r"""Open another split of the data with the same settings; its labels are those of `opened`, in the same order.

    Guesses about a manifest carry over: a feature column does not become a label column because the other split happens
    to hold only 0 and 1. A label that the other split lacks is absent if the manifest lists the labels of each item and
    omitted labels are absent; otherwise it is unknown.

    Args:
        opened: the training split, as `open_data` returned it.
        split: name of the split; see `Opened.parts`.
        path: other data that holds it; by default the same data.
        unseen: what happens to a label that the training split lacks: "error", or "drop" it.

    Examples:
        >>> from pathlib import Path
        >>> rows = ["id,weight,cat,dog,split", "a,1.5,1,0,train", "b,2.5,0,1,train", "c,3.5,1,1,test"]
        >>> _ = Path("pets.csv").write_text("\n".join(rows))
        >>> train = sy.data.open_data("pets.csv")
        >>> train.parts
        ('train', 'test')
        >>> list(sy.data.open_part(train, "test").data.labels.ids)
        ['c']
    """
    if split is None and path is None:
        raise ValueError("split and path are both missing: give one of them")
    names = opened.data.labels.names
    location, name = Path(opened.settings["path"] if path is None else path), split
    if path is None and (name := part_named(split or "", opened.parts)) is None:
        have = f"it has {', '.join(map(repr, opened.parts))}; give one of them, or" if opened.parts else "give"
        raise DataError(f"{location} has no part {split!r}: {have} the path of other data")
    if path is None and location.is_file():  # its name may say which part it is
        location = siblings(location).get(name or "", location)
    part = open_data(**_fitting(opened, location, split) | {"path": location, "split": name})
    _check_alike(opened, part)
    return align(part, names, unseen)


def align(opened: Opened, names: Sequence[str], unseen: Literal["error", "drop"] = "error") -> Opened:
    """Return the data with exactly the labels `names`, in that order, see `aligned`; `.note` says what that changed.

    For labels that the data does not have, see `open_part`.
    """
    data, labels = copy.copy(opened.data), opened.data.labels
    lists = opened.settings.get("form") in ("list", "long")
    negative = lists and opened.settings.get("absent") == "negative"
    with faults_of(opened.settings.get("path", "the data")):
        data.labels = aligned(labels, names, "negative" if negative else "unknown", unseen)
    note, here, expected = opened.note, set(labels.names), set(names)
    if lacking := [name for name in names if name not in here]:
        note += f" It does not have {listed(lacking)}: taken as {'absent' if negative else 'unknown'}."
    if extra := [name for name in labels.names if name not in expected]:
        note += f" Left out, for the training part does not have them: {listed(extra)}."
    return opened._replace(data=data, note=note)


def _fitting(opened: Opened, location: Path, split: str | None) -> dict[str, Any]:
    """The settings of `opened` that fit other data at `place`."""
    given = dict(opened.settings)
    kept = {name: given[name] for name in _ALWAYS if name in given}
    format = given.get("format")
    if location.is_dir() and (layout := layout_at(location, format)):
        kept["year"] = given.get("year") if layout == opened.format else None
        return kept | ({"names": opened.data.labels.names} if layout in ("vqa", "vqa_regions") else {})
    file = file_in(location, format, split)[0] if location.is_dir() else location
    kind = format or ENDINGS.get(file.suffix.lower())
    if kind != opened.format or kind not in ("table", "npz"):
        return kept
    if kind == "npz":
        return kept | {"minus_one": given.get("minus_one")}
    source = Manifest(file, given.get("delimiter"), given.get("encoding") or "utf-8")
    if given["form"] == "wide" and (here := [name for name in given["labels"] if name in source.columns]):
        given["labels"] = here
    for name in ("split_column", "group"):
        if given.get(name) not in source.columns:
            given.pop(name, None)
    if given.get("images") is not None and given.get("path_column") in source.columns:
        cells = encode(source.sample()[given["path_column"]])[1].to_pylist()[:20]
        folder = ImageFolder(Path(given["images"]), file)
        if not any(match is not None and match[1] for match in map(folder.find, cells)):
            del given["images"]  # those of the other part may lie beside it
    return given


def _check_alike(opened: Opened, part: Opened) -> None:
    """Refuse inputs that a model of the first part cannot take."""
    first, second = (
        f"arrays of shape {one.data.inputs.shape[1:]}"
        if isinstance(one.data, ArrayDataset)
        else type(one.data).__name__
        for one in (opened, part)
    )
    if first != second:
        where = part.settings["path"]
        raise DataError(
            f"{where}: its inputs are {second}, but in the training part {first}: check images= and features="
        )


def aligned(
    labels: Labels,
    names: Sequence[str],
    absent: Literal["unknown", "negative"] = "unknown",
    unseen: Literal["error", "drop"] = "error",
) -> Labels:
    """Return the same items with exactly the labels `names`, in that order.

    labels: the table.
    names: those of the training part.
    absent: the value of a label among `names` that `labels` does not have: "unknown", or "negative" where what is not
        mentioned is known to be absent, as in a manifest that lists the labels of each item.
    unseen: what to do about a label of `labels` that is not among `names`: "error", or "drop" it.
    """
    check_choice(absent, ("unknown", "negative"), "absent")
    check_choice(unseen, ("error", "drop"), "unseen")
    names = several(names, "names")
    expected = set(names)
    if extra := [name for name in labels.names if name not in expected]:
        among = f"among the {len(names)} labels of the training part"
        if unseen == "error":
            which, verb = ("label", "is") if len(extra) == 1 else ("labels", "are")
            remedy = "remove them, or train with items that have them"
            raise ValueError(f"the {which} {listed(extra)} {verb} not {among}: {remedy}")
        if len(extra) == len(labels.names):
            raise ValueError(f"none of the labels ({listed(extra)}) is {among}: give data that has some of them")
    if labels.names == names:
        return labels
    return labels.arranged(names, UNKNOWN if absent == "unknown" else 0)
