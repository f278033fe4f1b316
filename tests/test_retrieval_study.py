"""Searching with several runs: mAP by the number of terms against ten plain lines, the table and the page."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from sklearn.metrics import average_precision_score

from small_run import NAMES, items, part, small_run
from steelyard.config.sections import EvaluateSettings
from steelyard.report.canvas import OWN, SERIES, SIGMOID
from steelyard.report.evaluated import Evaluated
from steelyard.report.retrieval import RetrievalCurve, Study, retrieval_curves, show, study, write_study
from steelyard.run import retrieval as run_retrieval
from steelyard.run.command import JudgedOn, Other
from steelyard.run.evaluation import judge
from steelyard.run.run_report import evaluated_of


def outputs(loss: str = "bce", seed: int = 0, n: int = 60) -> Evaluated:
    trained = small_run(part(loss), seed=seed)
    return evaluated_of(trained, judge(trained, items(n, seed=3), EvaluateSettings()), EvaluateSettings())


def by_hand(eta: np.ndarray, targets: np.ndarray, n_terms: int) -> list[float]:
    """The AP of each query of `n_terms` terms that has an answer, by loops and scikit-learn."""
    found = []
    for labels in combinations(range(eta.shape[1]), n_terms):
        for wanted in product((True, False), repeat=n_terms):
            if any(wanted):
                rows = (targets[:, labels] >= 0).all(1)
                e, t = eta[rows][:, labels].astype(np.float64), targets[rows][:, labels]
                score = np.where(wanted, e, 1 - e).prod(1)
                right = (t == np.array(wanted)).all(1)
                if right.any():
                    found.append(float(average_precision_score(right, score)))
    return found


@pytest.fixture(scope="module")
def found() -> Study:
    return study({"a": outputs(), "b": outputs("asymmetric", seed=1)}, max_terms=3)


def test_map_by_terms_is_that_of_plain_loops(found: Study) -> None:
    assert (found.n_items, found.n_labels) == (60, 4)
    for run, one in zip(found.runs, (outputs(), outputs("asymmetric", seed=1)), strict=True):
        every = {k: by_hand(one.scores, one.targets, k) for k in (1, 2, 3)}
        for k, values in every.items():
            assert run.by_eta.by_terms[k] == pytest.approx(np.mean(values), abs=1e-9)
            assert run.by_eta.n_queries_by_terms[k] == len(values)
        assert run.by_eta.overall == pytest.approx(np.mean(np.concatenate(list(every.values()))), abs=1e-9)


def test_by_sigmoid_is_there_where_it_differs(found: Study) -> None:
    assert found.runs[0].by_sigmoid is None  # of BCE, σ(z) is η
    other = found.runs[1].by_sigmoid
    one = outputs("asymmetric", seed=1)
    assert one.logits is not None
    wanted = np.mean(by_hand(torch.sigmoid(torch.from_numpy(one.logits)).numpy(), one.targets, 2))
    assert other.by_terms[2] == pytest.approx(wanted, abs=1e-9)
    assert found.runs[1].by_eta.by_terms[1] == pytest.approx(other.by_terms[1], abs=0.02)  # the link only ties η = 0


def test_labels_are_matched_by_name_and_queries_shared() -> None:
    one = outputs()
    order = [2, 0, 3, 1]
    turned = replace(
        one,
        names=[NAMES[c] for c in order],
        probabilities=one.scores[:, order],
        targets=one.targets[:, order],
        logits=None,
    )
    for sampling in ({}, {"exact_up_to": 10, "samples": 20}):
        first, second = study({"one": one, "turned": turned}, max_terms=3, **sampling).runs
        assert first.by_eta.exact == (not sampling)
        assert first.by_eta == second.by_eta


def test_runs_that_cannot_be_compared() -> None:
    one = outputs()
    with pytest.raises(ValueError, match="no run to search with"):
        study({})
    for other, said in (
        (outputs(n=50), r"b was measured on other items than a \(50 and 60\).*--data"),
        (replace(one, targets=one.targets[::-1]), "b was measured on other items than a"),
        (replace(one, names=("bird", *NAMES[1:])), "do not both have the label 'bird'"),
    ):
        with pytest.raises(ValueError, match=said):
            study({"a": one, "b": other})


def test_a_run_without_probabilities_or_given_twice_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    trained, settings = small_run(part("two_way")), EvaluateSettings()
    judged = JudgedOn(trained, judge(trained, items(20), settings), settings, "test")
    monkeypatch.setattr(run_retrieval, "judged_on", lambda *_: judged)
    for runs, said in (
        (["a c"], "a c has no probabilities to search with.*steelyard calibrate 'a c' "),
        (["a", "a"], "a is given more than once"),
    ):
        with pytest.raises(ValueError, match=said):
            run_retrieval.compare(runs, Other(None, None, None), None, None, False)


def test_the_table_and_the_json(found: Study) -> None:
    text = io.StringIO()
    show(found, Console(file=text, width=120))
    lines = text.getvalue().splitlines()
    assert "60 items" in lines[0]
    assert lines[1].split() == ["run", "all", "queries", "1", "term", "2", "terms", "3", "terms"]
    assert f"{100 * found.runs[0].by_eta.by_terms[2]:.1f}" in lines[2]
    assert lines[4].startswith("b, by σ(z)")
    assert f"All {found.runs[0].by_eta.n_queries:,} queries" in lines[5]
    plain = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert plain["runs"][1]["by_terms"]["3"]["mAP"] == found.runs[1].by_eta.by_terms[3]
    assert plain["runs"][0]["by_sigmoid"] is None
    assert plain["runs"][1]["by_sigmoid"]["exact"] is True


def test_the_page(found: Study, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    strange = replace(found.runs[0], name="<b>&")
    write_study(replace(found, runs=(strange, *found.runs[1:])), tmp_path / "study.html", "Search & find")
    text = (tmp_path / "study.html").read_text(encoding="utf-8")
    assert "&lt;b&gt;&amp;" in text
    assert "what each is above &lt;b&gt;&amp;." in text
    assert "<b>&" not in text
    assert f"{100 * found.runs[1].by_eta.by_terms[3]:.1f}" in text
    assert text.count("<img") == 1
    assert text.count("★") >= 4


def test_the_plot_draws_every_point() -> None:
    pytest.importorskip("matplotlib")
    sampled = RetrievalCurve({1: 0.5, 2: 0.4, 3: float("nan")}, {1: (0.5, 0.5), 2: (0.3, 0.5), 3: (0, 0)})
    less = RetrievalCurve({1: 0.4, 2: 0.35, 3: 0.1}, {1: (0.4, 0.4), 2: (0.3, 0.4), 3: (0, 0.2)})
    figure = retrieval_curves({"a": sampled, "b": less}, {"b": sampled})
    axes, differences = figure.axes
    assert [line.get_linestyle() for line in axes.lines] == ["-", "-", "--"]
    assert axes.lines[1].get_color() == axes.lines[2].get_color() != axes.lines[0].get_color()
    np.testing.assert_allclose(axes.lines[0].get_xydata(), [[1, 50], [2, 40]])
    assert len(axes.collections) == 3
    assert list(axes.get_xticks()) == [1, 2, 3]
    np.testing.assert_allclose(differences.lines[0].get_ydata(), [0, 0])
    np.testing.assert_allclose(differences.lines[1].get_ydata(), [-10, -5, np.nan])
    np.testing.assert_allclose(differences.lines[2].get_ydata(), [0, 0])
    (alone,) = retrieval_curves({"a": sampled}).axes
    assert len(alone.lines) == 1
    (one,) = retrieval_curves({"a": sampled}, {"a": less}).axes
    assert [line.get_color() for line in one.lines] == [SERIES[OWN], SERIES[SIGMOID]]
    assert [line.get_label() for line in one.lines] == ["a", "a, by σ(z)"]
