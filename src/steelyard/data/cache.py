"""Decoded images on disk: one small file per image that many processes write and read at once."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import uuid
import zlib
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from steelyard.data.files import DataError

_RULES = 2  # to be raised whenever the pixels that `decode` makes of a file change
_CHECKSUM = 4  # bytes of the checksum before the pixels
_BAD = b"bad"


class ImageCache:
    """Images of one size, one file each in `folder`.

    The name of a file is a hash of its source: path, time of the last change, length, size and box. A source that
    changed is therefore decoded again, and one folder serves any number of data sets. A file holds a checksum and the
    pixels, (3, H, W), or "bad" where the source is known to be. It is written whole, and the checksum is tested
    before an image is believed: a writer killed half-way or a torn page after a power cut costs a second decode, never
    a wrong image. The folder may be deleted at any time.

    folder: where to keep it, made when missing.
    size: (height, width) of every image.
    """

    def __init__(self, folder: str | os.PathLike[str], size: tuple[int, int]) -> None:
        self.folder, self.size = Path(folder).absolute(), size
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(
                f"cache {self.folder} cannot be made ({error.strerror}): give a folder that can be written to"
            ) from error

    def place(self, path: str, box: tuple[float, ...] | None) -> Path:
        """Return the file of an image as its source is now: ask before the source is read."""
        source = repr((_RULES, os.fsencode(Path(path).absolute()), stamp_of(path), self.size, box))
        name = hashlib.sha256(source.encode()).hexdigest()[:40]
        return self.folder / name[:2] / f"{name}.u8"

    def read(self, place: Path) -> NDArray[np.uint8] | Literal[False] | None:
        """Return an image, False where its source is known to be bad, None where nothing is kept of it."""
        try:
            content = place.read_bytes()
        except OSError:
            return None
        if content == _BAD:
            return False
        shape, pixels = (3, *self.size), bytearray(content[_CHECKSUM:])
        if len(pixels) != math.prod(shape) or int.from_bytes(content[:_CHECKSUM], "little") != zlib.crc32(pixels):
            return None
        return np.frombuffer(pixels, np.uint8).reshape(shape)

    def write(self, place: Path, image: NDArray[np.uint8] | None) -> None:
        """Keep an image, or None for a source that is none."""
        partial = place.with_name(f".{place.name}.{uuid.uuid4().hex}")
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            pixels = b"" if image is None else image.tobytes()
            partial.write_bytes(zlib.crc32(pixels).to_bytes(_CHECKSUM, "little") + pixels if pixels else _BAD)
            partial.replace(place)
        except OSError as error:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
            remedy = "give cache= a folder on another disk, or none"
            raise DataError(f"cache {self.folder} cannot be written to ({error.strerror}): {remedy}") from error


def stamp_of(path: str) -> tuple[int, int]:
    """Time of the last change and length of a file; (-1, -1) where there is none."""
    try:
        status = Path(path).stat()
    except OSError:
        return -1, -1
    return status.st_mtime_ns, status.st_size
