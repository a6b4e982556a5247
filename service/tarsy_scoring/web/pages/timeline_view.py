"""
The values that `timeline.html` shows: entries under the ids that the judge cites, masked as for the judge.

A page holds some entries, each with beginning and end, so that it does not grow with the session.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from types import MappingProxyType
from typing import Any

from tarsy_scoring.judge.read.grounding import citing_sentences
from tarsy_scoring.timeline.clean.masking import masking_of
from tarsy_scoring.timeline.clean.sanitizer import Sanitizer
from tarsy_scoring.timeline.model import Timeline
from tarsy_scoring.timeline.render.fence import new_nonce
from tarsy_scoring.timeline.render.parts import EntryFacts
from tarsy_scoring.timeline.render.rendering import Rendering
from tarsy_scoring.web.pages.legible import MAX_CHARACTERS, legible
from tarsy_scoring.web.queries import TimelineQuery

ENTRIES_SHOWN = 100  # on one page
TEXT_CHARACTERS, OPENED_CHARACTERS = 3_000, 200_000  # shown per entry; of the opened one
HEAD_SHARE = 2 / 3  # the end gets the rest
MAX_SENTENCES, MAX_SENTENCE_CHARACTERS = 5, 300  # shown per entry
MAX_CHOICES, MAX_CHOICE_CHARACTERS = 200, 255  # agents and tools in the form; it may send as many characters
MAX_IDS = 100  # cited ids above the list
MAX_NOT_SHOWN = 50
OUTSIDE = "Outside of stages"


@dataclass(frozen=True, slots=True)
class Marks:
    """
    What a score says about one entry.

    Args:
        sentences: Each with the part that it stands in, such as `Analysis`.
        failed: Citations that do not hold, as stored.
    """

    sentences: list[tuple[str, str]] = field(default_factory=list)
    failed: list[Mapping[str, Any]] = field(default_factory=list)

    def say(self, place: str, sentence: str) -> None:
        """Keep a sentence that cites the entry, unless there are enough."""
        if len(self.sentences) < MAX_SENTENCES and (place, sentence) not in self.sentences:
            self.sentences.append((place, sentence))


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """
    An entry on the page.

    Args:
        head: The text, or the beginning if characters are `left_out` before `tail`.
        was_cut: Whether it was shortened for the judge.
        is_opened: Whether the reader asked for this entry.
        is_suspicious: Whether it holds text that tries to steer the judge.
    """

    entry_id: str
    label: str
    facts: EntryFacts
    head: str
    tail: str
    left_out: int
    marks: Marks | None
    was_cut: bool
    is_opened: bool
    is_suspicious: bool

    @property
    def place(self) -> str:
        """Stage and agent in words."""
        return " · ".join(filter(None, (self.facts.stage, self.facts.execution))) or OUTSIDE


@dataclass(frozen=True, slots=True)
class ShownTimeline:
    """
    What the page shows.

    Args:
        entries: Those on this page, in order.
        first: Place of the first one among all that match, from 1; 0 without any.
        matching, total: How many entries match, and how many there are.
        previous_at, next_at: First entry on the page before and after; None: there is no such page.
        agents: Agent names, in order.
        tools: Called tools, sorted, with their calls.
        cited, not_there: Ids that the score cites, which the session has or does not have.
        suspicious: Ids of entries whose text tries to steer the judge.
        not_shown: What the judge was not shown, in words.
        is_at_missing: The entry to open does not match, or does not exist.
    """

    status: str
    alert_type: str | None
    has_real_times: bool
    entries: Sequence[TimelineEntry]
    first: int
    matching: int
    total: int
    previous_at: str | None
    next_at: str | None
    agents: Sequence[str]
    tools: Sequence[tuple[str, int]]
    cited: Sequence[str]
    not_there: Sequence[str]
    suspicious: Sequence[str]
    not_shown: Sequence[str]
    is_at_missing: bool

    @property
    def sections(self) -> list[tuple[str, list[TimelineEntry]]]:
        """The entries grouped by stage and agent."""
        return [(place, list(entries)) for place, entries in groupby(self.entries, lambda entry: entry.place)]


def show_timeline(
    timeline: Timeline,
    query: TimelineQuery,
    marks: Mapping[str, Marks],
    cut: Collection[str] = (),
    extra_patterns: Mapping[str, str] = MappingProxyType({}),
) -> ShownTimeline:
    """
    One page with entries that match. Blocks for a time that grows with the session.

    Args:
        marks: What the score says about entries, by id.
        cut: Ids whose entries were shortened for the judge.
        extra_patterns: How the operator's own secrets look.
    """
    sanitizer = Sanitizer(new_nonce(), timeline.agent_models, masking=masking_of(extra_patterns))
    rendering = Rendering(timeline, sanitizer)
    facts = rendering.facts
    suspicious = {injection.entry for injection in sanitizer.injections}
    wanted = {"cited": marks, "suspicious": suspicious}.get(query.show or "", facts)
    matching = [entry for entry, one in facts.items() if entry in wanted and _matches(one, query)]
    start = _start_of_page(matching, query.at)
    of_page = matching[start : start + ENTRIES_SHOWN]
    labels, texts = _texts(rendering, of_page)

    def shown(entry: str) -> TimelineEntry:
        is_opened = entry == query.at
        head, tail, left_out = _shortened(texts[entry], OPENED_CHARACTERS if is_opened else TEXT_CHARACTERS)
        mark, is_bad = marks.get(entry), entry in suspicious
        return TimelineEntry(
            entry, labels[entry], facts[entry], head, tail, left_out, mark, entry in cut, is_opened, is_bad
        )

    return ShownTimeline(
        status=timeline.status,
        alert_type=timeline.alert_type,
        has_real_times=timeline.has_real_times,
        entries=[shown(entry) for entry in of_page],
        first=start + 1 if of_page else 0,
        matching=len(matching),
        total=len(facts),
        previous_at=next(iter(matching[max(0, start - ENTRIES_SHOWN) : start]), None),
        next_at=next(iter(matching[start + ENTRIES_SHOWN :]), None),
        agents=_agents(facts),
        tools=_tools(facts),
        cited=_listed(facts, marks),
        not_there=_listed(sorted(marks, key=lambda entry: int(entry[1:])), marks.keys() - facts.keys()),
        suspicious=_listed(facts, suspicious),
        not_shown=rendering.not_shown[:MAX_NOT_SHOWN],
        is_at_missing=query.at is not None and query.at not in of_page,
    )


def _listed(entries: Iterable[str], wanted: Collection[str]) -> list[str]:
    return [entry for entry in entries if entry in wanted][:MAX_IDS]


def _agents(facts: Mapping[str, EntryFacts]) -> list[str]:
    return list(dict.fromkeys(_choice(one.agent) for one in facts.values() if one.agent))[:MAX_CHOICES]


def _choice(name: str) -> str:
    return name[:MAX_CHOICE_CHARACTERS].strip()


def _matches(facts: EntryFacts, query: TimelineQuery) -> bool:
    return (
        query.agent in (None, _choice(facts.agent))
        and query.tool in (None, _choice(facts.tool))
        and (query.show != "errors" or facts.failed)
    )


def _start_of_page(matching: Sequence[str], at: str | None) -> int:
    """Where the page begins that holds `at`, or the next entry that matches."""
    if at is None or not matching:
        return 0
    places = (place for place, entry in enumerate(matching) if int(entry[1:]) >= int(at[1:]))
    place = next(places, len(matching) - 1)
    return place - place % ENTRIES_SHOWN


def _tools(facts: Mapping[str, EntryFacts]) -> list[tuple[str, int]]:
    calls: dict[str, int] = {}
    for one in facts.values():
        if one.tool:
            calls[_choice(one.tool)] = calls.get(_choice(one.tool), 0) + 1
    return sorted(calls.items())[:MAX_CHOICES]


def _texts(rendering: Rendering, entries: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Labels and texts by entry; the first part of an entry is the heading."""
    labels: dict[str, str] = {}
    texts = dict.fromkeys(entries, "")
    for part in (*rendering.alert, *rendering.conversation, *rendering.reference):
        if part.entry not in texts:
            continue
        if part.entry in labels:
            texts[part.entry] += part.quoted or part.text
        else:
            labels[part.entry] = part.text.strip().removeprefix(f"[{part.entry}]").strip()
    return labels, texts


def _shortened(text: str, most: int) -> tuple[str, str, int]:
    """Beginning, end, and the number of characters between them."""
    text = text.strip("\n")
    if len(text) <= most:
        return text, "", 0
    head = int(most * HEAD_SHARE)
    return text[:head], text[len(text) - (most - head) :], len(text) - most


# --- what a score says about entries ---------------------------------------------------------------------


def marks_of(document: Mapping[str, Any] | None) -> dict[str, Marks]:
    """By entry id, what a score says about the entry. Empty without a score."""
    if document is None:
        return {}
    marks: defaultdict[str, Marks] = defaultdict(Marks)
    for place, text in _texts_of(document):
        for ids, sentence in citing_sentences(legible(text)[:MAX_CHARACTERS]):
            for entry in ids:
                marks[entry].say(place, sentence[:MAX_SENTENCE_CHARACTERS])
    for citation in (document["grounding"] or {}).get("failed", ()):
        for entry in filter(None, (citation["entry"] or "").split(", ")):
            marks[entry].failed.append(citation)
    return dict(marks)


def _texts_of(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Texts that may cite entries, each with the part that they stand in."""
    yield "Analysis", document["score_analysis"] or ""  # also a rubric's issues and highlights
    for tool in document["missing_tools"]:
        yield "Missing tools", tool["rationale"]
    yield "Missing tools", document["missing_tools_analysis"] or ""
    for approach in document["alternative_approaches"]:
        yield "Other approaches", approach["description"]
