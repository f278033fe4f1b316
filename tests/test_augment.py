"""Images turned, scaled, sheared, bent and laid over one another, against scipy and by what must hold."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.ndimage import map_coordinates
from torch import Tensor

from steelyard.balance import PartialLabelMasking
from steelyard.losses import BCE, LDAM
from steelyard.objective import Objective
from steelyard.objective.role import Role
from steelyard.training.augment import OVERLAY, augment, check_overlay, n_draws, overlaid, uniforms, union, varied
from steelyard.training.batches import TrainingBatch
from steelyard.training.settings import AugmentSettings

WARPS = AugmentSettings(rotate=30, scale=0.4, shear=0.3, elastic=2)


def smooth(n: int, height: int, width: int) -> Tensor:
    """Float images without sharp edges, so that places between pixels are well defined."""
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(0.4 * x + 0.3 * i) + np.cos(0.5 * y - 0.2 * i * x / width) for i in range(n)]
    return torch.tensor(np.stack(waves)[:, None] + 3.0, dtype=torch.float32)


@pytest.mark.parametrize(("height", "width"), [(20, 20), (16, 28)])
def test_a_warp_reads_where_its_matrix_says(height: int, width: int) -> None:
    """M = R(θ) [[1, k], [0, 1]] diag(1/s_x, 1/s_y) up to order, written again in pixels, and scipy reads there."""
    settings = replace(WARPS, elastic=0.0)
    images = smooth(12, height, width)
    u = uniforms(settings, 3, 2, torch.arange(12))
    out = varied(images, settings, u).numpy()
    y, x = np.mgrid[:height, :width].astype(float)
    dx, dy = x - (width - 1) / 2, y - (height - 1) / 2
    for i in range(12):
        a = 2 * u[i].double().numpy() - 1
        theta, slant = math.radians(30) * a[7], 0.3 * a[10]
        sx, sy = (math.exp(-math.log(1.4) * (a[8] + way * 0.25 * a[9])) for way in (1, -1))
        turn = np.array([[math.cos(theta), -math.sin(theta)], [math.sin(theta), math.cos(theta)]])
        matrix = turn @ np.diag([sx, sy]) @ np.array([[1, slant], [0, 1]])
        at_x, at_y = np.tensordot(matrix, np.stack([dx, dy]), 1)
        places = [at_y + (height - 1) / 2, at_x + (width - 1) / 2]
        expected = map_coordinates(np.pad(images[i, 0].numpy(), 1), [p + 1 for p in places], order=1)
        inside = (places[0] > 0) & (places[0] < height - 1) & (places[1] > 0) & (places[1] < width - 1)
        assert inside.mean() > 0.3
        np.testing.assert_allclose(out[i, 0][inside], expected[inside], atol=2e-4)
        outside = (places[0] < -1) | (places[0] > height) | (places[1] < -1) | (places[1] > width)
        assert (out[i, 0][outside] == 0).all()


def test_a_quarter_turn_is_exact() -> None:
    images = torch.randint(0, 256, (4, 3, 9, 9), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    settings = AugmentSettings(rotate=90)
    for u, times in ((1.0, 1), (0.0, -1), (0.5, 0)):
        drawn = torch.full((4, n_draws(settings)), u)
        drawn[:, 13] = 0  # warped at all
        out = varied(images, settings, drawn)
        assert torch.equal(out, images.rot90(times, (2, 3)))


def test_an_elastic_warp_bends_smoothly_and_no_farther_than_it_may() -> None:
    """Read from images whose channels are x and y: the displacement itself."""
    size, most = 32, 2.5
    settings = AugmentSettings(elastic=most)
    ramp = torch.arange(size, dtype=torch.float32)
    images = torch.stack([ramp.expand(size, size), ramp[:, None].expand(size, size)]).expand(300, 2, size, size)
    u = uniforms(settings, 1, 1, torch.arange(300))
    inner = slice(5, -5)  # nothing is read from beyond the border there
    moved = (varied(images, settings, u) - images)[:, :, inner, inner]
    assert float(moved.abs().max()) <= 1.6 * most  # cubic surfaces overshoot their knots a little
    assert float(moved.abs().max()) > most / 2
    assert float(moved.std()) > most / 4
    assert float(moved.mean().abs()) < 0.1
    assert float(moved.diff(dim=-1).abs().max()) < 1  # no fold
    left, right = moved[:, 0, :, 0].mean(1), moved[:, 0, :, -1].mean(1)
    assert abs(float(torch.corrcoef(torch.stack([left, right]))[0, 1])) < 0.3  # sides bend on their own
    same = torch.full((1, n_draws(settings)), 0.9)
    shifted = varied(images[:1], settings, same) - images[:1]
    assert torch.allclose(shifted[..., inner, inner], torch.tensor(0.8 * most), atol=1e-4)


def test_each_part_of_a_warp_is_off_by_default_and_does_something() -> None:
    images, draws = smooth(8, 16, 16), torch.arange(8)
    for name in ("rotate", "scale", "shear", "elastic"):
        only = AugmentSettings(**{name: getattr(WARPS, name)})
        assert not torch.equal(augment(images, only, 0, 1, draws), images)
    grown = augment(torch.ones(400, 1, 32, 32), AugmentSettings(scale=0.5), 0, 1, torch.arange(400)).mean((1, 2, 3))
    assert 0.35 < float((grown < 0.98).double().mean()) < 0.65  # as often smaller as larger
    assert n_draws(WARPS) == n_draws(AugmentSettings()) + 32


def test_a_share_of_the_images_is_left_alone() -> None:
    images = torch.randint(0, 256, (500, 1, 12, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    some = replace(WARPS, warp=0.3)
    out, all_of_them = (augment(images, wanted, 4, 1, torch.arange(500)) for wanted in (some, WARPS))
    left = (out == images).flatten(1).all(1)
    assert float(left.double().mean()) == pytest.approx(0.7, abs=5 * math.sqrt(0.21 / 500))
    assert torch.equal(out[~left], all_of_them[~left])  # the others are warped as they would be


# laid over


def batch(n: int, seed: int = 0) -> TrainingBatch:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (n, 1, 6, 6), dtype=torch.uint8, generator=generator)
    targets = torch.randint(-1, 2, (n, 5), generator=generator).to(torch.int8)
    return TrainingBatch(images, targets, torch.arange(n))


def test_labels_of_two_items_together() -> None:
    cases = {(1, -1): 1, (1, 0): 1, (1, 1): 1, (0, 0): 0, (0, -1): -1, (-1, -1): -1}
    for (a, b), expected in cases.items():
        for one, other in ((a, b), (b, a)):
            got = union(torch.tensor([[one]], dtype=torch.int8), torch.tensor([[other]], dtype=torch.int8))
            assert got.tolist() == [[expected]]
            assert got.dtype == torch.int8
    soft = union(torch.tensor([[0.2, 0.7, -1.0, 1.0]]), torch.tensor([[0.6, 0.0, 0.7, -1.0]]))
    assert torch.equal(soft, torch.tensor([[0.6, 0.7, -1.0, 1.0]]))


def test_what_is_laid_over_what() -> None:
    """Found again by trying every other image: a picture is the larger of itself and just one other."""
    n = 40
    given = batch(n)
    u = uniforms(AugmentSettings(overlay=0.6), 5, 2, torch.arange(n))[:, OVERLAY]
    out = overlaid(given, 0.6, u)
    partners = []
    for i in range(n):
        if u[i, 0] >= 0.6:
            assert torch.equal(out.inputs[i], given.inputs[i])
            assert torch.equal(out.targets[i], given.targets[i])
            continue
        fitting = [j for j in range(n) if torch.equal(out.inputs[i], torch.maximum(given.inputs[i], given.inputs[j]))]
        assert len(fitting) == 1
        assert fitting != [i]
        assert torch.equal(out.targets[i], union(given.targets[i], given.targets[fitting[0]]))
        partners.append(fitting[0])
    assert len(set(partners)) > 10
    assert torch.equal(given.inputs, batch(n).inputs)
    assert torch.equal(out.index, given.index)


def test_every_other_image_is_as_likely() -> None:
    n, rounds = 5, 4000
    given = batch(n)._replace(inputs=(40 * torch.arange(n)).to(torch.uint8).view(n, 1, 1, 1))
    seen = torch.zeros(n, n)
    for k in range(rounds // n):
        u = uniforms(AugmentSettings(overlay=1.0), 1, k, torch.arange(n))[:, OVERLAY]
        other = (torch.arange(n) + 1 + (u[:, 1] * (n - 1)).long()) % n
        top = overlaid(given, 1.0, u).inputs.flatten() // 40
        assert torch.equal(top.long(), torch.maximum(torch.arange(n), other))
        seen[torch.arange(n), other] += 1
    assert (seen.diagonal() == 0).all()
    u = torch.full((n, 2), 1 - 2**-24)  # the largest that is drawn
    assert overlaid(given, 1.0, u).inputs.shape == given.inputs.shape
    alone = batch(1)
    assert overlaid(alone, 1.0, u[:1]) is overlaid(alone, 0.0, u[:1]) is alone
    rate = seen[~torch.eye(n, dtype=torch.bool)] / (rounds / n)
    assert float((rate - 0.25).abs().max()) < 5 * math.sqrt(0.1875 / (rounds / n))


def test_what_keeps_something_for_every_item_is_refused() -> None:
    masked = Objective(BCE(), masking=PartialLabelMasking(torch.tensor([3, 4]), 10))
    with pytest.raises(ValueError, match=r"train\.augment\.overlay .* objective\.masking"):
        check_overlay(0.5, masked)
    estimated = Objective(BCE(), Role(torch.tensor([[1, -1], [-1, 1]]), 1.0))
    with pytest.raises(ValueError, match=r"overlay .* objective\.unknown"):
        check_overlay(0.5, estimated)
    with pytest.raises(ValueError, match=r"objective\.loss\.softmax allows one"):
        check_overlay(0.5, Objective(LDAM(torch.tensor([3, 4]), softmax=True)))
    check_overlay(0.0, masked)
    check_overlay(0.5, Objective(BCE(), "negative"))
