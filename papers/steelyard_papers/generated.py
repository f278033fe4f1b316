"""A few generated items in the layouts of the data sets' owners: --smoke runs on them where the data is missing.

Every function writes beneath a folder. The pictures show something of their labels, and every label has positives, so
that a run on them goes through all that a run on the real data goes through.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from steelyard.data.builders import exponential_counts
from steelyard.data.readers.coco import COCO_LABELS
from steelyard.data.readers.vispr import VISPR_LABELS
from steelyard.data.readers.voc import VOC_LABELS

MNIST_N_MAX, CIFAR10_N_MAX, CIFAR100_N_MAX = 200, 60, 20
"""Images of the most frequent class."""
_N_TRAIN, _N_TEST = 64, 32
_SIDE = 32  # pixels of a photograph
_COCO_GAPS = (12, 26, 29, 30, 45, 66, 68, 69, 71, 83)  # the numbers from 1 to 90 that no category of COCO has


def _write(path: Path, content: str | bytes | list[Any] | dict[str, Any]) -> None:
    """Write text, bytes, or JSON of anything else."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = content if isinstance(content, str | bytes) else json.dumps(content)
    path.write_bytes(text.encode() if isinstance(text, str) else text)


def _lines(names: Sequence[str]) -> str:
    return "".join(f"{name}\n" for name in names)


def _save(path: Path, **arrays: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)


def many_labels(n: int, n_labels: int, seed: int = 0, positives: float = 2.5) -> NDArray[np.int8]:
    """Return labels (n, n_labels) with a long tail; every label is positive somewhere, and nowhere all are."""
    rng = np.random.default_rng(seed)
    share = 1 / np.arange(1, n_labels + 1)
    values = (rng.random((n, n_labels)) < np.minimum(0.9, share * positives / share.sum())).astype(np.int8)
    values[rng.integers(0, n, n_labels), np.arange(n_labels)] = 1
    values[rng.integers(0, n, 4 * n_labels), rng.integers(0, n_labels, 4 * n_labels)] = 1
    return np.asarray(values)


def _splits(
    names: tuple[str, str], n_labels: int, sizes: tuple[int, int] = (_N_TRAIN, _N_TEST)
) -> Iterator[tuple[int, str, NDArray[np.int8]]]:
    """Yield the number, the name and the labels of a training and a test split."""
    for k, (name, n) in enumerate(zip(names, sizes, strict=True)):
        yield k, name, many_labels(n, n_labels, k)


def photograph(path: Path, row: NDArray[np.int8]) -> None:
    """Write an image on which every positive label of `row` lights a place of its own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(int(row.sum()) + 7)
    pixels = rng.integers(0, 60, (_SIDE, _SIDE, 3)).astype(np.uint8)
    for j in np.flatnonzero(row):
        top, left = 4 * (j // 8) % _SIDE, 4 * (j % 8)
        pixels[top : top + 4, left : left + 4, j % 3] = 250
    Image.fromarray(pixels).save(path, quality=90)


def mnist(folder: Path) -> None:
    """Write `MNIST/raw/`: patches of light whose place says the digit, in the counts of a long tail."""
    rng = np.random.default_rng(0)
    train = np.repeat(np.arange(10), exponential_counts(MNIST_N_MAX, 10, 100.0))
    for part, digits in (("train", train), ("t10k", np.arange(40) % 10)):
        images = np.zeros((len(digits), 28, 28), np.uint8)
        for digit in range(10):
            top, left = 4 + 10 * (digit // 5), 1 + 5 * (digit % 5)
            at = np.flatnonzero(digits == digit)
            images[at, top : top + 9, left : left + 5] = rng.integers(120, 256, (len(at), 9, 5))
        for kind, array in (("images-idx3", images), ("labels-idx1", digits.astype(np.uint8))):
            head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
            _write(folder / "MNIST" / "raw" / f"{part}-{kind}-ubyte", head + array.tobytes())


def cifar10(folder: Path) -> None:
    """Write `cifar-10-batches-bin/`, in the counts of a long tail, all training images in its first batch."""
    home = folder / "cifar-10-batches-bin"
    names = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
    _write(home / "batches.meta.txt", "\n".join(names) + "\n")
    train = np.repeat(np.arange(10), exponential_counts(CIFAR10_N_MAX, 10, 10.0))
    _write(home / "data_batch_1.bin", _coloured(train, 10).tobytes())
    _write(home / "test_batch.bin", _coloured(np.arange(40) % 10, 10).tobytes())


def cifar100(folder: Path) -> None:
    """Write `cifar-100-binary/`, in the counts of a long tail."""
    home = folder / "cifar-100-binary"
    for kind, n in (("fine", 100), ("coarse", 20)):
        _write(home / f"{kind}_label_names.txt", _lines([f"{kind}_{i}" for i in range(n)]))
    train = np.repeat(np.arange(100), exponential_counts(CIFAR100_N_MAX, 100, 10.0))
    for stem, classes in (("train", train), ("test", np.arange(200) % 100)):
        coarse = (classes // 5).astype(np.uint8)[:, None]
        _write(home / f"{stem}.bin", np.concatenate([coarse, _coloured(classes, 100)], axis=1).tobytes())


def _coloured(classes: NDArray[np.int64], n_classes: int) -> NDArray[np.uint8]:
    """Records (N, 1 + 3072) of a class and an image whose brightness, channel by channel, says which it is."""
    noise = np.random.default_rng(0).integers(0, 40, (len(classes), 3, 1024)).astype(np.uint8)
    turn = 2 * np.pi * classes[:, None] / n_classes + np.array([0, 2, 4])
    light = (90 + 80 * np.sin(turn)).astype(np.uint8)
    return np.concatenate([classes[:, None].astype(np.uint8), (noise + light[:, :, None]).reshape(len(classes), -1)], 1)


def _coco(folder: Path, year: int) -> dict[str, tuple[list[int], NDArray[np.int8]]]:
    """Write `annotations/instances_{train,val}{year}.json` and the images they name; return ids and labels by split."""
    numbers = [i for i in range(1, 91) if i not in _COCO_GAPS]
    categories = [{"id": number, "name": name} for number, name in zip(numbers, COCO_LABELS, strict=True)]
    written = {}
    for k, split, values in _splits(("train", "val"), len(COCO_LABELS)):
        ids = [1000 * (k + 1) + i for i in range(len(values))]
        names = [f"COCO_{split}{year}_{i:012d}.jpg" if year == 2014 else f"{i:012d}.jpg" for i in ids]
        cells = [(ids[i], numbers[j]) for i, j in zip(*values.nonzero(), strict=True)]
        annotations = [
            {"id": n, "image_id": image, "category_id": number} for n, (image, number) in enumerate(cells, 1)
        ]
        images = [{"id": image, "file_name": name} for image, name in zip(ids, names, strict=True)]
        content = {"images": images, "annotations": annotations, "categories": categories}
        _write(folder / "annotations" / f"instances_{split}{year}.json", content)
        for name, row in zip(names, values, strict=True):
            photograph(folder / f"{split}{year}" / name, row)
        written[split] = ids, values
    return written


def coco2014(folder: Path) -> None:
    """Write COCO 2014, train and val."""
    _coco(folder, 2014)


def coco_mlt(folder: Path) -> None:
    """Write COCO-MLT's split as `labels/coco_mlt.npz`, and COCO 2017, train and val."""
    ids, values = _coco(folder, 2017)["train"]
    _split(folder / "labels" / "coco_mlt.npz", [str(number) for number in ids], values)


def _voc(folder: Path, year: int, split: str, ids: Sequence[str], values: NDArray[np.int8]) -> None:
    """Write a split of `VOCdevkit/VOC{year}` with images of the given names and labels (n, 20)."""
    home = folder / "VOCdevkit" / f"VOC{year}"
    main = home / "ImageSets" / "Main"
    _write(main / f"{split}.txt", _lines(ids))
    for label, column in zip(VOC_LABELS, values.T, strict=True):
        rows = [f"{name} {1 if value else -1:2d}" for name, value in zip(ids, column, strict=True)]
        _write(main / f"{label}_{split}.txt", _lines(rows))
    for name, row in zip(ids, values, strict=True):
        photograph(home / "JPEGImages" / f"{name}.jpg", row)


def voc2012(folder: Path) -> None:
    """Write `VOCdevkit/VOC2012` with its splits train and val."""
    for k, split, values in _splits(("train", "val"), len(VOC_LABELS)):
        _voc(folder, 2012, split, [f"2008_{k:02d}{i:04d}" for i in range(len(values))], values)


def voc_mlt(folder: Path) -> None:
    """Write VOC-MLT's split as `labels/voc_mlt.npz`, its images, and VOC 2007's split trainval."""
    (_, _, train), (_, _, test) = _splits(("train", "test"), len(VOC_LABELS))
    ids = [f"2008_{i:06d}" for i in range(len(train))]
    _voc(folder, 2012, "trainval", ids, train)
    _voc(folder, 2007, "trainval", [f"{i:06d}" for i in range(len(test))], test)
    _split(folder / "labels" / "voc_mlt.npz", ids, train)


def _split(path: Path, ids: list[str], values: NDArray[np.int8]) -> None:
    _save(path, ids=np.array(ids), Y=values.astype(np.uint8), class_freq=values.sum(0, dtype=np.int64))


def nus_wide(folder: Path) -> None:
    """Write `NUS-WIDE/` with its lists, ground truth and images, of 20 concepts."""
    home, concepts = folder / "NUS-WIDE", [f"concept{j:02d}" for j in range(20)]
    _write(home / "Concepts81.txt", _lines(concepts))
    for k, part, values in _splits(("Train", "Test"), len(concepts)):
        names = [f"actor/{k}{i:04d}.jpg" for i in range(len(values))]
        _write(home / "ImageList" / f"{part}Imagelist.txt", _lines(names))
        for j, concept in enumerate(concepts):
            file = home / "Groundtruth" / "TrainTestLabels" / f"Labels_{concept}_{part}.txt"
            _write(file, _lines([str(value) for value in values[:, j]]))
        for name, row in zip(names, values, strict=True):
            photograph(home / "Flickr" / name, row)


def cub(folder: Path) -> None:
    """Write `CUB_200_2011/` and `attributes.txt`, of 30 attributes."""
    home, n, names = folder / "CUB_200_2011", _N_TRAIN + _N_TEST, [f"has_part::kind_{j}" for j in range(30)]
    values = many_labels(n, len(names), 0, 6.0)
    ids = [f"{i % 3 + 1:03d}.Bird/Bird_{i:04d}.jpg" for i in range(n)]
    _write(home / "images.txt", _lines([f"{i} {name}" for i, name in enumerate(ids, 1)]))
    _write(home / "train_test_split.txt", _lines([f"{i} {int(i <= _N_TRAIN)}" for i in range(1, n + 1)]))
    _write(folder / "attributes.txt", _lines([f"{j} {name}" for j, name in enumerate(names, 1)]))
    cells = [f"{i + 1} {j + 1} {values[i, j]} 3 1.5" for i in range(n) for j in range(len(names))]
    _write(home / "attributes" / "image_attribute_labels.txt", _lines(cells))
    for name, row in zip(ids, values, strict=True):
        photograph(home / "images" / name, row)


def open_images(folder: Path) -> None:
    """Write `OpenImages/` with its boxable classes, train and test; most labels are unknown."""
    home, codes = folder / "OpenImages", [f"/m/{j:03x}" for j in range(20)]
    _write(home / "class-descriptions-boxable.csv", _lines([f"{code},Thing {j}" for j, code in enumerate(codes)]))
    for k, split, values in _splits(("train", "test"), len(codes)):
        judged = (np.random.default_rng(k).random(values.shape) < 0.3) | (values == 1)
        ids = [f"{1000 * (k + 1) + i:016x}" for i in range(len(values))]
        cells = [f"{ids[i]},verification,{codes[j]},{values[i, j]}" for i, j in zip(*judged.nonzero(), strict=True)]
        file = home / f"{split}-annotations-human-imagelabels-boxable.csv"
        _write(file, _lines(["ImageID,Source,LabelName,Confidence", *cells]))
        for name, row in zip(ids, values, strict=True):
            photograph(home / split / f"{name}.jpg", row)


def wider_attribute(folder: Path) -> None:
    """Write `WIDER-Attribute/` with one person an image."""
    home, names = folder / "WIDER-Attribute", [f"attribute{j}" for j in range(14)]
    for _, split, values in _splits(("trainval", "test"), len(names)):
        images = []
        for i, row in enumerate(values):
            file = f"{split.removesuffix('val')}/0--Parade/{i}.jpg"
            photograph(home / "Image" / file, row)
            published = np.where(row == 1, 1, -1).tolist()
            images.append({"file_name": file, "targets": [{"attribute": published, "bbox": [0.0, 0.0, 32, 32]}]})
        content = {"images": images, "attribute_id_map": {str(j): name for j, name in enumerate(names)}}
        _write(home / "wider_attribute_annotation" / f"wider_attribute_{split}.json", content)


def vispr(folder: Path) -> None:
    """Write `VISPR/` with its annotation files and images, train and test."""
    home = folder / "VISPR"
    for k, split, values in _splits(("train", "test"), len(VISPR_LABELS)):
        for i, row in enumerate(values):
            name, path = f"2017_{k}{i:06d}", f"images/{split}2017/2017_{k}{i:06d}.jpg"
            photograph(home / path, row)
            labels = [VISPR_LABELS[j] for j in np.flatnonzero(row)]
            content = {"id": name, "image_path": path, "labels": labels}
            _write(home / "annotations" / f"{split}2017" / f"{name}.json", content)


def vqa(folder: Path) -> None:
    """Write `VQA/` with questions, answers, and three regions of each image."""
    home, image_ids, answers = folder / "VQA", np.arange(1, 21), ("yes", "no", "2", "red", "left", "blue")
    home.mkdir(parents=True, exist_ok=True)
    np.save(home / "image_ids.npy", image_ids)
    np.save(home / "regions.npy", np.random.default_rng(0).normal(size=(len(image_ids), 3, 8)).astype(np.float32))
    for k, (split, n) in enumerate((("train", _N_TRAIN), ("val", _N_TEST))):
        questions, annotations = [], []
        for i in range(n):
            about = {"image_id": int(image_ids[i % 20]), "question_id": 1000 * (k + 1) + i}
            first, second = answers[i % 6], answers[(i + 1) % 6]
            given = [{"answer": first if j < 7 else second, "answer_id": j + 1} for j in range(10)]
            questions.append(about | {"question": f"is it {second} or {first} ?"})
            annotations.append(about | {"multiple_choice_answer": first, "answers": given})
        _write(home / f"v2_OpenEnded_mscoco_{split}2014_questions.json", {"questions": questions})
        _write(home / f"v2_mscoco_{split}2014_annotations.json", {"annotations": annotations})


def mulan(name: str, folder: Path) -> None:
    """Write `mulan/{name}.npz`: features that say something of 12 labels."""
    rng = np.random.default_rng(0)
    mix = rng.normal(size=(12, 16))
    arrays: dict[str, Any] = {}
    for _, split, values in _splits(("train", "test"), 12):
        arrays[f"Y_{split}"] = values
        arrays[f"X_{split}"] = (values @ mix + rng.normal(size=(len(values), 16))).astype(np.float32)
    _save(folder / "mulan" / f"{name}.npz", **arrays)


def features(name: str, files: tuple[str, str], n_labels: int, lists: bool, root: Path) -> None:
    """Write features and labels, by numbers and with three lists of known positives, or by names and one positive."""
    rng = np.random.default_rng(0)
    for k, file, values in _splits(files, n_labels, (160, 40)):
        values = values.astype(np.uint8)
        values[values.sum(1) == 0, 0] = 1
        n = len(values)
        ids: NDArray[Any] = 1000 * k + np.arange(n) if lists else np.array([f"{k}/{i}.jpg" for i in range(n)])
        x = values @ rng.normal(size=(n_labels, 24)) + rng.normal(size=(n, 24))
        _save(root / "features" / name / f"{k}.npz", ids=ids, X=np.maximum(x, 0).astype(np.float16))
        first = np.eye(n_labels, dtype=np.uint8)[values.argmax(1)]
        arrays: dict[str, Any] = {"ids" if lists else "names": ids, "Y": values if lists or k else first}
        if lists and not k:
            arrays |= dict.fromkeys(("Y_075left", "Y_04left", "Y_singlelabel"), first)
        _save(root / file, **arrays)


def voc_features(file: str, root: Path) -> None:
    """Write features and labels of VOC: 1 present, 0 difficult, −1 absent."""
    arrays: dict[str, Any] = {"classes": np.array(VOC_LABELS)}
    for _, split, values in _splits(("train", "val"), len(VOC_LABELS), (96, 40)):
        x = values @ np.random.default_rng(0).normal(size=(len(VOC_LABELS), 24))
        arrays |= {f"X_{split}": x.astype(np.float16), f"Y_{split}": 2 * values - 1}
    _save(root / file, **arrays)
