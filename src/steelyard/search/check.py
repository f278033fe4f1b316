"""Check data files of unknown origin: a separate process reads them completely before they are opened here.

If a forged file crashes DuckDB, only that process ends. Run as a program, this module reads the files it is given.
The user's cache lists the files that this user has written or checked.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

_AT_ONCE = 16  # columns per query: each takes a block of memory


def check(folder: Path, names: Sequence[str]) -> None:
    """Raise a ValueError unless all files can be read completely; files that this user checked before are skipped."""
    known: list[object] = []
    if (note := _note(folder)) is not None:
        with suppress(OSError, ValueError, TypeError):
            known = list(json.loads(note.read_text()))
    strange = [str((folder / name).absolute()) for name in names if _stamp(folder / name) not in known]
    if not strange:
        return
    done = subprocess.run([sys.executable, "-I", __file__, *strange], capture_output=True, text=True)
    if done.returncode:
        why = done.stderr.strip().splitlines()[-1:] if done.returncode > 0 else ["DuckDB crashed on it"]
        raise ValueError(f"{folder} is corrupt ({' '.join(why):.160})")
    trust(folder, names)


def trust(folder: Path, names: Sequence[str]) -> None:
    """Record that this user has written or checked all of these files."""
    from steelyard._files import write_atomic

    if (note := _note(folder)) is not None:  # else they are read again next time
        with suppress(OSError):
            note.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(note, json.dumps([_stamp(folder / name) for name in names]))


def _note(folder: Path) -> Path | None:
    from steelyard._cache import user_cache

    cache = user_cache()
    return cache and cache / "indexes" / hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()


def _stamp(path: Path) -> list[object]:
    """Return facts that change when a file is written or replaced by another."""
    facts = path.stat()
    return [path.name, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino]


def _read(path: str) -> None:
    """Read every value of every table of a data file."""
    import duckdb

    with duckdb.connect(config={"threads": 1, "autoinstall_known_extensions": False}) as connection:
        connection.execute("ATTACH '" + path.replace("'", "''") + "' AS f (READ_ONLY)")
        connection.execute("SET enable_external_access = false")
        for table, columns in connection.execute(
            "SELECT table_name, list(column_name) FROM duckdb_columns() WHERE database_name = 'f' GROUP BY ALL"
        ).fetchall():
            for start in range(0, len(columns), _AT_ONCE):
                some = ", ".join('max(hash("' + name + '"))' for name in columns[start : start + _AT_ONCE])
                connection.execute(f'SELECT {some} FROM f."{table}"').fetchall()


if __name__ == "__main__":
    try:
        for file in sys.argv[1:]:
            _read(file)
    except Exception as error:
        sys.exit((str(error).splitlines() or [type(error).__name__])[0])
