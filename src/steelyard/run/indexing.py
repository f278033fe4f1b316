"""The index of a run: probabilities of items kept for `steelyard search`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.run.fingerprints import fingerprints, probability_print
from steelyard.run.folder import Trained
from steelyard.search import Index
from steelyard.search import manifest as manifests
from steelyard.search.change import check_folder

INDEX = "index"
"""The folder of an index in that of a run."""

Put: TypeAlias = Callable[[Sequence[str], NDArray[np.float32], Sequence[str]], None]
"""Takes ids, probabilities (n, L) and the files of items, none or one for each."""

_CELLS = 1 << 26  # probabilities that are held before a step is made: 256 MB


def index_of(
    trained: Trained,
    ids: Sequence[str],
    probabilities: ArrayLike,
    paths: Sequence[str | os.PathLike[str] | None] | None,
    folder: str | os.PathLike[str],
) -> Index:
    """Write the index of items with the probabilities of a trained model, over one that is there, and return it open.

    It notes the SHA-256 of the run's model and of its calibration, the run, the folder that holds all files, and that
    there are no thumbnails: they are made of the files when they are asked for.

    Args:
        trained: the model of a run folder, whose labels these are.
        ids: of the N items.
        probabilities: (N, L), calibrated.
        paths: of the items' files, kept absolute; None where items have none.
        folder: of the index, such as RUN/index.
    """
    if trained.folder is None:
        raise ValueError("the model is of no run folder: save it as a run first")
    places = None if paths is None else [None if path is None else str(Path(path).absolute()) for path in paths]
    notes = {**_facts(trained.folder), "images": _root(places or ())}
    return Index.build(folder, ids, probabilities, trained.names, places, overwrite=True, notes=notes)


@contextmanager
def into_index(
    run: str | os.PathLike[str], names: Sequence[str], folder: str | os.PathLike[str], overwrite: bool = False
) -> Iterator[Put]:
    """Give a function that takes items; they are in the index when the block is left, in the place of those so named.

    An index that is not there is made. More items than memory holds are written in several steps, each of which leaves
    a whole index.

    Args:
        run: the folder of the run that the probabilities are of.
        names: of its labels.
        folder: of the index; one of other labels, another model or another calibration is refused.
        overwrite: whether what is in the index is dropped instead.
    """
    place = Path(folder)
    check_folder(place)
    is_new = overwrite or not manifests.exists(place)
    if not is_new:
        with Index.open(place) as there:
            if there.names != tuple(names) or is_stale(there, run):
                raise ValueError(
                    f"{place} holds probabilities of another model or calibration: give another folder, or drop them "
                    "with --overwrite"
                )
    ids: list[str] = []
    paths: list[str | None] = []
    held: list[NDArray[np.float32]] = []

    def flush() -> None:
        nonlocal is_new
        eta = np.concatenate([np.zeros((0, len(names)), np.float32), *held])
        if is_new:
            notes = {**_facts(run), "images": _root(paths)}
            Index.build(place, ids, eta, names, paths, overwrite=overwrite, notes=notes).close()
        elif ids:
            with Index.open(place) as index:
                index.replace(ids, eta, paths, {"images": _widened(index, paths)})
        is_new = False
        for some in (ids, paths, held):
            some.clear()

    def put(more: Sequence[str], eta: NDArray[np.float32], files: Sequence[str]) -> None:
        ids.extend(more)
        paths.extend([str(Path(file).absolute()) for file in files] if files else [None] * len(more))
        held.append(eta)
        if len(ids) * len(names) >= _CELLS:
            flush()

    yield put
    flush()


def is_stale(index: Index, run: str | os.PathLike[str]) -> bool:
    """Return whether an index notes a model or probabilities that a run no longer has; one made by hand notes none."""
    noted, now = index.notes, {**fingerprints(run), "probabilities": probability_print(run)}
    kept = "probabilities" if "probabilities" in noted else "calibration"  # which the first version noted
    return any(noted.get(name) not in (None, now[name]) for name in ("model", kept))


def _facts(run: str | os.PathLike[str]) -> dict[str, Any]:
    return {
        **fingerprints(run),
        "probabilities": probability_print(run),
        "thumbnails": None,
        "run": str(Path(run).absolute()),
    }


def _root(paths: Sequence[str | None]) -> str | None:
    """The folder that holds all files; None where that is no more than the whole disk."""
    folders = {str(Path(path).parent) for path in paths if path is not None}
    root = Path(os.path.commonpath(folders)) if folders else None
    return None if root is None or root == Path(root.anchor) else str(root)


def _widened(index: Index, more: Sequence[str | None]) -> str | None:
    """The folder that holds the files of an index and more; None where one is not within that of the index."""
    before = index.notes.get("images")
    within = before is not None and all(path is None or Path(path).is_relative_to(before) for path in more)
    return before if within else None
