"""Frozen features of runs: where they are kept, progress of computing them, and logits made from them."""

from __future__ import annotations

import os
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from steelyard._cache import OFF, user_cache
from steelyard.balance.processes import n_processes
from steelyard.data.dataset import ArrayDataset, ImageDataset
from steelyard.data.images import BadImage, decode
from steelyard.data.streams import Image, ImageInputs, InputBatch, Inputs
from steelyard.data.subset import Labelled, origin
from steelyard.folder.run_folder import Trained
from steelyard.labels import UNKNOWN, Labels
from steelyard.models import Model, frozen_data, over_features
from steelyard.models.feature_file import bytes_kept
from steelyard.models.frozen import FeatureFolder
from steelyard.report.terminal import say
from steelyard.training import progress

FEWEST = 8
"""Minimum number of images without labels whose features are kept: for fewer, looking them up would take longer."""
MOST = 1_000_000
"""Maximum number of images without labels that are listed; more are streamed, without all paths in memory."""

ReportProgress = Callable[[int, int], None]
"""Called with the items done and all items."""


def keeping_of(setting: str, run: Path | None, console: Console | None = None) -> FeatureFolder | None:
    """Return where frozen features are kept.

    Args:
        setting: `data.cache`: a folder, "off", or "" for the user's cache folder.
        run: the run folder that keeps them where nothing is shared; None: then they are not kept.
        console: where a damaged file is named.
    """
    talk = None if console is None else lambda sentence: say(console, f"Beware: {sentence}.", "yellow")
    if setting not in ("", OFF):
        return FeatureFolder(Path(setting) / "features", False, talk)
    shared = user_cache() if setting == "" else None
    if shared is not None and _can_write(shared / "features"):
        return FeatureFolder(shared / "features", True, talk)
    return None if run is None else FeatureFolder(run / "cache" / "features", False, talk)


def size_sentence(keeping: FeatureFolder) -> str:
    """Return how much is kept where, in one sentence."""
    folder = Path(keeping.folder)
    later = ", for later runs too; data.cache=off keeps them with the run" if keeping.shared else ""
    return f"Frozen features: {bytes_kept(folder) / 1e6:.1f} MB kept in {folder}{later}."


@contextmanager
def feature_progress(console: Console | None) -> Iterator[Callable[[str, int], ReportProgress]]:
    """Give a function that takes (what, items) and returns what shows progress: a bar on a terminal, else plain lines.

    A line is printed every half minute, as in training.
    """
    if console is None:
        yield lambda what, total: lambda done, n: None
    elif not console.is_terminal:
        yield lambda what, total: _lines(console, what)
    else:
        with Progress(console=console, transient=True) as bars:

            def add(what: str, total: int) -> ReportProgress:
                bar = bars.add_task(f"features of {total:,} {what}", total=total)
                return lambda done, n: bars.update(bar, completed=done, total=n)

            yield add


def _lines(console: Console, what: str) -> ReportProgress:
    last = time.monotonic()

    def show(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last > progress.SECONDS:
            last = time.monotonic()
            say(console, f"Features of {done:,} of {total:,} {what}.")

    return show


def kept_for(trained: Trained, data: Any, console: Console | None) -> FeatureFolder | None:
    """Return where features of these items are kept, None where the model runs on the items themselves."""
    if not trained.model.settings.is_frozen or n_processes() > 1 or not isinstance(data, Labelled) or len(data) == 0:
        return None
    source, _ = origin(data)
    if not (isinstance(source, ArrayDataset) or (isinstance(source, ImageDataset) and source.size is not None)):
        return None
    return keeping_of(tomllib.loads(trained.config).get("data", {}).get("cache", ""), None, console)


def features_for(
    model: Model,
    data: Labelled,
    keeping: FeatureFolder,
    batch_size: int,
    device: str | torch.device,
    workers: int,
    console: Console | None,
) -> tuple[Model, Any]:
    """Return what a model with a frozen backbone is over features, and the features of these items."""
    with feature_progress(console) as shows:
        features = frozen_data(model, data, keeping, device, batch_size, workers, shows("items", len(data)))
    return over_features(model).to(device), features


def listed(trained: Trained, inputs: Inputs) -> tuple[list[Image], ImageDataset] | None:
    """Return images without labels as a data set, None where features of them are not kept."""
    if not isinstance(inputs, ImageInputs) or inputs.size is None:
        return None
    if inputs.n_items is None or not FEWEST <= inputs.n_items <= MOST or not trained.model.settings.is_frozen:
        return None
    images = list(inputs.images())
    if any(image.reason for image in images):
        return None
    boxes = [image.box for image in images]
    if None in boxes and boxes != [None] * len(images):
        return None
    labels = Labels(np.full((len(images), 1), UNKNOWN, np.int8))
    place = None if None in boxes else np.array(boxes, np.float64)
    return images, ImageDataset([i.path for i in images], labels, inputs.size, inputs.on_bad_image, boxes=place)


def batches_of(
    model: Model, images: list[Image], data: ImageDataset, features: Any, batch_size: int
) -> Iterator[tuple[Tensor, InputBatch]]:
    """Yield logits of images whose features are known, with the batch that the images would have been in."""
    bad = set(data.skipped.tolist())
    for start in range(0, len(images), batch_size):
        rows = range(start, min(start + batch_size, len(images)))
        good = [i for i in rows if i not in bad]
        x = torch.from_numpy(np.array(features.inputs[good], np.float32))
        with torch.inference_mode():
            logits = model(x.to(next(model.parameters()).device)).float().cpu().clone()
        named = [(images[i].id, _reason(images[i], data.size)) for i in rows if i in bad]
        yield logits, InputBatch(x, [images[i].id for i in good], named, [images[i].path for i in good])


def _reason(image: Image, size: tuple[int, int] | None) -> str:
    try:
        decode(image.path, size, image.box)
    except (BadImage, OSError) as error:
        return str(error)
    return f"{image.path} could not be read"


def _can_write(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)
