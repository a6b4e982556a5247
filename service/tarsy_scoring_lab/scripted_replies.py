"""
Replies of the scripted judge: totals from a checksum of the transcript, sentences from `scripted_texts.yaml`.

The scripted judge reads only the messages that a language model would get.
"""

import functools
import hashlib
import itertools
import json
import re
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tarsy_scoring.config.packaged import packaged_yaml
from tarsy_scoring.timeline.clean.injection import INSTRUCTION_REMOVED, find_injections
from tarsy_scoring.timeline.render.fence import fence_lines, without_prefixes
from tarsy_scoring.timeline.text import encode

_TEXTS = packaged_yaml(__package__, "scripted_texts.yaml")
STAND_IN: str = _TEXTS["stand_in"]

Turn = Literal["analysis", "missing_tools", "reminder", "repair", "memory"]
Messages = list[tuple[str, str]]  # role, content

_CATEGORIES = {"Logical Flow": 25, "Consistency": 25, "Tool Relevance": 25, "Synthesis Quality": 25}


# --- the transcript ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Transcript:
    """
    The message with the evidence, as the stand-in reads it.

    `asked` is the text outside of the fences: the instructions. `alert` is the text of the first fence.
    `entries` are up to three entry ids of the evidence, to be cited, and `tools` the names of the available
    tools.
    """

    asked: str
    alert: str
    checksum: bytes
    entries: tuple[str, ...]
    tools: tuple[str, ...]

    @property
    def total(self) -> int:
        """Total of the answer, 20 to 95, from the checksum."""
        return 20 + self.checksum[0] % 76

    @property
    def missing_tools(self) -> dict[str, str]:
        """Missing tools of the answer with their rationales, up to three, from the checksum."""
        tools = list(_TEXTS["missing_tools"].items()) * 2
        start = self.checksum[10] % len(_TEXTS["missing_tools"])
        return dict(tools[start : start + self.checksum[11] % 4])

    @property
    def citation(self) -> str:
        cited = ", ".join(f"[{entry}]" for entry in self.entries)
        return f"Entries such as {cited} occur in the transcript" if cited else "No entry has an id"


_BEGIN = re.compile(fence_lines(r"(\w+)")[0])
_ENTRY_ID = re.compile(r"\bE\d+\b")
_TOOLS_HEADING = "\n## Available tools\n"
_TOOL = re.compile(r"^- (\S+?)(?::|$)", re.MULTILINE)
_ARGUMENTS = "\nArguments: "  # the arguments after it are a text of their own, which begins a line


@functools.lru_cache(maxsize=256)
def read_transcript(message: str) -> Transcript:
    """
    Read the message that contains the evidence. The same session gives the same checksum.

    The checksum leaves out the nonce of the fence, which is new for each score. It also leaves out lines that
    try to steer the judge, and lines in which such text was masked.
    """
    # Without steering lines, the total of the original and of the masked context is equal, as it is for an
    # honest judge.
    opening = _BEGIN.search(message)
    nonce = opening[1] if opening else ""
    # Fences divide the message: instructions, fence, evidence, fence, instructions ... A fence with another
    # nonce is forged and divides nothing.
    fences = "|".join(map(re.escape, fence_lines(nonce)))
    pieces = re.split(f"({fences})", message) if opening else [message]
    asked = "".join(pieces[0::4]).replace(nonce, "")
    data = pieces[2::4]
    steady = "".join(_without_steering(piece) if i % 4 == 2 else piece for i, piece in enumerate(pieces))
    checksum = hashlib.sha256(steady.replace(nonce, "").encode(errors="replace")).digest()
    evidence = max(data, key=len, default=message)
    known = list(dict.fromkeys(m[0] for m in itertools.islice(_ENTRY_ID.finditer(evidence), 40)))
    tools = evidence.partition(_TOOLS_HEADING)[2].partition("\n## ")[0]
    return Transcript(
        asked=asked,
        alert=without_prefixes(data[0]).strip() if opening and data else "",
        checksum=checksum,
        entries=tuple(known[checksum[9] % max(1, len(known) - 2) :][:3]),
        tools=tuple(dict.fromkeys(_TOOL.findall(tools))),
    )


def _without_steering(data: str) -> str:
    """Evidence without prefixes, and without the lines that hold an injection or the mark of a masked one."""
    data = without_prefixes(data)
    raw = encode(data.replace(_ARGUMENTS, _ARGUMENTS.rstrip() + "\n"))
    spans = [(span.start, span.end) for span in find_injections(raw)]
    spans += [m.span() for m in re.finditer(re.escape(INSTRUCTION_REMOVED).encode(), raw)]
    if not spans:
        return data
    kept, position = list[bytes](), 0
    for start, end in sorted(spans):
        kept.append(raw[position : raw.rfind(b"\n", 0, start) + 1])
        line_end = raw.find(b"\n", end)
        position = max(position, line_end if line_end >= 0 else len(raw))
    return b"".join((*kept, raw[position:])).decode()


# --- the task ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Task:
    """
    The task of one answer.

    `categories` are the highest points by title, `bands` the ranges of totals by outcome. Without a `schema`
    the answer is text.
    """

    turn: Turn
    transcript: Transcript
    wants_outcome: bool
    categories: Mapping[str, int]
    bands: Mapping[str, tuple[int, int]]
    schema: dict[str, Any] | None

    @property
    def outcome(self) -> str | None:
        """The band of the total, or the band nearest to it; None if no outcome is requested."""
        total = self.transcript.total
        if not (self.bands and self.wants_outcome):
            return None
        return min(self.bands, key=lambda name: max(self.bands[name][0] - total, total - self.bands[name][1]))


_CATEGORY_LINE = re.compile(r"^[ \t]*([A-Z][A-Za-z0-9 ]{0,60}): X/(\d{1,3})[ \t]*$", re.MULTILINE)
_BAND_LINE = re.compile(
    r"^[ \t>*`-]*Outcome:[ \t`*]*([a-z]\w*)[ \t`*]*\((\d{1,3})\s*[-–]\s*(\d{1,3})\)",
    re.MULTILINE | re.IGNORECASE,
)
_BANDS_SENTENCE = re.compile(r"must lie in the range of the outcome: ([^.\n]*)\.")
_BAND = re.compile(r"([a-z]\w*) (\d{1,3})-(\d{1,3})", re.IGNORECASE)
_SCHEMA_BAND = r"\b{}:\D*(\d{{1,3}})\s*[-–]\s*(\d{{1,3}})"
_HIGHEST = re.compile(r"\d{1,3}\s*[-–]\s*(\d{1,3})")
_JSON_FENCE = re.compile(r"```json[ \t]*\n(.*?)\n[ \t]*```", re.DOTALL)


def read_task(messages: Messages, response_format: Mapping[str, Any] | None = None) -> Task:
    """
    Read the task that the last message of a conversation sets.

    Outside of the evidence a line `Outcome: correct (60-100)` names a band, as does `correct 60-100` in the
    sentence about the ranges. A line `Logical Flow: X/25` names a category, and a ```json fence the schema,
    where `response_format` holds none.

    Raises:
        KeyError, TypeError: `response_format` differs from OpenAI's, or the schema is not one of an object.
        StopIteration: The conversation has no message of the user.
    """
    transcript = read_transcript(next(content for role, content in messages if role == "user"))
    schema = _schema_in(transcript.asked)
    if response_format is not None and response_format["type"] == "json_schema":
        schema = dict(response_format["json_schema"]["schema"])
    ranges = _BAND_LINE.findall(transcript.asked)
    for sentence in _BANDS_SENTENCE.findall(transcript.asked):
        ranges += _BAND.findall(sentence)
    bands = {name: (int(low), int(high)) for name, low, high in ranges}
    if schema is not None and not bands:
        bands = _bands_of(schema["properties"].get("outcome", {}))
    categories = {name: int(points) for name, points in _CATEGORY_LINE.findall(transcript.asked)}
    turn = turn_of(messages)
    return Task(
        turn=turn,
        transcript=transcript,
        wants_outcome=schema is not None or turn != "reminder" or "Outcome:" in messages[-1][1],
        # A prompt with bands alone wants no categories; one with neither gets those of the default criteria.
        categories=categories if categories or bands else _CATEGORIES,
        bands=bands,
        schema=schema,
    )


def turn_of(messages: Messages) -> Turn:
    """
    The kind of the turn that a conversation asks for.

    Without an answer so far it is `analysis`. Later the last message of the user decides, by words in it.
    """
    if not any(role == "assistant" for role, _ in messages):
        return "analysis"
    asked = next((content for role, content in reversed(messages) if role == "user"), "").lower()
    if "memory_id" in asked:
        return "memory"
    if re.search(r"\brestate", asked) and re.search(r"\bagree", asked):
        return "repair"
    # Two separate words, because a reminder may contain `missing_tools`, a key of an answer in JSON.
    names_tools = re.search(r"\bmissing\b", asked) and re.search(r"\btools?\b", asked)
    return "missing_tools" if names_tools else "reminder"


def _bands_of(outcome: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """The bands in the description of a schema's property `outcome`."""
    bands = {}
    for name in outcome.get("enum", ()):
        if found := re.search(_SCHEMA_BAND.format(name), outcome.get("description", "")):
            bands[name] = (int(found[1]), int(found[2]))
    return bands


def _schema_in(text: str) -> dict[str, Any] | None:
    """The first JSON Schema of an object in a fenced block of the text; None if there is none."""
    for block in _JSON_FENCE.findall(text):
        try:
            schema = json.loads(block)
        except ValueError:
            continue
        if isinstance(schema, dict) and isinstance(schema.get("properties"), dict):
            return schema
    return None


# --- the answer ----------------------------------------------------------------------------------------


def write_reply(task: Task) -> str:
    """The answer to a task."""
    if task.schema is not None:
        return json.dumps(_json_answer(task, task.schema), indent=2)
    total = task.transcript.total
    points = _points(task.categories, total)
    outcome = [f"Outcome: {task.outcome}", ""] if task.outcome else []
    breakdown = [f"{name}: {points[name]}/{limit}" for name, limit in task.categories.items()]
    match task.turn:
        case "analysis":
            return "\n".join([_analysis(task, task.categories), "", *outcome, *breakdown, "", str(total)])
        case "repair":
            return "\n".join([STAND_IN, "", *outcome, *breakdown, "", str(total)])
        case "reminder" | "memory":
            return "\n".join([STAND_IN, "", *outcome, str(total)])
        case "missing_tools":
            missing = task.transcript.missing_tools.items()
            gaps = [f"{i}. **{name}**: {why}." for i, (name, why) in enumerate(missing, 1)]
            return "\n".join([STAND_IN, "", *(gaps or ["No critical missing tools identified."])])


def embed(text: str, dimensions: int) -> list[float]:
    """A vector that counts words, so that texts with the same words are near to each other."""
    counts = Counter(zlib.crc32(encode(word)) % dimensions for word in re.findall(r"\w+", text.lower()))
    return [float(counts[place]) for place in range(dimensions)]


def _points(limits: Mapping[str, int], total: int) -> dict[str, int]:
    """Distribute a total over the categories in proportion to their limits; the points add up to it."""
    whole = sum(limits.values())
    points, limits_so_far, given = {}, 0, 0
    for name, limit in limits.items():
        limits_so_far += limit
        points[name] = min(total, whole) * limits_so_far // whole - given
        given += points[name]
    return points


def _analysis(task: Task, limits: Mapping[str, int]) -> str:
    points = _points(limits, task.transcript.total)
    given = ", ".join(f"{points[name]} of {limit} for {name}" for name, limit in limits.items()) or "a total"
    return f"{STAND_IN} {_TEXTS['analysis'].format(citation=task.transcript.citation, points=given)}"


def _json_answer(task: Task, schema: dict[str, Any]) -> dict[str, Any]:
    """The answer with all properties of the schema, in that order; a property of no strategy is empty."""
    properties: dict[str, Any] = schema["properties"]
    transcript, total = task.transcript, task.transcript.total
    limits = _highest_points(properties.get("score_breakdown", {}).get("properties", {}))
    reasoning = _analysis(task, limits)
    alert = transcript.alert.partition("\n")[0][:500]
    if task.outcome and "outcome" not in properties:
        reasoning += f"\n\nOutcome: {task.outcome}"
    known: dict[str, Any] = {
        "total_score": total,
        "score_breakdown": _points(limits, total),
        "score_reasoning": reasoning,
        "missing_tools": [
            {"tool_name": name, "rationale": why} for name, why in transcript.missing_tools.items()
        ],
        "alternative_approaches": _alternatives(transcript),
        # Equal values add up to the total under any weights.
        "scores": dict.fromkeys(properties.get("scores", {}).get("properties", {}), total / 100),
        "weighted_score": total / 100,
        "confidence": 0.0,  # no model judged
        "issues": [f"{STAND_IN} The values were computed from a checksum of the transcript."],
        "highlights": [f"{transcript.citation}."],
        "create": [{"content": f"{STAND_IN} {alert}", "category": "episodic", "valence": "neutral"}],
    }
    if task.outcome:
        known["outcome"] = task.outcome
    return {name: known.get(name, _EMPTY.get(sub.get("type"))) for name, sub in properties.items()}


_EMPTY: dict[Any, Any] = {"string": STAND_IN, "integer": 0, "number": 0.0, "array": [], "object": {}}


def _highest_points(categories: Mapping[str, Any]) -> dict[str, int]:
    """Highest points by category: the range in the description, else an equal share of 100."""
    limits = {}
    for id_, sub in categories.items():
        described = _HIGHEST.search(sub.get("description", ""))
        limits[id_] = int(described[1]) if described else 100 // len(categories)
    return limits


def _alternatives(transcript: Transcript) -> list[dict[str, Any]]:
    """Up to three alternative approaches, with steps of tools that the transcript lists as available."""
    tools = transcript.tools
    count = min(transcript.checksum[12] % 4, len(tools))
    return [
        {
            "name": f"Made-up approach {number}",
            "description": _TEXTS["approach"],
            "steps": [f"{tool}: {_TEXTS['step']}" for tool in tools[number - 1 : number + 2]],
        }
        for number in range(1, count + 1)
    ]
