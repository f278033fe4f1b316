"""Region features as their detectors' authors publish them, TSV, made into the two arrays that are read here."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from steelyard._files import check_place, replacing
from steelyard.data.files import DataError, PathLike, require

_FIELDS = (6, 10)


def convert_regions(
    tsv: PathLike | Sequence[PathLike],
    features: PathLike,
    image_ids: PathLike,
    regions: int = 36,
    progress: Callable[[int], None] | None = None,
) -> tuple[int, int, int]:
    """Write the features (M, R, F), float16, and the COCO numbers (M,) of the M images in TSV files; return (M, R, F).

        sy.data.convert_regions(["train2014_obj36.tsv", "val2014_obj36.tsv"], "VQA/regions.npy", "VQA/image_ids.npy")

    An image is a line of 6 fields (bottom-up attention's) or 10 (LXMERT's): first its number, or a name that ends in
    it; last the number of its boxes, the boxes, and the features, (boxes, F) float32 in base64.

    Args:
        tsv: the files; all images are of one F, and none is there twice.
        features, image_ids: the files to be written.
        regions: R; of more boxes the first are taken, zeros stand for those that are lacking.
        progress: called with the number of images after each.
    """
    if regions < 1:
        raise ValueError(f"regions is {regions}: at least one of an image must be kept")
    files = [require(file) for file in ([tsv] if isinstance(tsv, str | Path) else tsv)]
    for place in (features, image_ids):
        check_place(place)
    ids: dict[int, None] = {}
    shape = (0, regions, 0)
    with replacing(features) as partial, partial.open("wb") as out:
        for file in files:
            with file.open(encoding="ascii", errors="replace") as lines:
                for i, line in enumerate(lines, 1):
                    number, found = _read(line, f"{file}, line {i}")
                    if not ids:
                        shape = (0, regions, found.shape[1])
                        _write_header(out, shape)
                    if found.shape[1] != shape[2]:
                        raise DataError(
                            f"{file}, line {i}: {found.shape[1]} features, not {shape[2]} as the first: take one set"
                        )
                    if number in ids:
                        raise DataError(f"{file}, line {i}: image {number} is there twice: give each image once")
                    ids[number] = None
                    kept = np.zeros(shape[1:], np.float16)
                    kept[: len(found)] = found[:regions]
                    out.write(kept.tobytes())
                    if progress is not None:
                        progress(len(ids))
        if not ids:
            raise ValueError("tsv holds no file: give one at least")
        shape = (len(ids), *shape[1:])
        out.seek(0)
        _write_header(out, shape)
    with replacing(image_ids) as partial, partial.open("wb") as out:
        np.save(out, np.array(list(ids), np.int64))
    return shape


def _read(line: str, where: str) -> tuple[int, NDArray[np.float32]]:
    """The number of an image and the features of its boxes."""
    fields = line.rstrip("\r\n").split("\t")
    if len(fields) not in _FIELDS:
        raise DataError(f"{where} has {len(fields)} fields, not 6 or 10: it is no TSV of region features, or cut off")
    name, boxes, content = fields[0], fields[-3], fields[-1]
    number = re.search(r"\d+$", name)
    if number is None or not re.fullmatch(r"[1-9]\d{0,5}", boxes):
        raise DataError(
            f"{where}: image {name!r:.60} with {boxes!r:.20} boxes: not whole numbers; fetch the file again"
        )
    try:
        found = np.frombuffer(base64.b64decode(content, validate=True), np.dtype("<f4"))
    except (binascii.Error, ValueError):
        raise DataError(f"{where}: the features are not base64 of float32: fetch the file again") from None
    if not found.size or found.size % int(boxes):
        raise DataError(f"{where}: {found.size} numbers are not the features of {boxes} boxes: fetch the file again")
    if not (np.abs(found) <= np.finfo(np.float16).max).all():
        raise DataError(f"{where}: a feature is not finite, or beyond float16: fetch the file again")
    return int(number.group()), found.reshape(int(boxes), -1)


def _write_header(out: BinaryIO, shape: tuple[int, int, int]) -> None:
    """Write the head of a .npy file of float16; numpy leaves room in it for any number of images."""
    np.lib.format.write_array_header_1_0(out, {"descr": "<f2", "fortran_order": False, "shape": shape})
