"""Image files of an index, and no others, as small JPEG pictures."""

from __future__ import annotations

import io
import os
import warnings
from pathlib import Path
from typing import final

from PIL import Image

from steelyard.data.images import EXTENSIONS, BadImage, decode
from steelyard.serve.guards import Missing

SIDES = {"small": 320, "large": 1280}
"""The longer side of a picture, in pixels."""
_TURNED_BY_90 = (5, 6, 7, 8)  # EXIF orientations that swap width and height


@final
class Pictures:
    """The image files that an index lists.

    root: the folder inside of which they lie, links followed; None shows none. The index has no say in it.
    """

    def __init__(self, images: str | os.PathLike[str] | None) -> None:
        self.root = None if images is None else os.path.realpath(images)

    def allowed(self, listed: str | None) -> Path:
        """Return the file that the index lists as `listed`, links resolved."""
        if not listed:
            raise Missing("the item has no image")
        if self.root is None:
            raise Missing("the folder of images is not known: start steelyard serve with --images DIR")
        try:
            path = os.path.normpath(Path(self.root, listed))
            real = os.path.realpath(path)
        except (OSError, ValueError):  # a null character, a loop of links
            raise Missing("the image of the item cannot be found") from None
        if not (Path(path).is_absolute() and real.lower().endswith(EXTENSIONS)):
            raise Missing("the index lists a file for the item that is no image")
        if not real.startswith(self.root.rstrip(os.sep) + os.sep):
            raise Missing("the image of the item lies outside of the folder of images")
        if not os.path.isfile(real):  # noqa: PTH113  (a Path would raise for names that no file can have)
            raise Missing("the image of the item is not there")
        return Path(real)

    def stamped(self, listed: str | None) -> tuple[Path, int, int]:
        """Return the file that the index lists as `listed`, and a stamp that changes with its content."""
        file = self.allowed(listed)
        facts = file.stat()
        return file, facts.st_mtime_ns, facts.st_size

    def make(self, file: Path, size: str) -> bytes:
        """Return a file as a JPEG, upright, on white; `size` is one of `SIDES`."""
        try:
            pixels = decode(file, _fitting(file, SIDES[size]))
        except (BadImage, OSError):
            raise Missing("the image of the item cannot be read") from None
        kept = io.BytesIO()
        Image.fromarray(pixels.transpose(1, 2, 0)).save(kept, "JPEG", quality=84)
        return kept.getvalue()


def _fitting(file: Path, side: int) -> tuple[int, int] | None:
    """Return the (height, width) of an image scaled into a square of `side`, None if it fits as it is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with Image.open(file) as image:
                width, height = image.size
                turned = image.getexif().get(0x0112) in _TURNED_BY_90
        except Exception:  # Pillow meets damaged files with nearly every kind of exception; `decode` says which
            raise BadImage(f"{file} cannot be read") from None
    if turned:
        width, height = height, width
    scale = side / max(width, height)
    return None if scale >= 1 else (max(1, round(height * scale)), max(1, round(width * scale)))
