"""The settings of a run: seven sections, read from defaults, a recipe, a TOML file and options, and written back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any, cast

from steelyard._schema import Setting, choices, describe, fields_of
from steelyard.config import recipes, toml
from steelyard.config.layers import SettingsLayer, layered, plain, planted
from steelyard.config.sections import DataSettings, EvaluateSettings, ObjectiveSettings
from steelyard.models.settings import ModelSettings
from steelyard.objective.parts import KINDS, Part, Slot, arguments, has_link
from steelyard.training.settings import OptimizerSettings, ScheduleSettings, TrainSettings

__all__ = ["Config", "DataSettings", "EvaluateSettings", "ObjectiveSettings", "Part", "dump_config", "load_config"]

_PATHS = "Relative paths are relative to the folder in which the command is typed, not to this file."


@dataclass(frozen=True)
class Config:
    """All settings of a run."""

    data: DataSettings = field(default_factory=DataSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    objective: ObjectiveSettings = field(default_factory=ObjectiveSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)
    train: TrainSettings = field(default_factory=TrainSettings)
    evaluate: EvaluateSettings = field(default_factory=EvaluateSettings)

    def __post_init__(self) -> None:
        if self.evaluate.calibration == "link" and not has_link(self.objective.loss, self.objective.unknown):
            raise ValueError(f"evaluate.calibration is 'link', but {self._without_link()} has none: choose temperature")

    def _without_link(self) -> str:
        loss, rule = self.objective.loss, self.objective.unknown
        return f"objective.unknown {rule.kind!r}" if has_link(loss) else f"objective.loss {loss.kind!r}"

    def with_overrides(self, changes: Mapping[str, Any]) -> Config:
        """Return the settings with `changes`, a nested dict such as {"train": {"epochs": 3}, "objective": {...}}."""
        return layered(Config, self.as_dict(), [("", changes)])

    def as_dict(self) -> dict[str, Any]:
        """Return all settings as a nested dict, in the shape of the TOML file."""
        return plain(self)


def load_config(
    file: str | Path | None = None,
    recipe: str | None = None,
    sets: Sequence[str] = (),
    overrides: Mapping[str, Any] | None = None,
) -> Config:
    """Return the settings of a run: defaults, changed by the recipe, then the file, then options, then `sets`.

    A part whose kind is changed starts from the defaults of the new kind. Relative paths, also those in the file, are
    relative to the current folder.

    Args:
        file: a TOML file with the sections of `Config`.
        recipe: a name in `config.recipes`, or several of methods joined by "+"; "auto" and None change nothing
            ("auto" is resolved once the labels are known: see `resolve_auto`).
        sets: texts "section.key=value"; values are TOML, and bare words strings.
        overrides: a nested dict; None means not given.
    """
    layers: list[SettingsLayer] = []
    if recipe in recipes.SETUPS:
        layers.append(("", recipes.AS_PAPERS))
    if recipe is not None and recipe != "auto":
        layers.append((f"recipe {recipe}", recipes.settings(recipe)))
    if file is not None:
        if not Path(file).exists():
            meant = f"did you mean --recipe {file}?" if str(file) in recipes.RECIPES else "give a TOML file"
            raise ValueError(f"{file} does not exist: {meant}")
        layers.append((str(file), toml.read(file)))
    layers += [("", overrides or {}), ("--set", planted(sets))]
    return layered(Config, {}, layers)


def dump_config(config: Config) -> str:
    """Return the settings as TOML, every one of them with a comment; `load_config` of it gives an equal `Config`."""
    lines = [f"# {_PATHS}"]
    for table, rows in _tables(config):
        lines += ["", f"[{table}]"]
        for key, value, comment in rows:
            lines += [f"# {line}" for line in wrap(comment, 116, break_long_words=False, break_on_hyphens=False)]
            lines.append(f"{key} = {toml.write_value(value)}")
    return "\n".join(lines) + "\n"


def _tables(settings: Any, table: str = "") -> Iterator[tuple[str, list[tuple[str, Any, str]]]]:
    """Yield the dotted name and the rows (key, value, comment) of every table of the TOML file."""
    known = fields_of(settings.__class__)
    values = {key: getattr(settings, key) for key in known}
    rows = [(key, value, _comment(known[key])) for key, value in values.items() if not is_dataclass(value)]
    if rows:
        yield table, rows
    for key, value in values.items():
        name = f"{table}.{key}" if table else key
        if isinstance(value, Part):
            slot = cast(Slot, key)
            takes = arguments(slot, value.kind)
            kind = ("kind", value.kind, f"{known[key].doc} One of {', '.join(KINDS[slot])}.")
            yield name, [kind, *((key, given, _comment(takes[key])) for key, given in value.arguments.items())]
        elif is_dataclass(value):
            yield from _tables(value, name)


def _comment(setting: Setting) -> str:
    """Return the description of a setting and its choices."""
    words = [word or '""' for word in choices(setting.type)]
    if words:
        return f"{setting.doc} One of {', '.join(words)}.".strip()
    what = describe(setting.type)
    if not setting.doc:
        return f"{what[0].upper()}{what[1:]}."
    return f"{setting.doc} [] for none." if "[]" in what else setting.doc
