"""The built site in a real browser: no page overflows and no table is clipped, on a desktop and on a phone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import check_site

playwright = pytest.importorskip("playwright.sync_api", reason="the browser is driven by playwright")
pytestmark = pytest.mark.browser
ROOT = Path(__file__).resolve().parent.parent
WIDE = "<td>a_rather_long_word_in_a_cell</td>" * 20


@pytest.fixture(scope="module")
def page() -> Iterator[Any]:
    program = check_site.browser()
    if program is None:
        pytest.skip("no browser: neither STEELYARD_CHROMIUM nor chromium is there")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser.new_page()
        browser.close()


def test_every_page_fits(page, tmp_path):
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: pip install 'steelyard[docs]'")
    site = tmp_path / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(site)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    files = sorted(site.rglob("*.html"))
    assert len(files) > 100
    assert list(check_site.faults(page, files, site)) == []


def test_a_table_that_is_not_drawn_is_noticed(page, tmp_path):
    file = tmp_path / "page.html"
    file.write_text("<!doctype html><article><p>| a | b |\n| --- | ---: |\n| 1 | 2 |</p></article>")
    found = list(check_site.faults(page, [file], tmp_path))
    assert len(found) == len(check_site.WIDTHS)
    assert all("shows a table as text" in fault for fault in found)


@pytest.mark.parametrize(
    ("style", "says"),
    [
        ("article { overflow: hidden }", "is clipped"),
        ("", "pixels wide"),
        ("div { overflow-x: auto }", "moves its first column"),
        ("div { overflow-x: auto } td:first-child { position: sticky; left: 0 }", ""),
    ],
)
def test_a_table_that_does_not_fit_is_noticed(page, tmp_path, style, says):
    file = tmp_path / "page.html"
    table = f"<div><table><tr>{WIDE}</tr></table></div>"
    file.write_text(f"<!doctype html><style>body {{ margin: 0 }} {style}</style><article>{table}</article>")
    found = list(check_site.faults(page, [file], tmp_path))
    assert len({fault.split(":")[0] for fault in found}) == (2 if says else 0)
    assert all(says in " ".join(found) for _ in found)
