"""Link as a calibrator, class-aware sampling undone, and calibrators as files."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import steelyard.calibrate as cal
from steelyard import balance, losses
from steelyard.labels import Labels
from steelyard.losses.table import EVERY
from steelyard.objective import Objective
from test_links import Hill, Rewritten

COUNTS = torch.tensor([900, 120, 15, 2])
Z = torch.linspace(-6, 6, 25, dtype=torch.float64)[:, None].expand(-1, 4).contiguous()


@pytest.mark.parametrize("row", [r for r in EVERY if r.name != "Two-way"], ids=lambda r: r.name)
def test_link_is_the_loss_s_own_probability_and_needs_no_fit(row) -> None:  # type: ignore[no-untyped-def]
    loss = row.make(COUNTS, 1000, "mean")
    link = cal.Link(loss)
    assert link.fit(Z, torch.zeros(25, 4)) is link
    torch.testing.assert_close(link(Z), loss.probability(Z), rtol=1e-12, atol=0)
    torch.testing.assert_close(link.log_odds(Z), loss.log_odds(Z).clamp(-100, 100), rtol=1e-12, atol=0)
    np.testing.assert_allclose(link(Z.float().numpy()), loss.probability(Z).numpy(), atol=1e-6)
    assert link(Z.float().numpy()).dtype == np.float32


def test_defaults_of_a_user_s_loss():
    loss = Rewritten()
    assert (loss.n_labels, loss.reduction, loss.validate, loss.eta_range) == (None, "mean", False, (0.0, 1.0))


def test_link_of_a_user_s_loss_takes_arrays():
    np.testing.assert_allclose(cal.Link(Rewritten())(Z.numpy()), torch.sigmoid(Z).numpy(), rtol=1e-9)


def test_link_of_an_objective_follows_its_weights():
    masking = balance.PartialLabelMasking(COUNTS, 1000, rate=0.0, initial="mean")
    objective = Objective(losses.DistributionBalanced(COUNTS, 1000), masking=masking)
    link = cal.Link(objective)
    before = link(Z)
    targets = (torch.rand(50, 4, generator=torch.Generator().manual_seed(0)) < 0.4).int()
    objective.start_epoch(1, 1)
    objective(torch.zeros(50, 4), targets, torch.arange(50))
    after = link(Z)
    torch.testing.assert_close(after, objective.probability(Z))
    assert not torch.allclose(before, after)
    w_pos, w_neg = objective.class_weights()
    torch.testing.assert_close(cal.Link(objective.loss, w_pos, w_neg)(Z), after)
    assert (cal.Link(losses.BCE(), 4.0, 2.0)(Z) - torch.sigmoid(Z - math.log(2))).abs().max() < 1e-12


@pytest.mark.parametrize(
    ("call", "words"),
    [
        *((lambda loss=loss: cal.Link(loss), "calibrator|Temperature") for loss in (losses.TwoWay(), Hill())),
        (lambda: cal.Link(Objective(losses.TwoWay())), "Temperature"),
        (lambda: cal.Link(losses.LDAM(COUNTS, softmax=True)), "calibrator|Temperature"),
        (lambda: cal.Link("BCE"), "loss is str"),  # type: ignore[arg-type]
        (lambda: cal.Link(Objective(losses.BCE()), pos_weight=2.0), "known to an objective"),
        (lambda: cal.Link(losses.BCE(), pos_weight=-1.0), "pos_weight"),
        (lambda: cal.Link(losses.BCE(), neg_weight=torch.tensor([1.0, math.inf])), r"neg_weight\[1\] is inf"),
        (lambda: cal.Link(losses.BCE(), class_aware=[5, 0]), "fewer than two"),  # type: ignore[arg-type]
        (lambda: cal.Link(losses.BCE()).fit(Z, torch.zeros(3, 4)), "shape"),
    ],
)
def test_link_refuses_what_has_none(call: Callable[[], object], words: str) -> None:
    with pytest.raises(losses.NoLink if "Temperature" in words else ValueError, match=words):
        call()


class Falling(Rewritten):
    """The link of its last label falls once, between z = `at` and the next point of the grid."""

    def __init__(self, n_labels: int | None, at: float) -> None:
        super().__init__(n_labels)
        self.at, self.calls = at, 0

    def link(self, z: Tensor) -> Tensor:
        self.calls += 1
        out = z.clone()
        out[..., -1] -= (z[..., -1] > self.at + 0.05) * 0.2
        return out


FALLS = [(n_labels, at) for n_labels in (None, 1666, 10_000) for at in (-30.0, -20.2, -20.1, -20.0, 0.3, 29.9)]


@pytest.mark.parametrize(("n_labels", "at"), [*FALLS, (1_000_000, -30.0)])
def test_wherever_a_link_falls_it_is_refused(n_labels: int | None, at: float) -> None:
    """Also between the blocks in which many labels are looked at: of 600, 100 and 2 points here."""
    with pytest.raises(losses.NoLink, match=rf"^Falling has no probability: .* beyond {at:.1f}, so several η"):
        Falling(n_labels, at).check_link()


def test_a_link_is_tried_once():
    loss = Falling(4, math.inf)
    loss.log_odds(Z)
    before = loss.calls
    loss.log_odds(Z)
    assert loss.calls == before + 1


def test_logits_and_weights_of_the_wrong_kind_are_refused():
    for loss in (losses.SPA(), Rewritten()):
        with pytest.raises(ValueError, match=r"^z is torch.int64: give a floating-point tensor$"):
            loss.log_odds(torch.zeros(2, 4, dtype=torch.int64))
        with pytest.raises(ValueError, match=r"^z is list: give a floating-point tensor$"):
            loss.log_odds([0.0, 1.0])
        with pytest.raises(
            ValueError, match=r"^pos_weight has shape \(1, 4\): give a number or one for each of 4 labels"
        ):
            loss.log_odds(Z, torch.ones(1, 4))
        with pytest.raises(ValueError, match=r"^neg_weight\[1\] is 0: a class weight is positive and finite$"):
            loss.log_odds(Z, None, torch.tensor([1.0, 0.0, 1.0, 1.0]))


def test_a_link_leaves_logits_alone_and_takes_those_of_one_item():
    up, down = torch.tensor([1.0, 2.0, 4.0, 8.0]), torch.tensor([3.0, 1.0, 1.0, 0.5])
    for loss in (losses.SPA(), Rewritten()):
        z = Z.clone()
        whole = loss.log_odds(z, up, down)
        assert not z.requires_grad
        torch.testing.assert_close(loss.log_odds(z[5], up, down), whole[5])


def iterated(z: np.ndarray, n: np.ndarray, rounds: int = 5000) -> np.ndarray:
    """The fixed point by plain repetition, from above."""
    eta = 1 / (1 + np.exp(-z))
    for _ in range(rounds):
        parts = eta / n
        others = np.stack([np.delete(parts, c, 1).sum(1) for c in range(z.shape[1])], 1)
        eta = 1 / (1 + np.exp(-z) * (1 + 1 / n / others))
    return eta


def test_sampling_against_the_printed_iteration():
    rng = np.random.default_rng(0)
    n = np.array([1000.0, 200.0, 30.0, 4.0, 1.0])
    z = rng.normal(0, 3, (200, 5))
    total = (1 / (1 + np.exp(-z))).sum(1)
    z, total = z[total > 1.1], total[total > 1.1]
    assert len(z) > 120
    eta = torch.sigmoid(cal.undo_class_aware(torch.from_numpy(z), n)).numpy()
    np.testing.assert_allclose(eta, iterated(z, n), rtol=1e-7)


@given(seed=st.integers(0, 10**6), n_labels=st.integers(2, 8))
@settings(max_examples=40)
def test_sampling_is_undone_exactly(seed: int, n_labels: int) -> None:
    """η → odds as class-aware draws see them, from all 2^L label sets → η again."""
    rng = np.random.default_rng(seed)
    n = np.exp(rng.uniform(0, 9, n_labels))
    eta = 1 / (1 + np.exp(-rng.normal(-2, 3, (6, n_labels))))
    sets = (np.arange(2**n_labels)[:, None] >> np.arange(n_labels)) & 1
    chance = np.prod(np.where(sets[None], eta[:, None], 1 - eta[:, None]), axis=2) * (sets / n).sum(1)
    odds = (chance @ sets) / (chance @ (1 - sets))
    back = 1 / (1 + np.exp(-cal.undo_class_aware(np.log(odds), n)))
    np.testing.assert_allclose(back, eta, rtol=1e-6)


def test_sampling_at_its_limits():
    n = torch.tensor([100.0, 10.0, 0.0])
    z = torch.tensor([[-9.0, -9.0, 0.3], [50.0, 2000.0, -0.3], [-9.0, 800.0, 0.0], [0.0, 1e-3, 5.0]])
    out = cal.undo_class_aware(z, n)
    assert out.dtype == torch.float32
    assert torch.isfinite(out).all()
    torch.testing.assert_close(out[:, 2], z[:, 2])  # a class never visited changes no draw
    assert (out[0, :2] < -99).all()  # nothing is drawn that has no positive
    assert (out[:, :2] < z[:, :2]).all()
    first = 1 / (1 + math.exp(9 + math.log1p(10 / 100)))  # η of the first label, where the second is certain
    assert out[2, 1].item() == pytest.approx(800 - math.log1p((1 / 10) / (first / 100)), rel=1e-6)
    for bad, message in (
        ([1.0, 2.0], "counts has 2 values"),
        ([1.0, 0.0, 0.0], "fewer than two"),
        ([1, -1, 2], "at least 0"),
    ):
        with pytest.raises(ValueError, match=message):
            cal.undo_class_aware(z, torch.tensor(bad))


def test_sampling_meets_the_sampler():
    """Draws of `ClassAware` over items of few kinds, their frequencies undone, give the kinds' frequencies."""
    rng = np.random.default_rng(1)
    eta = 0.01 + 0.9 * rng.random((12, 4)) ** np.array([0.7, 2.0, 5.0, 12.0])
    kind = np.arange(240_000) % 12
    labels = Labels((rng.random((len(kind), 4)) < eta[kind]).astype(np.int8))
    sampler = balance.ClassAware(labels, visits=100_000)
    drawn = np.fromiter(sampler, np.int64, len(sampler))
    seen = np.stack([labels.rows(drawn[kind[drawn] == k]).mean(0) for k in range(12)])
    odds = np.log(seen / (1 - seen))
    raw = 1 / (1 + np.exp(-odds))
    back = cal.Link(losses.BCE(), class_aware=labels.counts)(odds)
    rare = np.stack([labels.rows(np.flatnonzero(kind == k)).mean(0) for k in range(12)])
    assert np.abs(back - rare).max() < 0.02
    assert np.abs(raw - rare).max() > 0.2


def fitted() -> list[cal.Calibrator]:
    rng = np.random.default_rng(0)
    z = rng.normal(-1, 2, (400, 4))
    t = (rng.random(z.shape) < 1 / (1 + np.exp(-z))).astype(int)
    t[:, 3] = 0
    made: list[cal.Calibrator] = [
        k(per).fit(z, t) for k in (cal.Temperature, cal.Platt, cal.Isotonic) for per in ("label", "pooled")
    ]
    spa = losses.SPA()
    return [*made, cal.Link(spa), cal.Link(spa, 3.0, torch.rand(4) + 0.1), cal.Link(spa, class_aware=COUNTS)]


@pytest.mark.parametrize("at", range(9))
def test_a_file_gives_back_exactly_the_same(at: int, tmp_path: Path) -> None:
    calibrator = fitted()[at]
    path = tmp_path / "calibration.json"
    path.write_text("something older")
    cal.save(calibrator, path)
    assert [p.name for p in tmp_path.iterdir()] == ["calibration.json"]
    again = cal.load(path, losses.SPA())
    assert type(again) is type(calibrator)
    assert again.state() == calibrator.state()
    z = torch.randn(300, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 5
    assert torch.equal(again(z), calibrator(z))
    document = json.loads(path.read_text())
    assert document["version"] == 1


def test_a_file_that_names_a_pooled_line_is_read(tmp_path: Path) -> None:
    """Files written before a label's prior had its own level held the pooled line too; nothing is read by it."""
    platt = fitted()[2]
    cal.save(platt, tmp_path / "c.json")
    document = json.loads((tmp_path / "c.json").read_text())
    (tmp_path / "c.json").write_text(json.dumps({**document, "pooled": [1.0, -2.0]}))
    assert cal.load(tmp_path / "c.json").state() == platt.state()


def test_an_objective_s_link_is_saved_with_its_weights_of_the_moment(tmp_path: Path) -> None:
    masking = balance.PartialLabelMasking(COUNTS, 1000, rate=0.0, initial="mean")
    objective = Objective(losses.NegativeTolerant(COUNTS, 1000), masking=masking)
    cal.save(cal.Link(objective), tmp_path / "c.json")
    again = cal.load(tmp_path / "c.json", Objective(losses.NegativeTolerant(COUNTS, 1000)))
    assert torch.equal(again(Z), cal.Link(objective)(Z))


def test_a_link_knows_its_loss_again(tmp_path: Path) -> None:
    cal.save(cal.Link(losses.SPA()), tmp_path / "c.json")
    with pytest.raises(ValueError, match="holds the link of SPA: pass that loss"):
        cal.load(tmp_path / "c.json")
    for other in (losses.SPA(zeta_neg=4.0), losses.BCE(), losses.NegativeTolerant(COUNTS, 1000)):
        with pytest.raises(ValueError, match="another SPA than the"):
            cal.load(tmp_path / "c.json", other)
    with pytest.raises(losses.NoLink):
        cal.load(tmp_path / "c.json", losses.TwoWay())


def test_nothing_is_written_unfitted_or_where_there_is_no_folder(tmp_path: Path) -> None:
    with pytest.raises(cal.NotFitted):
        cal.save(cal.Platt(), tmp_path / "c.json")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OSError):
        cal.save(fitted()[0], tmp_path / "none" / "c.json")


@pytest.mark.parametrize("at", [0, 1, 2, 4, 5, 7])
def test_a_damaged_file_is_named_in_one_line(at: int, tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    cal.save(fitted()[at], path)
    whole = path.read_text()
    document = json.loads(whole)
    damages = [whole[:k] for k in (0, 1, len(whole) // 2, len(whole) - 3)] + ["[]", "3", "null", '{"format": 1}']
    for key in document:
        damages.append(json.dumps({k: v for k, v in document.items() if k != key}))
        wrong: list[object] = [{}, "x", -3, [[1, 2], [3]], [None], True]
        if key in ("per", "version", "format", "kind"):
            wrong = [None, "other", 99]
        if key == "loss":
            wrong = [None, 3]
        if key in ("pos_weight", "neg_weight"):
            wrong = ["x", -3, [[1, 2], [3]], [None], {}]
        damages += [json.dumps({**document, key: w}) for w in wrong if not (key == "prior_positives" and w is True)]
    if "slope" in document and document["kind"] != "Link":
        damages.append(json.dumps({**document, "slope": [-1.0] * len(document["slope"])}))
        damages.append(whole.replace('"shift": [', '"shift": [1e999, ', 1))
        damages.append(whole.replace('"shift": [', '"shift": [NaN, ', 1))
        damages.append(json.dumps({**document, "slope": document["slope"] * 2}))
    if document["kind"] == "Isotonic":
        x, eta = document["pooled"]["x"], document["pooled"]["eta"]
        for pooled in (
            {"x": x[::-1], "eta": eta},
            {"x": x, "eta": eta[::-1]},
            {"x": x[1:], "eta": eta},
            {"x": [], "eta": []},
        ):
            damages.append(json.dumps({**document, "pooled": pooled}))
    for text in damages:
        path.write_text(text)
        with pytest.raises(ValueError, match=r"c\.json") as error:
            cal.load(path, losses.SPA())
        assert "\n" not in str(error.value)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="not UTF-8"):
        cal.load(path)
    with pytest.raises(ValueError, match="cannot be read"):
        cal.load(tmp_path / "absent.json")
