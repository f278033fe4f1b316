"""CIFAR-10 and CIFAR-100 as their owners publish them: the binary and the python version."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.dataset import ArrayDataset
from steelyard.data.files import DataError, PathLike, check_choice, check_distinct, read_bytes, read_lines
from steelyard.data.readers.mnist import one_hot
from steelyard.data.readers.pickles import read_pickle

_PIXELS = 3 * 32 * 32
_BATCHES = (1, 2, 3, 4, 5)


def cifar10(root: PathLike, train: bool = True, batches: Sequence[int] = _BATCHES) -> ArrayDataset:
    """Return CIFAR-10: images uint8 (3, 32, 32), one-hot labels.

    Arguments: `root`, the folder that holds `cifar-10-batches-bin/` or `cifar-10-batches-py/` (the binary version is
    taken where both are); `train`; `batches`, which of the five training batches to read; one that is missing is an
    error.
    """
    if train and (not batches or any(batch not in _BATCHES for batch in batches)):
        raise ValueError(f"batches is {tuple(batches)!r}: choose from 1 to 5")
    home = _version(root, "cifar-10-batches-bin", "cifar-10-batches-py")
    stems = [f"data_batch_{batch}" for batch in batches] if train else ["test_batch"]
    binary = home.name.endswith("bin")
    files = [home / (f"{stem}.bin" if binary else stem) for stem in stems]
    if missing := [file.name for file in files if not file.is_file()]:
        there = [batch for batch in _BATCHES if (home / f"data_batch_{batch}{'.bin' * binary}").is_file()]
        remedy = f", or ask for what is there with batches={tuple(there)}" if train and there else ""
        raise DataError(f"{home} lacks {', '.join(missing)}: fetch it again{remedy}")
    if binary:
        names = _names(read_lines(home / "batches.meta.txt"), home / "batches.meta.txt")
        return _binary(files, names, n_label_bytes=1, which=0)
    return _python(files, "labels", home / "batches.meta", "label_names")


def cifar100(root: PathLike, train: bool = True, labels: str = "fine") -> ArrayDataset:
    """Return CIFAR-100: images uint8 (3, 32, 32), one-hot labels.

    Arguments: `root`, the folder that holds `cifar-100-binary/` or `cifar-100-python/` (the binary version is taken
    where both are); `train`; `labels`, the 100 `"fine"` or the 20 `"coarse"` ones.
    """
    check_choice(labels, ("fine", "coarse"), "labels")
    home = _version(root, "cifar-100-binary", "cifar-100-python")
    stem = "train" if train else "test"
    if home.name.endswith("binary"):
        file = home / f"{labels}_label_names.txt"
        return _binary([home / f"{stem}.bin"], _names(read_lines(file), file), 2, int(labels == "fine"))
    return _python([home / stem], f"{labels}_labels", home / "meta", f"{labels}_label_names")


def _version(root: PathLike, *names: str) -> Path:
    for name in names:
        if (Path(root) / name).is_dir():
            return Path(root) / name
    raise DataError(
        f"{root} holds neither {' nor '.join(names)}: unpack the owners' archive there or give another root"
    )


def _names(names: list[str], path: Path) -> list[str]:
    check_distinct(names, path, "the class")
    return names


def _binary(files: list[Path], names: list[str], n_label_bytes: int, which: int) -> ArrayDataset:
    record = n_label_bytes + _PIXELS
    parts = []
    for file in files:
        content = np.frombuffer(read_bytes(file), np.uint8)
        if len(content) % record:
            raise DataError(f"{file} has {len(content)} bytes, no multiple of {record}: it is cut off, fetch it again")
        parts.append(content.reshape(-1, record))
        if (bad := np.flatnonzero(parts[-1][:, which] >= len(names))).size:
            i, label = int(bad[0]), int(parts[-1][bad[0], which])
            raise DataError(
                f"{file}: record {i + 1} has label {label}, but there are {len(names)} classes: fetch it again"
            )
    records = np.concatenate(parts)
    images = np.ascontiguousarray(records[:, n_label_bytes:]).reshape(-1, 3, 32, 32)
    return ArrayDataset(images, one_hot(records[:, which], names, files[0]))


def _python(files: list[Path], key: str, meta: Path, names_key: str) -> ArrayDataset:
    listed = _entry(read_pickle(meta), names_key, list, meta)
    try:
        names = _names([name if isinstance(name, str) else bytes.decode(name) for name in listed], meta)
    except (UnicodeDecodeError, TypeError):
        raise DataError(f"{meta}: {names_key} holds something else than names: fetch it again") from None
    images: list[NDArray[np.uint8]] = []
    classes: list[int] = []
    for file in files:
        batch = read_pickle(file)
        pixels, numbers = _entry(batch, "data", np.ndarray, file), _entry(batch, key, list, file)
        if pixels.dtype != np.uint8 or pixels.shape != (len(numbers), _PIXELS):
            raise DataError(f"{file}: data has shape {pixels.shape} for {len(numbers)} labels: fetch it again")
        for i, number in enumerate(numbers):
            if not isinstance(number, int) or not 0 <= number < len(names):
                raise DataError(
                    f"{file}: {key}[{i}] is {number!r:.20}, but there are {len(names)} classes: fetch it again"
                )
        images.append(pixels)
        classes += numbers
    labels = one_hot(np.array(classes, np.int64), names, files[0])
    return ArrayDataset(np.concatenate(images).reshape(-1, 3, 32, 32), labels)


def _entry(content: Any, key: str, kind: type, path: Path) -> Any:
    """The value of `key` in a pickled dict, whose keys are bytes when Python 2 wrote it."""
    value = content.get(key.encode(), content.get(key)) if isinstance(content, dict) else None
    if not isinstance(value, kind):
        raise DataError(f"{path} has no {kind.__name__} {key!r}: it is not the owners' file, fetch it again")
    return value
