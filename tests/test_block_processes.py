"""Two processes that share the labels of a head do what one does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from steelyard.balance import PickedLabels
from steelyard.models.block import BlockOptimizer, SparseTargets, log_odds_of, top_labels
from test_block_annotation import N, objective_of
from test_block_annotation import head_of as annotated_head
from test_block_annotation import items as annotated_items
from test_block_head import OBJECTIVES, B, L, batch, head_of, sparse

HERE = Path(__file__).resolve().parent


def check_annotation(parts: list[Any], out: Path) -> None:
    head, (x, t) = annotated_head(False), annotated_items(-1)
    objective = objective_of(PickedLabels(out / "one", N, L), q=0.5)
    for epoch in (1, 2):
        objective.start_epoch(epoch, 2)
        value = head.step(x, SparseTargets.from_dense(t, -1), objective, lr=0.1, index=torch.arange(N)).total
        for values, _, _ in parts:
            torch.testing.assert_close(values[epoch - 1], value)
    torch.testing.assert_close(torch.cat([weight for _, weight, _ in parts]), head.weight.detach())
    assert [start for _, _, start in parts] == [0, 12]


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
    check_annotation([part.pop("annotation") for part in parts], tmp_path)
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
