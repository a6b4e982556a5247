"""The generated files match the code, and their references and examples are valid."""

import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import yaml
from contracts import (
    ALL,
    EXAMPLES,
    INCOMING,
    MESSAGES,
    OUTGOING,
    ROOT,
    SCHEMAS,
    load_schema,
    schema_of_example,
    validator,
)
from jsonschema import Draft202012Validator

from tarsy_scoring.config.settings import Settings
from tarsy_scoring.dead_letters.dead_letters import write_dead_letter
from tarsy_scoring.errors import InvalidMessage
from tarsy_scoring.events import cloudevents_headers
from tarsy_scoring.kafka.connect import Headers
from tarsy_scoring.kafka.consumer import Record
from tarsy_scoring.kafka.publisher import Publisher
from tarsy_scoring.postgres.database import Database

DOCUMENT = yaml.safe_load((SCHEMAS / "asyncapi.yaml").read_text("utf-8"))


def test_generated_files_match_the_code() -> None:
    command = [sys.executable, str(ROOT / "schemas/generate.py"), "--check"]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    assert checked.returncode == 0, checked.stderr


def test_schemas_are_valid_and_have_an_id() -> None:
    """Each is valid JSON Schema 2020-12, has an id of its own and allows unknown fields."""
    for name in ALL:
        schema = load_schema(name)
        Draft202012Validator.check_schema(schema)
        assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
        assert schema["$id"] == f"urn:tarsy-scoring:schema:{name}:1"
        assert schema["title"], name
        assert schema["description"], name
        assert "additionalProperties" not in schema, name


def test_examples_are_valid_and_complete() -> None:
    """One example of each schema shows every field, except fields that only some documents have."""
    optional_fields = {"waiting_for", "waiting_for_text", "latest_attempt", "current_stage", "left_out"}
    for example, document in EXAMPLES.items():
        name = schema_of_example(example)
        validator(name).validate(document)
        if name in INCOMING:
            INCOMING[name].model_validate_json((SCHEMAS / f"examples/{example}.json").read_bytes(), strict=True)
    for name in ALL:
        shown: set[str] = max((set(v) for n, v in EXAMPLES.items() if schema_of_example(n) == name), key=len)
        assert set(load_schema(name)["properties"]) - shown <= optional_fields, name


# --- AsyncAPI ------------------------------------------------------------------------------------------


def resolve(reference: str) -> Any:
    found: Any = DOCUMENT
    for part in reference.removeprefix("#/").split("/"):
        found = found[part]
    return found


def messages_of(channel: str) -> list[dict[str, Any]]:
    return [resolve(m["$ref"]) for m in DOCUMENT["channels"][channel]["messages"].values()]


def test_asyncapi_names_the_topics_of_the_settings() -> None:
    """The five channels are the topics by their default names, and each is used in the right direction."""
    settings = Settings()
    addresses = {name: channel["address"] for name, channel in DOCUMENT["channels"].items()}
    used = {(o["action"], resolve(o["channel"]["$ref"])["address"]) for o in DOCUMENT["operations"].values()}

    assert sorted(addresses.values()) == sorted(
        [
            settings.topic_session_completed,
            settings.topic_rescore_requested,
            settings.topic_scoring_events,
            settings.topic_scoring_insights,
            settings.topic_dead_letters,
        ]
    )
    assert used == {
        ("receive", settings.topic_session_completed),
        ("receive", settings.topic_rescore_requested),
        ("send", settings.topic_scoring_events),
        ("send", settings.topic_scoring_insights),
        ("send", settings.topic_dead_letters),
    }


def test_asyncapi_has_each_message_once_with_key_and_examples() -> None:
    """Each message refers to its own schema, has a Kafka key, and shows examples."""
    for name in MESSAGES:
        (message,) = (m for m in DOCUMENT["components"]["messages"].values() if m["name"] == name)
        assert message["payload"]["schema"] == {"$ref": f"./{name}.v1.json"}
        assert message["bindings"]["kafka"]["key"]["type"] == "string"
        assert [e["payload"] for e in message["examples"]] == [v for n, v in EXAMPLES.items() if n.startswith(name)]


def test_asyncapi_headers_of_a_scoring_event_are_those_sent() -> None:
    """The relay's headers of an event satisfy the document, and the document lists all of them."""
    for name in OUTGOING:
        (message,) = (m for m in messages_of("scoringEvents") if m["name"] == name)
        sent = {k: v.decode() for k, v in cloudevents_headers(EXAMPLES[name if name in EXAMPLES else f"{name}-queued"])}
        Draft202012Validator(message["headers"]).validate(sent)
        assert set(message["headers"]["required"]) == set(sent), name


class RecordingPublisher(Publisher):
    """Keeps the messages in `sent` in place of sending them."""

    def __init__(self) -> None:
        super().__init__(Settings())
        self.sent: list[tuple[bytes | None, bytes | None, Headers]] = []

    async def publish(
        self, topic: str, messages: Sequence[tuple[bytes | None, bytes | None, Headers]], timeout_s: float
    ) -> list[bool]:
        self.sent += messages
        return [True for _ in messages]


async def test_asyncapi_headers_of_a_dead_letter_are_those_sent() -> None:
    """The headers of a real dead letter satisfy the document, and the document lists all of ours."""
    publisher = RecordingPublisher()
    record = Record("session-completed", 3, 17, 1_772_446_531_310, b"key", b"junk", [("theirs", b"1")])
    unused = Database("postgresql:///unused", "public", pool_size=1)  # for bodies that are too large

    why = InvalidMessage("not_json", "why")
    await write_dead_letter(publisher, "scoring-dead-letters", unused, record, why, datetime.now(UTC))

    ((key, value, headers),) = publisher.sent
    (message,) = messages_of("deadLetters")
    ours = {k: v.decode() for k, v in headers if k.startswith("scoring-")}
    Draft202012Validator(message["headers"]).validate(ours)
    assert set(message["headers"]["required"]) == set(ours)
    assert (key, value, headers[0]) == (b"key", b"junk", ("theirs", b"1"))
