"""The command line: `steelyard COMMAND`."""

# isort: off
from steelyard.cli import commands as commands
from steelyard.cli import using as using
from steelyard.cli import annotation as annotation
from steelyard.cli import labelling as labelling
from steelyard.cli.group import add_command, app, main
# isort: on

__all__ = ["add_command", "app", "main"]
