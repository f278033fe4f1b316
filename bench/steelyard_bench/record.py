"""A run of the bench as a file: where, with what and when it was measured, and every row."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shlex
import sys
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from steelyard import __version__
from steelyard._files import write_atomic
from steelyard._source import SOURCE, commit
from steelyard_bench.row import Row

_PACKAGES = ("triton", "timm", "torchmetrics", "numpy")


@dataclass
class Record:
    """What was measured, and where."""

    machine: dict[str, str]
    versions: dict[str, str]
    sources: str
    """The first digits of a digest of the package's Python files."""
    commit: str | None
    """Of the repository these files lie in, with + where they were changed since; None without a repository."""
    command: str
    date: str
    bandwidth: float
    """Bytes a second of a large copy, read and written, in the same run."""
    rows: list[Row] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    seconds: float = 0.0
    """That the whole run took."""

    @property
    def is_gpu(self) -> bool:
        """Whether it was measured on a GPU."""
        return "gpu" in self.machine

    @property
    def name(self) -> str:
        """What its files are called."""
        name = self.machine.get("gpu", "CPU").lower()
        return "-".join("".join(c if c.isalnum() else " " for c in name).split())

    def save(self, file: Path) -> None:
        """Write it to a file."""
        write_atomic(file, json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n")

    @classmethod
    def read(cls, file: Path) -> Record:
        """Return what `save` has written."""
        try:
            content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            content["rows"] = [Row(**row) for row in content["rows"]]
            return cls(**content)
        except FileNotFoundError:
            raise ValueError(f"{file}: no such file") from None
        except (ValueError, KeyError, TypeError) as error:
            expected = ", ".join(f.name for f in fields(cls))
            raise ValueError(f"{file}: not a run of steelyard bench ({error}): it holds {expected}") from None


def begin(device: torch.device, bandwidth: float) -> Record:
    """Return the record of a run that begins now."""
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return Record(_machine(device), _versions(), _digest(), commit(), _command(), now, bandwidth)


def _command() -> str:
    """Return what was typed, without the folders in which files lie on this machine."""
    words = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:]]
    return shlex.join(["steelyard", *words])


def _machine(device: torch.device) -> dict[str, str]:
    found = {"cpu": _cpu(), "cores": str(os.cpu_count()), "threads": str(torch.get_num_threads())}
    if hasattr(os, "getloadavg"):
        found["load"] = f"{os.getloadavg()[0]:.1f} when it began"
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found = {"gpu": properties.name, "gpu memory": f"{properties.total_memory / 2**30:.0f} GiB", **found}
    return found


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _versions() -> dict[str, str]:
    found = {"steelyard": __version__, "python": platform.python_version(), "torch": str(torch.__version__)}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    return found


def _digest() -> str:
    whole = sha256()
    for path in sorted(SOURCE.rglob("*.py")):
        whole.update(path.relative_to(SOURCE).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return whole.hexdigest()[:12]
