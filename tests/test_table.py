"""The user's own manifest: every form and every mistake, guessed, said, and read back as it was written."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from steelyard.data.dataset import ArrayDataset, ImageDataset
from steelyard.data.files import DataError
from steelyard.data.tables.read import table
from steelyard.labels import UNKNOWN, Labels


def read(folder: Path, content: str | bytes, name: str = "labels.csv", **said: Any) -> Any:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return table(path, **said)


def refused(folder: Path, content: str | bytes, **said: Any) -> str:
    """The one line with which a manifest is refused."""
    with pytest.raises(DataError) as caught:
        read(folder, content, **said)
    line = str(caught.value)
    assert "\n" not in line
    assert line.startswith(str(folder / said.get("name", "labels.csv")))
    return line.removeprefix(str(folder / said.get("name", "labels.csv"))).removeprefix(": ")


def check(data: Any, names: str, ids: str, values: list[list[float]]) -> None:
    assert list(data.labels.names) == names.split()
    assert list(data.labels.ids) == ids.split()
    assert data.labels.values.tolist() == values


# --- forms -----------------------------------------------------------------------------------------------------------


def test_wide(tmp_path: Path) -> None:
    data = read(tmp_path, "id,cat,dog,bird\na,1,0,\nb,true,FALSE,NaN\nc,yes,no,-1\nd,1.0,0.0,-1.0\ne,Y,n,null\n")
    assert isinstance(data, ArrayDataset)
    check(data, "cat dog bird", "a b c d e", [[1, 0, -1]] * 5)
    assert data.labels.values.dtype == np.int8
    assert data.inputs.shape == (5, 0)
    for part in ("comma-separated text in wide form", "'cat', 'dog', 'bird'", "column 'id'", "blank is unknown"):
        assert part in data.note
    assert "\n" not in data.note


def test_wide_soft_values_and_what_blank_and_minus_one_mean(tmp_path: Path) -> None:
    content = "id,cat,dog\na,0.25,1\nb,,-1\n"
    check(read(tmp_path, content, labels=["cat", "dog"]), "cat dog", "a b", [[0.25, 1], [-1, -1]])
    check(read(tmp_path, content, labels=["dog"], features=[], minus_one="negative"), "dog", "a b", [[1], [0]])
    check(read(tmp_path, content, labels=["cat", "dog"], absent="negative"), "cat dog", "a b", [[0.25, 1], [0, -1]])
    assert "No cell says" in read(tmp_path, "id,cat\na,1\nb,-1\n").note
    assert "No cell says" not in read(tmp_path, "id,cat\na,1\nb,0\n").note


def test_list(tmp_path: Path) -> None:
    content = "image,labels\na,dog;cat\nb,\nc, cat ; ~a & b ;\nd,cat;cat\n"
    data = read(tmp_path, content)
    assert list(data.labels.names) == ["cat", "dog", "~a & b"]
    assert data.labels.values.tolist() == [[1, 1, 0], [0, 0, 0], [1, 0, 1], [1, 0, 0]]
    assert "separated by ';'" in data.note
    assert "not mentioned is absent" in data.note
    data = read(tmp_path, content, absent="unknown")
    assert data.labels.values.tolist() == [[1, 1, -1], [-1, -1, -1], [1, -1, 1], [1, -1, -1]]
    assert "not mentioned is unknown" in data.note


@pytest.mark.parametrize("separator", [";", "|", ","])
def test_list_separator_is_guessed(tmp_path: Path, separator: str) -> None:
    data = read(tmp_path, f'id,tags\na,"traffic light{separator}dog"\nb,dog\n')
    assert data.labels.names == ("dog", "traffic light")
    assert data.labels.values.tolist() == [[1, 1], [1, 0]]


def test_list_of_one_label_and_numbers_in_order(tmp_path: Path) -> None:
    data = read(tmp_path, "id,class\na,10\nb,9\nc,2\nd,10\n")
    check(data, "2 9 10", "a b c d", [[0, 0, 1], [0, 1, 0], [1, 0, 0], [0, 0, 1]])
    data = read(tmp_path, "id,class\na,cat dog\nb,dog\n", separator=" ")
    check(data, "cat dog", "a b", [[1, 1], [0, 1]])


def test_long(tmp_path: Path) -> None:
    data = read(tmp_path, "item,label,value\nb,cat,1\na,dog,0\nb,dog,no\na,cat,\nb,cat,1\n")
    check(data, "cat dog", "b a", [[1, 0], [-1, 0]])
    assert "long form" in data.note
    assert "not mentioned is unknown" in data.note
    data = read(tmp_path, "item,label\nb,cat\na,dog\nb,dog\nc,\n")
    check(data, "cat dog", "b a c", [[1, 1], [0, 1], [0, 0]])
    data = read(tmp_path, "item,label,value\nb,cat,1\na,dog,.5\n", absent="negative")
    check(data, "cat dog", "b a", [[1, 0], [0, 0.5]])
    data = read(tmp_path, "item,label,value\nb,cat,1\na,dog,-1\n", minus_one="negative", absent="unknown")
    check(data, "cat dog", "b a", [[1, -1], [-1, 0]])


def test_names_fix_the_labels_and_their_order(tmp_path: Path) -> None:
    data = read(tmp_path, "id,labels\na,dog;cat\nb,cat\n", names=["dog", "yak", "cat"])
    check(data, "dog yak cat", "a b", [[1, 0, 1], [0, 0, 1]])
    line = refused(tmp_path, "id,labels\na,dog;cat\nb,cat;dgo\n", names=["dog", "cat"])
    assert line.startswith("line 3 has the label 'dgo'")
    line = refused(tmp_path, "item,label,value\na,dog,1\nb,cat,0\n", names=["dog"])
    assert line.startswith("line 3 has the label 'cat'")


def test_open_images_layout_is_guessed(tmp_path: Path) -> None:
    data = read(tmp_path, "ImageID,Source,LabelName,Confidence\na,verification,/m/01,1\nb,verification,/m/02,0\n")
    check(data, "/m/01 /m/02", "a b", [[1, -1], [-1, 0]])
    assert "not used: 1 column ('Source')" in data.note


# --- features --------------------------------------------------------------------------------------------------------


def test_numeric_columns_are_features(tmp_path: Path) -> None:
    data = read(tmp_path, "id,f0,f1,f2,cat,dog\na,0.5,1,1e3,1,0\nb,-2,0,7,0,\n")
    check(data, "cat dog", "a b", [[1, 0], [0, -1]])
    assert data.inputs.dtype == np.float32
    assert data.inputs.tolist() == [[0.5, 1, 1000], [-2, 0, 7]]  # f1 belongs to f0 and f2, though it is 1 and 0
    assert "3 feature columns ('f0', 'f1', 'f2')" in data.note
    x, y, i = data[1]
    assert (x.dtype, y.tolist(), i) == (torch.float32, [0, -1], 1)


def test_features_can_be_set(tmp_path: Path) -> None:
    content = "id,red,wide,cat\na,1,3.5,1\nb,0,4.5,0\n"
    assert read(tmp_path, content).labels.names == ("red", "cat")
    data = read(tmp_path, content, labels=["cat"])
    assert data.inputs.tolist() == [[1, 3.5], [0, 4.5]]
    assert read(tmp_path, content, labels=["cat"], features=["wide"]).inputs.tolist() == [[3.5], [4.5]]
    assert read(tmp_path, content, labels=["cat"], features=[]).inputs.shape == (2, 0)
    data = read(tmp_path, "x0,x1,labels\n.5,1,cat\n2,0,cat;dog\n")
    assert data.inputs.tolist() == [[0.5, 1], [2, 0]]
    check(data, "cat dog", "0 1", [[1, 0], [1, 1]])


@pytest.mark.parametrize("cell", ["", "nan", "inf", "1e99", "abc"])
def test_a_feature_must_be_a_number(tmp_path: Path, cell: str) -> None:
    line = refused(tmp_path, f"id,f0,f1,cat\na,0.5,2,1\nb,7,{cell},0\n", features=["f0", "f1"])
    assert line.startswith("line 3, column 'f1' holds ")


# --- CSV as people write it ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("delimiter", [",", "\t", ";", "|"])
def test_dialects(tmp_path: Path, end: str, mark: str, delimiter: str) -> None:
    rows = [["id", "cat", "dog"], ["a", "1", "0"], ["b", "", "1"]]
    content = mark + end.join(delimiter.join(row) for row in rows)
    for tail in ("", end, end * 3):
        check(read(tmp_path, content + tail), "cat dog", "a b", [[1, 0], [-1, 1]])
    check(read(tmp_path, mark + end + content.removeprefix(mark)), "cat dog", "a b", [[1, 0], [-1, 1]])


def test_quotes_unicode_and_odd_names(tmp_path: Path) -> None:
    content = 'id,"a, b","say ""x""",~a & b,日本,"two\nlines", padded \na,1,0,1,0,1,1\n"b, ""c""",0,1,0,1,0,0\n'
    data = read(tmp_path, content)
    assert data.labels.names == ("a, b", 'say "x"', "~a & b", "日本", "two\nlines", "padded")
    assert list(data.labels.ids) == ["a", 'b, "c"']
    data = read(tmp_path, 'id,labels\na,"~a & b;日本"\nb,"say ""x""; it\'s"\n')
    assert data.labels.names == ("it's", 'say "x"', "~a & b", "日本")


def test_a_row_longer_than_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steelyard.data.tables.manifest._BLOCK", 64)
    names = [f"label number {i}" for i in range(50)]
    values = np.arange(100).reshape(2, 50) % 2
    rows = [["id", *names], *([f"item{i}", *map(str, row)] for i, row in enumerate(values))]
    data = read(tmp_path, "\n".join(",".join(row) for row in rows))
    assert data.labels.names == tuple(names)
    assert data.labels.values.tolist() == values.tolist()


def test_many_blocks_agree_with_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    rows = [(f"item {i}", f" label {j}", v) for i, j, v in rng.integers(0, (40, 9, 2), (2000, 3))]
    distinct = {(item, label): value for item, label, value in rows}
    content = "item,label,value\n" + "\n".join(f"{i},{j},{v}" for (i, j), v in distinct.items())
    one = read(tmp_path, content).labels
    monkeypatch.setattr("steelyard.data.tables.manifest._BLOCK", 256)
    many = read(tmp_path, content, form="long").labels
    assert (one.names, list(one.ids)) == (many.names, list(many.ids))
    assert (one.values == many.values).all()
    place = {name: j for j, name in enumerate(one.names)}
    item = {name: i for i, name in enumerate(one.ids)}
    expected = np.full(one.values.shape, UNKNOWN)
    for (i, j), v in distinct.items():
        expected[item[i], place[j.strip()]] = v
    assert (one.values == expected).all()


def test_other_encodings(tmp_path: Path) -> None:
    content = "id,café\na,1\né,0\n"
    check(read(tmp_path, content.encode("latin-1"), encoding="latin-1"), "café", "a é", [[1], [0]])
    check(read(tmp_path, content.encode("utf-16"), encoding="utf-16"), "café", "a é", [[1], [0]])
    assert "line 1 is not utf-8 (byte 0xe9)" in (line := refused(tmp_path, content.encode("latin-1")))
    assert "encoding='latin-1'" in line
    assert "line 3 is not utf-8" in refused(tmp_path, "id,cat\na,1\né,0\n".encode("latin-1"))
    assert "encoding='utf-16'" in refused(tmp_path, content.encode("utf-16"))
    assert "unknown encoding" in refused(tmp_path, content, encoding="klingon")


def test_pandas_index_and_columns_without_a_name(tmp_path: Path) -> None:
    check(read(tmp_path, ",cat,dog\n0,1,0\n1,0,1\n"), "cat dog", "0 1", [[1, 0], [0, 1]])
    data = read(tmp_path, "id,cat,,\na,1,,\nb,0,,\n")
    check(data, "cat", "a b", [[1], [0]])
    assert "'column 3', 'column 4'" in data.note


# --- mistakes --------------------------------------------------------------------------------------------------------

MISTAKES = {
    "empty": ("", "is empty"),
    "white space": ("\n \n", "is empty"),
    "header only": ("id,cat\n", "no rows"),
    "header without line end": ("id,cat", "no rows"),
    "short row": ("id,cat,dog\na,1,0\nb,1\n", "line 3 has 2 cells, but the header has 3"),
    "long row": ("id,cat\na,1\nb,1,0\n", "line 3 has 3 cells, but the header has 2"),
    "open quote": ('id,cat\na,1\n"b,0\nc,1\n', "line 3 has 1 cells, but the header has 2"),
    "bad value": ("id,cat,dog\na,1,0\nb,0,maybe\n", "line 3, column 'dog' holds 'maybe', which is no label value"),
    "bad number": ("id,cat,dog\na,1,0\nb,0,2\nc,1,1\n", "line 3, column 'dog' holds '2', which is no label value"),
    "same column": ("id,cat, cat\na,1,0\n", "columns 2 and 3 have the same name 'cat'"),
    "same id": ("id,cat\na,1\nb,1\n a,0\n", "line 2 and line 4 both have the id 'a'"),
    "no id": ("id,cat\na,1\n,0\n", "line 3 has no id"),
    "no id, long": ("item,label,value\na,x,1\n,x,0\n", "line 3 has no id"),
    "no label at all": ("id,height\na,1.5\nb,2.5\n", "no label is found in its columns ('id', 'height')"),
    "blank labels": ("id,cat\na,\nb,\n", "no label is found"),
    "blank lists": ("id,labels\na,\nb,\n", "no label is found"),
    "value without label": ("item,label,value\na,x,1\nb,,0\n", "line 3 has a value but no label"),
    "contradiction": ("item,label,value\na,x,1\na,x,0\n", "the cell of item 'a', label 'x' is listed twice"),
    "bad value, long": ("item,label,value\na,x,1\nb,x,huh\n", "line 3, column 'value' holds 'huh'"),
    "no header": ("a.jpg,cat\nb.jpg,dog\n", "the first row holds 'a.jpg', so it is no header"),
    "python lists": ("id,labels\na,\"['cat', 'dog']\"\n", "holds lists in brackets"),
    "excel": (b"PK\x03\x04 and more", "is an Excel or zip file"),
    "gzip": (b"\x1f\x8b and more", "is a gzip file"),
    "binary": (bytes(range(256)) * 4, "is not utf-8"),
    "half a parquet file": (b"PAR1 and more", "is not a readable Parquet file"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_one_line(tmp_path: Path, name: str) -> None:
    content, words = MISTAKES[name]
    assert words in refused(tmp_path, content)


def test_mistakes_far_into_a_large_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steelyard.data.tables.manifest._BLOCK", 512)
    rows = [f"item{i},1,0.5" for i in range(2000)]
    for wrong, words in (
        ("x,1", "line 1502 has 2 cells"),
        ("x,maybe,1", "line 1502, column 'cat' holds 'maybe'"),
        ("x,1,wide", "line 1502, column 'width' holds 'wide', which is no number"),
        ("item3,1,1", "line 5 and line 1502 both have the id 'item3'"),
    ):
        content = "\n".join(["id,cat,width", *rows[:1500], wrong, *rows[1500:]])
        assert refused(tmp_path, content).startswith(words)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere\.csv cannot be read \(No such file"):
        table(tmp_path / "nowhere.csv")
    with pytest.raises(DataError, match="Is a directory"):
        table(tmp_path)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"labels": ["cta"]}, "no column 'cta', given as labels: do you mean 'cat'?"),
        ({"id": "zzz"}, "no column 'zzz', given as id: there are 'id', 'cat', 'tags'"),
        ({"features": ["x"]}, "no column 'x', given as features"),
        ({"form": "tall"}, "form is 'tall': choose one of"),
        ({"absent": "no"}, "absent is 'no': choose one of"),
        ({"minus_one": "0"}, "minus_one is '0': choose one of"),
        ({"labels": ["cat", "cat"]}, "labels names column 'cat' twice"),
        ({"labels": ["cat"], "features": ["cat"]}, "labels names column 'cat'"),
        ({"labels": ["cat"], "form": "list"}, "labels names 1 columns, but list form has one"),
        ({"labels": ["cat"], "separator": ";"}, "separator is given, but wide form has none"),
        ({"form": "list", "value": "cat"}, "value is given, but list form has none"),
        ({"form": "wide", "names": ["cat"]}, "names is given, but wide form has none"),
    ],
)
def test_arguments_are_checked(tmp_path: Path, said: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as caught:
        read(tmp_path, "id,cat,tags\na,1,x\nb,0,y\n", **said)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


# --- images ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    (folder / "sub").mkdir(parents=True)
    for name, colour in {"a.jpg": "red", "b.PNG": "blue", "sub/c.jpeg": "green"}.items():
        Image.new("RGB", (8, 6), colour).save(folder / name)
    Image.new("RGB", (8, 6)).save(tmp_path / "outside.jpg")
    return folder


def test_images_in_a_folder(tmp_path: Path, photos: Path) -> None:
    for form in ("image,cat\na.jpg,1\nb.PNG,0\nsub/c.jpeg,\n", "image,cat\na,1\nb,0\nsub/c,\n"):
        data = read(tmp_path, form, images=photos, size=4)
        assert isinstance(data, ImageDataset)
        assert data.paths == [str(photos / name) for name in ("a.jpg", "b.PNG", "sub/c.jpeg")]
        assert data.labels.values.tolist() == [[1], [0], [-1]]
        assert tuple(data[2][0].shape) == (3, 4, 4)
        assert "column 'image'" in data.note
    data = read(tmp_path, "file,label,value\nsub/../a.jpg,cat,1\nb.PNG,dog,0\nsub/../a.jpg,dog,0\n", images=photos)
    assert data.paths == [str(photos / "a.jpg"), str(photos / "b.PNG")]
    data = read(tmp_path, f"image,cat\n{photos / 'a.jpg'},1\n", images=photos)
    assert data.paths == [str(photos / "a.jpg")]


def test_id_and_path_columns(tmp_path: Path, photos: Path) -> None:
    data = read(tmp_path, "id,file,width,tags\nx1,a.jpg,8,cat|dog\nx2,b.PNG,8,dog\nx3,b.PNG,8,\n", images=photos)
    check(data, "cat dog", "x1 x2 x3", [[1, 1], [0, 1], [0, 0]])
    assert data.paths == [str(photos / name) for name in ("a.jpg", "b.PNG", "b.PNG")]
    assert "not used: 1 column ('width')" in data.note
    rows = "id,file,label\nx1,a.jpg,cat\nx2,b.PNG,dog\nx1,a.jpg,dog\nx3,b.PNG,\n"
    data = read(tmp_path, rows, images=photos)
    check(data, "cat dog", "x1 x2 x3", [[1, 1], [0, 1], [0, 0]])
    assert data.paths == [str(photos / name) for name in ("a.jpg", "b.PNG", "b.PNG")]


def test_images_beside_the_manifest_are_found(tmp_path: Path, photos: Path) -> None:
    data = read(tmp_path, "image,cat\nphotos/a.jpg,1\nphotos/b.PNG,0\n")
    assert isinstance(data, ImageDataset)
    assert data.paths[0] == str(photos / "a.jpg")
    assert isinstance(read(tmp_path, "image,cat\nother/a.jpg,1\n"), ArrayDataset)


@pytest.mark.parametrize("name", ["../outside.jpg", "sub/../../outside.jpg", "/etc/passwd", "..", "", "sub/.."])
def test_nothing_outside_the_folder_is_read(tmp_path: Path, photos: Path, name: str) -> None:
    line = refused(tmp_path, f'image,cat\na.jpg,1\n"{name}",0\n', images=photos)
    assert line.startswith(f"line 3: {name!r} leads out of the image folder" if name else "line 3 has no id")
    if name:
        line = refused(tmp_path, f'image,label,value\na.jpg,cat,1\n"{name}",cat,0\n', images=photos)
        assert f"{name!r} leads out of the image folder" in line


def test_missing_images(tmp_path: Path, photos: Path) -> None:
    rows = "".join(f"no{i}.jpg,{i % 2}\n" for i in range(5))
    content = f"image,cat\na.jpg,1\n{rows}{'x' * 300},1\n"
    line = refused(tmp_path, content, images=photos)
    assert line.startswith(f"6 of 7 images are not in {photos} ('no0.jpg', 'no1.jpg', 'no2.jpg', …)")
    assert "on_bad_image='skip'" in line
    data = read(tmp_path, content, images=photos, on_bad_image="skip", size=4)
    assert "6 of 7 images are not in" in data.note
    assert [bool((target == UNKNOWN).all()) for _, target, _ in data] == [False] + [True] * 6
    assert data.skipped.tolist() == [1, 2, 3, 4, 5, 6]
    with pytest.raises(DataError, match="nowhere is not a folder"):
        read(tmp_path, content, images=tmp_path / "nowhere")


def test_images_need_a_column(tmp_path: Path, photos: Path) -> None:
    assert "name it with id= or path=" in refused(tmp_path, "cat,dog\n1,0\n", images=photos)
    assert "name it with id= or path=" in refused(tmp_path, "label\nx\ny\n", form="long")


# --- Parquet ---------------------------------------------------------------------------------------------------------


def write(folder: Path, columns: dict[str, Any]) -> Path:
    pq.write_table(pa.table(columns), folder / "labels.parquet")
    return folder / "labels.parquet"


def test_parquet_wide(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {
            "id": [1, 2, 3],
            "cat": [True, False, None],
            "dog": pa.array([1, 0, -1], pa.int8()),
            "yak": [1.0, 0.0, float("nan")],
            "elk": pa.array(["yes", "no", None]).dictionary_encode(),
            "gnu": pa.array(["1", "0", ""], pa.large_string()),
            "f": [0.5, 1.5, 2.5],
            "vector": pa.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], pa.list_(pa.float32(), 2)),
            "time": pa.array([1, 2, 3], pa.timestamp("s")),
        },
    )
    data: Any = table(path)
    check(data, "cat dog yak elk gnu", "1 2 3", [[1] * 5, [0] * 5, [-1] * 5])
    assert data.inputs.tolist() == [[0.5, 1, 2], [1.5, 3, 4], [2.5, 5, 6]]
    assert "read as Parquet in wide form" in data.note
    assert "'time'" in data.note
    with pytest.raises(DataError, match=r"column 'time' holds timestamp\[ms\], no label values"):
        table(path, labels=["time"])
    with pytest.raises(DataError, match=r"row 2, column 'f' holds '1\.5'; row 3"):
        table(path, labels=["f"])


def test_parquet_list_and_long(tmp_path: Path) -> None:
    lists = [["cat", "a;b"], [], None, ["cat"]]
    check(table(write(tmp_path, {"id": list("abcd"), "labels": lists})), "a;b cat", "a b c d",
          [[1, 1], [0, 0], [0, 0], [0, 1]])  # fmt: skip
    rows = {"item": ["b", "a", "b"], "label": ["x", "y", "y"], "value": [1.0, 0.0, None]}
    check(table(write(tmp_path, rows)), "x y", "b a", [[1, -1], [-1, 0]])
    with pytest.raises(DataError, match="row 2 has no id"):
        table(write(tmp_path, {**rows, "item": ["b", None, "b"]}))


def test_parquet_mistakes(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"row 2, column 'v' holds 1 numbers, but the first row has 2"):
        table(write(tmp_path, {"cat": [1, 0], "v": [[1.0, 2.0], [3.0]]}))
    with pytest.raises(DataError, match=r"row 1, column 'v' holds no finite number"):
        table(write(tmp_path, {"cat": [1, 0], "v": [[1.0, None], [3.0, 4.0]]}))
    with pytest.raises(DataError, match=r"column 'v' holds list<.*>: give one with a text in each row"):
        table(write(tmp_path, {"cat": [1, 0], "v": [["x"], ["y"]]}), id="v")
    with pytest.raises(DataError, match="no columns"):
        table(write(tmp_path, {}))
    with pytest.raises(DataError, match="no rows"):
        table(write(tmp_path, {"id": pa.array([], pa.string()), "cat": pa.array([], pa.int8())}))
    path = write(tmp_path, {"id": ["a", "b"], "cat": [1, 0]})
    path.write_bytes(path.read_bytes()[:-9])
    torn = tmp_path / "torn.parquet"
    torn.write_bytes(b"\xf3 no longer what it was")
    with pytest.raises(DataError, match=r"torn.parquet is not a readable Parquet file \(it does not begin as one\)"):
        table(torn)
    with pytest.raises(DataError, match="is not a readable Parquet file"):
        table(path)


# --- there and back --------------------------------------------------------------------------------------------------

TEXT = st.text(st.characters(exclude_categories=["Cc", "Cs"]) | st.sampled_from(' ,;|"~&\n\t'), min_size=1, max_size=8)
NAME = TEXT.map(str.strip).filter(lambda text: bool(text) and text not in ("item", "label", "value"))


@st.composite
def label_tables(draw: st.DrawFn, values: list[float]) -> Labels:
    names = draw(st.lists(NAME, min_size=1, max_size=5, unique=True))
    ids = draw(st.lists(NAME, min_size=1, max_size=6, unique=True))
    cell = st.sampled_from(values)
    rows = draw(
        st.lists(st.lists(cell, min_size=len(names), max_size=len(names)), min_size=len(ids), max_size=len(ids))
    )
    return Labels(np.array(rows, np.float32), names, ids)


def to_csv(rows: list[list[str]], delimiter: str, end: str, mark: str) -> bytes:
    stream = io.StringIO()
    csv.writer(stream, delimiter=delimiter, lineterminator=end).writerows(rows)
    return (mark + stream.getvalue()).encode()


def equal(a: Labels, b: Labels) -> bool:
    return a.names == b.names and list(a.ids) == list(b.ids) and bool((a.values == b.values).all())


DIALECT = st.tuples(
    st.sampled_from([",", "\t", ";", "|"]), st.sampled_from(["\n", "\r\n"]), st.sampled_from(["", "\ufeff"])
)
FAST = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@FAST
@given(label_tables([1, 0, -1, 0.25]), DIALECT, st.sampled_from(["", "NaN", "-1", "null"]))
def test_wide_there_and_back(tmp_path: Path, labels: Labels, dialect: tuple[str, str, str], unknown: str) -> None:
    cells = [[unknown if v == UNKNOWN else f"{v:g}" for v in row] for row in labels.values.tolist()]
    rows = [["item", *labels.names], *([id, *row] for id, row in zip(labels.ids, cells, strict=True))]
    data = read(tmp_path, to_csv(rows, *dialect), labels=labels.names, id="item", delimiter=dialect[0])
    assert equal(data.labels, labels)


@FAST
@given(label_tables([1, 0]) | label_tables([1, -1]), DIALECT)
def test_list_there_and_back(tmp_path: Path, labels: Labels, dialect: tuple[str, str, str]) -> None:
    absent = "unknown" if (labels.values == UNKNOWN).any() else "negative"
    separator = next(mark for mark in ("; ", "::", "/+/") if not any(mark.strip() in name for name in labels.names))
    rows = [["item", "label"]]
    for id, row in zip(labels.ids, labels.values, strict=True):
        rows.append([id, separator.join(name for name, v in zip(labels.names, row, strict=True) if v == 1)])
    data = read(tmp_path, to_csv(rows, *dialect), form="list", id="item", labels="label", delimiter=dialect[0],
                separator=separator.strip(), absent=absent, names=labels.names)  # fmt: skip
    assert equal(data.labels, labels)


@FAST
@given(label_tables([1, 0, -1, 0.25]), DIALECT, st.sampled_from([0, -1]), st.randoms(use_true_random=False))
def test_long_there_and_back(
    tmp_path: Path, labels: Labels, dialect: tuple[str, str, str], fill: int, random: Any
) -> None:
    cells = [
        [id, name, f"{v:g}"]
        for id, row in zip(labels.ids, labels.values.tolist(), strict=True)
        for name, v in zip(labels.names, row, strict=True)
        if v != fill
    ]
    random.shuffle(cells)
    rows = [["item", "label", "value"], *([id, "", ""] for id in labels.ids), *cells]
    data = read(tmp_path, to_csv(rows, *dialect), form="long", id="item", labels="label", value="value",
                delimiter=dialect[0], absent="unknown" if fill else "negative", names=labels.names)  # fmt: skip
    assert equal(data.labels, labels)
