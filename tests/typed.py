"""Commands as people type them, run in this process."""

from __future__ import annotations

import io
import sys
from typing import NamedTuple

import pytest

from steelyard.cli import main


class Said(NamedTuple):
    """What a command ended with."""

    code: int
    out: str
    err: str

    @property
    def line(self) -> str:
        """The one line on stderr of a command that failed, and nothing of a traceback."""
        assert self.code in (2, 130), self
        assert self.err.startswith("steelyard: "), self.err
        assert self.err.count("\n") == 1, self.err
        assert self.err.endswith("\n")
        return self.err.rstrip("\n")


def typed(*args: object) -> Said:
    """Run `steelyard ARGS` in this process."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "argv", ["steelyard", *map(str, args)])
        patched.setattr(sys, "stdout", out)
        patched.setattr(sys, "stderr", err)
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
    return Said(code, out.getvalue(), err.getvalue())


def done(*args: object) -> Said:
    said = typed(*args)
    assert said.code == 0, said.err
    return said
