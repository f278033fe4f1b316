"""Random variations of images, on their own device: a pure function of (seed, epoch, draw)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from steelyard.balance.philox import uniform
from steelyard.labels.targets import UNKNOWN
from steelyard.losses.ldam import SoftmaxLDAM
from steelyard.objective import Objective
from steelyard.training.batches import TrainingBatch
from steelyard.training.settings import AugmentSettings

STREAM = 0x4147  # keeps these draws apart from those of masks and picked labels under one seed
OVERLAY = slice(11, 13)
"""Indices of the random numbers that decide whether an image is overlaid, and by which one."""
_KNOTS = 4  # of an elastic warp, a side
_N_PLAIN = 14


def augment(images: Any, settings: AugmentSettings, seed: int, epoch: int, draws: Tensor) -> Any:
    """Return images (B, C, H, W), uint8 or float32, varied as [train.augment] says.

    `draws` (B,) are the positions in the epoch's plan: an item that is drawn twice is varied twice.
    """
    if settings == AugmentSettings():
        return images
    check_images(images)
    return varied(images, settings, uniforms(settings, seed, epoch, draws))


def check_images(inputs: Any) -> None:
    """Raise unless inputs are images (B, C, H, W), which can be varied."""
    if not isinstance(inputs, Tensor) or inputs.ndim != 4:
        what = f"have shape {tuple(inputs.shape)}" if isinstance(inputs, Tensor) else "come in pairs"
        raise ValueError(f"train.augment is for images, but inputs {what}: leave it out")


def n_draws(settings: AugmentSettings) -> int:
    """Return how many random numbers an image takes: 14, and where it is bent two a knot more."""
    return _N_PLAIN + (2 * _KNOTS**2 if settings.elastic > 0 else 0)


def uniforms(settings: AugmentSettings, seed: int, epoch: int, draws: Tensor) -> Tensor:
    """Return the random numbers (B, R) that vary the images at positions `draws` (B,) of the epoch's plan."""
    return uniform(seed ^ (STREAM << 32), epoch, draws, n_draws(settings))


def varied(images: Tensor, settings: AugmentSettings, u: Tensor) -> Tensor:
    """Return images varied by the random numbers `u` (B, R); overlays are made by `overlaid`."""
    if settings.rotate > 0 or settings.scale > 0 or settings.shear > 0 or settings.elastic > 0:
        images = _warped(images, settings, u)
    if settings.resized_crop > 0:
        images = _resized_crop(images, settings.resized_crop, u[:, :4])
    if settings.pad_crop > 0:
        images = _pad_crop(images, settings.pad_crop, u[:, 4:6])
    if settings.flip > 0:
        images = torch.where((u[:, 6] < settings.flip)[:, None, None, None], images.flip(-1), images)
    return images


def _pad_crop(images: Tensor, pad: int, u: Tensor) -> Tensor:
    """Shift every image by −pad … pad pixels both ways; zeros come in."""
    batch, channels, height, width = images.shape
    padded = functional.pad(images, (pad, pad, pad, pad))
    top, left = (u * (2 * pad + 1)).to(torch.int64).unbind(1)
    rows = top[:, None] + torch.arange(height, device=images.device)
    columns = left[:, None] + torch.arange(width, device=images.device)
    item = torch.arange(batch, device=images.device)[:, None, None, None]
    channel = torch.arange(channels, device=images.device)[:, None, None]
    return padded[item, channel, rows[:, None, :, None], columns[:, None, None, :]]


def _resized_crop(images: Tensor, least: float, u: Tensor) -> Tensor:
    """Take a part with `least` … 1 of the area and 3/4 … 4/3 of the aspect, and scale it to the full size."""
    area = least + (1 - least) * u[:, 0]
    reach = (-area.log()).clamp(0, math.log(4 / 3))  # a part of all the area has the image's own aspect
    aspect = torch.exp((2 * u[:, 1] - 1) * reach)
    half_width, half_height = (area * aspect).sqrt().clamp_max(1), (area / aspect).sqrt().clamp_max(1)
    centre_x, centre_y = (2 * u[:, 2] - 1) * (1 - half_width), (2 * u[:, 3] - 1) * (1 - half_height)
    zero = torch.zeros_like(area)
    affine = torch.stack([half_width, zero, centre_x, zero, half_height, centre_y], dim=1).view(-1, 2, 3)
    grid = functional.affine_grid(affine, list(images.shape), align_corners=False)
    return _sampled(images, grid, "reflection")


def _warped(images: Tensor, settings: AugmentSettings, u: Tensor) -> Tensor:
    """Turn, scale, shear and bend every image about its middle; zeros come in.

    A pixel p of the new image is read at M p + d(p): M = R(θ) S / s with θ, the shear and log s (and a quarter as much
    of log aspect) even in ± what is set, d the bicubic surface through 4 × 4 knots that lie up to `elastic` pixels off.
    All are 0 for the share 1 − `warp` of the images.
    """
    height, width = images.shape[-2:]
    signed = torch.where((u[:, 13] < settings.warp)[:, None], 2 * u - 1, 0.0)
    turn, slant = signed[:, 7] * math.radians(settings.rotate), signed[:, 10] * settings.shear
    reach = math.log1p(settings.scale)
    across, down = (torch.exp(-reach * (signed[:, 8] + way * 0.25 * signed[:, 9])) for way in (1, -1))
    cos, sin, zero = torch.cos(turn), torch.sin(turn), torch.zeros_like(turn)
    aspect = height / width  # the grid's unit is half a side, of either kind
    first = [across * cos, (across * cos * slant - down * sin) * aspect, zero]
    second = [across * sin / aspect, across * sin * slant + down * cos, zero]
    affine = torch.stack(first + second, dim=1).view(-1, 2, 3)
    grid = functional.affine_grid(affine, list(images.shape), align_corners=False)
    if settings.elastic > 0:
        right, below = signed[:, _N_PLAIN:].view(-1, 2, _KNOTS, _KNOTS).unbind(1)
        knots = torch.stack([right * (2 * settings.elastic / width), below * (2 * settings.elastic / height)], dim=1)
        bent = functional.interpolate(knots, size=(height, width), mode="bicubic", align_corners=True)
        grid = grid + bent.permute(0, 2, 3, 1)
    return _sampled(images, grid, "zeros")


def _sampled(images: Tensor, grid: Tensor, padding: str) -> Tensor:
    """Read images at the places of a grid, in their own dtype."""
    out = functional.grid_sample(images.float(), grid, padding_mode=padding, align_corners=False)
    return out if images.is_floating_point() else out.round_().clamp_(0, 255).to(images.dtype)


def overlaid(batch: TrainingBatch, chance: float, u: Tensor) -> TrainingBatch:
    """Return a batch in which, by chance, an image has another of the batch laid over it.

    The picture is the larger of the two at every pixel, its labels are the union: present where either is, unknown
    where one is and the other is not present. An image that is alone stays as it is.

    Args:
        batch: images (B, C, H, W) and targets (B, L).
        chance: that it happens to an image.
        u: random numbers (B, 2): whether, and which of the B − 1 others.
    """
    n = len(batch.index)
    if chance == 0 or n == 1 or not isinstance(batch.inputs, Tensor):
        return batch
    here = torch.arange(n, device=u.device)
    other = (here + 1 + (u[:, 1] * (n - 1)).to(torch.int64).clamp_max(n - 2)) % n
    laid = u[:, 0] < chance
    images = torch.maximum(batch.inputs, batch.inputs[other])
    targets = union(batch.targets, batch.targets[other])
    return batch._replace(
        inputs=torch.where(laid[:, None, None, None], images, batch.inputs),
        targets=torch.where(laid[:, None], targets, batch.targets),
    )


def union(one: Tensor, other: Tensor) -> Tensor:
    """Return the targets of two items taken together: the larger, unknown where that may yet be exceeded."""
    larger = torch.maximum(one, other)
    open_ = (torch.minimum(one, other) == UNKNOWN) & (larger < 1)
    return torch.where(open_, UNKNOWN, larger)


def check_overlay(chance: float, objective: Objective) -> None:
    """Refuse an objective that stores values of each item, which two merged items do not have, or that takes one label
    per item.
    """
    if chance > 0 and isinstance(objective.loss, SoftmaxLDAM):
        raise ValueError(
            "train.augment.overlay gives an item the labels of two, but objective.loss.softmax allows one: turn one of "
            "them off"
        )
    resolver = objective.resolver
    keeps = resolver.stored() is not None or next(resolver.parameters(), None) is not None
    if chance > 0 and (objective.masking is not None or keeps):
        what = "objective.masking" if objective.masking is not None else "objective.unknown"
        raise ValueError(
            f"train.augment.overlay merges two items, but {what} stores values of each item: turn one of them off"
        )
