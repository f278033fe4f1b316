"""Which reading of the partial-annotation paper does not collapse: when ỹ is replaced, what P counts, q, the rate.

Paper: Zhang et al. 2023. Hardware: one CPU core. Minutes: 15.
Command: steelyard reproduce pal-feedback --data DATA --validation .25
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from steelyard_papers.beside import beside
from steelyard_papers.feature_sources import VOC_FEATURES
from steelyard_papers.job import Job
from steelyard_papers.pal import PROPOSED, rule, studied
from steelyard_papers.reproduction import BEYOND, Reproduction
from steelyard_papers.result import Result
from steelyard_papers.sources import one_of
from steelyard_papers.study import Row

ON = ("PAL 0.3", "PPL 0.6", "SPL")
_KNOWN: dict[str, Any] = {**PROPOSED, "count": "known"}
READINGS: dict[str, dict[str, Any]] = {
    "P counts known positives": _KNOWN,
    "… fed back by the link": {**_KNOWN, "feedback": "link"},
    "… q .05": {**_KNOWN, "q": 0.05},
    "… all unknown labels take part (q 1)": {**_KNOWN, "q": 1.0},
    "… γ .3": {**_KNOWN, "gamma": 0.3},
    "… without α, β": {**_KNOWN, "use_alpha_beta": False},
    "P counts pseudo-labels too": PROPOSED,
    "… and q .05": {**PROPOSED, "q": 0.05},
    "… and q 1": {**PROPOSED, "q": 1.0},
    "… and fed back by the link": {**PROPOSED, "feedback": "link"},
    "… and d linear": {**PROPOSED, "schedule": "linear"},
}
"""Arguments of the rule, by what the reading is."""
SLOW: dict[str, Any] = {"optimizer": {"kind": "adamw", "lr": 1e-4, "weight_decay": 0.01}}


def rows(_positives: float, data: str) -> Sequence[Row]:
    """Return one row per reading, and three methods to compare them with."""
    made = [Row(name, rule("annotation", **arguments), data) for name, arguments in READINGS.items()]
    slow = Row("P counts known positives, a tenth of the rate", {**rule("annotation", **_KNOWN), **SLOW}, data)
    others = [Row(name, rule(kind), data) for name, kind in (("BCE", "ignore"), ("AN", "negative"), ("WAN", "wan"))]
    return [*others, *made, slow]


def _study(job: Job) -> Result:
    """Return mAP of every reading in three settings, on a quarter of the training items by default."""
    held = job if job.validation or job.smoke else replace(job, validation=0.25)
    taken = ON[:1] if job.smoke else ON
    found = {setting: studied(held, VOC_FEATURES, setting, rows) for setting in taken}
    return beside(found)


REPRODUCTIONS: tuple[Reproduction, ...] = (
    Reproduction(
        "pal-feedback",
        BEYOND,
        "readings of the partial-annotation paper, on held-out training items of VOC 2012: mAP",
        (one_of((VOC_FEATURES,), VOC_FEATURES),),
        3,
        _study,
        note="a linear layer over features of a frozen network; measured on a quarter of the training items, no test "
        "item is seen. The paper says neither what P counts nor when pseudo-labels are replaced. Where P counts known "
        "positives, α is .95, every prediction that is fed back rises, and the order of items is lost; where "
        "pseudo-labels count too, rising predictions lower α. That reading is the row proposed of pal-table3 to 7",
    ),
)
"""One study."""
