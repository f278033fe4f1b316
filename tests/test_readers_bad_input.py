"""What readers say of damaged, foreign and hostile files; that any damage is one line, test_fuzz holds."""

from __future__ import annotations

import codecs
import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import layouts
from steelyard.data.files import DataError
from steelyard.data.readers.arff import arff
from steelyard.data.readers.cifar import cifar10, cifar100
from steelyard.data.readers.coco import coco
from steelyard.data.readers.cub import cub
from steelyard.data.readers.mlt import coco_mlt, voc_mlt
from steelyard.data.readers.mnist import mnist
from steelyard.data.readers.npz import npz
from steelyard.data.readers.nus_wide import nus_wide
from steelyard.data.readers.open_images import open_images
from steelyard.data.readers.vispr import vispr
from steelyard.data.readers.voc import voc
from steelyard.data.readers.vqa import Questions, vqa
from steelyard.data.readers.wider_attribute import wider_attribute

# name: (write a small copy, read it)
READERS: dict[str, tuple[Callable[[Path], Any], Callable[[Path], Any]]] = {
    "mnist": (lambda f: layouts.write_mnist(f, 5, 5), lambda f: mnist(f)),
    "mnist plain": (lambda f: layouts.write_mnist(f, 5, 5, gz=False), lambda f: mnist(f, train=False)),
    "cifar10": (lambda f: layouts.write_cifar10(f, 2), lambda f: cifar10(f)),
    "cifar10 python": (lambda f: layouts.write_cifar10(f, 2, version="py"), lambda f: cifar10(f)),
    "cifar100": (lambda f: layouts.write_cifar100(f, 2), lambda f: cifar100(f)),
    "cifar100 python": (lambda f: layouts.write_cifar100(f, 2, version="python"), lambda f: cifar100(f)),
    "voc": (lambda f: layouts.write_voc(f, {"train": 4}), lambda f: voc(f, 2012, "train")),
    "coco": (lambda f: layouts.write_coco(f, n=5), lambda f: coco(f, 2014, "train")),
    "nus_wide": (lambda f: layouts.write_nus_wide(f, 4, 3, 5), lambda f: nus_wide(f, "train")),
    "cub": (lambda f: layouts.write_cub(f, 6, 11), lambda f: cub(f, "train", 2)),
    "open_images": (lambda f: layouts.write_open_images(f, n_images=5), lambda f: open_images(f, "train")),
    "trainable": (lambda f: layouts.write_open_images(f, n_images=5), lambda f: open_images(f, "train", "trainable")),
    "wider_attribute": (lambda f: layouts.write_wider_attribute(f, 2), lambda f: wider_attribute(f, "train")),
    "vispr": (lambda f: layouts.write_vispr(f, n=3), lambda f: vispr(f, "train")),
    "vqa": (lambda f: layouts.write_vqa(f, n=6), lambda f: vqa(f, "train")),
    "arff": (lambda f: layouts.write_arff(f, n=5), lambda f: arff(f / "songs-train.arff")),
    "sparse arff": (lambda f: layouts.write_arff(f, n=5, sparse=True), lambda f: arff(f / "songs-train.arff")),
    "npz": (lambda f: layouts.write_npz(f / "a.npz", {"train": 5}), lambda f: npz(f / "a.npz", "train")),
    "voc_mlt": (lambda f: layouts.write_mlt(f / "lt"), lambda f: voc_mlt(f / "lt", f)),
    "coco_mlt": (lambda f: layouts.write_mlt(f / "lt", "coco"), lambda f: coco_mlt(f / "lt", f)),
}
TEXTS = [name for name in READERS if not name.startswith(("mnist", "cifar", "npz", "voc_mlt", "coco_mlt"))]
EVERY = pytest.mark.parametrize("name", list(READERS))


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One whole copy of every layout, not to be touched."""
    folders = {name: tmp_path_factory.mktemp("whole") for name in READERS}
    for name, folder in folders.items():
        READERS[name][0](folder)
    return folders


def files_of(folder: Path) -> list[Path]:
    """The files of a copy that are not images, in a fixed order."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".jpg")


def copy_of(whole: Path, folder: Path) -> Path:
    """A copy that may be damaged, without the images."""
    return shutil.copytree(whole, folder / "copy", ignore=shutil.ignore_patterns("*.jpg"))


def outcome(read: Callable[[Path], Any], folder: Path) -> tuple[np.ndarray, tuple[str, ...], tuple[str, ...]] | str:
    """The labels, names and ids read, or the one line said instead."""
    try:
        data = read(folder)
    except DataError as error:
        assert "\n" not in str(error)  # noqa: PT017
        assert len(str(error)) < 500 + 2 * len(str(folder))  # noqa: PT017
        return str(error)
    return data.labels.values, data.labels.names, tuple(data.labels.ids)


def same(left: Any, right: Any) -> bool:
    return not isinstance(left, str) and np.array_equal(left[0], right[0]) and left[1:] == right[1:]


@EVERY
def test_a_missing_file_is_named(copies: dict[str, Path], tmp_path: Path, name: str) -> None:
    read, n_needed = READERS[name][1], 0
    whole = outcome(read, copies[name])
    for file in files_of(copies[name]):
        folder = tmp_path / f"without {n_needed} {file.name}"
        shutil.copytree(copies[name], folder, ignore=shutil.ignore_patterns("*.jpg"))
        (folder / file.relative_to(copies[name])).unlink()
        found = outcome(read, folder)
        if name == "vispr":
            assert not isinstance(found, str)  # one annotation file an image: any number of them is a data set
        elif not same(found, whole):
            n_needed += 1
            assert isinstance(found, str)
            assert str(folder) in found
            assert file.stem in found or file.suffix == ".xml"
    assert n_needed > 0 or name == "vispr"
    assert isinstance(outcome(read, tmp_path / "nowhere"), str)


# files whose every cut shows: what they hold ends with a bracket, a checksum, or a known number of lines
NEEDED = [
    *(("mnist", f"MNIST/raw/train-{kind}-ubyte.gz") for kind in ("images-idx3", "labels-idx1")),
    *(("mnist plain", f"MNIST/raw/t10k-{kind}-ubyte") for kind in ("images-idx3", "labels-idx1")),
    *(("cifar10 python", f"cifar-10-batches-py/{stem}") for stem in ("data_batch_3", "batches.meta")),
    *(("cifar100 python", f"cifar-100-python/{stem}") for stem in ("train", "meta")),
    ("cifar100", "cifar-100-binary/train.bin"),
    ("voc", "VOCdevkit/VOC2012/ImageSets/Main/sofa_train.txt"),
    ("coco", "annotations/instances_train2014.json"),
    ("nus_wide", "Groundtruth/TrainTestLabels/Labels_lake_Train.txt"),
    ("cub", "CUB_200_2011/train_test_split.txt"),
    ("wider_attribute", "wider_attribute_annotation/wider_attribute_trainval.json"),
    ("vqa", "v2_OpenEnded_mscoco_train2014_questions.json"),
    ("vqa", "v2_mscoco_train2014_annotations.json"),
    ("arff", "songs.xml"),
    ("npz", "a.npz"),
    ("voc_mlt", "lt/class_freq.pkl"),
]


@pytest.mark.parametrize(("name", "file"), NEEDED)
def test_a_cut_that_shows_is_seen(copies: dict[str, Path], tmp_path: Path, name: str, file: str) -> None:
    folder = copy_of(copies[name], tmp_path)
    content = (folder / file).read_bytes()
    whole = outcome(READERS[name][1], folder)
    assert not isinstance(whole, str)
    for keep in [*np.linspace(1, len(content) - 4, 25).astype(int), len(content) - 4]:
        (folder / file).write_bytes(content[:keep])
        found = outcome(READERS[name][1], folder)
        assert isinstance(found, str), (keep, len(content))
        assert str(folder) in found


@pytest.mark.parametrize("name", TEXTS)
def test_byte_order_marks_and_windows_line_ends_change_nothing(
    copies: dict[str, Path], tmp_path: Path, name: str
) -> None:
    folder = copy_of(copies[name], tmp_path)
    for file in files_of(folder):
        unix = file.read_bytes().replace(b"\r\n", b"\n")
        file.write_bytes(codecs.BOM_UTF8 + unix.replace(b"\n", b"\r\n"))
    assert same(outcome(READERS[name][1], folder), outcome(READERS[name][1], copies[name]))


@pytest.mark.parametrize("name", TEXTS)
def test_other_encodings_are_refused(copies: dict[str, Path], tmp_path: Path, name: str) -> None:
    read = READERS[name][1]
    whole = outcome(read, copies[name])
    for i, file in enumerate(files_of(copies[name])):
        text = file.read_text()
        middle = len(text) // 2
        for encoding, content in (
            ("utf-16", text.encode("utf-16")),
            ("latin1", (text[:middle] + "é" + text[middle:]).encode("latin1")),
        ):
            if file.suffix == ".xml" and encoding == "utf-16":
                continue  # XML may be UTF-16 and says so
            folder = tmp_path / f"{encoding} {i}"
            shutil.copytree(copies[name], folder, ignore=shutil.ignore_patterns("*.jpg"))
            file_here = folder / file.relative_to(copies[name])
            file_here.write_bytes(content)
            found = outcome(read, folder)
            if isinstance(found, str):
                assert str(file_here) in found
            else:
                assert same(found, whole)  # a file that this split does not need


def change(path: Path, edit: Callable[[Any], Any]) -> None:
    """Edit a JSON file, or the lines of a text file."""
    if path.suffix == ".json":
        content = json.loads(path.read_text())
        edit(content)
        path.write_text(json.dumps(content))
    else:
        lines = path.read_text().splitlines()
        edit(lines)
        path.write_text("\n".join(lines) + "\n")


def put(*keys: Any, value: Any) -> Callable[[Any], Any]:
    """An edit that sets one place."""

    def edit(content: Any) -> None:
        for key in keys[:-1]:
            content = content[key]
        content[keys[-1]] = value

    return edit


VOC_MAIN = "VOCdevkit/VOC2012/ImageSets/Main"
COCO_FILE = "annotations/instances_train2014.json"
OPEN_ROWS = "train-annotations-human-imagelabels-boxable.csv"
WIDER_FILE = "wider_attribute_annotation/wider_attribute_trainval.json"
CUB_ROWS = "CUB_200_2011/attributes/image_attribute_labels.txt"
ASKED, ANSWERED = "v2_OpenEnded_mscoco_train2014_questions.json", "v2_mscoco_train2014_annotations.json"

FAULTS: dict[tuple[str, str], list[tuple[Callable[[Any], Any], str]]] = {
    ("voc", f"{VOC_MAIN}/train.txt"): [
        (put(2, value="../../../etc/passwd"), r"train.txt: line 3: '../../../etc/passwd'"),
        (put(2, value="/etc/passwd"), r"train.txt: line 3: '/etc/passwd'"),
        (put(2, value="a\\..\\b"), r"train.txt: line 3: "),
        (put(2, value="2012_000000"), r"train.txt: the image '2012_000000' is at 1 and again at 3"),
    ],
    ("voc", f"{VOC_MAIN}/cat_train.txt"): [
        (put(1, value="2012_000001  2"), r"cat_train.txt: line 2 has the value '2'"),
        (put(1, value="2012_000001"), r"cat_train.txt: line 2 has the value ''"),
        (lambda lines: lines.pop(1), r"cat_train.txt: line 2 is of '2012_000002'"),
        (lambda lines: lines.pop(), r"cat_train.txt: line 4 is of ''"),
        (lambda lines: lines.append("x 1"), r"line 5 is of 'x'"),
    ],
    ("coco", COCO_FILE): [
        (put("images", 1, "file_name", value="../x.jpg"), r"images\[1\]: '../x.jpg'"),
        (put("images", 1, value={"id": 3}), r"images\[1\] has no id and file_name"),
        (put("images", 1, "id", value="3"), r"images\[1\] has no id and file_name"),
        (put("images", value=[]), r"images is empty"),
        (lambda c: c["images"].append(c["images"][0]), r"images\[5\] has the id \d+ of an earlier one"),
        (put("annotations", 2, "category_id", value=12), r"annotations\[2\]"),
        (put("annotations", 2, "image_id", value=-5), r"annotations\[2\]"),
        (put("annotations", 2, "image_id", value=[1]), r"annotations\[2\]"),
        (put("annotations", 2, value={"image_id": 1}), r"annotations\[2\]"),
        (lambda c: c.pop("annotations"), r"'annotations' is missing"),
        (put("categories", 3, "name", value="person"), r"the category 'person'"),
        (put("categories", 3, "id", value=1), r"categories is empty or has an id twice"),
        (lambda c: c["categories"].clear(), r"categories is empty or has an id twice"),
        (put("categories", 3, "id", value=True), r"categories\[3\]: 'id' is True"),
    ],
    ("nus_wide", "ImageList/TrainImagelist.txt"): [
        (put(1, value="..\\x.jpg"), r"TrainImagelist.txt: line 2: '../x.jpg'"),
        (lambda lines: lines.append(lines[0]), r"the image '.*' is at 1 and again at 5"),
        (lambda lines: lines.pop(), r"_Train.txt: it has 4 lines for 3 images"),
    ],
    ("nus_wide", "ConceptsList/Concepts81.txt"): [
        (put(1, value="concept00"), r"the concept 'concept00' is at 1 and again at 2"),
        (put(1, value="../../x"), r"Concepts81.txt: line 2: '../../x'"),
        (put(1, value="moon"), r"Labels_moon_Train.txt cannot be read"),
    ],
    ("nus_wide", "Groundtruth/TrainTestLabels/Labels_concept01_Train.txt"): [
        (put(1, value=value), f"line 2 is '{value}'") for value in ("2", "", "0 1")
    ],
    ("cub", "CUB_200_2011/images.txt"): [
        (put(2, value="3 ../../x.jpg"), r"images.txt: line 3: '../../x.jpg'"),
        (put(2, value="4 a.jpg"), r"images.txt: line 3 is '4 a.jpg'"),
        (put(2, value="3"), r"images.txt: line 3 is '3'"),
        (lambda lines: lines.append("7 b.jpg"), r"train_test_split.txt: it has 6 lines for the 7 images"),
    ],
    ("cub", "CUB_200_2011/train_test_split.txt"): [(put(0, value="1 yes"), r"line 1 says 'yes'")],
    ("cub", "attributes.txt"): [(put(1, value="2 has_part_0::kind_0"), r"the attribute 'has_part_0::kind_0' is at 1")],
    ("cub", CUB_ROWS): [
        (put(4, value="1 5 2 3 1.0"), r"presence is 2 for image 1, attribute 5"),
        (put(4, value="1 5 1 5 1.0"), r"certainty is 5 for image 1, attribute 5"),
        (put(4, value="1 12 1 3 1.0"), r"attribute is 12 for image 1"),
        (put(4, value="7 1 1 3 1.0"), r"image is 7 for image 7"),
        (put(4, value="1 6 1 3 1.0"), r"lists image 1, attribute 5 0 times"),
        (lambda lines: lines.append("1 6 1 3 1.0"), r"lists image 1, attribute 6 2 times"),
        (put(4, value="1 5 1"), r"Row #5: Expected 5 columns, got 3"),
        (put(4, value="1 5 1 3 7  1.0"), r"Row #5: Expected 5 columns, got 7"),
        (put(4, value="1 five 1 3 1.0"), r"image_attribute_labels.txt: .*five"),
    ],
    ("open_images", OPEN_ROWS): [
        (put(3, value="../../x,v,/m/00000,1"), r"line 4: ImageID is '../../x'"),
        (put(3, value=",v,/m/00000,1"), r"line 4: ImageID is ''"),
        (put(3, value="0a,v,/m/zzz,1"), r"line 4: LabelName is '/m/zzz': not among the 15"),
        (put(3, value="0a,v,/m/00000,0.7"), r"line 4: Confidence is 0.7"),
        (put(3, value="0a,v,/m/00000,-1"), r"line 4: Confidence is -1"),
        (put(3, value="0a,v,/m/00000,yes"), r"line 4, column 'Confidence' holds 'yes'"),
        (put(3, value="0a,v,/m/00000"), r"line 4 has 3 cells"),
        (put(0, value="a,b,c,d"), r"there is no column 'ImageID'"),
        (lambda lines: lines.__setitem__(slice(1, None), []), r"has a header and no rows"),
    ],
    ("open_images", "class-descriptions-boxable.csv"): [
        (lambda lines: lines.append(f"{lines[2]}s"), r"the id '/m/.*' is named"),
        (put(2, value="a"), r"class-descriptions-boxable.csv: \['a'\]"),
    ],
    ("trainable", "classes-trainable.txt"): [(put(1, value="/m/zzz"), r"class 2, '/m/zzz', is not described")],
    ("wider_attribute", WIDER_FILE): [
        (put("images", 1, "file_name", value="train/../../x.jpg"), r"images\[1\]: .* is not a path"),
        (lambda c: c["images"][0].pop("targets"), r"images\[0\]: 'targets' is missing"),
        (lambda c: c["images"].append(c["images"][0]), r"the person 'train/.*#0' is at 1 and"),
        (put("images", value=[]), r"has no person in train/"),
        (put("images", 0, "targets", 0, "attribute", 3, value=2), r"targets\[0\]: attribute is"),
        (put("images", 0, "targets", 0, "attribute", 3, value=[1]), r"targets\[0\]: attribute is"),
        (put("images", 0, "targets", 0, "attribute", value=[1, 0]), r"must be 14 numbers of 1"),
        (put("images", 0, "targets", 0, "bbox", value=[1, 2, 3]), r"targets\[0\]: bbox is"),
        (put("images", 0, "targets", 0, "bbox", value=[1, 2, 0, 5]), r"targets\[0\]: bbox is"),
        (put("images", 0, "targets", 0, "bbox", value=[1, float("nan"), 3, 5]), r"bbox is"),
        (put("attribute_id_map", "7", value="Hat"), r"the attribute 'Hat' is at 4 and again at 8"),
        (lambda c: c["attribute_id_map"].pop("7"), r"attribute_id_map has the keys"),
    ],
    ("vispr", "0"): [
        (put("labels", value=["a0_safe", "a200_new"]), r"the label 'a200_new' is not one of the 68"),
        (put("labels", value=[["a0_safe"]]), r"is not one of the 68"),
        (put("labels", value="a0_safe"), r"'labels' is 'a0_safe'"),
        (put("image_path", value="/etc/passwd"), r"image_path: '/etc/passwd'"),
        (lambda c: c.pop("image_path"), r"'image_path' is missing"),
    ],
    ("vqa", ASKED): [
        (lambda c: c["questions"].append(c["questions"][0]), r"questions\[6\] has the question_id \d+ of an"),
        (put("questions", value=[]), r"questions is empty"),
        (lambda c: c["questions"].pop(), r"the question \d+ is not in v2_OpenEnded"),
        (put("questions", 0, "image_id", value="7"), r"questions\[0\]: 'image_id' is '7'"),
    ],
    ("vqa", ANSWERED): [
        (lambda c: c["annotations"].append(c["annotations"][0]), r"annotations\[6\]: the question \d+ was ans"),
        (lambda c: c["annotations"].pop(), r"does not answer the question \d+"),
        (put("annotations", 0, "answers", value=3), r"annotations\[0\]: 'answers' is 3"),
        (put("annotations", 0, "answers", 0, value=["yes"]), r"annotations\[0\]: answers"),
        (lambda c: c["annotations"][0].pop("multiple_choice_answer"), r"'multiple_choice_answer' is missing"),
        (lambda c: c.clear(), r"'annotations' is missing"),
    ],
}


@pytest.mark.parametrize(
    ("name", "file", "edit", "fault"), [(*of, *row) for of, rows in FAULTS.items() for row in rows]
)
def test_a_fault_is_named(
    copies: dict[str, Path], tmp_path: Path, name: str, file: str, edit: Callable[[Any], Any], fault: str
) -> None:
    folder = copy_of(copies[name], tmp_path)
    change(files_of(folder)[int(file)] if file.isdigit() else folder / file, edit)
    with pytest.raises(DataError, match=fault) as caught:
        READERS[name][1](folder)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize("name", ["coco", "wider_attribute", "vispr", "vqa"])
@pytest.mark.parametrize("content", ["[1, 2]", "7", "null", '{"images": 3}', "[" * 100_000, "{}", "1" * 5000])
def test_json_of_another_shape(copies: dict[str, Path], tmp_path: Path, name: str, content: str) -> None:
    folder = copy_of(copies[name], tmp_path)
    for file in files_of(folder):
        file.write_text(content)
    found = outcome(READERS[name][1], folder)
    assert isinstance(found, str)
    assert ".json" in found


def test_idx_files(tmp_path: Path) -> None:
    layouts.write_mnist(tmp_path, 4, 4)
    images, labels = (tmp_path / "MNIST" / "raw" / f"train-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1"))
    right = gzip.decompress(images.read_bytes())
    digits = gzip.decompress(labels.read_bytes())
    for file, content, fault in (
        (images, gzip.compress(right[:-1]), r"images.*gz: it has 3135 bytes of the 3136 that its header states"),
        (images, gzip.compress(right + b"x"), r"has more bytes than 3136"),
        (images, gzip.compress(digits), r"begins with 00000801, not with 00000803"),
        (images, gzip.compress(right[:10]), r"truncated inside its header"),
        (
            images,
            gzip.compress(b"\x00\x00\x08\x03" + b"\xff" * 12 + right[16:]),
            r"states the shape .*, which it cannot hold",
        ),
        (images, gzip.compress(right)[:-20], r"is no whole gzip file"),
        (images, right, r"is no whole gzip file"),
        (
            labels,
            gzip.compress(layouts.idx(np.array([1, 2, 3], np.uint8))),
            r"labels.*has 3 labels for the 4 images of",
        ),
        (
            labels,
            gzip.compress(layouts.idx(np.array([1, 2, 10, 3], np.uint8))),
            r"label 3 is 10, but there are 10 classes",
        ),
    ):
        kept = file.read_bytes()
        file.write_bytes(content)
        with pytest.raises(DataError, match=fault):
            mnist(tmp_path)
        file.write_bytes(kept)
    assert len(mnist(tmp_path)) == 4


def test_cifar_records(tmp_path: Path) -> None:
    layouts.write_cifar10(tmp_path, 3, batches=(1,))
    file = tmp_path / "cifar-10-batches-bin" / "data_batch_1.bin"
    right = file.read_bytes()
    for content, fault in (
        (right[:-1], r"data_batch_1.bin: it has 9218 bytes, no multiple of 3073"),
        (b"", "is empty"),
    ):
        file.write_bytes(content)
        with pytest.raises(DataError, match=fault):
            cifar10(tmp_path, batches=(1,))
    file.write_bytes(right[:3073] + b"\x0b" + right[3074:])
    with pytest.raises(DataError, match=r"data_batch_1.bin: label 2 is 11"):
        cifar10(tmp_path, batches=(1,))
    (tmp_path / "cifar-10-batches-bin" / "batches.meta.txt").write_text("cat\ndog\ncat\n")
    with pytest.raises(DataError, match=r"batches.meta.txt: the class 'cat' is at 1 and again at 3"):
        cifar10(tmp_path, batches=(1,))


def test_cifar_pickles(tmp_path: Path) -> None:
    layouts.write_cifar100(tmp_path, 3, version="python")
    file = tmp_path / "cifar-100-python" / "train"
    pixels = np.zeros((3, 3072), np.uint8)
    for content, fault in (
        ({"data": pixels, "fine_labels": [1, 2]}, r"train: data has shape \(3, 3072\) for 2 labels"),
        ({"data": pixels[:, :5], "fine_labels": [1, 2, 3]}, r"train: data has shape \(3, 5\)"),
        ({"data": pixels, "fine_labels": [1, 100, 3]}, r"train: label 2 is 100"),
        ({"data": pixels, "fine_labels": [1, "x", 3]}, r"train: fine_labels holds b'x'"),
        ({"data": pixels}, r"train: it has no list 'fine_labels'"),
        ({"fine_labels": [1]}, r"train: it has no ndarray 'data'"),
        ([1, 2], r"train: it has no ndarray 'data'"),
    ):
        layouts.write(file, layouts.python2_pickle(content))
        with pytest.raises(DataError, match=fault):
            cifar100(tmp_path)
    layouts.write(file, b"\x80\x02cos\nsystem\nU\x0atouch abcdeq\x01\x85R.")
    with pytest.raises(DataError, match=r"train names .*system, which is not plain data"):
        cifar100(tmp_path)


@pytest.mark.parametrize(
    ("call", "fault"),
    [
        (lambda f: voc(f, 2012, "train", difficult="maybe"), "difficult is 'maybe': choose one of unknown"),
        (lambda f: coco(f, 2014, "train", empty="skip"), "empty is 'skip'"),
        (lambda f: nus_wide(f, "val"), "split is 'val'"),
        (lambda f: nus_wide(f, "train", empty=True), "empty is True"),
        (lambda f: cub(f, "val"), "split is 'val'"),
        (lambda f: cub(f, "train", min_certainty=5), "min_certainty is 5"),
        (lambda f: open_images(f, "val"), "split is 'val': choose one of train, validation, test"),
        (lambda f: open_images(f, "train", "some"), "classes is 'some'"),
        (lambda f: open_images(f, "train", empty="none"), "empty is 'none'"),
        (lambda f: wider_attribute(f, "all"), "split is 'all'"),
        (lambda f: vispr(f, "all"), "split is 'all'"),
        (lambda f: vqa(f, "test"), "split is 'test'"),
        (lambda f: cifar100(f, labels="medium"), "labels is 'medium'"),
        (lambda f: voc(f, 2012, "train"), "VOC2012 is not a folder"),
        (lambda f: cub(f, "train"), "CUB_200_2011 is not a folder"),
        (lambda f: mnist(f), "raw is not a folder"),
        (lambda f: arff(f), r"cannot be read \(Is a directory\)"),
        (
            lambda f: (layouts.write_voc(f, {"train": 2}), voc(f, 2012, "test")),
            "the split 'test' of VOC 2012 is missing",
        ),
    ],
)
def test_arguments_out_of_range_are_named(tmp_path: Path, call: Callable[[Path], Any], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        call(tmp_path)


def test_questions_are_checked_at_once(tmp_path: Path) -> None:
    layouts.write_vqa(tmp_path)
    data = vqa(tmp_path, "train")
    with pytest.raises(ValueError, match="questions, image_ids, labels have 29, 30, 30 entries"):
        Questions(data.questions[1:], data.image_ids, data.labels)


def test_names_may_be_odd(tmp_path: Path) -> None:
    """Unicode, quotes, blanks and signs in names of labels and images come back as they are written."""
    layouts.write_coco(tmp_path, n=3)
    odd = ["~a & b", "\u732b", 'say "cat"', "it's", "a|b", "x" * 300]
    change(tmp_path / COCO_FILE, lambda c: [c["categories"][i].update(name=name) for i, name in enumerate(odd)])
    change(tmp_path / COCO_FILE, put("images", 0, "file_name", value="\u5199\u771f & (1).jpg"))
    data = coco(tmp_path, 2014, "train")
    assert set(odd) <= set(data.labels.names)
    assert data.paths[0] == str(tmp_path / "train2014" / "\u5199\u771f & (1).jpg")
