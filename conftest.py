"""Fixtures that many tests use."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported, and in processes that tests start, too

settings.register_profile(
    "steady", derandomize=True, deadline=None
)  # the same examples every time, however busy the machine
settings.register_profile("fresh", derandomize=False, deadline=None)
settings.load_profile(os.environ.get("STEELYARD_EXAMPLES", "steady"))

if os.environ.get("TRITON_INTERPRET") == "1":
    import triton_interpreter

    triton_interpreter.mend()

ROOT = Path(__file__).resolve().parent
LONGEST = (
    *("commands", "export", "kernels", "fit", "serve_browser", "models", "report_run", "bench", "training_resume"),
    *("compile", "builders", "papers_plm_tracks", "calibrate_levels"),
)
"""The files that take longest: begun first, none of them runs alone at the end while the other core has nothing."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest."""
    turn = {f"test_{name}.py": i for i, name in enumerate(LONGEST)}
    items.sort(key=lambda item: turn.get(item.path.name, len(turn)))


@pytest.fixture(scope="session", autouse=True)
def _brisk() -> None:
    """Let torch not wait; not above, for the process that only hands out tests needs no torch."""
    import torch
    from torch.utils.data import _utils

    torch.set_num_threads(1)  # the tensors of tests are small: more threads would only wait for each other
    _utils.MP_STATUS_CHECK_INTERVAL = 0.5  # seconds, not 5, for workers of a loader that only gc has found to be done

    from steelyard.run import run_report

    run_report.has_matplotlib = lambda: False  # to draw the page of a run takes longer than to train it: see `pages`


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs of this test draw their page, as they do wherever matplotlib is installed."""
    pytest.importorskip("matplotlib", reason="pages need matplotlib")
    monkeypatch.setattr("steelyard.run.run_report.has_matplotlib", lambda: True)


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep features of frozen backbones out of the user's cache folder, in processes that tests start, too."""
    os.environ["STEELYARD_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def shared_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real data sets in their owners' layout, from `STEELYARD_TEST_DATA` or laid out from `../shared`."""
    if given := os.environ.get("STEELYARD_TEST_DATA"):
        return Path(given)
    tool = ROOT.parent / "shared" / "tools" / "unpack_data.py"
    if not tool.exists():
        pytest.skip("no real data: neither STEELYARD_TEST_DATA nor ../shared is there")
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent  # of all the processes that run tests
    folder, part = shared / "data", shared / "data.part"
    with (shared / "data.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            subprocess.run([sys.executable, str(tool), str(part)], check=True)
            part.rename(folder)
    return folder
