"""VOC-MLT and COCO-MLT, the published long-tailed splits: which images, and their labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import numpy as np
from numpy.typing import NDArray

from steelyard.data.dataset import Decoding, ImageDataset
from steelyard.data.files import DataError, PathLike, check_paths, damaged, first_file, read_lines
from steelyard.data.readers.coco import COCO_LABELS
from steelyard.data.readers.npz import array_names, names_and_ids, read_arrays, to_labels
from steelyard.data.readers.pickles import read_pickle
from steelyard.data.readers.voc import VOC_LABELS
from steelyard.labels import Labels

_ARRAYS = ("ids", "Y", "class_freq")


def voc_mlt(split: PathLike, root: PathLike, **how: Unpack[Decoding]) -> ImageDataset:
    """Return VOC-MLT: 1,142 images of VOC 2012 with class counts from 4 to 775; difficult objects count as present.

    Args:
        split: the release's folder `appendix/VOCdevkit/longtail2012` (`img_id.txt` and `class_freq.pkl`), or an `.npz`
            file with `ids`, `Y` and `class_freq`.
        root: folder that holds `VOCdevkit/`.
        **how: how images are decoded: `size`, `on_bad_image` and `cache` of `ImageDataset`.

    Examples:
        >>> labels = np.zeros((2, 20), np.int8)
        >>> labels[:, 14] = 1  # person
        >>> np.savez("split.npz", ids=["2008_000008", "2008_000015"], Y=labels, class_freq=labels.sum(0))
        >>> data = sy.data.voc_mlt("split.npz", ".")
        >>> data.labels.names[14], int(data.labels.counts[14]), data.paths[0]
        ('person', 2, 'VOCdevkit/VOC2012/JPEGImages/2008_000008.jpg')
    """
    labels = mlt_labels(split, VOC_LABELS)
    images = Path(root) / "VOCdevkit" / "VOC2012" / "JPEGImages"
    return ImageDataset([images / f"{name}.jpg" for name in labels.ids], labels, **how)


def coco_mlt(split: PathLike, root: PathLike, **how: Unpack[Decoding]) -> ImageDataset:
    """Return COCO-MLT: 1,909 images of COCO 2017's training set with class counts from 6 to 1,128.

    Args:
        split: the release's folder `appendix/coco/longtail2017` (`img_id.pkl`, a text file despite its name, and
            `class_freq.pkl`), or an `.npz` file with `ids`, `Y` and `class_freq`.
        root: folder that holds `train2017/`.
        **how: how images are decoded: `size`, `on_bad_image` and `cache` of `ImageDataset`.

    Examples:
        >>> labels = np.zeros((1, 80), np.int8)
        >>> labels[:, 0] = 1  # person
        >>> np.savez("split.npz", ids=["554625"], Y=labels, class_freq=labels.sum(0))
        >>> sy.data.coco_mlt("split.npz", ".").paths
        ['train2017/000000554625.jpg']
    """
    labels = mlt_labels(split, COCO_LABELS)
    for i, name in enumerate(labels.ids):
        if not (name.isascii() and name.isdigit()):
            raise damaged(split, f"image {i + 1} is {name!r:.60}, but COCO's images have numbers")
    images = Path(root) / "train2017"
    return ImageDataset([images / f"{int(name):012d}.jpg" for name in labels.ids], labels, **how)


class Published(NamedTuple):
    """One of the two published splits."""

    read: Callable[..., ImageDataset]
    names: Sequence[str]
    images: str
    """The folder of the images, in the root that its reader takes."""


MLT = {
    "voc_mlt": Published(voc_mlt, VOC_LABELS, "VOCdevkit/VOC2012/JPEGImages"),
    "coco_mlt": Published(coco_mlt, COCO_LABELS, "train2017"),
}
"""The splits by the names of their formats."""


def mlt_at(place: Path) -> str | None:
    """Return which split lies at `place`, told by its files and its number of classes; None where there is none."""
    is_release = place.is_dir() and (place / "class_freq.pkl").is_file()
    if not is_release and not (place.suffix.lower() == ".npz" and set(_ARRAYS) <= array_names(place)):
        return None
    values = (_release if is_release else _arrays)(place)[1]
    return next((name for name, one in MLT.items() if values.ndim == 2 and values.shape[1] == len(one.names)), None)


def mlt_root(place: Path, format: str, images: PathLike | None) -> Path | None:
    """Return the folder that holds the images of a split: `images`, or one around `place`; None where none does."""
    image_folder = MLT[format].images
    if images is not None:
        if not (Path(images) / image_folder).is_dir():
            raise DataError(f"images is {images}, but there is no {image_folder} in it: give the folder that holds it")
        return Path(images)
    here = place.absolute()
    return next((root for root in (here, *here.parents) if (root / image_folder).is_dir()), None)


def mlt_labels(split: PathLike, names: Sequence[str]) -> Labels:
    """Return the labels of a published long-tailed split without its images.

    Args:
        split: folder or `.npz` file; see `voc_mlt`.
        names: names of its classes, in their order.

    Examples:
        >>> np.savez("split.npz", ids=["a", "b"], Y=[[1, 0], [1, 1]], class_freq=[2, 1])
        >>> sy.data.mlt_labels("split.npz", ["cat", "dog"]).counts.tolist()
        [2, 1]
    """
    ids, values, counts = _release(Path(split)) if Path(split).is_dir() else _arrays(Path(split))
    ids = check_paths(ids, split, "the image", "image")
    if values.ndim != 2 or values.shape != (len(ids), len(names)) or values.dtype.kind not in "biuf":
        raise damaged(split, f"labels of shape {values.shape} for {len(ids)} images, {len(names)} classes")
    labels = to_labels(values, 0, list(names), ids, str(split))
    if not np.array_equal(labels.counts, counts):
        raise damaged(split, "class_freq differs from the sums of the labels")
    return labels


def _release(folder: Path) -> tuple[list[str], NDArray[Any], Any]:
    """Ids, labels and class counts as the authors released them."""
    ids = read_lines(first_file([folder / "img_id.txt", folder / "img_id.pkl"], "the list of images"))
    content = read_pickle(folder / "class_freq.pkl")
    try:
        labels, counts = (np.array(content[key], np.int64) for key in ("gt_labels", "class_freq"))
    except (KeyError, TypeError, ValueError):
        raise damaged(folder / "class_freq.pkl", "it lacks gt_labels or class_freq") from None
    return ids, labels, counts


def _arrays(path: Path) -> tuple[list[str], NDArray[Any], Any]:
    arrays = read_arrays(path)
    if missing := [key for key in _ARRAYS if key not in arrays]:
        raise DataError(f"{path} has no array {missing[0]}: give the published split")
    return names_and_ids(arrays, "", path)[1] or [], arrays["Y"], arrays["class_freq"]
