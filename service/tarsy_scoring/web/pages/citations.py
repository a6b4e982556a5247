"""The places where a score cites the entries of its session, and the faults of citations that do not hold."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tarsy_scoring.web.pages.legible import MAX_CHARACTERS, legible

MAX_SENTENCES = 5  # shown of one entry
MAX_SENTENCE_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class Marks:
    """
    What a score says about one entry.

    Args:
        sentences: Each with the part of the score that it stands in, such as `Analysis`.
        more: Number of further sentences that cite the entry.
        failed: Citations of the entry that do not hold, as they are stored.
        quoted_elsewhere: Failed citations whose quotation, or its words, stand in this entry.
    """

    sentences: list[tuple[str, str]] = field(default_factory=list)
    more: int = 0
    failed: list[Mapping[str, Any]] = field(default_factory=list)
    quoted_elsewhere: list[Mapping[str, Any]] = field(default_factory=list)


def texts_of(document: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    """The texts of a score that may cite entries, each with the part of the score that it belongs to."""
    rubric = document["rubric"] or {}
    yield "Analysis", document["score_analysis"]
    for remark in (*rubric.get("issues", ()), *rubric.get("highlights", ())):
        yield "Analysis", remark
    for tool in document["missing_tools"]:
        yield "Missing tools", tool["rationale"]
    yield "Missing tools", document["missing_tools_analysis"]
    for approach in document["alternative_approaches"]:
        yield "Other approaches", approach["description"]


def marks_of(document: Mapping[str, Any] | None) -> dict[str, Marks]:
    """By entry id, what a score says about the entry. Empty without a score."""
    from tarsy_scoring.judge.read.grounding import citing_sentences  # loads the rules of secrets

    if document is None:
        return {}
    said: dict[str, dict[str, str]] = {}
    for place, text in texts_of(document):
        for ids, sentence in citing_sentences(legible(text)[:MAX_CHARACTERS]) if text else ():
            for entry in ids:
                said.setdefault(entry, {}).setdefault(_shortened(sentence), place)
    marks = {
        entry: Marks(
            [(place, text) for text, place in found.items()][:MAX_SENTENCES],
            max(0, len(found) - MAX_SENTENCES),
        )
        for entry, found in said.items()
    }
    for citation in (document["grounding"] or {}).get("failed", ()):
        entries = citation["entry"].split(", ") if citation["entry"] else []
        for entry in entries:
            marks.setdefault(entry, Marks()).failed.append(citation)
        if (found_in := citation["found_in"]) and found_in not in entries:
            marks.setdefault(found_in, Marks()).quoted_elsewhere.append(citation)
    return marks


def _shortened(sentence: str) -> str:
    if len(sentence) <= MAX_SENTENCE_CHARACTERS:
        return sentence
    return f"{sentence[: MAX_SENTENCE_CHARACTERS - 1]}…"
