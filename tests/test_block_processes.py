"""Two processes that share the labels of a head do what one does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch

from steelyard.models.block import BlockOptimizer, log_odds_of, top_labels
from test_block_head import OBJECTIVES, B, batch, head_of, sparse

HERE = Path(__file__).resolve().parent


def test_two_processes_do_what_one_does(tmp_path: Path) -> None:
    """Objective, gradients of features, weights after three steps of Adam, and first labels."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0"]
    path = os.pathsep.join([str(HERE), str(HERE.parent / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [
            *command,
            "--rdzv-backend",
            "c10d",
            "--rdzv-endpoint",
            "localhost:0",
            str(HERE / "block_processes.py"),
            str(tmp_path),
        ],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    parts = [torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in (0, 1)]
    assert [part["BCE"][3] for part in parts] == [0, 12]
    for name in parts[0]:
        head, objective = head_of(optimizer=BlockOptimizer("adam")), OBJECTIVES[name]()
        for step in range(3):
            x, t = batch("unknown", step)
            given = x.clone().requires_grad_()
            value = head.step(given, sparse(t, "unknown"), objective, lr=0.1, index=torch.arange(B)).total
            value.backward()
            gradients = torch.cat([part[name][0][step][1] for part in parts])
            for part in parts:
                torch.testing.assert_close(part[name][0][step][0], value.detach())
            torch.testing.assert_close(gradients, given.grad)
        torch.testing.assert_close(parts[0][name][1], head.weight.detach())
        want = top_labels(head, batch("unknown", 9)[0], 5, log_odds_of(objective)).labels
        assert torch.equal(parts[0][name][2], want)
        assert torch.equal(parts[1][name][2], want)
