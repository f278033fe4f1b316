"""The command line: `steelyard COMMAND`."""

from steelyard.cli import annotation as annotation
from steelyard.cli import commands as commands
from steelyard.cli import labelling as labelling
from steelyard.cli import using as using
from steelyard.cli.group import add_command, app, main

__all__ = ["add_command", "app", "main"]
