"""Draw which module imports which: python tools/import_graph.py [docs/img/imports.svg]

Modules stand from left to right in their order; every import goes to the left. An arc is as thick as the number of
files with such an import.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from pathlib import Path

from steelyard.report.canvas import ACCENT, INK, PAPER, by_night

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "steelyard"
STEP, TOP = 46, 190


def edges(order: list[str]) -> Counter[tuple[str, str]]:
    """Return in how many files of a module another is imported."""
    found: Counter[tuple[str, str]] = Counter()
    for file in SOURCE.rglob("*.py"):
        own = file.relative_to(SOURCE).parts[0].removesuffix(".py")
        names = {
            name.split(".")[1]
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("steelyard.")
            for name in [node.module or ""]
        }
        found.update((own, name) for name in names if own in order and name in order and name != own)
    return found


def drawing(order: list[str]) -> str:
    """Return the graph as SVG."""
    place = {name: 30 + i * STEP for i, name in enumerate(order)}
    width = 60 + STEP * (len(order) - 1)
    arcs = []
    for (own, name), n in sorted(edges(order).items()):
        left, right = place[name], place[own]
        height = min(TOP - 10, 8 + (right - left) * 0.22)
        path = f"M {right} {TOP} C {right} {TOP - height:.1f}, {left} {TOP - height:.1f}, {left} {TOP}"
        title = f"<title>{own} imports {name} in {n} files</title>"
        arcs.append(f'<path d="{path}" stroke-width="{min(5, 0.6 + n / 6):.1f}">{title}</path>')
    texts = [
        f'<text x="{x}" y="{TOP + 14}" transform="rotate(40 {x} {TOP + 14})">{name}</text>' for name, x in place.items()
    ]
    dots = [f'<circle cx="{x}" cy="{TOP}" r="4"/>' for x in place.values()]
    return by_night(
        "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width + 60} {TOP + 90}" '
                'font-family="sans-serif" font-size="13">',
                f'<rect width="{width + 60}" height="{TOP + 90}" fill="{PAPER}"/>',
                f'<g fill="none" stroke="{ACCENT}" stroke-opacity=".45">{"".join(arcs)}</g>',
                f'<g fill="{INK}">{"".join(dots)}{"".join(texts)}</g>',
                "</svg>",
                "",
            ]
        )
    )


def main() -> None:
    """Write the drawing."""
    sys.path.insert(0, str(ROOT / "tests"))
    sys.path.insert(0, str(ROOT / "tools"))
    from test_imports import ROOMS

    out = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "img" / "imports.svg"
    out.write_text(drawing(ROOMS), encoding="utf-8")
    print(out)


if __name__ == "__main__":
    main()
