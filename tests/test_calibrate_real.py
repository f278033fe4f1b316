"""Real features: a linear head on VOC 2012, read by σ, by its link, and by calibrators fitted on a held-out part."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import steelyard.calibrate as cal
from steelyard import losses
from steelyard.data import stratified_split
from steelyard.labels import Labels
from steelyard.metrics import calibration_error, log_loss, mean_average_precision


@pytest.fixture(scope="module")
def voc(shared_data: Path) -> dict[str, np.ndarray]:
    path = shared_data / "features" / "voc2012-lite0-160.npz"
    if not path.exists():
        pytest.skip(f"no features at {path}")
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    targets = {s: np.where(arrays[f"Y_{s}"] == 1, 1, np.where(arrays[f"Y_{s}"] == 0, -1, 0)) for s in ("train", "val")}
    x = {s: arrays[f"X_{s}"].astype(np.float32) for s in ("train", "val")}
    mean, deviation = x["train"].mean(0), x["train"].std(0) + 1e-6
    rest, held = stratified_split(Labels(targets["train"]), 0.2, seed=0)
    parts = {"fit": ("train", rest), "held": ("train", held), "val": ("val", np.arange(len(x["val"])))}
    found: dict[str, np.ndarray] = {}
    for name, (split, items) in parts.items():
        found[f"X_{name}"] = (x[split][items] - mean) / deviation
        found[f"Y_{name}"] = targets[split][items]
    return found


def head(loss: losses.PairLoss, voc: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Logits of the held-out and the validation part from a linear model at the minimum of its loss."""
    model = torch.nn.Linear(1280, 20)
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)
    x, y = torch.from_numpy(voc["X_fit"]), torch.from_numpy(voc["Y_fit"])
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=60, line_search_fn="strong_wolfe")

    def value() -> torch.Tensor:
        optimizer.zero_grad()
        total = loss(model(x), y) + 1e-4 * model.weight.square().sum()
        total.backward()
        return total

    optimizer.step(value)  # type: ignore[arg-type]
    with torch.no_grad():
        held, val = (model(torch.from_numpy(voc[name])).double().numpy() for name in ("X_held", "X_val"))
    return held, val


@pytest.mark.parametrize("loss", [losses.BCE(), losses.SPA()], ids=["BCE", "SPA"])
def test_calibrators_mend_what_overfitting_leaves(loss: losses.PairLoss, voc: dict[str, np.ndarray]) -> None:
    held, val = head(loss, voc)
    link = cal.Link(loss)
    read = {"σ": torch.sigmoid(torch.from_numpy(val)).numpy(), "link": link(val)}
    for kind in (cal.Temperature, cal.Platt, cal.Isotonic):
        fitted = kind().fit(link.log_odds(held), voc["Y_held"])
        read[kind.__name__] = fitted(link.log_odds(val))
    read["Platt on z"] = cal.Platt().fit(held, voc["Y_held"])(val)
    ace = {name: 100 * calibration_error(p, voc["Y_val"]).ace for name, p in read.items()}
    cost = {name: log_loss(p, voc["Y_val"]) for name, p in read.items()}
    score = {name: 100 * mean_average_precision(p, voc["Y_val"]) for name, p in read.items()}
    for name in read:
        print(
            f"{type(loss).__name__:4} {name:12} mAP {score[name]:5.1f}  ACE {ace[name]:5.2f}  log-loss {cost[name]:.4f}"
        )
    if type(loss) is losses.SPA:
        assert ace["link"] < 0.75 * ace["σ"]
    for name in ("Platt", "Isotonic", "Platt on z"):
        assert ace[name] < 0.4 * ace["link"]
        assert cost[name] < 0.9 * cost["link"]
    assert ace["Temperature"] < ace["link"]
    assert cost["Temperature"] < cost["link"]
    assert score["Platt"] == pytest.approx(score["link"], abs=1e-3)
    assert score["Isotonic"] > score["link"] - 2
