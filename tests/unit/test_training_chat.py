"""Sessions as chats for fine-tuning: what an agent saw and did, in order, without the answer before its end."""

import json
from dataclasses import replace
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tarsy_scoring.errors import Unscorable
from tarsy_scoring.scoring.training import chat_of
from tarsy_scoring.timeline.clean.masking import SHIPPED
from tarsy_scoring.timeline.files import parse_session
from tarsy_scoring.timeline.model import AvailableTool, Stage, Timeline
from unit.timeline.sessions import call, event, of_events

FINAL = "The container was killed: its memory limit is 64 MB."
EXAMPLES = sorted(Path(str(files("tarsy_scoring_lab") / "examples")).glob("*.json"))


def messages_of(timeline: Timeline) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = chat_of(timeline, SHIPPED)["messages"]
    return messages


def test_a_chat_has_calls_and_results_between_alert_and_answer() -> None:
    """The steps of an agent are one message until a tool answers. A summary of a result is what the agent read."""
    work = (
        event("llm_thinking", "Look at the log."),
        call("a long log", name="read", arguments='{"pod": "web"}'),
        event("mcp_tool_summary", "OOMKilled"),
        call("64 MB", name="get limits", arguments="-o yaml"),
        event("error", "a timeout"),
        event("llm_response", "It is the limit."),
    )
    menu = AvailableTool("kubectl", "read", "Reads logs.")
    session = replace(of_events(*work, final_analysis=FINAL), alert_data="web restarts", available_tools=(menu,))
    chat = chat_of(replace(session, runbook="Read the log first."), SHIPPED)

    system, *rest = chat["messages"]
    assert (system["role"], system["content"].endswith("Read the log first.")) == ("system", True)
    first, second = (m["tool_calls"][0] for m in rest if "tool_calls" in m)
    assert (first["function"], second["function"]) == (
        {"name": "kubectl__read", "arguments": '{"pod": "web"}'},
        {"name": "kubectl__get_limits", "arguments": "-o yaml"},
    )
    assert [(m["role"], m["content"], m.get("tool_call_id")) for m in rest] == [
        ("user", "web restarts", None),
        ("assistant", "Look at the log.", None),
        ("tool", "OOMKilled", first["id"]),
        ("assistant", "", None),
        ("tool", "64 MB", second["id"]),
        ("assistant", "It is the limit.", None),
        ("assistant", FINAL, None),
    ]
    described = [(t["function"]["name"], t["function"]["description"]) for t in chat["tools"]]
    assert described == [("kubectl__read", "Reads logs."), ("kubectl__get_limits", "")]


def test_the_answer_stands_at_the_end_alone() -> None:
    """Not in a submission, a summary or a part, and nothing follows the first entry that states it."""
    work = (
        event("llm_thinking", "Look."),
        call("Thanks.", name="submit_tool", arguments=json.dumps({"answer": FINAL})),
        event("llm_response", FINAL.partition(":")[0]),
        event("executive_summary", f"In short: {FINAL}"),
        event("final_analysis", f" {FINAL} "),
        call("It was the memory limit.", name="get"),
    )
    messages = messages_of(of_events(*work, final_analysis=FINAL))
    assert [m["content"] for m in messages[2:]] == ["Look.", FINAL]
    with pytest.raises(Unscorable, match="no final analysis"):
        messages_of(of_events(*work, final_analysis=" "))


def test_no_text_has_a_secret() -> None:
    """Equal secrets of a session have one number, in arguments as well."""
    secret = "ghp_" + "a1B2" * 9
    work = (event("llm_thinking", f"use {secret}"), call(f"token: {secret}\x1b[2J", arguments=f'{{"t": "{secret}"}}'))
    text = json.dumps(messages_of(replace(of_events(*work, final_analysis=f"It is {secret}."), alert_data=secret)))
    assert (secret in text, "u001b" in text, text.count("#1]")) == (False, False, 5)


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_examples_are_chats_in_turns(file: Path) -> None:
    """Texts of one role never follow each other; each result has its call. The judge's signs are nowhere."""
    timeline = parse_session(json.loads(file.read_text("utf-8")))
    if not timeline.final_analysis:
        return
    messages = messages_of(timeline)
    assert [m["role"] for m in messages[:2]] == ["system", "user"]
    for one, following in pairwise(messages[:-1]):
        assert ("tool_calls" in one) == (following["role"] == "tool"), one
        assert one["role"] != following["role"], one
    final = timeline.final_analysis.strip()
    assert messages[-1]["content"].splitlines()[-1] == final.splitlines()[-1]
    assert final.splitlines()[-1] not in json.dumps(messages[:-1], ensure_ascii=False)
    assert "<<<SESSION" not in json.dumps(messages)


def test_each_agent_gets_its_task() -> None:
    session = of_events(event("llm_thinking", "Look."), final_analysis=FINAL)
    [stage] = session.stages
    [one] = stage.executions
    agents = tuple(replace(one, task=task, agent_index=n) for n, task in enumerate(("Read logs.", None), start=1))
    stages: tuple[Stage, ...] = (replace(stage, executions=agents), replace(stage, stage_type="exec_summary"))
    messages = messages_of(replace(session, stages=stages))
    assert messages[1]["content"].endswith("\n\nRead logs.")
    assert [m["content"] for m in messages[2:]] == ["Look.\n\nLook.", FINAL]
