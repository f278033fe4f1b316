"""One run: trained once, its outputs kept, and read back the next time it is asked for."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from torch import Tensor, nn

from steelyard._files import write_atomic
from steelyard._sealed import checksum
from steelyard._source import commit
from steelyard.calibrate.probability import ProbabilityModel
from steelyard.config.settings import Config, load_config
from steelyard.data.dataset import ArrayDataset, ImageDataset
from steelyard.data.subset import Subset
from steelyard.folder.run_folder import RunFolder
from steelyard.run.datasets import Datasets, given_datasets
from steelyard.run.finish import outputs_of, probability_model_of, versions
from steelyard.run.learn import Follow, TrainRequest
from steelyard.run.resume import FREE, facts
from steelyard.run.train import learn
from steelyard.training.batches import n_workers, ordered
from steelyard.training.checkpoint import load_tensors, read_history, save_tensors
from steelyard.training.step import pick_device

PARTS = ("validation", "test")
FINISHED, _EPOCHS = "trial.json", "epochs"
_LATER = (
    *(("model", "mirror", False), ("model", "keep_statistics", False), ("model", "bias", "zero")),
    *(("train", "learner", "loop"), ("train", "budget", 0.0), ("train", "single", False), ("data", "names", "")),
    *(("data", "group", ""), ("data", "audit", ""), ("evaluate", "positives_per_item", 0.0)),
    *(("model", "reachability", 1.0), ("data", "text", ""), ("data", "corrections", "")),
    *(("data", "embeddings", ""), ("data", "categories", ())),
)
"""Settings that came later: as long as one is what it was before, runs without it are the same."""
_CORRECTED = {("weighting", "inverse_frequency"): 2}
"""Parts of the objective whose code was corrected since runs were noted, with their versions: runs of before have
other keys, so that no ledger stands in for what the corrected code gives."""


@dataclass(frozen=True, eq=False)
class Trial:
    """A finished run: its logits of items that it was not trained on, and their targets.

    Args:
        folder: of the run.
        config: its settings.
        names: of the labels.
        counts, n_known: positives and known labels of each in training, (L,).
        reading: the conversion of logits to probabilities that the section [evaluate] sets.
        outputs: logits (N, L), float32, and targets (N, L), int8 or float32, by part: "validation", "test".
        history: one dict per epoch; "plm_ratio" in it are PLM's ratios r̄ at the end of the epoch.
        facts: seconds of training, device, versions, commit.
    """

    folder: Path
    config: Config
    names: tuple[str, ...]
    counts: NDArray[np.float64]
    n_known: NDArray[np.float64]
    probability_model: ProbabilityModel
    outputs: dict[str, tuple[Tensor, Tensor]]
    history: list[dict[str, Any]]
    facts: dict[str, Any]

    @property
    def is_followed(self) -> bool:
        """True if the outputs after every epoch were kept."""
        return (self.folder / f"{_EPOCHS}.safetensors").is_file()

    def after_epochs(self) -> list[Trial]:
        """Return the run as it was after each of its epochs, from the first on; for one that was followed."""
        file = self.folder / f"{_EPOCHS}.safetensors"
        if not self.is_followed:
            raise ValueError(f"{file} is not there: delete {self.folder} to train it again")
        kept, _ = load_tensors(file)
        return [
            replace(self, outputs={part: (kept[part][i], targets) for part, (_, targets) in self.outputs.items()})
            for i in range(len(kept["test"]))
        ]

    @property
    def by_link(self) -> ProbabilityModel:
        """The conversion by the link of the objective alone, without what was fitted to held-out items."""
        return self.probability_model.fit(self.logits[:0], self.targets[:0], "link")

    @property
    def logits(self) -> Tensor:
        """Of the test items, (N, L)."""
        return self.outputs["test"][0]

    @property
    def targets(self) -> Tensor:
        """Of the test items, (N, L)."""
        return self.outputs["test"][1]


def key_of(config: Config, datasets: Datasets) -> str:
    """Return the key of a run: a hash of its settings and data, whatever the place and device it runs on."""
    record = config.as_dict()
    for section, name in FREE:
        record[section].pop(name)
    for section, name, before in _LATER:
        if record[section][name] == before:
            record[section].pop(name)
    record["model"]["weights"] = Path(record["model"]["weights"]).name
    sizes = [None if part is None else len(part) for part in datasets[:3]]
    parts = {(slot, getattr(config.objective, slot).kind) for slot, _ in _CORRECTED}
    corrected = [{" ".join(part): version} for part, version in _CORRECTED.items() if part in parts]
    text = json.dumps([record, _facts(datasets), sizes, *corrected], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def tested_on(datasets: Datasets) -> list[int | None]:
    """Return checksums of the test items; a run's key has their number alone."""
    return list(_facts(Datasets(datasets.test, None, None)).values()) if datasets.test is not None else []


def _facts(datasets: Datasets) -> dict[str, Any]:
    """Checksums of labels and inputs; what came later is left out where there is none of it."""
    return {name: value for name, value in facts(datasets).items() if name != "corrections" or value is not None}


def trial(
    config: Config,
    datasets: Datasets,
    folder: Path,
    console: Console | None = None,
    note: str = "",
    follows: bool = False,
) -> Trial:
    """Return the run in `folder`: read where it is finished, else trained, going on from its checkpoint.

    note: what to know about this copy of the data, kept with the run.
    follows: whether the outputs for validation and test items are kept after every epoch; it needs validation items.
    """
    if not (folder / FINISHED).is_file():
        _train(config, datasets, folder, console or Console(quiet=True), note, follows)
    return read(folder)


def read(folder: Path) -> Trial:
    """Return the finished run in `folder`."""
    record = read_facts(folder)
    RunFolder(folder).read_config()  # which raises unless it is whole
    tensors, _ = load_tensors(folder / "outputs.safetensors")
    return Trial(
        folder,
        load_config(folder / "config.toml"),
        tuple(record["names"]),
        np.array(record["counts"], np.float64),
        np.array(record["n_known"], np.float64),
        ProbabilityModel.load(folder / "calibration.json"),
        {p: (tensors[f"{p}/logits"], tensors[f"{p}/targets"]) for p in PARTS if f"{p}/logits" in tensors},
        read_history(folder / "history.jsonl"),
        record["facts"],
    )


def read_facts(folder: Path) -> dict[str, Any]:
    """Return the content of the file by which a run is finished; a corrupt one is one sentence."""
    try:
        return read_sealed(folder / FINISHED)
    except (ValueError, AttributeError, TypeError) as error:
        raise ValueError(f"{folder / FINISHED} is corrupt ({error}): delete {folder} to train it again") from None


def write_sealed(path: Path, record: Mapping[str, Any]) -> None:
    """Write JSON with its checksum."""
    write_atomic(path, json.dumps({**record, "sha256": checksum(record)}) + "\n")


def read_sealed(path: Path) -> dict[str, Any]:
    """Return what `write_sealed` wrote; a ValueError where the checksum is another."""
    record = json.loads(path.read_text(encoding="utf-8"))
    if record.pop("sha256", None) not in (None, checksum(record)):  # the first version noted none
        raise ValueError("it does not have its checksum")
    return dict(record)


def _follower(folder: Path, config: Config) -> Follow:
    """Return a function that keeps the outputs of an epoch in a file of its own, so that a resumed run has them too."""

    def follow(model: nn.Module, device: torch.device, datasets: Datasets) -> None:
        epoch = len(read_history(folder / "history.jsonl")) + 1
        pairs = {part: outputs_of(model, getattr(datasets, part), config, device) for part in PARTS}  # type: ignore[arg-type]
        (folder / _EPOCHS).mkdir(exist_ok=True)
        tensors = {part: pair[0] for part, pair in pairs.items() if pair is not None}
        save_tensors(folder / _EPOCHS / f"{epoch}.safetensors", tensors, {})

    return follow


def _train(config: Config, datasets: Datasets, folder: Path, console: Console, note: str, follows: bool) -> None:
    ready = given_datasets(datasets, config.data, config.model, config.train.seed)
    if pick_device(config.train.device).type == "cuda" and not config.model.is_frozen:
        ready = in_memory(ready, config.train.workers)
    run = RunFolder(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        follow = _follower(folder, config) if follows else None
        learned = learn(TrainRequest(config, None, "", ready, follow), run, False, console)
    except ValueError as error:
        if "--overwrite" not in str(error):  # of which there is none here
            raise
        raise ValueError(f"{str(error).rpartition(':')[0]}: delete {folder} to train it again") from None
    pairs = {
        part: outputs_of(learned.learner, getattr(learned.datasets, part), config, learned.device) for part in PARTS
    }
    labels = learned.datasets.train.labels
    run.write_probability_model(probability_model_of(config, learned.objective, labels, pairs["validation"]))
    kept = {part: pair for part, pair in pairs.items() if pair is not None}
    tensors = {f"{part}/{name}": pair[i] for part, pair in kept.items() for i, name in enumerate(("logits", "targets"))}
    save_tensors(folder / "outputs.safetensors", tensors, {})
    if follows:
        files = (folder / _EPOCHS / f"{epoch + 1}.safetensors" for epoch in range(len(learned.outcome.history)))
        each = [load_tensors(file)[0] for file in files]
        save_tensors(folder / f"{_EPOCHS}.safetensors", {p: torch.stack([one[p] for one in each]) for p in each[0]}, {})
    on_cpu = f"CPU, {torch.get_num_threads()} thread{'s' * (torch.get_num_threads() != 1)}"
    is_gpu = learned.device.type == "cuda"
    record = {
        "names": list(labels.names),
        "counts": labels.counts.tolist(),
        "n_known": labels.n_known.tolist(),
        "facts": {
            "seconds": round(learned.outcome.seconds, 3),
            "device": str(torch.cuda.get_device_name(learned.device)) if is_gpu else on_cpu,
            "versions": versions(learned.device),
            "commit": commit(),
            "note": note,
            "test": tested_on(datasets),
        },
    }
    write_sealed(folder / FINISHED, record)
    for left in ("checkpoint", "pseudo-labels", "cache", _EPOCHS):
        shutil.rmtree(folder / left, ignore_errors=True)


MOST = 4 << 30
"""Bytes of pixels of a part up to which it is decoded as a whole."""
_DECODED_AT_ONCE = 256


def in_memory(datasets: Datasets, workers: int = -1) -> Datasets:
    """Return the same items, image files of one size as arrays of pixels where they take no more than `MOST` bytes.

    Args:
        datasets: as training takes them; what is no image file, or may be skipped, stays as it is.
        workers: processes that decode, -1 for as many as there are cores, eight at most.
    """
    parts = {name: _decoded(getattr(datasets, name), workers) for name in ("train", "validation", "test")}
    return datasets._replace(**parts)


def _decoded(data: Any, workers: int) -> Any:
    inside = data.data if isinstance(data, Subset) else data
    if not isinstance(inside, ImageDataset) or inside.size is None or inside.on_bad_image == "skip":
        return data
    shape = (len(data), 3, *inside.size)
    if prod(shape) > MOST:
        return data
    pixels = np.empty(shape, np.uint8)
    for batch in ordered(data, _DECODED_AT_ONCE, n_workers(workers, data)):
        pixels[batch.index.numpy()] = np.asarray(batch.inputs)
    return ArrayDataset(pixels, data.labels, inside.note)
