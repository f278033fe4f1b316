"""`make golden BASE=<commit>`: record BASE and the work tree with the same script, and compare the two."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from golden.compare import differences, is_allowed, listing

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "golden"
SHOWN = 4
THREADS = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
TERMINAL = {"COLUMNS": "120", "TERM": "dumb", "NO_COLOR": "1", "LC_ALL": "C.UTF-8"}
FIXED = {**THREADS, **TERMINAL, "CUDA_VISIBLE_DEVICES": "", "MPLBACKEND": "agg", "PYTHONHASHSEED": "0"}


def main() -> None:
    """Compare, print the differences, and exit 1 where there are some that are not allowed."""
    parser = argparse.ArgumentParser(prog="make golden", description=__doc__)
    parser.add_argument("--base", required=True, metavar="COMMIT")
    parser.add_argument("--tolerance", type=float, help="of floats; by default every bit must be equal")
    parser.add_argument("--allow", default="", help="shell patterns of places whose differences do not fail")
    given = parser.parse_args()
    start, commit = time.perf_counter(), _git("rev-parse", "--verify", f"{given.base}^{{commit}}").strip()
    cached = BUILD / "cache" / f"{commit}-{_key()}.json"
    cached.parent.mkdir(parents=True, exist_ok=True)
    recording = [_start(ROOT / "src", "tree", BUILD / "tree.json")]
    if not cached.exists():
        recording.append(_start(_checkout(commit) / "src", "base", cached))
    codes = [process.wait() for process in recording]
    if any(codes):
        sys.exit("golden: a record could not be made, see above")
    base, tree = (_record(path) for path in (cached, BUILD / "tree.json"))
    found = list(differences(base, tree, given.tolerance))
    (BUILD / "differences.txt").write_text("".join(f"{place}\n    {told}\n" for place, told in found))
    allowed = [one for one in found if is_allowed(one[0], given.allow.split())]
    wrong = [one for one in found if one not in allowed]
    for title, listed in (("allowed", allowed), ("DIFFERENT", wrong)):
        for line in listing(base, tree, listed, SHOWN):
            print(f"{title}  {line}")
    entries = ", ".join(f"{len(part)} {name}" for name, part in tree.items())
    how = "every bit" if given.tolerance is None else f"floats within {given.tolerance:g}"
    print(f"Compared with {commit[:7]}, {how}: {entries}; {time.perf_counter() - start:.0f} s.")
    every = f"{len(wrong)} differences, {len(allowed)} allowed; all of them are in {BUILD / 'differences.txt'}"
    print(every if found else "Equal.")
    sys.exit(bool(wrong))


def _record(path: Path) -> dict[str, Any]:
    return {section: part for section, part in json.loads(path.read_text()).items() if section != "about"}


def _git(*args: str) -> str:
    done = subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"golden: git {' '.join(args)}: {done.stderr.strip()}")
    return done.stdout


def _key() -> str:
    """Return a hash of the script and of the versions installed: a record is kept for these."""
    digest = hashlib.sha256(sys.version.encode())
    for path in sorted(Path(__file__).parent.glob("*")):
        if path.is_file() and path.name not in ("__main__.py", "compare.py"):
            digest.update(path.read_bytes())
    packages = {f"{one.name} {one.version}" for one in distributions() if one.name != "steelyard"}
    digest.update("\n".join(sorted(packages)).encode())
    return digest.hexdigest()[:12]


def _checkout(commit: str) -> Path:
    folder = BUILD / "base"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive, check=True)
    return folder


def _start(source: Path, side: str, out: Path) -> subprocess.Popen[bytes]:
    """Begin to record a source tree; the folders of both sides have names of one length, as lines may be wrapped."""
    environment = {**os.environ, **FIXED, "PYTHONPATH": f"{source}{os.pathsep}{ROOT / 'tools'}"}
    options = ["--source", str(source), "--work", str(BUILD / f"work-{side}"), "--out", str(out)]
    return subprocess.Popen([sys.executable, "-m", "golden.record", *options], cwd=BUILD, env=environment)


if __name__ == "__main__":
    main()
