"""Small data sets written in exactly the layout of their owners, for tests of the readers and of what builds on them.

Every function takes the folder to write into, sizes and a seed, and returns what a reader should find there.
"""

from __future__ import annotations

import gzip
import json
import pickle
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from steelyard.data.readers.coco import COCO_LABELS
from steelyard.data.readers.vispr import VISPR_LABELS
from steelyard.data.readers.voc import VOC_LABELS
from steelyard.labels import UNKNOWN


class Truth(NamedTuple):
    """What a reader should return."""

    values: NDArray[Any]
    names: tuple[str, ...]
    ids: tuple[str, ...]
    inputs: NDArray[Any] | None = None


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def write_image(path: Path, rng: np.random.Generator, width: int = 16, height: int = 12) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8)).save(path)


def _sparse(rng: np.random.Generator, n_items: int, n_labels: int, rate: float = 0.2) -> NDArray[np.int8]:
    return (rng.random((n_items, n_labels)) < rate).astype(np.int8)


def _one_hot(classes: NDArray[Any], n: int) -> NDArray[np.int8]:
    return np.eye(n, dtype=np.int8)[classes]


def idx(array: NDArray[np.uint8]) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_mnist(folder: Path, n_train: int = 40, n_test: int = 20, seed: int = 0, gz: bool = True) -> dict[bool, Truth]:
    """Return the truth of the training (True) and of the test part."""
    rng = np.random.default_rng(seed)
    truths = {}
    for part, train, n in (("train", True, n_train), ("t10k", False, n_test)):
        images, digits = rng.integers(0, 256, (n, 28, 28), np.uint8), rng.integers(0, 10, n, np.uint8)
        for kind, array in (("images-idx3", images), ("labels-idx1", digits)):
            name = folder / "MNIST" / "raw" / f"{part}-{kind}-ubyte"
            write(name.with_name(name.name + ".gz") if gz else name, gzip.compress(idx(array)) if gz else idx(array))
        names, ids = tuple(map(str, range(10))), tuple(map(str, range(n)))
        truths[train] = Truth(_one_hot(digits, 10), names, ids, images[:, None])
    return truths


def python2_pickle(value: Any) -> bytes:
    """Pickle dicts, lists, strings, small numbers and uint8 arrays with protocol 2, as Python 2 and its numpy did."""
    return b"\x80\x02" + _python2(value) + b"."


def _python2(value: Any) -> bytes:
    if isinstance(value, dict):
        return b"}(" + b"".join(_python2(key) + _python2(item) for key, item in value.items()) + b"u"
    if isinstance(value, list):
        return b"](" + b"".join(map(_python2, value)) + b"e"
    if isinstance(value, (str, bytes)):
        text = value.encode() if isinstance(value, str) else value
        return b"T" + struct.pack("<i", len(text)) + text
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    array = np.asarray(value, np.uint8)
    shape = b"(" + b"".join(map(_python2, map(int, array.shape))) + b"t"
    dtype = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    start = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    return start + b"(K\x01" + shape + dtype + b"\x89" + _python2(array.tobytes()) + b"tb"


CIFAR10_LABELS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def write_cifar10(
    folder: Path, n: int = 12, seed: int = 0, version: str = "bin", batches: Sequence[int] = (1, 2, 3, 4, 5)
) -> dict[bool, Truth]:
    """Write `n` images a batch in the "bin" or "py" version; return the truth of training (True) and test part."""
    rng = np.random.default_rng(seed)
    home = folder / f"cifar-10-batches-{version}"
    parts: dict[str, tuple[NDArray[np.uint8], NDArray[np.int64]]] = {}
    for stem in [*(f"data_batch_{batch}" for batch in batches), "test_batch"]:
        images, classes = rng.integers(0, 256, (n, 3, 32, 32), np.uint8), rng.integers(0, 10, n)
        parts[stem] = images, classes
        if version == "bin":
            records = np.concatenate([classes[:, None].astype(np.uint8), images.reshape(n, -1)], axis=1)
            write(home / f"{stem}.bin", records.tobytes())
        else:
            content = {"batch_label": stem, "labels": classes.tolist(), "data": images.reshape(n, -1)}
            write(home / stem, python2_pickle(content | {"filenames": [f"{stem}_{i}.png" for i in range(n)]}))
    if version == "bin":
        write(home / "batches.meta.txt", "\n".join(CIFAR10_LABELS) + "\n\n")
    else:
        write(home / "batches.meta", python2_pickle({"num_cases_per_batch": n, "label_names": [*CIFAR10_LABELS]}))
    train = [parts[f"data_batch_{batch}"] for batch in batches]
    return {True: _cifar_truth(train, CIFAR10_LABELS), False: _cifar_truth([parts["test_batch"]], CIFAR10_LABELS)}


def write_cifar100(folder: Path, n: int = 30, seed: int = 0, version: str = "binary") -> dict[tuple[bool, str], Truth]:
    """Write the "binary" or "python" version; return the truth by (training part, "fine" or "coarse")."""
    rng = np.random.default_rng(seed)
    home = folder / f"cifar-100-{version}"
    names = {"fine": tuple(f"fine_{i}" for i in range(100)), "coarse": tuple(f"coarse_{i}" for i in range(20))}
    truths = {}
    for stem in ("train", "test"):
        images = rng.integers(0, 256, (n, 3, 32, 32), np.uint8)
        classes = {"coarse": rng.integers(0, 20, n), "fine": rng.integers(0, 100, n)}
        if version == "binary":
            columns = [classes["coarse"][:, None], classes["fine"][:, None], images.reshape(n, -1)]
            write(home / f"{stem}.bin", np.concatenate(columns, axis=1).astype(np.uint8).tobytes())
        else:
            numbers = {f"{kind}_labels": values.tolist() for kind, values in classes.items()}
            write(home / stem, python2_pickle({"data": images.reshape(n, -1), "batch_label": stem} | numbers))
        for kind, values in classes.items():
            truths[stem == "train", kind] = _cifar_truth([(images, values)], names[kind])
    for kind, listed in names.items():
        if version == "binary":
            write(home / f"{kind}_label_names.txt", "".join(f"{name}\n" for name in listed))
    if version == "python":
        write(home / "meta", python2_pickle({f"{kind}_label_names": [*listed] for kind, listed in names.items()}))
    return truths


def _cifar_truth(parts: Sequence[tuple[NDArray[np.uint8], NDArray[np.int64]]], names: tuple[str, ...]) -> Truth:
    images, classes = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return Truth(_one_hot(classes, len(names)), names, tuple(map(str, range(len(images)))), images)


def write_voc(folder: Path, sizes: Mapping[str, int], year: int = 2012, seed: int = 0) -> dict[str, Truth]:
    """Write splits of the given sizes; return each split's truth with difficult labels unknown."""
    rng = np.random.default_rng(seed)
    home = folder / "VOCdevkit" / f"VOC{year}"
    truths, number = {}, 0
    for split, n in sizes.items():
        published = rng.choice(np.array([1, 0, -1]), (n, 20), p=[0.15, 0.1, 0.75])
        ids = tuple(f"{year}_{number + i:06d}" for i in range(n))
        number += n
        for name in ids:
            write_image(home / "JPEGImages" / f"{name}.jpg", rng)
        main = home / "ImageSets" / "Main"
        write(main / f"{split}.txt", "".join(f"{name}\n" for name in ids))
        for column, label in zip(published.T, VOC_LABELS, strict=True):
            rows = "".join(f"{name} {value:2d}\n" for name, value in zip(ids, column, strict=True))
            write(main / f"{label}_{split}.txt", rows)
        values = np.where(published == 0, UNKNOWN, published == 1).astype(np.int8)
        truths[split] = Truth(values, VOC_LABELS, ids)
    return truths


def write_coco(folder: Path, year: int = 2014, split: str = "train", n: int = 12, seed: int = 0) -> Truth:
    """Write instances with outlines, crowds and several instances a label; the last image has no label."""
    rng = np.random.default_rng(seed)
    # COCO numbers its 80 categories from 1 to 90 and leaves ten numbers out.
    numbers = [i for i in range(1, 91) if i not in (12, 26, 29, 30, 45, 66, 68, 69, 71, 83)]
    values = _sparse(rng, n, 80, 0.05)
    values[-1] = 0
    image_ids = rng.permutation(np.arange(1, 10 * n))[:n].tolist()
    images, annotations = [], []
    for i, image_id in enumerate(image_ids):
        name = f"COCO_{split}{year}_{image_id:012d}.jpg" if year == 2014 else f"{image_id:012d}.jpg"
        write_image(folder / f"{split}{year}" / name, rng)
        images.append({"license": 1, "file_name": name, "height": 12, "width": 16, "id": image_id})
        for j in np.flatnonzero(values[i]):
            for crowd in range(int(rng.integers(1, 3))):
                outline: Any = {"counts": [3, 5], "size": [12, 16]} if crowd else [rng.random(8).round(2).tolist()]
                cell = {"image_id": image_id, "category_id": numbers[j], "id": len(annotations) + 1, "iscrowd": crowd}
                annotations.append({"segmentation": outline, "area": 4.5, "bbox": [1.0, 2.0, 3.0, 4.0]} | cell)
    rng.shuffle(annotations)
    categories = [
        {"supercategory": "thing", "id": number, "name": name}
        for number, name in zip(numbers, COCO_LABELS, strict=True)
    ]
    content = {"info": {"year": year}, "licenses": [{"id": 1, "name": "CC"}], "images": images}
    content |= {"annotations": annotations, "categories": categories[::-1]}
    write(folder / "annotations" / f"instances_{split}{year}.json", json.dumps(content))
    return Truth(values, COCO_LABELS, tuple(map(str, image_ids)))


def write_nus_wide(
    folder: Path, n_train: int = 10, n_test: int = 8, n_concepts: int = 81, seed: int = 0
) -> dict[str, Truth]:
    """Return the truth of "train", "test" and "all"; the first training image has no concept."""
    rng = np.random.default_rng(seed)
    concepts = tuple(sorted(["lake", *(f"concept{i:02d}" for i in range(n_concepts - 1))]))
    names = [f"{rng.choice(['actor', 'zoo'])}\\{i:04d}_{rng.integers(10**9)}.jpg" for i in range(n_train + n_test)]
    values = _sparse(rng, len(names), n_concepts, 0.1)
    values[0] = 0
    parts = {"Train": np.arange(n_train), "Test": np.arange(n_train, len(names)), "": rng.permutation(len(names))}
    for part, rows in parts.items():
        write(folder / "ImageList" / f"{part}Imagelist.txt", "".join(f"{names[i]}\r\n" for i in rows))
        for j, concept in enumerate(concepts):
            file = f"TrainTestLabels/Labels_{concept}_{part}.txt" if part else f"AllLabels/Labels_{concept}.txt"
            write(folder / "Groundtruth" / file, "".join(f"{value}\n" for value in values[rows, j]))
    write(folder / "ConceptsList" / "Concepts81.txt", "".join(f"{concept}\r\n" for concept in concepts))
    for name in names:
        write_image(folder / "Flickr" / name.replace("\\", "/"), rng)
    ids = np.array([name.replace("\\", "/") for name in names])
    return {
        split: Truth(values[parts[part]], concepts, tuple(ids[parts[part]].tolist()))
        for split, part in (("train", "Train"), ("test", "Test"), ("all", ""))
    }


class Birds(NamedTuple):
    """What CUB holds: presence and certainty of every attribute of every image, and which images are for training."""

    present: NDArray[np.int8]
    certainty: NDArray[np.int8]
    train: NDArray[np.bool_]
    names: tuple[str, ...]
    ids: tuple[str, ...]


def write_cub(folder: Path, n_images: int = 12, n_attributes: int = 312, seed: int = 0) -> Birds:
    """Write CUB with two lines that have a column too much, as the owners' file has."""
    rng = np.random.default_rng(seed)
    home = folder / "CUB_200_2011"
    ids = tuple(f"{i // 4 + 1:03d}.Bird/Bird_{i:04d}_{rng.integers(10**6)}.jpg" for i in range(n_images))
    names = tuple(f"has_part_{i // 9}::kind_{i % 9}" for i in range(n_attributes))
    present, train = _sparse(rng, n_images, n_attributes, 0.1), rng.permutation(n_images) < (n_images + 1) // 2
    certainty = rng.integers(1, 5, (n_images, n_attributes)).astype(np.int8)
    write(home / "images.txt", "".join(f"{i} {name}\n" for i, name in enumerate(ids, 1)))
    write(home / "train_test_split.txt", "".join(f"{i} {int(flag)}\n" for i, flag in enumerate(train, 1)))
    write(folder / "attributes.txt", "".join(f"{i} {name}\n" for i, name in enumerate(names, 1)))
    rows = []
    for i in range(n_images):
        for j in range(n_attributes):
            gap = " 0 " if (i, j) in ((2, 9), (5, 9)) else ""
            rows.append(f"{i + 1} {j + 1} {present[i, j]} {certainty[i, j]}{gap} {rng.random() * 30:.3f}\n")
    write(home / "attributes" / "image_attribute_labels.txt", "".join(rows))
    write(home / "attributes" / "certainties.txt", "1 not visible\n2 guessing\n3 probably\n4 definitely\n")
    for name in ids:
        write_image(home / "images" / name, rng)
    return Birds(present, certainty, train, names, ids)


def write_open_images(
    folder: Path, split: str = "train", n_images: int = 20, n_classes: int = 30, seed: int = 0, version: str = ""
) -> dict[str, Truth]:
    """Write label files of all and of the boxable (first half) classes; return the truth by kind of classes.

    Two classes share a display name; the trainable ones are every third.
    """
    rng = np.random.default_rng(seed)
    codes = [f"/m/{i:05x}" for i in rng.permutation(n_classes)]
    titles = [f"Thing, {i}" if i % 5 == 0 else f"Thing {i}" for i in range(n_classes)]
    titles[-1] = titles[0]
    ids = np.array([f"{i:016x}" for i in rng.integers(0, 2**62, n_images)])
    values = rng.choice(np.array([1, 0, UNKNOWN], np.int8), (n_images, n_classes), p=[0.1, 0.15, 0.75])
    values[:, :2] = rng.integers(0, 2, (n_images, 2))  # every image has a label, of every kind of classes
    kinds = {"all": np.arange(n_classes), "boxable": np.arange(n_classes // 2), "trainable": np.arange(0, n_classes, 3)}
    header = "LabelName,DisplayName\n" if version else ""
    for name, chosen in (("class-descriptions", kinds["all"]), ("class-descriptions-boxable", kinds["boxable"])):
        quoted = [f'"{title}"' if "," in title else title for title in titles]
        write(folder / f"{version}{name}.csv", header + "".join(f"{codes[j]},{quoted[j]}\n" for j in chosen))
    write(folder / f"{version}classes-trainable.txt", "".join(f"{codes[j]}\n" for j in kinds["trainable"]))
    for ending, chosen in (("", kinds["all"]), ("-boxable", kinds["boxable"])):
        rows = [
            f"{ids[i]},{rng.choice(['verification', 'crowdsource-verification'])},{codes[j]},{values[i, j]}\n"
            for i in range(n_images)
            for j in rng.permutation(chosen)
            if values[i, j] != UNKNOWN
        ]
        name = f"{version}{split}-annotations-human-imagelabels{ending}.csv"
        write(folder / name, "ImageID,Source,LabelName,Confidence\n" + "".join(rows))
    for name in ids:
        write_image(folder / split / f"{name}.jpg", rng)
    truths = {}
    for kind, chosen in kinds.items():
        listed = [titles[j] for j in chosen]
        names = [t if listed.count(t) == 1 else f"{t} ({codes[j]})" for t, j in zip(listed, chosen, strict=True)]
        truths[kind] = Truth(values[:, chosen], tuple(names), tuple(ids.tolist()))
    return truths


class People(NamedTuple):
    """What WIDER-Attribute holds: the truth and a box (left, top, right, bottom) a person."""

    truth: Truth
    boxes: NDArray[np.float64]


WIDER_LABELS = (
    *("Male", "longHair", "sunglass", "Hat", "T-shirt", "longSleeve", "formal"),
    *("shorts", "jeans", "longPants", "skirt", "faceMask", "logo", "stripe"),
)


def write_wider_attribute(folder: Path, n_images: int = 6, seed: int = 0) -> dict[str, People]:
    """Write `n_images` photographs a part ("train", "val", "test") with one to three people each."""
    rng = np.random.default_rng(seed)
    maps = {"attribute_id_map": {str(i): name for i, name in enumerate(WIDER_LABELS)}, "scene_id_map": {"0": "Parade"}}
    parts: dict[str, People] = {}
    records: dict[str, list[Any]] = {}
    for part in ("train", "val", "test"):
        records[part], ids, values, boxes = [], [], [], []
        for i in range(n_images):
            file, targets = f"{part}/0--Parade/0_Parade_{i}.jpg", []
            write_image(folder / "Image" / file, rng, 40, 30)
            for j in range(int(rng.integers(1, 4))):
                x, y, width, height = (int(v) for v in (rng.integers(20), rng.integers(15), 12 + j, 9 + i))
                published = rng.choice(np.array([1, -1, 0]), 14)
                targets.append({"attribute": published.tolist(), "bbox": [float(x), float(y), width, height]})
                ids.append(f"{file}#{j}")
                values.append(np.where(published == 0, UNKNOWN, published == 1))
                boxes.append((x, y, x + width, y + height))
            records[part].append({"targets": targets, "file_name": file, "scene_id": 0})
        parts[part] = People(Truth(np.array(values, np.int8), WIDER_LABELS, tuple(ids)), np.array(boxes, np.float64))
    home = folder / "wider_attribute_annotation"
    for name, images in (("trainval", records["train"] + records["val"]), ("test", records["test"])):
        write(home / f"wider_attribute_{name}.json", json.dumps({"images": images} | maps))
    return parts


def write_vispr(folder: Path, split: str = "train", n: int = 8, seed: int = 0) -> Truth:
    rng = np.random.default_rng(seed)
    values = _sparse(rng, n, 68, 0.08)
    values[:, 0] = ~values[:, 1:].any(1)
    ids = tuple(f"2017_{number}" for number in sorted(rng.permutation(np.arange(10**7, 10**7 + 10 * n))[:n].tolist()))
    for name, row in zip(ids, values, strict=True):
        path = f"images/{split}2017/{name}.jpg"
        write_image(folder / path, rng)
        labels = rng.permutation(np.array(VISPR_LABELS)[row == 1]).tolist()
        content = {"id": name, "image_path": path, "labels": labels, "safe": "a0_safe" in labels}
        write(folder / "annotations" / f"{split}2017" / f"{name}.json", json.dumps(content))
    return Truth(values, VISPR_LABELS, ids)


class Asked(NamedTuple):
    """What VQA holds: the truth with every answer as a label (most frequent first), texts and COCO's image ids."""

    truth: Truth
    questions: tuple[str, ...]
    image_ids: NDArray[np.int64]


def write_vqa(folder: Path, split: str = "train", n: int = 30, seed: int = 0) -> Asked:
    rng = np.random.default_rng(seed)
    words = np.array(["yes", "no", "2", "red", "table tennis", "to the left"])
    question_ids = rng.permutation(np.arange(1000, 1000 + 5 * n))[:n].tolist()
    image_ids = rng.integers(1, 500_000, n)
    texts = tuple(f"What is {i}?" for i in range(n))
    given = [rng.choice(words, 10, p=[0.35, 0.25, 0.15, 0.1, 0.1, 0.05]) for _ in range(n)]
    chosen = [max(sorted(set(answers.tolist())), key=answers.tolist().count) for answers in given]
    names = sorted(set(chosen), key=lambda name: (-chosen.count(name), name))
    questions = [
        {"image_id": int(image), "question": text, "question_id": number}
        for image, text, number in zip(image_ids, texts, question_ids, strict=True)
    ]
    annotations = [
        {
            "question_type": "what",
            "multiple_choice_answer": chosen[i],
            "answers": [
                {"answer": str(answer), "answer_confidence": "yes", "answer_id": k + 1}
                for k, answer in enumerate(given[i])
            ],
            "image_id": int(image_ids[i]),
            "answer_type": "other",
            "question_id": question_ids[i],
        }
        for i in rng.permutation(n)
    ]
    about = {"info": {}, "license": {}, "data_subtype": f"{split}2014"}
    write(
        folder / f"v2_OpenEnded_mscoco_{split}2014_questions.json",
        json.dumps(about | {"task_type": "Open-Ended", "questions": questions}),
    )
    write(folder / f"v2_mscoco_{split}2014_annotations.json", json.dumps(about | {"annotations": annotations}))
    counts = np.array([[np.count_nonzero(answers == name) for name in names] for answers in given])
    values = np.minimum(counts / 3, 1).astype(np.float32)
    return Asked(Truth(values, tuple(names), tuple(map(str, question_ids))), texts, image_ids)


def write_arff(
    folder: Path,
    name: str = "songs",
    n: int = 20,
    n_features: int = 5,
    n_labels: int = 4,
    sparse: bool = False,
    seed: int = 0,
) -> Truth:
    """Write `{name}-train.arff` with Mulan's `{name}.xml`; labels stand before, between and after the features."""
    rng = np.random.default_rng(seed)
    inputs = np.where(rng.random((n, n_features)) < 0.5, 0, rng.normal(0, 9, (n, n_features))).astype(np.float32)
    values = _sparse(rng, n, n_labels, 0.4)
    columns = rng.permutation(n_features + n_labels)
    table = np.concatenate([inputs, values], axis=1)[:, columns]
    names = [f"label {j - n_features}" if j >= n_features else f"feature_{j}" for j in columns]
    kinds = ["{0,1}" if j >= n_features else "numeric" for j in columns]
    header = "".join(f"@attribute '{text}' {kind}\n" for text, kind in zip(names, kinds, strict=True))
    rows = []
    for row in table:
        cells = [
            repr(float(value)) if kind == "numeric" else str(int(value)) for value, kind in zip(row, kinds, strict=True)
        ]
        pairs = ",".join(f"{i} {cell}" for i, cell in enumerate(cells) if float(cell) != 0)
        rows.append("{" + pairs + "}\n" if sparse else ",".join(cells) + "\n")
    write(folder / f"{name}-train.arff", f"@relation {name}\n\n{header}\n@data\n{''.join(rows)}")
    shuffled = rng.permutation([text for text in names if text.startswith("label")])
    listed = "".join(f'<label name="{text}"></label>\n' for text in shuffled)
    xml = f'<?xml version="1.0" encoding="utf-8"?>\n<labels xmlns="http://mulan.sourceforge.net/labels">\n{listed}</labels>'
    write(folder / f"{name}.xml", xml)
    order = [j - n_features for j in columns if j >= n_features]
    kept = [j for j in columns if j < n_features]
    ids = tuple(map(str, range(n)))
    return Truth(values[:, order], tuple(text for text in names if text.startswith("label")), ids, inputs[:, kept])


def write_npz(
    path: Path, sizes: Mapping[str, int], n_features: int = 5, n_labels: int = 4, seed: int = 0
) -> dict[str, Truth]:
    """Write `X_{split}`, `Y_{split}`, `ids_{split}` and `classes`."""
    rng = np.random.default_rng(seed)
    names = tuple(f"label {j}" for j in range(n_labels))
    arrays: dict[str, NDArray[Any]] = {"classes": np.array(names)}
    truths = {}
    for split, n in sizes.items():
        truth = Truth(
            _sparse(rng, n, n_labels, 0.3),
            names,
            tuple(f"{split}{i}" for i in range(n)),
            rng.normal(size=(n, n_features)),
        )
        arrays |= {f"X_{split}": truth.inputs, f"Y_{split}": truth.values, f"ids_{split}": np.array(truth.ids)}
        truths[split] = truth
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)
    return truths


def write_mlt(folder: Path, kind: str = "voc", n: int = 15, seed: int = 0) -> Truth:
    """Write the release's folder of "voc" or "coco"; return the truth."""
    rng = np.random.default_rng(seed)
    names = VOC_LABELS if kind == "voc" else COCO_LABELS
    values = _sparse(rng, n, len(names), 0.3)
    counts = values.sum(0, dtype=np.int64)
    numbers = rng.permutation(np.arange(1, 10 * n))[:n].tolist()
    ids = tuple(f"2008_{number:06d}" if kind == "voc" else str(number) for number in numbers)
    # The list of COCO-MLT's images is called .pkl, but is text.
    write(folder / ("img_id.txt" if kind == "voc" else "img_id.pkl"), "".join(f"{name}\n" for name in ids))
    content = {
        "gt_labels": [row.astype(np.int64) for row in values],
        "class_freq": counts,
        "neg_class_freq": n - counts,
    }
    content["condition_prob"] = rng.random((len(names), len(names)))
    # numpy called its core numpy.core when the release was written
    pickled = pickle.dumps(content, protocol=2).replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    write(folder / "class_freq.pkl", pickled)
    return Truth(values, names, ids)
