"""The model card of a run: every number on it is one that the run folder keeps."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import steelyard as sy
from steelyard.config.recipes import RECIPES
from steelyard.report.card import model_card
from typed import done


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with unknown labels, one rare label and test items."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 4)).astype(np.float32)
    y = (x[:, :3] + rng.normal(size=(300, 3)) > np.array([0, 0.5, 2.6])).astype(np.int8)
    given = np.where(rng.random(y.shape) < 0.3, -1, y)
    out = tmp_path_factory.mktemp("card") / "small|run"
    settings = {"train": {"epochs": 3}, "evaluate": {"tail": 1}}
    sy.fit(
        (x[:200], given[:200]), "plm", validation=0.25, test=(x[200:], y[200:]), out=out, settings=settings,
        verbose=False,
    )  # fmt: skip
    return out


def rows_of(card: str, heading: str) -> dict[str, list[str]]:
    """The table below a heading: cells by the first cell of each row."""
    (section,) = [part for part in card.split("\n## ") if part.startswith(heading)]
    lines = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")]
    return {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in lines}


def test_numbers_of_the_card_are_those_of_the_folder(run: Path) -> None:
    card, metrics = (run / "card.md").read_text(), json.loads((run / "metrics.json").read_text())["test"]
    facts = json.loads((run / "run.json").read_text())
    assert facts["recipe"] == "plm"
    assert facts["items"] == {"train": 150, "validation": 50, "test": 100}
    assert "- Items: 150 train, 50 validation, 100 test" in card
    scores = rows_of(card, "Scores on test items")
    low, high = facts["intervals"]["mAP"]["label"]
    assert low < metrics["mAP"]["label"] < high
    assert f"- `plm`: {RECIPES['plm'].what}" in card
    frequency = metrics["baselines"]["label frequency"]["map"]
    assert scores["mAP, %"][:3] == [
        f"{100 * metrics['mAP']['label']:.1f}", f"{100 * low:.1f} to {100 * high:.1f}", f"{100 * frequency:.1f}"
    ]  # fmt: skip
    assert scores["F1, mean over labels, %"][0] == f"{100 * metrics['macro']['f1']:.1f}"
    calibration = rows_of(card, "Calibration")
    assert calibration["this run"][0] == f"{100 * metrics['calibration']['pooled']['width']['ace']:.1f}"
    assert (
        calibration["plain sigmoid σ(z)"][0] == f"{100 * metrics['plain_sigmoid']['calibration']['pooled']['ace']:.1f}"
    )
    thresholds = rows_of(card, "Thresholds")
    for row in metrics["thresholds"]["labels"]:
        shown = "never" if row["never"] else f"{row['threshold']:.3f}".removeprefix("0")
        assert thresholds[row["label"]][1] == shown
    rare = min(metrics["thresholds"]["labels"], key=lambda row: row["positives"])
    assert rare["positives"] < 20
    assert f"`{rare['label']}`" in card.rpartition("## Limits")[2]


def test_a_card_of_folds_says_who_scored_and_how_sure_it_is(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(240, 5)).astype(np.float32)
    y = (x[:, :3] + rng.normal(size=(240, 3)) > np.array([0, 0.5, 1.5])).astype(np.int8)
    sy.fit((x, y), "bce", out=tmp_path / "run", settings={"evaluate": {"tail": 1}}, verbose=False)
    card = (tmp_path / "run" / "card.md").read_text()
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())["validation"]
    assert metrics["reading"]["by_folds"]
    assert "240 items: each training item is scored by models and a calibrator that were not fitted to it." in card
    (_, _, *rows) = rows_of(card, "Scores on training items").items()  # below the head
    assert len(rows) == 5
    for name, row in rows:
        shown, between = (re.findall(r"[\d.]+", cell) for cell in row[:2])
        assert float(between[0]) < float(shown[0]) < float(between[1]), name


def test_recalibration_writes_the_card_anew(run: Path) -> None:
    before = (run / "card.md").read_text()
    sy.Run.load(run)  # as it was trained
    from steelyard.config.sections import EvaluateSettings
    from steelyard.run.calibrate import recalibrate

    rng = np.random.default_rng(1)
    logits, targets = rng.normal(size=(60, 3)).astype(np.float32), rng.integers(0, 2, (60, 3)).astype(np.int8)
    recalibrate(run, (logits, targets), EvaluateSettings(thresholds="half"))
    after = (run / "card.md").read_text()
    assert "Scores on test items" in before
    assert "Scores on recalibration items" in after
    assert "½ for every label" in after
    assert "to" not in rows_of(after, "Scores")["mAP, %"][1]  # the intervals were of other items


def test_a_card_needs_no_metrics_and_escapes_names() -> None:
    card = model_card("a|b *c*", {}, {"recipe": None, "why": ""}, {})
    assert card.startswith("# Model card: a\\|b \\*c\\*\n")
    assert "## Scores" not in card
    assert "settings of config.toml" in card


def test_a_card_uses_no_private_words(run: Path) -> None:
    words = set(re.findall(r"[a-z]+", (run / "card.md").read_text().lower()))
    assert words & {"reading", "cells", "cell", "holes", "said", "judged", "positives"} == set()


@pytest.mark.usefixtures("pages")
def test_the_report_links_to_the_card(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the page needs matplotlib")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 4)).astype(np.float32)
    table = tmp_path / "data.csv"
    lines = [f"{i},{','.join(f'{v:.3f}' for v in row)},{int(row[0] > 0)},{int(row[1] > 0)}" for i, row in enumerate(x)]
    table.write_text("id,f0,f1,f2,f3,cat,dog\n" + "\n".join(lines) + "\n")
    options = ["--labels", "cat", "--labels", "dog", "--set", "train.epochs=2"]
    done("train", "--data", table, "--recipe", "bce", "--holdout", 0.3, "--out", tmp_path / "run", *options)
    assert 'href="card.md"' in (tmp_path / "run" / "report.html").read_text()
    assert str(table) in (tmp_path / "run" / "card.md").read_text()
