"""The likeliest labels of new items, of a model with a head by blocks: no table of items by labels is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from steelyard._files import check_place, replacing
from steelyard.calibrate import Platt, shift_prior
from steelyard.calibrate.probability import ProbabilityModel
from steelyard.data.files import harmless
from steelyard.data.streams import InputBatch, Inputs
from steelyard.folder.run_folder import Trained
from steelyard.losses.pair import PairLoss
from steelyard.models.block import BlockHead, Top, top_labels
from steelyard.models.block.terms import of_labels
from steelyard.models.block.top import ScoreFunction
from steelyard.predict.files import LONG, format_of, long_batch, open_sink
from steelyard.predict.prediction import check_batch, check_kind


class TopRows(NamedTuple):
    """Items of a batch with their first labels, numbers and η (n, k), best first."""

    rows: InputBatch
    bad: list[tuple[str, str]]
    labels: Tensor
    probabilities: Tensor


def by_blocks(probability_model: ProbabilityModel) -> ScoreFunction:
    """Return how logits of some labels become log η/(1−η): after the link every step is a line per label."""
    link, platt = probability_model.link, probability_model.calibrator
    if link is None or not isinstance(link.loss, PairLoss) or link.class_aware is not None:
        raise ValueError(
            f"a block head needs the link of its loss, but this run uses {probability_model.how}: retrain it"
        )
    if platt is not None and not isinstance(platt, Platt):
        raise ValueError(f"a block head is calibrated by bands, but this run uses {probability_model.how}: retrain it")
    if probability_model.annotated is not None or probability_model.sets_there is not None:
        raise ValueError(
            f"a block head treats labels one by one, but this run uses {probability_model.how}: "
            "recalibrate it without that"
        )
    loss, (w_pos, w_neg) = link.loss, (torch.as_tensor(w, dtype=torch.float64) for w in link.class_weights())
    weights = (w_neg.log() - w_pos.log()).expand(probability_model.n_labels)
    slope, shift = (None, None) if platt is None else (platt.slope, platt.shift)
    prior = torch.zeros(probability_model.n_labels, dtype=torch.float64)
    if probability_model.to_prior is not None:
        old, new = probability_model._priors()
        prior = shift_prior(prior[None], old, new)[0]

    def log_odds(z: Tensor, labels: slice | Tensor) -> Tensor:
        odds = of_labels(loss, labels).to(z.device).link(z) + weights[labels].to(z)
        if slope is not None and shift is not None:
            odds = odds * slope[labels].to(z) + shift[labels].to(z)
        return odds if probability_model.to_prior is None else odds + prior[labels].to(z)

    return log_odds


def has_blocks(trained: Trained) -> bool:
    """Return whether a model has a head that goes through its labels in blocks."""
    return isinstance(trained.model.head, BlockHead)


def top_rows(
    trained: Trained, inputs: Inputs, k: int, batch_size: int, workers: int, device: torch.device
) -> Iterator[TopRows]:
    """Give the k likeliest labels of the items of each batch, in order; all labels where there are fewer."""
    model, read = trained.model.to(device).eval(), by_blocks(trained.probability_model)
    check_kind(model, inputs)
    head, k = model.head, min(k, model.n_labels)
    assert isinstance(head, BlockHead)
    for batch in inputs.batches(batch_size, workers):
        top = Top(torch.zeros(0, k, dtype=torch.int64), torch.zeros(0, k))
        if batch.ids:
            check_batch(model, batch)
            with torch.inference_mode():
                top = top_labels(head, model.features(batch.inputs.to(device)), k, read)
        if not bool(torch.isfinite(top.scores).all()):
            raise ValueError("an output of the model is not finite: its weights or an item are corrupt")
        yield TopRows(batch, batch.bad, top.labels.cpu(), torch.sigmoid(top.scores.cpu()).float())


@contextmanager
def top_sink(
    out: str | Path, names: Sequence[str], thresholds: NDArray[np.float64], raw_ids: bool = False
) -> Iterator[Callable[[TopRows], None]]:
    """Give a function that writes rows of (id, label, probability, decision), best first, to a file.

    The file is there whole when the block is left, or as it was before. An item that could not be read has a row of its
    id alone.
    """
    path = Path(out)
    kind = format_of(path)
    guarded = kind == "csv" and not raw_ids
    texts = pa.array(list(map(harmless, names)) if guarded else list(names), pa.string())
    check_place(path)

    def record(rows: TopRows) -> pa.RecordBatch:
        n, k = rows.labels.shape
        bad = [name for name, _ in rows.bad]
        ids = [name for name in rows.rows.ids for _ in range(k)] + bad
        label, eta = rows.labels.numpy().ravel(), rows.probabilities.numpy().ravel()
        blank = np.arange(len(ids)) >= n * k
        label, eta = (np.concatenate([x, np.zeros(len(bad), x.dtype)]) for x in (label, eta))
        decided = eta >= thresholds[label].astype(np.float32)
        named = pa.array(list(map(harmless, ids)) if guarded else ids, pa.string())
        return long_batch(named, texts, label, eta, decided, blank)

    with replacing(path) as partial, open_sink(partial, kind, LONG) as put:
        yield lambda rows: put(record(rows))
