"""The table of decisions: in metrics.json, on the terminal, and what it says of labels that are never decided."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from scipy.special import expit
from scipy.stats import binomtest

from run_data import write_table
from small_run import part, probability_model_of
from steelyard.calibrate.aim import Aim
from steelyard.calibrate.probability import ProbabilityModel
from steelyard.report.headline import probability
from steelyard.report.threshold_table import (
    MOST_ROWS,
    heading,
    show_table,
    show_thresholds,
    threshold_rows,
)
from typed import done

N_TRAIN = 4000
FREQUENCY = np.array([0.002, 0.004, 0.01, 0.3, 0.4])
NAMES = ("no clue", "rare", "seldom", "often", "more often")


def strict(text: str) -> Any:
    """JSON without NaN and infinity."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def rare_labels(n: int = 1000, seed: int = 0) -> tuple[ProbabilityModel, np.ndarray, np.ndarray]:
    """A reading fitted on validation items whose logits say nothing about the first label, and their η out of fold."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, 5)) * np.array([0.05, 2, 2, 2, 2]) + np.log(FREQUENCY / (1 - FREQUENCY))
    y = (rng.random(z.shape) < expit(z)).astype(np.int8)
    y[:2, 0] = 1
    fitted = probability_model_of(part(), np.round(expit(z).mean(0) * N_TRAIN), N_TRAIN).fit(z + 1.5, y, "platt")
    return fitted, fitted.out_of_fold(z + 1.5, y), y


def table_of(aim: Aim) -> tuple[dict[str, Any], np.ndarray, np.ndarray, np.ndarray]:
    fitted, eta, y = rare_labels()
    probability_model = fitted.with_thresholds(aim, eta, y)
    table = threshold_rows(
        probability_model, NAMES, torch.from_numpy(probability_model.decisions(eta)), torch.from_numpy(y)
    )
    return table, eta, y, probability_model.thresholds


def printed(table: dict[str, Any], width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width)
    show_table(table, console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_no_rare_label_is_decided_for_everybody() -> None:
    table, eta, y, limits = table_of(Aim("f1"))
    rows = {row["label"]: row for row in table["labels"]}
    assert list(rows) == list(NAMES)
    for c, name in enumerate(NAMES):
        row, said = rows[name], eta[:, c] >= limits[c]
        assert row["never"] == np.isinf(limits[c])
        assert row["threshold"] == (None if np.isinf(limits[c]) else limits[c])
        assert row["threshold"] != 0
        assert row["decided"] == said.sum()
        assert row["share"] == said.mean()
        assert row["share"] <= 4 * y[:, c].mean()
        assert row["frequency"] == y[:, c].mean()
        if said.any():
            hits = int((said & (y[:, c] == 1)).sum())
            assert row["precision"] == hits / said.sum()
            assert row["recall"] == hits / y[:, c].sum()
            ends = binomtest(hits, int(said.sum())).proportion_ci(0.95, "wilson")
            assert row["precision_interval"] == pytest.approx([ends.low, ends.high], abs=1e-6)
    assert rows["often"]["recall"] > 0.5
    assert rows["no clue"]["share"] < 0.01
    assert table["never"] == [name for name in NAMES if rows[name]["never"]]
    assert strict(json.dumps(table, allow_nan=False)) == table


def test_a_precision_that_cannot_be_reached_is_named() -> None:
    table, eta, _, limits = table_of(Aim("precision", 0.95))
    rows = {row["label"]: row for row in table["labels"]}
    assert "no clue" in table["never"]
    assert "more often" not in table["never"]
    for name in table["never"]:
        assert [rows[name][key] for key in ("decided", "precision", "precision_interval")] == [0, None, None]
    assert table["target"] == 0.95
    text = printed(table)
    assert text.count("unreachable") == len(table["never"])
    for said in ("at least 95.0 %", f"{len(table['never'])} of 5 labels (label", "'no clue'"):
        assert said in text
    assert (eta >= limits).sum(0).tolist() == [row["decided"] for row in table["labels"]]


def test_recall_below_the_target_is_marked() -> None:
    fitted, eta, y = rare_labels()
    probability_model = fitted.with_thresholds(Aim("recall", 0.9), eta, y)
    shifted = threshold_rows(
        probability_model, NAMES, torch.from_numpy(probability_model.decisions(eta * 0.5)), torch.from_numpy(y)
    )
    assert shifted["labels"][3]["reached"] is False
    assert "below target" in printed(shifted)
    unknown = threshold_rows(
        probability_model, NAMES, torch.from_numpy(probability_model.decisions(eta)), torch.full((1000, 5), -1)
    )
    assert unknown["labels"][3]["recall"] is None


def test_the_table_on_a_terminal_is_short_and_rarest_first() -> None:
    probability_model = probability_model_of(part(), np.arange(50, 0, -1), 100).with_thresholds(Aim("half"))
    names = [f"label\x1b{c}" for c in range(50)]
    y = torch.zeros(10, 50, dtype=torch.int8)
    table = threshold_rows(probability_model, names, torch.zeros(10, 50, dtype=torch.bool), y)
    text = printed(table)
    assert "\x1b" not in text
    lines = [line for line in text.splitlines() if line.startswith("label·")]
    assert [line.split()[0] for line in lines] == [f"label·{c}" for c in range(49, 49 - MOST_ROWS, -1)]
    assert "and 30 more in metrics.json" in text
    assert "Never" not in text  # nothing is decided, but a probability of ½ would be
    show_thresholds({}, Console(file=io.StringIO()))
    show_thresholds({"test": {"thresholds": None}}, Console(file=io.StringIO()))


def test_numbers_and_headings() -> None:
    values = {0.5: ".500", 0.0004: "<.001", 0.0: ".000", 0.00051: ".001", 1.0: "1.000", 0.25: ".250"}
    assert {x: probability(x) for x in values} == values
    for aim, chosen, said in (
        (Aim("f1"), True, "best F1"),
        (Aim("f1"), False, "½"),
        (Aim("recall", 0.8), True, "recall of at least 80.0 %"),
        (Aim("cost", false_negative_cost=5.0), False, "costs 1, a miss 5"),
    ):
        assert said in heading(aim, chosen)


def test_train_and_calibrate_print_and_keep_it(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 5)).astype(np.float32)
    y = (x[:, :4] + 0.5 * rng.normal(size=(400, 4)) > [0, 0.7, 9, 1.5]).astype(np.int8)  # one is never present
    names = ("cat", "dog", "unicorn", "bird")
    data = write_table(tmp_path / "items.csv", x, y, names)
    quick = ("--set", "train.epochs=3", "--set", "train.batch_size=32")
    text = done("train", "--data", data, "--recipe", "bce", "--out", tmp_path / "run", *quick).out
    assert text.count("Thresholds for the best F1") == 1
    assert "1 of 4 labels (label 'unicorn')" in text
    metrics = strict((tmp_path / "run" / "metrics.json").read_text())
    table = metrics["validation"]["thresholds"]
    assert [row["label"] for row in table["labels"]] == list(names)
    assert table["never"] == ["unicorn"]
    assert table["labels"][0]["decided"] > 0
    asked = ("--thresholds", "precision", "--target", 0.9)
    text = done("calibrate", tmp_path / "run", *asked).out
    assert "Thresholds for a precision of at least 90.0 %" in text
    kept = strict((tmp_path / "run" / "metrics.json").read_text())["recalibration"]["thresholds"]
    assert kept["target"] == 0.9
    assert "unicorn" in kept["never"]
    assert "unreachable" in text
    assert strict(done("calibrate", tmp_path / "run", *asked, "--json").out)["thresholds"] == kept
