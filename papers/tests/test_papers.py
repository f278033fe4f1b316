"""Results, their pages, the dashboard and verdicts: numbers go through unchanged, and words follow from numbers."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from steelyard_papers import dashboard
from steelyard_papers.catalogue import CATALOGUE, PAPERS, Paper
from steelyard_papers.command import reproduce_one
from steelyard_papers.dashboard import chart
from steelyard_papers.findings import Claim, Difference, beside_best, judge, over, sentences
from steelyard_papers.markdown import best_row, fewer_seeds, gains, only_in_print, page, table, tables
from steelyard_papers.published import PUBLISHED, Published
from steelyard_papers.reproduction import BEYOND, Job, Need, Reproduction, Tuned
from steelyard_papers.result import Result, RowResult, RunResult, all_versions
from steelyard_papers.study import Row, chosen_rows, joined

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


def published(**rows: tuple[float | None, ...]) -> Published:
    return Published(COLUMNS, rows, "a page")


def entry(name: str = "x-table1", paper: str = "X", of: Published | None = None, *needs: str) -> Reproduction:
    wanted = tuple(Need(what, f"get {what}", lambda root: False, lambda root: None) for what in needs)
    return Reproduction(name, paper, "t", wanted, 1, lambda job: Result(), of)


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
    text = table(
        result(row("BCE", (80.0, 50.0), (81.0, 52.0)), row("PLM", (83.0, 55.0), (84.0, 54.0))),
        published(BCE=(80.35, None), Other=(70.0, None)),
    )
    lines = text.splitlines()
    assert lines[0] == "| row | F1, paper | ours | difference | 0-1 |"
    assert lines[2] == "| BCE | 80.35 | 80.50 ± 0.71 | +0.15 | 51.00 ± 1.41 |"
    assert lines[3] == "| PLM | – | 83.50 ± 0.71 | – | 54.50 ± 0.71 |"
    assert lines[4] == "| Other | 70.00 | – | – | – |"
    assert len({line.count("|") for line in lines}) == 1


def test_pages_have_a_tab_per_data_set_and_at_most_six_columns() -> None:
    columns = (*(f"m{i} on X" for i in range(7)), "mAP on Y, PAL 0.3", "mAP on Y, PAL 0.6")
    run = RunResult(0, {column: 10.0 + i for i, column in enumerate(columns)})
    printed = Published(("m0 on X", "mAP on Y, PAL 0.6"), {"a": (11.04, 20.0), "b": (None, 30.0)}, "a page")
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
    text = page(one, entry(), {"x-table1-frozen": twin})
    assert '=== "over a frozen backbone"' in text
    assert "    | BCE | 70.0 | 40.0 |" in text
    assert "===" not in page(one, entry())


def test_claims_are_shown_with_their_gain_in_print_ours_and_a_verdict() -> None:
    names = ("BCE", "BCE + PLM")
    rows = [
        RowResult(
            name, tuple(RunResult(s, {"F1": 80.0 + 2 * i + s / 10, "F1 of the 3 rarest": 60.0}) for s in range(3))
        )
        for i, name in enumerate(names)
    ]
    table1 = Result(
        ("F1", "F1 of the 3 rarest"), tuple(rows), name="plm-table1", seeds=(0, 1, 2), changed=("model.backbone=x",)
    )
    text = dashboard.dashboard({"plm-table1": table1}, CATALOGUE)
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert "| **PLM** | Masking labels raises F1 on MultiMNIST | +3.4 | +2.0 ± 0.1 | **holds** † |" in lines
    assert "|  | and most on its three rarest digits | +8.5 | +0.0 ± 0.0 | **not here** † |" in lines
    assert "|  | and on CIFAR-100 | +3.9 | – | **not run: data** |" in lines
    assert "![F1: in print and here](chart-plm.svg)" in text
    assert "chart-db.svg" not in text
    figure = chart(PAPERS[0], {"plm-table1": table1})
    gained = figure.axes[1]
    assert sorted(round(bar.get_width(), 2) for bar in gained.patches)[-1] == 3.38, "PLM's gain in print"
    assert any(bar.get_width() == pytest.approx(2.0) for bar in gained.patches), "and ours"


def test_less_error_is_better() -> None:
    errors = Result(("error",), tuple(RowResult(n, (RunResult(0, {"error": e}),)) for n, e in (("a", 9.0), ("b", 4.0))))
    best = best_row(errors, "error")
    assert best.name == "b"


def test_the_page_says_where_the_numbers_come_from() -> None:
    said = result(row("BCE", (80.0, 50.0)), commits=("abc123",), hardware=("H200",), changed=("train.epochs=3",))
    text = page(said, entry(of=published(BCE=(80.35, 53.42))))
    for word in ("steelyard reproduce x-table1", "abc123", "H200", "`train.epochs=3`", "made up", "a page", "seeds: 0"):
        assert word in text


def test_a_page_is_the_same_from_the_run_and_from_its_json(tmp_path: Path) -> None:
    """11.815000001 is 11.82 to two digits, and 11.81 of the six digits that the JSON keeps."""
    made = replace(entry(), run=lambda job: result(row("BCE", (11.815000001, 1.0))))
    shown = reproduce_one(made, Job(tmp_path, tmp_path))
    kept = Result.load(tmp_path / "x-table1.json")
    assert table(shown, None) == table(kept, None)
    assert (tmp_path / "x-table1.md").read_text(encoding="utf-8") == page(kept, made)
    assert "11.81 |" in table(shown, None)


def scored(name: str, columns: tuple[str, ...], **rows: tuple[float, ...]) -> Result:
    made = (RowResult(row, (RunResult(0, dict(zip(columns, v, strict=True))),)) for row, v in rows.items())
    return Result(columns, tuple(made), name=name, seeds=(0,))


def test_a_row_is_set_beside_the_best_of_other_tables() -> None:
    mine = scored("mine", ("mAP", "ACE", "seconds"), auto=(80.0, 2.0, 1.0), other=(99.0, 0.1, 1.0))
    one = scored("one", ("mAP on X", "ACE on X"), a=(79.0, 5.0), b=(70.0, 4.0))
    two = scored("two", ("mAP on X",), c=(81.5,))
    assert over("auto", mine, {"one": one}) == (
        "by mAP the best row of one is a, 79.00; auto has 80.00, +1.00",
        "by ACE the best row of one is b, 4.00; auto has 2.00, 0.50 times as much",
    )
    assert over("absent", mine, {"one": one}) == ()
    assert over("auto", scored("none", ("ACE",), auto=(2.0,)), {"one": scored("one", ("ACE",), a=(0.0,))}) == (
        "by ACE the best row of one is a, 0.00; auto has 2.00, +2.00",
    )
    assert over("auto", mine, {"one": one, "two": two})[0] == (
        "by mAP the best row of two is c, 81.50; auto has 80.00, -1.50"
    )
    names = tuple("vwxyz")
    many = scored("many", names, auto=(1.0, 2.0, 3.0, 4.0, 5.0))
    best = scored("best", names, a=(0.0, 2.5, 2.0, 0.0, 0.0), b=(0.5, 0.0, 2.5, 4.0, 0.0))
    said = over("auto", many, {"best": best})  # v, x and z: y is a tie
    assert said == ("auto is better than every row of best by 3 of 5 columns",)


def test_pages_compare_with_what_lies_beside_them(tmp_path: Path) -> None:
    one, other = scored("x-table1", ("mAP",), auto=(80.0,)), scored("x-table2", ("mAP on X",), a=(79.0,))
    made = replace(entry(), against=("x-table2", "absent"), says=partial(over, "auto"))
    said = "By mAP the best row of x-table2 is a, 79.00; auto has 80.00, +1.00."
    assert said in page(one, made, {"x-table1": one, "x-table2": other})
    assert "best row" not in page(one, made)
    for result in (one, other):
        result.save(tmp_path / f"{result.name}.json")
    dashboard.write(tmp_path, {"x-table1": made, "x-table2": entry("x-table2")})
    assert said in (tmp_path / "x-table1.md").read_text(encoding="utf-8")
    for command, compared in (("", True), ("steelyard reproduce x-table1 --validation 0.2", False)):
        reproduce_one(replace(made, run=lambda job: one), Job(tmp_path, tmp_path, command=command))
        assert (said in (tmp_path / "x-table1.md").read_text(encoding="utf-8")) == compared
    (tmp_path / "x-table2.json").write_text("damaged")
    reproduce_one(replace(made, run=lambda job: one), Job(tmp_path, tmp_path))
    assert "best row" not in (tmp_path / "x-table1.md").read_text(encoding="utf-8")


def test_how_settings_were_chosen_is_said_of_these_settings_alone() -> None:
    made = replace(entry(), tuned=Tuned(("a.b=1", "a.c=2"), "Chosen well."))
    for changed, said in ((("a.c=2", "a.b=1", "a.d=3"), True), (("a.b=1",), False), ((), False)):
        assert ("Chosen well." in page(result(row("BCE", (1.0, 2.0)), changed=changed), made)) == said


def test_the_dashboard_says_what_came_of_running_again_and_which_data_was_not_there(tmp_path: Path) -> None:
    first = result(row("BCE", (80.0, 50.0), (82.0, 52.0)), notes=("COCO is not there and left out",))
    first.save(tmp_path / "x-table1.json")
    (tmp_path / "again").mkdir()
    result(row("BCE", (81.5, 55.0), (81.5, 56.0))).save(tmp_path / "again" / "x-table1.json")
    dashboard.write(tmp_path, {"x-table1": entry()})
    text = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "; without COCO |" in text
    text = (tmp_path / "beyond.md").read_text(encoding="utf-8")
    assert "1 of 2 means are within a standard deviation" in text.split("## Run again")[1]


def test_fewer_labels_against_all() -> None:
    """The claim is about PAL 0.6 and about BCE with all labels, and is judged on each data set by both feedbacks."""
    columns = ("mAP on X, PAL 0.3", "mAP on X, PAL 0.6", "mAP on Y, PAL 0.6")
    rows = {"BCE": (1.0, 2.0, 3.0), "proposed": (9.0, 8.0, 7.0), "proposed, link": (6.0, 5.0, 4.5)}
    few = scored("pal-table4", columns, **rows)
    full = scored("pal-table3", ("mAP on X, FAL", "mAP on Y, FAL"), BCE=(7.0, 7.5), proposed=(1.0, 1.0))
    (said,) = CATALOGUE["pal-table4"].compared(few, {"pal-table3": full})
    assert "the row proposed with PAL 0.6 less BCE with all labels is +1.00 on X, -0.50 on Y" in said
    assert "the row proposed, link with PAL 0.6 less BCE with all labels is -2.00 on X, -3.00 on Y" in said
    for lacking in (
        scored("pal-table3", ("mAP on X, FAL",), WAN=(1.0,)),
        scored("pal-table3", ("mAP on Z, FAL",), BCE=(1.0,)),
    ):
        assert CATALOGUE["pal-table4"].compared(few, {"pal-table3": lacking}) == ()


def test_gains_are_over_the_baseline_in_print_and_here() -> None:
    printed = replace(published(a=(80.0, 50.0), b=(84.0, None), c=(90.0, 90.0)), baseline="a")
    table = gains(result(row("a", (70.0, 40.0)), row("b", (76.0, 45.0)), row("d", (1.0, 1.0))), printed)
    assert table.splitlines()[2:] == ["| b | +4.0 → +6.0 | – → +5.0 |"], "only rows that are in print"
    assert gains(result(row("b", (76.0, 45.0))), printed) == "", "no baseline here"


def test_columns_that_nothing_was_measured_for_are_printed_too() -> None:
    wide = Published(("F1", "mAP"), {"a": (80.0, 60.0), "b": (81.0, None)}, "a page")
    assert only_in_print(result(row("a", (80.0, 50.0))), wide).splitlines()[2:] == ["| a | 60.0 |"]
    assert only_in_print(result(row("a", (80.0, 50.0))), replace(wide, columns=COLUMNS)) == ""


def test_the_page_names_rows_in_print_that_were_not_run() -> None:
    printed = published(a=(80.0, 50.0), b=(84.0, None), c=(None, 7.0))
    whole = result(*(row(name, (70.0, 40.0)) for name in "abc"))
    assert "Not run here" not in page(whole, entry(of=printed))
    some = replace(whole, rows=whole.rows[:1])
    assert "Not run here, with – for our number: b, c." in page(some, entry(of=printed))


def test_the_page_says_what_has_fewer_seeds() -> None:
    whole = result(row("a", (80.0, 50.0), (81.0, 51.0)), row("b", (80.0, 50.0), (81.0, 51.0)))
    assert fewer_seeds(whole) == ""
    one_row = replace(whole, rows=(whole.rows[0], row("b", (80.0, 50.0))))
    assert fewer_seeds(one_row).endswith(": 'b'")
    two_rows = replace(whole, rows=(*one_row.rows, row("c", (80.0, 50.0))))
    assert fewer_seeds(two_rows) == "the 2 rows without ± are of one seed"
    one_column = result(row("a", (80.0, 50.0), (81.0, None)), row("b", (80.0, 50.0), (81.0, None)))
    assert fewer_seeds(one_column).endswith(": '0-1'")
    assert "of one: '0-1'." in page(one_column, entry())
    assert fewer_seeds(replace(whole, seeds=(0,))) == ""


def test_numbers_about_the_data_alone_are_no_reproduction() -> None:
    said = dashboard.status(result(row("a", (80.0, 50.0))), replace(published(a=(80.0, 50.0)), only_data=True))
    assert said == "the data: reproduced; the paper prints no scores by class"


@pytest.mark.parametrize(
    ("ours", "state"),
    [
        ({"a": (80.9, 50.0), "b": (84.0, 55.0)}, "reproduced"),
        ({"a": (75.0, 45.0), "b": (76.0, 48.0)}, "ordering holds; differs most: F1 of b by -8.0"),
        (
            {"a": (86.0, 50.0), "b": (84.0, 55.0)},
            "1 of 2 pairs of rows in the printed order; differs most: F1 of a by +6.0",
        ),
    ],
)
def test_the_status_follows_from_the_numbers(ours: dict[str, tuple[float, ...]], state: str) -> None:
    found = result(*(row(name, values) for name, values in ours.items()))
    said = dashboard.status(found, published(a=(80.0, 50.0), b=(84.0, 55.0)))
    assert said.startswith(state)
    assert "are not the paper's" in dashboard.status(replace(found, changed=("train.epochs=2",)), None)


def test_two_deviations_are_near_enough() -> None:
    wide = result(row("a", (76.0, 50.0), (84.0, 50.0)))
    assert dashboard.status(wide, published(a=(83.0, 50.0))) == "reproduced"
    narrow = result(row("a", (79.9, 50.0), (80.1, 50.0)))
    assert dashboard.status(narrow, published(a=(83.0, 50.0))).startswith("differs: F1 of a by -3.0")


def test_the_dashboard_lists_everything_and_types_no_number_in(tmp_path: Path) -> None:
    catalogue = {
        e.name: e
        for e in (
            entry("x-table1", "X", published(BCE=(80.35, 53.42)), "MNIST"),
            entry("x-table2", "X", None, "COCO"),
            entry("x-table3", "X", None, "MNIST"),
            entry("x-fig1", "X"),
            entry("gain", BEYOND, None, "MNIST"),
        )
    }
    result(row("BCE", (80.0, 53.0))).save(tmp_path / "x-table1.json")
    replace(result(row("ours", (91.25, 70.0))), name="gain", title="beyond").save(tmp_path / "gain.json")
    dashboard.write(tmp_path, catalogue)
    text = (tmp_path / "README.md").read_text()
    lines = {line.split("|")[1].strip(): line for line in text.splitlines() if line.strip().startswith("|")}
    assert "reproduced" in lines["[x-table1](x-table1.md)"]
    assert "not run: COCO" in lines["x-table2"]
    assert "not run" in lines["x-table3"]  # its data is at hand: another result has used it
    assert "not run" in lines["x-fig1"]
    assert '=== "Tables"' in text
    assert '=== "Figures"' in text
    assert "91.2" in (tmp_path / "beyond.md").read_text()
    assert (tmp_path / "x-table1.md").is_file()


@pytest.mark.parametrize(("words", "said"), [("--smoke", "generated data"), ("--validation 0.1", "held-out training")])
def test_the_dashboard_takes_no_trial_run_and_no_misnamed_file(tmp_path: Path, words: str, said: str) -> None:
    one = result(row("BCE", (80.0, 53.0)))
    replace(one, command=f"steelyard reproduce x-table1 {words}").save(tmp_path / "x-table1.json")
    with pytest.raises(ValueError, match=said):
        dashboard.write(tmp_path, {})
    (tmp_path / "x-table1.json").unlink()
    one.save(tmp_path / "other.json")
    with pytest.raises(ValueError, match=r"name it x-table1\.json"):
        dashboard.write(tmp_path, {})


def test_a_file_of_another_make_is_one_line(tmp_path: Path) -> None:
    whole = json.loads(result(row("BCE", (80.0, 53.0))).to_json())
    for key, value in (("commits", None), ("commits", [3]), ("columns", [1]), ("seeds", ["0"]), ("rows", [{}])):
        (tmp_path / "x-table1.json").write_text(json.dumps({**whole, key: value}))
        with pytest.raises(ValueError, match=r"x-table1\.json is no result of steelyard reproduce"):
            dashboard.write(tmp_path, {})
    for runs in ([{"seed": 0, "values": None, "seconds": 1}], [{"seed": 0, "values": {"F1": "80"}, "seconds": 1}]):
        (tmp_path / "x-table1.json").write_text(json.dumps({**whole, "rows": [{"name": "BCE", "runs": runs}]}))
        with pytest.raises(ValueError, match=r"x-table1\.json is no result of steelyard reproduce"):
            dashboard.write(tmp_path, {})


@pytest.mark.parametrize("name", [name for name, entry in CATALOGUE.items() if entry.draw is not None])
def test_a_figure_without_its_numbers_is_one_line(tmp_path: Path, name: str) -> None:
    replace(result(row("BCE", (80.0, 53.0))), name=name, rows=(), columns=()).save(tmp_path / f"{name}.json")
    said = ""
    try:
        dashboard.write(tmp_path, CATALOGUE)
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
    found = judge(claim(margin), {"db-table1": measured("db-table1", MAP, RS=mine, ERM=theirs)})
    assert found.outcome == outcome
    (one,) = found.judged
    assert one.printed == pytest.approx(75.38 - 70.86)
    if outcome != "not run":
        assert one.ours == pytest.approx(sum(mine) / len(mine) - sum(theirs) / len(theirs))


def test_what_was_not_run_for_want_of_data_says_so() -> None:
    assert judge(claim(), {}).outcome == "not run: data"
    assert judge(claim(), {}, at_hand={"db-table1"}).outcome == "not run"
    on_other_data = {"db-table1": measured("db-table1", "mAP on COCO-MLT", RS=[1.0], ERM=[2.0])}
    assert judge(claim(), on_other_data, at_hand={"db-table1"}).outcome == "not run: data"


def test_standard_errors_are_those_of_two_means() -> None:
    mine, theirs = [1.0, 2.0, 6.0], [0.0, 4.0]
    (one,) = judge(claim(), {"db-table1": measured("db-table1", MAP, RS=mine, ERM=theirs)}).judged
    assert one.error == pytest.approx(math.sqrt((4 + 1 + 9) / 2 / 3 + (4 + 4) / 1 / 2))
    assert one.ours == pytest.approx(1.0)


def test_less_of_an_error_is_a_gain() -> None:
    spa = Claim("SPA is calibrated", (Difference("spa-table3", "SPA", "BCE", ACE),))
    found = judge(spa, {"spa-table3": measured("spa-table3", ACE, SPA=[3, 3.1, 3.2], BCE=[6, 6.1, 6.2])})
    assert found.outcome == "holds"
    assert found.printed == "+1.5"
    assert found.ours == "+3.0 ± 0.1"


def test_some_differences_make_a_claim_hold_in_part_and_absent_ones_are_left_out() -> None:
    rows = {"RS": [72.0, 73.0], "ERM": [60.0, 61.0], "DB": [70.0, 70.1]}
    both = claim(0, Difference("db-table1", "DB", "RS", MAP))
    assert judge(both, {"db-table1": measured("db-table1", MAP, **rows)}).outcome == "in part"
    absent = claim(0, Difference("db-table2", "RS", "RS-Focal", MAP))
    found = judge(absent, {"db-table1": measured("db-table1", MAP, **rows)})
    assert (found.outcome, len(found.judged)) == ("holds", 1)
    said = sentences((absent, Claim("x", both.differences[1:])), measured("db-table1", MAP, **rows), {})
    assert said[0] == "RS is above ERM: holds; in print +4.5, here +12.0 ± 0.7"
    assert len(said) == 2


@pytest.mark.parametrize(
    ("mine", "theirs", "said"),
    [
        ([80, 81, 82], [60, 61, 62], "better than every row of the paper; gain over RS: +20.0 ± 0.8"),
        (
            [60, 61, 62],
            [60.5, 61.5, 62.5],
            "as good as the best row within two standard errors; gain over RS: -0.5 ± 0.8",
        ),
        ([50, 51, 52], [60, 61, 62], "not as good as the best row; gain over RS: -10.0 ± 0.8"),
        ([80], [60, 61], "of one seed: not judged; gain over RS: +19.5"),
    ],
)
def test_auto_is_held_against_the_best_row(mine: list[float], theirs: list[float], said: str) -> None:
    others = {
        "db-table1": measured("db-table1", MAP, RS=theirs, ERM=[1, 2, 3]),
        "other": measured("x", MAP, RS=[99, 99]),
    }
    found = beside_best(
        "auto", ("mAP", "ACE"), measured("db-beyond", "mAP", auto=mine), others, ("db-table1", "absent")
    )
    assert found == (f"by mAP, auto is {said}",)


@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: paper.key)
def test_claims_are_about_rows_and_columns_that_exist(paper: Paper) -> None:
    """And in print each of them is true, as far as numbers are printed."""
    assert PUBLISHED[paper.table].value(paper.baseline, paper.column) is not None
    for one in paper.claims:
        for claimed in one.differences:
            assert claimed.table in CATALOGUE
            printed = PUBLISHED.get(claimed.table.removesuffix("-features"))
            if printed is None:
                continue
            assert {claimed.row, claimed.over} <= set(printed.rows), one.text
            mine, theirs = (printed.value(name, claimed.column) for name in (claimed.row, claimed.over))
            if mine is not None and theirs is not None:
                sign = -1 if claimed.column.startswith(("ACE", "error")) else 1
                assert sign * (mine - theirs) > -claimed.margin, (one.text, claimed)
    first = [one.differences[0] for one in paper.claims]
    assert sum(d.table in PUBLISHED and PUBLISHED[d.table].value(d.row, d.column) is not None for d in first) >= 4
