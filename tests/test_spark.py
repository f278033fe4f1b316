"""Spark, a real one on two threads: the answers of DuckDB and of the reference, and predictions made in tasks."""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from query_reference import conjunction, random_query, ranking, text_of
from run_data import items as table_items
from run_data import write_table
from small_run import items, part, saved_run, small_run
from steelyard.data.inputs import inputs_of, open_inputs
from steelyard.folder.run_folder import Trained
from steelyard.labels import Labels
from steelyard.models import Input, ModelSettings, build_model
from steelyard.predict import prediction
from steelyard.predict.spark import predict
from steelyard.predict.spark_search import Spark, spark_session
from steelyard.search import Index
from test_commands import done

pytest.importorskip("pyspark", reason="pyspark is not installed")
pytest.importorskip("pandas", reason="pandas, which Spark needs, is not installed")
pytest.importorskip("duckdb", reason="duckdb is not installed")

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(not (os.environ.get("JAVA_HOME") or shutil.which("java")), reason="there is no Java"),
]

QUERIES = int(os.environ.get("STEELYARD_SPARK_QUERIES", "40"))
NAMES = [
    *("dog", "Dog", "traffic light", "", 'quo"te', "new\nline", "x'; DROP VIEW items; --", "`tick`", "{items}", "$0"),
    *("<b>&amp;</b>", "名前", "p0", "id", "score", "key", "OR", "?", "back\\slash"),
]


@pytest.fixture(scope="module")
def session() -> Iterator[Any]:
    before = os.environ.get("PYSPARK_SUBMIT_ARGS")
    os.environ["PYSPARK_SUBMIT_ARGS"] = (
        "--master local[2] --driver-memory 1g --driver-java-options -XX:TieredStopAtLevel=1 pyspark-shell"
    )
    try:
        found = spark_session()
    finally:
        os.environ.pop("PYSPARK_SUBMIT_ARGS")
        if before is not None:
            os.environ["PYSPARK_SUBMIT_ARGS"] = before
    assert found.sparkContext.master == "local[2]"
    assert spark_session() is found
    yield found
    found.stop()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Index, Any, list[str]]]:
    """An index of several parts, many ties and some deleted items in a folder with a difficult name."""
    g = random.Random(0)
    ids = [f"{g.choice('aäzZ𝄞ﬀ ')}{i}" for i in range(600)]
    g.shuffle(ids)
    p = (np.random.default_rng(0).random((600, len(NAMES))) ** 2 * 20).round().astype(np.float32) / np.float32(20)
    folder = tmp_path_factory.mktemp("x") / "it's a=1 [x]*?{b} %20#ü"
    with Index.build(folder, ids[:400], p[:400], NAMES) as index:
        index.append(ids[400:540], p[400:540])
        index.append(ids[540:], p[540:])
        index.delete([ids[3], ids[500]])
        keep = [i for i in range(600) if i not in (3, 500)]
        yield index, p[keep], [ids[i] for i in keep]


def test_random_queries_give_the_ranking_of_the_reference_and_of_duckdb(
    session: Any, made: tuple[Index, Any, list[str]]
) -> None:
    index, p, ids = made
    engine, g = Spark(index, session), random.Random(1)
    for i in range(QUERIES):
        query = conjunction(g, len(NAMES)) if i % 2 else random_query(g, len(NAMES))
        text = text_of(g, query, NAMES)
        k, offset = g.choice(((20, 0), (7, 5), (1, 0), (700, 3)))
        hits = index.search(text, k, offset, engine)
        assert hits == index.search(text, k, offset), text
        assert [(hit.id, hit.score) for hit in hits] == ranking(query, p, ids, k + offset)[offset:], text


def test_queries_as_large_as_they_may_be(session: Any, made: tuple[Index, Any, list[str]], tmp_path: Path) -> None:
    index, p, ids = made
    engine = Spark(index, session)
    twelve = ("or", *(("and", ("is", i), ("is", (i + 1) % 12)) for i in range(12)))
    all_names = ("and", *(("not", ("is", i)) for i in range(len(NAMES))))
    g = random.Random(2)
    for query in (twelve, all_names):
        hits = index.search(text_of(g, query, NAMES), 30, engine=engine)
        assert [(hit.id, hit.score) for hit in hits] == ranking(query, p, ids, 30)
    names = [f"label {i}" for i in range(200)]
    many = np.random.default_rng(3).random((50, 200)).astype(np.float32)
    query = ("and", *((">=", i, 0.0) for i in range(200)))
    with Index.build(tmp_path / "many", [str(i) for i in range(50)], many, names) as wide:
        text = text_of(g, query, names)
        assert wide.search(text, engine=Spark(wide, session)) == wide.search(text)
    with Index.build(tmp_path / "none", [], np.zeros((0, 2)), ["a", "b"]) as empty:
        assert empty.search("a & ~b", engine=Spark(empty, session)) == []


def test_an_engine_keeps_to_its_own_items(session: Any, made: tuple[Index, Any, list[str]], tmp_path: Path) -> None:
    first = Spark(made[0], session)
    with Index.build(tmp_path / "other", ["one"], [[0.5]], ["dog"]) as other:
        second = Spark(other, session)
        assert [hit.id for hit in other.search("dog", engine=second)] == ["one"]
        assert made[0].search("dog", 5, engine=first) == made[0].search("dog", 5)
        next(other.folder.glob("*.parquet")).unlink()
        with pytest.raises(ValueError, match="other cannot be searched by Spark: ") as error:
            other.search("dog", engine=second)
        assert "\n" not in str(error.value)


HOSTILE = ("dog", "Dog", "a`b.c, (d)={e}\n;", "probability:dog")


def run() -> Trained:
    trained = small_run(part("focal"))
    probability_model = replace(trained.probability_model, chosen_thresholds=np.array([0.5, 0.3, np.inf, 0.05]))
    return replace(trained.read_by(probability_model), names=HOSTILE)


def same(found: Path, wanted: Path) -> None:
    """Spark's folder and the file of one process hold the same rows."""
    one, other = pq.read_table(found), pq.read_table(wanted)
    assert one.column_names == other.column_names
    assert [str(t) for t in one.schema.types] == [str(t) for t in other.schema.types]
    one, other = one.sort_by("id"), other.sort_by("id")
    assert one["id"].to_pylist() == other["id"].to_pylist()
    for a, b in zip(one.columns[1:], other.columns[1:], strict=True):
        x, y = (np.array(c.to_pylist(), np.float64) for c in (a, b))
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-6)


def test_predictions_of_features_are_those_of_one_process(session: Any, tmp_path: Path) -> None:
    trained, data = run(), items(500, seed=1)
    folder = saved_run(tmp_path / "run", trained).path
    prediction.predict(trained, inputs_of(data), tmp_path / "one.parquet")
    x, ids = data.inputs, list(data.labels.ids)
    (tmp_path / "wide [1]").mkdir()
    for i in range(2):
        rows = slice(i * 300, (i + 1) * 300)
        columns = {"X": x[rows, 0], "x": x[rows, 1].astype(np.float64), "Dog": np.ones(len(x[rows])), "z.`": x[rows, 2]}
        pq.write_table(pa.table({"id": ids[rows], **columns}), tmp_path / "wide [1]" / f"{i}.parquet")
    done = predict(folder, tmp_path / "wide [1]", tmp_path / "out [1]*", batch_size=64, session=session)
    assert done == (str(tmp_path / "out [1]*"), 500, 0)
    same(tmp_path / "out [1]*", tmp_path / "one.parquet")
    pq.write_table(pa.table({"id": ids, "vector": list(x)}), tmp_path / "lists.parquet")
    predict(folder, tmp_path / "lists.parquet", tmp_path / "out", session=session)
    same(tmp_path / "out", tmp_path / "one.parquet")


def test_predict_and_search_as_they_are_typed(session: Any, tmp_path: Path) -> None:
    x, y = table_items()
    write_table(tmp_path / "items.csv", x, y)
    quick = ("--set", "train.epochs=1", "--set", "data.features=['f0','f1','f2','f3','f4']")
    folder = tmp_path / "run"
    done("train", "--data", tmp_path / "items.csv", "--recipe", "bce", "--out", folder, *quick)
    rows = {"id": [f"item{i}" for i in range(len(x))], **{f"f{j}": x[:, j] for j in range(x.shape[1])}}
    pq.write_table(pa.table(rows), tmp_path / "items.parquet")
    said = done("predict", folder, tmp_path / "items.parquet", "--engine", "spark", "--out", tmp_path / "out")
    assert said.err.splitlines()[-1] == f"160 items in {tmp_path / 'out'}."
    done(
        "predict", folder, tmp_path / "items.parquet", "--out", tmp_path / "one.parquet", "--index", tmp_path / "index"
    )
    same(tmp_path / "out", tmp_path / "one.parquet")
    asked = ("search", tmp_path / "index", 'cat & ~"rare bird"', "--json")
    assert json.loads(done(*asked, "--engine", "spark").out) == json.loads(done(*asked).out)


def test_bad_rows_and_mistakes(session: Any, tmp_path: Path) -> None:
    folder = saved_run(tmp_path / "run", run()).path
    ids, source, out = ["a", "b", "c"], tmp_path / "x.parquet", tmp_path / "out"
    rows = [[0.0, 1.0, 2.0], None, [0.0, 1.0, None]]
    pq.write_table(pa.table({"id": ids, "v": rows}), source)
    done = predict(folder, source, out, on_bad_image="skip", session=session)
    assert done[1:] == (3, 2)
    empty = pq.read_table(out).sort_by("id")
    assert [empty[i + 1].is_null().to_pylist() for i in (0, 7)] == [[False, True, True]] * 2
    cases: list[tuple[Any, str]] = [
        ({"id": ids, "v": rows}, "the item 'b' holds values that are not finite numbers"),
        ({"id": ids, "v": [[1.0, 2.0]] * 3}, "'a' has 2 features, but the model takes 3"),
        ({"id": ids, "v": [[1.0], [1.0, 2.0], [1.0]]}, "lists of 1 and of 2 numbers"),
        ({"id": ["a", None, "c"], "v": [[1.0, 2.0, 3.0]] * 3}, "an item without an id"),
        ({"name": ids, "v": [[1.0, 2.0, 3.0]] * 3}, "no column 'id', it has name, v"),
        ({"id": ids, "dog": [1, 2, 3]}, "no column of numbers"),
    ]
    for columns, said in cases:
        pq.write_table(pa.table(columns), source)
        with pytest.raises(ValueError, match=said) as error:
            predict(folder, source, tmp_path / "bad", session=session)
        assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="out is there already"):
        predict(folder, source, out, session=session)
    with pytest.raises(ValueError, match="does not exist: give a Parquet file"):
        predict(folder, tmp_path / "no.parquet", tmp_path / "bad", session=session)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run", "x.parquet"]


def test_predictions_of_images_are_those_of_one_process(session: Any, tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    g = np.random.default_rng(0)
    for i in range(3):
        Image.fromarray(g.integers(0, 256, (17, 17, 3), dtype=np.uint8)).save(photos / f"{i}.png")
    (photos / "1b.png").write_bytes((photos / "1.png").read_bytes()[:40])
    labels = Labels(np.eye(4, dtype=np.int8), HOSTILE)
    torch.manual_seed(0)
    model = build_model(ModelSettings(backbone="resnet12", pretrained=False), Input("image", (3, 16, 16)), labels)
    trained = replace(run(), model=model.eval())
    folder = saved_run(tmp_path / "run", trained).path
    prediction.predict(trained, open_inputs(photos, size=16, on_bad_image="skip"), tmp_path / "one.parquet")
    names = sorted(path.name for path in photos.iterdir())
    source = tmp_path / "x.parquet"
    pq.write_table(pa.table({"path": names}), source)
    done = predict(folder, source, tmp_path / "a", images=photos, on_bad_image="skip", session=session)
    assert done[1:] == (4, 1)
    same(tmp_path / "a", tmp_path / "one.parquet")
    pq.write_table(pa.table({"id": names, "path": [str(photos / name) for name in names]}), source)
    predict(folder, source, tmp_path / "b", on_bad_image="skip", session=session)
    same(tmp_path / "b", tmp_path / "one.parquet")
    with pytest.raises(ValueError, match=r"1b\.png"):
        predict(folder, source, tmp_path / "c", session=session)
    for given, where, said in (("0.png", None, "no absolute path"), ("../x.parquet", photos, "leads out of")):
        pq.write_table(pa.table({"path": [given]}), source)
        with pytest.raises(ValueError, match=said):
            predict(folder, source, tmp_path / "c", images=where, session=session)


def test_what_spark_lacks_is_one_sentence(
    session: Any, made: tuple[Index, Any, list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: None)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ValueError, match=r"^Spark needs Java, but JAVA_HOME is .*: install Java 17 or set JAVA_HOME$"):
        Spark(made[0])
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match=r"^Spark needs Java, but there is no java on the PATH: "):
        Spark(made[0])
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(
        ValueError, match=r"^Spark needs pyspark, which is not installed: pip install 'steelyard\[spark\]'$"
    ):
        Spark(made[0])
