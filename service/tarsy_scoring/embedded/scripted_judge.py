"""
A stand-in for the judge: an OpenAI-compatible endpoint that answers by a script and judges nothing.

Its answers follow from the bytes of the transcript, so the same session gets the same answer, and each
of them says that it is made up. Faults are ordered from it, in the process or over HTTP (`/script`).
"""

import argparse
import asyncio
import functools
import hashlib
import itertools
import json
import re
import signal
import sys
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self

import uvloop
from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError

MODEL = "scripted-judge"
STAND_IN = "This answer comes from a scripted stand-in: no model read or judged this investigation."

Turn = Literal["analysis", "missing_tools", "reminder"]
FaultKind = Literal[
    "status",  # `status`, `headers`, `json` as the body
    "body",  # the same
    "latency",  # `seconds` of waiting, then the next fault or the answer
    "cut",  # finish_reason `length`, before any total
    "no_score",
    "refusal",
    "content_filter",
    "empty",
    "hang",  # no answer until the client gives up
    "drop",  # the connection is cut in the middle of the body
    "error_body",  # 200 with an error object
    "no_choices",
    "no_usage",
    "tool_calls",  # and no text
    "served_model",  # `model` in place of the requested one
    "reply",  # `content` in place of the answer
]

_CATEGORIES = ("Logical Flow", "Consistency", "Tool Relevance", "Synthesis Quality")
_MISSING_TOOLS = {
    "read-file": "the content of the files that were named was inferred from their names and never read",
    "list-processes": "what ran on the node was concluded from resource use instead of a list of processes",
    "get-previous-logs": "the logs of the container before its restart were out of reach, so its end was guessed",
    "query-metrics-range": "single readings stood in for the course of the metric around the alert",
    "get-rollout-history": "whether a deployment preceded the alert could not be verified",
    "list-network-connections": "traffic between the services was assumed and not observed",
}
_LONG_HEX = re.compile(r"[0-9a-f]{16,}")
_ENTRY_ID = re.compile(r"\bE\d+\b")
_REMEMBERED_PREFIXES = 20_000
_CACHE_FROM_TOKENS, _CACHE_STEP_TOKENS = 1024, 128  # Source: OpenAI's guide to prompt caching
_LARGEST_BODY = 64 * 2**20


class Fault(BaseModel):
    """
    Something to go wrong in calls that fit, instead of or before the answer.

    A call meets the first fault that fits it and is not used up, after any that are mere `latency`.
    """

    model_config = ConfigDict(extra="forbid")

    kind: FaultKind
    times: int | None = Field(None, ge=1, description="Calls that meet it; null: all from now on.")
    match: str | None = Field(None, description="Text that the body, or a message in it, must hold.")
    turn: Turn | Literal["any"] = "any"
    status: int = Field(500, ge=200, le=599)
    headers: dict[str, str] = {}
    body: dict[str, Any] | None = Field(None, alias="json")
    seconds: float = Field(0.0, ge=0)
    model: str = "another-model"
    content: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """What the stand-in makes of a transcript: points that add up, and entries that are really in it."""

    points: tuple[int, ...]
    entries: tuple[str, ...]
    missing_tools: tuple[str, ...]

    @property
    def total(self) -> int:
        return sum(self.points)


class ScriptedJudge:
    """
    The endpoint, on a loopback port.

    Args:
        port: 0 takes a free one.
        latency_s: Wait before each answer.
        record: How many of the last request bodies are kept in `requests`; 0 keeps none.
    """

    def __init__(self, *, port: int = 0, latency_s: float = 0.0, record: int = 256) -> None:
        self.port = port
        self.latency_s = latency_s
        self.requests: deque[dict[str, Any]] = deque(maxlen=record)
        self.faults: list[Fault] = []
        self.calls_by_turn: Counter[str] = Counter()
        self.faults_met: Counter[str] = Counter()
        self._prefixes: OrderedDict[int, None] = OrderedDict()
        self._runner: web.AppRunner | None = None

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def calls(self) -> int:
        """Calls that arrived so far, whatever they met."""
        return self.calls_by_turn.total()

    def script(self, *faults: Fault) -> None:
        """Order further faults; earlier ones come first."""
        self.faults += [fault.model_copy() for fault in faults]

    def clear(self) -> None:
        """Order no fault any more; calls that already hang go on hanging."""
        self.faults.clear()

    async def start(self) -> None:
        """
        Raises:
            OSError: The port is taken.
        """
        app = web.Application(client_max_size=_LARGEST_BODY)
        app.add_routes(
            [
                web.post("/v1/chat/completions", self._complete),
                web.get("/v1/models", self._list_models),
                web.post("/script", self._add_to_script),
                web.get("/script", self._show_script),
                web.delete("/script", self._clear_script),
                web.get("/requests", self._show_requests),
            ]
        )
        # A call that hangs ends with its client, and at the latest with us.
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, backlog=1024)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """End, with open connections. The port stays for another `start`. Safe to call twice."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        try:
            body = json.loads(raw)
            messages = [(m["role"], _text_of(m["content"])) for m in body["messages"]]
            transcript = next(content for role, content in messages if role == "user")
        except (ValueError, KeyError, TypeError, StopIteration):
            return _error(400, "the body is no chat completion with a message of the user")
        if body.get("stream"):
            return _error(400, "the scripted judge does not stream")
        turn = turn_of(messages)
        self.calls_by_turn[turn] += 1
        self.requests.append(body)
        if self.latency_s:
            await asyncio.sleep(self.latency_s)
        fault = self._meet_fault(turn, raw, messages)
        while fault is not None and fault.kind == "latency":
            await asyncio.sleep(fault.seconds)
            fault = self._meet_fault(turn, raw, messages)
        reading = read_transcript(transcript)
        answer = {
            "id": f"chatcmpl-{self.calls}",
            "object": "chat.completion",
            "created": 0,
            "model": body.get("model", MODEL),
            "system_fingerprint": "scripted-stand-in",
            "choices": [_choice(_REPLIES[turn](reading))],
        }
        answer["usage"] = self._usage(messages, answer["choices"][0]["message"]["content"])
        return _json(answer) if fault is None else await _send_spoilt(request, answer, fault)

    def _meet_fault(self, turn: Turn, raw: bytes, messages: list[tuple[str, str]]) -> Fault | None:
        for fault in self.faults:
            if fault.turn not in ("any", turn):
                continue
            if fault.match and fault.match.encode() not in raw and not any(fault.match in m for _, m in messages):
                continue
            self.faults_met[fault.kind] += 1
            met = fault.model_copy()
            if fault.times is not None:
                fault.times -= 1
                if not fault.times:
                    self.faults.remove(fault)
            return met
        return None

    def _usage(self, messages: list[tuple[str, str]], reply: str) -> dict[str, Any]:
        """Tokens by length, and a prefix cache that knows where the messages of earlier calls ended."""
        prefix, tokens, cached = 0, 0, 0
        for message in messages:
            prefix = hash((prefix, message))
            tokens += len(message[1]) // 4 + 4
            if prefix in self._prefixes:
                cached = tokens
            self._prefixes[prefix] = None
            self._prefixes.move_to_end(prefix)
        while len(self._prefixes) > _REMEMBERED_PREFIXES:
            self._prefixes.popitem(last=False)
        cached = cached - cached % _CACHE_STEP_TOKENS if cached >= _CACHE_FROM_TOKENS else 0
        written = len(reply) // 4 + 1
        return {
            "prompt_tokens": tokens,
            "completion_tokens": written,
            "total_tokens": tokens + written,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    async def _list_models(self, _: web.Request) -> web.Response:
        model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "stand-in"}
        return _json({"object": "list", "data": [model]})

    async def _add_to_script(self, request: web.Request) -> web.Response:
        try:
            ordered = [Fault.model_validate(f) for f in json.loads(await request.read())["faults"]]
        except (ValidationError, ValueError, KeyError, TypeError) as error:
            return _error(400, f'a script is {{"faults": [{{"kind": ...}}]}}: {error}')
        self.script(*ordered)
        return await self._show_script(request)

    async def _show_script(self, _: web.Request) -> web.Response:
        remaining = [f.model_dump(by_alias=True, exclude_unset=True) for f in self.faults]
        counters = {"calls": self.calls, "calls_by_turn": self.calls_by_turn, "faults_met": self.faults_met}
        return _json({"faults": remaining, **counters})

    async def _clear_script(self, request: web.Request) -> web.Response:
        self.clear()
        return await self._show_script(request)

    async def _show_requests(self, _: web.Request) -> web.Response:
        return _json({"requests": list(self.requests)})


def turn_of(messages: list[tuple[str, str]]) -> Turn:
    """What a conversation of (role, content) asks for: after an answer, missing tools or the total alone."""
    if not any(role == "assistant" for role, _ in messages):
        return "analysis"
    asked = next((content for role, content in reversed(messages) if role == "user"), "").lower()
    return "missing_tools" if "missing" in asked and "tool" in asked else "reminder"


@functools.lru_cache(maxsize=256)
def read_transcript(transcript: str) -> Reading:
    """
    Points and citations for the message that carries a transcript, the same for the same session.

    The first long hexadecimal word is taken for the nonce of the fence, which is new for each score: it
    is left out of the checksum, and the longest text between two of it is where entries are looked for,
    since the instructions around it may name ids that are only examples.
    """
    nonce = _LONG_HEX.search(transcript)
    pieces = transcript.split(nonce[0]) if nonce else [transcript]
    seed = hashlib.sha256("".join(pieces).encode(errors="replace")).digest()
    points = _share_out(20 + seed[0] % 76, seed[1:9])
    found = itertools.islice(_ENTRY_ID.finditer(max(pieces, key=len)), 40)
    known = list(dict.fromkeys(match[0] for match in found))
    entries = known[seed[9] % max(1, len(known) - 2) :][:3]
    tools = list(_MISSING_TOOLS)
    lacking = [tools[(seed[10] + i) % len(tools)] for i in range(seed[11] % 4)]
    return Reading(points, tuple(entries), tuple(lacking))


def _share_out(total: int, noise: bytes) -> tuple[int, ...]:
    """`total` points over the categories of at most 25 each, unevenly."""
    points = [total // 4 + (i < total % 4) for i in range(4)]
    for giver, taker in zip(noise[0::2], noise[1::2], strict=True):
        moved = min(giver % 7, points[giver % 4], 25 - points[taker % 4])
        if giver % 4 != taker % 4:
            points[giver % 4] -= moved
            points[taker % 4] += moved
    return tuple(points)


def _analysis(reading: Reading) -> str:
    breakdown = [f"{name}: {points}/25" for name, points in zip(_CATEGORIES, reading.points, strict=True)]
    return "\n".join([_prose(reading), "", *breakdown, "", str(reading.total)])


def _prose(reading: Reading) -> str:
    cited = ", ".join(f"[{entry}]" for entry in reading.entries)
    where = f"Entries such as {cited} occur in the transcript" if cited else "The transcript carries no entry ids"
    flow, consistency, tools, synthesis = reading.points
    return f"""{STAND_IN} The numbers below were computed from a checksum of the transcript and say nothing about its \
quality. The text has the form of an evaluation, so that all behind it can be tried without a language model.

Logical flow. {where}, and a judge would ask at this place whether each step of the investigation followed from the \
one before, whether failed attempts were repeated unchanged, and whether the agent moved on in time. The stand-in did \
not look. It assigned {flow} points because the checksum fell that way, and took {25 - flow} off for the same reason.

Consistency. A judge would compare the confidence of the conclusion with the evidence that was gathered for it, and \
would name every claim that nothing in the timeline carries. The {consistency} points given here compare nothing with \
anything. However high or low they are, they should not be read as a statement about the agent.

Tool relevance. A judge would hold the tools that were available against those that were called, and would count what \
was never attempted. The stand-in knows neither list; its {tools} points are arithmetic.

Synthesis quality. A judge would ask whether the final analysis uses all that was gathered, admits its gaps and \
recommends no more than the evidence allows. The remaining {synthesis} points complete the sum. To have this \
investigation evaluated for real, configure a provider and score the session again; this score stays as history."""


def _missing_tools(reading: Reading) -> str:
    if not reading.missing_tools:
        return f"{STAND_IN}\n\nNo critical missing tools identified."
    gaps = [f"{i}. **{name}**: {_MISSING_TOOLS[name]}." for i, name in enumerate(reading.missing_tools, 1)]
    return "\n".join([f"{STAND_IN} The list was drawn by a checksum.", "", *gaps])


_REPLIES: dict[Turn, Callable[[Reading], str]] = {
    "analysis": _analysis,
    "missing_tools": _missing_tools,
    "reminder": lambda reading: f"{STAND_IN}\n\n{reading.total}",
}


async def _send_spoilt(request: web.Request, answer: dict[str, Any], fault: Fault) -> web.StreamResponse:
    match fault.kind:
        case "status" | "body":
            return _error(fault.status, f"scripted: status {fault.status}", fault.headers, fault.body)
        case "error_body":
            return _error(200, "scripted: an error in a success", fault.headers, fault.body)
        case "drop":
            return await _drop(request, answer)
        case "hang":
            await asyncio.Event().wait()
    _spoil(answer, fault)
    return _json(answer)


def _spoil(answer: dict[str, Any], fault: Fault) -> None:
    """Change the answer into what the fault makes of it."""
    choice = answer["choices"][0]
    message, text = choice["message"], choice["message"]["content"]
    match fault.kind:
        case "cut":
            choice["finish_reason"] = "length"
            message["content"] = text[: len(text) // 2]
        case "no_score":
            message["content"] = f"{STAND_IN} It was told to state no total."
        case "refusal":
            message |= {"content": None, "refusal": f"{STAND_IN} It was told to refuse."}
        case "content_filter":
            choice["finish_reason"] = "content_filter"
            message["content"] = ""
        case "empty":
            message["content"] = ""
        case "reply":
            message["content"] = fault.content
        case "tool_calls":
            choice["finish_reason"] = "tool_calls"
            call = {"name": "read-file", "arguments": "{}"}
            message |= {"content": None, "tool_calls": [{"id": "call_1", "type": "function", "function": call}]}
        case "no_choices":
            answer["choices"] = []
        case "no_usage":
            del answer["usage"]
        case "served_model":
            answer["model"] = fault.model


async def _drop(request: web.Request, answer: dict[str, Any]) -> web.StreamResponse:
    payload = json.dumps(answer).encode()
    response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": str(len(payload))})
    await response.prepare(request)
    await response.write(payload[: len(payload) // 2])
    if request.transport is not None:
        request.transport.abort()
    return response


def _choice(content: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": content, "refusal": None}
    return {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}


def _text_of(content: str | list[dict[str, Any]]) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def _json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    body = json.dumps(value).encode()
    return web.Response(body=body, content_type="application/json", status=status, headers=headers)


def _error(
    status: int, message: str, headers: dict[str, str] | None = None, body: dict[str, Any] | None = None
) -> web.Response:
    default = {"error": {"message": message, "type": "scripted", "param": None, "code": None}}
    return _json(default if body is None else body, status, headers)


def main() -> None:
    """Serve until SIGTERM or SIGINT; the first line on standard output is the base URL."""
    parser = argparse.ArgumentParser(prog="scripted_judge", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one (default)")
    parser.add_argument("--latency", type=float, default=0.0, metavar="SECONDS", help="wait before each answer")
    parser.add_argument("--record", type=int, default=256, metavar="N", help="request bodies to keep for GET /requests")
    asked = parser.parse_args()

    async def serve() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        async with ScriptedJudge(port=asked.port, latency_s=asked.latency, record=asked.record) as judge:
            sys.stdout.write(f"{judge.base_url}\n")
            sys.stdout.flush()
            await stop.wait()

    uvloop.run(serve())


if __name__ == "__main__":
    main()
