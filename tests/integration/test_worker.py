"""Failures between two steps of a worker: claimed scores are attempted, and stored ends are not lost."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from attempting import Service, open_service, watched
from builders import connected
from fakes import ANALYSIS, MISSING_TOOLS, Answer, FakeJudge, FakeSessions
from infrastructure import wait_until
from proxy import DatabaseProxy
from tarsy_scoring.errors import JudgeRejectedRequest, JudgeUnavailable
from tarsy_scoring.limits.fleet import Limits
from tarsy_scoring.limits.rules import Standing, Standings
from tarsy_scoring.postgres import database as database_module
from tarsy_scoring.postgres.database import Connection, DatabaseAway
from tarsy_scoring.queue.claims import ChainFilter, ClaimedScore
from tarsy_scoring.scoring import worker as worker_module
from tarsy_scoring.scoring.attempt import Finished
from tarsy_scoring.scoring.worker import Worker
from tarsy_scoring.telemetry.metrics import Metrics

ONE_PROBES = Standings({"probing": Standing("circuit", may_probe=True)}, Standing())


@pytest.fixture
async def service(database_url: str) -> AsyncIterator[Service]:
    async with open_service(database_url) as opened:
        yield opened


class Unending:
    """A stand-in for `Scorer`: records the sessions of its attempts, which end only when a test sets `may_end`."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.may_end = asyncio.Event()

    async def attempt(self, claimed: ClaimedScore, **_: Any) -> Finished:
        self.begun.append(claimed.session_id)
        await self.may_end.wait()
        return Finished("completed")


def a_worker(service: Service, scorer: Any, limits: Limits | None = None, **settings: Any) -> Worker:
    changed = service.settings.model_copy(update={"drain_timeout_s": 0} | settings)
    limits = limits or Limits(service.database, changed)
    return Worker(
        settings=changed,
        leases=service.leases,
        scorer=scorer,
        source=watched(FakeSessions()),
        metrics=Metrics(),
        limits=limits,
    )


def limits_that_know(service: Service, known: Standings, monkeypatch: pytest.MonkeyPatch) -> Limits:
    limits = Limits(service.database, service.settings)
    monkeypatch.setattr(limits, "standings", lambda: known)
    return limits


async def test_a_failed_claim_does_not_lose_the_claim_before_it(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database goes away between two claims of one pass; the first claim's score is attempted."""
    await service.request("one", chain_id="k")
    await service.request("two", chain_id="probing")
    claims: list[ChainFilter] = []
    claim_due = service.leases.claim_due

    async def claim_once(*arguments: Any, **suspects: int) -> list[ClaimedScore]:
        claims.append(arguments[-1])
        if len(claims) == 2:
            raise DatabaseAway("just now")
        return await claim_due(*arguments, **suspects)

    monkeypatch.setattr(service.leases, "claim_due", claim_once)
    scorer = Unending()
    worker = a_worker(service, scorer, limits_that_know(service, ONE_PROBES, monkeypatch))

    with pytest.raises(DatabaseAway):
        await worker.claim(5)
    await asyncio.sleep(0)

    assert len(claims) == 2
    assert len(scorer.begun) == 1


async def test_a_lapsed_lease_of_a_locked_score_is_renewed_when_the_lock_is_gone(
    service: Service, database_url: str
) -> None:
    """Its worker waits for the row, and so comes before all that take scores back."""
    await service.request("one")
    worker = a_worker(service, Unending())
    await worker.claim(1)
    rows = service.database.fetch
    keeping = asyncio.create_task(worker.keep_locked_leases())
    async with connected(database_url) as stranger:
        async with stranger.transaction():
            await stranger.execute("UPDATE session_scores SET lease_expires_at = now() - interval '1 s'")

            await worker.keep_leases()

            waiting = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
            await wait_until(lambda: rows(waiting), 10, "the worker waits for the row")
        is_renewed = "SELECT FROM session_scores WHERE lease_expires_at > now()"
        await wait_until(lambda: rows(is_renewed), 10, "the lease is renewed")
    keeping.cancel()


async def test_a_claim_without_a_reply_burns_no_attempt(database_url: str) -> None:
    """Its worker lives, so it puts the score back itself, and does not let the lease lapse."""
    async with DatabaseProxy(database_url) as proxy, open_service(proxy.url) as service:
        await service.request("one")
        await service.request("two")
        scorer = Unending()
        worker = a_worker(service, scorer)
        assert await worker.claim(1) == 1
        proxy.lose_commit_reply("investigation")  # an argument of the claim

        with pytest.raises(DatabaseAway):
            await worker.claim(16)
        held = "SELECT count(*) FROM session_scores WHERE status = 'in_progress'"
        assert await service.database.once(lambda c: c.fetchval(held)) == 2
        async with connected(database_url) as other, other.transaction():  # a lock only puts it off
            await other.execute("SELECT FROM session_scores FOR UPDATE")
            await worker.release_untracked()
        await worker.release_untracked()
        assert await worker.claim(16) == 1
        await asyncio.sleep(0)

        counts = "SELECT session_id, attempt, attempts_burned, losses FROM session_scores ORDER BY attempt"
        rows = await service.database.once(lambda c: c.fetch(counts))
        kinds = "SELECT coalesce(payload ->> 'phase', type) FROM scoring_events WHERE session_id = $1 ORDER BY sequence"
        events = await service.database.once(lambda c: c.fetch(kinds, rows[1]["session_id"]))

    assert [tuple(row)[1:] for row in rows] == [(1, 0, 0), (2, 0, 0)]
    assert sorted(scorer.begun) == ["one", "two"]
    begun = ["scoring.started", "gathering_context"]
    assert [kind for (kind,) in events] == ["queued", *begun, "waiting_retry", *begun]


async def test_a_full_queue_does_not_delay_a_probe(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other chains could fill every slot; one score of a chain that waits for a probe goes first."""
    for n in range(4):
        await service.request(f"other-{n}", chain_id="k")
    for n in range(2):
        await service.request(f"probing-{n}", chain_id="probing")
    scorer = Unending()
    worker = a_worker(service, scorer, limits_that_know(service, ONE_PROBES, monkeypatch))

    assert [await worker.claim(1) for _ in range(3)] == [1, 1, 1]
    await asyncio.sleep(0)

    assert scorer.begun == ["probing-0", "other-0", "other-1"]


async def test_a_worker_runs_one_suspect_at_a_time(service: Service) -> None:
    """If the worker ends, no other suspect was in it that could be taken for the cause."""
    for n in range(6):
        await service.request(f"session-{n}")
    are_suspects = "UPDATE session_scores SET losses = 2 WHERE session_id < 'session-3'"
    await service.database.once(lambda c: c.execute(are_suspects))
    scorer = Unending()
    worker = a_worker(service, scorer)

    assert [await worker.claim(16), await worker.claim(16)] == [4, 0]
    await asyncio.sleep(0)
    assert sorted(scorer.begun)[1:] == ["session-3", "session-4", "session-5"]

    scorer.may_end.set()

    assert await wait_until(lambda: worker.claim(16), 30, "the next suspect is claimed") == 1


@pytest.mark.parametrize(
    ("answers", "outcome"),
    [
        pytest.param((ANALYSIS, MISSING_TOOLS), "completed", id="completed"),
        pytest.param((JudgeRejectedRequest("400"),), "failed", id="failed"),
        pytest.param((JudgeUnavailable("away"),), "put_back", id="tried-again"),
        pytest.param((ZeroDivisionError(),), "put_back", id="broken"),
    ],
)
async def test_an_end_that_awaits_its_reply_is_no_lost_lease(
    service: Service, monkeypatch: pytest.MonkeyPatch, answers: tuple[Answer, ...], outcome: str
) -> None:
    """A heartbeat may find the score without a lease before the attempt learns that its end is stored."""
    await service.request()
    scorer = service.scorer({"default": FakeJudge(*answers)})
    worker = a_worker(service, scorer)
    once, is_stored, may_hear = service.database.once, asyncio.Event(), asyncio.Event()

    async def hear_late(work: Callable[[Connection], Awaitable[Any]]) -> Any:
        result = await once(work)
        held = "SELECT count(*) FROM session_scores WHERE status = 'in_progress'"
        if not is_stored.is_set() and await once(lambda c: c.fetchval(held)) == 0:
            is_stored.set()
            await may_hear.wait()
        return result

    with capture_logs() as lines:
        assert await worker.claim(1) == 1
        monkeypatch.setattr(service.database, "once", hear_late)
        await asyncio.wait_for(is_stored.wait(), 30)
        await worker.keep_leases()
        await asyncio.sleep(0)
        may_hear.set()
        await wait_until(lambda: [x for x in lines if x["event"] == "attempt.finished"], 30, "the attempt's line")

    assert [x["outcome"] for x in lines if x["event"] == "attempt.finished"] == [outcome]


async def test_a_loop_that_fails_ends_the_draining(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts would outlive their leases: they are put back at once, and the error is raised."""
    await service.request()
    scorer, stopping, limits = Unending(), asyncio.Event(), Limits(service.database, service.settings)
    worker = a_worker(service, scorer, limits, drain_timeout_s=3600)

    async def die() -> None:
        raise ZeroDivisionError("unforeseen")

    with capture_logs() as lines:
        running = asyncio.create_task(worker.run(stopping))
        await wait_until(lambda: scorer.begun, 30, "an attempt")
        stopping.set()
        await wait_until(lambda: [x for x in lines if x["event"] == "worker.draining"], 30, "the drain")
        monkeypatch.setattr(limits, "refresh", die)
        with pytest.raises(ZeroDivisionError):
            await asyncio.wait_for(running, 30)

    [score] = await service.database.once(lambda c: c.fetch("SELECT status, attempts_burned FROM session_scores"))
    assert tuple(score) == ("pending", 0)


@pytest.mark.parametrize("runs", [3, 0], ids=["it-judges", "it-is-idle"])
async def test_a_worker_takes_nothing_back_soon_after_an_outage(
    database_url: str, monkeypatch: pytest.MonkeyPatch, runs: int
) -> None:
    """Leases expired in the outage, its own among them, although every worker lives and is about to renew."""
    lease_s, now = 60.0, SimpleNamespace(s=0.0)
    monkeypatch.setattr(worker_module, "time", SimpleNamespace(monotonic=lambda: now.s))
    monkeypatch.setattr(database_module, "CONTACT_S", 0.5)
    async with DatabaseProxy(database_url) as proxy, open_service(proxy.url) as service, connected(database_url) as own:

        async def held_by(worker: Worker) -> int:
            return int(await own.fetchval("SELECT count(*) FROM session_scores WHERE lease_owner = $1", worker.owner))

        async def pass_time(seconds: float) -> None:
            now.s += seconds
            await own.execute(
                "UPDATE session_scores SET lease_expires_at = lease_expires_at - make_interval(secs => $1)", seconds
            )

        for n in range(6):
            await service.request(f"session-{n}")
        other, worker = (a_worker(service, Unending(), lease_s=lease_s) for _ in range(2))
        assert await other.claim(6 - runs) + await worker.claim(6) == 6
        for _ in range(4):
            await other.keep_leases()
            await worker.keep_leases()
            await pass_time(lease_s / 3)

        proxy.fall_silent()
        with pytest.raises(DatabaseAway):
            await worker.keep_leases()
        await pass_time(2 * lease_s)
        proxy.speak_again()
        await worker.take_back_expired()
        await worker.keep_leases()
        await worker.take_back_expired()

        assert [await held_by(other), await held_by(worker)] == [6 - runs, runs]

        for _ in range(3):  # the other worker does not come back
            await pass_time(lease_s / 3)
            await worker.keep_leases()
        await worker.take_back_expired()

        assert [await held_by(other), await held_by(worker)] == [0, runs]


async def test_an_attempt_that_ends_in_a_full_worker_leads_to_a_claim(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "POLL_S", 600)
    scorer, stopping = Unending(), asyncio.Event()
    for n in range(2):
        await service.request(f"session-{n}")
    running = asyncio.create_task(a_worker(service, scorer, slots=1).run(stopping))
    await wait_until(lambda: len(scorer.begun) == 1, 30, "the first score is claimed")

    scorer.may_end.set()

    await wait_until(lambda: len(scorer.begun) == 2, 30, "the second score is claimed")
    stopping.set()
    service.database.notify_locally("scores")
    await running
