"""Faults of the scripted judge: which can be ordered, and how each changes an answer."""

import asyncio
import json
from typing import Any, Literal

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from tarsy_scoring_lab.scripted_replies import STAND_IN, Turn

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
    "band_violation",  # an outcome whose band does not allow the total, where the prompt names bands
    "breakdown_mismatch",  # a breakdown, or a weighted score, that does not add up to the total
    "ignore_schema",  # free text where a JSON schema was sent
    "no_response_format",  # 400 for calls whose `response_format` has the type `match`, or any where that is null
    "truncated_input",  # usage tells of a fifth of the prompt
]


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


async def send_spoilt(request: web.Request, answer: dict[str, Any], fault: Fault) -> web.StreamResponse:
    """The spoilt answer, or what the fault puts in its place."""
    match fault.kind:
        case "status" | "body":
            return error_response(fault.status, f"scripted: status {fault.status}", fault.headers, fault.body)
        case "error_body":
            return error_response(200, "scripted: an error in a success", fault.headers, fault.body)
        case "no_response_format":
            return error_response(
                400, "response_format is unavailable", fault.headers, fault.body or _NO_RESPONSE_FORMAT
            )
        case "drop":
            return await _drop(request, answer)
        case "hang":
            await asyncio.Event().wait()
    return json_response(answer)


_NO_RESPONSE_FORMAT = {
    "error": {
        "message": "Unsupported parameter: this response_format type is unavailable with this model.",
        "type": "invalid_request_error",
        "param": "response_format",
        "code": "unsupported_parameter",
    }
}


def spoil(answer: dict[str, Any], fault: Fault) -> None:
    """Change the answer into what the fault makes of it."""
    choice = answer["choices"][0]
    message, text = choice["message"], choice["message"]["content"]
    match fault.kind:
        case "cut":
            choice["finish_reason"] = "length"
            message["content"] = text[: len(text) // 2]
        case "no_score":
            message["content"] = f"{STAND_IN} It was instructed to state no total."
        case "refusal":
            message |= {"content": None, "refusal": f"{STAND_IN} It was instructed to refuse."}
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
        case "truncated_input":
            usage = answer["usage"]
            usage["prompt_tokens"] //= 5
            usage["total_tokens"] = usage["prompt_tokens"] + usage["completion_tokens"]
            details = usage["prompt_tokens_details"]
            details["cached_tokens"] = min(details["cached_tokens"], usage["prompt_tokens"])
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


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    body = json.dumps(value).encode()
    return web.Response(body=body, content_type="application/json", status=status, headers=headers)


def error_response(
    status: int, message: str, headers: dict[str, str] | None = None, body: dict[str, Any] | None = None
) -> web.Response:
    default = {"error": {"message": message, "type": "scripted", "param": None, "code": None}}
    return json_response(default if body is None else body, status, headers)
