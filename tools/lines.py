"""Lines of code by module, without docstrings, comments and blank lines, beside an earlier commit.

    python tools/lines.py --base 05cb1a3 [--out bench/figures/lines.json]

papers/ and bench/ count as no part of the package in either commit.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import subprocess
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_NOT_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


def code_lines(text: str) -> int:
    """Return how many lines hold code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NOT_CODE:
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))  # a docstring, of a field too
    return len(lines)


def counts(commit: str | None) -> tuple[Counter[str], int]:
    """Return the lines of code by module of the package, and all lines of tests; of the work tree for None."""
    listed = ["git", "ls-files"] if commit is None else ["git", "ls-tree", "-r", "--name-only", commit]
    modules: Counter[str] = Counter()
    tests = 0
    for name in _run(listed).splitlines():
        parts = Path(name).parts
        if not name.endswith(".py"):
            continue
        if parts[:2] == ("src", "steelyard") and parts[2] not in ("papers", "bench"):
            modules[parts[2].removesuffix(".py")] += code_lines(_text(name, commit))
        elif "tests" in parts[:2]:
            tests += _text(name, commit).count("\n")
    return modules, tests


def _text(name: str, commit: str | None) -> str:
    return (ROOT / name).read_text(encoding="utf-8") if commit is None else _run(["git", "show", f"{commit}:{name}"])


def _run(words: list[str]) -> str:
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def main() -> None:
    """Print a table, and write it as JSON where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default="05cb1a3")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    (before, tests_before), (now, tests_now) = counts(given.base), counts(None)
    for module in sorted(before | now, key=lambda name: -now[name]):
        print(f"{module:20s} {before[module]:7,} {now[module]:7,}")
    shares = {"package": sum(now.values()) / sum(before.values()), "tests": tests_now / tests_before}
    print(f"{'package':20s} {sum(before.values()):7,} {sum(now.values()):7,}  {shares['package']:.2f} of {given.base}")
    print(f"{'tests, all lines':20s} {tests_before:7,} {tests_now:7,}  {shares['tests']:.2f} of {given.base}")
    if given.out is not None:
        content = {"base": given.base, "commit": _run(["git", "rev-parse", "--short=12", "HEAD"]).strip(), **shares}
        given.out.write_text(json.dumps({**content, "modules": dict(sorted(now.items()))}, indent=1) + "\n")


if __name__ == "__main__":
    main()
