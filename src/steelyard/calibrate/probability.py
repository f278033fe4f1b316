"""From logits to probabilities and decisions: one chain from the loss's link to the deployment prior."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from steelyard._arrays import Floats, slices
from steelyard._files import read_text, write_atomic
from steelyard.calibrate import store
from steelyard.calibrate.aim import Aim, choose_thresholds
from steelyard.calibrate.calibrator import Calibrator, as_vector, finite_where_known, given_back, read_logits
from steelyard.calibrate.crossfit import MAKERS, Folds, calibrated, cross_fitted, folds_of, mark_of, mean_eta, settle
from steelyard.calibrate.label_sets import LabelSets
from steelyard.calibrate.lines import smoothed_level
from steelyard.calibrate.link import Link, rounded_eta, same_link, softmax_log_odds, trained_link
from steelyard.calibrate.prior import scale_annotated, shift_prior
from steelyard.labels.targets import ArrayLike, refuse
from steelyard.losses import Loss, NoLink, WeightedLoss
from steelyard.losses.focused import LOG_ZERO
from steelyard.losses.ldam import SoftmaxLDAM
from steelyard.objective import Objective
from steelyard.objective.parts import Part, make_loss

LEAST = 1e-15
"""With label sets, probabilities closer to 0 or 1 than this count as this far away."""
_CELLS_AT_ONCE = 1 << 20


@final
@dataclass(frozen=True, eq=False)
class ProbabilityModel:
    """Turns the logits z of one model into η (link → fitted calibrator → deployment prior), and η into decisions.

        log-odds of the loss's link, log ℓ₋'(z) − log(−ℓ₊'(z)) + log(w₋/w₊), class-aware sampling undone
        → log η/(1−η) by Temperature, Platt or Isotonic, fitted on items that training has not seen
        → + logit π' − logit π where labels are to be read for other frequencies π', or, where items have label sets
          that are known to be of a few sizes, the same of whole sets (`LabelSets`).

    A loss without a link is calibrated on z itself; LDAM's softmax, which an equal amount added to all z of an item
    does not change, on its log-odds s z_c − log Σ_{j≠c} e^{s z_j}. Until then it has no η; `why` says so.
    """

    loss: Part
    """The loss that was trained with."""
    counts: Floats
    """Positives of each label in training, (L,)."""
    n_known: Floats
    """Known labels of each in training, (L,)."""
    built: Loss | WeightedLoss
    """The loss, made of `loss`, `counts` and `n_known`."""
    link: Link | None
    """Its link with the class weights of training, None where there is none."""
    why: str
    """The reason why there is no link; "" where there is one."""
    kind: str = "link"
    """The calibrator: "link" takes the link as it is, "none" takes σ(z), others are fitted."""
    calibrator: Calibrator | None = None
    base: str = "link"
    """The input of the calibrator, one of `crossfit.BASES`; z where there is no link."""
    fitted_prior: Floats | None = None
    """The mean η of the items that the calibrator was fitted to, (L,); see `prior`."""
    n_fitted: int = 0
    """The number of these items; 0 where nothing was fitted."""
    fitted_to: int | None = None
    """Their mark (`crossfit.mark_of`); None where nothing was fitted, or by a version that kept none."""
    to_prior: Floats | None = None
    """π', the frequency of each label in deployment; NaN where a label's odds are left alone. None shifts nothing."""
    annotated: Floats | None = None
    """The share of each label's positives that was annotated, (L,): η is divided by it. 1: not known; NaN: all were."""
    sets: LabelSets | None = None
    """The distribution of label sets where η is calibrated; None where labels are independent."""
    sets_there: LabelSets | None = None
    """Their distribution where the model is used, with frequencies `to_prior`; None if unchanged."""
    chosen_thresholds: Floats | None = None
    """Thresholds that were chosen on items, (L,); None where the aim alone says."""
    chosen_on: int | None = None
    """The mark of those items, 0 where their labels were not used; None as for `fitted_to`."""
    aim: Aim = field(default_factory=Aim)
    """The goal of the thresholds."""
    trials: Mapping[str, float] = field(default_factory=dict)
    """The log-loss, out of fold, of every kind that was tried."""

    @classmethod
    def of_objective(
        cls,
        objective: Objective,
        loss_part: Part,
        counts: ArrayLike,
        n_known: int | ArrayLike,
        class_aware: bool = False,
        drawn_odds: ArrayLike | None = None,
    ) -> ProbabilityModel:
        """Return the model that follows from training alone: the link with the class weights it ended with.

        Args:
            objective: as training left it; w₊ and w₋ are its `class_weights()`.
            loss_part: of which its loss was made, with all arguments.
            counts: positives of each label in training, (L,).
            n_known: known labels, a number or (L,); as for the objective, all items where unknown ones are negatives.
            class_aware: whether items were drawn by `ClassAware`.
            drawn_odds: by how much another sampler raised the odds of each label, (L,).
        """
        n = as_vector(counts).cpu()
        known = as_vector(n_known).cpu().expand(len(n))
        built = make_loss(loss_part, n, known)
        if not same_link(objective, built):
            raise ValueError(f"loss_part {loss_part.kind!r} does not make the objective's loss: give the part it is of")
        link, why = trained_link(built, objective, n, class_aware, drawn_odds)
        return cls(loss_part, n.numpy(), known.numpy(), built, link, why)

    @property
    def n_labels(self) -> int:
        """L."""
        return len(self.counts)

    @property
    def prior(self) -> Floats:
        """π, the frequency of each label, (L,), that η is calibrated for; NaN where nothing is known about a label.

        Training's, or of a fitted calibrator the mean η of the items it was fitted to: what the labels' own frequency
        is where they are many. A prior estimated on those items is then this one.
        """
        with np.errstate(invalid="ignore", divide="ignore"):
            prior = self.counts / self.n_known if self.fitted_prior is None else self.fitted_prior
        if self.annotated is None:
            return np.asarray(prior)
        return np.where(np.isnan(self.annotated), prior, np.minimum(prior / self.annotated, 1 - LEAST))

    @property
    def level(self) -> Floats:
        """The smoothed frequency of each label in training, (L,), that calibrators start from; NaN where not known.

        What training takes as known counts as known: where unknown labels are assumed to be absent, all items do.
        """
        smoothed = smoothed_level(torch.from_numpy(self.counts), torch.from_numpy(self.n_known)).numpy()
        return np.where(self.n_known > 0, smoothed, np.nan)

    @property
    def thresholds(self) -> Floats:
        """The least η, (L,), of a label that is decided present; infinite where none is ever."""
        return np.full(self.n_labels, self.aim.fixed) if self.chosen_thresholds is None else self.chosen_thresholds

    @property
    def has_probability(self) -> bool:
        """True if the model has probabilities."""
        return self.calibrator is not None or self.link is not None

    @property
    def how(self) -> str:
        """A description of how η is computed."""
        if not self.has_probability:
            return f"no probabilities: {self.why}"
        on = "the logits" if self.link is None else "the loss's link"
        on = {"sampled": "the loss's link, class-aware sampling not undone", "logits": "the logits"}.get(self.base, on)
        plain = {"none": "σ of the logits, nothing undone", "link": "the loss's link"}
        text = plain.get(self.kind, f"{self.kind} fitted to {on}")
        if self.annotated is not None:
            is_scaled = np.nanmin(self.annotated) < 1
            text += ", scaled up from annotated to present" if is_scaled else ", of being annotated"
        if self.to_prior is not None:
            text += ", shifted to a deployment prior" + (" of label sets" if self.sets_there is not None else "")
        return text

    # ---- logits to η

    def log_odds(self, logits: ArrayLike) -> Any:
        """Return log η/(1−η) of logits (N, L), between −100 and 100."""
        return self._by_rows(logits, lambda odds, dtype: odds.to(dtype))

    def probability(self, logits: ArrayLike) -> Any:
        """Return η of logits (N, L): σ of `log_odds`, never rounded up to 1, which no log-odds of at most 100 mean."""
        return self._by_rows(logits, rounded_eta)

    def decisions(self, probabilities: ArrayLike) -> Any:
        """Return which labels (N, L), bool, are decided present: η ≥ threshold, rounded as η is."""
        p = torch.as_tensor(probabilities)
        decided = p >= torch.from_numpy(self.thresholds).to(p.device, p.dtype)
        return given_back(decided, not isinstance(probabilities, Tensor))

    def _by_rows(self, logits: ArrayLike, last: Callable[[Tensor, torch.dtype], Tensor]) -> Any:
        if not self.has_probability:
            raise NoLink(f"{self.why}: fit a calibrator on held-out items first, as steelyard calibrate does")
        if np.ndim(logits) != 2 or logits.shape[1] != self.n_labels:
            raise ValueError(f"logits has shape {tuple(logits.shape)}: give (N, {self.n_labels}), one column per label")
        parts = []
        for rows in slices((max(1, len(logits)), self.n_labels), _CELLS_AT_ONCE):
            z, dtype, _ = read_logits(logits[rows])
            parts.append(last(self.odds_of(z.cpu()), dtype).to(z.device))
        return given_back(torch.cat(parts), not isinstance(logits, Tensor))

    def odds_of(self, z: Tensor) -> Tensor:
        """Return log η/(1−η) of logits z (N, L), float64 on the CPU: the chain itself, which export traces."""
        return self._shifted(self._calibrated(self._scores(z)))

    def _scores(self, z: Tensor) -> Tensor:
        """Return the input of calibrators, float64: the link's log-odds, or what comes closest to them."""
        if self.kind == "none":
            return z.clamp(LOG_ZERO, -LOG_ZERO)
        if self.link is not None and self.base != "logits":
            link = self.link if self.base == "link" else Link(self.built, *self.link.class_weights())
            scores: Tensor = link.log_odds(z)
            return scores
        return softmax_log_odds(self.built.s * z) if isinstance(self.built, SoftmaxLDAM) else z

    def _calibrated(self, scores: Tensor) -> Tensor:
        return scores if self.calibrator is None else calibrated(self.calibrator, scores)

    def _shifted(self, log_odds: Tensor) -> Tensor:
        if self.annotated is not None:
            log_odds = scale_annotated(log_odds, torch.from_numpy(self.annotated))
        if self.to_prior is None:
            return log_odds
        if self.sets is not None and self.sets_there is not None:
            eta: Tensor = self.sets.probability(log_odds, self.sets_there)
            return torch.logit(eta.clamp(LEAST, 1 - LEAST))
        old, new = self._priors()
        shifted: Tensor = shift_prior(log_odds, old, new)
        return shifted.clamp(LOG_ZERO, -LOG_ZERO)

    def _priors(self) -> tuple[Floats, Floats]:
        """Return π and π', equal where a label's odds are left alone."""
        assert self.to_prior is not None
        movable = self.movable & ~np.isnan(self.to_prior)
        return np.where(movable, self.prior, 0.5), np.where(movable, self.to_prior, 0.5)

    @property
    def movable(self) -> NDArray[np.bool_]:
        """The labels (L,), bool, whose odds another frequency can shift: those with π inside (0, 1)."""
        return np.asarray((self.prior > 0) & (self.prior < 1))

    # ---- what is fitted

    def fit(
        self, logits: ArrayLike, targets: ArrayLike, kind: str = "auto", folds: Any = None, refitted: bool = False
    ) -> ProbabilityModel:
        """Return the model with a calibrator fitted to items that training has not seen; thresholds start at ½.

        A label with few positives among them is brought to its frequency in training (see `level`).

        Args:
            logits: (N, L).
            targets: (N, L); unknown ones are left out.
            kind: "none", "link", "temperature", "platt", "isotonic", or "auto": the simplest of the last four whose
                log-loss in K-fold cross-fitting is within a standard error of the best (see `crossfit.settle`).
            folds: (N,), the fold of each item; by default five that share out each label.
            refitted: whether the logits come from models of folds, which one model replaces: "auto" prefers Platt then.
        """
        plain = ProbabilityModel(self.loss, self.counts, self.n_known, self.built, self.link, self.why)
        if kind not in ("auto", "none", "link", *MAKERS):
            raise ValueError(f"kind is {kind!r}: choose one of auto, none, link, {', '.join(MAKERS)}")
        if kind in ("none", "link"):
            if self.link is None:
                raise NoLink(f"calibration is {kind!r}, but {self.why}: choose temperature, platt or isotonic")
            return replace(plain, kind=kind)
        z, t, fold_of = self._checked(logits, targets, folds)
        bases = plain._bases(z)
        kind, base, trials = settle(kind, bases, self.link is not None, t, fold_of, self.level, refitted)
        if kind == "link":
            return replace(plain, trials=trials)
        calibrator = MAKERS[kind]().fit(bases[base], t, self.level)
        fitted = replace(plain, kind=kind, calibrator=calibrator, base=base, trials=trials)
        prior = mean_eta(calibrated(calibrator, bases[base]), t)
        return replace(fitted, fitted_prior=prior, n_fitted=len(t), fitted_to=mark_of(t))

    def _bases(self, z: Tensor) -> dict[str, Tensor]:
        """Return what calibrators may take: the link's log-odds and, where those are in doubt, what comes before.

        After class-aware sampling, those with the sampling left in, since undoing it rests on what a model makes of
        items without positives, which it never saw; where the link gives some η = 0, which tells items not apart, z.
        """
        bases = {"link": self._scores(z)}
        if self.link is None:
            return bases
        if self.link.class_aware is not None:
            bases["sampled"] = replace(self, base="sampled")._scores(z)
        if bool((list(bases.values())[-1] <= LOG_ZERO).any()):
            bases.pop("sampled", None)
            bases["logits"] = z
        return bases

    def out_of_fold(self, logits: ArrayLike, targets: ArrayLike, folds: ArrayLike | None = None) -> Any:
        """Return η (N, L) of the items that were fitted on, each by calibrators fitted without its fold.

        What is measured on these is measured on labels that the calibrator has not seen; its kind, where chosen by
        "auto", has. The link alone needs no such care.

        Args:
            logits, targets, folds: those given to `fit`.
        """
        if self.calibrator is None:
            return self.probability(logits)
        z, t, fold_of = self._checked(logits, targets, folds)
        _, dtype, from_numpy = read_logits(logits[:0])
        odds = cross_fitted(self.kind, self._scores(z), t, folds_of(t) if fold_of is None else fold_of, self.level)
        return given_back(rounded_eta(self._shifted(odds.clamp(LOG_ZERO, -LOG_ZERO)), dtype), from_numpy)

    def with_prior(self, to_prior: ArrayLike | None) -> ProbabilityModel:
        """Return the model for labels that come with frequency `to_prior` (L,); NaN or None: as often as calibrated.

        The odds of a label that is never, or always, present where they were learned cannot be shifted and are left
        alone (see `movable`). Thresholds that were chosen on items move with the odds, so that decisions stay as they
        are; those of "half" and "cost" hold for any η.
        """
        q = None
        if to_prior is not None:
            given = as_vector(to_prior).cpu().expand(self.n_labels).clone()
            refuse((given < 0) | (given > 1), "to_prior", given, "a frequency lies in [0, 1]")
            q = given.numpy()
        shifted = replace(self, to_prior=q, sets_there=None)
        if self.chosen_thresholds is None:
            return shifted
        plain = self._moved(self.chosen_thresholds, back=True)
        return replace(shifted, chosen_thresholds=shifted._moved(plain))

    def with_annotated(self, share: ArrayLike) -> ProbabilityModel:
        """Return the model for η of being present, not annotated, where `share` (L,) of positives were annotated."""
        c = as_vector(share).cpu().numpy()
        scaled = replace(self, annotated=c)
        if (t := self.chosen_thresholds) is None:
            return scaled
        moved = np.where(np.isnan(c) | ~np.isfinite(t), t, np.minimum(t / c, 1 - 2.0**-24))  # float32 tells it from 1
        return replace(scaled, chosen_thresholds=moved)

    def with_sets(self, there: LabelSets) -> ProbabilityModel:
        """Return the model for items whose label sets are distributed as `there`; only of one that has `sets`."""
        if self.sets is None:
            raise ValueError("probabilities were not calibrated for label sets: shift the prior of each label")
        return replace(self.with_prior(there.frequencies[0]), sets_there=there)

    def with_thresholds(
        self, aim: Aim, probabilities: ArrayLike | None = None, targets: ArrayLike | None = None
    ) -> ProbabilityModel:
        """Return the model with thresholds for `aim`; a goal that needs items and gets none has ½.

        Args:
            aim: their goal.
            probabilities: η (N, L) of items that the calibrator was not fitted on, before any shift of the prior
                (`out_of_fold` of `with_prior(None)`): where there is one, items are weighed as if labels were as
                frequent as it says.
            targets: (N, L) of the same items, or None to count on η alone.
        """
        if probabilities is None or not aim.needs_items:
            return replace(self, aim=aim, chosen_thresholds=None, chosen_on=None)
        prior = None if self.to_prior is None else np.where(self.movable, self.to_prior, np.nan)
        chosen = choose_thresholds(aim, probabilities, targets, prior)
        mark = 0 if targets is None else mark_of(torch.as_tensor(targets))
        return replace(self, aim=aim, chosen_thresholds=self._moved(chosen), chosen_on=mark)

    def with_thresholds_there(self, probabilities: ArrayLike) -> ProbabilityModel:
        """Return the model with thresholds for its aim, counted on the η (N, L) it gives items of deployment."""
        chosen = choose_thresholds(self.aim, probabilities, None) if self.aim.needs_items else None
        return replace(self, chosen_thresholds=chosen, chosen_on=None if chosen is None else 0)

    def _moved(self, thresholds: Floats, back: bool = False) -> Floats:
        """Return thresholds of η before the shift of the prior as those of η after it, or the other way `back`."""
        if self.to_prior is None:
            return thresholds
        old, new = reversed(self._priors()) if back else self._priors()
        inside = (thresholds > 0) & (thresholds < 1)  # 0 and infinity stay
        odds = torch.logit(torch.from_numpy(np.where(inside, thresholds, 0.5)))
        return np.where(inside, torch.sigmoid(shift_prior(odds[None], old, new)[0]).numpy(), thresholds)

    # ---- files

    def to_json(self) -> str:
        """Return the model as JSON text that `from_json` turns into one that gives the same η, bit for bit."""
        return store.text_of(self)

    @classmethod
    def from_json(cls, text: str, source: str = "the text") -> ProbabilityModel:
        """Return the model of a text; a damaged one is one sentence that names `source`."""
        return cls(**store.fields_of(text, source))

    def save(self, path: str | Path) -> None:
        """Write the model to `path`, whole or not at all."""
        write_atomic(path, self.to_json())

    @classmethod
    def load(cls, path: str | Path) -> ProbabilityModel:
        """Read what `save` wrote; a file that is missing or damaged is one sentence."""
        return cls.from_json(read_text(path, store.AGAIN), str(path))

    def _checked(
        self, logits: ArrayLike, targets: ArrayLike, folds: ArrayLike | None
    ) -> tuple[Tensor, Tensor, Folds | None]:
        """Return checked logits, float64, and targets, on the CPU, and folds."""
        held = finite_where_known(logits, targets)
        if held.logits.shape[1] != self.n_labels:
            raise ValueError(f"logits has {held.logits.shape[1]} labels: give the {self.n_labels} of the model")
        if folds is not None and np.shape(folds) != (len(held.targets),):
            raise ValueError(f"folds has shape {np.shape(folds)}: give the fold of each of {len(held.targets)} items")
        return held.logits.cpu().double(), held.targets.cpu(), None if folds is None else np.asarray(folds)
