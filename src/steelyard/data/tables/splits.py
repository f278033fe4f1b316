"""Splits and groups of a manifest's items, from the columns that name them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.files import DataError
from steelyard.data.parts import ALL, part_named, training_part
from steelyard.data.tables.guess import Guess
from steelyard.data.tables.manifest import Manifest, encode
from steelyard.data.tables.mistakes import check_filled, filled


def choose_items(
    source: Manifest, guessed: Guess, columns: dict[str, Any], split: str | None, optional: bool = False
) -> tuple[NDArray[np.int64] | None, str | None, tuple[str, ...], str]:
    """Return the items of the part `split`, by default of the training part, `"all"` for every one, and how.

    columns: those of `found`, read.
    optional: take all items if the split does not exist.

    Returned are positions among all items, None for all of them; the part they are, None where there are no parts; all
    parts, in the order in which the column names them first; and what was chosen and how to choose otherwise.
    """
    if guessed.split is None:
        if split in (None, ALL) or optional:
            return None, None, (), ""
        lacks = f"{source.path} has no column that says which part an item belongs to"
        raise DataError(f"split is {split!r}, but {lacks}: name it with split_column=, or leave split out")
    codes, texts = encode(columns[guessed.split])
    parts = tuple(texts.to_pylist())
    chosen_part = part_named(split, parts) if split is not None else training_part(parts)
    if chosen_part is None and (split == ALL or optional):
        return None, ALL, parts, f" Every part of column {guessed.split!r} is read."
    check_filled(source, codes, f"part in column {guessed.split!r}", f"add it, remove the row, or give split {ALL!r}")
    if guessed.form == "long":
        codes = _of_items(source, guessed, columns, codes, parts, "part")
    sizes = np.bincount(codes, minlength=len(parts)).tolist()
    named = [f"{part!r} ({size} item{'' if size == 1 else 's'})" for part, size in zip(parts, sizes, strict=True)]
    if chosen_part is None:
        lacks = "none of them is called train" if split is None else f"there is no {split!r}"
        shown = ", ".join(named[:8]) + (", …" if len(named) > 8 else "")
        says = f"column {guessed.split!r} says which part an item belongs to, {shown}"
        remedy = f"give split={ALL!r} to read every split, or name another column with split_column="
        raise source.error(f"{says}: {lacks}, {remedy}")
    k = parts.index(chosen_part)
    note = f" By column {guessed.split!r} the part {named[k]} is read"
    if others := named[:k] + named[k + 1 :]:
        note += f"; also there: {', '.join(others[:8])}{', …' if len(others) > 8 else ''}"
    return np.flatnonzero(codes == k), chosen_part, parts, note + "; choose with split= and split_column=."


def groups_of(source: Manifest, guessed: Guess, columns: dict[str, Any]) -> NDArray[np.int64] | None:
    """Return the number of each item's group, (N,); None where no column says it."""
    if guessed.group is None:
        return None
    codes, texts = filled(source, columns[guessed.group], f"group in column {guessed.group!r}")
    if guessed.form == "long":
        return _of_items(source, guessed, columns, codes, tuple(texts.to_pylist()), "group")
    return codes


def _of_items(
    source: Manifest, guessed: Guess, columns: dict[str, Any], codes: NDArray[np.int64], parts: Sequence[str], what: str
) -> NDArray[np.int64]:
    """Return the part (or group) of each item from that of each row in long form; the rows of an item must agree."""
    items, names = filled(source, columns[guessed.id or ""], "id")
    first = np.unique(items, return_index=True)[1]
    if len(odd := np.flatnonzero(codes != codes[first][items])):
        row = int(odd[0])
        before = int(first[items[row]])
        one, two = source.places([before, row])
        first_one = f"{one} puts the item {str(names[int(items[row])])!r} in the {what} {parts[codes[before]]!r}"
        remedy = f"an item belongs to one {what}, correct one of them"
        raise source.error(f"{first_one}, but {two} in {parts[codes[row]]!r}: {remedy}")
    return codes[first]
