"""torchvision imports beside any torch. In processes of their own: an import cannot be taken back."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


@pytest.mark.skipif(importlib.util.find_spec("torchvision") is None, reason="torchvision is not installed")
def test_torchvision_imports_and_transforms():
    done = python(
        "from steelyard._compat import import_torchvision\n"
        "assert import_torchvision() is import_torchvision()\n"
        "import torch, torchvision.transforms.v2.functional as F\n"
        "print(tuple(F.resize(torch.zeros(3, 8, 8, dtype=torch.uint8), [4, 4]).shape))"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "(3, 4, 4)"


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("timm") is None, reason="timm is not installed")
def test_the_documented_lines_mend_timm():
    """Where `import timm` fails beside this torch, the lines of docs/how-to/photographs.md make it work."""
    plain = python("import timm")
    if plain.returncode == 0:
        pytest.skip("this torchvision fits this torch")
    assert "operator torchvision::nms does not exist" in plain.stderr
    page = (Path(__file__).resolve().parent.parent / "docs" / "how-to" / "photographs.md").read_text(encoding="utf-8")
    (lines,) = re.findall(r"```py\n(.*?)```", page, flags=re.S)
    done = python(
        f"{lines}\nimport torch\nnet = timm.create_model('test_resnet')\nprint(net(torch.ones(1, 3, 64, 64)).shape)"
    )
    assert done.returncode == 0, done.stderr
    assert "1000" in done.stdout


def test_another_failure_is_passed_on(tmp_path, monkeypatch):
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('something else')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = python("from steelyard._compat import import_torchvision\nimport_torchvision()")
    assert done.returncode == 1
    assert "something else" in done.stderr
