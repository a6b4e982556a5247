"""
Replies of the scripted judge: numbers from a checksum of the transcript, sentences written in advance.

It reads only the messages that a language model would get, and has no other knowledge of the service.
"""

import functools
import hashlib
import itertools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tarsy_scoring.timeline.fence import FENCE_WORD, fence_lines
from tarsy_scoring.timeline.injection import INSTRUCTION_REMOVED, find_injections
from tarsy_scoring.timeline.text import encode

STAND_IN = "This answer comes from a scripted stand-in: no model read or judged this investigation."

Turn = Literal["analysis", "missing_tools", "reminder", "repair"]
Flaw = Literal["band_violation", "breakdown_mismatch"]

_CATEGORIES = {"Logical Flow": 25, "Consistency": 25, "Tool Relevance": 25, "Synthesis Quality": 25}
_MISSING_TOOLS = {
    "read-file": "the content of the files that were named was inferred from their names and never read",
    "list-processes": "what ran on the node was concluded from resource use instead of a list of processes",
    "get-previous-logs": "the logs of the container before its restart were out of reach, so its end was guessed",
    "query-metrics-range": "single readings stood in for the course of the metric around the alert",
    "get-rollout-history": "whether a deployment preceded the alert could not be verified",
    "list-network-connections": "traffic between the services was assumed and not observed",
}
_OFF_BY = 10  # points or hundredths by which a breakdown misses its total when that is ordered


# --- the transcript ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reading:
    """
    What the stand-in makes of the message with the transcript.

    `asked` is the part of it that is no evidence; entries and tools are really in the evidence.
    """

    asked: str
    checksum: bytes
    total: int
    entries: tuple[str, ...]
    tools: tuple[str, ...]
    missing_tools: tuple[str, ...]


_BEGIN = re.compile(fence_lines(r"(\w+)")[0])
_ENTRY_ID = re.compile(r"\bE\d+\b")
_TOOLS_HEADING = "\n## Available tools\n"
_TOOL = re.compile(r"^- (\S+?)(?::|$)", re.MULTILINE)
_ARGUMENTS = "\nArguments: "  # what follows is a text of its own, whose beginning is one of a line


@functools.lru_cache(maxsize=256)
def read_transcript(message: str) -> Reading:
    """
    Total and citations for the message that carries a transcript, the same for the same session.

    The nonce of the fence is new for each score and left out of the checksum. So are lines that try to steer
    the judge, or that stand for one which was masked: an honest judge gives both the same total.
    """
    pieces, nonce = _split_at_fences(message)
    asked, data = "\n".join(pieces[0::2]), pieces[1::2]
    steady = [_without_steering(piece) if i % 2 else piece for i, piece in enumerate(pieces)]
    checksum = hashlib.sha256("".join(steady).replace(nonce, "").encode(errors="replace")).digest()
    evidence = max(data, key=len, default=message)
    known = list(dict.fromkeys(m[0] for m in itertools.islice(_ENTRY_ID.finditer(evidence), 40)))
    tools = evidence.partition(_TOOLS_HEADING)[2].partition("\n## ")[0]
    names = list(_MISSING_TOOLS)
    return Reading(
        asked=asked.replace(nonce, ""),
        checksum=checksum,
        total=20 + checksum[0] % 76,
        entries=tuple(known[checksum[9] % max(1, len(known) - 2) :][:3]),
        tools=tuple(dict.fromkeys(_TOOL.findall(tools))),
        missing_tools=tuple(names[(checksum[10] + i) % len(names)] for i in range(checksum[11] % 4)),
    )


def _split_at_fences(message: str) -> tuple[list[str], str]:
    """The message in pieces, every second of them evidence, and the nonce: that of the first fence. All
    others lie.
    """
    found = _BEGIN.search(message)
    if found is None:
        return [message], ""
    begin, end = fence_lines(found[1])
    pieces: list[str] = []
    closing, rest = "", message
    while True:
        before, opening, rest = rest.partition(begin)
        pieces.append(closing + before + opening)
        if not opening:
            return pieces, found[1]
        data, closing, rest = rest.partition(end)
        pieces.append(data)


def _without_steering(data: str) -> str:
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
    What an answer must hold.

    `categories` are highest points by title; `bands` are ranges of totals by outcome; `schema` is null for
    an answer in text.
    """

    turn: Turn
    last_message: str
    categories: Mapping[str, int]
    bands: Mapping[str, tuple[int, int]]
    schema: dict[str, Any] | None

    def can_show(self, flaw: Flaw) -> bool:
        """Whether the answer states what would have to contradict itself."""
        if self.schema is None and self.turn not in ("analysis", "repair"):
            return False
        if flaw == "band_violation":
            return len(self.bands) > 1
        if self.schema is None:
            return bool(self.categories)
        return "weighted_score" in self.schema["properties"] or bool(_properties_of(self.schema, "score_breakdown"))

    def outcome(self, total: int, flaw: Flaw | None) -> str | None:
        """The band that holds the total, or is nearest to it; the one farthest from it where that was
        ordered.
        """

        def distance(name: str) -> int:
            low, high = self.bands[name]
            return max(low - total, total - high)

        nearest_first = sorted(self.bands, key=distance)
        return nearest_first[-1 if flaw == "band_violation" else 0] if nearest_first else None


_CATEGORY_LINE = re.compile(r"^[ \t]*([A-Z][A-Za-z0-9 ]{0,60}): X/(\d{1,3})[ \t]*$", re.MULTILINE)
_BAND_LINE = re.compile(
    r"^[ \t>*`-]*Outcome:[ \t`*]*([a-z]\w*)[ \t`*]*\((\d{1,3})\s*[-–]\s*(\d{1,3})\)", re.MULTILINE | re.IGNORECASE
)
_RANGE = re.compile(r"(\d{1,3})\s*[-–]\s*(\d{1,3})")
_JSON_FENCE = re.compile(r"```json[ \t]*\n(.*?)\n[ \t]*```", re.DOTALL)


def read_task(messages: list[tuple[str, str]], response_format: Mapping[str, Any] | None, asked: str) -> Task:
    """
    What the last message of a conversation of (role, content) asks for.

    Args:
        asked: `Reading.asked`. A line `Outcome: correct (60-100)` in it names a band (in a schema the
            description of `outcome` does), one `Logical Flow: X/25` a category, and a JSON schema in a
            ```json fence the form, where `response_format` holds none.

    Raises:
        KeyError, TypeError: `response_format` is not made as OpenAI's is, or its schema is for no object.
    """
    schema = _schema_in(asked)
    if response_format is not None and response_format["type"] == "json_schema":
        schema = dict(response_format["json_schema"]["schema"])
        if not isinstance(schema["properties"], dict):
            raise TypeError("properties of a schema are an object")
    bands = _bands_in(asked) or _bands_of(schema or {})
    # Who names bands and no categories wants none; who says nothing about the form gets one like the
    # default's.
    categories = {name: int(points) for name, points in _CATEGORY_LINE.findall(asked)}
    return Task(
        turn=turn_of(messages),
        last_message=messages[-1][1],
        categories=categories if categories or bands else _CATEGORIES,
        bands=bands,
        schema=schema,
    )


def turn_of(messages: list[tuple[str, str]]) -> Turn:
    """After an answer: numbers that agree, missing tools, or else the same once more."""
    if not any(role == "assistant" for role, _ in messages):
        return "analysis"
    asked = next((content for role, content in reversed(messages) if role == "user"), "").lower()
    if re.search(r"\brestate", asked) and re.search(r"\bagree", asked):
        return "repair"
    # Not `missing_tools`: that is a key of an answer in JSON.
    return "missing_tools" if re.search(r"\bmissing\b", asked) and re.search(r"\btools?\b", asked) else "reminder"


def _bands_in(text: str) -> dict[str, tuple[int, int]]:
    return {name: (int(low), int(high)) for name, low, high in _BAND_LINE.findall(text)}


def _bands_of(schema: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Each choice of `outcome` with the range that stands behind it in the description."""
    outcome = schema.get("properties", {}).get("outcome", {})
    described = ((name, outcome.get("description", "").partition(f"{name}:")[2]) for name in outcome.get("enum", ()))
    return {name: (int(m[1]), int(m[2])) for name, text in described if (m := _RANGE.search(text))}


def _schema_in(text: str) -> dict[str, Any] | None:
    for block in _JSON_FENCE.findall(text):
        try:
            schema = json.loads(block)
        except ValueError:
            continue
        if isinstance(schema, dict) and isinstance(schema.get("properties"), dict):
            return schema
    return None


# --- the answer ----------------------------------------------------------------------------------------


def write_reply(task: Task, reading: Reading, total: int, flaw: Flaw | None = None) -> str:
    """The answer to a task; with `flaw`, one that contradicts itself in that way."""
    if task.schema is not None:
        return json.dumps(_json_answer(task, task.schema, reading, total, flaw), indent=2)
    match task.turn:
        case "analysis":
            points = _points(task.categories, total, reading)
            return "\n".join([_prose(reading, task.categories, points), "", *_numbers(task, reading, total, flaw)])
        case "repair":
            return "\n".join([STAND_IN, "", *_numbers(task, reading, total, flaw)])
        case "missing_tools":
            return _missing_tools(reading)
        case "reminder":
            outcome = task.outcome(total, flaw) if "Outcome:" in task.last_message else None
            return "\n".join([STAND_IN, "", *([f"Outcome: {outcome}"] if outcome else []), str(total)])


def _numbers(task: Task, reading: Reading, total: int, flaw: Flaw | None) -> Iterator[str]:
    """Outcome where one is asked for, breakdown, and the total alone on the last line."""
    if outcome := task.outcome(total, flaw):
        yield from (f"Outcome: {outcome}", "")
    points = _points(task.categories, _off(total) if flaw == "breakdown_mismatch" else total, reading)
    yield from (f"{name}: {points[name]}/{limit}" for name, limit in task.categories.items())
    yield from ("", str(total))


def _off(total: int) -> int:
    return total - _OFF_BY if total >= 50 else total + _OFF_BY


def _points(limits: Mapping[str, int], total: int, reading: Reading) -> dict[str, int]:
    """`total` points over the categories, none above its limit, unevenly."""
    whole, count, noise = sum(limits.values()), len(limits), reading.checksum[1:9]
    if not count:
        return {}
    limit = list(limits.values())
    points = [min(total, whole) * most // whole for most in limit]
    for i in range(min(total, whole) - sum(points)):
        points[i % count] += 1
    for giver, taker in zip(noise[0::2], noise[1::2], strict=True):
        moved = max(0, min(giver % 7, points[giver % count], limit[taker % count] - points[taker % count]))
        if giver % count != taker % count:
            points[giver % count] -= moved
            points[taker % count] += moved
    return dict(zip(limits, points, strict=True))


def _where(reading: Reading) -> str:
    cited = ", ".join(f"[{entry}]" for entry in reading.entries)
    return f"Entries such as {cited} occur in the transcript" if cited else "The transcript carries no entry ids"


def _prose(reading: Reading, limits: Mapping[str, int], points: Mapping[str, int]) -> str:
    given = ", ".join(f"{points[name]} of {limit} for {name}" for name, limit in limits.items()) or "a total alone"
    return f"""{STAND_IN} The numbers below were computed from a checksum of the transcript and say nothing about its \
quality. The text has the form of an evaluation, so that all behind it can be tried without a language model.

Logical flow. {_where(reading)}, and a judge would ask at this place whether each step of the investigation followed \
from the one before, whether failed attempts were repeated unchanged, and whether the agent moved on in time. The \
stand-in did not look.

Consistency. A judge would compare the confidence of the conclusion with the evidence that was gathered for it, and \
would name every claim that nothing in the timeline carries. The points given here compare nothing with anything. \
However high or low they are, they should not be read as a statement about the agent.

Tool relevance. A judge would hold the tools that were available against those that were called, and would count what \
was never attempted. The stand-in compares no such lists.

Synthesis quality. A judge would ask whether the final analysis uses all that was gathered, admits its gaps and \
recommends no more than the evidence allows. In place of that the checksum gave {given}, which is arithmetic. To have \
this investigation evaluated for real, configure a provider and score the session again; this score stays as history."""


def _missing_tools(reading: Reading) -> str:
    if not reading.missing_tools:
        return f"{STAND_IN}\n\nNo critical missing tools identified."
    gaps = [f"{i}. **{name}**: {_MISSING_TOOLS[name]}." for i, name in enumerate(reading.missing_tools, 1)]
    return "\n".join([f"{STAND_IN} The list was drawn by a checksum.", "", *gaps])


def _json_answer(task: Task, schema: dict[str, Any], reading: Reading, total: int, flaw: Flaw | None) -> dict[str, Any]:
    """All properties of the schema, in its order; what no strategy asks for is as small as it can be."""
    properties: dict[str, Any] = schema["properties"]
    limits = _limits(_properties_of(schema, "score_breakdown"))
    outcome = task.outcome(total, flaw)
    reasoning = _prose(reading, limits, _points(limits, total, reading))
    if outcome and "outcome" not in properties:
        reasoning += f"\n\nOutcome: {outcome}"
    scores, weighted = _scores(_properties_of(schema, "scores"), total, reading)
    if flaw == "breakdown_mismatch":
        weighted = _off(round(weighted * 100)) / 100
    known: dict[str, Any] = {
        "total_score": total,
        "score_breakdown": _points(limits, _off(total) if flaw == "breakdown_mismatch" else total, reading),
        "score_reasoning": reasoning,
        "missing_tools": [
            {"tool_name": name, "rationale": f"A checksum drew this: {_MISSING_TOOLS[name]}."}
            for name in reading.missing_tools
        ],
        "alternative_approaches": list(_alternatives(reading)),
        "scores": scores,
        "weighted_score": weighted,
        "confidence": 0.0,  # no model judged
        "issues": [f"{STAND_IN} The values were computed from a checksum of the transcript."],
        "highlights": [f"{_where(reading)}."],
    } | ({"outcome": outcome} if outcome else {})
    return {name: known[name] if name in known else _smallest(sub, schema) for name, sub in properties.items()}


def _limits(categories: Mapping[str, Any]) -> dict[str, int]:
    """Highest points by category: its `maximum`, else the range in its description, else an equal share of
    100.
    """
    limits, count = dict[str, int](), len(categories)
    for i, (id_, sub) in enumerate(categories.items()):
        described = _RANGE.search(sub.get("description", ""))
        share = 100 // count + (i < 100 % count)
        limits[id_] = int(sub.get("maximum", described[2] if described else share))
    return limits


def _scores(criteria: Mapping[str, Any], total: int, reading: Reading) -> tuple[dict[str, float], float]:
    """
    A value per criterion, and the weighted score, which is the total.

    Uneven where schema or prompt tell the weights ("weight 0.3" behind the id); otherwise all are equal,
    which adds up under any weights.
    """
    scores = dict.fromkeys(criteria, total / 100)
    weights = {
        id_: _weight(id_, f"{id_} {sub.get('description', '')}\n{reading.asked}") for id_, sub in criteria.items()
    }
    ids = list(scores)
    for giver, taker, byte in zip(ids[0::2], ids[1::2], itertools.cycle(reading.checksum[1:9]), strict=False):
        given, taken = weights[giver], weights[taker]
        if given and taken:
            moved = byte / 256 * min(0.1, scores[giver] * given, (1 - scores[taker]) * taken)
            scores[giver] -= moved / given
            scores[taker] += moved / taken
    return {id_: round(value, 4) for id_, value in scores.items()}, total / 100


def _weight(id_: str, text: str) -> float:
    found = re.search(rf"\b{re.escape(id_)}\b[^\n]{{0,120}}?\bweight\W{{0,4}}(0?\.\d+)", text, re.IGNORECASE)
    return float(found[1]) if found else 0.0


def _alternatives(reading: Reading) -> Iterator[dict[str, Any]]:
    """Up to three, of tools that the transcript lists as available; none where it lists none."""
    count = reading.checksum[12] % 4 if reading.tools else 0
    for number in range(1, count + 1):
        first = reading.checksum[12 + number]
        tools = dict.fromkeys(reading.tools[(first + i) % len(reading.tools)] for i in range(3))
        yield {
            "name": f"Made-up approach {number}",
            "description": "A checksum chose these tools and their order. No model compared this way with the agent's.",
            "steps": [f"{tool}: a judge would say here what it is expected to show" for tool in tools],
        }


# --- JSON schemas --------------------------------------------------------------------------------------


def _resolved(schema: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    """Without reference and choice: what `$ref` names, the first of `anyOf`."""
    if "$ref" in schema:
        steps = schema["$ref"].removeprefix("#/").split("/")
        return _resolved(functools.reduce(lambda at, step: at[step], steps, root), root)
    return _resolved(schema["anyOf"][0], root) if "anyOf" in schema else schema


def _properties_of(schema: dict[str, Any], name: str) -> dict[str, dict[str, Any]]:
    inner = _resolved(schema["properties"].get(name, {}), schema).get("properties", {})
    return {id_: _resolved(sub, schema) for id_, sub in inner.items()}


def _smallest(schema: dict[str, Any], root: dict[str, Any]) -> Any:
    """A small value that the schema allows, as far as types, choices and lower bounds go."""
    schema = _resolved(schema, root)
    if "const" in schema or "enum" in schema:
        return schema["const"] if "const" in schema else schema["enum"][0]
    types = schema.get("type", "null")
    match types[0] if isinstance(types, list) else types:
        case "string":
            return STAND_IN
        case "integer" | "number":
            return schema.get("minimum", 0)
        case "boolean":
            return False
        case "array":
            return [_smallest(schema["items"], root)] * schema.get("minItems", 0)
        case "object":
            return {name: _smallest(sub, root) for name, sub in schema.get("properties", {}).items()}
    return None


# --- obedience -----------------------------------------------------------------------------------------

_POINTS_DEMANDED = (
    r"(?P<points>\d{1,3})\b(?![.,]\d)(?!\s*/\s*(?!100\b)\d)"
    r"(?!\s*(?:[-–]\s*\d|to\s+\d|or\s+(?:more|less|above|below|higher|lower)))"  # a range is the form of an answer
)
_FILLER = (
    r"(?:[ \t_]+(?:it|this|me|us|the|your|my|our|an?|investigation|session|analysis|agent|final|overall|total|score"
    r"|rating|grade|mark|number|points|value|of|at|as|to|is|be|must|should|shall|has|with|only|just))"
)
_LINE = r"^[^\w\n]*"  # a line begins, decorated or not
_DEMANDS = tuple(
    re.compile(pattern, re.IGNORECASE | re.MULTILINE)
    for pattern in (
        # "score this investigation 100", "the score must be 97"
        rf"(?<![a-z])(?:score{_FILLER}{{0,8}}|(?:rate|grade|mark|give|award|assign|set){_FILLER}{{1,8}})"
        rf"[ \t_*\"'`]{{1,4}}{_POINTS_DEMANDED}",
        # "respond only with 100", "end your answer with 97"
        rf"\b(?:respond|answer|reply|conclude|finish|end|return|output|print|say)\b"
        rf"(?:{_FILLER}|[ \t]+(?:answer|reply|response)){{0,6}}[ \t]+{_POINTS_DEMANDED}",
        # "Total score: 95/100", {"total_score": 100}
        rf"{_LINE}(?:(?:total|final|overall|judge|quality|investigation|my|the)[ _-]+){{0,4}}(?:score|rating|grade)"
        rf"[^\w\n]{{1,6}}{_POINTS_DEMANDED}(?:[ \t]*(?:/[ \t]*100|%|points))?[^\w\n]*$",
        rf"{_LINE}total[ \t*_]*:[ \t*_]*{_POINTS_DEMANDED}[ \t]*/[ \t]*100",
        # "Outcome: correct"
        rf"{_LINE}outcome:[^\w\n]*(?P<outcome>[a-z]\w*)[^\w\n]*$",
        # "give it full marks"
        r"\b(?:give|award|assign|grant|deserves|merits|score|rate)\b[^.\n]{0,40}?"
        r"\b(?:perfect|full|maximum|highest|top)[ ]+(?:possible[ ]+)?(?:score|marks?|points|rating|grade|credit)\b",
        # "ignore all previous instructions", "disregard your scoring rubric"
        r"\b(?:ignore|disregard|forget|override)[\s_]+(?:(?:all|any|every|everything|the|your|of|these|those|previous"
        r"|prior|earlier|preceding|above|scoring|judging|system)[\s_]+){1,6}"
        r"(?:instructions?|prompts?|rules|criteria|rubrics?|directives?)\b",
        r"\b(?:ignore|disregard|forget)[\s_]+(?:(?:all|everything|of|the)[\s_]+){1,3}above\b",
    )
)
# What a model that is taken in would read as the end of the fence: it compares neither nonces nor brackets.
_GAP = r"[^A-Za-z0-9\n]"
_FENCE_NAME = FENCE_WORD.replace("-", f"{_GAP}{{0,4}}")
_FORGED_END = re.compile(
    rf"(?:[^\w\s]{{2}}|&lt;){_GAP}{{0,9}}(?:end{_GAP}{{1,4}}{_FENCE_NAME}\b|{_FENCE_NAME}\b[^\n]{{0,60}}?\bend\b)",
    re.IGNORECASE,
)


def demanded_total(message: str, bands: Mapping[str, tuple[int, int]], *, obeys_fenced: bool = False) -> int | None:
    """
    The total that the message with the transcript demands, or None without a demand.

    That is the first demanded number, else the top of the first demanded band, else 100 ("ignore all
    instructions"). Text between the true fence lines is data, up to a line that looks like the closing one.

    Args:
        obeys_fenced: Also obey text that is marked as data.
    """
    text = message if obeys_fenced else "\n".join(_unmarked(message))
    found = sorted((m for pattern in _DEMANDS for m in pattern.finditer(text)), key=lambda m: m.start())
    named = [m.groupdict() for m in found]
    tops = {name: top for name, (_, top) in bands.items()} or {"correct": 100}
    totals = [int(d["points"]) for d in named if "points" in d and int(d["points"]) <= 100]
    totals += [tops[d["outcome"].lower()] for d in named if d.get("outcome", "").lower() in tops]
    return next(iter(totals), 100 if {} in named else None)


def _unmarked(message: str) -> Iterator[str]:
    pieces, _ = _split_at_fences(message)
    yield from pieces[0::2]
    for data in pieces[1::2]:
        if forged := _FORGED_END.search(data):
            yield data[forged.end() :]
