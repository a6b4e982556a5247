"""The page about notifications: its code for receivers works as it stands."""

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from tarsy_scoring.config.destinations import DestinationSettings
from tarsy_scoring.deliveries.messages import webhook_message
from tarsy_scoring.deliveries.notices import Notice

PAGE = (Path(__file__).parents[3] / "docs" / "notifications.md").read_text(encoding="utf-8")
SECRET = "a-key-of-signatures"
NOTICE = Notice("e-1", "test", datetime(2026, 3, 1, tzinfo=UTC), None, {}, {})
WEBHOOK = DestinationSettings(type="webhook", url_env="A", secret_env="B")


def code(language: str) -> str:
    """The only block of code in this language."""
    [found] = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return str(found)


@pytest.fixture
def is_genuine() -> Callable[..., bool]:
    names: dict[str, Any] = {}
    exec(compile(code("python"), "notifications.md", "exec"), names)
    return names["is_genuine"]  # type: ignore[no-any-return]


def test_a_receiver_takes_what_was_signed(is_genuine: Callable[..., bool]) -> None:
    message = webhook_message(NOTICE, WEBHOOK, SECRET, int(time.time()), None)
    assert is_genuine(SECRET, message.headers, message.body)


@pytest.mark.parametrize("age_s", [301, -301], ids=["old", "future"])
def test_a_receiver_drops_what_is_repeated_later(is_genuine: Callable[..., bool], age_s: int) -> None:
    message = webhook_message(NOTICE, WEBHOOK, SECRET, int(time.time()) - age_s, None)
    assert not is_genuine(SECRET, message.headers, message.body)


def test_a_receiver_drops_what_was_changed(is_genuine: Callable[..., bool]) -> None:
    """The signature covers the body, the time and the secret."""
    now_s = int(time.time())
    message = webhook_message(NOTICE, WEBHOOK, SECRET, now_s, None)
    later = dict(message.headers) | {"X-Scoring-Timestamp": str(now_s + 1)}
    assert not is_genuine(SECRET, message.headers, message.body + b" ")
    assert not is_genuine(SECRET, later, message.body)
    assert not is_genuine("another-secret!!", message.headers, message.body)


@pytest.mark.parametrize("at", [None, "", "soon", "-1", "²", "9" * 5000])
def test_a_receiver_drops_what_lacks_a_header(is_genuine: Callable[..., bool], at: str | None) -> None:
    """A request without a signature or with a time that is no number is refused without an exception."""
    message = webhook_message(NOTICE, WEBHOOK, SECRET, int(time.time()), None)
    time_only = {name: value for name, value in message.headers.items() if name != "X-Scoring-Signature"}
    foreign = {name: value for name, value in message.headers.items() if name != "X-Scoring-Timestamp"}
    assert not is_genuine(SECRET, time_only, message.body)
    assert not is_genuine(SECRET, foreign if at is None else foreign | {"X-Scoring-Timestamp": at}, message.body)


def test_the_destinations_of_the_page_are_valid() -> None:
    for destination in yaml.safe_load(code("yaml"))["destinations"].values():
        DestinationSettings(**destination)
