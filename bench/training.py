"""Seconds of training and accuracy on MultiMNIST by the recipe of the PLM paper, captured and eager.

    python bench/training.py FOLDER [--epochs 90] [--methods bce,plm,lpr,pseudo] [--ways captured,eager] [--seed 0]

FOLDER holds MNIST/raw with the four files of MNIST. ResNet-12, batch 128, SGD .9, learning rate .1, a tenth of it from
60 and a hundredth from 80 epochs of 90 on, 5 epochs of warm-up, weight decay 5e-4. "pseudo" is the partial-annotation
rule with its store, on labels of which 40 % are hidden. The way "float32" is eager, without half precision. F1, over
all and over the three rarest classes, and exact match are on the 90,000 test pairs at threshold ½. "train" leaves out
preparing (compiling, recording), which stands beside it, checkpoints and the test.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from steelyard.balance import LabelPair, PartialLabelMasking, PseudoLabels
from steelyard.data import multi_mnist
from steelyard.data.dataset import ArrayDataset
from steelyard.labels import Labels
from steelyard.losses import BCE, Annotation
from steelyard.models import ModelSettings, build_model, input_of
from steelyard.objective import Objective
from steelyard.training.loop import train
from steelyard.training.settings import OptimizerSettings, ScheduleSettings, TrainSettings

HIDDEN = 0.4


def objective_of(method: str, labels: Labels, folder: Path) -> Objective:
    values = torch.from_numpy(labels.values)
    loss = BCE(reduction="item")  # summed over classes, as the paper writes it
    if method == "plm":
        return Objective(loss, masking=PartialLabelMasking((values == 1).sum(0), (values >= 0).sum(0)))
    if method == "lpr":
        return Objective(loss, regularizers=[LabelPair()])
    if method == "pseudo":
        store = PseudoLabels(folder / "pseudo-labels", labels.n_items, labels.n_labels)
        return Objective(loss, Annotation(store))
    return Objective(loss)


def run(method: str, way: str, data: ArrayDataset, test: ArrayDataset, epochs: int, seed: int) -> str:
    labels = data.labels
    if method == "pseudo":
        values = labels.values.copy()
        values[np.random.default_rng(0).random(values.shape) < HIDDEN] = -1
        labels = Labels(values, labels.names, labels.ids)
    data = ArrayDataset(data.inputs, labels)
    torch.manual_seed(seed)
    model = build_model(ModelSettings(backbone="resnet12"), input_of(data), labels)
    model.fit_normalisation(data)
    schedule = ScheduleSettings(
        "multistep", warmup_epochs=5 * epochs / 90, milestones=(60 * epochs / 90, 80 * epochs / 90)
    )
    settings = TrainSettings(
        epochs=epochs,
        batch_size=128,
        seed=seed,
        compile="auto" if way == "captured" else "off",
        precision="float32" if way == "float32" else "auto",
        keep="last",
        checkpoint_seconds=1e9,
    )
    with tempfile.TemporaryDirectory() as folder:
        objective = objective_of(method, labels, Path(folder))
        started = time.monotonic()
        optimizer = OptimizerSettings("sgd", lr=0.1, weight_decay=5e-4)
        outcome = train(model, objective, data, optimizer, schedule, settings, Path(folder))
        wall = time.monotonic() - started
    steps = sum(record["steps"] for record in outcome.history)
    last = np.median([record["seconds"] / record["steps"] for record in outcome.history[1:]] or [0.0])
    return (
        f"{method:8s} {way:9s} {outcome.seconds:7.2f} {outcome.prepared:9.2f} {wall:7.2f} "
        f"{1e3 * outcome.seconds / steps:8.3f} {1e3 * last:8.3f} {accuracy(model, outcome.weights, test)}"
    )


@torch.inference_mode()
def accuracy(model: torch.nn.Module, weights: dict[str, torch.Tensor], test: ArrayDataset) -> str:
    """F1 over classes and over the three rarest (the last), and exact match, in per cent."""
    device = next(model.parameters()).device
    model.load_state_dict(weights)
    model.eval()
    said = []
    for images in torch.from_numpy(test.inputs).split(2000):
        images = images[:, None] if images.ndim == 3 else images
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            said.append((model(images.to(device)) > 0).cpu())
    predicted, true = torch.cat(said), torch.from_numpy(test.labels.values) == 1
    both = (predicted & true).sum(0)
    f1 = 200 * both / (predicted.sum(0) + true.sum(0)).clamp_min(1)
    exact = 100 * (predicted == true).all(1).float().mean()
    return f"{f1.mean():6.2f} {f1[-3:].mean():6.2f} {exact:6.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description="MultiMNIST by the recipe of the PLM paper")
    parser.add_argument("folder")
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--methods", default="bce,plm,lpr,pseudo")
    parser.add_argument("--ways", default="captured,eager")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    data, test = (multi_mnist(given.folder, train=is_train) for is_train in (True, False))
    print(f"{torch.__version__}, {len(data)} images, {given.epochs} epochs")
    print("method   way         train preparing    wall  ms/step   median     F1 tail-3  exact", flush=True)
    for way in given.ways.split(","):
        for method in given.methods.split(","):
            print(run(method, way, data, test, given.epochs, given.seed), flush=True)


if __name__ == "__main__":
    main()
