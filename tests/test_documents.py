"""What the documents show is true: the table of losses, and every example in them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from steelyard import losses
from steelyard.losses.table import TABLE
from steelyard.objective import Objective

ROOT = Path(__file__).resolve().parent.parent


def blocks(name: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), flags=re.S)


def test_readme_shows_the_table_of_losses():
    shown = (ROOT / "README.md").read_text().split("-->\n", 1)[1].split("<!-- /losses")[0]
    lines = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in shown.splitlines()[2:]]
    assert [line[0] for line in lines] == [row.name for row in TABLE]
    n, k = torch.tensor([5, 20, 3]), 40
    for line, row in zip(lines, TABLE, strict=True):
        called, made = eval(line[1].strip("`"), vars(losses) | {"n": n, "k": k}), row.make(n, k, "mean")
        assert repr(called) == repr(made)
        for key, value in vars(getattr(made, "loss", made)).items():  # constants; buffers follow from them
            if isinstance(value, int | float | str):
                assert vars(getattr(called, "loss", called))[key] == value, (row.name, key)


def test_readme_examples_run_one_after_the_other():
    scope: dict[str, object] = {}
    examples = blocks("README.md")
    assert len(examples) >= 2
    for code in examples:
        exec(compile(code, "README.md", "exec"), scope)
    eta = scope["eta"]
    assert isinstance(eta, torch.Tensor)
    assert ((eta > 0) & (eta < 1)).all()


def test_the_loss_of_contributing_is_a_whole_loss():
    scope: dict[str, object] = {}
    code = blocks("CONTRIBUTING.md")[0]
    exec(compile(code, "CONTRIBUTING.md", "exec"), scope)
    assert len(code.splitlines()) < 40
    loss = scope["Exponential"]()  # type: ignore[operator]
    z = torch.linspace(-8, 8, 9)
    torch.testing.assert_close(loss.probability(z), torch.sigmoid(z))
    logits = torch.tensor([[0.5, 1.0, float("nan")]], requires_grad=True)
    value = loss(logits, torch.tensor([[1, 0, -1]]))
    value.backward()
    assert value.item() == pytest.approx((2.718281828**-0.25 + 2.718281828**0.5) / 2, rel=1e-6)
    assert logits.grad[0, 2] == 0


def test_the_rule_and_the_metric_of_contributing_work():
    scope: dict[str, object] = {}
    for code in blocks("CONTRIBUTING.md")[1:]:
        exec(compile(code, "CONTRIBUTING.md", "exec"), scope)
    targets, logits = torch.tensor([[1, 0, -1, -1]]), torch.tensor([[0.0, 0.0, -9.0, 0.0]], requires_grad=True)
    value = Objective(losses.BCE(), scope["SureNegative"]())(logits, targets).total  # type: ignore[operator]
    value.backward()
    assert logits.grad is not None
    assert logits.grad[0, 2] > 0  # sure to be absent: pushed further
    assert logits.grad[0, 3] == 0  # not sure: left alone
    found = scope["share_decided"](torch.tensor([[True, False, True]]), torch.tensor([[1, 0, -1]]))  # type: ignore[operator]
    torch.testing.assert_close(found, torch.tensor([1.0, 0.0, float("nan")]), equal_nan=True)
