"""Seconds of a training on MultiMNIST by the PLM paper's recipe, and images a second from files through a network."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from steelyard.balance import LabelPair, PartialLabelMasking, PseudoLabels
from steelyard.losses import BCE, Annotation
from steelyard.objective import Objective
from steelyard_bench.row import Row

_SIDE, _BATCH, _MOST_FILES = 112, 128, 20_000
_METHODS = ("BCE", "PLM", "LPR", "pseudo-labels")
_HIDDEN = 0.4  # of the labels, where pseudo-labels stand for them


def rows_of(data: Any, epochs: int, paths: list[Path], device: torch.device) -> list[Row]:
    """Return the rows of trainings on MultiMNIST's pictures and on images, of which there may be none."""
    return [
        *(mnist_rows(data, epochs, device) if data is not None else []),
        *(image_rows(paths, device) if paths else []),
    ]


def pictures(root: str | None, most: int | None) -> Any:
    """Return MultiMNIST's training set, or its first `most` pictures; `root` holds MNIST/raw. None without `root`."""
    if root is None:
        return None
    from steelyard.data import multi_mnist
    from steelyard.data.dataset import ArrayDataset

    data = multi_mnist(root, train=True)
    return data if most is None else ArrayDataset(data.inputs[:most], data.labels.take(np.arange(most)))


def mnist_rows(data: Any, epochs: int, device: torch.device) -> list[Row]:
    """Return the rows of trainings on MultiMNIST's pictures."""
    return [_on_mnist(method, data, epochs, device) for method in _METHODS]


def files(folder: str | None, quick: bool) -> list[Path]:
    """Return the images in a folder, the first of them if there are many; none without a folder."""
    if folder is None:
        return []
    found = [path for end in ("*.jpg", "*.jpeg", "*.png") for path in Path(folder).glob(end)]
    if not found:
        raise ValueError(f"--images {folder}: no .jpg, .jpeg or .png file in it")
    return sorted(found)[: _BATCH if quick else _MOST_FILES]


def image_rows(paths: list[Path], device: torch.device) -> list[Row]:
    """Return the rows of reading images, first and cached, and of training on them."""
    from steelyard.data.dataset import ImageDataset
    from steelyard.labels import Labels

    g = np.random.default_rng(0)
    labels = Labels((g.random((len(paths), 20)) < 0.1).astype(np.int8))
    size, rows = f"{len(paths):,} files to {_SIDE} × {_SIDE}", []
    with tempfile.TemporaryDirectory() as cache:
        for name, data in (
            ("reading", ImageDataset(paths, labels, _SIDE)),
            ("reading, filling the cache", ImageDataset(paths, labels, _SIDE, cache=cache)),
            ("reading, from the cache", ImageDataset(paths, labels, _SIDE, cache=cache)),
        ):
            rows.append(_rated(size, name, len(paths), _read(data, device)))
        data = ImageDataset(paths, labels, _SIDE, cache=cache)
        seconds = _trained("small", data, Objective(BCE()), 1, device)
        rows.append(_rated(size, "training a small network, from the cache", len(paths), seconds))
    return rows


def _on_mnist(method: str, data: Any, epochs: int, device: torch.device) -> Row:
    from steelyard.data.dataset import ArrayDataset
    from steelyard.labels import Labels

    loss = BCE(reduction="item")  # summed over classes, as the paper writes it
    if method == "pseudo-labels":
        values = data.labels.values.copy()
        values[np.random.default_rng(0).random(values.shape) < _HIDDEN] = -1
        data = ArrayDataset(data.inputs, Labels(values, data.labels.names, data.labels.ids))
    labels = data.labels
    with tempfile.TemporaryDirectory() as folder:
        objective = {
            "BCE": lambda: Objective(loss),
            "PLM": lambda: Objective(
                loss, masking=PartialLabelMasking(torch.tensor(labels.counts), torch.tensor(labels.n_known))
            ),
            "LPR": lambda: Objective(loss, regularizers=[LabelPair()]),
            "pseudo-labels": lambda: Objective(
                loss, Annotation(PseudoLabels(Path(folder) / "pseudo-labels", labels.n_items, labels.n_labels))
            ),
        }[method]()
        seconds = _trained("resnet12", data, objective, epochs, device)
    name = f"MultiMNIST, {method}, ResNet-12, {epochs} epoch{'s' * (epochs != 1)}"
    return _rated(
        f"{len(data):,} images of {data.inputs.shape[-1]} × {data.inputs.shape[-1]}", name, len(data) * epochs, seconds
    )


def _trained(backbone: str, data: Any, objective: Objective, epochs: int, device: torch.device) -> float:
    """Return the seconds of a training, compiling and checkpoints left out."""
    from steelyard.models import ModelSettings, build_model, input_of
    from steelyard.training.loop import train
    from steelyard.training.settings import OptimizerSettings, ScheduleSettings, TrainSettings

    torch.manual_seed(0)
    model = build_model(ModelSettings(backbone=backbone), input_of(data), data.labels)
    model.fit_normalisation(data)
    settings = TrainSettings(epochs=epochs, batch_size=_BATCH, device=device.type, keep="last", checkpoint_seconds=1e9)
    share = epochs / 90  # the paper's warm-up and milestones, of its 90 epochs
    schedule = ScheduleSettings("multistep", warmup_epochs=5 * share, milestones=(60 * share, 80 * share))
    optimizer = OptimizerSettings("sgd", lr=0.1, weight_decay=5e-4)
    with tempfile.TemporaryDirectory() as folder:
        return train(model, objective, data, optimizer, schedule, settings, Path(folder)).seconds


def _read(data: Any, device: torch.device) -> float:
    """Return the seconds of going through all items in batches, as training reads them."""
    from steelyard.training.batches import make_batches, make_sampler
    from steelyard.training.settings import SamplerSettings

    sampler = make_sampler(SamplerSettings(), data.labels, 0)
    batches = make_batches(data, sampler, _BATCH, device, -1)
    start, seen = time.perf_counter(), 0
    batches.start_epoch(1)
    for batch in batches:
        seen += len(batch.targets)
    assert seen == len(data)
    return time.perf_counter() - start


def _rated(size: str, name: str, images: int, seconds: float) -> Row:
    return Row("training", size, name, "steelyard", seconds, note=f"{images / seconds:,.0f} images/s")
