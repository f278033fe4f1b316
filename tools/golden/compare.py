"""Compare two records: every difference is one line that names where it is."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

_NUMBER = re.compile(r"(?<![\w.])(-?\d+\.\d+(?:e[-+]?\d+)?|-?\d+e[-+]?\d+)(?![\w.])")
_SHOWN = 12


def differences(base: Any, tree: Any, tolerance: float | None = None, place: str = "") -> Iterator[tuple[str, str]]:
    """Yield (place, what differs) for every entry that is not equal.

    Args:
        base, tree: records, or parts of them: dicts, lists, texts, numbers; arrays as `record.as_array` writes them.
        tolerance: None where every bit must be equal. Otherwise floats may differ by it, relative to those above 1;
            texts may differ in decimal fractions alone, by as much. Names, ids, counts and decisions must be equal.
        place: the path of this part.
    """
    if isinstance(base, dict) and isinstance(tree, dict):
        if base.keys() == tree.keys() == {"dtype", "shape", "values"}:
            if told := _arrays(base, tree, tolerance):
                yield place, told
            return
        for key in [*base, *(key for key in tree if key not in base)]:
            inner = f"{place}/{key}" if place else str(key)
            if key not in tree:
                yield inner, "is gone"
            elif key not in base:
                yield inner, "is new"
            else:
                yield from differences(base[key], tree[key], tolerance, inner)
    elif isinstance(base, list) and isinstance(tree, list) and len(base) == len(tree):
        for i, (one, other) in enumerate(zip(base, tree, strict=True)):
            yield from differences(one, other, tolerance, f"{place}/{i}")
    elif isinstance(base, str) and isinstance(tree, str):
        if base != (rounded := tree if tolerance is None else _rounded(base, tree, tolerance)):
            yield place, _changed_lines(base, rounded)
    elif isinstance(base, float) and isinstance(tree, float):
        if not _close(np.array(base), np.array(tree), tolerance):
            yield place, f"{base!r} became {tree!r}"
    elif type(base) is not type(tree) or base != tree:
        yield place, f"{_short(base)} became {_short(tree)}"


def listing(base: dict[str, Any], tree: dict[str, Any], found: list[tuple[str, str]], shown: int) -> Iterator[str]:
    """Yield a text for every difference, of each entry of a section the first `shown`, then how many more there are."""
    entries = {f"{section}/{key}": 0 for side in (base, tree) for section, part in side.items() for key in part}
    for place, told in found:
        entry = next((one for one in entries if f"{place}/".startswith(f"{one}/")), place)
        entries[entry] = entries.get(entry, 0) + 1
        if entries[entry] <= shown:
            yield f"{place}\n    {told}"
    yield from (f"{entry}\n    {n - shown} differences more" for entry, n in entries.items() if n > shown)


def is_allowed(place: str, patterns: list[str]) -> bool:
    """Return whether a place, or what it lies in, matches one of the shell patterns."""
    return any(fnmatchcase(place, pattern) or fnmatchcase(place, f"{pattern}/*") for pattern in patterns)


def _close(base: np.ndarray, tree: np.ndarray, tolerance: float | None) -> np.ndarray:
    if tolerance is None:
        same = (base == tree) & (np.signbit(base) == np.signbit(tree))
    else:
        with np.errstate(invalid="ignore"):
            same = (base == tree) | (np.isfinite(base) & (abs(base - tree) <= tolerance * np.maximum(1, abs(base))))
    return np.asarray(same | (np.isnan(base) & np.isnan(tree)))


def _arrays(base: dict[str, Any], tree: dict[str, Any], tolerance: float | None) -> str:
    for name in ("dtype", "shape"):
        if base[name] != tree[name]:
            return f"{name} {base[name]} became {tree[name]}"
    one, other = (np.array(side["values"], side["dtype"]).reshape(side["shape"]) for side in (base, tree))
    wrong = ~_close(one, other, tolerance) if one.dtype.kind == "f" else one != other
    if not wrong.any():
        return ""
    gap = np.where(wrong, abs(one.astype(float) - other.astype(float)), -1.0)
    worst = np.unravel_index(np.nan_to_num(gap, nan=np.inf).argmax(), gap.shape)
    at = ", ".join(map(str, worst))
    return f"{wrong.sum()} of {wrong.size} values differ, most at [{at}]: {one[worst]} became {other[worst]}"


def _rounded(base: str, tree: str, tolerance: float) -> str:
    """Return `tree` with the numbers of `base` where a line differs from its counterpart in close numbers alone."""
    old, new = base.split("\n"), tree.split("\n")
    if len(old) != len(new):
        return tree
    for i, (one, other) in enumerate(zip(old, new, strict=True)):
        a, b = _NUMBER.split(one), _NUMBER.split(other)
        if a[::2] == b[::2] and _close(np.array(a[1::2], float), np.array(b[1::2], float), tolerance).all():
            new[i] = one
    return "\n".join(new)


def _changed_lines(base: str, tree: str) -> str:
    lines = list(difflib.unified_diff(base.splitlines(), tree.splitlines(), n=0, lineterm=""))[2:]
    lines = [line for line in lines if not line.startswith("@@")]
    more = [f"… and {len(lines) - _SHOWN} lines more"] if len(lines) > _SHOWN else []
    return "\n    ".join(["the text changed:", *(lines or ["(line ends only)"])[:_SHOWN], *more])


def _short(value: Any) -> str:
    text = repr(value)
    return f"{text[:80]} …" if len(text) > 80 else text
