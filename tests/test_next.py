"""What to annotate next: gains against a greedy reference, costs, quotas, baselines and the command."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import steelyard as sy
from run_data import items, write_table
from steelyard.annotation import next_to_annotate
from steelyard.annotation.next_cells import FLOOR, neighbourhoods
from test_corrections import write_answers
from typed import done, typed


def table(n: int = 60, n_labels: int = 4, unknown: float = 0.6, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Labels with unknown ones, the later labels the rarer, and probabilities."""
    g = np.random.default_rng(seed)
    eta = 1 / (1 + np.exp(-(2 * g.normal(size=(n, n_labels)) - np.arange(n_labels))))
    y = (g.random(eta.shape) < eta).astype(np.int8)
    return np.where(g.random(y.shape) < unknown, -1, y).astype(np.int8), eta


def greedy(y: np.ndarray, eta: np.ndarray, n: int, cost: np.ndarray) -> list[tuple[int, int]]:
    """Take the cell of highest gain per cost again and again, one at a time, recounting each time."""
    worth, left = eta * (1 - eta), {(i, c) for i, c in np.argwhere(y == -1).tolist()}
    known = [FLOOR + worth[y[:, c] != -1, c].sum() for c in range(y.shape[1])]
    taken = []
    for _ in range(n):
        i, c = max(left, key=lambda at: (np.log1p(worth[at] / known[at[1]]) / cost[at[1]], worth[at], -at[0]))
        left.remove((i, c))
        taken.append((i, c))
        known[c] += worth[i, c]
    return taken


@pytest.mark.parametrize("cost", [np.ones(4), np.array([1.0, 0.5, 2.0, 1.0])])
def test_cells_are_those_of_a_greedy_choice(cost: np.ndarray) -> None:
    y, eta = table()
    cells = next_to_annotate(y, eta, 25, cell_cost=cost)
    chosen = list(zip(cells.items.tolist(), cells.labels.tolist(), strict=True))
    assert chosen == greedy(y, eta, len(chosen), cost)
    assert cost[cells.labels].sum() <= 25
    assert cells.probability.tolist() == eta[cells.items, cells.labels].tolist()
    assert set(cells.given.tolist()) == {-1}


def test_a_rare_label_comes_first() -> None:
    y = np.full((100, 2), -1, np.int8)
    y[:50, 0], y[:6, 1] = np.arange(50) % 2, (1, 0, 0, 0, 0, 0)
    cells = next_to_annotate(y, np.full((100, 2), 0.3), 10)
    assert (cells.labels == 1).all()


@pytest.mark.parametrize("by", ["gain", "uncertainty", "random"])
def test_budgets_quotas_and_seeds(by: Any) -> None:
    y, eta = table()
    first, again, other = (next_to_annotate(y, eta, 30, by=by, quota=9, seed=seed) for seed in (1, 1, 2))
    assert first.n == 30
    assert (y[first.items, first.labels] == -1).all()
    assert len(set(zip(first.items.tolist(), first.labels.tolist(), strict=True))) == 30
    assert np.bincount(first.labels).max() <= 9
    assert first.items.tolist() == again.items.tolist()
    assert (first.items.tolist() == other.items.tolist()) == (by != "random")
    assert next_to_annotate(y, eta, 1e6, by=by).n == (y == -1).sum()
    assert 2 not in next_to_annotate(sy.Labels(y, names=list("abcd")), eta, 1e6, by=by, quota={"c": 0}).labels


def test_uncertain_cells_are_those_nearest_one_half() -> None:
    y, eta = table()
    cells = next_to_annotate(y, eta, 12, by="uncertainty")
    distance = np.where(y == -1, abs(eta - 0.5), np.inf)
    assert np.allclose(np.sort(abs(cells.probability - 0.5)), np.sort(distance.ravel())[:12])


@pytest.mark.parametrize(("unit", "item_cost"), [("cell", 3.0), ("item", 0.0), ("item", 2.0)])
def test_items_are_chosen_by_gain_per_cost(unit: str, item_cost: float) -> None:
    y, eta = table(30)
    single = next_to_annotate(y, eta, 1e6)  # the gain of every cell
    gain = np.full(y.shape, np.nan)
    gain[single.items, single.labels] = single.score
    rates = {}
    for i in range(len(y)):
        own = sorted(gain[i][y[i] == -1], reverse=True)
        sizes = range(1, len(own) + 1) if unit == "cell" else [len(own)]
        if own:
            rates[i] = max((sum(own[:k]) / (item_cost + k), -k) for k in sizes)
    cells = next_to_annotate(y, eta, 20, unit=unit, item_cost=item_cost)
    order = list(dict.fromkeys(cells.items.tolist()))
    assert order[0] == max(rates, key=lambda i: rates[i][0])
    for i in order:
        assert (cells.items == i).sum() == -rates[i][1]
        assert cells.score[cells.items == i] == pytest.approx(rates[i][0])
    assert len(order) * item_cost + cells.n <= 20
    assert [rates[i][0] for i in order] == sorted((rates[i][0] for i in order), reverse=True)


def test_spreading_takes_cells_from_more_neighbourhoods() -> None:
    g = np.random.default_rng(3)
    centre = np.repeat(np.arange(20), 20)
    x = 10 * g.normal(size=(20, 5))[centre] + 0.01 * g.normal(size=(400, 5))
    eta = 0.5 - 0.02 * centre[:, None] + 1e-4 * g.random((400, 1))
    y = np.full((400, 1), -1, np.int8)
    near, spread = next_to_annotate(y, eta, 20), next_to_annotate(y, eta, 20, embeddings=x)
    assert len(set(centre[near.items])) == 1
    assert len(set(centre[spread.items])) > 5
    groups = neighbourhoods(x, 400, 0)
    assert all(len(set(groups[centre == k])) <= 3 for k in range(20))


def test_excluded_labels_are_not_asked_and_tell_nothing() -> None:
    y, eta = table()
    first = next_to_annotate(y, eta, 10)
    exclude = np.zeros(y.shape, bool)
    exclude[first.items[:5], first.labels[:5]] = True
    other = next_to_annotate(y, eta, 1e6, exclude=exclude)
    assert other.n == (y == -1).sum() - 5
    assert not exclude[other.items, other.labels].any()
    without = np.where(exclude, 0.0, eta)  # η(1 − η) of what is excluded is no information
    assert other.score.tolist() == next_to_annotate(y, without, 1e6, exclude=exclude).score.tolist()
    for by in ("uncertainty", "random"):
        some = next_to_annotate(y, eta, 1e6, by=by, exclude=exclude)  # type: ignore[arg-type]
        assert not exclude[some.items, some.labels].any()
    with pytest.raises(ValueError, match="give a boolean array of shape"):
        next_to_annotate(y, eta, 5, exclude=exclude[:3])


def test_what_is_known_elsewhere_counts() -> None:
    y, eta = np.full((50, 2), -1, np.int8), np.full((50, 2), 0.2)
    cells = next_to_annotate(y, eta, 5, information=np.array([100.0, 1.0]))
    assert (cells.labels == 1).all()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (dict(budget=0), "budget is 0"),
        (dict(by="best"), "choose one of gain, uncertainty, random"),
        (dict(unit="row"), "choose one of cell, item"),
        (dict(probabilities=np.zeros((3, 2))), "one probability per item and label"),
        (dict(probabilities=np.full((2, 2), 2.0)), "not between 0 and 1"),
        (dict(cell_cost=0.0), "give a cell_cost above 0"),
        (dict(cell_cost=[1.0, 2.0, 3.0]), "one for each label"),
        (dict(quota={"z": 1}), "not a label"),
        (dict(quota=-1), "below 0"),
        (dict(labels=np.zeros((2, 2))), "no unknown label"),
    ],
)
def test_bad_input_is_one_sentence(change: dict[str, Any], sentence: str) -> None:
    given: dict[str, Any] = dict(labels=-np.ones((2, 2)), probabilities=np.full((2, 2), 0.5), budget=1)
    with pytest.raises(ValueError, match=sentence):
        next_to_annotate(**given | change)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steelyard.run.run_report.has_matplotlib", lambda: False)
    monkeypatch.chdir(tmp_path)
    write_table(tmp_path / "items.csv", *items(200, unknown=0.5))
    done("train", "--data", "items.csv", "--recipe", "bce", "--out", "run")
    shown = done("next", "run", "items.csv", "--budget", "25", "--out", "queue.csv", "--spread", "--quota", "12")
    assert "25 of" in shown.out
    with (tmp_path / "queue.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 25
    assert {(row["question"], row["given"]) for row in rows} == {("present?", "")}
    assert "known positive" in rows[0]["why"]
    first, second = sorted({row["label"] for row in rows})[:2]
    some = ("next", "run", "items.csv", "--budget", "25", "--json")
    few = json.loads(done(*some, "--quota", f"{first}=3", "--quota", "6").out)
    counts = Counter(row["label"] for row in few)
    assert counts[first] == 3
    assert set(counts.values()) == {3, 6}
    dear = json.loads(done(*some, "--cell-cost", f"{first}=5", "--cell-cost", "2", "--quota", f"{second}=0").out)
    assert 2 * len(dear) + 3 * sum(row["label"] == first for row in dear) in (24, 25)
    assert second not in {row["label"] for row in dear}
    new = done("next", "run", "items.csv", "--budget", "5", "--unlabelled", "--json")
    assert new.out.count('"present?"') == 5
    answers = [(row["id"], row["label"], answer) for row, answer in zip(rows, "yn?" * 9, strict=False)]
    write_answers(tmp_path / "answers.csv", *answers)
    again = json.loads(
        done("next", "run", "items.csv", "--budget", "1000", "--corrections", "answers.csv", "--json").out
    )
    before = json.loads(done("next", "run", "items.csv", "--budget", "1000", "--json").out)
    asked = {(row["id"], row["label"]) for row in again}
    assert asked == {(row["id"], row["label"]) for row in before} - {key[:2] for key in answers}
    mistakes = {
        ("--corrections", "nowhere.csv"): "nowhere.csv cannot be read",
        ("--by", "luck"): "choose one of gain",
        ("--quota", "2.5"): "--quota is '2.5': give a whole number, or LABEL=N",
        ("--quota", f"{first}=x"): "give a whole number",
        ("--quota", f"{first}x=3"): f"did you mean {first!r}?",
        ("--cell-cost", "dear"): "--cell-cost is 'dear': give a number, or LABEL=N",
    }
    for more, sentence in mistakes.items():
        assert sentence in typed(*some, *more).line
