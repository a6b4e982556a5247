"""
Names of tools as different hands write them: which spellings mean the same tool.

Pure. Careful: what is merged wrongly hides a wish, what stays apart is only listed twice.
"""

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from rapidfuzz import process
from rapidfuzz.distance import OSA, Indel

from tarsy_scoring.timeline.text import without_invisible

# A slip of the pen is believed only in a long word, and only where it makes no other word by itself: two neighbours
# that changed places, or, in still longer words, a letter inside that is lacking or too many. Another letter in place
# of one is believed nowhere (content and context, exported and exporter), nor is one at the end (compute, computer).
SHORTEST_SWAPPED = 7
SHORTEST_LACKING = 9
# A name as a whole may be this many letters off, however many words it has.
FARTHEST = 3
# Names are made up by models. What is longer is a sentence; comparing two of them costs with both their lengths.
LONGEST_COMPARED = 100

_SEPARATORS = re.compile(r"[\s_-]+")
_WORD_BREAKS = re.compile(r"[\W_]+|(?<=[a-z])(?=[A-Z])|(?<=[0-9])(?=[A-Z][a-z])")
_DIGITS = re.compile(r"\d+")

# Short forms and verbs that nobody means anything else by. What may mean two things (`auth`, `read`) stays as it is.
SAME_WORD = {
    "k8s": "kubernetes",
    "prom": "prometheus",
    "pg": "postgresql",
    "postgres": "postgresql",
    "db": "database",
    "dbs": "databases",
    "config": "configuration",
    "configs": "configurations",
    "repo": "repository",
    "repos": "repositories",
    "fetch": "get",
    "retrieve": "get",
}


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
    return _SEPARATORS.sub("", _visible(name).casefold()) or name


def bare(name: str) -> str:
    """The tool of a name that may begin with its server: `logs` for `loki.logs`."""
    return name.rpartition(".")[2] or name


def merge_spellings(
    counts: Mapping[str, int], decided: Mapping[str, str] = MappingProxyType({}), standing: Collection[str] = ()
) -> list[Tool]:
    """
    Tools out of spellings, the most used first.

    What was decided about a name stands. Of the others equal names are merged, then similar ones: words in the same
    order that are the same (`SAME_WORD`), differ by their plural or by one slip in a long word, after its first letter;
    other numbers are other tools. A rarer name joins the most used one that it resembles, and
    nothing joins through it: chains of small steps lead nowhere.

    Args:
        counts: How often each spelling was used.
        decided: Name -> the tool that it belongs to; to itself: it is kept apart, joins nothing and nothing joins it.
        standing: Tools that keep their names and join nothing by themselves, as those in `decided`; what resembles
            them joins them before any other.
    """
    tool_of = {normalise(name): normalise(tool) for name, tool in decided.items()}
    apart = {key for key, tool in tool_of.items() if key == tool}
    named = {normalise(name): name for name in (*decided, *standing, *decided.values())}
    groups: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for spelling, used in counts.items():
        groups[_root(normalise(spelling), tool_of)][spelling] += used
    leaders: list[tuple[str | None, Counter[str]]] = []
    by_block: defaultdict[tuple[str, ...], dict[int, str]] = defaultdict(dict)
    for key, group in sorted(groups.items(), key=lambda item: (item[0] not in named, -item[1].total(), item[0])):
        own = [spelling for spelling in group if normalise(spelling) == key]
        words = _words([*own, named[key]] if key in named else own)
        is_compared = key not in apart and 0 < len(words) <= LONGEST_COMPARED
        known = by_block[_block(words)] if is_compared else {}
        if key not in named and (leader := _leader(words, known)) is not None:
            leaders[leader][1].update(group)
        else:
            known[len(leaders)] = words
            leaders.append((named.get(key), group))
    used_names = ((name, _by_use(group)) for name, group in leaders)
    tools = [Tool(name or spellings[0][0], tuple(spellings)) for name, spellings in used_names if spellings]
    return sorted(tools, key=lambda tool: (-sum(used for _, used in tool.spellings), tool.name))


def _visible(name: str) -> str:
    """What a reader sees of a name, each character in its plain form; what ends a word stays."""
    seen = without_invisible(unicodedata.normalize("NFKC", name))
    return "".join(c for c in seen if c.isspace() or unicodedata.category(c) not in {"Cc", "Cf"})


def _root(key: str, tool_of: Mapping[str, str]) -> str:
    """Where a name ends up that was joined to one that was joined itself; of a circle, the first by name."""
    path = [key]
    while (following := tool_of.get(path[-1], path[-1])) not in path:
        path.append(following)
    return min(path[path.index(following) :])


def _by_use(group: Counter[str]) -> list[tuple[str, int]]:
    return sorted(group.items(), key=lambda item: (-item[1], item[0]))


def _words(spellings: Iterable[str]) -> str:
    """The words of the spelling that shows most of them, with spaces between; `getpodlogs` shows one."""
    split = ([w.casefold() for w in _WORD_BREAKS.split(_visible(s)) if w] for s in spellings)
    most: list[str] = max(split, key=lambda words: (len(words), words))
    return " ".join(SAME_WORD.get(word, word) for word in most)


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
    return short == long or _is_plural(short, long) or _is_slip(short, long)


def _is_slip(short: str, long: str) -> bool:
    if len(short) == len(long):
        are_swapped = sorted(short) == sorted(long) and OSA.distance(short, long, score_cutoff=1) == 1
        return are_swapped and len(short) >= SHORTEST_SWAPPED
    is_at_the_end = long.startswith(short)
    return len(short) >= SHORTEST_LACKING and not is_at_the_end and Indel.distance(short, long, score_cutoff=1) == 1


def _is_plural(one: str, many: str) -> bool:
    return len(one) >= 3 and many in {one + "s", one + "es", one.removesuffix("y") + "ies"}
