"""Results, their pages, the first page and verdicts: numbers go through unchanged, and words follow from numbers."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from steelyard_papers import report
from steelyard_papers.claims import (
    BEYOND,
    Claim,
    Difference,
    Entry,
    Paper,
    again,
    beside_best,
    best_row,
    judge,
    verdicts,
)
from steelyard_papers.command import CATALOGUE, PAPERS, reproduce
from steelyard_papers.datasets import DataSet
from steelyard_papers.figures import chart
from steelyard_papers.report import fewer_seeds, gains, only_in_print, page, status, tables
from steelyard_papers.result import Printed, Result, RowResult, RunResult, all_versions, joined, printed_rows
from steelyard_papers.study import Job, Row, chosen_rows

COLUMNS = ("F1", "0-1")


def row(name: str, *runs: tuple[float | None, ...]) -> RowResult:
    return RowResult(
        name, tuple(RunResult(seed, dict(zip(COLUMNS, run, strict=True)), 2.5) for seed, run in enumerate(runs))
    )


def result(*rows: RowResult, **more: object) -> Result:
    said = Result(
        COLUMNS, rows, "made up", name="x-table1", paper="X", title="t", command="steelyard reproduce x-table1"
    )
    return replace(said, seeds=tuple(run.seed for run in rows[0].runs), **more)  # type: ignore[arg-type]


def in_print(baseline: str = "", is_data: bool = False, **rows: tuple[float | None, ...]) -> Printed:
    return Printed("a page", "", COLUMNS, rows, baseline, is_data)


def entry(
    name: str = "x-table1", paper: str = "X", printed: Printed | None = None, *needs: str, **more: object
) -> Entry:
    data = tuple(DataSet(what, f"get {what}", ("not there",), lambda folder: None) for what in needs)
    return Entry(name, paper, "t", data, 1, lambda job: Result(), printed, **more)  # type: ignore[arg-type]


def shown(one: Result, of: Entry | None = None, *others: Result) -> str:
    """The page of a result beside others."""
    return page(one, of or entry(), {other.name: other for other in others}, CATALOGUE)


def test_mean_and_deviation_are_those_of_a_sample() -> None:
    found = row("a", (80.0, 1.0), (82.0, None), (87.0, 4.0))
    assert found.mean("F1") == pytest.approx(np.mean([80, 82, 87]))
    assert found.std("F1") == pytest.approx(np.std([80, 82, 87], ddof=1))
    assert found.mean("0-1") == pytest.approx(2.5)
    assert found.mean("nothing") is None
    assert row("a", (1.0, 2.0)).std("F1") is None


def test_a_result_comes_back_from_its_json(tmp_path: Path) -> None:
    one = result(
        row("BCE ± „x“", (80.123456, None), (81.0, 50.0)),
        commits=("abc", "def+"),
        hardware=("CPU, 1 thread",),
        versions={"torch": "2"},
        changed=("train.epochs=3",),
        notes=("a note",),
        seconds=12.5,
        figure={"ratios": [[0.5, 1.0]], "names": ["a"]},
    )
    one.save(tmp_path / "x.json")
    back = Result.load(tmp_path / "x.json")
    assert back.rows[0].runs[0].values == {"F1": 80.1235, "0-1": None}
    assert replace(back, rows=()) == replace(one, rows=())
    assert back.to_json() == one.to_json().replace("80.123456", "80.1235")
    assert json.loads(one.to_json())["rows"][0]["runs"][1]["seed"] == 1


def test_details_and_nan_stay_out_of_the_json() -> None:
    run = RunResult(0, {"F1": math.nan}, details={"big": [1] * 1000})
    text = Result(("F1",), (RowResult("a", (run,)),)).to_json()
    assert "big" not in text
    assert json.loads(text)["rows"][0]["runs"][0]["values"] == {"F1": None}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "other"}', '{"format": "steelyard result 1", "rows": 3}'])
def test_what_is_no_result_is_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ValueError, match=r"x\.json is no result of steelyard reproduce"):
        Result.load(tmp_path / "x.json")


def test_the_table_sets_ours_beside_the_papers() -> None:
    one = result(row("BCE", (80.0, 50.0), (81.0, 52.0)), row("PLM", (83.0, 55.0), (84.0, 54.0)))
    lines = tables(one, in_print(BCE=(80.35, None), Other=(70.0, None))).splitlines()
    assert lines[0] == "|  | F1 | 0-1 |"
    assert lines[2:] == [
        *("| BCE | 80.3 → 80.5 ± 0.7 | 51.0 ± 1.4 |", "| PLM | 83.5 ± 0.7 | 54.5 ± 0.7 |", "| Other | 70.0 → – | – |")
    ]


def test_pages_have_a_tab_per_data_set_and_at_most_six_columns() -> None:
    columns = (*(f"m{i} on X" for i in range(7)), "mAP on Y, PAL 0.3", "mAP on Y, PAL 0.6")
    run = RunResult(0, {column: 10.0 + i for i, column in enumerate(columns)})
    printed = Printed("a page", "", ("m0 on X", "mAP on Y, PAL 0.6"), {"a": (11.04, 20.0), "b": (None, 30.0)})
    text = tables(Result(columns, (RowResult("a", (run,)),)), printed)
    assert [line for line in text.splitlines() if line.startswith("===")] == ['=== "X"', '=== "Y"']
    lines = [line.strip() for line in text.splitlines() if line.strip().startswith("|")]
    assert max(line.count("|") for line in lines) == 7, "six columns"
    assert lines[:1] == ["|  | m0 | m1 | m2 | m3 | m4 |"]
    assert "| a | 11.0 → 10.0 | 11.0 | 12.0 | 13.0 | 14.0 |" in lines
    assert lines[-4:] == [
        *("|  | mAP, PAL 0.3 | mAP, PAL 0.6 |", "| --- | ---: | ---: |"),
        *("| a | 17.0 | 20.0 → 18.0 |", "| b | – | 30.0 → – |"),
    ]


def test_rows_of_several_rhos_are_tabs() -> None:
    text = tables(result(row("a, ρ 10", (1.0, 2.0)), row("b, ρ 10", (1.0, 2.0)), row("a, ρ 50", (3.0, 4.0))), None)
    assert [line for line in text.splitlines() if line.startswith("===")] == ['=== "ρ 10"', '=== "ρ 50"']
    assert "    | b | 1.0 | 2.0 |" in text


def test_a_twin_over_a_frozen_backbone_is_a_tab() -> None:
    one = result(row("BCE", (80.0, 50.0)))
    twin = replace(result(row("BCE", (70.0, 40.0))), name="x-table1-frozen")
    text = shown(one, None, twin)
    assert '=== "over a frozen backbone"' in text
    assert "    | BCE | 70.0 | 40.0 |" in text
    assert "===" not in shown(one)


def test_claims_are_shown_with_their_gain_in_print_ours_and_a_verdict() -> None:
    names = ("BCE", "BCE + PLM")
    columns = ("F1", "F1 of the 3 rarest")
    rows = []
    for i, name in enumerate(names):
        runs = (RunResult(s, {"F1": 80.0 + 2 * i + s / 10, "F1 of the 3 rarest": 60.0}) for s in range(3))
        rows.append(RowResult(name, tuple(runs)))
    changed = ("model.backbone=x",)
    table1 = Result(columns, tuple(rows), name="plm-table1", seeds=(0, 1, 2), changed=changed)
    text = report.dashboard({"plm-table1": table1}, PAPERS, CATALOGUE)
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert "| **PLM** | Masking labels raises F1 on MultiMNIST | +3.4 | +2.0 ± 0.1 | **holds** † |" in lines
    assert "|  | and most on its three rarest digits | +8.5 | +0.0 ± 0.0 | **not here** † |" in lines
    assert "|  | and on CIFAR-100 | +3.9 | – | **not run: data** |" in lines
    assert "![F1: in print and here](chart-plm.svg)" in text
    assert "chart-db.svg" not in text
    gained = chart(PAPERS[0], table1, CATALOGUE["plm-table1"].printed).axes[1]
    assert sorted(round(bar.get_width(), 2) for bar in gained.patches)[-1] == 3.38, "PLM's gain in print"
    assert any(bar.get_width() == pytest.approx(2.0) for bar in gained.patches), "and ours"


def test_the_chart_shows_other_data_where_the_papers_was_not_run() -> None:
    paper = PAPERS[2]
    rows = [RowResult(n, (RunResult(0, {paper.column_here: v}),)) for n, v in (("AN", 60.0), ("proposed", 63.5))]
    figure = chart(paper, Result((paper.column_here,), tuple(rows)), CATALOGUE[paper.table].printed)
    assert "here, on VOC 2012" in [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert any(bar.get_width() == pytest.approx(3.5) for bar in figure.axes[1].patches)


def test_less_error_is_better() -> None:
    errors = Result(("error",), tuple(RowResult(n, (RunResult(0, {"error": e}),)) for n, e in (("a", 9.0), ("b", 4.0))))
    best = best_row(errors, "error")
    assert best.name == "b"


def test_the_page_says_where_the_numbers_come_from() -> None:
    one = result(row("BCE", (80.0, 50.0)), commits=("abc123",), hardware=("H200",), changed=("train.epochs=3",))
    text = shown(one, entry(printed=in_print(BCE=(80.35, 53.42))))
    for word in ("steelyard reproduce x-table1", "abc123", "H200", "`train.epochs=3`", "made up", "a page", "seeds: 0"):
        assert word in text


def test_a_page_is_the_same_from_the_run_and_from_its_json(tmp_path: Path) -> None:
    """11.8500000001 is 11.9 to one decimal, and 11.8 of the six digits that the JSON keeps."""
    made = replace(entry(), run=lambda job: result(row("BCE", (11.8500000001, 1.0))))
    given = reproduce(made, Job(tmp_path, tmp_path))
    kept = Result.load(tmp_path / "x-table1.json")
    assert tables(given, None) == tables(kept, None)
    assert (tmp_path / "x-table1.md").read_text(encoding="utf-8") == shown(kept, made)
    assert "| 11.8 |" in tables(given, None)


def scored(name: str, columns: tuple[str, ...], **rows: tuple[float, ...]) -> Result:
    made = (RowResult(row, (RunResult(0, dict(zip(columns, v, strict=True))),)) for row, v in rows.items())
    return Result(columns, tuple(made), name=name, seeds=(0,))


def test_auto_is_set_beside_the_best_row_of_other_tables(tmp_path: Path) -> None:
    mine = scored("mine", ("mAP", "ACE", "seconds"), auto=(80.0, 2.0, 1.0), other=(99.0, 0.1, 1.0))
    one = scored("one", ("mAP on X", "ACE on X"), a=(79.0, 5.0), b=(70.0, 4.0))
    two = scored("two", ("mAP on X",), c=(81.5,))
    lines = beside_best(mine, {"one": one}, ("one", "two"))
    assert lines == [
        ["mAP", "80.0", "79.0", "a", "+1.0", "**one seed**"],
        ["ACE", "2.0", "4.0", "b", "+2.0", "**one seed**"],
    ], "less error is better"
    assert beside_best(mine, {"one": one, "two": two}, ("one", "two"))[0][2:5] == ["81.5", "c", "-1.5"]
    assert beside_best(scored("mine", ("mAP",), other=(99.0,)), {"one": one}, ("one",)) == []
    made = replace(entry("mine"), beside=("one", "absent"))
    said = "| mAP | 80.0 | 79.0 | a | +1.0 | **one seed** |"
    assert said in shown(mine, made, one)
    assert said not in shown(mine, made)
    one.save(tmp_path / "one.json")
    for command, compared in (("", True), ("steelyard reproduce mine --validation 0.2", False)):
        job = Job(tmp_path, tmp_path, command=command, validation=0.0 if compared else 0.2)
        reproduce(replace(made, run=lambda job: mine), job)
        assert (said in (tmp_path / "mine.md").read_text(encoding="utf-8")) == compared
    (tmp_path / "one.json").write_text("damaged")
    reproduce(replace(made, run=lambda job: mine), Job(tmp_path, tmp_path))
    assert said not in (tmp_path / "mine.md").read_text(encoding="utf-8")


def test_the_dashboard_says_what_came_of_running_again_and_which_data_was_not_there(tmp_path: Path) -> None:
    first = result(row("BCE", (80.0, 50.0), (82.0, 52.0)), notes=("COCO is not there and left out",))
    first.save(tmp_path / "x-table1.json")
    (tmp_path / "again").mkdir()
    result(row("BCE", (81.5, 55.0), (81.5, 56.0))).save(tmp_path / "again" / "x-table1.json")
    report.write(tmp_path, (), {"x-table1": entry()})
    text = (tmp_path / "x-table1.md").read_text(encoding="utf-8")
    assert "Left out, since the data is not there: COCO." in text
    text = (tmp_path / "beyond.md").read_text(encoding="utf-8")
    assert "1 of 2 means are within a standard deviation" in text.split("## Run again")[1]


def test_a_difference_may_be_to_a_row_of_another_table() -> None:
    """With 60 % of the labels the method is above cross-entropy that has all of them."""
    claim = next(one for one in PAPERS[2].claims if one.differences[0].over_table)
    few = scored("pal-table4", ("mAP on VOC 2012, PAL 0.6",), proposed=(65.0,))
    full = scored("pal-table3", ("mAP on VOC 2012, FAL",), BCE=(70.0,))
    found = judge(claim, {"pal-table3": full, "pal-table4": few}, CATALOGUE)
    assert (found.outcome, found.judged[0].ours) == ("not here", -5.0)
    assert judge(claim, {}, CATALOGUE).judged[0].printed == pytest.approx(76.3 - 75.8)
    assert judge(claim, {"pal-table4": few}, CATALOGUE).judged[0].ours is None


def test_gains_are_over_the_baseline_in_print_and_here() -> None:
    printed = in_print("a", a=(80.0, 50.0), b=(84.0, None), c=(90.0, 90.0))
    one = result(row("a", (70.0, 40.0), (72.0, 40.0)), row("b", (76.0, 45.0), (80.0, 45.0)))
    error = math.hypot(1, 2)
    assert gains(one, printed).splitlines()[2:] == [f"| b | +4.0 → +7.0 ± {error:.1f} | – → +5.0 ± 0.0 |"]
    assert gains(result(row("b", (76.0, 45.0))), printed) == "", "no baseline here"
    less = Printed("a page", "", ("error",), {"a, ρ 5": (30.0,), "b, ρ 5": (20.0,)}, "a")
    rows = [RowResult(f"{name}, ρ 5", (RunResult(0, {"error": e}),)) for name, e in (("a", 33.0), ("b", 30.0))]
    assert gains(Result(("error",), tuple(rows)), less).splitlines()[2:] == ["| b | +10.0 → +3.0 |"], "by ρ"


def test_gains_come_first_where_set_ups_differ() -> None:
    one, printed = result(row("a", (70.0, 40.0)), row("b", (76.0, 45.0))), in_print("a", a=(80.0, 50.0), b=(84.0, 9.0))
    values, gained = "## In print → here", "## Gains over a"
    same, other = (shown(one, entry(printed=printed, differs=words)) for words in ("", "another network"))
    assert same.index(values) < same.index(gained)
    assert other.index(gained) < other.index(values)
    assert "Another network. So gains compare, and scores do not." in other
    for how in (replace(one, changed=("train.epochs=2",)), replace(one, data="re-encoded as JPEG")):
        text = shown(how, entry(printed=printed))
        assert text.index(gained) < text.index(values)


def test_columns_that_nothing_was_measured_for_are_printed_too() -> None:
    wide = Printed("a page", "", ("F1", "mAP"), {"a": (80.0, 60.0), "b": (81.0, None)})
    assert only_in_print(result(row("a", (80.0, 50.0))), wide).splitlines()[2:] == ["| a | 60.0 |"]
    assert only_in_print(result(row("a", (80.0, 50.0))), replace(wide, columns=COLUMNS)) == ""


def test_numbers_in_a_papers_text_stand_beside_ours() -> None:
    made = entry(facts=lambda one: [("ratio at first", 1.82, one.figure["r"])])
    assert "| ratio at first | 1.82 | 0.007 |" in shown(Result(figure={"r": 0.007}), made)


def test_the_page_says_what_has_fewer_seeds() -> None:
    whole = result(row("a", (80.0, 50.0), (81.0, 51.0)), row("b", (80.0, 50.0), (81.0, 51.0)))
    assert fewer_seeds(whole) == ""
    one_row = replace(whole, rows=(whole.rows[0], row("b", (80.0, 50.0))))
    assert fewer_seeds(one_row).endswith(": 'b'")
    two_rows = replace(whole, rows=(*one_row.rows, row("c", (80.0, 50.0))))
    assert fewer_seeds(two_rows) == "the 2 rows without ± are of one seed"
    one_column = result(row("a", (80.0, 50.0), (81.0, None)), row("b", (80.0, 50.0), (81.0, None)))
    assert fewer_seeds(one_column).endswith(": '0-1'")
    assert "of one: '0-1'." in shown(one_column)
    assert fewer_seeds(replace(whole, seeds=(0,))) == ""


@pytest.mark.parametrize(
    ("ours", "words"),
    [
        ({"a": (80.9, 50.0), "b": (84.0, 55.0)}, "reproduced"),
        ({"a": (75.0, 45.0), "b": (76.0, 48.0)}, "order of 2 of 2 pairs"),
        ({"a": (86.0, 50.0), "b": (84.0, 55.0)}, "order of 1 of 2 pairs"),
    ],
)
def test_the_status_follows_from_the_numbers(ours: dict[str, tuple[float, ...]], words: str) -> None:
    one = result(*(row(name, values) for name, values in ours.items()))
    printed = in_print(a=(80.0, 50.0), b=(84.0, 55.0), c=(1.0, 1.0))
    assert status(one, entry(printed=printed)) == ("2 of 3 rows, 1 seed", words)
    assert status(one, entry()) == ("2 rows, 1 seed", "")
    assert status(replace(one, columns=()), entry()) == ("drawn", "")


def test_numbers_about_the_data_are_compared_as_such() -> None:
    data = in_print(is_data=True, a=(9485.0, 17840.0))
    assert status(result(row("a", (9485.0, 17840.0))), entry(printed=data))[1] == "the same data"
    assert status(result(row("a", (9580.0, 17840.0))), entry(printed=data))[1] == "counts up to 1 % apart"
    assert "| a | 9,485 → 9,580 | 17,840 → 0.04 |" in tables(result(row("a", (9580.0, 0.04))), data)


def test_two_deviations_are_near_enough() -> None:
    wide = result(row("a", (76.0, 50.0), (84.0, 50.0)))
    assert status(wide, entry(printed=in_print(a=(83.0, 50.0))))[1] == "reproduced"
    narrow = result(row("a", (79.9, 50.0), (80.1, 50.0)))
    assert status(narrow, entry(printed=in_print(a=(83.0, 50.0))))[1] == ""


OF_X = Paper(
    "x", "X", "An idea.", (), "x-table1", "F1", "F1", "BCE", {"network": ("theirs", "ours"), "runs": ("one", "")}
)


def test_the_first_page_lists_everything_and_types_no_number_in(tmp_path: Path) -> None:
    catalogue = {
        e.name: e
        for e in (
            entry("x-table1", "X", in_print(BCE=(80.35, 53.42)), "MNIST"),
            entry("x-table2", "X", None, "COCO"),
            entry("x-table3", "X", None, "MNIST"),
            entry("x-fig1", "X"),
            entry("gain", BEYOND, None, "MNIST"),
        )
    }
    result(row("BCE", (80.0, 53.0)), changed=("train.epochs=2",)).save(tmp_path / "x-table1.json")
    replace(result(row("ours", (91.25, 70.0))), name="gain", title="beyond").save(tmp_path / "gain.json")
    report.write(tmp_path, (OF_X,), catalogue)
    text = (tmp_path / "README.md").read_text()
    lines = {line.split("|")[1].strip(): line for line in text.splitlines() if line.strip().startswith("|")}
    assert "| 1 of 1 rows, 1 seed | reproduced |" in lines["[x-table1](x-table1.md)"]
    assert "| no data |" in lines["x-table2"]
    assert "| not run |" in lines["x-table3"], "its data is at hand: another result has used it"
    assert "| not run |" in lines["x-fig1"]
    assert lines["network"] == "| network | theirs | ours |"
    assert "| one | 1 per row |" in lines["runs"]
    assert '=== "Tables"' in text
    assert '=== "Figures"' in text
    assert "91.2" in (tmp_path / "beyond.md").read_text()
    assert (tmp_path / "chart-x.svg").is_file()


@pytest.mark.parametrize(("words", "said"), [("--smoke", "generated data"), ("--validation 0.1", "held-out training")])
def test_the_dashboard_takes_no_trial_run_and_no_misnamed_file(tmp_path: Path, words: str, said: str) -> None:
    one = result(row("BCE", (80.0, 53.0)))
    replace(one, command=f"steelyard reproduce x-table1 {words}").save(tmp_path / "x-table1.json")
    with pytest.raises(ValueError, match=said):
        report.write(tmp_path, (), {})
    (tmp_path / "x-table1.json").unlink()
    one.save(tmp_path / "other.json")
    with pytest.raises(ValueError, match=r"name it x-table1\.json"):
        report.write(tmp_path, (), {})


def test_a_file_of_another_make_is_one_line(tmp_path: Path) -> None:
    whole = json.loads(result(row("BCE", (80.0, 53.0))).to_json())
    for key, value in (("commits", None), ("commits", [3]), ("columns", [1]), ("seeds", ["0"]), ("rows", [{}])):
        (tmp_path / "x-table1.json").write_text(json.dumps({**whole, key: value}))
        with pytest.raises(ValueError, match=r"x-table1\.json is no result of steelyard reproduce"):
            report.write(tmp_path, (), {})
    for runs in ([{"seed": 0, "values": None, "seconds": 1}], [{"seed": 0, "values": {"F1": "80"}, "seconds": 1}]):
        (tmp_path / "x-table1.json").write_text(json.dumps({**whole, "rows": [{"name": "BCE", "runs": runs}]}))
        with pytest.raises(ValueError, match=r"x-table1\.json is no result of steelyard reproduce"):
            report.write(tmp_path, (), {})


@pytest.mark.parametrize("name", [name for name, entry in CATALOGUE.items() if entry.draw is not None])
def test_a_figure_without_its_numbers_is_one_line(tmp_path: Path, name: str) -> None:
    replace(result(row("BCE", (80.0, 53.0))), name=name, rows=(), columns=()).save(tmp_path / f"{name}.json")
    said = ""
    try:
        report.write(tmp_path, (), CATALOGUE)
    except ValueError as error:
        said = str(error)
    first, _, last = said.partition(f"{tmp_path / name}.json cannot be drawn (")
    assert first == "", "some figures are of formulas alone"
    assert not last or last.endswith("): run it again, or remove it")


def test_joined_results_keep_all_rows_and_columns() -> None:
    one = result(row("a", (1.0, 2.0)), seconds=1.0, commits=("x",))
    other = Result(("error",), (RowResult("b", (RunResult(0, {"error": 3.0}),)),), seconds=2.0, commits=("x", "y"))
    both = joined(one, other)
    assert both.columns == ("F1", "0-1", "error")
    assert [r.name for r in both.rows] == ["a", "b"]
    assert (both.seconds, both.commits) == (3.0, ("x", "y"))
    assert both.row("b").mean("F1") is None


def test_all_versions_are_said() -> None:
    found = all_versions([{"torch": "2.11", "numpy": "2"}, {"torch": "2.13", "numpy": "2"}, {"torch": "2.11"}])
    assert found == {"torch": "2.11 and 2.13", "numpy": "2"}
    parts = [replace(result(row("a", (1.0, 2.0))), versions={"torch": version}) for version in ("1", "2")]
    assert joined(*parts).versions == {"torch": "1 and 2"}


def test_rows_are_chosen_by_pattern() -> None:
    rows = [Row(name) for name in ("BCE, ρ 10", "BCE, ρ 100", "PLM, ρ 10")]
    job = Job(Path(), Path(), rows=("*ρ 10",))
    assert [r.name for r in chosen_rows(job, rows)] == ["BCE, ρ 10", "PLM, ρ 10"]
    assert chosen_rows(replace(job, rows=()), rows) == rows
    with pytest.raises(ValueError, match="no row 'CB': choose from 'BCE, ρ 10'"):
        chosen_rows(replace(job, rows=("CB",)), rows)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"seeds": ()}, "seeds is"),
        ({"seeds": (1, 1)}, "only once"),
        ({"validation": 1.0}, "validation is 1.0"),
        ({"sets": ("epochs",)}, "section.key=value"),
    ],
)
def test_a_job_is_checked_at_once(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Job(Path(), Path(), **wrong)  # type: ignore[arg-type]


MAP, ACE = "mAP on VOC-MLT", "ACE on VOC 2012"


def measured(name: str, column: str, **rows: list[float]) -> Result:
    made = (RowResult(row, tuple(RunResult(i, {column: v}) for i, v in enumerate(vs))) for row, vs in rows.items())
    return Result((column,), tuple(made), name=name)


def claim(margin: float = 0.0, *more: Difference) -> Claim:
    return Claim("RS is above ERM", (Difference("db-table1", "RS", "ERM", MAP, margin), *more))


@pytest.mark.parametrize(
    ("mine", "theirs", "margin", "outcome"),
    [
        ([72, 73, 74], [62, 63, 64], 0, "holds"),
        ([72, 73, 74], [71, 73, 74], 0, "in part"),  # above, but not beyond chance
        ([62, 63, 64], [72, 73, 74], 0, "not here"),
        ([72.9, 73, 73.1], [73, 73.1, 73.2], 0, "not here"),
        ([72.9, 73, 73.1], [73, 73.1, 73.2], 0.5, "holds"),  # as good, within half a point
        ([80], [60], 0, "in part"),  # one seed is never beyond chance
        ([], [60, 61], 0, "not run"),  # the column was measured, the row was not
    ],
)
def test_a_difference_counts_beyond_two_standard_errors(
    mine: list[float], theirs: list[float], margin: float, outcome: str
) -> None:
    found = judge(claim(margin), {"db-table1": measured("db-table1", MAP, RS=mine, ERM=theirs)}, CATALOGUE)
    assert found.outcome == outcome
    (one,) = found.judged
    assert one.printed == pytest.approx(75.38 - 70.86)
    if outcome != "not run":
        assert one.ours == pytest.approx(sum(mine) / len(mine) - sum(theirs) / len(theirs))


def test_what_was_not_run_for_want_of_data_says_so() -> None:
    assert judge(claim(), {}, CATALOGUE).outcome == "not run: data"
    assert judge(claim(), {}, CATALOGUE, {"db-table1"}).outcome == "not run"
    on_other_data = {"db-table1": measured("db-table1", "mAP on COCO-MLT", RS=[1.0], ERM=[2.0])}
    assert judge(claim(), on_other_data, CATALOGUE, {"db-table1"}).outcome == "not run: data"


def test_standard_errors_are_those_of_two_means() -> None:
    mine, theirs = [1.0, 2.0, 6.0], [0.0, 4.0]
    (one,) = judge(claim(), {"db-table1": measured("db-table1", MAP, RS=mine, ERM=theirs)}, CATALOGUE).judged
    assert one.error == pytest.approx(math.sqrt((4 + 1 + 9) / 2 / 3 + (4 + 4) / 1 / 2))
    assert one.ours == pytest.approx(1.0)


def test_less_of_an_error_is_a_gain() -> None:
    spa = Claim("SPA is calibrated", (Difference("spa-table3", "SPA", "BCE", ACE),))
    results = {"spa-table3": measured("spa-table3", ACE, SPA=[3, 3.1, 3.2], BCE=[6, 6.1, 6.2])}
    assert verdicts((spa,), results, CATALOGUE) == [["SPA is calibrated", "+1.5", "+3.0 ± 0.1", "**holds**"]]


def test_some_differences_make_a_claim_hold_in_part_and_absent_ones_are_left_out() -> None:
    table = {"db-table1": measured("db-table1", MAP, RS=[72.0, 73.0], ERM=[60.0, 61.0], DB=[70.0, 70.1])}
    both = claim(0, Difference("db-table1", "DB", "RS", MAP))
    assert judge(both, table, CATALOGUE).outcome == "in part"
    absent = claim(0, Difference("db-table2", "RS", "RS-Focal", MAP))
    found = judge(absent, table, CATALOGUE)
    assert (found.outcome, len(found.judged)) == ("holds", 1)
    lines = verdicts((absent, both), table, CATALOGUE)
    assert lines[0] == ["RS is above ERM", "+4.5", "+12.0 ± 0.7", "**holds**"]
    assert lines[1][2:] == ["+12.0 ± 0.7; 1 of 2", "**in part**"]


@pytest.mark.parametrize(
    ("mine", "theirs", "line"),
    [
        ([80, 81, 82], [60, 61, 62], ["+20.0 ± 0.8", "**better**"]),
        ([60, 61, 62], [60.5, 61.5, 62.5], ["-0.5 ± 0.8", "**as good**"]),
        ([50, 51, 52], [60, 61, 62], ["-10.0 ± 0.8", "**not as good**"]),
        ([80], [60, 61], ["+19.5", "**one seed**"]),
    ],
)
def test_auto_is_held_against_the_best_row(mine: list[float], theirs: list[float], line: list[str]) -> None:
    others = {
        "db-table1": measured("db-table1", MAP, RS=theirs, ERM=[1, 2, 3]),
        "other": measured("x", MAP, RS=[99, 99]),
    }
    (found,) = beside_best(measured("db-beyond", "mAP", auto=mine), others, ("db-table1", "absent"))
    assert (found[3], found[4:]) == ("RS", line)


def test_means_are_held_against_those_of_before() -> None:
    def of(**rows: tuple[float, ...]) -> Result:
        made = [RowResult(name, tuple(RunResult(i, {"x": v}) for i, v in enumerate(rows[name]))) for name in rows]
        return Result(columns=("x", "absent"), rows=tuple(made))

    before = of(a=(10.0, 12.0), b=(5.0, 5.0), c=(1.0,), d=(1.0, 2.0))  # standard deviations √2, 0, none
    within = "means are within a standard deviation of those of before"
    chance = 100 * math.erfc(1 / math.sqrt(2 * (1 / 1 + 1 / 2)))  # of means of one and of two seeds
    for same in (5.0, 5.00001):  # more digits than a file has
        assert again(of(a=(12.4,), b=(same,)), before) == f"2 of 2 {within}; by chance {chance:.0f} % would not be"
    assert again(of(a=(12.5, 12.5), b=(5.1, 5.1), c=(1.0,), e=(1.0,)), before) == (
        f"0 of 2 {within}; by chance 32 % would not be; "  # of means of two: one standard deviation of their difference
        "outside: b, x 5.10 against 5.00 ± 0.00; a, x 12.50 against 11.00 ± 1.41; "
        "of one seed before, and not compared: 1"
    )
    assert again(of(c=(3.0,)), before) == "of one seed before, and not compared: 1"
    assert again(of(e=(3.0,)), before) == "no row and column is in both results: nothing is compared"


@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: paper.key)
def test_claims_are_about_rows_and_columns_that_exist(paper: Paper) -> None:
    """And in print each of them is true, as far as numbers are printed."""
    printed = CATALOGUE[paper.table].printed
    assert printed is not None
    assert printed.value(paper.baseline, paper.column) is not None
    for claimed in paper.claims:
        for one in judge(claimed, {}, CATALOGUE).judged:
            assert one.difference.table in CATALOGUE
            printed = CATALOGUE[one.difference.table].printed
            if printed is not None and not one.difference.over_table:
                assert {one.difference.row, one.difference.over} <= set(printed.rows), claimed.text
            assert one.printed is None or one.printed > -one.difference.margin, one
    first = [judge(one, {}, CATALOGUE).judged[0].printed for one in paper.claims]
    assert sum(one is not None for one in first) >= 4


def test_printed_rows_are_read_as_they_are_written() -> None:
    assert printed_rows("""
    a b, ρ 5 | 1.5 –
    c        | 2  30
    """) == {"a b, ρ 5": (1.5, None), "c": (2.0, 30.0)}
    with pytest.raises(ValueError, match="row 'a' has 1 numbers for 2 columns"):
        Printed("x", "", ("a", "b"), {"a": (1.0,)})
