"""
Workers that stop, and a database or broker that goes away; numbers are rows of the crash matrix in `docs/architecture.md`.

The law: each request ends in one completed score, and all events of that score are published.
"""

import asyncio
import signal

import pytest

from infrastructure import Kafka, Postgres, wait_until
from processes import Service, assert_whole
from proxy import DatabaseProxy
from tarsy_scoring.commands.worker import STOP_S
from tarsy_scoring_lab.scripted_judge import Fault

# Longer than a busy machine pauses a process, and short enough to wait for.
LONG_LEASE = {"SCORING_LEASE_S": "10"}


# --- the end of a worker -------------------------------------------------------------------------------


async def test_20_sigterm_lets_running_attempts_finish(service: Service) -> None:
    service.hold()
    events = await service.announce(*service.add_sessions(3))
    worker = service.worker(SCORING_DRAIN_TIMEOUT_S="40", **LONG_LEASE)
    await service.asked(3)
    worker.signal(signal.SIGTERM)
    await worker.says("worker.draining")
    service.judge.clear()
    assert await worker.ended() == 0
    await assert_whole(service, events)
    assert await service.count("attempt = 1 AND attempts_burned = 0") == 3


async def test_20_a_second_sigterm_ends_the_worker_at_once(service: Service) -> None:
    service.judge.script(Fault(kind="hang", times=1))
    events = await service.announce(*service.add_sessions(1))
    worker = service.worker(SCORING_DRAIN_TIMEOUT_S="60", **LONG_LEASE)
    await service.asked(1)
    worker.signal(signal.SIGTERM)
    await worker.says("worker.draining")
    worker.signal(signal.SIGTERM)
    await worker.ended(40)
    await service.let_leases_lapse()
    service.worker()
    await service.all_end(1, without_backoff=True)
    await assert_whole(service, events)


@pytest.mark.slow
async def test_20_a_worker_stops_in_time_while_the_database_does_not_answer(service: Service) -> None:
    """Within the drain and the limit of the other steps together, so a platform that waits as long kills no worker."""
    service.judge.script(Fault(kind="hang", times=2))
    events = await service.announce(*service.add_sessions(2))
    async with DatabaseProxy(service.database_url) as proxy:
        worker = service.worker(SCORING_DATABASE_URL=proxy.url, SCORING_DRAIN_TIMEOUT_S="0.5", **LONG_LEASE)
        await service.asked(2)
        proxy.fall_silent()
        worker.signal(signal.SIGTERM)
        assert await worker.ended(0.5 + STOP_S) == 0
    service.worker(**LONG_LEASE)
    await service.all_end(2, without_backoff=True)
    await assert_whole(service, events)


# --- PostgreSQL and the broker go away -----------------------------------------------------------------


@pytest.mark.slow
async def test_a_database_that_crashes_costs_no_judge_call(service: Service, own_postgres: Postgres) -> None:
    """It restarts at once (row 14); then it is away for longer than the lease (row 15). The judge answers meanwhile."""
    worker = service.worker()
    events = []
    for judged, away_s in ((8, 0.0), (16, 5.0)):
        service.hold()
        events += await service.announce(*service.add_sessions(8, f"away-{away_s:.0f}-s"))
        await service.asked(judged)
        await own_postgres.kill()
        service.judge.clear()
        await asyncio.sleep(away_s)
        await own_postgres.start()
        await service.all_end(judged)
    await assert_whole(service, events)
    assert service.judge.calls == 32
    assert await service.count("attempt = 1 AND attempts_burned = 0") == 16
    assert await worker.stop() == 0


async def test_15_a_network_that_is_cut_for_longer_than_the_lease_costs_no_judge_call(service: Service) -> None:
    """PostgreSQL runs on, so only the workers know of the outage."""
    service.hold()
    events = await service.announce(*service.add_sessions(16))
    async with DatabaseProxy(service.database_url) as proxy:
        worker = service.worker(SCORING_DATABASE_URL=proxy.url, SCORING_LEASE_S="3")
        await service.asked(16)
        proxy.fall_silent()
        await service.scores_reach(16, "lease_expires_at < now() - interval '2 s'")
        proxy.speak_again()
        await service.scores_reach(16, "lease_expires_at > now()")
        service.judge.clear()
        await service.all_end(16)
        await assert_whole(service, events)
        assert service.judge.calls == 32
        assert await service.count("attempt = 1 AND attempts_burned = 0") == 16
        assert await worker.stop() == 0


@pytest.mark.slow
async def test_14_a_worker_can_be_stopped_while_the_database_is_away(service: Service, own_postgres: Postgres) -> None:
    service.judge.script(Fault(kind="hang", times=2))
    events = await service.announce(*service.add_sessions(2))
    worker = service.worker(SCORING_DRAIN_TIMEOUT_S="0.5")
    await service.asked(2)
    await own_postgres.kill()
    more = await service.announce(*service.add_sessions(2, "later"))
    await worker.stop()
    await own_postgres.start()
    service.worker()
    await service.all_end(4)
    await assert_whole(service, events + more)


@pytest.mark.slow
async def test_17_judging_goes_on_while_the_broker_is_down(service: Service, own_kafka: Kafka) -> None:
    if not own_kafka.survives_restart:
        pytest.skip(f"the broker {own_kafka.name} is not ours to restart, or forgets everything when it ends")
    service.judge.latency_s = 0.5
    events = await service.announce(*service.add_sessions(8))
    worker = service.worker(SCORING_SLOTS="4")
    await wait_until(lambda: service.judge.calls >= 4, 60, "some are being judged, some wait")
    await service.scores_reach(8, "true")
    await own_kafka.kill()
    try:
        await service.all_end(8)
    finally:
        await own_kafka.start()
    events += await service.announce(*service.add_sessions(4, "later"))
    await service.all_end(12)
    await assert_whole(service, events)
    assert worker.status is None
