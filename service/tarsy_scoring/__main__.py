"""`python -m tarsy_scoring` is `tarsy-scoring`."""

from tarsy_scoring.cli import main

main()
