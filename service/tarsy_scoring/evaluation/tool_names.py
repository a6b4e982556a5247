"""
Merges spellings of tool names that mean the same tool.

Merging is cautious: a wrong merge hides a missing tool, while a missed merge only lists a tool twice.
"""

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tarsy_scoring.config.packaged import packaged_yaml
from tarsy_scoring.timeline.text import without_invisible

LONGEST_COMPARED = 100  # models invent names; a longer one is a sentence

_SEPARATORS = re.compile(r"[\s_-]+")
_WORD_BREAKS = re.compile(r"[\W_]+|(?<=[a-z])(?=[A-Z])|(?<=[0-9])(?=[A-Z][a-z])")

SAME_WORD: Mapping[str, str] = packaged_yaml(__package__, "same_words.yaml")


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool: the most used spelling, and all spellings with their counts, the most used first."""

    name: str
    spellings: tuple[tuple[str, int], ...]


def normalise(name: str) -> str:
    """
    The name without case, spaces, hyphens, underscores and invisible characters.

    A name that would become empty is returned unchanged.
    """
    return _SEPARATORS.sub("", _visible(name).casefold()) or name


def bare(name: str) -> str:
    """The tool of a name that may begin with the server: `logs` for `loki.logs`."""
    return name.rpartition(".")[2] or name


def merge_spellings(
    counts: Mapping[str, int],
    decided: Mapping[str, str] = MappingProxyType({}),
    standing: Collection[str] = (),
) -> list[Tool]:
    """
    Merge spellings into tools, the most used first.

    Decisions about a name always apply. Among the other names, equal ones are merged, then similar ones:
    their words are pairwise the same (`SAME_WORD`) or differ by a plural.

    Args:
        counts: Uses of each spelling.
        decided: Tool by name. A name that maps to itself stays separate: it joins no tool and no name joins
            it.
        standing: Tools that keep their names and join no other tool, like those in `decided`. Similar names
            join them first.
    """
    tool_of = {normalise(name): normalise(tool) for name, tool in decided.items()}
    apart = {key for key, tool in tool_of.items() if key == tool}
    named = {normalise(name): name for name in (*decided, *standing, *decided.values())}
    groups: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for spelling, used in counts.items():
        groups[root_of(normalise(spelling), tool_of)][spelling] += used
    used_names = ((name, _by_use(group)) for name, group in _merge_similar(groups, named, apart))
    tools = [Tool(name or spellings[0][0], tuple(spellings)) for name, spellings in used_names if spellings]
    return sorted(tools, key=lambda tool: (-sum(used for _, used in tool.spellings), tool.name))


def _merge_similar(
    groups: Mapping[str, Counter[str]], named: Mapping[str, str], apart: Container[str]
) -> list[tuple[str | None, Counter[str]]]:
    """Merge each group of equal names into the most used group that it resembles; named ones stay."""
    leaders: list[tuple[str | None, Counter[str]]] = []
    by_words: dict[str, int] = {}
    for key, group in sorted(
        groups.items(), key=lambda item: (item[0] not in named, -item[1].total(), item[0])
    ):
        own = [spelling for spelling in group if normalise(spelling) == key]
        words = _words([*own, named[key]] if key in named else own)
        is_compared = key not in apart and 0 < len(words) <= LONGEST_COMPARED
        if is_compared and key not in named and words in by_words:
            leaders[by_words[words]][1].update(group)
            continue
        if is_compared:
            by_words.setdefault(words, len(leaders))
        leaders.append((named.get(key), group))
    return leaders


def _visible(name: str) -> str:
    """The visible part of a name in compatibility form; white space stays, because it separates words."""
    if name.isascii() and name.isprintable():
        return name
    seen = without_invisible(unicodedata.normalize("NFKC", name))
    return "".join(c for c in seen if c.isspace() or unicodedata.category(c) not in {"Cc", "Cf"})


def root_of(key: str, tool_of: Mapping[str, str]) -> str:
    """The key at which a chain of decisions ends; in a circle, the first name in alphabetical order."""
    path = [key]
    while (following := tool_of.get(path[-1], path[-1])) not in path:
        path.append(following)
    return min(path[path.index(following) :])


def _by_use(group: Counter[str]) -> list[tuple[str, int]]:
    return sorted(group.items(), key=lambda item: (-item[1], item[0]))


def _words(spellings: Iterable[str]) -> str:
    """The words of the spelling with the most words, in the singular; `getpodlogs` has one word."""
    split = ([w.casefold() for w in _WORD_BREAKS.split(_visible(s)) if w] for s in spellings)
    most: list[str] = max(split, key=lambda words: (len(words), words))
    singular = (_PLURAL.sub(lambda end: "y" if end["y"] else "", SAME_WORD.get(word, word)) for word in most)
    return " ".join(singular)


_PLURAL = re.compile(r"(?<=[a-z]{2})(?:(?P<y>ies)|(?<=s|x|z|h)es|(?<!s)s)$")
