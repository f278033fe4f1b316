"""Image files named by the cells of a manifest."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import final

from steelyard.data.files import DataError
from steelyard.data.images import EXTENSIONS


@final
class ImageFolder:
    """A folder of images, in which files are looked up by names whose endings may be left out.

    folder: the folder; files outside it are never returned.
    manifest: the file whose images they are, for the message.
    """

    def __init__(self, folder: Path, manifest: Path) -> None:
        if not folder.is_dir():
            raise DataError(f"{folder} is not a folder: give the folder of the images of {manifest} with images=")
        self.folder = folder
        self._root = os.path.normpath(folder.absolute())
        self._inner = self._root.rstrip(os.sep) + os.sep
        self._usual = ""  # ending of the last image that was named without one: most are equal

    def find(self, name: str) -> tuple[str, bool] | None:
        """Return the path named by `name` and whether the file exists; None if it leads out of the folder."""
        file = self._inside(name)
        if file is None:
            return None
        if is_file(file):
            return file, True
        endings = () if file.lower().endswith(EXTENSIONS) else (self._usual, *EXTENSIONS, *map(str.upper, EXTENSIONS))
        self._usual = next((ending for ending in endings if is_file(file + ending)), "")
        return file + self._usual, self._usual != ""

    def path(self, name: str) -> str | None:
        """Return the path named by `name`, searched for only if it has no ending; None if it leads outside."""
        if name.lower().endswith(EXTENSIONS):
            return self._inside(name)
        result = self.find(name)
        return None if result is None else result[0]

    def _inside(self, name: str) -> str | None:
        file = os.path.normpath(Path(self._root, name))
        return file if file.startswith(self._inner) else None


def is_file(path: str) -> bool:
    """Return whether there is such a file; False for a path that no file can have."""
    try:
        return Path(path).is_file()
    except (OSError, ValueError):  # a name too long, or with a null character
        return False


def folder_near(manifest: Path, names: Sequence[str]) -> Path | None:
    """Return the folder in which an image of these names lies, that of `manifest` or one in it; None if none is."""
    home = manifest.parent
    for folder in (home, *sorted(entry for entry in home.iterdir() if entry.is_dir())):
        place = ImageFolder(folder, manifest)
        if any(result is not None and result[1] for result in map(place.find, names)):
            return folder
    return None


def image_files(folder: Path) -> Iterator[str]:
    """Return the paths of all images in a folder and the folders in it, relative to it and sorted.

    Files with the ending of an image count; names that begin with a dot, and links that lead back, are skipped. Only
    the names in one folder and in those above it are held in memory.
    """
    yield from _images_in(str(folder), "", ())


def _images_in(folder: str, inside: str, above: tuple[tuple[int, int], ...]) -> Iterator[str]:
    try:
        place = Path(folder).stat()
        if (place.st_dev, place.st_ino) in above:
            return
        with os.scandir(folder) as entries:
            # A folder sorts as its files do, which all begin with its name and a slash.
            names = sorted(entry.name + "/" * _is_folder(entry) for entry in entries if not entry.name.startswith("."))
    except OSError as error:
        raise DataError(f"{folder} cannot be read ({error.strerror}): check its permissions") from None
    for name in names:
        if name.endswith("/"):
            yield from _images_in(folder + "/" + name[:-1], inside + name, (*above, (place.st_dev, place.st_ino)))
        elif name.lower().endswith(EXTENSIONS):
            yield check_name(inside + name, folder)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a folder or a link to one; a link to itself is neither, and fails when opened."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def check_name(name: str, where: str) -> str:
    """Return the name of a file; one that is not UTF-8 is refused, since no table of results could hold it."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise DataError(f"{where} holds {name!a:.80}, a name that is not UTF-8: rename that file") from None
    return name
