"""Deliveries: each destination gets what follows its bookmark once, and none holds up another or the scoring."""

import asyncio
import contextlib
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from builders import Scoring, completion, session_completed
from infrastructure import wait_until
from receiver import Receiver, open_receiver
from tarsy_scoring.config.chains import BudgetSettings, Config, ProviderSettings
from tarsy_scoring.config.destinations import DestinationSettings
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.deliveries import loop, sender, tables
from tarsy_scoring.deliveries.destinations import Destination, open_destinations
from tarsy_scoring.deliveries.loop import Deliveries
from tarsy_scoring.deliveries.sender import DestinationAway
from tarsy_scoring.limits.fleet import Limits
from tarsy_scoring.outbox import outbox
from tarsy_scoring.outbox.outbox import NewEvent
from tarsy_scoring.telemetry.metrics import Metrics

SECRET = "a-key-of-signatures"
WEBHOOK: dict[str, Any] = {"type": "webhook", "url_env": "HOOK", "secret_env": "HOOK_SECRET"}
NO_BUDGET = BudgetSettings()
LANGFUSE: dict[str, Any] = {"type": "langfuse", "public_key": "pk-1", "secret_env": "LANGFUSE_SECRET"}


class Running(Deliveries):
    """A process's deliveries, with its destinations and its metrics at hand."""

    def __init__(self, scoring: Scoring, configured: dict[str, Any], url: str, budget: BudgetSettings) -> None:
        named = {name: DestinationSettings(**of) for name, of in configured.items()}
        settings = Settings(
            config=Config(providers={"main": ProviderSettings()}, destinations=named, budget=budget),
            public_url="https://scores.example",
        )
        environ = {"HOOK": f"{url}/hook?token=T0KEN", "HOOK_SECRET": SECRET, "LANGFUSE_SECRET": "sk-1"}
        self.opened = open_destinations(settings, environ)
        self.registry = (metrics := Metrics()).registry
        super().__init__(settings, scoring.database, Limits(scoring.database, settings), self.opened, metrics)

    def named(self, name: str) -> Destination:
        return next(d for d in self.opened if d.name == name)

    async def deliver(self, name: str = "oncall", now: datetime | None = None) -> bool | None:
        return await self.run_once(self.named(name), now or datetime.now(UTC))

    def counted(self, result: str, name: str = "oncall") -> float:
        labels = {"destination": name, "result": result}
        return self.registry.get_sample_value("tarsy_scoring_deliveries_total", labels) or 0.0


Start = Callable[..., Any]


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with open_receiver() as opened:
        yield opened


@pytest.fixture
async def start(scoring: Scoring, receiver: Receiver) -> AsyncIterator[Start]:
    """Makes deliveries that have their bookmarks; by default of a webhook called `oncall`."""
    async with contextlib.AsyncExitStack() as stack:

        async def call(url: str | None = None, budget: BudgetSettings = NO_BUDGET, **configured: Any) -> Running:
            made = Running(scoring, configured or {"oncall": WEBHOOK}, url or receiver.url, budget)
            for destination in made.opened:
                stack.push_async_callback(destination.sender.close)
            await made.note_once(datetime.now(UTC))
            return made

        yield call


async def complete(scoring: Scoring, *session_ids: str, **event: Any) -> list[str]:
    """Store a completed score for each session, by default with the outcome `fail`; returns their ids."""
    carried = {
        "total_score": 31,
        "outcome": "fail",
        "criteria": "investigation",
        "criteria_hash": "c0ffee",
        "judge_fingerprint": "f1",
        "flags": ["coverage_low"],
        "failure_tags": ["wrong_cause"],
        "labels": {"trace": "trace-1"},
        "has_reference": False,
    } | event
    await scoring.accept(*(session_completed(s) for s in session_ids))
    ended = []
    for claimed in await scoring.claim():
        end = completion(claimed, score_analysis="HOSTILE TEXT OF THE SESSION", total_score=carried["total_score"])
        await scoring.store.end(replace(end, event=NewEvent(claimed.score_id, "scoring.completed", carried)))
        ended.append(str(claimed.score_id))
    await outbox.assign_positions(scoring.database, 10_000)
    return ended


async def positions(scoring: Scoring) -> dict[str, int]:
    return {r["destination"]: r["position"] for r in await scoring.rows("SELECT * FROM delivery_bookmarks")}


def sessions_of(receiver: Receiver) -> Sequence[str]:
    return [document["session_id"] for document in receiver.documents]


# --- what is sent --------------------------------------------------------------------------------------


async def test_a_webhook_gets_a_signed_message_without_text(scoring: Scoring, start: Start, receiver: Receiver) -> None:
    deliveries = await start()
    [score_id] = await complete(scoring, "a b/c")
    assert await deliveries.deliver() is True
    [received] = receiver.received
    document = received.document
    event_id = document.pop("event_id")
    assert datetime.fromisoformat(document.pop("timestamp")).tzinfo is not None
    assert document == {
        "type": "score_below",
        "chain_id": "kubernetes",
        "session_id": "a b/c",
        "score_id": score_id,
        "total_score": 31,
        "outcome": "fail",
        "score_below": None,
        "criteria": "investigation",
        "criteria_hash": "c0ffee",
        "judge_fingerprint": "f1",
        "flags": ["coverage_low"],
        "has_reference": False,
        "url": "https://scores.example/sessions/a%20b%2Fc",
    }
    signed = received.headers["X-Scoring-Timestamp"].encode() + b"." + received.body
    expected = hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()
    assert received.headers["X-Scoring-Signature"] == f"v1={expected}"
    assert received.headers["X-Scoring-Delivery"] == event_id
    assert received.path == "/hook?token=T0KEN"
    assert deliveries.counted("delivered") == 1


@pytest.mark.parametrize(
    ("configured", "event", "is_sent"),
    [
        ({}, {"outcome": "pass"}, False),
        ({}, {"outcome": None, "total_score": 0}, False),
        ({"score_below": 50}, {"total_score": 49, "outcome": "pass"}, True),
        ({"score_below": 50}, {"total_score": 50, "outcome": "fail"}, False),
        ({"score_below": 50}, {"total_score": None, "outcome": "fail"}, False),
        ({"events": ["drift"]}, {}, False),
        ({"chains": ["billing"]}, {}, False),
        ({"chains": ["kubernetes"]}, {}, True),
    ],
)
async def test_a_destination_gets_what_it_asks_for(
    scoring: Scoring, start: Start, receiver: Receiver, configured: Any, event: Any, is_sent: bool
) -> None:
    deliveries = await start(oncall=WEBHOOK | configured)
    await complete(scoring, "one", **event)
    assert await deliveries.deliver() is True
    assert len(receiver.received) == is_sent
    assert await deliveries.deliver() is False


async def test_only_production_scores_are_sent(scoring: Scoring, start: Start, receiver: Receiver) -> None:
    deliveries = await start()
    await complete(scoring, "one")
    await scoring.rows('UPDATE scoring_events SET payload = payload || \'{"purpose": "anchor"}\'')
    await deliveries.deliver()
    assert receiver.received == []


async def test_a_destination_begins_at_the_present(scoring: Scoring, start: Start, receiver: Receiver) -> None:
    await complete(scoring, "history")
    deliveries = await start()
    assert await deliveries.deliver() is False
    await complete(scoring, "news")
    await deliveries.deliver()
    assert sessions_of(receiver) == ["news"]


async def test_old_notices_are_passed_over(scoring: Scoring, start: Start, receiver: Receiver) -> None:
    """A destination that was away or not configured for long gets no flood of what is over."""
    deliveries = await start()
    await complete(scoring, "one")
    assert await deliveries.deliver(now=datetime.now(UTC) + timedelta(days=8)) is True
    assert receiver.received == []
    assert deliveries.counted("outdated") == 1


async def test_a_channel_gets_one_message_of_several_lines(scoring: Scoring, start: Start, receiver: Receiver) -> None:
    deliveries = await start(oncall=WEBHOOK)
    slack = replace(deliveries.named("oncall"), settings=DestinationSettings(type="slack", url_env="HOOK"))
    await complete(scoring, *(f"s{n:02} <!channel>|&\n" for n in range(25)))
    await deliveries.run_once(slack, datetime.now(UTC))
    first, second = (document["text"].split("\n") for document in receiver.documents)
    assert (len(first), len(second)) == (20, 5)
    assert first[0] == (
        "Score 31 of 100, outcome fail: session <https://scores.example/sessions/s00%20%3C%21channel%3E%7C%26%0A|"
        "s00 &lt;!channel&gt;¦&amp; > of chain kubernetes, flags: coverage_low"
    )
    assert "<!channel" not in json.dumps(receiver.documents)


async def test_langfuse_gets_total_and_outcome(scoring: Scoring, start: Start, receiver: Receiver) -> None:
    """A repetition has the same ids, so that Langfuse replaces the scores."""
    deliveries = await start(traces=LANGFUSE | {"base_url": receiver.url + "/"})
    [score_id] = await complete(scoring, "one", outcome="pass")
    await deliveries.deliver("traces")
    total, outcome = receiver.received
    assert total.path == outcome.path == "/api/public/scores"
    assert total.headers["Authorization"] == "Basic cGstMTpzay0x"  # pk-1:sk-1
    common = {
        "sessionId": "one",
        "comment": "https://scores.example/sessions/one",
        "metadata": {
            "criteria": "investigation",
            "criteria_hash": "c0ffee",
            "judge_fingerprint": "f1",
            "flags": ["coverage_low"],
            "chain_id": "kubernetes",
            "score_id": score_id,
            "url": "https://scores.example/sessions/one",
        },
    }
    assert total.document == common | {
        "id": score_id,
        "name": "tarsy_scoring.total",
        "value": 31,
        "dataType": "NUMERIC",
    }
    assert outcome.document == common | {
        "id": f"{score_id}-outcome",
        "name": "tarsy_scoring.outcome",
        "value": "pass",
        "dataType": "CATEGORICAL",
    }


async def test_langfuse_scores_the_trace_that_a_label_names(scoring: Scoring, start: Start, receiver: Receiver) -> None:
    deliveries = await start(traces=LANGFUSE | {"base_url": receiver.url, "trace_label": "trace"})
    await complete(scoring, "one", outcome=None)
    await complete(scoring, "two", outcome=None, labels={})
    await deliveries.deliver("traces")
    first, second = receiver.documents
    assert (first["traceId"], first.get("sessionId")) == ("trace-1", None)
    assert (second.get("traceId"), second["sessionId"]) == (None, "two")


# --- when it fails -------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [500, 503, 429, 401, 404])
async def test_a_message_is_sent_again_until_it_is_taken(
    scoring: Scoring, start: Start, receiver: Receiver, status: int
) -> None:
    deliveries = await start()
    await complete(scoring, "one", "two")
    receiver.answers.extend([200, status])
    with pytest.raises(DestinationAway, match=f"answered {status}"):
        await deliveries.deliver()
    assert await deliveries.deliver() is True
    first, failed, repeated = sessions_of(receiver)
    assert failed == repeated != first
    assert deliveries.counted("delivered") == 2
    assert await deliveries.deliver() is False


async def test_a_refused_message_does_not_cost_the_next(scoring: Scoring, start: Start, receiver: Receiver) -> None:
    deliveries = await start()
    await complete(scoring, "one", "two")
    receiver.answers.append(400)
    with capture_logs() as logs:
        assert await deliveries.deliver() is True
    assert len(set(sessions_of(receiver))) == 2
    assert (deliveries.counted("refused"), deliveries.counted("delivered")) == (1, 1)
    [refused] = [line for line in logs if line["event"] == "delivery.refused"]
    assert refused["event_ids"] == [receiver.documents[0]["event_id"]]


async def test_a_redirect_is_not_followed(scoring: Scoring, start: Start, receiver: Receiver) -> None:
    """A message with ids of sessions goes nowhere but to the configured host."""
    deliveries = await start()
    await complete(scoring, "one")
    async with open_receiver() as elsewhere:
        receiver.answers.append((307, {"Location": elsewhere.url}))
        with pytest.raises(DestinationAway, match="redirects are not followed"):
            await deliveries.deliver()
        assert elsewhere.received == []


async def test_a_crash_before_the_bookmark_moves_repeats_one_message(
    scoring: Scoring, start: Start, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    deliveries = await start()
    await complete(scoring, "one", "two", "three")
    moved, move = [], tables.move

    async def crash_at_the_second(*arguments: Any) -> bool:
        moved.append(arguments)
        if len(moved) == 2:
            raise KeyboardInterrupt
        return await move(*arguments)

    monkeypatch.setattr(tables, "move", crash_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        await deliveries.deliver()
    monkeypatch.setattr(tables, "move", move)
    await deliveries.deliver()
    sent = [r.headers["X-Scoring-Delivery"] for r in receiver.received]
    assert (len(sent), len(set(sent))) == (4, 3)
    assert sent[1] == sent[2]


async def test_one_process_delivers_and_another_takes_over(scoring: Scoring, start: Start, receiver: Receiver) -> None:
    first, second = await start(), await start()
    assert await first.deliver() is False
    await complete(scoring, "one")
    assert await second.deliver() is None
    await scoring.rows("UPDATE delivery_bookmarks SET lease_expires_at = now() - interval '1 s'")  # its process died
    assert await second.deliver() is True
    assert await first.deliver() is False  # by its own clock it still holds the bookmark; there is nothing left
    assert len(receiver.received) == 1


async def test_a_destination_that_is_away_holds_only_itself_up(
    scoring: Scoring, start: Start, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "POLL_S", 0.01)
    monkeypatch.setattr(loop, "RETRY_MIN_S", 0.01)
    async with open_receiver() as langfuse:
        deliveries = await start(oncall=WEBHOOK, traces=LANGFUSE | {"base_url": langfuse.url})
        receiver.answers.extend([503] * 3)
        stopping = asyncio.Event()
        with capture_logs() as logs:
            running = asyncio.create_task(deliveries.run(stopping))
            await complete(scoring, "one")
            await wait_until(lambda: len(langfuse.received) == 2, 10, "the scores")
            await wait_until(lambda: deliveries.counted("delivered") == 1, 10, "the message")
            stopping.set()
            await running
    assert len(receiver.received) == 4
    assert [line["event"] for line in logs if line.get("destination") == "oncall"] == [
        "delivery.waiting",
        "delivery.delivered",
        "delivery.resumed",
    ]
    assert await scoring.value("SELECT count(*) FROM delivery_bookmarks WHERE lease_expires_at > now()") == 0


async def test_a_silent_destination_is_given_up_in_time(
    scoring: Scoring, start: Start, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "DEADLINE_S", 0.1)
    receiver.silence = asyncio.Event()
    deliveries = await start()
    await complete(scoring, "one")
    try:
        with pytest.raises(DestinationAway, match="no answer within"):
            await deliveries.deliver()
    finally:
        receiver.silence.set()


async def test_neither_address_nor_secret_stand_in_logs_or_errors(
    scoring: Scoring, start: Start, receiver: Receiver
) -> None:
    dead = await start(url="http://127.0.0.1:9")
    await complete(scoring, "one")
    with capture_logs() as logs:
        with pytest.raises(DestinationAway) as away:
            await dead.deliver()
        loop._Standing("oncall", Metrics()).note_away(away.value)
        receiver.answers.append(400)
        await scoring.rows("UPDATE delivery_bookmarks SET lease_expires_at = now() - interval '1 s'")
        await (await start()).deliver()
    said = str(logs) + str(away.value) + repr(away.value.__cause__)
    assert "could not be reached" in said
    for secret in ("T0KEN", SECRET, "127.0.0.1", "SECRET-OF-THE-ANSWER"):
        assert secret not in said


# --- drift and budgets ---------------------------------------------------------------------------------


async def find_drift(scoring: Scoring, *, is_event: bool = True, found_at: str = "now()") -> str:
    """Store a finding of drift detection; returns its id."""
    estimate = {"n": 40, "value": -6.25, "standard_error": 1.5, "low": -9.0, "high": -3.0, "method": "m"}
    return str(
        await scoring.value(
            "INSERT INTO drift_findings (look, chain_id, criteria, criteria_hash, new_fingerprint, cause, is_clear, "
            "judge, whole, agents, anchors, anchors_missing, compared_before, compared_after, meaning, is_event, "
            "found_at) VALUES ('watch', 'kubernetes', 'investigation', 'c0ffee', 'f1', 'agents', true, $1, $1, $1, "
            f"0, 0, 40, 40, '[\"HOSTILE\"]', $2, {found_at}) RETURNING event_id",
            estimate,
            is_event,
        )
    )


async def test_each_drift_is_sent_once(scoring: Scoring, start: Start, receiver: Receiver) -> None:
    await find_drift(scoring)  # before the destination
    deliveries = await start()
    event_id = await find_drift(scoring)
    await find_drift(scoring, is_event=False)
    for _ in range(3):
        await deliveries.note_once(datetime.now(UTC))
        await deliveries.deliver()
    [document] = receiver.documents
    assert (document["event_id"], document["type"]) == (event_id, "drift")
    assert (document["chain_id"], document["cause"], document["size_points"]) == ("kubernetes", "agents", -6.25)
    assert document["url"] == "https://scores.example/drift"
    assert "HOSTILE" not in str(receiver.documents)


async def test_each_spent_budget_is_sent_once(scoring: Scoring, start: Start, receiver: Receiver) -> None:
    deliveries = await start(budget=BudgetSettings(daily_usd=2))
    await scoring.rows(
        "INSERT INTO budget_days (day, scope, chain_id, spent_at) "
        "SELECT (now() AT TIME ZONE 'UTC')::date, 'all', '', now()"
    )
    for _ in range(3):
        await deliveries.note_once(datetime.now(UTC))
        await deliveries.deliver()
    [document] = receiver.documents
    today = await scoring.value("SELECT (now() AT TIME ZONE 'UTC')::date::text")
    assert (document["type"], document["chain_id"]) == ("budget_spent", None)
    assert (document["day"], document["limit_usd"]) == (today, 2)


async def test_notices_keep_the_order_of_commits(scoring: Scoring, start: Start, receiver: Receiver) -> None:
    """A process that notes while another transaction notes waits for it, so no bookmark passes a notice over."""
    deliveries = await start()
    async with scoring.database.transaction() as open_:
        await tables.NOTE_LOCK.acquire(open_, scoring.database.schema)
        await find_drift(scoring)
        noting = asyncio.create_task(deliveries.note_once(datetime.now(UTC)))
        await wait_until(scoring.backends_waiting_for_a_lock, 10, "it waits")
        await deliveries.deliver()
    await noting
    await deliveries.deliver()
    assert len(receiver.documents) == 1
