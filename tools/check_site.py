"""Open every page of the built site in Chromium at two widths: no page overflows, no table is clipped or left as text.

    python tools/check_site.py [build/site]

A table fits, or it scrolls inside its own box while its first column stays where it is. Prints a line per fault and
ends with 1 if there is one. `make test` does the same (tests/test_site.py). Without a browser it says so and ends with
0; STEELYARD_CHROMIUM names the browser to use.
"""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WIDTHS = (1400, 390)
"""Of the window, in pixels: a desktop and a phone."""

LOOK = """() => {
  const faults = [], page = document.documentElement
  if (page.scrollWidth > innerWidth + 1) {
    const beyond = e => e.getBoundingClientRect().right > innerWidth + 1
    const wide = [...document.querySelectorAll("article *")].filter(beyond)
    const at = wide.length ? wide[0].tagName.toLowerCase() + " " + wide[0].textContent.trim().slice(0, 40) : "?"
    faults.push(`is ${page.scrollWidth} pixels wide, from: ${at}`)
  }
  for (const p of document.querySelectorAll("article p"))
    if (/\\|\\s*:?---/.test(p.textContent)) faults.push(`shows a table as text: ${p.textContent.trim().slice(0, 40)}`)
  for (const table of document.querySelectorAll("article table")) {
    const rows = [...table.rows].filter(r => r.cells.length > 1)
    if (!rows.length || !table.getClientRects().length) continue
    const name = "table " + JSON.stringify(table.rows[0].textContent.trim().replace(/\\s+/g, " ").slice(0, 60))
    let box = table
    const scrolls = e => ["auto", "scroll"].includes(getComputedStyle(e).overflowX) && e.scrollWidth > e.clientWidth + 1
    while (box && box.tagName !== "ARTICLE" && !scrolls(box)) box = box.parentElement
    const widest = rows.reduce((a, b) => (a.cells.length >= b.cells.length ? a : b))
    const first = widest.cells[0], last = widest.cells[widest.cells.length - 1]
    if (!box || box.tagName === "ARTICLE") {
      const right = Math.min(innerWidth, table.closest("article").getBoundingClientRect().right)
      if (last.getBoundingClientRect().right > right + 1) faults.push(name + " is clipped")
      continue
    }
    const edge = box.getBoundingClientRect()
    if (edge.right > innerWidth + 1) faults.push(name + " has a box that is wider than the page")
    box.scrollLeft = box.scrollWidth
    if (last.getBoundingClientRect().right > edge.right + 2) faults.push(name + " does not scroll to its end")
    if (first.getBoundingClientRect().left < edge.left - 2) faults.push(name + " moves its first column")
    if (first.getBoundingClientRect().width > 0.62 * edge.width) faults.push(name + " hides all but its first column")
    box.scrollLeft = 0
  }
  return faults
}"""


def browser() -> str | None:
    """Return the path of a Chromium, None if there is none."""
    return os.environ.get("STEELYARD_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")


def faults(page: Any, files: list[Path], root: Path) -> Iterator[str]:
    """Yield a line for every fault of these HTML files, opened in a page of playwright's."""
    for file in files:
        page.goto(file.resolve().as_uri())
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            for fault in page.evaluate(LOOK):
                yield f"{file.relative_to(root)} at {width}: {fault}"


def main() -> int:
    """Check the site."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("site", nargs="?", type=Path, default=Path("build/site"))
    site = parser.parse_args().site
    files = sorted(site.rglob("*.html"))
    if not files:
        print(f"{site} has no pages: build them with `mkdocs build`")
        return 1
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        print("The pages were not looked at: playwright is not installed.")
        return 0
    program = browser()
    if program is None:
        print("The pages were not looked at: there is no chromium; STEELYARD_CHROMIUM may name one.")
        return 0
    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        found = list(faults(chromium.new_page(), files, site))
        chromium.close()
    print(*found, sep="\n", end="\n" if found else "")
    print(f"{len(files)} pages at {WIDTHS[0]} and {WIDTHS[1]} pixels: {len(found)} faults")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
