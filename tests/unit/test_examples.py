"""The shipped example sessions: each has the documented shape, and together they show what their README promises."""

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from importlib.resources import files
from typing import Any

import pytest

from tables import table
from tarsy_scoring.events import SESSION_ID_PATTERN
from tarsy_scoring.timeline.model import HIDDEN_STAGE_TYPES, SHOWN_STAGE_TYPES, TERMINAL_STATUSES

Json = dict[str, Any]

FOLDER = files("tarsy_scoring_lab") / "examples"
RAW = {p.name: p.read_bytes() for p in FOLDER.iterdir() if p.name.endswith(".json")}
SESSIONS: dict[str, Json] = {name.removesuffix(".json"): json.loads(raw) for name, raw in sorted(RAW.items())}

STATUS_AND_CHAIN = {
    "demo-oom-checkout": ("completed", "kubernetes"),
    "demo-cpu-miner-guess": ("completed", "security"),
    "demo-log-tool-loop": ("completed", "kubernetes"),
    "demo-orders-latency-parallel": ("completed", "database"),
    "demo-node-not-ready-orchestrator": ("completed", "kubernetes"),
    "demo-replica-lag-crash": ("failed", "database"),
    "demo-hostile-logs": ("completed", "security"),
    "demo-dns-long-output": ("completed", "network"),
    "demo-volume-full-remediation": ("completed", "kubernetes"),
    "demo-cert-expiry-wander": ("timed_out", "network"),
}

SESSION_KEYS = {
    "session_id", "source", "alert_type", "alert_data", "chain_id", "status", "created_at", "started_at",
    "completed_at", "timestamps_synthetic", "available_tools", "final_analysis", "executive_summary", "stages",
}  # fmt: skip
STAGE_KEYS = {"stage_id", "stage_name", "stage_index", "stage_type", "status", "executions"}
EXECUTION_KEYS = {"execution_id", "agent_name", "agent_index", "status", "llm_provider", "events"}
EVENT_KEYS = {"event_id", "sequence_number", "event_type", "status", "content", "metadata", "created_at"}
CALL_KEYS = {"server_name", "tool_name", "arguments", "is_error", "exit_code"}
EVENT_TYPES = {"llm_thinking", "llm_response", "llm_tool_call", "mcp_tool_summary", "final_analysis", "error"}

SECRET_SHAPES = {
    "aws-key-id": r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",
    "aws-secret-key": r"(?i)aws_secret_access_key\W+[A-Za-z0-9/+]{40}\b",
    "github-token": r"\bgh[pousr]_[A-Za-z0-9]{36}\b",
    "jwt": r"\beyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{10,}",
    "api-key": r"\bsk-[A-Za-z0-9_-]{20,}",
    "private-key": r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?-----END",
    "connection-string": r"\b[a-z]+://[^\s:/@]+:[^\s@]+@\S+",
    "password": r"(?i)password\"?[:=]\W*[^\s\"]{8,}",
}

every_session = pytest.mark.parametrize("session", SESSIONS.values(), ids=SESSIONS.keys())


def executions(session: Json) -> Iterator[tuple[Json, Json]]:
    """Each execution of a session with its stage."""
    return ((stage, execution) for stage in session["stages"] for execution in stage["executions"])


def events(session: Json, *types: str) -> list[Json]:
    """The events of a session in file order, of the given types or of all."""
    found = (event for _, execution in executions(session) for event in execution["events"])
    return [event for event in found if not types or event["event_type"] in types]


def instant(text: str) -> datetime:
    """An RFC 3339 time in UTC with milliseconds; anything else is a ValueError."""
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%f%z")


def parses(arguments: str) -> bool:
    """Whether a call's arguments are a JSON object."""
    try:
        return isinstance(json.loads(arguments), dict)
    except ValueError:
        return False


def test_the_examples_are_the_ten_promised_ones() -> None:
    assert {name: (s["status"], s["chain_id"]) for name, s in SESSIONS.items()} == STATUS_AND_CHAIN


def test_the_examples_differ_in_alert_chain_and_label() -> None:
    guidance = Counter(s.get("labels", {}).get("guidance") for s in SESSIONS.values())

    assert len({s["alert_type"] for s in SESSIONS.values()}) == len(SESSIONS)
    assert len({s["chain_id"] for s in SESSIONS.values()}) >= 3
    assert guidance["v1"] >= 2
    assert guidance["v2"] >= 2
    assert guidance[None] >= 1


def test_the_readme_has_one_row_per_session() -> None:
    rows = re.findall(r"^\| `([^`]+)` \| (\w+), (\w+) \| (\w+) \|", (FOLDER / "README.md").read_text("utf-8"), re.M)

    assert sorted(rows) == [(n, s["alert_type"], s["chain_id"], s["status"]) for n, s in SESSIONS.items()]


@pytest.mark.parametrize("name", RAW)
def test_a_file_is_plain_utf8_json_of_moderate_size(name: str) -> None:
    """Unix lines, a final newline, no trailing blanks; 6-25 KB, 50 KB for the one with long output."""
    lines = RAW[name].decode("utf-8").split("\n")

    assert lines[-1] == ""
    assert lines[-2] == "}"
    assert [line for line in lines if line != line.rstrip()] == []
    assert 6_000 <= len(RAW[name]) <= (50_000 if name == "demo-dns-long-output.json" else 25_000)


@every_session
def test_a_session_has_the_documented_keys(session: Json) -> None:
    """Exactly the keys of the shape, `labels` being the only extra one, each with a value of its kind."""
    assert session.keys() - {"labels"} == SESSION_KEYS
    assert SESSION_ID_PATTERN.fullmatch(session["session_id"])
    assert SESSIONS[session["session_id"]] is session
    assert session["status"] in TERMINAL_STATUSES
    assert session["alert_data"]
    assert session["available_tools"]
    assert session["timestamps_synthetic"] is True
    assert all(isinstance(session[k], str | None) for k in ("final_analysis", "executive_summary"))
    assert all(isinstance(v, str) for v in session.get("labels", {}).values())
    tools = [(t["server_name"], t["tool_name"]) for t in session["available_tools"]]
    assert len(set(tools)) == len(tools)
    assert all(t.keys() == {"server_name", "tool_name", "description"} for t in session["available_tools"])


@every_session
def test_stages_and_executions_have_the_documented_shape(session: Json) -> None:
    """Known types and statuses, indexes from 0 without gaps, a parent that exists in the same stage."""
    assert [stage["stage_index"] for stage in session["stages"]] == list(range(len(session["stages"])))
    for stage in session["stages"]:
        assert stage.keys() - {"user_message"} == STAGE_KEYS
        assert ("user_message" in stage) == (stage["stage_type"] == "chat")
        assert stage["stage_type"] in SHOWN_STAGE_TYPES | HIDDEN_STAGE_TYPES
        assert stage["status"] in TERMINAL_STATUSES
        assert stage["executions"]
        seats: dict[str | None, list[int]] = {}
        for execution in stage["executions"]:
            seats.setdefault(execution.get("parent_execution_id"), []).append(execution["agent_index"])
        assert all(seat == list(range(len(seat))) for seat in seats.values())
        assert seats.keys() - {None} <= {e["execution_id"] for e in stage["executions"]}
    for _, execution in executions(session):
        extra = execution.keys() - EXECUTION_KEYS
        assert execution.keys() >= EXECUTION_KEYS
        assert extra in (set(), {"parent_execution_id", "task"})
        assert execution["status"] in TERMINAL_STATUSES


@every_session
def test_events_have_the_documented_shape_and_order(session: Json) -> None:
    """Sequence numbers count from 1, times never go back, nothing is blank or hidden, calls have their metadata."""
    for _, execution in executions(session):
        assert [e["sequence_number"] for e in execution["events"]] == list(range(1, len(execution["events"]) + 1))
        times = [instant(e["created_at"]) for e in execution["events"]]
        assert times == sorted(times)
    for event in events(session):
        assert event.keys() == EVENT_KEYS
        assert event["content"]
        assert not re.search(r"[ \t](?:\r?\n|\Z)|[\u200b-\u200f\ufeff]", event["content"])
        assert event["event_type"] in EVENT_TYPES
        assert event["status"] in {"completed", "failed"}
        if event["event_type"] == "llm_tool_call":
            call = event["metadata"]
            assert call.keys() == CALL_KEYS
            assert isinstance(call["arguments"], str)
            assert isinstance(call["is_error"], bool)
            assert call["exit_code"] is None or (call["exit_code"] != 0) == call["is_error"]
        else:
            assert event["metadata"].keys() <= {"server_name", "tool_name"}


@every_session
def test_every_called_tool_was_available(session: Json) -> None:
    available = {(t["server_name"], t["tool_name"]) for t in session["available_tools"]}
    called = {(e["metadata"]["server_name"], e["metadata"]["tool_name"]) for e in events(session, "llm_tool_call")}

    assert called
    assert called <= available


@every_session
def test_times_lie_in_october_2026_in_order(session: Json) -> None:
    created, started, completed = (instant(session[k]) for k in ("created_at", "started_at", "completed_at"))
    shown = [x for stage, x in executions(session) if stage["stage_type"] in SHOWN_STAGE_TYPES]
    times = [instant(event["created_at"]) for execution in shown for event in execution["events"]]

    assert (created.year, created.month) == (2026, 10)
    assert created.utcoffset() is not None
    assert created <= started <= min(times)
    assert max(times) <= completed


@every_session
def test_only_a_completed_session_has_a_final_analysis(session: Json) -> None:
    """The session's final analysis consists of what its agents wrote as theirs; crash and timeout leave none."""
    written = [event["content"] for event in events(session, "final_analysis")]

    assert (session["final_analysis"] is not None) == (session["status"] == "completed") == bool(written)
    if written:
        assert session["final_analysis"] in written or session["final_analysis"] == "\n\n".join(written[:2])


def test_ids_are_unique_over_all_files() -> None:
    ids = [stage["stage_id"] for s in SESSIONS.values() for stage in s["stages"]]
    ids += [execution["execution_id"] for s in SESSIONS.values() for _, execution in executions(s)]
    ids += [event["event_id"] for s in SESSIONS.values() for event in events(s)]

    assert [i for i, n in Counter(ids).items() if n > 1] == []


def test_arguments_are_json_objects_but_for_the_odd_example() -> None:
    """Three calls of the wandering session are not JSON (a bare command, a cut object, key=value); all others are."""
    odd = [n for n, s in SESSIONS.items() for e in events(s, "llm_tool_call") if not parses(e["metadata"]["arguments"])]

    assert odd == ["demo-cert-expiry-wander"] * 3


def test_the_careful_session_looks_before_it_concludes() -> None:
    session = SESSIONS["demo-oom-checkout"]
    calls = events(session, "llm_tool_call")

    assert len({e["metadata"]["tool_name"] for e in calls}) >= 5
    assert not any(e["metadata"]["is_error"] for e in calls)
    assert "limits" in session["final_analysis"]


def test_the_premature_session_never_looks_at_processes_or_logs() -> None:
    session = SESSIONS["demo-cpu-miner-guess"]
    unused = {t["tool_name"] for t in session["available_tools"]}
    unused -= {e["metadata"]["tool_name"] for e in events(session, "llm_tool_call")}

    assert {"processes_list", "read_file", "pods_log", "flows_list"} <= unused
    assert "98 %" in session["final_analysis"]


def test_the_looping_session_repeats_one_failing_call_unchanged() -> None:
    calls = [e["metadata"] for e in events(SESSIONS["demo-log-tool-loop"], "llm_tool_call")]
    failures = Counter((c["tool_name"], c["arguments"]) for c in calls if c["is_error"])

    assert failures.most_common(1)[0][1] == 9
    assert "logs" not in {c["server_name"] for c in calls}


def test_the_parallel_session_has_synthesis_and_summary() -> None:
    session = SESSIONS["demo-orders-latency-parallel"]
    first, second = ([instant(e["created_at"]) for e in x["events"]] for x in session["stages"][0]["executions"])

    assert [stage["stage_type"] for stage in session["stages"]] == ["investigation", "synthesis", "exec_summary"]
    assert first[0] < second[-1]
    assert second[0] < first[-1]
    assert session["executive_summary"] == session["stages"][2]["executions"][0]["events"][-1]["content"]


def test_the_orchestrated_session_has_sub_agents_with_the_tasks_they_were_given() -> None:
    session = SESSIONS["demo-node-not-ready-orchestrator"]
    parent, *subs = session["stages"][0]["executions"]
    calls = [e["metadata"] for e in parent["events"] if e["event_type"] == "llm_tool_call"]
    dispatched = [json.loads(c["arguments"]) for c in calls if c["tool_name"] == "dispatch_agent"]

    assert {s["parent_execution_id"] for s in subs} == {parent["execution_id"]}
    assert [{"agent": s["agent_name"], "task": s["task"]} for s in subs] == dispatched
    assert [s["status"] for s in subs] == ["completed", "completed", "failed"]


@pytest.mark.parametrize("name", ["demo-replica-lag-crash", "demo-cert-expiry-wander"])
def test_a_broken_session_ends_in_an_error_event(name: str) -> None:
    """The crash and the deadline stand at the end of the timeline, after a step that broke as well."""
    step, error = events(SESSIONS[name])[-2:]

    assert (error["event_type"], error["status"]) == ("error", "failed")
    assert (step["event_type"], step["status"]) == ("llm_tool_call", "failed")


@table
def test_the_hostile_session_attacks_the_judge_from_a_tool_result(pattern: str) -> None:
    attacked = {n for n, s in SESSIONS.items() for e in events(s, "llm_tool_call") if re.search(pattern, e["content"])}

    assert attacked == {"demo-hostile-logs"}


@pytest.mark.parametrize("shape", SECRET_SHAPES.values(), ids=SECRET_SHAPES.keys())
def test_secrets_are_planted_in_the_hostile_session_only_and_are_fake(shape: str) -> None:
    found = {(n, m[0]) for n, s in SESSIONS.items() for e in events(s) for m in re.finditer(shape, e["content"])}

    assert {name for name, _ in found} == {"demo-hostile-logs"}
    assert [secret for _, secret in found if "EXAMPLE" not in secret] == []


def test_the_long_result_has_a_summary_and_the_next_one_a_failed_summary() -> None:
    every = events(SESSIONS["demo-dns-long-output"])
    pairs = [(call, s) for call, s in itertools.pairwise(every) if s["event_type"] == "mcp_tool_summary"]

    assert [s["status"] for _, s in pairs] == ["completed", "failed"]
    assert [len(call["content"]) // 1000 for call, _ in pairs] == [25, 8]
    assert all(call["metadata"]["tool_name"] == s["metadata"]["tool_name"] for call, s in pairs)


def test_the_remediation_acts_and_the_chat_comes_after_the_session() -> None:
    """The action ends in YES; a marker stands in the chat alone, so that a leak into the context can be seen."""
    session = SESSIONS["demo-volume-full-remediation"]
    by_type = {stage["stage_type"]: [e["content"] for x in stage["executions"] for e in x["events"]]
               for stage in session["stages"]}  # fmt: skip

    assert list(by_type) == ["investigation", "action", "exec_summary", "chat"]
    assert by_type["action"][-1].endswith("\n\nYES")
    assert all("CHAT-ONLY-MARKER" in text for text in by_type["chat"])
    assert json.dumps(session).count("CHAT-ONLY-MARKER") == len(by_type["chat"])
    assert instant(events(session)[-1]["created_at"]) > instant(session["completed_at"])


def test_the_wandering_session_has_colours_and_carriage_returns() -> None:
    results = [e["content"] for e in events(SESSIONS["demo-cert-expiry-wander"], "llm_tool_call")]

    assert any("\x1b[31m" in text for text in results)
    assert any("\r\n" in text for text in results)
