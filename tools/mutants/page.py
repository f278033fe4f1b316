"""The page on planted faults: how many the tests find in each file, and why each that they do not is let live."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

ARGUED = Path(__file__).parent / "survivors.toml"
Found = dict[str, dict[str, Any]]
"""The last outcome of each mutant, by its name."""

HEAD = """# Planted faults

A test suite is worth what it notices. `make mutants` changes one small thing at a time in the losses and the metrics
(a `<` becomes `<=`, a `+` a `-`, a constant one more, a call loses an argument, a statement goes) and runs the tests
that reach the changed line, on a CPU. A change that makes a test fail is found.
Those that no test notices are listed below with the reason why none should: the change cannot be observed, or only
as memory or speed, or only on a CUDA device. Where no reason stands, a test may be wanting.

This page is written by the run itself; the reasons are kept in `tools/mutants/survivors.toml`.
"""


def read(results: Path) -> Found:
    """Return what a run noted; later lines count."""
    if not results.exists():
        return {}
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    return {row["name"]: row for row in rows}


def reason(name: str, entries: list[dict[str, Any]]) -> str:
    """Return why a mutant may live: `names` are names, or beginnings of names where they end in a star."""
    for entry in entries:
        if any(name == known or (known[-1] == "*" and name.startswith(known[:-1])) for known in entry["names"]):
            return str(entry["why"])
    return ""


def write(page: Path, found: Found, n_all: int) -> None:
    """Write the page, given the outcomes and how many mutants there are."""
    entries = tomllib.loads(ARGUED.read_text())["survivor"]
    if false := [row for name, row in found.items() if name.endswith(" as it is") and row["result"] == "killed"]:
        raise SystemExit(f"the tests fail without any fault, so nothing can be said: {false[0]['by']}")
    faults = [row for name, row in found.items() if not name.endswith(" as it is")]
    rows = sorted(faults, key=lambda row: (row["file"], row["line"]))
    files = sorted({row["file"] for row in rows})
    part = f"\n{len(rows)} of {n_all} are planted so far.\n" if len(rows) < n_all else ""
    lines = [HEAD + part, "| file | planted | found | listed below |", "|---|---:|---:|---:|"]
    for file in (*files, ""):
        mine = [row for row in rows if file in ("", row["file"])]
        killed = sum(row["result"] == "killed" for row in mine)
        lines.append(f"| {file or '**all**'} | {len(mine)} | {killed} | {len(mine) - killed} |")
    left = [row for row in rows if row["result"] != "killed"]
    for file in sorted({row["file"] for row in left}):
        lines += ["", f"## {file}", ""]
        by_reason: dict[str, list[str]] = {}
        for row in left:
            if row["file"] == file:
                change = row["name"].removeprefix(file).strip()
                by_reason.setdefault(reason(row["name"], entries) or "**Not argued.**", []).append(change)
        for why, changes in by_reason.items():
            lines += [why, "", *(f"- `{change.replace('`', ' ')}`" for change in changes), ""]
        lines.pop()
    page.write_text("\n".join(lines) + "\n")
    bare = sum(not reason(row["name"], entries) for row in left)
    print(f"{len(rows)} of {n_all} planted, {len(rows) - len(left)} found, {len(left)} left, {bare} of them not argued")
