"""Each pair of lines on the page "Migrate" gives the same value."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

import steelyard as sy
from steelyard._compat import import_torchvision

PAGE = (Path(__file__).parent.parent / "docs" / "start" / "migrate.md").read_text(encoding="utf-8")
Z = torch.randn(40, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = (torch.rand(40, 5, generator=torch.Generator().manual_seed(1)) < 0.3).int()
UNKNOWN = torch.where(torch.rand(40, 5, generator=torch.Generator().manual_seed(2)) < 0.3, -1, Y)


def needs(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    import_torchvision()


def row(old: str, new: str) -> None:
    assert f"| `{old}` | `{new}` |" in PAGE or f"`{old}` | `{new}`" in PAGE, (old, new)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("BCEWithLogitsLoss()", "sy.losses.BCE()"),
        ('BCEWithLogitsLoss(reduction="none")', 'sy.losses.BCE(reduction="none")'),
    ],
)
def test_torch(old, new):
    row(old, new)
    theirs = eval(old, {"BCEWithLogitsLoss": torch.nn.BCEWithLogitsLoss})(Z, Y.double())
    torch.testing.assert_close(eval(new)(Z, Y), theirs)


def test_torch_smoothing_known_labels_and_weights():
    loss, y = torch.nn.BCEWithLogitsLoss(), Y.double()
    assert "| `loss(z, y * .9 + .05)` (smoothing) | `sy.losses.BCE(smoothing=.1)` |" in PAGE
    torch.testing.assert_close(sy.losses.BCE(smoothing=0.1)(Z, Y), loss(Z, y * 0.9 + 0.05))
    known = UNKNOWN >= 0
    torch.testing.assert_close(sy.losses.BCE()(Z, UNKNOWN), loss(Z[known], UNKNOWN[known].double()))
    w = torch.tensor(7.0, dtype=torch.float64)
    theirs = torch.nn.BCEWithLogitsLoss(pos_weight=w)(Z, y)
    torch.testing.assert_close(sy.losses.BCE()(Z, Y, weight=torch.where(Y == 1, w, 1.0)), theirs)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("AsymmetricLossMultiLabel()", 'sy.losses.Asymmetric(gamma_pos=1., detach_focus=False, reduction="item")'),
        (
            "AsymmetricLossMultiLabel(gamma_pos=0, disable_torch_grad_focal_loss=True)",
            'sy.losses.Asymmetric(reduction="item")',
        ),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_timm(old, new):
    needs("timm")
    from timm.loss import AsymmetricLossMultiLabel

    row(old, new)
    z, ours = Z.clone().requires_grad_(), Z.clone().requires_grad_()
    theirs = eval(old, {"AsymmetricLossMultiLabel": AsymmetricLossMultiLabel})(z, Y.double())
    value = eval(new)(ours, Y)
    theirs.backward()
    value.backward()
    torch.testing.assert_close(value, theirs, rtol=1e-4, atol=1e-4, check_dtype=False)
    torch.testing.assert_close(ours.grad, z.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_torchvision_focal():
    needs("torchvision")
    from torchvision.ops import sigmoid_focal_loss

    theirs = sigmoid_focal_loss(Z, Y.double(), alpha=-1, gamma=2, reduction="mean")
    assert '`sigmoid_focal_loss(z, y, alpha=-1, gamma=2, reduction="mean")` | `sy.losses.Focal(gamma=2.)(z, y)`' in PAGE
    torch.testing.assert_close(sy.losses.Focal(gamma=2.0)(Z, Y), theirs)
    theirs = sigmoid_focal_loss(Z, Y.double(), alpha=0.25, gamma=2, reduction="mean")
    torch.testing.assert_close(sy.losses.Focal()(Z, Y, weight=torch.where(Y == 1, 0.25, 0.75).double()), theirs)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            'MultilabelAveragePrecision(L, average="macro", ignore_index=-1)',
            "sy.metrics.mean_average_precision(eta, y)",
        ),
        ("MultilabelAveragePrecision(L, average=None, ignore_index=-1)", "sy.metrics.average_precision(eta, y)"),
        (
            "MultilabelF1Score(L, threshold=.5, ignore_index=-1)",
            "sy.metrics.precision_recall_f1(eta >= .5, y).macro.f1",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_torchmetrics(old, new):
    needs("torchmetrics")
    from torchmetrics import classification

    row(old, new)
    eta = torch.sigmoid(Z.float())
    theirs = eval(old, vars(classification) | {"L": 5})(eta, UNKNOWN)
    ours = torch.as_tensor(eval(new, {"sy": sy, "eta": eta, "y": UNKNOWN}))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5, check_dtype=False)


@pytest.mark.filterwarnings("ignore")
def test_torchmetrics_of_complete_labels():
    needs("torchmetrics")
    from torchmetrics.classification import BinaryCalibrationError, MultilabelExactMatch

    eta = torch.sigmoid(Z.float())
    assert sy.metrics.exact_match(eta >= 0.5, Y) == pytest.approx(float(MultilabelExactMatch(5)(eta, Y)), abs=1e-6)
    theirs = BinaryCalibrationError(n_bins=15)(eta.flatten(), Y.flatten())
    assert sy.metrics.calibration_error(eta, Y).ece == pytest.approx(float(theirs), abs=1e-5)
