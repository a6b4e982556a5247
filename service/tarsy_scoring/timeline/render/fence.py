"""
The fence lines around session text, and the prefix for each line inside.

A fence is a pair of lines that carry a nonce. Authors of session text cannot know the nonce, and text that looks
like a fence line is removed (`clean.sanitizer`). Inside a fence every line of session text has a prefix, and no
other line has it, so that session text begins no heading and no entry.
"""

import re
import secrets

FENCE_WORD = "SESSION-DATA"
LINE_PREFIX = "| "
_PREFIXES = re.compile(r"^\| ", re.MULTILINE)


def prefix_lines(text: str, *, inline: bool = False) -> str:
    """Prefix every line of a safe text, without the first one if it continues a line."""
    whole = text.removesuffix("\n")
    return ("" if inline else LINE_PREFIX) + whole.replace("\n", f"\n{LINE_PREFIX}") + text[len(whole) :]


def without_prefixes(text: str) -> str:
    """Fenced text without line prefixes."""
    return _PREFIXES.sub("", text)


def new_nonce() -> str:
    """
    Make a nonce, 16 random hexadecimal digits, for text that belongs to no stored score.

    For a stored score PostgreSQL makes the nonce, and all calls use it.
    """
    return secrets.token_hex(8)


def fence_lines(nonce: str) -> tuple[str, str]:
    """The lines that open and close fenced text; the judge's prompt explains them."""
    return f"<<<{FENCE_WORD} {nonce} BEGIN>>>", f"<<<{FENCE_WORD} {nonce} END>>>"


def fence(text: str, nonce: str) -> str:
    """Enclose text in fence lines. It must come from `Sanitizer`: other text may contain a fence line."""
    begin, end = fence_lines(nonce)
    return f"{begin}\n{text}\n{end}"
