"""The review page in a real browser: answers land in the file, can be taken back, and need the token."""

# ruff: noqa: E402  (what the extras bring is imported after it is known to be there)

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the page needs the extra serve")
pytest.importorskip("duckdb", reason="searching needs the extra search")
playwright = pytest.importorskip("playwright.sync_api", reason="the browser is driven by playwright")

from serve_data import NASTY, Place, app_of, make_place, running
from steelyard.data.review import read_answers, settled
from steelyard.serve.review import Review
from test_corrections import write_queue
from test_serve_browser import browser, opened

__all__ = ["browser"]

pytestmark = pytest.mark.browser
expect = playwright.expect
expect.set_options(timeout=20_000)
SHOTS = os.environ.get("STEELYARD_SHOTS", "")
"""A folder for pictures of the page, to be looked at."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return make_place(tmp_path_factory.mktemp("serve"))


class Served:
    """A server with a queue of six questions, one about an item without an image, one with a nasty label."""

    def __init__(self, place: Place, folder: Path) -> None:
        rows: list[dict[str, Any]] = [
            {
                "id": id,
                "label": "dog" if i != 2 else NASTY,
                "given": "1" if i % 2 else "",
                "question": "wrong?" if i % 2 else "present?",
                "probability": f"{0.1 + 0.15 * i:.2f}",
                "why": "given as present, but not probable" if i % 2 else "probably present",
                "path": str(place.images / f"{id}.jpg") if i != 4 else "",
            }
            for i, id in enumerate([*place.ids[:4], place.ids[-1], place.ids[5]])
        ]
        self.review = Review(write_queue(folder / "queue.csv", *rows))
        self.app = app_of(place, review=self.review)
        self.place = f"/review#token={self.review.token}"
        self.ids = [str(row["id"]) for row in rows]

    def answers(self) -> list[str]:
        given = settled(read_answers(self.review.file)) if self.review.file.exists() else {}
        return [given[key].answer if (key := (q.id, q.label)) in given else "" for q in self.review.questions]


@pytest.fixture
def served(place: Place, tmp_path: Path) -> Served:
    return Served(place, tmp_path)


@pytest.fixture
def address(served: Served) -> Iterator[str]:
    with running(served.app) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    yield from opened(browser, address)


@pytest.fixture
def phone(browser: Any, address: str) -> Iterator[Any]:
    yield from opened(browser, address, viewport={"width": 390, "height": 800}, has_touch=True, color_scheme="dark")


def shot(page: Any, name: str) -> None:
    if SHOTS:
        page.screenshot(path=str(Path(SHOTS) / f"{name}.png"))


def question(page: Any) -> Any:
    return page.locator(".question h1")


def test_a_walk_through_the_queue(page: Any, served: Served) -> None:
    page.goto(served.place)
    expect(question(page)).to_have_text("Is dog present?")
    assert "token" not in page.url
    expect(page.locator(".asked img")).to_have_js_property("complete", True)
    assert page.locator(".asked img").evaluate("image => image.naturalWidth") > 0
    expect(page.locator(".question dl")).to_contain_text("probably present")
    page.get_by_label("Your name").fill("Eve")
    shot(page, "review-desktop")
    page.locator("h1").click()
    page.keyboard.press("y")
    expect(page.locator(".done")).to_have_text("1 of 6 answered")
    expect(page.locator(".question dd").first).to_have_text(served.ids[1])
    assert served.answers() == ["y", "", "", "", "", ""]
    page.keyboard.press("n")
    expect(question(page)).to_contain_text(NASTY)
    assert page.evaluate("window.hacked") is None
    page.keyboard.press("?")
    expect(page.locator(".done")).to_have_text("3 of 6 answered")
    page.keyboard.press("s")
    expect(page.locator(".question dd").first).to_have_text(served.ids[4])
    expect(page.locator(".asked .nothing")).to_have_text(served.ids[4])  # it has no image
    page.get_by_role("button", name="Yes").click()
    expect(page.locator(".question dd").first).to_have_text(served.ids[5])
    page.keyboard.press("u")
    expect(page.locator(".question dd").first).to_have_text(served.ids[4])
    expect(page.locator(".done")).to_have_text("3 of 6 answered")
    assert served.answers() == ["y", "n", "?", "", "", ""]
    page.keyboard.press("n")
    expect(page.locator(".question dd").first).to_have_text(served.ids[5])
    page.keyboard.press("y")
    expect(question(page)).to_have_text("This is the end of the queue.")
    page.get_by_role("button", name="Go through them").click()
    expect(page.locator(".question dd").first).to_have_text(served.ids[3])  # what was skipped comes again
    page.keyboard.press("y")
    expect(question(page)).to_have_text("All questions are answered.")
    expect(page.locator(".side")).not_to_contain_text("null")
    shot(page, "review-done")
    assert served.answers() == ["y", "n", "?", "y", "n", "y"]
    assert {answer.who for answer in read_answers(served.review.file)} == {"Eve"}
    page.reload()
    expect(question(page)).to_have_text("All questions are answered.")


def test_by_thumb_on_a_dark_phone(phone: Any, served: Served) -> None:
    phone.goto(served.place)
    expect(question(phone)).to_have_text("Is dog present?")
    expect(phone.locator(".asked img")).to_have_js_property("complete", True)
    shot(phone, "review-phone")
    button = phone.get_by_role("button", name="No", exact=False).first
    assert phone.evaluate("document.documentElement.scrollWidth <= innerWidth")
    box = button.bounding_box()
    assert box["height"] >= 40
    assert box["y"] + box["height"] <= 800  # in reach without scrolling
    button.tap()
    expect(phone.locator(".done")).to_have_text("1 of 6 answered")
    assert served.answers()[0] == "n"


def test_without_the_token_nothing_can_be_answered(page: Any, served: Served) -> None:
    page.goto("/review")
    expect(page.locator(".problem")).to_contain_text("open the address that steelyard serve printed")
    expect(page.get_by_role("button", name="Yes")).to_be_disabled()
    page.keyboard.press("y")
    page.goto("/review#token=" + "x" * 43)
    page.reload()
    expect(page.get_by_role("button", name="Yes")).to_be_enabled()
    page.keyboard.press("y")
    expect(page.locator(".problem")).to_contain_text("the token is missing or of an earlier start")
    expect(page.locator(".question dd").first).to_have_text(served.ids[0])
    assert not served.review.file.exists()


def test_typing_a_name_answers_nothing(page: Any, served: Served) -> None:
    page.goto(served.place)
    expect(question(page)).to_have_text("Is dog present?")
    page.get_by_label("Your name").press_sequentially("yuni?s")
    expect(page.locator(".done")).to_have_text("0 of 6 answered")
    page.keyboard.press("/")
    assert not served.review.file.exists()
    page.get_by_role("link", name="Labels").click()
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    page.keyboard.press("y")
    page.get_by_role("link", name="Review").click()
    expect(page.locator(".done")).to_have_text("0 of 6 answered")


def test_without_review_there_is_no_such_page(browser: Any, place: Place) -> None:
    with running(app_of(place)) as port:
        for page in opened(browser, f"http://127.0.0.1:{port}"):
            page.goto("/")
            expect(page.locator("#facts")).to_contain_text("items")
            expect(page.get_by_role("link", name="Review")).to_be_hidden()
