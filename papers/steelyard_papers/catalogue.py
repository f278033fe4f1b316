"""Every table and figure of the four papers that can be run, by name, and what each paper claims."""

from __future__ import annotations

from typing import NamedTuple

from steelyard_papers import beyond, db, db_rows, pal, plm, plm_beyond, spa, spa_rows
from steelyard_papers.findings import Claim, Difference
from steelyard_papers.reproduction import Reproduction


class Paper(NamedTuple):
    """A paper, as the dashboard shows it."""

    key: str
    """The beginning of its tables' names."""
    name: str
    """As `Reproduction.paper` has it."""
    idea: str
    claims: tuple[Claim, ...]
    table: str
    """The table of the chart and of the comparison of set-ups."""
    column: str
    """Of the chart."""
    baseline: str
    setup: dict[str, str]
    """The paper's set-up, by aspect."""
    here: dict[str, str]
    """The network and schedule used here where no setting is changed; the rest is in the result."""


def _plm(table: str, column: str, row: str = "BCE + PLM", over: str = "BCE") -> tuple[Difference, ...]:
    return (Difference(table, row, over, column),)


PLM_CLAIMS = (
    Claim("Masking labels raises F1 on MultiMNIST", _plm("plm-table1", "F1")),
    Claim("and most on its three rarest digits", _plm("plm-table1", "F1 of the 3 rarest")),
    Claim(
        "Masking lowers the error on long-tailed CIFAR-10",
        tuple(Difference("plm-table3", f"BCE + PLM, ρ {rho}", f"BCE, ρ {rho}", "error") for rho in (100, 10)),
    ),
    Claim("and on CIFAR-100", _plm("plm-table4", "error", "BCE + PLM, ρ 100", "BCE, ρ 100")),
    Claim("Masking raises F1 on COCO", _plm("plm-table2", "F1")),
    Claim("and most on its ten rarest labels", _plm("plm-table2", "F1 of the 10 rarest")),
    Claim(
        "Ratios that start at the data's own do better than at the mean",
        _plm("plm-table6", "error on CIFAR-10", "dataset", "mean"),
    ),
)


def _pal(table: str, setting: str, over: str, margin: float = 0.0) -> tuple[Difference, ...]:
    """That the method is above a row on COCO; VOC 2012, which the paper does not have, is judged too."""
    columns = (f"mAP on {data}, {setting}" for data in ("COCO 2014", "VOC 2012"))
    return tuple(Difference(table, "proposed", over, column, margin) for column in columns)


PAL_CLAIMS = (
    Claim("With all labels the method is above cross-entropy", _pal("pal-table3", "FAL", "BCE")),
    Claim("With 60 % of the labels it is above taking unknown labels as absent", _pal("pal-table4", "PAL 0.6", "AN")),
    Claim("With 60 % of the positives too", _pal("pal-table5", "PPL 0.6", "AN")),
    Claim("With one positive per item too", _pal("pal-table6", "SPL", "AN")),
    Claim(
        "Weights α, β by the share of positives help",
        tuple(
            Difference("pal-table7", "proposed", "without α, β", f"mAP on COCO 2014, {setting}")
            for setting in ("PAL 0.6", "PPL 0.6")
        ),
    ),
)

PAPERS = (
    Paper(
        "plm",
        plm.PAPER,
        "Leave out some positives of frequent labels and some negatives of rare ones, at random.",
        PLM_CLAIMS,
        "plm-table1",
        "F1",
        "BCE",
        {
            "network": "ResNet-12, layers not given",
            "data": "imbalanced MultiMNIST, 14,694 and 90,000 pictures",
            "schedule": "SGD, 90 epochs, batch 128",
            "runs": "not said",
        },
        {"network": "ResNet-12, layers chosen here", "schedule": "as in the paper; weight decay chosen here"},
    ),
    Paper(
        "db",
        db.REPRODUCTIONS[0].paper,
        "Draw items by class, undo that labels come together by weights, and stop pushing negatives that are right.",
        db_rows.CLAIMS,
        "db-table1",
        "mAP on VOC-MLT",
        "ERM",
        {
            "network": "ResNet-50, ImageNet weights, 224 pixels",
            "data": "VOC-MLT, 1,142 images, tested on VOC 2007 test",
            "schedule": "SGD, 80 epochs, 8 with re-sampling",
            "runs": "one per row",
        },
        {"network": "ResNet-50 v1, ImageNet weights, 224 pixels", "schedule": "as in the paper"},
    ),
    Paper(
        "pal",
        pal.REPRODUCTIONS[0].paper,
        "Fill unknown labels with the network's own predictions, trusted more epoch by epoch, and weigh positives up.",
        PAL_CLAIMS,
        "pal-table4",
        "mAP on COCO 2014, PAL 0.6",
        "AN",
        {
            "network": "ResNet-50, ImageNet weights, 448 pixels",
            "data": "COCO 2014, NUS-WIDE, CUB, Open Images",
            "schedule": "not said",
            "runs": "one per row",
        },
        {
            "network": "the paper's on its data; on VOC 2012 a frozen EfficientNet-Lite0, 160 pixels, a linear layer",
            "schedule": "AdamW, 20 epochs, chosen here",
        },
    ),
    Paper(
        "spa",
        spa.REPRODUCTIONS[0].paper,
        "A loss whose minimiser is a probability by a derived link, and a term for the order of labels of an item.",
        spa_rows.CLAIMS,
        "spa-table3",
        "ACE on VOC 2012",
        "BCE",
        {
            "network": "ECA-ResNet50-T, 224 pixels",
            "data": "COCO 2014, VOC 2012, WIDER-Attribute, VISPR",
            "schedule": "SGD, batch 256, epochs not said",
            "runs": "one per row",
        },
        {"network": "ResNet-50 v1, ImageNet weights, 224 pixels", "schedule": "SGD, 12 epochs, chosen here"},
    ),
)
"""In the order of the dashboard."""


CATALOGUE: dict[str, Reproduction] = {
    reproduction.name: reproduction
    for part in (
        *(plm.REPRODUCTIONS, db.REPRODUCTIONS, db.TWINS, pal.REPRODUCTIONS, spa.REPRODUCTIONS),
        *(plm_beyond.REPRODUCTIONS, beyond.REPRODUCTIONS),
    )
    for reproduction in part
}
"""In the order of the papers, and of their tables and figures; last what goes beyond them."""
