"""
The lines around session text, and the prefix of its lines.

A fence is a pair of lines that carry a nonce. The authors of a session's text cannot know the nonce, and text
that looks like a fence line is removed (`clean.sanitizer`). Inside a fence every line that begins with session text
has a prefix, and no other line has it, so that session text begins no heading and no entry.
"""

import re
import secrets

FENCE_WORD = "SESSION-DATA"
LINE_PREFIX = "| "
_PREFIXES = re.compile(r"^\| ", re.MULTILINE)


def prefix_lines(text: str) -> str:
    """Give every line of a safe text the prefix of session text."""
    whole = text.removesuffix("\n")
    return LINE_PREFIX + whole.replace("\n", f"\n{LINE_PREFIX}") + text[len(whole) :]


def without_prefixes(text: str) -> str:
    """Fenced text without the prefixes of its lines."""
    return _PREFIXES.sub("", text)


def new_nonce() -> str:
    """
    Make a nonce of 16 random hexadecimal digits, for text that belongs to no stored score.

    PostgreSQL makes the nonce of a stored score, which all calls of that score use.
    """
    return secrets.token_hex(8)


def fence_lines(nonce: str) -> tuple[str, str]:
    """The lines that open and close fenced text; the judge's prompt explains them."""
    return f"<<<{FENCE_WORD} {nonce} BEGIN>>>", f"<<<{FENCE_WORD} {nonce} END>>>"


def fence(text: str, nonce: str) -> str:
    """Enclose text in fence lines. It must come from `Sanitizer`: other text may contain a fence line."""
    begin, end = fence_lines(nonce)
    return f"{begin}\n{text}\n{end}"
