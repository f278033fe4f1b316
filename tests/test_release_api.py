"""What is public: the listing in docs/api.md is the code's, and a release says the same thing everywhere.

`python tests/test_release_api.py` writes the listing anew.
"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import tomllib
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import steelyard
from steelyard.cli import app

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "api.md"
BEGIN, END = "<!-- listing: python tests/test_release_api.py -->\n", "<!-- /listing -->\n"
STABLE = {
    "steelyard": "",
    "steelyard.losses": "",
    "steelyard.balance": "",
    "steelyard.objective": "",
    "steelyard.metrics": "",
    "steelyard.calibrate": "",
    "steelyard.labels": "",
    "steelyard.data": "",
    "steelyard.annotation": "",
    "steelyard.search": "search",
    "steelyard.serve": "serve",
    "steelyard.integrations.torchmetrics": "torchmetrics",
    "steelyard.integrations.lightning": "lightning",
}
"""The modules that the policy is about, and what they need."""


VALUES = {
    "UNKNOWN": "−1, the value of a label that is not known",
    "Reduction": 'What a loss may be told: "mean", "item", "sum" or "none"',
}
"""Names that are no classes or functions, and so have no docstring."""


def first_sentence(thing: Any) -> str:
    """Of a docstring, on one line."""
    text = " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())
    return re.split(r"(?<=[^.\d\s])\.(?= [A-Z`])", text)[0].rstrip(".:").replace("|", "\\|")


def listing() -> str:
    """The public names of every stable module, as Markdown."""
    found = []
    for name, needs in STABLE.items():
        module = import_module(name)
        head = f"### `{name}`" + (f" (needs {needs})" if needs else "")
        rows = [
            f"| `{key}` | {VALUES.get(key) or first_sentence(getattr(module, key))} |" for key in sorted(module.__all__)
        ]
        found.append("\n".join([head, "", "| Name | |", "|---|---|", *rows, ""]))
    return "\n".join(found)


def shown() -> str:
    return PAGE.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0]


def test_the_listing_is_that_of_the_code() -> None:
    for needed in ("torchmetrics", "lightning", "fastapi"):
        if find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed")
    assert shown() == listing(), "docs/api.md is behind the code: python tests/test_release_api.py writes it anew"
    assert "|  |" not in shown()
    assert len(shown().splitlines()) > 100


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


def test_one_version() -> None:
    assert project()["version"] == steelyard.__version__
    assert f"\nversion: {steelyard.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_citation_names_the_four_papers() -> None:
    text = (ROOT / "CITATION.cff").read_text()
    for words in (
        "PLM: Partial Label Masking",
        "Distribution-Balanced Loss for Multi-Label",
        "Partially Annotated Labels",
        "Towards Calibrated Multi-label Deep",
    ):
        assert words in text
    for name in re.findall(r'notes: "(.*)"', text):
        for thing in name.split(", "):
            assert any(hasattr(getattr(steelyard, room), thing) for room in ("losses", "balance", "metrics")), thing


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT / "tests")
    return done.stdout.strip()


def test_help_starts_without_anything_heavy() -> None:
    """`steelyard --help` in half a second: none of what takes longer is imported for it."""
    heavy = "{'torch', 'numpy', 'pyarrow', 'sklearn', 'scipy', 'PIL', 'rich.console', 'matplotlib', 'pandas', 'jinja2'}"
    by_typer = run(f"import sys, typer\nprint(sorted({heavy} & set(sys.modules)))")
    code = (
        "import sys, contextlib, io\nfrom steelyard.cli import app\nfor words in (['--help'], ['train', '--help']):\n"
        "    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n        app(words)\n"
        f"print(sorted({heavy} & set(sys.modules)))"
    )
    assert run(code) == by_typer, "old versions of typer import rich themselves"
    assert run(f"import sys, steelyard\nprint(sorted({heavy} & set(sys.modules)))") == "[]"


def test_the_core_needs_no_extra() -> None:
    """Losses, metrics and calibration where no extra is installed."""
    listed = [one for name, more in project()["optional-dependencies"].items() if name != "dev" for one in more]
    extras = {re.split(r"[\[<>=;]", one)[0] for one in listed} - {"steelyard"}
    absent = sorted(extras | {"pydantic", "starlette", "tensorboard", "torchmetrics", "lightning"})
    code = (
        "import sys\nclass Absent:\n    def find_spec(self, name, *_):\n"
        f"        if name.partition('.')[0] in {absent!r}:\n            raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "import torch, steelyard as sy\n"
        "z, y = torch.randn(40, 3), torch.randint(-1, 2, (40, 3))\n"
        "for row in (sy.losses.BCE(), sy.losses.SPA(), sy.losses.Asymmetric(), sy.losses.TwoWay()):\n"
        "    q = z.clone().requires_grad_()\n    row(q, y).backward()\n"
        "    assert torch.isfinite(q.grad).all() and (q.grad != 0).any()\n"
        "sy.metrics.mean_average_precision(z, y), sy.metrics.calibration_error(z.sigmoid(), y).ace\n"
        "for kind in (sy.calibrate.Temperature, sy.calibrate.Platt, sy.calibrate.Isotonic):\n"
        "    kind().fit(z, y)(z)\n"
        "sy.Labels(y.numpy()), sy.Objective(sy.losses.BCE())(z, y), sy.search.Query.parse('a & ~b')\n"
        "import steelyard.data, steelyard.models, steelyard.run, steelyard.cli, steelyard.demo.digits\n"
        "print('done')"
    )
    assert {"timm", "matplotlib", "duckdb", "fastapi", "lightning", "triton"} <= set(absent)
    assert run(code) == "done"


def test_every_command_has_an_example() -> None:
    commands = [found.callback for found in app.registered_commands]
    assert len(commands) > 10
    assert [c.__name__ for c in commands if c is not None and "Example: steelyard" not in (c.__doc__ or "")] == []


if __name__ == "__main__":
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    PAGE.write_text(before + BEGIN + listing() + END + rest.split(END)[1], encoding="utf-8")


def test_the_lowest_versions_are_those_of_the_project() -> None:
    """`make lowest` tests the floors that are stated, all of them but torch's."""
    more = project()["optional-dependencies"]
    stated = [*project()["dependencies"], *more["report"], *more["search"], *more["serve"], *more["dev"]]
    floors = dict(one.split(">=", 1) for one in stated if ">=" in one and "[" not in one)
    lines = (ROOT / "constraints-lowest.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    core = {re.split(">=", one)[0] for one in (*project()["dependencies"], *more["report"], *more["search"])}
    assert core - {"torch"} <= set(pinned)
    for name, version in pinned.items():
        floor, exact = (tuple(map(int, text.split(",")[0].split("."))) for text in (floors[name], version))
        assert exact[: len(floor)] == floor, name
        assert not any(exact[len(floor) :]), name


def test_all_is_every_extra() -> None:
    extras = project()["optional-dependencies"]
    named = {name for one in extras["all"] for name in re.search(r"\[(.*)\]", one)[1].split(",")}  # type: ignore[index]
    assert named == set(extras) - {"all", "docs", "dev"}
