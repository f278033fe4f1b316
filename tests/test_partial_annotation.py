"""Paper 3's loss in full, its ablations, its schedules and its link."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import reference as ref
from steelyard.balance import PseudoLabels
from steelyard.balance.philox import uniform
from steelyard.labels.targets import as_targets
from steelyard.losses import Annotation, PartialAnnotation, partial_annotation

B, L = 7, 6


def batch(seed: int, kind: str = "PAL") -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    z = 2 * rng.standard_normal((B, L))
    z[3] = -3 - rng.random(L)  # all predictions below .1
    z[4, :] = -5
    z[4, 2] = -2.19  # σ = .1006
    full = (rng.random((B, L)) < 0.3).astype(float)
    full[:, 0] = 1
    if kind == "PAL":
        targets = np.where(rng.random((B, L)) < 0.5, full, -1)
        targets[1] = -1
        targets[2] = full[2]
    elif kind == "PPL":
        targets = np.where((full == 1) & (rng.random((B, L)) < 0.6), 1.0, -1.0)
    elif kind == "SPL":
        targets = np.full((B, L), -1.0)
        targets[np.arange(B), [rng.choice(np.flatnonzero(row)) for row in full]] = 1
    else:
        targets = full
    return z, targets, rng.random((B, L)), rng.random((B, L)) < 0.6


def call(loss: PartialAnnotation, z, targets, pseudo, picked, epoch=1, n_epochs=10):  # type: ignore[no-untyped-def]
    x = torch.tensor(z, requires_grad=True)
    value = loss(x, torch.tensor(targets), torch.tensor(pseudo), epoch, n_epochs, pick=torch.tensor(picked))
    (gradient,) = torch.autograd.grad(value, x)
    return float(value.detach()), gradient.numpy()


def finite_difference(z: np.ndarray, f) -> np.ndarray:  # type: ignore[no-untyped-def]
    out = np.zeros(z.shape)
    for i, j in np.ndindex(z.shape):
        step = np.zeros(z.shape)
        step[i, j] = 1e-6
        out[i, j] = (f(z + step) - f(z - step)) / 2e-6
    return out


@pytest.mark.parametrize("kind", ["FAL", "PAL", "PPL", "SPL"])
@pytest.mark.parametrize("epoch", [1, 7, 10])
def test_the_formula_in_full(kind: str, epoch: int) -> None:
    z, targets, pseudo, picked = batch(epoch, kind)
    d = math.exp((epoch + 3) / 10 - 1)
    value, gradient = call(PartialAnnotation(), z, targets, pseudo, picked, epoch)
    assert value == pytest.approx(ref.partial_annotation(z, targets, pseudo, picked, d), rel=1e-9)
    slope = finite_difference(z, lambda x: ref.partial_annotation(x, targets, pseudo, picked, d))
    np.testing.assert_allclose(gradient, slope, atol=1e-8)


@pytest.mark.parametrize(
    ("options", "epoch", "d"),
    [
        ({}, 1, math.exp(4 / 10 - 1)),
        ({}, 7, 1.0),  # 1 at epoch E − m, less before, not capped after
        ({}, 10, math.exp(0.3)),
        ({"m": 0.0}, 10, 1.0),
        ({"schedule": "linear"}, 1, 0.4),
        ({"schedule": "linear"}, 10, 1.3),
        ({"schedule": "linear", "m": 1.5}, 2, 0.35),
        ({"use_alpha_beta": False}, 2, math.exp(-0.5)),
        ({"use_d": False}, 2, 1.0),
        ({"use_p": False}, 2, math.exp(-0.5)),
        ({"count": "pseudo"}, 2, math.exp(-0.5)),
        *(({"gamma": gamma}, 10, math.exp(0.3)) for gamma in (0.01, 0.7)),
    ],
)
def test_schedules_ablations_and_the_floor_of_beta(options: dict[str, Any], epoch: int, d: float) -> None:
    """β counts positives over all B·L slots; with observed labels only, PPL would give α = 0."""
    z, targets, pseudo, picked = batch(5, "SPL")
    value, _ = call(PartialAnnotation(**options), z, targets, pseudo, picked, epoch)
    known = {k: v for k, v in options.items() if k in ("use_alpha_beta", "use_p", "gamma", "count")}
    assert value == pytest.approx(ref.partial_annotation(z, targets, pseudo, picked, d, **known), rel=1e-9)
    if known.keys() & {"use_p", "use_alpha_beta", "count"}:
        assert abs(value - ref.partial_annotation(z, targets, pseudo, picked, d)) > 1e-5


def picks(loss: PartialAnnotation, epoch: int, n_epochs: int, seed: int = 0) -> float:
    """How many of many unknown labels took part, read off the gradient."""
    z = torch.zeros(400, 50, requires_grad=True)
    unknown = torch.full((400, 50), -1)
    generator = torch.Generator().manual_seed(seed)
    loss(z, unknown, torch.full((400, 50), 0.9), epoch, n_epochs, generator=generator).backward()
    assert z.grad is not None
    return float((z.grad != 0).double().mean())


def test_q() -> None:
    five = 5 * math.sqrt(0.25 / 20_000)
    assert abs(picks(PartialAnnotation(), 1, 10) - 0.3) < five
    assert abs(picks(PartialAnnotation(q=0.8), 4, 10) - 0.8) < five
    assert picks(PartialAnnotation(q=1.0), 1, 10) == 1
    assert picks(PartialAnnotation(q=0.0), 1, 10) == 0
    rising = PartialAnnotation(q=(0.1, 0.9))
    for epoch, q in ((1, 0.1), (5, 0.1 + 0.8 * 4 / 10), (11, 0.9)):
        assert abs(picks(rising, epoch, 11) - q) < five, epoch


def test_a_generator_decides_and_the_global_one_is_untouched() -> None:
    z, targets, pseudo, _ = (torch.tensor(x) for x in batch(2))
    loss = PartialAnnotation(q=0.5)

    def draw(seed: int) -> float:
        return float(loss(z, targets, pseudo, 1, 5, generator=torch.Generator().manual_seed(seed)))

    before = torch.get_rng_state()
    assert draw(1) == draw(1)
    assert len({draw(s) for s in range(6)}) > 1
    assert torch.equal(before, torch.get_rng_state())


def test_p_reads_every_prediction_of_the_item() -> None:
    """Items 3 and 4 differ in one prediction, known or not: .1006 is not below .1."""
    z = np.full((1, 4), -4.0)
    targets = np.array([[1.0, -1.0, 0.0, -1.0]])
    pseudo, none = np.full((1, 4), 0.5), np.zeros((1, 4), dtype=bool)
    low, _ = call(PartialAnnotation(), z, targets, pseudo, none)
    single, _ = call(PartialAnnotation(use_p=False), z, targets, pseudo, none)
    assert low == pytest.approx(2 * single)
    for most, factor in ((math.log(0.1 / 0.9), 1), (-2.19, 1), (-2.2, 2)):  # of .1 itself, .1006, .0998
        z[0, 3] = most
        got, _ = call(PartialAnnotation(), z, targets, pseudo, none)
        assert got == pytest.approx(factor * single)


def test_pseudo_labels_are_read_at_picked_unknown_labels_only_and_what_takes_no_part_may_be_anything() -> None:
    z, targets, pseudo, picked = batch(3)
    dark = (targets < 0) & ~picked
    z[dark] = 0
    value, gradient = call(PartialAnnotation(), z, targets, pseudo, picked)
    other = np.where((targets < 0) & picked, pseudo, 1 - pseudo)
    for logits in (z, np.where(dark, np.nan, z)):
        again, same = call(PartialAnnotation(), logits, targets, other, picked)
        assert value == again
        np.testing.assert_array_equal(gradient, same)
    assert (gradient[dark] == 0).all()


def test_nothing_known_and_nothing_picked() -> None:
    z, _, pseudo, _ = batch(3)
    value, gradient = call(PartialAnnotation(), z, np.full((B, L), -1.0), pseudo, np.zeros((B, L), dtype=bool))
    assert value == 0
    assert (gradient == 0).all()
    empty = PartialAnnotation()(torch.zeros(0, L, requires_grad=True), torch.zeros(0, L), torch.zeros(0, L), 1, 2)
    assert float(empty.detach()) == 0


def test_link_has_the_running_means_of_alpha_and_beta() -> None:
    loss = PartialAnnotation(gamma=0.05)
    z = torch.zeros(1, 2, dtype=torch.float64)
    torch.testing.assert_close(loss.log_odds(z), z)  # nothing seen yet
    shares = []
    for positives in (1, 3, 0):
        targets = torch.zeros(2, 5)
        targets.view(-1)[:positives] = 1
        loss(torch.zeros(2, 5), targets, torch.zeros(2, 5), 1, 2)
        shares.append(max(positives / 10, 0.05))
    beta = np.mean(shares)
    want = math.log(beta / (1 - beta))
    torch.testing.assert_close(loss.log_odds(z), z + want, rtol=1e-12, atol=0)
    torch.testing.assert_close(loss.log_odds(z, 2.0, 0.5), z + want + math.log(0.25), rtol=1e-12, atol=0)
    torch.testing.assert_close(loss.probability(z), torch.sigmoid(z + want), rtol=1e-12, atol=0)
    assert [float(w) for w in loss.rule.class_weights()] == pytest.approx([1 - beta, beta], rel=1e-12)


def test_stationary_point_maps_back() -> None:
    """Fully known labels of one class: the zero of its gradient is read as its frequency."""
    targets = torch.zeros(50, 4)
    for c, n in enumerate((25, 10, 5, 1)):
        targets[:n, c] = 1
    loss = PartialAnnotation(use_p=False)
    theta = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([theta], max_iter=200, tolerance_grad=1e-12, tolerance_change=1e-15)

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        value = loss(theta.expand(50, 4), targets, torch.zeros(50, 4), 1, 2)
        value.backward()
        return value

    optimiser.step(closure)
    want = torch.tensor([0.5, 0.2, 0.1, 0.02]).double()
    torch.testing.assert_close(loss.probability(theta.detach()[None])[0], want, rtol=0, atol=1e-5)


def test_picks_drawn_ahead_are_those_drawn_in_time(tmp_path: Path) -> None:
    targets = torch.randint(-1, 2, (40, 6), generator=torch.Generator().manual_seed(0)).float()
    rules = [Annotation(PseudoLabels(tmp_path / name, 40, 6), q=0.5, seed=2) for name in "ab"]
    some = torch.tensor([3, 39, 0, 3])
    z = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    for epoch in (1, 2):
        for rule in rules:
            rule.start_epoch(epoch, 3)
        in_time = rules[0](as_targets(targets[some], z), z, some)
        rules[1].draw_ahead(targets)
        for got, want in zip(rules[1](as_targets(targets[some], z), z, some), in_time, strict=True):
            assert (got is None and want is None) or torch.equal(got, want)
        wide = [rule(as_targets(targets[some], z), z.double(), some).a for rule in rules]
        assert wide[0].dtype == wide[1].dtype == torch.float64
        assert torch.equal(*wide)


def test_picks_drawn_ahead_are_read_until_the_epoch_begins_anew(tmp_path: Path) -> None:
    z, index = torch.zeros(3, 4), torch.arange(3)
    known = as_targets(z, z)
    rule = Annotation(PseudoLabels(tmp_path, 3, 4), q=1.0).eval()
    rule.start_epoch(1, 3)
    in_time = rule(known, z, index)
    rule.draw_ahead(-torch.ones(3, 4))
    assert not torch.equal(rule(known, z, index).b, in_time.b)
    rule.start_epoch(1, 3)
    assert torch.equal(rule(known, z, index).b, in_time.b)


def test_which_labels_are_picked_is_a_function_of_seed_epoch_and_item() -> None:
    """Runs are taken up again on other machines, and by later versions; masks of the same seed are other draws."""
    seen = [Annotation(q=0.3, seed=seed)._picked(torch.tensor([0, 7]), 8) for seed in (0, 5)]
    assert seen[0].nonzero().tolist() == [[0, 1], [0, 2], [0, 4], [1, 0], [1, 5]]
    assert seen[1].nonzero().tolist() == [[0, 0], [0, 1], [0, 6], [0, 7]]
    assert not torch.equal(seen[0], uniform(0, 1, torch.tensor([0, 7]), 8) < 0.3)


def test_with_a_chance_of_none_a_draw_of_zero_is_not_picked(monkeypatch: pytest.MonkeyPatch) -> None:
    item = torch.tensor([51922])
    assert Annotation(q=2**-24)._picked(item, 4).tolist() == [[False, True, False, False]]  # whose draw is 0
    assert not Annotation(q=0.0)._picked(item, 4).any()
    monkeypatch.setattr(torch, "rand", lambda shape, **_: torch.zeros(shape))
    assert picks(PartialAnnotation(q=0.0), 1, 10) == 0


def test_before_any_epoch_it_is_the_first_of_one() -> None:
    rule = Annotation(q=(0.2, 0.9))
    assert (rule.epoch, rule.n_epochs) == (1, 1)
    assert rule.d == float(rule.trust) == pytest.approx(math.exp(3))
    assert rule.q == 0.2
    assert [float(w) for w in rule.class_weights()] == [1, 1]
    rule.start_epoch(1, 1)
    assert rule.q == 0.2
    rule.start_epoch(2, 2)
    assert rule.q == pytest.approx(0.9)
    for epoch, n_epochs in ((0, 3), (1, 0)):
        with pytest.raises(ValueError, match=f"^epoch is {epoch} of {n_epochs}: epochs count from 1$"):
            rule.start_epoch(epoch, n_epochs)
    assert list(rule.state_dict()) == ["weight_sums"]  # d follows from the epoch


@pytest.mark.parametrize("dtype", [torch.int8, torch.float32, torch.float64])
def test_alpha_and_beta_are_exact(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    targets = torch.tensor([[1, 0, -1], [1, -1, -1]], dtype=dtype)
    one = torch.ones(1, 1, dtype=dtype)
    for use, batch, want in ((True, targets, 1 / 3), (True, one, 1.0), (False, targets, None)):
        alpha, beta = Annotation(use_alpha_beta=use).alpha_beta(batch)
        assert alpha.dtype == beta.dtype == torch.float64
        assert (float(alpha), float(beta)) == ((1.0, 1.0) if want is None else (1 - want, want))
    monkeypatch.setattr(partial_annotation, "n_processes", lambda: 2)
    for others, beta in (((3.0, 4.0), 0.5), ((0.0, 0.0), 1 / 3)):  # what the other process has
        monkeypatch.setattr(partial_annotation, "summed", lambda x, more=others: x + x.new_tensor(more))
        assert float(Annotation().alpha_beta(targets)[1]) == beta
    assert float(Annotation().alpha_beta(one)[1]) == 1
    assert float(Annotation().alpha_beta(targets[:0])[1]) == 0.05


def test_predictions_that_all_rise_lower_alpha_where_pseudo_labels_count() -> None:
    """An uninformative label stays where it is with P of pseudo-labels, and runs away with P of known ones."""

    def at_the_end(count: str) -> float:
        rule, level = Annotation(count=count, use_p=False), 0.5  # type: ignore[arg-type]
        targets = torch.full((50, 20), -1, dtype=torch.int8)
        for _ in range(40):  # the stationary prediction of a label is σ(logit ỹ + log α/β); it is the next ỹ
            soft = torch.full((50, 20), level, dtype=torch.float64)
            alpha, beta = rule.alpha_beta(soft if count == "pseudo" else targets)
            odds = level / (1 - level) * float(alpha / beta)
            level = min(odds / (1 + odds), 1 - 1e-9)
        return level

    assert at_the_end("known") > 0.999
    assert at_the_end("pseudo") == pytest.approx(0.5)
    with pytest.raises(ValueError, match="count is 'all': choose one of known, pseudo"):
        Annotation(count="all")  # type: ignore[arg-type]


def test_compiled_it_is_the_same_in_every_epoch() -> None:
    z, targets, pseudo, picked = (torch.tensor(x) for x in batch(4))
    plain, loss = PartialAnnotation(), PartialAnnotation()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for epoch in (1, 9):
        want = plain(z, targets, pseudo, epoch, 9, pick=picked)
        torch.testing.assert_close(compiled(z, targets, pseudo, epoch, 9, pick=picked), want)
    torch.testing.assert_close(loss.log_odds(z), plain.log_odds(z))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"logits": torch.zeros(2, 3, dtype=torch.int64)}, "logits is torch.int64: give a floating-point tensor"),
        ({"pseudo": torch.zeros(2, 4)}, r"pseudo has shape \(2, 4\), but logits has \(2, 3\): make them equal$"),
        (
            {"pick": torch.ones(1, 3, dtype=torch.bool)},
            r"pick has shape \(1, 3\), but logits has \(2, 3\): make them equal$",
        ),
        (
            {"pick": torch.ones(2, 3)},
            "pick has dtype torch.float32: give bool",
        ),
        ({"pseudo": torch.full((2, 3), 1.5)}, r"pseudo\[0, 1\] is 1.5: a pseudo-label is in \[0, 1\]$"),
        ({"pseudo": torch.full((2, 3), math.nan)}, r"pseudo\[0, 1\] is nan: a pseudo-label is in \[0, 1\]$"),
    ],
)
def test_mistakes(changed: dict[str, torch.Tensor], words: str) -> None:
    targets = torch.tensor([[1, -1, 0], [0, 1, 1]])
    given = {"logits": torch.zeros(2, 3), "targets": targets, "pseudo": torch.ones(2, 3), "epoch": 1, "n_epochs": 1}
    assert PartialAnnotation()(**given).isfinite()
    with pytest.raises(ValueError, match=f"^{words}"):
        PartialAnnotation()(**given | changed)


def test_a_rule_without_a_store_says_so() -> None:
    rule, z = Annotation(), torch.zeros(2, 3)
    with pytest.raises(ValueError, match=r"^store is missing: Annotation needs PseudoLabels to read from$"):
        rule(as_targets(torch.zeros(2, 3), z), z, torch.arange(2))


def test_prepared_cells_are_for_one_batch_and_its_dtype(tmp_path: Path) -> None:
    targets = torch.randint(-1, 2, (40, 6), generator=torch.Generator().manual_seed(0)).float()
    rule = Annotation(PseudoLabels(tmp_path, 40, 6), q=0.5)
    rule.eval()
    rule.start_epoch(1, 3)
    some, other = torch.tensor([3, 39, 0]), torch.tensor([5, 6, 7])
    z = torch.randn(3, 6, generator=torch.Generator().manual_seed(1))
    want, wide = (rule(as_targets(targets[some], x), x, some) for x in (z, z.double()))
    rule.prepare(targets[some], some)
    torch.testing.assert_close(rule(as_targets(targets[some], z), z, some), want)
    rule.prepare(targets[other], other)
    torch.testing.assert_close(rule(as_targets(targets[some], z), z, some), want)
    rule.prepare(targets[some], some)
    torch.testing.assert_close(rule(as_targets(targets[some], z), z.double(), some), wide)
    assert wide.a.dtype == torch.float64
    rule.prepare(-torch.ones(3, 6), some)
    assert not torch.equal(rule(as_targets(targets[some], z), z, some).a, want.a)  # what was prepared is used
    torch.testing.assert_close(rule(as_targets(targets[some], z), z, some), want)  # and only once
