"""Begin a run, or resume an interrupted one if settings, labels and inputs are the same."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from steelyard.config.settings import Config, dump_config, load_config
from steelyard.data.dataset import ArrayDataset
from steelyard.data.subset import source_of
from steelyard.folder.run_folder import RunFolder
from steelyard.labels import Labels
from steelyard.run.datasets import Datasets
from steelyard.run.locate import with_absolute_paths
from steelyard.training import group
from steelyard.training.distributed import together

FREE = (("train", "out"), ("train", "device"), ("train", "workers"), ("train", "checkpoint_seconds"), ("data", "cache"))
"""Settings that may differ when a run resumes, since they do not change its result, or hardly."""


@contextmanager
def sole_writer(folder: RunFolder) -> Iterator[None]:
    """Lock the folder of a run against other commands that write; the first of several processes holds the lock."""
    with ExitStack() as held:
        together(lambda: held.enter_context(folder.writing()) if group.is_first() else None)
        yield


def begin_run(folder: RunFolder, config: Config, datasets: Datasets, overwrite: bool) -> None:
    """Prepare the folder of a new run, or check that the unfinished run in it is the same; the first process does it.

    An unfinished run without a checkpoint has nothing to lose and is replaced, whatever its settings were.
    """
    if not group.is_first():
        return
    config = with_absolute_paths(config, datasets)
    started = facts(datasets)
    before = None if overwrite else folder.unfinished()
    if before is None or not any((folder / "checkpoint").glob("*.safetensors")):
        folder.create(overwrite or before is not None, dump_config(config), started)
        if datasets.corrections is not None:
            folder.write_corrections(datasets.corrections.source)
        return
    remedy = "give the same to resume, --overwrite to start again, or another --out"
    old = load_config(folder / "config.toml").as_dict()
    for key in ("path", "images"):  # earlier versions kept them as given
        old["data"][key] = str(Path(old["data"][key]).absolute()) if old["data"][key] else ""
    free = {f"{section}.{key}" for section, key in FREE}
    if changed := [name for name in differences(config.as_dict(), old) if name not in free]:
        raise ValueError(f"{folder.path} holds an unfinished run with another {changed[0]}: {remedy}")
    for fact, value in started.items():
        earlier = before.get(fact)
        if earlier != value and (
            fact != "inputs" or None not in (earlier, value)
        ):  # the next time, files may be in memory
            raise ValueError(f"{folder.path} holds an unfinished run on other {fact}: {remedy}")


def differences(settings: Mapping[str, Any], others: Mapping[str, Any]) -> list[str]:
    """Return the names of the settings, nested dicts of sections, that differ from others."""
    return [
        f"{section}.{key}"
        for section, content in settings.items()
        for key, value in content.items()
        if value != others[section][key]
    ]


def facts(datasets: Datasets) -> dict[str, Any]:
    """Return the facts by which an unfinished run is recognised: checksums of labels and of inputs in memory."""
    held = datasets.validation
    return {
        "training labels": _fingerprint(datasets.train.labels),
        "validation labels": None if held is None else _fingerprint(held.labels),
        "inputs": _fingerprint_of_inputs(datasets.train),
        "corrections": None if datasets.corrections is None else datasets.corrections.fingerprint,
    }


def _fingerprint(labels: Labels) -> int:
    """Return a checksum of the labels, and of whether a label that is not listed is absent or unknown."""
    items, columns, values = labels.cells()
    words = [np.ascontiguousarray(part).view(np.uint8) for part in (items, columns, values)]
    total = zlib.crc32("\n".join([f"{labels.n_items} {labels.fill}", *labels.names]).encode())
    for part in words:
        total = zlib.crc32(part.data, total)
    return total


def _fingerprint_of_inputs(data: Any) -> int | None:
    inside = source_of(data)
    if not isinstance(inside, ArrayDataset):
        return None
    total = zlib.crc32(str((inside.inputs.shape, inside.inputs.dtype)).encode())
    for start in range(0, len(inside), 4096):
        total = zlib.crc32(np.ascontiguousarray(inside.inputs[start : start + 4096]).data, total)
    return total
