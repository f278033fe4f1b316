"""The scikit-learn estimator: what scikit-learn asks of one, and what multi-label data asks on top."""

from __future__ import annotations

import inspect
import pickle
import tomllib
from typing import Any
from unittest import SkipTest

import numpy as np
import pyarrow as pa
import pytest
import scipy.sparse as sparse
import sklearn
from sklearn.base import is_classifier
from sklearn.metrics import f1_score, make_scorer
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import steelyard as sy
from run_data import items
from steelyard import SteelyardClassifier
from steelyard.metrics import mean_average_precision

CALIBRATED: dict[str, Any] = dict(epochs=3, batch_size=32, lr=0.02)
QUICK: dict[str, Any] = dict(**CALIBRATED, settings={"evaluate": {"calibration": "link"}})


@pytest.fixture(scope="module")
def fitted() -> SteelyardClassifier:
    x, y = items(240)
    return SteelyardClassifier(epochs=12, batch_size=32, lr=0.03, validation=0.2, thresholds="f1").fit(x, y)


def test_it_learns_and_its_answers_agree(fitted: SteelyardClassifier) -> None:
    x, y = items(150, 1)
    eta, odds, said = fitted.predict_proba(x), fitted.decision_function(x), fitted.predict(x)
    assert eta.shape == odds.shape == said.shape == (150, 3)
    assert ((eta > 0) & (eta < 1)).all()
    assert np.allclose(np.log(eta / (1 - eta)), odds, atol=1e-3)
    assert set(np.unique(said)) == {0, 1}
    assert np.array_equal(said == 1, eta >= fitted.run_.trained.thresholds.astype(np.float32))
    assert fitted.score(x, y) == pytest.approx(float(mean_average_precision(odds, y)))
    assert fitted.score(x, y) > 0.7
    assert f1_score(y, said, average="macro") > 0.6
    assert fitted.n_features_in_ == 5
    assert fitted.classes_.tolist() == [0, 1, 2]
    assert is_classifier(fitted)


def test_settings_of_every_kind_reach_training() -> None:
    x, y = items()
    made = SteelyardClassifier(
        "focal", hidden=7, epochs=2, batch_size=16, lr=0.01, weight_decay=0.2, validation=0.25, seed=3,
        settings={"objective": {"label_pair": "on"}, "optimizer": {"clip_norm": 1.0}},
    )  # fmt: skip
    run = made.fit(x, y).run_
    said = tomllib.loads(run.trained.config)
    assert said["model"]["backbone"] == "mlp"
    assert said["model"]["width"] == 7
    assert (said["train"]["epochs"], said["train"]["batch_size"], said["train"]["seed"]) == (2, 16, 3)
    assert said["optimizer"]["lr"] == 0.01
    assert said["optimizer"]["weight_decay"] == 0.2
    assert said["optimizer"]["clip_norm"] == 1.0
    assert said["data"]["validation"] == 0.25
    assert said["objective"]["loss"]["kind"] == "focal"
    assert said["objective"]["label_pair"]["kind"] == "on"
    assert run.metrics["validation"]["items"] == 40


def test_the_same_seed_gives_the_same_model() -> None:
    x, y = items(unknown=0.2)
    a, b, c = (
        SteelyardClassifier("pal", hidden=6, seed=seed, **QUICK).fit(x, y).predict_proba(x) for seed in (0, 0, 1)
    )
    assert np.array_equal(a, b)
    assert not np.array_equal(a, c)


def test_fitting_again_starts_anew() -> None:
    x, y = items()
    made = SteelyardClassifier(**QUICK).fit(*items(120, 5))
    made.fit(x[:, :4], y[:, :2])
    fresh = SteelyardClassifier(**QUICK).fit(x[:, :4], y[:, :2])
    assert np.array_equal(made.predict_proba(x[:, :4]), fresh.predict_proba(x[:, :4]))
    assert made.n_features_in_ == 4


def test_in_a_pipeline_and_over_a_grid() -> None:
    x, y = items()
    pipe = make_pipeline(StandardScaler(), SteelyardClassifier(**QUICK)).fit(100 * x + 7, y)
    assert pipe.predict_proba(100 * x + 7).shape == (160, 3)
    search = GridSearchCV(SteelyardClassifier(**QUICK), {"lr": [1e-5, 0.05], "recipe": ["bce", "focal"]}, cv=2)
    search.fit(x, y)
    assert search.best_params_["lr"] == 0.05
    assert search.predict(x).shape == y.shape
    assert search.best_estimator_.score(x, y) > 0.6


def test_cross_validation_by_many_scorers() -> None:
    x, y = items()
    made = SteelyardClassifier(**QUICK)
    scorers: dict[str, Any] = {name: name for name in ("roc_auc", "f1_samples", "jaccard_micro")}
    scorers |= {"own": None, "f1_micro": make_scorer(f1_score, average="micro")}
    found = cross_validate(made, x, y, cv=2, scoring=scorers, error_score="raise")
    scores = np.array([found[f"test_{name}"] for name in scorers])
    assert np.isfinite(scores).all()
    assert (scores >= 0).all()
    assert (found["test_f1_micro"] > 0).all()
    held_out = cross_val_predict(made, x, y, cv=2, method="predict_proba")
    assert np.asarray(held_out).shape == y.shape


def test_labels_in_every_form() -> None:
    x, y = items()
    dense = SteelyardClassifier(**QUICK).fit(x, y)
    for other in (sparse.csr_matrix(y), sparse.csc_array(y), y.tolist(), y.astype(bool), y.astype(np.float64)):
        made = SteelyardClassifier(**QUICK).fit(x, other)
        assert np.array_equal(made.predict_proba(x), dense.predict_proba(x))
        assert made.score(x, other) == dense.score(x, y)

    class Frame:
        """As much of a table with named columns as is asked for."""

        columns = ("cat", "dog", "rare bird")

        def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
            return y.astype(dtype or y.dtype)

    framed = SteelyardClassifier(**QUICK).fit(x, Frame())
    assert framed.classes_.tolist() == ["cat", "dog", "rare bird"]
    assert framed.run_.names == ("cat", "dog", "rare bird")
    assert np.array_equal(framed.predict_proba(x), dense.predict_proba(x))


def test_nan_is_unknown_and_lists_name_their_labels() -> None:
    """As for `sy.fit`, through the same function."""
    x, y = items(unknown=0.2)
    plain = SteelyardClassifier(**QUICK).fit(x, y)
    with_nan = np.where(y < 0, np.nan, y)
    for other in (with_nan, with_nan.astype(object), with_nan.tolist()):
        made = SteelyardClassifier(**QUICK).fit(x, other)
        assert np.array_equal(made.predict_proba(x), plain.predict_proba(x))
        assert made.score(x, other) == plain.score(x, y)
    lists = [[name for name, present in zip(("cat", "dog", "emu"), row, strict=True) if present > 0] for row in y]
    listed, dense = SteelyardClassifier(**QUICK).fit(x, lists), SteelyardClassifier(**QUICK).fit(x, y > 0)
    assert listed.classes_.tolist() == ["cat", "dog", "emu"]
    assert np.array_equal(listed.predict_proba(x), dense.predict_proba(x))
    assert listed.score(x, lists) == dense.score(x, y > 0)


def test_a_data_frame() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    x, y = items()
    table = pandas.DataFrame(x, columns=list("abcde"))
    made = SteelyardClassifier(**QUICK).fit(table, pandas.DataFrame(y, columns=["cat", "dog", "bird"]))
    assert made.classes_.tolist() == ["cat", "dog", "bird"]
    assert made.feature_names_in_.tolist() == list("abcde")
    with pytest.raises(ValueError, match="feature names"):
        made.predict(table[list("edcba")])


@pytest.mark.parametrize("kind", ["texts", "arrow", "pandas", "polars"])
def test_tables_and_texts(kind: str) -> None:
    """As for `sy.fit`, which encodes them; columns may come in another order."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, (60, 2))
    colour = np.where(y[:, 0], "red", "blue").tolist()
    text = [f"a program for {'music' if sound else 'games'} and more {i}" for i, sound in enumerate(y[:, 1])]
    columns = {"size": rng.normal(size=60).tolist(), "colour": colour, "text": text}
    x: Any = text
    if kind == "arrow":
        x = pa.table(columns)
    elif kind != "texts":
        x = pytest.importorskip(kind).DataFrame(columns)
    made = SteelyardClassifier("bce").fit(x, y)
    run = sy.fit((x, y), "bce", settings={"evaluate": {"thresholds": "half"}}, verbose=False)
    assert np.array_equal(made.predict_proba(x), run.probability(x))
    told = slice(1 if kind == "texts" else 0, None)  # texts tell nothing of the colour
    assert mean_average_precision(made.predict_proba(x)[:, told], y[:, told]) > 0.99
    assert (made.predict(x)[:, 1] == y[:, 1]).all()
    assert made.n_features_in_ == (1 if kind == "texts" else 3)
    assert pickle.loads(pickle.dumps(made)).predict(x).tolist() == made.predict(x).tolist()
    if kind in ("pandas", "polars"):
        assert made.feature_names_in_.tolist() == ["size", "colour", "text"]
        assert np.array_equal(made.predict_proba(x[["text", "colour", "size"]]), made.predict_proba(x))
        with pytest.raises(ValueError, match="no column 'colour'"):
            made.predict(x[["text", "size"]])
    else:
        assert cross_val_predict(made, text, y, cv=2, method="predict_proba").shape == y.shape
    assert SteelyardClassifier("bce").fit(np.eye(60), y).predict(np.eye(60)).shape == y.shape


def test_weights_of_items() -> None:
    x, y = items(60)
    weight = np.where(y[:, 0] == 1, 3.0, 1.0)
    made = SteelyardClassifier("bce").fit(x, y, sample_weight=weight)
    run = sy.fit((x, y), "bce", sample_weight=weight, settings={"evaluate": {"thresholds": "half"}}, verbose=False)
    assert np.array_equal(made.predict_proba(x), run.probability(x))
    assert not np.allclose(made.predict_proba(x), SteelyardClassifier("bce").fit(x, y).predict_proba(x), atol=1e-3)
    with pytest.raises(ValueError, match="sample_weight is given, but the training loop"):
        SteelyardClassifier(epochs=1).fit(x, y, sample_weight=weight)


def test_unknown_and_soft_labels() -> None:
    x, y = items(240)
    hidden = np.where(np.random.default_rng(0).random(y.shape) < 0.4, -1, y)
    made = SteelyardClassifier("bce", epochs=12, batch_size=32, lr=0.03).fit(x, hidden)
    assert made.score(*items(150, 1)) > 0.65
    known = hidden >= 0
    assert made.run_.trained.counts.sum() <= (hidden == 1).sum()
    assert made.run_.trained.n_known.sum() <= known.sum()
    # What is unknown plays no part: another guess at it changes neither the score nor the fit.
    assert made.score(x, hidden) == pytest.approx(float(mean_average_precision(made.decision_function(x), hidden)))
    soft = SteelyardClassifier(**QUICK).fit(x, np.where(y == 1, 0.8, 0.1))
    assert soft.predict_proba(x).shape == y.shape


def test_a_loss_without_probabilities_can_still_be_scored() -> None:
    x, y = items()
    made = SteelyardClassifier("two-way", validation=0, **CALIBRATED).fit(x, y)
    assert made.score(x, y) == pytest.approx(float(mean_average_precision(made.run_.logits(x), y)))
    with pytest.raises(ValueError, match="has no probability"):
        made.predict(x)
    assert SteelyardClassifier("two-way", validation=0.2, **CALIBRATED).fit(x, y).predict_proba(x).max() < 1


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda x, y: (x, y[:, 0]), r"y has shape \(160,\), binary: Only binary classification"),
        (lambda x, y: (x, None), "requires y to be passed"),
        (lambda x, y: (x[0], y), "Expected 2D array"),
        (lambda x, y: (x * np.nan, y), "contains NaN"),
        (lambda x, y: (x, y.astype(str)), "a label is 1 present"),
        (lambda x, y: (x, 0 * y), "nothing to learn"),
        (lambda x, y: (x[:1], y[:1]), "1 sample"),
        (lambda x, y: (x[:, :0], y), r"0 feature\(s\)"),
    ],
)
def test_what_cannot_be_fitted(change: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        SteelyardClassifier(**QUICK).fit(*change(*items()))


def test_other_features_are_refused(fitted: SteelyardClassifier) -> None:
    x, y = items()
    with pytest.raises(ValueError, match="X has 3 features, but SteelyardClassifier is expecting 5"):
        fitted.predict(x[:, :3])
    with pytest.raises(ValueError, match="sample_weight"):
        fitted.score(x, y, sample_weight=np.ones(len(x)))  # type: ignore[arg-type]
    assert (fitted.predict(sparse.csr_matrix(x)) == fitted.predict(x)).all()


def test_it_travels(fitted: SteelyardClassifier, tmp_path: Any) -> None:
    joblib = pytest.importorskip("joblib")
    x, _ = items(50, 2)
    wanted = fitted.predict_proba(x)
    assert np.array_equal(pickle.loads(pickle.dumps(fitted)).predict_proba(x), wanted)
    joblib.dump(fitted, tmp_path / "model.joblib")
    assert np.array_equal(joblib.load(tmp_path / "model.joblib").predict_proba(x), wanted)
    assert np.array_equal(fitted.run_.probability(x), wanted)
    assert isinstance(fitted.run_, sy.Run)


NOT_APPLICABLE = {
    **dict.fromkeys(
        ("check_classifiers_classes", "check_classifiers_train", "check_decision_proba_consistency"),
        "gives one column of y, or wants one back; here y is (N, L)",
    ),
    **dict.fromkeys(
        (
            *("check_estimators_dtypes", "check_classifier_data_not_an_array", "check_fit2d_1feature"),
            *(f"check_sample_weights_{kind}" for kind in ("pandas_series", "not_an_array", "shape", "not_overwritten")),
        ),
        "names two classes 1 and 2; a label here is 1 present, 0 absent, -1 unknown",
    ),
    **dict.fromkeys(
        ("check_estimator_sparse_array", "check_estimator_sparse_matrix"),
        "wants two columns of probabilities for one label, here there is one; test_sparse.py fits sparse features",
    ),
    **dict.fromkeys(
        ("check_sample_weight_equivalence_on_dense_data", "check_sample_weight_equivalence_on_sparse_data"),
        "has fewer than 20 items, which are trained step by step, without weights; see test_weights_of_items",
    ),
}
"""The checks of scikit-learn that do not apply to a classifier of several labels, and why."""

needs_expected_failures = pytest.mark.skipif(
    tuple(map(int, sklearn.__version__.split(".")[:2])) < (1, 6), reason="needs expected_failed_checks"
)


@needs_expected_failures
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(
            {"train": {"budget": 1.0}, "evaluate": {"calibration": "link"}}, id="the candidates that always run"
        ),
        pytest.param(None, marks=pytest.mark.slow, id="as it comes"),
    ],
)
def test_scikit_learns_own_checks(settings: dict[str, Any] | None) -> None:
    from sklearn.utils.estimator_checks import estimator_checks_generator

    passed, skipped = set(), set()
    made_so = SteelyardClassifier() if settings is None else SteelyardClassifier(settings=settings)
    for made, check in estimator_checks_generator(made_so, expected_failed_checks=NOT_APPLICABLE, mark="skip"):
        name = _name_of(check)
        try:
            check(made)
            passed.add(name)
        except SkipTest:
            skipped.add(name)
    assert skipped - set(NOT_APPLICABLE) <= {"check_array_api_input"}
    assert len(passed) > 45
    assert passed >= {
        *("check_estimators_pickle", "check_estimators_unfitted", "check_dict_unchanged", "check_fit_idempotent"),
        *("check_methods_subset_invariance", "check_pipeline_consistency", "check_classifier_multioutput"),
        *("check_fit2d_1sample", "check_dtype_object", "check_classifiers_one_label"),
        *("check_classifiers_regression_target", "check_classifier_not_supporting_multiclass"),
        *(f"check_classifiers_multilabel_output_format_{n}" for n in ("predict", "predict_proba", "decision_function")),
    }


@needs_expected_failures
@pytest.mark.filterwarnings("ignore")
def test_the_list_of_checks_that_do_not_apply_is_no_longer_than_needed() -> None:
    from sklearn.utils.estimator_checks import estimator_checks_generator

    failed = set()
    for made, check in estimator_checks_generator(SteelyardClassifier(epochs=1, validation=0), legacy=True):
        if _name_of(check) in NOT_APPLICABLE:
            with pytest.raises((AssertionError, ValueError)):
                check(made)
            failed.add(_name_of(check))
    assert failed == set(NOT_APPLICABLE)


def _name_of(check: Any) -> str:
    """Return the name of a check of scikit-learn, which may be wrapped to be skipped."""
    inner = inspect.unwrap(check)
    name: str = getattr(inner, "func", inner).__name__
    return name


def test_decisions_at_one_half_are_the_sign_of_the_log_odds() -> None:
    x, y = items(240)
    halves = SteelyardClassifier(**QUICK).fit(x, y)
    odds = halves.decision_function(x)
    assert np.array_equal(halves.predict(x), (odds > 0).astype(int))
    assert np.array_equal(halves.predict(x), halves.predict_proba(x).round().astype(int))
    tuned = SteelyardClassifier(thresholds="f1", validation=0.3, **QUICK).fit(x, y)
    assert not np.array_equal(tuned.predict(x), (tuned.decision_function(x) > 0).astype(int))
    assert f1_score(y, tuned.predict(x), average="macro") > f1_score(y, halves.predict(x), average="macro")


def test_one_item_is_answered_but_not_learned_from(fitted: SteelyardClassifier) -> None:
    x, y = items(5, 1)
    alone = fitted.predict_proba(x[:1])
    assert alone.shape == fitted.predict(x[:1]).shape == (1, 3)
    np.testing.assert_allclose(alone, fitted.predict_proba(x)[:1], rtol=1e-5)
    with pytest.raises(ValueError, match="1 sample"):
        SteelyardClassifier().fit(x[:1], y[:1])
