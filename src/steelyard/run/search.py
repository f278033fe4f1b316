"""The command `steelyard search`. Imports neither torch nor the training modules."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from steelyard._console import console_of, plain, probability
from steelyard.folder.fingerprints import is_outdated
from steelyard.search import Hit, Index, Query
from steelyard.search.formula import LabelTerm
from steelyard.search.pointer import exists

if TYPE_CHECKING:
    from steelyard.run.explanation import Explanation

INDEX = "index"
"""The folder of an index in that of a run."""
ENGINES = ("duckdb", "spark")


def find(
    run_or_index_folder: str,
    query: str,
    k: int = 20,
    as_json: bool = False,
    sheet: str | None = None,
    explain: bool = False,
    engine: str = "duckdb",
    like: str | None = None,
) -> None:
    """Print the items that fit a query best, with the probability of each of its labels.

    Args:
        run_or_index_folder: a run that has an index, or the folder of an index.
        query: see `Query`; may be empty where `like` is given.
        k: how many items.
        as_json: whether JSON is printed.
        sheet: a file for a contact sheet, PNG or HTML by its ending.
        explain: whether to print how each score was computed.
        engine: "duckdb" or "spark".
        like: the id of an item: those like it come first.
    """
    if engine not in ENGINES:
        raise ValueError(f"--engine is {engine!r}: choose one of {', '.join(ENGINES)}")
    if like is not None and (explain or engine != "duckdb"):
        raise ValueError("--like goes without --explain and --engine: leave them out")
    if like is None and not query.strip():
        raise ValueError("QUERY is missing: give labels to look for, or an item with --like ID")
    if sheet is not None:
        from steelyard.report import contact_sheet

        contact_sheet.check(sheet)
    with open_index(run_or_index_folder) as index:
        if warning := outdated(index, run_or_index_folder):
            Console(stderr=True).print(Text(warning, "yellow"), soft_wrap=True)
        parsed = Query.parse(query, index.names) if query.strip() else None
        hits = [hit for hit in _ranked(index, parsed, k, engine, like) if hit.score > 0]  # the others do not fit
        described = " ".join([*([str(parsed)] if parsed else []), *([f"like {like}"] if like is not None else [])])
        paths = index.paths([hit.id for hit in hits]) if as_json or sheet is not None else []
        reasons = _reasons(index, parsed, hits) if explain and parsed is not None else None
        left_out = ""
        if sheet is not None:
            shown = [contact_sheet.SheetItem(hit, path) for hit, path in zip(hits, paths, strict=True)]
            left_out = contact_sheet.write_sheet(sheet, f"{described}: {len(hits):,} of {index.n_items:,} items", shown)
        if as_json:
            print(json.dumps(_document(described, index, hits, paths, reasons), ensure_ascii=False, allow_nan=False))
        else:
            _show(console_of(), described, parsed, index, hits, reasons)
            if sheet is not None:
                Console(stderr=True).print(Text(f"The images are in {plain(sheet)}. {left_out}".rstrip()))


def open_index(folder: str | os.PathLike[str]) -> Index:
    """Return the index in a folder, or in that of a run."""
    path = Path(folder)
    if exists(path):
        return Index.open(path)
    if not path.is_dir():
        raise ValueError(f"{path} is not a folder: give the folder of a run or of an index")
    if not exists(path / INDEX):
        if not (path / "config.toml").is_file():
            raise ValueError(f"{path} is neither a run nor an index: give the folder of one")
        raise ValueError(f"{path} has no index yet: make one with {index_command(path, path / INDEX)}")
    return Index.open(path / INDEX)


def outdated(index: Index, run: str | os.PathLike[str]) -> str:
    """Return a warning if the run was retrained or recalibrated after the index was made, else ""."""
    if not Path(run, "run.json").is_file() or not is_outdated(index.notes, run):
        return ""
    return (
        "Beware: the index was made before the run was trained or calibrated again: make it again with "
        f"{index_command(run, index.folder)} --overwrite."
    )


def index_command(run: str | os.PathLike[str], index: Path) -> str:
    """Return the command that makes an index, ready to be copied."""
    return shlex.join(["steelyard", "predict", os.fspath(run), "DATA", "--index", str(index)])


def _ranked(index: Index, query: Query | None, k: int, engine: str, like: str | None) -> list[Hit]:
    if engine == "duckdb":
        return index.search(query, k, like=like)
    from steelyard.predict.spark_search import Spark

    return index.search(query, k, engine=Spark(index))


def _reasons(index: Index, query: Query, hits: list[Hit]) -> list[Explanation]:
    from steelyard.run.explanation import explain

    return [explain(index, query, hit.id) for hit in hits]


def _document(
    described: str, index: Index, hits: list[Hit], paths: list[str | None], reasons: list[Explanation] | None
) -> dict[str, Any]:
    listed: list[dict[str, Any]] = [{**hit._asdict(), "path": path} for hit, path in zip(hits, paths, strict=True)]
    for hit, reason in zip(listed, reasons or [], strict=False):
        hit["steps"] = [step._asdict() for step in reason.steps]
    return {"query": described, "items": index.n_items, "hits": listed}


def _show(
    console: Console,
    described: str,
    query: Query | None,
    index: Index,
    hits: list[Hit],
    reasons: list[Explanation] | None,
) -> None:
    if not hits:
        console.print(Text(f"None of {index.n_items:,} items fits {plain(described)}."))
        return
    signs: dict[str, set[bool]] = {}
    for label, is_wanted in query.terms if query else ():
        signs.setdefault(label, set()).add(is_wanted)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("", justify="right", style="dim")
    table.add_column("score", justify="right", no_wrap=True)
    for label in hits[0].probabilities:
        table.add_column(Text(plain(str(LabelTerm(label, signs[label] != {False})))), justify="right", overflow="fold")
    table.add_column("item", overflow="fold")
    for rank, hit in enumerate(hits, 1):
        cells = [Text(probability(eta)) for eta in hit.probabilities.values()]
        table.add_row(str(rank), _score(hit.score), *cells, Text(plain(hit.id)))
    console.print(table)
    for hit, reason in zip(hits, reasons or [], strict=False):
        console.print(Text(f"\n{plain(hit.id)}", "bold"))
        for step in reason.steps:
            console.print(Text(plain(str(step))), soft_wrap=True)
    console.print(Text(f"{len(hits):,} of {index.n_items:,} items", "dim"))


def _score(score: float) -> str:
    return f"{score:.4f}".removeprefix("0") if score >= 0.001 else f"{score:.1e}"
