"""Named tensors and plain notes in one file, each with its checksum, read without pickle."""

from __future__ import annotations

import errno
import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from steelyard._files import replacing

_ENTRY = "steelyard"


def save_tensors(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], notes: Mapping[str, Any]) -> None:
    """Write named tensors and plain JSON notes as one safetensors file, with a checksum of each.

    What is the same gives the same bytes: the library keeps the entries of its metadata in an order that changes from
    file to file, so there is but one.
    """
    held = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(notes, sort_keys=True)
    sums = {name: _checksum(held[name]) for name in sorted(held)}
    header = {"notes": text, "notes_crc32": str(zlib.crc32(text.encode())), "crc32": json.dumps(sums)}
    with replacing(path) as partial:
        try:
            save_file(_apart(held), partial, {_ENTRY: json.dumps(header)})
        except SafetensorError as error:
            raise OSError(errno.EIO, str(error)) from None


def load_tensors(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `save_tensors` wrote; a file that is damaged or of another kind is a ValueError that names it."""
    if not Path(path).is_file():
        raise ValueError(f"{path} does not exist: give a file that Steelyard wrote")
    try:
        with safe_open(path, framework="pt") as file:
            found = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        header = json.loads(found[_ENTRY]) if _ENTRY in found else found  # the first version had three entries
        if zlib.crc32(header["notes"].encode()) != int(header["notes_crc32"]):
            raise ValueError("its notes do not have their checksum")
        sums = json.loads(header["crc32"])
        if set(sums) != set(tensors):
            raise ValueError("its tensors are not those it was written with")
        for name, tensor in tensors.items():
            if _checksum(tensor) != sums[name]:
                raise ValueError(f"{name} does not have its checksum")
        return tensors, json.loads(header["notes"])
    except (SafetensorError, KeyError, ValueError, TypeError, AttributeError, OverflowError, OSError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else " ".join(str(error).split())
        raise ValueError(f"{path} is damaged or was not written by Steelyard: {what:.200}") from None


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
