"""Items that are to be kept or found, checked: ids, probabilities, paths, notes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from steelyard.labels.ids import Ids, check_several
from steelyard.search.part import MOST_ROWS, Rows

Paths: TypeAlias = "Sequence[str | os.PathLike[str] | None]"

_BLOCK: Final = 1 << 16


def texts_of(ids: Sequence[str]) -> Any:
    """Return ids that are looked for as an Arrow array, with null for what cannot be one."""
    check_several(ids, "ids")
    return pa.array([text if _encodes(text) else None for text in ids], pa.large_string())


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def rows_of(ids: Sequence[str], probabilities: Any, paths: Paths | None, n_labels: int) -> Rows:
    """Return items as they are to be written, checked: see `Index.build`."""
    texts = Ids(ids).arrow
    table = np.asarray(probabilities)
    if table.shape != (len(texts), n_labels) or table.dtype.kind not in "fiub":
        raise ValueError(
            f"probabilities is {table.dtype} of shape {table.shape}: give numbers ({len(texts)}, {n_labels}), a row an "
            "item, a column a label"
        )
    if len(texts) >= MOST_ROWS:
        raise ValueError(f"{len(texts):,} items are too many for one step: append them in several")
    for start in range(0, len(table), _BLOCK):
        block = table[start : start + _BLOCK]
        if len(bad := np.argwhere(~((block >= 0) & (block <= 1)))):
            i, j = bad[0]
            raise ValueError(
                f"probabilities[{start + i}, {j}], of item {texts[start + int(i)].as_py()!r}, is {block[i, j]}: give 0 "
                "to 1"
            )
    check_several(paths, "paths")
    if paths is not None and len(paths) != len(texts):
        raise ValueError(f"paths has {len(paths)} entries, but there are {len(texts)} items: give one for each")
    places = [None] * len(texts) if paths is None else [None if p is None else os.fspath(p) for p in paths]
    for i, place in enumerate(places):
        if place is not None and not _encodes(place):
            raise ValueError(f"paths[{i}] is {place!r}, which is not Unicode: rename that file")
    return Rows(texts, table, pa.array(places, pa.large_string()))


def plain_notes(notes: Mapping[str, Any]) -> dict[str, Any]:
    """Return notes as they will be read back."""
    try:
        kept: dict[str, Any] = json.loads(json.dumps(dict(notes), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ValueError(f"notes cannot be kept as JSON ({error}): give plain facts") from None
    return kept
