"""Probabilities and decisions for items without labels, as a file, a few batches in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from steelyard.data.streams import Batch, Inputs
from steelyard.models.pieces import in_pieces
from steelyard.run.folder import Trained
from steelyard.run.prediction_files import Form, Format, Rows, format_of, open_writer
from steelyard.training.batches import moved
from steelyard.training.files import replacing

Progress = Callable[[int, int | None], None]
"""Called with the items done and, where that is known, their number."""


class Predicted(NamedTuple):
    """What was written."""

    path: Path
    n_items: int
    """Items, bad ones included."""
    bad: tuple[tuple[str, str], ...]
    """(id, reason) of each item that could not be read; its probabilities are empty."""


def predict(
    trained: Trained,
    inputs: Inputs,
    out: str | Path,
    *,
    format: Format | Literal[""] = "",
    form: Form = "wide",
    top: int = 0,
    batch_size: int = 256,
    workers: int = 0,
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
) -> Predicted:
    """Write the probabilities, float32, and decisions of all items to `out`, which is there whole or as it was before.

    "wide" has a row an item: `id`, `probability:LABEL` and `decision:LABEL` (1 or 0) for each label; as JSON lines
    `id`, `labels`, those decided present, and `probabilities` by label. "long" has a row for each label decided
    present, or for the `top` most probable: `id`, `label`, `probability`, `decision`. An item that could not be read
    has a row of its id alone in either form: what is not known is not written as absent.

    Args:
        trained: the model and its reading.
        inputs: what `open_inputs` gives; it decides whether a bad image is an error or skipped.
        out: the file.
        format: "csv", "jsonl" or "parquet"; by default the ending of `out` says.
        form: "wide" or "long".
        top: how many labels of an item the long form has, 0 for those decided present.
        batch_size, workers, device: items at a time, processes that read them, where the model runs.
        progress: called after each batch.
    """
    path = Path(out)
    kind = format_of(path, format)
    if form not in ("wide", "long"):
        raise ValueError(f'form is {form!r}: give "wide" or "long"')
    if top < 0 or (top > 0 and form == "wide"):
        raise ValueError(f"top is {top}: give at least 0, and only with the long form")
    if not trained.reading.has_probability:
        raise ValueError(
            f"there are no probabilities to write, since {trained.reading.why}: run steelyard calibrate first"
        )
    if path.is_dir() or not path.parent.is_dir():
        what = "is a folder" if path.is_dir() else "cannot be written, its folder does not exist"
        raise ValueError(f"{path} {what}: give a file in a folder that is there")
    done, bad = 0, []
    with replacing(path) as partial, open_writer(partial, kind, form, trained.names, top) as write:
        for logits, batch in batch_logits(trained, inputs, batch_size, device, workers):
            eta = trained.reading.probability(logits).numpy()
            unread = [name for name, _ in batch.bad]
            write(Rows(batch.ids, eta, trained.reading.decisions(eta), unread))
            bad += batch.bad
            done += len(batch.ids) + len(unread)
            if progress is not None:
                progress(done, inputs.n_items)
    return Predicted(path, done, tuple(bad))


def batch_logits(
    trained: Trained, inputs: Inputs, batch_size: int, device: str | torch.device, workers: int
) -> Iterator[tuple[Tensor, Batch]]:
    """Yield the logits, float32 on the CPU, of each batch of inputs, in order."""
    model, place = trained.model.to(device).eval(), torch.device(device)
    if inputs.kind != model.input.kind:
        raise ValueError(
            f"the items are {_what(inputs.kind)}, but the model takes {_what(model.input.kind)}: give those"
        )
    for batch in inputs.batches(batch_size, workers):
        shape = tuple(batch.inputs.shape[1:])
        if inputs.kind == "features" and batch.ids and shape != model.input.shape:
            raise ValueError(
                f"item {batch.ids[0]!r} has {_by(shape)} features, but the model takes {_by(model.input.shape)}: give "
                "those of training, in their order"
            )
        with torch.inference_mode():
            found = in_pieces(model, moved(batch.inputs, place)) if batch.ids else torch.zeros(0, model.n_labels)
        logits = found.float().cpu().clone()
        wrong = ~torch.isfinite(logits).all(1)
        if bool(wrong.any()):
            name = batch.ids[int(wrong.nonzero()[0])]
            raise ValueError(
                f"the model's output for item {name!r} is not finite: its weights or that item are damaged"
            )
        yield logits, batch


def _what(kind: str) -> str:
    return {"image": "images", "pair": "pairs of regions and words"}.get(kind, kind)


def _by(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape))
