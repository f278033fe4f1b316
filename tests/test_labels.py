"""The table of labels against dense references, in every way it can be stored."""

from __future__ import annotations

import pickle
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import sparse

from steelyard.labels import UNKNOWN, Labels

CELLS = st.sampled_from([-1.0, 0.0, 1.0])
SOFT = st.sampled_from([-1.0, 0.0, 1.0, 0.25, 0.5, 0.75])
SHAPES = hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=7)
TABLES = st.one_of(hnp.arrays(np.float32, SHAPES, elements=CELLS), hnp.arrays(np.float32, SHAPES, elements=SOFT))


def stored_with(values: np.ndarray, fill: int) -> Labels:
    items, columns = np.nonzero(values != fill)
    return Labels.from_cells(items, columns, values[items, columns], values.shape, fill)


def every_way(values: np.ndarray) -> list[Labels]:
    everything = [a.ravel() for a in np.indices(values.shape)]
    return [
        Labels(values),
        Labels(torch.tensor(values)),
        stored_with(values, UNKNOWN),
        stored_with(values, 0),
        Labels.from_cells(*(a[::-1] for a in everything), values.ravel()[::-1], values.shape, UNKNOWN),
    ]


def quotient(above: float, below: float) -> float:
    return above / below if below else float("nan") if above == 0 else float("inf")


@settings(max_examples=150)
@given(TABLES)
def test_statistics_equal_a_dense_reference_however_stored(y: np.ndarray) -> None:
    n_items, n_labels = y.shape
    each = range(n_labels)
    n = [int((y[:, c] >= 0.5).sum()) for c in each]
    k = [int((y[:, c] != -1).sum()) for c in each]
    both = [[int(((y[:, i] >= 0.5) & (y[:, j] >= 0.5)).sum()) for j in each] for i in each]
    seen = [[int(((y[:, i] != -1) & (y[:, j] >= 0.5)).sum()) for j in each] for i in each]
    seen_n = [j for j in each if n[j]]
    resampled = [quotient(sum(both[i][j] / n[j] for j in seen_n), sum(seen[i][j] / n[j] for j in seen_n)) for i in each]
    for labels in every_way(y):
        assert np.array_equal(labels.values, y)
        assert (labels.cells()[2] != labels.fill).all()
        assert labels.values.dtype == (np.float32 if ((y > 0) & (y < 1)).any() else np.int8)
        assert (labels.n_items, labels.n_labels, len(labels)) == (n_items, n_labels, n_items)
        assert labels.counts.tolist() == n
        assert labels.n_known.tolist() == k
        np.testing.assert_array_equal(labels.prior, [quotient(n[c], k[c]) for c in each])
        np.testing.assert_array_equal(labels.ratio, [quotient(n[c], k[c] - n[c]) for c in each])
        positive = [m for m in n if m]
        np.testing.assert_equal(labels.imbalance, max(positive) / min(positive) if positive else float("nan"))
        assert labels.cooccurrence().tolist() == both
        conditional = [[quotient(both[i][j], seen[i][j]) for j in each] for i in each]
        np.testing.assert_array_equal(labels.conditional(), conditional)
        np.testing.assert_allclose(labels.resampled_prior(), resampled, rtol=1e-12)
        assert labels.unknown_rate == pytest.approx((y == -1).mean())
        np.testing.assert_allclose(labels.unknown_rate_by_label, (y == -1).mean(0))
        assert labels.rarest(n_labels).tolist() == sorted(each, key=lambda c: n[c])
        groups = labels.groups(head=3, tail=2)
        assert {name: g.tolist() for name, g in groups.items()} == {
            "head": [c for c in each if n[c] >= 3],
            "medium": [c for c in each if n[c] == 2],
            "tail": [c for c in each if n[c] < 2],
        }


@settings(max_examples=25)
@given(TABLES, st.data())
def test_rows_take_and_files_keep_every_cell(
    tmp_path_factory: pytest.TempPathFactory, y: np.ndarray, data: st.DataObject
):
    index = np.array(data.draw(st.lists(st.integers(0, len(y) - 1), max_size=9)), np.int64)
    order = np.array(data.draw(st.lists(st.integers(0, len(y) - 1), unique=True)), np.int64)
    path = tmp_path_factory.getbasetemp() / "labels.npz"
    names = [f"é~a & {c}" for c in range(y.shape[1])]
    ids = [f"../{'x' * i}\n{i}" for i in range(len(y))]
    for plain in (stored_with(y, UNKNOWN), stored_with(y, 0)):
        named = Labels.from_cells(*plain.cells(), y.shape, plain.fill, names, ids)
        for labels in (plain, named):
            assert np.array_equal(labels.rows(index), y[index])
            part = labels.take(order)
            assert np.array_equal(part.values, y[order])
            assert part.names == labels.names
            assert list(part.ids) == [labels.ids[i] for i in order]
            for table in (labels, part):
                table.save(path)
                for again in (Labels.load(path), pickle.loads(pickle.dumps(table))):
                    assert np.array_equal(again.values, table.values)
                    assert again.values.dtype == table.values.dtype
                    assert (again.names, again.ids, again.fill) == (table.names, table.ids, table.fill)
        assert list(named.ids) == ids
        assert named.names == tuple(names)


def random_sparse(
    n_items: int, n_labels: int, per_item: int, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    key = np.sort(np.repeat(np.arange(n_items), per_item) * n_labels + rng.integers(0, n_labels, n_items * per_item))
    key = key[np.diff(key, append=-1) != 0]
    return key // n_labels, key % n_labels, rng.integers(0, 2, len(key)).astype(np.int8)


def test_pair_statistics_of_large_tables_equal_sparse_products() -> None:
    shape = (110_000, 40)
    items, columns, values = random_sparse(*shape, 3)
    labels = Labels.from_cells(items, columns, values, shape, UNKNOWN)
    positive = sparse.csr_matrix((values.astype(np.int64), (items, columns)), shape)
    known = sparse.csr_matrix((np.ones(len(items), np.int64), (items, columns)), shape)
    both = (positive.T @ positive).toarray()
    seen = (known.T @ positive).toarray()
    assert np.array_equal(labels.cooccurrence(), both)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(labels.conditional(), both / seen)
    n = both.diagonal()
    expected = np.nansum(both / n, axis=1) / np.nansum(seen / n, axis=1)
    np.testing.assert_allclose(labels.resampled_prior(), expected, rtol=1e-10)
    assert np.array_equal(labels.n_known, np.asarray(known.sum(0)).ravel())


def test_unknown_is_not_negative() -> None:
    labels = Labels([[1, -1, -1], [-1, 1, 0], [0, 1, -1], [1, 0, -1]], names=["a", "b", "never"])
    assert labels.counts.tolist() == [2, 2, 0]
    assert labels.n_known.tolist() == [3, 3, 1]
    np.testing.assert_allclose(labels.prior, [2 / 3, 2 / 3, 0])
    np.testing.assert_allclose(labels.ratio, [2, 2, 0])
    assert labels.conditional()[0, 1] == 0  # of two items with b, a is known for one and absent there
    assert labels.conditional()[1, 0] == 0
    assert np.isnan(labels.conditional()[2, 0])


def test_all_unknown_has_no_prior() -> None:
    labels = Labels(np.full((3, 2), -1))
    assert np.isnan(labels.prior).all()
    assert np.isnan(labels.ratio).all()
    assert np.isnan(labels.resampled_prior()).all()
    assert np.isnan(labels.imbalance)
    assert labels.unknown_rate == 1
    assert Labels(np.zeros((0, 2))).values.shape == (0, 2)


def test_a_label_unknown_wherever_items_are_drawn_has_no_resampled_prior() -> None:
    """Also where the shares that should cancel do so only but for rounding."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        values = (rng.random((60, 8)) < 0.4).astype(np.int8)
        values[rng.random(values.shape) < 0.2] = UNKNOWN
        values[:, 0] = np.where((values[:, 1:] == 1).any(1), UNKNOWN, 0)
        values[0] = 0
        for fill in (0, UNKNOWN):
            prior = stored_with(values, fill).resampled_prior()
            assert np.isnan(prior).tolist() == [True] + [False] * 7


def test_published_long_tails(shared_data: Path) -> None:
    for name, groups in (("voc_mlt", (6, 6, 8)), ("coco_mlt", (22, 33, 25))):
        with np.load(shared_data / "labels" / f"{name}.npz") as file:
            labels = Labels(file["Y"], ids=file["ids"])
            assert np.array_equal(labels.counts, file["class_freq"])
            assert np.array_equal(labels.n_known - labels.counts, file["neg_class_freq"])
            conditional = labels.conditional()
            np.testing.assert_allclose(conditional, file["condition_prob"].T, rtol=1e-12)  # theirs is [j, i]
            assert tuple(len(g) for g in labels.groups().values()) == groups
            for group, key in (("head", "head"), ("medium", "middle"), ("tail", "tail")):
                assert labels.groups()[group].tolist() == sorted(file[key].tolist())
            counts = labels.counts.astype(float)
            assert labels.imbalance == counts.max() / counts.min()
            np.testing.assert_allclose(labels.resampled_prior(), conditional.mean(1), rtol=1e-12)


def test_a_million_items_with_five_known_labels_take_under_30_mb() -> None:
    items, columns, values = random_sparse(1_000_000, 600, 5)
    tracemalloc.start()
    labels = Labels.from_cells(items, columns, values, (1_000_000, 600), UNKNOWN)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used < 30e6
    assert labels.ids[999_999] == "999999"
    assert labels.cooccurrence().trace() == values.sum()


def test_large_dense_values_are_refused() -> None:
    labels = Labels.from_cells([3_999_999], [599], [1], (4_000_000, 600), 0)
    with pytest.raises(ValueError, match=r"2\.4 GB: use \.rows\(index\)"):
        _ = labels.values
    assert labels.rows([3_999_999]).sum() == 1
    with pytest.raises(ValueError, match="choose fewer labels"):
        Labels.from_cells([0], [0], [1], (1, 20_000), 0).cooccurrence()


def test_frozen() -> None:
    items, values, dense = np.array([0, 1]), np.array([1, 1], np.int8), np.array([[1, 0], [0, 1]], np.int8)
    cells, table = Labels.from_cells(items, items, values, (2, 2), 0), Labels(dense)
    items[:], values[:], dense[:] = 0, 0, 0
    for labels in (cells, table, pickle.loads(pickle.dumps(cells))):
        assert labels.counts.tolist() == [1, 1]
        for name in ("names", "ids", "counts", "new"):
            with pytest.raises(AttributeError, match="frozen"):
                setattr(labels, name, None)
        with pytest.raises(AttributeError, match="frozen"):
            del labels.names
        for array in (*labels.cells()[1:], labels.counts, labels.n_known, labels.prior):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 0


def test_coordinates_agree() -> None:
    values = np.array([[1, 0, 1], [-1, 0, 0], [0.6, 1, -1]])
    for labels in every_way(values):
        items, columns = labels.positives()
        assert list(zip(items.tolist(), columns.tolist(), strict=True)) == [(0, 0), (0, 2), (2, 0), (2, 1)]
        starts, by_label = labels.items_by_label()
        assert [by_label[starts[c] : starts[c + 1]].tolist() for c in range(3)] == [[0, 2], [2], [0]]


def test_inputs_of_other_kinds() -> None:
    wanted = [[1, 0], [0, 1]]
    for given_ in (
        np.array(wanted, bool),
        np.array(wanted, np.uint8),
        torch.tensor(wanted, dtype=torch.bfloat16),
        wanted,
    ):
        labels = Labels(given_)
        assert labels.values.tolist() == wanted
        assert labels.values.dtype == np.int8
    stored_zero = sparse.coo_matrix(([1, 0], ([0, 1], [0, 1])), (2, 2))
    assert Labels.from_scipy(stored_zero, fill=-1).values.tolist() == [[1, -1], [-1, 0]]
    assert Labels.from_scipy(sparse.csc_matrix(np.array(wanted))).values.tolist() == wanted
    texts = pa.chunked_array([["a"], ["b"]])
    assert list(Labels(wanted, ids=texts).ids) == ["a", "b"]
    assert Labels(wanted, names=np.array(["x", "y"])).names == ("x", "y")


@pytest.mark.parametrize("value", [1e-50, 1 - 1e-12])
@pytest.mark.parametrize("fill", [0, UNKNOWN])
def test_what_float32_rounds_to_a_hard_label_is_one(value: float, fill: int, tmp_path: Path) -> None:
    """As float64 outputs of a model are: they are kept, saved and read back as 0 and 1."""
    dense = np.full((2, 3), float(fill))
    dense[0, 1], dense[1, 0] = value, 1
    listed = Labels.from_cells([1, 0], [0, 1], [1.0, value], (2, 3), fill)
    for labels in (Labels(dense), listed):
        labels.save(tmp_path / "labels.npz")
        for table in (labels, Labels.load(tmp_path / "labels.npz")):
            assert table.values.dtype == np.int8
            assert table.values.tolist() == np.where(dense == value, round(value), dense).tolist()


def test_cells_listed_twice() -> None:
    labels = Labels.from_cells([1, 0, 1], [1, 0, 1], [1, 0, 1], (2, 2), UNKNOWN)
    assert labels.values.tolist() == [[0, -1], [-1, 1]]
    with pytest.raises(ValueError, match="item 'q', label 'b' is listed twice, as 0 and as 1"):
        Labels.from_cells([1, 0, 1], [1, 0, 1], [1, 0, 0], (2, 2), UNKNOWN, names=["a", "b"], ids=["p", "q"])


def test_ids_are_a_sequence() -> None:
    for ids in (
        Labels(np.zeros((100_000, 1))).ids,
        Labels(np.zeros((100_000, 1)), ids=[str(i) for i in range(100_000)]).ids,
    ):
        assert len(ids) == 100_000
        assert (ids[0], ids[-1], ids[70_001]) == ("0", "99999", "70001")
        assert list(ids[5:20:7]) == ["5", "12", "19"]
        assert list(ids) == [str(i) for i in range(100_000)]
        assert ids == [str(i) for i in range(100_000)]
        assert ids[:2] == ("0", "1")
        assert ids[:2] != ["0", "2"]
        assert "77" in ids
        assert repr(ids) == "Ids('0', '1', '2', …, '99999')"
        with pytest.raises(IndexError):
            ids[100_000]
    assert repr(Labels([[1], [0]])) == "Labels(2 items × 1 labels, 1 positives, 0 % unknown)"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Labels([1, 0]), r"shape \(2,\)"),
        (lambda: Labels(np.zeros((2, 0))), "at least one label"),
        (lambda: Labels([[1, 2]]), r"values\[0, 1\] is 2: a label is"),
        (lambda: Labels([[1.0], [np.nan]]), r"values\[1, 0\] is nan"),
        (lambda: Labels([[0.5], [-0.5]]), r"values\[1, 0\] is -0.5"),
        (lambda: Labels([["yes"]]), "dtype <U3"),
        (lambda: Labels([[1, 0]], names=["a", "a"]), r"names\[0\] and names\[1\] are both 'a'"),
        (lambda: Labels([[1], [0], [1]], ids=["x", "y", "x"]), r"ids\[0\] and ids\[2\] are both 'x'"),
        (lambda: Labels([[1, 0]], names=["a"]), r"names has 1 entries, but the table has shape \(1, 2\)"),
        (lambda: Labels([[1], [0]], ids=["a"]), "ids has 1 entries"),
        (lambda: Labels([[1]], ids="a"), "single string"),
        (lambda: Labels([[1, 0]], names="ab"), "names is the single string 'ab'"),
        (lambda: Labels([[1, 0]], names=b"ab"), "names is the single string b'ab'"),
        (lambda: Labels([[1]]).arranged("0", 0), "names is the single string '0'"),
        (lambda: Labels([[1]]).arranged(["0", "0"], 0), r"names\[0\] and names\[1\] are both '0'"),
        (lambda: Labels([[1]]).arranged(["0"], 1), "missing is 1"),
        (lambda: Labels([[1]]).arranged([], 0), "at least one label"),
        (lambda: Labels([[1]], ids=[7]), r"ids\[0\] is 7, a int"),
        (lambda: Labels([[1]], ids=pa.array([7])), "int64: give strings"),
        (lambda: Labels([[1], [0]], ids=pa.array(["a", None])), r"ids\[1\] is null"),
        (lambda: Labels.from_cells([0], [0], [1], (1, 1), 1), "fill is 1"),
        (lambda: Labels.from_cells([0, 1], [0, 0], [1, 1], (1, 1), 0), r"items\[1\] is 1: it must lie between 0 and 0"),
        (lambda: Labels.from_cells([0], [-1], [1], (1, 1), 0), r"labels\[0\] is -1"),
        (lambda: Labels.from_cells([0], [0], [3], (1, 1), 0), r"values\[0\] is 3"),
        (lambda: Labels.from_cells([0], [0], [1, 1], (1, 1), 0), "one of each per cell"),
        (lambda: Labels.from_cells([0.5], [0], [1], (1, 1), 0), "whole numbers"),
        (lambda: Labels([[1], [0]]).rows([2]), r"index\[0\] is 2"),
        (lambda: Labels([[1], [0]]).rows([True, False]), "whole numbers"),
        (lambda: Labels([[1], [0]]).take([1, 1]), "index holds 1 twice"),
        (lambda: Labels([[1]]).rarest(2), "k is 2"),
        (lambda: Labels([[1]]).rarest(1.0), "k is 1.0: give a whole number"),
        (lambda: Labels([[1]]).groups(head=1, tail=2), "tail must lie between"),
    ],
)
def test_mistakes_are_one_sentence(make, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_a_broken_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "labels.npz"
    Labels([[1, 0]]).save(path)

    def fail(file, **arrays):
        file.write(b"half")
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(np, "savez", fail)
        with pytest.raises(OSError, match="disk full"):
            Labels([[0, 1]]).save(path)
    assert Labels.load(path).values.tolist() == [[1, 0]]
    assert [p.name for p in tmp_path.iterdir()] == ["labels.npz"]


def test_broken_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "labels.npz"
    Labels([[1, 0, 1], [-1, 1, 0]], names=["a", "b", "c"], ids=["p", "q"]).save(path)
    whole = path.read_bytes()
    with np.load(path) as file:
        arrays = dict(file)
    assert arrays["columns"].tolist() == [0, 2, 0, 1]
    breaks = {
        "format": np.array(2),
        "shape": np.array([2, 2]),
        "fill": np.array(1),
        "starts": np.array([0, 3, 2]),
        "columns": np.array([2, 0, 0, 1], np.uint8),
        "data": np.array([1, 1, 7, 1], np.int8),
        "names.ends": np.array([0, 1, 2, 9]),
        "ids.utf8": np.array([255, 254], np.uint8),
        "ids.ends": np.array([0, 2]),
    }
    beyond = ("columns", np.array([0, 5, 0, 1], np.uint8))
    same = ("ids.utf8", np.array([65, 65], np.uint8))
    contents = [b"", whole[: len(whole) // 2], b"not a zip"]
    for name, array in (*breaks.items(), beyond, same):
        np.savez(path, **{**arrays, name: array})
        contents.append(path.read_bytes())
        np.savez(path, **{key: value for key, value in arrays.items() if key != name})
        contents.append(path.read_bytes())
    np.savez(path, **{**arrays, "data": np.array([None, {}, [], 0], object)})
    contents.append(path.read_bytes())
    for content in contents:
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"labels\.npz is not a whole table written by Labels\.save"):
            Labels.load(path)
    path.write_bytes(whole)
    assert Labels.load(path).ids == ["p", "q"]
    with pytest.raises(FileNotFoundError):
        Labels.load(tmp_path / "missing.npz")
