"""
Names of tools as different hands write them: which spellings mean the same tool.

Pure. Careful: what is merged wrongly hides a wish, what stays apart is only listed twice.
"""

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rapidfuzz import process
from rapidfuzz.distance import OSA

# One slip of the pen is believed only in a long word: cpu and gpu, set and get are no misspellings of each other.
SHORTEST_MISSPELT = 7
# A name as a whole may be this many letters off, however many words it has.
FARTHEST = 3
# Names are made up by models. What is longer is a sentence; comparing two of them costs with both their lengths.
LONGEST_COMPARED = 100

_SEPARATORS = re.compile(r"[\s_-]+")
_WORD_BREAKS = re.compile(r"[\W_]+|(?<=[a-z0-9])(?=[A-Z])")
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool: its most used spelling, and all of them with their counts, the most used first."""

    name: str
    spellings: tuple[tuple[str, int], ...]


def normalise(name: str) -> str:
    """
    What spellings of one name have in common: no case, spaces, hyphens, underscores or invisible characters.

    A name of nothing else is left as it is.
    """
    visible = "".join(c for c in unicodedata.normalize("NFKC", name) if unicodedata.category(c) not in {"Cc", "Cf"})
    return _SEPARATORS.sub("", visible.casefold()) or name


def bare(name: str) -> str:
    """The tool of a name that may begin with its server: `logs` for `loki.logs`."""
    return name.rpartition(".")[2] or name


def merge_spellings(counts: Mapping[str, int]) -> list[Tool]:
    """
    Tools out of spellings, the most used first.

    Equal names are merged, then similar ones: words in the same order that differ by their plural or, from
    `SHORTEST_MISSPELT` letters on, by one slip after the first letter; other numbers are other tools. A rarer name
    joins the most used one that it resembles, and nothing joins through it: chains of small steps lead nowhere.

    Args:
        counts: How often each spelling was used.
    """
    groups: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for spelling, used in counts.items():
        groups[normalise(spelling)][spelling] += used
    leaders: list[Counter[str]] = []
    by_block: defaultdict[tuple[str, ...], dict[int, str]] = defaultdict(dict)
    for _, group in sorted(groups.items(), key=lambda item: (-item[1].total(), item[0])):
        words = _words(group)
        known = by_block[_block(words)] if 0 < len(words) <= LONGEST_COMPARED else {}
        if (leader := _leader(words, known)) is not None:
            leaders[leader].update(group)
        else:
            known[len(leaders)] = words
            leaders.append(group)
    tools = [Tool(spellings[0][0], tuple(spellings)) for group in leaders if (spellings := _by_use(group))]
    return sorted(tools, key=lambda tool: (-sum(used for _, used in tool.spellings), tool.name))


def _by_use(group: Counter[str]) -> list[tuple[str, int]]:
    return sorted(group.items(), key=lambda item: (-item[1], item[0]))


def _words(spellings: Iterable[str]) -> str:
    """The words of the spelling that shows most of them, with spaces between; `getpodlogs` shows one."""
    split = ([w.casefold() for w in _WORD_BREAKS.split(unicodedata.normalize("NFKC", s)) if w] for s in spellings)
    most: list[str] = max(split, key=lambda words: (len(words), words))
    return " ".join(most)


def _block(words: str) -> tuple[str, ...]:
    """Equal wherever two names can be similar, so that few are compared: the first letters, and all numbers."""
    return (*(word[0] for word in words.split()), "/", *_DIGITS.findall(words))


def _leader(words: str, known: Mapping[int, str]) -> int | None:
    """The first of the known names, all of as many words, that resembles this one."""
    near = process.extract(words, known, scorer=OSA.distance, processor=None, score_cutoff=FARTHEST, limit=None)
    resembling = (n for other, _, n in near if all(map(_is_same_word, words.split(), other.split())))
    return min(resembling, default=None)


def _is_same_word(first: str, second: str) -> bool:
    short, long = sorted((first, second), key=len)
    if short == long or _is_plural(short, long):
        return True
    return len(short) >= SHORTEST_MISSPELT and OSA.distance(first, second, score_cutoff=1) <= 1


def _is_plural(one: str, many: str) -> bool:
    return len(one) >= 3 and many in {one + "s", one + "es", one.removesuffix("y") + "ies"}
