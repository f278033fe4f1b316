"""The page in a real browser."""

# ruff: noqa: E402  (what the extras bring is imported after it is known to be there)

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the page needs the extra serve")
pytest.importorskip("duckdb", reason="searching needs the extra search")
playwright = pytest.importorskip("playwright.sync_api", reason="the browser is driven by playwright")

from serve_data import NASTY, Place, app_of, make_place, running
from steelyard.folder.run_folder import RunFolder
from steelyard.search import Index
from steelyard.serve import make_app

pytestmark = pytest.mark.browser
expect = playwright.expect
expect.set_options(timeout=20_000)  # a machine that does much else is slow, not wrong


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return make_place(tmp_path_factory.mktemp("serve"))


@pytest.fixture(scope="module")
def address(place: Place) -> Iterator[str]:
    with running(app_of(place)) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    program = os.environ.get("STEELYARD_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no browser: neither STEELYARD_CHROMIUM nor chromium is there")
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    yield from opened(browser, address)


@pytest.fixture
def phone(browser: Any, address: str) -> Iterator[Any]:
    yield from opened(browser, address, viewport={"width": 390, "height": 800}, has_touch=True, color_scheme="dark")


def opened(browser: Any, address: str, **options: Any) -> Iterator[Any]:
    """A page that fails the test where a script fails, the policy is broken, or another host is asked."""
    context = browser.new_context(base_url=address, **options)
    context.set_default_timeout(20_000)
    found = context.new_page()
    wrong: list[str] = []
    found.on("pageerror", lambda error: wrong.append(str(error)))
    found.on(
        "console",
        lambda said: (
            wrong.append(said.text) if said.type == "error" and "responded with a status of" not in said.text else None
        ),
    )
    found.on("request", lambda request: None if request.url.startswith(address) else wrong.append(request.url))
    yield found
    context.close()
    assert wrong == []


def query(page: Any) -> list[tuple[str, str]]:
    return parse_qsl(urlsplit(page.url).query)


def chips(page: Any) -> list[str]:
    return [chip.inner_text().replace("\n", "") for chip in page.locator(".chip .turn").all()]


def ids(page: Any) -> list[str]:
    found = page.locator(".grid .card").evaluate_all("cards => cards.map(card => card.dataset.id)")
    return [str(one) for one in found]


def best(place: Place, score: Any) -> list[str]:
    return [place.ids[i] for i in sorted(range(len(place.ids)), key=lambda i: (-score[i], place.ids[i]))]


def test_labels_are_typed_completed_and_removed(page: Any, place: Place) -> None:
    page.goto("/data")
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    page.keyboard.press("/")
    box = page.get_by_role("combobox")
    expect(box).to_be_focused()
    box.fill("do")
    expect(page.get_by_role("option", selected=True)).to_contain_text("dog")
    box.press("Enter")
    expect(page.locator(".chip.present")).to_have_count(1)
    box.fill("-traff")
    expect(page.get_by_role("option", selected=True)).to_contain_text("traffic light")
    box.press("Enter")
    expect(page.locator(".chip.absent")).to_have_count(1)
    assert query(page) == [("w", "dog"), ("n", "traffic light")]
    p = place.probabilities.astype(float)
    expect(page.locator(".grid .card").first).to_have_attribute("data-id", best(place, p[:, 1] * (1 - p[:, 2]))[0])
    page.get_by_label("traffic light, absent: switch to present").click()
    expect(page.locator(".chip.present")).to_have_count(2)
    assert query(page) == [("w", "dog"), ("w", "traffic light")]
    page.get_by_label("Remove dog").click()
    expect(page.locator(".chip")).to_have_count(1)
    box.press("Backspace")
    expect(page.locator(".chip")).to_have_count(0)
    assert query(page) == []
    expect(page.get_by_role("heading", name="What should be in the picture?")).to_be_visible()
    page.go_back()
    expect(page.locator(".chip")).to_have_count(1)


def test_a_text_becomes_chips_or_stays_an_expression(page: Any, place: Place) -> None:
    page.goto("/")
    box = page.get_by_role("combobox")
    box.fill('cat dog -"traffic light"')
    box.press("Enter")
    expect(page.locator(".chip")).to_have_count(3)
    assert chips(page) == ["+cat", "+dog", "−traffic light"]
    assert query(page) == [("w", "cat"), ("w", "dog"), ("n", "traffic light")]
    page.goto("/")
    box.fill("(cat | dog) & ~")
    box.type("traf")
    page.get_by_role("option").filter(has_text="traffic light").click()
    expect(box).to_have_value('(cat | dog) & ~"traffic light" ')
    box.press("Enter")
    p = place.probabilities.astype(float)
    score = (1 - (1 - p[:, 0]) * (1 - p[:, 1])) * (1 - p[:, 2])
    expect(page.locator(".grid .card").first).to_have_attribute("data-id", best(place, score)[0])
    assert query(page) == [("q", '(cat | dog) & ~"traffic light"')]


def test_what_is_half_typed_is_kept(page: Any) -> None:
    page.goto("/?w=cat&w=dog")
    box = page.get_by_role("combobox")
    box.fill("traff")
    page.get_by_label("Remove dog").click()
    expect(page.locator(".chip")).to_have_count(1)
    expect(box).to_have_value("traff")
    box.fill("cat | dog")
    box.press("Enter")
    expect(page.locator("p.status")).to_contain_text("|")
    page.go_back()
    expect(box).to_have_value("")


def test_a_mistake_is_shown_with_its_place(page: Any) -> None:
    page.goto("/?q=cat+%26+%26+dog")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("stands where a label is expected")
    assert alert.locator(".caret").text_content() == "cat & & dog\n      ^"
    page.get_by_role("combobox").fill("cat | dog")
    page.get_by_role("combobox").press("Enter")
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(page.locator(".grid .card").first).to_be_visible()


def test_an_image_opens_moves_on_and_closes_by_back(page: Any) -> None:
    page.goto("/?w=cat")
    first = page.locator(".grid .card").first
    expect(first.locator("img")).to_have_js_property("complete", True)
    assert first.locator("img").evaluate("image => image.naturalWidth") > 0
    first.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".grid .card").nth(1)).to_be_focused()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog.locator(".bars .bar")).to_have_count(6)
    order = ids(page)
    expect(dialog.get_by_role("heading")).to_have_text(order[1])
    assert ("item", order[1]) in query(page)
    page.keyboard.press("ArrowRight")
    expect(dialog.get_by_role("heading")).to_have_text(order[2])
    page.keyboard.press("ArrowLeft")
    expect(dialog.get_by_role("heading")).to_have_text(order[1])
    page.go_back()
    expect(dialog).to_have_count(0)
    assert query(page) == [("w", "cat")]
    expect(page.locator(".grid .card").nth(1)).to_be_focused()
    page.go_forward()
    expect(dialog).to_be_visible()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    assert ids(page) == order


def test_a_threshold_leaves_out_items(page: Any, place: Place) -> None:
    page.goto("/?w=cat")
    expect(page.locator(".grid .card")).to_have_count(40)
    slider = page.get_by_label("cat: at least")
    slider.fill("0.8")
    left = int((place.probabilities[:, 0] >= 0.8).sum())
    expect(page.locator(".grid .card")).to_have_count(left)
    assert query(page) == [("w", "cat"), ("t", "cat:0.8")]
    page.go_back()
    expect(page.locator(".grid .card")).to_have_count(40)
    expect(slider).to_have_value("0")
    page.get_by_role("button", name="More").click()
    expect(page.locator(".grid .card")).to_have_count(60)
    expect(page.get_by_role("button", name="More")).to_be_hidden()
    assert ids(page) == best(place, place.probabilities[:, 0])


def test_a_shared_address_shows_the_same_to_another(page: Any, browser: Any, address: str) -> None:
    page.goto("/?w=cat&n=dog&t=cat:0.3")
    page.locator(".grid .card").nth(2).click()
    expect(page.get_by_role("dialog").locator(".bars .bar")).to_have_count(6)
    shared, order = page.url, ids(page)
    other = browser.new_page()
    other.goto(shared)
    expect(other.get_by_role("dialog").get_by_role("heading")).to_have_text(order[2])
    assert (chips(other), ids(other)) == (["+cat", "−dog"], order)
    other.get_by_label("close").click()
    expect(other.get_by_role("dialog")).to_have_count(0)
    assert other.url == shared.split("&item=")[0]
    other.reload()
    expect(other.locator(".grid .card").first).to_be_visible()
    assert ids(other) == order
    other.close()


def test_a_label_page_moves_its_threshold_and_opens_items(page: Any, place: Place) -> None:
    page.goto("/data")
    page.get_by_role("row").filter(has_text="dog").get_by_role("link").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("dog")
    expect(page.locator(".chart")).to_have_count(2)
    page.get_by_label("Threshold", exact=True).fill("0.5")
    y, p = place.labels.values[:, 1], place.probabilities[:, 1]
    above, present = (p >= 0.5) & (y >= 0), y == 1
    precision, recall = present[above].mean(), present[above].sum() / present.sum()
    said = f"At .500: {above.sum()} items, precision {100 * precision:.1f} %, recall {100 * recall:.1f} %"
    expect(page.locator(".said")).to_contain_text(said)
    page.locator(".strip .card").first.click()
    expect(page.get_by_role("dialog").locator(".bars .bar")).to_have_count(6)
    page.go_back()
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.go_back()
    expect(page.get_by_role("heading", level=1)).to_have_text("Labels")
    page.go_forward()
    page.get_by_role("link", name="Find items").click()
    expect(page.locator(".chip")).to_have_count(1)


def test_the_start_page_offers_labels_examples_and_pictures(page: Any, place: Place) -> None:
    page.goto("/")
    cards = page.locator(".start .card")
    expect(cards).to_have_count(6)
    expect(cards.first.locator("img")).to_have_js_property("complete", True)
    shown = cards.evaluate_all(
        "cards => cards.map(card => [card.querySelector('b').textContent, card.querySelector('img').alt])"
    )
    column = dict(zip(place.labels.names, place.probabilities.T, strict=True))
    assert {name: best(place, column[name])[0] for name in column} == dict(shown)
    example = page.locator(".start code a").nth(1)
    text = example.inner_text()
    example.click()
    expect(page.locator(".grid .card").first).to_be_visible()
    assert query(page) == [("q", text)]
    page.go_back()
    expect(cards).to_have_count(6)
    cards.filter(has_text="traffic light").click()
    assert query(page) == [("w", "traffic light")]


def test_everything_is_done_by_keys(page: Any, place: Place) -> None:
    def press(*keys: str) -> None:
        for key in keys:
            page.keyboard.press(key)

    def tab_to(locator: Any, most: int = 40) -> None:
        for _ in range(most):
            if locator.evaluate("node => node === document.activeElement"):
                return
            page.keyboard.press("Tab")
        raise AssertionError(f"{locator} is not reached by Tab")

    page.goto("/")
    expect(page.locator(".start .tag").first).to_be_visible()
    press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    press("/")
    page.keyboard.type("cat")
    expect(page.get_by_role("option", selected=True)).to_contain_text("cat")
    press("Enter")
    expect(page.locator(".chip.present")).to_have_count(1)
    page.keyboard.type("do")
    expect(page.get_by_role("option", selected=True)).to_contain_text("dog")
    press("Shift+Enter")
    expect(page.locator(".chip.absent")).to_have_count(1)
    assert query(page) == [("w", "cat"), ("n", "dog")]
    press("Escape", "Shift+Tab")  # the chips lie before the field
    expect(page.get_by_label("Remove dog")).to_be_focused()
    press("Shift+Tab", "Enter")
    expect(page.locator(".chip.present")).to_have_count(2)
    press("/")
    slider = page.get_by_label("cat: at least")
    tab_to(slider)
    press("ArrowRight", "ArrowRight")
    expect(slider).to_have_value("0.02")
    assert ("t", "cat:0.02") in query(page)
    expect(page.get_by_role("status").locator("code")).to_have_text("cat >= 0.02 & dog")  # the answer is there
    tab_to(page.locator(".grid .card").first)
    expect(page.get_by_role("listbox")).to_have_count(0)
    press("ArrowDown", "ArrowUp", "ArrowRight", "Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("heading")).to_have_text(ids(page)[1])
    tab_to(dialog.get_by_role("link", name="dog", exact=True))
    press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("dog")
    threshold = page.get_by_label("Threshold", exact=True)
    tab_to(threshold)
    said = page.locator(".said").inner_text()
    press("ArrowLeft")
    expect(page.locator(".said")).not_to_have_text(said)
    page.go_back()
    expect(dialog).to_be_visible()
    press("Escape")
    expect(dialog).to_have_count(0)


def test_an_answer_that_comes_late_leaves_one_on_the_same_card(page: Any) -> None:
    page.goto("/?w=cat&w=dog")
    expect(page.locator(".grid .card").first).to_be_visible()
    second = ids(page)[1]
    held: list[Any] = []
    page.route("**/api/search*", lambda route: held.append(route))
    slider = page.get_by_label("cat: at least")
    slider.focus()
    page.keyboard.press("ArrowRight")
    page.locator(".grid .card").nth(1).focus()
    while not held:
        page.wait_for_timeout(20)
    held.pop().continue_()
    expect(page.get_by_role("status").locator("code")).to_have_text("cat >= 0.01 & dog")
    assert page.evaluate("document.activeElement.dataset.id") == second


def test_an_answer_broken_off_as_it_comes_in_leaves_the_newer_offer(page: Any) -> None:
    page.add_init_script(
        """const read = Response.prototype.json;
        let first = true;
        Response.prototype.json = async function () {
          if (first && this.url.includes("/api/labels?text=d&")) {
            first = false;
            await new Promise((done) => { window.letIn = done; }); // its head has come, the rest has not
          }
          return read.call(this);
        };"""
    )
    page.goto("/")
    box = page.get_by_role("combobox")
    box.fill("d")
    page.wait_for_function("() => window.letIn")
    box.fill("do")  # breaks the first off
    dog = page.get_by_role("option", selected=True)
    expect(dog).to_contain_text("dog")
    page.evaluate("() => window.letIn()")
    page.wait_for_timeout(200)
    expect(dog).to_contain_text("dog")


def test_names_with_markup_are_text(page: Any) -> None:
    page.goto("/data")
    expect(page.get_by_role("link", name=NASTY).first).to_be_visible()
    page.goto("/")
    page.locator(".tag").filter(has_text="onerror").click()
    expect(page.locator(".grid .card").first).to_be_visible()
    assert chips(page) == ["+" + NASTY]
    page.locator(".grid .card").first.click()
    page.get_by_role("dialog").get_by_role("link", name=NASTY).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(NASTY)
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert page.evaluate("window.hacked") is None
    assert page.locator('img[src="x"]').count() == 0


@pytest.mark.parametrize("path", ["/", "/?w=cat&n=dog", "/?w=cat&item=item+003", "/label?name=dog", "/data", "/?q=%26"])
def test_a_phone_shows_every_page_whole(phone: Any, path: str) -> None:
    phone.goto(path)
    phone.wait_for_load_state("networkidle")
    assert phone.evaluate("document.documentElement.scrollWidth <= innerWidth")
    close = phone.get_by_label("close")
    if close.count():
        box = close.bounding_box()
        assert box["x"] + box["width"] <= 390
    paper = phone.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == "rgb(20, 25, 31)"


def test_light_and_dark_are_chosen_and_kept(page: Any) -> None:
    page.goto("/")
    page.get_by_label("Light or dark").click()
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.reload()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == dark == "rgb(20, 25, 31)"


def test_a_server_that_is_gone_is_told(page: Any) -> None:
    page.goto("/?w=cat")
    expect(page.locator(".grid .card").first).to_be_visible()
    page.route(
        "**/api/search*", lambda route: route.fulfill(status=503, json={"error": "too much is asked for at once"})
    )
    page.get_by_label("cat, present: switch to absent").click()
    expect(page.get_by_role("alert")).to_contain_text("too much is asked")
    page.unroute("**/api/search*")
    page.get_by_label("cat, absent: switch to present").click()
    expect(page.locator(".grid .card").first).to_be_visible()


def rebuilt(place: Place, prefix: str) -> dict[str, str]:
    """Make the index anew with items whose names begin so; return the score of each for cat, as cards show it."""
    eta = np.linspace(0.9, 0.1, 50)[:, None].repeat(3, 1) + 0.001 * len(prefix)
    with Index.build(place.index, [f"{prefix}{i}" for i in range(50)], eta, ("cat", "dog", "bird")) as index:
        return {hit.id: f"{hit.score:.3f}".removeprefix("0") for hit in index.search("cat", k=1000)}


def test_a_run_is_trained_again_while_its_page_is_open(browser: Any, tmp_path: Path) -> None:
    """Old names with old scores until the new run is whole, then new names with new scores; never some of each."""
    place = make_place(tmp_path, 3)
    shutil.rmtree(place.index)
    old = rebuilt(place, "old")
    saved = shutil.copytree(place.run, tmp_path / "saved", ignore=shutil.ignore_patterns("index"))

    def cards() -> dict[str, str]:
        if page.locator(".more").is_visible():
            page.locator(".more").click()
        page.wait_for_timeout(1200)  # the server looks for a newer index once a second
        script = "cards => cards.map(card => [card.dataset.id, card.querySelector('.score').textContent])"
        return dict(page.locator(".grid .card").evaluate_all(script))

    with running(make_app(place.run)) as port:
        for page in opened(browser, f"http://127.0.0.1:{port}"):
            page.goto("/?w=cat")
            expect(page.locator(".grid .card").first).to_be_visible()
            RunFolder(place.run).create(True, "", {})  # as train --overwrite begins
            assert not place.index.exists()
            assert cards().items() <= old.items()
            shutil.copytree(saved, place.run, ignore=shutil.ignore_patterns("run.json"), dirs_exist_ok=True)
            new = rebuilt(place, "newer")
            assert cards() == old  # the run is not finished
            shutil.copy(saved / "run.json", place.run)
            expect(page.locator('.grid .card[data-id^="newer"]').first).to_be_visible()  # by itself
            shown = cards()
            assert shown
            assert shown.items() <= new.items()
            page.locator(".grid .card").first.click()
            dialog = page.get_by_role("dialog")
            expect(dialog.get_by_role("heading")).to_have_text(next(iter(new)))
            expect(dialog.locator(".bars .bar")).to_have_count(3)
            assert page.locator("#facts").inner_text().startswith(f"{len(new)} items")


def test_more_like_an_item(page: Any, place: Place) -> None:
    page.goto("/?w=cat")
    page.locator(".grid .card").first.click()
    shown = page.locator("dialog h2").inner_text()
    page.get_by_role("link", name="More like this").click()
    expect(page.locator(".status")).to_contain_text(f"for cat, like {shown}")
    expect(page.locator("dialog[open]")).to_have_count(0)
    with Index.open(place.index) as index:
        want = [hit.id for hit in index.search("cat", 3, like=shown)]
    expect(page.locator(".grid .card").first).to_have_attribute("data-id", want[0])
    assert [page.locator(".grid .card").nth(i).get_attribute("data-id") for i in range(3)] == want
    assert dict(parse_qsl(urlsplit(page.url).query)) == {"w": "cat", "like": shown}
    page.get_by_role("link", name=f"not like {shown}").click()
    expect(page.locator(".status")).to_have_text("The most probable of 60 items for cat")
    page.goto(f"/?like={shown}")
    expect(page.locator(".status")).to_contain_text(f"The closest of 60 items to {shown}")
