"""Bytes from producers nobody controls: what is understood, what is refused in which word, and who is whom."""

import contextlib
import json
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from contracts import EXAMPLES, FROZEN, INCOMING, MODELS, OUTGOING, SCHEMAS, validator
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tarsy_scoring.errors import InvalidMessage
from tarsy_scoring.events import (
    Origin,
    RescoreRequested,
    SessionCompleted,
    cloudevents_headers,
    decode_rescore_requested,
    decode_session_completed,
    request_id_of,
    request_id_without_event_id,
)

Decode = Callable[[bytes | None], SessionCompleted | RescoreRequested]
DECODERS: dict[str, Decode] = {
    "session-completed": decode_session_completed,
    "rescore-requested": decode_rescore_requested,
}
LONGEST = "s" * 255
SECRET = "hunter2-do-not-repeat"


def completed(**fields: Any) -> bytes:
    return json.dumps({"session_id": "s1"} | fields).encode()


def reason_of(decode: Decode, value: bytes | None) -> str:
    with pytest.raises(InvalidMessage) as caught:
        decode(value)
    return caught.value.reason


# --- refused whatever the message ----------------------------------------------------------------------

# What no message may be, by case: bytes and the word in `scoring-error`.
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
    "session-id-null": (completed(session_id=None), "invalid_field"),
    "session-id-number": (completed(session_id=17), "invalid_field"),
    "session-id-boolean": (completed(session_id=True), "invalid_field"),
    "session-id-list": (completed(session_id=["s1"]), "invalid_field"),
    "session-id-empty": (completed(session_id=""), "invalid_field"),
    "session-id-of-256": (completed(session_id=LONGEST + "s"), "invalid_field"),
    "session-id-begins-with-dash": (completed(session_id="-s1"), "invalid_field"),
    "session-id-begins-with-dot": (completed(session_id=".s1"), "invalid_field"),
    "session-id-begins-with-colon": (completed(session_id=":s1"), "invalid_field"),
    "session-id-begins-with-underscore": (completed(session_id="_s1"), "invalid_field"),
    "session-id-begins-with-at": (completed(session_id="@s1"), "invalid_field"),
    "session-id-with-newline-at-end": (completed(session_id="s1\n"), "invalid_field"),
    "session-id-with-newline-at-start": (completed(session_id="\ns1"), "invalid_field"),
    "session-id-with-space": (completed(session_id="s 1"), "invalid_field"),
    "session-id-with-slash": (completed(session_id="a/b"), "invalid_field"),
    "session-id-in-other-letters": (completed(session_id="sé"), "invalid_field"),
    "session-id-in-other-digits": (completed(session_id="s١"), "invalid_field"),
    "event-id-empty": (completed(event_id=""), "invalid_field"),
    "event-id-of-256": (completed(event_id="e" * 256), "invalid_field"),
    "event-id-number": (completed(event_id=17), "invalid_field"),
    "type-of-another-message": (completed(type="alert.created"), "invalid_field"),
    "type-empty": (completed(type=""), "invalid_field"),
    "type-number": (completed(type=1), "invalid_field"),
}  # fmt: skip


@pytest.mark.parametrize("decode", DECODERS.values(), ids=DECODERS)
@pytest.mark.parametrize(("value", "reason"), POISON.values(), ids=POISON)
def test_poison_is_refused_with_its_word(decode: Decode, value: bytes | None, reason: str) -> None:
    assert reason_of(decode, value) == reason


@pytest.mark.parametrize(
    ("decode", "value"),
    [
        pytest.param(decode_session_completed, completed(type="scoring.rescore_requested"), id="rescore-as-completed"),
        pytest.param(decode_rescore_requested, completed(type="session.completed"), id="completed-as-rescore"),
        pytest.param(decode_session_completed, completed(status=3), id="status-number"),
        pytest.param(decode_session_completed, completed(status="s" * 256), id="status-of-256"),
        pytest.param(decode_session_completed, completed(chain_id={"name": "k"}), id="chain-object"),
        pytest.param(decode_session_completed, completed(chain_id="c" * 256), id="chain-of-256"),
        pytest.param(decode_session_completed, completed(completed_at=1_772_446_531), id="time-as-number"),
        pytest.param(decode_session_completed, completed(completed_at="yesterday"), id="time-in-words"),
        pytest.param(decode_session_completed, completed(timestamp="2026-03-02"), id="day-without-time"),
        pytest.param(decode_session_completed, completed(labels=["v2"]), id="labels-list"),
        pytest.param(decode_session_completed, completed(labels={"guidance": 2}), id="label-number"),
        pytest.param(decode_session_completed, completed(labels={"guidance": None}), id="label-null"),
        pytest.param(decode_rescore_requested, completed(force="true"), id="force-text"),
        pytest.param(decode_rescore_requested, completed(force=1), id="force-number"),
        pytest.param(decode_rescore_requested, completed(requested_by=["me"]), id="asker-list"),
        pytest.param(decode_rescore_requested, completed(requested_by="m" * 256), id="asker-of-256"),
        pytest.param(decode_rescore_requested, completed(criteria=7), id="criteria-number"),
        pytest.param(decode_rescore_requested, completed(reason="r" * 4001), id="reason-of-4001"),
    ],
)
def test_wrong_field_is_refused(decode: Decode, value: bytes) -> None:
    assert reason_of(decode, value) == "invalid_field"


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(completed(event_id=[SECRET]), id="value"),
        pytest.param(completed(session_id=f"{SECRET} "), id="session-id"),
        pytest.param(completed(labels={SECRET * 10_000: 1}), id="key-of-a-label"),
        pytest.param(completed(completed_at=SECRET), id="time"),
        pytest.param(f'{{"session_id": "{SECRET}'.encode(), id="half-a-document"),
        pytest.param(completed(ignored=f"{SECRET}\0"), id="beside-a-nul"),
        pytest.param(f'"{SECRET}"'.encode(), id="no-object"),
    ],
)
def test_refusal_repeats_nothing_of_the_message(value: bytes) -> None:
    with pytest.raises(InvalidMessage) as caught:
        decode_session_completed(value)

    assert SECRET not in str(caught.value)
    assert len(str(caught.value)) < 200


@given(st.binary(max_size=20), st.integers(0, 400), st.integers(0, 400))
def test_no_bytes_break_the_decoder(junk: bytes, start: int, end: int) -> None:
    """Any other exception would stop intake for ever."""
    whole = (SCHEMAS / "examples/session-completed.json").read_bytes()

    with contextlib.suppress(InvalidMessage):
        assert isinstance(decode_session_completed(whole[:start] + junk + whole[end:]), SessionCompleted)


# --- understood ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("decode", DECODERS.values(), ids=DECODERS)
@pytest.mark.parametrize(
    "session_id",
    [
        pytest.param("s", id="one-letter"),
        pytest.param("7", id="one-digit"),
        pytest.param(LONGEST, id="255-characters"),
        pytest.param("a._:@-Z9", id="every-other-character"),
        pytest.param("7d3c1f52-0a4e-4a7e-9a52-2f8f6f1f9c10", id="uuid"),
    ],
)
def test_session_id_within_the_rules_is_taken(decode: Decode, session_id: str) -> None:
    assert decode(completed(session_id=session_id)).session_id == session_id


@pytest.mark.parametrize("event_id", ["e", "e" * 255, "𝄞" * 255, "a\tb c/\x1f"], ids=["1", "255", "wide", "odd"])
def test_event_id_within_the_rules_is_taken(event_id: str) -> None:
    assert decode_session_completed(completed(event_id=event_id)).event_id == event_id


def test_absent_fields_have_their_defaults() -> None:
    assert decode_session_completed(completed()) == SessionCompleted(session_id="s1", status="completed")
    assert decode_rescore_requested(completed()) == RescoreRequested(session_id="s1", requested_by="event", force=True)


@pytest.mark.parametrize("name", INCOMING)
def test_null_counts_as_absent(name: str) -> None:
    """Producers that always write every field write null."""
    fields = dict.fromkeys(INCOMING[name].model_fields) | {"session_id": "s1"}

    message = DECODERS[name](json.dumps(fields).encode())

    assert message.model_dump(exclude={"session_id"}) == dict.fromkeys(fields.keys() - {"session_id"})


@pytest.mark.parametrize("field", ["chain_id", "alert_type"])
def test_empty_name_counts_as_absent(field: str) -> None:
    assert getattr(decode_session_completed(completed(**{field: ""})), field) is None


@pytest.mark.parametrize("status", ["completed", "failed", "cancelled", "timed_out", "paused", "COMPLETED", ""])
def test_status_is_kept_as_it_is(status: str) -> None:
    """An unknown status is recorded as `status_not_scored`."""
    assert decode_session_completed(completed(status=status)).status == status


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

# Values at and beyond the bounds of some field. Left out is what JSON Schema cannot say: NUL and half surrogates
# anywhere, times that only look like times.
VALUES = st.sampled_from(
    [
        *(None, True, False, 0, 1, -1, 2.5, [], ["a"], {}, {"a": "b"}, {"a": 1}, {"a": None}),
        *("", "s1", "-s1", "s1\n", "s 1", "session.completed", "scoring.rescore_requested", "completed", "paused"),
        *(
            "x" * 255,
            "x" * 256,
            "x" * 4000,
            "x" * 4001,
            "𝄞" * 255,
            "2026-03-02T10:15:31Z",
            "2026-03-02T10:15:31.5+02:00",
        ),
    ]
)
TIMES: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, 0, 1.5, [], {}, "2026-03-02T10:15:31Z", "2026-03-02T10:15:31.5+02:00"]
)


def is_valid_for_model(name: str, document: Any) -> bool:
    try:
        MODELS[name].model_validate_json(json.dumps(document), strict=True)
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
    assert validator(name, FROZEN).is_valid(document) <= by_model, "the first version-1 producers stay welcome"


@pytest.mark.parametrize("name", OUTGOING)
@given(data=st.data())
def test_outgoing_model_and_schema_agree(name: str, data: st.DataObject) -> None:
    example = next(v for n, v in EXAMPLES.items() if n.startswith(name))
    changed = data.draw(st.sampled_from(sorted(set(example) - {"timestamp", "completed_at"})))
    document = dict(example)
    if data.draw(st.booleans(), label="left out"):
        del document[changed]
    else:
        document[changed] = data.draw(VALUES | st.sampled_from(["scoring.started", "storing", "pass", 100, 101]))

    assert validator(name).is_valid(document) == is_valid_for_model(name, document)


# --- identity ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "session_id", "event_id", "request_id"),
    [
        pytest.param("session.completed", "s1", "e1", "55b83910-d136-5884-a011-31f99d60ec78", id="completed"),
        pytest.param("scoring.rescore_requested", "s1", "e1", "e4165976-af48-553a-aa6c-5ef66e1faab0", id="rescore"),
        pytest.param("session.completed", "s1", "ä𝄞", "83dd532c-445e-5262-a87d-a9de3c2b64cd", id="wide"),
    ],
)
def test_request_id_of_an_event_is_fixed_for_ever(kind: str, session_id: str, event_id: str, request_id: str) -> None:
    """Stored ids were made by this function; another result would score old events again."""
    assert request_id_of(kind, session_id, event_id) == uuid.UUID(request_id)


def test_request_id_of_a_record_is_fixed_for_ever() -> None:
    origin = Origin("session-completed", 3, 17, 1_772_446_531_310)

    assert request_id_without_event_id("session.completed", "s1", origin, "ab" * 32) == uuid.UUID(
        "9daac747-662d-5140-a86b-3881ff43f219"
    )


def test_requests_differ_in_each_part_of_their_identity() -> None:
    by_event = [
        request_id_of(k, s, e)
        for k in ("session.completed", "scoring.rescore_requested")
        for s in ("s1", "s2")
        for e in ("e1", "e2", "1", "e1\x1f2")
    ]
    first = ("t", 0, 0, 1)
    others = [("u", 0, 0, 1), ("t", 1, 0, 1), ("t", 0, 1, 1), ("t", 0, 0, 2), ("t", 0, 1, 0)]
    by_record = [
        request_id_without_event_id(k, s, Origin(*place), value)
        for k in ("session.completed", "scoring.rescore_requested")
        for s in ("s1", "s2")
        for place in (first, *others)
        for value in ("aa", "bb")
    ]

    assert len({*by_event, *by_record}) == len(by_event) + len(by_record)


def test_cloudevents_headers_say_what_the_payload_says() -> None:
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
