"""The pages of docs/: examples run, advice is the one that is given, pictures, links and public names are there."""

from __future__ import annotations

import importlib
import inspect
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import notebooks
from steelyard.config.advice import RULES

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(page for page in DOCS.rglob("*.md") if page.parent.name not in ("results", "benchmarks"))
NOTEBOOKS = [
    DOCS / "index.md",
    DOCS / "tutorial.md",
    DOCS / "examples.md",
    *sorted((DOCS / "tutorials").glob("*.md")),
    *sorted((DOCS / "start").glob("*.md")),
]
"""Pages that show what their code prints."""
LONG = [page for page in NOTEBOOKS if page.parent.name == "tutorials" or "```console" in page.read_text()]
WITH_CODE = [page for page in PAGES if "```python" in page.read_text() and page not in NOTEBOOKS]
ROOMS = ("losses", "balance", "objective", "metrics", "calibrate", "data", "models", "training", "search", "annotation")


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.stem)
def test_examples_of_a_page_run_one_after_the_other(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {"__name__": "page"}
    for code in re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.S):
        exec(compile(code, page.name, "exec"), scope)


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[pytest.mark.slow] if page in LONG else []) for page in NOTEBOOKS], ids=str
)
@pytest.mark.filterwarnings("ignore")
def test_a_page_shows_what_its_code_prints(page):
    _, faults = notebooks.run_page(page)
    assert faults == []


@pytest.mark.parametrize(
    ("printed", "equal"),
    [
        ("mAP 52.9 in 3.1 s\n", True),
        ("mAP 53.4 in 99 s\n", True),
        ("mAP 62.9 in 3.1 s\n", False),
        ("F1 52.9 in 3.1 s\n", False),
        ("mAP 52.9 in 3.1 s, twice\n", False),
    ],
)
def test_printed_numbers_may_differ_a_little_and_words_not(printed, equal):
    assert notebooks.same("mAP 52.9 in 3.1 s\n", printed) is equal


def test_a_page_that_shows_something_else_is_noticed_and_written(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(6 * 7)\n```\n\n```text\n41 or so\n```\n\n```console\n$ echo a \\\n  b\n```\n")
    assert notebooks.main([str(page)]) == 1
    notebooks.main([str(page), "--write"])
    assert (
        page.read_text()
        == "```python\nprint(6 * 7)\n```\n\n```text\n42\n```\n\n```console\n$ echo a \\\n  b\na b\n```\n"
    )
    assert notebooks.main([str(page)]) == 0


def test_own_loss_is_under_40_lines_and_its_link_is_where_training_rests():
    import torch

    page = (DOCS / "how-to" / "own-loss.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, flags=re.S)
    assert len(code.splitlines()) < 40
    scope: dict[str, object] = {"__name__": "page"}
    exec(compile(code, "own-loss.md", "exec"), scope)
    loss = scope["SquaredLog"]()  # type: ignore[operator]
    z = torch.linspace(-5, 5, 21, dtype=torch.float64)
    eta = loss.probability(z)
    step = 1e-4

    def risk(at):
        return eta * loss.positive(at) + (1 - eta) * loss.negative(at)

    assert (risk(z + step) > risk(z)).all()
    assert (risk(z - step) > risk(z)).all()


def test_which_loss_says_what_the_rules_say():
    sign = {"at least": "≥", "fewer than": "<"}
    rows = [line.split(" | ") for line in (DOCS / "which-loss.md").read_text().splitlines() if line.startswith("| ")]
    shown = []
    for seen, recipe, _ in rows[1:]:
        said = re.findall(r"(at least|fewer than) (\d+)\b( %)?(?! positives)", seen)
        numbers = sorted((sign[word], float(n) / (100 if per_cent else 1)) for word, n, per_cent in said)
        shown.append((None if recipe == "none" else recipe.strip("`"), numbers))
    wanted = [(r.recipe, sorted((c.compare, c.value) for c in r.conditions if c.value)) for r in RULES]
    assert shown == wanted


def test_every_concept_has_one_picture_and_every_picture_a_concept():
    drawn = {
        f"concept-{n}.svg" for n in re.findall(r"^def (\w+)\(\) -> Any:", (DOCS / "pictures.py").read_text(), re.M)
    }
    shown = [re.findall(r"img/(concept-\w+\.svg)", page.read_text()) for page in (DOCS / "concepts").glob("*.md")]
    assert all(len(pictures) == 1 for pictures in shown)
    assert {picture for pictures in shown for picture in pictures} == drawn
    assert all((DOCS / "img" / name).exists() for name in drawn)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_of_a_page_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        assert target.startswith("http") or (page.parent / target).exists(), target


def run_script(monkeypatch, name, *words):
    """Run a script of docs/ in this process."""
    monkeypatch.setattr(sys, "argv", [name, *map(str, words)])
    runpy.run_path(str(DOCS / name), run_name="__main__")


def test_pictures_can_be_drawn_again(tmp_path, monkeypatch):
    run_script(monkeypatch, "pictures.py", "thresholds", "partial", "--out", tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["concept-partial.svg", "concept-thresholds.svg"]


def test_the_reference_shows_what_is_called_first_and_nothing_internal():
    hooks = runpy.run_path(str(DOCS / "hooks.py"))
    entries = {}
    for room in ("labels", "losses", "balance", "objective", "metrics", "calibrate"):
        for text in ("\n\n" + hooks["names"](room)).split("\n\n::: ")[1:]:
            path, _, options = text.partition("\n")
            entries[path] = [*re.findall(r"members: \[(.*)\]", options), *re.findall(r"\[`(\w+)`\]\(#(\S+)\)", options)]
    assert entries["steelyard.losses.pair.PairLoss"][0] == "probability, log_odds, positive, negative, link"
    assert [name for name, _ in entries["steelyard.losses.bce.BCE"]][:3] == ["forward", "probability", "log_odds"]
    assert entries["steelyard.objective.objective.Objective"][0].startswith("forward, probability, log_odds, ")
    for path, (shown, *links) in ((path, entry) for path, entry in entries.items() if entry):
        names = shown.split(", ") if isinstance(shown, str) else []
        assert not hooks["INTERNAL"] & {*names, *(f"{path.split('.')[-1]}.{name}" for name in names)}
        for name, target in links:
            owner = entries[target.removesuffix(f".{name}")]
            assert name in owner[0].split(", "), f"{path} links to {target}, which is not shown"


@pytest.mark.slow
def test_the_site_builds_and_asks_nothing_of_other_places(tmp_path):
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: pip install 'steelyard[docs]'")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 30
    commands = (tmp_path / "site" / "reference" / "commands.html").read_text()
    assert commands.count("Usage: steelyard ") >= 12
    for room in ROOMS:
        module = importlib.import_module(f"steelyard.{room}")
        public = [getattr(module, name) for name in module.__all__]
        page = (tmp_path / "site" / "reference" / f"{room}.html").read_text()
        documented = [o for o in public if inspect.isclass(o) or inspect.isfunction(o)]
        assert len(documented) > 0
        for o in documented:
            assert f'id="{o.__module__}.{o.__qualname__}"' in page
    fetched = re.compile(r"""<(?:link|script|img|iframe|source)\b[^>]*\b(?:src|href)=["']?(https?:|//)[^>]*>""")
    for page in pages:
        assert not fetched.search(page.read_text()), page
    for style in (tmp_path / "site").rglob("*.css"):
        assert not re.search(r"(?:url\(|@import )[\"']?(?:https?:)?//", style.read_text()), style
