"""Labels that are probably wrong: the noise model against references, ranked lists, near-duplicates, the command."""

from __future__ import annotations

import csv
import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import steelyard as sy
from run_data import items, write_table
from steelyard.annotation import near, noise
from steelyard.annotation.audit import audit_labels
from steelyard.annotation.confusion import Confusion
from steelyard.annotation.queue import Ranked, as_text, best, score_text, write_queue
from steelyard.annotation.sources import read_scores
from steelyard.data.review import QUEUE_COLUMNS, read_queue
from steelyard.metrics import average_precision
from typed import done, typed

LEVELS = (0.0, -1.0, -2.0, -0.5)


def simulated(n: int = 4000, share: float = 0.1, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """True labels, given ones (a share of the positives missing, as many wrong), and what a linear model says."""
    g = np.random.default_rng(seed)
    z = 3 * g.normal(size=(n, len(LEVELS))) + np.array(LEVELS)
    eta = 1 / (1 + np.exp(-z))
    true = (g.random(eta.shape) < eta).astype(np.int8)
    added = share * true.mean(0) / (1 - true.mean(0))
    flips = g.random(eta.shape) < np.where(true == 1, share, added)
    return true, np.where(flips, 1 - true, true).astype(np.int8), eta


@pytest.fixture(scope="module")
def audited() -> tuple[np.ndarray, np.ndarray, Any]:
    true, given, p = simulated()
    return true, given, audit_labels(given, p)


def some_rates(a: float, m: float) -> noise.Rates:
    one = np.ones(1)
    return noise.Rates(m * one, np.nan * one, a * one, one, 0 * one, m)


@pytest.mark.parametrize(("eta", "a", "m"), list(product((0.001, 0.3, 0.97), (0.001, 0.1), (0.02, 0.3))))
def test_the_posterior_is_that_of_the_table_of_true_and_given(eta: float, a: float, m: float) -> None:
    joint = {
        (1, 1): eta * (1 - m),
        (1, 0): eta * m,
        (0, 1): (1 - eta) * a,
        (0, 0): (1 - eta) * (1 - a),
    }  # (true, given)
    rates, at = some_rates(a, m), np.array([eta])
    assert rates.wrong_if_present(at)[0] == pytest.approx(joint[0, 1] / (joint[0, 1] + joint[1, 1]), rel=1e-12)
    assert rates.wrong_if_absent(at)[0] == pytest.approx(joint[1, 0] / (joint[1, 0] + joint[0, 0]), rel=1e-12)


def test_the_cost_is_that_of_a_reference_cell_by_cell() -> None:
    g = np.random.default_rng(1)
    n = g.integers(0, 4, (2, noise.N_BINS, 2)).astype(float)
    m, f, s, t, shared = g.normal(size=2), g.normal(size=2), 0.3 * g.normal(size=2), g.normal(size=2), -2.0
    expected = (shared - noise.USUAL) ** 2 / 2
    for c in range(2):
        rate = [1 / (1 + np.exp(-(shared + x))) for x in (m[c], f[c])]
        n0, n1 = n[c, :, 0].sum(), n[c, :, 1].sum()
        a = min(rate[1] * n1 / (n0 + n1 - (1 - rate[1]) * n1 / (1 - rate[0])), 0.5)
        for b in range(noise.N_BINS):
            z = -12 + 0.1 * (b + 0.5)
            p = a + (1 - a - rate[0]) / (1 + np.exp(-(np.exp(s[c]) * z + t[c])))
            expected -= n[c, b, 1] * np.log(p) + n[c, b, 0] * np.log(1 - p)
        expected += (m[c] ** 2 + f[c] ** 2) / (2 * 0.2**2) + s[c] ** 2 / (2 * 0.5**2)
    at = noise._Parameters(
        *(torch.tensor(x)[None] for x in (m, f, s, t)), torch.tensor([[shared]], dtype=torch.float64)
    )
    assert float(noise._cost(torch.tensor(n)[None], at)) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("share", [0.03, 0.1, 0.2])
def test_planted_noise_is_estimated(share: float) -> None:
    true, given, p = simulated(8000, share, 2)
    result = audit_labels(given, p, resamples=20)
    assert result.rates.shared == pytest.approx(share, rel=0.25)
    total = sum(row.wrong_positives.estimate + row.wrong_negatives.estimate for row in result.labels)
    assert total == pytest.approx((given != true).sum(), rel=0.2)


def test_intervals_cover_what_was_planted(audited: Any) -> None:
    true, given, result = audited
    for c, row in enumerate(result.labels):
        for interval, value in ((row.wrong_positives, 1), (row.wrong_negatives, 0)):
            planted = ((given[:, c] == value) & (true[:, c] != value)).sum()
            assert interval.low <= interval.estimate <= interval.high
            assert interval.low - 10 <= planted <= interval.high + 10


def test_probabilities_of_being_wrong_are_calibrated_and_rank_better_than_confidence(audited: Any) -> None:
    true, given, result = audited
    wrong, p = result.wrong_probability(), simulated()[2]
    bad = given != true
    for low, high in ((0.0, 0.02), (0.02, 0.1), (0.1, 0.4), (0.4, 1.01)):
        at = (wrong >= low) & (wrong < high)
        assert wrong[at].mean() == pytest.approx(bad[at].mean(), abs=0.05)
    confidence = np.where(given == 1, 1 - p, p)
    ours, plain = (float(average_precision(s.reshape(-1, 1), bad.reshape(-1, 1))[0]) for s in (wrong, confidence))
    assert ours > plain


def test_the_lists_are_the_best_cells_of_the_whole_table(audited: Any) -> None:
    _, given, result = audited
    whole = result.wrong_probability()
    shown = result.wrong.first(500)
    assert np.allclose(shown.score, np.sort(whole.ravel())[::-1][:500], atol=1e-6)
    assert np.allclose(whole[shown.items, shown.labels], shown.score, atol=1e-6)
    assert (given[shown.items, shown.labels] == shown.given).all()
    assert result.present.n == 0


def test_unknown_cells_are_apart_and_change_nothing_else() -> None:
    _, given, p = simulated(3000)
    hidden = np.random.default_rng(3).random(given.shape) < 0.7
    cut = np.where(hidden, -1, given).astype(np.int8)
    first = audit_labels(cut, p, resamples=2)
    second = audit_labels(cut, np.where(hidden, np.random.default_rng(4).random(p.shape), p), resamples=2)
    assert np.array_equal(np.isnan(first.wrong_probability()), hidden)
    assert np.array_equal(first.wrong_probability(), second.wrong_probability(), equal_nan=True)
    assert hidden[first.present.items, first.present.labels].all()
    assert (np.diff(first.present.score) <= 0).all()
    assert "not annotated" in first.why(first.present, 0)
    expected = np.where(hidden, first.rates.present(np.log(p / (1 - p))), 0).sum(0)
    assert np.allclose([row.probably_present for row in first.labels], expected, rtol=0.02)


def test_order_of_items_and_labels_does_not_matter(audited: Any) -> None:
    _, given, result = audited
    p = simulated()[2]
    rows, columns = np.random.default_rng(5).permutation(len(p)), np.array([2, 0, 3, 1])
    other = audit_labels(given[rows][:, columns], p[rows][:, columns], resamples=2)
    expected = result.wrong_probability()[rows][:, columns]
    assert np.allclose(other.wrong_probability(), expected, atol=1e-4)


def test_a_label_without_negatives_is_left_out() -> None:
    _, given, p = simulated(500)
    given[:, 1] = 1
    result = audit_labels(given, p, resamples=2)
    assert np.isnan(result.wrong_probability()[:, 1]).all()
    assert np.isnan(result.labels[1].wrong_positives.estimate)
    assert 1 not in result.wrong.labels


def test_few_groups_of_items_are_resampled_together() -> None:
    _, given, p = simulated(600)
    labels = sy.Labels(given).grouped(np.arange(600) // 2)
    assert audit_labels(labels, p, resamples=3).labels[0].wrong_positives.low >= 0


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (dict(probabilities=np.full((4, 3), 0.5)), "one probability per item and label"),
        (dict(probabilities=np.full((4, 2), 1.5)), r"probabilities\[0, 0\] is 1.5"),
        (dict(probabilities=np.full((4, 2), np.nan)), "between 0 and 1"),
        (dict(limit=0), "limit is 0"),
        (dict(embeddings=np.zeros((3, 2))), "one row for each of 4 items"),
        (dict(embeddings=np.full((4, 2), np.nan)), "NaN"),
    ],
)
def test_bad_input_is_one_sentence(change: dict[str, Any], sentence: str) -> None:
    given = dict(probabilities=np.full((4, 2), 0.5)) | change
    with pytest.raises(ValueError, match=sentence):
        audit_labels(np.array([[0, 1], [1, 0], [1, 1], [0, 0]]), **given)


def test_confused_pairs_are_sums_of_products() -> None:
    g = np.random.default_rng(6)
    given, wrong = (g.random((300, 4)) < 0.5).astype(np.int8), np.where(g.random((300, 4)) < 0.3, g.random((300, 4)), 0)
    given[:100, 0], given[:100, 1], wrong[:100, :2] = 1, 0, 0.9  # label 0 is given in the place of label 1
    counted = Confusion(sy.Labels(given, names=list("abcd")))
    for part in np.split(np.arange(300), 3):
        counted.add(wrong[part], given[part])
    first = counted.pairs()[0]
    sure = np.where(wrong >= 0.05, wrong, 0)
    pairs = sum(sure[i, 0] * sure[i, 1] for i in range(300) if given[i, 0] == 1 and given[i, 1] == 0)
    assert (first.given, first.missing) == ("a", "b")
    assert first.items == pytest.approx(pairs)


@pytest.mark.parametrize("most", [20_000, 10])
def test_near_duplicates_with_contradicting_labels_are_found(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(near, "MOST_COMPARED", most)
    g = np.random.default_rng(7)
    x = g.normal(size=(400, 8)) * np.array([1, 1, 1, 1, 1, 1, 1, 1000.0])
    x[1], x[3], x[5] = x[0], x[2] + 0.01, x[4]
    y = np.zeros((400, 3), np.int8)
    y[0, 2], y[2, 1], y[4], y[5] = 1, 1, (1, -1, 0), (1, 1, 0)
    pairs = near.contradictions(sy.Labels(y), x)
    assert {(c.first, c.second, c.label) for c in pairs} == {(0, 1, 2), (2, 3, 1)}
    scaled = (x - x.mean(0)) / x.std(0)
    typical = np.sqrt(2 * np.square(scaled).sum(1).mean())
    assert pairs[-1].distance == pytest.approx(np.linalg.norm(scaled[2] - scaled[3]) / typical, rel=1e-3)


def test_the_best_of_several_lists() -> None:
    def part(items: list[int], scores: list[float]) -> Ranked:
        n = len(items)
        return Ranked(np.array(items), np.zeros(n, np.int64), np.zeros(n, np.int8), np.zeros(n), np.array(scores))

    result = best([part([3, 1], [0.5, 0.9]), part([2, 0], [0.5, 0.1])], 3)
    assert result.items.tolist() == [1, 2, 3]


@pytest.mark.parametrize(("p", "text"), [(0.999, ">.99"), (0.001, "<.01"), (0.5, ".50"), (0.994, ".99")])
def test_what_is_not_certain_is_not_said_to_be(p: float, text: str) -> None:
    assert as_text(p) == text


@pytest.mark.parametrize(("score", "text"), [(0.9999, ">.999"), (1.0, ">.999"), (0.99, ".99"), (1.25, "1.25")])
def test_a_score_is_no_certainty(score: float, text: str) -> None:
    assert score_text(score) == text


def test_a_queue_is_read_back_as_it_was(tmp_path: Path) -> None:
    labels = sy.Labels(np.array([[1, -1], [0, 1]]), names=["=dog", "a, b"], ids=["-1", "two"])
    cells = Ranked(*(np.array(x) for x in ([1, 0], [0, 1], [0, -1], [0.9, 0.25], [0.5, 0.25])))
    write_queue(tmp_path / "q.csv", cells, labels, lambda k: f"reason {k}", ["x.jpg", "y.jpg"])
    first, second = read_queue(tmp_path / "q.csv")
    assert first[:5] == ("two", "=dog", "wrong?", 0, 0.9)
    assert second == ("-1", "a, b", "present?", None, 0.25, "reason 1", "x.jpg")


# ---- the command


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audit")
    write_table(folder / "items.csv", *items(200))
    write_table(folder / "other.csv", *items(100))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("steelyard.run.run_report.has_matplotlib", lambda: False)
        done("train", "--data", folder / "items.csv", "--recipe", "bce", "--out", folder / "run")
    return folder


def test_audit_of_data_and_of_a_run(place: Path) -> None:
    answer = done("audit", place / "items.csv", "--out", place / "wrong.csv")
    assert "logistic regression" in answer.out
    with (place / "wrong.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == QUEUE_COLUMNS
    assert {row["question"] for row in rows} == {"wrong?"}
    assert [int(row["rank"]) for row in rows] == list(range(1, len(rows) + 1))
    scores = [float(row["score"]) for row in rows]
    assert scores == sorted(scores, reverse=True)
    result = json.loads(done("audit", place / "run", "--json", "--limit", "7").out)
    assert len(result["wrong"]) == 7
    assert "out-of-fold" in result["source"]
    in_python = sy.audit(place / "run", limit=7)
    assert in_python.wrong.score.tolist() == pytest.approx([row["score"] for row in result["wrong"]], rel=1e-4)


@pytest.mark.parametrize("ending", [".csv", ".npz"])
def test_scores_of_any_model(place: Path, ending: str) -> None:
    labels = sy.data.table(place / "items.csv").labels
    file, eta = place / f"scores{ending}", np.random.default_rng(8).random((len(labels), labels.n_labels))
    order = np.random.default_rng(9).permutation(len(labels))
    ids = [labels.ids[i] for i in order]
    if ending == ".npz":
        np.savez(file, probabilities=eta[order], ids=ids, names=list(labels.names))
    else:
        with file.open("w", newline="") as out:
            writer = csv.writer(out)
            writer.writerow(["id", *(f"probability:{name}" for name in labels.names)])
            writer.writerows([name, *row] for name, row in zip(ids, eta[order].tolist(), strict=True))
    assert np.allclose(read_scores(str(file), labels), eta)
    assert "scores" in done("audit", place / "items.csv", "--scores", file).out


def test_scores_saved_by_a_spreadsheet_are_read(tmp_path: Path) -> None:
    file = tmp_path / "scores.csv"
    file.write_text("\ufeffid,a,b\nx,0.5,1\n\n", encoding="utf-8")
    assert read_scores(str(file), sy.Labels(np.array([[1, 0]]), names=["b", "a"], ids=["x"])).tolist() == [[1, 0.5]]


def test_large_logits_are_certain_without_a_warning(tmp_path: Path) -> None:
    np.savez(tmp_path / "z.npz", logits=np.array([[-2000.0, 2000.0]]))
    assert read_scores(str(tmp_path / "z.npz"), sy.Labels(np.array([[0, 1]]))).tolist() == [[0, 1]]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("id,a,b\nx,0.5,1.7\n", "scores.csv has probability 1.7 for item 'x', label 'b': it must lie between 0 and 1"),
        ("id,a,b\nx,0.5,nan\n", "scores.csv has probability nan for item 'x', label 'b'"),
        ("id,a,b\nx,0.5,1\nx,0.1,1\n", "scores.csv lists item 'x' twice: keep one"),
        ("id,a,b,probability:a\nx,0.5,1,0\n", "scores.csv lists label 'a' twice: keep one"),
        ("id,a,b\nx,0.5,?\n", "scores.csv line 2"),
        (b"id,a,b\n\xe9,0.5,1\n", "scores.csv is not UTF-8"),
        (b'id,a,b\n"x,0.5,1\n', "scores.csv is not CSV"),
    ],
)
def test_a_bad_file_of_scores_is_one_sentence(content: str | bytes, sentence: str, tmp_path: Path) -> None:
    file = tmp_path / "scores.csv"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        read_scores(str(file), sy.Labels(np.array([[1, 0]]), names=["a", "b"], ids=["x"]))
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"probabilities": np.array([[0.5, {}]], object)}, "scores.npz is not an .npz file of plain arrays"),
        ({"probabilities": np.array([["a", "b"]])}, "write it again, with numbers"),
        ({"p": np.ones((1, 2))}, "neither probabilities nor logits"),
        ({"probabilities": np.ones((1, 2)), "ids": np.array(["x", "x"])}, "shape (1, 2)"),
    ],
)
def test_bad_arrays_of_scores_are_one_sentence(arrays: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "scores.npz", **arrays)
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        read_scores(str(tmp_path / "scores.npz"), sy.Labels(np.array([[1, 0]]), names=["a", "b"], ids=["x"]))
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("run", "--scores", "x.csv"), "is a run"),
        (("items.csv", "--scores", "x.csv"), "is not a file"),
        (("items.csv", "--out", "nowhere/x.csv"), "its folder does not exist"),
        (("items.csv", "--limit", "0"), "--limit is 0"),
        (("items.csv", "--scores", "other.csv"), "no probabilities of"),
    ],
)
def test_mistakes_are_one_sentence(
    place: Path, arguments: tuple[str, ...], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    answer = typed("audit", *arguments)
    assert sentence in answer.line
