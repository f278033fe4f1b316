"""Beyond the PLM paper: Table 1's cross-entropy and PLM with the loss a mean over labels, in place of their sum.

The paper's formula sums over the labels of an item, and Table 1 is run so. Under a rate of .1 the mean, which is what
libraries take by default, is ten labels' worth gentler.
"""

from __future__ import annotations

from steelyard.papers.job import Job
from steelyard.papers.plm_data import MNIST
from steelyard.papers.plm_rows import HEAD_AND_TAIL, MULTI_MNIST, Settings, chosen, merged, multi_mnist, plm
from steelyard.papers.reproduction import BEYOND, Reproduction
from steelyard.papers.result import Result
from steelyard.papers.study import Row

_MEAN: Settings = {"objective": {"reduction": "mean"}}
_DROPOUT: Settings = {"model": {"dropout": 0.5}}


def _scale(job: Job) -> Result:
    rows = (
        *chosen(MULTI_MNIST, HEAD_AND_TAIL),
        Row("BCE, mean over labels", _MEAN),
        Row("BCE + PLM, mean over labels", merged(_MEAN, plm(rate=0.01))),
        Row("BCE + PLM, mean over labels, limit form and dropout", merged(_MEAN, _DROPOUT, plm(rate=0.01, eps=0.0))),
    )
    return multi_mnist(job, rows)


REPRODUCTIONS: tuple[Reproduction, ...] = (
    Reproduction(
        "plm-scale",
        BEYOND,
        "What the scale of the loss does to BCE and PLM on MultiMNIST",
        (MNIST,),
        1.3,
        _scale,
        note="the sum over an item's labels, as in the paper's formula, or their mean, a tenth of it",
    ),
)
"""On two runs of Table 1, and three more."""
