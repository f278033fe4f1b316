"""A new model gives every label its training frequency by the objective's own link, and no gradient moves its bias."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import reference
import steelyard as sy
from steelyard import balance, losses
from steelyard.data.dataset import ArrayDataset
from steelyard.labels import Labels
from steelyard.losses.table import TABLE
from steelyard.models import ModelSettings, build_model, input_of
from steelyard.models.model import Model
from steelyard.objective import ExpectedPositives, Objective, Role, prior_logits
from steelyard.objective.start import first_cells
from steelyard.training.batches import item_frequencies
from steelyard.training.checkpoint import load_tensors
from steelyard.training.settings import AugmentSettings, SamplerSettings, TrainSettings
from steelyard.training.start import start_at_prior
from steelyard.training.step import Eager

N, L = 400, 6
SHARES = (0.01, 0.03, 0.1, 0.2, 0.35, 0.6)
LINKED = [row for row in TABLE if row.name != "Two-way"]
PLAIN_RULES = ("ignore", "negative", "weak_negative", "wan", "pseudo", "epr")
WEIGHTINGS = ("none", "rw", "cb", "mean_effective", "rebalanced", "deferred")


def table(unknown: float = 0.25, seed: int = 0) -> np.ndarray:
    """Labels that occur together, rare to frequent, some unknown; every one has known positives and negatives."""
    rng = np.random.default_rng(seed)
    values = (rng.random((N, L)) * (0.6 + 0.8 * rng.random((N, 1))) < SHARES).astype(np.int8)
    hidden = rng.random((N, L)) < unknown
    values[hidden] = -1
    values[:2] = [[1] * L, [0] * L]
    return values


def weights_of(kind: str, values: np.ndarray, counts: np.ndarray) -> np.ndarray | float:
    """The reference's weights of the whole table as one batch."""
    if kind == "rw":
        return reference.inverse_frequency(values, counts)
    if kind in ("cb", "mean_effective"):
        return reference.class_balanced(values, counts, 0.999, "class" if kind == "cb" else kind)
    return reference.rebalanced(values, counts) if kind == "rebalanced" else 1.0


def weighting_of(kind: str, counts: np.ndarray) -> balance.Weighting | None:
    if kind == "deferred":
        return balance.Deferred(balance.ClassBalanced(counts), start=2)
    made: dict[str, Any] = {
        "none": lambda: None,
        "rw": lambda: balance.InverseFrequency(counts),
        "cb": lambda: balance.ClassBalanced(counts, 0.999),
        "mean_effective": lambda: balance.ClassBalanced(counts, 0.999, "mean_effective"),
        "rebalanced": lambda: balance.Rebalanced(counts),
    }
    return made[kind]()


def rule_of(kind: str, folder: Path) -> Any:
    if kind == "pseudo":
        return losses.Pseudo(balance.PseudoLabels(folder, N, L), weight=0.7)
    return ExpectedPositives(1.5) if kind == "epr" else kind


def cells_of(kind: str, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(a, b) of the plain rules, float64."""
    a, b = (values == 1).astype(np.float64), (values == 0).astype(np.float64)
    hole = values < 0
    if kind == "negative":
        b = b + hole
    elif kind == "weak_negative":
        b = b + hole / (L - 1)
    elif kind == "wan":
        b = (b + hole) / (L - 1)
    elif kind == "pseudo":
        a, b = a + 0.35 * hole, b + 0.35 * hole
    return a, b


def gradient(objective: Objective, values: np.ndarray, z: torch.Tensor) -> torch.Tensor:
    """The slope of the loss by the bias, (L,), in units of one positive's."""
    objective.train()
    objective.start_epoch(1, 10)
    bias = z.clone().requires_grad_()
    targets, index = torch.from_numpy(values), torch.arange(len(values))
    objective(bias.expand(len(values), L), targets, index).parts["loss"].backward()
    assert bias.grad is not None
    one = z.clone().requires_grad_()
    objective.loss.positive(one).sum().backward()  # type: ignore[operator]
    return bias.grad / one.grad.abs()


def combinations() -> Iterator[Any]:
    """Yield every loss with every rule and weighting; a sixth of them are tested by day, all by night."""
    for (i, row), (j, rule), (k, weighting) in product(*map(enumerate, (LINKED, PLAIN_RULES, WEIGHTINGS))):
        by_day = (row.name == "BCE" and weighting in ("none", "rebalanced")) or (i + j + k) % 6 == 0
        yield pytest.param(row, rule, weighting, marks=() if by_day else pytest.mark.slow)


@pytest.mark.parametrize(("row", "rule", "weighting"), [*combinations()], ids=lambda x: getattr(x, "name", x))
def test_the_link_gives_the_share_of_positives(row: Any, rule: str, weighting: str, tmp_path: Path) -> None:
    """Against Σa, Σb summed in NumPy and links of 60 digits."""
    values = table()
    counts, k = (values == 1).sum(0), N
    objective = Objective(
        row.make(torch.from_numpy(counts), k, "mean"), rule_of(rule, tmp_path), None, weighting_of(weighting, counts)
    )
    z = prior_logits(objective, Labels(values), n_epochs=10, batch_size=N)
    a, b = cells_of(rule, values)
    weights = weights_of(weighting, values, counts) * (
        reference.rebalanced(values, counts) if row.name in ("R-BCE", "DB", "DB-Focal") else 1.0
    )
    odds = (a * weights).sum(0) / (b * weights).sum(0)
    pairs = reference.pairs(row.name, counts.tolist(), k)
    for c in range(L):
        if row.name.startswith("ASL") and odds[c] > 14:  # which it does not reach
            continue
        eta = float(reference.sigmoid(pairs[c].log_odds(float(z[c]))))
        assert eta == pytest.approx(odds[c] / (1 + odds[c]), rel=1e-5), (c, z[c])
    if not (row.name.startswith("ASL") and (odds > 14).any()):
        assert gradient(objective, values, z).abs().max() < 1e-6


def test_the_gradient_notices_a_bias_that_is_off() -> None:
    values = table()
    objective = Objective(losses.BCE())
    z = prior_logits(objective, Labels(values))
    assert gradient(objective, values, z + 0.05).abs().min() > 1e-4
    assert gradient(objective, values, torch.zeros(L, dtype=torch.float64)).abs().max() > 0.1


def test_masks_enter_by_the_chance_that_a_label_is_kept() -> None:
    """PLM makes the odds of every label r̄, whatever they are in the data."""
    values = table()
    counts, known = (values == 1).sum(0), (values >= 0).sum(0)
    masking = balance.PartialLabelMasking(torch.from_numpy(counts), torch.from_numpy(known), initial="mean")
    z = prior_logits(Objective(losses.BCE(), masking=masking), Labels(values))
    mean = (counts / (known - counts)).mean()
    np.testing.assert_allclose(z.exp().numpy(), np.full(L, mean), rtol=1e-6)
    assumed = balance.PartialLabelMasking(torch.from_numpy(counts), N, initial="min")
    z = prior_logits(Objective(losses.BCE(), "negative", assumed), Labels(values))
    np.testing.assert_allclose(z.exp().numpy(), np.full(L, (counts / (N - counts)).min()), rtol=1e-6)


def test_the_partial_annotation_paper(tmp_path: Path) -> None:
    """α, β, d and the two means of an item, against NumPy; what an unfinished run stored is not read, nor touched."""
    values = table()
    store = balance.PseudoLabels(tmp_path, N, L)
    store.start_epoch(1)
    store.write(torch.arange(N), torch.full((N, L), 0.9))
    store.start_epoch(2)
    objective = Objective(losses.BCE(reduction="item"), losses.Annotation(store, q=1.0))
    z = prior_logits(objective, Labels(values), n_epochs=20, batch_size=N)
    assert store.epoch == 2
    assert objective.resolver.stored() is store
    assert float(store.read(torch.arange(1))[0, 0]) == pytest.approx(0.9, abs=0.01)
    beta, d = max((values == 1).sum() / values.size, 0.05), math.exp((1 + 3) / 20 - 1)
    known, hole = (values >= 0).astype(float), (values < 0).astype(float)
    share = known / np.maximum(known.sum(1, keepdims=True), 1), d * hole / np.maximum(hole.sum(1, keepdims=True), 1)
    a = (1 - beta) * (share[0] * (values == 1) + share[1] / 2).sum(0)
    b = beta * (share[0] * (values == 0) + share[1] / 2).sum(0)
    np.testing.assert_allclose(z.numpy(), np.log(a / b), rtol=1e-6)


def test_role_starts_at_its_first_estimates() -> None:
    values = table()
    rule = Role(torch.from_numpy(values), 1.5, seed=3)
    z = prior_logits(Objective(losses.BCE(), rule), Labels(values))
    e = np.where(values == 0, 0, 1 / (1 + np.exp(-rule.theta.detach().numpy().astype(np.float64))))
    a = ((values == 1) + e).sum(0)
    b = ((values == 0) + 1 - e).sum(0)
    np.testing.assert_allclose(z.numpy(), np.log(a / b), rtol=1e-5)


def test_epr_without_negatives_spreads_the_expected_number() -> None:
    values = np.where(table() == 1, 1, -1)
    z = prior_logits(Objective(losses.BCE(), ExpectedPositives(1.2)), Labels(values))
    counts = (values == 1).sum(0)
    np.testing.assert_allclose(torch.sigmoid(z).numpy(), 1.2 * counts / counts.sum(), rtol=1e-9)


def test_samplers_change_the_odds() -> None:
    """Class-aware sampling gives eq. 1 of the distribution-balanced loss, also with labels unknown."""
    for unknown in (0.0, 0.25):
        labels = Labels(table(unknown))
        frequencies = item_frequencies(SamplerSettings("class_aware"), labels, 0)
        z = prior_logits(Objective(losses.BCE()), labels, frequencies)
        np.testing.assert_allclose(torch.sigmoid(z).numpy(), labels.resampled_prior(), rtol=1e-9)
    values = table(0.0)
    frequencies = item_frequencies(SamplerSettings("undersample", per_class=20), Labels(values), 3)
    sampler = balance.Undersample(Labels(values), 20, seed=3)
    sampler.set_epoch(1)
    z = prior_logits(Objective(losses.BCE()), Labels(values), frequencies)
    np.testing.assert_allclose(torch.sigmoid(z).numpy(), values[list(sampler)].mean(0), rtol=1e-9)
    assert item_frequencies(SamplerSettings(), Labels(values), 0) is None


def test_labels_without_positives_or_negatives_or_anything() -> None:
    values = np.zeros((100, 4), np.int8)
    values[:, 1] = 1
    values[:30, 2] = 1
    values[:, 3] = -1
    sums = first_cells(Objective(losses.BCE()), Labels(values))
    assert sums.a.tolist() == [0.5, 100, 30, 130]
    assert sums.b.tolist() == [100, 0.5, 70, 170]
    weak = first_cells(Objective(losses.BCE(), "wan"), Labels(values))
    assert (weak.a / weak.b)[0] == pytest.approx(0.5 / 100)  # half a cell of the weight that the label's cells have
    nothing = first_cells(Objective(losses.BCE()), Labels(np.full((5, 2), -1)))
    assert torch.isfinite(nothing.log_odds).all()


def test_what_a_link_does_not_reach_is_its_end() -> None:
    """ASL ends at η = .942: a label that is present more often starts just below, where there still is a slope."""
    values = (np.arange(100)[:, None] < [99, 2]).astype(np.int8)
    objective = Objective(losses.Asymmetric())
    z = prior_logits(objective, Labels(values))
    eta = torch.sigmoid(objective.loss.link(z))  # type: ignore[operator]
    assert 0.93 < eta[0] < objective.loss.eta_range[1]
    assert z[0] < 7
    assert eta[1] == pytest.approx(0.02, rel=1e-6)


def test_losses_without_a_link_have_no_such_start() -> None:
    with pytest.raises(losses.NoLink, match="TwoWay"):
        prior_logits(Objective(losses.TwoWay()), Labels(table()))


# ---- heads


def made(head: str, backbone: str, **others: Any) -> tuple[Model, ArrayDataset]:
    torch.manual_seed(0)
    rng = np.random.default_rng(1)
    x: np.ndarray = rng.normal(1, 2, (N, 12)).astype(np.float32)
    if backbone in ("small", "resnet12"):
        x = rng.integers(0, 256, (N, 3, 16, 16), dtype=np.uint8)
    data = ArrayDataset(x, Labels(table()))
    model = build_model(ModelSettings(backbone=backbone, head=head, width=32, **others), input_of(data), data.labels)  # type: ignore[arg-type]
    model.fit_normalisation(data)
    return model, data


def outputs(model: Model, data: ArrayDataset) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(torch.from_numpy(np.asarray(data.inputs))).double()


SETTINGS = TrainSettings(epochs=10, batch_size=50, device="cpu")


@pytest.mark.parametrize(
    ("head", "backbone", "loss"),
    [
        *[("linear", "linear", loss) for loss in ("BCE", "ASL", "SPA", "DB-Focal")],
        ("linear", "mlp", "ASL"),
        ("linear", "small", "SPA"),
        ("bottleneck", "linear", "DB-Focal"),
        ("ml_gcn", "mlp", "BCE"),
        ("places", "resnet12", "BCE"),
        ("oltr", "linear", "SPA"),
    ],
)
def test_the_mean_probability_of_a_new_model_is_the_share(head: str, backbone: str, loss: str) -> None:
    model, data = made(head, backbone)
    counts = torch.tensor(data.labels.counts)
    row = next(row for row in TABLE if row.name == loss)
    objective = Objective(row.make(counts, N, "mean"))
    assert start_at_prior(model, objective, data, SETTINGS)
    z = outputs(model, data)
    sums = first_cells(objective, data.labels, None, 10, 50)
    eta = torch.sigmoid(objective.loss.link(z)).mean(0)  # type: ignore[operator]
    np.testing.assert_allclose(eta.numpy(), (sums.a / (sums.a + sums.b)).numpy(), rtol=0.05)
    if head != "oltr":  # whose weights have unit length
        assert z.std(0).max() <= 0.05


def test_what_lies_below_the_last_layer_learns() -> None:
    """Weights of 0 stop the gradient in the first step alone."""
    model, data = made("linear", "mlp")
    start_at_prior(model, Objective(losses.BCE()), data, SETTINGS)
    before = model.backbone.hidden.weight.clone()  # type: ignore[union-attr, operator]
    method = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(2):
        method.zero_grad()
        loss = Objective(losses.BCE())(model(torch.from_numpy(np.asarray(data.inputs))), torch.from_numpy(table()))
        loss.total.backward()
        method.step()
    assert (model.backbone.hidden.weight - before).abs().max() > 1e-5  # type: ignore[operator]


@pytest.mark.parametrize(
    ("head", "loss", "bias"),
    [("cosine", losses.BCE(), "prior"), ("linear", losses.TwoWay(), "prior"), ("linear", losses.BCE(), "zero")],
)
def test_exempt_models_stay_as_they_are(head: str, loss: nn.Module, bias: str) -> None:
    model, data = made(head, "linear", bias=bias)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert not start_at_prior(model, Objective(loss), data, SETTINGS)  # type: ignore[arg-type]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_images_laid_over_one_another_have_the_labels_of_both() -> None:
    model, data = made("linear", "small")
    values = table(0.0)
    data = ArrayDataset(np.asarray(data.inputs), Labels(values))
    settings = TrainSettings(epochs=10, batch_size=50, augment=AugmentSettings(overlay=1.0))
    start_at_prior(model, Objective(losses.BCE()), data, settings)
    eta = torch.sigmoid(outputs(model, data)).mean(0).numpy()
    np.testing.assert_allclose(eta, 1 - (1 - values.mean(0)) ** 2, rtol=1e-4)


def test_ml_gcn_has_a_bias_only_where_it_starts_at_the_prior() -> None:
    assert made("ml_gcn", "linear")[0].head.bias is not None
    assert made("ml_gcn", "linear", bias="zero")[0].head.bias is None


# ---- whole runs


def rare(n: int = 4000) -> tuple[np.ndarray, np.ndarray]:
    """Features (n, 20) and labels of 5, 16, 37, 200 and 1,200 positives that depend on them."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 20)).astype(np.float32)
    scores = x @ rng.normal(size=(20, 5))
    scores = scores / scores.std(0) + 2 * rng.normal(size=scores.shape)
    ranks = np.argsort(np.argsort(-scores, axis=0), axis=0)
    return x, (ranks < [5, 16, 37, 200, 1200]).astype(np.int8)


@pytest.mark.parametrize("backbone", ["linear", "mlp"])
def test_rare_labels_are_as_likely_as_they_are_frequent(backbone: str) -> None:
    """With the bias at 0 they come out 2 to 14 times too likely, and no calibrator hides it without validation."""
    x, y = rare()
    settings = {"model": {"backbone": backbone, "width": 32}, "train": {"device": "cpu", "epochs": 6}}
    eta = sy.fit((x, y), "bce", validation=0, settings=settings, verbose=False).probability(x).mean(0)
    np.testing.assert_allclose(eta, y.mean(0), rtol=0.35)
    plain = {**settings, "model": {**settings["model"], "bias": "zero"}}
    off = sy.fit((x, y), "bce", validation=0, settings=plain, verbose=False).probability(x).mean(0)
    assert (off[:3] > 2 * y.mean(0)[:3]).all(), "which is what this test is about"


def test_positives_alone_need_a_rule_for_unknown_labels() -> None:
    x, y = rare(200)
    given = {"train": {"epochs": 1, "device": "cpu"}}
    positives = np.where(y == 1, 1, -1)
    with pytest.raises(ValueError, match=r"objective.unknown is ignore.* wan"):
        sy.fit((x, positives), "bce", settings=given, verbose=False)
    sy.fit((x, positives), "wan", settings=given, verbose=False)
    sy.fit((x, positives), "bce", settings={**given, "model": {"bias": "zero"}}, verbose=False)
    positives[0, 0] = 0
    sy.fit((x, positives), "bce", settings=given, verbose=False)


def test_a_run_broken_off_goes_on_as_if_it_had_not_been(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its start is computed again, from labels alone, and its weights and pseudo-labels are those that were kept."""
    x, y = (part[:200] for part in rare(2000))
    y[::3] = np.where(y[::3] == 0, -1, y[::3])
    given: dict[str, Any] = {
        "recipe": "pal",
        "settings": {"train": {"epochs": 2, "batch_size": 20, "device": "cpu", "checkpoint_seconds": 0}},
        "verbose": False,
    }
    sy.fit((x, y), out=tmp_path / "straight", **given)
    plain, taken = Eager.run, iter(range(11))

    def broken(self: Eager, *more: Any) -> int:
        if next(taken, None) is None:
            raise RuntimeError("the power is off")
        return plain(self, *more)

    monkeypatch.setattr(Eager, "run", broken)
    with pytest.raises(RuntimeError, match="power"):
        sy.fit((x, y), out=tmp_path / "broken", **given)
    monkeypatch.undo()
    sy.fit((x, y), out=tmp_path / "broken", **given)
    weights = [load_tensors(tmp_path / name / "model.safetensors")[0] for name in ("straight", "broken")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
