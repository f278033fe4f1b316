"""The numbers that the papers print, in per cent, under the names that rows and columns have here."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from steelyard_papers.result import on

Cell: TypeAlias = tuple[str, str]
"""A row and a column."""


@dataclass(frozen=True)
class Published:
    """The numbers that a paper prints in one table.

    Args:
        columns: what each column measures.
        rows: of each row the printed numbers, one per column, None where the paper prints none.
        source: the paper and its table.
        note: what to know about the table: its set-up, and what in print is wrong or silent.
        only_data: whether the numbers are about the data alone, and none is a score.
        baseline: the row over which the paper claims its gains; "" where rows are on different data.
    """

    columns: tuple[str, ...]
    rows: Mapping[str, tuple[float | None, ...]]
    source: str
    note: str = ""
    only_data: bool = False
    baseline: str = ""

    def __post_init__(self) -> None:
        for name, values in self.rows.items():
            if len(values) != len(self.columns):
                raise ValueError(f"row {name!r} has {len(values)} numbers for {len(self.columns)} columns")

    def value(self, row: str, column: str) -> float | None:
        """Return the printed number of a row and a column, None where there is none."""
        if row not in self.rows or column not in self.columns:
            return None
        return self.rows[row][self.columns.index(column)]


RANKED = ("mAP", "mAP head", "mAP medium", "mAP tail")
CALIBRATED = ("mAP@y", "mAP@x", "ACE", "MCE")
PRINTED: dict[str, dict[str, dict[str, list[float | None]]]] = json.loads(
    (Path(__file__).parent / "published.json").read_text(encoding="utf-8")
)
"""By table its "columns" and "rows" under the names of the papers, as they print them."""

_PLM = "Duarte, Rawat, Shah 2021 (arXiv 2105.10782)"
_DB = "Wu et al. 2020 (arXiv 2007.09654)"
_PAL = "the partial-label paper (arXiv 2308.00166)"
_SPA = "Cheng and Vasconcelos, CVPR 2024"
_NETWORK = "ECA-ResNet50-T"
_SPA_SETS = {"COCO": "COCO 2014", "VOC 2012": "VOC 2012", "WIDER-Attribute": "WIDER-Attribute"}
_OWN_NAMES = {"Ours": "proposed", "Focal": "focal", "Focal by φ": "focal by φ", "Focal + LPR": "focal + LPR"}
"""Names of rows in print for which there is another one here."""


def _same(row: str, column: str) -> Cell:
    return row, column


def _by_rho(row: str, column: str) -> Cell:
    """Give each method one row per ρ, as the tables of CIFAR have here."""
    measure, rho = column.split(", ρ ")
    return f"{row}, ρ {rho}", measure


def _setting(row: str, column: str) -> Cell:
    """Name a setting without what the paper says of it in brackets, and λ as a plain number."""
    key = re.sub(r" \(.*\)$", "", row)
    return f"λ {float(key[2:]):g}" if key.startswith("λ ") else key, column


def _in_setting(setting: str) -> Callable[[str, str], Cell]:
    """Name COCO with its year and add the setting where one table is about one alone."""

    def cell(row: str, column: str) -> Cell:
        column = column.replace("COCO", "COCO 2014")
        return _OWN_NAMES.get(row, row), f"{column}, {setting}" if setting else column

    return cell


def _of_network(data: str) -> Callable[[str, str], Cell]:
    """Name the data; of the two networks the one that is no residual network stays named."""

    def cell(row: str, column: str) -> Cell:
        measure, _, network = column.partition(", ")
        rest = f", {network}" if network and network != _NETWORK else ""
        return _OWN_NAMES.get(row, row), on(measure, data) + rest

    return cell


def _table(parts: Mapping[str, Callable[[str, str], Cell]], source: str, note: str, baseline: str = "") -> Published:
    """Return tables in print as one, `parts` giving for each the row and the column here of a row and column there."""
    numbers: dict[str, dict[str, float]] = {}
    columns: dict[str, None] = {}
    for name, here in parts.items():
        for printed_row, values in PRINTED[name]["rows"].items():
            for printed_column, value in zip(PRINTED[name]["columns"], values, strict=True):
                row, column = here(printed_row, printed_column)
                columns[column] = None
                if value is not None:
                    numbers.setdefault(row, {})[column] = value
    rows = {row: tuple(cells.get(column) for column in columns) for row, cells in numbers.items()}
    return Published(tuple(columns), rows, source, note, baseline=baseline)


def _shares_of_digits() -> Published:
    """Return the counts of MultiMNIST's digits as shares of its images."""
    counts = PRINTED["plm-table7"]["rows"]
    total = counts["Total"]
    rows = {
        digit: tuple(100 * n / of for n, of in zip(values, total, strict=True) if n is not None and of is not None)
        for digit, values in counts.items()
        if digit != "Total"
    }
    columns = ("training positives, %", "test positives, %")
    return Published(columns, rows, f"{_PLM}, supplement", "shares of the 14,694 and 90,000 images", only_data=True)


PUBLISHED: dict[str, Published] = {
    "plm-table1": _table(
        {"plm-table1": _same},
        f"{_PLM}, Table 1",
        "MultiMNIST; decisions at .5, means over all and over the rarest digits",
        "BCE",
    ),
    "plm-table2": _table(
        {"plm-table2": _same},
        f"{_PLM}, Table 2",
        "COCO 2014, ResNet-50; decisions at .5, means over all and the rarest",
        "BCE",
    ),
    "plm-table3": _table(
        {"plm-table3": _by_rho},
        f"{_PLM}, Table 3",
        "CIFAR-10, K is 5, printed as 50; the paper quotes CB and LDAM-DRW from their authors",
    ),
    "plm-table4": _table({"plm-table4": _by_rho}, f"{_PLM}, Table 4", "CIFAR-100, K is 50"),
    "plm-table5": _table(
        {"plm-table5": _setting}, f"{_PLM}, Table 5", "error by the rate λ at ρ 100; λ 0 is BCE", "λ 0"
    ),
    "plm-table6": _table(
        {"plm-table6": _setting},
        f"{_PLM}, Table 6",
        "error by the first ratio at ρ 100, with λ 1 on CIFAR-10 and .01 on CIFAR-100",
    ),
    "plm-table7": _shares_of_digits(),
    "db-table1": _table(
        {"db-table1": _same},
        f"{_DB}, Table 1",
        "ResNet-50, one run per row, tested on VOC 2007 test and COCO 2017 val; the authors' advice for VOC-MLT is "
        "another seed where the total comes out at 77.7 (issues 9 and 15 of their repository)",
        "ERM",
    ),
    "db-table2": _table(
        {"db-table2": _same},
        f"{_DB}, Table 2",
        "ResNet-50, one run per row; RS on COCO-MLT is 46.97 in Table 1 and 47.70 here",
        "RS",
    ),
    "pal-table3": _table({"pal-table3": _in_setting("FAL")}, f"{_PAL}, Table III", "ResNet-50 at 448 pixels", "BCE"),
    "pal-table4": _table({"pal-table4": _in_setting("")}, f"{_PAL}, Table IV", "ResNet-50 at 448 pixels", "AN"),
    "pal-table5": _table({"pal-table5": _in_setting("")}, f"{_PAL}, Table V", "ResNet-50 at 448 pixels", "AN"),
    "pal-table6": _table({"pal-table6": _in_setting("SPL")}, f"{_PAL}, Table VI", "ResNet-50 at 448 pixels", "AN"),
    "pal-table7": _table({"pal-table7": _in_setting("")}, f"{_PAL}, Table VII", "ResNet-50 at 448 pixels"),
    "spa-table3": _table(
        {f"spa-table3, {name}": _of_network(data) for name, data in _SPA_SETS.items()},
        f"{_SPA}, Table 3",
        f"{_NETWORK}, and ViT-B/32 where it is named; VISPR's block is not transcribed",
        "BCE",
    ),
    "spa-table4": _table(
        {"spa-table4": _of_network("COCO 2014")},
        f"{_SPA}, Table 4",
        f"{_NETWORK}; the two accuracies are exchanged in print, and here as in Table 3",
        "BCE",
    ),
}
"""By the name of the table; a table or figure that is not here prints no scores."""
