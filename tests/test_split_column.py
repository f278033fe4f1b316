"""The parts of a data set: a column that tells them, files that hold them, and the same labels in each."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import layouts
from steelyard.data import ArrayDataset, ImageDataset, open_data, table
from steelyard.data.files import DataError
from steelyard.data.part import align, aligned, open_part
from steelyard.data.parts import part_named, siblings, training_part
from steelyard.labels import UNKNOWN, Labels

WIDE = "id,cat,dog,split,u\na,1,0,train,1.5\nb,0,1,val,2.5\nc,1,,train,3.5\nd,,,test,4.5\n"
LIST = "id,split,labels\na,train,cat;dog\nb,val,cow\nc,train,\nd,test,dog\n"
LONG = "id,label,split\na,cat,train\nb,cow,val\na,dog,train\nc,,train\nd,dog,test\n"


# --- one table with a column that tells the parts --------------------------------------------------------------------


@pytest.mark.parametrize("name", ["split", "Subset", "SET", "fold", "data_split", "partition"])
def test_the_training_part_is_read_unless_another_is_asked_for(tmp_path: Path, name: str) -> None:
    file = layouts.write(tmp_path / "a.csv", WIDE.replace("split", name))
    for opened in (open_data(file), open_data(file, split="train"), open_data(file, split="Training")):
        assert (opened.split, opened.parts) == ("train", ("train", "val", "test"))
        assert list(opened.data.labels.ids) == ["a", "c"]
        assert opened.data.labels.names == ("cat", "dog")
        assert opened.data.labels.values.tolist() == [[1, 0], [1, -1]]
        assert isinstance(opened.data, ArrayDataset)
        assert opened.data.inputs.tolist() == [[1.5], [3.5]]
        assert f"By column {name!r} the part 'train' (2 items) is read" in opened.note
        assert "also there: 'val' (1 item), 'test' (1 item); choose with split= and split_column=" in opened.note
    val = open_data(file, split="val")
    assert list(val.data.labels.ids) == ["b"]
    assert [float(x) for x in val.data[0][0]] == [2.5]
    whole = open_data(file, split="all")
    assert whole.split == "all"
    assert list(whole.data.labels.ids) == ["a", "b", "c", "d"]
    assert list(table(file, split="test").labels.ids) == ["d"]


@pytest.mark.parametrize("text", [WIDE, LIST, LONG], ids=["wide", "list", "long"])
@pytest.mark.parametrize("parquet", [False, True])
def test_the_labels_are_those_of_all_parts(tmp_path: Path, text: str, parquet: bool) -> None:
    file = layouts.write(tmp_path / "a.csv", text)
    if parquet:
        file = tmp_path / "a.parquet"
        header, *rows = (line.split(",") for line in text.splitlines())
        pq.write_table(pa.table(dict(zip(header, map(list, zip(*rows, strict=True)), strict=True))), file)
    whole = open_data(file, split="all").data.labels
    assert list(whole.ids) == ["a", "b", "c", "d"]
    for split, rows in (("train", [0, 2]), ("val", [1]), ("test", [3])):
        labels = open_data(file, split=split).data.labels
        assert labels.names == whole.names
        assert list(labels.ids) == [whole.ids[i] for i in rows]
        assert labels.values.tolist() == whole.values[rows].tolist()
    assert whole.names == (("cat", "dog") if text is WIDE else ("cat", "cow", "dog"))


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.sampled_from(["train", "val", "test"]), st.lists(st.sampled_from("abc"), unique=True, max_size=3)),
        min_size=1,
        max_size=12,
    ),
    st.sampled_from(["list", "long"]),
    st.randoms(use_true_random=False),
)
def test_the_parts_together_are_the_whole(
    tmp_path: Path, items: list[tuple[str, list[str]]], form: str, random: Any
) -> None:
    if form == "list":
        rows = [f"i{i},{part},{';'.join(labels)}" for i, (part, labels) in enumerate(items)]
    else:
        rows = [f"i{i},{part},{label}" for i, (part, labels) in enumerate(items) for label in labels or [""]]
        random.shuffle(rows)
    if not any(labels for _, labels in items):
        return
    file = layouts.write(tmp_path / "a.csv", "\n".join(["id,split,labels", *rows, ""]))
    seen: dict[str, list[str]] = {}
    names = {table(file, form=form, split="all").labels.names}  # type: ignore[arg-type]
    for part in {part for part, _ in items}:
        labels = table(file, form=form, split=part).labels  # type: ignore[arg-type]
        names.add(labels.names)
        for name, row in zip(labels.ids, labels.values.tolist(), strict=True):
            assert items[int(name[1:])][0] == part
            seen[name] = [label for label, value in zip(labels.names, row, strict=True) if value]
    assert seen == {f"i{i}": sorted(labels) for i, (_, labels) in enumerate(items)}
    assert len(names) == 1


def test_only_the_images_of_the_part_must_be_there(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("a.jpg", "b.jpg"):
        layouts.write_image(tmp_path / "photos" / name, rng)
    file = layouts.write(
        tmp_path / "a.csv", "image,split,labels\nx.jpg,test,dog\na.jpg,train,cat\n../y.jpg,val,cat\nb.jpg,train,dog\n"
    )
    train = open_data(str(file), str(tmp_path / "photos"))
    assert isinstance(train.data, ImageDataset)
    assert [Path(path).name for path in train.data.paths] == ["a.jpg", "b.jpg"]
    with pytest.raises(DataError, match=r"1 of 1 images are not in .* \('x.jpg'\)"):
        open_data(file, tmp_path / "photos", split="test")
    with pytest.raises(DataError, match=r"line 4: '../y.jpg' leads out"):
        open_data(file, tmp_path / "photos", split="val")


def test_a_column_that_is_named_so_but_tells_no_parts(tmp_path: Path) -> None:
    file = layouts.write(tmp_path / "a.csv", "id,set\na,train\nb,bus\nc,car\nd,bus\n")
    opened = open_data(file)
    assert opened.split is None
    assert opened.data.labels.names == ("bus", "car", "train")
    file = layouts.write(tmp_path / "b.csv", "id,set,cat\na,1,0\nb,0,1\n")
    assert open_data(file).data.labels.names == ("set", "cat")
    labelled = layouts.write(tmp_path / "c.csv", "id,split\na,train\nb,val\n")
    assert open_data(labelled, labels="split").data.labels.names == ("train", "val")


def test_the_number_of_a_fold_is_neither_label_nor_feature(tmp_path: Path) -> None:
    file = layouts.write(tmp_path / "a.csv", "id,fold,cat,u\na,0,0,1.5\nb,1,1,2.5\nc,0,1,3.5\n")
    opened = open_data(file)
    assert opened.data.labels.names == ("cat",)
    assert isinstance(opened.data, ArrayDataset)
    assert opened.data.inputs.shape == (3, 1)
    assert "not used: 1 column ('fold')" in opened.note
    assert list(open_data(file, split_column="fold", split="1").data.labels.ids) == ["b"]
    with pytest.raises(DataError, match=r"'0' \(2 items\), '1' \(1 item\): none of them is called train, give split"):
        open_data(file, split_column="fold")


def test_a_column_of_another_name_can_be_named(tmp_path: Path) -> None:
    file = layouts.write(tmp_path / "a.csv", "id,when,cat\na,early,1\nb,late,0\n")
    late = open_data(file, split_column="when", split="late")
    assert list(late.data.labels.ids) == ["b"]
    with pytest.raises(DataError, match="no column 'wen', given as split_column: do you mean 'when'"):
        open_data(file, split_column="wen")
    with pytest.raises(ValueError, match="labels names column 'when'"):
        open_data(file, split_column="when", labels=["when"])


@pytest.mark.parametrize(
    ("text", "split", "message"),
    [
        (LIST, "dev2", r"'train' \(2 items\), 'val' \(1 item\), 'test' \(1 item\): there is no 'dev2', give split"),
        (
            "id,split,cat\na,val,1\nb,test,0\n",
            None,
            r"'val' \(1 item\), 'test' \(1 item\): none of them is called train",
        ),
        ("id,split,cat\na,train,1\nb,,0\n", None, "line 3 has no part in column 'split': add it, remove the row, or"),
        (
            "id,label,split\na,cat,train\nb,cow,val\na,dog,val\n",
            None,
            "line 2 puts the item 'a' in the part 'train', but line 4 in 'val': an item belongs to one part",
        ),
        ("id,cat\na,1\nb,0\n", "val", "split is 'val', but .* has no column that says which part"),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, text: str, split: str | None, message: str) -> None:
    file = layouts.write(tmp_path / "a.csv", text)
    for read in (lambda: open_data(file, split=split), lambda: table(file, split=split)):
        with pytest.raises(DataError, match=message) as caught:
            read()
        assert "\n" not in str(caught.value)
    assert len(open_data(file, split="all").data) >= 2 or "an item belongs" in message


def test_a_table_of_one_part_is_read(tmp_path: Path) -> None:
    opened = open_data(layouts.write(tmp_path / "a.csv", "id,split,cat\na,test,1\nb,test,0\n"))
    assert (opened.split, len(opened.data)) == ("test", 2)


@pytest.mark.parametrize(
    ("split", "there", "meant"),
    [
        ("val", ["train", "validation"], "validation"),
        ("validation", ["VAL", "train"], "VAL"),
        ("dev", ["valid"], "valid"),
        ("val", ["val", "valid"], "val"),
        ("validation", ["val", "valid"], None),
        ("train", ["trainval"], None),
        ("TEST", ["test"], "test"),
        ("extra", ["train", "test"], None),
    ],
)
def test_names_that_mean_the_same(split: str, there: list[str], meant: str | None) -> None:
    assert part_named(split, there) == meant


def test_the_part_to_learn_from() -> None:
    assert training_part(["test", "Training"]) == "Training"
    assert training_part(["test"]) == "test"
    assert training_part(["a", "b"]) is None


# --- another part with the same labels -------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [WIDE, LIST, LONG], ids=["wide", "list", "long"])
def test_another_part_of_the_same_table(tmp_path: Path, text: str) -> None:
    file = layouts.write(tmp_path / "a.csv", text)
    for path in (file, tmp_path):
        train = open_data(path)
        part = open_part(train, "validation")
        assert (part.split, list(part.data.labels.ids)) == ("val", ["b"])
        assert part.data.labels.names == train.data.labels.names
        again = open_data(**train.settings, split="val")
        assert again.data.labels.values.tolist() == part.data.labels.values.tolist()
        with pytest.raises(DataError, match="has no part 'extra': it has 'train', 'val', 'test'; give one of them"):
            open_part(train, "extra")


def test_separate_files_are_read_as_the_first_was(tmp_path: Path) -> None:
    layouts.write(tmp_path / "mine-train.csv", "id,labels\na,dog;cat\nb,cow\n")
    layouts.write(tmp_path / "mine-val.csv", "id,labels\nc,cow\nd,dog\n")
    for train in (open_data(tmp_path / "mine-train.csv"), open_data(tmp_path, split="train")):
        assert train.parts == ("train", "val")
        part = open_part(train, "val")
        assert part.data.labels.names == ("cat", "cow", "dog")
        assert part.data.labels.values.tolist() == [[0, 1, 0], [0, 0, 1]]
        assert "It does not have 'cat': taken as absent." in part.note
    unknown = open_part(open_data(tmp_path / "mine-train.csv", absent="unknown"), "val")
    assert unknown.data.labels.values.tolist() == [[-1, 1, -1], [-1, -1, 1]]
    layouts.write(tmp_path / "mine-val.csv", "id,labels\nc,cow;yak\nd,emu\n")
    with pytest.raises(DataError, match=r"mine-val.csv: the labels 'emu', 'yak' are not among the 3 labels of the tr"):
        open_part(train, "val")
    dropped = open_part(train, "val", unseen="drop")
    assert dropped.data.labels.values.tolist() == [[0, 1, 0], [0, 0, 0]]
    assert "the training part does not have them: 'emu', 'yak'" in dropped.note


def test_what_was_guessed_of_the_first_file_holds_for_the_second(tmp_path: Path) -> None:
    layouts.write(tmp_path / "train.csv", "id,u,w,cat,dog\na,2.5,7,1,0\nb,3.5,8,0,1\n")
    layouts.write(tmp_path / "test.csv", "id,w,u,dog,new\nc,1,0,1,1\nd,0,1,0,0\n")
    train = open_data(tmp_path / "train.csv")
    part = open_part(train, "test")
    assert isinstance(part.data, ArrayDataset)
    assert part.data.inputs.tolist() == [[0, 1], [1, 0]]  # u, w: in the order of training, though only 0 and 1
    assert part.data.labels.names == ("cat", "dog")
    assert part.data.labels.values.tolist() == [[-1, 1], [-1, 0]]
    assert "It does not have 'cat': taken as unknown." in part.note
    assert "not used: 1 column ('new')" in part.note
    layouts.write(tmp_path / "test.csv", "id,u,dog\nc,1,1\n")
    with pytest.raises(DataError, match="there is no column 'w', given as features"):
        open_part(train, "test")


def test_images_of_another_part_lie_in_the_same_folder_or_beside_it(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("one/a.jpg", "one/b.jpg", "two/c.jpg", "far/deep/d.jpg"):
        layouts.write_image(tmp_path / name, rng)
    layouts.write(tmp_path / "train.csv", "image,labels\na.jpg,cat\nb.jpg,dog\n")
    layouts.write(tmp_path / "val.csv", "image,labels\n")
    train = open_data(tmp_path / "train.csv", size=8)
    for image, folder in (("b.jpg", "one"), ("c.jpg", "two")):
        layouts.write(tmp_path / "val.csv", f"image,labels\n{image},cat\n")
        part = open_part(train, "val")
        assert isinstance(part.data, ImageDataset)
        assert part.data.paths == [str(tmp_path / folder / image)]
        assert part.data.size == (8, 8)
    layouts.write(tmp_path / "val.csv", "image,labels\nd.jpg,cat\n")
    with pytest.raises(DataError, match=r"its inputs are arrays of shape \(0,\), but in the training part ImageData"):
        open_part(train, "val")


def test_other_data_by_its_path(tmp_path: Path) -> None:
    layouts.write(tmp_path / "a" / "some.csv", "id,labels,u\na,dog;cat,1.5\nb,cow,2\n")
    layouts.write(tmp_path / "b" / "more.csv", "id,labels,u\nc,cat,3\n")
    train = open_data(tmp_path / "a")
    for path in (tmp_path / "b", tmp_path / "b" / "more.csv"):
        part = open_part(train, path=path)
        assert part.data.labels.names == ("cat", "cow", "dog")
        assert part.data.labels.values.tolist() == [[1, 0, 0]]
    np.savez(tmp_path / "c.npz", X_test=[[4.0]], Y_test=[[1, 0]], classes=["dog", "cat"], X_val=[[5.0]], Y_val=[[0, 0]])
    part = open_part(train, "test", tmp_path / "c.npz")
    assert part.data.labels.values.tolist() == [[0, UNKNOWN, 1]]
    with pytest.raises(ValueError, match="split and path are both missing"):
        open_part(train)
    with pytest.raises(DataError, match=r"has no part 'val': give the path of other data"):
        open_part(train, "val")
    np.savez(tmp_path / "d.npz", X=[[4.0, 1.0]], Y=[[1, 0]], classes=["dog", "cat"])
    with pytest.raises(DataError, match=r"its inputs are arrays of shape \(2,\), but in the training part arrays"):
        open_part(train, path=tmp_path / "d.npz")


def test_parts_of_an_npz_and_of_arff_files(tmp_path: Path) -> None:
    truth = layouts.write_npz(tmp_path / "points.npz", {"train": 8, "val": 5})
    train = open_data(tmp_path / "points.npz")
    assert train.parts == ("train", "val")
    assert open_part(train, "dev").data.labels.values.tolist() == truth["val"].values.tolist()
    layouts.write_arff(tmp_path)
    (tmp_path / "songs-test.arff").write_bytes((tmp_path / "songs-train.arff").read_bytes())
    songs = open_data(tmp_path / "songs-train.arff")
    assert songs.parts == ("test", "train")
    test = open_part(songs, "test")
    assert test.data.labels.values.tolist() == songs.data.labels.values.tolist()
    signs = np.array([[1, -1], [0, 1]])
    np.savez(tmp_path / "signs.npz", Y_train=signs, Y_test=signs, X_train=signs, X_test=signs)
    train = open_data(tmp_path / "signs.npz", minus_one="negative")
    assert open_part(train, "test").data.labels.values.tolist() == [[1, 0], [-1, 1]]


def test_parts_of_a_published_layout(tmp_path: Path) -> None:
    truth = layouts.write_voc(tmp_path, {"train": 6, "val": 4})
    layouts.write_voc(tmp_path, {"trainval": 5, "test": 3}, year=2007, seed=1)
    train = open_data(tmp_path, year=2012, size=8)
    assert train.parts == ("train", "val")
    val = open_part(train, "validation")
    assert list(val.data.labels.ids) == list(truth["val"].ids)
    assert val.data[0][0].shape == (3, 8, 8)


def test_questions_of_another_part_have_the_answers_of_the_first(tmp_path: Path) -> None:
    layouts.write_vqa(tmp_path)
    for what in ("v2_OpenEnded_mscoco_{}2014_questions.json", "v2_mscoco_{}2014_annotations.json"):
        (tmp_path / what.format("val")).write_bytes((tmp_path / what.format("train")).read_bytes())
    train = open_data(tmp_path, split="train", names=["yes", "2"])
    val = open_part(train, "val")
    assert val.split == "val"
    assert val.data.labels.names == ("yes", "2")


def test_files_of_the_same_data(tmp_path: Path) -> None:
    for name in ("a-train.csv", "a-val.csv", "a_test.csv", "b-test.csv", "a-val.npz", "a-more.csv", "train.csv"):
        layouts.write(tmp_path / name, "x")
    assert siblings(tmp_path / "a-train.csv") == {"train": tmp_path / "a-train.csv", "val": tmp_path / "a-val.csv"}
    assert siblings(tmp_path / "train.csv") == {"train": tmp_path / "train.csv"}
    assert siblings(tmp_path / "a-more.csv") == {}


def test_a_file_of_one_part_may_say_the_parts_of_all(tmp_path: Path) -> None:
    for name in ("train", "val"):
        layouts.write(tmp_path / f"{name}.csv", "id,labels,split\na,cat,train\nb,cat,val\nc,cat,val\n")
    train = open_data(tmp_path / "train.csv")
    assert list(open_part(train, "val").data.labels.ids) == ["b", "c"]
    assert list(open_part(train, "train").data.labels.ids) == ["a"]
    for name, word in (("train", "train"), ("val", "validation")):
        layouts.write(tmp_path / f"{name}.csv", f"id,labels,split\na,cat,{word}\n")
    train = open_data(tmp_path / "train.csv")
    assert train.parts == ("train", "val")
    assert list(open_part(train, "dev").data.labels.ids) == ["a"]


def test_the_file_of_a_part_may_be_called_otherwise_or_hold_several(tmp_path: Path) -> None:
    layouts.write(tmp_path / "training.csv", "id,labels\nx,cat\n")
    layouts.write(tmp_path / "valid.csv", "id,labels,split\ny,cat,valid\nz,cat,valid\n")
    assert open_data(tmp_path, split="train").split == "training"
    val = open_data(tmp_path, split="val")
    assert (val.split, len(val.data)) == ("valid", 2)
    both = tmp_path / "both"
    layouts.write(both / "mine.csv", LIST)
    assert list(open_data(both, split="val").data.labels.ids) == ["b"]


# --- labels in the order of others -----------------------------------------------------------------------------------

NAMES = list("abcdef")


@given(
    st.integers(0, 5),
    st.lists(st.sampled_from(NAMES), unique=True, min_size=1),
    st.lists(st.sampled_from(NAMES), unique=True, min_size=1),
    st.sampled_from(["unknown", "negative"]),
    st.randoms(use_true_random=False),
)
def test_aligned_against_a_table_of_dictionaries(
    n: int, have: list[str], want: list[str], absent: Any, random: Any
) -> None:
    rows = [{name: random.choice([1, 0, -1, -1, 0, 0.25]) for name in have} for _ in range(n)]
    labels = Labels(np.array([[row[name] for name in have] for row in rows]).reshape(n, len(have)), have)
    if not set(have) & set(want):
        with pytest.raises(ValueError, match="none of the labels"):
            aligned(labels, want, absent, "drop")
        return
    got = aligned(labels, want, absent, "drop")
    missing = -1 if absent == "unknown" else 0
    assert got.values.tolist() == [[row.get(name, missing) for name in want] for row in rows]
    assert got.names == tuple(want)
    assert got.ids == labels.ids
    if set(have) - set(want):
        with pytest.raises(ValueError, match="not among the"):
            aligned(labels, want, absent)
    else:
        assert aligned(labels, want, absent).values.tolist() == got.values.tolist()


@pytest.mark.parametrize(("n_here", "n_wanted"), [(3, 1000), (990, 1000)])
def test_aligned_keeps_the_fewer_cells(n_here: int, n_wanted: int) -> None:
    """Ten thousand items that lack 997 of a thousand labels: not ten million cells of 24 bytes."""
    n, names = 10_000, [f"l{j}" for j in range(n_wanted)]
    labels = Labels.from_cells(np.arange(n), np.arange(n) % n_here, np.ones(n, np.int8), (n, n_here), 0, names[:n_here])
    tracemalloc.start()
    got = aligned(labels, names)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert got.n_known.tolist() == [n] * n_here + [0] * (n_wanted - n_here)
    np.testing.assert_array_equal(got.counts, np.pad(labels.counts, (0, n_wanted - n_here)))
    each = 3 if n_here == 3 else 11  # the known labels, or the unknown ones and a positive
    assert len(got.cells()[2]) == each * n
    assert peak < 60e6


def test_aligned_says_which_labels_are_new() -> None:
    labels = Labels(np.eye(9, dtype=np.int8), [f"l{i}" for i in range(9)])
    with pytest.raises(ValueError, match=r"the labels 'l1', 'l2', .* 'l6', … are not among the 1 labels") as error:
        aligned(labels, ["l0"])
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="unseen is 'keep': choose"):
        aligned(labels, ["l0"], unseen="keep")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="names is the single string 'l0'"):
        aligned(labels, "l0", unseen="drop")
    with pytest.raises(ValueError, match="absent is 'no': choose"):
        aligned(labels, ["l0"], absent="no")  # type: ignore[arg-type]


def test_align_data_with_the_labels_of_a_model(tmp_path: Path) -> None:
    opened = open_data(layouts.write(tmp_path / "a.csv", "id,labels\na,dog\nb,cat\n"))
    data = align(opened, ["cow", "dog", "cat"]).data
    assert opened.data.labels.names == ("cat", "dog")
    assert data.labels.values.tolist() == [[0, 1, 0], [0, 0, 1]]
    assert data[0][1].tolist() == [0, 1, 0]


def test_real_files_of_two_parts(shared_data: Path) -> None:
    train = open_data(shared_data / "mulan" / "yeast-train.arff")
    test = open_part(train, "test")
    assert (len(train.data), len(test.data)) == (1500, 917)
    assert test.data.labels.names == train.data.labels.names
