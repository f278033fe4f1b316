"""Readers on the real data sets, against counts that their owners or papers publish."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from steelyard.data.files import DataError
from steelyard.data.readers.arff import arff
from steelyard.data.readers.cifar import cifar10
from steelyard.data.readers.coco import COCO_LABELS
from steelyard.data.readers.mlt import coco_mlt, voc_mlt
from steelyard.data.readers.mnist import mnist
from steelyard.data.readers.npz import npz
from steelyard.data.readers.voc import VOC_LABELS, voc
from steelyard.labels import UNKNOWN


@pytest.mark.parametrize(
    ("train", "counts"),
    [
        (True, [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]),
        (False, [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]),
    ],
)
def test_mnist(shared_data: Path, train: bool, counts: list[int]) -> None:
    data = mnist(shared_data, train)
    assert data.inputs.shape == (sum(counts), 1, 28, 28)
    assert data.labels.counts.tolist() == counts
    assert data.inputs.mean() == pytest.approx(33.3 if train else 33.8, abs=0.1)


def test_cifar10(shared_data: Path) -> None:
    with pytest.raises(DataError, match=r"lacks data_batch_2.bin, .*batches=\(1,\)"):
        cifar10(shared_data)
    train, test = cifar10(shared_data, batches=(1,)), cifar10(shared_data, train=False)
    assert train.labels.counts.tolist() == [5000, 3871, 2997, 2320, 1796, 1391, 1077, 834, 645, 500]
    assert test.labels.counts.tolist() == [1000] * 10
    assert train.inputs.shape == (20431, 3, 32, 32)
    assert train.labels.names[:3] == ("airplane", "automobile", "bird")
    # blue is the strongest channel of airplanes: the planes lie in the order red, green, blue
    channels = train.inputs[train.labels.values[:, 0] == 1].mean((0, 2, 3))
    assert channels[0] < channels[1] < channels[2]


def test_voc_2012_has_the_counts_of_its_owners(shared_data: Path) -> None:
    parts = {split: voc(shared_data, 2012, split) for split in ("train", "val", "trainval")}
    assert [len(data) for data in parts.values()] == [5717, 5823, 11540]
    published = [670, 552, 765, 508, 706, 421, 1161, 1080, 1119, 303]
    published += [538, 1286, 482, 526, 4087, 527, 325, 507, 544, 575]
    assert parts["trainval"].labels.counts.tolist() == published
    assert (parts["train"].labels.counts + parts["val"].labels.counts).tolist() == published
    image, target, _ = parts["val"][0]
    assert min(image.shape[1:]) == 128
    assert target.shape == (20,)


@pytest.mark.parametrize(("year", "split"), [(2007, "trainval"), (2012, "train"), (2012, "val")])
def test_voc_against_the_lines_of_the_official_files(shared_data: Path, year: int, split: str) -> None:
    labels = voc(shared_data, year, split).labels
    for j, name in enumerate(VOC_LABELS):
        file = shared_data / f"VOCdevkit/VOC{year}/ImageSets/Main/{name}_{split}.txt"
        words = [line.split() for line in file.read_text().splitlines()]
        assert labels.counts[j] == sum(value == "1" for _, value in words)
        assert labels.n_known[j] == sum(value != "0" for _, value in words)
    positive = voc(shared_data, year, split, difficult="positive").labels
    negative = voc(shared_data, year, split, difficult="negative").labels
    unknown = labels.values == UNKNOWN
    assert unknown.any()
    np.testing.assert_array_equal(positive.values, np.where(unknown, 1, labels.values))
    np.testing.assert_array_equal(negative.values, np.where(unknown, 0, labels.values))


# label sums of train and test together, as Mulan's and others' copies have them
MULAN = {
    "emotions": ((391, 202), 72, 6, [173, 166, 264, 148, 168, 189]),
    "scene": ((1211, 1196), 294, 6, [427, 364, 397, 433, 533, 431]),
    "yeast": ((1500, 917), 103, 14, [762, 1038, 983, 862, 722, 597, 428, 480, 178, 253, 289, 1816, 1799, 34]),
    "bibtex": ((4880, 2515), 1836, 159, None),
}


@pytest.mark.parametrize("name", list(MULAN))
def test_arff_of_mulan(shared_data: Path, name: str) -> None:
    sizes, n_features, n_labels, sums = MULAN[name]
    parts = [arff(shared_data / "mulan" / f"{name}-{split}.arff") for split in ("train", "test")]
    assert [data.inputs.shape for data in parts] == [(n, n_features) for n in sizes]
    assert parts[0].labels.names == parts[1].labels.names
    assert parts[0].labels.n_labels == n_labels
    counts = parts[0].labels.counts + parts[1].labels.counts
    if sums is not None:
        assert counts.tolist() == sums
    assert all(data.labels.unknown_rate == 0 and np.isfinite(data.inputs).all() for data in parts)


def test_bibtex_is_as_sparse_and_as_densely_labelled_as_published(shared_data: Path) -> None:
    parts = [arff(shared_data / "mulan" / f"bibtex-{split}.arff") for split in ("train", "test")]
    cardinality = sum(data.labels.counts.sum() for data in parts) / sum(len(data) for data in parts)
    assert cardinality == pytest.approx(2.402, abs=5e-4)
    assert set(np.unique(parts[0].inputs)) == {0.0, 1.0}
    first = (shared_data / "mulan" / "bibtex-train.arff").read_text().partition("@data")[2].split("\n")[1]
    listed = [int(pair.split()[0]) for pair in first.strip("{} \r").split(",")]
    assert np.flatnonzero(parts[0].inputs[0]).tolist() == [i for i in listed if i < 1836]
    assert np.flatnonzero(parts[0].labels.values[0]).tolist() == [i - 1836 for i in listed if i >= 1836]


@pytest.mark.parametrize(
    ("name", "train", "test", "n_labels", "cardinality"),
    [
        ("corel5k", (4500, 499), (500, 499), 374, 3.522),
        ("delicious", (12920, 500), (3185, 500), 983, 19.020),
        ("enron", (1123, 1001), (579, 1001), 53, 3.378),
    ],
)
def test_npz(
    shared_data: Path, name: str, train: tuple[int, int], test: tuple[int, int], n_labels: int, cardinality: float
) -> None:
    parts = [npz(shared_data / "mulan" / f"{name}.npz", split) for split in ("train", "test")]
    assert [data.inputs.shape for data in parts] == [train, test]
    assert {data.labels.n_labels for data in parts} == {n_labels}
    found = sum(data.labels.counts.sum() for data in parts) / sum(len(data) for data in parts)
    assert found == pytest.approx(cardinality, abs=5e-4)
    assert parts[0][0][0].dtype.is_floating_point


def test_features_have_the_ids_and_labels_of_the_official_files(shared_data: Path) -> None:
    for split in ("train", "val"):
        features = npz(shared_data / "features" / "voc2012-lite0-160.npz", split, absent=-1)
        official = voc(shared_data, 2012, split).labels
        np.testing.assert_array_equal(features.labels.values, official.values)
        assert features.labels.ids == official.ids
        assert features.labels.names == official.names
        assert features.inputs.shape == (len(official), 1280)
        assert features.inputs.dtype == np.float32


def test_long_tailed_splits_have_the_published_counts(shared_data: Path) -> None:
    data = voc_mlt(shared_data / "labels" / "voc_mlt.npz", shared_data)
    published = [6, 34, 8, 14, 154, 17, 249, 29, 479, 4, 240, 48, 11, 20, 775, 100, 5, 82, 7, 64]
    assert data.labels.counts.tolist() == published
    assert len(data) == 1142
    assert [len(group) for group in data.labels.groups().values()] == [6, 6, 8]
    # its images and labels are those of VOC 2012 with what is difficult counted as present
    official = voc(shared_data, 2012, "trainval", difficult="positive").labels
    row = {name: i for i, name in enumerate(official.ids)}
    np.testing.assert_array_equal(data.labels.values, official.rows([row[name] for name in data.labels.ids]))
    assert all(Path(path).is_file() for path in data.paths)
    coco = coco_mlt(shared_data / "labels" / "coco_mlt.npz", shared_data)
    assert (len(coco), coco.labels.counts.min(), coco.labels.counts.max()) == (1909, 6, 1128)
    assert [len(group) for group in coco.labels.groups().values()] == [22, 33, 25]
    assert coco.labels.names == COCO_LABELS
    assert coco.paths[0].endswith("train2017/000000554625.jpg")
