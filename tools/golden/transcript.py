"""Run commands in this process and keep what they print, without what differs from one run to the next."""

from __future__ import annotations

import io
import json
import re
import runpy
import shlex
import signal
import subprocess
import sys
import traceback
from contextlib import redirect_stderr, redirect_stdout
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import steelyard as sy

QUICK = "--set train.epochs=3 --set train.batch_size=32"
PAGES = ("run/report.html", "words.html", "sheet.html")
ADDRESSES = (
    *("/", "/api/run", "/api/labels", "/api/data", "/api/label?name=red", "/api/search?q=red+-blue&k=5"),
    *("/api/search?q=unicorn", "/api/search?q=red&k=many", "/api/item?id=photo003.png", "/nowhere"),
)


def steelyard(*args: str, stdin: str = "") -> dict[str, Any]:
    """Run `python -m steelyard ARGS` in this process and return its exit code and what it printed."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    before = sys.argv, sys.stdin
    sys.argv, sys.stdin = ["steelyard", *args], io.TextIOWrapper(io.BytesIO(stdin.encode()))
    try:
        with redirect_stdout(out), redirect_stderr(err):
            runpy.run_module("steelyard", run_name="__main__")
    except SystemExit as end:
        code = int(end.code or 0)
    except Exception:
        code = 1
        err.write(traceback.format_exc().splitlines()[-1] + "\n")
    finally:
        sys.argv, sys.stdin = before
    text = plain(out.getvalue())
    try:
        return {"exit": code, "json": json.loads(text), "err": plain(err.getvalue())}
    except json.JSONDecodeError:
        return {"exit": code, "out": text, "err": plain(err.getvalue())}


def typed(line: str) -> dict[str, Any]:
    """Return the transcript of one line of commands.txt."""
    words = shlex.split(line.replace("$QUICK", QUICK))
    stdin = Path(words[words.index("<") + 1]).read_text() if "<" in words else ""
    return steelyard(*(words[: words.index("<")] if "<" in words else words), stdin=stdin)


def plain(text: str) -> str:
    """Return a text without folders, times, versions, random ids and addresses of memory."""
    text = text.replace(str(Path.cwd()), "<folder>")
    text = re.sub(rf"(?<![\w.]){re.escape(sy.__version__)}(?![\w.])", "<version>", text)
    text = re.sub(r"(?<![\w.])[\d.]+ (ms|s|MB)\b", r"<n> \1", text)
    text = re.sub(r"differ by \S+ at most", "differ by <n> at most", text)  # rounding of a file that is compared itself
    text = re.sub(r"\b[0-9a-f]{32}\b", "<uuid>", re.sub(r" at 0x[0-9a-f]+", "", text))
    return "\n".join(_without_seconds(text.split("\n")))


def _without_seconds(lines: list[str]) -> list[str]:
    """Drop the values of a table's last column where that is called seconds."""
    timed, kept = False, []
    for line in lines:
        timed = line.endswith(" seconds") or (timed and bool(re.search(r" +[\d.]+$", line)))
        kept.append(re.sub(r" +[\d.]+$", " <n>", line) if timed else line)
    return kept


class _Words(HTMLParser):
    """The words of a page, without scripts, styles and drawings."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self.hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Begin a part that is not read."""
        self.hidden += tag in ("script", "style", "svg")

    def handle_endtag(self, tag: str) -> None:
        """End it."""
        self.hidden -= tag in ("script", "style", "svg")

    def handle_data(self, data: str) -> None:
        """Keep a text."""
        if not self.hidden and data.strip():
            self.words.append(" ".join(data.split()))


def words_of(page: str) -> str:
    """Return the text that a reader of a page sees, one line per element."""
    parser = _Words()
    parser.feed(page)
    return plain("\n".join(parser.words))


def served(run: str) -> dict[str, Any]:
    """Return what `steelyard serve` answers, and how it ends when it is interrupted."""
    command = [sys.executable, "-m", "steelyard", "serve", run, "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    first = server.stdout.readline() if server.stdout else ""
    found = re.search(r"http://\S+", first)
    answers = {one: _answer(found.group() + one) for one in ADDRESSES} if found else {}
    server.send_signal(signal.SIGINT)
    out, err = server.communicate(timeout=60)
    text = re.sub(r"(http://[\w.]+):\d+", r"\1", plain(first + out))
    return {"exit": server.returncode, "out": text, "err": plain(err), "answers": answers}


def _answer(address: str) -> dict[str, Any]:
    try:
        with urlopen(address, timeout=60) as reply:
            status, headers, body = reply.status, reply.headers, reply.read().decode()
    except HTTPError as error:
        status, headers, body = error.code, error.headers, error.read().decode()
    kind = headers.get_content_type()
    content = json.loads(plain(body)) if kind == "application/json" else words_of(body)
    return {"status": status, "type": kind, "content": content}
