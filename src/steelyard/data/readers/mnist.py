"""MNIST as its owners publish it: idx files, plain or gzipped, in `MNIST/raw/`."""

from __future__ import annotations

import gzip
import math
import zlib

import numpy as np
from numpy.typing import NDArray

from steelyard.data.dataset import ArrayDataset
from steelyard.data.files import PathLike, damaged, first_file, folder, require
from steelyard.labels import Labels

_MOST_PER_BYTE = 1100  # gzip cannot pack more bytes into one


def mnist(root: PathLike, train: bool = True) -> ArrayDataset:
    """Return MNIST: images uint8 (1, 28, 28) with one-hot labels "0" … "9".

    Args:
        root: folder that holds `MNIST/raw/` (torchvision's convention) with idx files, plain or gzipped.
        train: True for the 60,000 training images, False for the 10,000 test images.

    Examples:
        >>> from pathlib import Path
        >>> def write_idx(name, array):
        ...     header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
        ...     return Path("MNIST/raw", name).write_bytes(header + array.tobytes())
        >>> Path("MNIST/raw").mkdir(parents=True)
        >>> _ = write_idx("train-images-idx3-ubyte", np.zeros((2, 28, 28), np.uint8))
        >>> _ = write_idx("train-labels-idx1-ubyte", np.array([3, 7], np.uint8))
        >>> data = sy.data.mnist(".")
        >>> data[0][0].shape, data.labels.counts.tolist()
        (torch.Size([1, 28, 28]), [0, 0, 0, 1, 0, 0, 0, 1, 0, 0])
    """
    raw = folder(root, "MNIST/raw")
    part = "train" if train else "t10k"
    names = [f"{part}-{kind}-ubyte" for kind in ("images-idx3", "labels-idx1")]
    image_file, label_file = (first_file([raw / name, raw / f"{name}.gz"], name) for name in names)
    images, digits = read_idx(image_file, 3), read_idx(label_file, 1)
    if len(images) != len(digits):
        raise damaged(label_file, f"it has {len(digits)} labels for the {len(images)} images of {image_file}")
    return ArrayDataset(images[:, None], one_hot(digits, [str(digit) for digit in range(10)], label_file))


def read_idx(path: PathLike, n_dimensions: int) -> NDArray[np.uint8]:
    """Return the bytes of an idx file of `n_dimensions` dimensions; its magic number and its length are checked."""
    file = require(path)
    opener = gzip.open if file.suffix == ".gz" else open
    try:
        with opener(file, "rb") as stream:
            header = stream.read(4 + 4 * n_dimensions)
            magic = bytes([0, 0, 8, n_dimensions])
            if header[:4] != magic:
                raise damaged(path, f"it begins with {header[:4].hex()}, not with {magic.hex()} as such an idx file")
            if len(header) < 4 + 4 * n_dimensions:
                raise damaged(path, "it is truncated inside its header")
            shape = tuple(np.frombuffer(header, ">u4", offset=4).tolist())
            if math.prod(max(side, 1) for side in shape) > _MOST_PER_BYTE * file.stat().st_size:
                raise damaged(path, f"it states the shape {shape}, which it cannot hold, so it is corrupt")
            content = stream.read(math.prod(shape) + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise damaged(path, f"it is no whole gzip file ({error})") from None
    if len(content) != math.prod(shape):
        fault = "more bytes than" if len(content) > math.prod(shape) else f"{len(content)} bytes of the"
        raise damaged(path, f"it has {fault} {math.prod(shape)} that its header states for {shape}")
    return np.frombuffer(bytearray(content), np.uint8).reshape(shape)


def one_hot(classes: NDArray[np.integer], names: list[str], path: PathLike) -> Labels:
    """Return single labels 0 … L−1 read from `path` as one-hot `Labels`."""
    if (bad := np.flatnonzero((classes < 0) | (classes >= len(names)))).size:
        raise damaged(path, f"label {bad[0] + 1} is {classes[bad[0]]}, but there are {len(names)} classes")
    values = np.zeros((len(classes), len(names)), np.int8)
    values[np.arange(len(classes)), classes] = 1
    return Labels(values, names=names)
