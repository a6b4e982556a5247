"""The studies' texts for terminals."""

from functools import partial

from tarsy_scoring.commands.shared import print_text

print_study = partial(print_text, room="studies.commands")
