"""The race of recipe auto, linear models fitted to convergence, and what their folds say."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

import steelyard as sy
from steelyard.calibrate.crossfit import folds_of
from steelyard.cli import main
from steelyard.labels.targets import as_targets
from steelyard.losses.loss import Cells, known_cells
from steelyard.losses.pair import PairLoss
from steelyard.losses.table import EVERY
from steelyard.metrics import mean_average_precision
from steelyard.models.race.members import Member, Members, MemberSpec
from steelyard.models.race.transforms import make_transform
from steelyard.report.race_table import outcome_sentence
from steelyard.training.race.candidates import (
    SCREENED_LABELS,
    Items,
    View,
    macro_log_loss,
    tempered_log_loss,
    try_candidate,
)
from steelyard.training.race.course import (
    BUDGET,
    RATE,
    FinalistScores,
    chosen_members,
    run_race,
    winner,
    work_units,
)
from steelyard.training.race.linear import Rotation, fit_linear, is_convex, null_cost, start_from_bce, stationary_bias
from steelyard.training.race.specs import linear_specs, loss_specs
from steelyard.training.small_models import positives_only

SHORT = {"train": {"budget": 1e9}}


def made(n: int = 300, n_labels: int = 6, seed: int = 0, n_features: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """Features and labels of a model with products of features in it, some labels rare."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, n_features)).astype(np.float32)
    weights = np.random.default_rng(99).normal(size=(n_features, n_labels))
    z = x @ weights + 2 * (x[:, :1] * x[:, 1:2]) - np.linspace(0, 5, n_labels)
    return x, (rng.random(z.shape) < 1 / (1 + np.exp(-z))).astype(np.int8)


def cells_of(y: np.ndarray) -> Cells:
    t = torch.from_numpy(y)
    return known_cells(as_targets(t, torch.zeros(y.shape)), torch.float32)


@pytest.mark.parametrize("trees", [0, 20], ids=["linear", "forest"])
def test_folds_that_hold_out_more_positives_have_the_level_of_all(trees: int) -> None:
    """Features that tell nothing: what is left out of fold is the level of each label, the same in every fold."""
    rng = np.random.default_rng(0)
    y = torch.from_numpy((rng.random((103, 5)) < [0.03, 0.05, 0.1, 0.3, 0.9]).astype(np.int8))
    y[:40, 2] = -1
    items = Items(torch.zeros(103, 4), y, rng.integers(0, 5, 103))
    spec = MemberSpec("none", trees=trees, leaf=3 if trees else 0)
    odds = try_candidate(View(items, spec, 0), spec, list(range(5)), 1.0, 0).log_odds
    assert float((odds.amax(0) - odds.amin(0)).max()) < (0.05 if trees else 1e-3)
    moved = torch.stack([items.level_shift(items.split(fold)[0]) for fold in range(5)])
    assert float(moved.abs().max()) > 0.1


@pytest.mark.parametrize("strength", [0.01, 1.0])
def test_bce_is_logistic_regression(strength: float) -> None:
    x, y = made()
    y[np.random.default_rng(1).random(y.shape) < 0.3] = sy.UNKNOWN
    fit = fit_linear(torch.from_numpy(x), cells_of(y), sy.losses.BCE(), strength, tolerance=1e-9)
    assert bool(fit.converged.all())
    for c in range(y.shape[1]):
        known = y[:, c] >= 0
        peer = LogisticRegression(C=strength, tol=1e-8, max_iter=10_000).fit(x[known].astype(np.float64), y[known, c])
        np.testing.assert_allclose(fit.weight[:, c].numpy(), peer.coef_[0], atol=2e-3)
        assert fit.bias[c].item() == pytest.approx(peer.intercept_[0], abs=2e-3)


CONVEX = ("BCE", "BCE, smoothed", "NT-BCE", "R-BCE", "DB", "SPA", "LDAM", "Logit-adjusted")


@pytest.mark.parametrize("row", [row for row in EVERY if row.name in CONVEX], ids=lambda row: row.name)
def test_convex_pairs_reach_one_optimum(row) -> None:
    """From anywhere, the same weights, at which the gradient by automatic differentiation in float64 is 0."""
    x, y = made(n_labels=3)
    loss = row.make(torch.from_numpy(y.sum(0)), len(y), "mean")
    loss = getattr(loss, "loss", loss)
    features, cells = torch.from_numpy(x), cells_of(y)
    first = fit_linear(features, cells, loss, 1.0, tolerance=1e-10)
    begin = first._replace(weight=torch.randn_like(first.weight), bias=torch.randn_like(first.bias))
    second = fit_linear(features, cells, loss, 1.0, begin, tolerance=1e-10)
    np.testing.assert_allclose(first.weight, second.weight, atol=5e-3)
    w, b = first.weight.double().requires_grad_(), first.bias.double().requires_grad_()
    z = features.double() @ w + b
    cost = (cells.a * loss.positive(z) + cells.b * loss.negative(z)).sum() + (w**2).sum() / 2
    gradient = torch.autograd.grad(cost, [w, b])
    assert max(float(g.abs().max()) for g in gradient) < 0.05 * len(x) ** 0.5


@pytest.mark.parametrize("row", EVERY, ids=lambda row: row.name)
def test_convexity_is_a_property_of_the_table(row) -> None:
    """By second differences of the values; only these pairs have one optimum, all others begin at BCE's."""
    loss = row.make(torch.tensor([10.0, 40.0, 3.0]), 100, "mean")
    loss = getattr(loss, "loss", loss)
    if not isinstance(loss, PairLoss):
        pytest.skip("not a pair")
    grid = torch.linspace(-30, 30, 601, dtype=torch.float64)[:, None].expand(-1, 3)
    bends = [float(side(grid).diff(dim=0).diff(dim=0).min()) for side in (loss.positive, loss.negative)]
    assert is_convex(loss) == (row.name in CONVEX)
    if row.name in CONVEX:
        assert min(bends) > -1e-9


def test_a_loss_that_is_not_convex_begins_at_logistic_regression(capsys: pytest.CaptureFixture[str]) -> None:
    x, y = made(80, n_labels=2)
    loss = sy.losses.Asymmetric()
    start = start_from_bce(torch.from_numpy(x), cells_of(y), loss, 0.1, 1e-6)
    peer = fit_linear(torch.from_numpy(x), cells_of(y), sy.losses.BCE(), 0.1)
    np.testing.assert_allclose(start.weight, peer.weight, atol=1e-3)
    constant = start.bias - peer.bias + stationary_bias(sy.losses.BCE(), cells_of(y))
    np.testing.assert_allclose(loss.probability(constant[None])[0], y.mean(0), rtol=1e-3)
    sy.fit((x, y), "asl")
    assert "local optimum" in capsys.readouterr().out


def test_a_rotation_changes_nothing() -> None:
    x, y = made(40, n_features=60)  # fewer items than features
    features = torch.from_numpy(x) + 3
    rotation = Rotation.of(features)
    assert rotation.x.shape[1] <= 40
    whole = fit_linear(features - features.mean(0), cells_of(y), sy.losses.BCE(), 0.1, tolerance=1e-9)
    turned = rotation.unrotated(fit_linear(rotation.x, cells_of(y), sy.losses.BCE(), 0.1, tolerance=1e-9))
    expected = whole.logits(features - features.mean(0))
    np.testing.assert_allclose(turned.logits(features), expected, atol=2e-2)


def test_the_start_is_the_frequency_and_costs_its_entropy() -> None:
    _, y = made()
    y[:, 0] = 0
    cells = cells_of(y)
    p = np.clip(y.mean(0), 0.5 / len(y), None)
    bias = stationary_bias(sy.losses.BCE(), cells)
    start = torch.sigmoid(bias).numpy()
    np.testing.assert_allclose(start[1:], p[1:], rtol=1e-6)
    assert 0 < start[0] < 1 / len(y)
    entropy = -len(y) * (p * np.log(p) + (1 - p) * np.log(1 - p))
    np.testing.assert_allclose(null_cost(sy.losses.BCE(), cells, bias)[1:], entropy[1:], rtol=1e-5)


def test_transforms_by_hand() -> None:
    x = torch.tensor([[1.0, 0.0, 4.0], [0.0, 0.0, 1.0], [3.0, 0.0, 0.0]])
    made = {kind: make_transform(kind, 3) for kind in ("none", "standardise", "sqrt", "tfidf")}
    for transform in made.values():
        transform.fit(x)
    assert torch.equal(made["none"](x), x)
    standard = (x.numpy() - x.numpy().mean(0)) / np.where(x.numpy().std(0) > 0, x.numpy().std(0), 1)
    np.testing.assert_allclose(made["standardise"](x), standard, atol=1e-6)
    np.testing.assert_allclose(made["sqrt"](x)[0], np.array([1, 0, 2]) / 5**0.5, atol=1e-6)
    idf = 1 + np.log(4 / (1 + np.array([2, 0, 2])))
    row = np.array([1.0, 0, 4]) * idf
    np.testing.assert_allclose(made["tfidf"](x)[0], row / np.linalg.norm(row), atol=1e-6)


@pytest.mark.parametrize("kernel", ["gauss", "laplace"])
def test_nystroem_with_all_items_as_landmarks_is_the_kernel(kernel: str) -> None:
    x = torch.from_numpy(made(60)[0])
    transform = make_transform("standardise", 12, kernel, 60, 0.7)
    transform.fit(x)
    z = ((x - x.mean(0)) / x.std(0, correction=0)).double().numpy()
    d = np.linalg.norm(z[:, None] - z[None], axis=2)
    width = 0.7 * np.median(d[d > 1e-6])
    expected = np.exp(-(d**2) / (2 * width**2)) if kernel == "gauss" else np.exp(-d / width)
    phi = transform(x).double().numpy()
    np.testing.assert_allclose(phi @ phi.T, expected, atol=5e-3)


def test_the_race_beats_logistic_regression_where_features_interact() -> None:
    x, y = made(250, n_labels=4)
    test_x, test_y = made(2000, 4, seed=5)
    race = run_race(torch.from_numpy(x), torch.from_numpy(y), budget=1e9)
    peer = fit_linear(torch.from_numpy(x), cells_of(y), sy.losses.BCE(), 1.0)
    with torch.no_grad():
        ours = race.head(torch.from_numpy(test_x))
    theirs = peer.logits(torch.from_numpy(test_x))
    truth = torch.from_numpy(test_y)
    assert mean_average_precision(ours, truth) > mean_average_precision(theirs, truth) + 0.02
    assert macro_log_loss(ours, truth) < macro_log_loss(theirs, truth)
    # what the folds promised holds on new items
    assert race.facts["log_loss"] == pytest.approx(macro_log_loss(ours, truth), abs=0.06)
    assert not race.log_odds.isnan().any()
    assert len(race.candidates) <= 24


def test_the_same_race_has_the_same_winner_and_may_be_alone() -> None:
    x, y = (torch.from_numpy(part[:80]) for part in made(n_labels=2))
    race, again = (run_race(x, y, budget=5e8, single=True) for _ in range(2))
    assert [c.weight for c in again.candidates] == [c.weight for c in race.candidates]
    assert sum(c.weight > 0 for c in race.candidates) == 1


def test_no_item_has_a_say_in_its_own_log_odds() -> None:
    """Labels that are noise cannot be told out of fold."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(200, 30)).astype(np.float32), (rng.random((200, 4)) < 0.3).astype(np.int8)
    race = run_race(torch.from_numpy(x), torch.from_numpy(y), budget=3e9)
    assert race.facts["map"] < 0.42
    constant = torch.logit(torch.from_numpy(y.mean(0))).expand(200, 4)
    assert race.facts["log_loss"] < 1.05 * macro_log_loss(constant, torch.from_numpy(y))


def test_budget_is_work_and_not_time() -> None:
    x, y = made(200)
    small = run_race(torch.from_numpy(x), torch.from_numpy(y), budget=1.0)
    assert [c.note for c in small.candidates[1:]] == ["skipped: over budget"] * (len(small.candidates) - 1)
    assert small.candidates[0].weight > 0
    assert work_units("2m") == 120 * RATE == BUDGET
    assert (work_units("90s"), work_units("45")) == (90 * RATE, 45 * RATE)
    for wrong in ("", "m", "-1s", "two", "nan", "inf"):
        with pytest.raises(ValueError, match="--budget"):
            work_units(wrong)


def test_sparse_counts_get_tfidf_and_dense_features_kernels() -> None:
    counts = torch.from_numpy((np.random.default_rng(0).random((50, 40)) < 0.1).astype(np.float32))
    assert {"tfidf"} <= {spec.transform for spec in linear_specs(counts) if not spec.kernel}
    dense = linear_specs(torch.from_numpy(made()[0]))
    assert "tfidf" not in {spec.transform for spec in dense}
    assert {spec.kernel for spec in dense} == {"", "gauss", "laplace"}


def test_labels_of_which_only_positives_are_known() -> None:
    t = np.array([[1, -1, 0], [-1, -1, 0], [1, 1, -1]] * 12)
    assert positives_only(t).tolist() == [True, True, False]
    assert not positives_only(np.array([[1, 0], [1, 1]])).any()


@pytest.mark.parametrize(
    "spec",
    [
        MemberSpec("none"),
        MemberSpec("tfidf"),
        MemberSpec("sqrt", width=8),
        MemberSpec("svd", "gauss", 8, 1.0),
        MemberSpec("standardise", trees=2, nodes=4, depth=1),
    ],
    ids=str,
)
def test_a_copy_in_float64_gives_the_same_log_odds(spec: MemberSpec) -> None:
    head, x = Members([spec], 12, 3).eval(), torch.rand(5, 12)
    exact = copy.deepcopy(head).double()(x.double())
    assert exact.dtype == torch.float64
    assert torch.allclose(exact.float(), head(x), atol=1e-5)


def test_members_travel(tmp_path: Path) -> None:
    specs = [MemberSpec("standardise", "laplace", 20, 1.0, loss="asl"), MemberSpec("none", width=8, dropout=0.5)]
    head = Members(specs, 12, 3).eval()
    again = Members.of_description(json.loads(json.dumps(head.describe())), 12, 3).eval()
    again.load_state_dict(head.state_dict())
    x = torch.from_numpy(made(10)[0])
    assert torch.equal(head(x), again(x))
    one, other = (member(x) for member in head.members)
    assert torch.allclose(head(x), (one + other) / 2)
    assert isinstance(head.members[0], Member)


@pytest.mark.usefixtures("pages")
def test_fit_leaves_a_run_that_can_be_used(tmp_path: Path) -> None:
    x, y = made(80, n_labels=3)
    run = sy.fit((x, y), test=made(100, 3, 1), out=tmp_path / "run", settings=SHORT, verbose=False)
    race = json.loads((tmp_path / "run" / "race.json").read_text())
    assert sum(row["weight"] > 0 for row in race["candidates"]) >= 1
    assert run.metrics["validation"]["items"] == 80
    rows = run.metrics["test"]["baselines"]
    assert set(rows) == {"this run", "label frequency", "logistic regression"}
    assert rows["this run"]["map"] == pytest.approx(run.metrics["test"]["mAP"]["label"], abs=1e-6)
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Which models competed" in page
    assert "logistic regression" in page
    gain = rows["this run"]["map"] - rows["label frequency"]["map"]
    assert rows["label frequency"]["better_by"]["map"] == pytest.approx(gain, abs=1e-9)
    ratio = rows["this run"]["log_loss"] / rows["logistic regression"]["log_loss"]
    assert rows["logistic regression"]["better_by"]["log_loss_ratio"] == pytest.approx(ratio, rel=1e-9)
    assert "is better by" in page
    assert f'<td class="number">{100 * gain:.1f}<' in page
    loaded = sy.Run.load(tmp_path / "run")
    np.testing.assert_array_equal(loaded.probability(x), run.probability(x))
    with np.load(tmp_path / "run" / "folds.npz") as folds:
        assert folds["logits"].shape == y.shape
        assert np.array_equal(folds["targets"], y)
        assert set(folds["folds"]) == set(range(5))


def test_a_named_recipe_on_features_is_fitted_to_convergence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x, y = made(200, n_labels=3)
    run = sy.fit((x, y), "spa", out=tmp_path / "run")
    assert "local optimum" not in capsys.readouterr().out
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert facts["converged"]
    assert not (tmp_path / "run" / "race.json").exists()
    assert run.trained.probability_model.loss.kind == "spa"
    assert run.metrics["validation"]["items"] == 200


def test_only_positives_are_said_to_be_annotated(capsys: pytest.CaptureFixture[str]) -> None:
    x, y = made(80, n_labels=2)
    y = np.where(y == 1, 1, sy.UNKNOWN)
    run = sy.fit((x, y), settings=SHORT, verbose=True)
    printed = " ".join(capsys.readouterr().out.split())
    assert "of being annotated" in printed
    assert "every item will be said to have it" not in printed  # unknown is taken as absent
    assert "set objective.unknown" not in printed
    assert any("annotated" in note for note in run.metrics["validation"]["notes"])


def test_what_did_not_converge_says_so() -> None:
    row = {"candidate": "none, linear, bce", "weight": 1.0, "converged": True}
    other = {"candidate": "none, hidden 256, bce", "weight": 0.5, "converged": False}
    race = {"candidates": [row, other], "map": None, "log_loss": 0.3, "decided_by": "audit sample"}
    assert outcome_sentence(race).endswith("Not converged: none, hidden 256, bce.")
    assert outcome_sentence(race).startswith("Winner by the audit sample: the mean of 2")
    assert "onverged" not in outcome_sentence({**race, "candidates": [row, {**other, "weight": 0.0}]})


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ({"budget": 1e9}, "train.budget: only recipe auto has a race"),
        ({"single": True}, "train.single: only recipe auto"),
        ({"learner": "race"}, "train.learner race: only recipe auto"),
    ],
)
def test_a_named_recipe_refuses_what_only_a_race_has(train: dict[str, Any], message: str) -> None:
    """A race would not train that recipe, and an option that changes nothing is a mistake."""
    with pytest.raises(ValueError, match=message):
        sy.fit(made(60, n_labels=2), "spa", settings={"train": train}, verbose=False)


def test_settings_of_the_loop_ask_for_the_loop() -> None:
    x, y = made(100, n_labels=3)
    run = sy.fit((x, y), settings={"train": {"epochs": 2}}, verbose=False)
    assert len(run.history) == 2
    with pytest.raises(ValueError, match=r"train\.learner"):
        sy.fit((np.zeros((30, 3, 16, 16), np.uint8), y[:30]), settings={"train": {"learner": "race"}}, verbose=False)


def test_labels_with_assumed_negatives_are_judged_by_rank() -> None:
    """The level of what was annotated says nothing; where labels are of both kinds, the mean rank decides."""
    y = torch.tensor([[1.0, 1.0], [0, 0], [1, 0], [0, 1], [0, 0], [0, 0]])
    flat = torch.tensor([[-1.0, 2.0], [-1, -2], [-1.1, -2], [-1.1, 2], [-1.1, -2], [-1.1, -2]])
    ranks = torch.tensor([[4.0, -0.1], [3, 0], [4, 0], [3, -0.1], [3, 0], [3, 0]])
    both = [flat, ranks]

    def chosen(assumed: list[bool]) -> int:
        return winner(FinalistScores(both, [1.0, 1.0], y, torch.tensor(assumed)), [0, 0])

    assert macro_log_loss(flat[:, :1], y[:, :1]) < macro_log_loss(ranks[:, :1], y[:, :1])
    assert chosen([True, True]) == 0  # 0.67 and 1 against 1 and 0.3
    evidence = FinalistScores([z[:, :1] for z in both], [1.0, 1.0], y[:, :1], torch.tensor([True]))
    assert winner(evidence, [0, 0]) == 1
    assert winner(evidence._replace(assumed=torch.tensor([False])), [0, 0]) == 0
    assert chosen([True, False]) == 0  # a tie of mean ranks: the first


def test_rare_labels_have_a_say() -> None:
    """Four frequent labels have most of the log-loss, sixteen rare ones most of the mean average precision."""
    generator = torch.Generator().manual_seed(0)
    frequency = torch.tensor([0.4] * 4 + [0.005] * 16)
    y = (torch.rand(4000, 20, generator=generator) < frequency).float()
    noise = torch.randn(y.shape, generator=generator)

    def knowing(frequent: float, rare: float) -> torch.Tensor:
        apart = torch.where(frequency > 0.1, frequent, rare)
        return torch.logit(frequency) + apart * (y - frequency) + apart.sqrt() * noise

    evidence = FinalistScores.of([knowing(2.0, 1.5), knowing(1.6, 3.0)], y, torch.zeros(20, dtype=torch.bool))
    losses, maps = ([score(z, y) for z in evidence.log_odds] for score in (macro_log_loss, mean_average_precision))
    assert losses[0] < losses[1] < 1.06 * losses[0]
    assert maps[1] > maps[0] + 0.05
    assert winner(evidence, [0, 0]) == 1
    mean = sum(weight * evidence.log_odds[k] for k, weight in chosen_members(evidence, False, [0, 0]))
    assert mean_average_precision(mean, y) >= maps[1]
    # where negatives are only assumed, the mean is made by log-loss: the first joins the second
    assumed = evidence._replace(assumed=torch.ones(20, dtype=torch.bool))
    assert winner(assumed, [0, 0]) == 1
    members = chosen_members(assumed, False, [0, 0])
    assert [k for k, _ in members] == [0, 1]


def test_spa_is_tried_over_the_best_ranking_too() -> None:
    sqrt, tfidf, hidden = MemberSpec("sqrt"), MemberSpec("tfidf"), MemberSpec("sqrt", width=256)
    names = [spec.name for spec in loss_specs([hidden, sqrt, tfidf], tfidf)]
    assert names == ["sqrt, linear, spa", "tfidf, linear, spa", "sqrt, linear, asl"]


def test_a_hopeless_candidate_is_screened_only() -> None:
    """A label that the sign of a tiny feature decides: only standardised features tell it."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3000, 6)).astype(np.float32)
    x[:, 0] *= 1e-3
    y = (x[:, :1] > 0).astype(np.int8)
    race = run_race(torch.from_numpy(x), torch.from_numpy(y), budget=1e10)
    rows = {row["candidate"]: row for row in race.document()["candidates"]}
    plain = rows["none, linear, bce"]
    assert plain["note"] == "screened only: log-loss too high"
    assert plain["map"] is None
    assert rows["standardise, linear, bce"]["map"] > 0.9


def test_an_audit_sample_decides() -> None:
    """Where the audit says the reverse of the folds, another candidate wins: the one that the audit likes best."""
    x, y = (torch.from_numpy(part) for part in made(120, n_labels=3))
    audit_x, reverse = torch.from_numpy(made(200, 3, seed=5)[0]), torch.from_numpy(1 - made(200, 3, seed=5)[1])
    races = [run_race(x, y, single=True, audit=audit) for audit in (None, (audit_x, reverse))]
    with torch.no_grad():
        by_folds, by_audit = (tempered_log_loss(race.head(audit_x), reverse) for race in races)
    assert [race.facts["decided_by"] for race in races] == ["folds", "audit sample"]
    assert by_audit < 0.95 * by_folds
    assert races[0].facts["log_loss"] < races[1].facts["log_loss"]


def test_many_labels_are_screened_by_some_of_them() -> None:
    x, y = made(120, n_labels=260)
    items = Items(torch.from_numpy(x), torch.from_numpy(y), folds_of(torch.from_numpy(y), 3))
    columns = items.screened_labels
    assert len(columns.unique()) == SCREENED_LABELS
    counts = torch.from_numpy(y.sum(0))
    assert {int(counts.argmax()), int(counts.min())} <= {int(columns[counts[columns].argmax()]), int(counts.min())}
    assert float(counts[columns].float().mean()) == pytest.approx(float(counts.float().mean()), rel=0.05)
    race = run_race(torch.from_numpy(x), torch.from_numpy(y), budget=2e9)
    assert race.log_odds.shape == y.shape
    assert not race.log_odds.isnan().any()


def test_audit_samples_that_cannot_decide_are_refused(tmp_path: Path) -> None:
    x, y = made(60, n_labels=2)
    unknown = y.copy()
    unknown[0, 0] = sy.UNKNOWN
    with pytest.raises(ValueError, match="--audit-sample"):
        sy.fit((x, y), audit=(x, unknown), verbose=False)
    with pytest.raises(ValueError, match="--audit-sample"):
        sy.fit((x, y), "bce", audit=(x, y), verbose=False)


def test_api_classifier_and_command_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = made(70, n_labels=2)
    np.savez(tmp_path / "t.npz", X=x, Y=y)
    ours = sy.fit((x, y), settings={"train": {"budget": 1e9, "device": "cpu"}}, verbose=False).probability(
        x, device="cpu"
    )
    theirs = sy.SteelyardClassifier(settings=SHORT).fit(x, y).predict_proba(x)
    np.testing.assert_array_equal(ours, theirs)
    command = ["train", "--data", str(tmp_path / "t.npz"), "--out", str(tmp_path / "run"), "--set", "train.budget=1e9"]
    monkeypatch.setattr("sys.argv", ["steelyard", *command, "--set", "train.device=cpu"])
    main()
    np.testing.assert_array_equal(sy.Run.load(tmp_path / "run").probability(x, device="cpu"), ours)
