"""TSV files of region features: what is written is what numpy reads, and damaged files are named by line."""

from __future__ import annotations

import base64
from pathlib import Path

import numpy as np
import pytest

import steelyard as sy
from steelyard.data import DataError
from steelyard.data.readers.regions import RegionDataset, WordTable
from steelyard.data.readers.vqa import vqa
from steelyard_papers import generated


def line(name: str, features: np.ndarray, ten: bool = False) -> str:
    boxes = base64.b64encode(np.zeros((len(features), 4), np.float32).tobytes()).decode()
    content = base64.b64encode(features.astype("<f4").tobytes()).decode()
    before = [name, "480", "640", *(["x"] * 4 if ten else [])]
    return "\t".join([*before, str(len(features)), boxes, content]) + "\n"


def test_both_published_layouts_are_read(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    one, two, three = (rng.normal(size=(n, 5)).astype(np.float32) for n in (3, 2, 4))
    (tmp_path / "a.tsv").write_text(line("COCO_train2014_000000000042", one, ten=True) + line("7", two))
    (tmp_path / "b.tsv").write_text(line("COCO_val2014_000000391895", three, ten=True))
    seen: list[int] = []
    files = [tmp_path / "a.tsv", tmp_path / "b.tsv"]
    shape = sy.data.convert_regions(files, tmp_path / "r.npy", tmp_path / "i.npy", 3, progress=seen.append)
    assert shape == (3, 3, 5)
    assert seen == [1, 2, 3]
    assert np.load(tmp_path / "i.npy").tolist() == [42, 7, 391895]
    found = np.load(tmp_path / "r.npy", mmap_mode="r")
    assert (found.dtype, found.shape) == (np.float16, shape)
    np.testing.assert_array_equal(found[0], one.astype(np.float16))
    np.testing.assert_array_equal(found[1], np.vstack([two, np.zeros((1, 5))]).astype(np.float16))
    np.testing.assert_array_equal(found[2], three[:3].astype(np.float16))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.tsv", "b.tsv", "i.npy", "r.npy"]


def test_the_head_is_numpys_and_as_long_for_any_number_of_images(tmp_path: Path) -> None:
    from steelyard.data.readers.regions import _write_header

    for n in (0, 10**5, 10**9):
        with (tmp_path / f"{n}.npy").open("wb+") as file:
            _write_header(file, (n, 36, 2048))
            end = file.tell()
            file.seek(0)
            assert np.lib.format.read_magic(file) == (1, 0)
            assert np.lib.format.read_array_header_1_0(file) == ((n, 36, 2048), False, np.dtype(np.float16))
    assert {(tmp_path / f"{n}.npy").stat().st_size for n in (0, 10**5, 10**9)} == {end}


def test_what_is_written_is_a_vqa_data_set(tmp_path: Path) -> None:
    generated.vqa(tmp_path)
    home = tmp_path / "VQA"
    regions, ids = np.load(home / "regions.npy"), np.load(home / "image_ids.npy")
    (home / "all.tsv").write_text("".join(line(str(n), x) for n, x in zip(ids, regions, strict=True)))
    shape = sy.data.convert_regions(home / "all.tsv", home / "r.npy", home / "i.npy", regions.shape[1])
    assert shape == regions.shape
    questions = vqa(home, "train")
    words = WordTable.of(questions.questions)
    before = RegionDataset(questions, home / "regions.npy", ids, words)
    after = RegionDataset(questions, home / "r.npy", np.load(home / "i.npy"), words)
    np.testing.assert_allclose(after[0][0][0], before[0][0][0], rtol=1e-3, atol=1e-6)


GOOD = line("5", np.ones((2, 3)))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "a.tsv is empty"),
        (GOOD + GOOD, "line 2: image 5 occurs twice"),
        (GOOD + line("6", np.ones((2, 4))), "line 2: 4 features, not 3 as the first"),
        (GOOD[:-30].replace("\t", " ", 1), "line 1 has 5 fields"),
        (line("image", np.ones((2, 3))), "line 1: image 'image' with '2' boxes"),
        (GOOD.replace("\t2\t", "\t0\t"), "with '0' boxes"),
        (GOOD.replace("\t2\t", "\t5\t"), "6 numbers are not the features of 5 boxes"),
        (GOOD[:-3] + "?\n", "not base64"),
        (line("5", np.full((2, 3), np.nan)), "not finite"),
        (line("5", np.full((2, 3), 1e9)), "beyond float16"),
    ],
)
def test_a_damaged_file_is_one_line_and_leaves_nothing(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text(text)
    with pytest.raises(DataError, match=said) as error:
        sy.data.convert_regions(tmp_path / "a.tsv", tmp_path / "r.npy", tmp_path / "i.npy")
    assert "\n" not in str(error.value)
    assert [p.name for p in tmp_path.iterdir()] == ["a.tsv"]


def test_what_cannot_be_meant_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="regions is 0"):
        sy.data.convert_regions(tmp_path / "a.tsv", tmp_path / "r.npy", tmp_path / "i.npy", 0)
    with pytest.raises(ValueError, match="holds no file"):
        sy.data.convert_regions([], tmp_path / "r.npy", tmp_path / "i.npy")
    (tmp_path / "a.tsv").write_text(GOOD)
    seen: list[int] = []
    for files, features, ids, said in (
        (["a.tsv", "b.tsv"], "r.npy", "i.npy", r"b\.tsv"),
        (["a.tsv"], "absent/r.npy", "i.npy", "its folder does not exist"),
        (["a.tsv"], "r.npy", "absent/i.npy", "its folder does not exist"),
    ):
        with pytest.raises(ValueError, match=said):
            sy.data.convert_regions(
                [tmp_path / file for file in files], tmp_path / features, tmp_path / ids, progress=seen.append
            )
    assert not seen, "nothing is read before all that is missing is said"
