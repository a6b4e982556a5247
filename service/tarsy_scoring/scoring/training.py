"""
Training material: exported scores with their sessions, as chats in which agents work, for fine-tuning tools.

A line has `messages`: the alert, what the agents said, their tool calls with the results, and the final
analysis as the answer; and `tools`. Our own fields stand beside them under names to which OpenAI, TRL and
Axolotl give no meaning (`labels`, for one, would replace the tokens to be learned in TRL). What differs from
score to score is one text of JSON: loaders derive the type of each column from the first lines, and refuse a
nested object with other keys.
"""

import asyncio
import re
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json

from tarsy_scoring.errors import CallerRefused, TimelineUnavailable, Unscorable
from tarsy_scoring.labels.labels import last_labels
from tarsy_scoring.postgres.database import Database
from tarsy_scoring.scores.export import ExportedScore
from tarsy_scoring.timeline.clean.masking import Masking
from tarsy_scoring.timeline.clean.sanitizer import Sanitizer
from tarsy_scoring.timeline.model import AvailableTool, Event, Timeline, TimelineSource, ToolCall
from tarsy_scoring.timeline.render.rendering import SUBMITS

READ_TIMEOUT_S = 60.0
TASK = "Investigate the alert with the tools. Conclude with your analysis: the cause, and what shows it."
_ROLES = {"llm_thinking": "assistant", "llm_response": "assistant", "final_analysis": "assistant"}
_ROLES |= dict.fromkeys(("task_assigned", "user_question", "skill_loaded", "memory_injected"), "user")


@dataclass(frozen=True, slots=True)
class Line:
    """
    The line of one score.

    Args:
        text: Encoded, with the line end; empty if the score is left out.
        why_not: Why it is left out; empty if it is not.
    """

    text: bytes = b""
    why_not: str = ""


async def training_lines(
    batches: AsyncIterable[Sequence[ExportedScore]],
    database: Database,
    source: TimelineSource,
    masking: Masking,
) -> AsyncIterator[Line]:
    """
    Read the session of each score, one after another, and make the line.

    Raises:
        TimelineUnavailable: The source is away; lines made before are valid.
        DatabaseAway: See `Database.once`.
    """
    async for batch in batches:
        labels = await last_labels(database, [score.document["score_id"] for score in batch])
        for score in batch:
            session_id = score.document["session_id"]
            try:
                async with asyncio.timeout(READ_TIMEOUT_S):
                    timeline = await source.fetch_timeline(session_id)
                chat = await asyncio.to_thread(chat_of, timeline, masking)
                yield Line(line_of(score, chat, labels.get(score.document["score_id"], ())))
            except CallerRefused:
                raise
            except (TimelineUnavailable, TimeoutError) as error:
                await source.check()
                yield Line(why_not=f"session {session_id}: {error or 'it took too long to read'}")
            except Unscorable as error:
                yield Line(why_not=f"session {session_id}: {error}")


def chat_of(timeline: Timeline, masking: Masking) -> dict[str, Any]:
    """
    The session as `messages` and `tools`. No text has secrets, pictures or invisible characters.

    It ends where the final analysis is first written. Entries that state it or a part of it, hand it in or
    summarise it are left out: a model would learn to copy them.

    Raises:
        Unscorable: The session has none.
    """
    final = (timeline.final_analysis or "").strip()
    if not final:
        raise Unscorable("it has no final analysis, so there is no answer to learn")
    messages = [_said("system", TASK), _said("user", timeline.alert_data)]
    if timeline.runbook:
        messages[0]["content"] += f"\n\n{timeline.runbook}"
    for event in _steps(timeline):
        if event.content.strip() == final:
            break
        _add(messages, event, final)
    messages.append(_said("assistant", final))
    return _safe(messages, {_name(tool): tool.description for tool in timeline.available_tools}, masking)


def _safe(messages: list[dict[str, Any]], described: Mapping[str, str], masking: Masking) -> dict[str, Any]:
    """The chat with safe texts, and the tools that are `described` or called."""
    calls = [call["function"] for message in messages for call in message.get("tool_calls", ())]
    tools = dict.fromkeys((call["name"] for call in calls), "") | dict(described)
    functions = [
        {"type": "function", "function": {"name": n, "description": d, "parameters": {"type": "object"}}}
        for n, d in tools.items()
    ]
    texts = [("content", message) for message in messages] + [("arguments", call) for call in calls]
    texts += [("description", one["function"]) for one in functions]
    safe = Sanitizer("\0", masking=masking).texts([("", holder[key]) for key, holder in texts])
    for (key, holder), text in zip(texts, safe, strict=True):
        holder[key] = text
    return {"messages": messages, "tools": functions}


def _steps(timeline: Timeline) -> Iterator[Event]:
    """What was said and done, agent by agent."""
    for stage in timeline.shown_stages:
        for execution in stage.executions if stage.stage_type != "exec_summary" else ():
            if execution.task and not any(e.event_type == "task_assigned" for e in execution.events):
                yield Event("", 0, "task_assigned", "completed", execution.task)
            yield from (e for e in execution.events if not (e.tool and SUBMITS.fullmatch(e.tool.tool_name)))


def _add(messages: list[dict[str, Any]], event: Event, final: str) -> None:
    """Add a step to the message before, if that has the same role. Agents read the summary of a result."""
    text, last = event.content.strip(), messages[-1]
    if event.tool is not None:
        if last["role"] != "assistant":
            messages.append(last := _said("assistant", ""))
        function = {"name": _name(event.tool), "arguments": event.tool.arguments}
        call = {"id": f"call_{len(messages)}", "type": "function", "function": function}
        last["tool_calls"] = [call]
        messages.append(_said("tool", event.content) | {"tool_call_id": call["id"]})
    elif event.event_type == "mcp_tool_summary" and text and last["role"] == "tool":
        last["content"] = text
    elif (role := _ROLES.get(event.event_type)) and text not in final and final not in text:
        if last["role"] == role:
            last["content"] += f"\n\n{text}"
        else:
            messages.append(_said(role, text))


def _said(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def _name(tool: ToolCall | AvailableTool) -> str:
    """A name that providers allow."""
    name = f"{tool.server_name}__{tool.tool_name}".removeprefix("__")
    return re.sub("[^A-Za-z0-9_-]", "_", name)[:64]


def line_of(score: ExportedScore, chat: Mapping[str, Any], labels: Sequence[Mapping[str, Any]]) -> bytes:
    """
    Encode the line of a score.

    Args:
        labels: By people, the last of each.
    """
    record = {
        "score": score.document,
        "alert_type": score.alert_type,
        "session_labels": dict(score.labels),
        "references": score.references,
        "labels_by_people": labels,
    }
    line = {
        **chat,
        "session_id": score.document["session_id"],
        "total_score": score.document["total_score"],
        "tarsy_scoring": to_json(record).decode(),
    }
    return to_json(line) + b"\n"
