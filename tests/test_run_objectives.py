"""From settings to objectives: every combination of parts trains or is refused in one sentence; cautions."""

from __future__ import annotations

import inspect
import itertools
import re
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pytest
import torch

import steelyard as sy
from steelyard._schema import arguments_of
from steelyard.balance import Deferred, PartialLabelMasking, PseudoLabels, Rebalanced
from steelyard.config.build import expected_positives, known_labels, make_objective
from steelyard.config.sections import ObjectiveSettings
from steelyard.config.settings import Config
from steelyard.labels import Labels
from steelyard.losses import WeightedLoss
from steelyard.objective import Objective, Role
from steelyard.objective.parts import KINDS, SUPPLIED, Part, Slot, arguments, completed, has_link, make_loss
from steelyard.run.checks import warnings_for

N, L = 24, 6


def holed(seed: int = 0) -> Labels:
    """Labels with holes; 3 is never present, 4 never absent, 5 never known."""
    values = np.random.default_rng(seed).choice([1, 0, -1], (N, L), p=[0.3, 0.4, 0.3])
    values[:, 3] = np.minimum(values[:, 3], 0)
    values[:, 4] = np.where(values[:, 4] == 0, 1, values[:, 4])
    values[:, 5] = -1
    return Labels(values)


def one_hot(seed: int = 0) -> Labels:
    return Labels(np.eye(L, dtype=np.int8)[np.random.default_rng(seed).integers(0, L, N)])


def settings(**parts: str | Part) -> ObjectiveSettings:
    return ObjectiveSettings(**{slot: Part(part) if isinstance(part, str) else part for slot, part in parts.items()})


def gradient(objective: Objective, labels: Labels, epoch: int = 1) -> torch.Tensor:
    """The gradient of an epoch's two batches with respect to their logits, in epoch `epoch` of 3."""
    for e in range(1, epoch + 1):
        objective.start_epoch(e, 3)
    logits = torch.randn(N, L, generator=torch.Generator().manual_seed(1)).requires_grad_()
    targets = torch.from_numpy(labels.values)
    for index in torch.arange(N).split(N // 2):
        objective(logits[index], targets[index], index=index).total.backward()
    assert logits.grad is not None
    return logits.grad


# ---- all combinations

LOSSES = [Part(kind) for kind in KINDS["loss"]] + [Part("ldam", {"softmax": True})]
UNKNOWN = [
    *(Part(kind) for kind in KINDS["unknown"] if kind != "teacher"),  # which needs a file: test_partial_rules.py
    *(Part(kind, {"feedback": "link"}) for kind in ("pseudo", "annotation")),
]
SOFT = ("pseudo", "annotation", "role", "large_loss", "splc", "entropy", "entropy_apl", "gr")
PAIRS = [Part("none"), Part("on"), Part("on", {"link": False})]


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda part: part.kind + "-softmax" * bool(part.arguments))
def test_every_combination_trains_or_is_refused_in_a_sentence(loss: Part, every: int, tmp_path: Path):
    """Every fifth has each kind of each part with each kind of every other; at night all of them."""
    softmax = bool(loss.arguments)
    labels = one_hot() if softmax else holed()
    refused = trained = 0
    combinations = itertools.product(UNKNOWN, KINDS["masking"], KINDS["weighting"], PAIRS)
    for i, (unknown, masking, weighting, pair) in list(enumerate(combinations))[::every]:
        soft = unknown.kind in SOFT
        impossible = not has_link(loss) and (
            (pair.kind == "on" and "link" not in pair.arguments)
            or (softmax and (soft or masking == "plm"))
            or (unknown.kind == "annotation" or unknown.arguments.get("feedback") == "link")
        )
        parts = dict(loss=loss, unknown=unknown, masking=masking, weighting=weighting, label_pair=pair)
        if impossible:
            with pytest.raises(ValueError, match=r"^objective\.loss is .*: .*objective\.\w+.*|choose") as refusal:
                settings(**parts)
            assert "\n" not in str(refusal.value)
            refused += 1
            continue
        objective = make_objective(settings(**parts), labels, tmp_path / str(i), seed=0)
        grad = gradient(objective, labels)
        assert grad.isfinite().all(), parts
        assert grad.abs().sum() > 0, parts
        trained += 1
    assert refused + trained == -(-len(UNKNOWN) * 2 * 4 * 3 // every)
    assert (refused == 0) == has_link(loss)


def test_arguments_reach_the_constructors(tmp_path: Path):
    labels = holed()
    chosen = settings(
        loss=Part("distribution_balanced", {"mu": 0.3, "lam": 5, "gamma": 2.0}),
        unknown=Part("annotation", {"q": [0.1, 0.4], "m": 2, "use_p": False, "feedback": "link"}),
        masking=Part("plm", {"rate": 0.5, "bins": 4, "clip": (0.1, 2.0), "initial": "mean"}),
        weighting=Part("class_balanced", {"beta": 0.9, "mode": "mean_count", "start": 2}),
        label_pair=Part("on", {"weight": 0.25, "link": False}),
    )
    objective = make_objective(chosen, labels, tmp_path, seed=7)
    rule: Any = objective.resolver
    assert objective.loss.reduction == "item"
    assert (objective.loss.k_neg, objective.loss.gamma) == (5.0, 2.0)
    assert (rule.q_first, rule.q_last, rule.m, rule.use_p, rule.seed) == (0.1, 0.4, 2.0, False, 7)
    assert (rule.store.feedback, rule.store.path) == ("link", tmp_path / "pseudo-labels")
    assert (rule.store.n_items, rule.store.n_labels) == (N, L)
    masking = objective.masking
    assert isinstance(masking, PartialLabelMasking)
    assert (masking.rate, masking.bins, masking.clip, masking.seed) == (0.5, 4, (0.1, 2.0), 7)
    rebalanced, deferred = objective.weightings
    assert isinstance(rebalanced, Rebalanced)
    assert rebalanced.mu == 0.3
    assert isinstance(deferred, Deferred)
    assert (deferred.start, deferred.weighting.beta, deferred.weighting.mode) == (2, 0.9, "mean_count")
    assert [(r.weight, r.link) for r in objective.regularizers] == [(0.25, False)]


def test_none_is_an_empty_list(tmp_path: Path):
    objective = make_objective(settings(masking=Part("plm", {"clip": []})), holed(), None, 0)
    assert objective.masking.clip is None


def test_deferred_weights_begin_at_their_epoch():
    labels = holed()
    late = make_objective(settings(weighting=Part("inverse_frequency", {"start": 3})), labels, None, 0)
    plain = make_objective(settings(), labels, None, 0)
    always = make_objective(settings(weighting="inverse_frequency"), labels, None, 0)
    assert not isinstance(always.weightings[0], Deferred)
    before = gradient(late, labels, epoch=2)
    assert torch.allclose(before, gradient(plain, labels, epoch=2))
    late = make_objective(settings(weighting=Part("inverse_frequency", {"start": 3})), labels, None, 0)
    begun = gradient(late, labels, epoch=3)
    assert torch.allclose(begun, gradient(always, labels, epoch=3))
    assert not torch.allclose(begun, before)


def test_statistics_are_those_that_training_sees():
    """With unknown labels as negatives, π_c = n_c/N; without, n_c/k_c: PLM's ratio and NTR's shift."""
    labels = holed()
    for rule, known in (("ignore", labels.n_known), ("negative", np.full(L, N)), ("wan", np.full(L, N))):
        chosen = settings(loss="negative_tolerant", unknown=rule, masking="plm")
        np.testing.assert_array_equal(known_labels(chosen, labels), known)
        objective = make_objective(chosen, labels, None, 0)
        usable = (labels.counts > 0) & (labels.counts < known)
        expected = labels.counts / (known - labels.counts + 1e-300)
        np.testing.assert_allclose(objective.masking.data_ratio.numpy()[usable], expected[usable])
        n = np.maximum(labels.counts, 1)
        nu = 0.05 * np.log(np.maximum(known - n, 1) / n)
        np.testing.assert_allclose(objective.loss.shift_positive.numpy(), nu, rtol=1e-12)


def test_make_loss_is_the_loss_of_the_objective():
    labels = holed()
    made = make_loss(Part("distribution_balanced"), labels.counts, labels.n_known)
    assert isinstance(made, WeightedLoss)
    assert made.reduction == "mean"
    assert make_loss(Part("bce", {"smoothing": 0.1}), labels.counts, labels.n_known, "item").reduction == "item"
    with pytest.raises(ValueError, match=r"objective.loss.kind is 'bec': .*did you mean bce"):
        make_loss(Part("bec"), labels.counts, labels.n_known)


def test_role_estimates_the_expected_positives_unless_given():
    labels = holed()
    some = labels.n_known > 0
    mean = (labels.counts[some] / labels.n_known[some]).sum()
    rule = make_objective(settings(unknown="role"), labels, None, 0).resolver
    assert isinstance(rule, Role)
    assert rule.expected_positives == pytest.approx(mean)
    assert expected_positives(labels) == pytest.approx(mean)
    given = make_objective(settings(unknown=Part("role", {"expected_positives": 1.5})), labels, None, 0).resolver
    assert isinstance(given, Role)
    assert given.expected_positives == 1.5
    only_positives = Labels(np.where(labels.values == 0, -1, labels.values))
    with pytest.raises(ValueError, match="expected_positives is 0 and no negative is known"):
        make_objective(settings(unknown="role"), only_positives, None, 0)
    with pytest.raises(ValueError, match="nothing to learn"):
        make_objective(settings(unknown="role"), Labels(np.zeros((3, 2))), None, 0)


def test_the_seed_decides_masks_and_first_estimates():
    labels = holed()
    chosen = settings(unknown="role", masking=Part("plm", {"initial": "min"}))
    a, b, other = (gradient(make_objective(chosen, labels, None, seed), labels) for seed in (3, 3, 4))
    assert torch.equal(a, b)
    assert not torch.equal(a, other)


def test_pseudo_labels_need_a_folder_and_are_found_again(tmp_path: Path):
    labels, chosen = holed(), settings(unknown="pseudo")
    with pytest.raises(ValueError, match=r"objective.unknown is 'pseudo', which keeps pseudo-labels on disk"):
        make_objective(chosen, labels, None, 0)
    gradient(make_objective(chosen, labels, tmp_path, 0), labels)
    store: Any = make_objective(chosen, labels, tmp_path, 0).resolver
    store.store.start_epoch(2)
    assert isinstance(store.store, PseudoLabels)
    assert not torch.allclose(store.store.read(torch.arange(N)), torch.tensor(0.5))


@pytest.mark.parametrize("fill", [0, -1])
def test_softmax_needs_one_positive_an_item(fill: int):
    softmax = settings(loss=Part("ldam", {"softmax": True}))
    values = np.eye(L, dtype=np.int8)[np.arange(N) % L]
    if fill == -1:
        values[: N // 2][values[: N // 2] == 0] = -1
        values[N // 2 :] = -1
    assert Labels(values).fill == fill
    make_objective(softmax, Labels(values), None, 0)
    values[3] = -1
    objective = make_objective(softmax, Labels(values), None, 0)
    assert gradient(objective, Labels(values)).isfinite().all()  # an item of which nothing is known takes no part
    with pytest.raises(ValueError, match=r"item '3' has 0 positives"):
        make_objective(settings(loss=Part("ldam", {"softmax": True}), unknown="negative"), Labels(values), None, 0)
    values[5] = [1, 1, 0, 0, 0, 0]
    with pytest.raises(ValueError, match=r"item '5' has 2 positives"):
        make_objective(softmax, Labels(values), None, 0)
    with pytest.raises(ValueError, match="some labels are soft"):
        make_objective(softmax, Labels(np.full((2, 3), 0.4)), None, 0)


# ---- the table of kinds


def slots() -> list[tuple[Slot, str]]:
    return [(slot, kind) for slot in get_args(Slot) for kind in KINDS[slot]]


@pytest.mark.parametrize(("slot", "kind"), slots())
def test_every_argument_of_a_constructor_is_settable_or_supplied(slot: Slot, kind: str):
    entry, known = KINDS[slot][kind], arguments(slot, kind)
    for maker in (entry.maker, entry.beside):
        if maker is None:
            continue
        for name, parameter in inspect.signature(maker).parameters.items():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            assert (name in known) != (name in SUPPLIED), name
            if name in known and parameter.default is not parameter.empty:
                assert known[name].default == (() if parameter.default is None else parameter.default)
                assert type(known[name].default) is type(parameter.default) or parameter.default is None
    for name, setting in known.items():
        assert setting.doc, name
        assert completed(slot, Part(kind, {name: setting.default})) == completed(slot, Part(kind))
    assert list(completed(slot, Part(kind)).arguments) == list(known)


def test_every_supplied_argument_is_of_some_constructor():
    makers = [maker for kinds in KINDS.values() for entry in kinds.values() for maker in (entry.maker, entry.beside)]
    assert set(SUPPLIED) == {name for maker in makers if maker for name in arguments_of(maker) if name in SUPPLIED}


def test_the_kinds_are_all_there_is():
    """A new loss, rule or weighting cannot be forgotten."""
    made = {entry.maker for kinds in KINDS.values() for entry in kinds.values()}
    bases = {"PairLoss", "AnalyticLoss", "FormulaLoss", "SoftplusPair", "PartialAnnotation", "Loss", "Resolver"}
    for name in set(sy.losses.__all__) - bases:
        thing = getattr(sy.losses, name)
        if inspect.isclass(thing) and issubclass(thing, sy.losses.Loss | sy.losses.Resolver):
            assert thing in made, name
    for name in sy.balance.__all__:
        thing = getattr(sy.balance, name)
        if inspect.isclass(thing) and issubclass(thing, sy.balance.Weighting) and not inspect.isabstract(thing):
            assert thing in {*made, Deferred}, name


@pytest.mark.parametrize(
    ("slot", "part", "sentence"),
    [
        ("loss", Part("focl"), "objective.loss.kind is 'focl': choose one of bce, focal.*; did you mean focal?"),
        ("loss", Part("focal", {"gama": 1}), "objective.loss.gama is given, .*'focal', .*: did you mean gamma?"),
        ("loss", Part("focal", {"zzz": 1}), "objective.loss.zzz is given, .*: it has gamma, scale"),
        ("loss", Part("focal", {"gamma": -1}), r"objective.loss.gamma is -1.0: it must be at least 0 and finite"),
        ("loss", Part("bce", {"counts": 3}), "objective.loss.counts is given, .*it has smoothing"),
        ("unknown", Part("ignore", {"q": 1}), "objective.unknown.q is given, .*which has no arguments: leave it out"),
        ("unknown", Part("annotation", {"q": (0.1, 0.2, 0.3)}), "q is .*: it must be a number or a list of 2 numbers"),
        ("unknown", Part("annotation", {"feedback": "lnk"}), "feedback is 'lnk': choose one of raw, link"),
        ("unknown", Part("role", {"expected_positives": -1.0}), "objective.unknown.expected_positives is -1.0"),
        ("masking", Part("plm", {"clip": [2.0, 1.0]}), r"objective.masking.clip is \(2.0, 1.0\): give \(low, high\)"),
        ("weighting", Part("rebalanced", {"start": 0}), "objective.weighting.start is 0: epochs count from 1"),
        ("weighting", Part("class_balanced", {"beta": 1}), "objective.weighting.beta is 1.0: it must be in"),
        ("label_pair", Part("on", {"link": 1}), "objective.label_pair.link is 1: it must be true or false"),
        ("label_pair", Part("yes"), "objective.label_pair.kind is 'yes': choose one of none, on"),
    ],
)
def test_what_a_part_cannot_be(slot: Literal["loss"], part: Part, sentence: str):
    with pytest.raises(ValueError, match=sentence) as refusal:
        ObjectiveSettings(**{slot: part})
    assert "\n" not in str(refusal.value)


# ---- cautions


def cautions(changes: dict[str, Any], labels: Labels) -> str:
    return "\n".join(warnings_for(Config().with_overrides(changes), labels))


def full(n: int = 40) -> Labels:
    values = np.random.default_rng(0).integers(0, 2, (n, 3))
    values[0] = 1
    return Labels(values, names=["cat", "dog", "car"])


def test_nothing_to_say_of_sound_runs():
    assert cautions({}, full()) == ""
    values = full().values
    values[::4, 0] = -1
    values[1::2][:4, 1] = 0
    assert cautions({"objective": {"loss": "spa", "masking": "plm"}}, Labels(np.where(values == 1, 0, 1))) == ""


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"objective": {"unknown": "negative"}}, "'negative': the .* unknown count as absent"),
        ({"objective": {"unknown": "wan"}}, "'wan': the .* unknown count as absent"),
        ({}, "'0', '1', '2' and 1 more: never absent"),
        ({}, "unknown is 'ignore' and 100% of the known labels are positives: .* set objective.unknown to wan"),
        ({"objective": {"unknown": "role"}}, "expected_positives is estimated"),
        ({"objective": {"loss": "distribution_balanced"}}, "class-aware sampling, but train.sampler is 'shuffle'"),
        (
            {"objective": {"weighting": {"kind": "class_balanced", "start": 31}}, "train": {"epochs": 30}},
            "start is 31, but train.epochs is 30",
        ),
        ({"train": {"sampler": "class_aware"}}, "1 of 8 items have no positive"),
        (
            {"objective": {"loss": "distribution_balanced", "weighting": "rebalanced"}},
            "loss 'distribution_balanced' and objective.weighting 'rebalanced' both apply the rebalancing weight",
        ),
    ],
)
def test_what_is_said_of_positives_alone(changes: dict[str, Any], sentence: str):
    values = np.full((8, 4), -1)
    values[np.arange(7), np.arange(7) % 4] = 1
    assert re.search(sentence, cautions(changes, Labels(values)))


def test_what_is_said_of_labels():
    values = full().values
    values[:, 1] = 0
    found = warnings_for(Config(), Labels(values, names=["cat", "dog", "car"]))
    assert found == ["label 'dog': never present in training, so never predicted as present"]
    values[:, 1] = -1
    assert "label 'dog': never known" in cautions({}, Labels(values, names=["cat", "dog", "car"]))
    assert "label 'dog': never present" in cautions(
        {"objective": {"unknown": "negative"}}, Labels(values, names=["cat", "dog", "car"])
    )
    assert "no label is unknown" in cautions({"objective": {"unknown": "annotation"}}, full())
    softmax = {"objective": {"loss": {"kind": "ldam", "softmax": True}}}
    assert "model.head is 'linear': with the cosine head" in cautions(softmax, full())
    assert cautions({**softmax, "model": {"head": "cosine"}}, full()) == ""
    assert cautions({"objective": {"loss": "ldam"}}, full()) == ""
    assert "re-sampled" not in cautions(
        {"objective": {"loss": "distribution_balanced"}, "train": {"sampler": "class_aware"}}, full()
    )


def test_the_reduction_is_set_and_refused_where_a_rule_needs_another() -> None:
    labels = Labels(np.array([[1, 0], [0, 1], [1, -1]], np.int8))
    assert make_objective(ObjectiveSettings(reduction="item"), labels, None, 0).loss.reduction == "item"
    with pytest.raises(ValueError, match=r"objective\.reduction is 'item', but objective\.unknown 'role' needs 'mean'"):
        make_objective(ObjectiveSettings(unknown=Part("role"), reduction="item"), labels, None, 0)
    with pytest.raises(ValueError, match=r"objective\.reduction is 'sum': choose one of mean, item"):
        ObjectiveSettings(reduction="sum")  # type: ignore[arg-type]
