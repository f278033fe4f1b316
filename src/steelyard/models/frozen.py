"""Features of all items, computed once by a backbone that does not change, and kept."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import issparse

from steelyard._arrays import slices
from steelyard.data.cache import stamp_of
from steelyard.data.dataset import ArrayDataset, ImageDataset, as_inputs
from steelyard.data.files import DataError
from steelyard.data.loading import fetched, loader
from steelyard.data.readers.regions import RegionDataset
from steelyard.data.subset import Labelled, origin
from steelyard.labels import Labels
from steelyard.labels.targets import UNKNOWN
from steelyard.models.feature_file import FeatureFile, Keys, Loans, Writer, loans_for, note_use, prune, write_keys
from steelyard.models.inputs import Input, in_pieces
from steelyard.models.model import Model
from steelyard.models.small import Features

Progress: TypeAlias = Callable[[int, int], None]
Say: TypeAlias = Callable[[str], None]

_RULES = 1  # to be raised whenever the features that a backbone makes of an item change
_CELLS = 1 << 22  # of an array that are read at a time


class FeatureFolder(NamedTuple):
    """A folder for features, and how it is shared."""

    folder: str | os.PathLike[str]
    shared: bool = False
    """True if all runs of a user share the folder: rows of an image that another list also holds are copied, and beyond
    a bound the least recently used files are removed."""
    say: Say | None = None
    """Takes a sentence about a damaged file."""


def frozen_data(
    model: Model,
    data: Labelled,
    folder: str | os.PathLike[str] | FeatureFolder,
    device: str | torch.device = "cpu",
    batch_size: int = 64,
    workers: int = 0,
    progress: Progress | None = None,
) -> ArrayDataset:
    """Return the features (N, F) of all items, float32, memory-mapped from a file in `folder`, with their labels.

    They are computed once for these weights and items, in evaluation mode. The file name is a fingerprint of the
    backbone's weights and statistics, the kind of device, and the items: paths, times, lengths, boxes and size of
    images, or contents of arrays. A killed run leaves what it computed and the next one continues there; the file gets
    its final name when complete, and its checksum is verified whenever it is opened. If two processes ask for the same
    features, one computes them and the other waits. The folder may be deleted when nobody uses it. All labels of a
    skipped image are unknown.

    Args:
        model: the model; it is moved to `device`.
        data: an `ArrayDataset`, `ImageDataset` or `RegionDataset`, or a `Subset` of one.
        folder: the folder of the file.
        device: where features are computed.
        batch_size: items per batch.
        workers: number of processes that decode images.
        progress: called with (items done, items) after each batch.

    Examples:
        >>> labels = sy.Labels([[1, 0], [0, 1]])
        >>> data = sy.data.ArrayDataset(np.ones((2, 4)), labels)
        >>> settings = sy.models.ModelSettings(backbone="mlp", width=8)
        >>> model = sy.models.build_model(settings, sy.models.input_of(data), labels)
        >>> features = sy.models.frozen_data(model, data, "features")
        >>> features.inputs.shape, features.inputs.dtype
        ((2, 8), dtype('float32'))
    """
    if len(data) == 0:
        raise ValueError("data holds no items: there is nothing to compute features of")
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}: it must be at least 1")
    keeping = folder if isinstance(folder, FeatureFolder) else FeatureFolder(folder)
    place, kind = Path(keeping.folder).absolute(), torch.device(device)
    mark = _fingerprint(model, data, kind)
    file = FeatureFile(place / f"features-{mark.backbone}-{mark.items}.npy", (len(data), model.n_features))
    with file.alone():
        if (kept := file.read()) is None:
            if keeping.say is not None and file.path.exists():
                keeping.say(f"{file.path} is corrupt: its features are computed again")
            loans = Loans(len(data))
            if keeping.shared and mark.keys is not None:
                write_keys(file, mark.keys)
                loans = loans_for(file.path, mark.backbone, mark.keys, model.n_features)
            with file.writing(batch_size) as writer:
                _compute(model, data, writer, loans, kind, batch_size, workers, progress)
            kept = file.read()
    if kept is None:
        raise DataError(f"{file.path} is corrupt right after writing: check the disk, or give another folder")
    if keeping.shared:
        note_use(file)
        prune(place)
    source, index = origin(data)
    if isinstance(source, ImageDataset):
        source.note_skipped(index[kept.skipped])
    return ArrayDataset(kept.rows, _unknown_at(data.labels, kept.skipped), "features of a frozen backbone")


def over_features(model: Model) -> Model:
    """Return a model that takes the features of `model`'s backbone as input and shares its head.

    Args:
        model: the model.

    Examples:
        >>> settings = sy.models.ModelSettings(backbone="mlp", width=8)
        >>> model = sy.models.build_model(settings, sy.models.Input("features", (4,)), sy.Labels([[1, 0], [0, 1]]))
        >>> x = torch.ones(1, 4)
        >>> torch.equal(sy.models.over_features(model)(model.features(x)), model(x))
        True
    """
    settings = replace(model.settings, backbone="linear", frozen=False, weights="")
    source = Features(model.n_features)
    return Model(settings, Input("features", (model.n_features,)), source, model.head, model.n_labels, None)


@torch.no_grad()
def _compute(
    model: Model,
    data: Labelled,
    writer: Writer,
    loans: Loans,
    device: torch.device,
    batch_size: int,
    workers: int,
    progress: Progress | None,
) -> None:
    """Write the features of all items from `writer.done` on, in their order; those that are lent are copied."""
    was_training = model.training
    model.to(device).eval()
    source, places = origin(data)
    missing = writer.done + np.flatnonzero(loans.file[writer.done :] < 0)
    slices = [missing[start : start + batch_size].tolist() for start in range(0, len(missing), batch_size)]
    for x, _, index in fetched(loader(data, slices, workers, pin=device.type == "cuda")):
        features = in_pieces(model.features, _on(device, x)).float().cpu()
        if not bool(torch.isfinite(features).all()):
            i = int(index[~torch.isfinite(features).all(1)][0])
            raise ValueError(f"item {i} ({data.labels.ids[i]}) has features that are not finite: check its input")
        at = index.numpy()
        for run in np.split(np.arange(len(at)), np.flatnonzero(np.diff(at) != 1) + 1):
            _copy(loans, writer, int(at[run[0]]))
            lost = list[int]()
            if isinstance(source, ImageDataset):
                lost = at[run][np.isin(places[at[run]], source.skipped)].tolist()
            writer.append(features.numpy()[run], lost)
        if progress is not None:
            progress(writer.done, len(data))
    _copy(loans, writer, len(data))
    model.train(was_training)


def _copy(loans: Loans, writer: Writer, stop: int) -> None:
    """Copy lent rows up to an item."""
    for rows in loans.pieces(writer.done, stop):
        writer.append(rows, [])


def _on(device: torch.device, x: Any) -> Any:
    """Return inputs on the device; images with channels last, which makes convolutions faster, by a third on a CPU."""
    if isinstance(x, tuple):
        return [part.to(device, non_blocking=True) for part in x]
    x = x.to(device, non_blocking=True)
    return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x


class _Mark(NamedTuple):
    """Hashes of everything that determines features."""

    backbone: str
    """Weights, statistics, the kind of device, and how images are decoded."""
    items: str
    keys: Keys | None
    """One fingerprint per item, (N,), of images; of arrays there is none."""


def _fingerprint(model: Model, data: Labelled, device: torch.device) -> _Mark:
    about = {"rules": _RULES, "backbone": model.settings.backbone, "input": model.input.kind, "device": device.type}
    backbone = hashlib.sha256(json.dumps(about).encode())
    for name, tensor in model.state_dict().items():
        if not name.startswith("head."):
            backbone.update(f"\0{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
            backbone.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    source, index = origin(data)
    items, keys = hashlib.sha256(str(len(data)).encode()), None
    if isinstance(source, ImageDataset):
        if source.size is None:
            raise ValueError(f"data has images of many sizes: give the ImageDataset a size, such as {model.size}")
        backbone.update(f"\0{source.size}".encode())
        items.update(f"\0{source.on_bad_image}".encode())
        keys = _image_keys(source, index)
        items.update(keys.tobytes())
    elif isinstance(source, ArrayDataset):
        items.update(f"\0{source.inputs.shape[1:]}{source.inputs.dtype}".encode())
        for some in slices((len(index), math.prod(source.inputs.shape[1:])), _CELLS):
            rows = source.inputs[index[some]]
            items.update(np.ascontiguousarray(as_inputs(rows) if issparse(rows) else rows).data)
    elif isinstance(source, RegionDataset):
        items.update(b"\0" + source.fingerprint(index))
    else:
        raise ValueError(
            f"data is a {type(source).__name__}: features can be kept for an ArrayDataset, ImageDataset or "
            "RegionDataset; compute others with model.features"
        )
    return _Mark(backbone.hexdigest()[:16], items.hexdigest()[:32], keys)


def _image_keys(source: ImageDataset, index: NDArray[np.int64]) -> Keys:
    """Return a fingerprint of each image: its path, time, length and box."""
    paths, boxes = source.paths, source.boxes
    keys = []
    for i in index.tolist():
        box = b"" if boxes is None else boxes[i].tobytes()
        content = os.fsencode(Path(paths[i]).absolute()) + b"\0" + str(stamp_of(paths[i])).encode() + box
        keys.append(hashlib.sha256(content).hexdigest()[:32])
    return np.array(keys, "S32")


def _unknown_at(labels: Labels, rows: list[int]) -> Labels:
    """Return the same labels, all unknown in these rows."""
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
