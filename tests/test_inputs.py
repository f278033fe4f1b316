"""`open_inputs`: whatever is to be predicted comes as a stream of batches, in order, with the right names."""

from __future__ import annotations

import errno
import gc
import io
import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
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

import layouts
from steelyard.data import ArrayDataset, ImageDataset
from steelyard.data.images import BadImage, decode
from steelyard.data.inputs import InputBatch, inputs_of, open_inputs
from steelyard.data.inspect import find_duplicates
from steelyard.data.readers.vqa import Questions
from steelyard.data.subset import Subset
from steelyard.labels import Labels
from training_jobs import forked, waited


def paint(path: Path, shade: int, side: int = 6) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (side, side), (shade, 0, 255 - shade)).save(path)
    return path


def together(batches: list[InputBatch]) -> tuple[torch.Tensor, list[str], list[tuple[str, str]]]:
    inputs = torch.cat([batch.inputs for batch in batches])
    ids = [name for batch in batches for name in batch.ids]
    assert len(inputs) == len(ids)
    return inputs, ids, [bad for batch in batches for bad in batch.bad]


def stdin(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


# --- images ----------------------------------------------------------------------------------------------------------


def test_a_folder_of_images_is_sorted_by_path_at_any_depth(tmp_path: Path) -> None:
    names = ["b.png", "a/z.PNG", "a/b/c.png", "a.png", "a-b/x.png", "B.png", "a0.png", "ä/ü & ö.png"]
    for i, name in enumerate(names):
        paint(tmp_path / name, 10 * i)
    (tmp_path / "notes.txt").write_text("none")
    paint(tmp_path / ".hidden.png", 0)
    paint(tmp_path / ".thumbs" / "x.png", 0)
    (tmp_path / "a" / "again").symlink_to(tmp_path)
    inputs = open_inputs(tmp_path, size=4)
    assert (inputs.kind, inputs.n_items) == ("image", len(names))
    for batch_size, workers in ((3, 0), (100, 0), (2, 2)):
        images, ids, bad = together(list(inputs.batches(batch_size, workers)))
        assert ids == sorted(names)
        assert images.dtype == torch.uint8
        assert images.shape == (len(names), 3, 4, 4)
        assert images[:, 0, 0, 0].tolist() == [10 * names.index(name) for name in ids]
        assert not bad


@pytest.fixture
def in_time() -> Iterator[None]:
    """What waits for a pipe waits for ever: it fails instead."""

    def late(*_: object) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("in_time")
@pytest.mark.parametrize(("name", "reason"), [("loop.png", "symbolic links"), ("pipe.png", "is a pipe")])
def test_a_pipe_and_a_link_to_itself_are_bad_images(tmp_path: Path, name: str, reason: str) -> None:
    paint(tmp_path / "a.png", 1)
    paint(tmp_path / "z.png", 2)
    if name == "pipe.png":
        os.mkfifo(tmp_path / name)
    else:
        (tmp_path / name).symlink_to(name)
        (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(BadImage, match=rf"{name} .*{reason}.*--skip-bad"):
        list(open_inputs(tmp_path, size=4).batches())
    _, ids, bad = together(list(open_inputs(tmp_path, size=4, on_bad_image="skip").batches()))
    assert ids == ["a.png", "z.png"]
    assert [one for one, _ in bad] == [name]
    assert reason in bad[0][1]
    labels = Labels(np.ones((3, 1), np.int8))
    data = ImageDataset([str(tmp_path / one) for one in ("a.png", name, "z.png")], labels, 4, "skip")
    assert (data[1][1] == -1).all()
    assert list(data.skipped) == [1]
    assert find_duplicates(data, deep=True).unreadable == (str(tmp_path / name),)


@pytest.mark.usefixtures("in_time")
@pytest.mark.parametrize("name", ["items.csv", "items.npz", "items.npy", "items.arff", "items.parquet"])
def test_a_pipe_is_no_file_of_data(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(ValueError, match=rf"{name} is a pipe"):
        open_inputs(tmp_path / name)


def test_batches_have_the_size_that_is_asked_for(tmp_path: Path) -> None:
    for i in range(7):
        paint(tmp_path / f"{i}.png", i)
    assert [len(batch.ids) for batch in open_inputs(tmp_path, size=4).batches(3)] == [3, 3, 1]
    for wrong, says in (((0, 0), "batch_size is 0"), ((1, -1), "workers is -1")):
        with pytest.raises(ValueError, match=says):
            next(iter(open_inputs(tmp_path, size=4).batches(*wrong)))


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_images_are_listed_or_refused(tmp_path: Path, workers: int) -> None:
    for i in range(5):
        paint(tmp_path / f"{i}.png", i)
    (tmp_path / "1.png").write_text("no image")
    (tmp_path / "2.png").write_bytes(b"")
    for batch_size in (1, 2, 5):
        inputs = open_inputs(tmp_path, size=4, on_bad_image="skip")
        images, ids, bad = together(list(inputs.batches(batch_size, workers)))
        assert ids == ["0.png", "3.png", "4.png"]
        assert images[:, 0, 0, 0].tolist() == [0, 3, 4]
        assert [name for name, _ in bad] == ["1.png", "2.png"]
        assert all("is not an image" in reason for _, reason in bad)
    with pytest.raises(BadImage, match=r"1.png is not an image .* on_bad_image='skip'") as caught:
        list(open_inputs(tmp_path, size=4).batches(2, workers))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("workers", [0, 1])
def test_without_a_size_images_must_be_alike(tmp_path: Path, workers: int) -> None:
    paint(tmp_path / "a.png", 1)
    paint(tmp_path / "b.png", 2)
    assert together(list(open_inputs(tmp_path).batches(8)))[0].shape == (2, 3, 6, 6)
    paint(tmp_path / "c.png", 3, side=9)
    with pytest.raises(ValueError, match=r"'a.png' has 6 × 6 .*'c.png' has 9 × 9 pixels: .*give size") as caught:
        list(open_inputs(tmp_path).batches(8, workers))
    assert "\n" not in str(caught.value)
    assert together(list(open_inputs(tmp_path, size=(4, 5)).batches(8)))[0].shape == (3, 3, 4, 5)


def test_names_that_are_not_utf_8_are_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No table of results could hold them, which would be found out when it is written."""
    paint(tmp_path / "a.png", 1).rename(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.png"))
    message = r"holds '\\udcff.png', a name that is not UTF-8: rename that file"
    with pytest.raises(ValueError, match=message):
        open_inputs(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a.png\n\xff.png\n")))
    with pytest.raises(ValueError, match=message):
        list(open_inputs("-", tmp_path, 4).batches())
    with pytest.raises(ValueError, match=message):
        ImageDataset(["a.png", "\udcff.png"], Labels([[1], [0]]))


def test_one_image(tmp_path: Path) -> None:
    file = paint(tmp_path / "one.png", 9)
    (batch,) = open_inputs(file, size=4).batches()
    assert batch.ids == ["one.png"]
    np.testing.assert_array_equal(batch.inputs[0].numpy(), decode(file, (4, 4)))


@pytest.mark.parametrize("workers", [0, 2])
def test_paths_on_the_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    for i in range(4):
        paint(tmp_path / f"{i} x.png", i)
    monkeypatch.chdir(tmp_path)
    stdin(monkeypatch, f"2 x.png\r\n\n{tmp_path}/0 x.png\nnothing.png\n3 x.png")
    inputs = open_inputs("-", size=4, on_bad_image="skip")
    assert inputs.n_items is None
    images, ids, bad = together(list(inputs.batches(2, workers)))
    assert ids == ["2 x.png", f"{tmp_path}/0 x.png", "3 x.png"]
    assert images[:, 0, 0, 0].tolist() == [2, 0, 3]
    assert [name for name, _ in bad] == ["nothing.png"]
    stdin(monkeypatch, "1 x\n../out.png\n")
    inputs = open_inputs("-", images=tmp_path, size=4, on_bad_image="skip")
    _, ids, bad = together(list(inputs.batches(2, workers)))
    assert ids == ["1 x"]
    assert "leads out of the image folder" in bad[0][1]
    with pytest.raises(ValueError, match="holds images"):
        open_inputs("-", kind="features")


def test_the_standard_input_is_read_as_it_comes(tmp_path: Path) -> None:
    file = paint(tmp_path / "a.png", 7)
    (asked, asking), (answered, answering) = os.pipe(), os.pipe()

    def read() -> None:
        os.close(asking)
        sys.stdin = os.fdopen(asked)
        for batch in open_inputs("-", size=4).batches(2):
            os.write(answering, str(len(batch.ids)).encode())

    child = forked(read, tmp_path / "failure.txt")
    os.close(asked)
    os.close(answering)
    with os.fdopen(asking, "w", buffering=1) as standard_input, os.fdopen(answered) as answers:
        standard_input.write(f"{file}\n{file}\n")
        assert answers.read(1) == "2"  # the first batch, while the second may still come
        standard_input.write(f"{file}\n")
        standard_input.close()
        assert answers.read() == "1"
    assert waited(child) == 0, (tmp_path / "failure.txt").read_text()


# --- manifests -------------------------------------------------------------------------------------------------------


def photos(folder: Path) -> None:
    for i, name in enumerate(("a.png", "b.png", "c.png")):
        paint(folder / name, 20 * i)


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("path\na.png\nb.png\nc.png\n", ["a.png", "b.png", "c.png"]),
        ("id,image\nx,a\ny, b \nz,c.png\n", ["x", "y", "z"]),
        ("image,labels\na.png,cat;dog\nb.png,\nc.png,dog\n", ["a.png", "b.png", "c.png"]),
        ("name\tfile\tcat\tdog\n1\ta.png\t1\t0\n2\tb.png\t\t1\n3\tc.png\t0\t0\n", ["1", "2", "3"]),
        ("image,label\na.png,cat\na.png,dog\nb.png,dog\nc.png,cat\n", ["a.png", "b.png", "c.png"]),
        ("image,split,cat\na.png,train,1\nb.png,val,0\nc.png,test,1\n", ["a.png", "b.png", "c.png"]),
    ],
    ids=["paths", "ids and paths", "list", "wide", "long", "parts"],
)
@pytest.mark.parametrize("where", [".", "photos"])
def test_a_manifest_of_images(tmp_path: Path, text: str, ids: list[str], where: str) -> None:
    photos(tmp_path / where)
    file = layouts.write(tmp_path / f"mine.{'tsv' if chr(9) in text else 'csv'}", text)
    for inputs in (open_inputs(file, size=4), open_inputs(str(file), str(tmp_path / where), 4, kind="image")):
        assert (inputs.kind, inputs.n_items) == ("image", 3)
        images, names, _ = together(list(inputs.batches(2)))
        assert names == ids
        assert images[:, 0, 0, 0].tolist() == [0, 20, 40]


def test_rows_of_a_manifest_that_cannot_be_read(tmp_path: Path) -> None:
    photos(tmp_path / "photos")
    file = layouts.write(tmp_path / "mine.csv", "id,image\nx,a.png\ny,\nz,../secret.png\nu,gone.png\n,b.png\n")
    paint(tmp_path / "secret.png", 1)
    images, ids, bad = together(list(open_inputs(file, size=4, on_bad_image="skip").batches(2)))
    assert ids == ["x", "b.png"]
    assert images[:, 0, 0, 0].tolist() == [0, 20]
    assert [name for name, _ in bad] == ["y", "z", "u"]
    assert "row 3 names no image" in bad[0][1]
    assert "row 4 '../secret.png' leads out of the image folder" in bad[1][1]
    assert "gone.png cannot be decoded" in bad[2][1]
    with pytest.raises(BadImage, match="row 3 names no image: fix or remove it"):
        list(open_inputs(file, size=4).batches(2))


def test_images_that_are_nowhere_are_refused_at_once(tmp_path: Path) -> None:
    file = layouts.write(tmp_path / "mine.csv", "image\na.png\nb.png\n")
    with pytest.raises(ValueError, match=r"no image of column 'image' \('a.png', 'b.png'\) is found beside it"):
        open_inputs(file)
    assert len(together(list(open_inputs(file, on_bad_image="skip").batches()))[2]) == 2
    with pytest.raises(ValueError, match="nowhere is not a folder"):
        open_inputs(file, tmp_path / "nowhere")
    with pytest.raises(ValueError, match="is no header"):
        open_inputs(layouts.write(tmp_path / "bare.csv", "a.png\nb.png\n"))
    with pytest.raises(ValueError, match="no column 'img', given as path_column: do you mean 'image'"):
        open_inputs(file, path_column="img")


def test_a_part_of_a_manifest(tmp_path: Path) -> None:
    photos(tmp_path)
    file = layouts.write(tmp_path / "mine.csv", "image,split,cat\na.png,train,1\nb.png,val,0\nc.png,test,1\n")
    for split, ids in (("test", ["c.png"]), ("validation", ["b.png"]), ("all", ["a.png", "b.png", "c.png"])):
        assert together(list(open_inputs(file, size=4, split=split).batches()))[1] == ids
    with pytest.raises(ValueError, match="there is no 'nope'"):
        open_inputs(file, split="nope")


ROWS = np.array([[0.5, -2, 7], [1e-3, 4, 1], [3, 0, 0]], np.float32)


def feature_files(folder: Path) -> dict[str, Path]:
    lines = "\n".join(f"{name},{','.join(map(str, row))}" for name, row in zip("xyz", ROWS.tolist(), strict=True))
    files = {"csv": layouts.write(folder / "f.csv", f"id,f1,f2,f3\n{lines}\n")}
    columns = {"id": ["x", "y", "z"], **{f"f{j + 1}": ROWS[:, j] for j in range(3)}}
    pq.write_table(pa.table(columns), folder / "f.parquet")
    pq.write_table(pa.table({"id": ["x", "y", "z"], "v": ROWS.tolist()}), folder / "v.parquet")
    np.save(folder / "f.npy", ROWS)
    np.savez(folder / "f.npz", X=ROWS, ids=np.array(["x", "y", "z"]))
    np.savez(folder / "t.npz", X_train=ROWS[:1], X_test=ROWS, Y_train=[[1, 0]], ids_test=np.array(["x", "y", "z"]))
    np.savez(folder / "val.npz", X_train=ROWS[:1], X_val=ROWS, ids_val=np.array(["x", "y", "z"]))
    np.savez(folder / "y.npz", X=ROWS, Y=np.eye(3), ids=np.array(["x", "y", "z"]))
    return files | {
        name: folder / name for name in ("f.parquet", "v.parquet", "f.npy", "f.npz", "t.npz", "val.npz", "y.npz")
    }


@pytest.mark.parametrize("which", ["csv", "f.parquet", "v.parquet", "f.npy", "f.npz", "t.npz", "val.npz", "y.npz"])
@pytest.mark.parametrize("batch_size", [1, 2, 3, 10])
def test_features(tmp_path: Path, which: str, batch_size: int) -> None:
    inputs = open_inputs(feature_files(tmp_path)[which])
    assert (inputs.kind, inputs.n_items) == ("features", 3)
    rows, ids, _ = together(list(inputs.batches(batch_size)))
    assert rows.dtype == torch.float32
    np.testing.assert_array_equal(rows.numpy(), ROWS)
    assert ids == (["0", "1", "2"] if which == "f.npy" else ["x", "y", "z"])
    rows += 1  # may be written to
    with pytest.raises(ValueError, match=r"images are required|names image files|no image of column"):
        open_inputs(feature_files(tmp_path)[which], kind="image")


def test_which_columns_are_features(tmp_path: Path) -> None:
    file = layouts.write(tmp_path / "a.csv", "id,u,w,cat,dog\nx,2.5,7,1,0\ny,3.5,8,0,1\n")
    for arguments, wanted in (
        ({}, [[2.5, 7], [3.5, 8]]),
        ({"labels": ["cat"]}, [[2.5, 7], [3.5, 8]]),
        ({"features": ["w", "u"]}, [[7, 2.5], [8, 3.5]]),
        ({"features": ["cat", "w"], "id": "dog"}, [[1, 7], [0, 8]]),
    ):
        rows, ids, _ = together(list(open_inputs(file, **arguments).batches()))  # type: ignore[arg-type]
        assert rows.tolist() == wanted
        assert ids == (["0", "1"] if "id" in arguments else ["x", "y"])
    plain = layouts.write(tmp_path / "b.csv", "u,w\n2.5,7\n3.5,8\n")
    assert together(list(open_inputs(plain).batches()))[1] == ["0", "1"]
    with pytest.raises(ValueError, match="no column 'v', given as features"):
        open_inputs(plain, features=["v"])
    with pytest.raises(ValueError, match="no column of numbers is found"):
        open_inputs(layouts.write(tmp_path / "c.csv", "id,labels\nx,a\ny,b\n"), kind="features")


def test_a_manifest_with_both_gives_what_is_wanted(tmp_path: Path) -> None:
    photos(tmp_path)
    file = layouts.write(tmp_path / "mine.csv", "image,u\na.png,2.5\nb.png,3.5\nc.png,4.5\n")
    assert open_inputs(file, size=4).kind == "image"
    rows, ids, _ = together(list(open_inputs(file, kind="features").batches()))
    assert rows.tolist() == [[2.5], [3.5], [4.5]]
    assert ids == ["a.png", "b.png", "c.png"]


def test_rows_without_finite_numbers_are_listed_or_refused(tmp_path: Path) -> None:
    file = layouts.write(tmp_path / "a.csv", "id,u,w\nx,2.5,7\ny,,8\nz,1e300,1\nu,5,6.5\n")
    np.save(tmp_path / "a.npy", np.array([[2.5, 7], [np.nan, 8], [np.inf, 1], [5, 6.5]]))
    for path, names in ((file, "xyzu"), (tmp_path / "a.npy", "0123")):
        inputs = open_inputs(path, on_bad_image="skip", features=["u", "w"] if path is file else None)
        rows, ids, bad = together(list(inputs.batches(3)))
        assert rows.tolist() == [[2.5, 7], [5, 6.5]]
        assert ids == [names[0], names[3]]
        assert [name for name, _ in bad] == [names[1], names[2]]
        with pytest.raises(ValueError, match=f"the item '{names[1]}' holds values that are not finite numbers"):
            list(open_inputs(path, features=["u", "w"] if path is file else None).batches(3))
    broken = layouts.write(tmp_path / "b.csv", "id,u,w\nx,2.5,7\ny,1,abc\n")
    with pytest.raises(ValueError, match=r"line 3, column 'w' holds 'abc', which is no number"):
        list(open_inputs(broken, features=["u", "w"]).batches())


def test_a_damaged_manifest_is_refused_before_anything_is_predicted(tmp_path: Path) -> None:
    rows = "".join(f"{i},{i}.5,2\n" for i in range(100))
    file = layouts.write(tmp_path / "a.csv", f"id,u,w\n{rows}x,1\n")
    with pytest.raises(ValueError, match="line 102 has 2 cells, but the header has 3"):
        open_inputs(file)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 9), max_size=12), st.integers(1, 7))
def test_blocks_of_any_size_make_equal_batches(tmp_path: Path, sizes: list[int], n: int) -> None:
    total = sum(sizes)
    rows = np.arange(2 * total, dtype=np.float32).reshape(total, 2)
    writer = pq.ParquetWriter(tmp_path / "f.parquet", pa.schema([("u", pa.float32()), ("w", pa.float32())]))
    with writer:
        for start, stop in itertools.pairwise([0, *itertools.accumulate(sizes)]):
            writer.write_table(pa.table({"u": rows[start:stop, 0], "w": rows[start:stop, 1]}))
    if total == 0:
        with pytest.raises(ValueError, match="no rows"):
            open_inputs(tmp_path / "f.parquet", features=["u", "w"])
        return
    batches = list(open_inputs(tmp_path / "f.parquet", features=["u", "w"]).batches(n))
    assert {len(batch.ids) for batch in batches[:-1]} <= {n}
    got, ids, _ = together(batches)
    np.testing.assert_array_equal(got.numpy(), rows)
    assert ids == [str(i) for i in range(total)]


# --- data with labels ------------------------------------------------------------------------------------------------


def test_published_data(tmp_path: Path) -> None:
    truth = layouts.write_voc(tmp_path, {"train": 6, "val": 4})
    for split, wanted in ((None, "train"), ("val", "val")):
        inputs = open_inputs(tmp_path, size=8, split=split)
        assert together(list(inputs.batches(4)))[1] == list(truth[wanted].ids)
        assert f"split {wanted!r}" in inputs.note


def test_arrays_of_pixels_are_images(tmp_path: Path) -> None:
    pixels = np.arange(2 * 3 * 4 * 5, dtype=np.uint8).reshape(2, 3, 4, 5)
    np.save(tmp_path / "rgb.npy", pixels)
    np.savez(tmp_path / "grey.npz", X=pixels[:, 0], Y=np.eye(2))
    inputs = open_inputs(tmp_path / "rgb.npy", size=(4, 5), kind="image")
    np.testing.assert_array_equal(together(list(inputs.batches(1)))[0].numpy(), pixels)
    np.testing.assert_array_equal(
        together(list(open_inputs(tmp_path / "grey.npz").batches()))[0].numpy(), pixels[:, :1]
    )
    with pytest.raises(ValueError, match=r"holds images of \(4, 5\) pixels, but size is \(8, 8\)"):
        open_inputs(tmp_path / "rgb.npy", size=8)


def test_inputs_of_data_that_is_open_already(tmp_path: Path) -> None:
    photos(tmp_path)
    labels = Labels(np.eye(3, dtype=np.int8), ids=["x", "y", "z"])
    images = ImageDataset(
        [tmp_path / f"{name}.png" for name in "abc"],
        labels,
        4,
        boxes=np.array([[0, 0, 6, 6], [1, 1, 3, 3], [0, 0, 2, 2]]),
    )
    pixels, ids, _ = together(list(inputs_of(Subset(images, [2, 0])).batches()))
    assert ids == ["z", "x"]
    assert torch.equal(pixels, torch.stack([images[2][0], images[0][0]]))
    arrays = ArrayDataset(np.arange(6).reshape(3, 2), labels)
    rows, ids, _ = together(list(inputs_of(Subset(arrays, [1, 2])).batches(1)))
    assert ids == ["y", "z"]
    assert rows.tolist() == [[2, 3], [4, 5]]
    with pytest.raises(ValueError, match="neither images nor features"):
        inputs_of(Questions(["?"] * 3, np.arange(3), labels))


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (lambda root: root / "nothing", {}, "nothing does not exist: give a file or a folder"),
        (lambda root: root, {}, "is an empty folder"),
        (lambda root: layouts.write(root / "a.txt", "x"), {}, "ends neither as images do nor as data files do"),
        (lambda root: root, {"kind": "video"}, "kind is 'video': choose"),
        (lambda root: root, {"on_bad_image": "drop"}, "on_bad_image is 'drop': choose"),
        (lambda root: root, {"size": 0}, "size is 0: give a side"),
        (lambda root: layouts.write(root / "a.npy", "PK"), {}, "is not an .npy file of a plain array"),
        (lambda root: zipped(root / "a.npy"), {}, "a.npy holds several arrays, as .npz files do: rename it"),
        (lambda root: layouts.write(root / "a.npz", "PK"), {}, "is not an .npz file of plain arrays"),
        (lambda root: save(root / "a.npy", np.arange(3)), {}, r"has shape \(3,\) of int64: give numbers"),
        (lambda root: save(root / "a.npy", np.eye(2)), {"split": "test"}, "is one array, which has none"),
        (lambda root: save(root / "a.npz", X_a=np.eye(2), X_b=np.eye(2)), {}, "has no array X: it has X_a, X_b"),
        (lambda root: save(root / "a.npz", X=np.eye(2)), {"split": "test"}, "has no array X_test: it has X"),
        (lambda root: save(root / "a.npz", X=np.eye(2), ids=np.array(["a"])), {}, "X has 2 rows, but 1 ids"),
    ],
)
def test_a_mistake_is_one_line(make: Any, arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        open_inputs(make(tmp_path), **arguments)
    assert "\n" not in str(caught.value)


def save(path: Path, *array: Any, **arrays: Any) -> Path:
    if array:
        np.save(path, *array)
    else:
        np.savez(path, **arrays)
    return path


def zipped(path: Path) -> Path:
    with path.open("wb") as file:
        np.savez(file, X=np.zeros((2, 2)))
    return path


@pytest.mark.parametrize("workers", [0, 1])
def test_a_disk_that_fails_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    """It is not the image's fault, so none is skipped, and it names the file."""
    paint(tmp_path / "a.png", 1)
    monkeypatch.setattr("steelyard.data.images._pixels", fails)
    opened = open_inputs(tmp_path, size=4, on_bad_image="skip")
    with pytest.raises(ValueError, match=r"^\S*a.png cannot be read \(Input/output error\): check its disk.*$"):
        list(opened.batches(workers=workers))
    with pytest.raises(OSError, match=r"Input/output error: '.*a.png'$"):
        decode(tmp_path / "a.png")


def fails(*_: Any) -> Any:
    raise OSError(errno.EIO, "Input/output error")


def test_a_process_that_is_killed_is_one_line(tmp_path: Path) -> None:
    for i in range(40):
        paint(tmp_path / f"{i}.png", i)
    batches = open_inputs(tmp_path, size=4).batches(1, workers=1)
    next(batches)
    for process in multiprocessing.active_children():
        process.kill()
    with pytest.raises(ValueError, match="a process that reads items was killed"):
        list(batches)
    del batches
    gc.collect()  # until the loader is gone, torch raises for the killed process in whatever test comes next


# --- memory ----------------------------------------------------------------------------------------------------------


def test_a_long_manifest_is_streamed(tmp_path: Path) -> None:
    """Three times the rows, no more memory: measured in a process of its own, by what its peak grows by."""
    photos(tmp_path)
    code = (
        "import resource, sys\n"
        "from steelyard.data.inputs import open_inputs\n"
        "peaks = []\n"
        "for name in sys.argv[1:]:\n"
        "    inputs = open_inputs(name, size=1, on_bad_image='skip')\n"
        "    n = sum(1 for _ in inputs.images())\n"
        "    assert n == inputs.n_items, (n, inputs.n_items)\n"
        "    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
        "print(peaks[1] - peaks[0])\n"
    )
    files = []
    for n in (40_000, 120_000):
        files.append(tmp_path / f"{n}.csv")
        with files[-1].open("w") as file:
            file.write("image,cat\na.png,1\n")
            file.writelines(f"{'folder/' * 30}{i:020}.png,0\n" for i in range(n))
    grown = subprocess.run([sys.executable, "-c", code, *files], check=True, capture_output=True, text=True)
    assert int(grown.stdout) < 25_000  # KB; the names and paths of 80,000 more rows would take 50,000
