"""No function is longer or more branched than one can read, unless a comment in it says why it is kept whole."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src" / "steelyard"
MOST_LINES, MOST_BRANCHES = 60, 15
REASON = re.compile(r"^\s*# kept whole: \w", re.M)
BRANCHES = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.match_case)


def too_large(text: str) -> Iterator[str]:
    """Yield the functions of a module that are too long or too branched (McCabe) and give no reason."""
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.end_lineno is None:
            continue
        n_doc = len((ast.get_docstring(node, clean=False) or "").splitlines())
        n_lines = node.end_lineno - node.lineno + 1 - n_doc
        n_branches = 1 + sum(isinstance(inner, BRANCHES) for inner in ast.walk(node))
        source = "\n".join(lines[node.lineno - 1 : node.end_lineno])
        if (n_lines > MOST_LINES or n_branches > MOST_BRANCHES) and not REASON.search(source):
            yield node.name


def test_functions_stay_small_or_say_why_not() -> None:
    found = {
        f"{path.relative_to(SOURCE).as_posix()}: {name}"
        for path in SOURCE.rglob("*.py")
        for name in too_large(path.read_text(encoding="utf-8"))
    }
    assert found == set(), "split it, or write `# kept whole: reason` in it"


@pytest.mark.parametrize(
    ("body", "verdict"),
    [
        ("    x = 1\n" * 59, []),
        ("    x = 1\n" * 60, ["f"]),
        ("    # kept whole: one table\n" + "    x = 1\n" * 60, []),
        ("    # kept whole:\n" + "    x = 1\n" * 60, ["f"]),
        ('    """Say.\n\n    More.\n    """\n' + "    x = 1\n" * 59, []),
        ("    if x: y\n" * 14, []),
        ("    if x: y\n" * 15, ["f"]),
    ],
)
def test_length_and_branches_are_measured(body: str, verdict: list[str]) -> None:
    assert list(too_large("def f(x):\n" + body)) == verdict
