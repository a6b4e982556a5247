"""Targets of notifications: what they want, what they get, and what their answers mean."""

import asyncio
import hashlib
import hmac
import json
import os
from pathlib import Path
from typing import Any

import pytest

from receiver import Receiver, open_receiver
from tarsy_scoring.config.settings import Config, Settings
from tarsy_scoring.errors import ConfigurationError, SettingMissing
from tarsy_scoring.events import ScoringCompleted
from tarsy_scoring.notifications.targets import MessageRefused, Target, TargetAway, open_target

SECRET = "a-key-of-signatures"
WEBHOOK = {"type": "webhook", "url_env": "HOOK", "secret_env": "HOOK_SECRET"}
APPRISE = {"type": "apprise", "url_env": "HOOK"}
LANGFUSE = {"type": "langfuse", "base_url": "https://a.example", "public_key": "pk", "secret_env": "HOOK_SECRET"}


def target(configured: dict[str, Any], url: str = "https://hooks.example/T0KEN", secret: str = SECRET) -> Target:
    config = Config.model_validate({"notifications": {"oncall": configured}})
    settings = Settings(config=config, public_url="https://scores.example")
    return open_target("oncall", settings, {"HOOK": url, "HOOK_SECRET": secret})


def score(**fields: Any) -> ScoringCompleted:
    usual = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))
    return ScoringCompleted.model_validate(usual | fields)


async def sent(configured: dict[str, Any], event: ScoringCompleted | None, receiver: Receiver) -> list[Any]:
    await asyncio.to_thread(target(configured, receiver.url).send, event)
    return receiver.documents


@pytest.mark.parametrize(
    ("configured", "event", "is_wanted"),
    [
        pytest.param(WEBHOOK, {}, True, id="failed"),
        pytest.param(WEBHOOK, {"outcome": "pass"}, False, id="passed"),
        pytest.param(WEBHOOK, {"purpose": "shadow"}, False, id="no production score"),
        pytest.param(WEBHOOK | {"score_below": 31}, {}, False, id="at the limit"),
        pytest.param(WEBHOOK | {"score_below": 32}, {"outcome": "pass"}, True, id="below the limit"),
        pytest.param(WEBHOOK | {"score_below": 32}, {"total_score": None}, False, id="no total"),
        pytest.param(WEBHOOK | {"chains": ["billing"]}, {}, False, id="another chain"),
        pytest.param(LANGFUSE, {"outcome": "pass"}, True, id="langfuse gets every score"),
        pytest.param(LANGFUSE, {"outcome": None, "total_score": None}, False, id="langfuse, nothing to record"),
    ],
)
def test_what_a_target_wants(configured: dict[str, Any], event: dict[str, Any], is_wanted: bool) -> None:
    assert target(configured).wants(score(**event)) is is_wanted


async def test_a_webhook_gets_signed_ids_and_numbers() -> None:
    async with open_receiver() as receiver:
        [document] = await sent(WEBHOOK, score(), receiver)
    [got] = receiver.received
    at = got.headers["X-Scoring-Timestamp"]
    expected = hmac.new(SECRET.encode(), at.encode() + b"." + got.body, hashlib.sha256).hexdigest()
    assert got.headers["X-Scoring-Signature"] == f"v1={expected}"
    assert got.headers["X-Scoring-Delivery"] == document["event_id"] == "e1"
    assert (document["type"], document["total_score"]) == ("score_below", 31)
    assert document["url"] == "https://scores.example/sessions/a%2F1"


async def test_apprise_gets_one_line_without_markup() -> None:
    """Session and chain are names from outside: no mention, link or markup may come of them."""
    async with open_receiver() as receiver:
        url = receiver.url.replace("http://", "json://")
        event = score(session_id="<!channel>", chain_id="*a* <https://evil.example|b>\u202e\u3164")
        await asyncio.to_thread(target(APPRISE, url).send, event)
    [document] = receiver.documents
    assert (
        "Score 31 of 100, outcome fail: session ??channel? of chain ?a? ?https://evil.example?b?, flags"
        in document["message"]
    )


async def test_langfuse_gets_two_scores_that_a_repetition_replaces() -> None:
    async with open_receiver() as receiver:
        total, outcome = await sent(LANGFUSE | {"base_url": receiver.url, "trace_label": "trace"}, score(), receiver)
    assert (total["id"], total["value"], total["traceId"]) == ("s1", 31, "t1")
    assert (outcome["id"], outcome["value"]) == ("s1-outcome", "fail")


@pytest.mark.parametrize("trace", ["../../../other\r\nX-Injected: 1", "", "t" * 201, "täglich"])
async def test_a_label_that_is_no_trace_id_names_no_trace(trace: str) -> None:
    async with open_receiver() as receiver:
        configured = LANGFUSE | {"base_url": receiver.url, "trace_label": "trace"}
        total, _outcome = await sent(configured, score(labels={"trace": trace}), receiver)
    assert (total.get("traceId"), total["sessionId"]) == (None, "a/1")


@pytest.mark.parametrize(
    ("status", "error"),
    [(301, TargetAway), (401, TargetAway), (404, TargetAway), (500, TargetAway), (422, MessageRefused)],
)
async def test_what_an_answer_means(status: int, error: type[Exception]) -> None:
    """Errors never hold the address, which may be a secret, nor the answer."""
    async with open_receiver() as receiver:
        receiver.answers.append(status)
        with pytest.raises(error) as refused:
            await sent(WEBHOOK, score(), receiver)
    assert str(refused.value) == f"it answered {status}"


async def test_a_target_that_cannot_be_reached_is_away() -> None:
    with pytest.raises(TargetAway) as away:
        await asyncio.to_thread(target(WEBHOOK, "http://127.0.0.1:9/T0KEN").send, score())
    assert "T0KEN" not in str(away.value)


@pytest.mark.parametrize(
    ("configured", "url", "secret"),
    [
        pytest.param(WEBHOOK, "ftp://planted7", SECRET, id="another scheme"),
        pytest.param(WEBHOOK, "https://a.example", "planted7", id="a short secret"),
        pytest.param(APPRISE, "planted7", SECRET, id="no URL of apprise"),
        pytest.param(WEBHOOK, "", SECRET, id="no address"),
    ],
)
def test_addresses_that_cannot_be_used_are_refused_unseen(configured: dict[str, Any], url: str, secret: str) -> None:
    with pytest.raises((ConfigurationError, SettingMissing)) as refused:
        target(configured, url, secret)
    assert str(refused.value).startswith("notifications.oncall: ")
    assert "planted7" not in str(refused.value)


def test_an_address_in_a_file_is_read_and_checked_again(tmp_path: Any) -> None:
    file = tmp_path / "hook"
    file.write_text("https://a.example/1")
    config = Config.model_validate({"notifications": {"oncall": WEBHOOK}})
    settings, environ = Settings(config=config), {"HOOK_FILE": str(file), "HOOK_SECRET": SECRET}
    opened = open_target("oncall", settings, environ)
    assert "HOOK_FILE" not in os.environ
    file.write_text("ftp://hooks.example/planted7")
    with pytest.raises(ConfigurationError, match="does not begin with https://") as refused:
        opened.send(score())
    assert "planted7" not in str(refused.value)
