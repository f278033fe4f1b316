"""Count phrases of the private language that nobody outside this project speaks, by rule and by area.

    python tools/prose.py                 # counts, and where they are above the ones kept in tools/prose.json
    python tools/prose.py --list docs     # file and line of each in an area
    python tools/prose.py --write         # keep the counts, where none rose

`tests/test_prose.py` holds that no count rises, and that README, docs and help have none.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
KEPT = Path(__file__).with_suffix(".json")
UNITS = "epoch|label|item|row|class|image|batch|line|step|bin|set|query|person|cell|run|candidate|question|answer|word"
RULES = {
    "anew": r"\banew\b",
    "a line an epoch": rf"\b(?:an?|one) (?:\w+ )?(?:line|row|column|list|dict|number|section|page|file|bit|line|plot"
    rf"|picture|value|positive|score|task|logit|threshold|text|sentence) (?:an?|each) (?:{UNITS})\b",
    "is said": r"\b(?:is|are|was|were|be) said\b|\bwhat was said\b|\bsays? it anew\b",
    "at hand": r"\bat hand\b",
    "rooms": r"\brooms\b|\b(?:a|the|each|every|which|this|its|one) room\b",
    "holes": r"\b(?:with|in) holes\b|\bholes\b",
    "a reading": r"\b(?:the|a|its|this|each|every|whose) readings?\b(?! (?:of|from|list))"
    r"|\bread by (?:σ|the (?:run's |loss's )?link|sigmoid)\b",
    "known cells": r"\b(?:un)?known cells?\b",
    "calls for more": r"\bcalls? for more\b",
    "goes before": r"\bof yours goes?\b",
    "goes on where": r"\b(?:goes|go) on where\b",
    "of no account": r"\bof no account\b|\bnobody's business\b",
    "that is none": r"\b(?:file|folder|one|word|number|name) that is none\b|\bare often none\b",
    "for no other": r"\bFor no other\b",
    "nominal opening": r"\A(?:What|Which|Whether|How|Where|Why|Whoever) ",
}
OPENING = "nominal opening"
NAMES = ("found", "said", "told", "wanted")
GENERATED = ("results", "benchmarks", "annotation", "search_index", "defaults")
"""Folders of docs/ whose pages are written by commands."""


class Text(NamedTuple):
    """A piece of prose and where it is."""

    place: str
    text: str


def prose(markdown: str) -> str:
    """Return a page without its code, tables of output and links' targets, with as many lines."""

    def blank(match: re.Match[str]) -> str:
        return "\n" * match[0].count("\n")

    text = re.sub(r"^```.*?^```", blank, markdown, flags=re.S | re.M)
    text = re.sub(r"^ {4,}\S.*$", "", text, flags=re.M)
    text = re.sub(r"`[^`\n]*`", "`…`", text)
    return re.sub(r"\]\([^)]*\)", "]", text)


def pages() -> Iterator[Text]:
    """Yield the pages of docs/ that people write."""
    for page in sorted((ROOT / "docs").rglob("*.md")):
        inside = page.relative_to(ROOT / "docs")
        if inside.parts[0] not in GENERATED and inside.name not in ("api.md", "mutants.md", "torture.md", "fuzz.md"):
            yield Text(str(page.relative_to(ROOT)), prose(page.read_text(encoding="utf-8")))


def readme() -> Iterator[Text]:
    """Yield the first page."""
    yield Text("README.md", prose((ROOT / "README.md").read_text(encoding="utf-8")))


def helps() -> Iterator[Text]:
    """Yield the help of every command."""
    from typer.main import get_command
    from typer.testing import CliRunner

    from steelyard.cli import app

    runner = CliRunner()
    for name in ("", *get_command(app).list_commands(None)):  # type: ignore[attr-defined,arg-type]
        output = runner.invoke(app, [*([name] if name else []), "--help"], terminal_width=10_000).output
        yield Text(f"steelyard {name} --help".replace("  ", " "), output)


def modules() -> Iterator[tuple[str, ast.Module]]:
    """Yield the modules of the package."""
    for file in sorted((ROOT / "src" / "steelyard").rglob("*.py")):
        yield str(file.relative_to(ROOT)), ast.parse(file.read_text(encoding="utf-8"))


def docstrings() -> Iterator[Text]:
    """Yield the docstring of every module, class, function and attribute."""
    for file, tree in modules():
        for node in ast.walk(tree):
            for child in getattr(node, "body", []) if not isinstance(node, ast.Lambda | ast.IfExp) else []:
                text = child.value.value if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant) else 0
                if isinstance(text, str):
                    yield Text(f"{file}:{child.lineno}", text)


def errors() -> Iterator[Text]:
    """Yield the text of every message that is raised or warned of."""
    for file, tree in modules():
        for node in ast.walk(tree):
            call = node.exc if isinstance(node, ast.Raise) else node
            warns = isinstance(node, ast.Call) and ast.unparse(node.func) == "warnings.warn"
            if (isinstance(node, ast.Raise) or warns) and isinstance(call, ast.Call) and call.args:
                parts = [n.value for n in ast.walk(call) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
                yield Text(f"{file}:{node.lineno}", " ".join(parts))


AREAS: dict[str, Callable[[], Iterator[Text]]] = {
    "README": readme,
    "docs": pages,
    "help": helps,
    "errors": errors,
    "docstrings": docstrings,
}
CLEAN = ("README", "docs", "help")
"""Areas in which every count is 0."""


def hits(area: str) -> Iterator[tuple[str, str, str]]:
    """Yield (rule, place, phrase) of everything that a rule of an area matches."""
    for place, text in AREAS[area]():
        for rule, pattern in RULES.items():
            if rule == OPENING and area != "docstrings":
                continue
            joined = re.sub(r"(?<=\S)\n(?=[^\n])", " ", text)  # a phrase may go on in the next line
            for match in re.finditer(pattern, joined):
                start = max(0, match.start() - 30)
                yield rule, place, joined[start : match.end() + 30].replace("\n", " ").strip()


def names() -> Counter[str]:
    """Count the assignments to variables and the arguments of these names."""
    count = Counter[str]()
    for _, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in NAMES:
                count[node.id] += 1
            elif isinstance(node, ast.arg) and node.arg in NAMES:
                count[node.arg] += 1
    return count


def counts() -> dict[str, dict[str, int]]:
    """Return the count of each rule in each area, and of the names."""
    result = {}
    for area in AREAS:
        found_here = Counter(rule for rule, _, _ in hits(area))
        result[area] = {rule: found_here[rule] for rule in RULES if rule != OPENING or area == "docstrings"}
    result["names"] = {name: names()[name] for name in NAMES}
    return result


def risen(now: dict[str, dict[str, int]], kept: dict[str, dict[str, int]]) -> list[str]:
    """Return a line for each count that is above the one that is kept."""
    return [
        f"{area}, {rule}: {n}, kept {kept.get(area, {}).get(rule, 0)}"
        for area, rules in now.items()
        for rule, n in rules.items()
        if n > kept.get(area, {}).get(rule, 0)
    ]


def main() -> int:
    """Count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", choices=AREAS, help="show what is counted in an area")
    parser.add_argument("--write", action="store_true", help="keep the counts, where none rose")
    given = parser.parse_args()
    if given.list:
        for rule, place, phrase in hits(given.list):
            print(f"{place}: {rule}: …{phrase}…")
        return 0
    now = counts()
    for area, rules in now.items():
        print(f"{area:12} {sum(rules.values()):4}  " + ", ".join(f"{rule} {n}" for rule, n in rules.items() if n))
    above = risen(now, json.loads(KEPT.read_text(encoding="utf-8"))) if KEPT.exists() else []
    print(*above, sep="\n", end="\n" if above else "")
    if given.write and not above:
        KEPT.write_text(json.dumps(now, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 1 if above else 0


if __name__ == "__main__":
    raise SystemExit(main())
