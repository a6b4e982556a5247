"""The AsyncAPI 3.0 document: five topics seen from the service, with keys, headers and examples."""

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from tarsy_scoring import __version__
from tarsy_scoring.config.settings import Settings, variable_of
from tarsy_scoring.events import SESSION_ID_PATTERN, SOURCE_COMPLETED, SOURCE_RESCORE, EventType

KAFKA_BINDING = "0.5.0"
JSON_SCHEMA = "application/schema+json;version=draft-2020-12"
SESSION_KEY = {
    "type": "string",
    "pattern": f"^{SESSION_ID_PATTERN.pattern}$",
    "description": "The session id.",
}

ORIGIN_HEADERS = {
    "scoring-original-topic": "Topic in which the message first stood.",
    "scoring-original-partition": "Its partition there, in decimal digits.",
    "scoring-original-offset": "Its offset there, in decimal digits.",
    "scoring-original-timestamp": "Its record timestamp there, in milliseconds since 1970.",
}
DEAD_LETTER_HEADERS = {
    "scoring-error": "Why, in one word; docs/events.md lists them.",
    "scoring-error-message": "Why, in a sentence; holds nothing of the message.",
    "scoring-failed-at": "When, in RFC 3339.",
    **ORIGIN_HEADERS,
}
BODY_HEADER = {"scoring-body-id": "Only for a message too large for this topic: where PostgreSQL keeps it."}
CLOUDEVENTS_HEADERS = {
    "ce_specversion": "1.0",
    "ce_id": "`event_id` of the payload.",
    "ce_source": "/tarsy-scoring",
    "ce_type": "`type` of the payload.",
    "ce_subject": "`session_id` of the payload.",
    "ce_time": "`timestamp` of the payload.",
    "content-type": "application/json",
}
TRACE_HEADER = {"traceparent": "Where in a trace it belongs (W3C Trace Context); may be missing."}
INCOMING = {SOURCE_COMPLETED: "A session has ended.", SOURCE_RESCORE: "A request to score a session again."}
OUTGOING: Mapping[str, str] = {
    "scoring.started": "An attempt at a score began.",
    "scoring.progress": "A score entered a phase.",
    "scoring.completed": "A score is stored.",
    "scoring.failed": "There is no score and there will be none from this request.",
    "scoring.request_superseded": "A newer request replaced one that waited.",
}
assert set(OUTGOING) == set(get_args(EventType))
# What it is, its key, its headers.
INSIGHTS: Mapping[str, tuple[str, str, str]] = {
    "scoring-windows": (
        "Rolling figures of a chain, which take the place of those before.",
        "The chain's id; empty for scores of no chain.",
        "None.",
    ),
    "scoring-drift-detected": (
        "The scores of a chain have changed.",
        "`drift:` and the `event_id`: all of them stay.",
        "CloudEvents 1.0 in binary mode: ce_specversion, ce_id, ce_source, ce_type, ce_time and content-type.",
    ),
}


def asyncapi_document(examples: Mapping[str, Any]) -> dict[str, Any]:
    """
    The whole document as plain values.

    Args:
        examples: Payloads by name; those of a message begin with the name of its schema.
    """
    events = [_dashed(t) for t in OUTGOING]
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "tarsy-scoring",
            "version": __version__,
            "description": "Scores finished investigations: an event in, scoring events out. See docs/events.md.",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "servers": {
            "kafka": {
                "host": "{bootstrap}",
                "protocol": "kafka",
                "description": "The brokers in SCORING_KAFKA_BOOTSTRAP_SERVERS.",
                "variables": {
                    "bootstrap": {"default": "localhost:9092", "description": "host:port of a broker."}
                },
            }
        },
        "channels": {
            "sessionCompleted": _channel(
                "topic_session_completed", "Sessions that have ended.", [SOURCE_COMPLETED]
            ),
            "rescoreRequested": _channel(
                "topic_rescore_requested", "Requests to score again.", [SOURCE_RESCORE]
            ),
            "scoringEvents": _channel(
                "topic_scoring_events", "What happens to scores, in order per session.", events
            ),
            "scoringInsights": _channel(
                "topic_scoring_insights", "What scores are like over time; compacted.", list(INSIGHTS)
            ),
            "deadLetters": _channel(
                "topic_dead_letters", "Messages that could not be understood.", ["dead-letter"]
            ),
        },
        "operations": {
            "takeSessionCompleted": _operation(
                "receive", "sessionCompleted", "Take in sessions that have ended."
            ),
            "takeRescoreRequested": _operation(
                "receive", "rescoreRequested", "Take in requests to score again."
            ),
            "announceScores": _operation(
                "send", "scoringEvents", "Publish the events of scores, at least once."
            ),
            "publishInsights": _operation(
                "send", "scoringInsights", "Publish rolling figures and findings of drift."
            ),
            "buryMessage": _operation(
                "send",
                "deadLetters",
                "Keep messages that cannot be decoded, before their offset is committed.",
            ),
        },
        "components": {
            "messages": {_camel(name): _incoming(name, what, examples) for name, what in INCOMING.items()}
            | {_camel(_dashed(t)): _outgoing(t, what, examples) for t, what in OUTGOING.items()}
            | {_camel(name): _insight(name, *texts, examples) for name, texts in INSIGHTS.items()}
            | {"deadLetter": _dead_letter()}
        },
    }


def _channel(setting: str, what: str, messages: Sequence[str]) -> dict[str, Any]:
    fields = Settings.model_fields
    return {
        "address": fields[setting].default,
        "description": f"{what} The name can be set with {variable_of(setting)}.",
        "messages": {_camel(m): {"$ref": f"#/components/messages/{_camel(m)}"} for m in messages},
        "bindings": {
            "kafka": {
                "partitions": fields["topic_partitions"].default,
                "replicas": fields["topic_replication"].default,
                "bindingVersion": KAFKA_BINDING,
            }
        },
    }


def _operation(action: str, channel: str, what: str) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "action": action,
        "channel": {"$ref": f"#/channels/{channel}"},
        "summary": what,
    }
    if action == "receive":
        group = {"type": "string", "default": Settings.model_fields["kafka_group"].default}
        operation["bindings"] = {"kafka": {"groupId": group, "bindingVersion": KAFKA_BINDING}}
    return operation


def _incoming(name: str, what: str, examples: Mapping[str, Any]) -> dict[str, Any]:
    headers = _headers(ORIGIN_HEADERS | TRACE_HEADER, required=False)
    headers["description"] = (
        "None is needed; those of the origin stand on a replayed dead letter and keep its identity."
    )
    return _message(name, what, headers, examples) | {"bindings": _key(SESSION_KEY)}


def _outgoing(event_type: str, what: str, examples: Mapping[str, Any]) -> dict[str, Any]:
    headers = _headers(CLOUDEVENTS_HEADERS, required=True)
    fixed = {"ce_specversion": "1.0", "ce_source": "/tarsy-scoring", "ce_type": event_type}
    for header, value in (fixed | {"content-type": "application/json"}).items():
        headers["properties"][header] = {"type": "string", "const": value}
    headers["properties"] |= _headers(TRACE_HEADER, required=False)["properties"]
    headers["description"] = "CloudEvents 1.0 in binary mode."
    return _message(_dashed(event_type), what, headers, examples) | {"bindings": _key(SESSION_KEY)}


def _insight(
    name: str, what: str, key: str, headers_text: str, examples: Mapping[str, Any]
) -> dict[str, Any]:
    headers = {"type": "object", "description": headers_text}
    return _message(name, what, headers, examples) | {
        "bindings": _key({"type": "string", "description": key})
    }


def _dead_letter() -> dict[str, Any]:
    headers = _headers(DEAD_LETTER_HEADERS, required=True)
    headers["properties"] |= _headers(BODY_HEADER, required=False)["properties"]
    headers["description"] = "Beside them, the headers that the message had."
    key = {"type": "string", "description": "The original key as it was, which may be none."}
    return {
        "name": "dead-letter",
        "summary": "A message that could not be decoded: the original bytes, key and headers.",
        "contentType": "application/octet-stream",
        "headers": headers,
        "payload": {
            "type": "string",
            "format": "binary",
            "description": "The original bytes, whatever they are.",
        },
        "bindings": _key(key),
    }


def _message(name: str, what: str, headers: dict[str, Any], examples: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "summary": what,
        "contentType": "application/json",
        "headers": headers,
        "payload": {"schemaFormat": JSON_SCHEMA, "schema": {"$ref": f"./{name}.v1.json"}},
        "examples": [{"name": n, "payload": v} for n, v in examples.items() if n.startswith(name)],
    }


def _headers(names: Mapping[str, str], *, required: bool) -> dict[str, Any]:
    properties = {name: {"type": "string", "description": what} for name, what in names.items()}
    return {"type": "object", "properties": properties} | ({"required": list(names)} if required else {})


def _key(schema: dict[str, Any]) -> dict[str, Any]:
    return {"kafka": {"key": dict(schema), "bindingVersion": KAFKA_BINDING}}


def _dashed(event_type: str) -> str:
    return event_type.replace(".", "-").replace("_", "-")


def _camel(name: str) -> str:
    first, *rest = name.split("-")
    return first + "".join(part.capitalize() for part in rest)
