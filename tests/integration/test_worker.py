"""A worker between two awaits: what it has claimed is under way, and what has ended is not lost."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from attempting import Service, open_service
from tarsy_scoring.database import DatabaseAway
from tarsy_scoring.leases import ChainFilter, ClaimedScore
from tarsy_scoring.limits import Limits
from tarsy_scoring.permits import Claimable
from tarsy_scoring.scoring import Finished
from tarsy_scoring.telemetry import Metrics
from tarsy_scoring.worker import Worker

ONE_PROBES = Claimable(["probing"], [], ["probing"], others_blocked=False, others_probing=False)


@pytest.fixture
async def service(database_url: str) -> AsyncIterator[Service]:
    async with open_service(database_url) as opened:
        yield opened


class Unending:
    """Stands where `Scorer` stands: attempts that begin, by session, and end with the test."""

    def __init__(self) -> None:
        self.begun: list[str] = []

    async def attempt(self, claimed: ClaimedScore, **_: Any) -> Finished:
        self.begun.append(claimed.session_id)
        await asyncio.Event().wait()
        raise AssertionError("nobody ends this")


def a_worker(service: Service, scorer: Any, limits: Limits | None = None, **settings: Any) -> Worker:
    changed = service.settings.model_copy(update={"drain_timeout_s": 0} | settings)
    limits = limits or Limits(service.database, changed)
    return Worker(changed, service.leases, service.reader, scorer, Metrics(), limits)


def limits_that_know(service: Service, known: Claimable, monkeypatch: pytest.MonkeyPatch) -> Limits:
    limits = Limits(service.database, service.settings)
    monkeypatch.setattr(limits, "claimable", lambda: known)
    return limits


async def test_what_is_claimed_is_under_way_whatever_the_next_claim_meets(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database that goes away between two claims of one pass costs nothing that is held already."""
    await service.request("one", chain_id="k")
    await service.request("two", chain_id="probing")
    claims: list[ChainFilter] = []
    claim_due = service.leases.claim_due

    async def claim_once(*arguments: Any) -> list[ClaimedScore]:
        claims.append(arguments[-1])
        if len(claims) == 2:
            raise DatabaseAway("just now")
        return await claim_due(*arguments)

    monkeypatch.setattr(service.leases, "claim_due", claim_once)
    scorer = Unending()
    worker = a_worker(service, scorer, limits_that_know(service, ONE_PROBES, monkeypatch))

    with pytest.raises(DatabaseAway):
        await worker.claim(5)
    await asyncio.sleep(0)

    assert len(claims) == 2
    assert len(scorer.begun) == 1


async def test_a_full_queue_does_not_keep_a_provider_from_being_tried(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other chains fill every slot: one score of a chain that waits for a probe goes before them."""
    for n in range(4):
        await service.request(f"other-{n}", chain_id="k")
    for n in range(2):
        await service.request(f"probing-{n}", chain_id="probing")
    scorer = Unending()
    worker = a_worker(service, scorer, limits_that_know(service, ONE_PROBES, monkeypatch))

    assert [await worker.claim(1) for _ in range(3)] == [1, 1, 1]
    await asyncio.sleep(0)

    assert scorer.begun == ["probing-0", "other-0", "other-1"]
