"""Entry point of `python -m tarsy_scoring`, the same as the command `tarsy-scoring`."""

from tarsy_scoring.cli import main

main()
