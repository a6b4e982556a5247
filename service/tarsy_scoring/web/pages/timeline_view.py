"""
The values that `timeline.html` shows: entries under the ids that the judge cites, masked as for the judge.

A page holds some entries, each with beginning and end, so that it does not grow with the session.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
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


def show_timeline(
    timeline: Timeline,
    query: TimelineQuery,
    marks: Mapping[str, Marks],
    cut: Collection[str] = (),
    extra_patterns: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """
    Values for one page with entries that match. Blocks for a time that grows with the session.

    Args:
        marks: What the score says about entries, by id.
        cut: Ids whose entries were shortened for the judge.
        extra_patterns: How the operator's own secrets look.
    """
    sanitizer = Sanitizer(new_nonce(), timeline.agent_models, masking=masking_of(extra_patterns))
    rendering = Rendering(timeline, sanitizer)
    facts = rendering.facts
    suspicious = {injection.entry for injection in sanitizer.injections}
    failed = {entry for entry, one in facts.items() if one.failed}
    wanted = {"cited": marks, "suspicious": suspicious, "errors": failed}.get(query.show or "", facts)
    matching = [entry for entry in facts if entry in wanted]
    start = _start_of_page(matching, query.at)
    of_page = matching[start : start + ENTRIES_SHOWN]
    labels, texts = _texts(rendering, of_page)

    def shown(entry: str) -> dict[str, Any]:
        is_opened = entry == query.at
        head, tail, left_out = _shortened(texts[entry], OPENED_CHARACTERS if is_opened else TEXT_CHARACTERS)
        return {
            "entry_id": entry,
            "label": labels[entry],
            "facts": facts[entry],
            "head": head,
            "tail": tail,
            "left_out": left_out,
            "marks": marks.get(entry),
            "was_cut": entry in cut,
            "is_opened": is_opened,
            "is_suspicious": entry in suspicious,
        }

    sections = groupby(of_page, lambda entry: _place(facts[entry]))
    return {
        "status": timeline.status,
        "alert_type": timeline.alert_type,
        "has_real_times": timeline.has_real_times,
        "sections": [(place, [shown(entry) for entry in entries]) for place, entries in sections],
        "first": start + 1,
        "last": start + len(of_page),
        "matching": len(matching),
        "total": len(facts),
        "previous_at": next(iter(matching[max(0, start - ENTRIES_SHOWN) : start]), None),
        "next_at": next(iter(matching[start + ENTRIES_SHOWN :]), None),
        "cited": [entry for entry in facts if entry in marks][:MAX_IDS],
        "not_there": sorted(marks.keys() - facts.keys(), key=lambda entry: int(entry[1:]))[:MAX_IDS],
        "suspicious": [entry for entry in facts if entry in suspicious][:MAX_IDS],
        "not_shown": rendering.not_shown[:MAX_NOT_SHOWN],
        "is_at_missing": query.at is not None and query.at not in of_page,
    }


def _place(facts: EntryFacts) -> str:
    """Stage and agent in words."""
    return " · ".join(filter(None, (facts.stage, facts.execution))) or OUTSIDE


def _start_of_page(matching: Sequence[str], at: str | None) -> int:
    """Where the page begins that holds `at`, or the next entry that matches."""
    if at is None or not matching:
        return 0
    places = (place for place, entry in enumerate(matching) if int(entry[1:]) >= int(at[1:]))
    place = next(places, len(matching) - 1)
    return place - place % ENTRIES_SHOWN


def _texts(rendering: Rendering, entries: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Labels and texts by entry."""
    labels: dict[str, str] = {}
    texts: dict[str, str] = {}
    quoted = {part.place: part.quoted for part in rendering.parts}
    for entry, first, behind in rendering.entries:
        if entry in entries:
            labels[entry] = rendering.pieces[first].strip().removeprefix(f"[{entry}]").strip()
            texts[entry] = "".join(quoted.get(p, rendering.pieces[p]) for p in range(first + 1, behind))
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
