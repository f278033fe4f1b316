"""Files that are whole or not there: temporary name, flushed to the disk, renamed; tensors carry checksums."""

from __future__ import annotations

import errno
import json
import os
import shutil
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a path in a temporary folder beside `path`; when the block is done it is flushed and renamed to `path`.

    Whatever happens in between, `path` holds its old content or the whole new one. The folder also takes what a writer
    makes beside its file.
    """
    final = Path(path)
    folder = final.with_name(f".{final.name}.{os.getpid()}.partial")
    partial = folder / final.name
    try:
        with naming(final):
            folder.mkdir(exist_ok=True)
            partial.touch()
            mode = partial.stat().st_mode  # a writer that makes its own file may be more secretive than the umask
            yield partial
            partial.chmod(mode)
            _flush(partial)
            partial.replace(final)
            _flush(final.parent)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name `path` in the OSError of a write that fails: that of a full disk names no file by itself."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from None


def write_atomic(path: str | os.PathLike[str], content: bytes | str) -> None:
    """Write `content` to `path`, whole or not at all."""
    with replacing(path) as partial:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)


def save_tensors(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], notes: Mapping[str, Any]) -> None:
    """Write named tensors and plain JSON notes as one safetensors file, with a checksum of each."""
    held = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(notes)
    sums = {name: _checksum(tensor) for name, tensor in held.items()}
    header = {"notes": text, "notes_crc32": str(zlib.crc32(text.encode())), "crc32": json.dumps(sums)}
    with replacing(path) as partial:
        try:
            save_file(_apart(held), partial, header)
        except SafetensorError as error:
            raise OSError(errno.EIO, str(error)) from None


def load_tensors(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `save_tensors` wrote; a file that is damaged or of another kind is a ValueError that names it."""
    if not Path(path).is_file():
        raise ValueError(f"{path} does not exist: give a file that Steelyard wrote")
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if zlib.crc32(header["notes"].encode()) != int(header["notes_crc32"]):
            raise ValueError("its notes do not have their checksum")
        sums = json.loads(header["crc32"])
        if set(sums) != set(tensors):
            raise ValueError("its tensors are not those it was written with")
        for name, tensor in tensors.items():
            if _checksum(tensor) != sums[name]:
                raise ValueError(f"{name} does not have its checksum")
        return tensors, json.loads(header["notes"])
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else error
        raise ValueError(f"{path} is damaged or was not written by Steelyard: {what}") from None


def remove_partial(folder: Path) -> None:
    """Remove what a killed process left half written in `folder`."""
    for left in folder.glob(".*.partial"):
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)


def _checksum(tensor: Tensor) -> int:
    return zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data) if tensor.numel() else 0


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors that share memory, copied: the format keeps each by itself."""
    seen: set[int] = set()
    apart = {}
    for name, tensor in tensors.items():
        spot = tensor.untyped_storage().data_ptr()
        apart[name] = tensor.clone() if spot in seen and tensor.numel() else tensor
        seen.add(spot)
    return apart


def _flush(path: Path) -> None:
    """Hand a file or folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
