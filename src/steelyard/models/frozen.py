"""Features of all items, computed once by a backbone that does not change, and kept."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from steelyard.data.cache import stamp_of
from steelyard.data.dataset import ArrayDataset, ImageDataset
from steelyard.data.files import DataError
from steelyard.data.loading import fetched, loader
from steelyard.data.region_features import RegionDataset
from steelyard.data.subset import Labelled, Subset, origin
from steelyard.labels import Labels
from steelyard.labels.targets import UNKNOWN
from steelyard.models.feature_file import FeatureFile, Kept, Writer
from steelyard.models.model import Model
from steelyard.models.pieces import in_pieces

Progress: TypeAlias = Callable[[int, int], None]

_RULES = 1  # to be raised whenever the features that a backbone makes of an item change
_CELLS = 1 << 22  # of an array that are read at a time


def frozen_features(
    model: Model,
    data: Labelled,
    folder: str | os.PathLike[str],
    device: str | torch.device = "cpu",
    batch_size: int = 64,
    workers: int = 0,
    progress: Progress | None = None,
) -> NDArray[np.float32]:
    """Return the features (N, F) of all items, float32, mapped from a file in `folder`.

    They are computed once for these weights and these items, in evaluation mode. The file's name is a fingerprint of
    the backbone's weights and statistics, and of the items: paths, times, lengths, boxes and size of images, contents
    of arrays. A run that is killed leaves what it computed, and the next goes on from there; the file gets its name
    when it is whole, and a checksum is tested whenever it is opened. Of two processes that ask for the same, one
    computes and the other waits. The folder may be deleted whenever no one is using it.

    model: moved to `device`. data: an `ArrayDataset`, `ImageDataset`, `RegionDataset`, or a `Subset` of one. workers:
    processes that decode images. progress: called with (items done, items) after every batch.
    """
    return _kept(model, data, folder, device, batch_size, workers, progress).rows


def frozen_data(
    model: Model,
    data: Labelled,
    folder: str | os.PathLike[str],
    device: str | torch.device = "cpu",
    batch_size: int = 64,
    workers: int = 0,
    progress: Progress | None = None,
) -> ArrayDataset:
    """Return `frozen_features` with their labels; an image that was skipped has all of its labels unknown."""
    kept = _kept(model, data, folder, device, batch_size, workers, progress)
    source, index = origin(data)
    if isinstance(source, ImageDataset):
        source.note_skipped(index[kept.skipped])
    return ArrayDataset(kept.rows, _unknown_at(data.labels, kept.skipped), "features of a frozen backbone")


def _kept(
    model: Model,
    data: Labelled,
    folder: str | os.PathLike[str],
    device: str | torch.device,
    batch_size: int,
    workers: int,
    progress: Progress | None,
) -> Kept:
    if len(data) == 0:
        raise ValueError("data holds no items: there is nothing to compute features of")
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}: it must be at least 1")
    name = f"features-{_fingerprint(model, data)}.npy"
    file = FeatureFile(Path(folder).absolute() / name, (len(data), model.n_features))
    with file.alone():
        if (kept := file.read()) is None:
            with file.writing(batch_size) as writer:
                _compute(model, data, writer, torch.device(device), batch_size, workers, progress)
            kept = file.read()
    if kept is None:
        raise DataError(f"{file.path} is damaged as soon as it is written: check the disk, or give another folder")
    return kept


@torch.no_grad()
def _compute(
    model: Model,
    data: Labelled,
    writer: Writer,
    device: torch.device,
    batch_size: int,
    workers: int,
    progress: Progress | None,
) -> None:
    """Write the features of all items from `writer.done` on."""
    was_training = model.training
    model.to(device).eval()
    source, places = origin(data)
    starts = range(writer.done, len(data), batch_size)
    slices = [range(start, min(start + batch_size, len(data))) for start in starts]
    for x, _, index in fetched(loader(data, slices, workers, pin=device.type == "cuda")):
        features = in_pieces(model.features, _on(device, x)).float().cpu()
        if not bool(torch.isfinite(features).all()):
            i = int(index[~torch.isfinite(features).all(1)][0])
            raise ValueError(f"item {i} ({data.labels.ids[i]}) has features that are not finite: check its input")
        at, lost = index.numpy(), list[int]()
        if isinstance(source, ImageDataset):
            lost = at[np.isin(places[at], source.skipped)].tolist()
        writer.append(features.numpy(), lost)
        if progress is not None:
            progress(writer.done, len(data))
    model.train(was_training)


def _on(device: torch.device, x: Any) -> Any:
    """Inputs on the device; images with channels last, on which convolutions are faster, by a third on a CPU."""
    if isinstance(x, tuple):
        return [part.to(device, non_blocking=True) for part in x]
    x = x.to(device, non_blocking=True)
    return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x


def _fingerprint(model: Model, data: Labelled) -> str:
    """A name for what `model` makes of `data`: everything that has a say in it, hashed."""
    about = {"rules": _RULES, "backbone": model.settings.backbone, "input": model.input.kind, "items": len(data)}
    found = hashlib.sha256(json.dumps(about).encode())
    for name, tensor in model.state_dict().items():
        if not name.startswith("head."):
            found.update(f"\0{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
            found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    source, index = (data.data, data.index) if isinstance(data, Subset) else (data, np.arange(len(data)))
    if isinstance(source, ImageDataset):
        if source.size is None:
            raise ValueError(f"data has images of many sizes: give the ImageDataset a size, such as {model.size}")
        found.update(f"\0{source.size}{source.on_bad_image}".encode())
        if source.boxes is not None:
            found.update(source.boxes[index].tobytes())
        paths = source.paths
        for i in index.tolist():
            found.update(b"\0" + os.fsencode(Path(paths[i]).absolute()) + str(stamp_of(paths[i])).encode())
    elif isinstance(source, ArrayDataset):
        found.update(f"\0{source.inputs.shape[1:]}{source.inputs.dtype}".encode())
        step = max(1, _CELLS // max(1, source.inputs[0].size))
        for start in range(0, len(index), step):
            found.update(np.ascontiguousarray(source.inputs[index[start : start + step]]).data)
    elif isinstance(source, RegionDataset):
        found.update(b"\0" + source.fingerprint(index))
    else:
        raise ValueError(
            f"data is a {type(source).__name__}: features are kept of an ArrayDataset, ImageDataset or RegionDataset; "
            "compute others by model.features"
        )
    return found.hexdigest()[:32]


def _unknown_at(labels: Labels, rows: list[int]) -> Labels:
    """The same labels, all unknown in these rows."""
    if not rows:
        return labels
    items, columns, values = labels.cells()
    stay = ~np.isin(items, rows)
    items, columns, values = items[stay], columns[stay], values[stay]
    if labels.fill != UNKNOWN:
        items = np.concatenate([items, np.repeat(rows, labels.n_labels)])
        columns = np.concatenate([columns, np.tile(np.arange(labels.n_labels), len(rows))])
        values = np.concatenate([values, np.full(len(rows) * labels.n_labels, UNKNOWN, values.dtype)])
    shape = (len(labels), labels.n_labels)
    return Labels.from_cells(items, columns, values, shape, labels.fill, labels.names, labels.ids)
