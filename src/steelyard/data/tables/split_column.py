"""The columns of a manifest that say which part and which group an item belongs to, and the items of one part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from steelyard.data.files import DataError
from steelyard.data.parts import ALL, part_named, training_part
from steelyard.data.tables.guess import Guess
from steelyard.data.tables.manifest import Manifest, encode
from steelyard.data.tables.mistakes import check_filled


class Chosen(NamedTuple):
    """The items that are read."""

    items: NDArray[np.int64] | None
    """Their positions among all items; None: all of them."""
    part: str | None
    """The part they are; None where there are no parts."""
    parts: tuple[str, ...]
    """All parts, in the order in which the column names them first."""
    note: str
    """What was chosen and how to choose otherwise, for people to read."""


def choose(
    source: Manifest, found: Guess, columns: dict[str, Any], split: str | None, optional: bool = False
) -> Chosen:
    """Return the items of the part `split`, by default of the training part, `"all"` for every one.

    columns: those of `found`, read.
    optional: take all items where there is no such part.
    """
    if found.split is None:
        if split in (None, ALL) or optional:
            return Chosen(None, None, (), "")
        raise DataError(
            f"split is {split!r}, but {source.path} has no column that says which part an item belongs to: name it by "
            "split_column, or leave split out"
        )
    codes, texts = encode(columns[found.split])
    parts = tuple(texts.to_pylist())
    wanted = part_named(split, parts) if split is not None else training_part(parts)
    if wanted is None and (split == ALL or optional):
        return Chosen(None, ALL, parts, f" Every part of column {found.split!r} is read.")
    check_filled(source, codes, f"part in column {found.split!r}", f"add it, remove the row, or give split {ALL!r}")
    if found.form == "long":
        codes = _of_items(source, found, columns, codes, parts, "part")
    sizes = np.bincount(codes, minlength=len(parts)).tolist()
    listed = [f"{part!r} ({size} item{'' if size == 1 else 's'})" for part, size in zip(parts, sizes, strict=True)]
    if wanted is None:
        lacks = "none of them is called train" if split is None else f"there is no {split!r}"
        shown = ", ".join(listed[:8]) + (", …" if len(listed) > 8 else "")
        raise DataError(
            f"{source.path}: column {found.split!r} says which part an item belongs to, {shown}: {lacks}, give split, "
            f"{ALL!r} for every part, or name another column by split_column"
        )
    k = parts.index(wanted)
    note = f" By column {found.split!r} the part {listed[k]} is read"
    if others := listed[:k] + listed[k + 1 :]:
        note += f"; also there: {', '.join(others[:8])}{', …' if len(others) > 8 else ''}"
    return Chosen(np.flatnonzero(codes == k), wanted, parts, note + "; choose by split and split_column.")


def groups_of(source: Manifest, found: Guess, columns: dict[str, Any]) -> NDArray[np.int64] | None:
    """Return the number of each item's group, (N,); None where no column says it."""
    if found.group is None:
        return None
    codes, texts = encode(columns[found.group])
    check_filled(source, codes, f"group in column {found.group!r}")
    if found.form == "long":
        return _of_items(source, found, columns, codes, tuple(texts.to_pylist()), "group")
    return codes


def _of_items(
    source: Manifest, found: Guess, columns: dict[str, Any], codes: NDArray[np.int64], parts: Sequence[str], what: str
) -> NDArray[np.int64]:
    """Return the part (or group) of each item from that of each row in long form; the rows of an item must agree."""
    items, names = encode(columns[found.id or ""])
    check_filled(source, items, "id")
    first = np.unique(items, return_index=True)[1]
    if len(odd := np.flatnonzero(codes != codes[first][items])):
        row = int(odd[0])
        before = int(first[items[row]])
        raise DataError(
            f"{source.path}: {source.place(before)} puts the item {str(names[int(items[row])])!r} in the {what} "
            f"{parts[codes[before]]!r}, but {source.place(row)} in {parts[codes[row]]!r}: an item belongs to one "
            f"{what}, correct one of them"
        )
    return codes[first]
