"""`history.jsonl`: a line an epoch."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, TypeAlias

from steelyard._files import naming, write_atomic

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
    """The history of a run that goes on with `epoch`: what was written of that and later epochs is dropped."""

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
