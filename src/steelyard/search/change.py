"""Changes of an index: items added and removed in one step, small parts merged, files that no longer count removed."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from steelyard._files import remove_partial, replacing
from steelyard.search import manifest as manifests
from steelyard.search.manifest import Manifest, PartFacts
from steelyard.search.part import Ints, Part, Rows, remove_unless_held, write_part

_SEVERAL: Final = 4
_MERGED_CELLS: Final = 1 << 28
_MOSTLY: Final = 0.2
_OURS: Final = re.compile(r"part-(\d{6,})\.(parquet|arrow)|dead-\d{6,}\.parquet")


def commit(folder: Path, before: Manifest, parts: Sequence[Part], added: Rows | None, dead: Ints) -> Manifest:
    """Write the next generation: the items of `parts` but the `dead` ones, and those `added`.

    Parts much of which is dead, and several small parts, are written anew as one. Until the manifest is swapped, the
    last step, nothing that counts has changed.

    Args:
        folder: of the index, which the caller alone writes.
        before: the generation there is.
        parts: those of it that are to stay, open.
        added: more items, whose ids are not among the living ones of `parts`.
        dead: keys of all deleted rows of `parts`.
    """
    alive = {part.facts.number: part.rows - len(dead_rows(part, dead)) for part in parts}
    sizes = dict(alive) | ({-1: len(added.ids)} if added is not None else {})
    worn = {part.facts.number for part in parts if alive[part.facts.number] < (1 - _MOSTLY) * part.rows}
    merged = worn | _small(sizes, len(before.names))
    keep = [part for part in parts if part.facts.number not in merged]
    moved = [part for part in parts if part.facts.number in merged]
    facts = [part.facts for part in keep]
    number = before.next_part
    for group in _groups(moved, added, -1 in merged, len(before.names)):
        rows = joined([live_rows(x, dead) if isinstance(x, Part) else x for x in group])
        if len(rows.ids):
            facts.append(write_part(folder, number, rows))
            number += 1
    left = np.concatenate([np.zeros(0, np.int64), *(dead_rows(part, dead) + part.first_key for part in keep)])
    after = replace(before, generation=before.generation + 1, parts=tuple(facts), next_part=number)
    after = replace(after, dead=len(left), dead_sum=None)
    if after.dead_file:
        with replacing(folder / after.dead_file) as partial:
            pq.write_table(pa.table({"key": pa.array(np.sort(left))}), partial)
            after = replace(after, dead_sum=zlib.crc32(partial.read_bytes()))
    manifests.write(folder, after)
    return after


def dead_keys(folder: Path, manifest: Manifest) -> Ints:
    """Return the keys of the deleted rows, sorted."""
    if manifest.dead_file is None:
        return np.zeros(0, np.int64)
    path = folder / manifest.dead_file
    content = path.read_bytes()
    if manifest.dead_sum is not None and zlib.crc32(content) != manifest.dead_sum:
        raise ValueError(f"{path} is damaged (it does not have its checksum): make the index anew")
    return np.asarray(pq.read_table(pa.BufferReader(content)).column("key").to_numpy())


def dead_rows(part: Part, dead: Ints) -> Ints:
    """Return which rows of a part are deleted."""
    low, high = np.searchsorted(dead, (part.first_key, part.first_key + part.rows))
    return dead[low:high] - part.first_key


def live_rows(part: Part, dead: Ints) -> Rows:
    """Return the items of a part that are not deleted."""
    keep = np.ones(part.rows, np.bool_)
    keep[dead_rows(part, dead)] = False
    return part.read(keep)


def joined(tables: list[Rows]) -> Rows:
    """Return several tables as one."""
    if len(tables) == 1:
        return tables[0]
    columns: list[Any] = [pa.concat_arrays([table[i] for table in tables]) for i in (0, 2)]
    return Rows(columns[0], np.concatenate([table.probabilities for table in tables]), columns[1])


def clean(folder: Path, manifest: Manifest | None) -> None:
    """Remove what a killed write left and what no longer counts, except parts that a reader has open."""
    remove_partial(folder)
    kept = set() if manifest is None else manifest.files
    for path in list(folder.iterdir()):
        found = _OURS.fullmatch(path.name)
        if found is None or path.name in kept:
            continue
        if found[1] is None:
            path.unlink(missing_ok=True)
        else:
            remove_unless_held(folder, PartFacts(int(found[1]), 0, (0, 0)))


def check_folder(folder: Path) -> None:
    """Refuse a folder that holds something else than an index: nothing that is not ours is ever among its files."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file: give a folder that is empty or new")
    if folder.is_dir() and not manifests.exists(folder):
        strange = sorted(path.name for path in folder.iterdir() if not _is_ours(path.name))
        if strange:
            raise ValueError(f"{folder} holds {strange[0]!r} and is no index: give a folder that is empty or new")


def _is_ours(name: str) -> bool:
    """Whether a file of this name may be one of an index."""
    return bool(_OURS.fullmatch(name)) or name in (manifests.FILE, manifests.LOCK) or name.endswith(".partial")


def _small(sizes: dict[int, int], n_labels: int) -> set[int]:
    """The smallest parts that are to be merged: several of about the same size, so that log N of them stay."""
    order = sorted(sizes, key=lambda number: sizes[number])
    total, together = 0, set[int]()
    for number in order:
        if sizes[number] > 2 * total and len(together) > 0 and len(together) < _SEVERAL:
            together.clear()
            total = 0
        elif sizes[number] > 2 * total and together:
            break
        if (total + sizes[number]) * n_labels > _MERGED_CELLS:
            break
        total += sizes[number]
        together.add(number)
    return together if len(together) >= _SEVERAL else set()


def _groups(moved: list[Part], added: Rows | None, with_added: bool, n_labels: int) -> list[list[Part | Rows]]:
    """What is written together: parts up to a size that memory holds; large worn ones each for itself."""
    small: list[Part | Rows] = [part for part in moved if part.rows * n_labels <= _MERGED_CELLS]
    groups: list[list[Part | Rows]] = [[part] for part in moved if part.rows * n_labels > _MERGED_CELLS]
    if added is not None:
        if with_added:
            small.append(added)
        else:
            groups.append([added])
    return groups + ([small] if small else [])
