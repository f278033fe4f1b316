"""The evaluator: equal to the functions, however batches are split and evaluators merged."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import steelyard.metrics as m
from steelyard.metrics import bootstrap as boot
from steelyard.metrics import evaluator as evaluator_module
from steelyard.metrics import store as store_module

COUNTS = np.array([500, 120, 100, 99, 40, 20, 19, 5, 1, 0, 3, 300, 60, 7, 15, 2, 80, 9])
L = len(COUNTS)


def drawn(seed: int, n: int = 400, soft: bool = False) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    t = (rng.random((n, L)) < rng.random(L) * 0.4).astype(np.float32)
    t[:, 3] = 0  # a label without positives
    p = (1 / (1 + np.exp(-rng.normal(size=(n, L)) - 2 * t + 1))).astype(np.float32)
    p[:, 5] = np.round(p[:, 5], 1).clip(0.1, 0.9)
    if soft:
        t = np.where(rng.random(t.shape) < 0.2, 0.9 * t + 0.05, t).astype(np.float32)
    t[rng.random(t.shape) < 0.15] = -1
    t[7] = -1
    return p, t


def evaluated(p: np.ndarray, t: np.ndarray, cuts: list[int], **options: Any) -> m.Evaluator:
    evaluator = m.Evaluator(L, counts=COUNTS, **options)
    for start, stop in zip([0, *cuts], [*cuts, len(p)], strict=True):
        evaluator.update(p[start:stop], t[start:stop])
    return evaluator


@pytest.mark.parametrize("soft", [False, True])
def test_everything_equals_the_functions(soft: bool) -> None:
    p, t = drawn(0, soft=soft)
    report = evaluated(p, t, [10, 11, 250]).compute(threshold=0.4, rarest=[3, L])
    decisions = p >= np.float32(0.4)
    ap, by_item = m.average_precision(p, t), m.mean_defined(m.average_precision(p, t, per="item"))
    prf = m.precision_recall_f1(decisions, t)
    assert (report["items"], report["labels"], report["threshold"]) == (*p.shape, 0.4)
    assert report["known"] == (t != -1).sum() == t.size - report["unknown"]
    assert report["positives"] == (t >= 0.5).sum()
    assert report["mAP"]["label"] == pytest.approx(m.mean_average_precision(p, t), abs=1e-12)
    assert report["mAP"]["labels_left_out"] == 1
    assert report["mAP"]["item"] == pytest.approx(by_item.value, abs=1e-12)
    assert report["mAP"]["items_left_out"] == by_item.left_out > 0
    for name in ("macro", "micro"):
        assert report[name] == pytest.approx(vars(getattr(prf, name)), abs=1e-12)
    assert report["exact_match"] == pytest.approx(m.exact_match(decisions, t), abs=1e-12)
    assert report["exact_match_items_left_out"] == 1
    assert report["brier"] == pytest.approx(m.brier(p, t), abs=1e-12)
    assert report["log_loss"] == pytest.approx(m.log_loss(p, t), abs=1e-12)
    for binning in ("width", "mass"):
        pooled, want = report["calibration"]["pooled"][binning], m.calibration_error(p, t, binning=binning)
        assert (pooled["ace"], pooled["mce"], pooled["ece"]) == pytest.approx((want.ace, want.mce, want.ece), abs=1e-12)
        assert pooled["by_chance"] == pytest.approx(m.error_by_chance(want.bins)._asdict(), abs=1e-12)
        assert pooled["bins"]["counts"] == want.bins.counts.tolist()
        assert pooled["bins"]["edges"] == want.bins.edges.tolist()
        np.testing.assert_allclose(np.array(pooled["bins"]["frequency"], float), want.bins.frequency, atol=1e-12)
        by_label = m.calibration_error(p, t, binning=binning, per="label")
        assert report["calibration"]["label"][binning]["ace"] == pytest.approx(np.nanmean(by_label.ace), abs=1e-12)
    width = m.calibration_error(p, t, per="label")
    for j, row in enumerate(report["per_label"]):
        assert row["name"] == str(j)
        assert row["training_positives"] == COUNTS[j]
        assert row["average_precision"] == (None if np.isnan(ap[j]) else pytest.approx(ap[j], abs=1e-12))
        assert (row["precision"], row["recall"], row["f1"]) == pytest.approx(
            (prf.precision[j], prf.recall[j], prf.f1[j])
        )
        assert (row["positives"], row["known"]) == ((t[:, j] >= 0.5).sum(), (t[:, j] != -1).sum())
        assert row["brier"] == pytest.approx(m.brier(p[:, j : j + 1], t[:, j : j + 1]), abs=1e-12)
        assert row["log_loss"] == pytest.approx(m.log_loss(p[:, j : j + 1], t[:, j : j + 1]), abs=1e-12)
        assert row["ace"] == pytest.approx(width.ace[j], abs=1e-12)
    for group, mean in m.mean_by_group(ap, COUNTS).items():
        assert report["groups"][group]["mAP"] == pytest.approx(mean.value, abs=1e-12)
        assert report["groups"][group]["labels"] == mean.n + mean.left_out
        assert report["groups"][group]["labels_left_out"] == mean.left_out
    assert report["rarest"]["3"]["macro"]["f1"] == pytest.approx(m.mean_of_rarest(prf.f1, COUNTS, 3).value, abs=1e-12)
    for name in ("brier", "log_loss"):
        assert report["rarest"][str(L)][name] == pytest.approx(report[name], abs=1e-12)


def test_decisions_where_every_label_is_known() -> None:
    p, t = drawn(0)
    t = np.where(t == -1, 0, t)
    report, want = evaluated(p, t, []).compute(bootstrap=3), m.precision_recall_f1(p >= 0.5, t)
    assert report["macro"] == pytest.approx(vars(want.macro), abs=1e-12)
    assert report["micro"] == pytest.approx(vars(want.micro), abs=1e-12)
    assert report["intervals"]["per_label"][0]["average_precision"][0] > 0


@pytest.mark.parametrize(
    ("probability", "target", "impossible"),
    [(0, 1, 1), (0, 0.25, 1), (0, 0, 0), (1, 0, 1), (1, 0.75, 1), (1, 1, 0), (0.5, 1, 0), (0, -1, 0), (1, -1, 0)],
)
def test_impossible_is_what_has_an_infinite_log_loss(probability: float, target: float, impossible: int) -> None:
    evaluator = m.Evaluator(1)
    evaluator.update(np.array([[probability]], np.float32), np.array([[target]], np.float32))
    report = evaluator.compute()
    assert report["impossible"] == impossible
    assert (report["log_loss"] is None) == (impossible == 1 or target == -1)


@pytest.mark.parametrize("soft", [False, True])
def test_batches_merges_and_orders_give_the_very_same_report(soft: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    p, t = drawn(1, soft=soft)
    want = evaluated(p, t, []).compute(bootstrap=20)
    assert evaluated(p, t, list(range(1, 300, 7))).compute(bootstrap=20) == want
    monkeypatch.setattr(store_module, "CELLS_IN_BLOCK", 23 * L)
    order = np.random.default_rng(0).permutation(len(p))
    shuffled = evaluated(p[order], t[order], [5, 6, 200])
    assert shuffled.compute(bootstrap=20) == want
    parts = [evaluated(p[i::4], t[i::4], [3]) for i in (2, 0, 3, 1)]
    first = parts.pop()
    for part in parts:
        assert first.merge(part) is first
    assert len(first) == len(p)
    assert first.compute(bootstrap=20) == want


def test_rows_that_differ_in_their_targets_alone_have_one_order() -> None:
    """1 and -1 as float32 differ in one high bit: some of these rows shared a hash, and then came as they arrived."""
    rng = np.random.default_rng(0)
    scores, targets = np.full((200_000, 24), 0.5, np.float32), rng.choice([-1, 1], (200_000, 24)).astype(np.int8)
    kept = []
    for order in (np.arange(len(targets)), rng.permutation(len(targets))):
        store = store_module.Store(24, np.dtype(np.float32))
        store.append(scores, targets[order])
        kept.append(targets[order][store.canonical_order()])
    np.testing.assert_array_equal(*kept)


def test_a_report_is_plain_json_with_none_for_the_undefined() -> None:
    p, t = drawn(2)
    p[0, 0], t[0, 0] = 0, 1  # impossible, yet there: the log-loss is infinite
    report = evaluated(p, t, []).compute(bootstrap=3)
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    assert report["log_loss"] is None
    assert report["impossible"] == 1
    assert report["per_label"][3]["average_precision"] is None


def test_nothing_collected() -> None:
    report = m.Evaluator(3, counts=np.array([1, 50, 200])).compute(bootstrap=5)
    assert report["items"] == 0
    assert report["mAP"] == {"label": None, "labels_left_out": 3, "item": None, "items_left_out": 0}
    assert report["brier"] is report["exact_match"] is None
    assert report["calibration"]["pooled"]["mass"]["ace"] is None


@pytest.mark.parametrize(("n_labels", "rarest"), [(5, []), (10, ["5"]), (20, ["5", "10"]), (21, ["5", "10", "20"])])
def test_the_rarest_are_averaged_where_there_are_others(n_labels: int, rarest: list[str]) -> None:
    assert list(m.Evaluator(n_labels, counts=np.arange(n_labels)).compute()["rarest"]) == rarest


def test_without_counts_there_are_no_groups() -> None:
    evaluator = m.Evaluator(2, names=("cat", "dog"))
    evaluator.update(torch.tensor([[0.2, 0.9]]), torch.tensor([[0, 1]]))
    report = evaluator.compute()
    assert "groups" not in report
    assert [row["name"] for row in report["per_label"]] == ["cat", "dog"]


def test_thresholds_by_label_are_rounded_as_the_scores_are() -> None:
    evaluator = m.Evaluator(2)
    evaluator.update(np.array([[0.7, 0.3]]), np.array([[1, 1]]))
    assert evaluator.compute(threshold=np.array([0.7, 0.3]))["exact_match"] == 1
    assert evaluator.compute(threshold=torch.tensor([0.7, 0.4]))["exact_match"] == 0
    assert evaluator.compute(threshold=0.3)["exact_match"] == 1
    assert type(evaluator.compute(threshold=1)["threshold"]) is float
    for tensor in (torch.tensor([0.5, 0.25], requires_grad=True), torch.tensor([0.5, 0.25], dtype=torch.bfloat16)):
        assert evaluator.compute(threshold=tensor)["threshold"] == [0.5, 0.25]
    p, t = drawn(10)
    threshold = np.linspace(0.2, 0.7, L)
    report, decisions = evaluated(p, t, [9]).compute(threshold=threshold), p >= threshold.astype(np.float32)
    assert report["threshold"] == threshold.tolist()
    assert report["exact_match"] == pytest.approx(m.exact_match(decisions, t), abs=1e-12)
    assert report["macro"] == pytest.approx(vars(m.precision_recall_f1(decisions, t).macro), abs=1e-12)


@pytest.mark.parametrize("bins", [15, 40])
def test_float16_keeps_half_the_bytes_and_the_metrics_of_what_it_kept(bins: int) -> None:
    p, t = drawn(3, n=2000)
    t = t.astype(np.int8)
    whole, half = evaluated(p, t, [900]), evaluated(p, t, [900], dtype="float16", bins=bins)
    assert half.nbytes / whole.nbytes == pytest.approx(3 / 5)
    assert whole.nbytes < 2.5 * 5 * p.size
    kept = p.astype(np.float16)
    report = half.compute()
    assert report["mAP"]["label"] == pytest.approx(m.mean_average_precision(kept, t), abs=1e-12)
    assert report["brier"] == pytest.approx(m.brier(kept, t), abs=1e-12)
    for binning in ("width", "mass"):
        want, got = m.calibration_error(kept, t, bins, binning), report["calibration"]["pooled"][binning]
        assert got["ace"] == pytest.approx(want.ace, abs=1e-12)
        assert (got["bins"]["counts"], got["bins"]["edges"]) == (want.bins.counts.tolist(), want.bins.edges.tolist())
        ace = report["calibration"]["label"][binning]["ace"]
        assert ace == pytest.approx(m.calibration_error(kept, t, bins, binning, "label").ace.mean(), abs=1e-12)


def test_calibration_errors_of_a_group_are_those_of_its_cells() -> None:
    """Pooled as those of all labels are: means over labels of few cells each would be several times as large."""
    p, t = drawn(12, n=400)
    report = evaluated(p, t, []).compute(rarest=[L])
    groups = {"groups": m.label_groups(COUNTS), "rarest": {str(L): np.arange(L)}}
    for kind, members in groups.items():
        for name, index in members.items():
            got = report[kind][name]
            want = m.calibration_error(p[:, index], t[:, index])
            assert (got["ace"], got["mce"], got["ece"]) == pytest.approx((want.ace, want.mce, want.ece), abs=1e-12)
            assert got["by_chance"] == pytest.approx(m.error_by_chance(want.bins)._asdict(), abs=1e-12)
    whole, pooled = report["rarest"][str(L)], report["calibration"]["pooled"]["width"]
    assert (whole["ace"], whole["by_chance"]) == (pooled["ace"], pooled["by_chance"])


def test_values_at_unknown_labels_are_ignored_and_bfloat16_is_taken() -> None:
    p, t = drawn(4)
    assert evaluated(np.where(t == -1, np.nan, p), t, []).compute() == evaluated(p, t, []).compute()
    short, soft = (torch.from_numpy(x).bfloat16() for x in drawn(9, soft=True))
    assert evaluated(short, soft, []).compute() == evaluated(short.float(), soft.float(), []).compute()


def test_batches_and_counts_may_be_reused_by_the_caller() -> None:
    p, t = drawn(5)
    buffer_p, buffer_t = np.empty((100, L), np.float32), np.empty((100, L), np.float32)
    counts = COUNTS.copy()
    evaluator = m.Evaluator(L, counts=counts)
    counts[:] = 0
    for start in range(0, len(p), 100):
        buffer_p[:], buffer_t[:] = p[start : start + 100], t[start : start + 100]
        evaluator.update(buffer_p, buffer_t)
    assert evaluator.compute() == evaluated(p, t, []).compute()


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_saved_and_loaded(soft: bool, dtype: str, tmp_path: Path) -> None:
    p, t = drawn(6, soft=soft)
    evaluator = evaluated(p, t, [33], names=[f"label {j}" for j in range(L)], bins=7, dtype=dtype)
    evaluator.save(tmp_path / "evaluator.safetensors")
    loaded = m.Evaluator.load(tmp_path / "evaluator.safetensors")
    assert loaded.compute(bootstrap=3) == evaluator.compute(bootstrap=3)
    assert m.Evaluator.from_state_dict(evaluator.state_dict()).compute() == evaluator.compute()
    other = evaluated(*drawn(7), [], names=[f"label {j}" for j in range(L)], bins=7, dtype=dtype)
    assert loaded.merge(other).compute() == evaluator.merge(other).compute()
    m.Evaluator(2).save(tmp_path / "empty.safetensors")
    assert len(m.Evaluator.load(tmp_path / "empty.safetensors")) == 0


def test_a_broken_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "evaluator.safetensors"
    evaluated(*drawn(6), []).save(path)
    before = path.read_bytes()

    def half(tensors: object, path: Path, metadata: object) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(evaluator_module, "save_file", half)
    with pytest.raises(OSError, match="No space left"):
        evaluated(*drawn(7), []).save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


SETTINGS = {"names": ["a", "b"], "bins": 3, "dtype": "float32"}


@pytest.mark.parametrize(
    ("form", "settings", "why"),
    [
        ("steelyard-evaluator-1", SETTINGS, None),
        ("steelyard-evaluator-0", SETTINGS, "its format is another"),
        ("steelyard-evaluator-1", {"bins": 3, "dtype": "float32"}, "'names' is missing"),
        ("steelyard-evaluator-1", SETTINGS | {"names": "ab"}, "its names are no list of texts"),
        ("steelyard-evaluator-1", SETTINGS | {"names": ["a", 1]}, "its names are no list of texts"),
        ("steelyard-evaluator-1", SETTINGS | {"bins": 0}, "bins is 0: give 1 to 1,000,000 bins, 15 being the usual"),
    ],
)
def test_why_a_file_is_refused(form: str, settings: dict[str, Any], why: str | None, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    path, tensors = tmp_path / "e.safetensors", {"probabilities": torch.zeros(1, 2), "targets": torch.zeros(1, 2)}
    save_file(tensors, path, metadata={"format": form, "settings": json.dumps(settings)})
    if why is None:
        assert m.Evaluator.load(path).names == ("a", "b")
    else:
        with pytest.raises(ValueError, match=f"is corrupt or was not written by Evaluator.save [(]{why}"):
            m.Evaluator.load(path)


def corrected(value: float, draws: np.ndarray, z: float) -> list[float]:
    """The bias-corrected interval on the scale of arcsin √θ, by the formula."""
    turned = np.arcsin(np.sqrt(np.clip(draws[~np.isnan(draws)], 0, 1)))
    middle = 2 * np.arcsin(np.sqrt(value)) - turned.mean()
    ends = np.clip([middle - z * turned.std(ddof=1), middle + z * turned.std(ddof=1)], 0, np.pi / 2)
    return list(np.sin(ends) ** 2)


def test_bootstrap_is_the_metric_of_the_resampled_items() -> None:
    p, t = drawn(8, n=120, soft=True)
    evaluator = evaluated(p, t, [])
    resamples, confidence = 40, 0.8
    report = evaluator.compute(bootstrap=resamples, confidence=confidence, seed=5)
    got = report["intervals"]
    order = evaluator._store.canonical_order()
    draws: dict[str, list[float]] = {}
    ap_draws = []
    for weights in boot.resample_weights(len(p), resamples, seed=5):
        rows = np.repeat(order, weights)
        q, y = p[rows], t[rows]
        prf = m.precision_recall_f1(q >= 0.5, y)
        values = {
            "mAP.item": m.mean_average_precision(q, y, per="item"),
            **{f"micro.{name}": x for name, x in vars(prf.micro).items()},
            "macro.f1": prf.macro.f1,
            "exact_match": m.exact_match(q >= 0.5, y),
            "brier": m.brier(q, y),
            "log_loss": m.log_loss(q, y),
            "rarest.5.macro.f1": m.mean_of_rarest(prf.f1, COUNTS, 5).value,
        }
        ap_draws.append(m.average_precision(q, y))
        for name, value in values.items():
            draws.setdefault(name, []).append(value)
    ap = np.array(ap_draws)
    positives = (t >= 0.5).sum(0)
    center = np.nansum(ap, 0) / np.maximum(1, (~np.isnan(ap)).sum(0))
    spread = center + (ap - center) * np.sqrt(positives / (positives - 1))
    draws |= {f"per_label.{j}.average_precision": spread[:, j] for j in (0, L - 1)}
    draws |= {
        "mAP.label": np.nanmean(spread, 1),
        "groups.tail.mAP": [m.mean_by_group(row, COUNTS)["tail"].value for row in spread],
    }
    z = 1.2815515655446004  # the .9 quantile of a standard normal
    for name, values_drawn in draws.items():
        node: Any = got
        value: Any = report
        for key in name.split("."):
            node, value = ((x[int(key)] if isinstance(x, list) else x[key]) for x in (node, value))
        want = corrected(value, np.array(values_drawn), z)
        if name == "log_loss":
            half = z * np.std(values_drawn, ddof=1)
            want = [2 * value - np.mean(values_drawn) - half, 2 * value - np.mean(values_drawn) + half]
        assert node == pytest.approx(want, abs=1e-9), name
    assert (got["resamples"], got["confidence"]) == (resamples, confidence)
    assert len(got["per_label"]) == L
    assert "calibration" not in got
    assert got["macro"].keys() == {"f1"}
    assert evaluator.compute(bootstrap=resamples, seed=6)["intervals"] != got


def test_an_interval_lies_on_the_other_side_of_the_bias() -> None:
    """Resamples that are all too high say that the estimate is, too: a percentile interval would lie above it."""
    draws = 0.5 + np.linspace(0.05, 0.15, 21)
    low, high = boot.interval(0.5, draws, 0.95)
    assert low < high < 0.5
    assert (low, high) == pytest.approx((0.34, 0.46), abs=0.01)
    assert boot.interval(0.02, np.array([0.0, 0.05, 0.2]), 0.95)[0] == 0  # stays a share
    assert boot.interval(3.0, np.array([2.0, 4.0]), 0.95, share=False) == pytest.approx([0.228, 5.772], abs=0.001)
    assert boot.interval(0.5, np.array([1.0, 5.0]), 0.95, share=False)[0] == 0


@pytest.mark.parametrize("draws", [[], [0.5], [np.nan, 0.5], [1.0, 1.0, 1.0]])
def test_no_interval_without_variation(draws: list[float]) -> None:
    assert np.isnan(boot.interval(1.0, np.array(draws), 0.95)).all()


COVERED = ("mAP.label", "mAP.item", "macro.f1", "micro.f1", "brier", "log_loss")


def at_path(tree: Any, path: str) -> Any:
    for key in path.split("."):
        tree = tree[key]
    return tree


@pytest.mark.slow
@pytest.mark.parametrize("n_items", [300, 1000, 3000])
def test_intervals_cover_the_truth(n_items: int, record_property: Callable[[str, Any], None]) -> None:
    """Of 400 evaluations at least .90 of the 95 % intervals hold what infinitely many items would show.

    Twelve labels of frequency .01 to .3, scores of two normal distributions, probabilities that are right.
    """
    covered = {separation: coverage(n_items, separation) for separation in (1.0, 1.5)}
    worst = min(min(shares.values()) for shares in covered.values())
    record_property(f"{n_items} items", {"worst": worst, "by separation": covered})
    assert worst >= 0.9, covered


def coverage(n_items: int, separation: float) -> dict[str, float]:
    """Return the share of 400 intervals that hold the truth, by measure."""
    rng, frequency = np.random.default_rng(n_items), np.geomspace(0.01, 0.3, 12)

    def items(n: int) -> m.Evaluator:
        y = rng.random((n, 12)) < frequency
        z = rng.normal(size=(n, 12)) + separation * y
        odds = frequency / (1 - frequency) * np.exp(separation * (z - separation / 2))
        evaluator = m.Evaluator(12)
        evaluator.update(odds / (1 + odds), y)
        return evaluator

    truth = items(400_000).compute(threshold=frequency)
    inside = dict.fromkeys(COVERED, 0)
    for seed in range(400):
        intervals = items(n_items).compute(threshold=frequency, bootstrap=200, seed=seed)["intervals"]
        for path in COVERED:
            low, high = at_path(intervals, path)
            inside[path] += low <= at_path(truth, path) <= high
    return {path: n / 400 for path, n in inside.items()}


def test_weighted_average_precision_with_ties_and_nothing_drawn() -> None:
    scores = np.array([0.5, 0.5, 0.1, 0.5, 0.9])
    positive, known = np.array([1, 0, 1, 1, 0], bool), np.array([1, 1, 1, 1, 0], bool)
    weights = np.array([[1, 1, 1, 1, 1], [2, 0, 0, 3, 9], [0, 4, 0, 0, 1], [0, 1, 1, 0, 0]])
    got = boot.weighted_average_precision(scores, positive, known, weights)
    np.testing.assert_allclose(got, [(2 * 2 / 3 + 3 / 4) / 3, 1, np.nan, 1 / 2])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: m.Evaluator(0), "n_labels is 0"),
        (lambda: m.Evaluator(2.0), "n_labels is 2.0: give a whole number"),
        (lambda: m.Evaluator(2, bins=1.5), "bins is 1.5: give a whole number"),
        (lambda: m.Evaluator(2, names=["a"]), "names has 1 entries"),
        (lambda: m.Evaluator(3, names="abc"), "names is the single string 'abc': give one string for each"),
        (lambda: m.Evaluator(2, counts=np.array([1])), "counts has 1 entries"),
        (lambda: m.Evaluator(2, bins=0), "bins is 0"),
        (lambda: m.Evaluator(2, bins=1_000_001), "bins is 1000001: give 1 to 1,000,000 bins"),
        (lambda: m.Evaluator(2, dtype="int8"), "dtype is 'int8'"),
        (lambda: m.Evaluator(2).update(np.zeros((1, 3)), np.zeros((1, 3))), "probabilities has 3 labels"),
        (lambda: m.Evaluator(1).update(np.array([[1.1]]), np.zeros((1, 1))), r"probabilities\[0, 0\] is 1.1"),
        (lambda: m.Evaluator(2).merge(m.Evaluator(3)), "n_labels differs, 2 here and 3 there"),
        (lambda: m.Evaluator(2).merge(m.Evaluator(2, counts=np.ones(2))), "counts differ"),
        (lambda: m.Evaluator(1, counts=np.ones(1)).merge(m.Evaluator(1, counts=np.zeros(1))), "counts differ"),
        (lambda: (one := m.Evaluator(1)).merge(one), "count every item twice"),
        (lambda: m.Evaluator(2).compute(bootstrap=-1), "bootstrap is -1"),
        (lambda: m.Evaluator(2).compute(confidence=0), "confidence is 0"),
        (lambda: m.Evaluator(2).compute(confidence=1.0), "confidence is 1.0"),
        (lambda: m.Evaluator(2).compute(rarest=[1]), "rarest needs the training counts"),
        (
            lambda: m.Evaluator(2).compute(threshold=np.array([0.5, np.nan])),
            r"threshold\[1\] is nan: give numbers to compare probabilities with$",
        ),
        (lambda: m.Evaluator(2, bins=3).merge(m.Evaluator(2, bins=4)), "bins differs, 3 here and 4 there"),
        (lambda: m.Evaluator(1, ["a"]).merge(m.Evaluator(1, ["b"])), "names differs"),
        (lambda: m.Evaluator(1).merge(m.Evaluator(1, dtype="float16")), "dtype differs"),
        (lambda: m.Evaluator(2).compute(threshold="half"), "threshold has dtype <U4: give real numbers"),
        (lambda: m.Evaluator(2).compute(threshold=np.zeros(3)), r"threshold has shape \(3,\)"),
        (lambda: m.Evaluator(2, counts=np.ones(2)).compute(rarest=[3]), "k is 3: there are 2 labels"),
    ],
)
def test_mistakes(call: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()  # type: ignore[operator]


def test_one_label_one_bin_one_item() -> None:
    evaluator = m.Evaluator(1, bins=1)
    evaluator.update(np.array([[0.25]]), np.array([[1]]))
    report = evaluator.compute()
    assert report["calibration"]["pooled"]["width"]["ace"] == report["calibration"]["pooled"]["mass"]["mce"] == 0.75
    assert report["calibration"]["pooled"]["mass"]["bins"]["edges"] == [0.0, 1.0]
    assert "1 items x 1 labels" in repr(evaluator)
    assert m.Evaluator(1, bins=1_000_000).bins == 1_000_000


def test_every_item_is_drawn_as_often_as_any_other() -> None:
    n, resamples = 50, 2000
    weights = boot.resample_weights(n, resamples, seed=3)
    assert (weights.sum(1) == n).all()
    assert np.abs(weights.mean(0) - 1).max() < 5 * np.sqrt((1 - 1 / n) / resamples)


def test_weighted_sums_are_those_of_the_items_repeated() -> None:
    rng = np.random.default_rng(4)
    for n_items in (1, 9, (1 << 16) + 5):  # the last is more than one block
        values, weights = rng.standard_normal((n_items, 2, 3)), rng.integers(0, 4, (5, n_items)).astype(np.uint16)
        want = [np.repeat(values, w, axis=0).sum(0) for w in weights]
        np.testing.assert_allclose(boot.weighted_sums(weights, values), want, rtol=1e-9, atol=1e-9)


DEFAULTS = {
    m.average_precision: "per=label",
    m.mean_average_precision: "per=label",
    m.calibration_error: "bins=15 binning=width per=pooled",
    m.label_groups: "head=100 tail=20",
    m.mean_by_group: "head=100 tail=20",
    m.retrieval_map: "max_terms=5 exact_up_to=500000 samples=20000 confidence=0.95 seed=0 progress=None",
    m.Evaluator: "names=None counts=None bins=15 dtype=float32",
    m.Evaluator.compute: "threshold=0.5 rarest=None head=100 tail=20 bootstrap=0 confidence=0.95 seed=0 "
    "training_items=0",
}


@pytest.mark.parametrize("metric", DEFAULTS, ids=lambda metric: metric.__qualname__)
def test_defaults_are_the_promised_ones(metric: Any) -> None:
    given = inspect.signature(metric).parameters.values()
    assert " ".join(f"{p.name}={p.default}" for p in given if p.default is not p.empty) == DEFAULTS[metric]
