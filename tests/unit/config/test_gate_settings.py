"""Gates as they are written: what cannot be meant is refused, and each has a title of its own."""

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from tarsy_scoring.config.gates import (
    GATE_TYPES,
    TITLE_CHARACTERS,
    AnyGate,
    Assertion,
    Gate,
    NestedTooDeeply,
    compile_path,
    compile_pattern,
    parse_assertion,
    read_json,
    shown,
)

GATES: TypeAdapter[Any] = TypeAdapter(Gate)
PAGE = (Path(__file__).resolve().parents[3] / "docs/gates.md").read_text("utf-8")

SENSIBLE: dict[str, dict[str, Any]] = {
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


def test_table_knows_every_type() -> None:
    """What follows leaves no type out."""
    assert SENSIBLE.keys() == GATE_TYPES.keys()


@pytest.mark.parametrize("type_", SENSIBLE)
def test_sensible_gate_is_taken_as_it_stands(type_: str) -> None:
    """Written and read back it is the same; it is frozen, hashable and of the type it names."""
    gate = GATES.validate_python({"type": type_, "name": " mine ", **SENSIBLE[type_]})

    assert type(gate) is GATE_TYPES[type_]
    assert gate.model_dump(exclude_defaults=True) == {"type": type_, "name": "mine", **SENSIBLE[type_]}
    assert hash(gate) == hash(GATES.validate_python(gate.model_dump()))


@pytest.mark.parametrize("type_", [t for t, parameters in SENSIBLE.items() if parameters])
def test_parameter_left_out_is_missed(type_: str) -> None:
    """Every parameter but `min` and `name` must be given."""
    for parameter in SENSIBLE[type_].keys() - {"min"}:
        rest = {k: v for k, v in SENSIBLE[type_].items() if k != parameter}

        with pytest.raises(ValidationError, match="Field required"):
            GATES.validate_python({"type": type_, **rest})


def wrong(type_: str, says: str, *, id: str, **parameters: Any) -> Any:
    return pytest.param({"type": type_, **SENSIBLE[type_], **parameters}, says, id=id)


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        wrong("no_transcript_errors", "extra_forbidden", toll="x", id="unknown-parameter"),
        wrong("tool_called", "must not be blank", tool="  ", id="blank-tool"),
        wrong("tool_called", "greater than or equal to 1", min=0, id="no-call-at-least"),
        wrong("max_tool_calls", "greater than or equal to 0", max=-1, id="fewer-than-no-calls"),
        wrong("final_analysis_contains", "at least 1 character", substring="", id="empty-substring"),
        wrong("final_analysis_contains", "valid string", substring=5, id="number-for-text"),
        wrong("final_analysis_matches", r"RE2: missing \)", pattern="(a", id="unclosed-group"),
        wrong("final_analysis_matches", "RE2: invalid perl operator", pattern="(?=a)", id="lookahead-is-no-re2"),
        wrong("file_matches", "at least 1 character", pattern="", id="empty-pattern"),
        wrong("command_succeeds", "must not be blank", command=" \n", id="blank-command"),
        wrong("command_succeeds", "must not hold NUL", command="true\0", id="nul-in-command"),
        wrong("command_json_path", "RFC 9535: unbalanced", path="$.a[", id="unclosed-bracket"),
        wrong("command_json_path", "RFC 9535", path="a.b", id="path-without-root"),
        wrong("command_json_path", "RFC 9535: function 'foo'", path="$[?foo(@)]", id="unknown-function"),
        wrong("command_json_path", "expected `exists`", assertion="is 3", id="unknown-assertion"),
        wrong("command_json_path", "expected `exists`", assertion="len < 3", id="unknown-comparison"),
        wrong("command_json_path", "expected `exists`", assertion="len >= many", id="length-is-no-number"),
        wrong("command_json_path", "expected `exists`", assertion="equals", id="equals-nothing"),
        wrong("command_json_path", "expected `exists`", assertion="contains ", id="contains-nothing"),
        wrong("command_json_path", "expected `exists`", assertion="exists not", id="exists-something"),
        wrong("command_json_path", "must not be blank", assertion=" ", id="blank-assertion"),
        wrong("file_exists", "relative", path="/etc/passwd", id="absolute-path"),
        wrong("file_exists", r"must not hold `\.\.`", path="../x", id="parent-first"),
        wrong("file_exists", r"must not hold `\.\.`", path="a/../../x", id="parent-inside"),
        wrong("file_exists", r"must not hold `\.\.`", path="a/..", id="parent-last"),
        wrong("file_exists", r"must not hold `\.\.`", path="a/../", id="parent-last-with-slash"),
        wrong("file_exists", "work directory itself", path="./", id="directory-itself"),
        wrong("file_exists", "must not hold NUL", path="a\0b", id="nul-in-path"),
        wrong("file_exists", "must not be blank", path="", id="empty-path"),
        wrong("file_contains", "names a directory", path="out/", id="directory-to-read"),
        wrong("script", "must not be blank", description=" ", id="blank-description"),
        wrong("script", "at least 1 character", name="  ", id="blank-name"),
        wrong("script", "at most 100 characters", name="x" * 101, id="long-name"),
        wrong("script", "one line", name="a\nb", id="name-of-two-lines"),
    ],
)
def test_what_cannot_be_meant_is_refused(raw: dict[str, Any], says: str) -> None:
    """At load, with the reason."""
    with pytest.raises(ValidationError, match=says):
        GATES.validate_python(raw)


@pytest.mark.parametrize("path", ["..a", "a..", "a/...", ".hidden", "a b", "ä"])
def test_path_that_only_looks_like_leaving_is_taken(path: str) -> None:
    """Two dots leave only where they are a whole part."""
    assert GATES.validate_python({"type": "file_exists", "path": path}).path == path


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("exists", Assertion("exists")),
        (" exists ", Assertion("exists")),
        ("equals 3", Assertion("equals", 3)),
        ('equals "3"', Assertion("equals", "3")),
        ("equals null", Assertion("equals", None)),
        ('equals {"a": [1]}', Assertion("equals", {"a": [1]})),
        ("equals all  good", Assertion("equals", "all  good")),
        ("equals {a", Assertion("equals", "{a")),
        ("equals NaN", Assertion("equals", "NaN")),
        ("contains 3 pods", Assertion("contains", "3 pods")),
        ('contains "x"', Assertion("contains", '"x"')),
        ("len >= 2", Assertion("len >=", 2)),
        ("len==0", Assertion("len ==", 0)),
        ("len  >  10", Assertion("len >", 10)),
    ],
)
def test_assertion_means(text: str, means: Assertion) -> None:
    """`equals` reads JSON where it is JSON; `contains` never does."""
    assert parse_assertion(text) == means


@pytest.mark.parametrize(
    ("raw", "title"),
    [
        ({"type": "no_transcript_errors"}, "no_transcript_errors"),
        ({"type": "tool_called", "tool": "a.b"}, "tool_called a.b"),
        ({"type": "max_tool_calls", "max": 5}, "max_tool_calls 5"),
        ({"type": "file_exists", "path": "r.md", "name": "report"}, "report"),
        ({"type": "command_output_contains", "command": "x", "substring": "a\n  b\x07"}, "command_output_contains a b"),
        ({"type": "command_succeeds", "command": "TOKEN=s3cret /opt/bin/check --key s3cret"}, "command_succeeds check"),
        ({"type": "script", "command": "x", "description": "adds up"}, "script adds up"),
    ],
)
def test_title_tells_gates_apart(raw: dict[str, Any], title: str) -> None:
    """Its name, else type and main parameter, on one line."""
    gate: AnyGate = GATES.validate_python(raw)

    assert gate.title == title


def test_long_title_is_cut() -> None:
    """A title stands in tables."""
    gate = GATES.validate_python({"type": "command_succeeds", "command": "x" * 500})

    assert len(gate.title) == TITLE_CHARACTERS
    assert gate.title.endswith("…")


def test_shown_is_one_printable_line() -> None:
    """No colour, no bell, no text that turns around what follows, no lone surrogate."""
    assert shown(" a\r\n\tb\x1b[31m\x00\u202e\ud800\u200bc ") == "a b[31mc"


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", "-Infinity", "", "{'a': 1}", b"\xff\xfe1", "1" * 5000])
def test_what_is_no_json_is_refused(text: str | bytes) -> None:
    """Python reads more than RFC 8259 has; we do not."""
    with pytest.raises(ValueError, match=r".") as refused:
        read_json(text)

    assert not isinstance(refused.value, NestedTooDeeply)


def test_absurd_nesting_is_refused_as_such() -> None:
    """Neither a traceback nor a crash."""
    with pytest.raises(NestedTooDeeply):
        read_json("[" * 100_000)


def test_json_may_begin_with_a_byte_order_mark() -> None:
    """Some programs write one."""
    assert read_json(b"\xef\xbb\xbf[1]") == [1]


def test_patterns_inside_of_a_path_are_linear() -> None:
    """A pattern that never ends for a backtracking engine decides at once, and a wrong one finds nothing."""
    evil = [{"x": "a" * 5_000 + "!"}]

    assert compile_path(r"$[?search(@.x, '(a+)+$')]").find(evil).values() == []
    assert compile_path(r"$[?match(@.x, '(a|a)*!')]").find(evil).values() == evil
    assert compile_path(r"$[?match(@.x, 'a*')]").find(evil).values() == []
    assert compile_path(r"$[?search(@.x, '(')]").find(evil).values() == []
    assert compile_path(r"$[?search(@.y, 'a') || search(@.x, @.y)]").find([*evil, {"x": "\ud800"}]).values() == []


def test_wrong_pattern_writes_nothing_by_itself(capfd: pytest.CaptureFixture[str]) -> None:
    """RE2 would write to stderr."""
    with pytest.raises(ValueError, match="RE2"):
        compile_pattern("(a")

    assert capfd.readouterr() == ("", "")


def test_page_has_every_type_with_its_parameters() -> None:
    """An operator finds each type in the table of docs/gates.md, with each parameter it takes."""
    rows = {m[1]: m[2] for m in re.finditer(r"^\| `(\w+)` \| ([^|]*) \|", PAGE, re.MULTILINE)}

    for type_, model in GATE_TYPES.items():
        assert set(re.findall(r"`(\w+)`", rows[type_])) == model.model_fields.keys() - {"type", "name"}
