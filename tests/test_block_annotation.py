"""Paper 3's rule in the head by blocks against the dense path with its table of pseudo-labels, in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from steelyard.balance import InverseFrequency, LabelPair, PartialLabelMasking, PickedLabels, PseudoLabels
from steelyard.balance.philox import uniform, uniform_at
from steelyard.labels import Labels
from steelyard.losses import BCE, Annotation
from steelyard.models.block import BlockHead, SparseTargets, prior_bias
from steelyard.objective import Objective, prior_logits

N, F, L, EPOCHS = 26, 5, 23, 3
COUNTS = torch.arange(1, L + 1)


def items(fill: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(N, F, generator=g, dtype=torch.float64)
    t = (torch.rand(N, L, generator=g) < 0.3).double()
    t[torch.rand(N, L, generator=g) < (0.8 if fill else 0.3)] = -1
    t[0], t[1] = -1, t[1].clamp_min(0)  # an item of which nothing is known, and one of which all is
    return x, t


def head_of(low: bool, **given: Any) -> BlockHead:
    torch.manual_seed(1)
    head = BlockHead(F, L, **{"block": 8, "dtype": torch.float64, **given})
    with torch.no_grad():
        head.weight.normal_()
        head.bias.normal_(-6.0 if low else 0.0)
    return head


def objective_of(store: Any, regularizers: Any = (), **given: Any) -> Objective:
    return Objective(BCE(reduction="item"), Annotation(store, m=1, seed=7, **given), regularizers=regularizers)


def test_draws_of_single_cells_are_those_of_tables() -> None:
    index, labels = torch.tensor([0, 3, 1 << 40, 5]), torch.tensor([0, 2, 5, 22])
    whole = uniform(12345678901, 4, index, L)
    assert torch.equal(uniform_at(12345678901, 4, index, labels), whole[torch.arange(4), labels])


@pytest.mark.parametrize("fill", [0, -1])
@pytest.mark.parametrize(
    "given",
    [
        dict(q=(0.2, 0.7)),
        dict(q=0.5, feedback="link"),
        dict(q=0.5, low=True),
        dict(q=1.0, use_p=False, use_d=False),
        dict(q=0.4, use_alpha_beta=False, schedule="linear"),
        dict(q=0.4, regularizers=[LabelPair(0.7)]),
        dict(q=0.0),
    ],
    ids=str,
)
def test_three_epochs_are_those_of_the_dense_path(given: dict[str, Any], fill: int, tmp_path: Path) -> None:
    """Values, gradients of features and weights, step by step: pseudo-labels of one epoch are read in the next."""
    given = dict(given)
    low, feedback = given.pop("low", False), given.pop("feedback", "raw")
    (x, t), head = items(fill), head_of(low)
    w, b = head.weight.clone().requires_grad_(), head.bias.clone().requires_grad_()
    optimizer = torch.optim.SGD([w, b], lr=0.3)
    ours = objective_of(PickedLabels(tmp_path / "picked", N, L, feedback), **given)
    theirs = objective_of(PseudoLabels(tmp_path / "table", N, L, feedback), **given)
    for epoch in range(1, EPOCHS + 1):
        for objective in (ours, theirs):
            objective.start_epoch(epoch, EPOCHS)
        for index in torch.randperm(N, generator=torch.Generator().manual_seed(epoch)).split(7):
            optimizer.zero_grad()
            features, same = (x[index].clone().requires_grad_() for _ in range(2))
            want = theirs(features @ w.T + b, t[index], index).total
            want.backward()
            optimizer.step()
            value = head.step(same, SparseTargets.from_dense(t[index], fill), ours, lr=0.3, index=index).total
            value.backward()
            torch.testing.assert_close(value, want)
            torch.testing.assert_close(same.grad, features.grad)
        torch.testing.assert_close(head.weight, w)
        torch.testing.assert_close(head.bias, b)
    for mine, dense in zip(ours.class_weights(), theirs.class_weights(), strict=True):
        torch.testing.assert_close(mine, dense)


def test_an_epoch_begun_again_reads_what_it_read(tmp_path: Path) -> None:
    (x, t), index = items(-1), torch.arange(N)
    values = []
    for again in (False, True):
        head, store = head_of(False), PickedLabels(tmp_path / str(again), N, L)
        objective = objective_of(store, q=0.6)
        targets = SparseTargets.from_dense(t, -1)
        for epoch in (1, 2):
            objective.start_epoch(epoch, EPOCHS)
            value = head.step(x, targets, objective, 0.3, index).total
        before = head.weight.clone(), head.bias.clone()
        objective.start_epoch(3, EPOCHS)
        if again:  # some steps of epoch 3, then a new process that begins it
            head.step(x[:5], SparseTargets.from_dense(t[:5], -1), objective, 0.3, index[:5])
            objective = objective_of(PickedLabels(tmp_path / str(again), N, L), q=0.6)
            objective.resolver.store.check_continues(3)
            objective.start_epoch(3, EPOCHS)
            with torch.no_grad():
                head.weight.copy_(before[0])
                head.bias.copy_(before[1])
        value = head.step(x, targets, objective, 0.3, index).total
        values.append(value.detach())
    assert values[0] == values[1]
    with pytest.raises(ValueError, match="no pseudo-labels of epoch 5"):
        PickedLabels(tmp_path / "True", N, L).check_continues(6)


@pytest.mark.parametrize("fill", [0, -1])
def test_the_start_is_that_of_the_dense_path(fill: int, tmp_path: Path) -> None:
    """With all unknown labels picked the first cells are known without drawing."""
    t = items(fill)[1].numpy()
    labels = Labels(t.astype(int)) if fill == 0 else _listed(t)
    dense, ours = (
        objective_of(store, q=1.0)
        for store in (PseudoLabels(tmp_path / "table", N, L), PickedLabels(tmp_path / "picked", N, L))
    )
    torch.testing.assert_close(prior_bias(ours, labels, 4), prior_logits(dense, labels, n_epochs=4, batch_size=N))


def _listed(t: Any) -> Labels:
    rows, columns = (t != -1).nonzero()
    return Labels.from_cells(rows, columns, t[rows, columns].astype(int), t.shape, -1)


def test_what_needs_all_labels_at_once_is_refused(tmp_path: Path) -> None:
    x, t = items(0)
    picked, targets, index = PickedLabels(tmp_path / "picked", N, L), SparseTargets.from_dense(t), torch.arange(N)
    masking = PartialLabelMasking(COUNTS, 40, rate=0)
    for objective, match in (
        (objective_of(PseudoLabels(tmp_path / "table", N, L)), "no PickedLabels"),
        (objective_of(picked, count="pseudo"), "sums over all unknown labels"),
        (Objective(BCE(reduction="item"), Annotation(picked), masking), "leave masks and weightings out"),
        (
            Objective(BCE(reduction="item"), Annotation(picked), weighting=InverseFrequency(COUNTS)),
            "leave masks and weightings out",
        ),
    ):
        with pytest.raises(ValueError, match=match):
            head_of(False).step(x, targets, objective, 0.1, index)
