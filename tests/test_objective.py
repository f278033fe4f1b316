"""The objective: rules for unknown labels, the order of things, and probabilities that undo what training did."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from safetensors.torch import load, save

import reference as ref
from steelyard import Objective, losses
from steelyard.balance import (
    ClassBalanced,
    Deferred,
    InverseFrequency,
    LabelPair,
    PartialLabelMasking,
    PseudoLabels,
    Rebalanced,
)
from steelyard.labels.targets import as_targets
from steelyard.objective import Role
from steelyard.objective.objective import RULES, RuleName

Z = np.array([[0.3, -1.0, 2.0, 0.5], [-2.0, 1.5, 0.1, -0.7], [1.0, 0.0, -3.0, 2.5]])
Y = np.array([[1, 0, -1, -1], [-1, -1, 0, 1], [-1, -1, -1, -1]])
COUNTS = torch.tensor([60, 25, 8, 40])


def up(z: np.ndarray) -> np.ndarray:
    return np.logaddexp(0, -z)


def down(z: np.ndarray) -> np.ndarray:
    return np.logaddexp(0, z)


def total(objective: Objective, z: np.ndarray = Z, y: np.ndarray = Y, index: torch.Tensor | None = None) -> float:
    value = objective(torch.tensor(z), torch.tensor(y), index)
    assert sum(float(part.detach()) for part in value.parts.values()) == pytest.approx(float(value.total.detach()))
    return float(value.total.detach())


@pytest.mark.parametrize("reduction", ["sum", "item", "mean"])
@pytest.mark.parametrize("loss", [losses.BCE, losses.SPA])
@pytest.mark.parametrize(
    ("rule", "negative", "unknown", "counted"),
    [("ignore", 1, 0, 4), ("negative", 1, 1, 12), ("weak_negative", 1, 1 / 3, 12), ("wan", 1 / 3, 1 / 3, 12)],
)
def test_rules_weigh_negatives_and_unknown_labels(
    rule: RuleName, negative: float, unknown: float, counted: int, loss: type[losses.SPA], reduction: losses.Reduction
) -> None:
    """Weak rules weigh by 1/(L−1). Soft labels are in part negatives."""
    pair = ref.bce() if loss is losses.BCE else ref.spa()
    plus, minus = (np.vectorize(lambda v, t=t: float(pair.cost(v, t)))(Z) for t in (1, 0))
    for y in (Y, np.where(Y < 0, Y, np.where(Y == 1, 0.8, 0.25))):
        cells = np.where(y < 0, unknown * minus, y * plus + negative * (1 - y) * minus).sum()
        share = {"sum": 1, "item": 3, "mean": counted}[reduction]
        assert total(Objective(loss(reduction=reduction), rule), y=y) == pytest.approx(cells / share)


@pytest.mark.parametrize("n_labels", [1, 2])
def test_where_no_other_label_is_or_one_weak_negatives_weigh_1(n_labels: int) -> None:
    z, y = Z[:, :n_labels], Y[:, :n_labels]
    want = total(Objective(losses.BCE(), "negative"), z, y)
    assert total(Objective(losses.BCE(), "weak_negative"), z, y) == pytest.approx(want)
    assert total(Objective(losses.BCE(), "wan"), z, y) == pytest.approx(want)


def test_pseudo_labels(tmp_path: Path) -> None:
    store = PseudoLabels(tmp_path, 10, 4)
    objective = Objective(losses.BCE(reduction="sum"), losses.Pseudo(store, weight=0.3))
    index = torch.tensor([7, 2, 5])
    objective.start_epoch(1, 3)
    for guess in (np.full((3, 4), 0.5), 1 / (1 + np.exp(-Z))):
        cells = np.where(Y == 1, up(Z), np.where(Y == 0, down(Z), 0.3 * (guess * up(Z) + (1 - guess) * down(Z))))
        assert total(objective, index=index) == pytest.approx(cells.sum(), abs=0.02)
        assert total(objective, index=index) == pytest.approx(cells.sum(), abs=0.02)
        objective.start_epoch(objective.epoch + 1, 3)
    read = store.read(index).numpy()
    np.testing.assert_allclose(read, 1 / (1 + np.exp(-Z)), atol=0.003)
    objective.eval()
    objective(torch.tensor(Z + 5), torch.tensor(Y), index)
    objective.start_epoch(4, 4)
    np.testing.assert_allclose(store.read(index).numpy(), 1 / (1 + np.exp(-Z)), atol=0.003)
    without = Objective(losses.BCE(reduction="sum"), losses.Pseudo(store, weight=0))
    assert total(without, index=index) == pytest.approx(total(Objective(losses.BCE(reduction="sum"))))


def test_only_what_is_fed_back_through_a_link_needs_one(tmp_path: Path) -> None:
    raw, link = (PseudoLabels(tmp_path / kind, 3, 4, feedback=kind) for kind in ("raw", "link"))  # type: ignore[arg-type]
    for rule in (losses.Pseudo, losses.Annotation):
        assert rule(link).needs_link()
        assert not rule(raw).needs_link()
    assert not losses.Annotation(None).needs_link()
    with pytest.raises(losses.NoLink, match="TwoWay has no probability to feed back"):
        Objective(losses.TwoWay(), losses.Pseudo(link))


def test_pseudo_labels_fed_back_through_the_link(tmp_path: Path) -> None:
    """`feedback="link"` stores what the objective reads, α and β undone; "raw" stores σ(z)."""
    stores = {kind: PseudoLabels(tmp_path / kind, 3, 4, feedback=kind) for kind in ("raw", "link")}  # type: ignore[arg-type]
    index = torch.arange(3)
    for kind, store in stores.items():
        objective = Objective(losses.BCE(reduction="item"), losses.Annotation(store))
        objective.start_epoch(1, 4)
        total(objective, index=index)
        objective.start_epoch(2, 4)
        beta = 2 / 12
        want = Z + (np.log(beta / (1 - beta)) if kind == "link" else 0)
        np.testing.assert_allclose(store.read(index).numpy(), 1 / (1 + np.exp(-want)), atol=0.003)


def test_paper_3_as_a_rule(tmp_path: Path) -> None:
    """With every unknown label picked, the rule is the loss."""
    store = PseudoLabels(tmp_path, 3, 4)
    objective = Objective(losses.BCE(reduction="item"), losses.Annotation(store, q=1.0))
    index = torch.arange(3)
    objective.start_epoch(1, 5)
    half, everything = np.full((3, 4), 0.5), np.ones((3, 4), dtype=bool)
    want = ref.partial_annotation(Z, Y.astype(float), half, everything, np.exp(4 / 5 - 1))
    assert total(objective, index=index) == pytest.approx(want)
    objective.start_epoch(2, 5)
    want = ref.partial_annotation(Z, Y.astype(float), store.read(index).double().numpy(), everything, 1.0)
    assert total(objective, index=index) == pytest.approx(want, rel=1e-6)


def test_paper_3_picks_again_for_every_epoch_and_the_same_within_it(tmp_path: Path) -> None:
    store = PseudoLabels(tmp_path, 50, 40)
    objective = Objective(losses.BCE(reduction="item"), losses.Annotation(store, q=0.3))

    def picked() -> torch.Tensor:
        z = torch.ones(50, 40, requires_grad=True)
        objective(z, torch.full((50, 40), -1), torch.arange(50)).total.backward()
        assert z.grad is not None
        return z.grad != 0

    objective.start_epoch(1, 3)
    first = picked()
    assert torch.equal(first, picked())
    assert abs(float(first.double().mean()) - 0.3) < 5 * (0.21 / 2000) ** 0.5
    objective.start_epoch(2, 3)
    assert not torch.equal(first, picked())


def test_rules_that_need_an_index_say_so(tmp_path: Path) -> None:
    store = PseudoLabels(tmp_path, 3, 4)
    for loss, rule in (
        (losses.BCE(), losses.Pseudo(store)),
        (losses.BCE(reduction="item"), losses.Annotation(store)),
        (losses.BCE(), Role(torch.tensor(Y), 1.0)),
    ):
        with pytest.raises(ValueError, match="index"):
            Objective(loss, rule)(torch.tensor(Z), torch.tensor(Y))


def test_role_value_and_estimates() -> None:
    y = np.where(Y == 1, 1, -1)
    role = Role(torch.tensor(y), 1.5, seed=3)
    index = torch.tensor([2, 0])
    e = role.estimates(index).detach().double().numpy()
    observed = y[[2, 0]] == 1
    np.testing.assert_allclose(e[observed], 0.995, atol=1e-5)
    assert ((e[~observed] >= 0.4 - 1e-6) & (e[~observed] <= 0.6 + 1e-6)).all()
    assert e[~observed].std() > 0.01
    objective = Objective(losses.BCE(), role)
    got = total(objective, Z[[2, 0]], y[[2, 0]], index)
    assert got == pytest.approx(ref.role(Z[[2, 0]], e, y[[2, 0]], 1.5), rel=1e-5)


def test_role_gradients() -> None:
    """ŷ learns from its half with e held, θ from its half with ŷ held."""
    y = np.where(Y == 1, 1, -1)
    role = Role(torch.tensor(y), 1.5).double()
    index = torch.arange(3)
    z = torch.tensor(Z, requires_grad=True)
    Objective(losses.BCE(), role)(z, torch.tensor(y), index).total.backward()
    e = role.estimates(index).detach().numpy()
    p = 1 / (1 + np.exp(-Z))
    count = 2 * (p.sum(1).mean() - 1.5) / 16 / 3 * p * (1 - p)
    want = 0.5 * (np.where(y == 1, p - 1, 0) / 12 + (p - e) / 12 + count)
    np.testing.assert_allclose(z.grad.numpy(), want, rtol=1e-5, atol=1e-9)  # type: ignore[union-attr]
    (theta,) = role.parameters()
    count = 2 * (e.sum(1).mean() - 1.5) / 16 / 3 * e * (1 - e)
    want = 0.5 * (np.where(y == 1, e - 1, 0) / 12 + (e - p) / 12 + count)
    np.testing.assert_allclose(theta.grad.numpy().reshape(3, 4), want, rtol=1e-4, atol=1e-8)


def test_role_estimates_learn() -> None:
    """Estimates follow the model and meet the expected number of positives."""
    rng = np.random.default_rng(0)
    true = (rng.random((40, 6)) < 0.3).astype(int)
    y = np.where((true == 1) & (rng.random((40, 6)) < 0.5), 1, -1)
    objective = Objective(losses.BCE(), Role(torch.tensor(y), float(true.sum(1).mean())))
    z, index = torch.tensor(np.where(true == 1, 2.0, -2.0)), torch.arange(40)
    role = objective.resolver
    before = role.estimates(index).detach()  # type: ignore[operator]
    optimiser = torch.optim.Adam(objective.parameters(), lr=0.1)
    for _ in range(150):
        optimiser.zero_grad()
        objective(z, torch.tensor(y), index).total.backward()
        optimiser.step()
    after = role.estimates(index).detach()  # type: ignore[operator]
    hidden = torch.tensor((true == 1) & (y < 0))
    absent = torch.tensor(true == 0)
    assert after[hidden].mean() > before[hidden].mean() + 0.2
    assert after[absent].mean() < before[absent].mean() - 0.2
    assert len(list(objective.parameters())) == 1


def test_order_of_mask_weight_and_divisor() -> None:
    """A masked cell costs nothing and is counted; weights come from the labels as they are."""
    y = np.array([[1, 0, 1, -1], [0, 1, 0, 1], [1, 1, -1, 0]])
    index = torch.tensor([5, 9, 1])
    masking = PartialLabelMasking(COUNTS, 100, initial="mean", seed=1)
    keep = masking.mask(torch.tensor(y), index).numpy()
    assert not keep.all()
    objective = Objective(losses.SPA(), masking=masking, weighting=Rebalanced(COUNTS))
    weight = ref.rebalanced(y, COUNTS.tolist()) * keep
    value, slope = ref.cells([ref.spa()] * 4, Z, y, weight)
    z = torch.tensor(Z, requires_grad=True)
    got = objective(z, torch.tensor(y, dtype=torch.float64), index).total
    (gradient,) = torch.autograd.grad(got, z)
    assert float(got.detach()) == pytest.approx(value.sum() / 10, rel=1e-7)
    np.testing.assert_allclose(gradient.numpy(), slope / 10, rtol=1e-6, atol=1e-12)


def test_a_weighted_loss_is_taken_apart() -> None:
    y = torch.tensor(np.abs(Y), dtype=torch.float64)
    loss = losses.DistributionBalanced(COUNTS, 100)
    objective = Objective(loss)
    assert float(objective(torch.tensor(Z), y).total) == pytest.approx(float(loss(torch.tensor(Z), y)), rel=1e-7)
    w_pos, _ = objective.class_weights()
    weights = ref.rebalanced(y.numpy(), COUNTS.tolist())
    for c in range(4):
        seen = weights[y.numpy()[:, c] == 1, c]
        seen = seen if len(seen) else weights[:, c]  # without positives, as the negatives
        assert float(w_pos[c]) == pytest.approx(seen.mean(), rel=1e-6)  # type: ignore[index]
    twice = Objective(loss, weighting=ClassBalanced(COUNTS))
    product = weights * ref.class_balanced(y.numpy(), COUNTS.tolist(), 0.9999, "class")
    value, _ = ref.cells([ref.negative_tolerant(n, 100) for n in COUNTS.tolist()], Z, y.numpy(), product)
    assert float(twice(torch.tensor(Z), y).total) == pytest.approx(value.sum() / 12, rel=1e-6)


@pytest.mark.parametrize("rule", ["ignore", "negative", "weak_negative", "wan"])
def test_weights_of_both_signs_are_no_news_about_a_label(rule: RuleName) -> None:
    """A weight that a class's positives and negatives share leaves its log-odds alone, also of assumed negatives."""
    y = np.where(Y == 1, 1, -1)
    plain = Objective(losses.BCE(), rule)
    weighted = Objective(losses.BCE(), rule, weighting=ClassBalanced(COUNTS, 0.9))
    for objective in (plain, weighted):
        objective(torch.tensor(Z), torch.tensor(y))
    z = torch.tensor(Z)
    torch.testing.assert_close(weighted.log_odds(z), plain.log_odds(z))


def test_weights_of_assumed_negatives_are_undone() -> None:
    y = np.where(Y == 1, 1, -1)
    objective = Objective(losses.BCE(), "negative", weighting=Rebalanced(COUNTS))
    objective(torch.tensor(Z), torch.tensor(y))
    _, w_neg = objective.class_weights()
    weights = ref.rebalanced(np.maximum(y, 0), COUNTS.tolist())
    for c in range(4):
        assert float(w_neg[c]) == pytest.approx(weights[y[:, c] == -1, c].mean(), rel=1e-6)  # type: ignore[index]


@pytest.mark.parametrize("rule", ["ignore", "negative", "weak_negative", "wan"])
def test_a_rule_as_the_kernels_know_it_is_the_rule(rule: str) -> None:
    for values in (Y, np.where(Y < 0, Y, np.array([[0.3, 1, 0.8, 0]]))):
        targets = as_targets(torch.tensor(values, dtype=torch.float32), torch.tensor(Z))
        resolver = RULES[rule]()
        said, known_to_kernels = resolver(targets, torch.tensor(Z), None), resolver.rule(torch.tensor(Z))
        is_known, present = (targets.values != -1).double(), targets.values.double().clamp_min(0)
        absent = known_to_kernels.negative * (is_known - present) + known_to_kernels.unknown * (1 - is_known)
        torch.testing.assert_close(present, said.a)
        torch.testing.assert_close(absent, said.b)
        assert known_to_kernels.assumed == (said.counted is None)  # the mean is over all labels
        alone = RULES[rule]()
        assert [float(w) for w in alone.class_weights()] == [1, 1]
        alone.rule(torch.tensor(Z))
        assert [float(w) for w in alone.class_weights()] == pytest.approx([1, 1 / 3 if rule == "wan" else 1])


@pytest.mark.parametrize("rule", ["ignore", "negative", "weak_negative", "wan"])
def test_masks_see_an_assumed_negative_as_a_negative(rule: RuleName) -> None:
    """Positives are all kept here, known negatives not: which unknown labels are masked tells what they are."""
    masking = PartialLabelMasking(COUNTS, 100, initial=torch.full((4,), 4.0))
    assert (masking.keep_probabilities[1] < 0.9).all()
    y, index = torch.full((50, 4), -1), torch.arange(50)
    z = torch.ones(50, 4, requires_grad=True)
    Objective(losses.BCE(reduction="sum"), rule, masking)(z, y, index).total.backward()
    assert z.grad is not None
    keep = masking.mask(torch.zeros_like(y), index)
    assert 0 < keep.double().mean() < 1
    assert torch.equal(z.grad != 0, keep if rule != "ignore" else torch.zeros_like(keep))


def test_compiled_the_weight_of_assumed_negatives_is_undone_too() -> None:
    objective = Objective(losses.BCE(), "wan")
    torch.compile(objective, fullgraph=True, backend="aot_eager")(torch.tensor(Z), torch.tensor(Y))
    for read in (torch.compile(objective.log_odds, fullgraph=True, backend="eager"), objective.log_odds):
        np.testing.assert_allclose(read(torch.tensor(Z)).numpy(), Z - np.log(3), rtol=1e-6)


@pytest.mark.parametrize(("n_labels", "n_index"), [(1, 3), (5, 3), (4, 1)])
def test_pseudo_labels_of_other_items_or_labels_are_refused(tmp_path: Path, n_labels: int, n_index: int) -> None:
    """One label or one item would fit every batch, silently."""
    store = PseudoLabels(tmp_path, 3, n_labels)
    for rule in (losses.Pseudo(store), losses.Annotation(store)):
        objective = Objective(losses.BCE(reduction="item"), rule).eval()
        with pytest.raises(ValueError, match="the pseudo-labels at index have shape"):
            objective(torch.tensor(Z), torch.tensor(Y), torch.arange(n_index))


def test_unknown_cells_are_inert_everywhere() -> None:
    """Through masks, weights and pair penalties: NaN in an unknown cell is nothing."""
    index = torch.arange(3)

    def run(z: np.ndarray) -> tuple[float, np.ndarray, torch.Tensor]:
        masking = PartialLabelMasking(COUNTS, 100, initial="mean")
        objective = Objective(losses.SPA(), masking=masking, weighting=Rebalanced(COUNTS), regularizers=[LabelPair()])
        x = torch.tensor(z, requires_grad=True)
        value = objective(x, torch.tensor(Y), index).total
        value.backward()
        return float(value.detach()), x.grad.numpy(), masking.histogram

    plain, dark = run(Z), run(np.where(Y < 0, np.nan, Z))
    assert plain[0] == dark[0]
    np.testing.assert_array_equal(plain[1], dark[1])
    assert torch.equal(plain[2], dark[2])


def test_nothing_known_and_empty_batches() -> None:
    for rows in (3, 0):
        objective = Objective(
            losses.DistributionBalanced(COUNTS, 100),
            masking=PartialLabelMasking(COUNTS, 100, initial="mean"),
            weighting=InverseFrequency(COUNTS),
            regularizers=[LabelPair()],
        )
        z = torch.randn(rows, 4, requires_grad=True)
        value = objective(z, torch.full((rows, 4), -1), torch.arange(rows))
        value.total.backward()
        assert float(value.total.detach()) == 0
        assert z.grad is not None
        assert (z.grad == 0).all()


# Probabilities: an intercept-only model trained to convergence on labels whose frequency is known.

FREQUENCIES = np.array([0.6, 0.25, 0.08, 0.4])
N = 1000


def labels(frequencies: np.ndarray = FREQUENCIES, n: int = N) -> torch.Tensor:
    """Labels of exactly these frequencies, in random order."""
    rng = np.random.default_rng(0)
    columns = [rng.permutation(np.arange(n) < round(f * n)) for f in frequencies]
    return torch.tensor(np.stack(columns, axis=1)).double()


def converge(objective: Objective, targets: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """The intercepts at which training stands still, found by bisection on the gradient that it sees."""
    low = torch.full((targets.shape[1],), -20.0, dtype=torch.float64)
    high = -low
    for _ in range(40):
        theta = ((low + high) / 2).requires_grad_()
        (slope,) = torch.autograd.grad(objective(theta.expand(targets.shape), targets, index).total, theta)
        middle = theta.detach()
        low, high = torch.where(slope < 0, middle, low), torch.where(slope < 0, high, middle)
    return ((low + high) / 2)[None]


UNDONE: dict[str, Callable[[], Objective]] = {
    "plain SPA": lambda: Objective(losses.SPA()),
    "smoothing": lambda: Objective(losses.BCE(0.1)),
    "focal": lambda: Objective(losses.Focal()),
    "ASL": lambda: Objective(losses.Asymmetric(1.0)),
    "wan": lambda: Objective(losses.BCE(), "wan"),
    "wan, SPA": lambda: Objective(losses.SPA(), "wan"),
    "R-BCE": lambda: Objective(losses.DistributionBalanced(COUNTS * 10, N, lam=1.0, kappa=0.0)),
    "DB": lambda: Objective(losses.DistributionBalanced(COUNTS * 10, N)),
    "DB-Focal": lambda: Objective(losses.DistributionBalanced(COUNTS * 10, N, gamma=2.0)),
    "RW": lambda: Objective(losses.BCE(), weighting=InverseFrequency(COUNTS)),
    "CB by item": lambda: Objective(losses.Focal(), weighting=ClassBalanced(COUNTS, 0.99, "mean_effective")),
    "wan and weights": lambda: Objective(losses.BCE(), "wan", weighting=Rebalanced(COUNTS * 10)),
}


@pytest.mark.parametrize("name", UNDONE)
def test_weights_and_rules_are_undone(name: str) -> None:
    objective = UNDONE[name]()
    theta = converge(objective, labels(), torch.arange(N))
    np.testing.assert_allclose(objective.probability(theta)[0].numpy(), FREQUENCIES, atol=2e-5)
    np.testing.assert_allclose(
        torch.sigmoid(objective.log_odds(theta)).numpy(), objective.probability(theta).numpy(), atol=1e-12
    )


def test_paper_3_is_undone(tmp_path: Path) -> None:
    rule = losses.Annotation(PseudoLabels(tmp_path, N, 4), use_p=False)
    objective = Objective(losses.BCE(reduction="item"), rule)
    objective.start_epoch(1, 2)
    theta = converge(objective, labels(), torch.arange(N))
    np.testing.assert_allclose(objective.probability(theta)[0].numpy(), FREQUENCIES, atol=1e-4)
    assert abs(float(torch.sigmoid(theta[0, 0])) - 0.6) > 0.02


@pytest.mark.parametrize("loss", [losses.BCE, losses.SPA, losses.Focal])
def test_masking_is_undone(loss: type[losses.BCE]) -> None:
    """Up to the noise of the draws: five standard deviations of the log-odds."""
    n = 5000
    targets = labels(n=n)
    masking = PartialLabelMasking(targets.sum(0), n, rate=0.0, initial="mean")
    objective = Objective(loss(), masking=masking)
    theta = converge(objective, targets, torch.arange(n))
    keep = [k.double().numpy() for k in masking.keep_probabilities]
    assert min(keep[0].min(), keep[1].min()) < 0.5
    kept = n * np.stack([FREQUENCIES * keep[0], (1 - FREQUENCIES) * keep[1]])
    noise = np.sqrt((np.stack([1 - keep[0], 1 - keep[1]]) / kept).sum(0))
    got = objective.log_odds(theta)[0].numpy()
    want = np.log(FREQUENCIES / (1 - FREQUENCIES))
    assert (np.abs(got - want) <= 5 * noise + 1e-3).all(), (got - want, noise)
    with_masks = objective.loss.log_odds(theta)[0].numpy()  # type: ignore[operator]
    assert np.abs(with_masks - want).max() > 0.3


def test_a_weighting_and_a_mask_multiply() -> None:
    masking = PartialLabelMasking(COUNTS, 100, initial="max", rate=0.0)
    objective = Objective(losses.SPA(), "wan", masking, ClassBalanced(COUNTS))
    objective(torch.tensor(Z), torch.tensor(np.abs(Y)), torch.arange(3))
    z = torch.tensor(Z)
    want = losses.SPA().log_odds(z).numpy() - np.log(3) - masking.log_odds_shift.numpy()  # w_c cancels
    np.testing.assert_allclose(objective.log_odds(z).numpy(), want, rtol=1e-5, atol=1e-5)


def test_ratios_far_apart_can_still_be_read() -> None:
    """An adaptive ratio may wander far (λ = 1): the log-odds stay finite and exact."""
    initial = torch.tensor([1e-60, 0.3, 1e60, 1e-30], dtype=torch.float64)
    masking = PartialLabelMasking(COUNTS, 100, initial=initial)
    objective = Objective(losses.BCE(), masking=masking)
    z = torch.tensor(Z)
    np.testing.assert_allclose(objective.log_odds(z).numpy(), Z - masking.log_odds_shift.numpy(), rtol=1e-6)


def test_no_link_is_told() -> None:
    for loss in (losses.TwoWay(), losses.LDAM(COUNTS, softmax=True)):
        with pytest.raises(losses.NoLink):
            Objective(loss).probability(torch.zeros(1, 4))
        with pytest.raises(losses.NoLink):
            Objective(loss, regularizers=[LabelPair()])
    z, y = torch.tensor(Z), torch.tensor(np.abs(Y))
    assert Objective(losses.TwoWay(), regularizers=[LabelPair(link=False)])(z, y).total.isfinite()
    assert total(Objective(losses.TwoWay())) == pytest.approx(ref.two_way(Z, Y))


# Epochs and state.


def test_deferred_weights_start_with_their_epoch() -> None:
    objective = Objective(losses.BCE(), weighting=Deferred(ClassBalanced(COUNTS), 3))
    y = np.abs(Y)
    plain, weighted = (
        total(Objective(losses.BCE()), y=y),
        total(Objective(losses.BCE(), weighting=ClassBalanced(COUNTS)), y=y),
    )
    for epoch in (1, 2, 3, 4):
        objective.start_epoch(epoch, 4)
        assert total(objective, y=y) == pytest.approx(weighted if epoch >= 3 else plain)
        w = objective.class_weights()
        flat = all(float(abs(torch.as_tensor(x) - 1).max()) < 1e-6 for x in w)
        assert flat == (epoch < 3)


def test_epochs_drive_the_ratios() -> None:
    masking = PartialLabelMasking(COUNTS, 100, rate=0.5)
    alone = PartialLabelMasking(COUNTS, 100, rate=0.5)
    objective = Objective(losses.BCE(), masking=masking)
    z, y = torch.randn(40, 4), torch.randint(0, 2, (40, 4))
    for epoch in (1, 2, 3):
        objective.start_epoch(epoch, 3)
        assert torch.equal(masking.ratio, alone.ratio)
        objective(z * epoch, y, torch.arange(40))
        objective.start_epoch(epoch, 3)
        objective.eval()
        objective(-z, y, torch.arange(40))
        objective.train()
        alone.observe(torch.sigmoid(z * epoch), y)
        alone.step()
    assert not torch.equal(alone.ratio, PartialLabelMasking(COUNTS, 100).ratio)


def everything(tmp_path: Path, rule: str) -> Objective:
    resolver = {
        "ignore": "ignore",
        "wan": "wan",
        "role": Role(torch.tensor(np.tile(Y, (4, 1))), 1.5),
        "annotation": losses.Annotation(PseudoLabels(tmp_path, 12, 4)),
    }[rule]
    reduction: losses.Reduction = "item" if rule == "annotation" else "mean"
    loss = losses.DistributionBalanced(COUNTS, 100, reduction=reduction)
    return Objective(
        loss,
        resolver,  # type: ignore[arg-type]
        PartialLabelMasking(COUNTS, 100, rate=0.5, seed=2),
        Deferred(Rebalanced(COUNTS), 2),
        [LabelPair(0.5)],
    )


@pytest.mark.parametrize("rule", ["ignore", "wan", "role", "annotation"])
@pytest.mark.parametrize("mid_epoch", [False, True])
def test_state_round_trip(tmp_path: Path, rule: str, mid_epoch: bool) -> None:
    """Through safetensors bytes, in the middle of an epoch or at its end, then on as if nothing had happened."""
    torch.manual_seed(0)
    z, y, index = torch.randn(12, 4), torch.tensor(np.tile(Y, (4, 1))), torch.arange(12)
    a = everything(tmp_path / "a", rule)
    for epoch in (1, 2):
        a.start_epoch(epoch, 4)
        for part in (slice(0, 6), slice(6, 12)):
            if epoch == 2 and mid_epoch and part.start:
                break
            a(z[part], y[part], index[part])
    state = a.state_dict()
    assert all(isinstance(v, torch.Tensor) for v in state.values())
    b = everything(tmp_path / ("a" if rule == "annotation" else "b"), rule)
    b.load_state_dict(load(save({k: v.contiguous() for k, v in state.items()})))
    b.start_epoch(2, 4)
    assert torch.equal(a.probability(z), b.probability(z))
    for epoch in (2, 3, 4):
        for each in (a, b):
            each.start_epoch(epoch, 4)
        if epoch == 2 and not mid_epoch:
            continue
        part = slice(6, 12) if epoch == 2 else slice(0, 12)
        if rule == "annotation":  # both read the same store: neither may write to it
            a.eval()
            b.eval()
        one, two = (each(z[part], y[part], index[part]).total for each in (a, b))
        assert torch.equal(one, two), epoch
        assert torch.equal(a.probability(z), b.probability(z))


def test_wan_and_annotation_weights_are_in_the_state(tmp_path: Path) -> None:
    """A loaded objective reads probabilities before it has seen a batch."""
    for k, make in enumerate(
        (
            lambda: Objective(losses.BCE(), "wan"),
            lambda: Objective(losses.BCE(reduction="item"), losses.Annotation(PseudoLabels(tmp_path, 3, 4))),
        )
    ):
        a = make()
        a.start_epoch(1, 2)
        a(torch.tensor(Z), torch.tensor(Y), torch.arange(3))
        b = make()
        b.load_state_dict(load(save(a.state_dict())))
        assert torch.equal(a.probability(torch.tensor(Z)), b.probability(torch.tensor(Z))), k
    loss = losses.PartialAnnotation()
    loss(torch.tensor(Z), torch.tensor(Y), torch.zeros(3, 4), 1, 2)
    other = losses.PartialAnnotation()
    other.load_state_dict(load(save(loss.state_dict())))
    assert torch.equal(loss.probability(torch.tensor(Z)), other.probability(torch.tensor(Z)))


# Several processes.

SPLIT = 5  # unequal shares of a batch of 12, with unequal numbers of known labels


def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(12, 4, dtype=torch.float64, generator=generator)
    y = torch.randint(-1, 2, (12, 4), generator=generator)
    y[:4, 1:] = -1
    y[:, 3] = torch.tensor([0] * 6 + [1] * 6)
    return z, y, torch.arange(12)


def objectives(folder: Path) -> dict[str, Objective]:
    plm = lambda: PartialLabelMasking(COUNTS, 100, rate=0.5, initial="mean")  # noqa: E731
    return {
        "mean": Objective(losses.SPA(), masking=plm()),
        "item": Objective(losses.SPA(reduction="item")),
        "sum": Objective(losses.SPA(reduction="sum"), "wan"),
        "db": Objective(losses.DistributionBalanced(COUNTS, 100), masking=plm()),
        "rw": Objective(losses.BCE(), weighting=InverseFrequency(COUNTS)),
        "annotation": Objective(losses.BCE(reduction="item"), losses.Annotation(PseudoLabels(folder, 12, 4))),
        "pairs, equal shares": Objective(losses.BCE(), regularizers=[LabelPair()]),
        "pairs, unequal shares": Objective(losses.BCE(), regularizers=[LabelPair()]),
    }


def work(rank: int, port: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    torch.set_num_threads(1)
    z, y, index = batch()
    out = {}
    for name, objective in objectives(Path(folder) / "shared").items():
        cut = 6 if name == "pairs, equal shares" else SPLIT
        mine = slice(0, cut) if rank == 0 else slice(cut, 12)
        objective.start_epoch(1, 3)
        x = z.clone().requires_grad_()
        objective(x[mine], y[mine], index[mine]).total.backward()
        assert x.grad is not None
        dist.all_reduce(x.grad)
        objective.start_epoch(2, 3)
        ratio = objective.masking.ratio if objective.masking is not None else torch.zeros(1)
        out[name] = (x.grad / 2, ratio, objective.probability(z).detach())
    torch.save(out, Path(folder) / f"rank{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple]:
    folder = tmp_path_factory.mktemp("processes")
    PseudoLabels(folder / "shared", 12, 4).flush()
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.start_processes(work, (port, str(folder)), nprocs=2, start_method="fork")
    one, two = (torch.load(folder / f"rank{rank}.pt") for rank in (0, 1))
    return {name: (one[name], two[name]) for name in one}


@pytest.mark.parametrize(
    "name", ["mean", "item", "sum", "db", "rw", "annotation", "pairs, equal shares", "pairs, unequal shares"]
)
def test_two_processes_train_as_one(two_processes: dict[str, tuple], tmp_path: Path, name: str) -> None:
    """Averaged gradients, ratios and probabilities are those of one process with the whole batch."""
    z, y, index = batch()
    objective = objectives(tmp_path)[name]
    objective.start_epoch(1, 3)
    x = z.clone().requires_grad_()
    objective(x, y, index).total.backward()
    objective.start_epoch(2, 3)
    for gradient, ratio, probability in two_processes[name]:
        torch.testing.assert_close(gradient, x.grad, rtol=1e-6, atol=1e-9)
        if objective.masking is not None:
            torch.testing.assert_close(ratio, objective.masking.ratio)
        torch.testing.assert_close(probability, objective.probability(z).detach(), rtol=1e-6, atol=1e-8)
