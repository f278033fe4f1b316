"""A few generated items in the layouts of the data sets' owners: --smoke runs on them where the data is missing.

Every function writes beneath a folder. The pictures show something of their labels, and every label has positives, so
that a run on them goes through all that a run on the real data goes through.
"""

from __future__ import annotations

import json
import struct
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
_SIDE = 32  # pixels of a photograph
_COCO_GAPS = (12, 26, 29, 30, 45, 66, 68, 69, 71, 83)  # the numbers from 1 to 90 that no category of COCO has


def mnist(folder: Path) -> None:
    """Write `MNIST/raw/`: patches of light whose place says the digit, in the counts of a long tail."""
    rng = np.random.default_rng(0)
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    train = np.repeat(np.arange(10), exponential_counts(MNIST_N_MAX, 10, 100.0))
    for part, digits in (("train", train), ("t10k", np.arange(40) % 10)):
        images = np.zeros((len(digits), 28, 28), np.uint8)
        for digit in range(10):
            top, left = 4 + 10 * (digit // 5), 1 + 5 * (digit % 5)
            at = np.flatnonzero(digits == digit)
            images[at, top : top + 9, left : left + 5] = rng.integers(120, 256, (len(at), 9, 5))
        (raw / f"{part}-images-idx3-ubyte").write_bytes(_idx(images))
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(_idx(digits.astype(np.uint8)))


def cifar10(folder: Path) -> None:
    """Write `cifar-10-batches-bin/`, in the counts of a long tail, all training images in its first batch."""
    home = folder / "cifar-10-batches-bin"
    home.mkdir(parents=True, exist_ok=True)
    names = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
    (home / "batches.meta.txt").write_text("\n".join(names) + "\n")
    train = np.repeat(np.arange(10), exponential_counts(CIFAR10_N_MAX, 10, 10.0))
    (home / "data_batch_1.bin").write_bytes(_coloured(train, 10).tobytes())
    (home / "test_batch.bin").write_bytes(_coloured(np.arange(40) % 10, 10).tobytes())


def cifar100(folder: Path) -> None:
    """Write `cifar-100-binary/`, in the counts of a long tail."""
    home = folder / "cifar-100-binary"
    home.mkdir(parents=True, exist_ok=True)
    for kind, n in (("fine", 100), ("coarse", 20)):
        (home / f"{kind}_label_names.txt").write_text("".join(f"{kind}_{i}\n" for i in range(n)))
    train = np.repeat(np.arange(100), exponential_counts(CIFAR100_N_MAX, 100, 10.0))
    for stem, classes in (("train", train), ("test", np.arange(200) % 100)):
        coarse = (classes // 5).astype(np.uint8)[:, None]
        (home / f"{stem}.bin").write_bytes(np.concatenate([coarse, _coloured(classes, 100)], axis=1).tobytes())


def coco(folder: Path, year: int = 2014, n_train: int = 96, n_val: int = 40) -> None:
    """Write `annotations/instances_{train,val}{year}.json` and the images they name."""
    numbers = [i for i in range(1, 91) if i not in _COCO_GAPS]
    categories = [{"id": number, "name": name} for number, name in zip(numbers, COCO_LABELS, strict=True)]
    for seed, (split, n) in enumerate((("train", n_train), ("val", n_val))):
        values = many_labels(n, len(COCO_LABELS), seed)
        images: list[dict[str, Any]] = []
        annotations: list[dict[str, Any]] = []
        for i, row in enumerate(values):
            image_id = 1000 * (seed + 1) + i
            name = f"COCO_{split}{year}_{image_id:012d}.jpg" if year == 2014 else f"{image_id:012d}.jpg"
            photograph(folder / f"{split}{year}" / name, row)
            images.append({"id": image_id, "file_name": name})
            for j in np.flatnonzero(row):
                annotations.append({"id": len(annotations) + 1, "image_id": image_id, "category_id": numbers[j]})
        content = {"images": images, "annotations": annotations, "categories": categories}
        (folder / "annotations").mkdir(parents=True, exist_ok=True)
        (folder / "annotations" / f"instances_{split}{year}.json").write_text(json.dumps(content))


def _voc(folder: Path, year: int, ids: dict[str, list[str]], values: dict[str, NDArray[np.int8]]) -> None:
    """Write `VOCdevkit/VOC{year}` with images of the given names and labels (n, 20), by split."""
    home = folder / "VOCdevkit" / f"VOC{year}"
    main = home / "ImageSets" / "Main"
    main.mkdir(parents=True, exist_ok=True)
    for split, names in ids.items():
        (main / f"{split}.txt").write_text("".join(f"{name}\n" for name in names))
        for label, column in zip(VOC_LABELS, values[split].T, strict=True):
            rows = (f"{name} {1 if value else -1:2d}\n" for name, value in zip(names, column, strict=True))
            (main / f"{label}_{split}.txt").write_text("".join(rows))
        for name, row in zip(names, values[split], strict=True):
            photograph(home / "JPEGImages" / f"{name}.jpg", row)


def many_labels(n: int, n_labels: int, seed: int = 0, positives: float = 2.5) -> NDArray[np.int8]:
    """Return labels (n, n_labels) with a long tail; every label is positive somewhere, and nowhere all are."""
    rng = np.random.default_rng(seed)
    share = 1 / np.arange(1, n_labels + 1)
    values: NDArray[np.int8] = (rng.random((n, n_labels)) < np.minimum(0.9, share * positives / share.sum())).astype(
        np.int8
    )
    values[rng.integers(0, n, n_labels), np.arange(n_labels)] = 1
    values[rng.integers(0, n, 4 * n_labels), rng.integers(0, n_labels, 4 * n_labels)] = 1
    return values


def photograph(path: Path, row: NDArray[np.int8]) -> None:
    """Write an image on which every positive label of `row` lights a place of its own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(int(row.sum()) + 7)
    pixels = rng.integers(0, 60, (_SIDE, _SIDE, 3)).astype(np.uint8)
    for j in np.flatnonzero(row):
        top, left = 4 * (j // 8) % _SIDE, 4 * (j % 8)
        pixels[top : top + 4, left : left + 4, j % 3] = 250
    Image.fromarray(pixels).save(path, quality=90)


def _idx(array: NDArray[np.uint8]) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def _coloured(classes: NDArray[np.int64], n_classes: int) -> NDArray[np.uint8]:
    """Records (N, 1 + 3072) of a class and an image whose brightness, channel by channel, says which it is."""
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 40, (len(classes), 3, 1024)).astype(np.uint8)
    turn = 2 * np.pi * classes[:, None] / n_classes + np.array([0, 2, 4])
    light = (90 + 80 * np.sin(turn)).astype(np.uint8)
    return np.concatenate([classes[:, None].astype(np.uint8), (noise + light[:, :, None]).reshape(len(classes), -1)], 1)


_N_TRAIN, _N_TEST = 64, 32


def voc2012(folder: Path) -> None:
    """Write `VOCdevkit/VOC2012` with its splits train and val."""
    sizes = {"train": _N_TRAIN, "val": _N_TEST}
    ids = {split: [f"2008_{k:02d}{i:04d}" for i in range(n)] for k, (split, n) in enumerate(sizes.items())}
    values = {split: many_labels(n, len(VOC_LABELS), k) for k, (split, n) in enumerate(sizes.items())}
    _voc(folder, 2012, ids, values)


def voc_mlt(folder: Path) -> None:
    """Write VOC-MLT's split as `labels/voc_mlt.npz`, its images, and VOC 2007's split trainval."""
    values = many_labels(_N_TRAIN, len(VOC_LABELS), 0)
    ids = [f"2008_{i:06d}" for i in range(len(values))]
    _voc(folder, 2012, {"trainval": ids}, {"trainval": values})
    test = many_labels(_N_TEST, len(VOC_LABELS), 1)
    _voc(folder, 2007, {"trainval": [f"{i:06d}" for i in range(len(test))]}, {"trainval": test})
    _split(folder / "labels" / "voc_mlt.npz", ids, values)


def coco2014(folder: Path) -> None:
    """Write COCO 2014, train and val."""
    coco(folder, 2014, _N_TRAIN, _N_TEST)


def coco_mlt(folder: Path) -> None:
    """Write COCO-MLT's split as `labels/coco_mlt.npz`, and COCO 2017, train and val."""
    coco(folder, 2017, _N_TRAIN, _N_TEST)
    content = json.loads((folder / "annotations" / "instances_train2017.json").read_text())
    numbers = {image["id"]: i for i, image in enumerate(content["images"])}
    columns = {category["id"]: j for j, category in enumerate(content["categories"])}
    values = np.zeros((len(numbers), len(COCO_LABELS)), np.int8)
    for cell in content["annotations"]:
        values[numbers[cell["image_id"]], columns[cell["category_id"]]] = 1
    _split(folder / "labels" / "coco_mlt.npz", [str(number) for number in numbers], values)


def _split(path: Path, ids: list[str], values: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, ids=np.array(ids), Y=values.astype(np.uint8), class_freq=values.sum(0, dtype=np.int64))


def nus_wide(folder: Path) -> None:
    """Write `NUS-WIDE/` with its lists, ground truth and images, of 20 concepts."""
    home, concepts = folder / "NUS-WIDE", [f"concept{j:02d}" for j in range(20)]
    for name in ("ImageList", "Groundtruth/TrainTestLabels"):
        (home / name).mkdir(parents=True, exist_ok=True)
    (home / "Concepts81.txt").write_text("".join(f"{concept}\n" for concept in concepts))
    for k, (part, n) in enumerate((("Train", _N_TRAIN), ("Test", _N_TEST))):
        values = many_labels(n, len(concepts), k)
        names = [f"actor/{k}{i:04d}.jpg" for i in range(n)]
        (home / "ImageList" / f"{part}Imagelist.txt").write_text("".join(f"{name}\n" for name in names))
        for j, concept in enumerate(concepts):
            file = home / "Groundtruth" / "TrainTestLabels" / f"Labels_{concept}_{part}.txt"
            file.write_text("".join(f"{value}\n" for value in values[:, j]))
        for name, row in zip(names, values, strict=True):
            photograph(home / "Flickr" / name, row)


def cub(folder: Path) -> None:
    """Write `CUB_200_2011/` and `attributes.txt`, of 30 attributes."""
    home, n, names = folder / "CUB_200_2011", _N_TRAIN + _N_TEST, [f"has_part::kind_{j}" for j in range(30)]
    (home / "attributes").mkdir(parents=True, exist_ok=True)
    values = many_labels(n, len(names), 0, 6.0)
    ids = [f"{i % 3 + 1:03d}.Bird/Bird_{i:04d}.jpg" for i in range(n)]
    (home / "images.txt").write_text("".join(f"{i} {name}\n" for i, name in enumerate(ids, 1)))
    (home / "train_test_split.txt").write_text("".join(f"{i} {int(i <= _N_TRAIN)}\n" for i in range(1, n + 1)))
    (folder / "attributes.txt").write_text("".join(f"{j} {name}\n" for j, name in enumerate(names, 1)))
    (home / "attributes" / "image_attribute_labels.txt").write_text(
        "".join(f"{i + 1} {j + 1} {values[i, j]} 3 1.5\n" for i in range(n) for j in range(len(names)))
    )
    for name, row in zip(ids, values, strict=True):
        photograph(home / "images" / name, row)


def open_images(folder: Path) -> None:
    """Write `OpenImages/` with its boxable classes, train and test; most labels are unknown."""
    home, codes = folder / "OpenImages", [f"/m/{j:03x}" for j in range(20)]
    home.mkdir(parents=True, exist_ok=True)
    (home / "class-descriptions-boxable.csv").write_text("".join(f"{c},Thing {j}\n" for j, c in enumerate(codes)))
    for k, (split, n) in enumerate((("train", _N_TRAIN), ("test", _N_TEST))):
        values = many_labels(n, len(codes), k)
        judged = (np.random.default_rng(k).random(values.shape) < 0.3) | (values == 1)
        ids = [f"{1000 * (k + 1) + i:016x}" for i in range(n)]
        cells = (f"{ids[i]},verification,{codes[j]},{values[i, j]}\n" for i, j in zip(*judged.nonzero(), strict=True))
        header = "ImageID,Source,LabelName,Confidence\n"
        (home / f"{split}-annotations-human-imagelabels-boxable.csv").write_text(header + "".join(cells))
        for name, row in zip(ids, values, strict=True):
            photograph(home / split / f"{name}.jpg", row)


def wider_attribute(folder: Path) -> None:
    """Write `WIDER-Attribute/` with one person an image."""
    home, names = folder / "WIDER-Attribute", [f"attribute{j}" for j in range(14)]
    (home / "wider_attribute_annotation").mkdir(parents=True, exist_ok=True)
    for k, (split, n) in enumerate((("trainval", _N_TRAIN), ("test", _N_TEST))):
        images = []
        for i, row in enumerate(many_labels(n, len(names), k)):
            file = f"{'train' if split == 'trainval' else 'test'}/0--Parade/{i}.jpg"
            photograph(home / "Image" / file, row)
            published = np.where(row == 1, 1, -1).tolist()
            images.append({"file_name": file, "targets": [{"attribute": published, "bbox": [0.0, 0.0, 32, 32]}]})
        content = {"images": images, "attribute_id_map": {str(j): name for j, name in enumerate(names)}}
        (home / "wider_attribute_annotation" / f"wider_attribute_{split}.json").write_text(json.dumps(content))


def vispr(folder: Path) -> None:
    """Write `VISPR/` with its annotation files and images, train and test."""
    home = folder / "VISPR"
    for k, (split, n) in enumerate((("train", _N_TRAIN), ("test", _N_TEST))):
        (home / "annotations" / f"{split}2017").mkdir(parents=True, exist_ok=True)
        for i, row in enumerate(many_labels(n, len(VISPR_LABELS), k)):
            name, path = f"2017_{k}{i:06d}", f"images/{split}2017/2017_{k}{i:06d}.jpg"
            photograph(home / path, row)
            labels = [VISPR_LABELS[j] for j in np.flatnonzero(row)]
            content = {"id": name, "image_path": path, "labels": labels}
            (home / "annotations" / f"{split}2017" / f"{name}.json").write_text(json.dumps(content))


def vqa(folder: Path) -> None:
    """Write `VQA/` with questions, answers, and three regions of each image."""
    home, rng = folder / "VQA", np.random.default_rng(0)
    home.mkdir(parents=True, exist_ok=True)
    image_ids, answers = np.arange(1, 21), ("yes", "no", "2", "red", "left", "blue")
    np.save(home / "image_ids.npy", image_ids)
    np.save(home / "regions.npy", rng.normal(size=(len(image_ids), 3, 8)).astype(np.float32))
    for k, (split, n) in enumerate((("train", _N_TRAIN), ("val", _N_TEST))):
        questions, annotations = [], []
        for i in range(n):
            about = {"image_id": int(image_ids[i % 20]), "question_id": 1000 * (k + 1) + i}
            first, second = answers[i % 6], answers[(i + 1) % 6]
            said = [{"answer": first if j < 7 else second, "answer_id": j + 1} for j in range(10)]
            questions.append(about | {"question": f"is it {second} or {first} ?"})
            annotations.append(about | {"multiple_choice_answer": first, "answers": said})
        (home / f"v2_OpenEnded_mscoco_{split}2014_questions.json").write_text(json.dumps({"questions": questions}))
        (home / f"v2_mscoco_{split}2014_annotations.json").write_text(json.dumps({"annotations": annotations}))


def mulan(name: str, folder: Path) -> None:
    """Write `mulan/{name}.npz`: features that say something of 12 labels."""
    path = folder / "mulan" / f"{name}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    mix = rng.normal(size=(12, 16))
    for k, (split, n) in enumerate((("train", _N_TRAIN), ("test", _N_TEST))):
        values = many_labels(n, 12, k)
        arrays[f"Y_{split}"] = values
        arrays[f"X_{split}"] = (values @ mix + rng.normal(size=(n, 16))).astype(np.float32)
    np.savez(path, **arrays)
