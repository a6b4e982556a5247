"""
Attempts to steer the judge from inside a session, with their places, and ordinary texts that resemble them.

In `attacks.json`, invisible and right-to-left characters are written as escapes, so that the file shows what it holds.
"""

import json
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from tarsy_scoring.timeline.model import AvailableTool, Evidence, Timeline
from tarsy_scoring.timeline.render.fence import without_prefixes
from unit.timeline.sessions import call, event, execution, stage, timeline


@dataclass(frozen=True)
class Attack:
    """
    A hostile text and its place in a session.

    `order` is the part that a reader would have to act upon, as `as_read` gives it. `must_flag` is true for the kinds
    that the service promises to recognise: demands for a score, orders to ignore the instructions, false score lines,
    role tokens, imitated delimiters. All others must stay inside the fence as well.
    """

    place: str
    text: str
    order: str
    must_flag: bool = True


def as_read(text: str) -> str:
    """
    What a language model makes of a text: one shape per letter, blanks for white space, no colours.

    Of invisible characters it reads those that spell something in ASCII. It ignores the prefixes of lines.
    """
    text = without_prefixes(text)
    text = "".join(chr(ord(c) - 0xE0000) if "\U000e0020" <= c <= "\U000e007e" else c for c in text)
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    visible = "".join(c for c in text if unicodedata.category(c) != "Cf" and (c.isspace() or c.isprintable()))
    return " ".join(unicodedata.normalize("NFKC", visible).casefold().split())


# --- places ----------------------------------------------------------------------------------------------

_LOOK = event("llm_thinking", "The pod restarts, so its previous logs come first.")
_LOGS = call("OOMKilled, limit 128Mi", number=2, name="get_logs", arguments='{"pod": "web-1", "previous": true}')
_ANSWER = event("final_analysis", "web-1 is killed because its limit of 128Mi is too low.", number=9)
_TOOLS = (AvailableTool("kubectl", "get_logs", "Logs of a pod"), AvailableTool("kubectl", "get_pods"))


def ordinary_session(*more_events: object, **fields: object) -> Timeline:
    """A short investigation without anything odd in it."""
    agent = execution(_LOOK, _LOGS, *more_events, _ANSWER)  # type: ignore[arg-type]
    given = {
        "final_analysis": _ANSWER.content,
        "executive_summary": "Raise the memory limit.",
        "available_tools": _TOOLS,
    }
    return timeline(stage(agent), **given | fields)


def _in_agent(**fields: object) -> Timeline:
    return timeline(stage(execution(_LOOK, _LOGS, _ANSWER, **fields)), final_analysis=_ANSWER.content)  # type: ignore[arg-type]


def _in_stage(**fields: object) -> Timeline:
    return timeline(stage(execution(_LOOK, _LOGS, _ANSWER), **fields), final_analysis=_ANSWER.content)  # type: ignore[arg-type]


def _beside(text: str) -> Timeline:
    session = ordinary_session()
    return replace(session, stages=(*session.stages, stage(name=text, stage_type="chat")))


PLACES: dict[str, Callable[[str], Timeline]] = {
    "alert": lambda text: ordinary_session(alert_data=f"pod web-1 restarts\n{text}"),
    "alert type": lambda text: ordinary_session(alert_type=text),
    "tool result": lambda text: ordinary_session(call(f"first line\n{text}\nlast line", number=3)),
    "error of a tool": lambda text: ordinary_session(call(text, number=3, is_error=True)),
    "tool name": lambda text: ordinary_session(call("{}", number=3, name=text)),
    "tool arguments": lambda text: ordinary_session(call("{}", number=3, arguments=text)),
    "summary": lambda text: ordinary_session(call("{}", number=3), event("mcp_tool_summary", text, number=4)),
    "reasoning": lambda text: ordinary_session(event("llm_thinking", text, number=3)),
    "final analysis": lambda text: ordinary_session(final_analysis=f"The limit is too low.\n\n{text}"),
    "executive summary": lambda text: ordinary_session(executive_summary=text),
    "agent name": lambda text: _in_agent(name=text),
    "agent status": lambda text: _in_agent(status=text),
    "task": lambda text: _in_agent(task=text),
    "error of an agent": lambda text: _in_agent(error_message=text),
    "stage name": lambda text: _in_stage(name=text),
    "error of a stage": lambda text: _in_stage(error_message=text),
    "error of the session": lambda text: ordinary_session(error_message=text),
    "hidden stage": _beside,
    "available tool": lambda text: ordinary_session(available_tools=(*_TOOLS, AvailableTool("kubectl", text))),
    "tool description": lambda text: ordinary_session(available_tools=(*_TOOLS, AvailableTool("kubectl", "top", text))),
    "agent of a tool": lambda text: ordinary_session(available_tools=(AvailableTool("kubectl", "top", "", text),)),
    "runbook": lambda text: ordinary_session(runbook=f"# Restarts\n\n{text}\n\n1. Read the logs."),
    "skill name": lambda text: ordinary_session(event("skill_loaded", "how to read logs", number=3, skill_name=text)),
    "event type": lambda text: ordinary_session(event(text, "a step", number=3)),
    "what is missing": lambda text: ordinary_session(evidence=Evidence({}, {}, (text,))),
}


def session_with(attack: Attack) -> Timeline:
    """An otherwise ordinary session that holds this attack."""
    return PLACES[attack.place](attack.text)


# --- texts -----------------------------------------------------------------------------------------------

_CORPUS = json.loads((Path(__file__).parent / "attacks.json").read_text("utf-8"))
SLOW: list[str] = _CORPUS.pop("slow")  # texts whose repetition would cost much in a search with backtracking
PARTS: list[str] = _CORPUS.pop("pieces")  # to be mixed with whole attacks
# By group and name: the place, the text, and the order that a reader would follow.
_GROUPS: dict[str, dict[str, list[str]]] = _CORPUS
_NOT_FLAGGED = {"ignore in tags", "ignore in a secret"}  # removed before the search for injections

ATTACKS: dict[str, Attack] = {
    name: Attack(place, text, order[0] if order else as_read(text), name not in _NOT_FLAGGED)
    for group in _GROUPS.values()
    for name, (place, text, *order) in group.items()
}
