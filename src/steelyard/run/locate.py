"""Paths of a run's files: kept absolute, and adjusted if a run was moved together with its data."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from steelyard._cache import OFF
from steelyard.config.settings import Config, load_config
from steelyard.folder.run_folder import RunFolder
from steelyard.run.datasets import Datasets
from steelyard.run.deployment import ESTIMATE

_FILES = (
    *(("data", "path"), ("data", "images"), ("data", "names"), ("data", "cache"), ("data", "validation")),
    *(
        ("data", "test"),
        ("data", "corrections"),
        ("data", "embeddings"),
        ("evaluate", "deploy_prior"),
        ("model", "weights"),
    ),
)
"""Settings that name files; data.validation and data.test may name splits instead."""


def with_absolute_paths(config: Config, datasets: Datasets) -> Config:
    """Return the settings with absolute paths, so that commands on the run work in any folder."""
    changes: dict[str, dict[str, str]] = {"data": dict(datasets.files)}
    for section, key in (("data", "cache"), ("evaluate", "deploy_prior"), ("model", "weights")):
        value = getattr(getattr(config, section), key)
        if value and value not in (ESTIMATE, OFF):
            changes.setdefault(section, {})[key] = str(Path(value).absolute())
    return config.with_overrides(changes)


def run_config(run: str | os.PathLike[str]) -> Config:
    """Return the settings of a run; paths are adjusted where the run was moved together with its files.

    Corrections are read from the copy in the run folder.
    """
    folder = RunFolder(run)
    folder.read_config()  # to check that it is complete
    config = load_config(folder / "config.toml")
    if (answers := folder.corrections) is not None:
        config = config.with_overrides({"data": {"corrections": str(answers.absolute())}})
    if (was := folder.first_place) is None:
        return config
    changes: dict[str, dict[str, str]] = {}
    for section, key, value in _absolute(config):
        moved = Path(os.path.normpath(folder.path.absolute() / os.path.relpath(value, was)))
        if not Path(value).exists() and moved.exists():
            changes.setdefault(section, {})[key] = str(moved)
    return config.with_overrides(changes)


def _absolute(config: Config) -> Iterator[tuple[str, str, str]]:
    """Yield section, key and value of the settings that are absolute paths."""
    for section, key in _FILES:
        value = getattr(getattr(config, section), key)
        if isinstance(value, str) and Path(value).is_absolute():
            yield section, key, value
