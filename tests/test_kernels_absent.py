"""Without Triton, and on a CPU with it, everything goes the plain way; a GPU is told of in one line of the log."""

from __future__ import annotations

import subprocess
import sys

import pytest

ABSENT = """
import sys

class NoTriton:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "triton":
            raise ImportError("No module named 'triton'")

sys.meta_path.insert(0, NoTriton())
"""
EVERYTHING = """
import torch
import steelyard.metrics as m
from steelyard.balance import LabelPair, PartialLabelMasking
from steelyard.losses.table import EVERY
from steelyard.models.resnet import ResNet12
from steelyard.objective import Objective

torch.manual_seed(0)
counts = torch.tensor([40, 9, 3])
z, t = torch.randn(6, 3, requires_grad=True), torch.randint(-1, 2, (6, 3))
for row in EVERY:
    loss = row.make(counts, 50, "mean")
    masking = PartialLabelMasking(counts, 50, initial="max")
    for call in (loss, lambda z, t: Objective(loss, masking=masking, regularizers=[LabelPair(link=False)])(z, t).total):
        call(z, t).backward()
        assert z.grad.isfinite().all() and z.grad.any(), row.name
        z.grad = None
assert 0 < m.mean_average_precision(z.detach(), t) <= 1
ResNet12(1)(torch.randn(2, 1, 32, 32)).sum().backward()
for kernels in ("kernels.pairs", "kernels.margins", "kernels.label_pairs", "kernels.ranking", "kernels.histogram"):
    assert f"steelyard.{kernels}" not in sys.modules, kernels
"""
A_GPU = """
import logging
from steelyard.kernels import choice

said = []
class Heard(logging.Handler):
    def emit(self, record):
        said.append(record.getMessage())

logging.getLogger("steelyard").addHandler(Heard())
torch.cuda.get_device_capability = lambda index: (9, 0)
for _ in range(3):
    assert not choice.fuses(torch.device("cuda", 0))
assert said == ["fused kernels are not used on cuda:0 (Triton is not installed): everything works, more slowly"], said
"""


@pytest.mark.parametrize("triton", ["absent", "as installed"])
def test_the_plain_way(triton: str) -> None:
    code = ABSENT + EVERYTHING + A_GPU if triton == "absent" else "import sys\n" + EVERYTHING
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
