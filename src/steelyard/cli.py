"""What a person types: `steelyard COMMAND`."""

from __future__ import annotations

import sys

import typer

try:
    from typer import TyperException as UsageProblem
except ImportError:  # typer before 0.26 rests on click
    from click import ClickException as UsageProblem  # type: ignore[import-not-found,no-redef]

app = typer.Typer(
    help="Multi-label learning on real data: long tails, missing labels, probabilities that mean what they say.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback()
def options() -> None:
    """Steelyard trains multi-label classifiers whose probabilities can be used."""


@app.command()
def version() -> None:
    """Print the version.

    Example: steelyard version
    """
    from steelyard import __version__

    typer.echo(__version__)


@app.command()
def demo(
    seed: int = typer.Option(0, help="Of the data, the holes in its labels and the networks."),
    json: bool = typer.Option(False, "--json", help="Print the scores as JSON."),
) -> None:
    """Compare six objectives on pairs of digits with holes in their labels.

    Example: steelyard demo
    """
    from steelyard.demo import show

    show(seed, as_json=json)


def main() -> None:
    """Run the command line: exit 0 done, 2 the user's mistake (one line on stderr), 1 ours."""
    try:
        app(standalone_mode=False)
    except UsageProblem as problem:
        print(f"steelyard: {problem.format_message()} (see steelyard --help)", file=sys.stderr)
        sys.exit(2)
    except ValueError as mistake:
        print(f"steelyard: {mistake}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("steelyard: stopped", file=sys.stderr)
        sys.exit(130)
