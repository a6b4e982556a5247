"""Which worker holds a score, and for how long: claim, renewal, taking back, putting back."""

import asyncio
import uuid
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest

from builders import DEFAULT_CRITERIA, HASHES, LEASE_S, Scoring, connected, open_scoring, rescore, session_completed
from tarsy_scoring.queue.admission import Priority
from tarsy_scoring.queue.claims import ClaimedScore

# --- claim ---------------------------------------------------------------------------------------------


async def test_a_claim_starts_an_attempt_under_a_lease(scoring: Scoring) -> None:
    await scoring.accept(session_completed(labels={"guidance": "v2"}, alert_type="disk-full"))

    [claimed] = await scoring.claim(lease_s=60)

    row = await scoring.score(claimed.score_id)
    assert (row["status"], row["attempt"], row["attempts_burned"]) == ("in_progress", 1, 0)
    assert row["lease_token"] == claimed.lease_token
    assert row["lease_expires_at"] - row["started_at"] == timedelta(seconds=60)
    assert (claimed.labels, claimed.alert_type, claimed.source) == (
        {"guidance": "v2"},
        "disk-full",
        "session-completed",
    )
    assert (claimed.chain_id, claimed.criteria_hash) == ("kubernetes", HASHES[DEFAULT_CRITERIA])
    assert await scoring.events(claimed.score_id) == ["queued", "started", "gathering_context"]
    assert await scoring.claim() == []


async def test_the_most_urgent_is_claimed_first(scoring: Scoring) -> None:
    bulk = {"priority": Priority.BULK, "requested_by": "backfill"}
    await scoring.accept(rescore("bulk-1", **bulk), session_completed("auto-1"), rescore("asked-1"))
    await scoring.accept(rescore("bulk-2", **bulk), session_completed("auto-2"), rescore("asked-2"))
    await scoring.rows(
        "UPDATE session_scores SET next_attempt_at = next_attempt_at - interval '1 h' WHERE session_id LIKE '%-2'"
    )

    order = [score.session_id for _ in range(6) for score in await scoring.claim(1)]

    assert order == ["asked-2", "asked-1", "auto-2", "auto-1", "bulk-2", "bulk-1"]


async def test_eight_claimers_share_the_work(scoring: Scoring) -> None:
    await scoring.accept(*(session_completed(f"session-{n}") for n in range(200)))

    async def claim_all(worker: Scoring) -> list[uuid.UUID]:
        mine: list[uuid.UUID] = []
        while claimed := await worker.claim(10):
            mine += [c.score_id for c in claimed]
        return mine

    async with AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(open_scoring(scoring.url, pool_size=2)) for _ in range(8)]
        shares = await asyncio.gather(*(claim_all(w) for w in workers))

    everything = [score for share in shares for score in share]
    assert len(everything) == len(set(everything)) == 200
    assert await scoring.rows("SELECT DISTINCT attempt, status FROM session_scores") == [
        {"attempt": 1, "status": "in_progress"}
    ]


# --- lease ---------------------------------------------------------------------------------------------


async def test_an_untracked_claim_lapses(scoring: Scoring) -> None:
    """
    A heartbeat renews exactly the listed leases.

    A claim that was committed after the list was made, or whose reply was lost, is in no list and must lapse.
    Renewing by owner would keep it leased for ever.
    """
    await scoring.accept(session_completed("tracked"), session_completed("untracked"))
    owner = uuid.uuid4()
    tracked = await scoring.leases.claim_due(owner, 1, LEASE_S)
    [untracked] = await scoring.leases.claim_due(owner, 1, LEASE_S)

    assert (await scoring.leases.keep(tracked, 2 * LEASE_S))[0] == {tracked[0].lease_token}
    await _pass_time(scoring, LEASE_S + 1)

    assert await scoring.take_back() == {untracked.session_id: "pending"}
    assert (await scoring.leases.keep(tracked, LEASE_S))[0] == {tracked[0].lease_token}


async def test_a_locked_score_does_not_keep_other_leases_from_being_renewed(scoring: Scoring) -> None:
    """A transaction of another program holds it for longer than the lease. It stays the worker's own."""
    await scoring.accept(*(session_completed(f"session-{n}") for n in range(3)))
    claimed = await scoring.claim()
    await scoring.lapse(*claimed)
    async with connected(scoring.url) as stranger, stranger.transaction():
        await stranger.execute("SELECT FROM session_scores WHERE session_id = 'session-1' FOR UPDATE")

        held, _ = await asyncio.wait_for(scoring.leases.keep(claimed, LEASE_S), 5)

        assert held == {c.lease_token for c in claimed}
        assert await scoring.take_back() == {}
    assert (await scoring.leases.keep(claimed, LEASE_S))[0] == held
    assert await scoring.take_back() == {}


async def test_a_score_taken_back_can_be_claimed_again(scoring: Scoring) -> None:
    first = await scoring.claimed()
    await scoring.lapse(first)

    assert await scoring.take_back() == {"session-1": "pending"}
    row = await scoring.score(first.score_id)
    await scoring.make_due()
    [second] = await scoring.claim()

    assert (row["attempts_burned"], row["waiting_reason"], row["error_kind"]) == (1, "retry", None)
    assert row["waiting_for_text"] == "the worker that held it stopped answering (attempt 1)"
    assert (second.attempt, second.attempts_burned) == (2, 1)
    assert second.lease_token != first.lease_token
    events = await scoring.events(first.score_id)
    assert events[3:] == ["waiting_retry", "started", "gathering_context"]


@pytest.mark.parametrize(
    ("how", "status", "error_kind"),
    [
        pytest.param({"max_attempts": 1}, "failed", "worker_lost", id="no-attempt-left"),
        pytest.param({"deadline_s": 100}, "timed_out", "deadline_passed", id="deadline"),
        pytest.param({"max_attempts": 1, "deadline_s": 100}, "failed", "worker_lost", id="both"),
    ],
)
async def test_a_lost_worker_may_use_up_the_last_attempt_or_the_deadline(
    scoring: Scoring, how: dict[str, Any], status: str, error_kind: str
) -> None:
    claimed = await scoring.claimed()
    await _pass_time(scoring, LEASE_S + 1)

    assert await scoring.take_back(**how) == {"session-1": status}

    row = await scoring.score(claimed.score_id)
    assert (row["status"], row["error_kind"], row["total_score"]) == (status, error_kind, None)
    assert row["spent_s"] == pytest.approx(LEASE_S, abs=1)
    assert row["completed_at"] is not None
    assert (await scoring.events(claimed.score_id))[-1] == "failed"
    assert await scoring.claim() == []


@pytest.mark.parametrize(
    ("attempts_burned", "losses", "max_attempts", "status"),
    [
        pytest.param(0, 0, 5, "pending", id="first-loss"),
        pytest.param(4, 0, 5, "pending", id="last-attempt-of-no-suspect"),
        pytest.param(4, 1, 5, "pending", id="last-attempt-of-a-score-lost-once"),
        pytest.param(2, 2, 5, "pending", id="suspect-with-attempts"),
        pytest.param(4, 2, 5, "failed", id="last-attempt-of-a-suspect"),
        pytest.param(6, 2, 5, "failed", id="more-attempts-than-allowed"),
        pytest.param(1, 0, 2, "pending", id="two-attempts-lost-once"),
        pytest.param(1, 1, 2, "failed", id="two-attempts-lost-twice"),
    ],
)
async def test_a_loss_fails_suspects_only(
    scoring: Scoring, attempts_burned: int, losses: int, max_attempts: int, status: str
) -> None:
    """A worker runs one suspect at a time; any other score was perhaps in the company of the one that ended it."""
    claimed = await scoring.claimed()
    await scoring.rows("UPDATE session_scores SET attempts_burned = $1, losses = $2", attempts_burned, losses)
    await scoring.lapse(claimed)

    assert await scoring.take_back(max_attempts) == {"session-1": status}

    row = await scoring.score(claimed.score_id)
    assert (row["attempts_burned"], row["losses"]) == (attempts_burned + 1, losses + 1)


@pytest.mark.parametrize(("losses", "wait_s"), [(0, 10), (1, 20), (3, 80), (100, 600)])
async def test_scores_lost_together_wait_apart_and_longer_each_time(scoring: Scoring, losses: int, wait_s: int) -> None:
    """Otherwise they would be claimed together again, also the one that ended their worker."""
    await scoring.accept(*(session_completed(f"session-{n}") for n in range(20)))
    await scoring.lapse(*await scoring.claim())
    await scoring.rows("UPDATE session_scores SET losses = $1", losses)
    before = await scoring.value("SELECT now()")

    await scoring.take_back(max_attempts=1000)

    due = [r["next_attempt_at"] for r in await scoring.rows("SELECT next_attempt_at FROM session_scores")]
    waits_s = [(at - before).total_seconds() for at in due]
    assert len(set(due)) == 20
    assert wait_s * 0.8 <= min(waits_s)
    assert min(waits_s) < wait_s < max(waits_s)


async def test_suspects_keep_their_place_in_the_order(scoring: Scoring) -> None:
    """Neither suspects nor others starve."""
    await scoring.accept(*(session_completed(f"session-{n}") for n in range(6)))
    await scoring.rows(
        "UPDATE session_scores SET next_attempt_at = now() - make_interval(hours => 9 - right(session_id, 1)::int), "
        "losses = CASE WHEN session_id IN ('session-1', 'session-2', 'session-4') THEN 2 ELSE 0 END"
    )

    order = [score.session_id for _ in range(6) for score in await scoring.claim(1)]

    assert order == [f"session-{n}" for n in range(6)]


async def test_a_locked_session_does_not_keep_others_from_being_taken_back(scoring: Scoring) -> None:
    """A transaction of another program holds it; its score is taken back later."""
    await scoring.accept(*(session_completed(f"session-{n}") for n in range(3)))
    await scoring.lapse(*await scoring.claim())
    async with connected(scoring.url) as stranger, stranger.transaction():
        await stranger.execute("SELECT FROM sessions WHERE session_id = 'session-1' FOR UPDATE")

        assert await asyncio.wait_for(scoring.take_back(), 10) == {"session-0": "pending", "session-2": "pending"}

    assert await scoring.take_back() == {"session-1": "pending"}


async def test_a_worker_takes_back_no_score_that_it_runs(scoring: Scoring) -> None:
    """It lives, and renews such a lease; the score of a lost worker beside it is taken back."""
    running, lost = await scoring.claimed("session-1"), await scoring.claimed("session-2")
    await scoring.lapse(running, lost)

    [taken] = await scoring.leases.take_back_expired(5, 3600, running={running.lease_token})

    assert taken["session_id"] == "session-2"


async def test_a_lease_renewed_meanwhile_is_not_taken_back(scoring: Scoring, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker renews it between the search for expired leases and the update."""
    claimed = await scoring.claimed()
    await scoring.lapse(claimed)
    lock_sessions = scoring.inbox.lock_sessions

    async def renew_and_lock(*arguments: Any, **how: Any) -> Any:
        assert (await scoring.leases.keep([claimed], LEASE_S))[0] == {claimed.lease_token}
        return await lock_sessions(*arguments, **how)

    monkeypatch.setattr(scoring.inbox, "lock_sessions", renew_and_lock)

    assert await asyncio.wait_for(scoring.take_back(), 30) == {}
    assert (await scoring.score(claimed.score_id))["lease_token"] == claimed.lease_token


async def test_concurrent_workers_take_each_score_back_once(scoring: Scoring) -> None:
    await scoring.accept(*(session_completed(f"session-{n}") for n in range(20)))
    await scoring.lapse(*await scoring.claim())

    taken = await asyncio.gather(*(scoring.take_back() for _ in range(8)))

    assert sum(len(t) for t in taken) == 20
    assert await scoring.rows("SELECT DISTINCT attempts_burned, status FROM session_scores") == [
        {"attempts_burned": 1, "status": "pending"}
    ]
    assert (await scoring.events()).count("waiting_retry") == 20


# --- putting back --------------------------------------------------------------------------------------


@pytest.mark.parametrize("burns", [True, False], ids=["burning-an-attempt", "burning-none"])
async def test_a_score_put_back_is_due_later(scoring: Scoring, burns: bool) -> None:
    claimed = await scoring.claimed()

    await _put_back(scoring, claimed, burns=burns, due_s=100, waiting_reason="quota", waiting_for_text="no money")

    row = await scoring.score(claimed.score_id)
    due_s = await scoring.value("SELECT extract(epoch FROM next_attempt_at - now())::float8 FROM session_scores")
    shown = await scoring.reader.score(claimed.score_id)
    assert shown is not None
    assert (row["status"], row["attempts_burned"], row["spent_s"]) == ("pending", int(burns), 3)
    assert due_s == pytest.approx(100, abs=20)
    assert (shown["waiting_for"], shown["waiting_for_text"]) == ("quota", "no money")
    assert (await scoring.events(claimed.score_id))[-1] == "waiting_retry"
    assert await scoring.claim() == []
    await scoring.make_due()
    [again] = await scoring.claim()
    assert (again.attempt, again.attempts_burned, again.nonce) == (2, int(burns), claimed.nonce)


def _put_back(scoring: Scoring, held: ClaimedScore, **changes: Any) -> Awaitable[Any]:
    how: dict[str, Any] = {"due_s": 10, "waiting_reason": "retry", "burns": True, "spent_s": 3}
    return scoring.leases.put_back(held, **how | changes)


async def _pass_time(scoring: Scoring, seconds: float) -> None:
    """Move the leases and starts of all attempts into the past."""
    await scoring.rows(
        "WITH moved AS (UPDATE scoring_events SET created_at = created_at - make_interval(secs => $1)) "
        "UPDATE session_scores SET lease_expires_at = lease_expires_at - make_interval(secs => $1)",
        seconds,
    )
