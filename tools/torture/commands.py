"""The commands that the campaign disturbs, the folder they begin in, and what they leave when nothing disturbs them."""

from __future__ import annotations

import gc
import json
import shutil
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from run_data import items, write_photos, write_table
from steelyard.search import Index
from torture.child import Ended, asked, typed, warm

QUICK = ("--set", "train.epochs=2", "--set", "train.batch_size=48", "--set", "train.checkpoint_seconds=0")
MLP = ("--set", "model.backbone=mlp", "--set", "model.width=8", "--set", "model.dropout=0.2")
STATEFUL = ("--set", "objective.unknown=annotation", "--set", "objective.masking=plm")
TIMED = ("seconds", "items_per_second")
SUMMED = ("trial.json",)
"""Files that note the seconds of a training, and a checksum of all they note."""


@dataclass(frozen=True)
class Command:
    """A command, typed in a copy of the place.

    Args:
        name: what the table calls it.
        args: what is typed.
        leaves: the files and folders that it makes or changes.
    """

    name: str
    args: tuple[str, ...]
    leaves: tuple[str, ...]


TRAIN = Command(
    "train", ("train", "--data", "holes.csv", "--recipe", "bce", *MLP, *STATEFUL, *QUICK, "--out", "new"), ("new",)
)
PREDICT = Command("predict", ("predict", "run", "new.csv", "--out", "found.csv", "--batch-size", "32"), ("found.csv",))
PARQUET = Command("predict to Parquet", ("predict", "run", "new.csv", "--out", "found.parquet"), ("found.parquet",))
APPEND = Command("index append", ("predict", "run", "new.csv", "--index", "run/index"), ("run/index",))
CALIBRATE = Command(
    "calibrate",
    ("calibrate", "run", "--data", "new.csv", "--kind", "platt", "--thresholds", "precision", "--target", "0.8"),
    ("run/calibration.json", "run/metrics.json"),
)
REPRODUCE = Command(
    "reproduce", ("reproduce", "plm-table1", "--smoke", "--rows", "BCE*", "--out", "papers"), ("papers",)
)
ALL = (TRAIN, PREDICT, PARQUET, APPEND, CALIBRATE, REPRODUCE)


class Place:
    """A folder of data and a finished run, copied anew for every fault to the same path, so that results are equal."""

    def __init__(self, folder: Path) -> None:
        self.first, self.work = folder / "first", folder / "work"
        self.first.mkdir(parents=True)
        write_table(self.first / "holes.csv", *items(unknown=0.3))
        write_table(self.first / "items.csv", *items())
        write_table(self.first / "new.csv", *items(150, 1))
        write_photos(self.first / "photos", 24)
        self.work.mkdir()
        self.first.rename(self.work)  # an index notes where its run is
        made = ("train", "--data", "items.csv", "--out", "run", *QUICK)
        both = (*APPEND.args, "--out", "all.parquet")
        for name in ("torch._dynamo", "pandas", "sklearn.metrics"):  # what takes longest, not in a copy first
            with suppress(ImportError):
                import_module(name)
        for args in (made, ("calibrate", "run"), both, ("search", "run", "cat"), ("reproduce", "--list")):
            warm(args, self.work)
        import_module("steelyard.serve.server")
        (self.work / "all.parquet").unlink()
        ended = typed((*made, "--overwrite"), self.work)
        if ended.code:
            raise RuntimeError(ended.err)
        self.work.rename(self.first)
        gc.freeze()  # copies of this process share its memory as long as nobody touches it
        self._undisturbed: dict[str, tuple[dict[str, Any], Ended]] = {}

    def anew(self) -> Path:
        """Return the folder as it was at first."""
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.copytree(self.first, self.work)
        return self.work

    def undisturbed(self, command: Command) -> tuple[dict[str, Any], Ended]:
        """Return what a command leaves when nothing disturbs it, and its end."""
        if command.name not in self._undisturbed:
            ended = typed(command.args, self.anew())
            if ended.code:
                raise RuntimeError(f"{command.name}: {ended.err}")
            self._undisturbed[command.name] = left(self.work, command), ended
        return self._undisturbed[command.name]

    def finished(self, command: Command) -> str:
        """Type a command again after a fault; what is wrong with what it leaves, "" where nothing is."""
        if (self.work / "new" / "run.json").is_file():  # a finished run is not trained again
            return different(left(self.work, command), self.undisturbed(command)[0])
        ended = typed(command.args, self.work)
        if why := ended.wrong(0):
            return f"typed again: {why}"
        return different(left(self.work, command), self.undisturbed(command)[0])


def different(found: dict[str, Any], wanted: dict[str, Any]) -> str:
    """Return the first thing in which two results differ, "" where they are equal."""
    for name in sorted(found.keys() | wanted.keys()):
        if found.get(name) != wanted.get(name):
            here, there = (repr(result.get(name))[:200] for result in (found, wanted))
            return f"{name} differs: {here} and {there}"
    return ""


def left(folder: Path, command: Command) -> dict[str, Any]:
    """Return what a command left, timings aside; bytes where they are promised."""
    found: dict[str, Any] = {}
    for name in command.leaves:
        place = folder / name
        for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if path.is_file():
                found[str(path.relative_to(folder))] = path
    indexes = {str(Path(name).parent) for name in found if name.endswith("index/index.json")}
    contents = {name: _content_of(name, path) for name, path in found.items() if not _is_within(name, indexes)}
    for index in indexes:
        contents[index] = asked(lambda index=index: content_of_index(folder / index))
    return {name: content for name, content in contents.items() if content is not None}


def content_of_index(folder: Path) -> dict[str, Any]:
    """Return all that an index holds, read by its own means."""
    with Index.open(folder) as index:
        ids = sorted(hit.id for hit in index.search(f'"{index.names[0]}" | ~"{index.names[0]}"', k=100_000))
        rows = index.rows(ids)
        paths = {i: index.path(i) for i in ids}
        held = dict(zip(ids, rows.tolist(), strict=True))
        return {"names": index.names, "notes": index.notes, "items": held, "paths": paths, "length": len(index)}


def _is_within(name: str, folders: set[str]) -> bool:
    return any(name.startswith(f"{folder}/") for folder in folders)


def _content_of(name: str, path: Path) -> Any:
    """The content of a file, without what tells the time it took; None for what is of no account."""
    last = path.name
    if last == "report.html" or any(part in name for part in ("/locks/", "/cache/", ".partial/")):
        return None
    if last == "history.jsonl":
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        return [{key: value for key, value in line.items() if key not in TIMED} for line in lines]
    if path.suffix == ".json":
        try:
            found = _untimed(json.loads(path.read_text()))
        except ValueError:
            return path.read_bytes()  # which is then found to differ
        return {key: value for key, value in found.items() if key != "sha256"} if last in SUMMED else found
    if path.suffix == ".md":
        return [line for line in path.read_text().splitlines() if " s" not in line]
    return path.read_bytes()


def _untimed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _untimed(part) for key, part in value.items() if key not in TIMED}
    return [_untimed(part) for part in value] if isinstance(value, list) else value
