"""Requests on their way to becoming scores: stored once, whatever is repeated, in whatever order and company."""

import asyncio
import random
import uuid
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime, timezone
from typing import Any

import pytest

from builders import (
    DEFAULT_CRITERIA,
    HASHES,
    OTHER_CRITERIA,
    Scoring,
    completion,
    connected,
    open_scoring,
    policy,
    rescore,
    session_completed,
)
from infrastructure import wait_until
from tarsy_scoring.postgres.database import Database
from tarsy_scoring.queue.admission import Priority, Request
from tarsy_scoring.queue.inbox import NotStorable


async def test_a_new_request_is_a_pending_score(scoring: Scoring) -> None:
    """Accepting stores the request, its score and the event `queued` together."""
    request = rescore(reason="the prompt changed", chain_id="kubernetes", event_id="event-1")

    assert await scoring.accept(request) == ["accepted"]

    [score] = await scoring.rows("SELECT * FROM session_scores")
    [stored] = await scoring.inbox.requests_of_event("event-1")
    assert (score["status"], score["priority"], score["score_triggered_by"]) == ("pending", Priority.PEOPLE, "alice")
    assert (score["criteria"], score["criteria_hash"]) == (DEFAULT_CRITERIA, HASHES[DEFAULT_CRITERIA])
    assert (stored["score_id"], stored["disposition"]) == (score["score_id"], "accepted")
    assert (stored["reason"], stored["force"], stored["arrivals"]) == ("the prompt changed", True, 1)
    assert await scoring.events(score["score_id"]) == ["queued"]


async def test_the_same_request_again(scoring: Scoring) -> None:
    """A repeat changes nothing but the number of arrivals, also after the score has ended."""
    request = session_completed()

    assert await scoring.accept(request) == ["accepted"]
    assert await scoring.accept(request) == [None]
    [claimed] = await scoring.claim()
    await scoring.store.end(completion(claimed))
    assert await scoring.accept(request, request) == [None, None]

    assert await scoring.rows("SELECT arrivals, disposition FROM scoring_requests") == [
        {"arrivals": 4, "disposition": "accepted"}
    ]
    assert await scoring.value("SELECT count(*) FROM session_scores") == 1


async def test_the_same_request_twice_in_one_batch(scoring: Scoring) -> None:
    """One row that counts both arrivals, and one score."""
    request, other = session_completed("session-1"), session_completed("session-2")

    await scoring.accept(request, other, request)

    arrivals = await scoring.rows("SELECT session_id, arrivals FROM scoring_requests ORDER BY session_id")
    assert [r["arrivals"] for r in arrivals] == [2, 1]
    assert await scoring.value("SELECT count(*) FROM session_scores") == 2


async def test_the_same_request_over_32_connections_at_once(scoring: Scoring) -> None:
    """Whoever comes first makes the score; all are counted, and one of them is told that it was new."""
    request = session_completed()

    async with open_scoring(scoring.url, pool_size=32) as busy:
        answers = await asyncio.gather(*(busy.accept(request) for _ in range(32)))

    assert sorted(answers, key=str) == [["accepted"]] + [[None]] * 31
    assert await scoring.value("SELECT arrivals FROM scoring_requests") == 32
    assert await scoring.events() == ["queued"]


async def test_different_requests_for_one_session_over_16_connections(scoring: Scoring) -> None:
    """The lock on the session lets one of them make the score; the others are answered by it."""
    async with open_scoring(scoring.url, pool_size=16) as busy:
        answers = await asyncio.gather(*(busy.accept(session_completed()) for _ in range(16)))

    assert sorted(answers) == [["accepted"]] + [["in_progress"]] * 15
    [score_id] = [r["score_id"] for r in await scoring.rows("SELECT score_id FROM session_scores")]
    said = await scoring.rows("SELECT DISTINCT score_id FROM scoring_requests")
    assert said == [{"score_id": score_id}]


async def test_batches_in_opposite_orders(scoring: Scoring) -> None:
    """Overlapping batches in every order, half of them repeats, all come through, and nothing is doubled."""
    requests = [rescore(f"session-{n:02}") for n in range(40)]
    shuffled = random.Random(5)
    batches = [requests, requests[::-1], *(shuffled.sample(requests, 40) for _ in range(6))]

    async with AsyncExitStack() as stack:
        processes = [await stack.enter_async_context(open_scoring(scoring.url, pool_size=1)) for _ in batches]
        async with asyncio.timeout(30):
            await asyncio.gather(*(p.accept(*batch) for p, batch in zip(processes, batches, strict=True)))

    assert await scoring.rows("SELECT DISTINCT arrivals FROM scoring_requests") == [{"arrivals": len(batches)}]
    assert await scoring.value("SELECT count(*) FROM session_scores") == 40
    assert await scoring.events() == ["queued"] * 40


async def test_sessions_are_locked_in_one_order(scoring: Scoring) -> None:
    """While the first session of a batch is held by somebody else, the batch holds none of the later ones."""
    await scoring.accept(rescore("session-a"), rescore("session-b"))
    async with connected(scoring.url) as somebody:
        held = somebody.transaction()
        await held.start()
        await somebody.execute("SELECT FROM sessions WHERE session_id = 'session-a' FOR UPDATE")

        waiting = asyncio.create_task(scoring.accept(rescore("session-b"), rescore("session-a")))
        await _until_somebody_waits_for_a_lock(scoring)
        await somebody.execute("SELECT FROM sessions WHERE session_id = 'session-b' FOR UPDATE NOWAIT")

        await held.rollback()
        assert await asyncio.wait_for(waiting, 30) == ["in_progress", "in_progress"]


async def test_what_events_say_of_a_session_adds_up(scoring: Scoring) -> None:
    """A later word replaces an earlier one, silence replaces nothing, labels are merged by key."""
    ended = datetime(2025, 3, 1, 12, tzinfo=UTC)
    await scoring.accept(
        session_completed(alert_type="disk-full", labels={"guidance": "v1", "team": "a"}, completed_at=ended)
    )
    await scoring.accept(
        rescore(),
        session_completed(chain_id=None, session_status="failed", labels={"guidance": "v2"}),
        session_completed(chain_id="cli", labels={"run": "7"}),
    )

    [session] = await scoring.rows("SELECT * FROM sessions")
    assert (session["chain_id"], session["alert_type"], session["completed_at"]) == ("cli", "disk-full", ended)
    assert session["labels"] == {"guidance": "v2", "team": "a", "run": "7"}


async def test_a_rescore_uses_the_stored_chain(scoring: Scoring) -> None:
    """A request that names no chain has the session's, and criteria are bound from it."""
    async with open_scoring(scoring.url, policy(cli={"criteria": OTHER_CRITERIA, "enabled": False})) as ours:
        assert await ours.accept(session_completed(chain_id="cli")) == ["disabled"]
        assert await ours.accept(rescore()) == ["accepted"]

    [score] = await scoring.rows("SELECT chain_id, criteria FROM session_scores")
    assert score == {"chain_id": "cli", "criteria": OTHER_CRITERIA}


@pytest.mark.parametrize(
    "poison",
    [
        pytest.param({"labels": {"guidance": "a\0b"}}, id="nul-in-a-label"),
        pytest.param({"alert_type": "a\0b"}, id="nul-in-a-text"),
        pytest.param({"reason": "\ud800"}, id="half-a-surrogate-pair"),
        pytest.param({"labels": {"\ud800": "x"}}, id="half-a-surrogate-pair-in-a-key"),
        pytest.param({"completed_at": datetime.min.replace(tzinfo=timezone.max)}, id="before-the-calendar"),
    ],
)
async def test_what_no_database_takes(scoring: Scoring, poison: dict[str, Any]) -> None:
    """A request that cannot be stored is refused with its batch, and never waited for; the rest can go alone."""
    good, bad = session_completed("session-1"), session_completed("session-2", **poison)

    with pytest.raises(NotStorable) as refused:
        await asyncio.wait_for(scoring.accept(good, bad), 30)

    assert "a\0b" not in str(refused.value)
    assert await scoring.value("SELECT count(*) FROM sessions") == 0
    assert await scoring.accept(good) == ["accepted"]


async def test_every_disposition_can_be_looked_up_by_event_id(scoring: Scoring) -> None:
    """What became of a request is told under its event id, with the score that answers it, repeats not doubled."""
    of = policy(off={"enabled": False}, none={"sample_rate": 0.0})
    async with open_scoring(scoring.url, of) as ours:
        expected = {
            "accepted": session_completed("s-1"),
            "in_progress": session_completed("s-1"),
            "superseded": rescore("s-1", criteria=OTHER_CRITERIA, event_id="older"),
            "deferred": rescore("s-1", criteria=OTHER_CRITERIA, event_id="newer"),
            "disabled": session_completed("s-2", chain_id="off"),
            "sampled_out": session_completed("s-2", chain_id="none"),
            "status_not_scored": session_completed("s-2", session_status="failed"),
            "stale": session_completed("s-2", is_stale=True),
        }
        await ours.accept(*expected.values())
        found = {d: await ours.inbox.requests_of_event(r.event_id or "") for d, r in expected.items()}

    assert {d: [r["disposition"] for r in rows] for d, rows in found.items()} == {d: [d] for d in expected}
    score_id = await scoring.value("SELECT score_id FROM session_scores")
    with_score = {d for d, [row] in found.items() if row["score_id"] == score_id}
    assert with_score == {"accepted", "in_progress"}
    assert await scoring.inbox.requests_of_event("nobody-sent-this") == []


async def test_a_session_scored_under_current_criteria_is_not_scored_again(scoring: Scoring) -> None:
    """A later `session-completed` names the newest completed score; new criteria make it count for nothing."""
    scores = []
    for _ in range(2):
        claimed = await scoring.claimed()
        await scoring.store.end(completion(claimed))
        scores.append(claimed.score_id)
    await scoring.accept(later := session_completed(chain_id=None))
    async with open_scoring(scoring.url, policy(hashes={DEFAULT_CRITERIA: "edited"})) as edited:
        assert await edited.accept(session_completed(chain_id=None)) == ["accepted"]

    [answer] = await scoring.inbox.requests_of_event(later.event_id or "")
    assert (answer["disposition"], answer["score_id"]) == ("already_scored", scores[-1])


async def test_a_newer_deferred_request_supersedes_the_older(scoring: Scoring) -> None:
    """Across batches and within one there is one deferred request per session: the newest."""
    await scoring.accept(session_completed())
    wishes = [rescore(criteria=OTHER_CRITERIA) for _ in range(4)]

    answers = [
        *await scoring.accept(wishes[0]),
        *await scoring.accept(wishes[1]),
        *await scoring.accept(wishes[2], wishes[3]),
    ]

    assert answers == ["deferred", "deferred", "superseded", "deferred"]
    dispositions = await scoring.dispositions()
    assert [dispositions[w.request_id] for w in wishes] == ["superseded", "superseded", "superseded", "deferred"]


async def test_a_superseded_request_that_comes_again_stays_superseded(scoring: Scoring) -> None:
    """A redelivery does not bring an older wish back."""
    await scoring.accept(session_completed())
    older, newer = (rescore(criteria=OTHER_CRITERIA) for _ in range(2))
    await scoring.accept(older)
    await scoring.accept(newer)

    assert await scoring.accept(older) == [None]
    dispositions = await scoring.dispositions()
    assert (dispositions[older.request_id], dispositions[newer.request_id]) == ("superseded", "deferred")


@pytest.mark.parametrize(
    ("waiting", "asked", "becomes"),
    [
        pytest.param(
            rescore(priority=Priority.BULK),
            replace(rescore(), source="cli"),
            Priority.PEOPLE,
            id="command-for-one-of-a-selection",
        ),
        pytest.param(rescore(priority=Priority.BULK), rescore(), Priority.PEOPLE, id="event-for-one-of-a-selection"),
        pytest.param(session_completed(), rescore(), Priority.PEOPLE, id="person-for-an-automatic-one"),
        pytest.param(rescore(priority=Priority.BULK), session_completed(), Priority.AUTOMATIC, id="end-of-the-session"),
        pytest.param(rescore(), rescore(priority=Priority.BULK), Priority.PEOPLE, id="selection-of-what-is-asked-for"),
        pytest.param(session_completed(), rescore(priority=Priority.BULK), Priority.AUTOMATIC, id="selection-of-due"),
    ],
)
async def test_the_most_urgent_wish_for_a_pending_score_counts(
    scoring: Scoring, waiting: Request, asked: Request, becomes: Priority
) -> None:
    """Whoever asks for what is pending moves it ahead, never back; nothing is announced anew."""
    waiting, asked = (replace(r, request_id=uuid.uuid4(), chain_id="kubernetes") for r in (waiting, asked))
    await scoring.accept(waiting, rescore("session-2", priority=Priority.BULK))

    assert await scoring.accept(asked) == ["in_progress"]

    stored = await scoring.rows("SELECT session_id, priority FROM session_scores ORDER BY session_id")
    assert stored == [
        {"session_id": "session-1", "priority": becomes},
        {"session_id": "session-2", "priority": Priority.BULK},
    ]
    assert await scoring.events() == ["queued"] * 2


async def test_what_people_ask_for_is_claimed_before_the_rest_of_the_selection(scoring: Scoring) -> None:
    """The last of a selection goes first when somebody names it."""
    await scoring.accept(*(rescore(f"session-{n}", priority=Priority.BULK) for n in range(5)))

    await scoring.accept(rescore("session-4"))

    [claimed] = await scoring.claim(1)
    assert (claimed.session_id, claimed.priority) == ("session-4", Priority.PEOPLE)


async def test_the_most_urgent_wish_of_a_batch_counts(scoring: Scoring) -> None:
    """Also where the score was made by the same batch, whatever comes first in it."""
    wishes = [rescore(priority=p) for p in (Priority.BULK, Priority.PEOPLE, Priority.AUTOMATIC)]

    assert await scoring.accept(*wishes) == ["accepted", "in_progress", "in_progress"]

    assert await scoring.rows("SELECT priority FROM session_scores") == [{"priority": Priority.PEOPLE}]


@pytest.mark.parametrize("again", [False, True], ids=["running", "put-back-since"])
async def test_a_score_that_runs_is_left_alone(scoring: Scoring, again: bool) -> None:
    """What is claimed keeps its priority; a wish that comes while it is pending again moves it."""
    await scoring.accept(rescore(priority=Priority.BULK))
    [claimed] = await scoring.claim()
    if again:
        await scoring.leases.put_back(
            claimed, due_s=60, waiting_reason="retry", burns=True, spent_s=0, error_kind="internal", error_message="x"
        )

    assert await scoring.accept(rescore()) == ["in_progress"]

    expected = Priority.PEOPLE if again else Priority.BULK
    assert await scoring.value("SELECT priority FROM session_scores") == expected


async def test_a_repeated_wish_moves_nothing(scoring: Scoring) -> None:
    """Redelivery of what was answered earlier changes its arrivals alone."""
    wish = rescore()
    await scoring.accept(rescore(priority=Priority.BULK), wish)
    await scoring.rows("UPDATE session_scores SET priority = 2")

    assert await scoring.accept(wish) == [None]

    assert await scoring.value("SELECT priority FROM session_scores") == Priority.BULK


async def test_wishes_and_claims_at_the_same_time(scoring: Scoring) -> None:
    """Moving scores ahead while workers claim them neither deadlocks nor touches what they have claimed."""
    sessions = [f"session-{n:02}" for n in range(60)]
    await scoring.accept(*(rescore(s, priority=Priority.BULK) for s in sessions))
    shuffled = random.Random(7)
    wishes = [[rescore(s) for s in shuffled.sample(sessions, 30)] for _ in range(8)]

    async with open_scoring(scoring.url, pool_size=16) as busy, asyncio.timeout(30):
        accepted, claims = await asyncio.gather(
            asyncio.gather(*(busy.accept(*batch) for batch in wishes)),
            asyncio.gather(*(busy.claim(5) for _ in range(8))),
        )

    assert {answer for batch in accepted for answer in batch} == {"in_progress"}
    ahead = {r.session_id for batch in wishes for r in batch}
    pending = await scoring.rows("SELECT session_id, priority FROM session_scores WHERE status = 'pending'")
    assert {r["session_id"] for r in pending if r["priority"] == Priority.PEOPLE} == ahead & {
        r["session_id"] for r in pending
    }
    running = await scoring.rows("SELECT session_id, priority FROM session_scores WHERE status = 'in_progress'")
    assert {r["session_id"]: r["priority"] for r in running} == {
        c.session_id: c.priority for batch in claims for c in batch
    }


async def test_due_work(scoring: Scoring) -> None:
    """Counted are due pending scores of people and automatic ones, and no further than the limit."""
    await scoring.accept(
        *(session_completed(f"automatic-{n}") for n in range(3)),
        *(rescore(f"asked-{n}") for n in range(3)),
        *(rescore(f"bulk-{n}", priority=Priority.BULK) for n in range(4)),
        rescore("asked-0", criteria=OTHER_CRITERIA),  # deferred
    )
    await scoring.rows("UPDATE session_scores SET next_attempt_at = now() + '1 h' WHERE session_id = 'asked-1'")
    await scoring.claim(1)

    assert await scoring.inbox.count_due(100) == 4
    assert await scoring.inbox.count_due(3) == 3


async def test_a_cancelled_accept_leaves_nothing_half(scoring: Scoring) -> None:
    """A cancel while the batch waits for a lock rolls it back; the same batch can be accepted afterwards."""
    request = session_completed()
    await scoring.accept(session_completed())
    async with connected(scoring.url) as somebody, somebody.transaction():
        await somebody.execute("SELECT FROM sessions FOR UPDATE")
        accepting = asyncio.create_task(scoring.accept(request))
        await _until_somebody_waits_for_a_lock(scoring)
        accepting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await accepting

    assert await scoring.dispositions() != {}
    assert request.request_id not in await scoring.dispositions()
    assert await scoring.accept(request) == ["in_progress"]


async def test_new_scores_ring_in_other_processes(scoring: Scoring) -> None:
    """A request accepted here wakes a worker elsewhere, also in a schema with a name of full length."""
    schema = "s" * 63
    here, there = (Database(scoring.url, schema, pool_size=2) for _ in range(2))
    await here.open()
    await there.open()
    async with asyncio.TaskGroup() as group:
        carriers = [group.create_task(d.exchange_notifications()) for d in (here, there)]
        try:
            async with asyncio.timeout(30):
                heard = group.create_task(there.wait_notified("scores", 600))
                while not heard.done():  # the other side may not listen yet
                    here.notify("scores")
                    await asyncio.wait([heard], timeout=0.05)
        finally:
            for carrier in carriers:
                carrier.cancel()
    await here.close()
    await there.close()


async def _until_somebody_waits_for_a_lock(scoring: Scoring) -> None:
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    await wait_until(lambda: scoring.value(waiting), 30, "a statement that waits for a lock")
