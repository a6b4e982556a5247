"""How scores end: the stored judgement, one terminal event, and the promotion of deferred requests."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import asyncpg
import pytest

from builders import (
    DEFAULT_CRITERIA,
    HASHES,
    OTHER_CRITERIA,
    Scoring,
    completion,
    failure,
    rescore,
    session_completed,
    step,
    turn,
)
from tarsy_scoring.errors import LeaseLost
from tarsy_scoring.judge.verdict import MissingTool
from tarsy_scoring.queue.admission import Request
from tarsy_scoring.queue.claims import ClaimedScore

TERMINAL = {"completed", "failed"}


async def test_a_judgement_is_read_as_it_was_stored(scoring: Scoring) -> None:
    claimed = await scoring.claimed()
    await scoring.store.record(step(claimed, "analyzing_methodology", 1))
    judged: dict[str, Any] = {
        "total_score": 67,
        "score_analysis": "However, it failed to look at the logs (E17).\n\n«67»",
        "score_breakdown": {"logical_flow": 15.5, "synthesis": 20},
        "missing_tools_analysis": "1. **read-file**: never seen",
        "judge_fingerprint": "f" * 64,
        "samples": [{"total_score": 60}, {"total_score": 67}],
        "failure_tags": ["premature_conclusion"],
        "flags": ["injection_suspected"],
        "coverage": {"shown_share": 0.5, "cut_entries": ["E3"]},
        "evidence": {"expected": {"events": 2}, "read": {"events": 2}, "missing": []},
        "usage": {"input_tokens": 10, "cached_input_tokens": None, "output_tokens": 2, "cost_usd": 0.1},
    }
    tools = [MissingTool("read-file", "the script was never seen"), MissingTool("get-logs", "no logs")]

    await scoring.store.end(completion(claimed, missing_tools=tools, **judged))

    shown = await scoring.reader.score(claimed.score_id)
    assert shown is not None
    assert {name: shown[name] for name in judged} == judged
    assert [(t["tool_name"], t["rationale"]) for t in shown["missing_tools"]] == [
        ("read-file", "the script was never seen"),
        ("get-logs", "no logs"),
    ]
    first = turn()
    assert shown["turns"] == [{name: getattr(first, name) for name in shown["turns"][0]}]
    assert (shown["status"], shown["criteria_hash"]) == ("completed", HASHES[DEFAULT_CRITERIA])
    assert shown["is_current_criteria"] is True
    assert shown["scored_at"] == shown["completed_at"] is not None
    assert "current_stage" not in shown
    assert "waiting_for" not in shown


async def test_a_score_without_a_judge_has_no_number(scoring: Scoring) -> None:
    """Its total and its JSON columns are SQL NULL."""
    claimed = await scoring.claimed()

    await scoring.store.end(completion(claimed, total_score=None, score_breakdown=None, coverage=None))

    row = await scoring.score(claimed.score_id)
    assert (row["status"], row["total_score"], row["score_breakdown"], row["coverage"]) == ("completed", *[None] * 3)
    nulls = "SELECT score_breakdown IS NULL AND coverage IS NULL FROM session_scores"
    assert await scoring.value(nulls) is True


async def test_an_end_frees_the_lease_and_sums_the_usage(scoring: Scoring) -> None:
    claimed = await scoring.claimed()
    await scoring.leases.put_back(
        claimed, due_s=0, waiting_reason="retry", burns=True, spent_s=10, waiting_for_text="x"
    )
    [claimed] = await scoring.claim()

    await scoring.store.end(failure(claimed, status="timed_out", attempts_burned=1, spent_s=2.5))

    row = await scoring.score(claimed.score_id)
    assert (row["status"], row["attempts_burned"], row["spent_s"]) == ("timed_out", 2, 12.5)
    lease = ("lease_owner", "lease_token", "lease_expires_at", "waiting_reason", "waiting_for_text")
    assert [row[name] for name in lease] == [None] * 5
    assert row["error_kind"] == "refused"


@pytest.mark.parametrize("at_once", [True, False], ids=["at-once", "one-after-the-other"])
async def test_a_score_ends_once(scoring: Scoring, at_once: bool) -> None:
    claimed = await scoring.claimed()
    ends = [completion(claimed, missing_tools=[MissingTool("a", "b")]), failure(claimed)]

    results: list[BaseException | None] = []
    for share in [ends] if at_once else [ends[:1], ends[1:]]:
        results += await asyncio.gather(*(scoring.store.end(e) for e in share), return_exceptions=True)

    assert [type(r) for r in results] == [type(None), LeaseLost]
    assert (await scoring.score(claimed.score_id))["status"] == "completed"
    assert [e for e in await scoring.events(claimed.score_id) if e in TERMINAL] == ["completed"]


async def test_an_invalid_end_does_not_fail_its_batch(scoring: Scoring) -> None:
    await scoring.accept(*(session_completed(f"session-{n}") for n in range(4)))
    good, over, nul, last = await scoring.claim()

    results = await asyncio.gather(
        scoring.store.end(completion(good)),
        scoring.store.end(completion(over, total_score=101)),
        scoring.store.end(completion(nul, score_analysis="a\0b")),
        scoring.store.end(completion(last)),
        return_exceptions=True,
    )

    refused = [asyncpg.CheckViolationError, asyncpg.UntranslatableCharacterError]
    assert [type(r) for r in results] == [type(None), *refused, type(None)]
    statuses = [(await scoring.score(c.score_id))["status"] for c in (good, over, nul, last)]
    assert statuses == ["completed", "in_progress", "in_progress", "completed"]


# --- deferred requests ---------------------------------------------------------------------------------


async def _complete(scoring: Scoring, claimed: ClaimedScore) -> None:
    await scoring.store.end(completion(claimed))


async def _fail(scoring: Scoring, claimed: ClaimedScore) -> None:
    await scoring.store.end(failure(claimed))


async def _lose_last_worker(scoring: Scoring, claimed: ClaimedScore) -> None:
    await scoring.lapse(claimed)
    assert await scoring.take_back(max_attempts=1) == {"session-1": "failed"}


async def _cancel_running(scoring: Scoring, claimed: ClaimedScore) -> None:
    assert await scoring.leases.cancel(claimed.score_id, "alice")


async def _cancel_pending(scoring: Scoring, claimed: ClaimedScore) -> None:
    await scoring.leases.put_back(claimed, due_s=60, waiting_reason="retry", burns=True, spent_s=1)
    assert await scoring.leases.cancel(claimed.score_id, "alice")


@pytest.mark.parametrize("end", [_complete, _fail, _lose_last_worker, _cancel_running, _cancel_pending])
async def test_every_end_promotes_the_deferred_request(
    scoring: Scoring, end: Callable[[Scoring, ClaimedScore], Awaitable[None]]
) -> None:
    running = await scoring.claimed()
    waiting = rescore(criteria=OTHER_CRITERIA, requested_by="bob")
    assert await scoring.accept(waiting) == ["deferred"]

    await end(scoring, running)

    [new] = await scoring.rows("SELECT * FROM session_scores WHERE status = 'pending'")
    [stored] = await scoring.rows("SELECT * FROM scoring_requests WHERE request_id = $1", waiting.request_id)
    assert (new["request_id"], new["criteria"], new["score_triggered_by"]) == (
        waiting.request_id,
        OTHER_CRITERIA,
        "bob",
    )
    assert (new["chain_id"], new["criteria_hash"]) == ("kubernetes", HASHES[OTHER_CRITERIA])
    assert (stored["disposition"], stored["score_id"]) == ("accepted", new["score_id"])
    events = await scoring.events()
    assert (events[-1], events[-2] in TERMINAL) == ("queued", True)
    assert len([e for e in events if e in TERMINAL]) == 1


async def test_a_deferred_request_that_a_score_answers_is_not_promoted(scoring: Scoring) -> None:
    """It gets the disposition `already_scored` and that score."""
    first = await scoring.claimed(criteria=OTHER_CRITERIA)
    await scoring.store.end(completion(first))
    running = await scoring.claimed()
    await scoring.accept(waiting := rescore(criteria=OTHER_CRITERIA, force=False))

    await scoring.store.end(failure(running))

    [stored] = await scoring.rows("SELECT * FROM scoring_requests WHERE request_id = $1", waiting.request_id)
    assert (stored["disposition"], stored["score_id"]) == ("already_scored", first.score_id)
    assert await scoring.value("SELECT count(*) FROM session_scores") == 2


async def test_accepting_and_ending_at_the_same_time(scoring: Scoring) -> None:
    """No request may stay deferred without an open score whose end promotes it."""
    await scoring.accept(*(session_completed(f"session-{n}") for n in range(30)))
    running = await scoring.claim()
    wishes = [rescore(f"session-{n}", criteria=OTHER_CRITERIA) for n in range(30)]

    async def accept_all(requests: Sequence[Request]) -> None:
        for request in requests:
            await scoring.accept(request)

    await asyncio.gather(
        accept_all(wishes[:15]), accept_all(wishes[15:]), *(scoring.store.end(completion(c)) for c in running)
    )

    assert {(await scoring.dispositions())[w.request_id] for w in wishes} == {"accepted"}
    pending = await scoring.rows("SELECT criteria FROM session_scores WHERE status = 'pending'")
    assert [r["criteria"] for r in pending] == [OTHER_CRITERIA] * 30


# --- cancel --------------------------------------------------------------------------------------------


async def test_a_score_that_is_not_open_cannot_be_cancelled(scoring: Scoring) -> None:
    claimed = await scoring.claimed()
    await scoring.store.end(completion(claimed))
    before = await scoring.everything()

    assert await scoring.leases.cancel(claimed.score_id, "bob") is False
    assert await scoring.leases.cancel(uuid.uuid4(), "bob") is False
    assert await scoring.everything() == before


async def test_cancelling_and_ending_at_once_ends_the_score_once(scoring: Scoring) -> None:
    await scoring.accept(*(session_completed(f"session-{n}") for n in range(40)))
    running = await scoring.claim()

    cancelled, ended = await asyncio.gather(
        asyncio.gather(*(scoring.leases.cancel(c.score_id, "bob") for c in running)),
        asyncio.gather(*(scoring.store.end(completion(c)) for c in running), return_exceptions=True),
    )

    assert [c is isinstance(e, LeaseLost) for c, e in zip(cancelled, ended, strict=True)] == [True] * 40
    for claimed, was_cancelled in zip(running, cancelled, strict=True):
        terminal = [e for e in await scoring.events(claimed.score_id) if e in TERMINAL]
        assert terminal == ["failed" if was_cancelled else "completed"]
