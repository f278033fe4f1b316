"""Draw docs/img/front.svg: what the probability of a loss changes, on photographs of Pascal VOC 2012.

    PYTHONPATH=bench python docs/front.py DATA       # DATA holds features/voc2012-lite0-160.npz

A linear model on frozen EfficientNet-Lite0 features is trained with the asymmetric loss on VOC's 5,717 training items.
Its logits for the 5,823 validation items are converted to probabilities twice: by σ, and by `loss.probability`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from pictures import BY, key, plt, sheet

import steelyard as sy
from defaults import load
from steelyard.report.canvas import FRAME, STYLE, per_cent_axis, save_figure

OUT = Path(__file__).parent / "img" / "front.svg"


def logits_of(data: Path, loss: torch.nn.Module, epochs: int = 15) -> tuple[torch.Tensor, torch.Tensor]:
    """Train a linear model on the training items; return logits and targets of the validation items."""
    torch.manual_seed(0)
    x, y, test, truth = (torch.from_numpy(array) for array in load("voc", data))
    mean, scale = x.mean(0), x.std(0) + 1e-3
    model = torch.nn.Linear(x.shape[1], y.shape[1])
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.1)
    for _ in range(epochs):
        for batch in torch.randperm(len(x)).split(256):
            optimizer.zero_grad()
            loss(model((x[batch] - mean) / scale), y[batch]).backward()
            optimizer.step()
    with torch.no_grad():
        return model((test - mean) / scale), truth


def main() -> None:
    """Train, measure, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    loss = sy.losses.Asymmetric()
    z, y = logits_of(given.data, loss)
    with plt.rc_context(STYLE):
        figure, (left, right) = sheet(2, width=3.9, height=3.0)
        left.plot([0, 1], [0, 1], color=FRAME, lw=1)
        for name, eta, how, line in (
            ("sigmoid", torch.sigmoid(z), "σ", "--"),
            ("loss.probability", loss.probability(z), "link", "-"),
        ):
            error = sy.metrics.calibration_error(eta, y)
            search = sy.metrics.retrieval_map(eta, y, max_terms=3)
            terms = sorted(search.by_terms)
            scores = [100 * float(search.by_terms[k]) for k in terms]
            print(
                f"{name}: ECE {100 * error.ece:.1f} %, ACE {100 * error.ace:.1f} %, search",
                *(f"{score:.1f}" for score in scores),
            )
            style = {**BY[how], "ls": line, "lw": 1, "ms": 5}
            label = f"{name}: error {100 * error.ece:.1f} %"
            left.plot(error.bins.confidence, error.bins.frequency, label=label, **style)
            right.plot(terms, scores, label=name, **style)
        left.set(title="Predicted and true frequency", xlabel="predicted probability", ylabel="present, %")
        left.set(xlim=(0, 1.02), ylim=(0, 1.02))
        per_cent_axis(left.yaxis)
        key(left, loc="upper left")
        right.set(title='Search by "a and b, not c"', xlabel="labels in the query", ylabel="mAP, %", xticks=terms)
        right.set_ylim(0, None)
        key(right, loc="lower left")
        save_figure(figure, given.out)


if __name__ == "__main__":
    main()
