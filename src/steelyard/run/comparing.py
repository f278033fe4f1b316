"""What `steelyard evaluate --retrieval` does: runs compared by how well one searches with them."""

from __future__ import annotations

from collections.abc import Sequence
from json import dumps
from pathlib import Path

from steelyard.report import webpage
from steelyard.report.terminal import console_of, plain, say
from steelyard.run import evaluation, retrieval_study
from steelyard.run.command import Other, config_of, judged_on
from steelyard.run.retrieval_study import Candidate
from steelyard.training.batches import n_workers
from steelyard.training.step import pick_device


def compare(runs: Sequence[str], other: Other, deploy_prior: str | None, html: str | None, as_json: bool) -> None:
    """Print the mAP of searching with runs by the number of terms of a query, side by side.

    Args:
        runs: folders of finished runs with the same labels.
        other: items for all of them; by default the test or validation items of each, which must be the same.
        deploy_prior: see `steelyard evaluate`.
        html: a file for the table and a plot.
        as_json: whether JSON is printed.
    """
    if html is not None:
        webpage.check(html)
    candidates, on = [], set()
    for name, run in zip(_names(runs), runs, strict=True):
        judged = judged_on(run, other, deploy_prior)
        device, workers = pick_device(config_of(run).train.device), n_workers(-1, judged.items)
        found = evaluation.judge(
            judged.trained, judged.items, judged.settings, judged.own, device, workers, console_of(stderr=True)
        )
        if found.unreadable:
            say(console_of(stderr=True), f"Beware: of {name}, {plain(found.unreadable)}.", "yellow")
        candidates.append(Candidate.of(name, judged.trained, found))
        on.add(judged.name)
    study = retrieval_study.study(candidates)
    if html is not None:
        retrieval_study.write_page(study, html)
    if as_json:
        print(dumps({**study.as_dict(), "on": sorted(on)}, ensure_ascii=False, allow_nan=False))
        return
    console = console_of()
    retrieval_study.show(study, console)
    if html is not None:
        say(console, f"\nA page with the plot is in {plain(html)}.")


def _names(runs: Sequence[str]) -> list[str]:
    """What runs are called: by their folders' names where those differ, else as they were typed."""
    short = [Path(run).absolute().name for run in runs]
    return short if len(set(short)) == len(runs) else list(runs)
