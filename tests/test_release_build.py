"""What a release holds: all of the package, the page of `serve` included, and nothing that lay about."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import steelyard

pytest.importorskip("hatchling", reason="hatchling builds the package: pip install hatchling")

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "steelyard"
LARGEST = 1 << 20
"""Bytes of one file in the source archive."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder), "-t", "wheel", "-t", "sdist"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return folder


def test_the_wheel_is_the_package(built: Path) -> None:
    (file,) = built.glob("*.whl")
    assert file.name == f"steelyard-{steelyard.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(file) as wheel:
        names = set(wheel.namelist())
        for name in (
            "serve/static/index.html",
            "report/templates/base.html",
            "report/templates/style.css",
            "config/recipes.toml",
            "py.typed",
        ):
            assert wheel.read(f"steelyard/{name}") == (SOURCE / name).read_bytes()
        about = wheel.read(f"steelyard-{steelyard.__version__}.dist-info/METADATA").decode()
        (points,) = (name for name in names if name.endswith("entry_points.txt"))
        assert "steelyard = steelyard.cli:main" in wheel.read(points).decode()
    source = {path for path in SOURCE.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert {name for name in names if name.startswith("steelyard/")} == {
        f"steelyard/{path.relative_to(SOURCE).as_posix()}" for path in source
    }
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert "Requires-Python: >=3.11" in about
    core = [line for line in about.splitlines() if line.startswith("Requires-Dist:") and "extra ==" not in line]
    assert {line.split()[1].split(">")[0] for line in core} == {
        *("torch", "numpy", "pyarrow", "pillow", "safetensors", "typer", "rich", "scikit-learn", "scipy", "jinja2")
    }


def test_the_source_archive_holds_no_data_and_no_caches(built: Path) -> None:
    (file,) = built.glob("*.tar.gz")
    with tarfile.open(file) as archive:
        members = [member for member in archive.getmembers() if member.isfile()]
        assert len(members) == len(archive.getmembers())  # no links
    names = {member.name.partition("/")[2]: member.size for member in members}
    assert {"pyproject.toml", "README.md", "LICENSE", "Makefile", "constraints.txt", "conftest.py"} <= set(names)
    assert "src/steelyard/serve/static/index.html" in names
    for name, size in names.items():
        parts = Path(name).parts
        assert not {"__pycache__", ".venv", ".git", ".hypothesis", "runs", "dist", "carry", "MNIST"} & set(parts), name
        if parts[:2] != ("tests", "fixtures"):  # small runs of an early version
            assert Path(name).suffix not in (".pyc", ".npz", ".npy", ".safetensors", ".parquet", ".pt", ".ckpt"), name
        assert size < LARGEST, name
