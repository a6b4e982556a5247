"""Requests become scores: each is stored once, whatever is repeated, reordered or concurrent."""

import asyncio
from datetime import UTC, datetime, timezone
from itertools import pairwise
from typing import Any

import asyncpg
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
from tarsy_scoring.queue.admission import Priority
from tarsy_scoring.queue.inbox import NotStorable


async def test_a_new_request_is_a_pending_score(scoring: Scoring) -> None:
    request = rescore(reason="the prompt changed", chain_id="kubernetes", event_id="event-1")

    assert await scoring.accept(request) == ["accepted"]

    [score] = await scoring.rows("SELECT * FROM session_scores")
    [stored] = await scoring.inbox.requests_of_event("event-1")
    assert (score["status"], score["priority"], score["score_triggered_by"]) == ("pending", Priority.PEOPLE, "alice")
    assert (score["criteria"], score["criteria_hash"]) == (DEFAULT_CRITERIA, HASHES[DEFAULT_CRITERIA])
    assert (stored["score_id"], stored["disposition"]) == (score["score_id"], "accepted")
    assert (stored["reason"], stored["force"], stored["arrivals"]) == ("the prompt changed", True, 1)
    assert await scoring.events(score["score_id"]) == ["queued"]


async def test_a_repeated_request_is_stored_once(scoring: Scoring) -> None:
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


async def test_a_request_repeated_concurrently_is_stored_once(scoring: Scoring) -> None:
    request = session_completed()

    async with open_scoring(scoring.url, pool_size=32) as busy:
        answers = await asyncio.gather(*(busy.accept(request) for _ in range(32)))

    assert sorted(answers, key=str) == [["accepted"]] + [[None]] * 31
    assert await scoring.value("SELECT arrivals FROM scoring_requests") == 32
    assert await scoring.events() == ["queued"]


async def test_sessions_are_locked_in_one_order(scoring: Scoring) -> None:
    """A batch that waits for its first session, in the common order, holds no lock on a later one."""
    await scoring.accept(rescore("session-a"), rescore("session-b"))
    async with connected(scoring.url) as somebody:
        held = somebody.transaction()
        await held.start()
        await somebody.execute("SELECT FROM sessions WHERE session_id = 'session-a' FOR UPDATE")

        waiting = asyncio.create_task(scoring.accept(rescore("session-b"), rescore("session-a")))
        await wait_until(scoring.backends_waiting_for_a_lock, 30, "a statement that waits for a lock")
        await somebody.execute("SELECT FROM sessions WHERE session_id = 'session-b' FOR UPDATE NOWAIT")

        await held.rollback()
        assert await asyncio.wait_for(waiting, 30) == ["in_progress", "in_progress"]


async def test_the_facts_of_several_events_are_merged(scoring: Scoring) -> None:
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


async def test_labels_of_a_session_have_one_bound(scoring: Scoring) -> None:
    """However many events name new ones, in one batch or in several. Known labels stay, with their newest values."""
    await scoring.accept(session_completed(labels={"zone": "a"}))
    for first in range(0, 200, 100):
        await scoring.accept(
            *(session_completed(labels={f"label-{n}": "x", "zone": "b"}) for n in range(first, first + 100))
        )
    await scoring.accept(*(session_completed("session-2", labels={f"label-{n}": "x"}) for n in range(100)))

    sessions = await scoring.rows("SELECT labels FROM sessions ORDER BY session_id")
    assert [len(session["labels"]) for session in sessions] == [50, 50]
    assert sessions[0]["labels"]["zone"] == "b"
    with pytest.raises(asyncpg.CheckViolationError):
        await scoring.rows('UPDATE sessions SET labels = labels || \'{"one-more": "x"}\'')


UNSTORABLE: dict[str, dict[str, Any]] = {
    "nul in a label": {"labels": {"guidance": "a\0b"}},
    "nul in a text": {"alert_type": "a\0b"},
    "half a surrogate pair": {"reason": "\ud800"},
    "half a surrogate pair in a key": {"labels": {"\ud800": "x"}},
    "before the calendar": {"completed_at": datetime.min.replace(tzinfo=timezone.max)},
}


async def test_an_unstorable_request_refuses_its_batch(scoring: Scoring) -> None:
    """The batch is refused at once; retrying it would never succeed."""
    good = session_completed("session-1")
    for what, poison in UNSTORABLE.items():
        with pytest.raises(NotStorable) as refused:
            await asyncio.wait_for(scoring.accept(good, session_completed("session-2", **poison)), 30)
        assert "a\0b" not in str(refused.value), what
        assert await scoring.value("SELECT count(*) FROM sessions") == 0, what
    assert await scoring.accept(good) == ["accepted"]


async def test_a_session_scored_under_current_criteria_is_not_scored_again(scoring: Scoring) -> None:
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
    await scoring.accept(session_completed())
    rescores = [rescore(criteria=OTHER_CRITERIA, event_id=f"wish-{n}") for n in range(4)]

    answers = [
        *await scoring.accept(rescores[0]),
        *await scoring.accept(rescores[1]),
        *await scoring.accept(rescores[2], rescores[3]),
    ]

    assert answers == ["deferred", "deferred", "superseded", "deferred"]
    dispositions = await scoring.dispositions()
    assert [dispositions[w.request_id] for w in rescores] == ["superseded", "superseded", "superseded", "deferred"]
    told = await scoring.rows(
        "SELECT payload FROM scoring_events WHERE type = 'scoring.request_superseded' ORDER BY entry"
    )
    by_request = {row["payload"]["request_id"]: row["payload"] for row in told}
    for older, newer in pairwise(rescores):
        event = by_request.pop(str(older.request_id))
        assert (event["superseded_by"], event["request_event_id"]) == (str(newer.request_id), older.event_id)
        assert (event["session_id"], event["attempt"]) == ("session-1", 0)
        [stored] = await scoring.inbox.requests_of_event(older.event_id or "")
        assert stored["superseded_by"] == str(newer.request_id)
    assert by_request == {}
    assert [row["payload"]["sequence"] for row in told] == [2, 3, 4]
    assert await scoring.accept(rescores[0]) == [None], "a redelivery does not bring an older request back"
    assert await scoring.dispositions() == dispositions


async def test_a_pending_score_takes_the_highest_requested_priority(scoring: Scoring) -> None:
    people, automatic, bulk = Priority.PEOPLE, Priority.AUTOMATIC, Priority.BULK
    cases = [
        (rescore("one", priority=bulk), rescore("one"), people),
        (session_completed("two"), rescore("two"), people),
        (rescore("three", priority=bulk), session_completed("three"), automatic),
        (rescore("four"), rescore("four", priority=bulk), people),
        (session_completed("five"), rescore("five", priority=bulk), automatic),
    ]
    await scoring.accept(*(waiting for waiting, _, _ in cases), rescore("beside", priority=bulk))

    assert await scoring.accept(*(asked for _, asked, _ in cases)) == ["in_progress"] * len(cases)

    stored = await scoring.rows("SELECT session_id, priority FROM session_scores")
    expected = {waiting.session_id: priority for waiting, _, priority in cases} | {"beside": bulk}
    assert {r["session_id"]: r["priority"] for r in stored} == expected
    assert await scoring.events() == ["queued"] * len(expected)
