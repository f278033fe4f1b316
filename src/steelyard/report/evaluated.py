"""Outputs of a run for labelled items: everything that its plots are drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from steelyard._arrays import Array
from steelyard.metrics import CalibrationErrors, calibration_error, label_groups
from steelyard.report.headline import plural


@dataclass(frozen=True)
class Evaluated:
    """The outputs of a run for N items and L labels.

    Attributes:
        names: of the labels (L,).
        counts: their positives in training (L,).
        targets: (N, L), 1 present, 0 absent, −1 unknown.
        probabilities: η (N, L); None where the loss has none and no calibrator was fitted.
        logits: z (N, L), to show σ(z) beside η; None leaves it out. One of the two is needed.
        thresholds: one number, or one per label (L,), at or above which η means present; None for no decisions.
        head, tail: head labels have at least `head` positives in training, tail labels fewer than `tail`.
        bins: the number of bins of the reliability diagram.
        ranks: numbers that rank the items of a label (N, L), comparable with its threshold; None takes probabilities.

    Examples:
        >>> import numpy as np
        >>> import steelyard as sy
        >>> targets, eta = np.array([[1, 0], [0, -1]]), np.array([[0.8, 0.2], [0.3, 0.5]])
        >>> outputs = sy.report.Evaluated(["cat", "dog"], np.array([300, 5]), targets, eta, thresholds=0.5)
        >>> {name: labels.tolist() for name, labels in outputs.groups().items()}
        {'head': [0], 'tail': [1]}
    """

    names: Sequence[str]
    counts: Array
    targets: Array
    probabilities: Array | None
    logits: Array | None = None
    thresholds: Array | float | None = None
    head: int = 100
    tail: int = 20
    bins: int = 15
    ranks: Array | None = None

    def __post_init__(self) -> None:
        n, shape = len(self.names), np.shape(self.targets)
        if len(shape) != 2 or shape[1] != n:
            raise ValueError(f"targets has shape {shape}: give (items, labels), a column for each of the {n} names")
        for name in ("probabilities", "logits"):
            given = getattr(self, name)
            if given is not None and np.shape(given) != shape:
                raise ValueError(f"{name} has shape {np.shape(given)}, but targets has {shape}: they must be equal")
        if self.probabilities is None and (self.logits is None or self.thresholds is not None):
            raise ValueError(
                "probabilities is None: give logits instead, and no thresholds, which are for probabilities"
            )
        for name, shapes in (("counts", [(n,)]), ("thresholds", [(), (n,)])):
            given = getattr(self, name)
            if given is not None and np.shape(given) not in shapes:
                raise ValueError(f"{name} has shape {np.shape(given)}: give one number for each of the {n} names")

    @property
    def n_items(self) -> int:
        """Number of items N."""
        return len(self.targets)

    @property
    def scores(self) -> Array:
        """Scores that rank items, (N, L): η, or z where there is no η."""
        return np.asarray(self.logits if self.probabilities is None else self.probabilities)

    @property
    def ranking(self) -> Array:
        """Scores that rank the items of one label, (N, L): `ranks`, or `scores` where there are none."""
        return self.scores if self.ranks is None else self.ranks

    def sigmoid(self) -> Array | None:
        """Return σ(z), (N, L); None where there are no logits, or σ(z) is η."""
        if self.logits is None:
            return None
        raw = torch.sigmoid(torch.as_tensor(np.asarray(self.logits))).numpy()
        is_eta = self.probabilities is not None and np.allclose(raw, self.probabilities, rtol=0, atol=1e-6)
        return None if is_eta else raw

    def threshold(self, label: int) -> float | None:
        """Return the threshold of a label."""
        if self.thresholds is None:
            return None
        return float(np.broadcast_to(self.thresholds, (len(self.names),))[label])

    def groups(self) -> dict[str, Array]:
        """Return the labels of head, medium and tail, without empty groups."""
        groups = label_groups(self.counts, self.head, self.tail)
        return {name: members for name, members in groups.items() if len(members)}

    def ends(self) -> dict[str, Array]:
        """Return the labels at the two ends of the long tail, by a text that names them.

        Head and tail where there are both, else the more and the less frequent half, with the middle label in both.
        """
        groups = self.groups()
        if "head" in groups and "tail" in groups:
            return {f"{name}: {plural(len(groups[name]), 'label')}": groups[name] for name in ("head", "tail")}
        order = np.argsort(-np.asarray(self.counts), kind="stable")
        half = -(-len(order) // 2)
        if len(order) == 1:
            return {"the only label": order}
        return {f"the {half:,} most frequent": order[:half], f"the {half:,} rarest": order[-half:]}

    def calibration(self) -> CalibrationErrors | None:
        """Return the pooled calibration error of η; None where there is no η, or no item."""
        return self._error(self.probabilities)

    def raw_calibration(self) -> CalibrationErrors | None:
        """Return the pooled calibration error of σ(z); None without logits or items, or where σ(z) is η."""
        return self._error(self.sigmoid())

    def _error(self, probabilities: Array | None) -> CalibrationErrors | None:
        if probabilities is None or not self.n_items:
            return None
        return calibration_error(np.asarray(probabilities), np.asarray(self.targets), self.bins)
