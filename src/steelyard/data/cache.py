"""Decoded images on disk: one file of fixed-size images that many processes fill and read at once."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import uuid
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.files import DataError

_IMAGE, _BAD = 1, 2  # the state of a record; 0 is one never written
_RECORD = np.dtype([("time", "<i8"), ("bytes", "<i8"), ("crc", "<u4"), ("state", "<u4")])
_RULES = 1  # to be raised whenever the pixels that `decode` makes of a file change


class ImageCache:
    """Images of one list of sources at one size, in a folder of their own within `folder`.

    `images.u8` holds the pixels, (N, 3, H, W); `records` one record an image: the source's time and length as they
    were before it was decoded, a checksum of these and of the pixels, and whether there is an image, none yet, or a
    source known to be bad; `header.json` says what they belong to. The record is written after the pixels and the
    checksum is tested before an image is believed, so a writer killed half-way, a torn page after a power cut or two
    writers at once cost a second decode, never a wrong image. A source that changed is decoded again. Another list of
    sources, size or set of boxes gets another folder beside this one: one `folder` serves the training and the
    validation images. It may be deleted whenever no one is using it.

    folder: where to keep it, made when missing.
    paths: the sources.
    size: (height, width) of every image.
    boxes: the (N, 4) part of each image that is decoded, if not all of it.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        paths: Iterable[str],
        size: tuple[int, int],
        boxes: NDArray[np.float64] | None = None,
    ) -> None:
        sources = hashlib.sha256(b"" if boxes is None else boxes.tobytes())
        count = 0
        for path in paths:
            sources.update(b"\0" + os.fsencode(Path(path).absolute()))
            count += 1
        self._header = {"rules": _RULES, "count": count, "size": list(size), "sources": sources.hexdigest()}
        self._shape = (count, 3, *size)
        name = hashlib.sha256(json.dumps(self._header).encode()).hexdigest()[:16]
        self.folder = Path(folder).absolute() / name
        self._believed = np.zeros(count, bool)
        self._open()

    def _open(self) -> None:
        if not self._is_sound():
            self._make()
        self._records = np.memmap(self.folder / "records", _RECORD, "r", shape=self._shape[:1])
        self._images = np.memmap(self.folder / "images.u8", np.uint8, "r", shape=self._shape)

    def _is_sound(self) -> bool:
        """Return whether there is a cache of the right shape for exactly these sources."""
        try:
            header = json.loads((self.folder / "header.json").read_text())
            lengths = [(self.folder / name).stat().st_size for name in ("records", "images.u8")]
        except (OSError, ValueError):
            return False
        return header == self._header and lengths == self._lengths()

    def _lengths(self) -> list[int]:
        return [self._shape[0] * _RECORD.itemsize, int(np.prod(self._shape, dtype=np.int64))]

    def _make(self) -> None:
        """Put an empty cache in place in one step, even if other processes do the same."""
        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            fresh, stale = (self.folder.with_name(f".{word}-{uuid.uuid4().hex}") for word in ("new", "old"))
            fresh.mkdir()
            for name, length in zip(("records", "images.u8"), self._lengths(), strict=True):
                with (fresh / name).open("wb") as file:
                    file.truncate(length)
            (fresh / "header.json").write_text(json.dumps(self._header))
            if self.folder.exists() and not self._is_sound():
                with contextlib.suppress(FileNotFoundError):  # another process has moved it
                    self.folder.rename(stale)
                shutil.rmtree(stale, ignore_errors=True)
            with contextlib.suppress(OSError):  # another process was first: its cache is as good
                fresh.rename(self.folder)
            shutil.rmtree(fresh, ignore_errors=True)
        except OSError as error:
            raise DataError(
                f"cache {self.folder.parent} cannot be created ({error.strerror}): give a writable folder"
            ) from error
        if not self._is_sound():
            raise DataError(f"cache {self.folder} cannot be created: delete that folder, or give another cache")

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("_records", "_images")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def read(self, i: int, path: str) -> NDArray[np.uint8] | None:
        """Return image `i`, whose source is `path`, or None; this process tests each record only once."""
        if self._believed[i]:
            return np.array(self._images[i])
        record, stamp = self._records[i], stamp_of(path)
        if int(record["state"]) != _IMAGE or (int(record["time"]), int(record["bytes"])) != stamp:
            return None
        image = np.array(self._images[i])
        if _checksum(stamp, image) != int(record["crc"]):
            return None
        self._believed[i] = True
        return image

    def is_bad(self, i: int, stamp: tuple[int, int]) -> bool:
        """Return whether source `i`, with this stamp, is known to be no image."""
        record = self._records[i]
        return int(record["state"]) == _BAD and (int(record["time"]), int(record["bytes"])) == stamp

    def write(self, i: int, stamp: tuple[int, int], image: NDArray[np.uint8] | None) -> None:
        """Keep image `i`, or the fact that it is none, with the stamp that its source had before it was decoded."""
        crc, state = (0, _BAD) if image is None else (_checksum(stamp, image), _IMAGE)
        record = np.array((*stamp, crc, state), _RECORD)
        try:
            # Written, not mapped: a full disk is then an error and not a signal that ends the process.
            if image is not None:
                with (self.folder / "images.u8").open("r+b", buffering=0) as file:
                    file.seek(i * image.nbytes)
                    file.write(image.tobytes())
            with (self.folder / "records").open("r+b", buffering=0) as file:
                file.seek(i * _RECORD.itemsize)
                file.write(record.tobytes())
        except OSError as error:
            raise DataError(
                f"cache {self.folder} cannot be written to ({error.strerror}): give cache= a folder on another disk, "
                "or none"
            ) from error


def stamp_of(path: str) -> tuple[int, int]:
    """Return the time of the last change and the length of a file; (-1, -1) if there is none."""
    try:
        status = Path(path).stat()
    except OSError:
        return -1, -1
    return status.st_mtime_ns, status.st_size


def _checksum(stamp: tuple[int, int], image: NDArray[np.uint8]) -> int:
    return zlib.crc32(image.data, zlib.crc32(np.array(stamp, "<i8").data))
