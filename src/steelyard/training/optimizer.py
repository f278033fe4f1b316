"""Optimizers and learning rates from their settings."""

from __future__ import annotations

import bisect
import math

import torch
from torch import nn

from steelyard.training.settings import OptimizerSettings, ScheduleSettings


def make_optimizer(
    settings: OptimizerSettings, model: nn.Module, objective: nn.Module, fused: bool = False
) -> torch.optim.Optimizer:
    """Return the optimizer of [optimizer]; a group's `share` is its multiple of the learning rate.

    Backbone and head have their own rates; the objective's parameters (ROLE's estimates) theirs, and do not decay.
    A `fused` one runs in few kernels on a GPU, with its learning rates on the device.
    """
    backbone = getattr(model, "backbone", None)
    inner = {id(p) for p in backbone.parameters()} if isinstance(backbone, nn.Module) else set()
    by_kind: dict[tuple[float, bool, bool], list[nn.Parameter]] = {}
    for owner in (model, objective):
        for p in (p for p in owner.parameters() if p.requires_grad):
            kind = (settings.estimates_lr, False, True)
            if owner is model:
                kind = (settings.backbone_lr if id(p) in inner else 1.0, settings.decay_all or p.ndim > 1, False)
            by_kind.setdefault(kind, []).append(p)
    groups = []
    for (share, decays, _), parameters in by_kind.items():
        decay = settings.weight_decay if decays else 0.0
        groups.append({"params": parameters, "lr": settings.lr * share, "share": share, "weight_decay": decay})
    if not groups:
        raise ValueError("the model has nothing to train: set model.frozen to false, or choose a head")
    if settings.kind == "sgd":
        momentum, nesterov = settings.momentum, settings.nesterov
        return torch.optim.SGD(groups, lr=settings.lr, momentum=momentum, nesterov=nesterov, fused=fused or None)
    return torch.optim.AdamW(groups, lr=settings.lr, betas=settings.betas, fused=fused or None, capturable=fused)


def rate(settings: ScheduleSettings, at: float, epochs: int) -> float:
    """Return the share of the learning rate after `at` epochs (a fraction counts) of `epochs`.

    Warm-up rises linearly from `warmup_from` to the scheduled share; then "multistep" is factor^(milestones passed),
    "cosine" final + (1 − final)(1 + cos(π (at − w)/(epochs − w)))/2 with w the warm-up epochs.
    """
    warm = settings.warmup_epochs
    share = 1.0
    if settings.kind == "multistep":
        share = settings.factor ** bisect.bisect_right(settings.milestones, at)
    elif settings.kind == "cosine" and at > warm:
        done = min((at - warm) / max(epochs - warm, 1e-9), 1.0)
        share = settings.final + (1 - settings.final) * (1 + math.cos(math.pi * done)) / 2
    if at < warm:
        share *= settings.warmup_from + (1 - settings.warmup_from) * at / warm
    return share


def set_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set every group's learning rate to its share of `lr`, in place where the rate lies on a device."""
    for group in optimizer.param_groups:
        value = lr * group["share"]
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(value)
        else:
            group["lr"] = value
