"""Claims are judged by the seeds of results, with the differences in print beside them."""

from __future__ import annotations

import math

import pytest

from steelyard_papers import db_rows, spa_rows
from steelyard_papers.catalogue import CATALOGUE
from steelyard_papers.findings import Claim, Difference, beside_best, judge, sentences
from steelyard_papers.published import PUBLISHED
from steelyard_papers.result import Result, RowResult, RunResult

MAP, ACE = "mAP on VOC-MLT", "ACE on VOC 2012"


def result(name: str, column: str, **rows: list[float]) -> Result:
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
    found = judge(claim(margin), {"db-table1": result("db-table1", MAP, RS=mine, ERM=theirs)})
    assert found.outcome == outcome
    (one,) = found.judged
    assert one.printed == pytest.approx(75.38 - 70.86)
    if outcome != "not run":
        assert one.ours == pytest.approx(sum(mine) / len(mine) - sum(theirs) / len(theirs))


def test_what_was_not_run_for_want_of_data_says_so() -> None:
    assert judge(claim(), {}).outcome == "not run: data"
    assert judge(claim(), {}, at_hand={"db-table1"}).outcome == "not run"
    on_other_data = {"db-table1": result("db-table1", "mAP on COCO-MLT", RS=[1.0], ERM=[2.0])}
    assert judge(claim(), on_other_data, at_hand={"db-table1"}).outcome == "not run: data"


def test_standard_errors_are_those_of_two_means() -> None:
    mine, theirs = [1.0, 2.0, 6.0], [0.0, 4.0]
    (one,) = judge(claim(), {"db-table1": result("db-table1", MAP, RS=mine, ERM=theirs)}).judged
    assert one.error == pytest.approx(math.sqrt((4 + 1 + 9) / 2 / 3 + (4 + 4) / 1 / 2))
    assert one.ours == pytest.approx(1.0)


def test_less_of_an_error_is_a_gain() -> None:
    spa = Claim("SPA is calibrated", (Difference("spa-table3", "SPA", "BCE", ACE),))
    found = judge(spa, {"spa-table3": result("spa-table3", ACE, SPA=[3, 3.1, 3.2], BCE=[6, 6.1, 6.2])})
    assert found.outcome == "holds"
    assert found.printed == "+1.5"
    assert found.ours == "+3.0 ± 0.1"


def test_some_differences_make_a_claim_hold_in_part_and_absent_ones_are_left_out() -> None:
    rows = {"RS": [72.0, 73.0], "ERM": [60.0, 61.0], "DB": [70.0, 70.1]}
    both = claim(0, Difference("db-table1", "DB", "RS", MAP))
    assert judge(both, {"db-table1": result("db-table1", MAP, **rows)}).outcome == "in part"
    absent = claim(0, Difference("db-table2", "RS", "RS-Focal", MAP))
    found = judge(absent, {"db-table1": result("db-table1", MAP, **rows)})
    assert (found.outcome, len(found.judged)) == ("holds", 1)
    said = sentences((absent, Claim("x", both.differences[1:])), result("db-table1", MAP, **rows), {})
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
    others = {"db-table1": result("db-table1", MAP, RS=theirs, ERM=[1, 2, 3]), "other": result("x", MAP, RS=[99, 99])}
    found = beside_best("auto", ("mAP", "ACE"), result("db-beyond", "mAP", auto=mine), others, ("db-table1", "absent"))
    assert found == (f"by mAP, auto is {said}",)


def test_claims_are_about_rows_and_columns_that_exist() -> None:
    """And in print each of them is true, as far as numbers are printed."""
    for one in (*db_rows.CLAIMS, *spa_rows.CLAIMS):
        for table, row, over, column, margin in one.differences:
            assert table in CATALOGUE
            published = PUBLISHED.get(table.removesuffix("-features"))
            if published is None:
                continue
            assert {row, over} <= set(published.rows), one.text
            mine, theirs = published.value(row, column), published.value(over, column)
            if mine is not None and theirs is not None:
                sign = -1 if column.startswith("ACE") else 1
                assert sign * (mine - theirs) > -margin, (one.text, row, over, column)
