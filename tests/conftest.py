"""Fixtures that many tests use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)  # the tensors of tests are small: more threads would only wait for each other

ROOT = Path(__file__).resolve().parent.parent


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
