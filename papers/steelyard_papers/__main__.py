"""`python -m steelyard_papers …` from a checkout is `steelyard reproduce …`."""

import sys

from steelyard.cli import add_command, main
from steelyard_papers.cli import app

add_command("reproduce", app)
sys.argv[1:1] = ["reproduce"]
main()
