"""`make torture`: the whole campaign, its table on the standard output and in a file."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest.mock import patch

from torture.child import compiled
from torture.tally import Tally, keep, page


def main() -> None:
    """Run the campaign, in lanes of their own processes; exit 1 where a fault was lost."""
    options = argparse.ArgumentParser(prog="torture", description=__doc__)
    options.add_argument("--out", type=Path, help="the page to write")
    options.add_argument("--seed", type=int, default=0, help="of moments and places")
    options.add_argument("--short", action="store_true", help="a few of each, in seconds; trainings draw no page")
    options.add_argument("--only", default="", help="only the rows whose name holds one of these, with commas")
    options.add_argument("--every", type=int, default=1, help="of writes that meet a fault, only every so many")
    options.add_argument("--lanes", type=int, default=2, help="processes that share the work")
    options.add_argument("--lane", type=int, help=argparse.SUPPRESS)
    options.add_argument("--found", type=Path, help="the rows as JSON; with --only those done again are replaced in it")
    asked = options.parse_args()
    if asked.lane is not None:
        lane(asked)
        return
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # where fsync waits for no disk
    with tempfile.TemporaryDirectory(prefix="torture-", dir=memory) as folder:
        Path(folder).chmod(0o755)  # one who may write nothing must be able to read
        library = compiled(Path(folder))
        if library is None:
            sys.exit("torture: there is no C compiler (cc), and faults.c is what refuses writes")
        quiet = {"OMP_NUM_THREADS": "1", "STEELYARD_COMMIT": "torture", "PYTHONDONTWRITEBYTECODE": "1"}
        quiet |= {"STEELYARD_CACHE": f"{folder}/cache"}
        env = {**os.environ, **quiet, "LD_PRELOAD": str(library), "TMPDIR": folder}
        files = [Path(folder) / f"lane-{i}.json" for i in range(asked.lanes)]
        start = [sys.executable, "-m", "torture", "--seed", str(asked.seed), "--every", str(asked.every)]
        start += ["--only", asked.only, *["--short"] * asked.short]
        lanes = [
            subprocess.Popen([*start, "--lane", str(i), "--found", str(file)], env=env) for i, file in enumerate(files)
        ]
        try:
            codes = [process.wait() for process in lanes]
        finally:
            for process in lanes:
                process.kill()
        if any(codes):
            sys.exit(1)
        found = [row for file in files for row in json.loads(file.read_text())]
    found.sort(key=lambda row: row[0])
    tallies = [Tally(**row) for _, row in found]
    if asked.found is not None:
        tallies = keep(asked.found, tallies, bool(asked.only))
    given = [f"SEED={asked.seed}"] * (asked.seed != 0) + [f"EVERY={asked.every}"] * (asked.every != 1)
    text = page(tallies, " ".join(["make torture", *given]))
    print(text)
    if asked.out is not None:
        asked.out.write_text(text, encoding="utf-8")
    sys.exit(any(tally.lost for tally in tallies))


def lane(asked: argparse.Namespace) -> None:
    """Do rows as long as there are any, in a folder of its own."""
    import torch

    from torture.campaign import parts
    from torture.commands import Place

    torch.set_num_threads(1)
    if asked.short:
        patch("steelyard.run.run_report.has_matplotlib", lambda: False).start()  # a page takes longer than its training
    place = Place(Path(tempfile.mkdtemp()))
    place.work.parent.chmod(0o755)
    rows = []
    chosen = [
        (order, part)
        for order, part in enumerate(parts(asked.short, asked.every))
        if any(name in part.name for name in asked.only.split(","))
    ]
    while (number := claimed(asked.found.with_name("next"))) < len(chosen):
        order, (name, work) = chosen[number]
        started = time.monotonic()
        tally = work(place, random.Random(f"{asked.seed} {name}"))
        rows.append((order, tally.as_dict()))
        lost = f", {len(tally.lost)} lost: {tally.lost[0]}" if tally.lost else ""
        print(f"{tally.fault}: {tally.injected} in {time.monotonic() - started:.0f} s{lost}", flush=True)
    asked.found.write_text(json.dumps(rows))
    sys.stdout.flush()
    os._exit(0)  # the memory that copies shared is not to be looked through


def claimed(file: Path) -> int:
    """Return the number of the next row that no lane has taken, and take it."""
    with file.open("a+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        number = held.seek(0, os.SEEK_END)
        held.write(".")
    return number


if __name__ == "__main__":
    main()
