"""From an image file to RGB uint8: decoded by stated rules, upright, cropped, resized."""

from __future__ import annotations

import errno
import functools
import math
import os
import warnings
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, UnidentifiedImageError

from steelyard.data.files import DataError, check_regular

EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".jp2", ".avif")
"""Endings of image files, in the order in which a missing ending is completed."""

_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "JPEG2000", "AVIF")
_UNREADABLE = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP}
_TURNED = {  # EXIF orientation: are the file's axes swapped, and which of them, x and y, run backwards?
    2: (False, True, False),
    3: (False, True, True),
    4: (False, False, True),
    5: (True, False, False),
    6: (True, False, True),
    7: (True, True, True),
    8: (True, True, False),
}
_AS_IT_LIES = (False, False, False)

REMEDY = "fix or remove it, or skip it with on_bad_image='skip' (train: --skip-missing, predict: --skip-bad)"
"""Remedy named in errors about bad images."""

Box: TypeAlias = tuple[float, float, float, float]
Size: TypeAlias = int | tuple[int, int] | None
"""The side of a square, or (height, width), to which images are squeezed; None: they keep their size."""


class BadImage(DataError):
    """An image is missing or cannot be decoded; the message names the file and the reason.

    Examples:
        >>> data = sy.data.ImageDataset(["lost.jpg"], sy.Labels([[1, 0]]), size=8)
        >>> try:
        ...     data[0]
        ... except sy.data.BadImage as error:
        ...     print(error)
        lost.jpg ...
    """


def decode(
    path: str | os.PathLike[str], size: tuple[int, int] | None = None, box: Box | None = None
) -> NDArray[np.uint8]:
    """Return an image file as RGB uint8 (3, H, W), upright.

    Grey and palette images are expanded, transparency is laid over white, CMYK and the like are converted by Pillow,
    16-bit values v become round(v · 255 / 65535), floating point ones (0..1) round(255 · v), and of an animation or
    a multi-page file the first frame is taken. The EXIF orientation is applied first.

    size: (height, width) of the result; the image, or its box, is squeezed to it (antialiased bilinear) and nothing is
        cut off, since the label may lie at the border. JPEG files are decoded at the smallest scale that is still at
        least twice `size`. Without it the image keeps its own size.
    box: (left, top, right, bottom) in pixels of the upright image; what lies outside the image is clipped.

    A file that is missing, no image, broken, or of more pixels than `PIL.Image.MAX_IMAGE_PIXELS` raises `BadImage`.
    """
    try:
        check_regular(path)
        with Path(path).open("rb") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(file, formats=_formats()) as image:
                return _pixels(image, size, box)
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        reason = (
            f"has more than {Image.MAX_IMAGE_PIXELS} pixels, the guard against decompression bombs: shrink it, or "
            "raise PIL.Image.MAX_IMAGE_PIXELS if you trust it"
        )
    except DataError as error:
        raise BadImage(str(error)) from None
    except UnidentifiedImageError:
        reason = f"is not an image of a kind that is read ({', '.join(_formats())})"
    except OSError as error:
        if error.errno is not None and error.errno not in _UNREADABLE:
            raise OSError(error.errno, error.strerror, os.fspath(path)) from error  # an error of reading names no file
        reason = "cannot be decoded: " + (error.strerror or str(error)).rstrip(".")
    except Exception as error:
        # Pillow's decoders meet damaged files with nearly every kind of exception; each of them means: a bad image.
        reason = f"cannot be decoded: {str(error).rstrip('.') or type(error).__name__}"
    raise BadImage(f"{os.fspath(path)} {reason}")


def as_size(size: Size) -> tuple[int, int] | None:
    """Return (height, width), or None where images keep their size."""
    if size is None:
        return None
    height, width = (size, size) if isinstance(size, int) else size
    if height < 1 or width < 1:
        raise ValueError(f"size is {size!r}: give a side in pixels or (height, width), at least 1")
    return int(height), int(width)


@functools.cache
def _formats() -> tuple[str, ...]:
    """Return the formats that are read, of those this Pillow knows; EPS is left out, since it would start a program."""
    Image.init()
    return tuple(name for name in _FORMATS if name in Image.OPEN)


def _pixels(image: Image.Image, size: tuple[int, int] | None, box: Box | None) -> NDArray[np.uint8]:
    """Decode an opened image; the work is done in the axes of the file, only the result is turned upright."""
    full = image.size
    reduced = None
    if size is not None and image.format in ("JPEG", "MPO"):  # others may not be asked for EXIF before they load
        # Size at which the whole image must be decoded for its crop to be at least twice `size`, in the file's axes.
        swapped = _turned(image)[0]
        wide, tall = 2 * size[1], 2 * size[0]
        if box is not None:
            width, height = full[::-1] if swapped else full
            left, top, right, bottom = _within(box, width, height)
            wide, tall = math.ceil(wide * width / (right - left)), math.ceil(tall * height / (bottom - top))
        reduced = image.draft(None, (tall, wide) if swapped else (wide, tall))
    image.load()
    swapped, x_back, y_back = _turned(image)  # asked again: Pillow has turned a TIFF upright by now
    width, height = full if reduced else image.size
    left, top, right, bottom = _within(box, height, width) if swapped else _within(box, width, height)
    if swapped:
        left, top, right, bottom = top, left, bottom, right
    if x_back:
        left, right = width - right, width - left
    if y_back:
        top, bottom = height - bottom, height - top
    rgb = _rgb(image)
    if size is not None:
        scale = reduced[1][2] / width if reduced else 1.0
        part = (left * scale, top * scale, min(right * scale, rgb.width), min(bottom * scale, rgb.height))
        rgb = rgb.resize(size if swapped else size[::-1], Image.Resampling.BILINEAR, box=part)
    elif box is not None:
        rgb = rgb.crop((math.floor(left), math.floor(top), math.ceil(right), math.ceil(bottom)))
    pixels = np.asarray(rgb)[:: -1 if y_back else 1, :: -1 if x_back else 1]
    return np.ascontiguousarray(pixels.transpose((2, 1, 0) if swapped else (2, 0, 1)))


def _turned(image: Image.Image) -> tuple[bool, bool, bool]:
    """Return the orientation of the pixels in the file; an unreadable EXIF block counts as none."""
    try:
        return _TURNED.get(image.getexif().get(ExifTags.Base.Orientation, 1), _AS_IT_LIES)
    except Exception:
        return _AS_IT_LIES


def _within(box: Box | None, width: int, height: int) -> Box:
    """Return `box` clipped to an image, or all of the image."""
    if box is None:
        return 0, 0, width, height
    left, top = max(0.0, box[0]), max(0.0, box[1])
    right, bottom = min(float(width), box[2]), min(float(height), box[3])
    if not (left < right and top < bottom):
        raise ValueError(f"its box {tuple(map(float, box))} lies outside the {width} × {height} pixels")
    return left, top, right, bottom


def _rgb(image: Image.Image) -> Image.Image:
    """Return an image of any mode as RGB."""
    if image.mode == "RGB" and not image.has_transparency_data:
        return image
    if image.mode[0] == "I" or image.mode == "F":
        white = 1.0 if image.mode == "F" else 65535.0
        values = np.asarray(image, np.float64)
        if not (values.min() >= 0 and values.max() <= white):
            raise ValueError(f"pixels of mode {image.mode} go beyond 0..{white:g}; save it with 8 bits per channel")
        return Image.fromarray(np.rint(values * (255 / white)).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        over = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", over.size, "white"), over).convert("RGB")
    return image.convert("RGB")
