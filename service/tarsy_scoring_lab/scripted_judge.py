"""
A stand-in for the judge: an OpenAI-compatible endpoint that answers by a script and judges nothing.

Answers depend only on the conversation, so the same session gets the same answer, and each answer states
that it is made up. Tests order faults by `ScriptedJudge.script`.
"""

import argparse
import asyncio
import json
import sys
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import uvloop
from aiohttp import web

from tarsy_scoring.telemetry.stopping import run_until_signalled
from tarsy_scoring_lab.recorded_replies import RecordedReplies
from tarsy_scoring_lab.scripted_replies import STAND_IN, Messages, Task, Turn, embed, read_task, write_reply

__all__ = ["MODEL", "STAND_IN", "Fault", "ScriptedJudge"]

MODEL = "scripted-judge"


FaultKind = Literal[
    "status",  # `status`, `headers`, `json` as the body
    "latency",  # `seconds` of waiting, then the next fault or the answer
    "hang",  # no answer until the client gives up
    "no_score",
    "refusal",
    "reply",  # `content` in place of the answer
]


UNRECORDED = "I replay recorded judgements, and none answers this; set OPENAI_API_KEY for a live model."


@dataclass(slots=True)
class Fault:
    """
    A fault that the scripted judge produces in matching calls.

    A call meets the first fault that matches it and has `times` left. After a `latency` it looks for a fault
    again, and may meet the same one.

    Args:
        times: Calls that meet it; None: all from now on.
        match: Text that the body, or a message in it, must hold; None: any body.
    """

    kind: FaultKind
    times: int | None = None
    match: str | None = None
    turn: Turn | Literal["any"] = "any"
    status: int = 500
    headers: Mapping[str, str] = field(default_factory=dict)
    json: Mapping[str, Any] | None = None
    seconds: float = 0.0
    content: str = ""


@dataclass(frozen=True, slots=True)
class _Call:
    """A request for a completion: the bytes of the body, the parsed body, and what they ask for."""

    raw: bytes
    body: dict[str, Any]
    messages: Messages
    task: Task


class ScriptedJudge:
    """
    The endpoint of the scripted judge.

    `requests` holds the last 256 request bodies. `calls_by_turn` counts the calls of each turn.

    Args:
        recorded: Replies that it gives instead of made-up ones; it refuses what none answers.
        host: Address that it listens on. It has no access control.
        port: 0 takes a free port.
        latency_s: Wait before each answer.
    """

    def __init__(
        self,
        *,
        recorded: RecordedReplies | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        latency_s: float = 0.0,
    ) -> None:
        self._recorded = recorded
        self._host = host
        self.port = port
        self.latency_s = latency_s
        self.requests: deque[dict[str, Any]] = deque(maxlen=256)
        self.faults: list[Fault] = []
        self.calls_by_turn: Counter[str] = Counter()
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
        self.faults += [replace(fault) for fault in faults]

    def clear(self) -> None:
        """Remove all faults. Calls that hang already continue to hang."""
        self.faults.clear()

    async def start(self) -> None:
        """
        Serve on the port. The port that was chosen for 0 is kept after `stop`.

        Raises:
            OSError: The port is taken.
        """
        app = web.Application(client_max_size=64 * 2**20)
        app.add_routes(
            [
                web.post("/v1/chat/completions", self._complete),
                web.post("/v1/embeddings", self._embed),
                web.get("/v1/models", self._list_models),
                web.get("/calls", self._show_calls),
            ]
        )
        # A call that hangs ends when the client gives up, and at the latest with `stop`.
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self.port, backlog=1024)
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
            return _error(400, "the body is no chat completion with a message of the user")
        if call.body.get("stream"):
            return _error(400, "the scripted judge does not stream")
        self.calls_by_turn[call.task.turn] += 1
        self.requests.append(call.body)
        await asyncio.sleep(self.latency_s)
        fault = self._take_fault(call)
        while fault is not None and fault.kind == "latency":
            await asyncio.sleep(fault.seconds)
            fault = self._take_fault(call)
        recorded = self._recorded
        reply = recorded.reply_to(call.task, call.messages) if recorded else write_reply(call.task)
        answer = {
            "id": f"chatcmpl-{self.calls}",
            "object": "chat.completion",
            "created": 0,
            "model": call.body.get("model", MODEL),
            "system_fingerprint": "scripted-stand-in",
            "choices": [
                {
                    "index": 0,
                    "message": {
                        "role": "assistant",
                        "content": reply,
                        "refusal": None if reply else UNRECORDED,
                    },
                    "finish_reason": "stop",
                    "logprobs": None,
                }
            ],
            "usage": _usage(call.messages, reply or UNRECORDED),
        }
        return await _send(answer, fault)

    async def _embed(self, request: web.Request) -> web.Response:
        body = await request.json()
        texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
        data = [{"index": n, "embedding": embed(text, body["dimensions"])} for n, text in enumerate(texts)]
        return web.json_response({"object": "list", "data": data, "model": body["model"]})

    def _take_fault(self, call: _Call) -> Fault | None:
        """The first fault that matches the call; counts it, and removes it after the last time."""
        fault = next((f for f in self.faults if _matches(f, call)), None)
        if fault is None:
            return None
        met = replace(fault)
        if fault.times is not None:
            fault.times -= 1
            if not fault.times:
                self.faults.remove(fault)
        return met

    async def _list_models(self, _: web.Request) -> web.Response:
        model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "stand-in"}
        return web.json_response({"object": "list", "data": [model]})

    async def _show_calls(self, _: web.Request) -> web.Response:
        return web.json_response(self.calls)


def _parse_call(raw: bytes) -> _Call:
    """
    Parse the body of a request.

    Raises:
        ValueError, KeyError, TypeError, StopIteration: It is no request for a chat completion.
    """
    body = json.loads(raw)
    messages = [(m["role"], m["content"]) for m in body["messages"]]
    return _Call(raw, body, messages, read_task(messages, body.get("response_format")))


def _matches(fault: Fault, call: _Call) -> bool:
    wanted, is_turn = fault.match or "", fault.turn in ("any", call.task.turn)
    return is_turn and (wanted.encode() in call.raw or any(wanted in content for _, content in call.messages))


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


async def _send(answer: dict[str, Any], fault: Fault | None) -> web.Response:
    """Send the answer, as the fault changes it, or the response that replaces it."""
    message = answer["choices"][0]["message"]
    match fault:
        case Fault(kind="status"):
            return _error(fault.status, f"scripted: status {fault.status}", fault)
        case Fault(kind="hang"):
            await asyncio.Event().wait()
        case Fault(kind="no_score"):
            message["content"] = f"{STAND_IN} It was instructed to state no total."
        case Fault(kind="refusal"):
            message |= {"content": None, "refusal": f"{STAND_IN} It was instructed to refuse."}
        case Fault(kind="reply"):
            message["content"] = fault.content
    return web.json_response(answer)


def _error(status: int, message: str, fault: Fault | None = None) -> web.Response:
    """An error in the shape of OpenAI's endpoints, or with the fault's body if it has one."""
    body = fault.json if fault else None
    body = body or {"error": {"message": message, "type": "scripted", "param": None, "code": None}}
    return web.json_response(body, status=status, headers=fault.headers if fault else None)


def main() -> None:
    """Serve until SIGTERM or SIGINT; the first line on standard output is the base URL."""
    parser = argparse.ArgumentParser(prog="scripted_judge", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one (default)")
    parser.add_argument(
        "--latency", type=float, default=0.0, metavar="SECONDS", help="wait before each answer"
    )
    options = parser.parse_args()

    async def serve(stopping: asyncio.Event) -> None:
        async with ScriptedJudge(host=options.host, port=options.port, latency_s=options.latency) as judge:
            sys.stdout.write(f"{judge.base_url}\n")
            sys.stdout.flush()
            await stopping.wait()

    uvloop.run(run_until_signalled(serve))


if __name__ == "__main__":
    main()
