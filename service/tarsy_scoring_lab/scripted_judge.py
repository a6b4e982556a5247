"""
A stand-in for the judge: an OpenAI-compatible endpoint that answers by a script and judges nothing.

Answers depend only on the conversation, so the same session gets the same answer, and each answer states
that it is made up. Faults are ordered by `ScriptedJudge.script` or over HTTP (`POST /script`).
"""

import argparse
import asyncio
import json
import signal
import sys
from collections import Counter, deque
from dataclasses import dataclass
from typing import Any, Self, get_args

import uvloop
from aiohttp import web
from pydantic import BaseModel, ConfigDict, ValidationError

from tarsy_scoring_lab.recorded_replies import RecordedReplies
from tarsy_scoring_lab.scripted_faults import Fault, FaultKind, error_response, send_spoilt
from tarsy_scoring_lab.scripted_replies import STAND_IN, Messages, Task, read_task, write_reply

__all__ = ["MODEL", "STAND_IN", "Fault", "ScriptedJudge"]

MODEL = "scripted-judge"
_REMEMBERED_REQUESTS = 256
_LARGEST_BODY = 64 * 2**20


class _Script(BaseModel):
    """Body of `POST /script`: further faults."""

    model_config = ConfigDict(extra="forbid")

    faults: list[Fault]


@dataclass(frozen=True, slots=True)
class _Call:
    """A request for a completion: the bytes of the body, the parsed body, and what they ask for."""

    raw: bytes
    body: dict[str, Any]
    messages: Messages
    task: Task


class ScriptedJudge:
    """
    The endpoint of the scripted judge, on a loopback port.

    `requests` holds the last 256 request bodies. `calls_by_turn` counts the calls of each turn, and
    `faults_met` the faults of each kind that calls have met.

    Args:
        recorded: Replies that it gives instead of made-up ones where it has one for a session.
        port: 0 takes a free port.
        latency_s: Wait before each answer.
    """

    def __init__(
        self, *, recorded: RecordedReplies | None = None, port: int = 0, latency_s: float = 0.0
    ) -> None:
        self._recorded = recorded
        self.port = port
        self.latency_s = latency_s
        self.requests: deque[dict[str, Any]] = deque(maxlen=_REMEMBERED_REQUESTS)
        self.faults: list[Fault] = []
        self.calls_by_turn: Counter[str] = Counter()
        self.faults_met: Counter[str] = Counter()
        self._runner: web.AppRunner | None = None

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def calls(self) -> int:
        """Number of well-formed calls so far, whether they met a fault or not."""
        return self.calls_by_turn.total()

    def script(self, *faults: Fault) -> None:
        """Order further faults; calls meet those ordered earlier first."""
        self.faults += [fault.model_copy() for fault in faults]

    def clear(self) -> None:
        """Remove all faults. Calls that hang already continue to hang."""
        self.faults.clear()

    async def start(self) -> None:
        """
        Serve on the port. The port that was chosen for 0 is kept after `stop`.

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
            ]
        )
        # A call that hangs ends when the client gives up, and at the latest with `stop`.
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, backlog=1024)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Stop serving and close connections. The port is kept for another `start`. Safe to call twice."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.stop()

    async def _complete(self, request: web.Request) -> web.Response:
        try:
            call = _parse_call(await request.read())
        except (ValueError, KeyError, TypeError, StopIteration):
            return error_response(400, "the body is no chat completion with a message of the user")
        if call.body.get("stream"):
            return error_response(400, "the scripted judge does not stream")
        self.calls_by_turn[call.task.turn] += 1
        self.requests.append(call.body)
        await asyncio.sleep(self.latency_s)
        fault = self._take_fault(call)
        while fault is not None and fault.kind == "latency":
            await asyncio.sleep(fault.seconds)
            fault = self._take_fault(call)
        reply = self._recorded.reply_to(call.task, call.messages) if self._recorded else None
        if reply is None:
            reply = write_reply(
                call.task, contradictory=fault is not None and fault.kind == "breakdown_mismatch"
            )
        answer = {
            "id": f"chatcmpl-{self.calls}",
            "object": "chat.completion",
            "created": 0,
            "model": call.body.get("model", MODEL),
            "system_fingerprint": "scripted-stand-in",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": reply, "refusal": None},
                    "finish_reason": "stop",
                    "logprobs": None,
                }
            ],
            "usage": _usage(call.messages, reply),
        }
        return web.json_response(answer) if fault is None else await send_spoilt(answer, fault)

    def _take_fault(self, call: _Call) -> Fault | None:
        """The first fault that matches the call; counts it, and removes it after the last time."""
        fault = next((f for f in self.faults if _matches(f, call)), None)
        if fault is None:
            return None
        self.faults_met[fault.kind] += 1
        met = fault.model_copy()
        if fault.times is not None:
            fault.times -= 1
            if not fault.times:
                self.faults.remove(fault)
        return met

    async def _list_models(self, _: web.Request) -> web.Response:
        model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "stand-in"}
        return web.json_response({"object": "list", "data": [model]})

    async def _add_to_script(self, request: web.Request) -> web.Response:
        try:
            self.script(*_Script.model_validate_json(await request.read()).faults)
        except ValidationError as error:
            kinds = ", ".join(get_args(FaultKind))
            keys = ", ".join(field.alias or name for name, field in Fault.model_fields.items())
            expected = (
                f'expected {{"faults": [{{"kind": ...}}]}}; kinds are {kinds}; keys of a fault are {keys}'
            )
            return error_response(400, f"{expected}; {error}")
        return await self._show_script(request)

    async def _show_script(self, _: web.Request) -> web.Response:
        faults = [f.model_dump(by_alias=True, exclude_unset=True) for f in self.faults]
        counters = {"calls": self.calls, "calls_by_turn": self.calls_by_turn, "faults_met": self.faults_met}
        return web.json_response({"faults": faults} | counters)

    async def _clear_script(self, request: web.Request) -> web.Response:
        self.clear()
        return await self._show_script(request)


def _parse_call(raw: bytes) -> _Call:
    """
    Parse the body of a request.

    Raises:
        ValueError, KeyError, TypeError, StopIteration: It is no request for a chat completion.
    """
    body = json.loads(raw)
    messages = [(m["role"], _text_of(m["content"])) for m in body["messages"]]
    return _Call(raw, body, messages, read_task(messages, body.get("response_format")))


def _text_of(content: str | list[dict[str, Any]]) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def _matches(fault: Fault, call: _Call) -> bool:
    if fault.turn not in ("any", call.task.turn):
        return False
    if fault.kind == "no_response_format":
        asked = call.body.get("response_format")
        return asked is not None and fault.match in (None, asked["type"])
    if fault.kind == "breakdown_mismatch" and not call.task.can_contradict:
        return False
    wanted = fault.match
    return not wanted or wanted.encode() in call.raw or any(wanted in content for _, content in call.messages)


def _usage(messages: Messages, reply: str) -> dict[str, Any]:
    """
    Usage as a provider reports it, at four characters per token.

    Messages before the last answer count as cached: the call before has sent them.
    """
    tokens = [len(content) // 4 + 4 for _, content in messages]
    answered = [number for number, (role, _) in enumerate(messages) if role == "assistant"]
    written = len(reply) // 4 + 1
    return {
        "prompt_tokens": sum(tokens),
        "completion_tokens": written,
        "total_tokens": sum(tokens) + written,
        "prompt_tokens_details": {"cached_tokens": sum(tokens[: answered[-1]]) if answered else 0},
    }


def main() -> None:
    """Serve until SIGTERM or SIGINT; the first line on standard output is the base URL."""
    parser = argparse.ArgumentParser(prog="scripted_judge", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one (default)")
    parser.add_argument(
        "--latency", type=float, default=0.0, metavar="SECONDS", help="wait before each answer"
    )
    options = parser.parse_args()

    async def serve() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        async with ScriptedJudge(port=options.port, latency_s=options.latency) as judge:
            sys.stdout.write(f"{judge.base_url}\n")
            sys.stdout.flush()
            await stop.wait()

    uvloop.run(serve())


if __name__ == "__main__":
    main()
