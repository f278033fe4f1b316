"""`docs/fuzz.md` from the records of campaigns: `python -m fuzz.page build/fuzz build/fuzz/*.json`.

Folders are records of `fuzz.campaign`, which are added up; files those of `fuzz.kernels`, one a device. Parsers and
devices that are not among them keep their row. Every row has its date and commit; `make bars` reads the sums.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fuzz.campaign import attempt, guarded, total
from fuzz.parsers import BUILD
from steelyard import _source

ROOT = Path(__file__).resolve().parent.parent.parent
RECORD, PAGE = ROOT / "docs" / "fuzz.json", ROOT / "docs" / "fuzz.md"
FOUND = sorted((ROOT / "tools" / "fuzz" / "found").glob("*.bin"))
_WHERE = {"cpu": "plain code, on a CPU", "cuda": "fused kernels, on a GPU"}


def slug(name: str) -> str:
    """The name of a parser as the files of its faults begin."""
    return re.sub(r"\W+", "-", name).lower()


def kept(name: str) -> list[Path]:
    """The inputs that showed a fault of a parser, all of which the tests try."""
    longer = tuple(f"{slug(other)}-" for other in BUILD if slug(other).startswith(f"{slug(name)}-"))
    mine = (file for file in FOUND if file.name.startswith(f"{slug(name)}-"))
    return [file for file in mine if not (longer and file.name.startswith(longer))]


def left(name: str, folder: Path) -> int:
    """How many of the inputs that showed a fault in a campaign still show one."""
    files = list((folder / "faults").glob(f"{name.replace(' ', '_')}-*.bin"))
    with tempfile.TemporaryDirectory() as place, guarded():
        target = BUILD[name](Path(place))
        return sum(attempt(target, file.read_bytes())[1] is not None for file in files)


def record(paths: list[Path], before: dict[str, Any]) -> dict[str, Any]:
    """The records of folders and files as one, with the rows of `before` that they lack."""
    parsers: dict[str, dict[str, Any]] = {}
    losses: dict[str, dict[str, Any]] = {}
    for path in paths:
        if path.is_dir():
            for name, row in total(path).items():
                sum_ = parsers.setdefault(name, {"inputs": 0, "values": 0, "faults": 0, "peak_mib": 0})
                sum_["inputs"] += row["inputs"]
                sum_["values"] += row["values"]
                sum_["faults"] += left(name, path)
                sum_["peak_mib"] = max(sum_["peak_mib"], row["peak_kib"] >> 10)
        else:
            row = json.loads(path.read_text())
            sum_ = losses.setdefault(row["device"], {"cases": 0, "variants": 0, "faults": 0, "worst": 0.0})
            sum_["cases"] += row["cases"]
            sum_["variants"] += row["variants"]
            sum_["faults"] += len(row["faults"])
            sum_["worst"] = max(sum_["worst"], row["worst"])
    source = {"date": datetime.now(UTC).date().isoformat(), "commit": _source.commit()}
    for row in (*parsers.values(), *losses.values()):
        row |= source
    parsers, losses = before["parsers"] | parsers, before["losses"] | losses
    parsers = {name: parsers[name] for name in BUILD if name in parsers}
    return {
        **source,
        "inputs": sum(row["inputs"] for row in parsers.values()),
        "cases": sum(row["cases"] for row in losses.values()),
        "faults": sum(row["faults"] for row in (*parsers.values(), *losses.values())),
        "parsers": parsers,
        "losses": losses,
    }


def text(content: dict[str, Any]) -> str:
    """The page."""
    lines = [
        "# Fuzzing",
        "",
        "Every reader of files and every parser of text is given inputs that nobody would write: small real files",
        "with bytes, words, numbers and lines changed, likely inputs made by a grammar, and bytes of no form. An input",
        "gives a value, or the one class of error that the parser documents, in one line. Another exception, a",
        "warning, a second of computing, memory without bounds or the end of the process is a fault.",
        "",
        "| parser | inputs | of them read | faults found | mended | peak memory, MiB |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, row in content["parsers"].items():
        n, still = len(kept(name)), row["faults"]
        cells = f"{row['inputs']:,} | {row['values']:,} | {n + still} | {n} | {row['peak_mib']}"
        lines.append(f"| {name} | {cells} |")
    n = sum(row["inputs"] for row in content["parsers"].values())
    lines += [
        "",
        f"{n:,} inputs in all. Memory is that of the whole process, Python and its libraries included. What showed a",
        "fault is kept in `tools/fuzz/found` and tried by every run of the tests, with 100 new inputs for each parser.",
        "",
        "Losses are compared with formulas in float64 on random batches: shapes, dtypes and strides of logits and",
        "targets, known, unknown and soft labels, weights, reductions and rules for unknown labels. A miss is a",
        "fraction of what rounding allows (a relative 1e-5 of the terms of a sum, then the dtype of the gradient).",
        "",
        "| losses | cases | variants | faults left | largest miss |",
        "|---|---:|---:|---:|---:|",
    ]
    for device, row in content["losses"].items():
        cells = f"{row['cases']:,} | {row['variants']:,} | {row['faults']} | {row['worst']:.2f}"
        lines.append(f"| {_WHERE[device]} | {cells} |")
    lines += [
        "",
        "What has a memory (evaluators, partial label masking, samplers, pseudo-labels, the index) is driven through",
        "random sequences of uses, restarts, failed writes and refusals beside a plain model of it, in",
        "`tests/test_state_machines.py`.",
        "",
        "```",
        "make fuzz FUZZ=1000000 JOBS=16        # all parsers and the losses; MINUTES=30 ends it sooner",
        "PYTHONPATH=tools:tests python -m fuzz.kernels --device cuda --count 100000",
        "PYTHONPATH=tools:tests python -m fuzz.page build/fuzz/parsers build/fuzz/losses.json   # this page",
        "```",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Write the record, from results given as arguments, and its page."""
    content = json.loads(RECORD.read_text())
    if len(sys.argv) > 1:
        content = record([Path(path) for path in sys.argv[1:]], content)
    RECORD.write_text(json.dumps(content, indent=1) + "\n")
    PAGE.write_text(text(content), encoding="utf-8")


if __name__ == "__main__":
    main()
