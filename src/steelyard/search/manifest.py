"""What an index consists of, in one small file that is swapped whole: it alone says which other files count."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, final

from steelyard._files import write_atomic
from steelyard._locks import sole
from steelyard._sealed import sealed, unsealed

FILE: Final = "manifest.json"
LOCK: Final = ".writing"
FORMAT: Final = "steelyard index"
VERSION: Final = 1


@final
@dataclass(frozen=True)
class PartFacts:
    """One immutable part of an index."""

    number: int
    """Never used twice in a folder, unless a killed write had it."""
    rows: int
    bytes: tuple[int, int]
    """Of its table and its names."""
    sums: tuple[str, str] = ("", "")
    """Checksums of the blocks of both, see `blocks.sums_of`; the first version noted none."""

    @property
    def table(self) -> str:
        """The Parquet file."""
        return f"part-{self.number:06d}.parquet"

    @property
    def names(self) -> str:
        """The Arrow file of ids and paths."""
        return f"part-{self.number:06d}.arrow"


@final
@dataclass(frozen=True)
class Manifest:
    """A generation of an index."""

    names: tuple[str, ...]
    """Of the labels, in the order of their columns."""
    notes: dict[str, Any] = field(default_factory=dict)
    generation: int = 0
    parts: tuple[PartFacts, ...] = ()
    dead: int = 0
    """How many rows of the parts are deleted."""
    next_part: int = 0
    dead_sum: int | None = None
    """The CRC-32 of the file of deleted rows; the first version noted none."""

    @property
    def n_items(self) -> int:
        """Items, the deleted ones not counted."""
        return sum(part.rows for part in self.parts) - self.dead

    @property
    def dead_file(self) -> str | None:
        """The file of the deleted rows, None where there are none."""
        return f"dead-{self.generation:06d}.parquet" if self.dead else None

    @property
    def files(self) -> set[str]:
        """Names of all files that count."""
        own = {name for part in self.parts for name in (part.table, part.names)}
        return own | ({self.dead_file} if self.dead_file else set())


def exists(folder: Path) -> bool:
    """Whether there is an index in `folder`."""
    return (folder / FILE).is_file()


def write(folder: Path, manifest: Manifest) -> None:
    """Make `manifest` the index of `folder`: the one step by which anything changes."""
    write_atomic(folder / FILE, sealed(asdict(manifest), FORMAT, VERSION))


def read(folder: Path) -> Manifest:
    """Return the manifest of `folder`; where there is none, or a damaged one, is one sentence."""
    path = folder / FILE
    try:
        document = unsealed(path.read_bytes(), FORMAT, VERSION)
        parts = tuple(
            PartFacts(p["number"], p["rows"], tuple(p["bytes"]), tuple(p.get("sums", ("", ""))))
            for p in document.pop("parts")
        )
        found = Manifest(tuple(document.pop("names")), parts=parts, **document)
        numbers = (n for part in parts for n in (part.number, part.rows, *part.bytes))
        if not all(type(n) is int and n >= 0 for n in (found.generation, found.dead, found.next_part, *numbers)):
            raise ValueError("it holds something else where a number should be")
        if not all(isinstance(name, str) for name in found.names) or not isinstance(found.notes, dict):
            raise ValueError("its names are not texts, or its notes no object")
        if any(len(part.bytes) != 2 for part in parts) or found.n_items < 0:
            raise ValueError("its numbers do not fit together")
        return found
    except FileNotFoundError:
        raise ValueError(f"{folder} holds no index: make one with steelyard train or predict") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}): give the folder of an index") from None
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({' '.join(str(error).split()):.120}): make the index anew") from None


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Be the only writer of `folder`; others wait. The lock ends with its process, however that ends.

    Its file goes with the writing; one that a killed process left goes with the next.
    """
    with sole(folder / LOCK, waits=True):
        yield
