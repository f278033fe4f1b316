"""The numbers that the papers print, in per cent, as far as they could be read, each table with where it was read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from steelyard_papers.beside import on


@dataclass(frozen=True)
class Published:
    """What a paper prints in one table or figure.

    Args:
        columns: what each column measures, in the printed order.
        rows: of each row the printed numbers, one a column, None for one that could not be read; a row that is not
            here could not be read at all.
        source: where the numbers were read.
        note: what to know about the table: its rows, and what in print is wrong or silent.
        best: of a column the best number that the paper prints for its own method, where it is known but not its row.
        own: the rows of its own method, by a pattern such as "* + PLM".
        only_data: whether the numbers are about the data alone, and none is a score.
    """

    columns: tuple[str, ...]
    rows: Mapping[str, tuple[float | None, ...]]
    source: str
    note: str = ""
    best: Mapping[str, float] = field(default_factory=dict)
    own: str = "*"
    only_data: bool = False

    def __post_init__(self) -> None:
        for name, values in self.rows.items():
            if len(values) != len(self.columns):
                raise ValueError(f"row {name!r} has {len(values)} numbers for {len(self.columns)} columns")
        for column in self.best:
            if column not in self.columns:
                raise ValueError(f"the best {column!r} is of no column: choose one of {', '.join(self.columns)}")

    def value(self, row: str, column: str) -> float | None:
        """Return the printed number of a row and a column, None where it could not be read."""
        if row not in self.rows or column not in self.columns:
            return None
        return self.rows[row][self.columns.index(column)]


DECISIONS = ("precision", "recall", "F1")
RANKED = ("mAP", "mAP head", "mAP medium", "mAP tail")
CALIBRATED = ("mAP@y", "mAP@x", "ACE", "MCE")

_PLM = "arXiv 2105.10782 and its supplement"
_DB_README = "https://github.com/wutong16/DistributionBalancedLoss (README, pre-trained models)"
_DB_TOTAL = "https://paperswithcode2.com/paper/156139"
_PAL = "arXiv 2308.00166"
_SPA = "Cheng and Vasconcelos, CVPR 2024"
_UNREAD = "none of its numbers could be read"


def _rarest(k: int) -> tuple[str, ...]:
    return tuple(f"{name} of the {k} rarest" for name in DECISIONS)


def _on(data: str, columns: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(on(column, data) for column in columns)


_TRAINING_POSITIVES = (9485, 6167, 3967, 2476, 1508, 875, 538, 331, 164, 105)
_TEST_POSITIVES = (17840, 19080, 18256, 18080, 17856, 17136, 17664, 18224, 17792, 18072)

PUBLISHED: dict[str, Published] = {
    "plm-table1": Published(
        (*DECISIONS, *_rarest(3), "0-1"),
        {"BCE": (None, None, 80.35, None, None, 65.73, 53.42)},
        f"{_PLM}, Table 1",
        "MultiMNIST: means over the classes and over the 3 rarest, and exact match, all at the threshold .5; of the "
        "other seven rows only the best of each column was read",
        {"F1": 83.73, "F1 of the 3 rarest": 75.10, "0-1": 56.95},
        "* + PLM",
    ),
    "plm-table2": Published((*DECISIONS, *_rarest(10)), {}, f"{_PLM}, Table 2", f"COCO 2014; {_UNREAD}"),
    "plm-table3": Published(
        ("error", "error of the K rarest"),
        {},
        f"{_PLM}, Table 3",
        f"CIFAR-10; where K is printed as 50, 5 is meant; {_UNREAD}",
    ),
    "plm-table4": Published(
        ("error", "error of the K rarest"), {}, f"{_PLM}, Table 4", f"CIFAR-100, K is 50; {_UNREAD}"
    ),
    "plm-table5": Published(("F1",), {}, f"{_PLM}, Table 5", f"the rate λ; {_UNREAD}"),
    "plm-table6": Published(("F1",), {}, f"{_PLM}, Table 6", f"the first ratio; {_UNREAD}"),
    "plm-table7": Published(
        ("training positives, %", "test positives, %"),
        {
            str(digit): (100 * training / 14694, 100 * test / 90000)
            for digit, (training, test) in enumerate(zip(_TRAINING_POSITIVES, _TEST_POSITIVES, strict=True))
        },
        f"{_PLM}, the counts of its draw of MultiMNIST",
        "shares of the 14,694 and 90,000 images; of the decisions by class none could be read",
        only_data=True,
    ),
    "db-table1": Published(
        (*_on("VOC-MLT", RANKED), *_on("COCO-MLT", RANKED)),
        {"DB-Focal": (78.94, 73.22, 84.18, 79.30, 53.55, 51.13, 57.05, 51.06)},
        f"{_DB_README}; both totals also at {_DB_TOTAL}",
        "one run each; the authors' advice for VOC-MLT is another seed where the total comes out at 77.7 "
        "(their issues 9 and 15); of the other rows none could be read",
    ),
    "db-table2": Published(
        (*_on("VOC-MLT", RANKED), *_on("COCO-MLT", RANKED)),
        {"DB-Focal": (78.94, 73.22, 84.18, 79.30, 53.55, 51.13, 57.05, 51.06)},
        f"{_DB_README}; both totals also at {_DB_TOTAL}",
        "the parts of the loss one by one; its last row is that of Table 1, of the others none could be read",
    ),
    **{
        f"pal-table{i}": Published(("mAP",), {}, f"{_PAL}, Table {numeral}", f"{what}; {_UNREAD}")
        for i, numeral, what in (
            (3, "III", "all labels"),
            (4, "IV", "each label known with probability .3, .6 or .9"),
            (5, "V", "each positive known with probability .3, .6 or .9, no negative"),
            (6, "VI", "one positive of an item known"),
            (7, "VII", "the method without each of its parts"),
        )
    },
    "spa-table3": Published(
        CALIBRATED, {}, f"{_SPA}, Table 3", f"accuracy by class and by item, calibration; {_UNREAD}"
    ),
    "spa-table4": Published(
        CALIBRATED,
        {},
        f"{_SPA}, Table 4",
        f"LPR on other losses; the two accuracy columns are swapped in print; {_UNREAD}",
    ),
}
"""By the name of the table; a table or figure that is not here prints no scores."""
