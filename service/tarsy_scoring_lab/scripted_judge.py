"""
A stand-in for the judge: an OpenAI-compatible endpoint that answers by a script and judges nothing.

Answers depend only on the bytes of the transcript, so the same session gets the same answer, and each
answer states that it is made up. Faults, noise and obedience are set by a script, in the process or over
HTTP (`/script`).
"""

import argparse
import asyncio
import dataclasses
import json
import math
import random
import signal
import sys
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, get_args

import uvloop
from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tarsy_scoring_lab.scripted_faults import Fault, FaultKind, error_response, json_response, send_spoilt, spoil
from tarsy_scoring_lab.scripted_replies import (
    STAND_IN,
    Flaw,
    Reading,
    Task,
    demanded_total,
    read_task,
    read_transcript,
    write_reply,
)

__all__ = ["MODEL", "STAND_IN", "Fault", "ScriptedJudge"]

MODEL = "scripted-judge"
_REMEMBERED_PREFIXES = 20_000
_CACHE_FROM_TOKENS, _CACHE_STEP_TOKENS = 1024, 128  # Source: OpenAI's guide to prompt caching
_COMPLETIONS = "/v1/chat/completions"
_LARGEST_BODY = 64 * 2**20


class Script(BaseModel):
    """Orders over HTTP: further faults, and the behaviour of the judge from now on."""

    model_config = ConfigDict(extra="forbid")

    faults: list[Fault] = []
    noise: float = Field(0.0, ge=0, allow_inf_nan=False)
    obedient: bool = False
    obeys_fenced: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class _Call:
    raw: bytes
    body: dict[str, Any]
    messages: list[tuple[str, str]]
    transcript: str
    reading: Reading
    task: Task

    @property
    def prompt_tokens(self) -> int:
        return sum(_tokens_of(content) for _, content in self.messages)


class ScriptedJudge:
    """
    The endpoint, on a loopback port.

    Args:
        port: 0 takes a free one.
        latency_s: Wait before each answer.
        record: How many of the last request bodies are kept in `requests`; 0 keeps none.
        noise: Standard deviation of totals around the one that follows from the transcript. The n-th analysis
            of a transcript is always off by the same, and later turns of a conversation keep its total.
        obedient: Gives the total that text in the first message of the user demands, unless it is marked as
            data.
        obeys_fenced: Gives it also where it is; implies `obedient`.
        requests_per_minute, tokens_per_minute: Limits of this endpoint over any 60 s; None: no limit. Calls
            that it refuses do not count; tokens are those of prompts and answers.
        clock: Seconds, for the limits.
    """

    def __init__(
        self,
        *,
        port: int = 0,
        latency_s: float = 0.0,
        record: int = 256,
        noise: float = 0.0,
        obedient: bool = False,
        obeys_fenced: bool = False,
        requests_per_minute: int | None = None,
        tokens_per_minute: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.port = port
        self.latency_s = latency_s
        self.noise = noise
        self.obedient = obedient
        self.obeys_fenced = obeys_fenced
        self.requests: deque[dict[str, Any]] = deque(maxlen=record)
        self.faults: list[Fault] = []
        self.calls_by_turn: Counter[str] = Counter()
        self.faults_met: Counter[str] = Counter()
        self.rate_limited = 0
        asked = {"requests": requests_per_minute, "tokens": tokens_per_minute}
        self._limits = {unit: _Limit(unit, most, clock) for unit, most in asked.items() if most is not None}
        self._analyses: Counter[bytes] = Counter()
        self._noisy_totals: dict[str, int] = {}  # by the analysis that stated it
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
                web.post(_COMPLETIONS, self._complete),
                web.get("/v1/models", self._list_models),
                web.post("/script", self._add_to_script),
                web.get("/script", self._show_script),
                web.delete("/script", self._clear_script),
                web.get("/requests", self._show_requests),
            ]
        )
        app.on_response_prepare.append(self._add_limits)
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
        try:
            call = _understand(await request.read())
        except (ValueError, KeyError, TypeError, StopIteration):
            return error_response(400, "the body is no chat completion with a message of the user")
        if call.body.get("stream"):
            return error_response(400, "the scripted judge does not stream")
        self.calls_by_turn[call.task.turn] += 1
        self.requests.append(call.body)
        if refusal := self._refuse_for_now(call):
            return refusal
        if self.latency_s:
            await asyncio.sleep(self.latency_s)
        fault = self._meet_fault(call)
        while fault is not None and fault.kind == "latency":
            await asyncio.sleep(fault.seconds)
            fault = self._meet_fault(call)
        total = self._total(call)
        answer = self._answer(call, total, fault)
        if "tokens" in self._limits:
            self._limits["tokens"].spend(answer["usage"]["completion_tokens"])
        if fault is not None:
            spoil(answer, fault)
        if self.noise and call.task.turn == "analysis" and answer["choices"]:
            self._noisy_totals[answer["choices"][0]["message"]["content"] or ""] = total
        return json_response(answer) if fault is None else await send_spoilt(request, answer, fault)

    def _answer(self, call: _Call, total: int, fault: Fault | None) -> dict[str, Any]:
        task = call.task
        flaw: Flaw | None = None
        match fault.kind if fault else None:
            case "band_violation" | "breakdown_mismatch" as kind:
                flaw = kind
            case "ignore_schema":
                task = dataclasses.replace(task, schema=None)
        reply = write_reply(task, call.reading, total, flaw)
        return {
            "id": f"chatcmpl-{self.calls}",
            "object": "chat.completion",
            "created": 0,
            "model": call.body.get("model", MODEL),
            "system_fingerprint": "scripted-stand-in",
            "choices": [_choice(reply)],
            "usage": self._usage(call, reply),
        }

    def _total(self, call: _Call) -> int:
        """What was demanded of an obedient judge, else what the checksum gives, with noise where there is
        any.
        """
        reading, task = call.reading, call.task
        if self.obedient or self.obeys_fenced:
            demanded = demanded_total(call.transcript, task.bands, obeys_fenced=self.obeys_fenced)
            if demanded is not None:
                return demanded
        if not self.noise:
            return reading.total
        answers = (content for role, content in call.messages if role == "assistant")
        if (analysis := next(answers, None)) is not None:
            return self._noisy_totals.get(analysis, reading.total)
        self._analyses[reading.checksum] += 1
        dice = random.Random(f"{reading.checksum.hex()} {self._analyses[reading.checksum]}")  # noqa: S311
        return min(max(round(dice.gauss(reading.total, self.noise)), 0), 100)

    def _refuse_for_now(self, call: _Call) -> web.Response | None:
        """429 where a limit is used up; else the call is counted."""
        needed = {"requests": 1, "tokens": call.prompt_tokens}
        for limit in self._limits.values():
            if wait_s := limit.wait_s(needed[limit.unit]):
                self.rate_limited += 1
                message = f"Rate limit reached for {limit.unit} per min: limit {limit.most}"
                error = {"message": message, "type": limit.unit, "param": None, "code": "rate_limit_exceeded"}
                return error_response(429, message, {"retry-after": str(math.ceil(wait_s))}, {"error": error})
        for limit in self._limits.values():
            limit.spend(needed[limit.unit])
        return None

    async def _add_limits(self, request: web.Request, response: web.StreamResponse) -> None:
        if request.path == _COMPLETIONS:
            for limit in self._limits.values():
                for name, value in limit.headers().items():
                    response.headers.setdefault(name, value)

    def _meet_fault(self, call: _Call) -> Fault | None:
        fault = next((f for f in self.faults if _fits(f, call)), None)
        if fault is None:
            return None
        self.faults_met[fault.kind] += 1
        met = fault.model_copy()
        if fault.times is not None:
            fault.times -= 1
            if not fault.times:
                self.faults.remove(fault)
        return met

    def _usage(self, call: _Call, reply: str) -> dict[str, Any]:
        """Tokens by length, and a prefix cache that knows where the messages of earlier calls ended."""
        prefix, tokens, cached = 0, 0, 0
        for message in call.messages:
            prefix = hash((prefix, message))
            tokens += _tokens_of(message[1])
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
        return json_response({"object": "list", "data": [model]})

    async def _add_to_script(self, request: web.Request) -> web.Response:
        try:
            script = Script.model_validate_json(await request.read())
        except ValidationError as error:
            return error_response(400, f"{_script_help()}; but {error}")
        if not script.model_fields_set:
            return error_response(400, f"{_script_help()}; but this one orders nothing")
        self.script(*script.faults)
        for name, value in script.model_dump(exclude_unset=True, exclude={"faults"}).items():
            setattr(self, name, value)
        return await self._show_script(request)

    async def _show_script(self, _: web.Request) -> web.Response:
        shown: dict[str, Any] = {name: getattr(self, name) for name in Script.model_fields}
        shown["faults"] = [f.model_dump(by_alias=True, exclude_unset=True) for f in self.faults]
        counters = ("calls", "calls_by_turn", "faults_met", "rate_limited")
        return json_response(shown | {name: getattr(self, name) for name in counters})

    async def _clear_script(self, request: web.Request) -> web.Response:
        self.clear()
        return await self._show_script(request)

    async def _show_requests(self, _: web.Request) -> web.Response:
        return json_response({"requests": list(self.requests)})


class _Limit:
    """How many requests or tokens are served in any 60 s."""

    WINDOW_S = 60.0

    def __init__(self, unit: str, most: int, clock: Callable[[], float]) -> None:
        self.unit = unit
        self.most = most
        self._clock = clock
        self._spent: deque[tuple[float, int]] = deque()  # when, how many; oldest first

    def wait_s(self, needed: int) -> float:
        """Until so many would be served, > 0; 0.0: they are now. More than there can ever be: a whole window."""
        excess = self._used() + needed - self.most
        if excess <= 0:
            return 0.0
        for spent_at, amount in self._spent:
            excess -= amount
            if excess <= 0:
                return spent_at + self.WINDOW_S - self._clock()
        return self.WINDOW_S

    def spend(self, amount: int) -> None:
        self._spent.append((self._clock(), amount))

    def headers(self) -> dict[str, str]:
        """`x-ratelimit-*`; the reset is when nothing of the limit is used any more."""
        remaining = max(self.most - self._used(), 0)
        reset_s = self._spent[-1][0] + self.WINDOW_S - self._clock() if self._spent else 0.0
        values = {"limit": str(self.most), "remaining": str(remaining), "reset": _duration(reset_s)}
        return {f"x-ratelimit-{what}-{self.unit}": value for what, value in values.items()}

    def _used(self) -> int:
        while self._spent and self._spent[0][0] + self.WINDOW_S <= self._clock():
            self._spent.popleft()
        return sum(amount for _, amount in self._spent)


def _duration(seconds: float) -> str:
    """`6m0s`, `1s`, `20ms`, rounded up."""
    if 0 < seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(math.ceil(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"


def _understand(raw: bytes) -> _Call:
    """Raises: ValueError, KeyError, TypeError, StopIteration: It is no request for a chat completion."""
    body = json.loads(raw)
    messages = [(m["role"], _text_of(m["content"])) for m in body["messages"]]
    transcript = next(content for role, content in messages if role == "user")
    reading = read_transcript(transcript)
    task = read_task(messages, body.get("response_format"), reading.asked)
    return _Call(raw, body, messages, transcript, reading, task)


def _fits(fault: Fault, call: _Call) -> bool:
    if fault.turn not in ("any", call.task.turn):
        return False
    match fault.kind:
        case "no_response_format":
            asked = call.body.get("response_format")
            return asked is not None and fault.match in (None, asked["type"])
        case "band_violation" | "breakdown_mismatch" as flaw if not call.task.can_show(flaw):
            return False
        case "ignore_schema" if call.task.schema is None:
            return False
    wanted = fault.match
    return not wanted or wanted.encode() in call.raw or any(wanted in content for _, content in call.messages)


def _script_help() -> str:
    kinds = ", ".join(get_args(FaultKind))
    keys = ", ".join(field.alias or name for name, field in Fault.model_fields.items())
    options = ", ".join(name for name in Script.model_fields if name != "faults")
    return f'a script is {{"faults": [{{"kind": ...}}]}} and {options}; kinds are {kinds}; keys of a fault are {keys}'


def _choice(content: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": content, "refusal": None}
    return {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}


def _tokens_of(content: str) -> int:
    return len(content) // 4 + 4


def _text_of(content: str | list[dict[str, Any]]) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def main() -> None:
    """Serve until SIGTERM or SIGINT; the first line on standard output is the base URL."""
    parser = argparse.ArgumentParser(prog="scripted_judge", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one (default)")
    parser.add_argument("--latency", type=float, default=0.0, metavar="SECONDS", help="wait before each answer")
    parser.add_argument("--record", type=int, default=256, metavar="N", help="request bodies to keep for GET /requests")
    parser.add_argument("--noise", type=float, default=0.0, metavar="POINTS", help="standard deviation of totals")
    parser.add_argument("--obedient", action="store_true", help="follow orders that are not marked as data")
    parser.add_argument("--obeys-fenced", action="store_true", help="follow orders in the data too")
    for unit in ("requests", "tokens"):
        parser.add_argument(f"--{unit}-per-minute", type=int, metavar="N", help="answer 429 beyond it")
    asked = parser.parse_args()

    async def serve() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        async with ScriptedJudge(
            port=asked.port,
            latency_s=asked.latency,
            record=asked.record,
            noise=asked.noise,
            obedient=asked.obedient,
            obeys_fenced=asked.obeys_fenced,
            requests_per_minute=asked.requests_per_minute,
            tokens_per_minute=asked.tokens_per_minute,
        ) as judge:
            sys.stdout.write(f"{judge.base_url}\n")
            sys.stdout.flush()
            await stop.wait()

    uvloop.run(serve())


if __name__ == "__main__":
    main()
