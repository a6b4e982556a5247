"""
Finds values behind names of secrets, in any structure that joins a name and a value.

What the words of a name say decides how random a value must look: `db_password` names a secret, `token` may,
`key`
says little, and `password_policy` or `next_token` name another thing.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from tarsy_scoring.timeline.clean.masking.harmless import Candidate, is_harmless
from tarsy_scoring.timeline.clean.masking.values import READERS, STRETCH_BYTES, Checks, Secret, template_end
from tarsy_scoring.timeline.clean.patterns import compile_bytes, read_rules


class _Link(NamedTuple):
    """What joins a name and its value, as `names.yaml` explains it."""

    pattern: str
    value: str
    unless: tuple[str, ...] = ()
    alone: bool = False
    begins: str = ""
    ahead: str = ""
    seen: str = ""


class Level(NamedTuple):
    """
    How much a name says: the kind of its secret, and the reasons that spare a value. No kind spares all
    values.
    """

    names: list[str]
    kind: str = ""
    unless: tuple[str, ...] = ()


_RULES = "masking/names.yaml"
_LINKS = [_Link(**link) for link in read_rules(_RULES, "links")]
HEADING: str = read_rules(_RULES, "heading")
_STEMS = "|".join(read_rules(_RULES, "stems"))
_NAMES = f"(?:{_STEMS})(?:\\.{{0,3}}[\\w-]+)*\\.?"


def _pattern(begins: str) -> str:
    links = [link.seen or link.pattern + link.ahead for link in _LINKS if link.begins == begins]
    return f"{begins}{_NAMES}(?:{'|'.join(links)})"


_BEGINS = {link.begins for link in _LINKS}
NAME_PATTERN = "|".join(sorted(map(_pattern, _BEGINS)))
_ANY = compile_bytes(NAME_PATTERN, capture=False)
_NAME = compile_bytes(f"(?:{'|'.join(sorted(_BEGINS, reverse=True))}){_NAMES}", capture=False)
_JOINS = [(compile_bytes(f"({it.pattern}){it.ahead}"), it) for it in _LINKS]
_LEVELS = [Level(**level) for level in read_rules(_RULES, "levels")]
_BY_NAME = [(compile_bytes("|".join(level.names), capture=False), level) for level in _LEVELS]
_IN_NAMES = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./[]\"' -"
_CAMEL = re.compile(rb"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_BETWEEN_WORDS = re.compile(rb"[_.:\[\]\"'/-]+")


def _begin_of_name(data: bytes, start: int) -> bytes:
    """The identifier, and up to two words, to the left of a stem."""
    before = data[max(0, start - 60) : start]
    return b" ".join(before[len(before.rstrip(_IN_NAMES)) :].split(b" ")[-3:])


@lru_cache(4_096)
def level_of(name: bytes) -> Level:
    """What a name says, from the words of its identifier."""
    words = _BETWEEN_WORDS.sub(b"_", _CAMEL.sub(b"_", name)).lower().strip(b"_ ")
    return next((level for names, level in _BY_NAME if names.search(words)), Level([]))


def level_at(data: bytes, start: int, end: int) -> Level:
    """What the name says whose stem or word stands at `start`."""
    return level_of(_begin_of_name(data, start) + data[start:end])


def _name_end(data: bytes, start: int, limit: int) -> int:
    name = _NAME.match(data, start, limit)
    return name.end() if name else limit


def _join(data: bytes, start: int, name_end: int) -> tuple[_Link, int] | None:
    """What joins the name at `start` and its value, and where the value begins; None if nothing does."""
    is_option = data.startswith(b"-", start) and not data[start - 1 : start].isalnum()
    for join, link in _JOINS:
        if bool(link.begins) == is_option and (joined := join.match(data, name_end)) is not None:
            return link, joined.end(1)
    return None


def find_named(data: bytes, checks: Checks) -> Iterator[Secret]:
    """The values behind names of secrets, in order."""
    position = 0
    while (match := _ANY.search(data, position)) is not None:
        start, position = match.span()
        if checks.are_used_up():
            position = min(len(data), position + STRETCH_BYTES)
            yield Secret(start, position, "stretch")
            continue
        position = _name_end(data, start, position)
        level = level_at(data, start, position)
        if not level.kind or (joined := _join(data, start, position)) is None:
            continue
        link, value_start = joined
        value = READERS[link.value](data, value_start)
        if value is None or value[1] <= value[0]:
            position = max(position, template_end(data, value_start))
            continue
        reasons = link.unless if link.alone and "vague" not in level.unless else (*level.unless, *link.unless)
        if not is_harmless(Candidate(data, value), reasons):
            yield Secret(*value, level.kind)
            position = value[1]
