"""Write the index of a run, which `steelyard search` reads."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.folder.fingerprints import fingerprints, is_outdated, probability_print
from steelyard.folder.run_folder import Trained
from steelyard.search import Index
from steelyard.search import pointer as pointers

_CELLS = 1 << 26  # probabilities that are held before a step is made: 256 MB


def index_of(
    trained: Trained,
    ids: Sequence[str],
    probabilities: ArrayLike,
    paths: Sequence[str | os.PathLike[str] | None] | None,
    folder: str | os.PathLike[str],
    embeddings: NDArray[np.float32] | None = None,
) -> Index:
    """Write the index of items with the probabilities of a trained model, over one that is there, and return it open.

    It notes the SHA-256 of the run's model and of its calibration, and the run.

    Args:
        trained: the model of a run folder, whose labels these are.
        ids: of the N items.
        probabilities: (N, L), calibrated.
        paths: of the items' files, kept absolute; None where items have none.
        folder: of the index, such as RUN/index.
        embeddings: (N, D), by which items are like each other; None for none.
    """
    if trained.folder is None:
        raise ValueError("the model is of no run folder: save it as a run first")
    places = None if paths is None else [None if path is None else str(Path(path).absolute()) for path in paths]
    notes = _facts(trained.folder)
    return Index.build(folder, ids, probabilities, trained.names, places, True, notes, embeddings)


@final
class IndexWriter:
    """Collects items and writes them to an index in batches of bounded size, replacing those with the same ids.

    added, replaced: items that were not there before, and those that were.
    """

    def __init__(self, folder: Path, names: Sequence[str], notes: dict[str, Any] | None, overwrite: bool) -> None:
        self._folder, self._names, self._notes, self._overwrite = folder, names, notes, overwrite
        self._ids: list[str] = []
        self._paths: list[str | None] = []
        self._held: list[NDArray[np.float32]] = []
        self._embeddings: list[NDArray[np.float32]] = []
        self.added = self.replaced = 0

    def put(
        self,
        ids: Sequence[str],
        probabilities: NDArray[np.float32],
        files: Sequence[str],
        embeddings: NDArray[np.float32] | None = None,
    ) -> None:
        """Take ids, probabilities (n, L), the files of items, none or one for each, and embeddings (n, D) if any."""
        if embeddings is not None:
            self._embeddings.append(embeddings)
        self._ids.extend(ids)
        self._paths.extend([str(Path(file).absolute()) for file in files] if files else [None] * len(ids))
        self._held.append(probabilities)
        if len(self._ids) * len(self._names) >= _CELLS:
            self.flush()

    def flush(self) -> None:
        """Write the collected items."""
        eta = np.concatenate([np.zeros((0, len(self._names)), np.float32), *self._held])
        numbers = np.concatenate(self._embeddings) if self._embeddings else None
        again = 0
        if self._notes is not None:
            given = (self._folder, self._ids, eta, self._names, self._paths)
            Index.build(*given, overwrite=self._overwrite, notes=self._notes, embeddings=numbers).close()
        elif self._ids:
            with Index.open(self._folder) as index:
                again = index.replace(self._ids, eta, self._paths, embeddings=numbers)
        self._notes = None
        self.added, self.replaced = self.added + len(self._ids) - again, self.replaced + again
        for some in (self._ids, self._paths, self._held, self._embeddings):
            some.clear()


def keeps_embeddings(folder: str | os.PathLike[str]) -> bool:
    """Return whether a folder holds an index with embeddings; added items must have them too."""
    try:
        return pointers.read(Path(folder)).n_numbers > 0
    except ValueError:  # none, or an unreadable one: adding to it raises, overwriting it works
        return False


@contextmanager
def into_index(
    run: str | os.PathLike[str], names: Sequence[str], folder: str | os.PathLike[str], overwrite: bool = False
) -> Iterator[IndexWriter]:
    """Give a writer of items; they are in the index when the block is left.

    A missing index is created. More items than memory holds are written in several steps, each of which leaves a
    complete index.

    Args:
        run: the folder of the run that the probabilities are of.
        names: of its labels.
        folder: of the index; one of other labels, another model or another calibration is refused.
        overwrite: whether what is in the index is dropped instead.
    """
    path = Path(folder)
    pointers.check_folder(path)
    is_new = overwrite or not pointers.exists(path)
    if not is_new:
        with Index.open(path) as current:
            if current.names != tuple(names) or is_outdated(current.notes, run):
                raise ValueError(
                    f"{path} holds probabilities of another model or calibration: give another folder, or drop them "
                    "with --overwrite"
                )
    writer = IndexWriter(path, names, _facts(run) if is_new else None, overwrite)
    yield writer
    writer.flush()


def _facts(run: str | os.PathLike[str]) -> dict[str, Any]:
    return {**fingerprints(run), "probabilities": probability_print(run), "run": str(Path(run).absolute())}
