"""Items like one: by embeddings in the index, alone and times a query, from training, prediction, command and API."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import steelyard as sy
from steelyard.folder.run_folder import RunFolder
from steelyard.run.predict import PredictRequest, predict
from steelyard.run.search import find
from steelyard.search import Index
from steelyard.serve.guards import Missing, Refusal
from steelyard.serve.run_view import RunView

pytest.importorskip("duckdb")

N, D = 300, 24
NAMES = ["cat", "dog", "car"]


def numbers(seed: int = 0) -> tuple[list[str], np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return [f"i{k}" for k in range(N)], rng.random((N, 3)).astype(np.float32), rng.normal(size=(N, D)) * 3


def expected(scores: np.ndarray, v: np.ndarray, like: int, k: int) -> list[tuple[str, float]]:
    """score × (1 + cos)/2 in float64, the item itself left out."""
    u = v / np.linalg.norm(v, axis=1, keepdims=True)
    product = scores * (1 + u @ u[like]) / 2
    product[like] = -1
    return [(f"i{i}", float(product[i])) for i in np.argsort(-product)[:k]]


@pytest.mark.parametrize("query", [None, "cat & ~dog", "(cat | dog) & (cat | car)", "dog > 0.5"])
def test_the_closest_items_that_fit(tmp_path: Path, query: str | None) -> None:
    ids, p, v = numbers()
    with Index.build(tmp_path / "index", ids, p, NAMES, embeddings=v) as index:
        a, b, c = p.T.astype(np.float64)
        scores = {
            None: np.ones(N),
            "cat & ~dog": a * (1 - b),
            "(cat | dog) & (cat | car)": a + (1 - a) * b * c,
            "dog > 0.5": np.where(p[:, 1] > 0.5, b, 0),
        }[query]
        want = expected(scores, v, 7, 30)
        got = index.search(query, 30, like="i7")
        assert [hit.id for hit in got] == [id for id, _ in want]
        np.testing.assert_allclose([hit.score for hit in got], [score for _, score in want], atol=1e-6)
        assert [hit.id for hit in index.search(query, 10, 10, like="i7")] == [id for id, _ in want[10:20]]
        np.testing.assert_array_equal(index.rows(["i3"])[0], p[3])


def test_items_that_come_later_are_compared_too(tmp_path: Path) -> None:
    ids, p, v = numbers()
    with Index.build(tmp_path / "index", ids[:200], p[:200], NAMES, embeddings=v[:200]) as index:
        index.append(ids[200:], p[200:], embeddings=v[200:])
        moved = v.copy()
        moved[50] = v[7] * 5  # in the same direction
        index.replace(["i50"], p[50:51], embeddings=moved[50:51])
        first = index.search(None, 1, like="i7")[0]
        assert (first.id, round(first.score, 6)) == ("i50", 1.0)
        assert first.score <= 1
        index.delete(["i50"])
        want = expected(np.ones(N), np.where(np.arange(N)[:, None] == 50, -v[7], v), 7, 20)
        assert [hit.id for hit in index.search(None, 20, like="i7")] == [id for id, _ in want]
        with pytest.raises(ValueError, match="keeps embeddings of 24 numbers, but 3 are given"):
            index.append(["new"], p[:1], embeddings=v[:1, :3])
        index.append(["new"], p[:1])  # without an embedding it is like none
        assert [hit.id for hit in index.search(None, 20, like="i7")] == [id for id, _ in want]
        assert "new" in {hit.id for hit in index.search("cat", N)}
        assert "new" not in {hit.id for hit in index.search("cat", N, like="i7")}
        with pytest.raises(ValueError, match="item 'new' came without an embedding"):
            index.search(None, like="new")
    assert Index.open(tmp_path / "index").n_numbers == D


def test_what_is_refused(tmp_path: Path) -> None:
    ids, p, v = numbers()
    with Index.build(tmp_path / "index", ids, p, NAMES) as index:
        assert index.n_numbers == 0
        with pytest.raises(ValueError, match="no embeddings to compare: make it again with steelyard predict"):
            index.search(None, like="i7")
        with pytest.raises(ValueError, match="query and like are None"):
            index.search(None)
    with pytest.raises(ValueError, match=r"embeddings has shape \(3, 24\)"):
        Index.build(tmp_path / "other", ids, p, NAMES, embeddings=v[:3])
    index = Index.build(tmp_path / "other", ids, p, NAMES, embeddings=v)
    with pytest.raises(ValueError, match="item 'nobody' is not in"):
        index.search("cat", like="nobody")
    index.close()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on features of two clusters, and a table of new items."""
    place = tmp_path_factory.mktemp("like")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 6)) + 4 * (np.arange(80)[:, None] % 2)
    y = np.stack([np.arange(80) % 2, rng.integers(0, 2, 80)], 1)
    sy.fit(
        (x.astype(np.float32), sy.Labels(y, names=["odd", "coin"])),
        recipe="bce",
        out=place / "run",
        verbose=False,
    )
    rows = [",".join(f"{value:.5f}" for value in row) for row in x[:20] + 0.01]
    names = ",".join(f"x{j}" for j in range(6))
    (place / "new.csv").write_text("\n".join([f"id,{names}", *(f"new{i},{row}" for i, row in enumerate(rows))]))
    return place


def test_a_run_over_features_finds_items_like_one(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    find(str(run / "run"), "", 5, as_json=True, like="3")
    found = json.loads(capsys.readouterr().out)
    assert found["query"] == "like 3"
    assert all(int(hit["id"]) % 2 for hit in found["hits"])
    find(str(run / "run"), "odd", 5, like="3")
    assert "item" in capsys.readouterr().out
    for given, sentence in (
        (dict(query=""), "QUERY is missing: give labels to look for, or an item with --like"),
        (dict(query="odd", like="3", explain=True), "--like goes without --explain"),
        (dict(query="odd", like="99"), "item '99' is not in"),
    ):
        with pytest.raises(ValueError, match=sentence):
            find(str(run / "run"), **given)


def test_new_items_join_an_index_with_embeddings(run: Path) -> None:
    """They are nearly the first twenty of training: the closest to each is that one."""
    predict(PredictRequest(str(run / "run"), str(run / "new.csv"), index=str(run / "run" / "index")))
    with Index.open(run / "run" / "index") as index:
        assert [index.search(None, 1, like=f"new{i}")[0].id for i in range(20)] == [str(i) for i in range(20)]
    predict(PredictRequest(str(run / "run"), str(run / "new.csv"), index=str(run / "fresh"), embeddings=True))
    predict(PredictRequest(str(run / "run"), str(run / "new.csv"), index=str(run / "plain")))
    assert Index.open(run / "fresh").n_numbers == 6
    assert Index.open(run / "plain").n_numbers == 0
    with pytest.raises(ValueError, match="--embeddings are kept in an index, but none is given: add --index"):
        predict(PredictRequest(str(run / "run"), str(run / "new.csv"), embeddings=True))


def test_the_server_answers_likewise(run: Path) -> None:
    shown = RunView(run / "run", Index.open(run / "run" / "index"), None, None)
    assert shown.facts()["has_embeddings"]
    answer = shown.search("", [], [], [], 3, 0, "3")
    assert len(answer["hits"]) == 3
    assert answer["more"]
    assert answer["query"] == ""
    with pytest.raises(Missing, match="there is no item 'x'"):
        shown.search("odd", [], [], [], 3, 0, "x")
    plain = RunView(run / "run", Index.open(run / "plain"), None, None)
    with pytest.raises(Refusal, match="no embeddings to compare"):
        plain.search("odd", [], [], [], 3, 0, "new1")
    assert RunFolder(run / "run").load().names == ("odd", "coin")
