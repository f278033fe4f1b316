"""Rules for unknown labels of 2021 to 2024 against references in float64 without torch, and what undoes them."""

from __future__ import annotations

import ast
import inspect
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from steelyard import Labels, Objective, calibrate, losses
from steelyard.calibrate.link import trained_link
from steelyard.config.build import make_objective
from steelyard.config.recipes import METHODS
from steelyard.config.sections import ObjectiveSettings
from steelyard.losses import partial_rules
from steelyard.objective import prior_logits
from steelyard.objective.parts import KINDS, Part

RNG = np.random.default_rng(0)
Z = RNG.normal(size=(6, 5)) * 2
Y = RNG.choice([1, 0, -1, -1, -1], size=Z.shape)
INDEX = torch.tensor([7, 2, 5, 0, 9, 4])
N = 10


def sigmoid(z: Any) -> Any:
    return 1 / (1 + np.exp(-z))


def gradient(rule: losses.Resolver, epoch: int, n_epochs: int, z: np.ndarray = Z, y: np.ndarray = Y) -> np.ndarray:
    """The gradient of Σ over cells at logits z, in a given epoch, over BCE."""
    objective = Objective(losses.BCE(reduction="sum"), rule)
    for e in range(1, epoch + 1):
        objective.start_epoch(e, n_epochs)
    logits = torch.tensor(z, requires_grad=True)
    objective(logits, torch.tensor(y), INDEX[: len(z)]).total.backward()
    assert logits.grad is not None
    return logits.grad.numpy()


def slope(cost: Any, z: float) -> float:
    """The derivative by a central difference of fourth order."""
    h = 1e-3
    return float((cost(z - 2 * h) - 8 * cost(z - h) + 8 * cost(z + h) - cost(z + 2 * h)) / (12 * h))


def up(z: float) -> float:
    return float(np.logaddexp(0, -z))


def down(z: float) -> float:
    return float(np.logaddexp(0, z))


def by_cell(unknown: Any) -> np.ndarray:
    """The gradient where `unknown(z, i, c)` is the slope of an unknown label."""
    out = np.empty(Z.shape)
    for (i, c), z in np.ndenumerate(Z):
        out[i, c] = unknown(z, i, c) if Y[i, c] < 0 else slope(up if Y[i, c] else down, z)
    return out


def largest_unknown(n: int, y: np.ndarray = Y) -> set[tuple[int, int]]:
    """The n unknown cells whose loss as negatives is largest."""
    cells = [(down(z), i, c) for (i, c), z in np.ndenumerate(Z) if y[i, c] < 0]
    return {(i, c) for _, i, c in sorted(cells, reverse=True)[:n]}


@pytest.mark.parametrize("epoch", [1, 2, 4])
@pytest.mark.parametrize("mode", ["reject", "correct"])
def test_large_losses_are_rejected_or_corrected_more_every_epoch(mode: Any, epoch: int) -> None:
    picked = largest_unknown(math.ceil((epoch - 1) * 0.05 * Z.size - 1e-9))
    keeps = float(mode == "correct")
    want = by_cell(lambda z, i, c: keeps * slope(up, z) if (i, c) in picked else slope(down, z))
    np.testing.assert_allclose(gradient(losses.LargeLoss(mode, 0.05), epoch, 5), want, atol=1e-9)
    assert len(picked) == {1: 0, 2: 2, 4: 5}[epoch]


def test_labels_of_large_loss_are_corrected_for_good() -> None:
    """Two a step of 30 labels; what was picked stays positive and frees the place for the next ones."""
    rule = losses.LargeLoss("correct_for_good", 0.05, N, 5)
    objective = Objective(losses.BCE(reduction="sum"), rule)
    y, picked = torch.tensor(Y), set()
    for step, epoch in enumerate([1, 2, 3]):
        objective.start_epoch(epoch, 3)
        z = torch.tensor(Z, requires_grad=True)
        objective(z, y, INDEX).total.backward()
        picked = largest_unknown(2 * step)
        want = by_cell(lambda z, i, c: slope(up if (i, c) in picked else down, z))  # noqa: B023
        np.testing.assert_allclose(z.grad, want, atol=1e-9)  # type: ignore[arg-type]
    assert {(i, c) for i, c in zip(*np.nonzero(rule.corrected[INDEX].numpy()), strict=True)} == picked
    again = losses.LargeLoss("correct_for_good", 0.05, N, 5)
    again.load_state_dict(rule.state_dict())
    assert torch.equal(again.corrected, rule.corrected)
    objective.eval()
    objective(torch.tensor(Z), y, INDEX)
    assert int(rule.corrected.sum()) == 4, "evaluation corrects nothing"


@pytest.mark.parametrize(("epoch", "tau"), [(1, 0.6), (2, 0.6), (2, 0.9)])
def test_splc_turns_what_the_model_says_is_present(epoch: int, tau: float) -> None:
    want = by_cell(lambda z, i, c: slope(up if epoch > 1 and sigmoid(z) > tau else down, z))
    np.testing.assert_allclose(gradient(losses.SPLC(tau), epoch, 3), want, atol=1e-9)


@pytest.mark.parametrize(("top", "above"), [(1, 1.0), (1, 0.3), (0, 1.0), (0, 0.3), (9, 1.0)])
def test_likely_positives_are_left_out(top: int, above: float) -> None:
    counts, known = np.array([3, 1, 4, 0, 5]), np.array([9, 9, 4, 9, 9])  # label 2 has no known negative
    frequent = {0, 4} if above < 1 else set()
    hidden = np.where(np.isin(np.arange(5), list(frequent)), 0, Y)
    picked = largest_unknown(top * len(Z), hidden)
    want = by_cell(lambda z, i, c: 0.0 if c in frequent or (i, c) in picked else slope(down, z))
    np.testing.assert_allclose(gradient(losses.Selective(top, above, counts, known), 1, 1), want, atol=1e-9)


def entropy(z: float) -> float:
    p = sigmoid(z)
    return float(-p * np.log(p) - (1 - p) * np.log(1 - p))


def test_the_gradient_is_that_of_entropy() -> None:
    want = by_cell(lambda z, i, c: slope(lambda x: -0.3 * entropy(x), z))
    np.testing.assert_allclose(gradient(losses.EntropyMaximizing(0.3), 1, 1), want, atol=1e-9)


@pytest.mark.parametrize("eta", [0.001, 0.05, 0.4])
def test_entropy_rests_at_the_odds_of_being_annotated(eta: float) -> None:
    """Minimise η ℓ₊ − (1−η) α H by search: what `annotated_log_odds` says of that logit is η."""
    alpha = 0.2

    def risk(z: float) -> float:
        return eta * up(z) - (1 - eta) * alpha * entropy(z)

    z = minimize_scalar(risk, bounds=(-3, 12), method="bounded", options={"xatol": 1e-10}).x
    rule = losses.EntropyMaximizing(alpha)
    assert float(rule.annotated_log_odds(torch.tensor(z))) == pytest.approx(math.log(eta / (1 - eta)), abs=1e-4)
    assert float(rule.annotated_log_odds(torch.tensor(-1.0))) == -100


def test_the_surest_become_soft_negatives_epoch_by_epoch() -> None:
    """Of 6 items and 4 epochs, from the third on: ⌊.9 · 6 / 2⌋ = 2 a class and epoch, the lowest outputs first."""
    rule = losses.SoftNegatives(0.1, 0.9, 0.7, 0.5, N, 5)
    objective = Objective(losses.BCE(reduction="sum"), rule)
    y, p = np.full(Z.shape, -1), sigmoid(Z)
    lowest = np.argsort(np.argsort(p, 0), 0)
    for epoch, labelled in ((1, 0), (2, 0), (3, 2), (4, 4), (4, 4)):  # as after a restart: once an epoch
        objective.start_epoch(epoch, 4)
        z = torch.tensor(Z, requires_grad=True)
        objective(z, torch.tensor(y), INDEX).total.backward()
        assert int(rule.soft.isfinite().sum()) == labelled * 5
        want = np.empty(Z.shape)
        for (i, c), x in np.ndenumerate(Z):
            if lowest[i, c] < labelled:
                t = p[i, c]
                want[i, c] = 0.7 * (t * slope(up, x) + (1 - t) * slope(down, x))
            else:
                want[i, c] = -0.1 * slope(entropy, x)
        np.testing.assert_allclose(z.grad, want, atol=1e-6)  # type: ignore[arg-type]


@pytest.mark.parametrize("epoch", [1, 3, 4])
def test_the_gradient_is_that_of_the_robust_loss(epoch: int) -> None:
    rule = losses.GeneralizedRobust((0.5, 3.0), (-2.0, -1.0), (0.5, 0.8), (2.0, 0.5), 0.2, 0.7)
    begun, done = (epoch - 1) / 4, epoch / 4
    w, b, mu, s = 0.5 + 2.5 * begun, -2 + begun, 0.5 + 0.3 * done, 2 - 1.5 * done

    def robust(z: float, at: float) -> float:
        k, v = sigmoid(w * sigmoid(at) + b), np.exp(-0.5 * ((sigmoid(at) - mu) / s) ** 2)
        p = sigmoid(z)
        return float(v * (k * (1 - p**0.2) / 0.2 + (1 - k) * (1 - (1 - p) ** 0.7) / 0.7))

    want = by_cell(lambda z, i, c: slope(lambda x: robust(x, z), z))
    np.testing.assert_allclose(gradient(rule, epoch, 4), want, atol=1e-9)


def test_a_teacher_gives_soft_targets() -> None:
    t = RNG.random((N, 5))
    t[7, :3] = np.nan

    def unknown(z: float, i: int, c: int) -> float:
        soft = t[INDEX[i], c]
        return 0.0 if np.isnan(soft) else 0.5 * (soft * slope(up, z) + (1 - soft) * slope(down, z))

    rule = losses.Teacher(t, 0.5)
    np.testing.assert_allclose(gradient(rule, 1, 1), by_cell(unknown), atol=1e-6)
    assert Objective(losses.BCE(), rule).probability(torch.zeros(1, 5)).eq(0.5).all()


def test_scores_of_any_scale_are_calibrated_first() -> None:
    """Cosines of a model that is right about the order and wrong about the level: the line through them is found."""
    rng = np.random.default_rng(1)
    true = rng.normal(size=(4000, 3)) * 2 - np.array([0, 1, 2])
    y = (rng.random(true.shape) < sigmoid(true)).astype(int)
    y[rng.random(true.shape) < 0.5] = -1
    cosines = 0.2 + 0.02 * true
    for scores in (cosines, sigmoid(3 * true + 1)):
        found = calibrate.teacher_probabilities(scores, y)
        assert np.abs(found - sigmoid(true)).mean() < 0.02
    scores = np.where(rng.random(true.shape) < 0.1, np.nan, cosines)
    found = calibrate.teacher_probabilities(scores, y)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(scores))
    with pytest.raises(ValueError, match="some to be absent: let some items"):
        calibrate.teacher_probabilities(scores, np.where(y == 0, -1, y))


def test_a_table_of_scores_is_matched_by_id_and_label(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    values = rng.choice([0, 1, -1], size=(60, 3))
    labels = Labels(values, names=["cat", "dog", "car"], ids=[f"i{n}" for n in range(60)])
    table = tmp_path / "scores.csv"
    rows = [f"i{n},{n / 60},{1 - n / 60}" for n in reversed(range(1, 60))]
    table.write_text("\n".join(["id,dog,cat", *rows]))
    settings = ObjectiveSettings(unknown=Part("teacher", {"scores": str(table)}))
    rule: Any = make_objective(settings, labels, None, 0).resolver
    given = rule.probabilities.numpy()
    assert np.isnan(given[0]).all()
    assert np.isnan(given[:, 2]).all()
    scores = np.full((60, 3), np.nan)
    scores[1:, 0], scores[1:, 1] = 1 - np.arange(1, 60) / 60, np.arange(1, 60) / 60
    np.testing.assert_array_equal(given, calibrate.teacher_probabilities(scores, values))
    for text, sentence in (
        ("", "scores is missing: give a CSV"),
        ("id,horse\ni1,.3", "it needs a column id"),
        ("id,dog\nx,.3", "no id is that of a training item .'i0'"),
        ("id,dog\ni1,much", "column 'dog' is not all numbers"),
        ("id,dog\ni1,inf", "a score is infinite"),
    ):
        table.write_text(text)
        part = Part("teacher", {"scores": str(table) if text else ""})
        with pytest.raises(ValueError, match=sentence) as refusal:
            make_objective(ObjectiveSettings(unknown=part), labels, None, 0)
        assert "\n" not in str(refusal.value)
    with pytest.raises(ValueError, match="cannot be read"):
        make_objective(ObjectiveSettings(unknown=Part("teacher", {"scores": "none.csv"})), labels, None, 0)


CHANGING = {
    "large_loss": losses.LargeLoss(),
    "splc": losses.SPLC(),
    "selective": losses.Selective(),
    "entropy": losses.EntropyMaximizing(),
    "entropy_apl": losses.SoftNegatives(n_items=N, n_labels=5),
    "gr": losses.GeneralizedRobust(),
}


@pytest.mark.parametrize("kind", CHANGING)
def test_what_nothing_undoes_is_refused(kind: str) -> None:
    objective = Objective(losses.BCE(), CHANGING[kind])
    objective.start_epoch(2, 3)
    z, y = torch.tensor(Z), torch.tensor(Y)
    assert objective(z, y, INDEX).total.isfinite()
    with pytest.raises(losses.NoLink, match=r"model's own outputs.*fit a calibrator"):
        objective.probability(z)
    link, why = trained_link(losses.BCE(), objective, torch.ones(5), False)
    assert link is None
    assert "no link undoes" in why
    no_cells = Objective(losses.BCE(reduction="sum"), CHANGING[kind])
    assert float(no_cells(torch.zeros(0, 5), torch.zeros(0, 5), INDEX[:0]).total) == 0


@pytest.mark.parametrize("kind", CHANGING)
def test_known_labels_are_left_alone(kind: str) -> None:
    known = np.abs(Y)
    np.testing.assert_allclose(
        gradient(CHANGING[kind], 2, 3, y=known), gradient(losses.Negative(), 2, 3, y=known), atol=1e-12
    )


def test_entropy_starts_where_nothing_pulls() -> None:
    labels = Labels(np.array([[1, -1], [-1, 1], [-1, -1]]))
    objective = Objective(losses.BCE(), losses.EntropyMaximizing())
    np.testing.assert_allclose(prior_logits(objective, labels).numpy(), 0, atol=1e-12)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: losses.LargeLoss("drop"), "mode is 'drop': choose one of reject"),  # type: ignore[arg-type]
        (lambda: losses.LargeLoss(delta=0), "delta is 0"),
        (lambda: losses.SPLC(1.0), "tau is 1.0"),
        (lambda: losses.SPLC(start=0), "start is 0: epochs count from 1"),
        (lambda: losses.Selective(-1), "top is -1"),
        (lambda: losses.EntropyMaximizing(-1), "alpha is -1: it must be positive and finite"),
        (lambda: losses.SoftNegatives(share=1.5), "share is 1.5"),
        (lambda: losses.SoftNegatives(warm_up=1), "warm_up 1"),
        (lambda: losses.GeneralizedRobust(spread=(1.0, 0.0)), "spread is"),
        (lambda: losses.GeneralizedRobust(q_neg=0), "q_neg is 0"),
        (lambda: losses.Teacher(np.array([[2.0]])), "probabilities: give"),
        (lambda: losses.Teacher(np.array([[0.5]]), -1), "weight is -1"),
        (lambda: losses.Hill(1.0), "lam is 1.0: it must be at least 1.5"),
        (lambda: losses.Hill(gamma=-1), "gamma is -1"),
        (lambda: losses.LogitAdjusted(np.array([1]), 2, math.nan), "tau is nan"),
        (lambda: calibrate.teacher_probabilities([[0.5]], [[0, 1]]), "scores has shape"),
    ],
)
def test_what_is_refused(make: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as refusal:
        make()
    assert "\n" not in str(refusal.value)


def test_every_method_has_at_most_40_lines_and_a_docs_entry() -> None:
    source = Path(inspect.getfile(partial_rules)).read_text(encoding="utf-8")
    docs = (Path(__file__).parent.parent / "docs/reference/rules-for-unknown.md").read_text(encoding="utf-8")
    for node in (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)):
        for inner in ast.walk(node):
            if isinstance(inner, ast.ClassDef | ast.FunctionDef) and ast.get_docstring(inner):
                del inner.body[0]
        assert ast.unparse(node).count("\n") <= 40, node.name
    methods = {kind for kind, entry in KINDS["unknown"].items() if entry.maker.__module__ == partial_rules.__name__}
    for kind in (*methods, "hill", "logit_adjusted"):
        assert f"`{kind}`" in docs, kind
    for recipe in METHODS:
        if METHODS[recipe].settings.get("objective", {}).get("unknown", Part("")).kind in methods:
            assert f"`{recipe}`" in docs, recipe


# ---- two losses


def test_hill_over_plain_positives_refuses_its_link() -> None:
    """ℓ₋' falls like e^(−2z) and −ℓ₊' = σ(−z) like e^(−z): the log-odds fall again. As released they do not."""
    with pytest.raises(losses.NoLink, match="Hill has no probability: its stationary log-odds fall"):
        losses.Hill(margin=0.0, gamma=0.0).probability(torch.zeros(1, 1))
    eta = 0.3

    def risk(z: float) -> float:
        plus, minus = (1 - sigmoid(z - 1)) ** 2 * up(z - 1), (1.5 - sigmoid(z)) * sigmoid(z) ** 2
        return float(eta * plus + (1 - eta) * minus)

    z = minimize_scalar(risk, bounds=(-8, 8), method="bounded", options={"xatol": 1e-10}).x
    assert float(losses.Hill().probability(torch.tensor([[z]]).double())) == pytest.approx(eta, abs=1e-5)


def test_logit_adjustment_is_bce_of_adjusted_logits() -> None:
    counts, tau = np.array([900, 120, 15, 1, 500]), 0.7
    shifted = Z + tau * np.log(counts / (1000 - counts))
    loss = losses.LogitAdjusted(counts, 1000, tau, reduction="none")
    value = loss(torch.tensor(Z), torch.tensor(Y)).numpy()
    want = np.where(Y < 0, 0, np.where(Y == 1, np.logaddexp(0, -shifted), np.logaddexp(0, shifted)))
    np.testing.assert_allclose(value, want, rtol=0, atol=4e-16 * 20)
    np.testing.assert_allclose(loss.log_odds(torch.tensor(Z)).numpy(), shifted, atol=1e-14)
