"""The shipped example sessions: each can be read whole and shows what the README says of it."""

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema

from tables import table

Json = dict[str, Any]

FOLDER = files("tarsy_scoring_lab") / "examples"
SESSIONS: dict[str, Json] = {
    p.name.removesuffix(".json"): json.loads(p.read_bytes()) for p in FOLDER.iterdir() if p.name.endswith(".json")
}
SHAPE = json.loads(Path(__file__).with_name("test_examples_shape.json").read_text(encoding="utf-8"))
SECRETS = {
    "aws-key-id": r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",
    "aws-secret-key": r"(?i)aws_secret_access_key\W+[A-Za-z0-9/+]{40}\b",
    "github-token": r"\bgh[pousr]_[A-Za-z0-9]{36}\b",
    "jwt": r"\beyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{10,}",
    "api-key": r"\bsk-[A-Za-z0-9_-]{20,}",
    "private-key": r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?-----END",
    "connection-string": r"\b[a-z]+://[^\s:/@]+:[^\s@]+@\S+",
    "password": r"(?i)password\"?[:=]\W*[^\s\"]{8,}",
}


def executions(session: Json) -> Iterator[Json]:
    return (execution for stage in session["stages"] for execution in stage["executions"])


def events(name: str, *types: str) -> list[Json]:
    """The events of a session in file order, of the given types or of all."""
    found = (event for execution in executions(SESSIONS[name]) for event in execution["events"])
    return [event for event in found if not types or event["event_type"] in types]


def calls(name: str) -> list[Json]:
    return [event["metadata"] for event in events(name, "llm_tool_call")]


def instant(text: str) -> datetime:
    return datetime.fromisoformat(text)


def test_readme_has_one_row_per_session() -> None:
    rows = re.findall(r"^\| `([^`]+)` \| (\w+), (\w+) \| (\w+) \|", (FOLDER / "README.md").read_text("utf-8"), re.M)
    assert len(rows) == 10
    assert sorted(rows) == sorted((n, s["alert_type"], s["chain_id"], s["status"]) for n, s in SESSIONS.items())
    labels = Counter(s.get("labels", {}).get("guidance") for s in SESSIONS.values())
    assert min(labels["v1"], labels["v2"]) >= 2


def test_sessions_have_the_documented_shape() -> None:
    """Indexes without gaps, times in order, calls of available tools, and a final analysis where one completed."""
    ids: list[str] = []
    for name, session in SESSIONS.items():
        jsonschema.validate(session, SHAPE)
        assert session["session_id"] == name
        assert [stage["stage_index"] for stage in session["stages"]] == list(range(len(session["stages"])))
        assert instant(session["created_at"]) <= instant(session["started_at"]) <= instant(session["completed_at"])
        known = {execution["execution_id"] for execution in executions(session)}
        for execution in executions(session):
            assert [e["sequence_number"] for e in execution["events"]] == list(range(1, len(execution["events"]) + 1))
            times = [instant(e["created_at"]) for e in execution["events"]]
            assert times == sorted(times)
            assert execution.get("parent_execution_id", execution["execution_id"]) in known
        available = {(tool["server_name"], tool["tool_name"]) for tool in session["available_tools"]}
        assert {(call["server_name"], call["tool_name"]) for call in calls(name)} <= available
        written = [event["content"] for event in events(name, "final_analysis")]
        assert (session["final_analysis"] is not None) == (session["status"] == "completed") == bool(written)
        ids += [stage["stage_id"] for stage in session["stages"]] + [event["event_id"] for event in events(name)]
        ids += known
    assert len(set(ids)) == len(ids)


def test_looping_session_repeats_one_failing_call_unchanged() -> None:
    failures = Counter((c["tool_name"], c["arguments"]) for c in calls("demo-log-tool-loop") if c["is_error"])
    assert failures.most_common(1)[0][1] == 9


def test_premature_session_never_looks_at_processes_or_logs() -> None:
    unused = {tool["tool_name"] for tool in SESSIONS["demo-cpu-miner-guess"]["available_tools"]}
    unused -= {call["tool_name"] for call in calls("demo-cpu-miner-guess")}
    assert {"processes_list", "read_file", "pods_log", "flows_list"} <= unused


def test_parallel_session_has_overlapping_agents_and_a_synthesis() -> None:
    session = SESSIONS["demo-orders-latency-parallel"]
    first, second = ([instant(e["created_at"]) for e in x["events"]] for x in session["stages"][0]["executions"])
    assert [stage["stage_type"] for stage in session["stages"]] == ["investigation", "synthesis", "exec_summary"]
    assert first[0] < second[-1]
    assert second[0] < first[-1]


def test_orchestrator_has_the_sub_agents_that_it_dispatched() -> None:
    parent, *subs = SESSIONS["demo-node-not-ready-orchestrator"]["stages"][0]["executions"]
    dispatched = [
        json.loads(e["metadata"]["arguments"])
        for e in parent["events"]
        if e["metadata"].get("tool_name") == "dispatch_agent"
    ]
    assert {s["parent_execution_id"] for s in subs} == {parent["execution_id"]}
    assert [{"agent": s["agent_name"], "task": s["task"]} for s in subs] == dispatched
    assert [s["status"] for s in subs] == ["completed", "completed", "failed"]


def test_broken_sessions_end_in_an_error_event() -> None:
    for name in ("demo-replica-lag-crash", "demo-cert-expiry-wander"):
        last = events(name)[-1]
        assert (last["event_type"], last["status"]) == ("error", "failed")


@table
def test_the_hostile_session_attacks_the_judge_from_a_tool_result(pattern: str) -> None:
    attacked = {n for n in SESSIONS for e in events(n, "llm_tool_call") if re.search(pattern, e["content"])}
    assert attacked == {"demo-hostile-logs"}


def test_secrets_are_fake_and_in_the_hostile_session_only() -> None:
    for kind, shape in SECRETS.items():
        found = [(n, m[0]) for n in SESSIONS for e in events(n) for m in re.finditer(shape, e["content"])]
        assert {name for name, _ in found} == {"demo-hostile-logs"}, kind
        assert all("EXAMPLE" in secret for _, secret in found), kind


def test_long_result_has_a_summary_and_the_next_one_a_failed_summary() -> None:
    pairs = itertools.pairwise(events("demo-dns-long-output"))
    summaries = [(call, s) for call, s in pairs if s["event_type"] == "mcp_tool_summary"]
    assert [s["status"] for _, s in summaries] == ["completed", "failed"]
    assert [len(call["content"]) // 1000 for call, _ in summaries] == [25, 8]


def test_remediation_acts_and_its_chat_is_marked() -> None:
    """Only the chat holds the marker, so that a leak into the judge's context can be seen."""
    stages = {stage["stage_type"]: stage for stage in SESSIONS["demo-volume-full-remediation"]["stages"]}
    assert list(stages) == ["investigation", "action", "exec_summary", "chat"]
    assert stages["action"]["executions"][-1]["events"][-1]["content"].endswith("\n\nYES")
    marked = [kind for kind, stage in stages.items() if "CHAT-ONLY-MARKER" in json.dumps(stage)]
    assert marked == ["chat"]


def test_wandering_session_has_colours_carriage_returns_and_odd_arguments() -> None:
    results = [event["content"] for event in events("demo-cert-expiry-wander", "llm_tool_call")]
    assert any("\x1b[31m" in text for text in results)
    assert any("\r\n" in text for text in results)
    odd = [name for name in SESSIONS for call in calls(name) if not call["arguments"].startswith("{")]
    assert set(odd) == {"demo-cert-expiry-wander"}
