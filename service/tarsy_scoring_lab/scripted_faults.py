"""Faults that a test can order from the scripted judge, and the change that each makes to an answer."""

import asyncio
from typing import Any, Literal

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from tarsy_scoring.config.packaged import packaged_yaml
from tarsy_scoring_lab.scripted_replies import STAND_IN, Turn

FaultKind = Literal[
    "status",  # `status`, `headers`, `json` as the body
    "latency",  # `seconds` of waiting, then the next fault or the answer
    "hang",  # no answer until the client gives up
    "cut",  # finish_reason `length`, before any total
    "no_score",
    "refusal",
    "content_filter",
    "tool_calls",  # a tool call and no text
    "reply",  # `content` in place of the answer
    "served_model",  # `model` in place of the requested one
    "breakdown_mismatch",  # a breakdown, or a weighted score, that does not add up to the total
    "no_response_format",  # 400 for calls whose `response_format` has the type `match`, or any where that is null
    "truncated_input",  # usage reports a fifth of the prompt's tokens
]


class Fault(BaseModel):
    """
    A fault that the scripted judge produces in matching calls.

    A call meets the first fault that matches it and has `times` left. After a `latency` it looks for a fault
    again, and may meet the same one.
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


_TOOL_CALL = {"id": "call_1", "type": "function", "function": {"name": "read-file", "arguments": "{}"}}
# Changes of the message, and the finish reasons that OpenAI gives for these kinds of answers.
_MESSAGES: dict[FaultKind, dict[str, Any]] = {
    "no_score": {"content": f"{STAND_IN} It was instructed to state no total."},
    "refusal": {"content": None, "refusal": f"{STAND_IN} It was instructed to refuse."},
    "content_filter": {"content": ""},
    "tool_calls": {"content": None, "tool_calls": [_TOOL_CALL]},
}
_FINISH_REASONS: dict[FaultKind, str] = {
    "cut": "length",
    "content_filter": "content_filter",
    "tool_calls": "tool_calls",
}
_NO_RESPONSE_FORMAT = packaged_yaml(__package__, "scripted_texts.yaml")["no_response_format"]


async def send_spoilt(answer: dict[str, Any], fault: Fault) -> web.Response:
    """Send the answer as the fault changes it, or the response that replaces it."""
    choice, usage = answer["choices"][0], answer["usage"]
    message = choice["message"]
    message |= _MESSAGES.get(fault.kind, {})
    choice["finish_reason"] = _FINISH_REASONS.get(fault.kind, "stop")
    match fault.kind:
        case "status":
            return error_response(fault.status, f"scripted: status {fault.status}", fault.headers, fault.body)
        case "no_response_format":
            return web.json_response(_NO_RESPONSE_FORMAT, status=400)
        case "hang":
            await asyncio.Event().wait()
        case "cut":
            message["content"] = message["content"][: len(message["content"]) // 2]
        case "reply":
            message["content"] = fault.content
        case "served_model":
            answer["model"] = fault.model
        case "truncated_input":
            usage["prompt_tokens"] //= 5
            usage["total_tokens"] = usage["prompt_tokens"] + usage["completion_tokens"]
            usage["prompt_tokens_details"] = {"cached_tokens": 0}
    return web.json_response(answer)


def error_response(
    status: int, message: str, headers: dict[str, str] | None = None, body: dict[str, Any] | None = None
) -> web.Response:
    """An error in the shape of OpenAI's endpoints, or with `body` if it is given."""
    error = {"error": {"message": message, "type": "scripted", "param": None, "code": None}}
    return web.json_response(error if body is None else body, status=status, headers=headers)
