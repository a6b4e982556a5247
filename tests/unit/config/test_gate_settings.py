"""Gate settings: contradictory or unsafe gates are refused, and each gate has a distinct title."""

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from tables import table
from tarsy_scoring.config.gates import (
    GATE_TYPES,
    AnyGate,
    Assertion,
    Gate,
    NestedTooDeeply,
    compile_path,
    parse_assertion,
    read_json,
    shown,
)

GATES: TypeAdapter[Any] = TypeAdapter(Gate)

VALID: dict[str, dict[str, Any]] = {
    "no_transcript_errors": {},
    "tool_called": {"tool": "kubectl.get_*"},
    "tool_not_called": {"tool": "delete_pod", "min": 2},
    "max_tool_calls": {"max": 0},
    "final_analysis_contains": {"substring": "OOMKilled"},
    "final_analysis_matches": {"pattern": r"(?i)root cause: \S+"},
    "command_succeeds": {"command": "make test"},
    "command_output_contains": {"command": "make test", "substring": "ok"},
    "command_output_matches": {"command": "make test", "pattern": "^ok$"},
    "command_json_path": {"command": "cat report.json", "path": "$.items[?@.ok]", "assertion": "len >= 1"},
    "file_exists": {"path": "out/"},
    "file_contains": {"path": "out/report.md", "substring": "ok"},
    "file_matches": {"path": "./out//report.md", "pattern": "ok"},
    "script": {"command": "./check", "description": "the report adds up"},
}


@table
def test_valid_gate_is_kept_as_written(type_: str) -> None:
    """Reading a written gate back gives the same gate; it is hashable and of the type it names."""
    assert VALID.keys() == GATE_TYPES.keys()
    gate = GATES.validate_python({"type": type_, "name": " mine ", **VALID[type_]})

    assert type(gate) is GATE_TYPES[type_]
    assert gate.model_dump(exclude_defaults=True) == {"type": type_, "name": "mine", **VALID[type_]}
    assert hash(gate) == hash(GATES.validate_python(gate.model_dump()))


@table
def test_invalid_gate_is_refused(raw: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        GATES.validate_python(raw)


@table
def test_path_that_stays_in_the_folder_is_accepted(path: str) -> None:
    assert GATES.validate_python({"type": "file_exists", "path": path}).path == path


@table
def test_assertion_is_parsed_into_kind_and_value(text: str, kind: str, value: Any) -> None:
    assert parse_assertion(text) == Assertion(kind, value)


@table
def test_title_distinguishes_gates(raw: dict[str, Any], title: str) -> None:
    gate: AnyGate = GATES.validate_python(raw)

    assert gate.title == title


def test_shown_is_one_printable_line() -> None:
    """Control sequences, direction overrides, invisible blanks and lone surrogates are removed."""
    assert shown(" a\r\n\tb\x1b[31m\x00\u202e\ud800\u200bc ") == "a b[31mc"


def test_json_follows_its_standard() -> None:
    """Only JSON of RFC 8259 is read, after an optional byte order mark; Python's reader accepts more."""
    for text in ("NaN", "[Infinity]", "-Infinity", "", "{'a': 1}", b"\xff\xfe1", "1" * 5000):
        with pytest.raises(ValueError, match=r".") as refused:
            read_json(text)
        assert not isinstance(refused.value, NestedTooDeeply)
    with pytest.raises(NestedTooDeeply):
        read_json("[" * 100_000)
    assert read_json(b"\xef\xbb\xbf[1]") == [1]


def test_a_path_with_a_backtracking_pattern_is_refused() -> None:
    for function in ("match", "search"):
        with pytest.raises(ValueError, match="not a JSONPath"):
            compile_path(f"$[?{function}(@.x, '(a+)+$')]")
