"""`python -m steelyard`, which is what `torchrun` starts."""

from steelyard.cli import main

main()
