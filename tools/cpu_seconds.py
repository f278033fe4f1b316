"""Seconds of processor time by test and file, those of processes that a test waited for included.

    make test-times [TOP=40]

Wall-clock durations say little on a machine that others use; half the sum is what two idle cores need at least.
"""

from __future__ import annotations

import os
import resource
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest


def _cpu() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Measure fixtures, too."""
    return (yield from _measured(item, "setup"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Measure the test."""
    return (yield from _measured(item, "call"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Measure what is closed after it."""
    return (yield from _measured(item, "teardown"))


def _measured(item: pytest.Item, phase: str) -> Any:
    before = _cpu()
    try:
        return (yield)
    finally:
        item.__dict__.setdefault("cpu_seconds", {})[phase] = _cpu() - before


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """Send the seconds along: reports of workers reach the process that prints."""
    report = yield
    report.cpu_seconds = item.__dict__.get("cpu_seconds", {}).get(report.when, 0.0)
    return report


_TESTS: Counter[str] = Counter()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up the phases of a test."""
    _TESTS[report.nodeid] += getattr(report, "cpu_seconds", 0.0)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the sum, and the files and tests that take most."""
    top = int(os.environ.get("TOP", "40"))
    files: Counter[str] = Counter()
    for name, seconds in _TESTS.items():
        files[name.partition("::")[0]] += seconds
    terminalreporter.section(f"{sum(_TESTS.values()):.0f} s of processor time in {len(_TESTS):,} tests")
    for counted in (files, _TESTS):
        for name, seconds in counted.most_common(top):
            terminalreporter.write_line(f"{seconds:8.1f} s  {name[:140]}")
        terminalreporter.write_line("")
