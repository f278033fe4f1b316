"""The parts of an objective by kind: which constructor makes each, and which of its arguments a person may set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import torch

from steelyard import balance, losses
from steelyard._schema import Setting, arguments_of, checked, closest
from steelyard.labels.targets import ArrayLike
from steelyard.losses import Loss, NoLink, Reduction, WeightedLoss
from steelyard.losses.unknown import Changing
from steelyard.objective.expected_positives import ExpectedPositives
from steelyard.objective.role import Role

ArgumentValue: TypeAlias = bool | int | float | str | tuple[float, ...]
Slot = Literal["loss", "unknown", "masking", "weighting", "label_pair"]

SUPPLIED = frozenset(
    {"counts", "n_known", "n_items", "n_labels", "targets", "path", "store", "weighting"}
    | {"floor", "seed", "reduction", "validate", "probabilities"}
)
"""The arguments of constructors that a run supplies, from the training labels, its folder and its seed."""


@dataclass(frozen=True)
class Part:
    """One part of an objective: its kind, and the arguments that are set. In TOML a table, or the kind alone.

    Args:
        kind: such as "focal".
        arguments: of the constructor of that kind, by name; what is not there has its default.
    """

    kind: str
    arguments: Mapping[str, ArgumentValue] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "arguments", dict(self.arguments))


class Kind(NamedTuple):
    """The constructors of a kind of part."""

    maker: Callable[..., Any] | None = None
    """Its constructor; None where there is nothing to make."""
    beside: Callable[..., Any] | None = None
    """A second constructor, for its companion: the store of pseudo-labels, deferral."""
    stand_ins: Mapping[str, tuple[ArgumentValue, str]] = {}
    """Defaults of arguments that have none, and what they stand for."""


_DEFERRED = {"start": (1, "1 weighs from the beginning.")}
_ESTIMATED = {"expected_positives": (0.0, "0 takes the sum of the training labels' priors.")}

KINDS: dict[Slot, dict[str, Kind]] = {
    "loss": {
        "bce": Kind(losses.BCE),
        "focal": Kind(losses.Focal),
        "asymmetric": Kind(losses.Asymmetric),
        "negative_tolerant": Kind(losses.NegativeTolerant),
        "spa": Kind(losses.SPA),
        "hill": Kind(losses.Hill),
        "logit_adjusted": Kind(losses.LogitAdjusted),
        "ldam": Kind(losses.LDAM),
        "distribution_balanced": Kind(losses.DistributionBalanced),
        "two_way": Kind(losses.TwoWay),
    },
    "unknown": {
        "ignore": Kind(losses.Ignore),
        "negative": Kind(losses.Negative),
        "weak_negative": Kind(losses.WeakNegative),
        "wan": Kind(losses.WeakAssumedNegative),
        "pseudo": Kind(losses.Pseudo, balance.PseudoLabels),
        "annotation": Kind(losses.Annotation, balance.PseudoLabels),
        "role": Kind(Role, stand_ins=_ESTIMATED),
        "epr": Kind(ExpectedPositives, stand_ins=_ESTIMATED),
        "large_loss": Kind(losses.LargeLoss),
        "splc": Kind(losses.SPLC),
        "selective": Kind(losses.Selective),
        "entropy": Kind(losses.EntropyMaximizing),
        "entropy_apl": Kind(losses.SoftNegatives),
        "gr": Kind(losses.GeneralizedRobust),
        "teacher": Kind(losses.Teacher, balance.TeacherScores),
    },
    "masking": {"none": Kind(), "plm": Kind(balance.PartialLabelMasking)},
    "weighting": {
        "none": Kind(),
        "inverse_frequency": Kind(balance.InverseFrequency, balance.Deferred, _DEFERRED),
        "class_balanced": Kind(balance.ClassBalanced, balance.Deferred, _DEFERRED),
        "rebalanced": Kind(balance.Rebalanced, balance.Deferred, _DEFERRED),
    },
    "label_pair": {"none": Kind(), "on": Kind(balance.LabelPair)},
}
"""The kinds of each part of an objective, by name."""


@cache
def arguments(slot: Slot, kind: str) -> dict[str, Setting]:
    """Return what may be set of a kind of part: what its constructors take, less what the run supplies."""
    entry, settings = KINDS[slot][kind], {}
    for maker in (entry.maker, entry.beside):
        for name, setting in (arguments_of(maker) if maker else {}).items():
            if name in SUPPLIED:
                continue
            if name in entry.stand_ins:
                default, meaning = entry.stand_ins[name]
                setting = setting._replace(default=default, doc=f"{setting.doc} {meaning}")
            settings[name] = setting
    return settings


def check_kind(slot: Slot, kind: Any) -> str:
    """Return `kind`, or raise unless it is one of the kinds of `slot`."""
    return str(checked(f"objective.{slot}.kind", kind, Literal[tuple(KINDS[slot])]))


def check_argument(slot: Slot, kind: str, name: str, value: Any) -> ArgumentValue:
    """Return `value` as the type of the argument `name` of that kind, or raise."""
    known, key = arguments(slot, kind), f"objective.{slot}.{name if name.isprintable() else repr(name):.80}"
    if name not in known:
        if not known:
            raise ValueError(f"{key} is given, but objective.{slot} is {kind!r}, which has no arguments: leave it out")
        meant = closest(name, known)
        hint = f"did you mean {meant}?" if meant else f"it has {', '.join(known)}"
        raise ValueError(f"{key} is given, but objective.{slot} is {kind!r}, which has no such argument: {hint}")
    fitting: ArgumentValue = checked(key, value, known[name].type)
    return fitting


def completed(slot: Slot, part: Part) -> Part:
    """Return the part with all its arguments, each checked by its constructor."""
    kind = check_kind(slot, part.kind)
    given = {name: check_argument(slot, kind, name, value) for name, value in part.arguments.items()}
    whole = Part(kind, {name: given.get(name, setting.default) for name, setting in arguments(slot, kind).items()})
    _try(slot, whole)
    return whole


def call(maker: Callable[..., Any], part: Part, **supplied: Any) -> Any:
    """Call a constructor with those arguments of the part, and those of what the run supplies, that it takes."""
    chosen: dict[str, Any] = {}
    for name, setting in arguments_of(maker).items():
        if name in supplied:
            chosen[name] = supplied[name]
        elif name in part.arguments:
            value = part.arguments[name]
            chosen[name] = None if value == () and setting.default == () else value
    return maker(**chosen)


def make(slot: Slot, part: Part, **supplied: Any) -> Any:
    """Return what the constructor of a part makes, None where the part is "none"."""
    maker = KINDS[slot][check_kind(slot, part.kind)].maker
    return None if maker is None else call(maker, part, **supplied)


def make_loss(
    part: Part, counts: ArrayLike, n_known: int | ArrayLike, reduction: Reduction = "mean"
) -> Loss | WeightedLoss:
    """Return the loss of a part; a class without positives, or without negatives, counts as having one.

    Args:
        part: such as `ObjectiveSettings.loss`.
        counts: positives n_c of each class (L,).
        n_known: known labels k_c, one number or (L,).
        reduction: for a loss that has a choice.
    """
    made: Loss | WeightedLoss = make("loss", part, counts=counts, n_known=n_known, floor=1, reduction=reduction)
    return made


_TRIAL = dict(counts=torch.ones(2), n_known=torch.full((2,), 2.0), store=None, targets=torch.zeros(0, 1 << 20))
_TRIAL |= dict(probabilities=torch.zeros(0, 2))


def _try(slot: Slot, part: Part) -> None:
    """Let the constructors check the arguments, with labels that are always valid."""
    entry = KINDS[slot][part.kind]
    if entry.maker is None:
        return
    estimated = {name: 1.0 for name in _ESTIMATED if part.arguments.get(name) == 0}
    try:
        made = call(entry.maker, part, **_TRIAL, **estimated)
        if entry.beside is balance.Deferred:
            call(balance.Deferred, part, weighting=made)
    except ValueError as error:
        name = str(error).split(" ", 1)[0]
        joint = "." if name in part.arguments else ": "
        raise ValueError(f"objective.{slot}{joint}{error}") from None


def default_kind(slot: Slot) -> str:
    """Return the default kind of a part: the first."""
    return next(iter(KINDS[slot]))


def has_link(loss: Part, unknown: Part | None = None) -> bool:
    """Return whether a loss, under a rule for unknown labels, gives each label its own probability."""
    if unknown is not None and issubclass(cast(type, KINDS["unknown"][unknown.kind].maker), Changing):
        return False
    if loss.kind == "hill":
        try:
            make("loss", loss).check_link()
        except NoLink:
            return False
    return not (loss.kind == "two_way" or (loss.kind == "ldam" and loss.arguments.get("softmax", False)))


_SOFT = ("pseudo", "annotation", "role", "large_loss", "splc", "entropy", "entropy_apl", "gr", "teacher")
"""The rules that may make an unknown label positive, in whole or in part."""


def conflict(parts: Mapping[Slot, Part]) -> str | None:
    """Return why these parts cannot work together, whatever the labels, None where they can."""
    loss, unknown, masking, pairs = (parts[slot] for slot in ("loss", "unknown", "masking", "label_pair"))
    name = f"objective.loss is {loss.kind!r}" + (" with softmax" if loss.kind == "ldam" else "")
    if has_link(loss):
        return None
    if pairs.kind == "on" and pairs.arguments["link"]:
        return f"{name}, which has no log-odds for objective.label_pair: set objective.label_pair.link to false"
    if loss.kind == "ldam" and masking.kind != "none":
        return f"{name}, which needs every item's one positive: set objective.masking to none, not {masking.kind!r}"
    if loss.kind == "ldam" and unknown.kind in _SOFT:
        return f"{name}, which takes no soft labels: set objective.unknown to ignore or negative, not {unknown.kind!r}"
    if loss.kind == "two_way" and unknown.kind == "annotation":
        return f"{name}, but objective.unknown 'annotation' weighs each item's sum of label terms: choose another loss"
    if unknown.arguments.get("feedback") == "link":
        return f"{name}, which has no probability to feed back: set objective.unknown.feedback to raw"
    return None
