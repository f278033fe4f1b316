"""Columns of categories in manifests, beside numbers and a text: read, kept with the run, and met again unseen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import steelyard as sy
from steelyard.data.opening import open_data
from steelyard.data.tables.columns import is_category, is_numeric
from typed import done, typed

COLOURS = ("red", "green", "blue")


def rows(n: int = 90, seed: int = 0) -> dict[str, list[Any]]:
    """A table whose label 'warm' is the colour red, and whose label 'large' is the size."""
    rng = np.random.default_rng(seed)
    colour, size = rng.integers(0, 3, n), rng.normal(size=n).round(3)
    return {
        "id": [f"p{i}" for i in range(n)],
        "colour": [COLOURS[c] for c in colour],
        "size": size.tolist(),
        "made": [f"a thing of {['wood', 'tin'][i % 2]} number {i} and more" for i in range(n)],
        "warm": (colour == 0).astype(int).tolist(),
        "large": (size > 0).astype(int).tolist(),
    }


def write(path: Path, table: dict[str, list[Any]]) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.table(table), path)
    else:
        lines = [",".join(table), *(",".join(map(str, row)) for row in zip(*table.values(), strict=True))]
        path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("how", [{"features": ["colour", "size"]}, {"categories": ["colour"], "features": ["size"]}])
def test_texts_among_the_features_are_categories(tmp_path: Path, ending: str, how: dict[str, Any]) -> None:
    opened = open_data(write(tmp_path / f"t.{ending}", rows()), **how)
    assert {name: column.kind for name, column in opened.data.columns.items()} == {
        "feature columns": "number",
        "colour": "category",
    }
    assert "the input is 1 feature column ('size') and 1 column ('colour') of categories" in opened.note
    assert opened.settings["categories"] == ("colour",)


def test_a_column_of_numbers_with_one_mistake_is_still_one_of_numbers(tmp_path: Path) -> None:
    table = rows()
    table["size"][3] = "n/a"
    with pytest.raises(ValueError, match="size"):
        open_data(write(tmp_path / "t.csv", table), features=["size"])


@pytest.mark.parametrize("text", [False, True])
def test_a_run_meets_unseen_categories_in_new_files(tmp_path: Path, text: bool) -> None:
    out, path = tmp_path / "run", write(tmp_path / "t.csv", rows())
    how = ["--features", "colour", "--features", "size", *(["--text", "made"] if text else [])]
    done("train", "--data", path, "--recipe", "bce", "--out", out, *how)
    kept = json.loads((out / "inputs.json").read_text())
    (colours,) = (column for column in kept["columns"] if column["kind"] == "category")
    assert colours["values"] == sorted(COLOURS)
    new = rows(6, seed=1)
    new["colour"] = ["red", " red ", "blue", "mauve", "", "green"]
    file = write(tmp_path / "new.csv", new)
    done("predict", out, file, "--out", tmp_path / "eta.csv")
    run = sy.Run.load(out)
    eta = run.probability(file)
    warm = eta[:, run.names.index("warm")]
    assert min(warm[:2]) > max(warm[[2, 5]]), "red, white space around it or not, is warm"
    done("evaluate", out, "--data", file)
    del new["colour"]
    line = typed("predict", out, write(tmp_path / "less.csv", new), "--out", tmp_path / "no.csv").line
    assert "colour" in line


def test_inspect_says_what_it_took_each_column_for(tmp_path: Path) -> None:
    told = done("inspect", write(tmp_path / "t.csv", rows()), "--features", "colour", "--features", "size").out
    told = " ".join(told.split())
    assert "1 feature column ('size') and 1 column ('colour') of categories" in told
    assert "not used: 1 column ('made')" in told


def test_too_many_categories_and_long_form_are_refused(tmp_path: Path) -> None:
    table = rows(1100)
    table["colour"] = [f"colour {i}" for i in range(1100)]
    with pytest.raises(ValueError, match="1,100 different texts, too many"):
        open_data(write(tmp_path / "t.csv", table), features=["colour"], labels=["warm", "large"])
    long = write(tmp_path / "l.csv", {"id": ["a", "a"], "label": ["x", "y"], "kind": ["u", "u"]})
    with pytest.raises(ValueError, match="long form an item has several rows"):
        open_data(long, form="long", categories=["kind"])


CELLS = (
    "1",
    "+1",
    "-1.",
    ".5",
    "1e5",
    "1E+5",
    "1e999",
    "inf",
    "-Infinity",
    "NaN",
    " 2 ",
    "1_000",
    "1e",
    "0x1",
    "١",
    "one",
)


@pytest.mark.parametrize("cell", CELLS)
def test_a_cell_is_a_number_where_arrow_reads_it_as_one(cell: str) -> None:
    column = pa.array([cell, cell])
    try:
        column.cast(pa.float64())
        read = True
    except pa.ArrowInvalid:
        read = cell.strip() != cell
    assert is_numeric(column) is read
    assert is_category(column) is not read
    assert not is_numeric(pa.array([cell, None]))


def test_cells_that_only_python_reads_as_numbers_are_categories(tmp_path: Path) -> None:
    lines = ["id,size,warm", *(f"p{i},{i % 3 + 1}_000,{i % 2}" for i in range(6))]
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n")
    opened = open_data(tmp_path / "a.csv", features=["size"])
    assert opened.settings["categories"] == ("size",)
