"""Screenshots of the page of `steelyard serve`, of a run on drawn pictures: what docs/img shows.

    python docs/shots.py                  # draws, trains (a minute), serves, and writes docs/img/serve-*.png
    python docs/shots.py --run RUN --out FOLDER --query "w=dog&w=person&n=car" --label dog
    python docs/shots.py --items 300 --only review    # some of them, of fewer pictures

Needs playwright and a Chromium: STEELYARD_CHROMIUM, or chromium on the PATH.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image

import steelyard as sy
from steelyard.data.review import QUEUE_COLUMNS
from steelyard.demo.scenes import make
from steelyard.search import Index

OUT = Path(__file__).parent / "img"
DESK, PHONE = {"width": 1180, "height": 760}, {"width": 390, "height": 760}
MOST_BYTES = 120_000
SETTINGS = {"model": {"backbone": "lite0", "frozen": True}, "train": {"epochs": 40}}


@contextmanager
def served(run: Path, queue: Path | None) -> Iterator[tuple[str, str]]:
    """Serve a run, and questions where there are any, from another process; give the address and the token."""
    asked = "" if queue is None else f", review={str(queue)!r}"
    code = f"from steelyard.serve import serve; serve({str(run)!r}, port=0{asked})"
    server = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        address = re.search(r"http://\S+", server.stdout.readline())[0]  # type: ignore[index]
        yield address, "" if queue is None else server.stdout.readline().rpartition("#token=")[2].strip()
    finally:
        server.terminate()
        server.wait()


def asked_about(run: Path, table: Path, file: Path) -> Path:
    """Write a queue of questions about labels of held-out items, as if they had been given as absent by mistake."""
    there = {row["path"]: row for row in csv.DictReader(table.open(encoding="utf-8"))}
    with Index.open(run / "index") as index:
        ids = sorted(index.holding(list(there)))
        eta, names = index.rows(ids), index.names
    cells = [(float(eta[i, c]), id, name) for i, id in enumerate(ids) for c, name in enumerate(names)]
    present = [cell for cell in cells if there[cell[1]][cell[2]] == "1" and 0.5 < cell[0] < 0.99]
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out)
        writer.writerow(QUEUE_COLUMNS)
        for rank, (p, id, name) in enumerate(sorted(present, reverse=True)[:40], 1):
            why = f"given as absent, but probably present ({p:.2f})"
            writer.writerow([rank, id, name, "wrong?", 0, f"{p:.4f}", f"{p:.4f}", why, ""])
    return file


def shots(query: str, label: str) -> list[tuple[str, str, dict[str, Any]]]:
    """(name, address, how the browser is) of each picture; `*` in an address opens the second item found."""
    dark = {"color_scheme": "dark"}
    return [
        ("start", "/", {}),
        ("search", f"/?{query}", {}),
        ("item", f"/?{query}*", {}),
        ("label", f"/label?name={label}", {}),
        ("data", "/data", {}),
        ("dark", f"/?{query}", dark),
        ("phone", f"/?{query}", {"viewport": PHONE, "has_touch": True, "device_scale_factor": 1.5}),
        ("phone-item", f"/?{query}*", {"viewport": PHONE, "has_touch": True, "device_scale_factor": 1.5, **dark}),
        ("review", "/review", {}),
        ("review-phone", "/review", {"viewport": PHONE, "has_touch": True, "device_scale_factor": 1.5, **dark}),
    ]


def take(browser: Any, address: str, path: str, options: dict[str, Any], file: Path) -> None:
    """Write one picture, in 256 colours."""
    context = browser.new_context(base_url=address, **{"viewport": DESK, **options})
    page = context.new_page()
    page.goto(path.removesuffix("*"))
    page.wait_for_load_state("networkidle")
    if path.startswith("/review"):  # some answers, so that there is something to see of them
        page.get_by_label("Your name").fill("Ada")
        page.locator(".question h1").click()
        for key in "yyny":
            page.keyboard.press(key)
            page.wait_for_load_state("networkidle")
            page.wait_for_timeout(200)
    if path.endswith("*"):
        page.locator(".grid .card").nth(1).click()
        page.locator("dialog .bars .bar").first.wait_for()
        page.wait_for_load_state("networkidle")
    page.screenshot(path=file, full_page=path.startswith(("/label", "/data")))
    context.close()
    Image.open(file).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(file, optimize=True)
    if file.stat().st_size > MOST_BYTES:
        sys.exit(f"{file} has {file.stat().st_size:,} bytes: at most {MOST_BYTES:,} are kept in the repository")
    print(f"{file} ({file.stat().st_size:,} bytes)")


def main() -> None:
    """Take every picture."""
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--run", type=Path, help="by default one is trained on drawn pictures")
    ask.add_argument("--out", type=Path, default=OUT)
    ask.add_argument("--query", default="w=house&w=tree&n=cloud", help="as in an address of the page")
    ask.add_argument("--label", default="bird", help="whose page is shown")
    ask.add_argument("--items", type=int, default=1200, help="pictures that are drawn")
    ask.add_argument("--only", default="", help="the pictures whose names begin so")
    asked = ask.parse_args()
    from playwright.sync_api import sync_playwright

    program = os.environ.get("STEELYARD_CHROMIUM") or shutil.which("chromium")
    if program is None:
        sys.exit("there is no browser: install chromium, or set STEELYARD_CHROMIUM")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        run, table = asked.run, None
        if run is None:
            table, run = make(Path(folder), asked.items), Path(folder) / "scenes"
            sy.fit(table, "bce", validation=0.4, out=run, settings=SETTINGS)
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        wanted = [shot for shot in shots(asked.query, asked.label) if shot[0].startswith(asked.only)]
        queue = asked_about(run, table, Path(folder) / "queue.csv") if table is not None else None
        with served(run, queue) as (address, token):
            for name, path, options in wanted:
                place = f"{path}#token={token}" if path == "/review" else path
                if queue is not None or path != "/review":
                    take(browser, address, place, options, asked.out / f"serve-{name}.png")
        browser.close()


if __name__ == "__main__":
    main()
