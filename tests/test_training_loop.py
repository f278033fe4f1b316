"""The loop: seeds, rates, optimizers, averages, early stopping, and everything that can go wrong."""

from __future__ import annotations

import copy
import errno
import math
import multiprocessing
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from steelyard.balance import PseudoLabels
from steelyard.balance.samplers import Shuffled
from steelyard.balance.weighting import Weighting
from steelyard.data import BadImage
from steelyard.data.dataset import ArrayDataset, ImageDataset
from steelyard.data.loading import _begin
from steelyard.labels import Labels
from steelyard.losses import BCE
from steelyard.objective import Objective, Role
from steelyard.training import checkpoint as files
from steelyard.training.checkpoint import Checkpoints
from steelyard.training.distributed import Stopped
from steelyard.training.finite import NotFinite
from steelyard.training.loop import Outcome, train
from steelyard.training.optimizer import make_optimizer, rate
from steelyard.training.settings import OptimizerSettings, SamplerSettings, ScheduleSettings, TrainSettings
from training_jobs import (
    BreakOff,
    BrokenOff,
    F,
    Items,
    L,
    N,
    Net,
    arrays,
    everything,
    features,
    forked,
    images,
    job,
    run,
    same,
    seeded,
    table,
    untimed,
    waited,
)

SETTINGS = TrainSettings(epochs=2, batch_size=16, seed=1, device="cpu", workers=0)
CONSTANT = ScheduleSettings("constant", warmup_epochs=0)
SGD = OptimizerSettings("sgd", lr=0.1, momentum=0, weight_decay=0)


def fit(folder: Path, **changes: Any) -> Outcome:
    """A plain training, other in what `changes` says."""
    wanted: dict[str, Any] = dict(
        model=seeded(Net),
        objective=Objective(BCE()),
        data=arrays(),
        optimizer=SGD,
        schedule=CONSTANT,
        settings=SETTINGS,
        folder=folder,
    )
    return train(**{**wanted, **changes})


@contextmanager
def seen_after_steps(look: Callable[[torch.optim.Optimizer], Any], before: bool = False) -> Iterator[list[Any]]:
    """What `look` gives after (or before) every step of any optimizer."""
    seen: list[Any] = []
    register = register_optimizer_step_pre_hook if before else register_optimizer_step_post_hook
    handle = register(lambda optimizer, args, options: seen.append(look(optimizer)))
    try:
        yield seen
    finally:
        handle.remove()


def in_a_child(work: Callable[[], None], note: Path) -> None:
    """Run what starts workers, or must not touch this process, in a copy of it."""
    assert waited(forked(work, note)) == 0, note.read_text()


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


# the loop as a whole


def test_the_loop_is_what_twenty_lines_of_torch_do(tmp_path: Path) -> None:
    """Order, cosine, momentum, decay, and a ragged last batch, written again without anything of the room."""
    data, settings = arrays(), replace(SETTINGS, epochs=3, batch_size=25)
    outcome = fit(
        tmp_path,
        optimizer=OptimizerSettings("sgd", lr=0.2, momentum=0.8, weight_decay=0.03),
        schedule=ScheduleSettings("cosine", warmup_epochs=0, final=0.1),
        settings=settings,
    )
    net = seeded(Net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.8, weight_decay=0.03)
    sampler, losses = Shuffled(N, seed=1), []
    for epoch in range(1, 4):
        sampler.set_epoch(epoch)
        total = 0.0
        for step, items in enumerate(torch.tensor(list(sampler)).split(25)):
            done = (epoch - 1 + step / 3) / 3
            optimizer.param_groups[0]["lr"] = 0.2 * (0.1 + 0.9 * (1 + math.cos(math.pi * done)) / 2)
            y = torch.from_numpy(data.labels.values[items.numpy()]).float()
            loss = nn.functional.binary_cross_entropy_with_logits(net(torch.from_numpy(data.inputs[items])), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += float(loss.detach()) * len(items)
        losses.append(total / N)
    for name, value in net.state_dict().items():
        torch.testing.assert_close(outcome.weights[name], value, rtol=1e-6, atol=1e-7)
    assert [record["loss"] for record in outcome.history] == pytest.approx(losses, rel=1e-6)
    assert [record["epoch"] for record in outcome.history] == [1, 2, 3]
    assert {record["steps"] for record in outcome.history} == {3}


@pytest.mark.parametrize("name", ["annotation", "role", "plain"])
def test_same_seed_same_result_other_seed_other_result(name: str, tmp_path: Path) -> None:
    """Whatever was drawn before."""
    outcomes = []
    for i, seed in enumerate((3, 3, 4)):
        torch.rand(i + 1)
        outcomes.append(run(name, tmp_path / str(i), seed=seed, epochs=1, checkpoint_seconds=1e6))
    first, again, other = outcomes
    assert equal(first.weights, again.weights)
    assert untimed(first.history) == untimed(again.history)
    assert not equal(first.weights, other.weights)


def test_who_fetches_items_does_not_matter(tmp_path: Path) -> None:
    first, second = (run("plain", tmp_path / str(workers), epochs=2, workers=workers) for workers in (0, 2))
    assert equal(first.weights, second.weights)
    assert untimed(first.history) == untimed(second.history)


def test_inputs_may_be_tuples(tmp_path: Path) -> None:
    class Joined(Net):
        def forward(self, x: Any) -> Tensor:
            return super().forward(torch.cat(x, dim=1) if isinstance(x, tuple) else x)

    data = arrays()
    x = torch.from_numpy(data.inputs)
    pairs = Items((x[:, :2], x[:, 2:]), data.labels)
    whole = fit(tmp_path / "a", model=seeded(Joined))
    parts = fit(tmp_path / "b", model=seeded(Joined), data=pairs)
    assert equal(whole.weights, parts.weights)
    settings = replace(SETTINGS, augment=replace(SETTINGS.augment, flip=0.5))
    with pytest.raises(ValueError, match=r"train.augment is for images, but inputs come in pairs: leave it out"):
        fit(tmp_path / "c", model=seeded(Joined), data=pairs, settings=settings)
    with pytest.raises(ValueError, match=r"train.augment is for images, but inputs have shape \(16, 6\)"):
        fit(tmp_path / "d", settings=settings)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_lower_precision_on_a_cpu(precision: Any, tmp_path: Path) -> None:
    """Close to float32, and, loss scaling included, exact after a break."""
    settings = replace(SETTINGS, precision=precision, checkpoint_seconds=0)
    full, low = fit(tmp_path / "a"), fit(tmp_path / "b", settings=settings)
    assert not equal(full.weights, low.weights)
    for name, value in full.weights.items():
        assert low.weights[name].dtype == torch.float32
        torch.testing.assert_close(low.weights[name], value, rtol=0.1, atol=0.02)
    for steps in (2, 3):
        with pytest.raises(BrokenOff):
            fit(tmp_path / "c", settings=settings, watch=BreakOff(steps))
    assert equal(fit(tmp_path / "c", settings=settings).weights, low.weights)


def test_labels_of_more_than_two_gigabytes_do_not_need_one_table(monkeypatch: pytest.MonkeyPatch) -> None:
    from steelyard.labels import table as module
    from steelyard.training.batches import make_batches

    monkeypatch.setattr(module, "_DENSE_LIMIT", 10)
    with pytest.raises(ValueError, match=r"use .rows"):
        _ = arrays().labels.values
    batches = make_batches(arrays(), Shuffled(N), 16, torch.device("cpu"), 0)
    batches.start_epoch(1)
    assert sum(len(batch.index) for batch in batches) == N


# rates and optimizers


def reference_rate(
    kind: str, at: float, epochs: int, warm: float, start: float, milestones: Any, factor: float
) -> float:
    value = 1.0
    if kind == "multistep":
        for milestone in milestones:
            value = value * factor if at >= milestone else value
    if kind == "cosine" and at >= warm and epochs > warm:
        value = 0.5 + 0.5 * math.cos(math.pi * (at - warm) / (epochs - warm))
        value = 0.05 + 0.95 * value
    if at < warm:
        value *= start + (1 - start) * (at / warm)
    return value


@given(
    kind=st.sampled_from(["constant", "multistep", "cosine"]),
    at=st.floats(0, 10),
    warm=st.sampled_from([0.0, 0.3, 2.0, 5.5]),
    start=st.floats(0, 1),
)
def test_rates(kind: Any, at: float, warm: float, start: float) -> None:
    milestones = (2.0, 2.5, 7.0) if kind == "multistep" else ()
    settings = ScheduleSettings(kind, warm, start, milestones, factor=0.3, final=0.05)
    want = reference_rate(kind, at, 10, warm, start, milestones, 0.3)
    assert rate(settings, at, 10) == pytest.approx(want, abs=1e-12)


def test_the_optimizer_steps_by_the_scheduled_rate(tmp_path: Path) -> None:
    schedule = ScheduleSettings("multistep", warmup_epochs=1.5, warmup_from=0.2, milestones=(1.0, 2.5), factor=0.1)
    optimizer = replace(SGD, backbone_lr=0.25)
    with seen_after_steps(lambda o: [group["lr"] for group in o.param_groups], before=True) as seen:
        outcome = fit(tmp_path, optimizer=optimizer, schedule=schedule, settings=replace(SETTINGS, epochs=3))
    ats = [epoch + step / 4 for epoch in range(3) for step in range(4)]
    want = [0.1 * reference_rate("multistep", at, 3, 1.5, 0.2, (1.0, 2.5), 0.1) for at in ats]
    assert [pair[0] for pair in seen] == pytest.approx([0.25 * lr for lr in want])
    assert [pair[1] for pair in seen] == pytest.approx(want)
    assert [record["lr"] for record in outcome.history] == pytest.approx(want[3::4])


def test_groups_of_the_optimizer() -> None:
    net = nn.Module()
    net.backbone = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    net.head = nn.Linear(4, 2)
    net.backbone[0].bias.requires_grad_(False)
    role = Objective(BCE(), Role(table(n_labels=2).values, 1.0))
    settings = OptimizerSettings(
        lr=0.5, weight_decay=0.2, decay_all=False, backbone_lr=0.1, estimates_lr=7, betas=(0.8, 0.9)
    )
    made = make_optimizer(settings, net, role)
    assert isinstance(made, torch.optim.AdamW)
    got = {}
    for group in made.param_groups:
        assert tuple(group["betas"]) == (0.8, 0.9)
        for p in group["params"]:
            got[id(p)] = (group["lr"], group["weight_decay"])
    backbone, head = net.backbone, net.head
    assert got == {
        id(backbone[0].weight): (pytest.approx(0.05), 0.2),
        id(backbone[1].weight): (pytest.approx(0.05), 0.0),
        id(backbone[1].bias): (pytest.approx(0.05), 0.0),
        id(head.weight): (0.5, 0.2),
        id(head.bias): (0.5, 0.0),
        id(role.resolver.theta): (3.5, 0.0),
    }
    all_decay = make_optimizer(replace(settings, decay_all=True, kind="sgd", nesterov=True), net, Objective(BCE()))
    assert isinstance(all_decay, torch.optim.SGD)
    assert {group["weight_decay"] for group in all_decay.param_groups} == {0.2}
    assert {(group["momentum"], group["nesterov"]) for group in all_decay.param_groups} == {(0.9, True)}
    net.requires_grad_(False)
    with pytest.raises(ValueError, match=r"nothing to train: set model.frozen to false"):
        make_optimizer(settings, net, Objective(BCE()))


def test_clipping_scales_the_whole_gradient(tmp_path: Path) -> None:
    clip, start = 0.05, {name: value.clone() for name, value in seeded(Net).state_dict().items()}
    settings = replace(SETTINGS, epochs=1, batch_size=N)
    with seen_after_steps(lambda o: [p.grad.clone() for g in o.param_groups for p in g["params"]], True) as free:
        fit(tmp_path / "free", settings=settings, optimizer=replace(SGD, lr=1))
    norm = math.sqrt(sum(float((g.double() ** 2).sum()) for g in free[0]))
    assert norm > clip
    clipped = fit(tmp_path / "clipped", settings=settings, optimizer=replace(SGD, lr=1, clip_norm=clip))
    for (name, value), gradient in zip(start.items(), free[0], strict=True):
        torch.testing.assert_close(clipped.weights[name], value - gradient * clip / norm, rtol=1e-4, atol=1e-7)
    loose = fit(tmp_path / "loose", settings=settings, optimizer=replace(SGD, lr=1, clip_norm=100 * norm))
    for (name, value), gradient in zip(start.items(), free[0], strict=True):
        torch.testing.assert_close(loose.weights[name], value - gradient, rtol=1e-6, atol=1e-8)


class Tied(nn.Module):
    """Two layers that share their weights, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(F, F), nn.Linear(F, F), nn.Linear(F, L)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(F)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.second(torch.tanh(self.first(x)))))


@pytest.mark.parametrize("decay", [0.5, 0.97])
def test_the_average_of_the_weights(decay: float, tmp_path: Path) -> None:
    model = seeded(Tied)
    average = {name: value.clone().double() for name, value in model.state_dict().items()}

    def follow(optimizer: torch.optim.Optimizer) -> None:
        t = len(seen)
        d = min(decay, (1 + t) / (10 + t))
        for name, value in model.state_dict().items():
            average[name] = d * average[name] + (1 - d) * value.double() if value.is_floating_point() else value.clone()

    with seen_after_steps(follow) as seen:
        outcome = fit(
            tmp_path, model=model, settings=replace(SETTINGS, ema=decay, epochs=3), optimizer=replace(SGD, lr=1)
        )
    assert len(seen) == 12
    for name, value in outcome.weights.items():
        torch.testing.assert_close(value.double(), average[name].double(), rtol=1e-5, atol=1e-6)
    assert not torch.allclose(outcome.weights["head.weight"], model.state_dict()["head.weight"], atol=1e-3)


# which epoch is kept


def scripted(values: list[float], name: str = "map") -> Callable[[nn.Module, torch.device], dict[str, float]]:
    given = iter(values)
    return lambda model, device: {name: next(given)}


@pytest.mark.parametrize(
    ("values", "monitor", "patience", "every", "epochs", "kept", "early"),
    [
        ([0.1, 0.5, 0.5, 0.4, 0.2, 0.1], "map", 0, 1, 6, 2, False),
        ([0.1, 0.5, 0.5, 0.4, 0.2, 0.1], "map", 2, 1, 4, 2, True),
        ([0.9, 0.5, 0.4, 0.41, 0.42, 0.43], "loss", 2, 1, 5, 3, True),
        ([0.9, 0.8, 0.7, 0.6, 0.5, 0.4], "ace", 1, 1, 6, 6, False),
        ([0.1, 0.5, 0.2], "error", 2, 2, 4, 2, True),
        ([math.nan, 0.3, math.nan, 0.2, math.nan, math.nan], "map", 3, 1, 5, 2, True),
        ([math.nan] * 6, "f1", 3, 1, 4, 4, True),
        ([0.1, 0.2], "map", 0, 4, 6, 6, False),
    ],
)
def test_early_stopping_and_the_epoch_that_is_kept(
    values: list[float], monitor: Any, patience: int, every: int, epochs: int, kept: int, early: bool, tmp_path: Path
) -> None:
    settings = replace(SETTINGS, epochs=6, monitor=monitor, patience=patience, validate_every=every)
    model = seeded(Net)
    with seen_after_steps(lambda optimizer: copy.deepcopy(model.state_dict())) as seen:
        outcome = fit(tmp_path, model=model, settings=settings, validate=scripted(values, monitor))
    assert len(outcome.history) == epochs
    assert outcome.stopped_early == early
    assert outcome.kept_epoch == kept
    assert equal(outcome.weights, seen[4 * kept - 1])
    told = [record["validation"][monitor] for record in outcome.history if "validation" in record]
    assert told == [None if value != value else value for value in values[: len(told)]]


def test_the_last_epoch_is_kept_where_that_is_wanted(tmp_path: Path) -> None:
    settings = replace(SETTINGS, epochs=3, keep="last", monitor="map")
    model = seeded(Net)
    outcome = fit(tmp_path, model=model, settings=settings, validate=scripted([0.9, 0.2, 0.1]))
    assert outcome.kept_epoch == 3
    assert equal(outcome.weights, dict(model.state_dict()))
    assert list((tmp_path / "checkpoint").glob("best-*")) == []


# numbers that are no numbers


class Poisoned(Weighting):
    """Weights of 1, of which one label's goes bad after some batches."""

    def __init__(self, label: int, value: float, after: int) -> None:
        super().__init__()
        self.n_labels, self.label, self.value, self.left = L, label, value, after

    def weights(self, present: Tensor) -> Tensor:
        weights, self.left = torch.ones(L), self.left - 1
        if self.left < 0:
            weights[self.label] = self.value
        return weights


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_a_poisoned_weight_is_traced_to_its_label(value: float, tmp_path: Path) -> None:
    objective = Objective(BCE(), weighting=Poisoned(2, value, after=6))
    settings = replace(SETTINGS, checkpoint_seconds=0)
    with pytest.raises(NotFinite) as e:
        fit(tmp_path, objective=objective, settings=settings)
    assert str(e.value) == (
        "the loss is not finite at epoch 2, step 3, in loss at '2', though every logit is: lower optimizer.lr (it was "
        "0.1) or look at the weights there"
    )
    state = Checkpoints(tmp_path / "checkpoint").load()
    assert (state.notes["epoch"], state.notes["step"]) == (2, 2)
    outcome = fit(tmp_path, settings=settings, objective=Objective(BCE(), weighting=Poisoned(2, 1, 0)))
    assert len(outcome.history) == 2
    assert equal(outcome.weights, fit(tmp_path / "never").weights)


def test_a_poisoned_logit_is_traced_to_its_label(tmp_path: Path) -> None:
    model = seeded(Net)
    model.head.bias.data[3] = math.nan
    with pytest.raises(NotFinite, match=r"at epoch 1, step 1: the logit of '3' is NaN or infinite; lower optimizer.lr"):
        fit(tmp_path, model=model)
    model.head.bias.data[:4] = math.inf
    with pytest.raises(NotFinite, match=r"the logit of '0', '1', '2' and 1 more is NaN or infinite"):
        fit(tmp_path, model=model)


def test_poisoned_inputs_are_named(tmp_path: Path) -> None:
    data = arrays()
    data.inputs[17, 4] = math.nan
    with pytest.raises(ValueError, match=r"item '17' has the value nan in input 4: fill in or leave out"):
        fit(tmp_path, data=data)
    x = torch.from_numpy(data.inputs)
    for inputs, model in ((x, seeded(Net)), ((torch.zeros(N, 1), x), seeded(lambda: Second()))):
        with pytest.raises(NotFinite) as e:
            fit(tmp_path, data=Items(inputs, data.labels), model=model)
        order = Shuffled(N, seed=1)
        order.set_epoch(1)
        step = list(order).index(17) // 16 + 1
        assert str(e.value) == (
            f"the loss is not finite at epoch 1, step {step}: an input of item '17' is NaN or infinite; fill or leave "
            "out what is missing before training"
        )


class Second(Net):
    def forward(self, x: Any) -> Tensor:
        return super().forward(x[1])


@pytest.mark.parametrize("name", ["annotation", "role"])
def test_an_exploding_rate_leaves_a_checkpoint_that_can_go_on(name: str, tmp_path: Path) -> None:
    """Also with PLM and pseudo-labels, which must not take in the bad numbers; a lower rate then trains on."""

    def deep() -> nn.Module:
        return nn.Sequential(nn.Linear(F, 8), nn.Linear(8, 8), nn.Linear(8, L))  # a product of weights overflows

    wanted = job(name, tmp_path)
    wild = replace(wanted["optimizer"], lr=1e20, clip_norm=0, kind="adamw", estimates_lr=1e-20)
    schedule = ScheduleSettings("constant", warmup_epochs=1)  # the first step has rate 0
    wanted |= dict(model=seeded(deep), optimizer=wild, schedule=schedule)
    with pytest.raises(NotFinite) as e:
        train(**wanted)
    assert re.fullmatch(
        r"the loss is not finite at epoch 1, step 3: the logits .*, so the network itself diverged; "
        r"lower optimizer\.lr \(it was .*e\+19\), set optimizer\.clip_norm = 1, or lengthen schedule\.warmup_epochs",
        str(e.value),
    )
    state = Checkpoints(tmp_path / "checkpoint").load()
    assert (state.notes["epoch"], state.notes["step"]) == (1, 1)
    assert all(bool(torch.isfinite(x).all()) for x in state.tensors.values() if x.is_floating_point())
    tame = job(name, tmp_path) | dict(model=seeded(deep), optimizer=replace(wild, lr=0.01))
    outcome = train(**tame)
    assert [record["epoch"] for record in outcome.history] == [1, 2, 3]
    assert all(bool(torch.isfinite(value).all()) for value in outcome.weights.values())


def test_a_gradient_that_is_no_number_never_reaches_a_checkpoint(tmp_path: Path) -> None:
    """The loss is finite, the weights after the step are not."""

    class Broken(Net):
        left = 3

        def forward(self, x: Tensor) -> Tensor:
            z = super().forward(x)
            self.left -= 1
            if self.left == 0:
                z.register_hook(lambda gradient: gradient * math.nan)
            return z

    settings = replace(SETTINGS, checkpoint_seconds=0)
    with pytest.raises(NotFinite, match=r"the weights .* are not finite after epoch 1, step 3: lower optimizer.lr"):
        fit(tmp_path, model=seeded(Broken), settings=settings)
    assert equal(fit(tmp_path, settings=settings).weights, fit(tmp_path / "never").weights)


def test_nan_in_the_last_step_is_not_kept_as_a_model(tmp_path: Path) -> None:
    settings = replace(SETTINGS, epochs=1, batch_size=N)
    with pytest.raises(NotFinite, match="after epoch 1, step 1"):
        fit(tmp_path, settings=settings, optimizer=OptimizerSettings("sgd", lr=3e38, weight_decay=1e10))
    assert Checkpoints(tmp_path / "checkpoint").load() is None


# the disk


def full_disk(*args: Any, **options: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def full_disk_at(path: Path, *args: Any, **options: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def half_written(tensors: Any, path: Path, header: Any) -> None:
    path.write_bytes(b"half of it")
    (path.parent / ".tmp123").write_bytes(b"beside it")
    full_disk()


OPERATIONS: list[tuple[Any, str, Callable[..., Any]]] = [
    (os, "replace", full_disk),
    (os, "fsync", full_disk),
    (files, "save_file", half_written),
    (pathlib.Path, "touch", full_disk_at),
    (pathlib.Path, "mkdir", full_disk_at),
    (pathlib.Path, "write_bytes", full_disk),
    (pathlib.Path, "chmod", full_disk_at),
]


@pytest.mark.parametrize(("where", "name", "fail"), OPERATIONS, ids=lambda x: x if isinstance(x, str) else "")
def test_a_full_disk_at_any_write(
    where: Any, name: str, fail: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the first write, then at the second …: each leaves whole checkpoints and no litter; training then goes on."""
    changes: dict[str, Any] = dict(batch_size=24, epochs=2)
    run("role", tmp_path / "never", **changes)
    call, left = getattr(where, name), [0]

    def failing(*args: Any, **options: Any) -> Any:
        left[0] -= 1
        return fail(*args, **options) if left[0] == 0 else call(*args, **options)

    folder, failures = tmp_path / "run", 0
    folder.mkdir()
    for at in range(1, 99):
        newest = newest_of(folder)
        left[0] = at
        monkeypatch.setattr(where, name, failing)
        failure = None
        try:
            run("role", folder, **changes)
        except OSError as error:
            failure = error
        monkeypatch.undo()
        if failure is None:
            break
        failures += 1
        assert failure.errno == errno.ENOSPC
        assert str(failure.filename).startswith(str(folder))
        assert ".partial" not in str(failure.filename)
        assert newest_of(folder) >= newest
        assert list(folder.rglob(".*")) == []
    assert failures >= 1
    found = everything_small(folder, changes)
    same(found, everything_small(tmp_path / "never", changes))


def newest_of(folder: Path) -> tuple[int, int]:
    """Where the newest checkpoint goes on; all are whole."""
    checkpoints = Checkpoints(folder / "checkpoint")
    state = checkpoints.load()
    assert checkpoints.damaged == []
    return (0, 0) if state is None else (state.notes["epoch"], state.notes["step"])


def everything_small(folder: Path, changes: dict[str, Any]) -> dict[str, Any]:
    outcome = run("role", folder, **changes)
    return {"weights": {n: v.tolist() for n, v in outcome.weights.items()}, "history": untimed(outcome.history)}


def test_files_that_may_not_grow(tmp_path: Path) -> None:
    """The system's own error, in the library that writes tensors and in the store; not a traceback of its own kind."""

    def work() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
        with pytest.raises(OSError, match="File too large") as e:
            fit(tmp_path, settings=replace(SETTINGS, checkpoint_seconds=0), optimizer=OptimizerSettings())
        assert str(e.value.filename).endswith(".safetensors")
        assert list(tmp_path.rglob(".*")) == []
        with pytest.raises(OSError, match=r"File too large, and 1e-05 GB are needed for pseudo-labels") as e:
            PseudoLabels(tmp_path / "store", 1000, 10)
        assert sum(file.stat().st_size for file in (tmp_path / "store").iterdir()) == 0
        PseudoLabels(tmp_path / "store", 10, 10)

    in_a_child(work, tmp_path.parent / f"{tmp_path.name}.txt")


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(OSError, match="file") as e:
        fit(tmp_path / "file")
    assert "\n" not in str(e.value)
    open_to_all = Path(tempfile.mkdtemp())  # pytest's folders are closed to others
    try:
        open_to_all.chmod(0o555)

        def work() -> None:
            if os.getuid() == 0:
                os.setuid(65534)
            for folder in (open_to_all, open_to_all / "new"):
                with pytest.raises(PermissionError) as e:
                    fit(folder)
                assert str(e.value.filename).startswith(str(open_to_all))
                assert ".partial" not in str(e.value.filename)

        in_a_child(work, tmp_path / "note.txt")
    finally:
        open_to_all.chmod(0o755)
        shutil.rmtree(open_to_all)


# being stopped


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("undisturbed")
    run("role", folder)
    return everything("role", folder)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("seed", range(2))
def test_stopped_at_a_random_step(
    number: signal.Signals, seed: int, undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    before = [signal.getsignal(kind) for kind in (signal.SIGINT, signal.SIGTERM)]
    steps = random.Random(f"{number}{seed}").randrange(1, 9)
    with pytest.raises(Stopped, match="run the same command again to continue"):
        run("role", tmp_path, watch=BreakOff(steps, number=number), checkpoint_seconds=1e6)
    assert [signal.getsignal(kind) for kind in (signal.SIGINT, signal.SIGTERM)] == before
    state = Checkpoints(tmp_path / "checkpoint").load()
    assert state is not None
    run("role", tmp_path, checkpoint_seconds=1e6)
    same(everything("role", tmp_path), undisturbed)


def test_stopping_at_the_very_end_is_being_done(undisturbed: dict[str, Any], tmp_path: Path) -> None:
    total = sum(record["steps"] for record in undisturbed["history"])
    run("role", tmp_path, watch=BreakOff(total, number=signal.SIGINT))
    same(everything("role", tmp_path), undisturbed)


def test_the_second_ctrl_c_does_not_wait(undisturbed: dict[str, Any], tmp_path: Path) -> None:
    class Twice(BreakOff):
        def step(self, epoch: int, step: int, steps: int) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt) as e:
        run("role", tmp_path, watch=Twice(1))
    assert not isinstance(e.value, Stopped)
    run("role", tmp_path)
    same(everything("role", tmp_path), undisturbed)


def test_training_in_a_thread(undisturbed: dict[str, Any], tmp_path: Path) -> None:
    thread = threading.Thread(target=run, args=("role", tmp_path))
    thread.start()
    thread.join()
    same(everything("role", tmp_path), undisturbed)


# items that cannot be had


def image_files(folder: Path, sizes: list[tuple[int, int]], size: int | None) -> ImageDataset:
    folder.mkdir()
    paths = []
    for i, (width, height) in enumerate(sizes):
        pixels = np.random.default_rng(i).integers(0, 256, (height, width, 3), dtype=np.uint8)
        paths.append(folder / f"{i}.png")
        Image.fromarray(pixels).save(paths[-1])
    return ImageDataset(paths, table(len(sizes)), size)


class Unreadable(Items):
    def __getitem__(self, i: int) -> Any:
        return Path("not there").read_bytes()


class Mistaken(Items):
    def __getitem__(self, i: int) -> Any:
        raise RuntimeError("a mistake of the data set")


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("what", "error", "match"),
    [
        ("deleted", BadImage, r"7\.png"),
        ("sizes", ValueError, r"^images have several sizes: set data.size"),
        ("unreadable", FileNotFoundError, "not there"),
        ("mistaken", RuntimeError, "a mistake of the data set"),
    ],
)
def test_items_that_cannot_be_had(what: str, error: Any, match: str, workers: int, tmp_path: Path) -> None:
    """The same error, in one line, whoever fetches; no other error is taken for the death of a worker."""
    if what in ("deleted", "sizes"):
        sizes, size = ([(8, 8)] * 12, 8) if what == "deleted" else ([(8, 8), (8, 9)] * 6, None)
        data: Any = image_files(tmp_path / "images", sizes, size)
        if what == "deleted":
            Path(data.paths[7]).unlink()
    else:
        data = (Unreadable if what == "unreadable" else Mistaken)(None, table())
    model, settings = job("plain", tmp_path)["model"], replace(SETTINGS, batch_size=4, workers=workers)

    def work() -> None:
        with pytest.raises(error, match=match) as e:
            fit(tmp_path / "run", data=data, model=model, settings=settings)
        assert what == "mistaken" or "\n" not in str(e.value)

    in_a_child(work, tmp_path / "note.txt")


@pytest.mark.parametrize("wait", [0.0, 0.1])
def test_a_worker_that_is_killed(wait: float, tmp_path: Path) -> None:
    """Wherever the process that trains is at that moment: waiting for a batch, or in the middle of a step."""

    def kill_one(others: set[int | None]) -> None:
        while not (mine := {child.pid for child in multiprocessing.active_children()} - others):
            time.sleep(0.001)
        time.sleep(wait)
        os.kill(next(iter(mine)) or 0, signal.SIGKILL)

    def work() -> None:
        others = {child.pid for child in multiprocessing.active_children()}  # of the process this is a copy of
        threading.Thread(target=kill_one, args=(others,), daemon=True).start()
        settings = replace(SETTINGS, epochs=10_000, workers=2, batch_size=2)
        with pytest.raises(
            ValueError, match=r"^a process that reads items was killed, .*: use fewer \(train.workers\)$"
        ):
            fit(tmp_path, data=images(), model=job("plain", tmp_path)["model"], settings=settings)

    in_a_child(work, tmp_path / "note.txt")


def test_a_worker_without_a_parent_ends(tmp_path: Path) -> None:
    """Torch would wait for ever for a parent that was killed before the worker first looked."""
    note = tmp_path / "note.txt"
    here = os.getpid()
    assert waited(forked(lambda: _begin(here, 0), note)) == 0
    assert waited(forked(lambda: _begin(here + 1, 0), note)) == 1
    assert not note.exists()


@pytest.mark.parametrize("kind", ["class_aware", "undersample"])
def test_a_sampler_without_a_positive_says_so(kind: Any, tmp_path: Path) -> None:
    data = ArrayDataset(features(), Labels(np.zeros((N, L), np.int8)))
    with pytest.raises(ValueError, match="no positive label"):
        fit(tmp_path, data=data, settings=replace(SETTINGS, sampler=SamplerSettings(kind)))
