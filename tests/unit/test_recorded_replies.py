"""The demo replays a recorded judgement of each example session, and no other judgement."""

import json
from typing import Any

import pytest

from tarsy_scoring.config.load import load_settings
from tarsy_scoring.judge.criteria import load_criteria
from tarsy_scoring.judge.read.extraction import extract_outcome, extract_total
from tarsy_scoring.scoring.offline import plan_judgement
from tarsy_scoring.timeline.files import parse_session
from tarsy_scoring.timeline.render.context import REFERENCE_NOTICE, build_context
from tarsy_scoring_lab.recorded_replies import RecordedReplies, example_sessions
from tarsy_scoring_lab.scripted_replies import Messages, read_task

SETTINGS, REGISTRY, RECORDED = load_settings({}), load_criteria(), RecordedReplies()


def opening(session: dict[str, Any], criteria: str = "investigation") -> Messages:
    """The messages of the first call about a session."""
    chain = SETTINGS.chain(None)
    planned = plan_judgement(SETTINGS, REGISTRY.get(criteria), chain, parse_session(session), "0123456789abcdef")
    return [(message.role, message.content) for message in planned.messages]


def reply_to(messages: Messages) -> str | None:
    return RECORDED.reply_to(read_task(messages), messages)


@pytest.mark.parametrize("session", example_sessions(), ids=lambda session: session["session_id"])
def test_each_example_has_both_turns(session: dict[str, Any]) -> None:
    criteria, messages = REGISTRY.get("investigation"), opening(session)
    first = reply_to(messages)
    assert first is not None
    total, outcome = extract_total(first), extract_outcome(first, criteria.bands)
    assert total is not None
    assert outcome is not None
    assert criteria.bands[outcome][0] <= total <= criteria.bands[outcome][1]

    second = reply_to([*messages, ("assistant", first), ("user", criteria.follow_up_prompt or "")])
    assert second not in (None, first)


def test_the_example_with_orders_to_the_judge_has_another_reply_where_they_are_masked() -> None:
    """Also in the alert, by which the reply is found."""
    (session,) = (each for each in example_sessions() if each["session_id"] == "demo-hostile-logs")
    context = build_context(parse_session(session), "0123456789abcdef", 100_000, mask_injections=True)
    masked = [(m.role, m.content) for m in REGISTRY.get("investigation").open_conversation(context)]
    assert reply_to(masked) not in (None, reply_to(opening(session)))


def test_other_sessions_other_criteria_and_references_have_none() -> None:
    session = example_sessions()[0]
    assert reply_to(opening(session, "investigation-methodology")) is None
    assert reply_to(opening(session | {"alert_data": json.dumps({"alert": "another"})})) is None
    *before, (role, content) = opening(session)
    assert reply_to([*before, (role, content + REFERENCE_NOTICE)]) is None
