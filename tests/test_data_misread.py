"""Data that was once misread: labels separated by spaces, images that are missing, ids, DataFrames, odd types."""

from __future__ import annotations

import datetime
import decimal
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse

import steelyard as sy
from layouts import write_voc
from run_data import QUICK, items, write_photos
from steelyard.config.inspection import one_of_many
from steelyard.config.settings import load_config
from steelyard.data.files import DataError
from steelyard.data.given import given_inputs, given_labels
from steelyard.data.opening import open_data
from steelyard.data.part import open_part
from steelyard.data.tables.class_names import read_class_names
from steelyard.data.tables.read import table
from steelyard.labels import Labels
from typed import typed as run


def lists_of_ids(n: int = 400, n_labels: int = 18, seed: int = 0) -> list[list[int]]:
    """One to three of 18 labels for each item."""
    rng = np.random.default_rng(seed)
    return [sorted(rng.choice(n_labels, rng.integers(1, 4), replace=False).tolist()) for _ in range(n)]


def write_lists(file: Path, lists: list[list[Any]], separator: str = " ", features: bool = True) -> Path:
    rng = np.random.default_rng(1)
    rows = [
        f"i{i},{separator.join(map(str, row))}" + (f",{rng.random():.4f},{rng.random():.4f}" if features else "")
        for i, row in enumerate(lists)
    ]
    file.write_text("Id,Target" + (",f1,f2" if features else "") + "\n" + "\n".join(rows) + "\n")
    return file


# ---- labels in one cell


def test_ids_separated_by_spaces_are_several_labels(tmp_path: Path):
    lists = lists_of_ids()
    file = write_lists(tmp_path / "hpa.csv", lists)
    code, out, _ = run("inspect", file, "--json")
    facts = json.loads(out)
    assert code == 0
    assert facts["n_labels"] == 18
    assert facts["cells"]["positive"] == sum(map(len, lists))
    assert facts["warnings"] == []
    labels = open_data(file).data.labels
    assert [[int(labels.names[c]) for c in np.flatnonzero(row)] for row in labels.values] == lists


@pytest.mark.parametrize("separator", [" ", "|", ";", "  "])
def test_words_that_recur_are_several_labels(tmp_path: Path, separator: str):
    words = np.array(["agriculture", "clear", "haze", "primary", "road", "water"])
    lists = [words[row].tolist() for row in lists_of_ids(200, 6)]
    labels = open_data(write_lists(tmp_path / "planet.csv", lists, separator)).data.labels
    assert labels.names == tuple(words)
    assert [list(np.array(labels.names)[row == 1]) for row in labels.values] == lists


@pytest.mark.parametrize(
    "cells",
    [
        ["traffic light", "stop sign", "dog", "hot dog", "fire hydrant"] * 20,
        [f"{colour} {thing}" for colour in ("red", "blue", "green", "grey", "black") for thing in "abcdefgh"] * 3,
        ["cat dog", "dog"],  # too few to tell
    ],
)
def test_names_of_several_words_stay_one_label(tmp_path: Path, cells: list[str]):
    labels = open_data(write_lists(tmp_path / "names.csv", [[cell] for cell in cells])).data.labels
    assert set(labels.names) == set(cells)


def test_an_id_that_occurs_twice_among_lists_is_a_mistake(tmp_path: Path):
    file = write_lists(tmp_path / "photos.csv", [["cat", "dog"], ["dog"], ["cat"]] * 4, ";", features=False)
    again = file.read_text().splitlines()[1]
    file.write_text(file.read_text() + again.split(",")[0] + ",dog\n")
    code, _, err = run("inspect", file)
    assert code == 2
    assert "line 2 and line 14 both have the id" in err
    assert "--form" in err
    labels = open_data(file, form="long").data.labels
    assert set(labels.names) == {"cat;dog", "dog", "cat"}


def test_one_label_per_cell_can_be_stated(tmp_path: Path):
    file = write_lists(tmp_path / "names.csv", [["a, b"], ["c"], ["a, b"]], features=False)
    file.write_text(file.read_text().replace("a, b", '"a, b"'))
    assert open_data(file).data.labels.names == ("a", "b", "c")
    opened = open_data(file, separator="none")
    assert opened.data.labels.names == ("a, b", "c")
    assert opened.settings["separator"] == "none"
    assert open_part(opened, path=file).data.labels.names == ("a, b", "c")


def test_one_of_hundreds_of_labels_each_is_warned_of(tmp_path: Path):
    file = write_lists(tmp_path / "hpa.csv", lists_of_ids())
    _, out, _ = run("inspect", file, "--separator", "none", "--json")
    (warning,) = json.loads(out)["warnings"]
    assert "exactly one of" in warning
    assert "--separator" in warning
    _, out, _ = run("inspect", file, "--separator", "none")
    assert "Beware: every item has exactly one of" in " ".join(out.split())
    assert one_of_many(Labels(np.eye(100, dtype=np.int8))) != ""
    assert one_of_many(Labels(np.eye(99, dtype=np.int8))) == ""
    two = np.eye(100, dtype=np.int8)
    two[0, 1], two[1, 1] = 1, 0  # as many positives as items, but not one each
    assert one_of_many(Labels(two)) == ""


def test_train_and_evaluate_take_the_options_of_inspect(tmp_path: Path):
    file = write_lists(tmp_path / "odd.csv", [[f"x{c}" for c in row] for row in lists_of_ids()], " / ")
    words = ("--separator", "/", "--form", "list", "--labels", "Target", "--absent", "negative", "--id", "Id")
    assert run("inspect", file, *words, "--json")[0] == 0
    quick = ("--set", "train.epochs=1", "--recipe", "bce", "--json")
    assert run("train", "--data", file, *words, *quick, "--out", tmp_path / "run")[0] == 0
    settings = load_config(tmp_path / "run" / "config.toml").data
    assert (settings.separator, settings.form, settings.labels, settings.id) == ("/", "list", ("Target",), "Id")
    assert len(sy.Run.load(tmp_path / "run").names) == 18
    other = write_lists(tmp_path / "other.csv", [[f"x{c}" for c in row] for row in lists_of_ids(50, seed=3)], " + ")
    code, out, _ = run("evaluate", tmp_path / "run", "--data", other, "--separator", "+", "--json")
    assert code == 0
    assert json.loads(out)["labels_lacking"] == []
    code, _, err = run("evaluate", tmp_path / "run", "--separator", "+")
    assert code == 2
    assert "--separator" in err
    assert "--data" in err


def test_a_space_set_by_set_reaches_the_reader(tmp_path: Path):
    file = write_lists(tmp_path / "few.csv", [["cat", "dog"], ["dog"], ["cat"], ["dog"]] * 5)
    words = ("--set", "data.separator= ", "--set", "train.epochs=1", "--recipe", "bce", "--json")
    assert run("train", "--data", file, *words, "--out", tmp_path / "run")[0] == 0
    assert sy.Run.load(tmp_path / "run").names == ("cat", "dog")


# ---- decimal commas


def test_decimal_commas_are_read_as_points(tmp_path: Path):
    rng = np.random.default_rng(2)
    rows = [
        (f"x{i}", f"{rng.normal():.5f}", f"{rng.normal() * 1e-6:.3e}", i % 7, i % 2, (i % 3) / 2) for i in range(60)
    ]
    text = "name;größe;gewicht;anzahl;rot;rund\n" + "".join(";".join(map(str, row)) + "\n" for row in rows)
    point, comma = tmp_path / "punkt.csv", tmp_path / "komma.csv"
    point.write_text(text, encoding="utf-8-sig")
    comma.write_text(text.replace(".", ","), encoding="utf-8-sig")
    there, here = (open_data(file, labels=["rot", "rund"]).data for file in (point, comma))
    assert here.inputs.shape == (60, 3)
    np.testing.assert_array_equal(here.inputs, there.inputs)
    np.testing.assert_array_equal(here.labels.values, there.labels.values)
    assert here.labels.values[1, 1] == 0.5
    words = ("--recipe", "bce", "--labels", "rot", "--labels", "rund", "--json")
    assert run("train", "--data", comma, *words, "--out", tmp_path / "run")[0] == 0
    for file, out in ((point, "a.csv"), (comma, "b.csv")):
        assert run("predict", tmp_path / "run", file, "--out", tmp_path / out)[0] == 0
    assert (tmp_path / "a.csv").read_text() == (tmp_path / "b.csv").read_text()
    comma.write_text(comma.read_text(encoding="utf-8-sig").replace("x3;", "x3;1.5;2,5;1;1;0\nx4a;"), encoding="utf-8")
    code, _, err = run("inspect", comma, "--labels", "rot", "--labels", "rund", "--features", "größe")
    assert code == 2
    assert "'1.5'" in err


def test_pairs_of_class_numbers_are_no_decimals(tmp_path: Path):
    file = tmp_path / "pairs.tsv"
    file.write_text("id\ttarget\n" + "".join(f"a{i}\t{i % 5},{5 + i % 4}\n" for i in range(30)))
    assert open_data(file).data.labels.names == tuple("012345678")


# ---- missing images


def missing_some(folder: Path, n: int = 4) -> Path:
    write_photos(folder, 40)
    for i in range(n):
        (folder / "images" / f"photo{i:03}.png").unlink()
    return folder


TINY = ("--recipe", "bce", "--set", "train.epochs=1", "--set", "model.backbone=resnet12", "--set", "data.size=16")


def test_missing_images_are_refused_alike_by_inspect_and_train(tmp_path: Path):
    photos = missing_some(tmp_path / "photos")
    first = run("inspect", photos)
    second = run("train", "--data", photos, *TINY, "--out", tmp_path / "run")
    assert first == second
    assert first[0] == 2
    for part in ("4 of 40 images", "'photo000.png'", "--skip-missing"):
        assert part in first[2]
    assert not (tmp_path / "run").exists()


def test_statistics_and_training_are_of_what_exists(tmp_path: Path):
    photos = missing_some(tmp_path / "photos")
    whole = write_photos(tmp_path / "whole", 40)
    labels = open_data(whole).data.labels
    code, out, _ = run("inspect", photos, "--skip-missing", "--json")
    facts = json.loads(out)
    assert (code, facts["n_items"]) == (0, 36)
    there = labels.take(np.arange(4, 40))
    assert [row["positives"] for row in facts["labels"]] == there.counts.tolist()
    assert "4 of 40 images" in facts["data"]["note"]
    words = ("--set", "data.validation=0", "--skip-missing", "--json")
    assert run("train", "--data", photos, *TINY, *words, "--out", tmp_path / "run")[0] == 0
    trained = sy.Run.load(tmp_path / "run").trained
    assert trained.counts.tolist() == there.counts.tolist()
    assert trained.n_known.tolist() == [36] * 3


@pytest.mark.parametrize(
    "words", [(), ("--skip-missing",), ("--images", "images"), ("--images", "images", "--skip-missing")]
)
def test_every_image_missing_is_a_mistake(tmp_path: Path, words: tuple[str, ...]):
    photos = missing_some(tmp_path / "photos", 40)
    words = tuple(str(photos / word) if word == "images" else word for word in words)
    for command in (("inspect", photos), ("train", *TINY, "--out", tmp_path / "run", "--data", photos)):
        code, _, err = run(*command, *words)
        assert code == 2
        assert "image" in err
        assert "--images" in err or "images=" in err
    assert run("inspect", photos / "labels.csv", "--id", "file")[0] == 0  # labels alone


def test_a_published_layout_with_missing_images(tmp_path: Path):
    truth = write_voc(tmp_path, {"train": 4})["train"]
    (tmp_path / "VOCdevkit" / "VOC2012" / "JPEGImages" / f"{truth.ids[3]}.jpg").unlink()
    code, _, err = run("inspect", tmp_path / "VOCdevkit")
    assert code == 2
    assert "1 of 4 images" in err
    code, out, _ = run("inspect", tmp_path / "VOCdevkit", "--skip-missing", "--json")
    assert (code, json.loads(out)["n_items"]) == (0, 3)


# ---- names of labels that are ids


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("a.csv", "id,name\n0,cat\n1,dog\n2,rare bird\n"),
        ("b.csv", "0,cat\n1,dog\n2,rare bird\n"),
        ("c.csv", "name;id\ncat;0\ndog;1\nrare bird;2\n"),
        ("d.json", '{"0": "cat", "1": "dog", "2": "rare bird"}'),
        ("e.json", '["cat", "dog", "rare bird"]'),
        ("f.json", '[{"id": 0, "name": "cat"}, {"id": 1, "name": "dog"}, {"id": 2, "name": "rare bird"}]'),
        (
            "g.json",
            '{"categories": [{"id": 0, "name": "cat"}, {"id": 1, "name": "dog"}, {"id": 2, "name": "rare bird"}]}',
        ),
    ],
)
def test_class_names_in_every_form(tmp_path: Path, file: str, content: str):
    (tmp_path / file).write_text(content)
    assert read_class_names(tmp_path / file) == {"0": "cat", "1": "dog", "2": "rare bird"}


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        ("a.csv", "id,name\n0,cat\n0,dog\n", "the id '0'"),
        ("b.csv", "id,name\n0\n", "'0'"),
        ("c.json", '{"0": 1}', "'0'"),
        ("d.json", "3", "id with its name"),
        ("e.json", "[]", "names no label"),
        ("f.csv", "id,name\n7,cat\n8,dog\n", "none of the labels"),
        ("g.csv", "id,name\n0,cat\n1,cat\n", "both called 'cat'"),
    ],
)
def test_class_names_that_cannot_be_used(tmp_path: Path, file: str, content: str, sentence: str):
    (tmp_path / file).write_text(content)
    data = write_lists(tmp_path / "data.csv", [[0, 1], [1], [0]])
    with pytest.raises(DataError, match=sentence) as refused:
        open_data(data, class_names=tmp_path / file)
    assert str(tmp_path / file) in str(refused.value)


def test_names_of_ids_go_through_a_whole_run(tmp_path: Path):
    file = write_lists(tmp_path / "train.csv", lists_of_ids())
    write_lists(tmp_path / "val.csv", lists_of_ids(60, seed=5))
    names = tmp_path / "names.csv"
    names.write_text("id,name\n" + "".join(f"{c},class {c}\n" for c in range(17)))
    _, out, _ = run("inspect", file, "--names", names, "--json")
    facts = json.loads(out)
    assert [row["name"] for row in facts["labels"]] == [*(f"class {c}" for c in range(17)), "17"]
    assert "no name for '17'" in facts["data"]["note"]
    words = ("--set", "data.validation=val", "--set", "train.epochs=1", "--recipe", "bce", "--json")
    assert run("train", "--data", file, "--names", names, *words, "--out", tmp_path / "run")[0] == 0
    trained = sy.Run.load(tmp_path / "run")
    assert trained.names[3] == "class 3"
    code, out, _ = run("evaluate", tmp_path / "run", "--data", tmp_path / "val.csv", "--json")
    assert (code, json.loads(out)["labels_lacking"]) == (0, [])


def test_wide_columns_that_are_ids_are_named_and_stay_labels(tmp_path: Path):
    x, y = items(120)
    rows = [[*map(str, a), *map(str, b)] for a, b in zip(x, y, strict=True)]
    header = [*(f"f{j}" for j in range(5)), "c0", "c1", "c2"]
    file = tmp_path / "wide.csv"
    file.write_text("\n".join(",".join(row) for row in [header, *rows]) + "\n")
    (tmp_path / "names.json").write_text('{"c0": "cat", "c1": "dog", "c2": "bird"}')
    run = sy.fit(file, "bce", settings={**QUICK, "data": {"names": str(tmp_path / "names.json")}}, verbose=False)
    assert run.names == ("cat", "dog", "bird")
    assert run.probability(file).shape == (120, 3)  # the columns of labels do not become features


# ---- data given in Python


class Frame:
    """What pandas and polars have in common, as far as it is used."""

    def __init__(self, columns: dict[str, Any]) -> None:
        self._columns, self.columns = columns, list(columns)

    def __getitem__(self, name: str) -> Any:
        return self._columns[name]

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def to_numpy(self) -> Any:
        return np.stack([np.asarray(column) for column in self._columns.values()], 1)


def test_frames_keep_the_names_of_labels():
    x, y = items(120)
    given = (
        Frame({f"f{j}": x[:, j] for j in range(5)}),
        Frame({"cat": y[:, 0], "dog": y[:, 1].astype(bool), "bird": [None if v else 0.0 for v in y[:, 2]]}),
    )
    run = sy.fit(given, "bce", settings=QUICK, verbose=False)
    assert run.names == ("cat", "dog", "bird")
    assert run.trained.n_known.tolist()[2] < run.trained.n_known.tolist()[1]
    assert run.probability(given[0]).shape == (120, 3)
    with pytest.raises(ValueError, match="'town'"):
        given_inputs(Frame({"town": np.array(["a", "b"])}))


def test_frames_of_pandas():
    pandas = pytest.importorskip("pandas")
    y = pandas.DataFrame({"cat": [1, 0, 1], "dog": [1.0, np.nan, 0.0], "bird": pandas.array([1, None, 0], "Int64")})
    labels = given_labels(y)
    assert labels.names == ("cat", "dog", "bird")
    assert labels.values.tolist() == [[1, 1, 1], [0, -1, -1], [1, 0, 0]]
    assert given_labels(pandas.Series([["b"], ["a", "b"], []])).values.tolist() == [[0, 1], [1, 1], [0, 0]]
    assert given_inputs(pandas.DataFrame({"a": [1, 2], "b": [0.5, None]})).shape == (2, 2)


def test_frames_of_arrow():
    x, y = items(60)
    table = pa.table({"cat": y[:, 0], "dog": [None if v else 0 for v in y[:, 1]], "bird": y[:, 2].astype(bool)})
    labels = given_labels(table)
    assert labels.names == ("cat", "dog", "bird")
    assert np.array_equal(labels.values, np.stack([y[:, 0], -y[:, 1], y[:, 2]], 1))
    made = sy.SteelyardClassifier("bce").fit(pa.table({f"f{j}": x[:, j] for j in range(5)}), table)
    assert made.classes_.tolist() == ["cat", "dog", "bird"]
    with pytest.raises(ValueError, match="column 'when' of the labels holds"):
        given_labels(pa.table({"when": pa.array([0, 1], pa.timestamp("s"))}))


def test_nan_in_labels_is_unknown():
    x, y = items(120, unknown=0.2)
    with_nan = np.where(y < 0, np.nan, y.astype(np.float64))
    ours, theirs = (sy.fit((x, labels), "bce", settings=QUICK, verbose=False) for labels in (y, with_nan))
    assert np.array_equal(ours.probability(x), theirs.probability(x))
    assert ours.trained.n_known.tolist() == theirs.trained.n_known.tolist()


def test_lists_of_labels():
    x, y = items(120)
    names = np.array(["dog", "cat", "10"])
    lists = [names[row == 1].tolist() for row in y]
    run = sy.fit((x, lists), "bce", validation=(x[:9], [["cat"]] * 9), settings=QUICK, verbose=False)
    assert run.names == ("10", "cat", "dog")
    assert run.trained.counts.tolist() == y.sum(0)[[2, 1, 0]].tolist()
    assert given_labels([[19, 1], [3], []]).names == ("1", "3", "19")
    assert given_labels([{"b", "a"}, {"a"}]).values.tolist() == [[1, 1], [1, 0]]
    assert given_labels([[1, 0], [0, 1]]).values.tolist() == [[1, 0], [0, 1]]  # equally long numbers are a table
    with pytest.raises(ValueError, match="'wolf'"):
        given_labels([["wolf"], []], ("cat", "dog"))
    with pytest.raises(ValueError, match=r"labels\[0\]"):
        given_labels([[0.5, 1], [1]])


def test_sparse_matrices():
    x, y = items(120)
    dense = sy.fit((x, y), "bce", settings=QUICK, verbose=False)
    sparse = sy.fit((scipy.sparse.csr_matrix(x), scipy.sparse.coo_array(y)), "bce", settings=QUICK, verbose=False)
    for kind in (scipy.sparse.csr_matrix, scipy.sparse.coo_array, scipy.sparse.csc_array):
        assert np.array_equal(dense.probability(x), sparse.probability(kind(x)))
        with_nan = kind(np.array([[1.0, np.nan], [0, 1]]))
        assert given_labels(with_nan).values.tolist() == [[1, -1], [0, 1]]
        assert given_inputs(kind((1_000_000, 10_000))).nnz == 0  # which is not written out


# ---- types of Parquet


def test_decimals_are_labels_and_other_types_are_named(tmp_path: Path):
    file = tmp_path / "odd.parquet"
    one, zero = decimal.Decimal("1.00"), decimal.Decimal("0.00")
    when = datetime.datetime(2020, 1, 1)
    pq.write_table(
        pa.table(
            {
                "id": ["a", "b", "c"],
                "cat": pa.array([one, zero, None], pa.decimal128(5, 2)),
                "dog": [1, 0, 1],
                "seen": pa.array([when, None, when], pa.timestamp("us")),
                "blob": pa.array([b"1", b"0", b"1"], pa.binary()),
                "size": pa.array([decimal.Decimal("2.50")] * 3, pa.decimal128(5, 2)),
            }
        ),
        file,
    )
    data = table(file)
    assert data.labels.names == ("cat", "dog")
    assert data.labels.values.tolist() == [[1, 1], [0, 0], [-1, 1]]
    assert data.inputs.tolist() == [[2.5]] * 3
    assert "Beware: 'seen' (timestamp[us]), 'blob' (binary)" in data.note
    with pytest.raises(DataError, match="'seen' holds timestamp"):
        table(file, labels=["cat", "seen"])


# ---- mistakes in CSV files, by their lines


def sentence(file: Path, content: str, **how: Any) -> str:
    file.write_text(content)
    with pytest.raises(DataError) as refused:
        table(file, **how)
    return str(refused.value).removeprefix(f"{file}: ")


def test_mistakes_are_named_by_line_where_cells_hold_line_breaks(tmp_path: Path):
    file = tmp_path / "a.csv"
    start = 'id,note,cat\n\n"a","two\nlines",1\n\n'  # lines 1 to 5
    assert sentence(file, start + "b,x,maybe\n").startswith("line 6, column 'cat' holds 'maybe', which is no label")
    assert sentence(file, start + "b,x\n").startswith("line 6 has 2 cells, but the header has 3")
    assert sentence(file, start + "a,x,1\n", id="id").startswith("line 3 and line 6 both have the id 'a'")
    assert sentence(file, start + ",x,1\n", id="id").startswith("line 6 has no id")
    assert sentence(file, 'id,cat,f\n"a\n",1,2\nb,1,x\n', features=["f"]).startswith("line 4, column 'f' holds 'x'")


def test_up_to_ten_mistakes_are_named_at_once(tmp_path: Path):
    file = tmp_path / "a.csv"
    bad = "id,cat,dog\n" + "".join(f"i{i},{'huh' if i % 2 else 1},{'oh' if i % 4 == 1 else 0}\n" for i in range(40))
    line = sentence(file, bad, labels=["cat", "dog"])
    assert line.count("line ") == 10
    assert "line 3, column 'cat' holds 'huh'; line 3, column 'dog' holds 'oh'; line 5, column 'cat' holds 'huh'" in line
    assert " and 20 more, which are no label values" in line
    ragged = "id,cat,dog\n" + "".join(f"i{i},1{',0' * (i % 3)}\n" for i in range(30))
    line = sentence(file, ragged)
    assert line.startswith("line 2 has 2 cells; line 4 has 4 cells; line 5 has 2 cells; ")
    assert line.count("line ") == 10
    assert " and 10 more, but the header has 3" in line
    line = sentence(file, "id,cat,f\n" + "".join(f"i{i},1,{'x' if i > 2 else i}\n" for i in range(6)), features=["f"])
    assert line.startswith("line 5, column 'f' holds 'x'; line 6, column 'f' holds 'x'; line 7, column 'f' holds 'x'")
    line = sentence(file, "id,cat\na,1\na,0\nb,1\nb,0\na,1\n", form="wide", id="id")
    assert line.startswith("line 2 and line 3 both have the id 'a'; line 4 and line 5 both have the id 'b'; line 2 and")
    line = sentence(file, "id,tags\na,x;y\nb,y;z;w\n", names=["x"], separator=";")
    assert line.startswith("line 2 has the label 'y'; line 3 has the label 'y'; line 3 has the label 'z'; line 3 has")
