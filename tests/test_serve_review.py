"""What the review page may write, and everything that keeps others from it."""

# ruff: noqa: E402  (what the extras bring is imported after it is known to be there)

from __future__ import annotations

import asyncio
import csv
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the page needs the extra serve")
pytest.importorskip("duckdb", reason="searching needs the extra search")
httpx = pytest.importorskip("httpx", reason="the API is asked through httpx")

from serve_data import Place, app_of, make_place
from steelyard._locks import sole
from steelyard.data.review import ANSWER_COLUMNS, read_answers
from steelyard.serve import serve
from steelyard.serve.guards import HEADERS, MOST_BODY, Guard, Writes
from steelyard.serve.review import BURST, MOST_OF_ONE, Review
from test_corrections import write_answers, write_queue
from typed import typed

HOST = "http://127.0.0.1"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return make_place(tmp_path_factory.mktemp("serve"), 12)


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Served:
    def __init__(self, place: Place, folder: Path, answers: Path | None = None) -> None:
        rows = [
            {"id": place.ids[i], "label": label, "path": str(place.images / f"{place.ids[i]}.jpg")}
            for i in range(3)
            for label in ("dog", "cat")
        ]
        rows += [
            {"id": "=cmd()", "label": "-dog", "path": str(folder / "secret.jpg")},
            {"id": place.ids[5], "label": "dog", "path": "../../etc/passwd"},
            {"id": place.ids[6], "label": "dog"},
        ]
        (folder / "secret.jpg").write_bytes((place.images / f"{place.ids[0]}.jpg").read_bytes())
        self.clock = Time()
        self.review = Review(write_queue(folder / "queue.csv", *rows), answers, self.clock)
        self.app = app_of(place, review=self.review)

    def ask(self, path: str, method: str = "GET", **options: Any) -> Any:
        async def go() -> Any:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url=HOST) as client:
                return await client.request(method, path, **options)

        return asyncio.run(go())

    def headers(self, **changes: str | None) -> dict[str, str]:
        found = {"content-type": "application/json", "origin": HOST, "steelyard-token": self.review.token}
        merged = {**found, **{name.replace("_", "-"): value for name, value in changes.items()}}
        return {name: value for name, value in merged.items() if value is not None}

    def tell(self, body: Any = None, **headers: str | None) -> Any:
        content = body if isinstance(body, bytes) else json.dumps(body if body is not None else ANSWER).encode()
        return self.ask("/api/review", "POST", content=content, headers=self.headers(**headers))


ANSWER = {"id": "item 000", "label": "dog", "answer": "y", "who": "Eve"}


@pytest.fixture
def served(place: Place, tmp_path: Path) -> Served:
    return Served(place, tmp_path)


def test_an_answer_lands_whole_with_who_and_when(served: Served) -> None:
    found = served.tell()
    assert (found.status_code, found.json()["answered"], found.json()["total"]) == (200, 1, 9)
    assert found.json()["file"] == "queue.answers.csv"
    assert {name: found.headers.get(name) for name in HEADERS} == HEADERS
    assert found.headers["cache-control"] == "no-store"
    (row,) = csv.DictReader(served.review.file.open(newline=""))
    assert tuple(row) == ANSWER_COLUMNS
    assert (row["id"], row["label"], row["answer"], row["who"]) == ("item 000", "dog", "y", "Eve")
    assert row["when"].endswith("+00:00")
    assert [q["label"] for q in served.ask("/api/review?k=2").json()["questions"]] == ["cat", "dog"]
    assert served.ask("/api/run").json()["review"] is True
    assert served.ask("/review").status_code == 200


def test_every_answer_is_flushed_to_the_disk_before_the_reply(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[int] = []
    real = os.fsync
    monkeypatch.setattr("steelyard.serve.review.os.fsync", lambda fd: (flushed.append(os.fstat(fd).st_size), real(fd)))
    served.tell()
    served.tell({**ANSWER, "answer": "n"})
    assert flushed[0] < flushed[1] == served.review.file.stat().st_size


def test_answers_are_appended_and_taken_back_never_rewritten(served: Served) -> None:
    served.tell()
    before = served.review.file.read_bytes()
    assert served.tell({**ANSWER, "answer": "undo"}).json()["answered"] == 0
    assert served.review.file.read_bytes().startswith(before)
    again = served.tell({**ANSWER, "answer": "undo"})
    assert (again.status_code, again.json()) == (409, {"error": "there is no answer to undo"})
    assert [answer.answer for answer in read_answers(served.review.file)] == ["y", "undo"]


def test_formulas_and_line_breaks_are_data(served: Served) -> None:
    assert served.tell({"id": "=cmd()", "label": "-dog", "answer": "?", "who": "=1+1\n,x\u202e"}).status_code == 200
    text = served.review.file.read_text()
    assert text.splitlines()[1].startswith("'=cmd(),'-dog,?,\"'=1+1,x\"")
    (answer,) = read_answers(served.review.file)
    assert (answer.id, answer.label) == ("=cmd()", "-dog")
    assert served.tell({**ANSWER, "who": "w" * 500}).status_code == 200
    assert len(read_answers(served.review.file)[1].who) == 80


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"steelyard_token": None}, 403),
        ({"steelyard_token": ""}, 403),
        ({"steelyard_token": "x" * 43}, 403),
        ({"origin": None}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "http://127.0.0.1:8001"}, 403),
        ({"origin": "http://127.0.0.1.evil.example"}, 403),
        ({"origin": "file://127.0.0.1"}, 403),
        ({"origin": "http://127.0.0.1/path"}, 403),
        ({"origin": "http://[::1"}, 403),
        ({"origin": "http://localhost"}, 403),
        ({"origin": "http://evil.example", "host": "evil.example"}, 421),
        ({"sec_fetch_site": "cross-site"}, 403),
        ({"sec_fetch_site": "same-site"}, 403),
        ({"content_type": None}, 415),
        ({"content_type": "text/plain"}, 415),
        ({"content_type": "application/json; charset=utf-8"}, 415),
        ({"content_type": "application/x-www-form-urlencoded"}, 415),
        ({"content_length": "-1"}, 411),
        ({"content_length": "9" * 9}, 411),
        ({"transfer_encoding": "chunked"}, 411),
    ],
)
def test_what_is_not_our_page_writes_nothing(served: Served, headers: dict[str, str | None], status: int) -> None:
    found = served.tell(**headers)
    assert found.status_code == status
    assert set(found.json()) == {"error"}
    assert {name: found.headers.get(name) for name in HEADERS} == HEADERS
    assert not served.review.file.exists()


def test_same_origin_behind_a_proxy_with_tls_is_ours(served: Served) -> None:
    assert served.tell(origin="https://127.0.0.1").status_code == 200
    assert served.tell(origin="http://localhost:80", host="localhost:80").status_code == 200


def test_a_header_given_twice_is_refused(served: Served) -> None:
    headers = [*served.headers().items(), ("origin", "https://evil.example")]
    found = served.ask("/api/review", "POST", content=json.dumps(ANSWER).encode(), headers=headers)
    assert found.status_code == 400
    assert not served.review.file.exists()


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 422),
        (b"[]", 422),
        (b"{", 422),
        (b"[" * 4000, 422),
        (b"\xff", 422),
        ({**ANSWER, "answer": 1}, 422),
        ({**ANSWER, "more": "x"}, 422),
        ({"id": "item 000"}, 422),
        ({**ANSWER, "answer": "maybe"}, 400),
        ({**ANSWER, "answer": "Y"}, 400),
        ({**ANSWER, "id": "item 011"}, 404),
        ({**ANSWER, "id": "../item 000"}, 404),
        ({**ANSWER, "label": "owl"}, 404),
        (b" " * (MOST_BODY + 1), 413),
    ],
)
def test_a_body_that_is_no_answer_writes_nothing(served: Served, body: Any, status: int) -> None:
    assert served.tell(body).status_code == status
    assert not served.review.file.exists()


def test_a_body_longer_than_it_says_is_refused(served: Served) -> None:
    """No server lets it through, but nothing rests on that."""
    assert served.tell(b'{"id":' + b" " * MOST_BODY, content_length="10").status_code == 422


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE", "OPTIONS", "HEAD", "TRACE"])
def test_other_methods_and_addresses_stay_closed(served: Served, method: str) -> None:
    assert served.ask("/api/review", method, headers=served.headers()).status_code == 405
    for path in ("/api/run", "/api/review/", "/api/review/picture", "/review", "/"):
        assert served.ask(path, "POST", content=b"{}", headers=served.headers()).status_code == 405


def test_reading_needs_no_token_and_gives_none_away(served: Served) -> None:
    for path in ("/api/review", "/review", "/api/openapi.json", "/api/run", "/static/review.js"):
        found = served.ask(path)
        assert found.status_code == 200
        assert served.review.token not in found.text
        assert str(served.review.file.parent) not in found.text


def test_every_start_has_another_token(place: Place, tmp_path: Path) -> None:
    first, second = (Served(place, tmp_path).review.token for _ in range(2))
    assert first != second
    assert len(first) >= 43


def test_without_review_nothing_can_be_written(place: Place, served: Served) -> None:
    served.app = app_of(place)
    assert served.tell().status_code == 405
    assert served.ask("/api/review").status_code == 404
    assert served.ask("/review").status_code == 404
    assert served.ask("/api/run").json()["review"] is False


def test_rates_and_repeats_are_bounded(served: Served) -> None:
    answers = [served.tell({**ANSWER, "label": label}).status_code for label in ("dog", "cat") * (BURST // 2)]
    assert set(answers) == {200}
    late = served.tell()
    assert (late.status_code, late.headers["retry-after"]) == (429, "1")
    assert len(read_answers(served.review.file)) == BURST
    served.clock.now += 0.11
    assert served.tell().status_code == 200
    assert served.tell().status_code == 429
    served.clock.now += 100
    for _ in range(MOST_OF_ONE - BURST // 2 - 2):
        served.tell()
    assert served.tell().status_code == 200 if MOST_OF_ONE > BURST // 2 + 2 else True
    for _ in range(3):
        last = served.tell()
    assert (last.status_code, "too often" in last.json()["error"]) == (409, True)


@pytest.mark.parametrize(("k", "status"), [("0", 422), ("51", 422), ("x", 422), ("50", 200)])
def test_questions_come_in_bounded_portions(served: Served, k: str, status: int) -> None:
    assert served.ask(f"/api/review?k={k}").status_code == status
    assert served.ask("/api/review?start=-1").status_code == 422
    assert served.ask("/api/review?start=1000000").json()["questions"] == []


def test_pictures_are_those_of_the_queue_inside_the_folder(served: Served, place: Place) -> None:
    def status(id: str) -> int:
        return int(served.ask("/api/review/picture", params={"id": id, "size": "small"}).status_code)

    assert status(place.ids[0]) == 200
    assert status(place.ids[6]) == 200  # the queue names none, the index does
    assert status("=cmd()") == 404  # a picture, but elsewhere
    assert status(place.ids[5]) == 404
    assert status(place.ids[8]) == 404  # in the index, but not asked about
    assert status("../pictures/item 000.jpg") == 404
    assert served.ask("/api/review/picture", params={"id": place.ids[0]}).headers["content-type"] == "image/jpeg"


# ---- the file of answers


def test_the_lock_of_the_project_is_held_while_writing(served: Served) -> None:
    lock = served.review.file.with_name(f".{served.review.file.name}.lock")
    told: list[Any] = []
    with sole(lock):
        thread = threading.Thread(target=lambda: told.append(served.review.answer("item 000", "dog", "y", "")))
        thread.start()
        thread.join(0.3)
        assert told == []
        assert not served.review.file.exists()
    thread.join(10)
    assert told[0]["answered"] == 1
    assert not lock.exists()


def test_two_servers_share_a_file(place: Place, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    file = tmp_path / "answers.csv"
    one, two = Served(place, tmp_path / "a", file), Served(place, tmp_path / "b", file)
    one.tell()
    assert two.tell({**ANSWER, "label": "cat"}).json()["answered"] == 2
    assert one.ask("/api/review").json()["answered"] == 2
    assert len(read_answers(file)) == 2


def test_a_row_that_was_broken_off_stays_apart(served: Served) -> None:
    served.tell()
    with served.review.file.open("ab") as file:
        file.write(b"item 001,do")
    served.review._append(["item 001", "dog", "n", "", ""])
    lines = served.review.file.read_text().splitlines()
    assert lines[2:] == ["item 001,do", "item 001,dog,n,,"]


def test_answers_from_before_are_taken_up(place: Place, tmp_path: Path) -> None:
    file = write_answers(tmp_path / "queue.answers.csv", ("item 000", "dog", "y"), ("elsewhere", "dog", "y"))
    served = Served(place, tmp_path)
    assert served.ask("/api/review").json()["answered"] == 1
    served.tell({**ANSWER, "label": "cat"})
    assert len(read_answers(file)) == 3


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--answers", "a.csv"), "name a queue of questions with --review"),
        (("--review", "none.csv"), "none.csv cannot be read"),
        (("--review", "queue.csv", "--answers", "queue.csv"), "the queue itself"),
        (("--review", "queue.csv", "--answers", "no/such/a.csv"), "its folder does not exist"),
        (("--review", "queue.csv", "--answers", "other.csv"), "has no column 'answer'"),
        (("--review", "other.csv"), "has no column 'rank'"),
    ],
)
def test_what_is_wrong_with_the_files_is_one_line(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_queue(tmp_path / "queue.csv", {"id": "a", "label": "dog"})
    (tmp_path / "other.csv").write_text("id,label\na,b\n")
    said = typed("serve", place.run, "--port", 0, *args)
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert message in said.err


def test_the_address_with_the_token_is_printed(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept: list[Any] = []

    class Printed:
        def __init__(self, settings: Any, lines: list[str]) -> None:
            kept.extend([settings, *lines])

        def run(self, sockets: Any) -> None:
            pass

    monkeypatch.setattr("steelyard.serve.server._Server", Printed)
    queue = write_queue(tmp_path / "queue.csv", {"id": "item 000", "label": "dog"})
    serve(place.run, port=0, images=place.images, review=queue)
    (line,) = [line for line in kept[1:] if line.startswith("Review 1 question at http://127.0.0.1:")]
    token = line.rpartition("#token=")[2]
    guard = next(m for m in kept[0].app.user_middleware if m.cls is Guard)
    assert guard.kwargs["writes"] == Writes("/api/review", token)
