"""What the documents show is true: the table of losses, and every example in them."""

from __future__ import annotations

import importlib
import importlib.util
import re
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import steelyard as sy
from steelyard import losses
from steelyard._compat import import_torchvision
from steelyard.losses.table import EVERY
from steelyard.objective import Objective

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"


def blocks(name: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), flags=re.S)


def test_the_reference_shows_the_table_of_losses():
    page = (ROOT / "docs" / "reference" / "losses.md").read_text()
    shown = page.split("-->\n", 1)[1].split("<!-- /losses")[0]
    lines = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in shown.splitlines()[2:]]
    assert [line[0] for line in lines] == [row.name for row in EVERY]
    n, k = torch.tensor([5, 20, 3]), 40
    for line, row in zip(lines, EVERY, strict=True):
        called, made = eval(line[1].strip("`"), vars(losses) | {"n": n, "k": k}), row.make(n, k, "mean")
        assert repr(called) == repr(made)
        for key, value in vars(getattr(made, "loss", made)).items():  # constants; buffers follow from them
            if isinstance(value, int | float | str):
                assert vars(getattr(called, "loss", called))[key] == value, (row.name, key)


def test_readme_shows_the_output_of_its_first_example(capsys):
    exec(compile(blocks("README.md")[0], "README.md", "exec"), {})
    (shown,) = re.findall(r"```text\n(.*?)```", README.read_text(), flags=re.S)
    assert capsys.readouterr().out == shown


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("code", "needs"),
    list(zip(blocks("README.md")[1:], ("", "lightning", "timm", ""), strict=True)),
    ids=["loop", "lightning", "timm", "sklearn"],
)
def test_readme_examples_run_in_the_code_you_have(code, needs, tmp_path):
    tool = needs and importlib.util.find_spec(needs)
    if needs and not tool:
        pytest.skip(f"{needs} is not installed")
    assert len(code.strip().splitlines()) <= 6
    torch.manual_seed(0)
    features = torch.randn(96, 8)
    table = (features @ torch.randn(8, 3) > 0.5).int()
    table[torch.rand(table.shape) < 0.3] = sy.UNKNOWN
    model = torch.nn.Linear(8, 3)
    scope = {"sy": sy, "labels": sy.Labels(table.numpy()), "model": model, "x": features[:4], "y": table[:4]}
    scope["loader"] = DataLoader(TensorDataset(features, table, torch.arange(96)), batch_size=32)
    if needs:
        import_torchvision()
    if needs == "lightning":
        scope |= lightning_around(model, scope, tmp_path)
    if needs == "timm":
        scope |= {"timm": importlib.import_module("timm"), "images": torch.rand(4, 3, 64, 64)}
    if "Classifier" in code:
        scope |= {"features": features.numpy(), "table": table.numpy()}
    exec(compile(code, "README.md", "exec"), scope)
    eta = torch.as_tensor(scope["eta"])
    assert eta.shape[1] == 3
    assert ((eta > 0) & (eta < 1)).all()


def lightning_around(model, scope, folder):
    """A module as README supposes it: its objective inside, and a validation step that returns logits and targets."""
    lightning = importlib.import_module("lightning")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model, self.objective = model, Objective(losses.BCE())

        def forward(self, x):
            return self.model(x)

        def training_step(self, batch, _):
            return self.objective(self(batch[0]), *batch[1:]).total

        def validation_step(self, batch, _):
            return {"logits": self(batch[0]), "targets": batch[1]}

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    quiet = {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    options = {"default_root_dir": folder, "accelerator": "cpu", "devices": 1, "logger": False, **quiet}
    return {"lightning": lightning, "module": Module(), "validation_loader": scope["loader"], "options": options}


def test_readme_is_short_and_quotes_what_was_measured():
    lines = README.read_text().splitlines()
    assert len(lines) <= 120
    text = " ".join(" ".join(lines).split())
    gains = (ROOT / "docs" / "defaults" / "README.md").read_text()
    gain, worst = re.search(r"`auto` (beats .*? sets)\b.*?(at worst by \+[\d.]+)", gains).groups()
    assert f"{gain}, {worst}" in text
    fresh = gains.split("## Tables by which no rule was chosen")[1]
    gain, sets = re.search(r"by ([\d.]+) mAP on average of (\d+) sets", fresh).groups()
    assert f"by {gain} on {sets} more" in text
    speed = (ROOT / "docs" / "benchmarks" / "README.md").read_text()
    gpu, cpu = speed.split("## AMD EPYC")[0], speed.split("## AMD EPYC")[1]

    def figure(part, size, row, column):
        table = part.split(size, 1)[1].split("\n\n", 2)[1].splitlines()
        head, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
        (line,) = [cells for cells in rows if cells[0] == row]
        return line[head.index(column)]

    large, small = "Losses, 4,096 × 9,605", "Losses, 256 × 80"
    ours, theirs = figure(gpu, large, "ASL", "µs"), figure(gpu, large, "timm AsymmetricLossMultiLabel", "µs")
    assert f"takes {ours} µs, timm's as it comes {theirs} µs" in text
    ours, theirs = (figure(gpu, "### Metrics", row, "ms") for row in ("mAP, exact", "mAP, exact: torchmetrics"))
    assert f"takes {ours} ms, torchmetrics' {theirs} ms" in text
    assert f"{figure(gpu, small, 'BCE', '× BCE')} times as long as torch's, ASL" in text
    assert f"ASL {figure(gpu, small, 'ASL', '× BCE')} times" in text
    assert f"{figure(cpu, small, 'BCE', '× BCE')} times as long as torch's at that size" in text


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
