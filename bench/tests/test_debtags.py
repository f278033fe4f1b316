"""Text sets beside logistic regression: what is read of apt's lists, and what is kept of measurements."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parents[1]
PACKAGES = """Package: abcde
Source: abc (1.0-1)
Description: encoder of audio
Description-md5: 00
Tag: role::program, sound::player,
 works-with::audio

Package: bare
Description: no tags

Package: abcde
Description: an older version
Tag: role::dummy
"""
TRANSLATION = """Package: abcde
Description-md5: 00
Description-en: encoder of audio
 It reads compact discs.
"""


@pytest.fixture
def debtags(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    return import_module("debtags")


def test_packages_with_tags_are_read_once(debtags: Any, tmp_path: Path) -> None:
    lists = tmp_path / "lists"
    lists.mkdir()
    (lists / "a_Packages").write_text(PACKAGES)
    (lists / "a_Translation-en").write_text(TRANSLATION)
    (row,) = debtags.packages(tmp_path, "en")
    assert row["package"] == "abcde"
    assert row["source"] == "abc"
    assert row["description"] == "encoder of audio It reads compact discs."
    assert row["tags"] == "role::program;sound::player;works-with::audio"
    assert row["split"] in ("train", "test")


def test_sums_are_of_the_sets_in_english(debtags: Any, tmp_path: Path) -> None:
    def entry(gain: float, ratio: float, ace: float, **more: str) -> dict[str, Any]:
        lines = {"lr": {"log_loss": 0.1, "ace": 3.0}, "auto": {"log_loss": 0.1 * ratio, "ace": 3.0 + ace}}
        return {**lines, **more, "gain": gain, "gain_low": gain - 1, "gain_high": gain + 1}

    measured = {"a": entry(1.0, 0.9, 0.2), "b": entry(2.0, 1.0, -1.0), "c": entry(-9.0, 9.0, 9.0, language="de")}
    debtags.keep({**measured, "outdated": 3.0}, tmp_path / "text.json")
    kept = json.loads((tmp_path / "text.json").read_text())
    assert {name: kept[name] for name in measured} == measured
    sums = {name: value for name, value in kept.items() if name not in measured}
    assert sums == pytest.approx(
        {
            "least_gain": 1.0,
            "mean_gain": 1.5,
            "mean_gain_low": 1.5 - 1 / 2**0.5,
            "log_loss_ratio": 0.95,
            "worst_log_loss_ratio": 1.0,
            "worst_ace_over_lr": 0.2,
        }
    )
