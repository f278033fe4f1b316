"""The Lightning callback: a fit by Lightning is the fit of a plain loop, restarted, validated, in processes too."""

from __future__ import annotations

import importlib
import importlib.util
import os
import socket
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import steelyard as sy

if importlib.util.find_spec("lightning") is None:
    pytest.skip("lightning is not installed", allow_module_level=True)

from steelyard.integrations.lightning import ObjectiveCallback

import lightning  # isort: skip  (after steelyard, which mends a torchvision that does not fit a CPU-only torch)

pytestmark = pytest.mark.filterwarnings("ignore")
N, L, BATCH = 48, 3, 8


def data(seed: int = 0) -> TensorDataset:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(N, 5, generator=g)
    y = (torch.rand(N, L, generator=g) < torch.sigmoid(2 * x[:, :L] - torch.tensor([0.0, 1.0, 2.0]))).int()
    y[torch.rand(N, L, generator=g) < 0.2] = -1
    return TensorDataset(x, y, torch.arange(N))


def make_objective(observes: str = "training", loss: Any = None) -> sy.Objective:
    y = data().tensors[1]
    masking = sy.balance.PartialLabelMasking(
        (y == 1).sum(0), (y >= 0).sum(0), rate=0.5, initial="mean", observes=observes
    )
    return sy.Objective(sy.losses.BCE() if loss is None else loss, masking=masking)


class Net(lightning.LightningModule):
    def __init__(self, objective: sy.Objective) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(5, L)
        self.objective = objective

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        return self.objective(self.layer(batch[0]), batch[1], batch[2]).total

    def validation_step(self, batch: list[Tensor], _: int) -> dict[str, Tensor]:
        return {"logits": self.layer(batch[0]), "targets": batch[1]}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.5)


def loader(seed: int = 0, batch: int = BATCH) -> DataLoader[Any]:
    return DataLoader(data(seed), batch_size=batch)


def trainer(folder: Path, *callbacks: Any, epochs: int = 4, **options: Any) -> lightning.Trainer:
    settings: dict[str, Any] = {
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 2,
    }
    return lightning.Trainer(
        default_root_dir=folder, max_epochs=epochs, callbacks=list(callbacks), **(settings | options)
    )


def by_hand(objective: sy.Objective, epochs: int = 4) -> Net:
    """The same fit without Lightning."""
    net = Net(objective)
    optimizer = torch.optim.SGD(net.parameters(), 0.5)
    held, y = data(1).tensors[:2]
    for epoch in range(1, epochs + 1):
        net.train()
        objective.start_epoch(epoch, epochs)
        for x, t, index in loader():
            optimizer.zero_grad()
            objective(net.layer(x), t, index).total.backward()
            optimizer.step()
        net.eval()
        masking = objective.masking
        if masking is not None and masking.observes == "validation":
            masking.observe(torch.sigmoid(net.layer(held)), y)
    return net


def same(one: Net, other: Net) -> bool:
    a, b = one.state_dict(), other.state_dict()
    assert a.keys() == b.keys()
    return all(torch.equal(a[key], b[key]) for key in a)


@pytest.mark.parametrize("observes", ["training", "validation"])
def test_a_fit_is_that_of_a_plain_loop(tmp_path: Path, observes: str) -> None:
    net = Net(make_objective(observes))
    before = net.objective.masking.ratio.clone()
    trainer(tmp_path, ObjectiveCallback()).fit(net, loader(), loader(1))
    assert not torch.equal(net.objective.masking.ratio, before)
    assert same(net, by_hand(make_objective(observes)))


def test_a_fit_goes_on_from_a_checkpoint_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    whole, half, rest = (Net(make_objective()) for _ in range(3))
    trainer(tmp_path, ObjectiveCallback()).fit(whole, loader(), loader(1))
    first = trainer(tmp_path, ObjectiveCallback(), epochs=2)
    first.fit(half, loader(), loader(1))
    first.save_checkpoint(tmp_path / "half.ckpt")
    trainer(tmp_path, ObjectiveCallback()).fit(rest, loader(), loader(1), ckpt_path=tmp_path / "half.ckpt")
    assert not same(half, whole)
    assert same(rest, whole)


@pytest.mark.parametrize("loss", [sy.losses.SPA(), sy.losses.TwoWay()], ids=["with a link", "without"])
def test_the_calibrator_is_fitted_to_the_last_validation(tmp_path: Path, loss: Any) -> None:
    net = Net(make_objective(loss=loss))
    carried = ObjectiveCallback(sy.calibrate.Platt(per="pooled"))
    trainer(tmp_path, carried).fit(net, loader(), loader(1))
    x, y, _ = data(1).tensors
    z = net.layer(x).detach()
    has_link = isinstance(loss, sy.losses.SPA)
    odds = net.objective.log_odds(z) if has_link else z
    expected = sy.calibrate.Platt(per="pooled").fit(odds, y)(odds)
    torch.testing.assert_close(carried.probability(z), expected)


def test_validating_another_checkpoint_calibrates_that_one(tmp_path: Path) -> None:
    net, early = Net(make_objective()), Net(make_objective())
    short = trainer(tmp_path, ObjectiveCallback(), epochs=1)
    short.fit(early, loader(), loader(1))
    short.save_checkpoint(tmp_path / "early.ckpt")
    carried = ObjectiveCallback(sy.calibrate.Platt(per="pooled"))
    long = trainer(tmp_path, carried)
    long.fit(net, loader(), loader(1))
    x, y, _ = data(2).tensors
    late = carried.probability(net.layer(x).detach())
    long.validate(net, loader(2), ckpt_path=tmp_path / "early.ckpt", verbose=False)
    odds = early.objective.log_odds(early.layer(x).detach())
    expected = sy.calibrate.Platt(per="pooled").fit(odds, y)(odds)
    torch.testing.assert_close(carried.probability(net.layer(x).detach()), expected)
    assert not torch.allclose(late, expected)


def test_without_a_calibrator_the_link_is_asked(tmp_path: Path) -> None:
    class Quiet(Net):
        def validation_step(self, batch: list[Tensor], _: int) -> None:
            """Nothing is needed of it."""

    net, carried = Quiet(make_objective()), ObjectiveCallback()
    trainer(tmp_path, carried, epochs=1).fit(net, loader(), loader(1))
    z = torch.randn(4, L)
    torch.testing.assert_close(carried.probability(z), net.objective.probability(z))
    assert not torch.allclose(carried.probability(z), z.sigmoid())


class Bare(Net):
    def __init__(self) -> None:
        super().__init__(make_objective())
        del self.objective


class Twice(Net):
    def __init__(self) -> None:
        super().__init__(make_objective())
        self.other = make_objective()


class Silent(Net):
    def __init__(self) -> None:
        super().__init__(make_objective())

    def validation_step(self, batch: list[Tensor], _: int) -> Tensor:
        return self.layer(batch[0]).mean()


@pytest.mark.parametrize(
    ("make", "options", "held", "words"),
    [
        (Bare, {}, True, "Bare holds 0 objectives: assign one"),
        (Twice, {}, True, "Twice holds 2 objectives: assign one"),
        (Silent, {}, True, "validation_step gave no logits"),
        (lambda: Net(make_objective()), {}, False, "there is no validation to fit the calibrator by"),
        (lambda: Net(make_objective()), {"limit_val_batches": 0}, True, "there is no validation to fit"),
        (lambda: Net(make_objective()), {"epochs": -1}, True, "max_epochs is -1"),
        (lambda: Net(make_objective()), {"epochs": 1, "check_val_every_n_epoch": 2}, True, "there is no validation"),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path: Path, make: Any, options: dict[str, Any], held: bool, words: str) -> None:
    asked = trainer(tmp_path, ObjectiveCallback(sy.calibrate.Platt()), **options)
    with pytest.raises(ValueError, match=words):
        asked.fit(make(), loader(), loader(1) if held else None)


def test_mistakes_before_any_trainer() -> None:
    with pytest.raises(ValueError, match="calibrator is str"):
        ObjectiveCallback("platt")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no module was fitted or validated yet"):
        ObjectiveCallback().probability(torch.zeros(1, L))


def test_without_lightning_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightning", None)
    monkeypatch.delitem(sys.modules, "steelyard.integrations.lightning")
    with pytest.raises(ImportError, match=r"needs lightning, which is not installed: pip install lightning$"):
        importlib.import_module("steelyard.integrations.lightning")


def _process(rank: int, port: int, folder: Path) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": "2",
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "0",
        "TORCHELASTIC_RUN_ID": "test",
    }
    net, carried = Net(make_objective()), ObjectiveCallback(sy.calibrate.Platt(per="pooled"))
    asked = trainer(folder, carried, devices=2, strategy="ddp", num_sanity_val_steps=0, use_distributed_sampler=False)
    parts = [data(seed) for seed in (0, 1)]
    every_second = [DistributedSampler(part, 2, rank, shuffle=False) for part in parts]
    asked.fit(net, *(DataLoader(part, BATCH // 2, sampler=s) for part, s in zip(parts, every_second, strict=True)))
    found = {"state": net.state_dict(), "eta": carried.probability(torch.linspace(-3, 3, 3 * L).reshape(3, L))}
    torch.save(found, folder / f"{rank}.pt")


def test_two_processes_are_worth_one(tmp_path: Path) -> None:
    """Each batch is halved: what PLM observes, the weights and the calibrator are those of a single process."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    torch.multiprocessing.start_processes(_process, (port, tmp_path), nprocs=2, start_method="fork")
    net, carried = Net(make_objective()), ObjectiveCallback(sy.calibrate.Platt(per="pooled"))
    trainer(tmp_path, carried).fit(net, loader(), loader(1))
    eta = carried.probability(torch.linspace(-3, 3, 3 * L).reshape(3, L))
    halves = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    seen = sum(half["state"]["objective.masking.histogram"] for half in halves)
    assert torch.equal(seen, net.objective.masking.histogram)
    for half in halves:
        assert half["state"]["objective.masking.histogram"].sum() > 0
        torch.testing.assert_close(half["state"]["objective.masking.ratio"], net.objective.masking.ratio)
        torch.testing.assert_close(half["state"]["layer.weight"], net.layer.weight.detach(), rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(half["eta"], eta, rtol=1e-4, atol=1e-5)
