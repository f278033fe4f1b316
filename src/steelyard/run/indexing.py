"""The index of a run: probabilities of items kept for `steelyard search`."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from numpy.typing import ArrayLike

from steelyard.run.folder import Trained
from steelyard.run.reading_file import text_of
from steelyard.search import Index

INDEX = "index"
"""The folder of an index in that of a run."""


def index_of(
    trained: Trained,
    ids: Sequence[str],
    probabilities: ArrayLike,
    paths: Sequence[str | os.PathLike[str] | None] | None,
    folder: str | os.PathLike[str],
) -> Index:
    """Write the index of items with the probabilities of a trained model, over one that is there, and return it open.

    It notes the SHA-256 of the model's weights and of its calibration, the run, the folder that holds all files, and
    that there are no thumbnails: they are made of the files when they are asked for.

    Args:
        trained: the model, whose labels these are.
        ids: of the N items.
        probabilities: (N, L), calibrated.
        paths: of the items' files, kept absolute; None where items have none.
        folder: of the index, such as RUN/index.
    """
    places = None if paths is None else [None if path is None else str(Path(path).absolute()) for path in paths]
    return Index.build(folder, ids, probabilities, trained.names, places, overwrite=True, notes=_notes(trained, places))


def _notes(trained: Trained, paths: list[str | None] | None) -> dict[str, Any]:
    there = [path for path in paths or () if path is not None]
    weights = hashlib.sha256()
    for name, tensor in sorted(trained.model.state_dict().items()):
        weights.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        weights.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return {
        "model": weights.hexdigest(),
        "calibration": hashlib.sha256(text_of(trained.reading).encode()).hexdigest(),
        "images": os.path.commonpath(str(Path(path).parent) for path in there) if there else None,
        "thumbnails": None,
        "run": None if trained.folder is None else str(Path(trained.folder).absolute()),
    }
