"""The channel `insights` without a broker: the messages that are kept, and the clients that get them."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from pydantic_core import from_json, to_json
from structlog.testing import capture_logs

from insights_messages import START_US, drift, key_of, record, windows
from live import connected_to, of_type, placed, silent_client_of
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.kafka.connect import BrokerAway
from tarsy_scoring.live import signals
from tarsy_scoring.live.gateway import Gateway
from tarsy_scoring.live.signals import FINDING_KEPT_S, LONGEST_BYTES, MOST_BYTES, MOST_FINDINGS, MOST_MESSAGES, Newest
from tarsy_scoring.postgres.database import Database
from tarsy_scoring.telemetry.metrics import Metrics

NOW = START_US + 60_000_000
HOUR_US = 3_600_000_000


def messages(texts: Sequence[bytes]) -> list[dict[str, Any]]:
    return [from_json(text) for text in texts]


def kept(newest: Newest, now_us: int = NOW) -> list[dict[str, Any]]:
    return messages(newest.snapshot(now_us).texts)


@pytest.fixture
def newest() -> Newest:
    return Newest()


class TestNewest:
    def test_the_last_message_of_each_chain_is_kept_and_sent(self, newest: Newest) -> None:
        """Of several messages of one chain that arrive together, only the last one is sent."""
        first, second, other = windows("a"), windows("a", START_US + 1), windows(None)
        assert messages(newest.take([record(first), record(other), record(second)], NOW)) == [other, second]
        assert kept(newest) == [other, second]

    def test_a_tombstone_removes_its_key(self, newest: Newest) -> None:
        """This holds for findings too; a tombstone of an unknown key has no effect."""
        finding = drift()
        newest.take([record(windows("a")), record(windows("b")), record(finding)], NOW)
        assert len(kept(newest)) == 3
        assert newest.take([record(None, key) for key in (b"a", key_of(finding), b"unknown")], NOW) == []
        assert [m["chain_id"] for m in kept(newest)] == ["b"]
        assert newest.take([record(windows("c")), record(None, b"c")], NOW) == [], "removed at once"
        assert len(newest.take([record(windows("a"))], NOW)) == 1, "comes again"

    def test_a_topic_that_is_read_again_sends_nothing(self, newest: Newest) -> None:
        """A replaced tail begins with old messages, which must not be sent again."""
        history = [record(windows("a", START_US + n)) for n in range(3)] + [record(drift())]
        newest.take(history, NOW)
        before = newest.snapshot(NOW)
        assert newest.take(history, NOW) == []
        assert newest.snapshot(NOW) is before

    def test_a_late_score_changes_a_window_at_the_same_moment(self, newest: Newest) -> None:
        """A message with the same timestamp and other figures is later in the topic, and replaces the earlier one."""
        newest.take([record(windows("a", scores=4))], NOW)
        assert len(newest.take([record(windows("a", scores=5))], NOW)) == 1
        assert kept(newest)[0]["windows"]["1h"]["scores"] == 5

    def test_the_last_findings_are_kept(self, newest: Newest) -> None:
        """Their number and order do not matter; windows of chains do not count against their limit."""
        findings = [drift(START_US + n) for n in range(MOST_FINDINGS + 5)]
        newest.take([record(windows("a")), *(record(f) for f in reversed(findings))], NOW)
        assert [m for m in kept(newest) if m["type"] == "scoring.drift_detected"] == findings[5:]
        assert [m["chain_id"] for m in kept(newest) if m["type"] == "scoring.windows"] == ["a"]

    def test_an_old_finding_is_not_sent(self, newest: Newest) -> None:
        """It is not sent when the topic is read, and leaves the snapshot once it has become old."""
        old_us = NOW - FINDING_KEPT_S * 1_000_000
        assert newest.take([record(drift(old_us - 1))], NOW) == []
        assert len(newest.take([record(drift(old_us))], NOW)) == 1
        assert kept(newest, NOW + 1) == []

    def test_windows_are_kept_however_old(self, newest: Newest) -> None:
        newest.take([record(windows("a", NOW - 2 * FINDING_KEPT_S * 1_000_000))], NOW)
        assert len(kept(newest)) == 1

    def test_a_message_dated_far_ahead_is_not_kept(self, newest: Newest) -> None:
        """A message dated next year would stay the newest, whatever comes."""
        assert newest.take([record(windows("a", NOW + HOUR_US + 1))], NOW) == []
        assert len(newest.take([record(windows("a", NOW + HOUR_US))], NOW)) == 1

    def test_foreign_messages_are_skipped(self, newest: Newest) -> None:
        """A foreign producer can neither end a process nor replace a chain under another key."""
        unkeyed = record(to_json(windows(None)))
        assert unkeyed.key is None
        values = [b"", b"\xff\xfe", b"[" * 1000, b"7", b"[]", b"{}"]
        values += [
            b'{"type": "scoring.windows", "chain_id": "a", "timestamp_us": NaN}',
            b'{"type": "scoring.windows", "chain_id": "a", "timestamp_us": true}',
            b'{"type": "scoring.windows", "chain_id": 7, "timestamp_us": 1}',
            b'{"type": ["scoring.windows"], "chain_id": "a", "timestamp_us": 1}',
            b'{"type": "scoring.completed", "chain_id": "a", "timestamp_us": 1}',
            to_json(windows("a", failures={"x" * LONGEST_BYTES: 1})),
        ]
        foreign = [unkeyed, *(record(value, b"a") for value in values)]
        keys = [(b"b", windows("a")), (b"drift:another", drift()), (b"", drift())]
        foreign += [record(to_json(message), key) for key, message in keys]
        for number, one in enumerate(foreign):
            message = windows("c", START_US + number)
            assert newest.take([one, record(message)], NOW) == [to_json(message)], one

    @pytest.mark.parametrize(
        ("figures", "fits"),
        [({}, MOST_MESSAGES), ({"failures": {"x" * 7_000: 1}}, MOST_BYTES // 15_000)],
        ids=["many messages", "many bytes"],
    )
    def test_of_too_many_chains_the_newest_are_kept(self, newest: Newest, figures: dict[str, Any], fits: int) -> None:
        """A snapshot never exceeds what a client can take."""
        flood = [record(windows(f"chain-{n}", START_US + n, **figures)) for n in range(MOST_MESSAGES + 10)]
        for one in flood:
            newest.take([one], NOW)
        snapshot = newest.snapshot(NOW)
        assert snapshot.size_bytes <= MOST_BYTES
        assert len(snapshot.texts) >= fits
        assert len(snapshot.texts) <= MOST_MESSAGES
        newer = list(range(len(flood) - len(snapshot.texts), len(flood)))
        assert [m["chain_id"] for m in messages(snapshot.texts)] == [f"chain-{n}" for n in newer]


# --- clients -------------------------------------------------------------------------------------------


@pytest.fixture
def gateway() -> Gateway:
    return placed()


def chains_of(socket: Any) -> list[Any]:
    return [m["chain_id"] for m in of_type(socket.messages, "scoring.windows")]


class TestChannel:
    async def test_a_subscriber_gets_the_newest_messages_and_then_each_new_one(self, gateway: Gateway) -> None:
        gateway.insights.take_records([record(windows("a")), record(windows("b"))])
        async with connected_to(gateway, "insights") as socket, connected_to(gateway, "sessions") as other:
            assert [m["type"] for m in socket.messages][1] == "subscription.confirmed"
            gateway.insights.take_records([record(windows("c"))])
            await socket.answer()
            await other.answer()
            assert chains_of(socket) == ["a", "b", "c"]
            assert chains_of(other) == []
            assert socket.positions == [], "a client's position stays what it is"

    async def test_a_channel_that_is_left_is_silent(self, gateway: Gateway) -> None:
        async with connected_to(gateway, "insights") as socket:
            socket.say({"action": "unsubscribe", "channel": "insights"})
            await socket.answer()
            gateway.insights.take_records([record(windows("a"))])
            await socket.answer()
            assert chains_of(socket) == []
            socket.say({"action": "subscribe", "channel": "insights"})
            await socket.answer()
            assert chains_of(socket) == ["a"]

    @pytest.mark.parametrize("action", ["subscribe", "catchup"])
    async def test_a_position_does_not_limit_the_messages(self, gateway: Gateway, action: str) -> None:
        """A client that reconnects or asks again gets the newest messages; a catch-up needs no subscription."""
        gateway.insights.take_records([record(windows("a"))])
        async with silent_client_of(gateway) as socket:
            socket.say({"action": action, "channel": "insights", "last_event_id": 4_000})
            await socket.answer()
            assert chains_of(socket) == ["a"]
            assert len(of_type(socket.messages, "subscription.confirmed")) == int(action == "subscribe")
            assert not of_type(socket.messages, "catchup.overflow")

    async def test_a_snapshot_is_made_once_for_all(self, gateway: Gateway) -> None:
        gateway.insights.take_records([record(windows("a"))])
        async with connected_to(gateway, "insights") as one, connected_to(gateway, "insights") as another:
            assert {id(c) for c in one.chunks} & {id(c) for c in another.chunks}


# --- the topic -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_there", [False, None], ids=["no topic", "no broker"])
async def test_a_missing_topic_or_broker_is_logged_once_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, is_there: bool | None
) -> None:
    """Rolling signals are optional: an installation without them does not fill its log."""
    stopping, looks = asyncio.Event(), []

    async def has_topic(_options: Any, topic: str) -> bool:
        looks.append(topic)
        if len(looks) == 4:
            stopping.set()
        if is_there is None:
            raise BrokerAway("planted")
        return is_there

    monkeypatch.setattr(signals, "has_topic", has_topic)
    monkeypatch.setattr(signals, "RETRY_S", 0.001)
    settings = load_settings({"SCORING_KAFKA_BOOTSTRAP_SERVERS": "a:1"})
    gateway = Gateway(settings, Database("postgresql://localhost:1/none", "public", pool_size=1), Metrics())
    with capture_logs() as logs:
        await asyncio.wait_for(gateway.insights.run(stopping), 30)
    assert looks == ["scoring-insights"] * 4
    assert [line["event"] for line in logs] == ["gateway.insights_away"]
