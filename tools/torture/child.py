"""A command in a process of its own, a copy of this one, so that it begins at once; and what may befall it there."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from steelyard import cli
from steelyard._signals import Stop

COUNT, FULL, KILL = range(3)
"""What `faults.c` does at the n-th write: nothing, refuse it and all later ones, end the process."""
MOST_SECONDS = 300.0
"""After which a command is taken to hang."""


class Ended(NamedTuple):
    """What a command ended with."""

    code: int
    """Its exit code, or minus the signal that ended it."""
    out: str
    err: str
    writes: int
    """How many there were, where `faults.c` counts them."""
    seconds: float

    def wrong(self, *codes: int) -> str:
        """What is wrong about this end, "" where nothing is: one of `codes`, and one line unless it is done."""
        if self.code not in codes:
            return f"exit code {self.code}: {self.err[-300:]!r}"
        if "Traceback" in self.err or "Exception ignored" in self.err:
            return f"a traceback: {self.err[-300:]!r}"
        lines = [line for line in self.err.splitlines() if line.startswith("steelyard: ")]
        if self.code in (2, 130) and (len(lines) != 1 or self.err.splitlines()[-1:] != lines):
            return f"not one line: {self.err[-300:]!r}"
        return ""


class Running:
    """A command under way."""

    def __init__(self, args: Sequence[str], folder: Path, prepare: Callable[[], object] | None = None) -> None:
        files = [os.memfd_create(name) for name in ("out", "err", "writes")]
        self.started, self._files = time.monotonic(), files
        self.pid = os.fork()
        if self.pid == 0:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the command listens, it ends as SIGTERM ends it
            _become(args, folder, prepare, files)

    def signal(self, number: int) -> None:
        """Send it a signal; nothing happens where it has ended, since nobody has asked for its exit code yet."""
        os.kill(self.pid, number)

    def ended(self) -> bool:
        """Whether it is done, though nobody has asked for its exit code yet."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def said(self) -> str:
        """What it has said so far."""
        size = os.fstat(self._files[0]).st_size
        return os.pread(self._files[0], size, 0).decode(errors="replace")

    def wait(self, seconds: float = MOST_SECONDS) -> Ended:
        """Wait until it ends; one that hangs is killed, and has the exit code −1000."""
        while True:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            late = time.monotonic() - self.started > seconds
            if done or late:
                break
            time.sleep(0.001)
        if not done:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        said = []
        for file in self._files:
            os.lseek(file, 0, os.SEEK_SET)
            with os.fdopen(file, "rb") as text:
                said.append(text.read().decode(errors="replace"))
        code = os.waitstatus_to_exitcode(status) if done else -1000
        return Ended(code, said[0], said[1], int(said[2] or 0), time.monotonic() - self.started)


def typed(args: Sequence[str], folder: Path, prepare: Callable[[], object] | None = None) -> Ended:
    """Type a command in `folder` and wait for its end; `prepare` is called in its process first."""
    return Running(args, folder, prepare).wait()


def asked(work: Callable[[], Any]) -> Any:
    """Return what `work` gives in a process of its own: plain data, so that no thread of a library stays here."""
    import pickle

    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            found: Any = work()
        except BaseException:
            found = Failed(traceback.format_exc())
        with os.fdopen(writing, "wb") as file:
            pickle.dump(found, file)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        content = file.read()
    os.waitpid(child, 0)
    return pickle.loads(content) if content else Failed("the process ended without an answer")


class Failed(NamedTuple):
    """The answer of a process that failed."""

    why: str


def warm(args: Sequence[str], folder: Path) -> None:
    """Import here what a command imports: in the copies of this process it then takes a moment, not seconds."""

    def imported() -> list[str]:
        os.chdir(folder)
        sys.argv, sys.stdout = ["steelyard", *args], Path(os.devnull).open("w")  # noqa: SIM115
        sys.stderr = sys.stdout
        with suppress(SystemExit):
            cli.main()
        return sorted(sys.modules)

    for name in asked(imported):
        with suppress(Exception):
            import_module(name)


def compiled(folder: Path) -> Path | None:
    """Return `faults.c` as a library, None where there is no C compiler."""
    library = folder / "faults.so"
    source = Path(__file__).with_name("faults.c")
    command = ["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return library


def has_faults() -> bool:
    """Whether `faults.c` was loaded before this process began."""
    return hasattr(ctypes.CDLL(None), "faults_arm")


def arm(what: int, at: int = 0) -> None:
    """Let the `at`-th write of this process from now on, and what follows it, meet a fault."""
    if has_faults():
        ctypes.CDLL(None).faults_arm(what, ctypes.c_long(at))


def written() -> int:
    """Return how many writes there were since `arm`."""
    if not has_faults():
        return 0
    count = ctypes.CDLL(None).faults_seen
    count.restype = ctypes.c_long
    return int(count())


def jump() -> None:
    """Let every look at the clock be another time within twenty years."""
    ctypes.CDLL(None).faults_jump(1)


def _become(args: Sequence[str], folder: Path, prepare: Callable[[], object] | None, files: Sequence[int]) -> NoReturn:
    code: Any = 1
    try:
        os.chdir(folder)
        for number, file in zip((1, 2), files, strict=False):
            os.dup2(file, number)
        arm(COUNT)
        sys.stdout, sys.stderr = (open(number, "w", encoding="utf-8", closefd=False) for number in (1, 2))  # noqa: SIM115
        sys.argv = ["steelyard", *args]
        if prepare is not None:
            prepare()
        cli.main()
        code = 0
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        Stop().deafen()  # which a process of its own does at its exit
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        n = written()
        arm(COUNT)
        os.write(files[2], str(n).encode())
        os._exit(code if isinstance(code, int) else 1)
