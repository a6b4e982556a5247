"""
Finds what a session's record silently lacks: the ends of results, and all tool calls.

A whole result that is called cut misleads the judge, so the rules rather miss a cut result.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tarsy_scoring.timeline.model import Event, Timeline

_SHORTEST_CUT = 100  # characters; texts of a form, such as statuses, often have one length below
_ENDING = 12  # characters whose form is compared: results of one form end alike, results that were cut do not
_TAIL = 300  # characters at the end that may hold a marker; TARSy's takes about 100
_OPEN_ENDS = frozenset(" ,:=-_/\\|\"'([{<")
_DIGITS_AND_LETTERS = re.compile(r"(\d)|[^\W\d_]")
_MARKER = re.compile(  # `[truncated 512 chars]`, `<output truncated>`, `[TRUNCATED: ...]`, `... truncated`
    r"(?:[\[(<][^\w/]{0,5}(?:(?:output|result|response|text|content|logs?|data) (?:was |is )?|[1-9][\d,.]* \w+ )?"
    r"truncated\b(?!\W{0,3}(?:false|no|0)\b)[^\])>\n]{0,200}[\])>]|(?:\.\.\.|…) ?(?:output )?truncated\.?)$",
    re.IGNORECASE,
)
_FINAL_TEXTS = frozenset({"final_analysis", "llm_response"})
_WITHOUT_WORK = _FINAL_TEXTS | {
    "executive_summary",
    "error",
    "task_assigned",
    "user_question",
    "provider_fallback",
}


@dataclass(frozen=True, slots=True)
class RecordGaps:
    """
    What the record lacks in shown stages.

    `cut` holds the calls whose result is cut, equal ones once; `cut_results` counts them, and
    `at_common_length` counts results that are `common_length` characters long. `calls_recorded` is False if an
    investigation is recorded as final texts alone: without a step, and without a list of tools that would
    show that the agents had some.
    """

    cut: frozenset[Event]
    cut_results: int
    common_length: int | None
    at_common_length: int
    calls_recorded: bool


def find_gaps(timeline: Timeline) -> RecordGaps:
    """
    Look for cut results and unrecorded calls, in linear time.

    Source: 47 of 91 recorded sessions hold 558 cut results among 1,905, 555 of the common length and 3 with a
    marker. 21 sessions hold final texts alone.
    """
    events = timeline.shown_events
    calls = [event for event in events if event.event_type == "llm_tool_call"]
    length = _common_length(calls)
    # Lists: hashing an event reads all the text each time.
    of_length = [e for e in calls if _is_at_length(e, length)]
    cut = [e for e in calls if _is_at_length(e, length) or _has_marker(e.content)]
    return RecordGaps(
        cut=frozenset(cut),
        cut_results=len(cut),
        common_length=length,
        at_common_length=len(of_length),
        calls_recorded=not _is_final_text_alone(timeline, events),
    )


def _is_final_text_alone(timeline: Timeline, events: Sequence[Event]) -> bool:
    investigates = any(stage.stage_type == "investigation" for stage in timeline.shown_stages)
    if timeline.available_tools or not investigates or any(e.event_type not in _WITHOUT_WORK for e in events):
        return False
    return any(e.event_type in _FINAL_TEXTS and e.content.strip() for e in events)


def _common_length(calls: Sequence[Event]) -> int | None:
    """
    The length at which results were cut: the greatest, if texts with this length end in different forms.

    Two of them suffice where a person would have chosen the number.
    """
    length = max((len(e.content) for e in calls if not _is_error(e)), default=0)
    if length < _SHORTEST_CUT:
        return None
    texts = {e.content for e in calls if _is_at_length(e, length)}
    open_ends = _open_endings(texts)
    forms = set(map(_form, open_ends))
    is_chosen = length % 100 == 0 or length & (length - 1) == 0
    return length if 2 * len(open_ends) > len(texts) and len(forms) >= (2 if is_chosen else 3) else None


def _is_error(call: Event) -> bool:
    return call.tool is not None and bool(call.tool.is_error)


def _is_at_length(call: Event, length: int | None) -> bool:
    """Whether the result has this length and the agent did not ask for it."""
    return len(call.content) == length and not _asks_for(call, len(call.content))


def _open_endings(texts: Iterable[str]) -> list[str]:
    """The last characters of texts that end inside a word or a clause."""
    return [text[-_ENDING:] for text in texts if text[-1].isalnum() or text[-1] in _OPEN_ENDS]


def _form(ending: str) -> str:
    """The ending with each digit and each letter alike."""
    return _DIGITS_AND_LETTERS.sub(lambda found: "0" if found[1] else "a", ending)


def _asks_for(event: Event, length: int) -> bool:
    """Whether the arguments name this length, as `head -c 500` does."""
    return event.tool is not None and re.search(rf"(?<!\d){length}(?!\d)", event.tool.arguments) is not None


def _has_marker(text: str) -> bool:
    tail = text[-_TAIL:].rstrip()
    return "truncated" in tail.lower() and _MARKER.search(tail) is not None
