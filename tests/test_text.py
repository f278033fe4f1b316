"""Texts and columns of several kinds as inputs: encoded by what training saw, kept with the run as plain JSON."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import steelyard as sy
from steelyard.data.columns.encoder import FILE, PAIRS, Categories, Encoder, TextTerms, TfIdf, _loaded
from steelyard.data.columns.mixed import Column, MixedDataset, columns_of, is_prose
from steelyard.data.opening import open_data
from typed import done

WORDS = {"sound": ["audio", "music", "tone"], "game": ["play", "level", "score"], "net": ["http", "server", "socket"]}
QUICK: dict[str, Any] = {"train": {"budget": 1e8}}


def packages(n: int = 90) -> list[dict[str, str]]:
    """Descriptions in which a label's own words occur, and its labels."""
    rng, rows = np.random.default_rng(0), []
    for i in range(n):
        labels = [name for name in WORDS if rng.random() < 0.4]
        own = [word for name in labels for word in rng.choice(WORDS[name], 2)]
        other = [f"word{k}" for k in rng.integers(0, 40, 5)]
        text = " ".join(rng.permutation(["this", "program", *own, *other]))
        rows.append({"package": f"p{i}", "description": text, "tags": ";".join(labels)})
    return rows


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a manifest with a column of texts, by its folder."""
    place = tmp_path_factory.mktemp("text")
    rows = packages()
    write(place / "new.csv", [{key: row[key] for key in ("package", "description")} for row in rows[60:]])
    write(place / "more.csv", rows[60:])
    sy.fit(write(place / "packages.csv", rows[:60]), out=place / "run", verbose=False, settings=QUICK)
    return place


def test_the_column_is_guessed_and_said(trained: Path) -> None:
    opened = open_data(trained / "packages.csv")
    assert "the input is the text of column 'description'" in opened.note
    assert opened.settings["text"] == "description"
    assert opened.data.labels.names == ("game", "net", "sound")
    assert isinstance(opened.data, MixedDataset)


def test_predict_evaluate_and_python_agree(trained: Path) -> None:
    run, rows = sy.Run.load(trained / "run"), packages()[60:]
    eta = run.probability([row["description"] for row in rows])
    assert np.array_equal(run.probability(trained / "new.csv"), eta)
    done("predict", trained / "run", trained / "new.csv", "--out", trained / "out.csv")
    with (trained / "out.csv").open() as file:
        found = list(csv.DictReader(file))
    assert [row["id"] for row in found] == [row["package"] for row in rows]
    said = done("evaluate", trained / "run", "--data", trained / "more.csv", "--json")
    truth = np.array([[name in row["tags"].split(";") for name in run.names] for row in rows]).astype(np.int8)
    printed = json.loads(said.out)
    assert printed["mAP"]["label"] == pytest.approx(sy.metrics.mean_average_precision(eta, truth), abs=1e-6)
    assert printed["mAP"]["label"] > 0.9


def test_a_damaged_or_foreign_encoder_is_refused(trained: Path, tmp_path: Path) -> None:
    file = trained / "run" / FILE
    before = file.read_text()
    try:
        for text, said in ((before[:-9], "corrupt"), (before.replace("audio", "video"), "checksum")):
            file.write_text(text)
            with pytest.raises(ValueError, match=said):
                sy.Run.load(trained / "run")
        Encoder({"a": Categories(("x",))}).save(trained / "run")
        with pytest.raises(ValueError, match="different runs"):
            sy.Run.load(trained / "run")
    finally:
        file.write_text(before)


def test_a_run_in_memory_is_saved(tmp_path: Path) -> None:
    rows = packages(40)
    texts = [row["description"] for row in rows]
    run = sy.fit((texts, [row["tags"].split(";") for row in rows]), verbose=False, settings=QUICK)
    kept = run.save(tmp_path / "run")
    assert np.array_equal(kept.probability(texts), run.probability(texts))
    assert kept.metrics == run.metrics
    done("predict", tmp_path / "run", write(tmp_path / "a.csv", [{"text": text} for text in texts]))
    with pytest.raises(ValueError, match="finished run"):
        run.save(tmp_path / "run")
    with pytest.raises(ValueError, match="is the folder of this run"):
        kept.save(tmp_path / "run", overwrite=True)


def test_tfidf_is_that_of_its_formula() -> None:
    texts = ["red car red", "red bus", "green green bus stop", ""]
    encoder = TfIdf.fitted(pa.array(texts), "word", (1, 2), min_df=2)
    assert set(encoder.terms) == {"red", "bus"}  # each in two texts
    n = {"red": 2, "bus": 2}
    expected = np.zeros((4, 2))
    for i, text in enumerate(texts):
        for j, term in enumerate(encoder.terms):
            if count := text.split().count(term):
                expected[i, j] = (1 + np.log(count)) * (1 + np.log((1 + 4) / (1 + n[term])))
    expected /= np.maximum(np.linalg.norm(expected, axis=1, keepdims=True), 1e-12)
    assert np.allclose(encoder.features(pa.array(texts)).toarray(), expected, atol=1e-6)
    assert encoder.features(pa.array(["unseen words", None])).nnz == 0


def test_texts_are_words_pairs_and_parts_of_norm_one(tmp_path: Path) -> None:
    texts = [f"library{i} of the sounds{i % 60}" for i in range(200)]
    encoder = TextTerms.fitted(pa.array(texts))
    words, pairs, parts = encoder.blocks
    assert encoder.weights == (1.0, PAIRS, 1.0)
    assert {"of", "the", "sounds3"} <= set(words.terms)
    assert "library3" not in words.terms  # in one text
    assert "of the" in pairs.terms
    assert all(3 <= len(part) <= 5 for part in parts.terms)
    assert "libr" not in parts.terms  # in too many texts
    rows = encoder.features(pa.array(texts)).toarray()
    assert rows.shape == (200, encoder.width)
    assert np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)
    own = np.concatenate(
        [
            w * block.features(pa.array(texts)).toarray()
            for block, w in zip(encoder.blocks, encoder.weights, strict=True)
        ],
        1,
    )
    assert np.allclose(rows, own / np.linalg.norm(own, axis=1, keepdims=True), atol=1e-6)
    Encoder({"a": encoder}).save(tmp_path)
    again = Encoder.load(tmp_path)
    assert again is not None
    assert again.columns == {"a": encoder}


def test_the_terms_of_older_runs_are_words_and_pairs_alike() -> None:
    encoder = _loaded({"kind": "tfidf", "terms": ["red", "red car"], "idf": [1.0, 2.0]}, Path())
    row = encoder.features(pa.array(["red car"])).toarray()
    assert np.allclose(row, np.array([[1, 2]]) / 5**0.5)


def table(kind: str, rows: dict[str, Any]) -> Any:
    if kind == "arrow":
        return pa.table(rows)
    return pytest.importorskip(kind).DataFrame(rows)


COLUMNS: dict[str, Any] = {
    "n": list(range(60)),
    "colour": ["red", "green", None, "blue"] * 15,
    "text": [row["description"] for row in packages(60)],
}


@pytest.fixture(scope="module")
def mixed() -> sy.Run:
    """A run of columns in memory."""
    labels = [[name for name in row["tags"].split(";") if name] for row in packages(60)]
    return sy.fit((table("arrow", COLUMNS), labels), verbose=False, settings=QUICK)


@pytest.mark.parametrize("kind", ["pandas", "polars", "arrow"])
def test_numbers_categories_and_texts_of_a_table(kind: str, mixed: sy.Run) -> None:
    given, run, rows = table(kind, COLUMNS), mixed, packages(60)
    columns = columns_of(given)
    assert columns is not None
    assert [column.kind for column in columns.values()] == ["number", "category", "text"]
    assert run.trained.encoder is not None
    assert run.trained.encoder.columns["colour"] == Categories(("blue", "green", "red"))
    eta = run.probability(given)
    assert np.array_equal(eta, run.probability(table("arrow", COLUMNS)))
    other = table(kind, {"colour": ["pink"], "text": [rows[0]["description"]], "n": [0]})  # unseen, another order
    assert run.probability(other).shape == (1, eta.shape[1])
    with pytest.raises(ValueError, match="no column 'colour'"):
        run.probability(table(kind, {"n": [1], "text": ["a b c d"]}))


def test_precomputed_embeddings_in_a_parquet_column(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(40, 5)).astype(np.float32)
    rows = {"id": [f"i{k}" for k in range(40)], "embedding": vectors.tolist(), "a": (vectors[:, 0] > 0).astype(int)}
    pq.write_table(pa.table(rows), tmp_path / "items.parquet")
    data = open_data(tmp_path / "items.parquet").data
    assert isinstance(data, sy.data.ArrayDataset)
    assert np.allclose(data.inputs, vectors)


@pytest.mark.parametrize(
    ("cells", "prose"),
    [
        (["a small game about trains", "plays music of many kinds"], True),
        (["cat", "dog"], False),
        (["1 19 3 7 4", "2 8 1 5 6"], False),
        (["the same text again and again"] * 9, False),
        (["", ""], False),
    ],
)
def test_what_prose_is(cells: list[str], prose: bool) -> None:
    assert is_prose(cells) is prose


@pytest.mark.parametrize(
    ("column", "said"),
    [(Column("text", pa.array(["", "", ""])), "no words"), (Column("number", np.zeros(2)), "2 rows")],
)
def test_columns_that_cannot_be_used_are_one_sentence(column: Column, said: str) -> None:
    labels = sy.Labels(np.eye(3, dtype=np.int8))
    with pytest.raises(ValueError, match=said):
        Encoder.fitted(MixedDataset({"c": column}, labels))


def test_import_needs_nothing_new() -> None:
    code = (
        "import sys, steelyard, steelyard.run.api, steelyard.integrations\n"
        "print([m for m in ('transformers', 'tokenizers', 'mlflow', 'pandas', 'polars',"
        " 'sklearn.feature_extraction.text') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_logger_gets_the_numbers_of_every_epoch() -> None:
    class Kept:
        def __init__(self) -> None:
            self.rows: list[tuple[int, dict[str, float]]] = []

        def log(self, numbers: Any, epoch: int) -> None:
            self.rows.append((epoch, dict(numbers)))

    kept, rng = Kept(), np.random.default_rng(0)
    x = rng.normal(size=(60, 3)).astype(np.float32)
    run = sy.fit((x, x[:, :2] > 0), "bce", logger=kept, verbose=False, settings={"train": {"epochs": 2}})
    assert [epoch for epoch, _ in kept.rows] == [1, 2]
    assert [row["training/loss"] for _, row in kept.rows] == [record["loss"] for record in run.history]


def test_names_of_labels_are_read_as_texts() -> None:
    columns = {"text": Column("text", pa.array(["real time games", "real games", "web servers", "web time"]))}
    columns["n"] = Column("number", np.arange(4.0))
    data = MixedDataset(columns, sy.Labels(np.eye(4, dtype=np.int8)))
    encoder = Encoder.fitted(data)
    names = encoder.features_of_names(["game::real-time", "web", "x"])
    assert names is not None
    words = encoder.columns["text"].features(pa.array(["game real time", "web", "x"]))  # type: ignore[attr-defined]
    assert np.array_equal(names.toarray()[:, : words.shape[1]], words.toarray())
    assert not names.toarray()[:, words.shape[1] :].any()  # of the number
    assert encoder.features_of_names(["x", "y"]) is None
    assert Encoder({"n": encoder.columns["n"]}).features_of_names(["web"]) is None


def test_a_name_tells_what_few_texts_cannot() -> None:
    """Labels are named by a word that two of their three training texts hold, and all others."""
    rng, n_labels = np.random.default_rng(0), 49
    topics = [f"x{a}{b}z" for a in "abcdefg" for b in "hijklmn"]
    own = np.tile(np.arange(n_labels), 6)
    noise = [" ".join(f"w{k}" for k in rng.integers(0, 3000, 40)) for _ in own]
    some, rest = slice(None, 3 * n_labels), slice(3 * n_labels, None)
    lacks = np.arange(len(own)) < n_labels
    texts = [other if lacks[i] else f"{topics[own[i]]} {other}" for i, other in enumerate(noise)]
    truth = np.eye(n_labels, dtype=np.int8)[own]
    maps = {}
    for kind, names in (("topics", topics), ("numbers", [f"n {c}" for c in range(n_labels)])):
        data = MixedDataset({"text": Column("text", pa.array(texts[some]))}, sy.Labels(truth[some], names))
        run = sy.fit(data, verbose=False, settings={"train": {"budget": 1e11}})
        maps[kind] = sy.metrics.mean_average_precision(run.probability(texts[rest]), truth[rest])
    assert maps["topics"] > maps["numbers"] + 0.4
