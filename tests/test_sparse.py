"""Sparse features: linear models of them are those of the dense ones, wherever they come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sparse
import torch

import steelyard as sy
from steelyard.data.files import DataError
from steelyard.data.sparse import WIDE, SparseRows
from steelyard.labels.targets import as_targets
from steelyard.losses import BCE, SPA
from steelyard.losses.loss import Cells, known_cells
from steelyard.models.race.members import MemberSpec
from steelyard.models.race.transforms import make_transform
from steelyard.training import small_models
from steelyard.training.race import linear
from steelyard.training.race.candidates import Items, Linear, Trial, View, refit
from steelyard.training.race.linear import Rotation, fit_linear
from steelyard.training.small_models import baseline, features_of


def items(n: int = 150, width: int = 60, n_labels: int = 3) -> tuple[Any, np.ndarray]:
    """Counts that are mostly 0, and labels that depend on them, some unknown."""
    rng = np.random.default_rng(0)
    x = rng.poisson(0.2, (n, width)).astype(np.float32)
    y = (x[:, :n_labels] + x[:, n_labels : 2 * n_labels] + 0.5 * rng.random((n, n_labels)) > 1.0).astype(np.int8)
    y[rng.random(y.shape) < 0.1] = -1
    return sparse.csr_array(x), y


@pytest.mark.parametrize("loss", [BCE(), SPA()], ids=["bce", "spa"])
@pytest.mark.parametrize("at_once", [4_000_000, 0], ids=["together", "in parts"])
@pytest.mark.parametrize("width", [100, 400], ids=["by feature", "by item"])
def test_a_sparse_fit_is_the_dense_one(loss: Any, at_once: int, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = items(n_labels=40 if at_once == 0 else 3, width=width)
    assert linear.is_by_item(SparseRows(x)) == (width == 400)
    monkeypatch.setattr(linear, "_WEIGHTS_AT_ONCE", at_once)
    cells = known_cells(as_targets(torch.from_numpy(y), torch.empty(y.shape)), torch.float32)
    rotation = Rotation.of(torch.from_numpy(x.toarray()))
    dense = rotation.unrotated(fit_linear(rotation.x, cells, loss, 0.3, tolerance=1e-9))
    found = fit_linear(SparseRows(x), cells, loss, 0.3, tolerance=1e-9)
    assert bool(found.converged.all())
    assert torch.allclose(found.weight, dense.weight, atol=2e-3)
    assert torch.allclose(found.logits(SparseRows(x)), dense.logits(torch.from_numpy(x.toarray())), atol=5e-3)


@pytest.mark.parametrize("kind", ["none", "sqrt", "tfidf", "svd"])
def test_transforms_of_sparse_features_are_those_of_dense_ones(kind: str) -> None:
    x = items()[0]
    rows, dense = SparseRows(x), torch.from_numpy(x.toarray())
    transform = make_transform(kind, x.shape[1])
    transform.fit(rows)
    found = transform(rows)
    assert torch.allclose(found if kind == "svd" else found.dense(), transform(dense), atol=1e-5)
    other = make_transform(kind, x.shape[1])
    other.fit(dense)
    for name, value in other.state_dict().items():
        assert torch.allclose(transform.state_dict()[name].abs(), value.abs(), atol=1e-4)


def test_operations_against_numpy() -> None:
    x = items()[0]
    rows, dense = SparseRows(x), x.toarray().astype(np.float64)
    w, s = torch.randn(60, 4), torch.randn(150, 4)
    assert np.allclose(rows.affine(w, torch.ones(4)), dense @ w.numpy() + 1, atol=1e-4)
    assert np.allclose(rows.transposed_product(s), dense.T @ s.numpy(), atol=1e-4)
    assert np.allclose(rows.mean(), dense.mean(0))
    assert np.allclose(rows.mean_square(), (dense**2).mean(0))
    assert np.allclose(rows.occurrences(), (dense > 0).sum(0))
    assert rows[torch.tensor([3, 1])].dense().tolist() == dense[[3, 1]].tolist()


def wide(n: int = 120) -> tuple[Any, np.ndarray]:
    x, y = items(n)
    return sparse.csr_array(sparse.hstack([x, sparse.random(n, WIDE, 0.005, random_state=0)])), y


def test_wide_features_stay_sparse_from_fit_to_prediction(tmp_path: Path) -> None:
    x, y = wide()
    run = sy.fit((x, y), out=tmp_path / "run", verbose=False, settings={"train": {"budget": 1e8}})
    names = [row["candidate"] for row in sy.run.api.RunFolder(tmp_path / "run").read_race()["candidates"]]
    assert {"none, linear, bce", "sqrt, linear, bce", "tfidf, linear, bce"} <= set(names)
    assert not any("standardise" in name for name in names)
    eta = run.probability(x)
    assert np.allclose(eta, run.probability(x.toarray()), atol=1e-6)
    assert np.allclose(eta, sy.Run.load(tmp_path / "run").probability(x), atol=1e-6)


def test_wide_features_of_a_plain_recipe_and_of_the_baseline() -> None:
    x, y = wide()
    data = sy.data.ArrayDataset(x, sy.Labels(y))
    assert isinstance(features_of(data), SparseRows)
    run = sy.fit(data, "bce", verbose=False)
    fit = baseline(data, torch.device("cpu"), 0).model
    assert np.allclose(run.logits(x), fit.logits(features_of(data)), atol=2e-2)


def save(path: Path, **matrices: Any) -> Path:
    arrays = {}
    for name, m in matrices.items():
        arrays |= {f"{name}_data": m.data, f"{name}_indices": m.indices, f"{name}_indptr": m.indptr}
        arrays[f"{name}_shape"] = np.array(m.shape)
    np.savez(path, **arrays)
    return path


def test_npz_of_sparse_matrices(tmp_path: Path) -> None:
    x, y = items()
    y = np.maximum(y, 0)
    opened = sy.data.open_data(save(tmp_path / "a.npz", X_train=x, Y_train=sparse.csr_array(y), X_test=x))
    assert opened.split == "train"
    assert sparse.issparse(opened.data.inputs)
    assert (opened.data.inputs.toarray() == x.toarray()).all()
    assert (opened.data.labels.values == y).all()
    batch = next(iter(sy.data.open_inputs(tmp_path / "a.npz").batches(10)))
    assert batch.inputs.tolist() == x[:10].toarray().tolist()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"X_indptr": None}, "X"),
        ({"X_indices": np.array([0, 99])}, "CSR"),
        ({"X_shape": np.array([2.5, 3])}, "whole numbers"),
        ({"X_shape": None}, "X_shape"),
    ],
)
def test_a_damaged_sparse_matrix_is_one_sentence(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    x = sparse.csr_array(np.eye(2, 3, dtype=np.float32))
    arrays = {"X_data": x.data, "X_indices": x.indices, "X_indptr": x.indptr, "X_shape": np.array(x.shape)}
    arrays |= {"Y": np.eye(2, dtype=np.int8)} | change
    np.savez(tmp_path / "a.npz", **{name: value for name, value in arrays.items() if value is not None})
    with pytest.raises(DataError, match=said):
        sy.data.npz(tmp_path / "a.npz")


def test_what_is_no_number_is_named() -> None:
    x, y = wide()
    x.data[0] = np.nan
    with pytest.raises(ValueError, match="is nan"):
        sy.fit((x, y), verbose=False)


@pytest.mark.parametrize("header", ["", "3 7 9\n"], ids=["svmlight", "xmc"])
def test_sparse_text_files(tmp_path: Path, header: str) -> None:
    path = tmp_path / "items.svm"
    path.write_text(header + "0,8 1:0.5 6:2 # two labels\n8 3:1\n2:1e-1\n")
    opened = sy.data.open_data(path)
    assert opened.format == "svmlight"
    assert opened.data.inputs.toarray().tolist() == [
        [0, 0.5, 0, 0, 0, 0, 2],
        [0, 0, 0, 1, 0, 0, 0],
        [0, 0, np.float32(0.1), 0, 0, 0, 0],
    ]
    names = opened.data.labels.names
    assert names == (("0", "8") if not header else tuple(map(str, range(9))))
    assert opened.data.labels.values[:, [names.index("0"), names.index("8")]].tolist() == [[1, 1], [0, 1], [0, 0]]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("# nothing\n", "no items"),
        ("1 2:x\n", "line 1"),
        ("1 2:3:4\n", "line 1"),
        ("1 -2:3\n", "from -2"),
        ("1 2:nan\n", "finite"),
        ("2 3 2\n0 1:1\n", "says 2"),
        ("1 3 2\n5 1:1\n", "label '5'"),
        ("1 3 2\n1 9:1\n", "to 9"),
        ("1 99999999999:1\n", "99999999999"),
        ("2:1\n", "no label"),
    ],
)
def test_bad_sparse_text_is_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "items.svm").write_text(text)
    with pytest.raises(DataError, match=said):
        sy.data.open_data(tmp_path / "items.svm")


def test_a_weight_of_two_is_an_item_twice() -> None:
    x, y = items()
    weights = np.where(np.arange(len(y)) % 3 == 0, 2.0, 1.0)
    data = sy.data.ArrayDataset(x, sy.Labels(y), weights=weights)
    cells = small_models._known_cells(data, torch.from_numpy(y), torch.device("cpu"))
    twice = np.repeat(np.arange(len(y)), weights.astype(int))
    plain = known_cells(as_targets(torch.from_numpy(y[twice]), torch.empty(len(twice), 3)), torch.float32)
    assert cells is not None
    found = fit_linear(SparseRows(x), cells, BCE(), 0.3, tolerance=1e-9)
    expected = fit_linear(SparseRows(x[twice]), plain, BCE(), 0.3, tolerance=1e-9)
    assert torch.allclose(found.weight, expected.weight, atol=2e-3)


@pytest.mark.parametrize("recipe", ["auto", "bce"])
def test_items_of_weight_0_teach_nothing(recipe: str) -> None:
    x, y = items(200)
    x, y = x.toarray(), np.maximum(y, 0)
    wrong = y.copy()
    wrong[:100] = 1 - wrong[:100]
    weights = (np.arange(200) >= 100).astype(float)
    settings = {"train": {"budget": 1e7}} if recipe == "auto" else {}
    run = sy.fit((x, wrong), recipe, sample_weight=weights, verbose=False, settings=settings)
    assert sy.metrics.mean_average_precision(run.logits(x[100:]), y[100:]) > 0.9
    plain = sy.fit((x, wrong), recipe, verbose=False, settings=settings)
    assert sy.metrics.mean_average_precision(plain.logits(x[100:]), y[100:]) < 0.9


@pytest.mark.parametrize(
    ("weights", "said"), [(np.ones(3), "shape"), (-np.ones(150), "at least 0"), (np.zeros(150), "zero throughout")]
)
def test_bad_weights_are_one_sentence(weights: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        sy.fit(items(), sample_weight=weights, verbose=False)
    with pytest.raises(ValueError, match="training loop"):
        sy.fit(items(), "bce", sample_weight=np.ones(150), verbose=False, settings={"train": {"epochs": 1}})


def of_known(y: np.ndarray) -> Cells:
    return known_cells(as_targets(torch.from_numpy(y), torch.empty(y.shape)), torch.float32)


def test_names_are_items_of_which_one_label_is_known() -> None:
    x, y = items(120, width=400)
    names = SparseRows(
        sparse.csr_array(np.diag([1, 1, 0]) @ np.eye(3, 400), dtype=np.float32)
    )  # the third says nothing
    weighted = Cells(*(2 * part for part in of_known(y)[:2]))  # every item
    target = np.vstack([y, [[1, -1, -1], [-1, 1, -1], [-1, -1, -1]]]).astype(np.int8)
    both = SparseRows(sparse.vstack([x, names.cells], format="csr"))
    for cells, factor in ((None, 1.0), (weighted, 2.0)):
        found = Items(SparseRows(x), torch.from_numpy(y), np.arange(120) % 3, cells, names)
        model = Linear.of(View(found, MemberSpec("none"), 0), BCE(), named=True)
        fit = model.refit(3.0)
        stacked = Cells(*(factor * part for part in of_known(target)[:2]))
        expected = fit_linear(both, stacked, BCE(), 3.0 * model.view.unit)
        assert torch.allclose(fit.weight, expected.weight, atol=2e-3)
        trial = model.trial(3.0, [0, 1, 2], {}, 1e-6)
        assert trial.log_odds.shape == y.shape
        assert bool(trial.log_odds.isfinite().all())


def test_sums_of_items_keep_the_penalty_per_item() -> None:
    for width, share in ((400, 2 / 3), (100, 1.0)):
        x, y = items(120, width=width)
        found = Items(SparseRows(x), torch.from_numpy(y), np.arange(120) % 3)
        spec = MemberSpec("none")
        view = View(found, spec, 0)
        member = refit(view, spec, Trial(torch.zeros(0), 0, True, 3.0), 0)
        last = member.network[0]
        assert isinstance(last, torch.nn.Linear)
        assert torch.allclose(last.weight.T, Linear.of(view, BCE()).refit(3.0 * share).weight, atol=1e-5)
