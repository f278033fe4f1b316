"""The command predict: probabilities and decisions for new items, to a file or an index."""

from __future__ import annotations

import shutil
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress

from steelyard.data.files import check_choice
from steelyard.data.streams import Inputs, OnBad
from steelyard.export.runtime import load_onnx
from steelyard.folder.run_folder import RunFolder, Trained
from steelyard.predict import blocks, prediction
from steelyard.predict.blocks import has_blocks
from steelyard.predict.files import Form
from steelyard.predict.inputs import inputs_at
from steelyard.predict.prediction import Predicted
from steelyard.report.headline import plural
from steelyard.report.terminal import say
from steelyard.run.datasets import MANY_LABELS
from steelyard.run.index import into_index, keeps_embeddings
from steelyard.training.batches import n_workers
from steelyard.training.small_models import annotated_note
from steelyard.training.step import pick_device

RUNTIMES = ("torch", "onnx")
ENGINES = ("local", "spark")
_LISTED = 10  # unreadable items that are named


@dataclass(frozen=True)
class PredictRequest:
    """Arguments of `steelyard predict`."""

    run: str
    data: str
    out: str | None = None
    index: str | None = None
    overwrite: bool = False
    images: str | None = None
    form: Form = "wide"
    top: int = 0
    raw_ids: bool = False
    batch_size: int = 256
    skip_bad: bool = False
    device: str = "auto"
    runtime: str = "torch"
    engine: str = "local"
    embeddings: bool = False

    @property
    def on_bad_image(self) -> OnBad:
        """Return how an unreadable item is handled."""
        return "skip" if self.skip_bad else "error"


def predict(request: PredictRequest) -> None:
    """Write probabilities and decisions for new items to a file, an index or both, by default CSV to stdout."""
    check_choice(request.runtime, RUNTIMES, "--runtime")
    check_choice(request.engine, ENGINES, "--engine")
    if request.overwrite and request.index is None:
        raise ValueError("--overwrite empties an index, but none is given: add --index, or leave it out")
    if request.embeddings and request.index is None:
        raise ValueError("--embeddings are kept in an index, but none is given: add --index, or leave it out")
    if request.index is not None and not Path(request.run).is_dir():
        raise ValueError(
            f"--index needs the folder of a run, but {request.run} is not a folder: give the folder of the run"
        )
    if request.engine == "spark":
        _by_spark(request)
        return
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory() as folder:
        to_stdout = request.out is None and request.index is None
        out = str(Path(folder) / "predictions.csv") if to_stdout else request.out
        done, replaced = _here(request, out, console)
        if to_stdout:
            with Path(str(out)).open(encoding="utf-8") as lines:
                shutil.copyfileobj(lines, sys.stdout)
    for name, reason in done.bad[:_LISTED]:
        say(console, f"Left out {name}: {reason}", "yellow")
    if len(done.bad) > _LISTED:
        say(console, f"Left out {len(done.bad) - _LISTED:,} more: their rows have no probabilities", "yellow")
    if not to_stdout:
        destinations = " and ".join(
            destination for destination in (request.out, request.index) if destination is not None
        )
        left = f", {len(done.bad):,} of them unreadable" if done.bad else ""
        again = f", {replaced:,} replaced" if replaced else ""
        say(console, f"{plural(done.n_items, 'item')}{left} in {destinations}{again}.")


def _here(request: PredictRequest, out: str | None, console: Console) -> tuple[Predicted, int]:
    """Predict in this process, to a file, an index, or both; return how many items were replaced in the index too."""
    embeds = request.embeddings or (request.index is not None and keeps_embeddings(request.index))
    if request.runtime == "onnx":
        if request.device not in ("auto", "cpu"):
            raise ValueError(f"--device is {request.device!r}, but --runtime onnx runs on the CPU: leave it out")
        if embeds:
            raise ValueError("--runtime onnx gives no embeddings, which this index keeps: leave it out")
        model = load_onnx(request.run)
        names, inputs = model.names, model.open(request.data, request.images, request.on_bad_image)
        scored = model.scores(inputs, request.batch_size, _workers(inputs, request.batch_size))
    else:
        trained = RunFolder(request.run).load()
        if (share := trained.probability_model.annotated) is not None:
            say(console, f"Beware: {annotated_note(trained.names, share)}.", "yellow")
        names, inputs = trained.names, inputs_at(trained, request.data, request.images, request.on_bad_image)
        workers, device = _workers(inputs, request.batch_size), pick_device(request.device, "--device")
        if has_blocks(trained) and (request.top or len(names) >= MANY_LABELS):
            return _top(request, out, trained, inputs, device), 0
        scored = prediction.scores(trained, inputs, request.batch_size, workers, device, console, embeds)
    # Before 14.3 rich ends even a disabled bar with an empty line, where it does not go to a terminal.
    where = console if console.is_terminal else Console(quiet=True)
    shows = Progress(console=where, transient=True, disable=not console.is_terminal)
    with ExitStack() as opened:
        sinks: list[prediction.Sink] = []
        if out is not None:
            file = prediction.file_sink(out, names, "", request.form, request.top, request.raw_ids)
            sinks.append(opened.enter_context(file))
        if request.index is not None:
            keeping = opened.enter_context(into_index(request.run, names, request.index, request.overwrite))
            sinks.append(lambda some: keeping.put(some.rows.ids, some.rows.probabilities, some.paths, some.embeddings))
        bars = opened.enter_context(shows)
        bar = bars.add_task("predicting", total=inputs.n_items)
        done = prediction.pour(scored, sinks, inputs.n_items, lambda n, all: bars.update(bar, completed=n, total=all))
    return done, keeping.replaced if request.index is not None else 0


def _top(request: PredictRequest, out: str | None, trained: Trained, inputs: Inputs, device: torch.device) -> Predicted:
    """Write the likeliest labels of each item, best first, of a model of many labels."""
    if request.top < 1:
        n = len(trained.names)
        raise ValueError(f"the run has {n:,} labels, too many for one column each: give --top 20 for the likeliest 20")
    if out is None or request.index is not None:
        raise ValueError(
            "an index keeps every label of an item, but this run has too many: give --out FILE, no --index"
        )
    rows = blocks.top_rows(
        trained, inputs, request.top, request.batch_size, _workers(inputs, request.batch_size), device
    )
    with blocks.top_sink(out, trained.names, trained.thresholds, request.raw_ids) as sink:
        return prediction.pour(rows, [sink], inputs.n_items)


def _workers(inputs: Inputs, batch_size: int) -> int:
    """Return how many processes read images; none where one batch is all."""
    several = inputs.kind == "image" and (inputs.n_items or batch_size + 1) > batch_size
    return n_workers(-1, None) if several else 0


def _by_spark(request: PredictRequest) -> None:
    """Predict in the tasks of a Spark cluster, Parquet in and Parquet out."""
    from steelyard.predict import spark as spark_prediction

    plain = PredictRequest(request.run, request.data)
    for name, limitation in (
        ("index", "writes no index"),
        ("form", "writes the wide form only"),
        ("top", "writes the wide form only"),
        ("raw_ids", "writes no CSV"),
        ("device", "scores on the CPUs of its machines"),
        ("runtime", "scores with torch"),
    ):
        if getattr(request, name) != getattr(plain, name):
            raise ValueError(
                f"--{name.replace('_', '-')} is {getattr(request, name)!r}, but Spark {limitation}: leave it out"
            )
    if request.data == "-":
        raise ValueError("DATA is -, but Spark reads Parquet files: give a file or a folder of them")
    if request.out is None:
        raise ValueError("--engine spark writes a folder of Parquet files: name it with --out")
    done = spark_prediction.predict(
        request.run,
        request.data,
        request.out,
        images=request.images,
        on_bad_image=request.on_bad_image,
        batch_size=request.batch_size,
    )
    left = f", {done.n_bad:,} of them unreadable" if done.n_bad else ""
    say(Console(stderr=True), f"{plural(done.n_items, 'item')}{left} in {done.path}.")
