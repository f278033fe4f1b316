"""Advice on recipes: a table of conditions, of which the first row that holds is taken."""

from __future__ import annotations

import operator
from typing import Literal, NamedTuple

from steelyard.config.recipes import METHODS
from steelyard.labels import Labels

TAIL = 20
"""A label with fewer positives is of the tail."""


class Evidence(NamedTuple):
    """The numbers that the choice of a recipe rests on.

    Examples:
        >>> labels = sy.labels.Labels([[1, 0], [1, -1], [0, 1]])
        >>> evidence = sy.run.Evidence.of(labels)
        >>> evidence.positives, evidence.imbalance, round(evidence.unknown, 3)
        (3, 2.0, 0.167)
    """

    positives: int
    """Known labels that are present."""
    unknown: float
    """The share of all cells that is unknown."""
    positive_among_known: float
    """The share of known labels that are present."""
    imbalance: float
    """ρ, the most over the fewest positives among labels that have one."""
    tail: float
    """The share of labels, among those that have a positive, with fewer than 20."""

    @classmethod
    def of(cls, labels: Labels) -> Evidence:
        """Return the evidence of a table of labels."""
        positives, known = int(labels.counts.sum()), int(labels.n_known.sum())
        seen = labels.counts[labels.counts > 0]
        return cls(
            positives,
            labels.unknown_rate,
            positives / known if known else float("nan"),
            labels.imbalance,
            float((seen < TAIL).mean()) if len(seen) else float("nan"),
        )


class Condition(NamedTuple):
    """A comparison of one number of the evidence."""

    field: str
    compare: Literal["=", "<", ">", "≥"]
    value: float

    def holds(self, evidence: Evidence) -> bool:
        """Return whether the condition holds; with NaN it does not."""
        compare = {"=": operator.eq, "<": operator.lt, ">": operator.gt, "≥": operator.ge}[self.compare]
        return bool(compare(getattr(evidence, self.field), self.value))


class Rule(NamedTuple):
    """A recipe, the conditions that must all hold, and why; `why` may show numbers of the evidence."""

    recipe: str | None
    conditions: tuple[Condition, ...]
    why: str


class Advice(NamedTuple):
    """The recommended recipe, the reason, and other recipes worth trying; `advise` returns one.

    Examples:
        >>> advice = sy.run.Advice("bce", "no label is rare", (("asl", "if most labels are absent"),))
        >>> advice.recipe
        'bce'
    """

    recipe: str | None
    """None where nothing can be learned."""
    why: str
    """The reason, in one sentence without its full stop."""
    otherwise: tuple[tuple[str, str], ...]
    """(recipe, when it is the better one) of each other recipe."""


RULES = (
    Rule(None, (Condition("positives", "=", 0),), "no label is present anywhere: there is nothing to learn"),
    Rule(
        "wan",
        (Condition("unknown", ">", 0), Condition("positive_among_known", "≥", 0.5)),
        "{positive_among_known:.0%} of the known labels are positives: a loss over known labels alone would expect as "
        "many everywhere, and pseudo-labels would have nothing that pulls them down, so unknown labels must take part, "
        "as weak negatives",
    ),
    Rule(
        "wan",
        (Condition("unknown", "≥", 0.05), Condition("positive_among_known", "<", 0.04)),
        "{unknown:.0%} of the labels are unknown, and only {positive_among_known:.1%} of the known ones are positives: "
        "so nearly all unknown ones are negatives, and take part as weak ones",
    ),
    Rule(
        "db",
        (Condition("imbalance", "≥", 20), Condition("tail", "≥", 0.2)),
        "ρ is {imbalance:,.4g} and {tail:.0%} of the labels have fewer than 20 positives: re-balanced weights and "
        "negative tolerance keep such rare labels from being drowned by their negatives",
    ),
    Rule(
        "plm",
        (Condition("imbalance", "≥", 20),),
        "ρ is {imbalance:,.4g}: masking some labels of over-full classes evens out positives and negatives class by "
        "class, and is undone exactly when probabilities are read",
    ),
    Rule(
        "asl",
        (Condition("positive_among_known", "<", 0.04),),
        "only {positive_among_known:.1%} of the known labels are positives: easy negatives would dominate, and the "
        "asymmetric loss turns them down",
    ),
    Rule("bce", (), "ρ is {imbalance:,.4g} and {unknown:.1%} of the labels are unknown: no rebalancing needed"),
)
"""The first rule whose conditions all hold is the advice; the last one always holds."""

OTHERWISE = (
    ("spa-lpr", "to compare with it if you will search by several labels at once"),
    ("bce", "as the baseline that every other recipe has to beat"),
)


RECIPES = {name: recipe for name, recipe in METHODS.items() if recipe.code}
"""The recipes that may be advised, by name; all there are, and what they set, are in `steelyard.config.recipes`."""


def advise(evidence: Evidence) -> Advice:
    """Return the recipe of the first rule of `RULES` that holds.

    Args:
        evidence: of the training labels, made by `Evidence.of`.

    Examples:
        >>> labels = sy.labels.Labels([[1, 0], [1, -1], [0, 1]])
        >>> advice = sy.run.advise(sy.run.Evidence.of(labels))
        >>> advice.recipe
        'wan'
        >>> [recipe for recipe, _ in advice.otherwise]
        ['spa-lpr', 'bce']
    """
    rule = next(rule for rule in RULES if all(condition.holds(evidence) for condition in rule.conditions))
    otherwise = tuple(row for row in OTHERWISE if rule.recipe not in (None, row[0]))
    return Advice(rule.recipe, rule.why.format(**evidence._asdict()).replace("%", " %"), otherwise)


ELSEWHERE = {
    "plm": (
        "lpr",
        "ρ is {imbalance:,.4g}, and labels are read for the frequencies of another place: that does what masking would "
        "do, and better, so nothing is masked, and every present label is asked to be likelier than every absent one",
    )
}
"""Replacement of a recipe for use with a deployment prior, and the reason."""


def resolve_auto(labels: Labels, elsewhere: bool = False) -> tuple[str, str]:
    """Return the name of the recipe that "auto" selects for these training labels, and why.

    Args:
        labels: of the training items.
        elsewhere: whether probabilities are for a deployment prior.

    Examples:
        >>> labels = sy.labels.Labels([[1, 0], [0, 1]])
        >>> recipe, why = sy.run.resolve_auto(labels)
        >>> recipe
        'bce'
    """
    evidence = Evidence.of(labels)
    advice = advise(evidence)
    if advice.recipe is None:
        raise ValueError(f"{advice.why}: give other labels")
    name, why = advice.recipe, advice.why
    if elsewhere and name in ELSEWHERE:
        name, why = ELSEWHERE[name]
        why = why.format(**evidence._asdict())
    return name, why
