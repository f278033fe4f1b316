"""Settings of an objective and a sampler as the Python that makes them, given `sy` and the training `labels`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from steelyard._schema import arguments_of
from steelyard.balance import ClassAware, Deferred, PseudoLabels, Undersample
from steelyard.config.build import ASSUMING
from steelyard.config.sections import ObjectiveSettings
from steelyard.objective.parts import KINDS, Part, Slot, Value, arguments
from steelyard.training.settings import SamplerSettings

_ESTIMATE = "labels.prior[labels.n_known > 0].sum()"


def python(objective: ObjectiveSettings, sampler: SamplerSettings) -> str:
    """Return lines of Python, the last of them an `Objective`."""
    known = "labels.n_items" if objective.unknown.kind in ASSUMING else "labels.n_known"
    said = {"counts": "labels.counts", "n_known": known, "floor": "1"}
    before: list[str] = []
    if sampler.kind == "class_aware":
        visits = {"visits": repr(sampler.visits)} if sampler.visits else {}
        before.append(f"sampler = {_call(ClassAware, {'labels': 'labels', **visits})}")
    if sampler.kind == "undersample":
        before.append(f"sampler = {_call(Undersample, {'labels': 'labels', 'per_class': repr(sampler.per_class)})}")
    if KINDS["unknown"][objective.unknown.kind].beside is PseudoLabels:
        sizes = {"path": '"pseudo-labels"', "n_items": "labels.n_items", "n_labels": "labels.n_labels"}
        before.append(f"store = {_call(PseudoLabels, sizes | _changed('unknown', objective.unknown, PseudoLabels))}")
        said["store"] = "store"
    if objective.unknown.kind == "annotation" or objective.reduction == "item":
        said["reduction"] = '"item"'
    parts = [_made("loss", objective.loss, said)]
    parts += [f"unknown={_rule(objective.unknown, said)}"] if objective.unknown.kind != "ignore" else []
    parts += [f"masking={_made('masking', objective.masking, said)}"] if objective.masking.kind != "none" else []
    parts += [f"weighting={_weighting(objective.weighting, said)}"] if objective.weighting.kind != "none" else []
    if objective.label_pair.kind != "none":
        parts.append(f"regularizers=[{_made('label_pair', objective.label_pair, said)}]")
    return "\n".join([*before, f"sy.Objective({', '.join(parts)})"])


def _rule(part: Part, said: dict[str, str]) -> str:
    if not arguments("unknown", part.kind):
        return f'"{part.kind}"'
    return _made("unknown", part, said | {"targets": "labels.values", "expected_positives": _ESTIMATE})


def _weighting(part: Part, said: dict[str, str]) -> str:
    made = _made("weighting", part, said)
    start = part.arguments["start"]
    return made if start == 1 else _call(Deferred, {"weighting": made, "start": repr(start)})


def _made(slot: Slot, part: Part, said: dict[str, str]) -> str:
    maker = KINDS[slot][part.kind].maker
    assert maker is not None
    taken = {name: text for name, text in said.items() if name in arguments_of(maker)}
    return _call(maker, taken | _changed(slot, part, maker))


def _changed(slot: Slot, part: Part, maker: Callable[..., Any]) -> dict[str, str]:
    """The arguments of a part that its maker takes and that are not at their defaults."""
    known = arguments(slot, part.kind)
    own = [name for name in arguments_of(maker) if name in known]
    return {name: _literal(part.arguments[name]) for name in own if part.arguments[name] != known[name].default}


def _literal(value: Value) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _call(maker: Callable[..., Any], given: dict[str, str]) -> str:
    """A call with leading arguments by position, then the others by name, in the order of the signature."""
    texts, by_name = [], False
    for name, setting in arguments_of(maker).items():
        required = not isinstance(setting.default, str | int | float | bool | tuple)
        by_name = by_name or name not in given or not (required or name == "store")
        if name in given:
            texts.append(f"{name}={given[name]}" if by_name else given[name])
    return f"sy.{maker.__module__.split('.')[1]}.{maker.__name__}({', '.join(texts)})"
