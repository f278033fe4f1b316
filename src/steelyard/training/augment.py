"""Images varied at random, on the device where they lie: a pure function of (seed, epoch, draw)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from steelyard.balance.philox import uniform
from steelyard.training.settings import AugmentSettings

STREAM = 0x4147  # keeps these draws apart from those of masks and picked labels under one seed
N_DRAWS = 7


def augment(images: Any, settings: AugmentSettings, seed: int, epoch: int, draws: Tensor) -> Any:
    """Return images (B, C, H, W), uint8 or float32, varied as [train.augment] says.

    `draws` (B,) are the positions in the epoch's plan: an item that is drawn twice is varied twice.
    """
    if settings == AugmentSettings():
        return images
    if not isinstance(images, Tensor) or images.ndim != 4:
        what = f"have shape {tuple(images.shape)}" if isinstance(images, Tensor) else "come in pairs"
        raise ValueError(f"train.augment is for images, but inputs {what}: leave it out")
    return varied(images, settings, uniforms(seed, epoch, draws))


def uniforms(seed: int, epoch: int, draws: Tensor) -> Tensor:
    """Return the random numbers (B, 7) that vary the images at positions `draws` (B,) of the epoch's plan."""
    return uniform(seed ^ (STREAM << 32), epoch, draws, N_DRAWS)


def varied(images: Tensor, settings: AugmentSettings, u: Tensor) -> Tensor:
    """Return images varied by the random numbers `u` (B, 7)."""
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
    out = functional.grid_sample(images.float(), grid, padding_mode="reflection", align_corners=False)
    return out if images.is_floating_point() else out.round_().clamp_(0, 255).to(images.dtype)
