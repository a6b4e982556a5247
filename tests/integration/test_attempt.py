"""One attempt, from the claim to its stored end: every way it may end, on a real database."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from attempting import HASHES, Service, a_timeline, open_service
from builders import METHODOLOGY
from fakes import ANALYSIS, MISSING_TOOLS, FakeJudge
from tarsy_scoring.errors import AttemptTimedOut, JudgeUnavailable, LeaseLost, TimelineUnavailable, WaitFor
from tarsy_scoring.events import SOURCE_RESCORE
from tarsy_scoring.queue.admission import Answer, Policy, Priority, Request
from tarsy_scoring.queue.claims import ClaimedScore
from tarsy_scoring.queue.store import Step
from tarsy_scoring.scores.session_list import Filters, list_sessions
from tarsy_scoring.timeline.model import Evidence, Timeline

DAY = datetime(2026, 3, 2, tzinfo=UTC)


@pytest.fixture
async def service(database_url: str) -> AsyncIterator[Service]:
    async with open_service(database_url) as opened:
        yield opened


@pytest.fixture
async def claimed(service: Service) -> ClaimedScore:
    await service.request()
    return await service.claim()


async def test_a_score_is_stored_whole(service: Service) -> None:
    await service.request(criteria=METHODOLOGY)
    claimed = await service.claim()
    finished = await service.attempt(claimed, FakeJudge(ANALYSIS.replace("(E3)", "(E3, E99)"), MISSING_TOOLS))

    score = await service.score(claimed.score_id)
    assert finished.outcome == score["status"] == "completed"
    assert score["total_score"] == 62
    assert score["score_breakdown"] == {
        "logical_flow": 15, "consistency": 17, "tool_relevance": 14, "synthesis_quality": 16,
    }  # fmt: skip
    assert "read the logs" in score["score_analysis"]
    assert [t["tool_name"] for t in score["missing_tools"]] == ["read-file"]
    assert [t["kind"] for t in score["turns"]] == ["analysis", "missing_tools"]
    assert score["usage"] == {
        "input_tokens": 20_000, "cached_input_tokens": 0, "output_tokens": 200, "cost_usd": 0.02,
    }  # fmt: skip
    assert (score["criteria_hash"], score["is_current_criteria"]) == (HASHES[score["criteria"]], True)
    assert score["coverage"]["shown_share"] == 1
    assert score["grounding"] == {
        "checked": 2, "held": 1, "share": 0.5,
        "failed": [{"entry": "E99", "quotation": None, "reason": "no_such_entry", "found_in": None}],
    }  # fmt: skip
    assert score["judge_fingerprint"]
    events = await service.events(claimed.score_id)
    assert [e.get("phase", e["type"]) for e in events] == [
        "queued",
        "scoring.started",
        "gathering_context",
        "analyzing_methodology",
        "identifying_missing_tools",
        "storing",
        "scoring.completed",
    ]
    assert [e["sequence"] for e in events] == [1, 2, 3, 4, 5, 6, 7]
    assert events[-1]["total_score"] == 62
    listed = (await list_sessions(service.reader, Filters(), "newest", None, 1)).sessions[0].score
    assert events[-1]["summary"] == score["summary"] == (listed and listed.summary)
    assert score["score_analysis"].startswith(score["summary"])
    row = await service.database.once(lambda c: c.fetchrow("SELECT * FROM scoring_criteria"))
    assert (row["criteria_hash"], "system_prompt" in str(row["content"])) == (score["criteria_hash"], True)
    hashes = row["content"]["prompt_hashes"]
    assert score["prompt_hashes"] == {name: hashes[name] for name in ("prompt", "follow_up_prompt")}


@pytest.mark.parametrize(
    ("by_event", "by_source", "is_real", "expected"),
    [
        pytest.param(None, DAY, True, DAY, id="only-the-source-says-it"),
        pytest.param(DAY + timedelta(days=1), DAY, True, DAY + timedelta(days=1), id="the-event-says-it-too"),
        pytest.param(None, DAY, False, None, id="the-source-has-synthetic-times"),
    ],
)
async def test_the_source_gives_the_end_of_a_session(
    service: Service, by_event: datetime | None, by_source: datetime, is_real: bool, expected: datetime | None
) -> None:
    """Where its event has none, although the event gave all else; lists and trends then have the day."""
    await service.request(alert_type="Restarts", completed_at=by_event)
    timeline = a_timeline(completed_at=by_source, has_real_times=is_real)

    await service.attempt(await service.claim(), FakeJudge(ANALYSIS, MISSING_TOOLS), timeline)

    stored = await service.database.once(lambda c: c.fetchval("SELECT completed_at FROM sessions"))
    page = await list_sessions(service.reader, Filters(), "newest", None, 1)
    assert stored == expected
    assert expected is None or page.sessions[0].ended_at == expected


@pytest.mark.parametrize(
    ("timeline", "error_kind"),
    [
        pytest.param(TimelineUnavailable("away"), "timeline_unavailable", id="timeline-unavailable"),
        pytest.param(
            a_timeline(evidence=Evidence({"events": 3}, {"events": 2}, ("event e3",))),
            "evidence_incomplete",
            id="evidence-missing",
        ),
    ],
)
async def test_a_transient_error_is_retried(
    service: Service, claimed: ClaimedScore, timeline: Timeline | Exception, error_kind: str
) -> None:
    """Transient errors put the score back with backoff and burn an attempt. A score that waits has no error."""
    finished = await service.attempt(claimed, FakeJudge(), timeline)

    score = await service.score(claimed.score_id)
    assert finished.outcome == "put_back"
    assert (score["status"], score["waiting_for"]) == ("pending", "retry")
    assert score["waiting_for_text"].startswith(f"attempt 1 failed ({error_kind}): ")
    assert (score["error_kind"], score["error_message"]) == (None, None)
    assert (await service.claim_now()).attempts_burned == 1


async def test_a_last_attempt_that_ran_out_of_time_is_timed_out(service: Service) -> None:
    """A timed-out attempt is retried like a transient error; the last one ends the score as `timed_out`."""
    await service.request()

    await service.attempt(await service.claim(), FakeJudge(AttemptTimedOut("600 s")), max_attempts=2)
    claimed = await service.claim_now()
    await service.attempt(claimed, FakeJudge(AttemptTimedOut("600 s")), max_attempts=2)

    score = await service.score(claimed.score_id)
    assert (score["status"], score["error_kind"]) == ("timed_out", "attempt_timed_out")


async def test_a_score_past_its_deadline_is_not_retried(service: Service, claimed: ClaimedScore) -> None:
    await service.attempt(claimed, FakeJudge(JudgeUnavailable("503")), deadline_s=5.0)

    score = await service.score(claimed.score_id)
    assert (score["status"], score["error_kind"]) == ("timed_out", "deadline_passed")


async def test_waiting_burns_nothing(service: Service, claimed: ClaimedScore) -> None:
    """A score that waits for the provider goes back with a due time, also on its last attempt."""
    due_s = 120
    await service.attempt(claimed, FakeJudge(WaitFor("429", due_s, "rate_limit")), max_attempts=1)

    score = await service.score(claimed.score_id)
    assert (score["status"], score["waiting_for"], score["waiting_for_text"]) == ("pending", "rate_limit", "429")
    assert (score["error_kind"], score["error_message"]) == (None, None)
    due = await service.database.once(
        lambda c: c.fetchval("SELECT extract(epoch FROM next_attempt_at - now())::float8 FROM session_scores")
    )
    assert due_s - 5 < due <= due_s
    assert (await service.claim_now()).attempts_burned == 0


async def test_a_turn_is_paid_for_once(service: Service) -> None:
    """A later attempt uses the stored turn and pays only for what is missing."""
    await service.request()
    first = FakeJudge(ANALYSIS, JudgeUnavailable("503"))
    await service.attempt(await service.claim(), first)
    claimed = await service.claim_now()
    second = FakeJudge(MISSING_TOOLS)

    finished = await service.attempt(claimed, second)

    assert (first.kinds, second.kinds) == (["analysis", "missing_tools"], ["missing_tools"])
    assert second.asked[0][1][:-1] == first.asked[1][1][:-1], "the shared prefix must be byte-identical"
    score = await service.score(claimed.score_id)
    assert (finished.outcome, score["total_score"], len(score["turns"])) == ("completed", 62, 2)


async def test_samples_wait_until_the_first_turn_is_stored(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples are asked concurrently; one of them stores the first turn, and the others wait for it."""
    await service.request()
    claimed, judge = await service.claim(), FakeJudge(ANALYSIS, ANALYSIS, ANALYSIS, MISSING_TOOLS)
    record, is_storing, may_store = service.store.record, asyncio.Event(), asyncio.Event()

    async def record_late(step: Step) -> None:
        if step.turns:
            is_storing.set()
            await may_store.wait()
        await record(step)

    monkeypatch.setattr(service.store, "record", record_late)
    config = service.settings.config
    three = config.model_copy(update={"defaults": config.defaults.model_copy(update={"samples": 3})})
    attempt = asyncio.create_task(service.attempt(claimed, judge, config=three))
    await asyncio.wait_for(is_storing.wait(), 30)
    for _ in range(20):
        await asyncio.sleep(0)
    asked_meanwhile = judge.kinds[1:]
    may_store.set()

    assert (await attempt).outcome == "completed"
    assert asked_meanwhile == []
    assert judge.kinds == ["analysis", "sample", "sample", "missing_tools"]


async def test_a_stored_turn_answers_only_the_same_question(service: Service) -> None:
    await service.request()
    await service.attempt(await service.claim(), FakeJudge(ANALYSIS, JudgeUnavailable("503")))
    claimed = await service.claim_now()
    judge = FakeJudge(ANALYSIS.replace("62", "62"), MISSING_TOOLS)

    await service.attempt(claimed, judge, a_timeline(final_analysis="something else"))

    assert judge.kinds == ["analysis", "missing_tools"]
    assert [t["kind"] for t in (await service.score(claimed.score_id))["turns"]] == [
        "analysis",
        "analysis",
        "missing_tools",
    ]


@pytest.mark.parametrize("limit", [{"max_attempts": 1}, {"deadline_s": 5.0}], ids=["last-attempt", "deadline"])
async def test_a_failing_second_turn_never_loses_the_score(
    service: Service, claimed: ClaimedScore, limit: dict[str, Any]
) -> None:
    """The score is completed with a flag in place of the report."""
    await service.attempt(claimed, FakeJudge(ANALYSIS, JudgeUnavailable("503")), **limit)

    score = await service.score(claimed.score_id)
    assert (score["status"], score["total_score"]) == ("completed", 62)
    assert score["flags"] == ["missing_tools_unavailable"]


async def test_the_source_names_the_chain_where_the_event_did_not(service: Service) -> None:
    """At the first claim the session's own chain binds criteria and hash."""
    await service.request(chain_id=None)
    claimed = await service.claim()
    assert (claimed.chain_id, claimed.criteria) == (None, None)

    await service.attempt(claimed, FakeJudge(ANALYSIS, MISSING_TOOLS))

    score = await service.score(claimed.score_id)
    assert (score["chain_id"], score["criteria"]) == ("k", "investigation")


def disable_chain(service: Service) -> None:
    """Do not score sessions of chain `k` automatically."""
    config = service.settings.config
    off = config.defaults.model_copy(update={"enabled": False})
    service.settings = service.settings.model_copy(update={"config": config.model_copy(update={"chains": {"k": off}})})
    service.inbox.policy = Policy(service.settings, HASHES)


async def test_a_chain_that_turns_out_to_be_disabled_is_not_scored(service: Service) -> None:
    """The score ends as cancelled, and the request records why."""
    await service.request(chain_id=None, event_id="ev-1")
    claimed = await service.claim()
    disable_chain(service)

    finished = await service.attempt(claimed, FakeJudge())

    score = await service.score(claimed.score_id)
    assert (finished.outcome, score["status"], score["chain_id"]) == ("cancelled", "cancelled", "k")
    (request,) = await service.inbox.requests_of_event("ev-1")
    assert request["disposition"] == "disabled"


ALICE = {"requested_by": "alice", "priority": Priority.PEOPLE}


async def ask_by_event(service: Service) -> None:
    await service.request(source=SOURCE_RESCORE, force=True, chain_id=None, session_status=None, **ALICE)


async def ask_over_http(service: Service) -> None:
    asked = Request(uuid.uuid4(), "one", "api", **ALICE)
    answer = await service.inbox.request_score(asked, is_verified=True)
    assert isinstance(answer, Answer)
    assert answer.disposition == "in_progress"


@pytest.mark.parametrize("is_claimed", [False, True], ids=["before-the-claim", "after-the-claim"])
@pytest.mark.parametrize("ask", [ask_by_event, ask_over_http])
async def test_a_persons_request_keeps_the_automatic_score_that_it_joined(
    service: Service, ask: Callable[[Service], Awaitable[None]], is_claimed: bool
) -> None:
    """The chain declines automatic requests only, so the score becomes that of the person."""
    await service.request(chain_id=None)
    if is_claimed:
        claimed = await service.claim()
        await ask(service)
    else:
        await ask(service)
        claimed = await service.claim()
    disable_chain(service)

    finished = await service.attempt(claimed, FakeJudge(ANALYSIS, MISSING_TOOLS))

    score = await service.score(claimed.score_id)
    assert (finished.outcome, score["status"], score["score_triggered_by"]) == ("completed", "completed", "alice")
    row = await service.database.once(lambda c: c.fetchrow("SELECT priority FROM session_scores"))
    assert row["priority"] == Priority.PEOPLE
    (*_, completed) = await service.events(claimed.score_id)
    assert completed["score_triggered_by"] == "alice"


async def test_a_worker_without_its_lease_writes_nothing(service: Service, claimed: ClaimedScore) -> None:
    """No turn, no event and no end is stored after the lease is lost."""
    await service.leases.put_back(claimed, due_s=0, waiting_reason=None, burns=False, spent_s=0)
    before = len(await service.events(claimed.score_id))

    with pytest.raises(LeaseLost):
        await service.attempt(claimed, FakeJudge(ANALYSIS, MISSING_TOOLS))

    assert len(await service.events(claimed.score_id)) == before
    assert (await service.score(claimed.score_id))["turns"] == []


# --- usage of stored turns -----------------------------------------------------------------------------


async def test_usage_has_earlier_turns_when_the_last_attempt_asks_no_judge(
    service: Service, claimed: ClaimedScore
) -> None:
    await service.attempt(claimed, FakeJudge(ANALYSIS, JudgeUnavailable("away")))
    again = await service.claim_now()

    await service.attempt(again, FakeJudge(), TimelineUnavailable("away"), max_attempts=2)

    score = await service.score(claimed.score_id)
    assert (score["status"], score["usage"]["input_tokens"], score["usage"]["cost_usd"]) == ("failed", 10_000, 0.01)


async def test_turns_of_a_provider_that_the_chain_no_longer_has_are_not_continued(service: Service) -> None:
    """It is still configured, for other chains."""
    await service.request()
    claimed = await service.claim()
    await service.attempt(claimed, FakeJudge(ANALYSIS, JudgeUnavailable("away")))
    config = service.settings.config
    other = config.providers | {"spare": config.providers["default"]}
    moved = config.model_copy(
        update={"providers": other, "defaults": config.defaults.model_copy(update={"providers": ("spare",)})}
    )
    service.settings = service.settings.model_copy(update={"config": moved})
    spare, default = FakeJudge(ANALYSIS, MISSING_TOOLS), FakeJudge()

    finished = await service.scorer({"default": default, "spare": spare}).attempt(await service.claim_now())

    assert (finished.outcome, spare.kinds, default.kinds) == ("completed", ["analysis", "missing_tools"], [])
