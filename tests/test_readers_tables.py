"""Readers of feature tables (ARFF, npz) and of pickles of plain data."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import layouts
from steelyard.data.files import DataError
from steelyard.data.readers.arff import arff
from steelyard.data.readers.mlt import mlt_labels
from steelyard.data.readers.npz import npz
from steelyard.data.readers.pickles import read_pickle
from steelyard.data.readers.voc import VOC_LABELS
from steelyard.labels import UNKNOWN

NAN = float("nan")


def write_arff(folder: Path, text: str, labels: str = "", stem: str = "songs") -> Path:
    """Write an ARFF file and, for names of labels separated by blanks, Mulan's XML file beside it."""
    if labels:
        layouts.write(
            folder / f"{stem}.xml", f"<labels>{''.join(f'<label name={n!r}/>' for n in labels.split())}</labels>"
        )
    return layouts.write(folder / f"{stem}.arff", text)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_arff_of_mulan(tmp_path: Path, sparse: bool, seed: int) -> None:
    truth = layouts.write_arff(tmp_path, sparse=sparse, seed=seed)
    data = arff(tmp_path / "songs-train.arff")
    np.testing.assert_array_equal(data.labels.values, truth.values)
    assert data.labels.names == truth.names
    assert tuple(data.labels.ids) == truth.ids
    np.testing.assert_array_equal(data.inputs, truth.inputs)
    assert data.inputs.dtype == np.float32


def test_arff_takes_the_xml_given_then_the_one_of_its_stem_then_the_one_before_train_or_test(tmp_path: Path) -> None:
    header = "".join(f"@attribute {name} {{0,1}}\n" for name in "abc")
    text = f"@relation r\n{header}@attribute x numeric\n@data\n1,0,1,5\n"
    for stem, label in (("songs-test", "a"), ("songs", "b"), ("other", "c")):
        layouts.write(tmp_path / f"{stem}.xml", f'<labels><label name="{label}"/></labels>')
    path = layouts.write(tmp_path / "songs-test.arff", text)
    assert arff(path, tmp_path / "other.xml").labels.names == ("c",)
    assert arff(path).labels.names == ("a",)
    (tmp_path / "songs-test.xml").unlink()
    assert arff(path).labels.names == ("b",)


@pytest.mark.parametrize(("count", "names"), [("2", ("a", "b")), ("-1", ("d",)), ("-3", ("b", "c", "d"))])
def test_arff_of_meka_counts_labels_from_the_front_or_the_back(
    tmp_path: Path, count: str, names: tuple[str, ...]
) -> None:
    header = "".join(f"@attribute {name} {{0,1}}\n" for name in "abcd")
    path = write_arff(tmp_path, f"@relation 'songs: -C {count} -split-number 3'\n{header}@data\n1,0,1,1\n0,0,0,1\n")
    data = arff(path)
    assert data.labels.names == names
    rows = np.array([[1, 0, 1, 1], [0, 0, 0, 1]])
    np.testing.assert_array_equal(data.labels.values, rows[:, ["abcd".index(name) for name in names]])
    np.testing.assert_array_equal(data.inputs, rows[:, ["abcd".index(name) for name in "abcd" if name not in names]])


def test_arff_reads_quotes_escapes_comments_cases_tabs_and_missing_values(tmp_path: Path) -> None:
    text = (
        "% about these data\n"
        "@RELATION  songs\n"
        "@Attribute 'it\\'s a {name}, 100% \"odd\"'\tREAL\n"
        '@attribute "two \\"words\\"" Integer\n'
        "@ATTRIBUTE colour {red, 'dark blue', \"a,b\"}\n"
        "@attribute size {'small', big}\n"
        "@attribute grade { 3 , 1 }\n"
        "@attribute ~a&b {0, 1}\n"
        "@attribute sung {no,yes}\n"
        "  % a comment\n\n"
        "@DATA % here it begins\n"
        "1.5e1, 2, 'dark blue', big, 3, 1, yes\n"
        "% between rows\n\n"
        '?,\t-4 ,"a,b",?,1,?,no\n'
        ".5,+3,?,small,3,0,?\n"
    )
    path = layouts.write(tmp_path / "songs.arff", text)
    xml = layouts.write(
        tmp_path / "songs.xml",
        '<labels xmlns="http://mulan.sourceforge.net/labels">'
        '<label name="~a&amp;b"><label name="sung"/></label></labels>',
    )
    data = arff(path, xml)
    assert data.labels.names == ("~a&b", "sung")
    np.testing.assert_array_equal(data.labels.values, [[1, 1], [UNKNOWN, 0], [0, UNKNOWN]])
    # number, number, three columns of a colour, one of two sizes, a grade that is a number
    expected = [[15, 2, 0, 1, 0, 1, 3], [NAN, -4, 0, 0, 1, NAN, 1], [0.5, 3, NAN, NAN, NAN, 0, 3]]
    np.testing.assert_array_equal(data.inputs, np.array(expected, np.float32))


def test_what_a_sparse_row_leaves_out_is_zero_or_the_first_category(tmp_path: Path) -> None:
    header = (
        "@relation r\n@attribute x numeric\n@attribute size {small,big}\n@attribute grade {3,1}\n@attribute y {0,1}\n"
    )
    rows = "@data\n{}\n{ 3 1 }\n{1 big,0 -2.5, 2 1}\n{0 ?, 1 'big'}\n"
    data = arff(write_arff(tmp_path, header + rows, "y"))
    np.testing.assert_array_equal(data.labels.values[:, 0], [0, 1, 0, 0])
    np.testing.assert_array_equal(data.inputs, np.array([[0, 0, 3], [0, 0, 3], [-2.5, 1, 1], [NAN, 1, 3]], np.float32))
    data = arff(write_arff(tmp_path, PLAIN + "@data\n{}\n{ }\n", "y"))
    np.testing.assert_array_equal(data.inputs, np.array([[0, 3], [0, 3]], np.float32))
    # the same where all is numbers, which is read another way
    header = "@relation r\n@attribute x numeric\n@attribute grade {3,1}\n@attribute y {1,0}\n"
    data = arff(write_arff(tmp_path, header + "@data\n{}\n{ 2 0 }\n{0 -2.5,\t1 1}\n", "y"))
    np.testing.assert_array_equal(data.labels.values[:, 0], [1, 0, 1])
    np.testing.assert_array_equal(data.inputs, np.array([[0, 3], [0, 3], [-2.5, 1]], np.float32))


numbers = st.floats(-1e6, 1e6, width=32).map(float) | st.integers(-9, 9).map(float)


@settings(max_examples=40)
@given(
    table=hnp.arrays(np.float32, st.tuples(st.integers(1, 6), st.integers(1, 5)), elements=numbers),
    sparse=st.booleans(),
    careful=st.booleans(),
    ends=st.sampled_from(["\n", "\r\n", "\r"]),
    bom=st.booleans(),
)
def test_arff_gives_back_the_numbers_written_both_ways(
    tmp_path_factory: pytest.TempPathFactory, table: np.ndarray, sparse: bool, careful: bool, ends: str, bom: bool
) -> None:
    """The fast and the careful parser agree with what was written, whatever ends the lines."""
    folder = tmp_path_factory.mktemp("arff")
    rows = []
    for row in table:
        cells = [repr(float(value)) for value in row] + ["1"]
        if sparse:
            rows.append("{" + ",".join(f"{i} {cell}" for i, cell in enumerate(cells) if float(cell)) + "}")
        else:
            rows.append(" , ".join(cells))
    symbol = ["@attribute s {a,b}"] if careful else []
    if careful:
        rows = [row.replace("}", f",{table.shape[1] + 1} b}}") if sparse else row + ",b" for row in rows]
    header = [f"@attribute f{j} numeric" for j in range(table.shape[1])] + ["@attribute y {0,1}", *symbol]
    text = ends.join(["@relation r", *header, "@data", *rows])
    write_arff(folder, ("\ufeff" if bom else "") + text, "y")
    data = arff(folder / "songs.arff")
    np.testing.assert_array_equal(data.inputs[:, : table.shape[1]], table)
    assert data.labels.values.all()


HEADER = "@relation r\n@attribute x numeric\n@attribute g {3,1}\n@attribute s {a,b}\n@attribute y {0,1}\n"
PLAIN = HEADER.replace("@attribute s {a,b}\n", "")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", r"is empty"),
        ("\n \n", r"no @data line"),
        ("@relation r\n@attribute x numeric\n", r"no @data line"),
        ("@data\n1\n", r"declares no @attribute"),
        (PLAIN + "@data\n% nothing\n", r"no rows after line 5"),
        (PLAIN + "@data\n1,3,0\n1,3\n", r"line 7: 2 values for 3 attributes"),
        (PLAIN + "@data\n1,3,0\n1,3,0,\n", r"line 7: 4 values"),
        (PLAIN + "@data\n1,,0\n", r"line 6: 'x'|line 6: 'g' is ''"),
        (PLAIN + "@data\n1 2,3,0\n", r"line 6: 'x' is '1 2', not a number"),
        (PLAIN + "@data\nnan,3,0\n", r"line 6: 'x' is 'nan', not a number \(a missing value is written \?\)"),
        (PLAIN + "@data\n1,3,0\n1,2,0\n", r"line 7: 'g' is 2, none of its categories 3, 1"),
        (PLAIN + "@data\n1,3,2\n", r"line 6: 'y' is 2, none of its categories 0, 1"),
        (PLAIN + "@data\n{0 1}\n\n{3 1}\n", r"line 8: the index 3 is not below 3"),
        (PLAIN + "@data\n{0 1, 0 2}\n", r"line 6: the index 0 occurs twice"),
        (PLAIN + "@data\n{99999999999999999999 1}\n", r"line 6: .* is not an index and a value"),
        (PLAIN + "@data\n{0 1e400}\n", r"line 6: 'x' is too large a number"),
        (PLAIN + "@data\n1,3,0\n-1e39,3,0\n", r"line 7: 'x' is too large a number"),
        (HEADER + "@data\n1e39,3,a,0\n", r"line 7: 'x' is too large a number"),
        (PLAIN + "@data\n{1 2}\n", r"line 6: 'g' is 2, none"),
        (PLAIN + "@data\n{0 1\n", r"line 6: a sparse row .* truncated"),
        (PLAIN + "@data\n{0 1, 5}\n", r"line 6: '5' is not an index and a value"),
        (HEADER + "@data\n1,3,c,0\n", r"line 7: 's' is 'c', none of its categories a, b"),
        (HEADER + "@data\n1,3,'a,0\n", r"line 7: badly quoted values"),
        (HEADER + "@data\n{7 1}\n", r"line 7: the index 7 is not below 4"),
        (HEADER + "@data\n{2 a, 2 b}\n", r"line 7: the index 2 occurs twice"),
        (HEADER + "@attribute x real\n@data\n1,3,a,0,1\n", r"line 6: the attribute 'x' was declared at line 2"),
        (HEADER + "@attribute t string\n@data\n1,3,a,0,b\n", r"line 6: the attribute 't' has type 'string'"),
        (HEADER + "@attribute t {a,,b}\n@data\n", r"line 6: the attribute 't' has an empty"),
        (HEADER + "@attribute t {a,'a'}\n@data\n", r"line 6: the attribute 't' has an empty, repeated"),
        (HEADER + "@attribute {a}\n@data\n", r"line 6: an attribute needs a name"),
        (HEADER + "@atribute t real\n@data\n", r"line 6: '@atribute t real' is not @relation"),
    ],
)
def test_arff_names_the_line_that_is_wrong(tmp_path: Path, text: str, fault: str) -> None:
    path = write_arff(tmp_path, text, "y")
    with pytest.raises(DataError, match=f"songs.arff.*(?:{fault})") as caught:
        arff(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("xml", "fault"),
    [
        ("<labels><label name='y'>", r"songs.xml is not XML"),
        ("<labels/>", r"songs.xml names no label"),
        ("<labels><label name='y'/><label name='y'/></labels>", r"songs.xml: the label 'y' is at 1 and again at 2"),
        (
            "<labels><label name='z'/></labels>",
            r"songs.xml names the label 'z', which .*songs.arff has no attribute for",
        ),
        ("<labels><label name='x'/></labels>", r"label 'x' is 7 in row 2"),
        ("<labels><label name='s'/></labels>", r"label 's' has categories \('a', 'b'\)"),
        ("<labels>" + "".join(f"<label name='{n}'/>" for n in "xgsy") + "</labels>", r"label 'x' is 7"),
    ],
)
def test_arff_says_what_is_wrong_with_the_labels(tmp_path: Path, xml: str, fault: str) -> None:
    path = write_arff(tmp_path, HEADER + "@data\n1,3,a,0\n7,3,a,0\n")
    layouts.write(tmp_path / "songs.xml", xml)
    with pytest.raises(DataError, match=fault):
        arff(path)


def test_arff_needs_to_know_its_labels_and_something_to_learn_from(tmp_path: Path) -> None:
    path = write_arff(tmp_path, HEADER + "@data\n1,3,a,0\n")
    with pytest.raises(DataError, match=r"no XML file beside it and no -C"):
        arff(path)
    with pytest.raises(DataError, match=r"nowhere.xml cannot be read"):
        arff(path, tmp_path / "nowhere.xml")
    for count in (0, 5, -5):
        path = write_arff(tmp_path, HEADER.replace("@relation r", f"@relation 'r: -C {count}'") + "@data\n1,3,a,0\n")
        with pytest.raises(DataError, match=rf"-C {count}, but there are 4 attributes"):
            arff(path)
    path = write_arff(tmp_path, "@relation r\n@attribute y {0,1}\n@data\n1\n", "y")
    with pytest.raises(DataError, match="every attribute is a label"):
        arff(path)


def test_npz(tmp_path: Path) -> None:
    truths = layouts.write_npz(tmp_path / "a.npz", {"train": 7, "test": 4})
    for split, truth in truths.items():
        data = npz(tmp_path / "a.npz", split)
        np.testing.assert_array_equal(data.labels.values, truth.values)
        assert (data.labels.names, tuple(data.labels.ids)) == (truth.names, truth.ids)
        np.testing.assert_allclose(data.inputs, truth.inputs, rtol=1e-6)
        assert data[0][0].dtype.is_floating_point
    with pytest.raises(DataError, match=r"a.npz has no array X: give split='test' or 'train'"):
        npz(tmp_path / "a.npz")
    with pytest.raises(DataError, match=r"a.npz has no array X_val"):
        npz(tmp_path / "a.npz", "val")


def test_npz_without_splits_names_or_ids_and_with_images(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, 1, 4, 5), np.uint8)
    np.savez(tmp_path / "a.npz", X=images, Y=np.eye(3))
    data = npz(tmp_path / "a.npz")
    np.testing.assert_array_equal(data[1][0], images[1])
    assert (data.labels.names, tuple(data.labels.ids)) == (("0", "1", "2"), ("0", "1", "2"))


def test_npz_translates_files_in_which_minus_one_is_absent(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", X=np.zeros((2, 1)), Y=np.array([[1, -1, 0], [-1, -1, 1]], np.int8))
    np.testing.assert_array_equal(npz(tmp_path / "a.npz", absent=-1).labels.values, [[1, 0, UNKNOWN], [0, 0, 1]])
    for dtype in (bool, np.uint8, np.uint64, np.int8, np.float16):
        np.savez(tmp_path / "b.npz", X=np.zeros((2, 1)), Y=np.eye(2, dtype=dtype))
        np.testing.assert_array_equal(
            npz(tmp_path / "b.npz", absent=-1).labels.values, [[1, UNKNOWN], [UNKNOWN, 1]], err_msg=str(dtype)
        )
    np.testing.assert_array_equal(npz(tmp_path / "a.npz").labels.values, [[1, UNKNOWN, 0], [UNKNOWN, UNKNOWN, 1]])
    with pytest.raises(ValueError, match="absent is 1"):
        npz(tmp_path / "a.npz", absent=1)


def test_npz_takes_nan_as_unknown(tmp_path: Path) -> None:
    hard = np.array([[1, np.nan, 0], [np.nan, 0, 1]])
    for dtype in (np.float64, np.float32, np.float16):
        np.savez(tmp_path / "a.npz", X=np.zeros((2, 1)), Y=hard.astype(dtype))
        labels = npz(tmp_path / "a.npz").labels
        np.testing.assert_array_equal(labels.values, [[1, UNKNOWN, 0], [UNKNOWN, 0, 1]])
        assert labels.values.dtype == np.int8
    np.savez(tmp_path / "a.npz", X=np.zeros((2, 1)), Y=np.array([[0.25, np.nan], [-1, 1]]))
    np.testing.assert_array_equal(npz(tmp_path / "a.npz").labels.values, [[0.25, UNKNOWN], [UNKNOWN, 1]])
    np.savez(tmp_path / "a.npz", X=np.zeros((2, 1)), Y=np.array([[1, np.nan], [-1, 0]]))
    np.testing.assert_array_equal(npz(tmp_path / "a.npz", absent=-1).labels.values, [[1, UNKNOWN], [0, UNKNOWN]])
    np.savez(tmp_path / "a.npz", X=np.zeros((2, 1)), Y=np.array([[1, np.nan], [np.inf, 0]]))
    with pytest.raises(DataError, match=r"a.npz: Y: values\[1, 0\] is inf"):
        npz(tmp_path / "a.npz")


class Trap:
    """Whoever unpickles this creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_npz_never_unpickles(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", X=np.zeros((1, 1)), Y=np.array([[Trap(tmp_path / "sprung")]], object))
    with pytest.raises(DataError, match=r"a.npz is not an .npz file of plain arrays \(it holds Python objects, never"):
        npz(tmp_path / "a.npz")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("arrays", "fault"),
    [
        ({"X": np.zeros((2, 1)), "Y": np.full((2, 1), 2)}, r"a.npz: Y: values\[0, 0\] is 2"),
        ({"X": np.zeros((2, 1)), "Y": np.zeros((3, 1))}, r"a.npz: X: inputs has 2 rows"),
        ({"X": np.zeros((2, 1)), "Y": np.zeros(2)}, r"a.npz: Y: .*shape \(2,\)"),
        (
            {"X": np.zeros((2, 1)), "Y": np.zeros((2, 1)), "ids": np.array(["a", "a"])},
            r"a.npz: Y: ids\[0\] and ids\[1\]",
        ),
        ({"X": np.zeros((2, 1)), "Y": np.zeros((2, 2)), "classes": np.array(["a", "a"])}, r"a.npz: Y: names\[0\]"),
        ({"X": np.array([["a"], ["b"]]), "Y": np.zeros((2, 1))}, r"a.npz: X: "),
        ({}, r"a.npz has no array X: it has no arrays"),
    ],
)
def test_npz_says_which_array_is_wrong(tmp_path: Path, arrays: dict[str, Any], fault: str) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError, match=fault):
        npz(tmp_path / "a.npz")


def test_npz_that_is_cut_off_or_something_else(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", X=np.zeros((50, 3)), Y=np.zeros((50, 2)))
    whole = (tmp_path / "a.npz").read_bytes()
    other = "it does not begin as one does"
    for content, why in (
        (whole[:100], "File is not a zip file"),
        (whole[:-30], ""),
        (b"hello", other),
        (b"PK", other),
        (np.random.default_rng(0).bytes(300), other),
        (pickle.dumps({"X": 1}), other),
    ):
        layouts.write(tmp_path / "b.npz", content)
        with pytest.raises(DataError, match=rf"b.npz is not an .npz file of plain arrays \({why}") as caught:
            npz(tmp_path / "b.npz")
        assert "allow_pickle" not in str(caught.value)
    np.save(tmp_path / "c.npy", np.zeros(3))
    with pytest.raises(DataError, match=r"c.npy is a single array"):
        npz(tmp_path / "c.npy")


plain = st.recursive(
    st.integers(-(2**40), 2**40) | st.floats(allow_nan=False) | st.text(max_size=5) | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
arrays = hnp.arrays(st.sampled_from([np.uint8, np.int64, np.float32, np.float64, np.bool_, ">i4"]), (2, 3))


@settings(max_examples=60)
@given(value=plain, array=arrays, protocol=st.sampled_from([0, 1, 2, 3, 4, 5]), fortran=st.booleans())
def test_pickles_of_plain_data_come_back_as_they_were(
    tmp_path_factory: pytest.TempPathFactory, value: Any, array: np.ndarray, protocol: int, fortran: bool
) -> None:
    path = tmp_path_factory.mktemp("pickle") / "a.pkl"
    array = np.asfortranarray(array) if fortran else array
    layouts.write(path, pickle.dumps({"value": value, "array": array, "again": [array, (array,)]}, protocol))
    content = read_pickle(path)
    assert content["value"] == value
    for found in (content["array"], content["again"][0], content["again"][1][0]):
        np.testing.assert_array_equal(found, array)
        assert found.dtype == array.dtype


def test_a_pickle_that_names_anything_else_is_refused_and_runs_nothing(tmp_path: Path) -> None:
    import collections
    import datetime
    import functools

    traps = [
        Trap(tmp_path / "sprung"),
        {"a": [Trap(tmp_path / "sprung")]},
        functools.partial(print, "x"),
        datetime.date(2020, 1, 1),
        collections.OrderedDict(a=1),
        np.array([Trap(tmp_path / "sprung")], object),
        np.zeros(2, [("a", "i4"), ("b", "f8")]),
        np.array(["text"]),
        np.float64(1.5),
        {1, 2},
        print,
        np.ndarray,
        np.dtype("f8"),
    ]
    for protocol in range(6):
        for i, trap in enumerate(traps):
            path = layouts.write(tmp_path / f"{protocol}-{i}.pkl", pickle.dumps(trap, protocol))
            with pytest.raises(DataError, match=rf"{path.name}") as caught:
                read_pickle(path)
            assert "\n" not in str(caught.value)
            assert not (tmp_path / "sprung").exists()


def test_a_pickle_cannot_change_what_stands_in_for_numpy(tmp_path: Path) -> None:
    """The BUILD opcode on an admitted name would set attributes of it, for every later file."""
    for module, name in (("numpy", "dtype"), ("numpy.core.multiarray", "_reconstruct"), ("_codecs", "encode")):
        for state in (b"}U\x05trickK\x01s", b"N}U\x05trickK\x01s\x86"):
            content = b"\x80\x02c" + f"{module}\n{name}\n".encode() + state + b"b."
            with pytest.raises(DataError):
                read_pickle(layouts.write(tmp_path / "a.pkl", content))
    array = np.arange(6).reshape(2, 3)
    np.testing.assert_array_equal(read_pickle(layouts.write(tmp_path / "b.pkl", pickle.dumps(array, 2))), array)


def test_a_pickle_that_shares_lists_without_end_is_no_burden(tmp_path: Path) -> None:
    nested: list[Any] = []
    for _ in range(60):
        nested = [nested, nested]
    content = read_pickle(layouts.write(tmp_path / "a.pkl", pickle.dumps(nested)))
    assert len(content) == 2
    loop: list[Any] = []
    loop.append(loop)
    assert read_pickle(layouts.write(tmp_path / "b.pkl", pickle.dumps(loop))) == [None]


def test_long_tailed_splits_that_do_not_fit_together(tmp_path: Path) -> None:
    def release(**changes: Any) -> Path:
        layouts.write_mlt(tmp_path / "a")
        file = tmp_path / "a" / "class_freq.pkl"
        content = {key: changes.get(key, value) for key, value in read_pickle(file).items()}
        layouts.write(file, pickle.dumps({key: value for key, value in content.items() if value is not None}, 2))
        return tmp_path / "a"

    assert mlt_labels(release(), VOC_LABELS).n_items == 15
    for changes, fault in (
        ({"class_freq": np.arange(20)}, "class_freq differs from the sums"),
        ({"gt_labels": None}, "lacks gt_labels or class_freq"),
        ({"gt_labels": [np.zeros(20, int)] * 14}, r"labels of shape \(14, 20\) for 15 images"),
        ({"gt_labels": [np.full(20, 3)] * 15}, r"values\[0, 0\] is 3"),
        ({"gt_labels": [[1], [1, 2]]}, "lacks gt_labels"),
    ):
        with pytest.raises(DataError, match=fault):
            mlt_labels(release(**changes), VOC_LABELS)
    layouts.write(release() / "img_id.txt", "\n".join([f"2008_{i:06d}" for i in range(14)] + ["../../etc/passwd"]))
    with pytest.raises(DataError, match=r"image 15: '../../etc/passwd' is not a path inside"):
        mlt_labels(tmp_path / "a", VOC_LABELS)
    np.savez(tmp_path / "b.npz", ids=np.array(["a"]), Y=np.zeros((1, 20)))
    with pytest.raises(DataError, match=r"b.npz has no array class_freq"):
        mlt_labels(tmp_path / "b.npz", VOC_LABELS)
    layouts.write(tmp_path / "c" / "img_id.txt", "1\n")
    layouts.write(tmp_path / "c" / "class_freq.pkl", pickle.dumps([1, 2], 2))
    with pytest.raises(DataError, match=r"class_freq.pkl: it lacks gt_labels"):
        mlt_labels(tmp_path / "c", VOC_LABELS)
