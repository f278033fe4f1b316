"""Keep what a run of tests came to, for `make bars`.

    pytest -p kept --keep bench/figures/NAME.json TESTS

writes how many tests passed, failed and were skipped, what they gave to `record_property`, the date and the commit.
"""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from steelyard import _source

_COUNTS: Counter[str] = Counter()
_FIGURES: dict[str, Any] = {}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption("--keep", type=Path, help="the JSON file to write counts and figures to")


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Count a file that cannot be imported, or is skipped as a whole."""
    if not report.passed:
        _COUNTS[report.outcome] += 1


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Count a test once: as failed where its fixtures fail, too."""
    if report.failed or report.skipped or report.when == "call":
        _COUNTS[report.outcome] += 1
    if report.when == "call":
        _FIGURES.update(report.user_properties)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Write the file, once, after a run to the end: not in the workers of pytest-xdist."""
    file: Path | None = session.config.option.keep
    if file is not None and exitstatus in (0, 1) and not hasattr(session.config, "workerinput"):
        counts = {name: _COUNTS[name] for name in ("passed", "failed", "skipped")}
        source = {"date": datetime.now(UTC).date().isoformat(), "commit": _source.commit()}
        file.write_text(json.dumps({**source, **counts, **_FIGURES}, indent=1) + "\n", encoding="utf-8")
