"""How long `steelyard --help` takes beside an import of typer alone, in one run.

python bench/start.py [--out bench/figures/start.json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

WAYS = {"typer": ["-c", "import typer"], "help": ["-m", "steelyard", "--help"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=15)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(given.times):  # in turn, so that a busy moment hits both
        for name, words in WAYS.items():
            begun = time.perf_counter()
            subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
            seconds[name].append(time.perf_counter() - begun)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    content = {**medians, "help_over_typer": medians["help"] / medians["typer"]}
    print(", ".join(f"{name} {value:.3g}" for name, value in content.items()))
    if given.out is not None:
        given.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
