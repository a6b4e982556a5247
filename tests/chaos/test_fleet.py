"""A fleet under load while workers are killed: no request is lost, scored twice, stuck or late."""

import random

import pytest

from infrastructure import wait_until
from processes import Service, assert_whole


@pytest.mark.slow
async def test_two_thousand_requests_survive_ten_kills(service: Service) -> None:
    """Repeats are recognised, and a kill costs at most one call per slot."""
    chance = random.Random(20260105)
    ids = service.add_sessions(2_000)
    arriving = ids + chance.sample(ids, 200)
    chance.shuffle(arriving)
    service.judge.latency_s = 0.2
    options = {"SCORING_SLOTS": "24", "SCORING_MAX_ATTEMPTS": "12", "SCORING_LOG_LEVEL": "warning"}
    options |= {"SCORING_LEASE_S": "10"}  # calls are counted: a pause of the machine must not cost any
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
