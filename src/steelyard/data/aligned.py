"""Labels brought into the order of other labels, so that a model of the one can be tested on the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from steelyard.data.files import check_choice, listed
from steelyard.labels import Labels
from steelyard.labels.ids import several
from steelyard.labels.targets import UNKNOWN


def aligned(
    labels: Labels,
    names: Sequence[str],
    absent: Literal["unknown", "negative"] = "unknown",
    unseen: Literal["error", "drop"] = "error",
) -> Labels:
    """Return the same items with exactly the labels `names`, in that order.

    labels: the table.
    names: those of the training part.
    absent: the value of a label among `names` that `labels` does not have: "unknown", or "negative" where what is not
        mentioned is known to be absent, as in a manifest that lists the labels of each item.
    unseen: what to do about a label of `labels` that is not among `names`: "error", or "drop" it.
    """
    check_choice(absent, ("unknown", "negative"), "absent")
    check_choice(unseen, ("error", "drop"), "unseen")
    names = several(names, "names")
    wanted = set(names)
    if extra := [name for name in labels.names if name not in wanted]:
        if unseen == "error":
            what = f"the label{'' if len(extra) == 1 else 's'} {listed(extra)}"
            raise ValueError(
                f"{what} {'is' if len(extra) == 1 else 'are'} not among the {len(names)} labels of the training part: "
                "remove them, or train with items that have them"
            )
        if len(extra) == len(labels.names):
            raise ValueError(
                f"none of the labels ({listed(extra)}) is among the {len(names)} of the training part: give data that "
                "has some of them"
            )
    if labels.names == names:
        return labels
    return labels.arranged(names, UNKNOWN if absent == "unknown" else 0)
