"""Every step is counted where it happens, and each attempt logs one line with the documented fields."""

import re
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from prometheus_client import generate_latest

from api_site import Api, Sessions, open_api
from attempting import Service, open_service, watched
from fakes import ANALYSIS, MISSING_TOOLS, FakeJudge, FakeSessions, Room
from infrastructure import Kafka, wait_until
from tarsy_scoring.config.chains import BudgetSettings, ChainSettings
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import JudgeUnavailable, SessionNotFound, WaitFor
from tarsy_scoring.kafka.consumer import Consumer, Record
from tarsy_scoring.kafka.publisher import Publisher
from tarsy_scoring.kafka.topics import ensure_topics
from tarsy_scoring.limits.fleet import Limits
from tarsy_scoring.limits.rules import Call, Result, Standing, Standings
from tarsy_scoring.queue.admission import Priority
from tarsy_scoring.queue.claims import ChainFilter
from tarsy_scoring.queue.intake import Intake
from tarsy_scoring.scoring.attempt import Finished
from tarsy_scoring.scoring.worker import TakeoverGuard, Worker
from tarsy_scoring.telemetry.metrics import HOLDS, Metrics
from tarsy_scoring.timeline.model import FoundSession

OPERATIONS = (Path(__file__).resolve().parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")
NAMES = {"score_id", "session_id", "request_id", "attempt", "outcome", "duration_s"}
CONTEXT_FIELDS = {"chain_id", "criteria", "turns", "context_tokens"}
USAGE = {"input_tokens", "cached_input_tokens", "output_tokens", "cost_usd"}


@pytest.fixture
async def service(database_url: str) -> AsyncIterator[Service]:
    async with open_service(database_url) as opened:
        yield opened


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Api]:
    async with open_api(database_url, Sessions(session_1=FoundSession("session-1", "k", "completed", None))) as opened:
        yield opened


def reading(metrics: Metrics) -> Callable[..., float | None]:
    """A function that reads the value of a series by its name without prefix."""
    return lambda name, **labels: metrics.registry.get_sample_value(f"tarsy_scoring_{name}", labels)


async def attempted(service: Service, metrics: Metrics, judge: FakeJudge, session: Any = None) -> Finished:
    """One attempt at the due score."""
    return await service.scorer({"default": judge}, session, metrics=metrics).attempt(await service.claim())


# --- an attempt ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chains", "label"), [(["k"], "k"), (["another"], "other")], ids=["configured-chain", "unknown-chain"]
)
async def test_a_completed_score_is_counted_once_everywhere(service: Service, chains: list[str], label: str) -> None:
    metrics = Metrics(chains)
    value = reading(metrics)
    await service.request(priority=Priority.AUTOMATIC)
    await service.database.once(lambda c: c.execute("UPDATE session_scores SET created_at = now() - interval '9 s'"))

    await attempted(service, metrics, FakeJudge(ANALYSIS, MISSING_TOOLS))

    assert value("scores_total", status="completed", error_kind="", chain=label) == 1
    assert value("score_points_sum", chain=label) == 62
    assert value("score_outcomes_total", outcome="none", chain=label) == 1
    assert value("score_delay_seconds_count", asked_by="automatic") == 1
    assert 9 <= (value("score_delay_seconds_sum", asked_by="automatic") or 0) < 30
    assert value("score_delay_seconds_count", asked_by="people") == 0
    assert value("turn_duration_seconds_count", kind="analysis", provider="default") == 1
    assert value("tokens_total", direction="input", provider="default") == 20_000
    assert value("cost_usd_total", provider="default", chain=label) == pytest.approx(0.02)


async def test_other_purposes_do_not_count_as_quality(service: Service) -> None:
    """A shadow score counts as ended, but not in the delays and totals."""
    metrics = Metrics(["k"])
    value = reading(metrics)
    await service.request(purpose="shadow")

    await attempted(service, metrics, FakeJudge(ANALYSIS, MISSING_TOOLS))

    assert value("scores_total", status="completed", error_kind="", chain="k") == 1
    assert value("score_points_count", chain="k") is None
    assert sum(value("score_delay_seconds_count", asked_by=who) or 0 for who in ("people", "automatic", "bulk")) == 0


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        pytest.param(JudgeUnavailable("away"), "judge_unavailable", id="an-error"),
        pytest.param(WaitFor("401", 5, "key"), "key", id="something-to-wait-for"),
    ],
)
async def test_a_turn_without_an_answer_is_counted_by_reason(service: Service, error: Exception, reason: str) -> None:
    """Counted by provider too, though no turn is stored."""
    metrics = Metrics()
    await service.request()

    await attempted(service, metrics, FakeJudge(error))

    assert reading(metrics)("turns_failed_total", provider="default", reason=reason) == 1


@pytest.mark.parametrize(
    ("judge", "session", "outcome", "fields"),
    [
        pytest.param([ANALYSIS, MISSING_TOOLS], None, "completed", {"total_score", "flags"}, id="completed"),
        pytest.param(
            [JudgeUnavailable("away")],
            None,
            "put_back",
            {"waiting_for", "due_s", "error_kind", "reason"},
            id="put-back-after-an-error",
        ),
        pytest.param(
            [WaitFor("paused", 5, "pause")], None, "put_back", {"waiting_for", "due_s", "reason"}, id="waiting"
        ),
        pytest.param([], SessionNotFound("no session"), "failed", {"error_kind", "reason"}, id="failed"),
    ],
)
async def test_the_line_has_the_documented_fields(
    service: Service, judge: list[Any], session: Any, outcome: str, fields: set[str]
) -> None:
    """Programs that read logs rely on the names, so they change only together with the page."""
    page = OPERATIONS.partition("`attempt.finished`")[2].partition("## Metrics")[0]
    rows = [row.split(" | ")[0] for row in page.splitlines() if row.startswith("| `")]
    documented = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    await service.request(source="api")

    finished = await attempted(service, Metrics(), FakeJudge(*judge), session)

    assert finished.outcome == outcome
    assert set(finished.fields) == fields | CONTEXT_FIELDS | USAGE | {"attempt"}
    everything = {"total_score", "flags", "error_kind", "reason", "waiting_for", "due_s"}
    assert documented == NAMES | CONTEXT_FIELDS | USAGE | everything


# --- a worker ------------------------------------------------------------------------------------------


def a_worker(service: Service, settings: Settings, scorer: Any, metrics: Metrics) -> tuple[Worker, Limits]:
    limits = Limits(service.database, settings)
    source = watched(FakeSessions())
    worker = Worker(
        settings=settings, leases=service.leases, scorer=scorer, source=source, metrics=metrics, limits=limits
    )
    return worker, limits


async def test_a_score_failed_by_a_lost_worker_is_counted(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker that takes the score back counts its end, as the lost one cannot."""
    metrics = Metrics(["k"])
    settings = service.settings.model_copy(update={"max_attempts": 1})
    worker, _ = a_worker(service, settings, None, metrics)
    monkeypatch.setattr(TakeoverGuard, "is_settled", lambda *_: True)
    await service.request()
    await service.claim()
    lapse = "UPDATE session_scores SET lease_expires_at = now() - interval '1 s'"
    await service.database.once(lambda c: c.execute(lapse))

    await worker.take_back_expired()

    assert reading(metrics)("scores_taken_back_total", status="failed") == 1
    assert reading(metrics)("scores_total", status="failed", error_kind="worker_lost", chain="k") == 1


async def test_gauges_show_circuits_by_kind_and_budgets_by_chain(service: Service) -> None:
    """One refresh of the limits sets both; a chain without configuration counts as `other`."""
    settings = service.settings
    every = settings.config.defaults.model_copy(update={"daily_budget_usd": 4.0})
    chains: Mapping[str, ChainSettings] = {"k": every.model_copy(update={"daily_budget_usd": 2.0}), "idle": every}
    config = settings.config.model_copy(
        update={"chains": chains, "defaults": every, "budget": BudgetSettings(daily_usd=10.0)}
    )
    settings = settings.model_copy(update={"config": config})
    metrics = Metrics(chains)
    worker, limits = a_worker(service, settings, None, metrics)
    value = reading(metrics)
    for chain in ("k", "made-up"):
        await limits.admit(Call("default", chain, uuid.uuid4(), 10, 1.0))
    rejected = await limits.admit(Call("default", "k", uuid.uuid4(), 10, 0.5))
    await limits.settle(rejected, Result(opens="key", cost_usd=0.0))

    await worker.refresh_limits()

    assert value("circuit_open", provider="default", kind="key") == 1
    assert value("circuit_open", provider="default", kind="circuit") == 0
    shares = {chain: value("budget_spent_ratio", scope="chain", chain=chain) for chain in ("k", "idle", "other")}
    assert shares == {"k": 0.5, "idle": 0.0, "other": 0.25}
    assert value("budget_spent_ratio", scope="all", chain="") == pytest.approx(0.2)


# --- requests ------------------------------------------------------------------------------------------


async def test_the_delay_from_the_topic_is_measured_for_accepted_requests(service: Service) -> None:
    """It begins at the record's time; repeats are not measured."""
    metrics = Metrics()
    settings = load_settings({"SCORING_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1"})
    now = time.time()
    intake = Intake(settings, service.inbox, cast(Any, Room()), metrics, clock=lambda: now)
    value = reading(metrics)

    def record(body: bytes) -> Record:
        return Record(settings.topic_session_completed, 0, 1, int((now - 7) * 1000), b"one", body, [])

    for _ in range(2):
        await intake.store([record(b'{"session_id": "one", "event_id": "e1"}')])

    assert value("requests_total", source="session-completed", disposition="accepted") == 1
    assert value("requests_total", source="session-completed", disposition="repeated") == 1
    assert value("request_delay_seconds_count", source="session-completed") == 1
    assert value("request_delay_seconds_sum", source="session-completed") == pytest.approx(7, abs=0.01)


async def test_requests_over_http_are_counted_like_events(api: Api) -> None:
    """Accepted, answered by the open score, repeated under a key, cancelled, and refused before a route."""
    first = (await api.ask(key="a-key")).json()
    await api.ask(key="a-key")
    await api.ask()
    await api.cancel(first["score_id"])
    await api.client.get("/api/v1/scoring/sessions", headers={"X-Forwarded-User": "\x01"})

    text = generate_latest(api.app.state.context.metrics.registry).decode()

    for line in (
        'requests_total{disposition="accepted",source="api"} 1.0',
        'requests_total{disposition="in_progress",source="api"} 1.0',
        'requests_total{disposition="repeated",source="api"} 1.0',
        'scores_total{chain="other",error_kind="cancelled",status="cancelled"} 1.0',
        'api_requests_total{method="GET",route="unmatched",status="400"} 1.0',
    ):
        assert f"tarsy_scoring_{line}\n" in text


async def test_paused_and_unaffordable_scores_are_separate_and_have_no_age(service: Service) -> None:
    """A pause or a spent budget raises no alert; an unavailable provider ages its scores."""
    for chain, minutes in (("paused", 50), ("spent", 40), ("away", 3), ("ready", 2), ("another", 60)):
        await service.request(chain, chain_id=chain)
        await service.database.once(
            lambda c, chain=chain, minutes=minutes: c.execute(
                "UPDATE session_scores SET next_attempt_at = now() - make_interval(mins => $2) WHERE session_id = $1",
                *(chain, minutes),
            )
        )
    await service.request("none", chain_id=None)
    await service.leases.claim_due(uuid.uuid4(), 1, 60, ChainFilter(["ready"], [], others_blocked=True))
    await service.request("ready-2", chain_id="ready")
    reasons: dict[str, Any] = {"paused": "pause", "spent": "budget", "away": "circuit", "ready": None, "": None}
    held = Standings({chain: Standing(reason) for chain, reason in reasons.items()}, Standing("pause"))

    class HeldChains(Limits):
        async def refreshed_standings(self) -> Standings:
            return held

    limits = HeldChains(service.database, service.settings)
    metrics = Metrics()
    await Worker(
        settings=service.settings,
        leases=service.leases,
        scorer=cast(Any, None),
        source=watched(FakeSessions()),
        metrics=metrics,
        limits=limits,
    ).read_gauges()

    value = reading(metrics)
    due = {hold: value("queue_due_scores", waiting_for=hold) for hold in HOLDS}
    assert due == dict.fromkeys(HOLDS, 0) | {"pause": 2, "budget": 1, "circuit": 1, "nothing": 2}
    assert (value("queue_scores", status="pending"), value("queue_scores", status="in_progress")) == (6, 1)
    assert 180 <= (value("queue_oldest_due_seconds") or 0) < 210


async def test_lag_is_the_sum_over_assigned_partitions(kafka: Kafka) -> None:
    """Partitions from which nothing was taken yet count too."""
    topic = f"lag-{uuid.uuid4().hex[:8]}"
    settings = load_settings(
        {
            "SCORING_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
            "SCORING_KAFKA_GROUP": topic,
            "SCORING_CREATE_TOPICS": "true",
            "SCORING_TOPIC_PARTITIONS": "4",
        }
    )
    await ensure_topics(settings, [topic])
    publisher, consumer = Publisher(settings), Consumer(settings, [topic])
    try:
        await publisher.publish(topic, [(str(n).encode(), b"{}", []) for n in range(40)], 10)
        assert await consumer.lag() == 0
        await consumer.start()
        await wait_until(lambda: consumer.take(0.2, 1), 30, "a record")

        async def is_whole_lag() -> bool:
            return await consumer.lag() == 39

        await wait_until(is_whole_lag, 30, "every partition told its end")
    finally:
        await consumer.stop()
        await publisher.stop()
