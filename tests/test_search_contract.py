"""The index: rankings against the reference, changes against a dict, kills, readers beside a writer."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import index_writes
from index_writes import begin, change, content, moments
from query_reference import conjunction, random_query, ranking, text_of
from steelyard._sealed import sealed
from steelyard.run.explanation import explain
from steelyard.search import Hit, Index, Query, QueryError
from steelyard.search.data_files import DataFile

pytest.importorskip("duckdb")

QUERIES = int(os.environ.get("STEELYARD_RANDOM_QUERIES", "150"))
NAMES = ["dog", "Dog", "traffic light", "", 'quo"te', "new\nline", "x'; DROP TABLE items; --", "<b>&amp;</b>", "名前"]
NAMES += ["p0", "id", "score", "OR", "back\\slash"]


def table(n: int, seed: int = 0, n_labels: int = len(NAMES)) -> Any:
    """Probabilities with many ties."""
    g = np.random.default_rng(seed)
    return (g.random((n, n_labels)) ** 2 * 20).round() / np.float32(20)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Index, Any, list[str]]]:
    """An index written several times, with ids out of order, in a folder with a difficult name, and what is in it."""
    g = random.Random(0)
    ids = [f"{g.choice('aäzZ𝄞 ')}{i}" for i in range(900)]
    g.shuffle(ids)
    p = table(900)
    folder = tmp_path_factory.mktemp("x") / "it's a=1 [x]*?"
    index = Index.build(folder, ids[:500], p[:500], NAMES, paths=[f"/images/{i}.jpg" for i in ids[:500]])
    index.append(ids[500:700], p[500:700])
    index.append(ids[700:870], p[700:870])
    index.append(ids[870:], p[870:])
    index.delete([ids[3], ids[600]])
    index.replace([ids[10], ids[650]], p[[11, 12]])
    p[[10, 650]] = p[[11, 12]]
    keep = [i for i in range(900) if i not in (3, 600)]
    with index:
        yield index, p[keep], [ids[i] for i in keep]


def hits_of(hits: list[Hit]) -> list[tuple[str, float]]:
    return [(hit.id, hit.score) for hit in hits]


def test_random_queries_give_the_ranking_of_the_reference(made: tuple[Index, Any, list[str]]) -> None:
    index, p, ids = made
    g = random.Random(1)
    row = {name: i for i, name in enumerate(ids)}
    place = {name: i for i, name in enumerate(NAMES)}
    for i in range(QUERIES):
        q = random_query(g, len(NAMES)) if i % 2 else conjunction(g, len(NAMES))
        hits = index.search(text_of(g, q, NAMES), k=30)
        assert hits_of(hits) == ranking(q, p.astype(np.float32), ids, 30), q
        for hit in hits[:3]:
            for label, eta in hit.probabilities.items():
                assert eta == np.float32(p[row[hit.id], place[label]])
            assert list(hit.probabilities) == sorted(hit.probabilities, key=NAMES.index)


def test_pages_follow_each_other(made: tuple[Index, Any, list[str]]) -> None:
    index, _, ids = made
    whole = index.search("dog Dog", k=1000)
    assert len(whole) == len(ids)
    pages = [index.search(Query.parse("dog Dog"), k=7, offset=at) for at in range(0, 70, 7)]
    assert [hit for page in pages for hit in page] == whole[:70]
    assert index.search("dog", k=5, offset=len(ids)) == []
    assert index.search("dog > 1") == []


def test_pages_deep_in_a_ranking_with_deleted_items_are_those_of_the_reference(tmp_path: Path) -> None:
    """Pages deep in the ranking read their probabilities last; where the best are deleted, more are looked at."""
    p, ids = table(4000).astype(np.float32), [f"{i:04d}" for i in range(4000)]
    index = Index.build(tmp_path, ids[:3000], p[:3000], NAMES)
    index.append(ids[3000:], p[3000:])
    g, place = random.Random(8), {name: i for i, name in enumerate(NAMES)}
    for round in range(2):
        for i in range(10):
            q = random_query(g, len(NAMES)) if i % 2 else conjunction(g, len(NAMES))
            text, wanted = text_of(g, q, NAMES), ranking(q, p, ids, 140)
            for k, offset in ((1, 0), (50, 0), (50, 10), (40, 100)):
                hits = index.search(text, k=k, offset=offset)
                assert hits_of(hits) == wanted[offset : offset + k], q
                for hit in hits[:2]:
                    for label, eta in hit.probabilities.items():
                        assert eta == p[ids.index(hit.id), place[label]]
        if round == 0:
            gone = {hit.id for text in ("dog", "Dog -dog") for hit in index.search(text, k=150)}
            index.delete(sorted(gone))
            keep = [i for i in range(4000) if ids[i] not in gone]
            p, ids = p[keep], [ids[i] for i in keep]


def reference(n: int, where: str) -> tuple[Any, list[str]]:
    """Probabilities that make a bound from a sample hard, and ids that sort as the rows do."""
    p = table(n, n_labels=3).astype(np.float32)
    if where == "equal":
        p[:] = 0.5
    elif where == "zero":
        p[:, 0] = 0
    elif where == "few":  # fewer rows than are asked for score more than 0
        p[5:, 0] = 0
    elif where == "behind":  # the best lie behind the sample
        p[: n // 2] *= np.float32(0.01)
    elif where == "before":
        p[n // 2 :] *= np.float32(0.01)
    return p, [f"{i:05d}" for i in range(n)]


@pytest.mark.parametrize("where", ["ties", "equal", "zero", "few", "behind", "before"])
def test_a_bound_from_a_sample_changes_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """A file just over the size from which on the best rows of a sample bound the score of those looked for."""
    p, ids = reference(3000, where)
    names, v = ["a", "b", "c"], np.random.default_rng(1).normal(size=(3000, 4))
    monkeypatch.setattr("steelyard.search.data_files._SAMPLE", 1024)
    Index.build(tmp_path, ids, p, names, embeddings=v).close()
    size = next(tmp_path.glob("*.duckdb")).stat().st_size
    monkeypatch.setattr("steelyard.search.data_files._SMALL", size)
    plain = Index.open(tmp_path)
    monkeypatch.setattr("steelyard.search.data_files._SMALL", size - 1)
    index = Index.open(tmp_path)
    bounds: list[float] = []
    least = DataFile._least
    monkeypatch.setattr(DataFile, "_least", lambda *a: bounds.append(least(*a)) or bounds[-1])
    gone: set[str] = set()
    for _ in range(2):
        a, b, c = p.T.astype(np.float64)
        for text, scores in (
            ("a", a),
            ("a & b & ~c", a * b * (1 - c)),
            ("a | b", 1 - (1 - a) * (1 - b)),
            ("a & b | a & c", a * (1 - (1 - b) * (1 - c))),
            ("a & b > 0.4", np.where(p[:, 1] > np.float32(0.4), a * b, -1)),
        ):
            order = [i for i in np.argsort(-scores, kind="stable") if scores[i] >= 0 and ids[i] not in gone]
            for k, offset in ((1, 0), (16, 0), (9, 5), (300, 0)):
                hits = index.search(text, k, offset)
                assert [hit.id for hit in hits] == [ids[i] for i in order[offset : offset + k]], text
                np.testing.assert_allclose([hit.score for hit in hits], scores[order[offset : offset + k]], rtol=1e-14)
            assert index.search(text, 12, like="00007") == plain.search(text, 12, like="00007")
        assert index.search(None, 12, like="00007") == plain.search(None, 12, like="00007")
        if not gone:
            gone = {hit.id for hit in index.search("a", 40)} - {"00007"}
            index.delete(sorted(gone))
            monkeypatch.setattr("steelyard.search.data_files._SMALL", 1 << 40)
            plain = Index.open(tmp_path)
    assert any(bounds)
    assert 0.0 in bounds  # more rows are asked for than a sample can bound


@pytest.mark.parametrize("column", ["p0 = 'nan'", "p0 = NULL", "id = NULL"])
def test_forged_values_are_refused_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, column: str) -> None:
    import duckdb

    Index.build(tmp_path, [f"{i:04d}" for i in range(2100)], table(2100, n_labels=2), ["a", "b"]).close()
    file = next(tmp_path.glob("*.duckdb"))
    with duckdb.connect(str(file)) as connection:
        connection.execute(f"UPDATE items SET {column} WHERE rowid % 3 = 0")
    reseal(tmp_path, "files", [[file.name, file.stat().st_size, 2100, 0]])
    monkeypatch.setattr("steelyard.search.data_files._SMALL", 0)
    with Index.open(tmp_path) as index:
        for text in ("a", "a & b", "a | b"):
            with pytest.raises(ValueError, match=r"is corrupt .*no id or no probability"):
                index.search(text, 2000)


def test_rows_paths_and_explanations(made: tuple[Index, Any, list[str]]) -> None:
    index, p, ids = made
    np.testing.assert_array_equal(index.rows(ids), p.astype(np.float32))
    np.testing.assert_array_equal(index.rows([ids[5], ids[5], ids[0]]), p[[5, 5, 0]].astype(np.float32))
    np.testing.assert_array_equal(index.rows(ids * 2)[len(ids) :], p.astype(np.float32))
    assert index.rows([]).shape == (0, len(NAMES))
    assert index.path(ids[0]) == f"/images/{ids[0]}.jpg"
    assert index.path(ids[-1]) is None
    assert ids[0] in index
    assert "nobody" not in index
    assert "\ud800" not in index
    g = random.Random(2)
    for _ in range(60):
        text, name = text_of(g, random_query(g, len(NAMES)), NAMES), g.choice(ids)
        query = Query.parse(text, NAMES)
        reason = explain(index, query, name)
        assert reason.score == query.score(index.rows([name]), NAMES)[0]
        assert reason.admitted == query.admits(index.rows([name]), NAMES)[0]
        assert reason.steps[0].value == reason.score or not reason.admitted
        assert set(reason.probabilities) == set(query.labels)
    for ask in (index.path, lambda name: index.rows([name]), lambda name: explain(index, Query.parse("dog"), name)):
        with pytest.raises(ValueError, match="item 'nobody' is not in"):
            ask("nobody")


def test_an_explanation_can_be_read(tmp_path: Path) -> None:
    index = Index.build(tmp_path, ["i"], [[0.5, 0.25]], ["dog", "cat"])

    def explained(text: str) -> str:
        return str(explain(index, Query.parse(text), "i"))

    shown = explained("dog & (~dog | cat) & cat > .1")
    assert shown.splitlines() == [
        "0.125       all, the product of",
        "0.5           dog",
        "0.25          cat",
        "1           cat > 0.1: holds",
    ]
    assert "excluded" in explained("cat > .5")
    split = explained("dog & cat | ~dog & ~cat")
    assert "dog repeats" in split


@pytest.mark.parametrize(("n", "n_labels"), [(5000, 9), (300, 2503), (3, 100_000), (0, 9)])
def test_any_number_of_items_and_labels(tmp_path: Path, n: int, n_labels: int) -> None:
    names = [f"x{i}" for i in range(n_labels)]
    p, ids = table(n, n_labels=n_labels).astype(np.float32), [f"{i:x}" for i in range(n)]
    index = Index.build(tmp_path, ids, p, names)
    np.testing.assert_array_equal(index.rows(ids[::7]), p[::7])
    g = random.Random(5)
    for _ in range(5):
        chosen = sorted(g.sample(range(n_labels), 8))
        q = conjunction(g, 8)
        text = text_of(g, q, [names[i] for i in chosen])
        wanted = ranking(q, p[:, chosen], ids, 25) if n else []
        assert hits_of(index.search(text, k=25)) == wanted
    index.append(["new"], np.ones((1, n_labels)))
    assert index.search(f"x0 x{n_labels - 1}", k=1)[0].id == "new"
    assert (index.n_items, len(index.names)) == (n + 1, n_labels)


def test_changes_are_those_of_a_dict(tmp_path: Path) -> None:
    g, n_labels = random.Random(6), len(NAMES)
    held: dict[str, Any] = {}
    index = Index.build(tmp_path, [], np.zeros((0, n_labels)), NAMES)
    other = Index.open(tmp_path)
    assert index.search("dog") == []
    for step in range(30):
        rows = table(40, seed=step).astype(np.float32)
        free = [f"{g.randrange(10**6)}" for _ in range(g.choice((1, 3, 40)))]
        new = [name for name in dict.fromkeys(free) if name not in held]
        some = g.sample(sorted(held), min(len(held), g.choice((1, 5, 25))))
        writer = g.choice((index, other))  # another that is behind takes up where the last left it
        match g.choice(("append", "append", "replace", "delete")):
            case "append":
                writer.append(new, rows[: len(new)])
                held |= dict(zip(new, rows, strict=False))
            case "replace":
                both = [*some[:10], *new[:5]]
                writer.replace(both, rows[: len(both)])
                held |= dict(zip(both, rows, strict=False))
            case "delete":
                writer.delete(some)
                held = {name: row for name, row in held.items() if name not in some}
        ids = list(held)
        with Index.open(tmp_path) as now:
            assert now.n_items == len(held)
            assert now.generation == step + 2
            if held:
                np.testing.assert_array_equal(now.rows(ids), np.stack(list(held.values())))
            q = conjunction(g, n_labels)
            wanted = ranking(q, np.stack(list(held.values())), ids, 10) if held else []
            assert hits_of(now.search(text_of(g, q, NAMES), k=10)) == wanted
    assert index.refreshed().n_items == other.refreshed().n_items == len(held)
    assert len(list(tmp_path.iterdir())) < 12


def test_what_cannot_be_changed_changes_nothing(tmp_path: Path) -> None:
    index = Index.build(tmp_path, ["a", "b"], [[0.1], [0.2]], ["dog"])
    for attempt, says in (
        (lambda: index.append(["c", "a"], [[0.5], [0.5]]), "item 'a' is in .* already, nothing was added"),
        (lambda: index.append(["c", "c"], [[0.5], [0.5]]), r"ids\[0\] and ids\[1\] are both 'c'"),
        (lambda: index.delete(["a", "x"]), "item 'x' is not in .*: nothing was deleted"),
        (lambda: index.append(["c"], [[1.5]]), r"probabilities\[0, 0\], of item 'c', is 1.5: give 0 to 1"),
        (lambda: index.replace(["a"], [[np.nan]]), "is nan: give 0 to 1"),
        (lambda: index.append(["c"], [[0.5, 0.5]]), r"shape \(1, 2\): give numbers \(1, 1\)"),
        (lambda: index.append(["c"], [["x"]]), "give numbers"),
        (lambda: index.append(["c"], [[0.5]], paths=["a", "b"]), "paths has 2 entries"),
        (lambda: index.append(["\ud800"], [[0.5]]), "not Unicode"),
        (lambda: index.append(["c"], [[0.5]], paths=["\udc80"]), r"paths\[0\] .* not Unicode"),
        (lambda: index.search("dog", k=0), "k is 0: give a whole number, at least 1"),
        (lambda: index.search("dog", k=True), "k is True"),
        (lambda: index.search("dog", offset=-1), "offset is -1"),
        (lambda: index.search("dog", k=10**6), "at most 100,000"),
        (lambda: index.search("dog", k=1.5), "k is 1.5: give a whole number"),
        (lambda: index.rows("ab"), "single string"),
        (lambda: index.append(["c"], [[0.5]], paths="p"), "paths is the single string 'p'"),
        (lambda: Index.build(tmp_path, ["a"], [[1, 1]], "ab", overwrite=True), "names is the single string 'ab'"),
        (lambda: Index.build(tmp_path, ["a"], [[1]], ["dog"]), "holds an index: give another folder"),
        (lambda: Index.build(tmp_path, ["a"], [[1, 1]], ["dog", "dog"], overwrite=True), "names"),
        (lambda: Index.build(tmp_path, ["a"], [[1]], ["\ud800"], overwrite=True), "not Unicode|surrogates"),
        (lambda: Index.build(tmp_path, ["a"], [[1]], ["dog"], overwrite=True, notes={"x": object()}), "JSON"),
    ):
        with pytest.raises(ValueError, match=says):
            attempt()
    with pytest.raises(QueryError, match="no label 'cat'"):
        index.search("cat")
    with pytest.raises(QueryError, match="no label 'cat'"):
        index.search(Query.parse("dog cat"))
    assert Index.open(tmp_path).generation == 1
    assert hits_of(index.search("dog")) == [("b", float(np.float32(0.2))), ("a", float(np.float32(0.1)))]
    assert hits_of(index.search("dog", k=np.int64(1), offset=np.int8(1))) == [("a", float(np.float32(0.1)))]


def test_places_that_hold_something_else(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no index"):
        Index.open(tmp_path)
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(ValueError, match=r"holds 'mine\.txt' and is no index"):
        Index.build(tmp_path, ["a"], [[1]], ["dog"])
    with pytest.raises(ValueError, match="is a file"):
        Index.build(tmp_path / "mine.txt", ["a"], [[1]], ["dog"])
    Index.build(tmp_path / "index", ["a"], [[1]], ["dog"], overwrite=True).close()
    with pytest.raises(ValueError, match="names is empty"):
        Index.build(tmp_path / "none", ["a"], np.zeros((1, 0)), [])


def test_an_index_of_an_earlier_version_is_refused_and_built_over(tmp_path: Path) -> None:
    for name in ("manifest.json", "part-000000.parquet", "part-000000.arrow", "dead-000002.parquet"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(ValueError, match=r"earlier version .* steelyard predict RUN DATA --index DIR --overwrite"):
        Index.open(tmp_path)
    with pytest.raises(ValueError, match="holds an index"):
        Index.build(tmp_path, ["a"], [[1]], ["dog"])
    with Index.build(tmp_path, ["a"], [[1]], ["dog"], overwrite=True) as index:
        assert [hit.id for hit in index.search("dog")] == ["a"]
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".duckdb", ".json"]


def test_notes_names_and_overwriting(tmp_path: Path) -> None:
    old = Index.build(tmp_path, ["a"], [[1.0]], ["dog"], notes={"model": "abc", "n": [1, None]})
    assert (old.notes, old.names, old.n_items) == ({"model": "abc", "n": [1, None]}, ("dog",), 1)
    new = Index.build(tmp_path, ["b", "c"], [[0.5, 0.25], [0, 1]], NAMES[:2], overwrite=True)
    assert (new.notes, new.names, new.n_items) == ({}, ("dog", "Dog"), 2)
    assert [hit.id for hit in old.search("dog")] == ["a"]
    with pytest.raises(ValueError, match="made again with other labels"):
        old.append(["d"], [[1.0]])
    assert [hit.id for hit in old.refreshed().search("Dog")] == ["c", "b"]


def test_a_reader_keeps_its_generation(tmp_path: Path) -> None:
    begin(tmp_path)
    reader = Index.open(tmp_path)
    before = [hit.id for hit in reader.search("dog -cat", k=50)]
    rows = reader.rows(before)
    with Index.open(tmp_path) as writer:
        for i in range(10):
            writer.replace(
                [f"a{j}" for j in range(30 * i, 30 * i + 30) if j != 7], index_writes.values(30 - (i == 0), i)
            )
        writer.delete(["b0"])
    assert [hit.id for hit in reader.search("dog -cat", k=50)] == before
    np.testing.assert_array_equal(reader.rows(before), rows)
    newest = reader.refreshed()
    assert newest is not reader
    assert newest.refreshed() is newest
    assert newest.uuid == reader.uuid
    newest.append(["z"], np.ones((1, 3)))
    assert [hit.id for hit in reader.search("dog -cat", k=50)] == before
    reader.close()
    newest.close()


def test_a_rebuilt_index_is_another_one(tmp_path: Path) -> None:
    """The same folder and number of writes, other items: neither a refresh nor a cache may take one for the other."""
    old = Index.build(tmp_path, ["old"], [[0.5]], ["dog"])
    shutil.rmtree(tmp_path)
    new = Index.build(tmp_path, ["new"], [[0.25]], ["dog"])
    again = Index.build(tmp_path, ["newer"], [[0.75]], ["dog"], overwrite=True)
    assert old.generation == new.generation == again.generation == 1
    assert len({old.uuid, new.uuid, again.uuid}) == 3
    assert [hit.id for hit in old.search("dog")] == ["old"]
    assert [hit.id for hit in old.refreshed().search("dog")] == ["newer"]
    assert [hit.id for hit in new.refreshed().search("dog")] == ["newer"]
    assert again.refreshed() is again


class Writers:
    """Processes that change an index and die."""

    def __init__(self, server: subprocess.Popen[str]) -> None:
        assert server.stdin is not None
        assert server.stdout is not None
        self._lines, self._codes = server.stdin, server.stdout

    def start(self, function: str, folder: Path, *arguments: Any, seconds: float | None = None) -> None:
        print(json.dumps([seconds, function, str(folder), *arguments]), file=self._lines, flush=True)

    def ended(self) -> int:
        return int(self._codes.readline())


@pytest.fixture(scope="module")
def writers() -> Iterator[Writers]:
    command = [sys.executable, index_writes.__file__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        yield Writers(server)
    assert server.returncode == 0


@pytest.fixture
def trusting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of an index are not read whole before they are opened, which takes longer than all the rest."""
    monkeypatch.setattr("steelyard.search.data_files.check", lambda folder, names: None)


@pytest.mark.parametrize("what", ["build", "append", "replace", "delete"])
@pytest.mark.usefixtures("trusting")
def test_a_write_killed_at_any_touch_leaves_the_old_or_the_new(tmp_path: Path, what: str) -> None:
    begin(tmp_path / "index")
    old, seen = content(tmp_path / "index"), set()
    killed = moments(tmp_path / "index", tmp_path, what)
    new = content(tmp_path / "index")
    assert old != new
    for folder in killed:
        after = content(folder)
        assert after in (old, new), folder
        seen.add(after == new)
        change(folder, what) if after == old else Index.open(folder).append(["later"], np.ones((1, 3)))
        assert content(folder) == new if after == old else "later" in content(folder)
        assert not list(folder.glob(".*"))  # neither half a file nor a lock
    assert len(killed) >= 8
    assert seen == {True, False}


@pytest.mark.usefixtures("trusting")
def test_a_killed_first_build_can_be_done_again(tmp_path: Path) -> None:
    for folder in moments(tmp_path / "index", tmp_path, "build"):
        if not (folder / "index.json").exists():
            change(folder, "build")
        assert Index.open(folder).n_items == 40


def test_what_a_full_disk_left_is_removed(tmp_path: Path) -> None:
    """The database that was being written, and the log beside it, in a folder that never became an index."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in (".0a.duckdb.partial", ".0a.duckdb.partial.wal"):
        (folder / name).write_bytes(b"half")
    with Index.build(folder, ["a"], np.array([[0.5]]), ["cat"]) as index:
        assert len(index) == 1
    assert not list(folder.glob(".*.partial*"))


@pytest.mark.usefixtures("trusting")
def test_kills_at_random_moments(tmp_path: Path, writers: Writers) -> None:
    g = random.Random(7)
    begin(tmp_path / "source")
    old = content(tmp_path / "source")
    after = {}
    for what in ("build", "append", "replace", "delete"):
        shutil.copytree(tmp_path / "source", tmp_path / what)
        change(tmp_path / what, what)
        after[what] = content(tmp_path / what)
    for i in range(int(os.environ.get("STEELYARD_RANDOM_KILLS", "6"))):
        what, folder = g.choice(list(after)), tmp_path / f"kill{i}"
        shutil.copytree(tmp_path / "source", folder)
        writers.start("change", folder, what, seconds=g.random() * 0.06)
        writers.ended()
        assert content(folder) in (old, after[what])


@contextlib.contextmanager
def beside(n: int, work: Callable[[], None], again: bool = True) -> Iterator[None]:
    """Do some work in `n` threads, again and again while the block runs; what goes wrong there goes wrong here."""
    stop, problems = threading.Event(), list[BaseException]()

    def repeat() -> None:
        try:
            work()
            while again and not stop.is_set():
                work()
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=repeat) for _ in range(n)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert problems == []


def test_readers_beside_a_writer(tmp_path: Path, writers: Writers) -> None:
    batches = 6
    Index.build(tmp_path, ["first"], np.zeros((1, 3)), index_writes.NAMES).close()
    counts: list[int] = []

    def read() -> None:
        with Index.open(tmp_path) as index:
            done = (index.n_items - 1) // 10
            wanted = [f"{done - 1:03d}-{i}" for i in range(10)] if done else ["first"]
            assert index.n_items == 1 + 10 * done
            assert [hit.id for hit in index.search("dog", k=10)] == wanted
            counts.append(done)

    with beside(2, read):
        writers.start("append_batches", tmp_path, batches)
        assert writers.ended() == 0
    assert len(set(counts)) > 2
    assert Index.open(tmp_path).n_items == 1 + 10 * batches


def test_writers_wait_for_each_other(tmp_path: Path) -> None:
    """The file of the lock goes with every write, and still no two writers are in the folder at once."""
    Index.build(tmp_path, ["first"], np.zeros((1, 3)), index_writes.NAMES).close()
    numbers = itertools.count()

    def write() -> None:
        for _ in range(3):
            with Index.open(tmp_path) as index:
                index.append([f"new {next(numbers)}"], np.ones((1, 3)))

    with beside(4, write, again=False):
        pass
    with Index.open(tmp_path) as index:
        assert (index.n_items, index.generation) == (1 + 4 * 3, 1 + 4 * 3)
    assert not (tmp_path / ".writing").exists()


def test_threads_share_an_index_that_grows(tmp_path: Path) -> None:
    index = Index.build(tmp_path, [f"{i:03d}" for i in range(100)], table(100, n_labels=2), ["a", "b"])

    def read() -> None:
        assert len(index.search("a -b", k=5)) == 5
        assert index.rows(["005"]).shape == (1, 2)

    with beside(3, read):
        for i in range(8):
            index.append([f"new{i}"], [[1.0, 0.0]])
    assert index.n_items == 108


def test_without_duckdb_one_sentence_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Index.build(tmp_path / "made", ["a"], [[1.0]], ["dog"]).close()
    monkeypatch.setitem(sys.modules, "duckdb", None)
    for attempt in (
        lambda: Index.open(tmp_path / "made"),
        lambda: Index.build(tmp_path / "new", ["a"], [[1.0]], ["dog"]),
    ):
        with pytest.raises(ValueError, match=r"pip install 'steelyard\[search\]'"):
            attempt()


# --- files that are not as they were written


def copy_of(source: Path, folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    return Path(shutil.copytree(source, folder))


def answers(folder: Path) -> Any:
    """All that an index answers, or the one sentence that refuses it."""
    try:
        return content(folder)
    except ValueError as refused:
        error = str(refused)
    assert len(error.splitlines()) == 1
    assert str(folder) in error
    return None


@pytest.mark.usefixtures("trusting")
def test_a_file_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    begin(tmp_path / "source")
    g = random.Random(0)
    for file in (tmp_path / "source").iterdir():
        whole = file.read_bytes().rstrip(b"\n") if file.suffix == ".json" else file.read_bytes()
        for size in (0, 1, 100, len(whole) // 2, len(whole) - 1, *(g.randrange(len(whole)) for _ in range(3))):
            folder = copy_of(tmp_path / "source", tmp_path / "cut")
            (folder / file.name).write_bytes(whole[:size])
            assert answers(folder) is None, (file.name, size)
        (folder / file.name).unlink()
        assert answers(folder) is None


def test_a_file_cut_off_while_it_is_open_is_one_sentence(tmp_path: Path) -> None:
    begin(tmp_path)
    with Index.open(tmp_path) as index:
        assert index.search("dog", k=1)
        for file in tmp_path.glob("*.duckdb"):
            os.truncate(file, 20_000)
        for ask in (lambda: index.search("cat -car", k=300), lambda: index.rows(["a1", "a200"])):
            with contextlib.suppress(ValueError):  # what DuckDB still holds may be answered
                ask()


@pytest.mark.usefixtures("trusting")
def test_a_flipped_bit_never_changes_an_answer(tmp_path: Path) -> None:
    begin(tmp_path / "source")
    before = content(tmp_path / "source")
    g, noticed = random.Random(1), 0
    for _ in range(24):
        folder = copy_of(tmp_path / "source", tmp_path / "flipped")
        file = g.choice(sorted(folder.iterdir()))
        bits = bytearray(file.read_bytes())
        at = g.choice([i for i, byte in enumerate(bits) if byte])
        bits[at] ^= 1 << g.randrange(8)
        file.write_bytes(bits)
        after = answers(folder)
        assert after in (None, before), (file.name, at)
        noticed += after is None
    assert noticed > 12


def sealed_again(bits: bytearray) -> None:
    """Give the blocks of a DuckDB file the checksums of what they hold now, as one who forges them would."""
    for start in (0, 4096, 8192, *range(12288, len(bits), 262144)):
        block = np.frombuffer(bytes(bits[start + 8 : start + (4096 if start < 12288 else 262144)]), "<u8")
        value = int(np.bitwise_xor.reduce(block * np.uint64(0xBF58476D1CE4E5B9))) ^ 5381
        bits[start : start + 8] = value.to_bytes(8, "little")


def reseal(folder: Path, key: str, value: Any) -> None:
    """Change what an index says of itself, as one who forges it would."""
    document = json.loads((folder / "index.json").read_text())
    facts = {name: document[name] for name in document if name not in ("format", "version", "sha256")}
    (folder / "index.json").write_text(sealed({**facts, key: value}, "steelyard index", 2))


def test_forged_files_crash_nothing(tmp_path: Path, writers: Writers) -> None:
    """Files with right checksums and wrong content: DuckDB 2.0 crashes on some, earlier ones on one in fourteen."""
    begin(tmp_path / "source")
    names = sorted(path.name for path in (tmp_path / "source").glob("*.duckdb"))
    g = random.Random(int(os.environ.get("STEELYARD_SEED", "2")))
    for _ in range(int(os.environ.get("STEELYARD_FORGED", "8"))):
        folder = copy_of(tmp_path / "source", tmp_path / "forged")
        file = folder / g.choice(names)
        bits = bytearray(file.read_bytes())
        used = [i for i, byte in enumerate(bits) if byte and i % 4096 > 8]
        for _ in range(g.choice((1, 2, 4))):
            at = g.choice(used)
            bits[at : at + g.choice((1, 2, 8))] = g.randbytes(1) if g.random() < 0.5 else b"\xff"
        bits = bits[: len(file.read_bytes())].ljust(len(file.read_bytes()), b"\0")
        sealed_again(bits)
        file.write_bytes(bits)
        writers.start("reads", folder)
        assert writers.ended() == 0, sorted(folder.iterdir())


def test_what_this_user_wrote_is_not_checked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(tmp_path / "own")
    shutil.copytree(tmp_path / "own", tmp_path / "other")
    checked: list[str] = []
    run = subprocess.run

    def counted(command: list[str], **options: Any) -> Any:
        checked.extend(command[3:])
        return run(command, **options)

    monkeypatch.setattr("steelyard.search.check.subprocess.run", counted)
    Index.open(tmp_path / "own").close()
    assert checked == []
    Index.open(tmp_path / "other").close()
    files = sorted(str(path) for path in (tmp_path / "other").glob("*.duckdb"))
    assert sorted(checked) == files
    Index.open(tmp_path / "other").close()
    assert sorted(checked) == files
    os.utime(files[0])
    Index.open(tmp_path / "other").close()
    assert sorted(checked[len(files) :]) == files[:1]


@pytest.mark.parametrize(
    "forge",
    [
        "DROP TABLE items; "
        "CREATE VIEW items AS SELECT 'x' AS id, content AS path, 1 AS p0, 1 AS p1 FROM read_text('/etc/passwd')",
        "ALTER TABLE items ALTER p0 TYPE VARCHAR",
        "ALTER TABLE items ADD COLUMN extra INTEGER DEFAULT 3",
        "ALTER TABLE items DROP COLUMN p1",
        "DELETE FROM labels",
        "UPDATE labels SET name = 'dog'",
        "CREATE TABLE more(x INTEGER)",
        "DROP TABLE fence",
    ],
)
def test_tables_that_are_not_those_of_an_index_are_refused(tmp_path: Path, forge: str) -> None:
    import duckdb

    Index.build(tmp_path, ["a"], [[0.5, 0.25, 1]], ["dog", "cat", "car"]).close()
    file = next(tmp_path.glob("*.duckdb"))
    with duckdb.connect(str(file)) as connection:
        connection.execute(forge)
    reseal(tmp_path, "files", [[file.name, file.stat().st_size, 1, 0]])
    with pytest.raises(ValueError, match=r"is corrupt|cannot be used") as error:
        Index.open(tmp_path)
    assert "root:" not in str(error.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("files", [[name, 1, 1, 0]]) for name in ("../../secret.duckdb", "/etc/passwd", 1)),
        *(("files", files) for files in ([], [["x"]])),
        *(("n_labels", -1), ("n_labels", 10**12), ("n_items", "1"), ("uuid", 5), ("notes", []), ("more", 1)),
    ],
)
def test_a_forged_pointer_is_refused(tmp_path: Path, key: str, value: Any) -> None:
    Index.build(tmp_path, ["a"], [[0.5]], ["dog"]).close()
    reseal(tmp_path, key, value)
    with pytest.raises(ValueError) as error:
        Index.open(tmp_path)
    assert len(str(error.value).splitlines()) == 1


def test_a_searching_connection_reaches_nothing_else(tmp_path: Path) -> None:
    index = Index.build(tmp_path, ["a"], [[0.5]], ["dog"])
    for sql in (
        "SELECT * FROM read_text('/etc/hostname')",
        f"ATTACH '{tmp_path / 'other.duckdb'}' AS other",
        f"COPY (SELECT 1) TO '{tmp_path / 'out.csv'}'",
        "SET threads = 3",
        "SET enable_external_access = true",
        "LOAD httpfs",
        "INSERT INTO f.items VALUES ('b', NULL, 1)",
    ):
        with pytest.raises(ValueError):
            index._now.files[0].ask(sql)
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".duckdb", ".json"]


# --- what else the contract says


def test_without_fcntl_everything_works(tmp_path: Path) -> None:
    code = f"""
import sys
sys.modules["fcntl"] = None
import numpy as np
from steelyard.search import Index
index = Index.build({str(tmp_path / "index")!r}, ["a", "b"], [[0.5], [0.25]], ["dog"])
index.append(["c"], [[0.75]])
assert index.replace(["a"], [[1.0]]) == 1
index.delete(["b"])
assert [hit.id for hit in index.search("dog")] == ["a", "c"]
assert len(Index.open({str(tmp_path / "index")!r})) == 2
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    assert {path.suffix for path in (tmp_path / "index").iterdir()} == {".duckdb", ".json"}  # and no lock


def test_the_items_as_parquet(tmp_path: Path) -> None:
    begin(tmp_path / "index")
    with Index.open(tmp_path / "index") as index:
        index.export(tmp_path / "items.parquet")
        rows = pq.read_table(tmp_path / "items.parquet").to_pylist()
        assert {row["id"] for row in rows} == index.holding([row["id"] for row in rows])
        ids = [row["id"] for row in rows]
        np.testing.assert_array_equal(index.rows(ids), [[row[f"p{j}"] for j in range(3)] for row in rows])
        assert index.paths(ids) == [row["path"] for row in rows]
        assert len(rows) == len(index)


def test_a_search_ends_when_its_time_is_over(tmp_path: Path) -> None:
    index = Index.build(tmp_path, ["x", "y"], table(2, n_labels=3), ["a", "b", "c"])
    before = index.search("a -b")
    begun = time.monotonic()
    with pytest.raises(TimeoutError, match="fewer labels"):
        index._now.files[0].ask("SELECT sum(a.range * b.range) FROM range(1000000) a, range(1000000) b", seconds=0.05)
    assert time.monotonic() - begun < 30
    assert index.search("a -b", seconds=60) == before


def test_a_flush_that_fails_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = Index.build(tmp_path / "index", ["a"], [[0.5]], ["x"])

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as failed:
        index.append(["b"], [[0.25]])
    assert str(failed.value.filename).startswith(str(tmp_path / "index"))
    monkeypatch.undo()
    assert Index.open(tmp_path / "index").n_items == 1
