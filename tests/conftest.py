"""Fixtures that many tests use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import settings

import triton_interpreter

torch.set_num_threads(1)  # the tensors of tests are small: more threads would only wait for each other

settings.register_profile("steady", derandomize=True)  # the same examples every time
settings.register_profile("fresh", derandomize=False)
settings.load_profile(os.environ.get("STEELYARD_EXAMPLES", "steady"))

if os.environ.get("TRITON_INTERPRET") == "1":
    triton_interpreter.mend()

ROOT = Path(__file__).resolve().parent.parent


def pytest_configure(config: pytest.Config) -> None:
    """Name the mark of tests that run Triton's kernels on a CPU."""
    config.addinivalue_line("markers", "interpreter: Triton's kernels, run by its interpreter")


@pytest.fixture(scope="session")
def shared_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real data sets in their owners' layout, from `STEELYARD_TEST_DATA` or laid out from `../shared`."""
    if given := os.environ.get("STEELYARD_TEST_DATA"):
        return Path(given)
    tool = ROOT.parent / "shared" / "tools" / "unpack_data.py"
    if not tool.exists():
        pytest.skip("no real data: neither STEELYARD_TEST_DATA nor ../shared is there")
    folder = tmp_path_factory.mktemp("data")
    subprocess.run([sys.executable, str(tool), str(folder)], check=True)
    return folder
