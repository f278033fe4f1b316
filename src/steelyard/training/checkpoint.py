"""Checkpoints: the complete state of training in one file, from which it resumes exactly."""

from __future__ import annotations

import errno
import json
import os
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from steelyard._files import naming, remove_partial, replacing, write_atomic

FORMAT = 1
_NAME = re.compile(r"(\d{6})-(\d{8})\.safetensors")


class State(NamedTuple):
    """Named tensors, and plain JSON beside them."""

    tensors: dict[str, Tensor]
    notes: dict[str, Any]


class Checkpoints:
    """The folder of a run's checkpoints: the two newest, and the weights of the best epoch so far.

    A file is named by the epoch and the step it goes on with. It appears whole or not at all, and every tensor has a
    checksum: a damaged one is passed over for the one before it, and named.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.damaged: list[str] = []
        self._best_before = ""  # the best epoch's file that the checkpoint before the next one goes on with

    def save(self, epoch: int, step: int, state: State) -> None:
        """Write a checkpoint that resumes at `step` of `epoch`, then remove all but it and the previous one."""
        self.folder.mkdir(parents=True, exist_ok=True)
        new = self._file(epoch, step)
        save_tensors(new, state.tensors, {**state.notes, "format": FORMAT})
        files = self._files()
        at = files.index(new)
        for file in files[: max(at - 1, 0)] + files[at + 1 :]:  # what is ahead of it was damaged
            file.unlink()
        for file in self.folder.glob("best-*.safetensors"):
            if file.name not in (state.notes["best_file"], self._best_before):
                file.unlink()
        self._best_before = state.notes["best_file"]

    def load(self) -> State | None:
        """Return the newest whole checkpoint, None where there is none; `damaged` then lists what was passed over."""
        if not self.folder.is_dir():
            return None
        remove_partial(self.folder)
        for file in reversed(self._files()):
            if (loaded := self._loaded(file)) is None:
                continue
            tensors, notes = loaded
            if notes.get("format") != FORMAT:
                raise ValueError(f"{file} is a checkpoint of another version: train again with --overwrite")
            if notes["best_file"] and self._loaded(self.folder / notes["best_file"]) is None:
                notes |= {"best": None, "best_epoch": 0, "best_file": ""}
            self._best_before = notes["best_file"]
            return State(tensors, notes)
        if self.damaged:
            raise ValueError(f"{self.damaged[0]}; no other checkpoint is left: train again with --overwrite")
        return None

    def save_best(self, epoch: int, weights: Mapping[str, Tensor]) -> str:
        """Write the weights of the best epoch so far and return the file's name, for the next checkpoint to hold."""
        self.folder.mkdir(parents=True, exist_ok=True)
        name = f"best-{epoch:06d}.safetensors"
        save_tensors(self.folder / name, weights, {"epoch": epoch})
        return name

    def load_best(self, name: str) -> dict[str, Tensor]:
        """Return the weights that `save_best` wrote."""
        return load_tensors(self.folder / name)[0]

    def forget(self, epoch: int, step: int) -> None:
        """Remove the checkpoint that resumes at `step` of `epoch`, if there is one: its weights proved bad."""
        self._file(epoch, step).unlink(missing_ok=True)

    def _loaded(self, file: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Return what a file holds; None for one that is corrupt, or gone, which is then listed."""
        try:
            return load_tensors(file)
        except ValueError as error:
            self.damaged.append(str(error))
            return None

    def _file(self, epoch: int, step: int) -> Path:
        return self.folder / f"{epoch:06d}-{step:08d}.safetensors"

    def _files(self) -> list[Path]:
        """Checkpoints, oldest first."""
        return sorted(file for file in self.folder.iterdir() if _NAME.fullmatch(file.name))


def prefixed(prefix: str, tensors: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the tensors under "prefix/name"."""
    return {f"{prefix}/{name}": value for name, value in tensors.items()}


def without_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return those under "prefix/", without it."""
    start = f"{prefix}/"
    return {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimizer's state as tensors "parameter/what"."""
    state: dict[int, dict[str, Any]] = optimizer.state_dict()["state"]
    return {
        f"{number}/{what}": torch.as_tensor(value)
        for number, parts in state.items()
        for what, value in parts.items()
        if value is not None
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Restore the state that `optimizer_tensors` returned."""
    whole = optimizer.state_dict()
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        number, what = name.split("/", 1)
        state.setdefault(int(number), {})[what] = value
    whole["state"] = state
    optimizer.load_state_dict(whole)


def module_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return a module's state; whatever is not a tensor would need pickle and is refused."""
    state = module.state_dict()
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise ValueError(f"{type(module).__name__} keeps {name} as {type(value).__name__}: keep it as a tensor")
    return dict(state)


_ENTRY = "steelyard"


def save_tensors(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], notes: Mapping[str, Any]) -> None:
    """Write named tensors and plain JSON notes as one safetensors file, with a checksum of each.

    Equal content gives equal bytes: the order of the library's metadata entries varies from file to file, so there is
    only one entry.
    """
    held = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(notes, sort_keys=True)
    sums = {name: _checksum(held[name]) for name in sorted(held)}
    header = {"notes": text, "notes_crc32": str(zlib.crc32(text.encode())), "crc32": json.dumps(sums)}
    with replacing(path) as partial:
        try:
            save_file(_apart(held), partial, {_ENTRY: json.dumps(header)})
        except SafetensorError as error:
            raise OSError(errno.EIO, str(error)) from None


def load_tensors(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `save_tensors` wrote; a file that is corrupt or of another kind is a ValueError that names it."""
    if not Path(path).is_file():
        raise ValueError(f"{path} does not exist: give a file that Steelyard wrote")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        header = json.loads(metadata[_ENTRY]) if _ENTRY in metadata else metadata  # the first version had three entries
        if zlib.crc32(header["notes"].encode()) != int(header["notes_crc32"]):
            raise ValueError("the checksum of its notes is wrong")
        sums = json.loads(header["crc32"])
        if set(sums) != set(tensors):
            raise ValueError("its tensors are not those it was written with")
        for name, tensor in tensors.items():
            if _checksum(tensor) != sums[name]:
                raise ValueError(f"{name} has a wrong checksum")
        return tensors, json.loads(header["notes"])
    except (SafetensorError, KeyError, ValueError, TypeError, AttributeError, OverflowError, OSError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else " ".join(str(error).split())
        raise ValueError(f"{path} is corrupt or was not written by Steelyard: {what:.200}") from None


def _checksum(tensor: Tensor) -> int:
    return zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data) if tensor.numel() else 0


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors that share memory, copied: the format keeps each by itself."""
    seen: set[int] = set()
    apart = {}
    for name, tensor in tensors.items():
        spot = tensor.untyped_storage().data_ptr()
        apart[name] = tensor.clone() if spot in seen and tensor.numel() else tensor
        seen.add(spot)
    return apart


Record: TypeAlias = dict[str, Any]


def read_history(path: Path) -> list[Record]:
    """Return the epochs' records; a line that a killed process left unfinished, or a damaged one, is passed over."""
    records = []
    if path.exists():
        for line in path.read_bytes().splitlines():
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(record, dict) and isinstance(record.get("epoch"), int):
                records.append(record)
    return records


class History:
    """History of a run that resumes at `epoch`; records of that and later epochs are dropped."""

    def __init__(self, path: Path, epoch: int, writes: bool = True) -> None:
        self.path, self.writes = path, writes
        self.records = [record for record in read_history(path) if record["epoch"] < epoch]
        if writes:
            write_atomic(path, "".join(json.dumps(record) + "\n" for record in self.records))

    def append(self, record: Record) -> None:
        """Add an epoch."""
        self.records.append(record)
        if self.writes:
            with naming(self.path), self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
                file.flush()
                os.fsync(file.fileno())
