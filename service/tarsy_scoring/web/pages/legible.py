"""Judge and agent text without invisible characters."""

import re

from tarsy_scoring.timeline.text import without_invisible

# Parses in under a second in the worst case; a reply with 8,000 tokens has about 32,000.
MAX_CHARACTERS = 50_000
# Not inside words, versions or paths. `judge.read.grounding` accepts more forms.
CITATION = re.compile(r"(?<![\w.\\/@$%#=+&])E[1-9][0-9]{0,5}(?![\w%]|\.[0-9])")
_CONTROLS = dict.fromkeys([*range(9), 11, 12, *range(14, 32), 127, *range(0x80, 0xA0)])


def legible(text: str) -> str:
    """The text without invisible characters: controls, NUL, and marks that reorder the text after them."""
    return without_invisible(text.translate(_CONTROLS))
