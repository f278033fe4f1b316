"""`steelyard search` starts without torch and without the modules of training."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from steelyard.search import Index

pytest.importorskip("duckdb")

TRACED = """
import atexit, json, sys
atexit.register(lambda: open(sys.argv.pop(), "w").write(json.dumps(sorted(sys.modules))))
modules = sys.argv.pop(1)
from steelyard.cli import main
sys.argv.append(modules)
sys.argv, rest = sys.argv[:-1], sys.argv[-1]
try:
    main()
finally:
    sys.argv.append(rest)
"""


@pytest.mark.parametrize("query", ["dog & ~cat", "dog & (cat | ~dog)", "dog > 0.2"])
def test_search_imports_neither_torch_nor_training(tmp_path: Path, query: str) -> None:
    Index.build(tmp_path / "index", ["a", "b"], [[0.5, 0.25], [0.75, 0.5]], ["dog", "cat"]).close()
    command = [sys.executable, "-c", TRACED, str(tmp_path / "modules.json"), "search", str(tmp_path / "index"), query]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "a" in done.stdout
    modules = json.loads((tmp_path / "modules.json").read_text())
    for heavy in ("torch", "pyarrow", "sklearn", "scipy", "PIL", "numpy", "steelyard.training", "steelyard.data"):
        assert heavy not in modules
    assert len([name for name in modules if name.startswith("steelyard")]) < 30
