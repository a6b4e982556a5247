"""
The values of the page of a timeline: its entries under the ids that the judge cites, masked as they are for
the judge.

A page holds a part of the entries, and of each the beginning and the end, so its size does not grow with the
session.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from tarsy_scoring.timeline.model import Timeline
from tarsy_scoring.timeline.render.fence import new_nonce
from tarsy_scoring.web.pages.citations import Marks

if TYPE_CHECKING:
    from tarsy_scoring.timeline.render.rendering import EntryFacts, Part

ENTRIES_SHOWN = 100  # on one page
TEXT_CHARACTERS, FOLDED_CHARACTERS = 2_000, 3_000  # shown of a text, and of a result that is folded
ENTRY_CHARACTERS, OPENED_CHARACTERS = (
    10_000,
    200_000,
)  # shown of all texts of an entry; of the one that is opened
MAX_TEXTS = 20  # a call with more summaries than that is shown as one text
HEAD_SHARE = 2 / 3  # of the shown characters; the end gets the rest
PREVIEW_CHARACTERS = 120
MAX_CHOICES = 200  # agents and tools in the form
MAX_CHOICE_CHARACTERS = 255  # as long as the form may send
MAX_IDS = 100  # cited ids above the list
MAX_NOT_SHOWN = 50
BEFORE, AFTER = "Before the first stage", "After the last stage"


@dataclass(frozen=True, slots=True)
class Chosen:
    """
    What a reader wants to see.

    Args:
        agent: Only entries of agents with this name; empty: of all.
        tool: Only calls of this tool; empty: all entries.
        show: Only what failed, what the score cites, or what holds suspicious text; None: all.
        at: Id of the entry to open; the page that holds it is shown. Empty: the first page.
    """

    agent: str = ""
    tool: str = ""
    show: Literal["errors", "cited", "suspicious"] | None = None
    at: str = ""


@dataclass(frozen=True, slots=True)
class Text:
    """
    One text of an entry.

    Args:
        label: Words in front of it, such as `Result, exit code 1`.
        left_out: Number of characters between `head` and `tail`.
        lines: Of the whole text.
        preview: Its first line, where it is folded.
    """

    label: str
    head: str
    tail: str = ""
    left_out: int = 0
    is_folded: bool = False
    lines: int = 0
    preview: str = ""


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """
    An entry on the page.

    Args:
        place: Stage and agent, for the heading of the entries that share them.
        was_cut: Whether it was shortened for the judge.
        is_opened: Whether the reader asked for this entry.
        is_suspicious: Whether it holds text that tries to steer the judge.
    """

    entry_id: str
    label: str
    place: str
    facts: "EntryFacts"
    texts: Sequence[Text]
    marks: Marks | None
    was_cut: bool
    is_opened: bool
    is_suspicious: bool

    @property
    def left_out(self) -> int:
        """Characters of all its texts that the page leaves out."""
        return sum(text.left_out for text in self.texts)


@dataclass(frozen=True, slots=True)
class ShownTimeline:
    """
    What the page shows of a timeline.

    Args:
        entries: Those of this page, in order.
        first: Place of the first of them among the entries that match, from 1; 0 without any.
        matching: Number of entries that match.
        total: Number of entries of the session.
        previous_at: First entry of the page before; None: this is the first page.
        next_at: First entry of the next page; None: this is the last one.
        agents: Names of the agents, in order.
        tools: Names of the called tools, sorted, with their calls.
        cited: Ids that the score cites and the session has; at most `MAX_IDS`.
        not_there: Ids that the score cites and the session does not have.
        suspicious: Ids of entries with text that tries to steer the judge; at most `MAX_IDS`.
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
    cited: Sequence[str] = ()
    not_there: Sequence[str] = ()
    suspicious: Sequence[str] = ()
    not_shown: Sequence[str] = field(default=())
    is_at_missing: bool = False

    @property
    def sections(self) -> list[tuple[str, list[TimelineEntry]]]:
        """The entries under a heading for each change of stage or agent."""
        return [(place, list(entries)) for place, entries in groupby(self.entries, lambda entry: entry.place)]


def show_timeline(
    timeline: Timeline,
    chosen: Chosen,
    marks: Mapping[str, Marks],
    cut: Collection[str] = (),
    extra_patterns: Mapping[str, str] = MappingProxyType({}),
) -> ShownTimeline:
    """
    The entries of a timeline that match, as one page of them. Blocks for a time that grows with the session.

    Args:
        marks: What the score says about entries, by id.
        cut: Ids of entries that were shortened for the judge.
        extra_patterns: The shapes of the operator's own secrets.
    """
    # The rules of secrets take 15 MB and a quarter of a second, which an API that shows no session saves.
    from tarsy_scoring.timeline.clean.masking import masking_of
    from tarsy_scoring.timeline.clean.sanitizer import Sanitizer
    from tarsy_scoring.timeline.render.rendering import Rendering

    sanitizer = Sanitizer(new_nonce(), timeline.agent_models, masking=masking_of(extra_patterns))
    rendering = Rendering(timeline, sanitizer)
    facts = rendering.facts
    parts: dict[str, list[Part]] = {entry: [] for entry in facts}
    for part in (*rendering.alert, *rendering.conversation, *rendering.reference):
        if part.entry:
            parts[part.entry].append(part)
    injected = {injection.entry for injection in sanitizer.injections}
    wanted = {"cited": marks, "suspicious": injected}.get(chosen.show or "", facts)
    matching = [entry for entry, one in facts.items() if entry in wanted and _matches(one, chosen)]
    start = _start_of_page(matching, chosen.at)
    of_page = matching[start : start + ENTRIES_SHOWN]
    cited = sorted(marks, key=lambda entry: int(entry[1:]))
    staged = next((entry for entry, one in facts.items() if one.stage), None)
    return ShownTimeline(
        status=timeline.status,
        alert_type=timeline.alert_type,
        has_real_times=timeline.has_real_times,
        entries=[
            TimelineEntry(
                entry,
                _label(entry, parts[entry][0]),
                _place(entry, facts[entry], staged),
                facts[entry],
                _texts(facts[entry], parts[entry][1:], is_opened=entry == chosen.at),
                marks.get(entry),
                was_cut=entry in cut,
                is_opened=entry == chosen.at,
                is_suspicious=entry in injected,
            )
            for entry in of_page
        ],
        first=start + 1 if of_page else 0,
        matching=len(matching),
        total=len(facts),
        previous_at=matching[max(0, start - ENTRIES_SHOWN)] if start else None,
        next_at=matching[start + ENTRIES_SHOWN] if start + ENTRIES_SHOWN < len(matching) else None,
        agents=_agents(facts.values()),
        tools=_tools(facts.values()),
        cited=[entry for entry in cited if entry in facts][:MAX_IDS],
        not_there=[entry for entry in cited if entry not in facts][:MAX_IDS],
        suspicious=[entry for entry in facts if entry in injected][:MAX_IDS],
        not_shown=rendering.not_shown[:MAX_NOT_SHOWN],
        is_at_missing=bool(chosen.at) and chosen.at not in of_page,
    )


def _matches(facts: "EntryFacts", chosen: Chosen) -> bool:
    return (
        (not chosen.agent or facts.agent[:MAX_CHOICE_CHARACTERS].strip() == chosen.agent)
        and (not chosen.tool or facts.tool[:MAX_CHOICE_CHARACTERS].strip() == chosen.tool)
        and (chosen.show != "errors" or facts.failed)
    )


def _start_of_page(matching: Sequence[str], at: str) -> int:
    """Place of the first entry of the page that holds `at`, or the next entry after it that matches."""
    if not at or not matching:
        return 0
    number = int(at[1:])
    place = next(
        (place for place, entry in enumerate(matching) if int(entry[1:]) >= number), len(matching) - 1
    )
    return place - place % ENTRIES_SHOWN


def _agents(facts: Iterable["EntryFacts"]) -> list[str]:
    names = dict.fromkeys(one.agent[:MAX_CHOICE_CHARACTERS].strip() for one in facts if one.agent)
    return list(names)[:MAX_CHOICES]


def _tools(facts: Iterable["EntryFacts"]) -> list[tuple[str, int]]:
    calls: dict[str, int] = {}
    for one in facts:
        if one.tool:
            name = one.tool[:MAX_CHOICE_CHARACTERS].strip()
            calls[name] = calls.get(name, 0) + 1
    return sorted(calls.items())[:MAX_CHOICES]


# --- one entry -----------------------------------------------------------------------------------------


def _label(entry: str, heading: "Part") -> str:
    return heading.text.strip().removeprefix(f"[{entry}]").strip()


def _place(entry: str, facts: "EntryFacts", staged: str | None) -> str:
    """Stage and agent in words. Args: staged: The first entry of a stage; None: there is none."""
    if facts.stage:
        return " · ".join(filter(None, (facts.stage, facts.execution)))
    return BEFORE if staged is None or int(entry[1:]) < int(staged[1:]) else AFTER


def _texts(facts: "EntryFacts", parts: Sequence["Part"], *, is_opened: bool) -> list[Text]:
    """The texts of an entry, each cut to what the page shows of it."""
    raw = _labelled(parts) if facts.tool else []
    if parts and not 0 < len(raw) <= MAX_TEXTS:
        raw = [("", "".join(part.quoted or part.text for part in parts), _folds(parts))]
    room = OPENED_CHARACTERS if is_opened else ENTRY_CHARACTERS
    texts = []
    for words, whole, is_folded in raw:
        most = room if is_opened else min(room, FOLDED_CHARACTERS if is_folded else TEXT_CHARACTERS)
        texts.append(_text(words, whole, most, is_folded=is_folded))
        room -= min(most, len(whole))
    return texts


def _labelled(parts: Sequence["Part"]) -> list[tuple[str, str, bool]]:
    """The texts of a call, each with the words in front of it and whether it is folded."""
    from tarsy_scoring.timeline.render.rendering import CUT_MARK

    texts: list[tuple[str, str, bool]] = []
    words = ""
    for part in parts:
        if not part.quoted:
            words += part.text
            continue
        texts.append((words.strip().removesuffix(":"), part.quoted, _folds([part])))
        words = ""
    if words.strip() == CUT_MARK.strip() and texts:
        label, text, is_folded = texts.pop()  # the mark ends the result
        words, texts = "", [*texts, (label, text + words, is_folded)]
    return [*texts, ("", words, False)] if words.strip() else texts


def _folds(parts: Sequence["Part"]) -> bool:
    """
    Whether these are a result or a list of tools: long, and rarely read from the first line to the last.
    """
    from tarsy_scoring.timeline.render.rendering import Rank

    is_list = len(parts) > 1 and all(part.inline for part in parts if part.quoted)
    return is_list or any(part.rank in (Rank.RESULT, Rank.SUMMARISED_RESULT) for part in parts)


def _text(label: str, whole: str, most: int, *, is_folded: bool) -> Text:
    whole = whole.strip("\n")
    lines = whole.count("\n") + 1
    preview = next((line.strip() for line in whole[:FOLDED_CHARACTERS].splitlines() if line.strip()), "")
    preview = preview if len(preview) <= PREVIEW_CHARACTERS else f"{preview[: PREVIEW_CHARACTERS - 1]}…"
    if len(whole) <= most:
        return Text(label, whole, is_folded=is_folded, lines=lines, preview=preview)
    head = int(most * HEAD_SHARE)
    tail = whole[len(whole) - (most - head) :]
    return Text(label, whole[:head], tail, len(whole) - head - len(tail), is_folded, lines, preview)
