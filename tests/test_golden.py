"""The comparison of two records: what it reports and what it lets pass."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from golden.compare import differences, is_allowed, listing
from golden.record import as_array
from golden.transcript import plain, words_of


def record() -> dict[str, Any]:
    eta = np.array([[0.25, 0.5], [np.nan, 1.0]], np.float32)
    return {
        "api": {"losses.BCE": "(smoothing: float = 0.0)", "losses.Focal": "(gamma: float = 2.0)"},
        "runs": {"table/plm": {"probability": as_array(eta), "decided": as_array(eta > 0.3), "mAP": 0.75, "items": 40}},
        "search": {"cat": [["item3", 0.75, {"cat": 0.75}], ["item1", 0.5, {"cat": 0.5}]]},
        "transcripts": {"predict run": {"exit": 0, "out": "id,cat\nitem1,0.1234567\n3 items", "err": ""}},
    }


def found(change: Any = None, tolerance: float | None = None) -> list[tuple[str, str]]:
    """Differences between the record and itself after a change, both as they are read from JSON."""
    tree = record()
    if change:
        change(tree)
    base, tree = (json.loads(json.dumps(one)) for one in (record(), tree))
    return list(differences(base, tree, tolerance))


def moved(by: float) -> Any:
    def change(tree: dict[str, Any]) -> None:
        tree["runs"]["table/plm"]["probability"]["values"][1] += by
        tree["runs"]["table/plm"]["mAP"] += by
        tree["search"]["cat"][0][1] += by
        tree["transcripts"]["predict run"]["out"] = f"id,cat\nitem1,{0.1234567 + by:.9f}\n3 items"

    return change


@pytest.mark.parametrize("tolerance", [None, 1e-6])
def test_equal_records_have_no_differences(tolerance: float | None) -> None:
    assert found(None, tolerance) == []


def test_a_float_beyond_the_tolerance_is_reported_wherever_it_is() -> None:
    places = [
        *("runs/table/plm/probability", "runs/table/plm/mAP", "search/cat/0/1"),
        "transcripts/predict run/out",
    ]
    assert [place for place, _ in found(moved(3e-6), 1e-6)] == places
    assert [place for place, _ in found(moved(3e-7))] == places  # every bit counts
    assert found(moved(3e-7), 1e-6) == []
    (_, told), *_ = found(moved(0.25), 1e-6)
    assert told == "1 of 4 values differ, most at [0, 1]: 0.5 became 0.75"


def test_only_lines_beyond_the_tolerance_are_shown() -> None:
    ((_, told),) = differences("a 0.1\nb 0.2\nc 3", "a 0.1000001\nb 0.3\nc 3", 1e-6)
    assert told == "the text changed:\n    -b 0.2\n    +b 0.3"


def test_the_tolerance_is_relative_above_one() -> None:
    assert list(differences(1000.0, 1000.0005, 1e-6)) == []
    assert len(list(differences(1000.0, 1000.005, 1e-6))) == 1
    assert list(differences(float("nan"), float("nan"))) == []
    assert len(list(differences(0.0, -0.0))) == 1
    assert len(list(differences(float("inf"), 1.0, 1e-6))) == 1


@pytest.mark.parametrize("tolerance", [None, 1e-6])
@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        (("runs", "table/plm", "items"), 41, "40 became 41"),
        (("runs", "table/plm", "mAP"), None, "0.75 became None"),
        (("runs", "table/plm", "decided"), as_array([[True, True], [False, True]]), "1 of 4 values differ"),
        (("runs", "table/plm", "probability"), as_array(np.zeros((2, 2))), "dtype float32 became float64"),
        (("search", "cat", 1, 0), "item2", "-item1\n    +item2"),
        (("search", "cat"), [], "became []"),
        (("transcripts", "predict run", "exit"), 2, "0 became 2"),
        (("transcripts", "predict run", "err"), "steelyard: no", "+steelyard: no"),
        (("transcripts", "predict run", "out"), "id,cat\nitem1,0.1234567\n4 items", "-3 items\n    +4 items"),
        (("api", "losses.BCE"), "(smooth: float = 0.0)", "+(smooth: float = 0.0)"),
    ],
    ids=lambda value: "/".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_other_changes_are_reported_with_any_tolerance(
    path: tuple[Any, ...], value: Any, told: str, tolerance: float | None
) -> None:
    def change(tree: Any) -> None:
        for key in path[:-1]:
            tree = tree[key]
        tree[path[-1]] = value

    ((place, text),) = found(change, tolerance)
    assert place == "/".join(map(str, path))
    assert told in text


def test_a_name_that_is_gone_or_new_is_reported() -> None:
    def rename(tree: dict[str, Any]) -> None:
        tree["api"]["losses.Focused"] = tree["api"].pop("losses.Focal")

    assert found(rename, 1e-6) == [("api/losses.Focal", "is gone"), ("api/losses.Focused", "is new")]


def test_of_many_differences_in_one_entry_the_first_are_listed() -> None:
    many = {"runs": {"table/plm": {"loss": [0.0, 1.0, 2.0]}, "table/pal": {"loss": [0.5]}}}
    other = {"runs": {"table/plm": {"loss": [1.0, 2.0, 3.0]}, "table/pal": {"loss": [0.25]}}}
    assert list(listing(many, other, list(differences(many, other)), 2)) == [
        "runs/table/plm/loss/0\n    0.0 became 1.0",
        "runs/table/plm/loss/1\n    1.0 became 2.0",
        "runs/table/pal/loss/0\n    0.5 became 0.25",
        "runs/table/plm\n    1 differences more",
    ]


def test_differences_that_are_expected_are_named_by_patterns() -> None:
    assert is_allowed("transcripts/bench --help/out", ["api/*", "transcripts/bench*"])
    assert is_allowed("api/losses.Cells.values", ["api/losses.Cells*"])
    assert not is_allowed("transcripts/train --help/out", ["transcripts/bench*"])
    assert not is_allowed("api/losses.BCE", [])


def test_what_differs_between_two_runs_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert plain(f"{tmp_path}/run in 3.25 s, mAP 0.25") == "<folder>/run in <n> s, mAP 0.25"
    assert plain("model  loss  seconds\na  0.5  1.25\nb  0.25  10.5\n\nc  0.5") == (
        "model  loss  seconds\na  0.5 <n>\nb  0.25 <n>\n\nc  0.5"
    )
    assert words_of("<style>p {}</style><p>one <b>two</b></p><svg><text>x</text></svg> three") == "one\ntwo\nthree"
