"""Mutants planted where everything is imported and every test collected: one costs its tests and little more.

A mutant of a function's body becomes the code of that function in a forked process, so that all who hold the function
have the changed one. What ran when the modules were imported keeps its results: a mutant on such a line may only be
found here, not said to survive.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FunctionType

import pytest

from mutants.mutations import Mutant, planted

Functions = dict[tuple[str, str, int], list[FunctionType]]
"""Those that live, by their file, name and line."""


class Collected:
    """Collects tests, then gives itself to `work` in place of running them."""

    def __init__(self, work: Callable[[Collected], None]) -> None:
        self.work = work
        self.items: dict[str, pytest.Item] = {}
        self.functions: Functions = {}
        self.failed = ""

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Work."""
        self.items = {item.nodeid: item for item in session.items}
        for found in gc.get_objects():
            if isinstance(found, FunctionType):
                self.functions.setdefault(_place(found.__code__), []).append(found)
        gc.collect()
        gc.freeze()
        self.work(self)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take note of a failure."""
        if report.failed:
            self.failed = report.nodeid

    def first_that_fails(self, chosen: Sequence[str]) -> str:
        """Run the tests until one fails, and return its name; it is empty where all pass."""
        items = [self.items[name] for name in chosen if name in self.items]
        for item, after in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            if self.failed:
                break
        return self.failed


def replace(mutant: Mutant, file: Path, functions: Functions) -> bool:
    """Give the functions that a mutant changes their new code; return False where this cannot be done."""
    if mutant.on_import or mutant.is_default:
        return False
    source = file.read_text()
    old, new = (list(_codes(compile(planted(source, n), str(file), "exec"))) for n in (-1, mutant.number))
    if [_place(code) for code in old] != [_place(code) for code in new]:
        return False
    n_changed = 0
    for before, after in zip(old, new, strict=True):
        if before == after:
            continue
        for function in functions.get(_place(before), ()):
            if function.__code__ == before:
                if before.co_freevars != after.co_freevars:
                    return False
                function.__code__ = after
                n_changed += 1
    return n_changed > 0


def _place(code: CodeType) -> tuple[str, str, int]:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of every function in a module's."""
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield inner
            yield from _codes(inner)
