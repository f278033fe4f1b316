"""`python -m steelyard_bench …` from a checkout is `steelyard bench …`."""

import sys

from steelyard.cli import add_command, main
from steelyard_bench.cli import app

add_command("bench", app)
sys.argv[1:1] = ["bench"]
main()
