"""`open_data`: whatever is at a path goes to the right reader, or one line says why not."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import layouts
from steelyard.data import ArrayDataset, ImageDataset
from steelyard.data.files import DataError
from steelyard.data.layouts import LAYOUTS
from steelyard.data.opening import FORMATS, open_data
from steelyard.data.part import open_part
from steelyard.labels import UNKNOWN, Labels

FOLDERS: dict[str, tuple[Callable[[Path], object], str, int]] = {
    "voc": (lambda root: layouts.write_voc(root, {"train": 6, "val": 4})["train"].values, "train", 2012),
    "coco": (lambda root: layouts.write_coco(root).values, "train", 2014),
    "mnist": (lambda root: layouts.write_mnist(root)[True].values, "train", 0),
    "cifar10": (lambda root: layouts.write_cifar10(root)[True].values, "train", 0),
    "cifar100": (lambda root: layouts.write_cifar100(root)[True, "fine"].values, "train", 0),
    "nus_wide": (lambda root: layouts.write_nus_wide(root)["train"].values, "train", 0),
    "cub": (lambda root: (birds := layouts.write_cub(root)).present[birds.train], "train", 0),
    "open_images": (lambda root: layouts.write_open_images(root, version="oidv6-")["boxable"].values, "train", 0),
    "wider_attribute": (lambda root: layouts.write_wider_attribute(root)["train"].truth.values, "train", 0),
    "vispr": (lambda root: layouts.write_vispr(root).values, "train", 0),
}


@pytest.mark.parametrize("format", FOLDERS)
def test_a_published_folder_is_recognised(format: str, tmp_path: Path):
    write, split, year = FOLDERS[format]
    values = write(tmp_path)
    opened = open_data(tmp_path)
    assert (opened.format, opened.split) == (format, split)
    assert f"read as {format}{f' {year}' if year else ''}, split {split!r}" in opened.note
    np.testing.assert_array_equal(opened.data.labels.values, values)


def test_every_format_has_a_test():
    assert {*FOLDERS, "vqa", "vqa_regions", "multi_mnist"} == set(LAYOUTS)
    assert set(FORMATS) == {*LAYOUTS, "table", "arff", "npz", "svmlight", "labels", "voc_mlt", "coco_mlt"}


def write_regions(folder: Path, split: str, image_ids: np.ndarray, shape: tuple[int, int] = (3, 5)) -> np.ndarray:
    """Features of each image, in another order than the questions ask about them."""
    ids = np.unique(image_ids)[::-1]
    features = np.random.default_rng(len(ids)).normal(size=(len(ids), *shape)).astype(np.float32)
    (folder / "regions").mkdir(exist_ok=True)
    np.save(folder / "regions" / f"{split}.npy", features)
    np.save(folder / "regions" / f"{split}_ids.npy", ids)
    return features[np.searchsorted(-ids, -image_ids)]


def test_region_features_are_opened_with_their_questions(tmp_path: Path):
    asked = {split: layouts.write_vqa(tmp_path, split, seed=i) for i, split in enumerate(("train", "val"))}
    alone = open_data(tmp_path)  # without features it is the questions
    assert (alone.format, len(alone.data)) == ("vqa", len(asked["train"].questions))
    found = {split: write_regions(tmp_path, split, one.image_ids) for split, one in asked.items()}
    opened = open_data(tmp_path)
    assert (opened.format, opened.split, opened.parts) == ("vqa_regions", "train", ("train", "val"))
    held = open_part(opened, "val")
    assert held.data.labels.names == opened.data.labels.names
    for part, split in ((opened, "train"), (held, "val")):
        assert len(part.data) == len(asked[split].questions)
        for i in (0, 7):
            (regions, words), target, index = part.data[i]
            np.testing.assert_array_equal(regions, found[split][i])
            np.testing.assert_array_equal(target, part.data.labels.rows([i])[0])
            assert words[0] == opened.data.words.numbers("What", 1)[0]
            assert index == i
    assert held.data.words.words == opened.data.words.words
    (tmp_path / "regions" / "words.txt").write_text("what\nis\n")
    assert open_data(tmp_path).data.words.words == ("what", "is")
    np.save(tmp_path / "regions" / "train_ids.npy", np.zeros((2, 2)))
    with pytest.raises(DataError, match=r"train_ids\.npy holds no whole numbers"):
        open_data(tmp_path)
    (tmp_path / "regions" / "train_ids.npy").unlink()
    with pytest.raises(DataError, match=r"train_ids\.npy"):
        open_data(tmp_path)


@pytest.mark.parametrize("kind", ["voc", "coco"])
def test_a_published_long_tailed_split_is_recognised(tmp_path: Path, kind: str):
    release = tmp_path / "appendix" / kind
    truth = layouts.write_mlt(release, kind)
    opened = open_data(release)
    assert opened.format == f"{kind}_mlt"
    assert "labels alone" in opened.note
    np.testing.assert_array_equal(opened.data.labels.values, truth.values)
    counts = truth.values.sum(0)
    np.savez(tmp_path / "split.npz", ids=np.array(truth.ids), Y=truth.values, class_freq=counts)
    folder = tmp_path / ("VOCdevkit/VOC2012/JPEGImages" if kind == "voc" else "train2017")
    folder.mkdir(parents=True)
    for path in (release, tmp_path / "split.npz"):
        for given in ({}, {"images": tmp_path}, {"format": f"{kind}_mlt"}):
            found = open_data(path, **given)
            assert str(folder) in found.note
            assert Path(found.data.paths[0]).parent == folder
            np.testing.assert_array_equal(found.data.labels.values, truth.values)
            assert found.data.labels.ids[0] == truth.ids[0]
    with pytest.raises(DataError, match="give the folder that holds it"):
        open_data(release, images=release)
    with pytest.raises(ValueError, match=r"split is 'val'.*which has none"):
        open_data(release, split="val")
    np.savez(tmp_path / "split.npz", ids=np.array(truth.ids), Y=truth.values, class_freq=counts + 1)
    with pytest.raises(DataError, match="class_freq"):
        open_data(tmp_path / "split.npz")


def test_split_year_and_a_folder_inside_the_layout(tmp_path: Path):
    truth = layouts.write_voc(tmp_path, {"train": 6, "val": 4})
    older = layouts.write_voc(tmp_path, {"trainval": 5, "test": 3}, year=2007, seed=1)
    val = open_data(tmp_path, split="val")
    np.testing.assert_array_equal(val.data.labels.values, truth["val"].values)
    assert "also there: train, 2007 trainval, 2007 test" in val.note
    for opened in (open_data(tmp_path, year=2007), open_data(tmp_path / "VOCdevkit" / "VOC2007")):
        assert opened.split == "trainval"
        np.testing.assert_array_equal(opened.data.labels.values, older["trainval"].values)
    assert open_data(tmp_path / "VOCdevkit").data.labels.ids == list(truth["train"].ids)
    with pytest.raises(ValueError, match=r"the split 'nope' of VOC 2012 is missing"):
        open_data(tmp_path, split="nope")


def test_digits_become_pairs_by_format(tmp_path: Path):
    layouts.write_mnist(tmp_path, n_train=400, n_test=400)
    assert "multi_mnist" in open_data(tmp_path).note
    test = open_data(tmp_path, format="multi_mnist", split="test")
    assert len(test.data) == 9 * 400
    with pytest.raises(ValueError, match="split is 'val': choose one of train, test"):
        open_data(tmp_path, split="val")


def test_missing_batches_are_told(tmp_path: Path):
    layouts.write_cifar10(tmp_path, batches=(1, 4))
    opened = open_data(tmp_path)
    assert "training batches 1, 4 of 5 are there" in opened.note
    assert len(opened.data) == 24


def test_several_data_sets_in_one_folder(tmp_path: Path):
    layouts.write_voc(tmp_path, {"train": 3})
    layouts.write_mnist(tmp_path)
    with pytest.raises(ValueError, match=r"holds several data sets \(voc, mnist\): choose one with format="):
        open_data(tmp_path)
    assert open_data(tmp_path, format="mnist").format == "mnist"


def test_files_of_features(tmp_path: Path):
    songs = layouts.write_arff(tmp_path)
    opened = open_data(tmp_path / "songs-train.arff")
    assert (opened.format, opened.split) == ("arff", None)
    np.testing.assert_array_equal(opened.data.labels.values, songs.values)
    truth = layouts.write_npz(tmp_path / "points.npz", {"train": 8, "val": 5})
    assert open_data(tmp_path / "points.npz").split == "train"
    val = open_data(tmp_path / "points.npz", split="val")
    np.testing.assert_array_equal(val.data.labels.values, truth["val"].values)
    assert "also there: split train" in val.note
    layouts.write_npz(tmp_path / "alone" / "points.npz", {"train": 8, "val": 5})
    assert len(open_data(tmp_path / "alone", split="val").data) == 5


def test_labels_alone(tmp_path: Path):
    values = np.array([[1, -1, 0], [0, 1, -1]], np.int8)
    Labels(values, ["a", "b", "c"], ["x", "y"]).save(tmp_path / "kept.npz")
    np.savez(tmp_path / "plain.npz", Y=values, classes=np.array(["a", "b", "c"]), ids=np.array(["x", "y"]))
    for name, format in (("kept", "labels"), ("plain", "npz")):
        opened = open_data(tmp_path / f"{name}.npz")
        assert opened.format == format
        assert opened.data.labels.names == ("a", "b", "c")
        assert opened.data.labels.ids == ["x", "y"]
        np.testing.assert_array_equal(opened.data.labels.values, values)
        assert isinstance(opened.data, ArrayDataset)
        assert opened.data.inputs.shape == (2, 0)


def test_minus_one_may_mean_absent(tmp_path: Path):
    values = np.array([[1, -1, -1, 0], [-1, 1, -1, -1]], np.int8)
    np.savez(tmp_path / "signs.npz", Y=values)
    doubted = open_data(tmp_path / "signs.npz")
    assert "if -1 means absent, give minus_one='negative'" in doubted.note
    assert doubted.data.labels.n_known.sum() == 3
    opened = open_data(tmp_path / "signs.npz", minus_one="negative")
    assert "give minus_one" not in opened.note
    np.testing.assert_array_equal(opened.data.labels.values, [[1, 0, 0, UNKNOWN], [0, 1, 0, 0]])


def photos(folder: Path, images: str, id: str = "image") -> Path:
    rng = np.random.default_rng(0)
    for name in ("a.jpg", "b.jpg"):
        layouts.write_image(folder / images / name, rng)
    return layouts.write(folder / "labels.csv", f"{id},labels\na.jpg,cat;dog\nb.jpg,dog;cow\n")


@pytest.mark.parametrize("images", [".", "photos"])
def test_images_are_found_beside_the_manifest_or_in_a_folder_there(images: str, tmp_path: Path):
    manifest = photos(tmp_path, images)
    (tmp_path / "other").mkdir()
    for path in (tmp_path, manifest):
        opened = open_data(path, size=8, cache=None)
        assert isinstance(opened.data, ImageDataset)
        assert opened.data[0][0].shape == (3, 8, 8)
        assert "read as comma-separated text in list form" in opened.note
    deep = photos(tmp_path / "deep", "er/est")
    assert isinstance(open_data(deep).data, ArrayDataset)
    assert isinstance(open_data(deep, images=tmp_path / "deep" / "er" / "est").data, ImageDataset)


@pytest.mark.parametrize("folder", [".", "pics"])
def test_the_first_image_may_be_missing(folder: str, tmp_path: Path):
    """Without any image the data would be labels alone, and say so in its note only."""
    for name in "bc":
        layouts.write_image(tmp_path / folder / f"{name}.JPG", np.random.default_rng(0))
    layouts.write(tmp_path / "mine.csv", "image,label\na,cat\nb,cat\nc,dog\n")
    with pytest.raises(DataError, match=r"1 of 3 images are not in .* \('a'\): add them"):
        open_data(tmp_path / "mine.csv")
    opened = open_data(tmp_path, on_bad_image="skip", size=4)
    assert isinstance(opened.data, ImageDataset)
    assert [target.tolist() for _, target, _ in opened.data] == [[-1, -1], [1, 0], [0, 1]]


@pytest.mark.parametrize("arrays", [{"classes": "a"}, {"ids": "a"}, {"ids": "a", "class_freq": np.zeros(20)}])
def test_names_that_are_no_list(arrays: dict[str, Any], tmp_path: Path):
    np.savez(tmp_path / "mine.npz", Y=np.zeros((3, 20), np.int8), **arrays)
    with pytest.raises(DataError, match=r"mine.npz: (classes|ids) has shape \(\): save a list of names"):
        open_data(tmp_path / "mine.npz")


def test_a_manifest_is_read_as_it_is_told(tmp_path: Path):
    file = layouts.write(tmp_path / "mine.csv", "who,this,that\nx,a|b,1\ny,b,0\n".encode("utf-16"))
    opened = open_data(file, encoding="utf-16", id="who", labels="this", separator="|", form="list", absent="unknown")
    assert opened.data.labels.names == ("a", "b")
    np.testing.assert_array_equal(opened.data.labels.values, [[1, 1], [UNKNOWN, 1]])
    named = open_data(file, encoding="utf-16", id="who", labels="this", names=["b", "a", "c"], features=["that"])
    assert named.data.labels.names == ("b", "a", "c")
    wide = layouts.write(tmp_path / "wide.csv", "id,cat,dog\nx,1,-1\ny,0,1\n")
    told = open_data(wide, labels=["cat", "dog"], minus_one="negative")
    np.testing.assert_array_equal(told.data.labels.values, [[1, 0], [0, 1]])


def two_files(root: Path) -> Path:
    for split in ("train", "test"):
        layouts.write(root / f"{split}.csv", "id,labels\nx,cat\n")
    return root


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (lambda root: root / "nothing", {}, "nothing does not exist: give a file or a folder"),
        (lambda root: root, {}, "is an empty folder: give a data file"),
        (
            lambda root: layouts.write(root / "notes.txt", "hello").parent,
            {},
            "holds no data file .*none of the layouts",
        ),
        (lambda root: layouts.write(root / "a.json", "{}"), {}, "does not end as a data file does"),
        (two_files, {}, r"holds 2 data files \(test.csv, train.csv\): give one of them, or choose with split="),
        (two_files, {"split": "val"}, "no data file of the split 'val'"),
        (lambda root: layouts.write(root / "a.csv", "id,labels\nx,a\n"), {"split": "train"}, "split is 'train', but"),
        (lambda root: layouts.write(root / "a.csv", "id,labels\nx,a\n"), {"year": 2012}, "year is 2012, but"),
        (lambda root: layouts.write(root / "a.csv", "id,labels\nx,a\n"), {"format": "voc"}, "is a file, but format"),
        (lambda root: layouts.write(root / "a.csv", "id,labels\nx,a\n"), {"format": "cvs"}, "format is 'cvs': choose"),
        (lambda root: layouts.write(root / "a.csv", "id,labels\nx,a\n"), {"form": "tall"}, "form is 'tall': choose"),
        (lambda root: layouts.write(root / "a.npz", "PK"), {}, "is not an .npz file of plain arrays"),
        (lambda root: root, {"format": "voc"}, "VOCdevkit/VOC2012 is not a folder"),
        (lambda root: root, {"format": "mnist", "year": 2012}, "year is 2012, but .* is read as mnist"),
        (lambda root: root, {"format": "mnist", "images": "x"}, "images is 'x', but .* is read as mnist"),
    ],
)
def test_a_mistake_is_one_line(
    make: Callable[[Path], Path], arguments: dict[str, object], message: str, tmp_path: Path
):
    with pytest.raises(ValueError, match=message) as caught:
        open_data(make(tmp_path), **arguments)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_real_data_is_recognised(shared_data: Path, tmp_path: Path):
    assert open_data(shared_data / "VOCdevkit").data.labels.counts.sum() == 8331
    assert open_data(shared_data / "mulan" / "corel5k.npz").data.labels.n_labels == 374
    for name in ("bibtex-train.arff", "bibtex.xml"):
        shutil.copy(shared_data / "mulan" / name, tmp_path)
    assert open_data(tmp_path).data.labels.n_labels == 159
