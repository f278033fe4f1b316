"""Record what one source tree does; `PYTHONPATH` says which. Only the public API and the command line are used."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from golden import generate, transcript

RECIPES = ("bce", "asl", "spa-lpr", "two-way", "ldam", "cb-focal", "plm", "db-focal", "pal", "auto")
CALIBRATION = ("auto", "temperature", "platt", "isotonic", "link")
EXPORTED = ("arrays/bce", "arrays/asl", "arrays/cb-focal", "table/spa-lpr", "table/db-focal", "images/plm")
QUERIES = ("cat", "cat & dog", "cat -dog", "cat | owl & ~dog", '"rare bird" > 0.2', "~cat & (dog | owl)")


def as_array(values: Any) -> dict[str, Any]:
    """Return an array as plain values; its type and shape are compared too."""
    array = np.asarray(values)
    return {"dtype": str(array.dtype), "shape": list(array.shape), "values": array.ravel().tolist()}


def api() -> dict[str, Any]:
    """Return the names of the public API and their signatures."""
    from golden.api import names_and_signatures

    return dict(names_and_signatures())


def losses() -> dict[str, Any]:
    """Return value, gradient and probability of every loss at fixed logits."""
    import torch

    import steelyard as sy

    counts, n = torch.tensor([80.0, 40.0, 20.0, 5.0]), 160
    made = {
        "BCE": sy.losses.BCE(),
        "BCE smoothed": sy.losses.BCE(smoothing=0.1),
        "Focal": sy.losses.Focal(),
        "Asymmetric": sy.losses.Asymmetric(),
        "NegativeTolerant": sy.losses.NegativeTolerant(counts, n),
        "DistributionBalanced": sy.losses.DistributionBalanced(counts, n, gamma=2.0),
        "SPA": sy.losses.SPA(),
        "LDAM": sy.losses.LDAM(counts),
        "TwoWay": sy.losses.TwoWay(),
    }
    targets = torch.from_numpy(generate.items(41, 7, unknown=0.1)[1])
    line = torch.linspace(-12, 12, 41)[:, None] * torch.tensor([1.0, 0.5, -1.0, 0.1])
    result: dict[str, Any] = {}
    for name, loss in made.items():
        z = line.clone().requires_grad_()
        value = loss(z, targets)
        value.backward()
        result[name] = {"value": as_array(value.detach()), "gradient": as_array(z.grad)}
        if name != "TwoWay":  # the only one without a link
            result[name]["probability"] = as_array(loss.probability(line))
    return result


def runs() -> dict[str, Any]:
    """Train every recipe on arrays (to convergence where it can be), a table (an MLP) and images (a small network)."""
    import steelyard as sy

    (x, y), held, tested = (generate.items(n, seed, u) for n, seed, u in ((160, 0, 0.1), (60, 2, 0.0), (50, 3, 0.0)))
    mlp = {"model": {"backbone": "mlp", "width": 8}, "train": {"epochs": 3, "batch_size": 16}}
    small = {"model": {"backbone": "small"}, "data": {"size": 12}, "train": {"epochs": 4, "batch_size": 8}}
    inputs = {"arrays": tested[0], "table": "new.csv", "images": "photos/images"}
    result: dict[str, Any] = {}
    plots = sys.modules.get("matplotlib")
    sys.modules["matplotlib"] = None  # type: ignore[assignment]  # as if not installed: the transcripts draw pages
    for i, recipe in enumerate(RECIPES):
        reading = {"evaluate": {"calibration": CALIBRATION[i % 5] if recipe != "two-way" else "platt"}}
        arguments: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
            "arrays": ((x, sy.Labels(y, generate.NAMES)), reading, {"validation": held, "test": tested}),
            "table": ("items.csv", {**mlp, **reading}, {"validation": 0.3, "test": "new.csv"}),
            "images": ("photos", {**small, **reading}, {"validation": 0.3}),
        }
        for form, (data, settings, others) in arguments.items():
            name = f"{form}/{recipe}"
            try:
                run = sy.fit(data, recipe, out=f"runs/{name}", settings=settings, verbose=False, **others)
            except ValueError as refusal:
                result[name] = {"refused": transcript.plain(str(refusal))}
                continue
            given = inputs[form]
            result[name] = {
                "logits": as_array(run.logits(given)),
                "probability": as_array(run.probability(given)),
                "decided": as_array(run.decide(given)),
                "metrics": json.loads(Path(f"runs/{name}/metrics.json").read_text()),
                "history": [{k: v for k, v in line.items() if "second" not in k} for line in run.history],
                "files": sorted(path.name for path in Path(f"runs/{name}").iterdir()),
            }
    del sys.modules["matplotlib"]
    sys.modules.update({"matplotlib": plots} if plots else {})
    return result


def onnx() -> dict[str, Any]:
    """Export some of these runs and return what onnxruntime computes."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    pixels = np.random.default_rng(8).integers(0, 256, (20, 3, 12, 12)).astype(np.uint8)
    result: dict[str, Any] = {}
    for name in EXPORTED:
        said = transcript.steelyard("export", f"runs/{name}", "--out", "model.onnx")
        if said["exit"] != 0:
            result[name] = said
            continue
        session = onnxruntime.InferenceSession("model.onnx", options, providers=["CPUExecutionProvider"])
        (first,) = session.get_inputs()
        values = pixels if name.startswith("images") else generate.items(50, 3)[0]
        outputs = session.run(None, {first.name: values})
        names = [output.name for output in session.get_outputs()]
        result[name] = {
            "input": [first.name, first.type],
            **{n: as_array(v) for n, v in zip(names, outputs, strict=True)},
        }
    return result


def search() -> dict[str, Any]:
    """Return the hits of several queries in the indexes of three runs, and of one that is changed."""
    import steelyard as sy

    result: dict[str, Any] = {}
    for name in ("arrays/bce", "table/plm", "table/db-focal"):
        with sy.search.Index.open(f"runs/{name}/index") as index:
            for query in QUERIES:
                hits = index.search(query, k=15)
                result[f"{name}: {query}"] = [[hit.id, hit.score, hit.probabilities] for hit in hits]
    rng = np.random.default_rng(9)
    ids = [f"p{i:04}" for i in range(2000)]
    eta = rng.random((2000, 4)).astype(np.float32)
    with sy.search.Index.build("index", ids[:1500], eta[:1500], generate.NAMES) as index:
        index.append(ids[1500:], eta[1500:])
        index.replace(ids[:50], eta[50:100])
        index.delete(ids[100:200])
        result["size"] = len(index)
        for query in QUERIES:
            hits = index.search(query, k=15, offset=3)
            result[f"changed: {query}"] = [[hit.id, hit.score, hit.probabilities] for hit in hits]
    return result


def transcripts() -> dict[str, Any]:
    """Return the transcript of every line of commands.txt, of the server, and the words of the pages written."""
    lines = Path(__file__).with_name("commands.txt").read_text().splitlines()
    result: dict[str, Any] = {}
    for line in lines:
        if line and not line.startswith("#"):
            name = line if line not in result else f"{line} (again)"
            result[name] = transcript.typed(line)
    result["served"] = transcript.served("seen")
    for page in transcript.PAGES:
        result[page] = transcript.words_of(Path(page).read_text()) if Path(page).is_file() else "not written"
    return result


SECTIONS: tuple[Callable[[], dict[str, Any]], ...] = (api, losses, runs, onnx, search, transcripts)


def main() -> None:
    """Record every section in a new folder and write one JSON file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=Path, required=True, help="the src folder that must be imported")
    parser.add_argument("--work", type=Path, required=True, help="an empty or old folder to work in")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    import torch

    import steelyard as sy

    if not Path(sy.__file__).resolve().is_relative_to(given.source.resolve()):
        sys.exit(f"{sy.__file__} was imported, which is not in {given.source}")
    torch.set_num_threads(1)
    warnings.formatwarning = lambda message, category, *_, **__: f"{category.__name__}: {message}\n"
    out = given.out.resolve()
    shutil.rmtree(given.work, ignore_errors=True)
    given.work.mkdir(parents=True)
    os.chdir(given.work)
    os.environ["STEELYARD_CACHE"] = str(Path.cwd() / "cache")
    generate.write_all(Path())
    record: dict[str, Any] = {}
    seconds: dict[str, float] = {}
    for section in SECTIONS:
        start = time.perf_counter()
        record[section.__name__] = section()
        seconds[section.__name__] = round(time.perf_counter() - start, 1)
        print(f"{given.work.name}: {section.__name__} recorded in {seconds[section.__name__]} s", flush=True)
    about = {"python": platform.python_version(), "torch": version("torch"), "seconds": seconds}
    partial = out.with_suffix(".partial")
    partial.write_text(json.dumps({"about": about, **record}, indent=1, ensure_ascii=False))
    partial.replace(out)


if __name__ == "__main__":
    main()
