"""Run the code of pages from top to bottom, and compare what it prints with what they show.

    python tools/notebooks.py docs/tutorials/*.md            # or --write, to put in what was printed

A block marked `python` is run in one namespace per page; a block marked `text` right after it is its output. In a block
marked `console` every line that begins with `$ ` is a command for bash, and what follows is its output. Both run in one
folder per page, which holds nothing but a link to `examples`. Words must be equal; numbers may differ by 5 % or .02,
since processors round differently, and seconds are not compared.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"```(python|console)\n(.*?)```(?:\n\n```text\n(.*?)```)?", re.S)
NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d[\d,]*)?\.?\d+(?:e[-+]?\d+)?(?![\w])")
SECONDS = re.compile(r"\b[\d.]+ s\b")
RELATIVE, ABSOLUTE = 0.05, 0.02


def same(shown: str, printed: str) -> bool:
    """Return whether two outputs have the same words and nearly the same numbers."""
    one, other = (SECONDS.sub("SECONDS", text) for text in (shown, printed))
    if [NUMBER.sub("#", text).split() for text in (one, other)] != [NUMBER.sub("#", one).split()] * 2:
        return False
    pairs = zip(NUMBER.findall(one), NUMBER.findall(other), strict=True)
    return all(near(float(a.replace(",", "")), float(b.replace(",", ""))) for a, b in pairs)


def near(a: float, b: float) -> bool:
    """Return whether two numbers agree."""
    return abs(a - b) <= max(ABSOLUTE, RELATIVE * max(abs(a), abs(b)))


def commands(block: str) -> list[str]:
    """Return the commands of a console block; a backslash at the end of a line joins the next one."""
    return re.findall(r"^\$ ((?:.*\\\n)*.*)$", block, re.M)


def run_console(block: str, folder: Path) -> str:
    """Run the commands of a block and return it with what they print."""
    # the command line of this Python and this checkout, in 100 columns, without colours or progress bars
    program = f'steelyard() {{ "{sys.executable}" -m steelyard "$@"; }}; python() {{ "{sys.executable}" "$@"; }}; '
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
    environment["STEELYARD_CACHE"] = str(folder / ".cache")
    lines = []
    for command in commands(block):
        done = subprocess.run(
            ["bash", "-c", program + command], cwd=folder, env=environment, text=True, capture_output=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{command}\n{done.stderr}")
        lines.append(f"$ {command}\n{done.stderr}{done.stdout}")
    return "".join(re.sub(r"[ \t]+$", "", line, flags=re.M) for line in lines)


def run_python(code: str, scope: dict[str, Any], name: str) -> str:
    """Run a block in a namespace and return what it prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, name, "exec"), scope)
    return re.sub(r"[ \t]+$", "", printed.getvalue(), flags=re.M)


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Work in a folder for a while."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def run_page(page: Path) -> tuple[str, list[str]]:
    """Run a page; return its text with what was printed, and a message for every block that prints something else."""
    text, scope, faults = page.read_text(encoding="utf-8"), {"__name__": "page"}, list[str]()

    def again(match: re.Match[str]) -> str:
        kind, code, shown = match[1], match[2], match[3]
        if kind == "console":
            printed = run_console(code, folder)
            shown, whole = code, f"```console\n{printed}```"
            if match[3] is not None:  # a text block after a console block is no output of it
                whole += f"\n\n```text\n{match[3]}```"
        else:
            printed = run_python(code, scope, page.name)
            whole = f"```python\n{code}```" + (f"\n\n```text\n{printed}```" if printed else "")
        if not same(shown or "", printed):
            faults.append(f"{page}: shows\n{shown or ''}but prints\n{printed}")
        return whole

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "examples").symlink_to(ROOT / "examples")
        with inside(folder):
            return BLOCK.sub(again, text), faults


def main(arguments: Sequence[str] | None = None) -> int:
    """Run pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--write", action="store_true", help="put what was printed into the pages")
    given = parser.parse_args(arguments)
    wrong = 0
    for page in given.pages:
        text, faults = run_page(page.resolve())
        if given.write:
            page.write_text(text, encoding="utf-8")
        print(*faults, f"{page}: {len(faults)} outputs differ", sep="\n")
        wrong += len(faults)
    return 0 if given.write or not wrong else 1


if __name__ == "__main__":
    raise SystemExit(main())
