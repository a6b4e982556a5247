"""Decoding of incoming messages: which are accepted, the reason that refuses the others, and request ids."""

import contextlib
import itertools
import json
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from contracts import EXAMPLES, INCOMING, SCHEMAS, validator
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from structlog.testing import capture_logs

from tables import table
from tarsy_scoring.errors import InvalidMessage
from tarsy_scoring.events import Origin, RescoreRequested, SessionCompleted, cloudevents_headers, decode, request_id_of

Decode = Callable[[bytes | None], SessionCompleted | RescoreRequested]
DECODERS: dict[str, Decode] = {
    "session-completed": partial(decode, SessionCompleted),
    "rescore-requested": partial(decode, RescoreRequested),
}
SECRET = "hunter2-do-not-repeat"


def completed(**fields: Any) -> bytes:
    return json.dumps({"session_id": "s1"} | fields).encode()


def reason_of(decode: Decode, value: bytes | None) -> str:
    with pytest.raises(InvalidMessage) as caught:
        decode(value)
    return caught.value.reason


# --- refused -------------------------------------------------------------------------------------------

# Messages that cannot be decoded, by case: the bytes, and the reason in `scoring-error`.
POISON: dict[str, tuple[bytes | None, str]] = {
    "no-value": (None, "empty"),
    "no-bytes": (b"", "empty"),
    "white-space": (b" \n", "not_json"),
    "text": (b"a session has ended", "not_json"),
    "half": (completed()[:-1], "not_json"),
    "two-documents": (completed() + completed(), "not_json"),
    "single-quotes": (b"{'session_id': 's1'}", "not_json"),
    "not-a-number": (b'{"session_id": "s1", "ignored": NaN}', "not_json"),
    "infinite": (b'{"session_id": "s1", "ignored": -Infinity}', "not_json"),
    "digits-without-end": (b'{"session_id": "s1", "ignored": ' + b"9" * 5_000 + b"}", "not_json"),
    "deep-list": (b'{"session_id": "s1", "ignored": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "not_json"),
    "deep-object": (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "not_json"),
    "half-a-surrogate": (b'{"session_id": "s1", "ignored": "\\ud800"}', "not_json"),
    "half-a-surrogate-in-a-key": (b'{"session_id": "s1", "\\udfff": 1}', "not_json"),
    "byte-order-mark": (b"\xef\xbb\xbf" + completed(), "not_json"),
    "utf-16-with-mark": (completed().decode().encode("utf-16"), "not_utf8"),
    "utf-16-little-endian": (completed().decode().encode("utf-16-le"), "not_json"),
    "utf-16-big-endian": (completed().decode().encode("utf-16-be"), "not_json"),
    "utf-32": (completed().decode().encode("utf-32"), "not_utf8"),
    "latin-1": ('{"session_id": "s1", "ignored": "ä"}'.encode("latin-1"), "not_utf8"),
    "surrogate-as-bytes": (b'{"session_id": "s1", "ignored": "\xed\xa0\x80"}', "not_utf8"),
    "overlong": (b'{"session_id": "s1", "ignored": "\xc0\x80"}', "not_utf8"),
    "compressed": (b"\x1f\x8b\x08\x00\x00\x00\x00\x00", "not_utf8"),
    "null": (b"null", "not_an_object"),
    "list": (b"[" + completed() + b"]", "not_an_object"),
    "string": (b'"s1"', "not_an_object"),
    "number": (b"1", "not_an_object"),
    "boolean": (b"true", "not_an_object"),
    "nul-byte": (b'{"session_id": "s1", "ignored": "\x00"}', "not_json"),
    "nul-in-a-field": (completed(event_id="e\0"), "nul_character"),
    "nul-in-the-session-id": (completed(session_id="s\0"), "nul_character"),
    "nul-in-an-ignored-field": (completed(ignored="a\0b"), "nul_character"),
    "nul-in-an-ignored-key": (completed(**{"ig\0nored": 1}), "nul_character"),
    "nul-deep-in-an-ignored-field": (completed(ignored=[{"a": [{"b\0": None}]}]), "nul_character"),
    "no-session-id": (b"{}", "invalid_field"),
    "too-large": (b" " * 10 * 2**20 + completed(), "too_large"),
    "large": (b"x" * 10 * 2**20, "not_json"),
}  # fmt: skip
FIELDS = yaml.safe_load((Path(__file__).parent / "messages.yaml").read_text("utf-8"))


def test_poison_message_is_refused_with_its_reason() -> None:
    for read, (name, (value, reason)) in itertools.product(DECODERS.values(), POISON.items()):
        assert reason_of(read, value) == reason, name


def test_invalid_field_is_refused() -> None:
    for kind, read in DECODERS.items():
        for fields in FIELDS["both"] + FIELDS[kind]:
            assert reason_of(read, completed(**fields)) == "invalid_field", fields
        for field, length in (FIELDS["longest"]["both"] | FIELDS["longest"][kind]).items():
            assert getattr(read(completed(**{field: "s" * length})), field) == "s" * length
            assert reason_of(read, completed(**{field: "s" * (length + 1)})) == "invalid_field", field


def test_refusal_repeats_nothing_of_the_message() -> None:
    for value in (
        completed(event_id=[SECRET]),
        completed(session_id=f"{SECRET} "),
        completed(labels={SECRET * 10_000: 1}),
        completed(completed_at=SECRET),
        f'{{"session_id": "{SECRET}'.encode(),
        completed(ignored=f"{SECRET}\0"),
        f'"{SECRET}"'.encode(),
    ):
        with pytest.raises(InvalidMessage) as caught:
            decode(SessionCompleted, value)
        assert SECRET not in str(caught.value)
        assert len(str(caught.value)) < 200


@given(st.binary(max_size=20), st.integers(0, 400), st.integers(0, 400))
def test_no_bytes_break_the_decoder(junk: bytes, start: int, end: int) -> None:
    """Any bytes are decoded or raise `InvalidMessage`; another exception would stop intake for good."""
    whole = (SCHEMAS / "examples/session-completed.json").read_bytes()

    with contextlib.suppress(InvalidMessage):
        assert isinstance(decode(SessionCompleted, whole[:start] + junk + whole[end:]), SessionCompleted)


# --- accepted ------------------------------------------------------------------------------------------


def test_labels_beyond_their_bounds_are_left_out() -> None:
    """The event is not lost for them, and a warning counts them."""
    fitting = {f"{n:0100}": "v" * 1000 for n in range(60)}
    with capture_logs() as lines:
        event = decode(SessionCompleted, completed(labels={"n" * 101: "x", "long": "v" * 1001} | fitting))
        decode(SessionCompleted, completed(labels=dict(list(fitting.items())[:50])))

    assert event.labels == dict(list(fitting.items())[:50])
    assert [(one["event"], one["session_id"], one["labels"]) for one in lines] == [("labels.left_out", "s1", 12)]


def test_ids_within_the_rules_are_accepted() -> None:
    for read in DECODERS.values():
        for session_id in ("s", "7", "a._:@-Z9", "7d3c1f52-0a4e-4a7e-9a52-2f8f6f1f9c10"):
            assert read(completed(session_id=session_id)).session_id == session_id
        for event_id in ("e", "𝄞" * 255, "a\tb c/\x1f"):
            assert read(completed(event_id=event_id)).event_id == event_id


def test_absent_fields_have_their_defaults() -> None:
    assert decode(SessionCompleted, completed()) == SessionCompleted(session_id="s1", status="completed")
    assert decode(RescoreRequested, completed()) == RescoreRequested(session_id="s1", requested_by="event", force=True)


def test_null_counts_as_absent() -> None:
    """Producers that always write every field write null for the ones they do not know."""
    for name, model in INCOMING.items():
        fields = dict.fromkeys(model.model_fields) | {"session_id": "s1"}
        message = DECODERS[name](json.dumps(fields).encode())
        assert message.model_dump(exclude={"session_id"}) == dict.fromkeys(fields.keys() - {"session_id"})
    for field in ("chain_id", "alert_type"):
        assert getattr(decode(SessionCompleted, completed(**{field: ""})), field) is None


def test_status_is_kept_as_it_is() -> None:
    """Decoding keeps an unknown status too, so that it can be recorded as `status_not_scored`."""
    for status in ("completed", "failed", "cancelled", "timed_out", "paused", "COMPLETED", ""):
        assert decode(SessionCompleted, completed(status=status)).status == status


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8", exclude_characters="\0")),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(codec="utf-8", exclude_characters="\0")), inner, max_size=3)
    ),
    max_leaves=10,
)


@pytest.mark.parametrize("name", INCOMING)
@given(extra=st.dictionaries(st.text(st.characters(codec="utf-8", exclude_characters="\0")), JSON, max_size=5))
def test_unknown_fields_change_nothing(name: str, extra: dict[str, Any]) -> None:
    known = EXAMPLES[name]

    message = DECODERS[name](json.dumps(extra | known).encode())

    assert message == DECODERS[name](json.dumps(known).encode())
    validator(name).validate(extra | known)


# --- models and schemas --------------------------------------------------------------------------------

VALUES = st.sampled_from([*FIELDS["values"], "x" * 255, "x" * 256, "x" * 4000, "x" * 4001, "𝄞" * 255])
TIMES: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, 0, 1.5, [], {}, "2026-03-02T10:15:31Z", "2026-03-02T10:15:31.5+02:00"]
)


def is_valid_for_model(name: str, document: Any) -> bool:
    try:
        INCOMING[name].model_validate_json(json.dumps(document), strict=True)
    except ValidationError:
        return False
    return True


@pytest.mark.parametrize("name", INCOMING)
@given(data=st.data())
def test_incoming_model_and_schema_agree(name: str, data: st.DataObject) -> None:
    fields = {f: TIMES if f in ("completed_at", "timestamp") else VALUES for f in INCOMING[name].model_fields}
    mandatory = {"session_id": st.just("s1") | fields.pop("session_id")}
    document = data.draw(st.fixed_dictionaries(mandatory, optional=fields))

    by_model = is_valid_for_model(name, document)

    assert validator(name).is_valid(document) == by_model


# --- identity ------------------------------------------------------------------------------------------


@table
def test_request_ids_never_change(kind: str, session_id: str, event_id: str | None, request_id: str) -> None:
    """This function made the stored ids; another result would score old events again."""
    event = SessionCompleted(session_id=session_id, event_id=event_id)
    origin = Origin("session-completed", 3, 17, 1_772_446_531_310)
    assert request_id_of(kind, event, origin, b"{}") == uuid.UUID(request_id)


def test_requests_differ_in_each_part_of_their_identity() -> None:
    """An event id identifies a message wherever it stands; without one the record does."""
    places = [("t", 0, 0, 1), ("u", 0, 0, 1), ("t", 1, 0, 1), ("t", 0, 1, 1), ("t", 0, 0, 2), ("t", 0, 1, 0)]
    ids = [
        {request_id_of(k, SessionCompleted(session_id=s, event_id=e), Origin(*place), value)}
        for k in ("session.completed", "scoring.rescore_requested")
        for s in ("s1", "s2")
        for e in ("e1", "e2", "1", "e1\x1f2", None)
        for place in places
        for value in (b"a", b"b")
    ]

    assert len(set().union(*ids)) == 2 * 2 * (4 + len(places) * 2)


def test_cloudevents_headers_repeat_the_payload() -> None:
    payload = json.loads((SCHEMAS / "examples/scoring-failed.json").read_bytes())

    assert dict(cloudevents_headers(payload)) == {
        "ce_specversion": b"1.0",
        "ce_id": payload["event_id"].encode(),
        "ce_source": b"/tarsy-scoring",
        "ce_type": b"scoring.failed",
        "ce_subject": payload["session_id"].encode(),
        "ce_time": payload["timestamp"].encode(),
        "content-type": b"application/json",
    }
