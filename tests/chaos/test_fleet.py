"""A fleet under load while processes and servers are taken from it: nothing lost, doubled, stuck or late."""

import random
from datetime import datetime

import pytest

from infrastructure import wait_until
from processes import Service, assert_whole
from tarsy_scoring_lab.scripted_judge import Fault

# What a busy machine may add to a time that the service promises; leases are longer than that.
SCHEDULING_S = 10.0


@pytest.mark.slow
async def test_two_thousand_requests_survive_ten_kills(service: Service) -> None:
    chance = random.Random(20260105)
    ids = service.add_sessions(2_000)
    arriving = ids + chance.sample(ids, 200)
    chance.shuffle(arriving)
    service.judge.latency_s = 0.2
    options = {"SCORING_SLOTS": "24", "SCORING_MAX_ATTEMPTS": "12", "SCORING_LOG_LEVEL": "warning"}
    options |= {"SCORING_LEASE_S": "10"}  # calls are counted: a machine that stands still must not cost any
    workers = [service.worker(**options) for _ in range(3)]
    events = set(await service.announce(*arriving))
    for killed in range(1, 11):
        await service.scores_reach(min(1_800, 150 * killed), "completed_at IS NOT NULL", timeout_s=60)
        victim = workers.pop(chance.randrange(len(workers)))
        await victim.kill()
        workers.append(service.worker(**options))
    await service.all_end(2_000, timeout_s=120)

    async def all_arrived() -> bool:
        return int(await service.value("SELECT sum(arrivals) FROM scoring_requests")) >= 2_200

    await wait_until(all_arrived, 60, "the repeats have arrived, too")
    await assert_whole(service, events)
    assert await service.count("true") == 2_000
    assert service.judge.calls <= 4_000 + 10 * 24, "a kill costs at most one call per slot"


@pytest.mark.slow
async def test_work_is_taken_over_at_once_and_orphans_after_their_lease(service: Service) -> None:
    """New work within 2 s, held scores within 1.3 lease times."""
    lease_s = 15.0
    service.judge.script(Fault(kind="hang", times=4))
    events = await service.announce(*service.add_sessions(12))
    doomed = service.worker(SCORING_LEASE_S=str(lease_s), SCORING_SLOTS="4")
    await service.scores_reach(12, "true")
    await service.asked(4)
    await doomed.kill()
    lapsed_at: datetime = await service.value("SELECT max(lease_expires_at) FROM session_scores")
    worker = service.worker(SCORING_LEASE_S=str(lease_s))
    started_at = datetime.fromisoformat((await worker.says("worker.started"))["timestamp"])
    await service.all_end(12)
    await assert_whole(service, events)
    claims = await service.rows("SELECT attempt, attempt_started_at AS at FROM session_scores ORDER BY at")
    orphans = [claim["at"] for claim in claims if claim["attempt"] == 2]
    assert (claims[0]["at"] - started_at).total_seconds() < 2 + SCHEDULING_S
    assert len(orphans) == 4
    assert (max(orphans) - max(lapsed_at, started_at)).total_seconds() < 0.3 * lease_s + SCHEDULING_S
