"""The probability that follows from the loss: the derived link as a calibrator, with class-aware sampling undone."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Self, final

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from steelyard.calibrate.calibrator import Calibrator, State, as_vector, given_back, read_logits
from steelyard.labels.targets import ArrayLike, refuse
from steelyard.losses.distribution_balanced import WeightedLoss
from steelyard.losses.focused import LOG_ZERO, softplus
from steelyard.losses.loss import Loss, NoLink
from steelyard.losses.pair import PairLoss
from steelyard.metrics.inputs import paired
from steelyard.objective.objective import Objective

StepFunction = Callable[..., tuple[Tensor, Tensor]]
MAX_STEPS = 200


def undo_class_aware(log_odds: ArrayLike, counts: ArrayLike) -> Any:
    """Return the log-odds (N, L) of the labels themselves, given those that training under `ClassAware` draws learned.

    An item is drawn in proportion to Σ_j y_j/n_j, which multiplies the odds of c by 1 + (1/n_c)/Σ_{j≠c} η_j/n_j. With
    labels independent given the item, the η of an item solve

    Formula:
        logit η_c = z_c − log(1 + (1/n_c)/(Σ_{j ≠ c} η_j/n_j))

    With S = Σ_j η_j/n_j and m = n_c S, each is the smaller root of η² − (m+1) η + σ(z_c) m = 0, so that one equation in
    S is left, Σ_c η_c(S)/n_c = S. Its left side is concave: Newton's method from above falls to the root, which is
    positive exactly if Σ_c σ(z_c) > 1. That holds for what sampling can teach, since a drawn item has a positive. Where
    it does not hold, η → 0 is the limit: log-odds of −100, a little less for the labels of smaller σ(z_c) n_c.

    Args:
        log_odds: log-odds (N, L) that the link of the loss gives for the sampled training.
        counts: positives n_c of each class (L,), those of the sampler's labels. A class with 0 is never visited; its
            odds are left alone.

    Examples:
        >>> log_odds = torch.logit(torch.tensor([[0.9, 0.8, 0.4]]))  # as trained on class-aware draws
        >>> torch.sigmoid(sy.calibrate.undo_class_aware(log_odds, counts=torch.tensor([500.0, 400.0, 5.0])))
        tensor([[0.8575, 0.7107, 0.0113]])
    """
    z, dtype, from_numpy = read_logits(log_odds)
    n = check_visits(counts).to(z.device)
    if len(n) != z.shape[1]:
        raise ValueError(f"counts has {len(n)} values, but log_odds has {z.shape[1]} labels: give one per label")
    visited = n > 0
    corrected = _corrected(z, torch.where(visited, n, 1.0), visited)
    return given_back(torch.where(visited, corrected, z).to(dtype), from_numpy)


def check_visits(counts: ArrayLike) -> Tensor:
    """Return class counts as float64 (L,), at least two of them positive."""
    n = as_vector(counts)
    if n.ndim != 1 or not ((n >= 0) & (n < math.inf)).all():
        raise ValueError(f"counts has shape {tuple(n.shape)}: give one finite number, at least 0, for each class")
    if int((n > 0).sum()) < 2:
        raise ValueError("counts has fewer than two positive values: with one class every drawn item has it")
    return n


def _corrected(z: Tensor, n: Tensor, visited: Tensor) -> Tensor:
    p, q = torch.where(visited, torch.sigmoid(z), 0.0), torch.sigmoid(-z)
    floor = math.exp(LOG_ZERO) / n.max()
    s = (p / n).sum(1, keepdim=True).clamp_min(floor)
    s = loop.get()(_step, s, (p, q, n, visited, floor))
    m = n * s
    root = _root(m, q)
    near = torch.log(2 * m) + logsigmoid(-z) - torch.log(root + (1 - m).clamp_min(0))
    log_others = torch.where(m < 1, near, torch.log((m - 1 + root) / 2))  # log(m − η), without cancellation
    return z - softplus(-log_others)


def _step(s: Tensor, p: Tensor, q: Tensor, n: Tensor, visited: Tensor, floor: Tensor) -> tuple[Tensor, Tensor]:
    """Return S after a step of Newton's method, and of which items it moved."""
    m = n * s
    root = _root(m, q)
    eta = 2 * p * m / (m + 1 + root)
    value = (eta / n).sum(1, keepdim=True) - s
    rise = torch.where(root > 0, eta * (1 - eta) / (m * root), 0.5)  # dη/dm
    slope = torch.where(visited, rise, 0.0).sum(1, keepdim=True) - 1
    step = torch.where(slope < 0, value / slope, s)
    following = torch.maximum(s - step, floor)
    moved = ((following - s).abs() > 1e-13 * s) & (value < 0)
    return torch.where(value < 0, torch.minimum(following, s), s), moved


def _repeated(step: StepFunction, s: Tensor, given: tuple[Tensor, ...]) -> Tensor:
    for _ in range(MAX_STEPS):
        s, moved = step(s, *given)
        if not bool(moved.any()):
            break
    return s


loop: ContextVar[Callable[[StepFunction, Tensor, tuple[Tensor, ...]], Tensor]] = ContextVar("loop", default=_repeated)
"""Repeats a step until nothing moves; export puts a loop of its graph here."""


def _root(m: Tensor, q: Tensor) -> Tensor:
    """Return √((m+1)² − 4 m p) = √((m−1)² + 4 m q)."""
    return ((m - 1).square() + 4 * m * q).sqrt()


Weight = Tensor | float | None
PROBES = (-6.0, -3.0, -1.0, 0.0, 1.0, 3.0, 6.0)
"""Logits whose log-odds are saved with a link, to recognise its loss."""


@final
class Link(Calibrator):
    """η by the derived link of a loss, with weights and sampling undone; nothing is fitted.

    Formula:
        log η/(1 − η) = log ℓ₋′(z) − log(−ℓ₊′(z)) + log w₋/w₊

    Of an `Objective`, w₊ and w₋ are its class weights at the moment η is asked for (PLM's keep-probabilities,
    weightings, the rule for unknown labels). A loss alone has none: give the weights its training applied, such as
    `steelyard.balance.expected_weights` of a `WeightedLoss`.

    Args:
        loss: a loss with a link, or an `Objective` over one; others raise NoLink.
        pos_weight, neg_weight: w₊, w₋ (numbers or (L,)) of a loss alone.
        class_aware: positives n_c of each class (L,) if items were drawn by `ClassAware`: undone by its fixed point.

    Examples:
        >>> link = sy.calibrate.Link(sy.losses.SPA())
        >>> z = torch.zeros(1, 1)
        >>> link(z), torch.sigmoid(z)
        (tensor([[0.0538]]), tensor([[0.5000]]))
        >>> masking = sy.balance.PartialLabelMasking(torch.tensor([10.0, 400.0]), n_known=1000, initial="mean")
        >>> objective = sy.Objective(sy.losses.BCE(), masking=masking)
        >>> sy.calibrate.Link(objective)(torch.zeros(1, 2))  # what the masks do to each label's odds is undone
        tensor([[0.0290, 0.6633]])
    """

    def __init__(
        self,
        loss: Loss | WeightedLoss | Objective,
        pos_weight: ArrayLike | float | None = None,
        neg_weight: ArrayLike | float | None = None,
        class_aware: ArrayLike | None = None,
    ) -> None:
        if isinstance(loss, Objective) and not (pos_weight is None and neg_weight is None):
            raise ValueError("pos_weight and neg_weight are known to an objective: give them with a loss alone")
        self._objective = loss if isinstance(loss, Objective) else None
        self.loss = pair_of(loss)
        self.loss.check_link()
        self._weights: tuple[Weight, Weight] = (_weight("pos_weight", pos_weight), _weight("neg_weight", neg_weight))
        self.class_aware = None if class_aware is None else check_visits(class_aware).cpu()
        if self._objective is None:
            width = next((len(w) for w in self._weights if isinstance(w, Tensor) and w.ndim), self.loss.n_labels or 1)
            self.loss.log_odds(_on_device_of(self.loss, torch.zeros(1, width)), *self._weights)  # refuses bad ones now

    def fit(self, logits: ArrayLike, targets: ArrayLike, level: ArrayLike | None = None) -> Self:
        """Return self: there is nothing to fit; shapes are checked."""
        paired(logits, targets, "logits")
        return self

    def class_weights(self) -> tuple[Weight, Weight]:
        """Return (w₊, w₋) as they are undone now."""
        return self._weights if self._objective is None else self._objective.class_weights()

    def state(self) -> State:
        """Return the class weights and the link at a few logits, as plain JSON; the loss itself is not in it."""
        w_pos, w_neg = (w.tolist() if isinstance(w, Tensor) else w for w in self.class_weights())
        return {
            "loss": type(self.loss).__name__,
            "probes": probe(self.loss).tolist(),
            "pos_weight": w_pos,
            "neg_weight": w_neg,
            "class_aware": None if self.class_aware is None else self.class_aware.tolist(),
        }

    def _log_odds(self, z: Tensor) -> Tensor:
        out = self.loss.log_odds(z, *self.class_weights())
        if self.class_aware is None:
            return out
        undone: Tensor = undo_class_aware(out, self.class_aware)
        return undone

    def _eta(self, z: Tensor) -> Tensor:
        return torch.sigmoid(self._log_odds(z))


def pair_of(loss: Loss | WeightedLoss | Objective) -> PairLoss:
    """Return the pair inside a loss or objective, or raise NoLink."""
    inner = loss.loss if isinstance(loss, Objective | WeightedLoss) else loss
    if isinstance(inner, PairLoss):
        return inner
    if isinstance(inner, Loss):
        raise NoLink(f"{type(inner).__name__} has no probability per label: fit Temperature, Platt or Isotonic instead")
    raise ValueError(f"loss is {type(loss).__name__}: give one of steelyard.losses, or an Objective")


def probe(loss: PairLoss) -> Tensor:
    """Return the link, (7, L) or (7, 1), at a few logits."""
    z = torch.tensor(PROBES, dtype=torch.float64)[:, None].expand(-1, loss.n_labels or 1)
    return loss.log_odds(_on_device_of(loss, z)).detach().cpu()


def has_probes(loss: PairLoss, probes: Tensor | None) -> bool:
    """Return whether `probe` gives these values, up to rounding."""
    current = probe(loss)
    return (
        probes is not None and probes.shape == current.shape and torch.allclose(probes, current, rtol=1e-6, atol=1e-6)
    )


def trained_link(
    built: Loss | WeightedLoss,
    objective: Objective,
    counts: Tensor,
    class_aware: bool,
    drawn_odds: ArrayLike | None = None,
) -> tuple[Link | None, str]:
    """Return the link of a loss with the class weights that its training ended with; None, and why, without one.

    Args:
        built: the loss of `objective`, made again.
        objective: as training left it.
        counts: positives of each class (L,), float64.
        class_aware: whether items were drawn by `ClassAware`.
        drawn_odds: by how much the sampler raised the odds of each label, (L,); None for 1.
    """
    w_pos, w_neg = (as_vector(w).cpu().expand(len(counts)).clone() for w in objective.class_weights())
    w_pos = w_pos if drawn_odds is None else w_pos * as_vector(drawn_odds).cpu()
    try:
        if objective.resolver.no_link:
            raise NoLink(objective.resolver.no_link)
        if class_aware and int((counts > 0).sum()) < 2:
            raise NoLink("class-aware sampling of one class draws positives alone, which teach no frequency")
        return Link(built, w_pos, w_neg, counts if class_aware else None), ""
    except NoLink as error:
        return None, str(error).split(":")[0]


def same_link(objective: Objective, built: Loss | WeightedLoss) -> bool:
    """Return whether a loss is that of an objective: same type, same link at a few logits."""
    mine = built.loss if isinstance(built, WeightedLoss) else built
    if type(mine) is not type(objective.loss):
        return False
    try:
        return has_probes(pair_of(mine), probe(pair_of(objective)))
    except NoLink:
        return True


def rounded_eta(log_odds: Tensor, dtype: torch.dtype) -> Tensor:
    """Return σ of log-odds in `dtype`, rounded to the largest number below 1 rather than to 1."""
    return torch.sigmoid(log_odds).to(dtype).clamp_max(1 - torch.finfo(dtype).eps / 2)


def softmax_log_odds(z: Tensor) -> Tensor:
    """Return z_c − log Σ_{j≠c} e^{z_j}, accurate also for the largest."""
    total = z.logsumexp(1, keepdim=True)
    top, argmax = z.max(1, keepdim=True)
    rest = z.scatter(1, argmax, -torch.inf).logsumexp(1, keepdim=True)
    share = z - total
    odds = share - torch.log(-torch.expm1(share.clamp_max(-1e-300)))
    return odds.scatter(1, argmax, top - rest).clamp(LOG_ZERO, -LOG_ZERO)


def _on_device_of(loss: PairLoss, z: Tensor) -> Tensor:
    device = next((x.device for x in (*loss.parameters(), *loss.buffers())), z.device)
    return z.to(device, torch.float64)


def _weight(name: str, weight: ArrayLike | float | None) -> Weight:
    if weight is None or isinstance(weight, int | float):
        return weight
    w = as_vector(weight).cpu()
    refuse(~((w > 0) & (w < math.inf)), name, w, "a class weight is positive and finite")
    return w
