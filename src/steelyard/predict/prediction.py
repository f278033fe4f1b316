"""Probabilities and decisions for items without labels, as a file, a few batches in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from torch import Tensor

from steelyard._files import check_place, replacing
from steelyard.data.files import check_choice
from steelyard.data.streams import InputBatch, Inputs
from steelyard.folder.run_folder import Trained
from steelyard.models import Model
from steelyard.models.inputs import in_pieces
from steelyard.predict.embedding import embeddings_of
from steelyard.predict.feature_cache import batches_of, features_for, kept_for, listed
from steelyard.predict.files import Form, Format, PredictedRows, format_of, open_writer
from steelyard.training.batches import moved

Progress: TypeAlias = Callable[[int, int | None], None]
"""Called with the items done and, where that is known, their number."""


class Predicted(NamedTuple):
    """Summary of a prediction."""

    n_items: int
    """Items, bad ones included."""
    bad: tuple[tuple[str, str], ...]
    """(id, reason) of each item that could not be read; its probabilities are empty."""


class Scored(NamedTuple):
    """Some items, scored."""

    rows: PredictedRows
    bad: Sequence[tuple[str, str]]
    """(id, reason) of each that could not be read."""
    paths: Sequence[str]
    """The files of the others; empty where they have none."""
    embeddings: NDArray[np.float32] | None = None
    """Embeddings of the others, (B, D), if requested."""


Sink: TypeAlias = Callable[[Scored], None]
"""Destination of scored items: a file, or an index."""


def predict(
    trained: Trained,
    inputs: Inputs,
    out: str | Path,
    *,
    format: Format | Literal[""] = "",
    form: Form = "wide",
    top: int = 0,
    raw_ids: bool = False,
    batch_size: int = 256,
    workers: int = 0,
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
) -> Predicted:
    """Write the probabilities, float32, and decisions of all items to a file; see `file_sink`.

    Args:
        trained: the model with its link and calibrator.
        inputs: what `open_inputs` gives; it decides whether a bad image is an error or skipped.
        out, format, form, top, raw_ids: the file, see `file_sink`.
        batch_size, workers, device: items at a time, processes that read them, where the model runs.
        progress: called after each batch.
    """
    scored = scores(trained, inputs, batch_size, workers, device)
    with file_sink(out, trained.names, format, form, top, raw_ids) as sink:
        return pour(scored, [sink], inputs.n_items, progress)


def scores(
    trained: Trained,
    inputs: Inputs,
    batch_size: int,
    workers: int,
    device: str | torch.device,
    console: Console | None = None,
    embeds: bool = False,
) -> Iterator[Scored]:
    """Return the items of each batch with probabilities and decisions, in order; with embeddings if it `embeds`."""
    check_probability(trained)

    def each() -> Iterator[Scored]:
        for logits, batch in batch_logits(trained, inputs, batch_size, device, workers, console, keeps=not embeds):
            eta = trained.probability_model.probability(logits).numpy()
            some = scored_of(batch, eta, trained.probability_model.decisions(eta))
            if embeds and batch.ids:
                some = some._replace(embeddings=embeddings_of(trained.model, moved(batch.inputs, torch.device(device))))
            yield some

    return each()


def check_probability(trained: Trained) -> None:
    """Raise where a model has no probabilities."""
    if not trained.probability_model.has_probability:
        raise ValueError(
            f"there are no probabilities to write, since {trained.probability_model.why}: run steelyard calibrate first"
        )


def scored_of(batch: InputBatch, eta: NDArray[np.float32], decisions: NDArray[np.bool_]) -> Scored:
    """Return a batch with its probabilities and decisions, (B, L) each."""
    return Scored(PredictedRows(batch.ids, eta, decisions, [name for name, _ in batch.bad]), batch.bad, batch.paths)


def pour(
    scored: Iterable[Any], sinks: Sequence[Callable[[Any], None]], n_items: int | None, progress: Progress | None = None
) -> Predicted:
    """Give all items to every sink: batches that have `rows.ids` and `bad`."""
    done, bad = 0, list[tuple[str, str]]()
    for some in scored:
        for sink in sinks:
            sink(some)
        bad += some.bad
        done += len(some.rows.ids) + len(some.bad)
        if progress is not None:
            progress(done, n_items)
    return Predicted(done, tuple(bad))


@contextmanager
def file_sink(
    out: str | Path,
    names: Sequence[str],
    format: Format | Literal[""] = "",
    form: Form = "wide",
    top: int = 0,
    raw_ids: bool = False,
) -> Iterator[Sink]:
    """Give a sink that writes a file, which is there whole when the block is left, or as it was before.

    "wide" has one row per item: `id`, `probability:LABEL` and `decision:LABEL` (1 or 0) for each label; as JSON lines
    `id`, `labels`, those decided present, and `probabilities` by label. "long" has a row for each label decided
    present, or for the `top` most probable: `id`, `label`, `probability`, `decision`. An item that could not be read
    has a row with its id only in either form: unknown is not written as absent.

    Args:
        out: the file.
        names: of the labels, (L,).
        format: "csv", "jsonl" or "parquet"; by default the ending of `out` says.
        form: "wide" or "long".
        top: how many labels of an item the long form has, 0 for those decided present.
        raw_ids: in CSV, whether ids and labels that begin with =, +, -, @, a tab or a carriage return are written as
            they are; else a ' is put before them, so that no spreadsheet runs them as formulas.
    """
    path = Path(out)
    kind = format_of(path, format)
    check_choice(form, get_args(Form), "form")
    if top < 0 or (top > 0 and form == "wide"):
        raise ValueError(f"top is {top}: give at least 0, and only with form='long'")
    check_place(path)
    with replacing(path) as partial, open_writer(partial, kind, form, names, top, raw_ids) as write:
        yield lambda scored: write(scored.rows)


def batch_logits(
    trained: Trained,
    inputs: Inputs,
    batch_size: int,
    device: str | torch.device,
    workers: int,
    console: Console | None = None,
    keeps: bool = True,
) -> Iterator[tuple[Tensor, InputBatch]]:
    """Yield the logits, float32 on the CPU, of each batch of inputs, in order.

    Features of a frozen backbone are kept for later (`data.cache`) unless `keeps` is false, and then batches hold the
    inputs themselves; computing them is shown on `console`.
    """
    model, place = trained.model.to(device).eval(), torch.device(device)
    check_kind(model, inputs)
    if (
        keeps
        and (known := listed(trained, inputs)) is not None
        and (keeping := kept_for(trained, known[1], console)) is not None
    ):
        head, features = features_for(model, known[1], keeping, batch_size, place, workers, console)
        result = batches_of(head, *known, features, batch_size)
    else:
        result = ((_logits(model, batch, place), batch) for batch in inputs.batches(batch_size, workers))
    for logits, batch in result:
        check_finite(logits.numpy(), batch, "the model")
        yield logits, batch


def check_finite(logits: NDArray[np.float32], batch: InputBatch, model: str) -> None:
    """Raise where an output (B, L) of `model` is not finite."""
    wrong = ~np.isfinite(logits).all(1)
    if wrong.any():
        name = batch.ids[int(np.flatnonzero(wrong)[0])]
        raise ValueError(f"the output of {model} for item {name!r} is not finite: its weights or that item are damaged")


def check_kind(model: Model, inputs: Inputs) -> None:
    """Raise where items are not of the kind that a model takes."""
    if inputs.kind != model.input.kind:
        raise ValueError(
            f"the items are {_what(inputs.kind)}, but the model takes {_what(model.input.kind)}: give such items"
        )


def check_batch(model: Model, batch: InputBatch) -> None:
    """Raise where items have other features than those that a model takes."""
    shape = tuple(batch.inputs.shape[1:])
    if model.input.kind == "features" and shape != model.input.shape:
        raise ValueError(
            f"item {batch.ids[0]!r} has {_by(shape)} features, but the model takes {_by(model.input.shape)}: give "
            "those of training, in their order"
        )


def _logits(model: Model, batch: InputBatch, place: torch.device) -> Tensor:
    if not batch.ids:
        return torch.zeros(0, model.n_labels)
    check_batch(model, batch)
    with torch.inference_mode():
        return in_pieces(model, moved(batch.inputs, place)).float().cpu().clone()


def _what(kind: str) -> str:
    return {"image": "images", "pair": "pairs of regions and words"}.get(kind, kind)


def _by(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape))
