"""The JSON API, asked without a network."""

# ruff: noqa: E402  (what the extras bring is imported after it is known to be there)

from __future__ import annotations

import asyncio
import gzip
import io
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the page needs the extra serve")
pytest.importorskip("duckdb", reason="searching needs the extra search")
httpx = pytest.importorskip("httpx", reason="the API is asked through httpx")

from PIL import Image
from sklearn.metrics import average_precision_score

from serve_data import NAMES, NASTY, Place, app_of, make_place
from steelyard.search import Index, Query
from steelyard.serve import api_types, make_app, serve
from steelyard.serve.app import STATIC
from steelyard.serve.guards import Busy
from steelyard.serve.label_page import performance
from steelyard.serve.query_form import Completion
from steelyard.serve.truth import IndexTruth
from steelyard.serve.workers import _ENTRY, AnswerCache, Workers, bytes_of

Ask = Callable[..., Any]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return make_place(tmp_path_factory.mktemp("serve"))


def asker(app: Any) -> Ask:
    def ask(path: str, headers: dict[str, str] | None = None, **parameters: Any) -> Any:
        async def go() -> Any:
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
                return await client.get(path, params=parameters, headers=headers)

        return asyncio.run(go())

    return ask


@pytest.fixture(scope="module")
def ask(place: Place) -> Ask:
    return asker(app_of(place))


def ranking(place: Place, text: str) -> list[str]:
    score = Query.parse(text, NAMES).score(place.probabilities, NAMES)
    return [place.ids[i] for i in sorted(range(len(score)), key=lambda i: (-score[i], place.ids[i])) if score[i] > 0]


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"q": "cat dog"}, "cat & dog"),
        ({"present": ["cat", "traffic light"], "absent": "dog"}, 'cat & "traffic light" & ~dog'),
        ({"q": "cat | dog", "present": "traffic light"}, '(cat | dog) & "traffic light"'),
        ({"present": "cat", "limit": "cat:0.5"}, "cat >= 0.5"),
        ({"absent": "cat", "limit": "cat:0.25"}, "~cat & cat <= 0.25"),
        ({"present": NASTY, "absent": ["two\nlines", NAMES[4]]}, ""),
    ],
)
def test_a_search_ranks_as_the_query_scores(place: Place, ask: Ask, asked: dict[str, Any], text: str) -> None:
    found = ask("/api/search", k=100, **asked)
    assert found.status_code == 200
    answer = api_types.SearchResult.model_validate(found.json(), strict=True)
    assert [hit.id for hit in answer.hits] == ranking(place, text or answer.query)
    for hit in answer.hits[:3]:
        row = place.probabilities[place.ids.index(hit.id)]
        assert hit.probabilities == {term.label: float(row[NAMES.index(term.label)]) for term in answer.terms}


def test_pages_of_a_search_follow_each_other(place: Place, ask: Ask) -> None:
    found = [ask("/api/search", q="cat -dog", k=25, offset=offset).json() for offset in (0, 25, 50)]
    assert [hit["id"] for page in found for hit in page["hits"]] == ranking(place, "cat & ~dog")
    assert [page["more"] for page in found] == [True, True, False]


@pytest.mark.parametrize(
    ("text", "plain"), [("cat -dog", True), ("cat | dog", False), ("cat > .5", False), ("~cat", True), ("  ", True)]
)
def test_a_plain_text_is_told_from_one_that_chips_cannot_say(ask: Ask, text: str, plain: bool) -> None:
    assert ask("/api/search", q=text).json()["plain"] is plain


def test_a_mistake_in_a_query_shows_its_place(ask: Ask) -> None:
    found = ask("/api/search", q="cat & & dog")
    assert (found.status_code, found.json()["at"], found.json()["query"]) == (400, 6, "cat & & dog")
    assert "did you mean cat" in ask("/api/search", q="catt").json()["error"]


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ({"present": "cow"}, 400),
        ({"limit": "cat:0.5"}, 400),
        ({"present": "cat", "limit": "cat:2"}, 400),
        ({"present": "cat", "limit": "dog:0.5"}, 400),
        ({"q": "cat", "k": 101}, 422),
        ({"q": "cat", "k": 0}, 422),
        ({"q": "cat", "offset": 10_001}, 422),
        ({"q": "c" * 2001}, 422),
        ({"present": ["cat"] * 25}, 422),
    ],
)
def test_what_is_out_of_bounds_is_refused_in_a_sentence(ask: Ask, asked: dict[str, Any], status: int) -> None:
    found = ask("/api/search", **asked)
    assert found.status_code == status
    assert api_types.Problem.model_validate(found.json()).error


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("LIGHT", ["traffic light"]),
        ("tra", ["traffic light"]),
        ("trafic lite", ["traffic light"]),
        ("", sorted(NAMES)),
        ("zzzz", []),
    ],
)
def test_labels_are_completed(ask: Ask, text: str, names: list[str]) -> None:
    answer = api_types.LabelList.model_validate(ask("/api/labels", text=text).json())
    assert sorted(label.name for label in answer.labels) == names


def test_completion_puts_the_best_fit_first_and_the_frequent_before_the_rare() -> None:
    complete = Completion(["hotdog", "dog sled", "dogma", "dog", "big dog"], [5, 6, 7, 1, 9])
    assert complete("dog", 9) == ["dog", "dogma", "dog sled", "big dog", "hotdog"]
    assert complete("dog", 2) == ["dog", "dogma"]


def test_an_item_has_its_probabilities_and_what_is_true(place: Place, ask: Ask) -> None:
    answer = api_types.ItemFacts.model_validate(ask("/api/item", id="item 007").json())
    assert [one.probability for one in answer.labels] == sorted(place.probabilities[7].tolist(), reverse=True)
    true = {one.label: one.truth for one in answer.labels}
    assert true == {n: None if y < 0 else y for n, y in zip(NAMES, place.labels.rows([7])[0].tolist(), strict=True)}
    assert answer.has_image
    assert answer.annotated == "test"
    assert not ask("/api/item", id="item 059").json()["has_image"]
    assert ask("/api/item", id="nobody").status_code == 404


@pytest.mark.parametrize(("size", "sides"), [("small", (320, 200)), ("large", (640, 400))])
def test_a_thumbnail_is_a_small_upright_jpeg(ask: Ask, size: str, sides: tuple[int, int]) -> None:
    found = ask("/api/thumbnail", id="item 001", size=size)
    picture = Image.open(io.BytesIO(found.content))
    assert (found.headers["content-type"], picture.format, picture.size) == ("image/jpeg", "JPEG", sides)
    assert "content-encoding" not in found.headers
    again = ask("/api/thumbnail", {"if-none-match": found.headers["etag"]}, id="item 001", size=size)
    assert (again.status_code, again.content) == (304, b"")


def test_a_picture_that_changes_is_read_again(tmp_path: Path) -> None:
    place = make_place(tmp_path, 4)
    app = app_of(place)
    before = asker(app)("/api/thumbnail", id="item 000")
    Image.new("RGB", (50, 50), "red").save(place.images / "item 000.jpg")
    after = asker(app)("/api/thumbnail", id="item 000")
    assert Image.open(io.BytesIO(after.content)).size == (50, 50)
    assert before.headers["etag"] != after.headers["etag"]
    (place.images / "item 000.jpg").unlink()
    assert asker(app)("/api/thumbnail", id="item 000").status_code == 404
    (place.images / "item 001.jpg").write_bytes(b"no picture")
    assert asker(app)("/api/thumbnail", id="item 001").status_code == 404


def test_a_label_page_measures_what_scikit_learn_does(place: Place, ask: Ask) -> None:
    answer = api_types.LabelPage.model_validate(ask("/api/label", name="dog").json())
    y, p = place.labels.values[:, 1], place.probabilities[:, 1]
    known = y >= 0
    assert (answer.n_items, answer.n_present) == (known.sum(), (y == 1).sum())
    assert answer.average_precision == pytest.approx(average_precision_score(y[known], p[known]))
    assert sum(answer.bins.counts) == answer.n_items
    best = sorted(range(len(p)), key=lambda i: -p[i])
    present, absent = ([place.ids[i] for i in best if y[i] == target] for target in (1, 0))
    shown = [[one.id for one in part] for part in (answer.right, answer.wrong, answer.missed)]
    assert shown == [present[:12], absent[:12], present[::-1][:12]]
    assert ask("/api/label", name="cow").status_code == 404


def test_a_curve_says_what_lies_at_or_above_each_threshold() -> None:
    g = np.random.default_rng(0)
    p = np.round(g.random((4000, 1)), 3).astype(np.float32)
    y = (g.random((4000, 1)) < p).astype(np.int8)
    page = performance(0, IndexTruth("test", [str(i) for i in range(4000)], p, y, ""))
    curve = page["curve"]
    assert len(curve["threshold"]) <= 300
    above = p[:, 0] >= np.array(curve["threshold"], np.float32)[:, None]
    assert curve["decided"] == above.sum(1).tolist()
    hits = (above & (y[:, 0] == 1)).sum(1)
    np.testing.assert_allclose(curve["precision"], hits / above.sum(1), atol=1e-6)
    np.testing.assert_allclose(curve["recall"], hits / y.sum(), atol=1e-6)
    assert page["average_precision"] == pytest.approx(average_precision_score(y[:, 0], p[:, 0]))


def test_a_label_without_a_positive_has_no_curve() -> None:
    judged = IndexTruth("test", ["a", "b"], np.full((2, 1), 0.3, np.float32), np.array([[0], [-1]], np.int8), "")
    page = performance(0, judged)
    assert (page["curve"], page["average_precision"], page["n_items"], page["right"]) == (None, None, 1, [])
    assert [one["id"] for one in page["wrong"]] == ["a"]
    json.dumps(page, allow_nan=False)


def test_without_known_labels_the_pages_say_why(place: Place) -> None:
    plain = asker(make_app(place.run))
    label = api_types.LabelPage.model_validate(plain("/api/label", name="dog").json())
    assert (label.part, label.curve) == (None, None)
    assert "trained on arrays" in label.note
    assert api_types.DataPage.model_validate(plain("/api/data").json()).note


def test_the_run_and_its_frequencies(place: Place, ask: Ask) -> None:
    facts = api_types.RunFacts.model_validate(ask("/api/run").json())
    assert (facts.n_items, facts.n_labels, facts.has_images) == (60, 6, True)
    data = api_types.DataPage.model_validate(ask("/api/data").json())
    seen = [label.positives or 0 for label in data.labels]
    assert seen == sorted(seen, reverse=True)
    assert sum(data.groups.values()) == len(NAMES)


def test_the_openapi_document_describes_every_answer(ask: Ask) -> None:
    document = ask("/api/openapi.json").json()
    paths = ("run", "labels", "search", "item", "label", "data", "thumbnail")
    assert set(document["paths"]) == {f"/api/{name}" for name in paths}
    for path, methods in document["paths"].items():
        assert methods["get"]["description"], path
        assert methods["get"]["responses"]["200"]["content"], path
        assert {"413", "414", "421", "422", "500", "503"} <= methods["get"]["responses"].keys(), path
    api_types.Problem.model_validate(ask("/api/search", q="a" * 9000).json())


@pytest.mark.parametrize("empty", [{}, {"q": "  "}, {"k": 5}])
def test_nothing_asked_for_is_nothing_found(ask: Ask, empty: dict[str, Any]) -> None:
    """Every parameter is optional in the OpenAPI document, so leaving all of them out is no mistake."""
    answer = ask("/api/search", **empty)
    result = api_types.SearchResult.model_validate(answer.json())
    assert (answer.status_code, result.hits, result.terms, result.more, result.n_items) == (200, [], [], False, 60)


def test_answers_are_compressed_where_it_pays_and_known_again(ask: Ask) -> None:
    found = ask("/api/search", {"accept-encoding": "gzip"}, q="cat", k=60)
    assert found.headers["content-encoding"] == "gzip"
    assert len(gzip.compress(found.content)) < len(found.content) / 2
    assert "content-encoding" not in ask("/api/search", {"accept-encoding": "identity"}, q="cat", k=60).headers
    assert "content-encoding" not in ask("/api/run", {"accept-encoding": "gzip"}).headers
    assert ask("/api/search", {"if-none-match": found.headers["etag"]}, q="cat", k=60).status_code == 304
    packed, plain = (ask("/static/main.js", {"accept-encoding": how}) for how in ("gzip", "identity"))
    assert packed.content == plain.content == (STATIC / "main.js").read_bytes()
    assert (packed.headers["content-encoding"], packed.headers["vary"]) == ("gzip", "accept-encoding")
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-type"].partition(";")[0] in ("text/javascript", "application/javascript")


def test_what_is_appended_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steelyard.serve.run_view._LOOK_AGAIN", -1.0)
    place = make_place(tmp_path, 8)
    app = app_of(place)
    before = asker(app)("/api/search", q="cat", k=1).json()
    with Index.open(place.index) as writer:
        writer.append(["new"], np.ones((1, len(NAMES)), np.float32))
    after = asker(app)("/api/search", q="cat", k=1).json()
    assert after["hits"][0]["id"] == "new"
    assert (after["n_items"], after["generation"]) == (9, before["generation"] + 1)
    with Index.open(place.index) as writer:
        writer.delete(["new"])
    assert asker(app)("/api/search", q="cat", k=1).json()["hits"] == before["hits"]
    assert asker(app)("/api/item", id="new").status_code == 404


def test_a_run_trained_again_while_it_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The generation begins at 1 again: new scores under the names of old items were once the answer."""
    monkeypatch.setattr("steelyard.serve.run_view._LOOK_AGAIN", -1.0)
    place = make_place(tmp_path, 8)
    ask = asker(app_of(place))
    before = ask("/api/search", q="cat", k=3).json()
    item = ask("/api/item", id="item 000").json()
    finished = (place.run / "run.json").read_bytes()
    (place.run / "run.json").unlink()  # as train --overwrite begins
    shutil.rmtree(place.index)
    assert ask("/api/search", q="cat", k=3).json() == before
    eta = np.linspace(0.9, 0.1, 5)[:, None].repeat(len(NAMES), 1)
    Index.build(place.index, [f"NEW {i}" for i in range(5)], eta, NAMES).close()
    assert ask("/api/search", q="cat", k=3).json() == before  # the run is not finished
    assert ask("/api/item", id="item 000").json() == item
    (place.run / "run.json").write_bytes(finished)
    after = ask("/api/search", q="cat", k=3).json()
    assert [(hit["id"], round(hit["score"], 6)) for hit in after["hits"]] == [
        ("NEW 0", 0.9),
        ("NEW 1", 0.7),
        ("NEW 2", 0.5),
    ]
    assert (after["generation"], after["n_items"]) == (before["generation"], 5)
    assert after["index"] != before["index"]
    assert ask("/api/item", id="item 000").status_code == 404
    Index.build(place.index, ["x"], [[0.5]], ["only"], overwrite=True).close()
    assert [label["name"] for label in ask("/api/labels").json()["labels"]] == ["only"]
    assert ask("/api/search", q="cat").status_code == 400


def test_a_costly_query_is_refused_with_advice(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steelyard.search.plan.MOST_STEPS", 10)
    reply = ask("/api/search", q='(cat & dog) | (dog & "traffic light") | (cat & "traffic light")')
    assert reply.status_code == 400
    assert "ask for its parts one by one" in reply.json()["error"]


def test_a_search_that_takes_too_long_is_broken_off(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*_: Any, **__: Any) -> None:
        raise TimeoutError("the query takes too long: ask for fewer labels")

    app = app_of(place)
    monkeypatch.setattr(Index, "search", slow)
    reply = asker(app)("/api/search", q="cat")
    assert (reply.status_code, reply.json()["error"]) == (503, "the query takes too long: ask for fewer labels")


def test_a_cache_makes_once_keeps_its_budget_and_forgets_failures() -> None:
    made: list[str] = []

    async def make(key: str) -> bytes:
        made.append(key)
        await asyncio.sleep(0)
        if key == "bad":
            raise KeyError
        return key.encode()

    async def go() -> None:
        recent = AnswerCache(3 * bytes_of("a") + 2 * _ENTRY)  # two entries and a few bytes more
        assert await asyncio.gather(*(recent.get("a", lambda: make("a")) for _ in range(5))) == [b"a"] * 5
        for key in ("bad", "bad", "b", "a", "cc", "a", "b"):  # cc drives out b, the one used longest ago
            with suppress(KeyError):
                await recent.get(key, partial(make, key))
        assert made == ["a", "bad", "bad", "b", "cc", "b"]
        recent = AnswerCache(100_000)
        for i in range(200):  # keys count too
            await recent.get(("search", i, "x" * 9000, ("label",) * 20), partial(make, "small"))
        assert 5 <= len(recent._values) <= 100_000 // 9000

    asyncio.run(go())


def test_too_much_at_once_is_refused() -> None:
    async def go() -> list[Any]:
        workers = Workers(1, waiting=3)
        found = await asyncio.gather(*(workers.run(lambda: 1) for _ in range(5)), return_exceptions=True)
        assert await workers.run(lambda: 2) == 2
        workers.close()
        return found

    assert [x if isinstance(x, int) else type(x) for x in asyncio.run(go())] == [1, 1, 1, Busy, Busy]


def test_what_cannot_be_served_is_one_sentence(place: Place, tmp_path: Path) -> None:
    bare = tmp_path / "my run"
    shutil.copytree(place.run, bare, ignore=shutil.ignore_patterns("index"))
    command = f"make one with steelyard predict '{bare}' DATA --index '{bare / 'index'}', or"
    for make, said in (
        (lambda: make_app(tmp_path / "nothing"), "is not a folder"),
        (lambda: make_app(place.run, tmp_path), "holds no index"),
        (lambda: make_app(bare), re.escape(command)),
        (lambda: make_app(place.run, images=tmp_path / "nothing"), "images is .*nothing"),
        (lambda: serve(place.run, port=70000), "port is 70000"),
    ):
        with pytest.raises(ValueError, match=said):
            make()


def test_the_extra_is_named_where_it_is_missing() -> None:
    code = (
        "import sys; sys.modules['fastapi'] = None\n"
        "from steelyard.serve import make_app\n"
        "try: make_app('x')\nexcept ValueError as error: print(error)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "pip install 'steelyard[serve]'" in said
