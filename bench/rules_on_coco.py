"""Rules for unknown labels on COCO 2014 with its published lists of known positives, over frozen features.

    python bench/rules_on_coco.py --data DATA [--device cuda --jobs 16] [--set coco]   # measure what is missing
    python bench/rules_on_coco.py --page                                               # the table of the documentation

DATA holds features/coco2014/ and labels/, as `python -m steelyard_papers.features` leaves them. Three lists say
which positives are known (75 %, 40 %, one per item); all other labels are unknown. A linear layer over standardised
features is trained for 10 epochs of batches of 1,024.

Choose: every rule tries 4 rates × 3 values of one setting of its own, or of the weight decay if it has none, on nine
tenths of the training items with seed 0. The mAP on the last tenth, with all labels known, decides, as in the papers.
Measure: the choice is trained on all training items, seeds 0 to 2, and measured on the test items. No test item is read
before every choice is in the file. Results are written one by one; what is there is not measured again.

--directions D keeps the projections of the features on their first D principal directions, which on one core takes a
fifth of the time for D = 256 and costs `an` .2 of mAP on held-out items.

--set voc takes VOC 2012's features and lists drawn by seed 0 instead, --set tiny a few generated items.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch

import steelyard as sy
from partial_rules import NEED_POSITIVES, Steps, trained
from steelyard._source import commit
from steelyard.balance.split import stratified_split
from steelyard.data import keep_positives, keep_single_positive
from steelyard_papers.datasets import COCO_FEATURES, VOC_FEATURES

ROOT = Path(__file__).resolve().parent.parent
OUT, PAGE, MARK = ROOT / "bench" / "figures", ROOT / "docs" / "reference" / "rules-for-unknown.md", "rules-on-coco"
WIDTH = 2048
"""Features of COCO."""
EPOCHS, BATCH, HELD_OUT, RESAMPLES = 10, 1024, 0.1, 100
RATES, DECAY = (1e-4, 3e-4, 1e-3, 3e-3), 0.01
DECAYS = ("decay", (0.01, 0.1, 1.0))
UNKNOWN = "objective.unknown."
RULES: dict[str, tuple[str | None, tuple[str, tuple[Any, ...]]]] = {
    "ignore": (None, DECAYS),
    "an": ("an", DECAYS),
    "wan": ("wan", DECAYS),
    "epr": ("epr", DECAYS),
    "role": ("role", DECAYS),
    "pal": ("pal", (f"{UNKNOWN}q", (0.1, 0.3, 0.6))),
    "ll-r": ("ll-r", (f"{UNKNOWN}delta", (0.001, 0.002, 0.005))),
    "ll-ct": ("ll-ct", (f"{UNKNOWN}delta", (0.001, 0.002, 0.005))),
    "ll-cp": ("ll-cp", (f"{UNKNOWN}delta", (0.001, 0.002, 0.005))),
    "splc": ("splc", (f"{UNKNOWN}tau", (0.3, 0.45, 0.6))),
    "selective": ("selective", (f"{UNKNOWN}top", (1, 2, 5))),
    "em": ("em", (f"{UNKNOWN}alpha", (0.05, 0.1, 0.2))),
    "em-apl": ("em-apl", (f"{UNKNOWN}beta", (0.02, 0.2, 0.9))),
    "gr": ("gr", (f"{UNKNOWN}offset", ("[-4, -4]", "[-3, -3]", "[-2, -2]"))),
    "hill": ("hill+an", ("objective.loss.lam", (1.5, 1.75, 2.0))),
    "logit-adjusted": ("logit-adjusted+an", ("objective.loss.tau", (0.5, 1.0, 1.5))),
}
"""By the name in the table: its recipe, and the setting of its own with the values that are tried."""
FULL = "all known"
"""The list that lists everything, under which BCE alone is trained: what the rules fall short of."""


class Content(NamedTuple):
    """The data on the device of a process."""

    x: torch.Tensor
    lists: dict[str, sy.Labels]
    """The labels that each list leaves, and all of them under `FULL`."""
    fitting: torch.Tensor
    held: torch.Tensor
    x_test: torch.Tensor
    y_test: torch.Tensor


class Task(NamedTuple):
    """One training: chosen among (`seed` None) or measured with a seed."""

    listed: str
    rule: str
    lr: float
    value: Any
    seed: int | None


def content(name: str, data: Path, device: torch.device) -> Content:
    """Read a data set."""
    if name == "tiny":
        with TemporaryDirectory() as folder:
            COCO_FEATURES.generate(Path(folder))
            return content("coco", Path(folder), device)
    source = {"coco": COCO_FEATURES, "voc": VOC_FEATURES}[name]
    train, test = (opened := source.open(data)).train, opened.test
    overlap = set(train.labels.ids) & set(test.labels.ids) if source is COCO_FEATURES else ()
    if overlap:
        raise ValueError(f"{len(overlap)} test items are training items, {next(iter(overlap))} among them")
    whole = train.labels
    lists = {key: make(data, whole) for key, make in source.lists.items()}
    if not lists:
        lists = {"PPL 0.4": keep_positives(whole, 0.4, 0), "SPL": keep_single_positive(whole, 0)}
    fitting, held = stratified_split(whole, HELD_OUT, 0)
    x = torch.from_numpy(train.inputs).to(device)
    mean, spread = x.mean(0), x.std(0) + 1e-6
    x_test = (torch.from_numpy(test.inputs).to(device) - mean) / spread
    rest, out = (torch.from_numpy(np.asarray(part, np.int64)).to(device) for part in (fitting, held))
    y_test = torch.from_numpy(test.labels.values).to(device)
    return Content((x - mean) / spread, {**lists, FULL: whole}, rest, out, x_test, y_test)


def tasks_to_choose(lists: list[str], rules: list[str]) -> Iterator[Task]:
    """Yield what every rule tries on every list."""
    for listed, rule in product(lists, rules):
        yield from (Task(listed, rule, lr, value, None) for lr, value in product(RATES, RULES[rule][1][1]))
    yield from (Task(FULL, "an", lr, value, None) for lr, value in product(RATES, DECAYS[1]))


def run(task: Task) -> tuple[Task, dict[str, Any]]:
    """Train a layer and measure it: on held-out training items, or, with a seed, on the test items."""
    data, started = _content(), time.monotonic()
    recipe, (setting, _) = RULES[task.rule]
    whole = data.lists[FULL]
    given = [] if setting == "decay" else [f"{setting}={task.value}"]
    if recipe in NEED_POSITIVES:
        given.append(f"{UNKNOWN}expected_positives={whole.counts.sum() / len(whole)}")
    steps = Steps(EPOCHS, BATCH, task.lr, task.value if setting == "decay" else DECAY)
    labels, x = data.lists[task.listed], data.x
    if task.seed is None:
        labels, x = labels.take(data.fitting.cpu().numpy()), x[data.fitting]
    layer, finite = trained(x, labels, recipe, given, steps, task.seed or 0)
    result: dict[str, Any] = {"finite": finite, "seconds": 0.0}
    with torch.no_grad():
        if not finite:
            result["mAP"] = None
        elif task.seed is None:
            truth = torch.from_numpy(whole.values).to(x.device)[data.held]
            result["mAP"] = scored(layer(data.x[data.held]), truth)
        else:
            logits = layer(data.x_test)
            result["mAP"] = scored(logits, data.y_test)
            result["resampled"] = resampled(logits, data.y_test)
    result["seconds"] = round(time.monotonic() - started, 2)
    return task, result


def scored(logits: torch.Tensor, targets: torch.Tensor) -> float:
    """Return the mAP in per cent."""
    return round(100 * sy.metrics.mean_average_precision(logits, targets), 3)


def resampled(logits: torch.Tensor, targets: torch.Tensor) -> list[float]:
    """Return the mAP of test items drawn with replacement, the same draws for all rules."""
    generator = torch.Generator().manual_seed(0)
    n = len(targets)
    draws = (torch.randint(n, (n,), generator=generator).to(targets.device) for _ in range(RESAMPLES))
    return [round(scored(logits[rows], targets[rows]), 2) for rows in draws]


_READ: list[Callable[[], Content]] = []


def _content() -> Content:
    return _READ[0]()


def begin(name: str, data: Path, device: str, directions: int) -> None:
    """Read the data once in a process that runs tasks."""
    torch.set_num_threads(1)
    read = content(name, data, torch.device(device))
    if directions:
        axes = torch.linalg.eigh(read.x.T @ read.x).eigenvectors[:, -directions:]
        read = read._replace(x=read.x @ axes, x_test=read.x_test @ axes)
    _READ[:] = [lambda: read]


def key_of(task: Task) -> str:
    """Return the key of a task in the file."""
    tail = f"lr {task.lr:g}, {task.value}" if task.seed is None else f"seed {task.seed}"
    return f"{task.listed} | {task.rule} | {tail}"


def chosen(document: dict[str, Any], rules: list[str]) -> dict[str, dict[str, Any]]:
    """Return the trial of the highest held-out mAP of every rule on every list."""
    best: dict[str, dict[str, Any]] = {}
    for task in tasks_to_choose(document["lists"], rules):
        result, cell = document["trials"][key_of(task)], f"{task.listed} | {task.rule}"
        if result["mAP"] is not None and (cell not in best or result["mAP"] > best[cell]["held_out"]):
            best[cell] = {"lr": task.lr, "value": task.value, "held_out": result["mAP"]}
    return best


def write(file: Path, document: dict[str, Any]) -> None:
    """Write the document, one line per entry."""
    sections = []
    for key, part in document.items():
        if isinstance(part, dict):
            rows = ",\n  ".join(f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in part.items())
            sections.append(f" {json.dumps(key)}: {{\n  {rows}\n }}" if rows else f" {json.dumps(key)}: {{}}")
        else:
            sections.append(f" {json.dumps(key)}: {json.dumps(part)}")
    partial = file.with_suffix(".partial")
    partial.write_text("{\n" + ",\n".join(sections) + "\n}\n")
    partial.replace(file)


def measure(given: argparse.Namespace, file: Path) -> None:
    """Run what is missing, choices first."""
    document: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    device = given.device if given.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    begin(given.set, given.data, device, given.directions)
    data = _content()
    lists = [name for name in data.lists if name != FULL]
    place = torch.cuda.get_device_name() if device.startswith("cuda") else "CPU"
    sizes = {"train": len(data.x), "held_out": len(data.held), "test": len(data.x_test)}
    positives = {name: round(float(labels.counts.sum() / len(labels)), 3) for name, labels in data.lists.items()}
    document |= {"commit": commit(), "device": place, "lists": lists, "items": sizes, "positives": positives}
    document["features"] = data.x.shape[1]
    for part in ("trials", "chosen", "results"):
        document.setdefault(part, {})
    started = time.monotonic()
    context = multiprocessing.get_context("spawn")
    jobs = max(given.jobs, 1)
    with context.Pool(jobs, begin, (given.set, given.data, device, given.directions)) as pool:

        def finish(section: str, tasks: list[Task]) -> None:
            left = [task for task in tasks if key_of(task) not in document[section]]
            for n, (task, result) in enumerate(pool.imap_unordered(run, left), 1):
                document[section][key_of(task)] = result
                write(file, document)
                if n % 20 == 0 or n == len(left):
                    print(f"{section}: {n} of {len(left)}, {time.monotonic() - started:.0f} s", flush=True)

        finish("trials", list(tasks_to_choose(lists, given.rules)))
        document["chosen"] |= chosen(document, given.rules)
        write(file, document)
        final = []
        for cell, choice in document["chosen"].items():
            listed, rule = cell.split(" | ")
            final += [Task(listed, rule, choice["lr"], choice["value"], seed) for seed in range(given.seeds)]
        finish("results", final)
    print(table(document))


def table(document: dict[str, Any]) -> str:
    """Return the table of results, the best rule on average first."""
    lists, results = document["lists"], document["results"]

    def runs(listed: str, rule: str) -> list[dict[str, Any]]:
        return [entry for key, entry in results.items() if key.startswith(f"{listed} | {rule} | ")]

    def mean(listed: str, rule: str) -> float:
        values = [entry["mAP"] for entry in runs(listed, rule)]
        return float(np.mean(values)) if values and None not in values else float("nan")

    def cell(listed: str, rule: str) -> str:
        if np.isnan(mean(listed, rule)):
            return "not finite"
        of_seeds = [entry["mAP"] for entry in runs(listed, rule)]
        value = f"{mean(listed, rule):.2f}" + (f" ± {np.std(of_seeds, ddof=1):.2f}" if len(of_seeds) > 1 else "")
        if rule == "an":
            return value
        gains = np.mean([entry["resampled"] for entry in runs(listed, rule)], 0)
        gains = gains - np.mean([entry["resampled"] for entry in runs(listed, "an")], 0)
        low, high = np.percentile(gains, (2.5, 97.5))
        return f"{value} ({low:+.2f} to {high:+.2f})"

    def setting(listed: str, rule: str) -> str:
        choice = document["chosen"].get(f"{listed} | {rule}")
        return f"{choice['lr']:g}, {choice['value']}" if choice else "none"

    there = [rule for rule in RULES if any(runs(listed, rule) for listed in lists)]
    rules = sorted(there, key=lambda rule: -float(np.nan_to_num(np.mean([mean(one, rule) for one in lists]))))
    lines = [
        f"| rule | {' | '.join(lists)} | mean | own setting | chosen rate, value |",
        "|---" * (len(lists) + 4) + "|",
    ]
    for rule in rules:
        cells = " | ".join(cell(listed, rule) for listed in lists)
        values = "; ".join(setting(listed, rule) for listed in lists)
        own = RULES[rule][1][0].removeprefix("objective.")
        average = np.mean([mean(listed, rule) for listed in lists])
        lines.append(f"| `{rule}` | {cells} | {average:.2f} | {own} | {values} |")
    full = mean(FULL, "an")
    kept = ", ".join(f"{name} {document['positives'][name]:g}" for name in lists)
    items = document["items"]
    seeds = len({key.rpartition(" | ")[2] for key in results})
    some = "" if document["features"] == WIDTH else f" (the first principal directions of {WIDTH:,})"
    left_out = ", ".join(f"`{rule}`" for rule in RULES if rule not in there)
    lines.append(
        (f"\nNot measured: {left_out}.\n" if left_out else "")
        + f"\n{items['train']:,} training items ({items['held_out']:,} of them held out to choose), {items['test']:,} "
        f"test items, {document['features']:,} features{some}, number of seeds {seeds}; known "
        f"positives per item: {kept}, of {document['positives'][FULL]:g}. Mean test mAP in per cent "
        "± standard deviation over seeds; in brackets the 95 % interval, over test items, of the difference to `an`. "
        f"BCE with all labels known: {full:.2f}. Measured on {document['device']} at {document['commit'][:12]}."
    )
    return "\n".join(lines)


def main() -> None:
    """Measure, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--set", choices=("coco", "voc", "tiny"), default="coco")
    parser.add_argument("--rules", nargs="+", choices=RULES, default=list(RULES), help="some of them, `an` included")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="processes, all on the one device")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--directions", type=int, default=0, help="principal directions that are kept, 0 for all")
    parser.add_argument("--out", type=Path, help="by default bench/figures/rules_on_SET.json")
    parser.add_argument("--page", action="store_true", help="write the table into the documentation")
    given = parser.parse_args()
    file = given.out or OUT / f"rules_on_{given.set}.json"
    if not given.page:
        measure(given, file)
        return
    text = PAGE.read_text(encoding="utf-8")
    opening = f"<!-- {MARK}: python bench/rules_on_coco.py --page -->"
    before, _, rest = text.partition(opening)
    _, _, after = rest.partition(f"<!-- /{MARK} -->")
    heading = "## On COCO's published lists\n\nHere every rule has chosen its rate and one setting on held-out items:"
    middle = f"{opening}\n\n{heading}\n\n{table(json.loads(file.read_text()))}\n\n<!-- /{MARK} -->"
    PAGE.write_text(f"{before}{middle}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
