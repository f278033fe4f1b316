"""The rooms import in one direction only, read from the source itself."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

import lines

ROOMS = [
    *("labels", "balance", "losses", "objective", "metrics", "calibrate", "data", "models"),
    *(
        "training",
        "config",
        "search",
        "folder",
        "report",
        "predict",
        "export",
        "run",
        "annotation",
        "demo",
        "integrations",
        "serve",
        "cli",
    ),
]
BESIDE = ("_arrays", "_cache", "_compat", "_console", "_extras", "_files", "_locks")
BESIDE += ("_schema", "_sealed", "_signals", "_source", "kernels")
SOURCE = Path(__file__).resolve().parent.parent / "src" / "steelyard"


def allowed(room: str) -> set[str]:
    """What a room may import: itself and what is left of it.

    `kernels` and modules beside the rooms import nothing of ours and are open to every room.
    """
    if room in BESIDE:
        return {room}
    return set(ROOMS[: ROOMS.index(room) + 1]) | set(BESIDE)


def imported(tree: ast.AST, package: tuple[str, ...]) -> list[tuple[int, str]]:
    """(line, room) of everything of ours that a module of `package` imports; "steelyard" for the package itself."""
    found = []
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            start = ".".join((*base, *([node.module] if node.module else [])))
            names = [f"{start}.{alias.name}" for alias in node.names] if start == "steelyard" else [start]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("importlib.import_module", "__import__"):
            names = [arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
        for name in names:
            parts = name.split(".")
            if parts[0] == "steelyard":
                found.append((node.lineno, parts[1] if len(parts) > 1 else "steelyard"))
            elif parts[0].startswith("steelyard_"):  # projects beside the package: nothing of the wheel needs them
                found.append((node.lineno, parts[0]))
    return found


def violations(source: Path) -> list[str]:
    """Every import against the direction, and every room that the order does not know."""
    found = []
    for path in sorted(source.rglob("*.py")):
        inside = path.relative_to(source)
        room = inside.parts[0].removesuffix(".py")
        if room in ("__init__", "__main__"):
            continue
        if room not in ROOMS and room not in ("kernels", *BESIDE):
            found.append(f"{inside}: no such room")
            continue
        package = ("steelyard", *inside.parts[:-1])
        for line, target in imported(ast.parse(path.read_text(encoding="utf-8")), package):
            if target not in allowed(room) and target not in ("UNKNOWN", "__version__"):
                found.append(f"{inside}:{line}: {room} imports {target}")
    return found


def test_rooms_import_to_the_left_only() -> None:
    assert violations(SOURCE) == []


def test_there_is_something_to_read() -> None:
    seen = {path.relative_to(SOURCE).parts[0] for path in SOURCE.rglob("*.py")}
    assert {"labels", "balance", "losses", "objective", "metrics"} <= seen
    everything = [t for p in SOURCE.rglob("*.py") for _, t in imported(ast.parse(p.read_text()), ("steelyard", "x"))]
    assert everything.count("labels") > 5


@pytest.mark.parametrize(
    ("file", "text", "verdict"),
    [
        ("labels/table.py", "from steelyard.balance import Rebalanced", "labels imports balance"),
        ("balance/a.py", "import steelyard.losses.bce as b", "balance imports losses"),
        (
            "losses/a.py",
            "def f():\n    from steelyard.objective.objective import Objective",
            "losses imports objective",
        ),
        ("losses/deep/a.py", "from ...metrics import brier", "losses imports metrics"),
        ("losses/a.py", "from ..objective import Role", "losses imports objective"),
        ("losses/a.py", "from .. import objective", "losses imports objective"),
        ("losses/a.py", "from steelyard import labels, run", "losses imports run"),
        ("losses/a.py", "import steelyard", "losses imports steelyard"),
        ("run.py", "from steelyard_papers.study import Study", "run imports steelyard_papers"),
        ("losses/a.py", "import importlib\nimportlib.import_module('steelyard.data.voc')", "losses imports data"),
        ("kernels/a.py", "from steelyard.labels.targets import UNKNOWN", "kernels imports labels"),
        ("kernels/a.py", "from steelyard.balance import philox", "kernels imports balance"),
        ("run.py", "from steelyard.cli import app", "run imports cli"),
        ("_files.py", "from steelyard.labels import Labels", "_files imports labels"),
        ("helpers/a.py", "", "no such room"),
        ("utils.py", "", "no such room"),
    ],
)
def test_a_planted_violation_is_found(tmp_path: Path, file: str, text: str, verdict: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    (found,) = violations(tmp_path)
    assert verdict in found


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (
            "losses/a.py",
            "from steelyard.labels.targets import UNKNOWN\nfrom . import b\nfrom .b import c\nimport torch",
        ),
        ("losses/a.py", "from steelyard.kernels.fused import f\nfrom steelyard import UNKNOWN"),
        ("cli.py", "from steelyard import run, losses"),
        ("training/loop.py", "from ..objective import Objective\nfrom steelyard.models.net import Net"),
        ("__init__.py", "from steelyard import cli, labels"),
    ],
)
def test_the_right_direction_is_let_through(tmp_path: Path, file: str, text: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    assert violations(tmp_path) == []


BUDGET = {
    "data": 5900,
    "training": 2950,
    "run": 3175,
    "report": 2215,
    "calibrate": 2080,
    "models": 2950,
    "kernels": 2010,
    "metrics": 1640,
    "losses": 1500,
    "search": 1190,
    "serve": 1400,
    "balance": 1100,
    "config": 780,
    "labels": 760,
    "predict": 860,
    "annotation": 1040,
    "objective": 580,
    "export": 530,
    "cli": 700,
    "integrations": 480,
    "folder": 310,
    "demo": 345,
}
"""Lines of code of each module, at most: some way above what it has, so that growth is noticed."""
LONG_FILES = {"kernels/fused.py": "one launch and its four ways to count; split when its kernels are"}


def test_no_module_outgrows_its_budget() -> None:
    modules, _ = lines.counts(None)
    over = {name: n for name, n in modules.items() if n > BUDGET.get(name, 160)}
    assert not over, "cut something, or raise the budget and say why in the commit"


def test_files_and_folders_stay_small_enough_to_find_things_in() -> None:
    files = [path for path in SOURCE.rglob("*.py") if path.name != "__init__.py"]
    long = {str(path.relative_to(SOURCE)) for path in files if path.read_text(encoding="utf-8").count("\n") > 400}
    assert long <= LONG_FILES.keys()
    folders = Counter(path.parent.relative_to(SOURCE).as_posix() for path in files)
    assert {folder for folder, n in folders.items() if n > 20} == set()
