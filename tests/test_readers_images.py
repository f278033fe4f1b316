"""Readers of image collections, each on a small copy in exactly its owners' layout."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import layouts
from layouts import Truth
from steelyard.data.dataset import ArrayDataset, ImageDataset
from steelyard.data.files import DataError, read_json
from steelyard.data.readers.cifar import cifar10, cifar100
from steelyard.data.readers.coco import _slim, coco
from steelyard.data.readers.cub import cub
from steelyard.data.readers.mlt import coco_mlt, voc_mlt
from steelyard.data.readers.mnist import mnist
from steelyard.data.readers.nus_wide import nus_wide
from steelyard.data.readers.open_images import open_images
from steelyard.data.readers.vispr import vispr
from steelyard.data.readers.voc import VOC_LABELS, voc
from steelyard.data.readers.vqa import vqa
from steelyard.data.readers.wider_attribute import wider_attribute
from steelyard.labels import UNKNOWN


def check(data: ArrayDataset | ImageDataset, truth: Truth, folder: Path | None = None) -> None:
    """Labels, names, ids and their order are the truth; image paths are those of the ids, and are there."""
    np.testing.assert_array_equal(data.labels.values, truth.values)
    assert data.labels.names == truth.names
    assert tuple(data.labels.ids) == truth.ids
    assert len(data) == len(truth.ids)
    if truth.inputs is not None:
        np.testing.assert_array_equal(data.inputs, truth.inputs)
    if folder is not None:
        for path, name in zip(data.paths, truth.ids, strict=True):
            assert Path(path).is_relative_to(folder)
            assert Path(path).is_file()
            assert Path(name.partition("#")[0]).stem.removeprefix("0_") in path
        image, target, index = data[len(data) - 1]
        assert image.dtype == torch.uint8
        assert image.shape[0] == 3
        np.testing.assert_array_equal(target, truth.values[-1])
        assert index == len(data) - 1


@pytest.mark.parametrize("gz", [True, False])
@pytest.mark.parametrize("train", [True, False])
def test_mnist(tmp_path: Path, gz: bool, train: bool) -> None:
    truth = layouts.write_mnist(tmp_path, gz=gz)[train]
    data = mnist(tmp_path, train)
    check(data, truth)
    image, target, index = data[3]
    assert (image.shape, image.dtype, index) == ((1, 28, 28), torch.uint8, 3)
    assert target.sum() == 1


@pytest.mark.parametrize("version", ["bin", "py"])
@pytest.mark.parametrize("train", [True, False])
def test_cifar10(tmp_path: Path, version: str, train: bool) -> None:
    truth = layouts.write_cifar10(tmp_path, version=version)[train]
    check(cifar10(tmp_path, train), truth)


@pytest.mark.parametrize("version", ["bin", "py"])
def test_cifar10_names_batches_that_are_missing_and_reads_those_asked_for(tmp_path: Path, version: str) -> None:
    truth = layouts.write_cifar10(tmp_path, version=version, batches=(1, 4))[True]
    with pytest.raises(DataError, match=r"lacks data_batch_2.*data_batch_5.*batches=\(1, 4\)"):
        cifar10(tmp_path)
    check(cifar10(tmp_path, batches=(1, 4)), truth)
    with pytest.raises(ValueError, match="batches is"):
        cifar10(tmp_path, batches=(0,))
    with pytest.raises(ValueError, match="batches is"):
        cifar10(tmp_path, batches=())


@pytest.mark.parametrize("version", ["binary", "python"])
@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("kind", ["fine", "coarse"])
def test_cifar100(tmp_path: Path, version: str, train: bool, kind: str) -> None:
    truth = layouts.write_cifar100(tmp_path, version=version)[train, kind]
    check(cifar100(tmp_path, train, labels=kind), truth)


@pytest.mark.parametrize("year", [2007, 2012])
def test_voc(tmp_path: Path, year: int) -> None:
    truths = layouts.write_voc(tmp_path, {"train": 7, "val": 5}, year)
    for split, truth in truths.items():
        assert (truth.values == UNKNOWN).any()
        check(voc(tmp_path, year, split), truth, tmp_path)
        for difficult, value in (("positive", 1), ("negative", 0)):
            expected = np.where(truth.values == UNKNOWN, value, truth.values)
            check(voc(tmp_path, year, split, difficult), truth._replace(values=expected))
    assert voc(tmp_path, year, "val", size=(8, 10))[0][0].shape == (3, 8, 10)


@pytest.mark.parametrize("year", [2014, 2017])
def test_coco(tmp_path: Path, year: int) -> None:
    truth = layouts.write_coco(tmp_path, year, "val")
    check(coco(tmp_path, year, "val"), truth)
    kept = np.flatnonzero(truth.values.any(1))
    assert 0 < len(kept) < len(truth.ids)
    data = coco(tmp_path, year, "val", empty="drop")
    check(data, Truth(truth.values[kept], truth.names, tuple(truth.ids[i] for i in kept)), tmp_path)
    assert data.labels.names[:2] == ("person", "bicycle")


def test_coco_lets_outlines_go_while_reading(tmp_path: Path) -> None:
    """The objects alive at the end of parsing hold no outline: this is what keeps a half-gigabyte file small."""
    layouts.write_coco(tmp_path)
    content = read_json(tmp_path / "annotations" / "instances_train2014.json", _slim)
    assert all(isinstance(record, tuple) and len(record) == 2 for record in content["annotations"])
    assert all(isinstance(record, tuple) and len(record) == 2 for record in content["images"])


@pytest.mark.parametrize("split", ["train", "test", "all"])
def test_nus_wide(tmp_path: Path, split: str) -> None:
    truth = layouts.write_nus_wide(tmp_path)[split]
    check(nus_wide(tmp_path, split), truth, tmp_path)
    kept = np.flatnonzero(truth.values.any(1))
    dropped = Truth(truth.values[kept], truth.names, tuple(truth.ids[i] for i in kept))
    check(nus_wide(tmp_path, split, empty="drop"), dropped, tmp_path)
    others = [j for j, name in enumerate(truth.names) if name != "concept03"]
    names = tuple(truth.names[j] for j in others)
    assert len(names) == 80
    check(nus_wide(tmp_path, split, leave_out=["concept03"]), Truth(truth.values[:, others], names, truth.ids))
    with pytest.raises(ValueError, match="leave_out names 'concept3', which is not in"):
        nus_wide(tmp_path, split, leave_out=["concept3"])
    with pytest.raises(ValueError, match="leave_out is the single string 'concept03'"):
        nus_wide(tmp_path, split, leave_out="concept03")


def test_nus_wide_reads_the_one_damaged_value_of_the_published_files_as_unknown(tmp_path: Path) -> None:
    truth = layouts.write_nus_wide(tmp_path)["train"]
    file = tmp_path / "Groundtruth" / "TrainTestLabels" / "Labels_lake_Train.txt"
    lines = file.read_text().splitlines()
    lines[6] = "-1130179"
    file.write_text("\n".join(lines) + "\n")
    values = truth.values.copy()
    values[6, truth.names.index("lake")] = UNKNOWN
    check(nus_wide(tmp_path, "train"), truth._replace(values=values))
    lines[6] = "-1130178"
    file.write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError, match=r"Labels_lake_Train.txt: line 7 is '-1130178'"):
        nus_wide(tmp_path, "train")


def test_cub(tmp_path: Path) -> None:
    birds = layouts.write_cub(tmp_path)
    for split in ("train", "test"):
        kept = np.flatnonzero(birds.train == (split == "train"))
        ids = tuple(birds.ids[i] for i in kept)
        check(cub(tmp_path, split), Truth(birds.present[kept], birds.names, ids), tmp_path)
        for least in (2, 3, 4):
            expected = np.where(birds.certainty[kept] < least, UNKNOWN, birds.present[kept])
            check(cub(tmp_path, split, min_certainty=least), Truth(expected, birds.names, ids))


def test_cub_finds_the_list_of_attributes_in_both_places(tmp_path: Path) -> None:
    birds = layouts.write_cub(tmp_path, n_images=6, n_attributes=20)
    (tmp_path / "attributes.txt").rename(tmp_path / "CUB_200_2011" / "attributes" / "attributes.txt")
    assert cub(tmp_path, "train").labels.names == birds.names


@pytest.mark.parametrize("kind", ["boxable", "trainable", "all"])
@pytest.mark.parametrize("version", ["", "oidv6-", "oidv7-"])
def test_open_images(tmp_path: Path, kind: str, version: str) -> None:
    truth = layouts.write_open_images(tmp_path, "validation", version=version)[kind]
    check(open_images(tmp_path, "validation", kind), truth, tmp_path)
    assert (truth.values == UNKNOWN).mean() > 0.5


def test_open_images_keeps_or_leaves_out_images_without_a_label_of_the_classes(tmp_path: Path) -> None:
    truth = layouts.write_open_images(tmp_path)["trainable"]
    file = tmp_path / "train-annotations-human-imagelabels.csv"
    trainable = set((tmp_path / "classes-trainable.txt").read_text().split())
    lines = file.read_text().splitlines()
    gone = [line for line in lines if line.startswith(truth.ids[4]) and line.split(",")[2] in trainable]
    file.write_text("\n".join(line for line in lines if line not in gone) + "\n")
    values = truth.values.copy()
    values[4] = UNKNOWN
    check(open_images(tmp_path, "train", "trainable"), truth._replace(values=values))
    others = [i for i in range(len(truth.ids)) if i != 4]
    kept = Truth(truth.values[others], truth.names, tuple(truth.ids[i] for i in others))
    check(open_images(tmp_path, "train", "trainable", empty="drop"), kept, tmp_path)


def test_open_images_rows_that_agree_count_once_and_rows_that_differ_leave_unknown(tmp_path: Path) -> None:
    truth = layouts.write_open_images(tmp_path)["boxable"]
    file = tmp_path / "train-annotations-human-imagelabels-boxable.csv"
    header, *rows = file.read_text().splitlines()
    image, _, label, value = rows[7].split(",")
    other = rows[9]
    rows += [f"{image},crowdsource-verification,{label},{1 - int(value)}", other]
    file.write_text("\n".join([header, *rows]) + "\n")
    codes = [line.split(",")[0] for line in (tmp_path / "class-descriptions-boxable.csv").read_text().splitlines()]
    values = truth.values.copy()
    values[truth.ids.index(image), codes.index(label)] = UNKNOWN
    assert (values != truth.values).sum() == 1
    check(open_images(tmp_path, "train"), truth._replace(values=values))


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_wider_attribute(tmp_path: Path, split: str) -> None:
    people = layouts.write_wider_attribute(tmp_path)[split]
    data = wider_attribute(tmp_path, split)
    check(data, people.truth, tmp_path)
    np.testing.assert_array_equal(data.boxes, people.boxes)
    left, top, right, bottom = people.boxes[0].astype(int)
    picture = np.asarray(Image.open(data.paths[0]).convert("RGB")).transpose(2, 0, 1)
    np.testing.assert_array_equal(data[0][0], picture[:, top:bottom, left:right])


def test_wider_attribute_trainval_is_both(tmp_path: Path) -> None:
    parts = layouts.write_wider_attribute(tmp_path)
    values = np.concatenate([parts["train"].truth.values, parts["val"].truth.values])
    ids = parts["train"].truth.ids + parts["val"].truth.ids
    check(wider_attribute(tmp_path, "trainval"), Truth(values, parts["train"].truth.names, ids), tmp_path)


def test_wider_attribute_finds_its_files_in_the_root_too(tmp_path: Path) -> None:
    truth = layouts.write_wider_attribute(tmp_path)["test"].truth
    for file in (tmp_path / "wider_attribute_annotation").iterdir():
        file.rename(tmp_path / file.name)
    check(wider_attribute(tmp_path, "test"), truth, tmp_path)


@pytest.mark.parametrize("beside", [True, False])
def test_vispr(tmp_path: Path, beside: bool) -> None:
    truth = layouts.write_vispr(tmp_path, "val")
    if beside:
        (tmp_path / "annotations" / "val2017").rename(tmp_path / "val2017")
    check(vispr(tmp_path, "val"), truth, tmp_path)


def test_vqa(tmp_path: Path) -> None:
    asked = layouts.write_vqa(tmp_path)
    data = vqa(tmp_path, "train")
    np.testing.assert_array_equal(data.labels.values, asked.truth.values)
    assert (data.labels.names, tuple(data.labels.ids)) == (asked.truth.names, asked.truth.ids)
    assert data.questions == asked.questions
    np.testing.assert_array_equal(data.image_ids, asked.image_ids)
    (question, image), target, index = data[-1]
    assert (question, image, index) == (asked.questions[-1], asked.image_ids[-1], len(data) - 1)
    np.testing.assert_array_equal(target, asked.truth.values[-1])
    # min(n/3, 1): the ten answers of a question give thirds, and never more than 1
    thirds = np.unique(data.labels.values)
    np.testing.assert_allclose(thirds, [0, 1 / 3, 2 / 3, 1], atol=1e-7)
    with pytest.raises(IndexError):
        data[len(data)]


def test_vqa_labels_are_the_most_frequent_answers_or_those_given(tmp_path: Path) -> None:
    train = layouts.write_vqa(tmp_path, "train", seed=1)
    two = vqa(tmp_path, "train", answers=2)
    assert two.labels.names == train.truth.names[:2]
    np.testing.assert_array_equal(two.labels.values, train.truth.values[:, :2])
    layouts.write_vqa(tmp_path, "val", seed=2)
    names = ("no", "never said", "yes")
    val = vqa(tmp_path, "val", answers=names)
    assert val.labels.names == names
    assert val.labels.counts[1] == 0
    annotations = json.loads((tmp_path / "v2_mscoco_val2014_annotations.json").read_text())["annotations"]
    said = {record["question_id"]: [a["answer"] for a in record["answers"]].count("no") for record in annotations}
    expected = [min(said[int(number)] / 3, 1) for number in val.labels.ids]
    np.testing.assert_allclose(val.labels.values[:, 0], expected, atol=1e-7)
    with pytest.raises(ValueError, match="answers is"):
        vqa(tmp_path, "val", answers=0)
    with pytest.raises(ValueError, match="answers is 'yes'"):
        vqa(tmp_path, "val", answers="yes")


def test_published_long_tailed_splits(tmp_path: Path) -> None:
    truth = layouts.write_mlt(tmp_path / "longtail2012", "voc")
    data = voc_mlt(tmp_path / "longtail2012", tmp_path)
    check(data, truth)
    assert data.labels.names == VOC_LABELS
    assert data.paths[0] == str(tmp_path / f"VOCdevkit/VOC2012/JPEGImages/{truth.ids[0]}.jpg")
    truth = layouts.write_mlt(tmp_path / "longtail2017", "coco")
    data = coco_mlt(tmp_path / "longtail2017", tmp_path)
    check(data, truth)
    assert data.paths[1] == str(tmp_path / f"train2017/{int(truth.ids[1]):012d}.jpg")


def test_options_of_decoding_reach_the_images(tmp_path: Path) -> None:
    layouts.write_vispr(tmp_path)
    layouts.write_coco(tmp_path)
    layouts.write_nus_wide(tmp_path)
    layouts.write_cub(tmp_path, 6, 20)
    layouts.write_open_images(tmp_path / "oi")
    layouts.write_wider_attribute(tmp_path)
    layouts.write_voc(tmp_path, {"train": 3})
    truth = layouts.write_mlt(tmp_path / "mlt", "voc")
    for name in truth.ids:
        layouts.write_image(tmp_path / f"VOCdevkit/VOC2012/JPEGImages/{name}.jpg", np.random.default_rng(0))
    coco_truth = layouts.write_mlt(tmp_path / "cmlt", "coco")
    for name in coco_truth.ids:
        layouts.write_image(tmp_path / f"train2017/{int(name):012d}.jpg", np.random.default_rng(0))
    readers = [
        lambda **how: vispr(tmp_path, "train", **how),
        lambda **how: coco(tmp_path, 2014, "train", **how),
        lambda **how: nus_wide(tmp_path, "test", **how),
        lambda **how: cub(tmp_path, "train", **how),
        lambda **how: open_images(tmp_path / "oi", "train", **how),
        lambda **how: wider_attribute(tmp_path, "val", **how),
        lambda **how: voc(tmp_path, 2012, "train", **how),
        lambda **how: voc_mlt(tmp_path / "mlt", tmp_path, **how),
        lambda **how: coco_mlt(tmp_path / "cmlt", tmp_path, **how),
    ]
    for number, reader in enumerate(readers):
        data = reader(size=6, on_bad_image="skip", cache=tmp_path / f"cache{number}")
        assert data[0][0].shape == (3, 6, 6)
        Path(data.paths[1]).unlink()
        assert (data[1][1] == UNKNOWN).all()
        assert data.skipped.tolist() == [1]
        assert (tmp_path / f"cache{number}").is_dir()
