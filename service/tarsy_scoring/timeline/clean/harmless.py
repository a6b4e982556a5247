"""
Decides that a value is no secret, by the reasons in `harmless.yaml`.

A value behind a secret's name is a secret unless a reason holds: it is a placeholder, a reference, a status,
a path or an ordinary word. The less a name says, the more reasons apply.
"""

import re
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any

from tarsy_scoring.timeline.clean.patterns import compile_bytes, read_rules
from tarsy_scoring.timeline.clean.values import Value


class Candidate:
    """A value that may be a secret, with the text around it. All three are cut to what the reasons need."""

    __slots__ = ("after", "before", "is_quoted", "value")

    def __init__(self, data: bytes, value: Value) -> None:
        start, end = value
        self.before = data[max(0, start - 80) : start]
        self.value = data[start : min(end, start + 400)].strip(b"\\\"' \t\r\n")
        self.after = data[end : end + 120]
        self.is_quoted = self.before.endswith((b'"', b"'", b"`", b"quot;", b"%22", b"%27"))


# --- traits ------------------------------------------------------------------------------------------------

_PARTS = re.compile(rb"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")
_CONSONANTS = re.compile(rb"[^aeiouy]{5}")
_DIGIT, _LOWER, _UPPER, _SIGN = (
    re.compile(kind) for kind in (rb"[0-9]", rb"[a-z]", rb"[A-Z]", rb"[!@#$%^*~]")
)
_UUID = re.compile(rb"(?i)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@lru_cache(256)
def is_wordy(value: bytes) -> bool:
    """Whether most letters belong to words, as in `checkout-7d9f` or `OrderServiceFactory`."""
    in_words = letters = 0.0
    for part in _PARTS.findall(value):
        letters += len(part) if part.isalpha() else len(part) / 2
        if len(part) >= 4 and part.isalpha() and _is_pronounceable(part.lower()):
            in_words += len(part)
    return in_words * 2 > letters or not letters


def _is_pronounceable(word: bytes) -> bool:
    vowels = len(word) - len(word.translate(None, b"aeiouy"))
    return 0.2 * len(word) <= vowels <= 0.7 * len(word) and _CONSONANTS.search(word) is None


def is_mixed(value: bytes) -> bool:
    """Whether a value has small letters, capitals and digits."""
    return all(kind.search(value) for kind in (_LOWER, _UPPER, _DIGIT))


@lru_cache(256)
def is_random(value: bytes) -> bool:
    """Whether a value looks generated: it mixes kinds of characters and holds no words."""
    kinds = sum(kind.search(value) is not None for kind in (_LOWER, _UPPER, _DIGIT))
    if len(value) < 6 or kinds < 2 or _UUID.fullmatch(value) or not _DIGIT.search(value):
        return len(value) >= 20 and kinds >= 2 and not is_wordy(value) and b"-" not in value
    return not is_wordy(value) or _SIGN.search(value) is not None


_TRAITS: dict[str, Callable[[Candidate], bool]] = {
    "digit": lambda it: _DIGIT.search(it.value) is not None,
    "literal": lambda it: it.is_quoted and _DIGIT.search(it.value) is not None,
    "mixed": lambda it: is_mixed(it.value),
    "quoted": lambda it: it.is_quoted,
    "random": lambda it: is_random(it.value),
    "wordy": lambda it: is_wordy(it.value),
}

# --- reasons -----------------------------------------------------------------------------------------------


class _Reason:
    """An entry in `harmless.yaml`: all conditions must hold."""

    def __init__(
        self, value: str = "", before: str = "", after: str = "", traits: Sequence[str] = ()
    ) -> None:
        self._value = compile_bytes(f"(?s:{value})", capture=False) if value else None
        # The text around a value is short, and Python's engine starts faster than RE2.
        self._before = re.compile(f"(?i:{before})\\Z".encode()) if before else None
        self._after = re.compile(after.encode()) if after else None
        self._traits = [
            (_TRAITS[trait.removeprefix("not ")], not trait.startswith("not ")) for trait in traits
        ]

    def holds(self, it: Candidate) -> bool:
        return (
            (self._after is None or self._after.match(it.after) is not None)
            and (self._before is None or self._before.search(it.before) is not None)
            and all(trait(it) is expected for trait, expected in self._traits)
            and (self._value is None or self._value.fullmatch(it.value) is not None)
        )


REASONS: dict[str, list[Any]] = read_rules("harmless.yaml", "reasons")


@cache  # few sessions need every group, and compiling all of them takes 10 ms
def reasons_of(group: str) -> list[_Reason]:
    """The reasons in a group; entries that match the whole value are joined into one pattern."""
    entries = REASONS[group]
    alone = "|".join(f"(?:{entry})" for entry in entries if isinstance(entry, str))
    others = [_Reason(**entry) for entry in entries if not isinstance(entry, str)]
    return [_Reason(alone), *others] if alone else others


def is_harmless(it: Candidate, groups: Sequence[str]) -> bool:
    """Whether a reason in these groups holds; an empty value is always harmless."""
    return not it.value or any(reason.holds(it) for group in groups for reason in reasons_of(group))
