"""
Finds values behind secrets' names, and values that look secret near an announcing word.

What the words of a name say decides how random a value must look: `db_password` names a secret, `token` may,
`key` says little, and `password_policy` or `next_token` name another thing.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from tarsy_scoring.timeline.clean.harmless import Candidate, is_harmless
from tarsy_scoring.timeline.clean.patterns import compile_bytes, read_rules
from tarsy_scoring.timeline.clean.shapes import encodes_words
from tarsy_scoring.timeline.clean.values import READERS, Checks, Span, Value


class _Link(NamedTuple):
    """What joins a name and a value, as `names.yaml` explains it."""

    pattern: str
    value: str
    unless: tuple[str, ...] = ()
    alone: bool = False
    begins: str = ""
    ahead: str = ""
    seen: str = ""


class Level(NamedTuple):
    """How much a name says: the kind of secret, and the reasons that spare a value. No kind spares all."""

    names: list[str]
    kind: str = ""
    unless: tuple[str, ...] = ()


_RULES = "names.yaml"
_LINKS = [_Link(**link) for link in read_rules(_RULES, "links")]
_NAMES = f"(?:{'|'.join(read_rules(_RULES, 'stems'))})(?:\\.{{0,3}}[\\w-]+)*\\.?"


def _pattern(begins: str) -> str:
    links = [link.seen or link.pattern + link.ahead for link in _LINKS if link.begins == begins]
    return f"{begins}{_NAMES}(?:{'|'.join(links)})"


_BEGINS = sorted({link.begins for link in _LINKS}, reverse=True)
NAME_PATTERN = "|".join(map(_pattern, _BEGINS))
_ANY = compile_bytes(NAME_PATTERN, capture=False)
_NAME = compile_bytes(f"(?:{'|'.join(_BEGINS)}){_NAMES}", capture=False)
_JOINS = [(compile_bytes(f"({it.pattern}){it.ahead}"), it) for it in _LINKS]
_LEVELS = [Level(**level) for level in read_rules(_RULES, "levels")]
_BY_NAME = [(compile_bytes("|".join(level.names), capture=False), level) for level in _LEVELS]
_IN_NAMES = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./[]\"' -"
_CAMEL = re.compile(rb"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_BETWEEN_WORDS = re.compile(rb"[_.:\[\]\"'/-]+")


@lru_cache(4_096)
def level_of(name: bytes) -> Level:
    """What a name says, from the words in the identifier."""
    words = _BETWEEN_WORDS.sub(b"_", _CAMEL.sub(b"_", name)).lower().strip(b"_ ")
    return next((level for names, level in _BY_NAME if names.search(words)), Level([]))


def _level_at(data: bytes, start: int, end: int) -> Level:
    """What the name says whose stem or word stands there, with up to two words before it."""
    before = data[max(0, start - 60) : start]
    begin = b" ".join(before[len(before.rstrip(_IN_NAMES)) :].split(b" ")[-3:])
    return level_of(begin + data[start:end])


def _join(data: bytes, start: int, name_end: int) -> tuple[_Link, int] | None:
    """What joins the name at `start` and the value, and where the value begins; None if nothing does."""
    is_option = data.startswith(b"-", start) and not data[start - 1 : start].isalnum()
    for join, link in _JOINS:
        if bool(link.begins) == is_option and (joined := join.match(data, name_end)) is not None:
            return link, joined.end(1)
    return None


def find_named(data: bytes, checks: Checks) -> Iterator[Span]:
    """The values behind names of secrets, in order."""
    position = 0
    while (match := _ANY.search(data, position)) is not None:
        start, position = match.span()
        checks.spend(start)
        name = _NAME.match(data, start, position)
        position = name.end() if name else position
        level = _level_at(data, start, position)
        if not level.kind or (joined := _join(data, start, position)) is None:
            continue
        link, value_start = joined
        value = READERS[link.value](data, value_start)
        if value is None or value[1] <= value[0]:
            continue
        reasons = link.unless if link.alone and "vague" not in level.unless else (*level.unless, *link.unless)
        if not is_harmless(Candidate(data, value), reasons):
            yield Span(*value, level.kind)
            position = value[1]


# --- words that announce a secret ----------------------------------------------------------------------

NEARBY_PATTERN = f"(?i:{'|'.join(read_rules(_RULES, 'announcing'))})"
_ANNOUNCING = compile_bytes(NEARBY_PATTERN, capture=False)
_REASONS = ("placeholder", "weak", "stated", "nearby")
_REACH = 140  # bytes behind a word, on the same line and the next one
_IN_VALUE = rb"[^\s\"'`<>\[\]{},;|\\()\x80-\xff]"
_VALUE = re.compile(_IN_VALUE + rb"{6,200}")
# The rest of a name whose word was found: up to the value, or the end of the word.
_REST = re.compile(rb"[\w.$-]{0,60}(?:=>?|:=?)(?=[^/=:\s])|" + _IN_VALUE + rb"{0,200}")
_NAME_BEFORE = re.compile(rb"(?:[\w.$-]{1,60}(?:=>?|:=?|::)(?=[^/=:\s]))*")
# A letter beside a digit or a sign, or a capital behind a hyphen.
_ODD = re.compile(rb"[A-Za-z][0-9!@#$%^&*~+]|[0-9!@#$%^&*~+][A-Za-z]|[A-Za-z0-9][-_.][A-Z]")
_BREAK = re.compile(rb"\n|\\n")


def find_nearby(data: bytes, checks: Checks) -> Iterator[Span]:
    """
    The values behind announcing words, in order; none behind the last check, where the names are masked.

    For texts that the precise rules do not know: `AUTH default x1Y`. The kinds of characters make a value
    suspicious.
    """
    position = seen = 0
    while checks.words > 0 and (match := _ANNOUNCING.search(data, position)) is not None:
        checks.words -= 1
        position = match.end()
        end = _reach(data, position)
        if _ODD.search(data, position, end) is None:
            continue
        rest = _REST.match(data, position)
        for value in _values(data, max(seen, rest.end() if rest else position), end):
            seen = value[1]
            if checks.left <= 0:
                return
            checks.left -= 1
            if not is_harmless(Candidate(data, value), _REASONS) and not encodes_words(data[slice(*value)]):
                yield Span(*value, "secret")


def _reach(data: bytes, position: int) -> int:
    limit = min(len(data), position + _REACH)
    breaks = [found.start() for found in _BREAK.finditer(data, position, limit)]
    return breaks[1] if len(breaks) > 1 else limit


def _values(data: bytes, start: int, end: int) -> Iterator[Value]:
    """The words that begin in a stretch and look odd; a name before a value is left out."""
    for word in _VALUE.finditer(data, start, end + 200):
        if word.start() >= end:
            return
        name = _NAME_BEFORE.match(data, *word.span())
        first, last = name.end() if name else word.start(), word.end()
        if not word[0].endswith(b"=="):
            last = first + len(data[first:last].rstrip(b".,:!?/"))
        if last - first >= 6 and _ODD.search(data, first, last):
            yield first, last
