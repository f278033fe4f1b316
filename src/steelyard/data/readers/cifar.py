"""CIFAR-10 and CIFAR-100 as their owners publish them: the binary and the python version."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.dataset import ArrayDataset
from steelyard.data.files import DataError, PathLike, check_choice, check_distinct, damaged, read_bytes, read_lines
from steelyard.data.readers.mnist import one_hot
from steelyard.data.readers.pickles import read_pickle
from steelyard.labels import Labels

_PIXELS = 3 * 32 * 32
_BATCHES = (1, 2, 3, 4, 5)


def cifar10(root: PathLike, train: bool = True, batches: Sequence[int] = _BATCHES) -> ArrayDataset:
    r"""Return CIFAR-10: images uint8 (3, 32, 32) with one-hot labels.

    Args:
        root: folder that holds `cifar-10-batches-bin/` or `cifar-10-batches-py/`; the binary version is preferred.
        train: True for the training set, False for the test set.
        batches: which of the five training batches to read; a missing one is an error.

    Examples:
        >>> from pathlib import Path
        >>> home = Path("cifar-10-batches-bin")
        >>> home.mkdir()
        >>> _ = (home / "batches.meta.txt").write_text("airplane\nautomobile\nbird\n")
        >>> _ = (home / "data_batch_1.bin").write_bytes(bytes([2]) + bytes(3 * 32 * 32))  # class, pixels
        >>> data = sy.data.cifar10(".", batches=[1])
        >>> data[0][0].shape, data[0][1].tolist()
        (torch.Size([3, 32, 32]), [0, 0, 1])
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
        raise DataError(f"{home} lacks {', '.join(missing)}: download it again{remedy}")
    if binary:
        batches_read, meta = [_records(file, 1, 0) for file in files], home / "batches.meta.txt"
        return _dataset(files, batches_read, read_lines(meta), meta)
    return _python(files, "labels", home / "batches.meta", "label_names")


def cifar100(root: PathLike, train: bool = True, labels: str = "fine") -> ArrayDataset:
    r"""Return CIFAR-100: images uint8 (3, 32, 32) with one-hot labels.

    Args:
        root: folder that holds `cifar-100-binary/` or `cifar-100-python/`; the binary version is preferred.
        train: True for the training set, False for the test set.
        labels: the 100 `"fine"` or the 20 `"coarse"` labels.

    Examples:
        >>> from pathlib import Path
        >>> home = Path("cifar-100-binary")
        >>> home.mkdir()
        >>> _ = (home / "coarse_label_names.txt").write_text("fish\nflowers\n")
        >>> _ = (home / "train.bin").write_bytes(bytes([1, 54]) + bytes(3 * 32 * 32))  # coarse, fine, pixels
        >>> sy.data.cifar100(".", labels="coarse")[0][1].tolist()
        [0, 1]
    """
    check_choice(labels, ("fine", "coarse"), "labels")
    home = _version(root, "cifar-100-binary", "cifar-100-python")
    stem = "train" if train else "test"
    if home.name.endswith("binary"):
        file, meta = home / f"{stem}.bin", home / f"{labels}_label_names.txt"
        return _dataset([file], [_records(file, 2, int(labels == "fine"))], read_lines(meta), meta)
    return _python([home / stem], f"{labels}_labels", home / "meta", f"{labels}_label_names")


def _version(root: PathLike, *names: str) -> Path:
    if home := next((Path(root) / name for name in names if (Path(root) / name).is_dir()), None):
        return home
    raise DataError(f"{root} holds neither {' nor '.join(names)}: unpack the owners' archive there")


def _dataset(files: list[Path], batches: list[tuple[Any, Any]], names: list[str], meta: Path) -> ArrayDataset:
    """Join the pixels and classes of each file; `names` of the classes were read from `meta`."""
    check_distinct(names, meta, "the class")
    values = [one_hot(classes, names, file).values for file, (_, classes) in zip(files, batches, strict=True)]
    images = np.concatenate([pixels for pixels, _ in batches]).reshape(-1, 3, 32, 32)
    return ArrayDataset(images, Labels(np.concatenate(values), names))


def _records(file: Path, n_label_bytes: int, which: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    content, record = np.frombuffer(read_bytes(file), np.uint8), n_label_bytes + _PIXELS
    if len(content) % record:
        raise damaged(file, f"it has {len(content)} bytes, no multiple of {record}, so it is truncated")
    rows = content.reshape(-1, record)
    return rows[:, n_label_bytes:], rows[:, which]


def _python(files: list[Path], key: str, meta: Path, names_key: str) -> ArrayDataset:
    listed = _entry(read_pickle(meta), names_key, list, meta)
    try:
        names = [name if isinstance(name, str) else bytes.decode(name) for name in listed]
    except (UnicodeDecodeError, TypeError):
        raise damaged(meta, f"{names_key} holds entries that are not names") from None
    batches = []
    for file in files:
        batch = read_pickle(file)
        pixels, numbers = _entry(batch, "data", np.ndarray, file), _entry(batch, key, list, file)
        if pixels.dtype != np.uint8 or pixels.shape != (len(numbers), _PIXELS):
            raise damaged(file, f"data has shape {pixels.shape} for {len(numbers)} labels")
        if odd := [number for number in numbers if not isinstance(number, int) or abs(number) >> 31]:
            raise damaged(file, f"{key} holds {odd[0]!r:.20}, but there are {len(names)} classes")
        batches.append((pixels, np.array(numbers, np.int64)))
    return _dataset(files, batches, names, meta)


def _entry(content: Any, key: str, kind: type, path: Path) -> Any:
    """Return the value of `key` in a pickled dict, whose keys are bytes if Python 2 wrote it."""
    value = content.get(key.encode(), content.get(key)) if isinstance(content, dict) else None
    if not isinstance(value, kind):
        raise damaged(path, f"it has no {kind.__name__} {key!r} and is not the owners' file")
    return value
