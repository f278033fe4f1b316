"""What an index and its server must not do: keep much in memory, wait for a writer, parse where requests come in."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from serve_data import app_of, make_place
from steelyard._locks import sole
from steelyard.search import Index, Query
from steelyard.search import pointer as pointers
from steelyard.search.formula import quoted

pytest.importorskip("duckdb")

TEXTS = (
    "",
    "\0",
    "a\0b",
    "a",
    "'",
    '"',
    "\\",
    "a\nb",
    "\u202e",
    "é",
    "e\u0301",
    "x" * 100_000,
    " ",
    "NULL",
    "𝄞",
    "\uffff",
)


def test_ids_paths_and_labels_may_be_any_text(tmp_path: Path) -> None:
    p = np.random.default_rng(0).random((len(TEXTS), len(TEXTS))).astype(np.float32)
    Index.build(tmp_path / "index", TEXTS, p, TEXTS, [f"/{text}" for text in TEXTS]).close()
    with Index.open(tmp_path / "index") as index:
        assert index.names == TEXTS
        np.testing.assert_array_equal(index.rows(TEXTS), p)
        assert index.paths(TEXTS) == [f"/{text}" for text in TEXTS]
        for j, label in enumerate(TEXTS):
            assert index.rows([label])[0, j] == p[j, j]
            if len(label) < 10_000:
                best = index.search(quoted(label), k=1)[0]
                assert (best.id, best.score) == (TEXTS[p[:, j].argmax()], p[:, j].max())
        assert index.replace(["a\0b", "\0"], p[:2]) == 2
        index.delete(["\0"])
        assert "a\0b" in index
        assert "\0" not in index
        assert {hit.id for hit in index.search("a", k=50)} == {*TEXTS} - {"\0"}


def test_readers_wait_for_no_writer(tmp_path: Path) -> None:
    Index.build(tmp_path, ["a"], [[0.5]], ["dog"]).close()
    done: list[str] = []

    def read() -> None:
        with Index.open(tmp_path) as index:
            done.extend(hit.id for hit in index.refreshed().search("dog"))

    with sole(tmp_path / pointers.LOCK):
        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        reader.join(60)
        assert done == ["a"]


@pytest.mark.parametrize("is_large", [False, True])
def test_only_small_answers_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_large: bool) -> None:
    """Neither long statements nor embeddings, of which a few thousand would take more memory than all searches."""
    monkeypatch.setattr("steelyard.search.data_files._SMALL", 0 if is_large else 1 << 40)
    g, names = np.random.default_rng(0), [f"label {i}" for i in range(200)]
    ids = [f"i{i:03d}" for i in range(300)]
    with Index.build(
        tmp_path, [*ids, "x" * 1000], g.random((301, 200)), names, embeddings=g.random((301, 1000))
    ) as index:
        (file,) = index._now.files
        for name in ids[:20]:
            index.search(quoted(names[0]), k=5, like=name)
        index.search(" | ".join(map(quoted, names)), k=5)
        index.path("x" * 1000)
        assert file._recent.cache_info().currsize == 0
        assert file._recent_ids.cache_info().currsize == 0
        index.search(quoted(names[0]), k=5)
        index.path(ids[0])
        assert file._recent.cache_info().currsize > 0
        assert file._recent_ids.cache_info().currsize == 1


def test_a_statement_that_needs_too_much_memory_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with Index.build(tmp_path, ["a"], [[0.5]], ["dog"]) as index:
        with pytest.raises(ValueError, match="needs more than 352 MB for this: ask for fewer items"):
            index._now.files[0].ask("SELECT list(range) FROM range(100000000)")
        assert index.search("dog")[0].id == "a"


def test_queries_are_parsed_off_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []
    parse = Query.parse.__func__  # type: ignore[attr-defined]

    def watched(cls: type[Query], *given: Any) -> Query:
        threads.append(threading.current_thread())
        return parse(cls, *given)  # type: ignore[no-any-return]

    monkeypatch.setattr(Query, "parse", classmethod(watched))
    app = app_of(make_place(tmp_path, 4))

    async def ask() -> list[int]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
            return [(await client.get("/api/search", params={"q": q})).status_code for q in ("cat -dog", "cat &")]

    assert asyncio.run(ask()) == [200, 400]
    assert len(threads) >= 2
    assert threading.current_thread() not in threads
