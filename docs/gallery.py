"""Draw the pictures of the examples by running them: docs/img/example-*.svg.

    python docs/gallery.py                # all of them, in half a minute
    python docs/gallery.py timm sklearn   # some
    python docs/gallery.py --format pdf --out FOLDER

Each example writes its own figure; docs/examples.md shows them.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAMES = ("sklearn", "lightning", "timm")


def main() -> None:
    """Draw the pictures that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*NAMES, []], help="by default all")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "img")
    parser.add_argument("--format", choices=("svg", "pdf", "png"), default="svg")
    given = parser.parse_args()
    for name in given.names or NAMES:
        file = given.out.resolve() / f"example-{name}.{given.format}"
        subprocess.run([sys.executable, str(ROOT / "examples" / f"with_{name}.py"), str(file)], check=True)
        print(file)


if __name__ == "__main__":
    main()
