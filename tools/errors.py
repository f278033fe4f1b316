"""List every message that a user's mistake prints, with its place: the catalogue of errors, to be read as one text.

    python tools/errors.py [--under src/steelyard/run] [--rule RULE]

A message is the text of a raised exception whose name ends in Error, NoLink, BadImage or Stopped; what is computed is
written as {…}. A message that breaks a rule has its name in front: `period` (ends in a period), `lines` (has a line
break), `remedy` (has no ":" or ";" before what to do, in a ValueError).
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
_RAISED = ("Error", "NoLink", "BadImage", "Stopped", "NotFinite", "NotFitted", "BadParameter", "UsageError")
RULES = ("period", "lines", "remedy")


class Message(NamedTuple):
    """A message and where it is raised."""

    place: str
    kind: str
    text: str

    def broken(self) -> list[str]:
        """Return the rules that the message breaks."""
        checks = {
            "period": self.text.endswith(".") and not self.text.endswith("…."),
            "lines": "\n" in self.text,
            "remedy": self.kind == "ValueError" and not any(mark in self.text for mark in ":;{"),
        }
        return [rule for rule in RULES if checks[rule]]


def messages(root: Path) -> Iterator[Message]:
    """Yield the messages raised in the Python files under a folder."""
    for path in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args):
                continue
            called = node.exc.func
            kind = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if kind.endswith(_RAISED):
                yield Message(f"{path.relative_to(ROOT)}:{node.lineno}", kind, _text(node.exc.args[0]))


def _text(node: ast.expr) -> str:
    """Return the text of an expression; what is computed is named by its code, in braces."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return f"{{{ast.unparse(node.value)}}}"
    if isinstance(node, ast.BinOp):
        return _text(node.left) + _text(node.right)
    return f"{{{ast.unparse(node)}}}"


def main() -> None:
    """Print the catalogue."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--under", type=Path, default=ROOT / "src")
    parser.add_argument("--rule", choices=RULES, help="only messages that break this rule")
    given = parser.parse_args()
    listed = [m for m in messages(given.under.resolve()) if given.rule is None or given.rule in m.broken()]
    for message in listed:
        marks = "".join(f"[{rule}] " for rule in message.broken())
        print(f"{message.place}  {marks}{message.text}")
    print(f"{len(listed)} messages")


if __name__ == "__main__":
    main()
