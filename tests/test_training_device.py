"""What lets steps be captured: draws made ahead, pseudo-labels held on a device, and the captured step itself.

The graph is replaced by the step it would record, so that everything but the recording is tested on a CPU.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import training_runs as runs
from steelyard.balance import Deferred, LabelPair, PartialLabelMasking, PseudoLabels, Rebalanced, label_pair
from steelyard.data.dataset import ArrayDataset
from steelyard.labels import Labels
from steelyard.losses import BCE, Annotation
from steelyard.objective import Objective
from steelyard.training import captured, loop
from steelyard.training.batches import make_sampler
from steelyard.training.finite import NotFinite, check_weights
from steelyard.training.settings import AugmentSettings, SamplerSettings


@pytest.fixture
def capturing(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Make `train` take captured steps, with the step itself for its graph; returns the sizes that were recorded."""
    recorded: list[int] = []

    def capture(self: captured.Captured, n: int) -> object:
        recorded.append(n)
        return partial(self._step, n)

    monkeypatch.setattr(loop, "can_capture", lambda *given: True)
    monkeypatch.setattr(captured.Captured, "_warm_up", captured.Captured._step)
    monkeypatch.setattr(captured.Captured, "_capture", capture)
    return recorded


LENGTHS = {"sampler": SamplerSettings("undersample", per_class=30), "epochs": 5}  # epochs of several lengths
OTHERS: list[dict[str, Any]] = [{"ema": 0.9}, {"kind": "adamw", "clip_norm": 0.1}, LENGTHS]


@pytest.mark.parametrize(("method", "settings"), [*((m, {}) for m in runs.METHODS), *(("bce", s) for s in OTHERS)])
def test_a_captured_run_is_the_eager_one(
    method: str, settings: dict[str, Any], tmp_path: Path, capturing: list[int]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "can_capture", lambda *given: False)
        eager = runs.run(method, tmp_path / "eager", **settings)
    assert capturing == []
    runs.assert_same(
        runs.run(method, tmp_path / "captured", **settings), eager, *((1e-4, 1e-5) if settings else (1e-5, 1e-6))
    )
    assert capturing.count(32) == (2 if method == "drw" else 1)
    if settings is not LENGTHS:
        assert set(capturing) == {32, 203 % 32}
        assert len(capturing) == (3 if method == "drw" else 2)


@pytest.mark.parametrize("method", ["plm", "annotation", "drw", "role"])
@pytest.mark.parametrize("spot", [(1, 3), (2, 5)])
def test_killed_and_resumed(method: str, spot: tuple[int, int], tmp_path: Path, capturing: list[int]) -> None:
    whole = runs.run(method, tmp_path / "whole", ema=0.9)
    with pytest.raises(runs.Killed):
        runs.run(method, tmp_path / "cut", ema=0.9, checkpoint_seconds=0, watch=runs.KillAt(*spot))
    runs.assert_same(runs.run(method, tmp_path / "cut", ema=0.9), whole, 1e-6, 1e-7)


def test_what_cannot_be_recorded_runs_eagerly(
    tmp_path: Path, capturing: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    captured_run = runs.run("bce", tmp_path / "captured")

    def fail(self: captured.Captured, n: int) -> object:
        raise RuntimeError("operation not permitted\nwhen stream is capturing")

    monkeypatch.setattr(captured.Captured, "_capture", fail)
    runs.assert_same(runs.run("bce", tmp_path / "fallen back"), captured_run, 1e-7, 1e-8)
    assert [record.message for record in caplog.records] == ["Steps run without CUDA graphs: operation not permitted"]


def test_what_is_no_image_is_not_varied(tmp_path: Path, capturing: list[int]) -> None:
    with pytest.raises(
        ValueError, match=r"^train.augment is for images, but inputs have shape \(\d+, \d+\): leave it out$"
    ):
        runs.run("bce", tmp_path, augment=AugmentSettings(flip=0.5))


def test_masks_drawn_ahead_are_those_drawn_in_the_step() -> None:
    targets = torch.randint(-1, 2, (50, 7), generator=torch.Generator().manual_seed(0), dtype=torch.int8)
    masking = PartialLabelMasking((targets == 1).sum(0), (targets >= 0).sum(0), initial="mean", seed=9)
    index = torch.tensor([4, 4, 49, 0, 17])
    for epoch in (1, 2):
        masking.epoch = epoch
        drawn = masking.mask(targets[index], index)
        masking.draw_ahead(targets)
        torch.testing.assert_close(masking.mask(targets[index], index), drawn, rtol=0, atol=0)
        assert not drawn.all()
        masking.observe(torch.rand(50, 7), targets)
        masking.step()
        assert masking.ahead.epoch == 0


def test_masks_drawn_ahead_are_forgotten_with_the_state() -> None:
    targets = torch.ones(5, 2, dtype=torch.int8)
    masking = PartialLabelMasking([3, 1], 5, initial="min")
    state = masking.state_dict()
    masking.draw_ahead(targets)
    masking.load_state_dict({**state, "ratio": masking.data_ratio})
    assert masking.mask(targets, torch.arange(5)).all()


def test_picks_drawn_ahead_are_those_drawn_in_the_step(tmp_path: Path) -> None:
    rules = [Annotation(PseudoLabels(tmp_path / str(i), 30, 6), q=(0.2, 0.9), seed=4) for i in range(2)]
    targets_of_all = torch.randint(-1, 2, (30, 6), generator=torch.Generator().manual_seed(2), dtype=torch.int8)
    index = torch.tensor([3, 29, 0, 7, 7, 12, 13, 14])
    targets = targets_of_all[index]
    for epoch in (1, 2, 3):
        objectives = [Objective(BCE(reduction="item"), rule).eval() for rule in rules]
        for rule in rules:
            rule.start_epoch(epoch, 3)
        rules[1].draw_ahead(targets_of_all)
        values = [o(torch.zeros(8, 6), targets, index).total for o in objectives]
        torch.testing.assert_close(*values, rtol=0, atol=0)


def test_a_large_table_is_drawn_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    masking = PartialLabelMasking([3, 1], 100, initial="min")
    targets = torch.ones(100, 2, dtype=torch.int8)
    masking.draw_ahead(targets)
    whole = masking.mask(targets, torch.arange(100))
    masking.ahead.forget()
    monkeypatch.setattr("steelyard.balance.epoch_cache._CELLS", 14)
    masking.draw_ahead(targets)
    torch.testing.assert_close(masking.mask(targets, torch.arange(100)), whole, rtol=0, atol=0)


def test_images_are_laid_over_each_other_alike(tmp_path: Path, capturing: list[int]) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (203, 1, 8, 8)).astype(np.uint8)
    data = ArrayDataset(images, Labels((rng.random((203, 5)) < 0.3).astype(np.int8)))
    found = []
    for captures, overlay in ((False, 0.7), (True, 0.7), (False, 0.0)):
        torch.manual_seed(0)
        model = torch.nn.Sequential(_Pixels(), torch.nn.Linear(64, 5))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loop, "can_capture", lambda *given, captures=captures: captures)
            augmentation = AugmentSettings(rotate=20, elastic=1, pad_crop=1, overlay=overlay)
            where = tmp_path / f"{captures} {overlay}"
            found.append(runs.run("bce", where, model, data, augment=augmentation, epochs=2))
    runs.assert_same(found[1], found[0], 1e-5, 1e-6)
    laid, plain = (outcome.history[-1]["loss"] for outcome, _ in found[1:])
    assert laid > plain + 0.01  # more labels are present, so less is known before anything is learned


class _Pixels(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1).float() / 255


@pytest.mark.parametrize("feedback", ["raw", "link"])
def test_a_held_store_is_the_store(feedback: str, tmp_path: Path) -> None:
    """Items that an epoch leaves out, a restart in the middle of an epoch, and one between epochs."""
    rng = np.random.default_rng(1)
    plain, held = (PseudoLabels(tmp_path / name, 9, 4, feedback) for name in ("plain", "held"))  # type: ignore[arg-type]
    held.hold_on(torch.device("cpu"))
    everything = torch.arange(9)
    for epoch in range(1, 7):
        for store in (plain, held):
            store.start_epoch(epoch)
        for part in range(2):
            index = torch.from_numpy(rng.permutation(9)[:3])
            torch.testing.assert_close(held.read(everything), plain.read(everything), rtol=0, atol=0)
            said = torch.from_numpy(rng.random((3, 4)))
            for store in (plain, held):
                store.write(index, said)
            if epoch % 2 == part:
                held.flush()
                held = PseudoLabels(tmp_path / "held", 9, 4, feedback)  # type: ignore[arg-type]
                held.check_continues(epoch)
                held.hold_on(torch.device("cpu"))
                held.start_epoch(epoch)
    held.reset()
    assert (held.read(everything) == 0.5).all()


def test_what_was_not_flushed_is_lost_and_the_rest_is_there(tmp_path: Path) -> None:
    store = PseudoLabels(tmp_path, 4, 2)
    store.hold_on(torch.device("cpu"))
    store.start_epoch(1)
    store.write(torch.tensor([1]), torch.ones(1, 2))
    store.flush()
    store.write(torch.tensor([2]), torch.ones(1, 2))
    store.let_go()
    assert not store.held
    store.start_epoch(2)
    torch.testing.assert_close(store.read(torch.arange(4))[:, 0], torch.tensor([0.5, 1.0, 0.5, 0.5]))


@pytest.mark.parametrize("block", [1 << 24, 40])
def test_all_pairs_are_the_positives_pairs(block: int) -> None:
    g = torch.Generator().manual_seed(0)
    scores = torch.randn(7, 9, dtype=torch.float64, generator=g, requires_grad=True)
    targets = torch.randint(-1, 2, (7, 9), generator=g).double()
    targets[0] = torch.rand(9, generator=g)
    value = LabelPair()(scores, targets)
    (grad,) = torch.autograd.grad(value, scores)
    is_known, present = targets != -1, targets.clamp_min(0)
    s = torch.where(is_known, scores.detach(), 0)
    total, slope = label_pair._all_pairs(s, present, is_known.double() - present, block)
    scale = 2 / (9 * 8) / 7
    torch.testing.assert_close(total * scale, value.detach())
    torch.testing.assert_close(slope * scale, grad)


def test_phases(tmp_path: Path) -> None:
    """Steps are recorded anew only where the objective becomes another function, or is of an unknown kind."""

    class Own(Rebalanced):
        def start_epoch(self, epoch: int, n_epochs: int) -> None:
            self.alpha = epoch / n_epochs

    def phases(objective: Objective) -> list[object]:
        found = []
        for epoch in (1, 2, 3):
            objective.start_epoch(epoch, 3)
            captured.draw_ahead(objective, torch.zeros(10, 2, dtype=torch.int8))
            found.append(captured.phase_of(objective))
        return found

    def kinds(weighting: Rebalanced | Deferred) -> int:
        return len(set(phases(Objective(BCE(), weighting=weighting))))

    store = PseudoLabels(tmp_path, 10, 2)
    assert kinds(Rebalanced([3, 4])) == 1
    assert kinds(Deferred(Rebalanced([3, 4]), 3)) == 2
    assert kinds(Own([3, 4])) == kinds(Deferred(Own([3, 4]), 3)) == 3
    assert len(set(phases(Objective(BCE(), masking=PartialLabelMasking([3, 4], 10))))) == 1
    assert len(set(phases(Objective(BCE(reduction="item"), Annotation(store))))) == 3
    store.hold_on(torch.device("cpu"))
    assert len(set(phases(Objective(BCE(reduction="item"), Annotation(store))))) == 1


@pytest.mark.parametrize("kind", ["shuffle", "class_aware", "undersample"])
@pytest.mark.parametrize(("rank", "of", "start"), [(0, 1, 0), (0, 1, 24), (1, 3, 12)])
def test_draws_left_are_those_iterated(kind: str, rank: int, of: int, start: int) -> None:
    labels = runs.data_of("bce").labels
    sampler = make_sampler(SamplerSettings(kind, per_class=20), labels, 3)  # type: ignore[arg-type]
    sampler.rank, sampler.num_replicas = rank, of
    sampler.set_epoch(4, start)
    assert sampler.left().tolist() == list(sampler)
    assert len(sampler.left()) == len(sampler) > 0


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_weight_that_is_not_finite_is_found(value: float) -> None:
    model = runs.network().double()
    check_weights(model, 1, 2, 0.1)
    model[3].weight.data[2, 3] = value  # type: ignore[union-attr, operator]
    with pytest.raises(NotFinite, match=r"3\.weight are not finite after epoch 1, step 2"):
        check_weights(model, 1, 2, 0.1)


@pytest.mark.usefixtures("capturing")
def test_only_a_long_training_tries_all_convolutions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: dict[int, bool] = {}

    def capture(self: captured.Captured, n: int) -> object:
        tried[n] = self._tries(n)
        return partial(self._step, n)

    monkeypatch.setattr(captured.Captured, "_capture", capture)
    runs.run("bce", tmp_path / "short")
    assert tried == {32: False, 203 % 32: False}
    monkeypatch.setattr(captured, "TRIES_FROM", 2 * (203 // 32))
    runs.run("bce", tmp_path / "long")
    assert tried == {32: True, 203 % 32: False}  # a batch that comes once an epoch does not repay it
