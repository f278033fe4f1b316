"""CIFAR-10 and CIFAR-100 as their owners publish them: the binary and the python version."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from steelyard.data.dataset import ArrayDataset
from steelyard.data.files import DataError, PathLike, check_choice, check_distinct, read_bytes, read_lines
from steelyard.data.readers.mnist import one_hot
from steelyard.data.readers.pickles import read_pickle
from steelyard.labels import Labels

_Batch: TypeAlias = tuple[NDArray[np.uint8], NDArray[np.integer]]  # pixels (n, 3072) and classes (n,)
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
        names = read_lines(home / "batches.meta.txt")
        return _dataset(files, names, home / "batches.meta.txt", partial(_records, n_label_bytes=1, which=0))
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
        read = partial(_records, n_label_bytes=2, which=int(labels == "fine"))
        return _dataset([home / f"{stem}.bin"], read_lines(file), file, read)
    return _python([home / stem], f"{labels}_labels", home / "meta", f"{labels}_label_names")


def _version(root: PathLike, *names: str) -> Path:
    for name in names:
        if (Path(root) / name).is_dir():
            return Path(root) / name
    raise DataError(
        f"{root} holds neither {' nor '.join(names)}: unpack the owners' archive there or give another root"
    )


def _dataset(files: list[Path], names: list[str], meta: Path, read: Callable[[Path], _Batch]) -> ArrayDataset:
    """Join what `read` returns of each file; `names` of the classes were read from `meta`."""
    check_distinct(names, meta, "the class")
    batches = [(file, *read(file)) for file in files]
    values = [one_hot(classes, names, file).values for file, _, classes in batches]
    images = np.concatenate([pixels for _, pixels, _ in batches]).reshape(-1, 3, 32, 32)
    return ArrayDataset(images, Labels(np.concatenate(values), names))


def _records(file: Path, n_label_bytes: int, which: int) -> _Batch:
    content, record = np.frombuffer(read_bytes(file), np.uint8), n_label_bytes + _PIXELS
    if len(content) % record:
        raise DataError(f"{file} has {len(content)} bytes, no multiple of {record}: it is cut off, fetch it again")
    rows = content.reshape(-1, record)
    return rows[:, n_label_bytes:], rows[:, which]


def _python(files: list[Path], key: str, meta: Path, names_key: str) -> ArrayDataset:
    listed = _entry(read_pickle(meta), names_key, list, meta)
    try:
        names = [name if isinstance(name, str) else bytes.decode(name) for name in listed]
    except (UnicodeDecodeError, TypeError):
        raise DataError(f"{meta}: {names_key} holds something else than names: fetch it again") from None

    def read(file: Path) -> _Batch:
        batch = read_pickle(file)
        pixels, numbers = _entry(batch, "data", np.ndarray, file), _entry(batch, key, list, file)
        if pixels.dtype != np.uint8 or pixels.shape != (len(numbers), _PIXELS):
            raise DataError(f"{file}: data has shape {pixels.shape} for {len(numbers)} labels: fetch it again")
        if odd := [number for number in numbers if not isinstance(number, int) or abs(number) >> 31]:
            raise DataError(f"{file}: {key} holds {odd[0]!r:.20}, but there are {len(names)} classes: fetch it again")
        return pixels, np.array(numbers, np.int64)

    return _dataset(files, names, meta, read)


def _entry(content: Any, key: str, kind: type, path: Path) -> Any:
    """The value of `key` in a pickled dict, whose keys are bytes when Python 2 wrote it."""
    value = content.get(key.encode(), content.get(key)) if isinstance(content, dict) else None
    if not isinstance(value, kind):
        raise DataError(f"{path} has no {kind.__name__} {key!r}: it is not the owners' file, fetch it again")
    return value
