"""An event may be ahead of its session: the session is looked for within the grace period, cheaply."""

from collections.abc import AsyncIterator

import pytest

from attempting import Service, a_timeline, open_service
from fakes import ANALYSIS, MISSING_TOOLS, FakeJudge
from tarsy_scoring.errors import SessionNotFound, SessionNotTerminal
from tarsy_scoring.scoring.attempt import Finished
from tarsy_scoring.timeline.model import Timeline

MOST_LOOKS = 12
NOT_THERE, RUNS, EMPTY = SessionNotFound("none"), SessionNotTerminal("runs"), a_timeline(stages=())


@pytest.fixture
async def service(database_url: str) -> AsyncIterator[Service]:
    async with open_service(database_url) as opened:
        yield opened


async def look(service: Service, found: Timeline | Exception, judge: FakeJudge | None = None) -> Finished:
    """Let time pass until the score is due, then claim it and find this at its source."""
    pass_time = """
    UPDATE session_scores SET next_attempt_at = now(), created_at = created_at - greatest(next_attempt_at - now(), '0')
    """
    await service.database.once(lambda c: c.execute(pass_time))
    return await service.attempt(await service.claim(), judge or FakeJudge(), found)


async def phases(service: Service) -> list[str]:
    """The events so far, whose sequence has no gap."""
    rows = await service.database.fetch("SELECT payload FROM scoring_events ORDER BY sequence")
    events = [r["payload"] for r in rows]
    assert [e["sequence"] for e in events] == [*range(1, len(events) + 1)]
    return [e.get("phase") or e["type"].removeprefix("scoring.") for e in events]


ATTEMPT = ["started", "gathering_context"]
FIRST_LOOK = ["queued", *ATTEMPT, "waiting_retry"]


@pytest.mark.parametrize(
    ("found", "status", "error_kind", "last_look"),
    [
        pytest.param(NOT_THERE, "failed", "session_not_found", ["failed"], id="never there"),
        pytest.param(RUNS, "failed", "session_not_terminal", ["failed"], id="never ends"),
        pytest.param(EMPTY, "cancelled", "nothing_to_judge", [*ATTEMPT, "failed"], id="never has an event"),
    ],
)
async def test_a_session_that_never_comes(
    service: Service, found: Timeline | Exception, status: str, error_kind: str, last_look: list[str]
) -> None:
    """
    At most a dozen looks within two minutes, and the events of the first and the last one. The last look takes an
    empty session as it is, so it is an attempt.
    """
    await service.request()
    looks = 1
    while (await look(service, found)).outcome == "put_back":
        assert (waiting := (await service.database.fetch("SELECT * FROM session_scores"))[0])["status"] == "pending"
        assert (waiting["waiting_reason"], waiting["error_kind"]) == ("session", None)
        looks += 1

    [row] = await service.database.fetch("SELECT * FROM session_scores")
    assert (row["status"], row["error_kind"], row["attempt"]) == (status, error_kind, 1 + last_look.count("started"))
    assert 6 <= looks <= MOST_LOOKS
    assert await phases(service) == [*FIRST_LOOK, *last_look]


@pytest.mark.parametrize("found", [NOT_THERE, EMPTY], ids=["not found", "without events"])
async def test_a_session_that_comes_at_the_third_look(service: Service, found: Timeline | Exception) -> None:
    """The look that finds it becomes the second attempt; the look before it left no trace."""
    await service.request()
    await look(service, found)
    await look(service, found)
    judge = FakeJudge(ANALYSIS, MISSING_TOOLS)

    finished = await look(service, a_timeline(), judge)

    [row] = await service.database.fetch("SELECT * FROM session_scores")
    assert (finished.outcome, row["status"], row["attempt"], row["attempts_burned"]) == ("completed", "completed", 2, 0)
    assert finished.fields["attempt"] == 2
    judged = ["analyzing_methodology", "identifying_missing_tools", "storing", "completed"]
    assert await phases(service) == [*FIRST_LOOK, *ATTEMPT, *judged]


async def test_a_look_without_a_session_takes_two_transactions(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim, which many scores share, and the return."""
    await service.request()
    await look(service, NOT_THERE)
    await service.database.once(lambda c: c.execute("UPDATE session_scores SET next_attempt_at = now()"))
    once, transactions = service.database.once, 0

    async def counted(work):  # type: ignore[no-untyped-def]
        nonlocal transactions
        transactions += 1
        return await once(work)

    monkeypatch.setattr(service.database, "once", counted)
    await service.attempt(await service.claim(), FakeJudge(), NOT_THERE)

    assert transactions == 2
