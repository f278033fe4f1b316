"""The data sets of a paper as a table."""

from __future__ import annotations

from collections.abc import Sequence

from steelyard_papers.job import Job
from steelyard_papers.result import Result, RowResult, RunResult
from steelyard_papers.sources import Source, present

COLUMNS = (
    *("training items", "test items", "labels", "positives an item"),
    *("most frequent over rarest label", "% of training labels unknown"),
)


def data_table(sources: Sequence[Source], job: Job) -> Result:
    """Return what there is to say of those of the data sets that are there, counted in them."""
    rows: list[RowResult] = []
    notes: list[str] = []
    for source in present(job.data_root, sources):
        datasets = source.open(job.data_root)
        labels = datasets.train.labels
        seen = labels.counts[labels.counts > 0]
        values: tuple[float, ...] = (
            float(len(labels)),
            float(len(datasets.test)),
            float(labels.n_labels),
            float(labels.counts.sum() / len(labels)),
            float(seen.max() / seen.min()),
            100 * labels.unknown_rate,
        )
        rows.append(RowResult(source.name, (RunResult(0, dict(zip(COLUMNS, values, strict=True))),)))
        notes += datasets.notes
    return Result(COLUMNS, tuple(rows), data="; ".join(notes), seeds=(0,))
