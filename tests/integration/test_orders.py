"""Orders: judgements for other purposes, stored once, claimed like any score, never the session's score."""

import asyncio
import uuid
from typing import Any
from uuid import UUID

import pytest

from builders import (
    DEFAULT_CRITERIA,
    HASHES,
    OTHER_CRITERIA,
    Scoring,
    completion,
    failure,
    open_scoring,
    rescore,
    session_completed,
)
from tarsy_scoring.postgres.database import DatabaseAway
from tarsy_scoring.queue.admission import Priority
from tarsy_scoring.queue.claims import ClaimedScore
from tarsy_scoring.queue.inbox import Order
from tarsy_scoring.studies.commands.judging import OrderedJudgement, wait_for

RUN = uuid.UUID("6d1f6f0e-7f0e-4c53-8d0b-0d2f6a2f7a11")
THREE = [Order("session-1", "consistency", DEFAULT_CRITERIA, n) for n in (1, 2, 3)]


async def order(scoring: Scoring, *orders: Order, run: UUID = RUN) -> list[UUID]:
    found = await scoring.inbox.order(run, orders, requested_by="alice")
    return [found[o] for o in orders]


async def claim_ordered(scoring: Scoring, *orders: Order) -> list[ClaimedScore]:
    ids = await order(scoring, *orders)
    return [c for c in await scoring.claim() if c.score_id in ids]


async def test_orders_are_pending_scores_with_their_purpose(scoring: Scoring) -> None:
    ids = await order(scoring, *THREE, Order("session-2", "shadow", OTHER_CRITERIA))

    rows = await scoring.rows("SELECT * FROM session_scores")
    assert {r["score_id"] for r in rows} == set(ids)
    assert sorted((r["session_id"], r["purpose"], r["criteria"], r["criteria_hash"]) for r in rows) == [
        *[("session-1", "consistency", DEFAULT_CRITERIA, HASHES[DEFAULT_CRITERIA])] * 3,
        ("session-2", "shadow", OTHER_CRITERIA, HASHES[OTHER_CRITERIA]),
    ]
    assert {(r["status"], r["priority"], r["score_triggered_by"]) for r in rows} == {
        ("pending", Priority.PEOPLE, "alice")
    }
    assert [await scoring.events(i) for i in ids] == [["queued"]] * 4
    requests = await scoring.inbox.requests_of_event(str(RUN))
    assert {(r["disposition"], r["score_id"]) for r in requests} == {("accepted", i) for i in ids}


async def test_an_order_of_a_run_is_stored_once(scoring: Scoring) -> None:
    async with open_scoring(scoring.url, pool_size=8) as busy:
        first, *repeats = await asyncio.gather(*(order(busy, *THREE) for _ in range(8)))
    assert all(again == first for again in repeats)
    [ended, *_] = await scoring.claim(1)
    await scoring.store.end(completion(ended))

    assert await order(scoring, *THREE) == first
    assert await scoring.value("SELECT count(*) FROM session_scores") == 3
    others = [
        await order(scoring, Order("session-1", "consistency", DEFAULT_CRITERIA, 4)),
        await order(scoring, Order("session-1", "consistency", OTHER_CRITERIA, 1)),
        await order(scoring, Order("session-1", "consistency", None, 1)),
        await order(scoring, Order("session-1", "shadow", DEFAULT_CRITERIA, 1)),
        await order(scoring, Order("session-2", "consistency", DEFAULT_CRITERIA, 1)),
        await order(scoring, THREE[0], run=uuid.uuid4()),
    ]
    assert len({*first, *(i for [i] in others)}) == 9


async def test_erased_orders_are_not_recreated(scoring: Scoring) -> None:
    await order(scoring, *THREE)
    await scoring.rows("DELETE FROM session_scores")

    assert await scoring.inbox.order(RUN, THREE, requested_by="alice") == {}
    assert await scoring.value("SELECT count(*) FROM session_scores") == 0


# --- beside the score of the session -------------------------------------------------------------------


PURPOSES: tuple[Any, ...] = ("consistency", "anchor", "shadow")


async def test_a_completed_order_is_not_the_score_of_its_session(scoring: Scoring) -> None:
    for claimed in await claim_ordered(scoring, *(Order("session-1", p, DEFAULT_CRITERIA) for p in PURPOSES)):
        await scoring.store.end(completion(claimed))

    assert await scoring.reader.scored_sessions(None, None) == []
    assert await scoring.accept(session_completed()) == ["accepted"]


async def test_a_failed_order_is_no_failure_of_its_session(scoring: Scoring) -> None:
    await scoring.store.end(failure(await scoring.claimed("failed")))
    await scoring.store.end(completion(await scoring.claimed("scored")))
    for session in ("failed", "scored", "new"):
        for end, criteria in ((failure, OTHER_CRITERIA), (completion, None)):
            [claimed] = await claim_ordered(scoring, Order(session, "shadow", criteria))
            await scoring.store.end(end(claimed))

    assert await scoring.reader.failed_sessions(None, None, None) == ["failed"]


async def test_the_end_of_an_order_promotes_nothing(scoring: Scoring) -> None:
    """Only the end of the session's own score promotes its deferred request."""
    own = await scoring.claimed()
    await scoring.accept(waiting := rescore(criteria=OTHER_CRITERIA))
    first, second, third, lost = await claim_ordered(scoring, *THREE, Order("session-1", "shadow"))

    await scoring.store.end(completion(first))
    await scoring.store.end(failure(second))
    assert await scoring.leases.cancel(third.score_id, "bob")
    await scoring.lapse(lost)
    assert await scoring.take_back(max_attempts=1) == {"session-1": "failed"}

    assert (await scoring.dispositions())[waiting.request_id] == "deferred"
    await scoring.store.end(completion(own))
    assert (await scoring.dispositions())[waiting.request_id] == "accepted"


# --- following -----------------------------------------------------------------------------------------


async def wait(scoring: Scoring, *ids: UUID, timeout_s: float = 0) -> dict[UUID, OrderedJudgement]:
    return await wait_for(scoring.reader, ids, timeout_s)


async def test_judgements_are_followed_to_their_end(scoring: Scoring, capsys: pytest.CaptureFixture[str]) -> None:
    completed, failed = await claim_ordered(scoring, *THREE[:2])
    waiting = asyncio.create_task(wait(scoring, completed.score_id, failed.score_id, timeout_s=60))
    await scoring.store.end(completion(completed))
    await scoring.store.end(failure(failed))

    found = await asyncio.wait_for(waiting, 30)

    assert (found[completed.score_id].total_score, found[completed.score_id].band) == (67, "50-74")
    assert (found[failed.score_id].total_score, found[failed.score_id].error_kind) == (None, "refused")
    assert capsys.readouterr().err == ""


async def test_bands_are_those_of_the_criteria_as_they_judged(scoring: Scoring) -> None:
    content = {"bands": {"right": [60, 100], "wrong": [0, 59]}}
    await scoring.store.keep_criteria(HASHES[DEFAULT_CRITERIA], DEFAULT_CRITERIA, content)
    [claimed] = await claim_ordered(scoring, THREE[0])
    await scoring.store.end(completion(claimed))

    assert (await wait(scoring, claimed.score_id))[claimed.score_id].band == "right"


async def test_a_waiting_command_says_why_no_judgement_begins(
    scoring: Scoring, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only before the first claim."""
    ids = await order(scoring, *THREE[:2])

    assert all(j.is_outstanding for j in (await wait(scoring, *ids)).values())
    assert "no worker is free" in capsys.readouterr().err

    await scoring.claim(1)
    await wait(scoring, *ids)
    assert capsys.readouterr().err == ""


async def test_a_database_that_is_away_is_waited_for(scoring: Scoring, monkeypatch: pytest.MonkeyPatch) -> None:
    [claimed] = await claim_ordered(scoring, THREE[0])
    await scoring.store.end(completion(claimed))
    once, faults = scoring.database.once, [DatabaseAway("restarting")] * 2

    async def sometimes(work: Any) -> Any:
        if faults:
            raise faults.pop()
        return await once(work)

    monkeypatch.setattr(scoring.database, "once", sometimes)
    with pytest.raises(DatabaseAway):
        await wait(scoring, claimed.score_id)

    assert (await wait(scoring, claimed.score_id, timeout_s=60))[claimed.score_id].total_score == 67
    assert not faults
