"""One writer at a time: locks that end with their process; system locks where there are any."""

from __future__ import annotations

import errno
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]

_OUTLIVED = 10.0  # seconds that worker processes may outlive the one that was killed, with its lock
_UNSIGNED = 10.0  # seconds after which a lock without a holder was left by a killed process
_PAUSE = 0.05
_UNSUPPORTED = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)  # of network disks


class Taken(Exception):
    """Another process has the lock; its text says which."""


def lock(descriptor: int, shared: bool = False, waits: bool = True) -> bool:
    """Lock an open file until it is closed; return whether it was locked. Without system locks it stays open to all."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if waits else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


@contextmanager
def sole(path: Path, waits: bool = False) -> Iterator[None]:
    """Be the only process that holds `path`, a file that exists while it is held; else wait, or raise `Taken`.

    However the holder ends, the next process gets the lock. Where the system has no locks, the file holds the number
    and the start time of the holder, by which others see that it ended; for a process on another machine they cannot.
    """
    descriptor = _acquired(path, waits)
    try:
        _sign(descriptor, path)
        yield
    finally:
        if fcntl is not None:  # while it is held; Windows removes no open file
            path.unlink(missing_ok=True)
        os.close(descriptor)
        if fcntl is None:
            path.unlink(missing_ok=True)


def _acquired(path: Path, waits: bool) -> int:
    """Return the lock file, open and held by this process."""
    patience, by_name = time.monotonic() + _OUTLIVED, fcntl is None
    while True:
        try:
            descriptor = _by_name(path) if by_name else _by_system(path, waits)
        except OSError as error:
            if by_name or error.errno not in _UNSUPPORTED:
                raise
            by_name = True
            if not _content(path):  # just made, to be locked
                path.unlink(missing_ok=True)
            continue
        if descriptor is not None:
            return descriptor
        holder = _holder(path)
        if holder is None:  # it was released, or taken over
            continue
        if not waits and ((holder and _is_alive(holder)) or time.monotonic() > patience):
            raise Taken(_described(holder))
        time.sleep(_PAUSE)


def _by_system(path: Path, waits: bool) -> int | None:
    """Return the file locked by the system, None where another process has it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        if lock(descriptor, waits=waits) and _is_at(descriptor, path):  # otherwise its holder removed the file
            return descriptor
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _by_name(path: Path) -> int | None:
    """Return the file made by this process, None if a process that is still alive made it."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:
        pass
    before, holder = _content(path), _holder(path)
    if holder and not _is_alive(holder):
        aside = path.with_name(f"{path.name}.{os.getpid()}")
        with suppress(FileNotFoundError):
            path.replace(aside)
            if _content(aside) != before:  # another process took it over first
                aside.replace(path)
        aside.unlink(missing_ok=True)
    return None


def _sign(descriptor: int, path: Path) -> None:
    """Write down which process has the lock."""
    holder = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "born": _born(os.getpid()),
        "since": datetime.now().isoformat(" ", "seconds"),
    }
    try:
        os.ftruncate(descriptor, 0)
        os.write(descriptor, json.dumps(holder).encode())
    except OSError as error:  # a full disk: name the file
        raise OSError(error.errno, error.strerror, str(path)) from None


def _holder(path: Path) -> dict[str, Any] | None:
    """Return the process that holds the lock: empty before it has signed, None without a file."""
    with suppress(ValueError):
        document = json.loads(_content(path))
        if isinstance(document, dict) and isinstance(document.get("pid"), int):
            return document
    try:
        is_old = time.time() - path.stat().st_mtime > _UNSIGNED
    except FileNotFoundError:
        return None
    return {"pid": -1, "host": socket.gethostname()} if is_old else {}


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _is_alive(holder: dict[str, Any]) -> bool:
    """Return whether a process may still be running, which cannot be known on another machine or on Windows."""
    if holder.get("host") != socket.gethostname():
        return True
    if holder["pid"] < 1:
        return False
    if os.name == "nt":
        return True
    try:
        os.kill(holder["pid"], 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # it belongs to another user
    now = _born(holder["pid"])
    return now == "" or holder.get("born") in ("", None, now)


def _born(pid: int) -> str:
    """Return when a process was started, by the kernel's clock, since process numbers are used again."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _described(holder: dict[str, Any]) -> str:
    if not holder or holder["pid"] < 1:
        return "another process"
    return f"process {holder['pid']} on {holder['host']}, since {holder.get('since', 'some time')}"


def _is_at(descriptor: int, path: Path) -> bool:
    """Return whether the open file still has this name."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
