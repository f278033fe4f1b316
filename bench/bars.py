"""Every bar that this round is held to: part, bar, command, value, verdict. See bench/bars.toml.

    python bench/bars.py [--tests]

Numbers come from the JSON files that the commands leave, with the commit and date that stand in them, else the date of
the file; tests are run with --tests.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent


class Verdict(NamedTuple):
    """What a bar has come to."""

    value: str
    verdict: str


def verdict_of(bar: dict[str, Any], runs_tests: bool) -> Verdict:
    """Return the value of a bar and whether it holds."""
    if "missing" in bar:
        return Verdict("", f"not run ({bar['missing']})")
    if "person" in bar:
        return Verdict("", f"judged by {bar['person']}")
    if "test" in bar:
        if not runs_tests:
            return Verdict("", "not run (add --tests)")
        command = [sys.executable, "-m", "pytest", "-q", *bar["test"].split()]
        done = subprocess.run(command, cwd=ROOT, capture_output=True)
        return Verdict("", "pass" if done.returncode == 0 else "fail")
    if "lines" in bar:
        n = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in (ROOT / bar["lines"]).glob("*.py"))
        return Verdict(f"{n:,} (at most {bar['most']:,})", "pass" if n <= bar["most"] else "fail")
    return _of_number(bar)


def _of_number(bar: dict[str, Any]) -> Verdict:
    file = ROOT / bar["file"]
    if not file.exists():
        return Verdict("", f"not run ({bar['file']} is not there)")
    value: Any = json.loads(file.read_text(encoding="utf-8"))
    source: dict[str, str] = {}
    for key in bar["key"].split("."):
        source |= {name: value[name] for name in ("commit", "date") if name in (value or ())}
        value = None if value is None else value.get(key)
    if value is None:
        return Verdict("", f"not run ({bar['file']} has no {bar['key']})")
    holds = bar.get("least", -float("inf")) <= value <= bar.get("most", float("inf"))
    source.setdefault("date", datetime.fromtimestamp(file.stat().st_mtime, UTC).date().isoformat())
    bound = f"at least {bar['least']}" if "least" in bar else f"at most {bar['most']}"
    return Verdict(f"{value:.3g} ({bound}; {', '.join(source.values())})", "pass" if holds else "fail")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tests", action="store_true", help="run the tests that bars name")
    asked = parser.parse_args()
    bars = tomllib.loads((ROOT / "bench" / "bars.toml").read_text(encoding="utf-8"))["bar"]
    table = Table(box=None, pad_edge=False)
    for name in ("part", "bar", "command", "value", "verdict"):
        table.add_column(name, overflow="fold")
    for bar in bars:
        value, verdict = verdict_of(bar, asked.tests)
        table.add_row(str(bar["part"]), bar["bar"], bar["command"], value, verdict)
    Console(width=200 if not sys.stdout.isatty() else None).print(table)


if __name__ == "__main__":
    main()
