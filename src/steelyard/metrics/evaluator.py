"""An evaluator that collects batches compactly and computes every metric of this module."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from steelyard._arrays import Array
from steelyard._files import replacing
from steelyard.balance.checks import check_choice
from steelyard.labels.ids import several
from steelyard.labels.inputs import as_whole
from steelyard.labels.targets import ArrayLike, as_tensor, refuse
from steelyard.metrics.groups import check_counts
from steelyard.metrics.inputs import probable
from steelyard.metrics.store import Store
from steelyard.metrics.summary import Summary

Dtype = Literal["float32", "float16"]
_MOST_BINS = 1_000_000
_FORMAT = "steelyard-evaluator-1"


class Evaluator:
    """Collects probabilities and targets batch by batch, in one process or many, and computes everything at the end.

    The result does not depend on how items were split into batches, nor on the order of updates and merges.

    Args:
        n_labels: L.
        names: label names for the report, (L,); "0", "1", … where not given.
        counts: positives of each label *in training*, (L,), by which labels are head, medium, tail and rarest.
        bins: of the calibration errors.
        dtype: how probabilities are kept, "float32" or "float16"; every metric is that of the kept values. A million
            items × 600 labels take 3.0 GB, or 1.8 GB as float16 (a target takes one byte, four where some are soft).

    Examples:
        >>> evaluator = sy.metrics.Evaluator(n_labels=2, names=["dog", "car"])
        >>> evaluator.update(torch.tensor([[0.9, 0.8], [0.7, 0.2]]), torch.tensor([[1, 0], [0, -1]]))
        >>> evaluator.update(torch.tensor([[0.4, 0.6]]), torch.tensor([[1, 1]]))
        >>> report = evaluator.compute()
        >>> round(report["mAP"]["label"], 3), report["unknown"], round(report["per_label"][0]["average_precision"], 3)
        (0.667, 1, 0.833)
    """

    def __init__(
        self,
        n_labels: int,
        names: Sequence[str] | None = None,
        counts: ArrayLike | None = None,
        bins: int = 15,
        dtype: Dtype = "float32",
    ) -> None:
        n_labels, bins = as_whole(n_labels, "n_labels"), as_whole(bins, "bins")
        if n_labels < 1:
            raise ValueError(f"n_labels is {n_labels}: give at least one label")
        self.names = tuple(map(str, range(n_labels) if names is None else several(names, "names")))
        if len(self.names) != n_labels:
            raise ValueError(f"names has {len(self.names)} entries, but n_labels is {n_labels}: give a name per label")
        if not 1 <= bins <= _MOST_BINS:
            raise ValueError(f"bins is {bins!r:.20}: give 1 to {_MOST_BINS:,} bins, 15 being the usual choice")
        check_choice(Dtype, dtype=dtype)
        self.n_labels = n_labels
        self.counts: Array | None = None if counts is None else check_counts(counts).copy()
        if self.counts is not None and len(self.counts) != n_labels:
            raise ValueError(f"counts has {len(self.counts)} entries, but n_labels is {n_labels}: give one per label")
        self.bins = bins
        self.dtype = dtype
        self._store = Store(n_labels, np.dtype(dtype))

    def __len__(self) -> int:
        return len(self._store)

    def __repr__(self) -> str:
        return f"Evaluator({len(self)} items x {self.n_labels} labels, {self.nbytes} bytes)"

    @property
    def nbytes(self) -> int:
        """Bytes that the kept probabilities and targets take."""
        return self._store.nbytes

    def update(self, probabilities: ArrayLike, targets: ArrayLike) -> None:
        """Add a batch: probabilities (B, L) in [0, 1] and targets (B, L), tensors on any device or numpy arrays.

        Args:
            probabilities: η (B, L), in [0, 1]; not read where a label is unknown.
            targets: (B, L), 1 present, 0 absent, −1 unknown, between them soft.
        """
        pair = probable(probabilities, targets)
        if pair.values.shape[1] != self.n_labels:
            n = pair.values.shape[1]
            raise ValueError(f"probabilities has {n} labels, but the evaluator has {self.n_labels}: make them equal")
        p, t = pair.values, pair.targets
        if pair.known is not None:
            p = torch.where(pair.known, p, 0.0)  # values at unknown labels are ignored (they may be NaN)
        kept = p.to(getattr(torch, self.dtype)).cpu().numpy()
        t = t.float() if t.dtype.is_floating_point else t.to(torch.int8)
        self._store.append(kept, t.cpu().numpy())

    def merge(self, other: Evaluator) -> Evaluator:
        """Add the items of another evaluator of the same labels, counts, bins and dtype; return self.

        Args:
            other: an evaluator made with the same arguments.
        """
        for field in ("n_labels", "names", "bins", "dtype"):
            mine, theirs = getattr(self, field), getattr(other, field)
            if mine != theirs:
                raise ValueError(f"{field} differs, {mine!r} here and {theirs!r} there: merge evaluators made alike")
        if not np.array_equal(_or_empty(self.counts), _or_empty(other.counts)):
            raise ValueError("counts differ: merge evaluators made with the same training counts")
        if other is self:
            raise ValueError("an evaluator cannot be merged into itself: that would count every item twice")
        self._store.extend(other._store)
        return self

    def compute(
        self,
        threshold: float | ArrayLike = 0.5,
        rarest: Sequence[int] | None = None,
        head: int = 100,
        tail: int = 20,
        bootstrap: int = 0,
        confidence: float = 0.95,
        seed: int = 0,
        training_items: int = 0,
    ) -> dict[str, Any]:
        """Return every metric as a nested dict of plain numbers, fit for JSON: None where a metric is undefined.

        Args:
            threshold: one number, or one per label (L,); a label is decided present where η ≥ threshold.
            rarest: the K of tail-K averages (needs counts); by default those of 5, 10 and 20 that are below L.
            head: head labels have at least this many training positives.
            tail: tail labels have fewer than this many.
            bootstrap: resamples of the items, 0 for none; adds "intervals", bias-corrected intervals of all but
                calibration errors and macro precision and recall; None where resamples do not vary. Takes two bytes per
                item and resample.
            confidence: of these intervals.
            seed: of the resamples.
            training_items: how many items `counts` are of; with it, PSP@k is reported too.
        """
        if rarest is None:
            rarest = [k for k in (5, 10, 20) if k < self.n_labels] if self.counts is not None else []
        elif self.counts is None:
            raise ValueError("rarest needs the training counts: give Evaluator(..., counts=labels.counts)")
        if bootstrap < 0:
            raise ValueError(f"bootstrap is {bootstrap}: give the number of resamples, 0 for none")
        if not 0 < confidence < 1:
            raise ValueError(f"confidence is {confidence}: give a fraction between 0 and 1, say .95")
        limit = as_tensor(threshold, "threshold").double().cpu().numpy()
        limits = torch.from_numpy(np.atleast_1d(limit))
        refuse(limits.isnan(), "threshold", limits, "give numbers to compare probabilities with")
        if limit.shape not in ((), (self.n_labels,)):
            raise ValueError(
                f"threshold has shape {limit.shape}: give one number, or one for each of {self.n_labels} labels"
            )
        summary = Summary(self._store, self.names, self.counts, self.bins, limit, rarest, head, tail, training_items)
        return summary.compute(bootstrap, confidence, seed)

    def state_dict(self) -> dict[str, Any]:
        """Return all that was collected: tensors `probabilities` and `targets`, and the settings."""
        probabilities, targets = self._store.columns()
        return {
            "probabilities": torch.from_numpy(probabilities),
            "targets": torch.from_numpy(targets),
            "names": self.names,
            "counts": None if self.counts is None else torch.from_numpy(self.counts),
            "bins": self.bins,
            "dtype": self.dtype,
        }

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> Evaluator:
        """Return the evaluator that `state_dict` described.

        Args:
            state: what `state_dict` returned.
        """
        p = state["probabilities"]
        evaluator = cls(p.shape[1], state["names"], state["counts"], state["bins"], state["dtype"])
        evaluator.update(p, state["targets"])
        return evaluator

    def save(self, path: str | Path) -> None:
        """Write everything to one safetensors file, whole or not at all.

        Args:
            path: the file to write.
        """
        state = self.state_dict()
        tensors = {k: v for k, v in state.items() if isinstance(v, Tensor)}
        settings = {k: state[k] for k in ("names", "bins", "dtype")}
        with replacing(path) as partial:
            save_file(tensors, partial, metadata={"format": _FORMAT, "settings": json.dumps(settings)})

    @classmethod
    def load(cls, path: str | Path) -> Evaluator:
        """Read an evaluator that `save` wrote.

        Args:
            path: a file that `save` wrote.
        """
        try:
            with safe_open(path, framework="pt") as file:
                about = file.metadata() or {}
                if about.get("format") != _FORMAT:
                    raise ValueError("its format is another")
                tensors = {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118
            settings = json.loads(about["settings"])
            names = settings["names"]
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                raise ValueError("its names are no list of texts")
            return cls.from_state_dict({"counts": None, **settings, **tensors})
        except (SafetensorError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            why = f"{error} is missing" if isinstance(error, KeyError) else " ".join(str(error).split())
            raise ValueError(
                f"{path} is corrupt or was not written by Evaluator.save ({why:.120}): save it again"
            ) from None


def _or_empty(counts: Array | None) -> Array:
    return np.empty(0) if counts is None else counts
